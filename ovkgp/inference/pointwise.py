"""What each draw of the hyperparameters says of the data themselves.

For a draw θ_s: log p(y_ij | y_−ij, θ_s) of every observed entry, in closed form, which is what PSIS-LOO wants; and data
y_rep drawn anew at the training inputs, from the posterior of f given θ_s plus noise, for posterior predictive checks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from ovkgp.inference.data import as_floating, inputs
from ovkgp.inference.posterior import normal, seeds
from ovkgp.inference.roads import choose_road

JOINT_ENTRIES = 500
"""Up to so many entries of Y are drawn jointly by the exact covariance; more by random functions."""
EIGEN = 10
"""About how many times the work of a Cholesky factor an eigendecomposition is."""

Model = TypeVar("Model", bound=torch.nn.Module)


def placed(gp: Model, raw: Mapping[str, np.ndarray]) -> Iterator[Model]:
    """The model with the raw parameters (chains, draws, *shape) of each draw in turn, one chain after another, in place."""
    parameters = dict(gp.named_parameters())
    shape = next(iter(raw.values())).shape[:2] if raw else (1, 1)
    for index in np.ndindex(shape):
        with torch.no_grad():
            for name, values in raw.items():
                parameters[name].copy_(torch.as_tensor(values[index]))
        yield gp


def log_likelihoods(gp, raw: Mapping[str, np.ndarray], X, Y, noise=None) -> np.ndarray:
    """log p(y_ij | y_−ij, θ_s) of the observed entries, row by row: (draws, entries), chains one after another.

    Args:
        gp: a model with `leave_one_out`; its parameters are written to.
        raw: draws of its raw parameters by name, (chains, draws, *shape).
        X, Y, noise: the data.

    Cost: one factorisation a draw, n³ + p³ for a separable kernel, (observed entries)³ for others; for a feature map two
    passes over the data.

    Example:
        >>> import torch
        >>> from gpytorch.kernels import RBFKernel
        >>> from ovkgp.inference import OperatorValuedGP
        >>> from ovkgp.inference.pointwise import log_likelihoods
        >>> X = torch.linspace(0, 6, 20, dtype=torch.float64).unsqueeze(-1)
        >>> gp = OperatorValuedGP(RBFKernel(), mean="zero", noise=0.1)
        >>> raw = {"kernel.raw_lengthscale": torch.linspace(0, 1, 5).reshape(1, 5, 1, 1).numpy()}  # one chain, five draws
        >>> log_likelihoods(gp, raw, X, X.sin()).shape
        (5, 20)
    """
    seen = observed(Y)
    found = [model.leave_one_out(X, Y, noise).log_density.cpu().numpy() for model in placed(gp, raw)]
    return np.stack([values.reshape(seen.shape)[seen] for values in found])


def replicates(gp, raw: Mapping[str, np.ndarray], X, Y, noise=None, random_state=None) -> np.ndarray:
    """Data drawn anew at the training inputs, one set for each draw: (draws, n, p), chains one after another.

    The noise is the model's at θ_s; where it was given for each entry, the given one (its average where Y is missing).

    Cost: one conditioning a draw, and O((n·p)³) for a joint draw of at most 500 entries.
    """
    X = inputs(X).double()
    count = int(np.prod(next(iter(raw.values())).shape[:2])) if raw else 1
    pairs = zip(placed(gp, raw), seeds(random_state, count), strict=True)
    found = [_replicate(model.condition(X, Y, noise=noise), X, Y, noise, seed) for model, seed in pairs]
    return torch.stack(found).cpu().numpy()


def observed(Y) -> np.ndarray:
    """Which entries of Y are observed, (n, p)."""
    return ~torch.isnan(as_floating(Y, "Y").reshape(len(Y), -1)).cpu().numpy()


def work_of_factorising(gp, X, Y, noise=None) -> float:
    """About how many elementary operations one factorisation takes on the road that the model takes."""
    data = gp.observe(X, Y, noise)
    if gp.features is not None:
        return float(data.num_rows) * gp.features.num_features**2
    if choose_road(gp.model, data, gp.road).name == "kronecker":
        return EIGEN * float(data.num_rows) ** 3
    return float(data.num_seen) ** 3


def work_of_replicating(gp, X, Y, noise=None) -> float:
    """The same for a posterior and one draw of data from it."""
    size = observed(Y).size
    joint = EIGEN * float(size) ** 3 if size <= JOINT_ENTRIES else 0.0
    return work_of_factorising(gp, X, Y, noise) + joint


def _replicate(posterior, X: Tensor, Y, known, seed: int) -> Tensor:
    is_joint = len(X) * posterior.num_outputs <= JOINT_ENTRIES
    if is_joint and known is None:
        return posterior.sample(X, 1, noise=True, random_state=seed)[0]
    of_function, of_noise = seeds(seed, 2)
    if is_joint:
        function = posterior.sample(X, 1, random_state=of_function)[0]
    else:
        function = posterior.sample_functions(1, random_state=of_function)(X)[0]
    if posterior.noise is None:  # a variational one whose likelihood is not Gaussian
        return posterior.likelihood.draw(function, torch.Generator().manual_seed(of_noise))
    scores = normal(tuple(function.shape), of_noise, function)
    error = scores @ torch.linalg.cholesky(posterior.noise).mT
    if known is None:
        return function + error
    deviations = as_floating(known, "noise").double().reshape(function.shape).sqrt()
    seen = torch.from_numpy(observed(Y)).to(function.device)
    return function + torch.where(seen, scores * deviations, error)
