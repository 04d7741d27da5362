"""Counts with a log link, E[y | f] = e^f: Poisson, and negative binomial where they vary more than that.

Poisson: E log p(y | f) = y m − e^{m + v/2} − log y!. Negative binomial with Var[y | f] = μ + α μ² and r = 1/α:
E log p(y | f) = log Γ(y + r)/Γ(r) y! + y (m − log r) − (y + r) E log(1 + e^{f − log r}), to 1e-8 at every variance and α ≥ 1e-6.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable

import numpy as np
import torch
from scipy.special import betainc, gammaincc, ndtr, polygamma
from torch import Tensor

from ovkgp.inference.likelihoods.base import EntrywiseLikelihood, check_outputs, marginal, reject_values
from ovkgp.inference.likelihoods.prediction import LARGEST_COUNT, count_quantile
from ovkgp.inference.likelihoods.quadrature import (
    BLOCK_ENTRIES,
    HERMITE_NODES,
    expected_softplus,
    hermite_rule,
    softplus,
)

_NODES, _MOST_NODES, _STEP = 64, 4096, 0.3
_DROP = 34.0
"""Nodes of the threshold reach to where its log-density has fallen by this much: e^{−34} = 2e-15."""


def count_cdf(
    y: np.ndarray, mean: np.ndarray, variance: np.ndarray, dispersion: np.ndarray | None = None
) -> np.ndarray:
    """P(Y ≤ y), elementwise after broadcasting; NaN where y is NaN.

    Args:
        y: any numbers; what counts is their integer part.
        mean, variance: of the latent log-mean.
        dispersion: α of a negative binomial law; None for Poisson.

    Cost: 32 nodes for each entry where f is the narrower variable, else 64 to 160 (up to 4096 for α > 1, whose thresholds spread
    widely); memory O(entries), as they are done a few thousand at a time.

    Example:
        >>> import numpy as np
        >>> from ovkgp.inference.likelihoods.counts import count_cdf
        >>> count_cdf(np.array([0.0, 2.0]), np.zeros(2), np.zeros(2)).round(9).tolist()  # e^{−1} and 5/2 e^{−1}
        [0.367879441, 0.919698603]
    """
    shape = np.inf if dispersion is None else 1 / dispersion
    y, mean, std, shape = np.broadcast_arrays(y, mean, np.sqrt(variance), shape)
    value = np.where(np.isnan(y), np.nan, np.where(y < 0, 0.0, 1.0))
    asked = np.isfinite(y) & (y >= 0)
    entries, size = (np.floor(y[asked]) + 1, mean[asked], std[asked], shape[asked]), BLOCK_ENTRIES // _NODES
    starts = range(0, len(entries[0]), size)
    found = [_cdf(*(part[start : start + size] for part in entries)) for start in starts]
    value[asked] = np.concatenate(found) if found else 0.0
    return value


def _cdf(a: np.ndarray, mean: np.ndarray, std: np.ndarray, shape: np.ndarray) -> np.ndarray:
    """For vectors of a = k + 1."""
    width = np.sqrt(polygamma(1, a) + np.where(np.isinf(shape), 0.0, polygamma(1, np.minimum(shape, 1e15))))
    narrow = std <= np.minimum(width, 1.0)  # 1: the threshold's law has poles at ±iπ, however wide it is
    value = np.empty(len(a))
    for which, rule in ((narrow, _over_latent), (~narrow, _over_threshold)):
        if which.any():
            value[which] = rule(a[which], mean[which], std[which], shape[which])
    return np.clip(value, 0.0, 1.0)


def _over_latent(a: np.ndarray, mean: np.ndarray, std: np.ndarray, shape: np.ndarray) -> np.ndarray:
    nodes, weights = (part.numpy() for part in hermite_rule(HERMITE_NODES))
    f, a, shape = mean[:, None] + std[:, None] * nodes, a[:, None], shape[:, None]
    with np.errstate(over="ignore"):  # e^f = ∞ is the right limit
        rate = np.exp(f)
        poisson = np.isinf(shape)
        given = np.where(poisson, gammaincc(a, rate), betainc(np.where(poisson, 1.0, shape), a, 1 / (1 + rate / shape)))
    return given @ weights


def _over_threshold(a: np.ndarray, mean: np.ndarray, std: np.ndarray, shape: np.ndarray) -> np.ndarray:
    poisson = np.isinf(shape)
    low, high = _reach(a)
    if not poisson.all():  # the range of a difference of two variables
        other_low, other_high = _reach(shape)
        low, high = low - other_high, high - other_low
    count = int(np.clip(np.ceil((high - low).max() / _STEP), _NODES, _MOST_NODES))
    d = low[:, None] + (high - low)[:, None] * np.linspace(0.0, 1.0, count)
    weights = np.exp(-_log_drop(d, a[:, None], shape[:, None]))
    z = (np.log(a)[:, None] + d - mean[:, None]) / std[:, None]
    return (weights * ndtr(z)).sum(1) / weights.sum(1)


def _reach(a: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Where a (e^d − 1 − d), the drop of the log-density of log Gamma(a) at a distance d from its mode, has passed `_DROP`."""
    c = _DROP / a
    return -(c + np.sqrt(2 * c)), np.log1p(c + np.sqrt(2 * c))


