"""Kernel quadrature: weights with the smallest worst-case error on the unit ball of an RKHS."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ovkgp.checks import check_one_of, check_positive
from ovkgp.exceptions import InputError
from ovkgp.losses.measures import TaskMeasure

RELATIVE_EIGENVALUE_CUTOFF = 1e-12
"""Eigenvalues of a Gram matrix below this fraction of the largest are dropped: close nodes make it nearly singular."""


class KernelRule(NamedTuple):
    """Weights of kernel quadrature and their worst-case error.

    Attributes
    ----------
    weights : Tensor of shape (m,)
        Weights w, which may be negative and need not sum to 1.
    error : float
        Worst-case error on the unit ball of the RKHS.
    """

    weights: Tensor
    error: float


def kernel_rule(gram: Tensor, embedding: Tensor, total: float) -> KernelRule:
    """Compute the quadrature weights with the smallest worst-case error on the unit ball of the RKHS of a kernel k.

    They are also Bayesian quadrature: posterior mean and variance of ∫ f dμ given f ~ GP(0, k) at the nodes.

    Parameters
    ----------
    gram : Tensor of shape (m, m)
        Gram matrix K of the nodes.
    embedding : Tensor of shape (m,)
        Kernel mean z_j = ∫ k(θ_j, θ) dμ(θ).
    total : float
        ∬ k dμ dμ.

    Returns
    -------
    KernelRule
        Weights w = K⁻¹ z and the error, with error² = ∬ k dμ dμ − zᵀ K⁻¹ z.

    Notes
    -----
    Complexity: O(m³).

    References
    ----------
    LT-27

    Examples
    --------
    >>> import torch
    >>> from ovkgp.losses import gaussian_embedding, kernel_rule
    >>> nodes = torch.linspace(0.05, 0.95, 8).double()
    >>> gram = torch.exp(-((nodes[:, None] - nodes) ** 2) / (2 * 0.3**2))
    >>> rule = kernel_rule(gram, *gaussian_embedding(nodes, 0.3))
    >>> abs((rule.weights * nodes**2).sum().item() - 1 / 3) < 1e-4
    True
    """
    if gram.dim() != 2 or gram.shape != (len(embedding), len(embedding)):
        raise InputError(f"gram has shape {tuple(gram.shape)}, expected {(len(embedding),) * 2}.")
    values, vectors = torch.linalg.eigh(gram)
    keep = values > RELATIVE_EIGENVALUE_CUTOFF * values[-1]
    scores = vectors[:, keep].T @ embedding / values[keep].sqrt()
    weights = vectors[:, keep] @ (scores / values[keep].sqrt())
    return KernelRule(weights, math.sqrt(max(0.0, total - scores.square().sum().item())))


def kernel_quadrature(nodes, gram: Tensor, embedding: Tensor, *, negative: str = "raise") -> TaskMeasure:
    """Return a task measure with the weights of `kernel_rule`, divided by their sum.

    Parameters
    ----------
    nodes : array-like of shape (m,), or (m, b) for tasks in R^b
        Tasks θ.
    gram : Tensor of shape (m, m)
        Gram matrix K of the nodes.
    embedding : Tensor of shape (m,)
        Kernel mean z of the nodes.
    negative : {"raise", "clip"}, default="raise"
        Whether to raise an error if weights are negative, or to set them to 0. A loss with negative weights is not
        convex.

    Returns
    -------
    TaskMeasure
        The nodes with normalized weights.

    Examples
    --------
    >>> import torch
    >>> from ovkgp.losses import gaussian_embedding, kernel_quadrature
    >>> nodes = torch.tensor([0.2, 0.5, 0.8]).double()
    >>> gram = torch.exp(-((nodes[:, None] - nodes) ** 2) / (2 * 0.3**2))
    >>> kernel_quadrature(nodes, gram, gaussian_embedding(nodes, 0.3)[0]).weights.sum().item()
    1.0
    """
    check_one_of("negative", negative, ("raise", "clip"))
    weights = kernel_rule(gram, embedding, 0.0).weights
    if bool((weights < 0).any()) and negative == "raise":
        raise InputError(
            f"The kernel rule has {int((weights < 0).sum())} negative weight(s), with which a loss is not convex. "
            'Use fewer nodes, a shorter lengthscale, or negative="clip".'
        )
    weights = weights.clamp(min=0)
    if not bool(weights.sum() > 0):
        raise InputError("embedding must be the kernel mean of a probability measure; all weights are 0.")
    nodes = torch.as_tensor(nodes, dtype=torch.float64)
    nodes = nodes[:, 0] if nodes.dim() == 2 and nodes.shape[1] == 1 else nodes
    return TaskMeasure(nodes, weights / weights.sum(), nodes.shape[1] if nodes.dim() == 2 else 1)


def gaussian_embedding(nodes: Tensor, lengthscale: float | Sequence[float]) -> tuple[Tensor, float]:
    """Compute the kernel mean z and ∬ k of the uniform measure on [0, 1]^b for the kernel exp(−Σ_j δ_j²/(2ℓ_j²)).

    Parameters
    ----------
    nodes : Tensor of shape (m,), or (m, b) for tasks in R^b
        Tasks θ.
    lengthscale : float or sequence of b floats
        Lengthscale ℓ, of all coordinates or of each. Must be greater than 0.

    Returns
    -------
    embedding : Tensor of shape (m,)
        z_j = ½ √(π/γ) [erf(√γ θ_j) + erf(√γ (1 − θ_j))] with γ = 1/(2ℓ²), multiplied over the coordinates.
    total : float
        ∬ k = √(π/γ) erf(√γ) + (e^{−γ} − 1)/γ, multiplied over the coordinates.

    Examples
    --------
    >>> import torch
    >>> from ovkgp.losses import gaussian_embedding
    >>> z, total = gaussian_embedding(torch.tensor([0.5]).double(), 100.0)  # almost constant
    >>> round(z.item(), 4), round(total, 4)
    (1.0, 1.0)
    """
    nodes = torch.as_tensor(nodes, dtype=torch.float64)
    columns = nodes.unsqueeze(-1) if nodes.dim() == 1 else nodes
    lengthscales = list(lengthscale) if isinstance(lengthscale, Sequence) else [lengthscale] * columns.shape[1]
    if len(lengthscales) != columns.shape[1]:
        raise InputError(
            f"lengthscale must be one number or one per coordinate ({columns.shape[1]}), got {len(lengthscales)}."
        )
    embedding, total = torch.ones_like(columns[:, 0]), 1.0
    for column, given in zip(columns.T, lengthscales, strict=True):
        gamma = 1 / (2 * check_positive("lengthscale", given) ** 2)
        root = math.sqrt(gamma)
        ends = torch.erf(root * column) + torch.erf(root * (1 - column))
        embedding = embedding * (math.sqrt(math.pi / gamma) / 2 * ends)
        total *= math.sqrt(math.pi / gamma) * math.erf(root) + math.expm1(-gamma) / gamma
    return embedding, total
