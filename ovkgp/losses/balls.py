"""Norms of curves in L^p(η), p ∈ {1, 2, ∞}, projections on their balls and proximal operators (LT-14, LT-62, BO-77).

‖x‖_p = (Σ_j η_j |x_j|^p)^{1/p}, and prox_{t‖·‖_q}(x) is x minus its projection on {‖·‖_p ≤ t}, 1/p + 1/q = 1. Curves
are rows of x (n, m), with weights η (m,) or (n, m): with η_j = 1/m a ball of radius κ has the Euclidean radius κ√m.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ovkgp.exceptions import OptionError

_TINY = torch.finfo(torch.float64).tiny


def dual_order(p: float) -> float:
    """Return q with 1/p + 1/q = 1; raise OptionError unless p is 1, 2 or ∞."""
    if p not in (1, 2, math.inf):
        raise OptionError(f"p must be 1, 2 or math.inf, got {p!r}.")
    return {1: math.inf, 2: 2, math.inf: 1}[p]


def norm(x: Tensor, p: float, weights: Tensor) -> Tensor:
    """Return ‖x_i‖_p (n,) of the rows; entries of weight 0 are ignored."""
    if p == 1:
        return (weights * x.abs()).sum(-1)
    if p == 2:
        return (weights * x.square()).sum(-1).sqrt()
    return (x.abs() * (weights > 0)).amax(-1)


def project(x: Tensor, radius: float | Tensor, p: float, weights: Tensor) -> Tensor:
    """Project the rows on the ball ‖·‖_p ≤ radius in L²(η), (n, m); radius is a number or (n, 1).

    Complexity: O(n m), or O(n m log m) for p = 1, which sorts.
    """
    if p == 1:
        return soft_threshold(x, l1_threshold(x, radius, weights))
    if p == 2:
        return x * (radius / norm(x, 2, weights)[..., None].clamp_min(_TINY)).clamp_max(1.0)
    return torch.minimum(torch.maximum(x, _negative(radius, x)), -_negative(radius, x))


def project_product(x: Tensor, direction: Tensor, radius: float, p: float, weights: Tensor) -> Tensor:
    """Return the derivative (n, m) of `project` at x along a direction (n, m), almost everywhere.

    It removes the part of the direction normal to the face of the ball on which the projection lies.
    """
    if p == math.inf:
        return direction * (x.abs() < radius)
    inside = norm(x, p, weights)[..., None] <= radius
    if p == 2:
        size = norm(x, 2, weights)[..., None].clamp_min(_TINY)
        normal = x / size
        moved = radius / size * (direction - normal * (weights * normal * direction).sum(-1, keepdim=True))
    else:
        normal = x.sign() * (x.abs() > l1_threshold(x, radius, weights))
        mass = (weights * normal.abs()).sum(-1, keepdim=True).clamp_min(_TINY)
        moved = direction * normal.abs() - normal * (weights * normal * direction).sum(-1, keepdim=True) / mass
    return torch.where(inside, direction, moved)


def shrink(x: Tensor, step: float | Tensor, q: float, weights: Tensor) -> Tensor:
    """Return prox_{step ‖·‖_q}(x) in L²(η), (n, m): soft thresholding for q = 1, of whole rows for q = 2."""
    if q == 1:
        return soft_threshold(x, step)
    if q == 2:
        return x * (1 - step / norm(x, 2, weights)[..., None].clamp_min(_TINY)).clamp_min(0.0)
    return x - project(x, step, 1, weights)


def soft_threshold(x: Tensor, threshold: float | Tensor) -> Tensor:
    """Return sign(x) max(|x| − threshold, 0), entry by entry (LT-E-09); exactly 0 where |x| ≤ threshold."""
    bound = _negative(threshold, x)
    return x - torch.minimum(torch.maximum(x, bound), -bound)


def l1_threshold(x: Tensor, radius: float | Tensor, weights: Tensor) -> Tensor:
    """Return the threshold τ ≥ 0, (n, 1), of the projection on ‖·‖_1 ≤ radius; 0 inside the ball.

    τ solves Σ_j η_j max(|x_j| − τ, 0) = radius. The sum is the maximum, over k, of the affine functions of τ
    of the k largest |x_j|, so that τ is the largest of their roots.
    """
    sizes, order = x.abs().sort(-1, descending=True)
    masses = weights[order] if weights.dim() == 1 else weights.expand_as(x).gather(-1, order)
    roots = ((masses * sizes).cumsum(-1) - radius) / masses.cumsum(-1).clamp_min(_TINY)
    return roots.amax(-1, keepdim=True).clamp_min(0.0)


def _negative(radius: float | Tensor, x: Tensor) -> Tensor:
    return -torch.as_tensor(radius, dtype=x.dtype, device=x.device)