def _log_drop(d: np.ndarray, a: np.ndarray, shape: np.ndarray) -> np.ndarray:
    """How far the log-density of the threshold is below its mode, at a distance d from it."""
    if np.isinf(shape).all():
        return a * (np.expm1(d) - d)
    share = a / (a + shape)
    near = np.log1p(share * np.expm1(np.minimum(d, 30.0)))
    far = d + np.log(share + (1 - share) * np.exp(-np.maximum(d, 30.0)))
    return (a + shape) * np.where(d < 30, near, far) - a * d


_NODES_log_expectations, _MOST_NODES_log_expectations, _STEP_log_expectations, _DROP_log_expectations, _HALVINGS = (
    128,
    4096,
    0.4,
    34.0,
    60,
)
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
        >>> from ovkgp.inference.likelihoods.counts import log_expected
        >>> one = torch.ones(1, dtype=torch.float64)
        >>> round(log_expected(lambda f: 2 * f, 0 * one, one).item(), 9)  # E e^{2f} = e²
        2.0
    """

    def height(z: Tensor) -> Tensor:
        return function(mean + std * z) - z.square() / 2

    peak = _peak(height, mean)
    level = height(peak) - _DROP_log_expectations
    reach = torch.full_like(mean, math.sqrt(2 * _DROP_log_expectations))  # −z²/2 alone has fallen by so much there
    low, high = (_edge(height, level, peak, side * reach) for side in (-1, 1))
    widest = float(((high - low) * std).amax()) if mean.numel() else 0.0
    count = min(max(_NODES_log_expectations, math.ceil(widest / _STEP_log_expectations)), _MOST_NODES_log_expectations)
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


LARGE_SHAPE = 1e3
"""Above it log Γ(y + r) − log Γ(r) is Stirling's series, whose next term is below 1e-11; a plain difference loses digits."""


