"""Draws of hyperparameters from their priors, and of data from a model before it has seen any.

A function of the prior predictive has hyperparameters θ from their priors, f ~ N(m_θ, K_θ) and noise of variance Σ_θ: what
the model holds possible, to be looked at beside the data.
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
from ovkgp.inference.model.observations import inputs
from ovkgp.inference.posteriors.exact import prior_features
from ovkgp.inference.posteriors.posterior import seeds
from ovkgp.inference.training.prior_sites import Site, trained_sites
from ovkgp.kernels import components
from ovkgp.kernels.outputs.roots import thin_root

INSIDE = 1e-12
"""How near a draw may come to the end of an interval, relative to its length."""
TRIES = 1000
"""How often a prior without a quantile function is asked again for a value inside the bounds."""

Bounds = tuple[Tensor, Tensor]
Curve = Callable[[Tensor], Tensor]


def prior_values(site: Site, draws: int, rng: np.random.Generator) -> Tensor:
    """Draws (draws, *shape) of the value that a prior is on.

    Args:
        site: the prior.
        draws: how many.
        rng: the source of all randomness.

    Raises:
        OptionError: the prior cannot be drawn from.

    Cost: O(draws · numel), and O(draws · p³) for a covariance.
    """
    prior = _unchecked(site)
    shape = (draws, *site.read(site.module).shape)
    if site.is_covariance:
        return prior.draw(shape, rng)
    low, high = site.bounds()
    length = high - low
    room = INSIDE * torch.where(torch.isfinite(length), length, 0.0)
    bounds = (low + room, high - room)
    if isinstance(prior, MultivariateNormal):
        return _inside(site, _multivariate(prior, shape, rng), bounds)
    try:
        return _between(site, *_curves(prior), shape, bounds, rng)
    except NotImplementedError:  # how torch says that a law has no F or no F⁻¹ in closed form
        return _sampled(site, prior, shape, bounds, rng)


def _unchecked(site: Site) -> Prior:
    """A copy of the prior that can be asked for F at the ends of its support."""
    if site.write is None:
        raise OptionError(f"the prior {site.name} cannot set what it reads: give register_prior a setting_closure too.")
    if getattr(site.prior, "_transform", None) is not None:
        raise OptionError(f"the prior {site.name} has a transform, which cannot be undone: draw from one without.")
    prior = deepcopy(site.prior).cpu()
    for distribution in (prior, getattr(prior, "base_dist", prior)):
        distribution._validate_args = False
    return prior


def _curves(prior: Prior) -> tuple[Curve, Curve]:
    """F and F⁻¹, in float64."""
    if not isinstance(prior, Gamma):
        return prior.cdf, prior.icdf
    shape, rate = prior.concentration.double().numpy(), prior.rate.double().numpy()
    return (
        lambda value: torch.as_tensor(gammainc(shape, np.maximum(rate * value.numpy(), 0.0))),
        lambda uniform: torch.as_tensor(gammaincinv(shape, uniform.numpy()) / rate),
    )


def _between(site: Site, cdf: Curve, icdf: Curve, shape, bounds: Bounds, rng: np.random.Generator) -> Tensor:
    # below its support a law has no weight, whatever its formula says there
    low, high = (cdf(end).to(torch.float64).nan_to_num(nan=0.0).clamp(0.0, 1.0) for end in bounds)
    if not bool((high > low).all()):
        raise OptionError(f"the prior {site.name} gives no weight to what the constraint allows: change one of them.")
    uniforms = torch.from_numpy(rng.random(shape)).clamp_min(2.0**-54)
    return torch.clamp(icdf(low + uniforms * (high - low)), *bounds)


def _multivariate(prior: MultivariateNormal, shape: tuple[int, ...], rng: np.random.Generator) -> Tensor:
    scores = torch.from_numpy(rng.standard_normal(shape))
    root = prior._unbroadcasted_scale_tril.double()  # `scale_tril` of GPyTorch's prior calls itself without end
    return prior.loc.double() + (root @ scores.unsqueeze(-1)).squeeze(-1)


def _sampled(site: Site, prior: Prior, shape: tuple[int, ...], bounds: Bounds, rng: np.random.Generator) -> Tensor:
    """By the prior's own `sample`, entries outside the bounds again and again."""
    values = torch.full(shape, torch.nan, dtype=torch.float64)
    with torch.random.fork_rng(devices=[]):  # PyTorch's distributions know no generator: the global one is put back
        torch.manual_seed(int(rng.integers(2**31)))
        for _ in range(TRIES):
            try:
                found = prior.expand(shape).sample().to(torch.float64)
            except (
                NotImplementedError,
                RuntimeError,
                TypeError,
                ValueError,
            ) as error:  # a user's own law may raise any
                raise OptionError(
                    f"one cannot draw from the prior {site.name}, {type(prior).__name__}: {error}"
                ) from error
            values = torch.where((values > bounds[0]) & (values < bounds[1]), values, found)
            if bool(((values > bounds[0]) & (values < bounds[1])).all()):
                return values
    return _inside(site, values, bounds)


