"""Weights from a kernel: the rule with the least worst-case error on the unit ball of its RKHS (LT-27).

    w = K⁻¹ z,   z_j = ∫ k(θ_j, θ) dμ(θ),      error² = ∬ k dμ dμ − zᵀ K⁻¹ z

The same numbers are Bayesian quadrature: the posterior mean and variance of ∫ f dμ when f ~ GP(0, k) is known at the nodes.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from ovkgp.exceptions import InputError, OptionError
from ovkgp.losses.measures import TaskMeasure

CUTOFF = 1e-12
"""Eigenvalues of K below this part of the largest are dropped: neighbouring nodes make K nearly singular."""


class KernelRule(NamedTuple):
    """Raw weights w (m,), which may be negative and need not sum to 1, and the worst-case error."""

    weights: Tensor
    error: float


def kernel_rule(gram: Tensor, embedding: Tensor, total: float) -> KernelRule:
    """The raw rule.

    Args:
        gram: K (m, m), of the nodes.
        embedding: z (m,).
        total: ∬ k dμ dμ.

    Cost: O(m³).

    Example:
        >>> import torch
        >>> from ovkgp.losses import gaussian_embedding, kernel_rule
        >>> nodes = torch.linspace(0.05, 0.95, 8).double()
        >>> gram = torch.exp(-((nodes[:, None] - nodes) ** 2) / (2 * 0.3**2))
        >>> rule = kernel_rule(gram, *gaussian_embedding(nodes, 0.3))
        >>> abs((rule.weights * nodes**2).sum().item() - 1 / 3) < 1e-4
        True
    """
    if gram.dim() != 2 or gram.shape != (len(embedding), len(embedding)):
        raise InputError(f"the Gram matrix is {tuple(gram.shape)} for {len(embedding)} nodes.")
    values, vectors = torch.linalg.eigh(gram)
    keep = values > CUTOFF * values[-1]
    scores = vectors[:, keep].T @ embedding / values[keep].sqrt()
    weights = vectors[:, keep] @ (scores / values[keep].sqrt())
    return KernelRule(weights, math.sqrt(max(0.0, total - scores.square().sum().item())))


def kernel_quadrature(nodes, gram: Tensor, embedding: Tensor, *, negative: str = "refuse") -> TaskMeasure:
    """A task measure with the weights of `kernel_rule`, divided by their sum.

    Args:
        nodes: θ (m,).
        gram, embedding: as for `kernel_rule`.
        negative: what to do about weights below zero, with which a loss would not be convex: "refuse", or "clip" to 0.

    Example:
        >>> import torch
        >>> from ovkgp.losses import gaussian_embedding, kernel_quadrature
        >>> nodes = torch.tensor([0.2, 0.5, 0.8]).double()
        >>> gram = torch.exp(-((nodes[:, None] - nodes) ** 2) / (2 * 0.3**2))
        >>> kernel_quadrature(nodes, gram, gaussian_embedding(nodes, 0.3)[0]).weights.sum().item()
        1.0
    """
    if negative not in ("refuse", "clip"):
        raise OptionError(f'negative must be "refuse" or "clip", got {negative!r}.')
    weights = kernel_rule(gram, embedding, 0.0).weights
    if bool((weights < 0).any()) and negative == "refuse":
        raise InputError(
            f"{int((weights < 0).sum())} weight(s) of the kernel rule are negative, with which a loss is not convex: take fewer "
            f'nodes, a shorter lengthscale, or negative="clip".'
        )
    weights = weights.clamp(min=0)
    if not bool(weights.sum() > 0):
        raise InputError(
            "the weights of the kernel rule sum to nothing: z must be the embedding of a probability measure."
        )
    return TaskMeasure(nodes, weights / weights.sum())


def gaussian_embedding(nodes: Tensor, lengthscale: float) -> tuple[Tensor, float]:
    """z (m,) and ∬ k for exp(−δ²/(2ℓ²)) and the uniform measure on [0, 1].

    z_j = ½ √(π/γ) [erf(√γ θ_j) + erf(√γ (1 − θ_j))] with γ = 1/(2ℓ²), and ∬ k = √(π/γ) erf(√γ) + (e^{−γ} − 1)/γ.

    Example:
        >>> import torch
        >>> from ovkgp.losses import gaussian_embedding
        >>> z, total = gaussian_embedding(torch.tensor([0.5]).double(), 100.0)  # almost constant
        >>> round(z.item(), 4), round(total, 4)
        (1.0, 1.0)
    """
    if not (math.isfinite(lengthscale) and lengthscale > 0):
        raise OptionError(f"lengthscale must be a finite number above 0, got {lengthscale}.")
    nodes, gamma = torch.as_tensor(nodes, dtype=torch.float64), 1 / (2 * lengthscale**2)
    root = math.sqrt(gamma)
    ends = torch.erf(root * nodes) + torch.erf(root * (1 - nodes))
    total = math.sqrt(math.pi / gamma) * math.erf(root) + math.expm1(-gamma) / gamma
    return math.sqrt(math.pi / gamma) / 2 * ends, total
