"""Likelihoods made by name, and weakly informative priors on their parameters.

Priors, with s_a the standard deviation of output a:
scale        LogNormal(½ log 0.05 + log s_a, 0.75): its square has the prior of a noise variance
df − 2       Gamma(2, 0.1), which favors heavy tails slightly (Juárez and Steel 2010) and keeps the variance finite
dispersion   LogNormal(−1, 1.5)
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from gpytorch.priors import GammaPrior
from torch import Tensor

from ovkgp import losses
from ovkgp.exceptions import InputError, OptionError
from ovkgp.inference.likelihoods.base import Likelihood, check_outputs
from ovkgp.inference.likelihoods.classification import Bernoulli, Softmax
from ovkgp.inference.likelihoods.counts import NegativeBinomial, Poisson
from ovkgp.inference.likelihoods.gaussian import Gaussian
from ovkgp.inference.likelihoods.location import MIN_DF, Huber, LocationLikelihood, StudentT, column_std
from ovkgp.inference.likelihoods.log_cosh import LogCosh
from ovkgp.inference.likelihoods.per_output import PerOutput
from ovkgp.inference.likelihoods.piecewise import AsymmetricHuber, EpsilonInsensitive
from ovkgp.inference.likelihoods.two_sided import AsymmetricLaplace, Laplace
from ovkgp.inference.training.initialization import register_noise_prior
from ovkgp.inference.training.priors import DEFAULT_PRIORS, PriorRegistry, log_normal

LIKELIHOODS: dict[str, type[Likelihood]] = {
    kind.name: kind
    for kind in (
        *(Gaussian, StudentT, Laplace, AsymmetricLaplace, Huber, AsymmetricHuber, EpsilonInsensitive, LogCosh),
        *(Bernoulli, Poisson, NegativeBinomial, Softmax),
    )
}

Spec = str | Likelihood | Sequence["str | Likelihood"]

EXCESS_DF_PRIOR = (2.0, 0.1)  # shape and rate of the Gamma prior of df − 2
DISPERSION_PRIOR = (-1.0, 1.5)  # location and scale of the log-normal prior of a dispersion


def make_likelihood(spec: Spec, num_outputs: int) -> Likelihood:
    """Make a likelihood of p outputs from its name, or one per output from a list.

    Parameters
    ----------
    spec : str, Likelihood or sequence of these
        Name ("gaussian", "student_t", "laplace", "asymmetric_laplace", "huber", "asymmetric_huber",
        "epsilon_insensitive", "log_cosh", "bernoulli", "poisson", "negative_binomial", "softmax"), a `Likelihood` of p outputs, or a list of p of these, one per output. A
        `Likelihood` in a list has one output; softmax couples all outputs and cannot be in a list.
    num_outputs : int
        Number of outputs p.

    Returns
    -------
    Likelihood
        The likelihood; `spec` itself if it is one.

    Raises
    ------
    InputError
        If `spec` is for another number of outputs.
    OptionError
        If `spec` is not a known name, a `Likelihood` or a list of these.

    Examples
    --------
    >>> from ovkgp.inference.likelihoods import make_likelihood
    >>> make_likelihood("student_t", 2).scale.shape, make_likelihood(["gaussian", "poisson"], 2).is_real.tolist()
    (torch.Size([2]), [True, False])
    """
    if isinstance(spec, Likelihood):
        if spec.num_outputs != num_outputs:
            raise InputError(f"The likelihood has {spec.num_outputs} outputs, but the model has {num_outputs}.")
        return spec
    if isinstance(spec, str) and spec in LIKELIHOODS:
        return LIKELIHOODS[spec](num_outputs)
    if isinstance(spec, str) or not isinstance(spec, Sequence):
        names = ", ".join(map(repr, LIKELIHOODS))
        raise OptionError(f"likelihood must be one of {names}, a Likelihood, or a list of them, got {spec!r}.")
    if len(spec) != num_outputs:
        raise InputError(f"The list of likelihoods has {len(spec)} entries, but the model has {num_outputs} outputs.")
    if "softmax" in [member for member in spec if isinstance(member, str)]:
        raise OptionError("softmax is not supported in a list, as it couples all outputs. Use likelihood='softmax'.")
    return PerOutput([make_likelihood(member, 1) for member in spec])


def likelihood_of_loss(loss: losses.Loss, noise: float, levels: Tensor) -> Likelihood | None:
    """Make the normalized likelihood with density ∝ exp(−ℓ(θ_j, f, y)/σ²) of p outputs.

    Parameters
    ----------
    loss : Loss
        Loss ℓ of one number.
    noise : float
        σ².
    levels : Tensor of shape (p,)
        Level θ of each output, for losses that depend on it.

    Returns
    -------
    Likelihood or None
        Likelihood with fixed parameters; None if the loss has none, as hinge losses and envelopes.

    References
    ----------
    LT §6.1, BO §6.3

    Examples
    --------
    >>> import torch
    >>> from ovkgp.inference.likelihoods.factory import likelihood_of_loss
    >>> from ovkgp.losses import Huber
    >>> likelihood = likelihood_of_loss(Huber(3.0), noise=4.0, levels=torch.full((1,), 0.5))
    >>> likelihood.scale.item(), likelihood.kappa
    (2.0, 1.5)
    """
    p, std = len(levels), math.sqrt(noise)
    if type(loss) is losses.Square:
        return Gaussian(p, noise=noise)
    if type(loss) is losses.Huber:
        return Huber(p, scale=std, kappa=loss.kappa / std)
    if type(loss) is losses.EpsilonInsensitive:
        return EpsilonInsensitive(p, scale=std, epsilon=loss.epsilon / std)
    if type(loss) is losses.LogCosh:
        return LogCosh(p, scale=noise, nu=loss.nu * noise)
    if type(loss) not in (losses.Pinball, losses.SmoothedPinball):
        return None

    def of_level(level: float, num_outputs: int) -> Likelihood:
        if type(loss) is losses.Pinball:
            return AsymmetricLaplace(num_outputs, scale=noise, tau=level)
        return AsymmetricHuber(num_outputs, scale=noise, tau=level, kappa=loss.kappa / noise)

    if bool((levels == levels[0]).all()):
        return of_level(levels[0].item(), p)
    return PerOutput([of_level(level, 1) for level in levels.tolist()])


def register_likelihood_priors(likelihood: Likelihood, Y: Tensor | None = None, std: Tensor | None = None) -> None:
    """Register priors for the trained parameters of a likelihood that have none, in place.

    Parameters
    ----------
    likelihood : Likelihood
        Likelihood to modify.
    Y : Tensor of shape (n, p) or None, default=None
        Outputs that set the units of the priors, NaN where missing. If None, `std` is used.
    std : Tensor of shape (p,) or None, default=None
        Standard deviations of real outputs. If None and Y is None, the outputs are assumed to be standardized.

    Examples
    --------
    >>> from ovkgp.inference.likelihoods import StudentT, register_likelihood_priors
    >>> likelihood = StudentT(num_outputs=2)
    >>> register_likelihood_priors(likelihood)
    >>> [name for name, *_ in likelihood.named_priors()]
    ['scale_prior', 'df_prior']
    """
    if isinstance(likelihood, PerOutput):
        for j, member in enumerate(likelihood.likelihoods):
            columns = (None if values is None else values[..., [j]] for values in (Y, std))
            register_likelihood_priors(member, *columns)
        return
    std = torch.ones(1, dtype=torch.float64) if std is None else std
    if Y is not None and bool(likelihood.is_real.all()):
        robust = not isinstance(likelihood, Gaussian)
        std = column_std(check_outputs(Y, likelihood.num_outputs), robust).detach().cpu()
    registry, trained = PriorRegistry(likelihood), dict(likelihood.named_parameters(recurse=False))
    if isinstance(likelihood, Gaussian) and likelihood.noise_model.is_trained:
        register_noise_prior(likelihood.noise_model, std)
    if isinstance(likelihood, LocationLikelihood) and "raw_scale" in trained:
        loc, scale = DEFAULT_PRIORS.noise  # of a variance
        registry.add(likelihood, "raw_scale", log_normal(loc / 2 + std.log(), scale / 2))
    if isinstance(likelihood, StudentT) and "raw_df" in trained:
        prior = GammaPrior(*torch.tensor(EXCESS_DF_PRIOR, dtype=torch.float64), validate_args=False)
        registry.add_with_closures(likelihood, "df_prior", likelihood.raw_df, prior, get_excess_df, set_excess_df)
    if isinstance(likelihood, NegativeBinomial) and "raw_dispersion" in trained:
        registry.add(likelihood, "raw_dispersion", log_normal(*DISPERSION_PRIOR))


# Closures at the top level of the module: a lambda could not be pickled.


def get_excess_df(likelihood: StudentT) -> Tensor:
    return likelihood.df - MIN_DF


def set_excess_df(likelihood: StudentT, value: Tensor) -> None:
    likelihood.df = value + MIN_DF