def _inside(site: Site, values: Tensor, bounds: Bounds) -> Tensor:
    if bool(((values > bounds[0]) & (values < bounds[1])).all()):
        return values
    raise OptionError(f"draws from the prior {site.name} lie outside the constraint: change one of them.")


EXACT_SIZE = 2000
"""Up to so many points (values, where the kernel is not separable) a prior function is drawn with the exact kernel."""
FREQUENCIES = 2000
"""Random features that stand for the kernel beyond."""


def draw_prior(gp, draws: int = 1, random_state=None) -> dict[str, Tensor]:
    """Hyperparameters from their priors, as raw parameters by qualified name, each (draws, *shape); the model is left alone.

    Where a constraint is narrower than a prior, the prior is cut off at its ends.

    Args:
        gp: a model, or any module whose trained parameters all have priors (`register_data_priors` sees to that).
        draws: how many.
        random_state: an int, a generator or None.

    Raises:
        OptionError: a trained parameter has no prior, or one that cannot be drawn from.

    Cost: O(draws · number of parameters).

    Example:
        >>> from gpytorch.kernels import RBFKernel
        >>> from gpytorch.priors import LogNormalPrior
        >>> from ovkgp.inference.sampling.prior_predictive import draw_prior, place
        >>> kernel = RBFKernel(lengthscale_prior=LogNormalPrior(0.0, 1.0)).double()
        >>> found = draw_prior(kernel, draws=100, random_state=0)
        >>> found["raw_lengthscale"].shape
        torch.Size([100, 1, 1])
        >>> place(kernel, found, 7)  # the eighth draw
    """
    draws, copy = check_integer("the number of draws", draws), deepcopy(gp)
    sites = trained_sites(copy)
    _require_priors(copy, sites)
    streams = np.random.SeedSequence(as_seed(random_state)).spawn(max(len(sites), 1))
    values = [
        prior_values(site, draws, np.random.default_rng(stream)) for site, stream in zip(sites, streams, strict=False)
    ]
    trained = {name: one for name, one in copy.named_parameters() if one.requires_grad}
    found = {name: one.new_empty(draws, *one.shape) for name, one in trained.items()}
    for index in range(draws):
        for site, value in zip(sites, values, strict=True):
            _write(site, value[index])
        for name, parameter in trained.items():
            found[name][index] = parameter.detach()
    return found


@torch.no_grad()
def place(gp, draws: Mapping[str, Tensor], index: int | None = None) -> None:
    """Write raw parameters by qualified name into a model, in place.

    Args:
        gp: the model.
        draws: values of the shapes of the parameters, or, with an `index`, of several draws of them.
        index: which draw.

    Cost: O(number of parameters).

    Example:
        See `draw_prior`.
    """
    parameters = dict(gp.named_parameters())
    for name, value in draws.items():
        if name not in parameters:
            raise OptionError(f"the model has no parameter {name!r}; it has {', '.join(parameters)}.")
        value = torch.as_tensor(value if index is None else value[index])
        if value.shape != parameters[name].shape:
            raise OptionError(f"{name} has shape {tuple(parameters[name].shape)}, the draw {tuple(value.shape)}.")
        parameters[name].copy_(value)


