"""Expectations under f ~ N(m, v) by quadrature rules that are exact to about 1e-9 at *every* variance.

Gauss–Hermite rules are poor for functions that vary on a scale shorter than √v: 32 nodes give log(1 + f²/4) to 2e-9 at
√v = 1 and to 2 % at √v = 10. So log(1 + u²) of the Student-t likelihood and the softplus of logistic ones are written
as integrals whose integrand gets smoother with v, and the number of nodes for log Φ grows with its variance.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import cache

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

BLOCK_ENTRIES = 1 << 17  # number of temporary values per block: a megabyte in float64
HERMITE_NODES = 32  # number of Gauss–Hermite nodes, enough for 1e-9 wherever they are used alone
MIN_VARIANCE = 1e-14
"""Smallest variance in rules that use √v: below, their derivative by the variance would be round-off."""
BROAD_VARIANCE = 2.25  # variance above which logistic functions are integrated over a logistic variable instead of f
LOGISTIC_STEP, LOGISTIC_STEPS = 0.6, 60
LOG1P_STEP, LOG1P_LAST, LOG1P_TAIL = 0.4, 3.3, 1e-5
"""Trapezoidal rule of log(1 + u²) in log t: step, last node, and the product of the first t and the largest 1 + u²."""
PROBIT_STEP, PROBIT_REACH = 0.7, 8.5
MIN_DENSITY_NODES, DENSITY_STEP = 128, 0.4
MAX_NODES = 4096  # maximum number of nodes of rules whose number grows with the variance
MAX_LOG_DROP = 34.0  # nodes cover the range in which a log density is less than this below its mode: e^{−34} = 2e-15
NUM_BISECTIONS = 60
GOLDEN_RATIO = (math.sqrt(5) - 1) / 2

LogIntegrand = Callable[[Tensor], Tensor]


def differentiate(function: Callable[..., Tensor], *parts: Tensor) -> tuple[Tensor, ...]:
    """Compute the value of a function of tensors, and the derivatives of its sum, without a graph."""
    with torch.enable_grad():
        leaves = [part.detach().requires_grad_() for part in parts]
        value = function(*leaves)
        return value.detach(), *torch.autograd.grad(value.sum(), leaves)


def apply_by_blocks(function: Callable[..., Tensor], nodes_per_row: int, *parts: Tensor) -> Tensor:
    """Evaluate function(*parts) (n,) of independent rows block by block; differentiable once in every part."""
    size = max(1, BLOCK_ENTRIES // nodes_per_row)
    if torch.is_grad_enabled() and any(part.requires_grad for part in parts):
        return _Blocks.apply(function, size, *parts)
    return torch.cat([function(*block) for block in _split(size, parts)])


def _split(size: int, parts: Sequence[Tensor]) -> Iterable[tuple[Tensor, ...]]:
    return zip(*(part.split(size) for part in parts), strict=True)


class _Blocks(torch.autograd.Function):
    @staticmethod
    def forward(ctx, function: Callable, size: int, *parts: Tensor) -> Tensor:
        values, slopes = [], []
        for block in _split(size, parts):
            value, *slope = differentiate(function, *block)
            values.append(value)
            slopes.append(slope)
        ctx.save_for_backward(*(torch.cat(column) for column in zip(*slopes, strict=True)))
        return torch.cat(values)

    @staticmethod
    @once_differentiable
    def backward(ctx, by_value: Tensor) -> tuple[Tensor | None, ...]:
        slopes = ctx.saved_tensors
        return None, None, *(by_value.reshape(-1, *[1] * (slope.dim() - 1)) * slope for slope in slopes)


def expected_log_ndtr(mean: Tensor, variance: Tensor) -> Tensor:
    """Compute E log Φ(f) for f ~ N(mean, variance), elementwise and differentiable, by the trapezoidal rule.

    log Φ is analytic up to ±2.8i (the zeros of Φ), so that a step of 0.7 in f has an error of e^{−2π·2.8/0.7} = 1e-11.
    """
    largest = math.sqrt(max(variance.detach().nan_to_num(0.0).amax().item(), 0.0)) if variance.numel() else 0.0
    count = min(MAX_NODES, 1 + math.ceil(2 * PROBIT_REACH * max(largest / PROBIT_STEP, 2.0)))
    nodes = torch.linspace(-PROBIT_REACH, PROBIT_REACH, count, dtype=torch.float64)
    rule = nodes, normal_density(nodes) / normal_density(nodes).sum()
    return _apply_to_entries(lambda m, v: _sum_over_nodes(torch.special.log_ndtr, m, v, rule), count, mean, variance)


def expected_log1p_square(mean: Tensor, variance: Tensor) -> Tensor:
    """Compute E log(1 + u²) for u ~ N(mean, variance), elementwise and differentiable; smooth at variance 0.

    log(1 + u²) = ∫₀^∞ (1 − e^{−t u²}) e^{−t}/t dt, and E e^{−t u²} = A^{−½} e^{−t mean²/A} with A = 1 + 2 t·variance.
    The trapezoidal rule in log t has an error of about e^{−π²/0.4} = 2e-11; the part left of the first node, where the
    integrand is t (mean² + variance), is a geometric series.
    """
    return _apply_to_entries(_log1p_square, 50, mean, variance)


def _log1p_square(mean: Tensor, variance: Tensor) -> Tensor:
    size = mean.square() + variance
    largest = size.detach().nan_to_num(0.0).amax().item() if size.numel() else 0.0  # ∞ becomes the largest float
    count = math.ceil((LOG1P_LAST - math.log(LOG1P_TAIL) + math.log1p(largest)) / LOG1P_STEP)
    t = torch.exp(LOG1P_LAST - LOG1P_STEP * torch.arange(count, dtype=torch.float64, device=mean.device))
    twice = 2 * variance.unsqueeze(-1) * t
    exponent = -torch.log1p(twice) / 2 - mean.square().unsqueeze(-1) * t / (1 + twice)
    tail = t[-1] * size / math.expm1(LOG1P_STEP)
    return LOG1P_STEP * (-torch.expm1(exponent) @ torch.exp(-t) + tail)


def expected_softplus(mean: Tensor, variance: Tensor) -> Tensor:
    """Compute E log(1 + e^f) for f ~ N(mean, variance), elementwise and differentiable.

    Gauss–Hermite nodes for √v ≤ 1.5. Beyond, softplus(f) = E max(f + λ, 0) with a logistic variable λ: the expectation
    over f is closed (`expected_positive_part`), and the density of λ is analytic up to ±iπ, for the trapezoidal rule.
    """
    return _apply_to_entries(lambda m, v: _by_logistic(softplus, expected_positive_part, m, v), 64, mean, variance)


def expected_sigmoid(mean: Tensor, variance: Tensor) -> Tensor:
    """Compute E 1/(1 + e^{−f}) for f ~ N(mean, variance): the derivative of `expected_softplus`, by the same rules."""

    def smoothed(x: Tensor, std: Tensor) -> Tensor:
        return normal_cdf(x / std)

    return _apply_to_entries(lambda m, v: _by_logistic(torch.sigmoid, smoothed, m, v), 64, mean, variance)


def _by_logistic(function: Callable, smoothed: Callable, mean: Tensor, variance: Tensor) -> Tensor:
    """Compute E g(f), where g(f) = E s(f + λ) and `smoothed`(x, std) = E s(x + std·z) is closed."""
    broad, rule = variance > BROAD_VARIANCE, hermite_rule(HERMITE_NODES)
    narrow_value = _sum_over_nodes(function, mean, variance.where(~broad, BROAD_VARIANCE), rule)
    if not bool(broad.any()):
        return narrow_value
    nodes, weights = (part.to(mean.device) for part in logistic_rule())
    std = variance.where(broad, BROAD_VARIANCE).sqrt().unsqueeze(-1)
    return torch.where(broad, smoothed(mean.unsqueeze(-1) + nodes, std) @ weights, narrow_value)


@torch.no_grad()
def log_expected(function: LogIntegrand, mean: Tensor, std: Tensor) -> Tensor:
    """Compute log E e^{g(f)} for f ~ N(mean, std²), elementwise; −∞ where g is −∞ at the mean.

    g is elementwise, concave, and analytic within about π/2 of the real line (or the width of its peak, if narrower).
    """

    def log_integrand(z: Tensor) -> Tensor:
        return function(mean + std * z) - z.square() / 2

    peak = _find_peak(log_integrand, mean)
    level = log_integrand(peak) - MAX_LOG_DROP
    reach = torch.full_like(mean, math.sqrt(2 * MAX_LOG_DROP))  # −z²/2 alone drops by this much there
    low, high = (_find_edge(log_integrand, level, peak, side * reach) for side in (-1, 1))
    widest = float(((high - low) * std).amax()) if mean.numel() else 0.0
    count = min(max(MIN_DENSITY_NODES, math.ceil(widest / DENSITY_STEP)), MAX_NODES)
    total = torch.full_like(mean, -torch.inf)
    for node in torch.linspace(0, 1, count, dtype=torch.float64).tolist():
        total = torch.logaddexp(total, log_integrand(low + (high - low) * node))
    return total + ((high - low) / (count - 1)).log() - math.log(2 * math.pi) / 2


def _find_peak(log_integrand: LogIntegrand, like: Tensor) -> Tensor:
    """Find the maximum of a concave function: double a bracket, then golden section search."""
    width, inside = torch.ones_like(like), log_integrand(torch.zeros_like(like))
    known = inside > -torch.inf
    while bool((outside := (log_integrand(width) > inside) | (log_integrand(-width) > inside))[known].any()):
        width = torch.where(outside, 2 * width, width)
    low, high = -width, width
    for _ in range(NUM_BISECTIONS):
        left, right = high - GOLDEN_RATIO * (high - low), low + GOLDEN_RATIO * (high - low)
        is_left = log_integrand(left) >= log_integrand(right)
        low, high = torch.where(is_left, low, left), torch.where(is_left, right, high)
    return (low + high) / 2


def _find_edge(log_integrand: LogIntegrand, level: Tensor, peak: Tensor, reach: Tensor) -> Tensor:
    """Find where a concave function drops to `level`, between its peak and a distance `reach` from it."""
    inside, outside = torch.zeros_like(reach), reach
    for _ in range(NUM_BISECTIONS):
        middle = (inside + outside) / 2
        above = log_integrand(peak + middle) > level
        inside, outside = torch.where(above, middle, inside), torch.where(above, outside, middle)
    return peak + outside


def _apply_to_entries(
    rule: Callable[[Tensor, Tensor], Tensor], num_nodes: int, mean: Tensor, variance: Tensor
) -> Tensor:
    """Apply an elementwise rule, one block of entries at a time."""
    mean, variance = torch.broadcast_tensors(mean, variance)
    return apply_by_blocks(rule, num_nodes, mean.reshape(-1), variance.reshape(-1)).reshape(mean.shape)


def _sum_over_nodes(
    function: Callable[[Tensor], Tensor], mean: Tensor, variance: Tensor, rule: tuple[Tensor, Tensor]
) -> Tensor:
    """Compute Σ_k w_k g(m + √v z_k)."""
    nodes, weights = (part.to(mean.device) for part in rule)
    return function(mean.unsqueeze(-1) + standard_deviation(variance).unsqueeze(-1) * nodes) @ weights


@cache
def hermite_rule(num_nodes: int) -> tuple[Tensor, Tensor]:
    """Compute nodes and weights (N,) of E g(z), z ~ N(0, 1), exact for polynomials of degree 2N − 1."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(num_nodes)
    return torch.from_numpy(nodes), torch.from_numpy(weights / weights.sum())


