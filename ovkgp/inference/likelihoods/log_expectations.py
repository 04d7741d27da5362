"""log E e^{g(f)} for f ~ N(m, σ²) and a concave g, such as the log probability of a count: accurate however small it is.

In z = (f − m)/σ the integrand e^{g(m + σz) − z²/2} has one peak. It is found, then the two points where the integrand has
fallen by e^{−34} = 2e-15, and the trapezoidal rule between them converges geometrically.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

_NODES, _MOST_NODES, _STEP, _DROP, _HALVINGS = 128, 4096, 0.4, 34.0, 60
_GOLDEN = (math.sqrt(5) - 1) / 2

Height = Callable[[Tensor], Tensor]


@torch.no_grad()
def log_expected(function: Height, mean: Tensor, std: Tensor) -> Tensor:
    """log E e^{g(f)}, elementwise; −∞ where g is −∞ at the mean.

    Args:
        function: g, elementwise, concave, and analytic within a distance of about π/2 of the real line (or of the width of
            its own peak, where that is narrower).
        mean, std: of f, of one shape.

    Cost: 128 evaluations of g for each entry, 2.5 times the width of the integrand in f where that is more (at most 4096), and
    about 250 to find it.

    Example:
        >>> import torch
        >>> from ovkgp.inference.likelihoods.log_expectations import log_expected
        >>> one = torch.ones(1, dtype=torch.float64)
        >>> round(log_expected(lambda f: 2 * f, 0 * one, one).item(), 9)  # E e^{2f} = e²
        2.0
    """

    def height(z: Tensor) -> Tensor:
        return function(mean + std * z) - z.square() / 2

    peak = _peak(height, mean)
    level = height(peak) - _DROP
    reach = torch.full_like(mean, math.sqrt(2 * _DROP))  # −z²/2 alone has fallen by so much there
    low, high = (_edge(height, level, peak, side * reach) for side in (-1, 1))
    widest = float(((high - low) * std).amax()) if mean.numel() else 0.0
    count = min(max(_NODES, math.ceil(widest / _STEP)), _MOST_NODES)
    total = torch.full_like(mean, -torch.inf)
    for node in torch.linspace(0, 1, count, dtype=torch.float64).tolist():
        total = torch.logaddexp(total, height(low + (high - low) * node))
    return total + ((high - low) / (count - 1)).log() - math.log(2 * math.pi) / 2


def _peak(height: Height, like: Tensor) -> Tensor:
    """Where a concave function is largest: a bracket that doubles, then golden sections."""
    width, inside = torch.ones_like(like), height(torch.zeros_like(like))
    while bool(
        (outside := (height(width) > inside) | (height(-width) > inside)).logical_and(inside > -torch.inf).any()
    ):
        width = torch.where(outside, 2 * width, width)
    low, high = -width, width
    for _ in range(_HALVINGS):
        left, right = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
        is_left = height(left) >= height(right)
        low, high = torch.where(is_left, low, left), torch.where(is_left, right, high)
    return (low + high) / 2


def _edge(height: Height, level: Tensor, peak: Tensor, reach: Tensor) -> Tensor:
    """Where a concave function has fallen to `level`, between its peak and a distance `reach` from it."""
    inside, outside = torch.zeros_like(reach), reach
    for _ in range(_HALVINGS):
        middle = (inside + outside) / 2
        above = height(peak + middle) > level
        inside, outside = torch.where(above, middle, inside), torch.where(above, outside, middle)
    return peak + outside