@torch.no_grad()
def prior_predictive(gp, X, draws: int = 100, noise: bool = True, random_state=None) -> Tensor:
    """What the model expects before it has seen data: one function a draw of the hyperparameters, (draws, m, p).

    Args:
        gp: a model whose trained parameters all have priors; left alone.
        X: points (m, d).
        draws: how many.
        noise: new observations rather than the latent functions, which are the same with it and without.
        random_state: an int, a generator or None.

    Cost: O(m³ + p³) a draw for a separable kernel and O((m·p)³) for others up to 2000 points or values, and that of
    2000 random features beyond; with a feature map of M features O(m·p·M).

    Example:
        >>> import torch
        >>> from gpytorch.kernels import RBFKernel
        >>> from ovkgp.inference import OperatorValuedGP
        >>> from ovkgp.inference.training.initialization import register_data_priors
        >>> from ovkgp.inference.sampling.prior_predictive import prior_predictive
        >>> from ovkgp.kernels import DecomposableKernel
        >>> gp = OperatorValuedGP(DecomposableKernel(RBFKernel(), num_outputs=2))
        >>> X = torch.linspace(0, 1, 9, dtype=torch.float64).unsqueeze(-1)
        >>> register_data_priors(gp, X, torch.cat([X.sin(), X.cos()], -1))
        >>> prior_predictive(gp, X, draws=5, random_state=0).shape
        torch.Size([5, 9, 2])
    """
    X, gp = inputs(X).double(), deepcopy(gp)
    gp.mean.see(X.shape[1])
    for_parameters, for_functions, for_noise, for_features = seeds(random_state, 4)
    found = draw_prior(gp, draws, for_parameters)
    generator, noise_generator = (torch.Generator().manual_seed(seed) for seed in (for_functions, for_noise))
    functions = []
    for index in range(draws):
        place(gp, found, index)
        values = gp.mean(X) + _prior_function(gp, X, generator, for_features + index)
        functions.append(_observe(gp, values, noise_generator) if noise else values)
    return torch.stack(functions)


def _prior_function(gp, X: Tensor, generator: torch.Generator, seed: int) -> Tensor:
    """One draw (m, p) of the process with mean zero."""

    def scores(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(X.device)

    p, parts = gp.num_outputs, components(gp.kernel)
    is_separable = parts is not None and len(parts) == 1
    if gp.features is None and len(X) * (1 if is_separable else p) <= EXACT_SIZE:
        if is_separable:
            (scalar, matrix) = parts[0]
            rows, columns = _root(to_dense(scalar(X))), _root(matrix.to(X))
            return rows @ scores(rows.shape[1], columns.shape[1]) @ columns.mT
        root = _root(to_dense(gp.kernel(X)))
        return (root @ scores(root.shape[1])).unflatten(-1, (-1, p))
    features = gp.features
    if features is None:
        features = prior_features(gp.kernel, FREQUENCIES, X.shape[1], seed)
    Phi = features(X)
    return (Phi @ scores(Phi.shape[-1])).unflatten(-1, (-1, p))


def _root(covariance: Tensor) -> Tensor:
    """A root of a covariance: its Cholesky factor, or one from its eigenvalues where it is singular."""
    chol, failed = torch.linalg.cholesky_ex(covariance)
    return thin_root(covariance) if int(failed) else chol


def _observe(gp, values: Tensor, generator: torch.Generator) -> Tensor:
    if (likelihood := getattr(gp, "likelihood", None)) is not None:
        return likelihood.draw(values, generator)
    chol = torch.linalg.cholesky(gp.noise_model.matrix())
    return values + torch.randn(values.shape, generator=generator, dtype=torch.float64).to(values.device) @ chol.mT


def _require_priors(gp, sites: list[Site]) -> None:
    covered = {id(parameter) for site in sites for parameter in site.parameters.values()}
    missing = [name for name, one in gp.named_parameters() if one.requires_grad and id(one) not in covered]
    if missing:
        raise OptionError(
            f"there is no prior on {', '.join(missing)}, so that nothing can be drawn from it: register one, or let "
            "register_data_priors(gp, X, Y), and register_likelihood_priors(likelihood, Y) for what a likelihood has of its own, "
            "give all that have none one in the units of the data."
        )


def _write(site: Site, value: Tensor) -> None:
    try:
        site.write(site.module, value)
    except (RuntimeError, ValueError) as error:
        raise OptionError(f"the model does not allow a draw from the prior {site.name}: {error}") from error