class CountLikelihood(EntrywiseLikelihood):
    """y ∈ {0, 1, 2, …} with E[y | f] = e^f.

    A mean that overflows (m + v/2 > 709) has an expectation of −∞ and infinite moments, not NaN: engines take that for a step
    that failed.
    """

    @property
    @abstractmethod
    def _excess(self) -> Tensor | None:
        """α (p,), or None where it is zero."""

    def check(self, Y: Tensor) -> None:
        Y = check_outputs(Y, self.num_outputs)
        is_count = (Y >= 0) & (Y.round() == Y) & torch.isfinite(Y)
        reject_values(Y, ~torch.isnan(Y) & ~is_count, self.name, "whole numbers from 0 on")

    def moments(self, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
        """E[y] = M = e^{m + v/2} and Var[y] = M + M² (e^v − 1) + α M² e^v."""
        mean, variance = mean.double(), marginal(mean, variance)
        average, excess = (mean + variance / 2).exp(), self._excess
        factor = torch.expm1(variance) + (0.0 if excess is None else excess * variance.exp())
        return average, average + (average.square() * factor).where(factor > 0, 0.0)

    @torch.no_grad()
    def cdf(self, y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        """An average over f, or over the random threshold that f is held against (`count_mixtures`)."""
        parts = y.double(), mean.double(), marginal(mean, variance), *(() if self._excess is None else (self._excess,))
        arrays = [part.detach().cpu().numpy() for part in parts]
        return torch.from_numpy(count_cdf(*arrays)).to(mean.device)

    @torch.no_grad()
    def log_predictive(self, y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        """Of a count; −∞ for any other number."""
        mean = mean.double()
        y, centre, std = torch.broadcast_tensors(y.double(), mean, marginal(mean, variance).sqrt())
        is_count = (y >= 0) & (y.round() == y) & torch.isfinite(y)
        count = torch.where(is_count, y, 0.0)
        value = log_expected(lambda f: self.entry_log_density(count, f), centre, std)
        return torch.where(is_count, value, -torch.inf).masked_fill(torch.isnan(y), torch.nan)

    def quantile(self, q: float, mean: Tensor, variance: Tensor) -> Tensor:
        """The smallest whole number k with P(Y ≤ k) ≥ q."""
        guess = (mean.double() + 3 * marginal(mean, variance).sqrt()).exp()
        return count_quantile(lambda k: self.cdf(k, mean, variance), q, guess)

    def initial_latent(self, Y: Tensor) -> Tensor:
        """The logarithm of each average count, with half a count added."""
        Y = check_outputs(Y, self.num_outputs)
        return ((Y.nansum(0) + 0.5) / (~torch.isnan(Y)).sum(0).clamp_min(1)).log()


class Poisson(CountLikelihood):
    """y ~ Poisson(e^f).

    Args:
        num_outputs: p.

    Cost: O(n p), closed forms; `cdf` 32 to 160 nodes for each entry, on the CPU.

    Example:
        >>> import torch
        >>> from ovkgp.inference.likelihoods import Poisson
        >>> likelihood = Poisson(num_outputs=1)
        >>> zero = torch.zeros(1, 1)
        >>> likelihood.expected(zero, zero, zero).item(), likelihood.quantile(0.95, zero, zero).item()
        (-1.0, 3.0)
    """

    name = "poisson"
    _excess = None

    def entry_log_density(self, y: Tensor, f: Tensor) -> Tensor:
        return y * f - f.exp() - torch.lgamma(y + 1)

    def entry_expected(self, y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        return y * mean - (mean + variance / 2).exp() - torch.lgamma(y + 1)

    def entry_terms(self, y: Tensor, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        average = (mean + variance / 2).exp()
        return y * mean - average - torch.lgamma(y + 1), y - average, average

    @torch.no_grad()
    def draw(self, F: Tensor, generator: torch.Generator) -> Tensor:
        return _poisson(F.double().exp().cpu(), generator).to(F.device)


class NegativeBinomial(CountLikelihood):
    """y with mean μ = e^f and variance μ + α μ².

    Args:
        num_outputs: p.
        dispersion: α, a number or (p,), kept fixed; None trains one an output. α → 0 is the Poisson law.

    Cost: 32 nodes for each entry, 153 where a variance in the batch is above 2.25; `cdf` 32 to 160 (more for α > 1), on the CPU.

    Example:
        >>> import torch
        >>> from ovkgp.inference.likelihoods import NegativeBinomial
        >>> likelihood = NegativeBinomial(num_outputs=1, dispersion=2.0)
        >>> mean, variance = likelihood.moments(torch.zeros(1, 1), torch.zeros(1, 1))
        >>> mean.item(), variance.item()
        (1.0, 3.0)
    """

    name = "negative_binomial"

    def __init__(self, num_outputs: int, dispersion=None):
        super().__init__(num_outputs)
        self._own("dispersion", dispersion, start=0.3)

    @property
    def dispersion(self) -> Tensor:
        """α (p,)."""
        return self._value("dispersion")

    @dispersion.setter
    def dispersion(self, value) -> None:
        self._place("dispersion", value)

    @property
    def _excess(self) -> Tensor:
        return self.dispersion

    def entry_log_density(self, y: Tensor, f: Tensor) -> Tensor:
        shape = 1 / self.dispersion
        return self._constant(y, shape) + y * f - (y + shape) * softplus(f - shape.log())

    def entry_expected(self, y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        shape = 1 / self.dispersion
        return self._constant(y, shape) + y * mean - (y + shape) * expected_softplus(mean - shape.log(), variance)

    def _constant(self, y: Tensor, shape: Tensor) -> Tensor:
        """log Γ(y + r) − log Γ(r) − y log r − log y!."""
        small, large = shape.clamp_max(LARGE_SHAPE), shape.clamp_min(LARGE_SHAPE)
        plain = torch.lgamma(y + small) - torch.lgamma(small) - y * small.log()
        series = (large + y - 0.5) * torch.log1p(y / large) - y - y / (12 * large * (large + y))
        return torch.where(shape < LARGE_SHAPE, plain, series) - torch.lgamma(y + 1)

    @torch.no_grad()
    def draw(self, F: Tensor, generator: torch.Generator) -> Tensor:
        shape = (1 / self.dispersion).cpu().expand(F.shape)
        share = torch._standard_gamma(shape, generator=generator) / shape
        return _poisson(share * F.double().exp().cpu(), generator).to(F.device)

    @torch.no_grad()
    def start(self, Y: Tensor) -> None:
        """By moments, as if f were constant, and a tenth of that: most of the spread may be the latent function's."""
        if self._is_trained("dispersion"):
            Y = check_outputs(Y, self.num_outputs)
            mean = Y.nanmean(0)
            excess = ((Y - mean).square().nanmean(0) - mean) / mean.square()
            self.dispersion = (0.1 * excess.nan_to_num(0.0, 0.0, 0.0)).clamp(1e-2, 1.0)


def _poisson(rate: Tensor, generator: torch.Generator) -> Tensor:
    """Poisson counts; rounded normal ones where the rate is above `LARGEST_COUNT`: torch's own leave the range of integers."""
    counts, large = torch.poisson(rate.clamp_max(LARGEST_COUNT), generator=generator), rate > LARGEST_COUNT
    if not bool(large.any()):
        return counts
    scores = torch.randn(rate.shape, generator=generator, dtype=torch.float64)
    return torch.where(large, (rate * (1 + scores / rate.sqrt())).round(), counts)
