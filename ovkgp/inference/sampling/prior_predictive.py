"""Draws of hyperparameters from their priors, and of data from a model before it is conditioned on any.

A draw of the prior predictive has hyperparameters θ from their priors, f ~ N(m_θ, K_θ) and noise of variance Σ_θ.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy

import numpy as np
import torch
from gpytorch.priors import Prior
from linear_operator import to_dense
from scipy.special import gammainc, gammaincinv
from torch import Tensor
from torch.distributions import Gamma, MultivariateNormal

from ovkgp.checks import as_seed, check_integer
from ovkgp.exceptions import OptionError
from ovkgp.inference.model.observations import validate_inputs
from ovkgp.inference.posteriors.exact import make_prior_features
from ovkgp.inference.posteriors.posterior import spawn_seeds
from ovkgp.inference.training.priors import PriorSite, trained_sites
from ovkgp.kernels import components
from ovkgp.kernels.evaluation import evaluate_kernel
from ovkgp.kernels.outputs.matrices import thin_root

BOUND_MARGIN = 1e-12  # distance of a draw from the end of an interval, relative to its length
MAX_TRIES = 1000
"""Maximum number of draws of a prior without a quantile function until all values lie inside the bounds."""
MAX_EXACT_POINTS = 2000
"""Up to this many points (values, if the kernel is not separable) a prior function is drawn with the exact kernel."""
NUM_FREQUENCIES = 2000  # number of random frequencies that approximate the kernel for more points
Bounds = tuple[Tensor, Tensor]
Curve = Callable[[Tensor], Tensor]


def draw_prior(gp, draws: int = 1, random_state=None) -> dict[str, Tensor]:
    """Draw hyperparameters from their priors; the model is not changed.

    If a constraint is tighter than a prior, the prior is truncated.

    Parameters
    ----------
    gp : torch.nn.Module
        Model, or any module whose trained parameters all have priors (see `register_data_priors`).
    draws : int, default=1
        Number of draws.
    random_state : int, Generator or None, default=None
        Source of randomness.

    Returns
    -------
    dict of str to tensor
        Raw parameters by qualified name, each (draws, *shape).

    Raises
    ------
    OptionError
        If a trained parameter has no prior, or one that cannot be drawn from.

    Examples
    --------
    >>> from gpytorch.kernels import RBFKernel
    >>> from gpytorch.priors import LogNormalPrior
    >>> from ovkgp.inference import draw_prior
    >>> kernel = RBFKernel(lengthscale_prior=LogNormalPrior(0.0, 1.0)).double()
    >>> draw_prior(kernel, draws=100, random_state=0)["raw_lengthscale"].shape
    torch.Size([100, 1, 1])
    """
    draws, copy = check_integer("the number of draws", draws), deepcopy(gp)
    sites = trained_sites(copy)
    _check_priors(copy, sites)
    streams = np.random.SeedSequence(as_seed(random_state)).spawn(max(len(sites), 1))
    pairs = zip(sites, map(np.random.default_rng, streams), strict=False)
    values = [draw_prior_values(site, draws, rng) for site, rng in pairs]
    trained = {name: one for name, one in copy.named_parameters() if one.requires_grad}
    found = {name: one.new_empty(draws, *one.shape) for name, one in trained.items()}
    for index in range(draws):
        for site, value in zip(sites, values, strict=True):
            _write(site, value[index])
        for name, parameter in trained.items():
            found[name][index] = parameter.detach()
    return found


@torch.no_grad()
def prior_predictive(gp, X, draws: int = 100, noise: bool = True, random_state=None) -> Tensor:
    """Draw data from the prior: one function per draw of the hyperparameters; the model is not changed.

    Parameters
    ----------
    gp : OperatorValuedGP or VariationalGP
        Model whose trained parameters all have priors (see `register_data_priors`).
    X : array-like of shape (m, d)
        Inputs.
    draws : int, default=100
        Number of draws.
    noise : bool, default=True
        Whether to add noise to the latent functions, which are the same with and without it.
    random_state
        As for `draw_prior`, which may raise an OptionError.

    Returns
    -------
    tensor of shape (draws, m, p)
        New observations, or latent functions if `noise` is False.

    Notes
    -----
    Complexity: O(m³ + p³) per draw for a separable kernel and O((m·p)³) for others up to 2000 points or values, and
    that of 2000 random features for more; with a feature map of M features O(m·p·M).

    Examples
    --------
    >>> import torch
    >>> from gpytorch.kernels import RBFKernel
    >>> from ovkgp.inference import OperatorValuedGP, prior_predictive, register_data_priors
    >>> from ovkgp.kernels import DecomposableKernel
    >>> gp = OperatorValuedGP(DecomposableKernel(RBFKernel(), num_outputs=2))
    >>> X = torch.linspace(0, 1, 9, dtype=torch.float64).unsqueeze(-1)
    >>> register_data_priors(gp, X, torch.cat([X.sin(), X.cos()], -1))
    >>> prior_predictive(gp, X, draws=5, random_state=0).shape
    torch.Size([5, 9, 2])
    """
    X, gp = validate_inputs(X).double(), deepcopy(gp)
    gp.mean.set_num_dims(X.shape[1])
    for_parameters, for_functions, for_noise, for_features = spawn_seeds(random_state, 4)
    found = draw_prior(gp, draws, for_parameters)
    generator, noise_generator = (torch.Generator().manual_seed(seed) for seed in (for_functions, for_noise))
    functions = []
    for index in range(draws):
        set_parameters(gp, found, index)
        values = gp.mean(X) + draw_prior_function(gp, X, generator, for_features + index)
        functions.append(_observe(gp, values, noise_generator) if noise else values)
    return torch.stack(functions)


@torch.no_grad()
def set_parameters(gp, draws: Mapping[str, Tensor], index: int | tuple | None = None) -> None:
    """Write raw parameters by qualified name into a model, in place; `index` selects one of several draws."""
    parameters = dict(gp.named_parameters())
    for name, value in draws.items():
        if name not in parameters:
            raise OptionError(f"draws must name parameters of the model ({', '.join(parameters)}), got {name!r}.")
        value = torch.as_tensor(value if index is None else value[index])
        if value.shape != parameters[name].shape:
            raise OptionError(f"{name} has shape {tuple(value.shape)}, expected {tuple(parameters[name].shape)}.")
        parameters[name].copy_(value)


def _check_priors(gp, sites: list[PriorSite]) -> None:
    covered = {id(parameter) for site in sites for parameter in site.parameters.values()}
    missing = [name for name, one in gp.named_parameters() if one.requires_grad and id(one) not in covered]
    if missing:
        raise OptionError(
            f"There is no prior on {', '.join(missing)}. Register one, or call register_data_priors(gp, X, Y) and, for parameters of a likelihood, register_likelihood_priors(likelihood, Y)."
        )


def _write(site: PriorSite, value: Tensor) -> None:
    try:
        site.write(site.module, value)
    except (RuntimeError, ValueError) as error:
        raise OptionError(f"The model rejects a draw from the prior {site.name}: {error}") from error


def draw_prior_function(gp, X: Tensor, generator: torch.Generator, seed: int) -> Tensor:
    """Draw one function (m, p) of the process with mean zero."""

    def scores(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(X.device)

    p, parts = gp.num_outputs, components(gp.kernel)
    is_separable = parts is not None and len(parts) == 1
    if gp.features is None and len(X) * (1 if is_separable else p) <= MAX_EXACT_POINTS:
        if is_separable:
            (scalar, matrix) = parts[0]
            rows, columns = _root(to_dense(evaluate_kernel(scalar, X))), _root(matrix.to(X))
            return rows @ scores(rows.shape[1], columns.shape[1]) @ columns.mT
        root = _root(to_dense(evaluate_kernel(gp.kernel, X)))
        return (root @ scores(root.shape[1])).unflatten(-1, (-1, p))
    features = gp.features
    if features is None:
        features = make_prior_features(gp.kernel, NUM_FREQUENCIES, X.shape[1], seed)
    Phi = features(X)
    return (Phi @ scores(Phi.shape[-1])).unflatten(-1, (-1, p))


def _root(covariance: Tensor) -> Tensor:
    """Return a root of a covariance: its Cholesky factor, or one from its eigenvalues if it is singular."""
    chol, failed = torch.linalg.cholesky_ex(covariance)
    return thin_root(covariance) if int(failed) else chol


def _observe(gp, values: Tensor, generator: torch.Generator) -> Tensor:
    if (likelihood := getattr(gp, "likelihood", None)) is not None:
        return likelihood.draw(values, generator)
    chol = torch.linalg.cholesky(gp.noise_model.matrix())
    return values + torch.randn(values.shape, generator=generator, dtype=torch.float64).to(values.device) @ chol.mT


def draw_prior_values(site: PriorSite, draws: int, rng: np.random.Generator) -> Tensor:
    """Draw the value that a prior is on, (draws, *shape); raise `OptionError` if the prior cannot be drawn from."""
    prior = _copy_without_validation(site)
    shape = (draws, *site.read(site.module).shape)
    if site.is_covariance:
        return prior.draw(shape, rng)
    low, high = site.bounds()
    length = high - low
    room = BOUND_MARGIN * torch.where(torch.isfinite(length), length, 0.0)
    bounds = (low + room, high - room)
    if isinstance(prior, MultivariateNormal):
        scores = torch.from_numpy(rng.standard_normal(shape))
        root = prior._unbroadcasted_scale_tril.double()  # `scale_tril` of GPyTorch's prior recurses infinitely
        return _check_inside(site, prior.loc.double() + (root @ scores.unsqueeze(-1)).squeeze(-1), bounds)
    try:
        return _draw_between(site, *_distribution_functions(prior), shape, bounds, rng)
    except NotImplementedError:  # torch: the distribution has no F or no F⁻¹ in closed form
        return _draw_by_rejection(site, prior, shape, bounds, rng)


def _copy_without_validation(site: PriorSite) -> Prior:
    """Return a copy of the prior whose F can be evaluated at the ends of its support."""
    if site.write is None:
        raise OptionError(f"The prior {site.name} has no setting_closure. Pass one to register_prior.")
    if getattr(site.prior, "_transform", None) is not None:
        raise OptionError(
            f"The prior {site.name} has a transform, which cannot be inverted. Use one without a transform."
        )
    prior = deepcopy(site.prior).cpu()
    for distribution in (prior, getattr(prior, "base_dist", prior)):
        distribution._validate_args = False
    return prior


def _distribution_functions(prior: Prior) -> tuple[Curve, Curve]:
    """Return F and F⁻¹ in float64."""
    if not isinstance(prior, Gamma):
        return prior.cdf, prior.icdf
    shape, rate = prior.concentration.double().numpy(), prior.rate.double().numpy()
    return (
        lambda value: torch.as_tensor(gammainc(shape, np.maximum(rate * value.numpy(), 0.0))),
        lambda uniform: torch.as_tensor(gammaincinv(shape, uniform.numpy()) / rate),
    )


def _draw_between(site: PriorSite, cdf: Curve, icdf: Curve, shape, bounds: Bounds, rng: np.random.Generator) -> Tensor:
    # a distribution has no mass below its support, whatever its formula gives there
    low, high = (cdf(end).to(torch.float64).nan_to_num(nan=0.0).clamp(0.0, 1.0) for end in bounds)
    if not bool((high > low).all()):
        raise OptionError(f"The prior {site.name} has no mass inside the constraint. Change one of them.")
    uniforms = torch.from_numpy(rng.random(shape)).clamp_min(2.0**-54)
    return torch.clamp(icdf(low + uniforms * (high - low)), *bounds)


def _draw_by_rejection(
    site: PriorSite, prior: Prior, shape: tuple[int, ...], bounds: Bounds, rng: np.random.Generator
) -> Tensor:
    """Draw by the prior's own `sample`, and again where entries lie outside the bounds."""
    values = torch.full(shape, torch.nan, dtype=torch.float64)
    with torch.random.fork_rng(devices=[]):  # torch's distributions use the global generator: restore it
        torch.manual_seed(int(rng.integers(2**31)))
        for _ in range(MAX_TRIES):
            try:
                found = prior.expand(shape).sample().to(torch.float64)
            except (NotImplementedError, RuntimeError, TypeError, ValueError) as error:  # of a custom distribution
                raise OptionError(
                    f"The prior {site.name} ({type(prior).__name__}) cannot be sampled: {error}"
                ) from error
            values = torch.where((values > bounds[0]) & (values < bounds[1]), values, found)
            if bool(((values > bounds[0]) & (values < bounds[1])).all()):
                return values
    return _check_inside(site, values, bounds)


def _check_inside(site: PriorSite, values: Tensor, bounds: Bounds) -> Tensor:
    if bool(((values > bounds[0]) & (values < bounds[1])).all()):
        return values
    raise OptionError(f"Draws from the prior {site.name} lie outside the constraint. Change one of them.")
