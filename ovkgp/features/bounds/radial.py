"""The variance of curl- and divergence-free Gaussian features as a function of the lag (thesis §5.1.4, corrected).

For A = ωωᵀ (curl) and A = ‖ω‖²I − ωωᵀ (divergence), A² = ‖ω‖²A, so everything follows from

    K(δ) = E[cos⟨ω, δ⟩ ωωᵀ]   and   H(δ) = E[cos⟨ω, δ⟩ ‖ω‖² ωωᵀ],

and from their counterparts Tr(·) I − (·). These are the exact values that replace Prop. 5.1 (BT-E-16, 17).
"""

from __future__ import annotations

import torch
from torch import Tensor


def field_variance(weights: Tensor, lag: Tensor, curl: bool, bounded: bool) -> Tensor:
    """D · Var K̃(δ), (d, d), for Gaussian frequencies with variances `weights` = 1/ℓ² (d,); lag (d,).

    Unbounded: ½E[A²] + ½E[cos⟨ω, 2δ⟩A²] − K(δ)². Bounded, where A² = (d/ℓ²) A: (d/2ℓ²)(K(0) + K(2δ)) − K(δ)²; that one
    is for equal weights only.
    """
    zero = torch.zeros_like(lag)
    kernel = _outputs(_second_moment(weights, lag), curl)
    if bounded:
        d = weights.numel()
        total = _outputs(_second_moment(weights, zero) + _second_moment(weights, 2 * lag), curl)
        return d * weights[0] / 2 * total - kernel @ kernel
    total = _outputs(_fourth_moment(weights, zero) + _fourth_moment(weights, 2 * lag), curl)
    return total / 2 - kernel @ kernel


def _outputs(matrix: Tensor, curl: bool) -> Tensor:
    return matrix if curl else matrix.trace() * torch.eye(len(matrix), dtype=matrix.dtype) - matrix


def _second_moment(weights: Tensor, lag: Tensor) -> Tensor:
    """E[cos⟨ω, δ⟩ ωωᵀ] = k(δ) (W − ggᵀ), with g = W δ."""
    g = weights * lag
    return torch.exp(-(g * lag).sum() / 2) * (torch.diag(weights) - torch.outer(g, g))


def _fourth_moment(weights: Tensor, lag: Tensor) -> Tensor:
    """E[cos⟨ω, δ⟩ ‖ω‖² ωωᵀ] = k(δ) {(Tr W − ‖g‖²)(W − ggᵀ) + 2W² − 2(W ggᵀ + ggᵀ W)}, with g = W δ."""
    g = weights * lag
    outer = torch.outer(g, g)
    inner = (weights.sum() - g @ g) * (torch.diag(weights) - outer) + 2 * torch.diag(weights**2)
    return torch.exp(-(g * lag).sum() / 2) * (inner - 2 * (weights[:, None] + weights) * outer)


def largest_radial_variance(num_dims: int, curl: bool, bounded: bool) -> float:
    """sup_δ ‖D · Var K̃(δ)‖ for lengthscale 1, over a fine grid of ‖δ‖² that reaches where the kernel vanishes."""
    t = torch.linspace(0.0, 60.0, 12001, dtype=torch.float64)
    d = num_dims
    kernel, doubled, start = (_radial_second(s, d, curl) for s in (t, 4 * t, torch.zeros_like(t)))
    if bounded:
        variance = d / 2 * (start + doubled) - kernel**2
    else:
        fourth = _radial_fourth(torch.zeros_like(t), d, curl) + _radial_fourth(4 * t, d, curl)
        variance = fourth / 2 - kernel**2
    return float(variance[: 2 if d > 1 else 1].max())


def _radial_second(t: Tensor, d: int, curl: bool) -> Tensor:
    """Eigenvalues of K at ‖δ‖² = t, along δ and across it, as (2, ...)."""
    k = torch.exp(-t / 2)
    return _radial_outputs(k * (1 - t), k, d, curl)


def _radial_fourth(t: Tensor, d: int, curl: bool) -> Tensor:
    k = torch.exp(-t / 2)
    return _radial_outputs(k * (d + 2 - t + t * (t - d - 4)), k * (d + 2 - t), d, curl)


def _radial_outputs(along: Tensor, across: Tensor, d: int, curl: bool) -> Tensor:
    values = torch.stack([along, across])
    return values if curl else along + (d - 1) * across - values
