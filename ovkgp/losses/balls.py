"""Norms, balls and thresholds of curves in L^p(η), p ∈ {1, 2, ∞}: ‖x‖_p = (Σ_j η_j |x_j|^p)^{1/p} (LT-14, LT-62, BO-77).

A ball and the norm dual to its own are one thing seen twice: prox of t‖·‖_q is x minus its projection on {‖·‖_p ≤ t}, 1/p + 1/q = 1.
The weights are part of the norm: with η_j = 1/m a ball of radius κ has the Euclidean radius κ√m.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ovkgp.exceptions import OptionError

_TINY = torch.finfo(torch.float64).tiny


def check_order(p: float) -> None:
    """Raise OptionError unless p is 1, 2 or ∞."""
    if p not in (1, 2, math.inf):
        raise OptionError(f"p must be 1, 2 or math.inf, for which there are closed forms; got {p!r}.")


def dual_order(p: float) -> float:
    """q with 1/p + 1/q = 1.

    Example:
        >>> from ovkgp.losses.balls import dual_order
        >>> dual_order(1), dual_order(2)
        (inf, 2)
    """
    check_order(p)
    return {1: math.inf, 2: 2, math.inf: 1}[p]


def norm(x: Tensor, p: float, weights: Tensor) -> Tensor:
    """‖x_i‖_p (n,) of the rows of x (n, m), with weights η (m,) or (n, m). Entries of weight 0 do not count.

    Example:
        >>> import torch
        >>> from ovkgp.losses.balls import norm
        >>> norm(torch.tensor([[3.0, 4.0]]), 2, torch.tensor([0.5, 0.5]))
        tensor([3.5355])
    """
    if p == 1:
        return (weights * x.abs()).sum(-1)
    if p == 2:
        return (weights * x.square()).sum(-1).sqrt()
    return (x.abs() * (weights > 0)).amax(-1)


def project(x: Tensor, radius: float | Tensor, p: float, weights: Tensor) -> Tensor:
    """The nearest point, in the norm of L²(η), of the ball ‖·‖_p ≤ radius, (n, m).

    Args:
        x: (n, m).
        radius: ≥ 0, a number or (n, 1).
        p: 1, 2 or ∞.
        weights: η (m,) or (n, m).

    Cost: O(n m), and O(n m log m) for p = 1, which sorts.

    Example:
        >>> import torch
        >>> from ovkgp.losses.balls import project
        >>> weights = torch.tensor([0.5, 0.25, 0.25])
        >>> project(torch.tensor([[2.0, -1.0, 0.5]]), 0.5, 1, weights)
        tensor([[1., 0., 0.]])
    """
    if p == 1:
        return soft_threshold(x, l1_threshold(x, radius, weights))
    if p == 2:
        return x * (radius / norm(x, 2, weights)[..., None].clamp_min(_TINY)).clamp_max(1.0)
    return torch.minimum(torch.maximum(x, _negative(radius, x)), -_negative(radius, x))


def project_product(x: Tensor, direction: Tensor, radius: float, p: float, weights: Tensor) -> Tensor:
    """The derivative of `project` at x along a direction (n, m), (n, m), almost everywhere.

    The direction loses its part normal to the face of the ball on which the projection lies.

    Example:
        >>> import torch
        >>> from ovkgp.losses.balls import project_product
        >>> project_product(torch.tensor([[2.0, 0.0]]), torch.ones(1, 2), 1.0, 2, torch.ones(2))
        tensor([[0.0000, 0.5000]])
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
    """The proximal operator of step · ‖·‖_q in L²(η), (n, m): soft for q = 1, in one block a row for q = 2 (BST).

    Example:
        >>> import torch
        >>> from ovkgp.losses.balls import shrink
        >>> shrink(torch.tensor([[3.0, -4.0]]), 2.5, 2, torch.tensor([1.0, 1.0]))
        tensor([[ 1.5000, -2.0000]])
    """
    if q == 1:
        return soft_threshold(x, step)
    if q == 2:
        return x * (1 - step / norm(x, 2, weights)[..., None].clamp_min(_TINY)).clamp_min(0.0)
    return x - project(x, step, 1, weights)


def soft_threshold(x: Tensor, threshold: float | Tensor) -> Tensor:
    """sign(x) max(|x| − threshold, 0), entry by entry (LT-E-09); 0 exactly where |x| ≤ threshold.

    Example:
        >>> import torch
        >>> from ovkgp.losses.balls import soft_threshold
        >>> soft_threshold(torch.tensor([3.0, -0.5]), 1.0)
        tensor([2., 0.])
    """
    bound = _negative(threshold, x)
    return x - torch.minimum(torch.maximum(x, bound), -bound)


def l1_threshold(x: Tensor, radius: float | Tensor, weights: Tensor) -> Tensor:
    """The τ ≥ 0, (n, 1), by which the projection on ‖·‖_1 ≤ radius shrinks: Σ_j η_j max(|x_j| − τ, 0) = radius, or τ = 0 inside.

    That sum is the largest of its affine pieces, so that τ is the largest of their roots; the pieces that matter are those of the k
    greatest |x_j|.
    """
    sizes, order = x.abs().sort(-1, descending=True)
    masses = weights[order] if weights.dim() == 1 else weights.expand_as(x).gather(-1, order)
    roots = ((masses * sizes).cumsum(-1) - radius) / masses.cumsum(-1).clamp_min(_TINY)
    return roots.amax(-1, keepdim=True).clamp_min(0.0)


def _negative(radius: float | Tensor, x: Tensor) -> Tensor:
    return -torch.as_tensor(radius, dtype=x.dtype, device=x.device)