@cache
def logistic_rule() -> tuple[Tensor, Tensor]:
    """Compute nodes and weights of E g(λ), λ logistic, for g analytic beyond ±iπ: the trapezoidal rule."""
    nodes = LOGISTIC_STEP * torch.arange(-LOGISTIC_STEPS, LOGISTIC_STEPS + 1, dtype=torch.float64)
    weights = torch.exp(-nodes.abs() - 2 * torch.log1p(torch.exp(-nodes.abs())))
    return nodes, weights / weights.sum()


def softplus(f: Tensor) -> Tensor:
    """Compute log(1 + e^f) to full precision; `torch.nn.functional.softplus` returns f beyond 20."""
    return torch.logaddexp(f, torch.zeros_like(f))


def expected_positive_part(mean: Tensor, std: Tensor) -> Tensor:
    """Compute E max(u, 0) for u ~ N(mean, std²): mean Φ(mean/std) + std φ(mean/std)."""
    z = mean / std
    return mean * normal_cdf(z) + std * normal_density(z)


def normal_density(z: Tensor) -> Tensor:
    """Compute φ(z)."""
    return torch.exp(-z.square() / 2) / math.sqrt(2 * math.pi)


def normal_cdf(z: Tensor) -> Tensor:
    """Compute Φ(z); `torch.special.ndtr` is (1 + erf)/2, which loses all digits in the lower tail."""
    return torch.erfc(-z / math.sqrt(2)) / 2


def tilted_cdf(rate: Tensor, z: Tensor) -> Tensor:
    """Compute e^{rate²/2 − rate z} Φ(z − rate) for rate ≥ 0 without overflow: an exponential tail in a cdf."""
    x = rate - z
    left = torch.special.erfcx(x.clamp_min(0.0) / math.sqrt(2)) * torch.exp(-z.square() / 2) / 2
    right = torch.exp(torch.where(x < 0, rate.square() / 2 - rate * z, 0.0)) * torch.special.ndtr(-x)
    return torch.where(x < 0, right, left)


def log_tilted_cdf(rate: Tensor, z: Tensor) -> Tensor:
    """Compute the logarithm of `tilted_cdf`, finite wherever z is."""
    x = rate - z
    left = torch.special.erfcx(x.clamp_min(0.0) / math.sqrt(2)).log() - z.square() / 2 - math.log(2)
    right = rate.square() / 2 - rate * z + torch.special.log_ndtr(-x)
    return torch.where(x < 0, right, left)


def standard_deviation(variance: Tensor) -> Tensor:
    """Compute √max(variance, 1e-14) with the derivative of the variance itself, also at zero variance."""
    return (variance + (MIN_VARIANCE - variance.detach()).clamp_min(0.0)).sqrt()
