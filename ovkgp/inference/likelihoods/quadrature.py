"""Expectations under f ~ N(m, v) that have no closed form, each by a rule that is exact to about 1e-9 at *every* variance.

Gauss–Hermite nodes are excellent while the function bends on a longer scale than √v and poor when it does not: 32 nodes give
log(1 + f²/4) to 2e-9 at √v = 1 and to 2 % at √v = 10. So the two functions that matter, log(1 + u²) of the Student-t law and
the softplus of logistic ones, are written as integrals in which v makes the integrand smoother; log Φ has as many nodes as its
variance asks for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import cache

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

BLOCK_ENTRIES = 1 << 17
"""How many temporaries a block has: a megabyte in float64."""


def by_blocks(function: Callable[..., Tensor], nodes_per_row: int, *parts: Tensor) -> Tensor:
    """function(*parts) (n,) for a function that treats rows apart, differentiable once in every part.

    Args:
        function: takes some rows of every part and gives one number for each row.
        nodes_per_row: about how many temporaries it makes for a row.
        parts: tensors with n rows.

    Cost: that of the function; memory is that of `parts` and of `BLOCK_ENTRIES` temporaries.

    Example:
        >>> import torch
        >>> from ovkgp.inference.likelihoods.quadrature import by_blocks
        >>> x = torch.arange(3.0, requires_grad=True)
        >>> by_blocks(torch.square, 1, x).sum().backward()
        >>> x.grad.tolist()
        [0.0, 2.0, 4.0]
    """
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
            leaves = [part.detach().requires_grad_() for part in block]
            with torch.enable_grad():
                value = function(*leaves)
                slopes.append(torch.autograd.grad(value.sum(), leaves))
            values.append(value.detach())
        ctx.save_for_backward(*(torch.cat(column) for column in zip(*slopes, strict=True)))
        return torch.cat(values)

    @staticmethod
    @once_differentiable
    def backward(ctx, by_value: Tensor) -> tuple[Tensor | None, ...]:
        slopes = ctx.saved_tensors
        return None, None, *(by_value.reshape(-1, *[1] * (slope.dim() - 1)) * slope for slope in slopes)


HERMITE_NODES = 32
"""Enough for 1e-9 wherever this many are used alone."""
MIN_VARIANCE = 1e-14
"""Below it, the derivative by the variance of a rule in √v is round-off; there it is the derivative at this variance."""

_STEP, _LAST, _TAIL = 0.4, 3.3, 1e-5
_BROAD, _LOGISTIC_STEP, _LOGISTIC_REACH = 2.25, 0.6, 60
_REACH, _PROBIT_STEP, _MOST_NODES = 8.5, 0.7, 4096


def expected_by_hermite(
    function: Callable[[Tensor], Tensor], mean: Tensor, variance: Tensor, num_nodes: int = HERMITE_NODES
) -> Tensor:
    """E g(f) ≈ Σ_k w_k g(m + √v z_k), elementwise over tensors of one shape.

    Args:
        function: g, elementwise.
        mean, variance: of f, of one shape.
        num_nodes: N; exact for polynomials of degree 2N − 1.

    Cost: N evaluations of g for each entry; memory O(entries), as for every rule here (`blocks.by_blocks`). Differentiable once.

    Example:
        >>> import torch
        >>> from ovkgp.inference.likelihoods.quadrature import expected_by_hermite
        >>> mean, variance = torch.tensor([1.0]).double(), torch.tensor([4.0]).double()
        >>> round(expected_by_hermite(torch.square, mean, variance).item(), 12)
        5.0
    """
    return _entries(lambda m, v: _hermite(function, m, v, num_nodes), num_nodes, mean, variance)


def expected_log_ndtr(mean: Tensor, variance: Tensor) -> Tensor:
    """E log Φ(f) for f ~ N(mean, variance), elementwise and differentiable, by the trapezoidal rule.

    log Φ is analytic up to ±2.8i (the zeros of Φ), so that nodes 0.7 apart in f have an error of e^{−2π·2.8/0.7} = 1e-11.

    Cost: 35 nodes for each entry while √v ≤ 1.4, 25 √v beyond, with the largest variance of the batch; at most 4096, which is
    enough up to √v = 168.

    Example:
        >>> import torch
        >>> from ovkgp.inference.likelihoods.quadrature import expected_log_ndtr
        >>> zero = torch.zeros(1).double()
        >>> expected_log_ndtr(zero, zero).exp().round(decimals=9).tolist()
        [0.5]
    """
    largest = math.sqrt(max(variance.detach().nan_to_num(0.0).amax().item(), 0.0)) if variance.numel() else 0.0
    count = min(_MOST_NODES, 1 + math.ceil(2 * _REACH * max(largest / _PROBIT_STEP, 2.0)))
    nodes = torch.linspace(-_REACH, _REACH, count, dtype=torch.float64)
    rule = nodes, normal_density(nodes) / normal_density(nodes).sum()
    return _entries(lambda m, v: _by_nodes(torch.special.log_ndtr, m, v, rule), count, mean, variance)


def _hermite(function: Callable[[Tensor], Tensor], mean: Tensor, variance: Tensor, num_nodes: int) -> Tensor:
    return _by_nodes(function, mean, variance, hermite_rule(num_nodes))


def _by_nodes(
    function: Callable[[Tensor], Tensor], mean: Tensor, variance: Tensor, rule: tuple[Tensor, Tensor]
) -> Tensor:
    """Σ_k w_k g(m + √v z_k)."""
    nodes, weights = (part.to(mean.device) for part in rule)
    std = _lifted(variance, MIN_VARIANCE).sqrt()
    return function(mean.unsqueeze(-1) + std.unsqueeze(-1) * nodes) @ weights


def _entries(rule: Callable[[Tensor, Tensor], Tensor], num_nodes: int, mean: Tensor, variance: Tensor) -> Tensor:
    """An elementwise rule, a block of entries at a time."""
    mean, variance = torch.broadcast_tensors(mean, variance)
    return by_blocks(rule, num_nodes, mean.reshape(-1), variance.reshape(-1)).reshape(mean.shape)


@cache
def hermite_rule(num_nodes: int) -> tuple[Tensor, Tensor]:
    """Nodes and weights (N,) of E g(z), z ~ N(0, 1)."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(num_nodes)
    return torch.from_numpy(nodes), torch.from_numpy(weights / weights.sum())


