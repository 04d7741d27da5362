"""Draws of hyperparameters from their priors, and of data from a model before it has seen any.

A function of the prior predictive has hyperparameters θ from their priors, f ~ N(m_θ, K_θ) and noise of variance Σ_θ: what
the model holds possible, to be looked at beside the data.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy

import numpy as np
import torch
from linear_operator import to_dense
from torch import Tensor

from ovkgp.exceptions import OptionError
from ovkgp.features.noise import as_seed
from ovkgp.inference.data import inputs
from ovkgp.inference.exact_posterior import prior_features
from ovkgp.inference.posterior import seeds
from ovkgp.inference.prior_quantiles import prior_values
from ovkgp.inference.prior_sites import Site, trained_sites
from ovkgp.kernels import components
from ovkgp.kernels.checks import whole_number
from ovkgp.kernels.roots import thin_root

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
        >>> from ovkgp.inference.prior_draws import draw_prior, place
        >>> kernel = RBFKernel(lengthscale_prior=LogNormalPrior(0.0, 1.0)).double()
        >>> found = draw_prior(kernel, draws=100, random_state=0)
        >>> found["raw_lengthscale"].shape
        torch.Size([100, 1, 1])
        >>> place(kernel, found, 7)  # the eighth draw
    """
    draws, copy = whole_number("the number of draws", draws), deepcopy(gp)
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
        >>> from ovkgp.inference.data_priors import register_data_priors
        >>> from ovkgp.inference.prior_draws import prior_predictive
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
