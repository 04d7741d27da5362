"""Norms of curves in L^p(η), 1 ≤ p ≤ ∞, projections on their balls and proximal operators (LT-14, LT-62, BO-77).

‖x‖_p = (Σ_j η_j |x_j|^p)^{1/p}, and prox_{t‖·‖_q}(x) is x minus its projection on {‖·‖_p ≤ t}, 1/p + 1/q = 1. Curves
are rows of x (n, m), with weights η (m,) or (n, m): with η_j = 1/m a ball of radius κ has the Euclidean radius κ√m.
Projections are in closed form for p = 1, 2 and ∞. For other p they are z with |z_j| + μ |z_j|^{p−1} = |x_j|, for the
multiplier μ ≥ 0 at which ‖z‖_p is the radius, found by Newton's method.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ovkgp.exceptions import OptionError

_TINY = torch.finfo(torch.float64).tiny
MAX_NEWTON_ITERATIONS, NEWTON_TOLERANCE = 100, 1e-13
"""Limit of the iterations for a multiplier and for entries given a multiplier; relative error of the norm at the end."""


def dual_order(p: float) -> float:
    """Return q with 1/p + 1/q = 1; raise OptionError unless p is at least 1."""
    if isinstance(p, bool) or not isinstance(p, (int, float)) or not p >= 1:
        raise OptionError(f"p must be a number and at least 1, or math.inf, got {p!r}.")
    return {1: math.inf, 2: 2, math.inf: 1}.get(p) or p / (p - 1)


def norm(x: Tensor, p: float, weights: Tensor) -> Tensor:
    """Return ‖x_i‖_p (n,) of the rows; entries of weight 0 are ignored."""
    if p == 1:
        return (weights * x.abs()).sum(-1)
    if p == 2:
        return (weights * x.square()).sum(-1).sqrt()
    largest = (x.abs() * (weights > 0)).amax(-1)
    if p == math.inf:
        return largest
    unit = largest.clamp_min(_TINY)  # a large p overflows without it
    return unit * (weights * (x.abs() / unit[..., None]).pow(p)).nan_to_num(0.0).sum(-1).pow(1 / p)


def project(x: Tensor, radius: float | Tensor, p: float, weights: Tensor) -> Tensor:
    """Project the rows on the ball ‖·‖_p ≤ radius in L²(η), (n, m); radius is a number or (n, 1).

    Complexity: O(n m), or O(n m log m) for p = 1, which sorts; about a hundred times as long for p other than 1, 2, ∞.
    """
    if p not in (1, 2, math.inf):
        return _project_by_newton(x, radius, p, weights)[0]
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
    elif p != 1:
        near, multiplier = _project_by_newton(x, radius, p, weights)
        size, other = near.abs(), (p - 1) * multiplier
        flat = size ** abs(p - 2)
        inverse = 1 / (1 + other * flat) if p > 2 else flat / (flat + other).clamp_min(_TINY)
        normal = near.sign() * size ** (p - 1)
        along = (weights * inverse * normal * direction).sum(-1, keepdim=True)
        mass = (weights * inverse * normal.square()).sum(-1, keepdim=True).clamp_min(_TINY)
        moved = inverse * (direction - normal * along / mass)
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
    return x - project(x, step, dual_order(q), weights)


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


@torch.no_grad()
def _project_by_newton(x: Tensor, radius: float | Tensor, p: float, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Return the projection z (n, m) and the multiplier μ (n, 1), 0 inside the ball, for 1 < p < ∞.

    N(μ) = ‖z(μ)‖_p/radius falls from ‖x‖_p/radius to at most 1 at μ = ‖x‖_q/radius^{p−1}. The root of N^{1−p} − 1, which
    is linear in μ for large μ, is found by Newton's method between bounds, in less than ten iterations.
    """
    radius = -_negative(radius, x)
    outside, unit = norm(x, p, weights)[..., None] > radius, torch.where(radius > 0, radius, 1.0)
    active = outside & (radius > 0)
    size = torch.where(active, x.abs() / unit, 1.0)
    high = norm(size, p / (p - 1), weights)[..., None].clamp_min(_TINY)
    low, multiplier = torch.zeros_like(high), high
    for _ in range(MAX_NEWTON_ITERATIONS):
        near = _solve_entries(size, multiplier, p)
        ratio = norm(near, p, weights)[..., None].clamp_min(_TINY)
        if not bool((active & ((ratio - 1).abs() > NEWTON_TOLERANCE)).any()):
            break
        low, high = torch.where(ratio > 1, multiplier, low), torch.where(ratio > 1, high, multiplier)
        power = near ** (p - 1)
        slopes = power * near / (near + (p - 1) * multiplier * power).clamp_min(_TINY)  # −dz/dμ
        fall = (weights * power * slopes).nan_to_num(0.0).sum(-1, keepdim=True) / ratio**p  # −dN/dμ / N
        step = (ratio ** (p - 1) - 1) / ((p - 1) * fall).clamp_min(_TINY)
        active = active & (step.abs() > NEWTON_TOLERANCE * multiplier)
        middle = torch.where(low > 0, (low * high).sqrt(), high / 16)
        inside = (multiplier + step > low) & (multiplier + step < high)
        multiplier = torch.where(active, torch.where(inside, multiplier + step, middle), multiplier)
    near = near / norm(near, p, weights)[..., None].clamp_min(_TINY)
    projected = torch.where(outside, x.sign() * near * radius, x)
    return projected, torch.where(outside, multiplier * unit ** (2 - p), 0.0)


def _solve_entries(size: Tensor, multiplier: Tensor, p: float) -> Tensor:
    """Return z ≥ 0 with z + μ z^{p−1} = a, entry by entry, by Newton steps that decrease from an upper bound.

    For p < 2 the unknown is w = z^{p−1}, so that the equation is convex: w^{1/(p−1)} + μ w = a.
    """
    order = max(p - 1, 1 / (p - 1))
    curved, linear = (multiplier, 1.0) if p > 2 else (1.0, multiplier)
    if order == 2:  # p = 3 and p = 3/2 have a closed form
        w = 2 * size / (linear + (linear * linear + 4 * curved * size) ** 0.5)
        return w if p > 2 else w**order
    w = torch.minimum((size / curved) ** (1 / order), size / linear)
    for _ in range(MAX_NEWTON_ITERATIONS):
        power = w ** (order - 1)
        step = (w * (curved * power + linear) - size) / (order * curved * power + linear)
        w = (w - step).clamp_min(0.0)
        if not bool((step > 4e-15 * w).any()):
            break
    return w if p > 2 else w**order


def _negative(radius: float | Tensor, x: Tensor) -> Tensor:
    return -torch.as_tensor(radius, dtype=x.dtype, device=x.device)