def expected_log1p_square(mean: Tensor, variance: Tensor) -> Tensor:
    """E log(1 + u²) for u ~ N(mean, variance), elementwise and differentiable; smooth at variance 0.

    log(1 + u²) = ∫₀^∞ (1 − e^{−t u²}) e^{−t}/t dt, and E e^{−t u²} = A^{−½} e^{−t mean²/A} with A = 1 + 2 t·variance. The trapezoidal
    rule in log t has an error of about e^{−π²/0.4} = 2e-11; what lies left of the first node, where the integrand is
    t (mean² + variance), is summed as a geometric series.

    Cost: 37 + 2.5 log(1 + max(mean² + variance)) nodes for each entry.

    Example:
        >>> import torch
        >>> from ovkgp.inference.likelihoods.quadrature import expected_log1p_square
        >>> expected_log1p_square(torch.tensor([1.0]).double(), torch.tensor([0.0]).double()).exp().round(decimals=9).tolist()
        [2.0]
    """
    return _entries(_log1p_square, 50, mean, variance)


def _log1p_square(mean: Tensor, variance: Tensor) -> Tensor:
    size = mean.square() + variance
    largest = size.detach().nan_to_num(0.0).amax().item() if size.numel() else 0.0  # ∞ is the largest number
    count = math.ceil((_LAST - math.log(_TAIL) + math.log1p(largest)) / _STEP)
    t = torch.exp(_LAST - _STEP * torch.arange(count, dtype=torch.float64, device=mean.device))
    twice = 2 * variance.unsqueeze(-1) * t
    exponent = -torch.log1p(twice) / 2 - mean.square().unsqueeze(-1) * t / (1 + twice)
    tail = t[-1] * size / math.expm1(_STEP)
    return _STEP * (-torch.expm1(exponent) @ torch.exp(-t) + tail)


def expected_softplus(mean: Tensor, variance: Tensor) -> Tensor:
    """E log(1 + e^f) for f ~ N(mean, variance), elementwise and differentiable.

    Gauss–Hermite nodes while √v ≤ 1.5. Beyond, softplus(f) = E max(f + λ, 0) with a logistic variable λ: the expectation over f
    is closed (`expected_positive_part`), and the trapezoidal rule serves for λ, whose density is analytic up to ±iπ.

    Cost: 32 nodes for each entry, and 121 more where a variance in the batch is broad.

    Example:
        >>> import torch
        >>> from ovkgp.inference.likelihoods.quadrature import expected_softplus
        >>> zero = torch.zeros(1).double()
        >>> expected_softplus(zero, zero).exp().round(decimals=9).tolist()
        [2.0]
    """
    return _entries(lambda m, v: _by_logistic(softplus, expected_positive_part, m, v), 64, mean, variance)


