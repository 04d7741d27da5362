"""Draws of one value from its prior, in float64 and from a generator of its own.

A value with distribution function F and bounds l < θ < h from its constraint is F⁻¹(F(l) + U (F(h) − F(l))), U uniform: it
never lies outside what the model allows. Priors without a quantile function are sampled as PyTorch does it.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy

import numpy as np
import torch
from gpytorch.priors import Prior
from scipy.special import gammainc, gammaincinv
from torch import Tensor
from torch.distributions import Gamma, MultivariateNormal

from ovkgp.exceptions import OptionError
from ovkgp.inference.prior_sites import Site

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
    for law in (prior, getattr(prior, "base_dist", prior)):
        law._validate_args = False
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