def expected_sigmoid(mean: Tensor, variance: Tensor) -> Tensor:
    """E 1/(1 + e^{−f}) for f ~ N(mean, variance): the derivative of `expected_softplus`, by the same rules."""
    return _entries(lambda m, v: _by_logistic(torch.sigmoid, _normal_cdf, m, v), 64, mean, variance)


def _by_logistic(function: Callable, smoothed: Callable, mean: Tensor, variance: Tensor) -> Tensor:
    """E g(f), where g(f) = E s(f + λ) and `smoothed`(x, std) = E s(x + std·z) is closed."""
    broad = variance > _BROAD
    narrow_value = _hermite(function, mean, variance.where(~broad, _BROAD), HERMITE_NODES)
    if not bool(broad.any()):
        return narrow_value
    nodes, weights = (part.to(mean.device) for part in logistic_rule())
    std = variance.where(broad, _BROAD).sqrt().unsqueeze(-1)
    return torch.where(broad, smoothed(mean.unsqueeze(-1) + nodes, std) @ weights, narrow_value)


def _normal_cdf(mean: Tensor, std: Tensor) -> Tensor:
    return normal_cdf(mean / std)


def softplus(f: Tensor) -> Tensor:
    """log(1 + e^f) to full precision; torch's own is f itself beyond 20."""
    return torch.logaddexp(f, torch.zeros_like(f))


@cache
def logistic_rule() -> tuple[Tensor, Tensor]:
    """Nodes and weights of E g(λ), λ logistic, for g analytic beyond ±iπ: the trapezoidal rule."""
    nodes = _LOGISTIC_STEP * torch.arange(-_LOGISTIC_REACH, _LOGISTIC_REACH + 1, dtype=torch.float64)
    weights = torch.exp(-nodes.abs() - 2 * torch.log1p(torch.exp(-nodes.abs())))
    return nodes, weights / weights.sum()


def expected_positive_part(mean: Tensor, std: Tensor) -> Tensor:
    """E max(u, 0) for u ~ N(mean, std²): mean Φ(mean/std) + std φ(mean/std)."""
    z = mean / std
    return mean * normal_cdf(z) + std * normal_density(z)


def normal_density(z: Tensor) -> Tensor:
    """φ(z)."""
    return torch.exp(-z.square() / 2) / math.sqrt(2 * math.pi)


def normal_cdf(z: Tensor) -> Tensor:
    """Φ(z); `torch.special.ndtr` is (1 + erf)/2, which has no digits left in the lower tail."""
    return torch.erfc(-z / math.sqrt(2)) / 2


def tilted_cdf(rate: Tensor, z: Tensor) -> Tensor:
    """e^{rate²/2 − rate z} Φ(z − rate) for rate ≥ 0, without overflow: the part of an exponential tail in a distribution function."""
    x = rate - z
    left = torch.special.erfcx(x.clamp_min(0.0) / math.sqrt(2)) * torch.exp(-z.square() / 2) / 2
    right = torch.exp(torch.where(x < 0, rate.square() / 2 - rate * z, 0.0)) * torch.special.ndtr(-x)
    return torch.where(x < 0, right, left)


def log_tilted_cdf(rate: Tensor, z: Tensor) -> Tensor:
    """The logarithm of `tilted_cdf`, finite wherever z is."""
    x = rate - z
    left = torch.special.erfcx(x.clamp_min(0.0) / math.sqrt(2)).log() - z.square() / 2 - math.log(2)
    right = rate.square() / 2 - rate * z + torch.special.log_ndtr(-x)
    return torch.where(x < 0, right, left)


def standard_deviation(variance: Tensor, unit: Tensor) -> Tensor:
    """√variance, where a variance below 1e-14 unit² counts as that: its root would have no derivative."""
    return _lifted(variance, MIN_VARIANCE * unit.detach().square()).sqrt()


def _lifted(variance: Tensor, least: float | Tensor) -> Tensor:
    """max(variance, least), with the derivative of `variance` itself."""
    return variance + (least - variance.detach()).clamp_min(0.0)
