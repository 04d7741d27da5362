"""Likelihoods of counts with a log link, E[y | f] = e^f: `Poisson`, and `NegativeBinomial` for overdispersed counts.

Poisson: E log p(y | f) = y m − e^{m + v/2} − log y!. Negative binomial with Var[y | f] = μ + α μ² and r = 1/α: E log
p(y | f) = log Γ(y + r)/Γ(r) y! + y (m − log r) − (y + r) E log(1 + e^{f − log r}), to 1e-8 at every variance and α ≥
1e-6. `count_cdf` integrates the predictive distribution over f.
"""

from __future__ import annotations

import numpy as np
import torch
from scipy.special import betainc, gammaincc, ndtr, polygamma
from torch import Tensor

from ovkgp.inference.likelihoods.base import (
    EntrywiseLikelihood,
    check_outputs,
    marginal_variance,
    parameter_property,
    reject_values,
)
from ovkgp.inference.likelihoods.prediction import MAX_COUNT, count_quantile
from ovkgp.inference.likelihoods.quadrature import (
    BLOCK_ENTRIES,
    HERMITE_NODES,
    MAX_LOG_DROP,
    MAX_NODES,
    expected_softplus,
    hermite_rule,
    log_expected,
    softplus,
)

LARGE_SHAPE = 1e3
"""Above it log Γ(y + r) − log Γ(r) is Stirling's series to 1e-11, as a direct difference loses digits."""
MIN_CDF_NODES, CDF_STEP = 64, 0.3


class CountLikelihood(EntrywiseLikelihood):
    """y ∈ {0, 1, 2, …} with E[y | f] = e^f; if it overflows (m + v/2 > 709) expectations are −∞, a failed step."""

    dispersion: Tensor | None = None  # α (p,), or None if it is zero

    def check(self, Y: Tensor, first_output: int = 0) -> None:
        Y = check_outputs(Y, self.num_outputs)
        is_count = (Y >= 0) & (Y.round() == Y) & torch.isfinite(Y)
        reject_values(Y, ~torch.isnan(Y) & ~is_count, self.name, "nonnegative integers", first_output)

    def moments(self, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
        """Compute E[y] = M = e^{m + v/2} and Var[y] = M + M² (e^v − 1) + α M² e^v."""
        mean, variance = mean.double(), marginal_variance(mean, variance)
        average, dispersion = (mean + variance / 2).exp(), self.dispersion
        factor = torch.expm1(variance) + (0.0 if dispersion is None else dispersion * variance.exp())
        return average, average + (average.square() * factor).where(factor > 0, 0.0)

    @torch.no_grad()
    def cdf(self, y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        """Compute P(Y ≤ y) on the CPU (`count_cdf`)."""
        dispersion = () if self.dispersion is None else (self.dispersion,)
        tensors = y.double(), mean.double(), marginal_variance(mean, variance), *dispersion
        return torch.from_numpy(count_cdf(*(tensor.detach().cpu().numpy() for tensor in tensors))).to(mean.device)

    @torch.no_grad()
    def log_predictive(self, y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        """Compute the log probability of a count; −∞ for any other number."""
        mean = mean.double()
        y, center, std = torch.broadcast_tensors(y.double(), mean, marginal_variance(mean, variance).sqrt())
        is_count = (y >= 0) & (y.round() == y) & torch.isfinite(y)
        count = torch.where(is_count, y, 0.0)
        value = log_expected(lambda f: self.entry_log_density(count, f), center, std)
        return torch.where(is_count, value, -torch.inf).masked_fill(torch.isnan(y), torch.nan)

    def quantile(self, q: float, mean: Tensor, variance: Tensor) -> Tensor:
        """Compute the smallest integer k with P(Y ≤ k) ≥ q."""
        guess = (mean.double() + 3 * marginal_variance(mean, variance).sqrt()).exp()
        return count_quantile(lambda k: self.cdf(k, mean, variance), q, guess)

    def initial_latent(self, Y: Tensor) -> Tensor:
        """Return the logarithm of each output's average count, with half a count added."""
        Y = check_outputs(Y, self.num_outputs)
        return ((Y.nansum(0) + 0.5) / (~torch.isnan(Y)).sum(0).clamp_min(1)).log()


class Poisson(CountLikelihood):
    """Poisson counts, y ~ Poisson(e^f).

    Parameters
    ----------
    num_outputs : int
        Number of outputs p.

    Notes
    -----
    Complexity: O(n p), in closed form; `cdf` takes 32 to 160 nodes per entry, on the CPU.

    Examples
    --------
    >>> import torch
    >>> from ovkgp.inference.likelihoods import Poisson
    >>> likelihood = Poisson(num_outputs=1)
    >>> zero = torch.zeros(1, 1)
    >>> likelihood.expected(zero, zero, zero).item(), likelihood.quantile(0.95, zero, zero).item()
    (-1.0, 3.0)
    """

    name = "poisson"

    def entry_log_density(self, y: Tensor, f: Tensor) -> Tensor:
        return y * f - f.exp() - torch.lgamma(y + 1)

    def entry_expected(self, y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        return y * mean - (mean + variance / 2).exp() - torch.lgamma(y + 1)

    def entry_terms(self, y: Tensor, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        average = (mean + variance / 2).exp()
        return y * mean - average - torch.lgamma(y + 1), y - average, average

    @torch.no_grad()
    def draw(self, F: Tensor, generator: torch.Generator) -> Tensor:
        return _draw_poisson(F.double().exp().cpu(), generator).to(F.device)


class NegativeBinomial(CountLikelihood):
    """Overdispersed counts with mean μ = e^f and variance μ + α μ².

    Parameters
    ----------
    num_outputs : int
        Number of outputs p.
    dispersion : float, array-like of shape (p,) or None, default=None
        Fixed dispersion α. If None, one dispersion per output is trained. α → 0 is the Poisson distribution.

    Notes
    -----
    Complexity: 32 nodes per entry, 153 if a variance in the batch is above 2.25; `cdf` takes 32 to 160 (more for α >
    1), on the CPU.

    Examples
    --------
    >>> import torch
    >>> from ovkgp.inference.likelihoods import NegativeBinomial
    >>> likelihood = NegativeBinomial(num_outputs=1, dispersion=2.0)
    >>> mean, variance = likelihood.moments(torch.zeros(1, 1), torch.zeros(1, 1))
    >>> mean.item(), variance.item()
    (1.0, 3.0)
    """

    name = "negative_binomial"
    dispersion = parameter_property("dispersion", "Dispersion α (p,).")

    def __init__(self, num_outputs: int, dispersion=None):
        super().__init__(num_outputs)
        self._add_parameter("dispersion", dispersion, initial=0.3)

    def entry_log_density(self, y: Tensor, f: Tensor) -> Tensor:
        shape = 1 / self.dispersion
        return self._constant(y, shape) + y * f - (y + shape) * softplus(f - shape.log())

    def entry_expected(self, y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        shape = 1 / self.dispersion
        return self._constant(y, shape) + y * mean - (y + shape) * expected_softplus(mean - shape.log(), variance)

    def _constant(self, y: Tensor, shape: Tensor) -> Tensor:
        """Compute log Γ(y + r) − log Γ(r) − y log r − log y!."""
        small, large = shape.clamp_max(LARGE_SHAPE), shape.clamp_min(LARGE_SHAPE)
        direct = torch.lgamma(y + small) - torch.lgamma(small) - y * small.log()
        series = (large + y - 0.5) * torch.log1p(y / large) - y - y / (12 * large * (large + y))
        return torch.where(shape < LARGE_SHAPE, direct, series) - torch.lgamma(y + 1)

    @torch.no_grad()
    def draw(self, F: Tensor, generator: torch.Generator) -> Tensor:
        shape = (1 / self.dispersion).cpu().expand(F.shape)
        factor = torch._standard_gamma(shape, generator=generator) / shape
        return _draw_poisson(factor * F.double().exp().cpu(), generator).to(F.device)

    @torch.no_grad()
    def start(self, Y: Tensor) -> None:
        """Set a tenth of the moment estimate for constant f, as most of the variance may come from f."""
        if self._is_trained("dispersion"):
            Y = check_outputs(Y, self.num_outputs)
            mean = Y.nanmean(0)
            excess = ((Y - mean).square().nanmean(0) - mean) / mean.square()
            self.dispersion = (0.1 * excess.nan_to_num(0.0, 0.0, 0.0)).clamp(1e-2, 1.0)


def _draw_poisson(rate: Tensor, generator: torch.Generator) -> Tensor:
    """Draw Poisson counts; rounded normal numbers if the rate is above `MAX_COUNT`, where `torch.poisson` overflows."""
    counts, large = torch.poisson(rate.clamp_max(MAX_COUNT), generator=generator), rate > MAX_COUNT
    if not bool(large.any()):
        return counts
    scores = torch.randn(rate.shape, generator=generator, dtype=torch.float64)
    return torch.where(large, (rate * (1 + scores / rate.sqrt())).round(), counts)


def count_cdf(
    y: np.ndarray, mean: np.ndarray, variance: np.ndarray, dispersion: np.ndarray | None = None
) -> np.ndarray:
    """Compute P(Y ≤ y) for a latent log-mean N(mean, variance), elementwise after broadcasting; NaN where y is NaN.

    P(Y ≤ k) = P(f ≤ T) with the threshold T = log Gamma(k + 1) (− log Gamma(1/α) + log 1/α if overdispersed). The
    integral is over f or over T, whichever is narrower.
    """
    shape = np.inf if dispersion is None else 1 / dispersion
    y, mean, std, shape = np.broadcast_arrays(y, mean, np.sqrt(variance), shape)
    value = np.where(np.isnan(y), np.nan, np.where(y < 0, 0.0, 1.0))
    inside = np.isfinite(y) & (y >= 0)
    entries, size = (np.floor(y[inside]) + 1, mean[inside], std[inside], shape[inside]), BLOCK_ENTRIES // MIN_CDF_NODES
    blocks = range(0, len(entries[0]), size)
    found = [_cdf(*(part[start : start + size] for part in entries)) for start in blocks]
    value[inside] = np.concatenate(found) if found else 0.0
    return value


def _cdf(a: np.ndarray, mean: np.ndarray, std: np.ndarray, shape: np.ndarray) -> np.ndarray:
    """Compute P(Y ≤ k) for vectors, with a = k + 1."""
    width = np.sqrt(polygamma(1, a) + np.where(np.isinf(shape), 0.0, polygamma(1, np.minimum(shape, 1e15))))
    narrow = std <= np.minimum(width, 1.0)  # 1: the threshold's density has poles at ±iπ, however wide it is
    value = np.empty(len(a))
    for which, rule in ((narrow, _cdf_over_latent), (~narrow, _cdf_over_threshold)):
        if which.any():
            value[which] = rule(a[which], mean[which], std[which], shape[which])
    return np.clip(value, 0.0, 1.0)


def _cdf_over_latent(a: np.ndarray, mean: np.ndarray, std: np.ndarray, shape: np.ndarray) -> np.ndarray:
    """Average P(Y ≤ k | f) over f by Gauss–Hermite quadrature."""
    nodes, weights = (part.numpy() for part in hermite_rule(HERMITE_NODES))
    f, a, shape = mean[:, None] + std[:, None] * nodes, a[:, None], shape[:, None]
    with np.errstate(over="ignore"):  # e^f = ∞ is the right limit
        rate = np.exp(f)
        poisson = np.isinf(shape)
        given = np.where(poisson, gammaincc(a, rate), betainc(np.where(poisson, 1.0, shape), a, 1 / (1 + rate / shape)))
    return given @ weights


def _cdf_over_threshold(a: np.ndarray, mean: np.ndarray, std: np.ndarray, shape: np.ndarray) -> np.ndarray:
    """Average P(f ≤ T) over the threshold T by the trapezoidal rule."""
    poisson = np.isinf(shape)
    low, high = _log_gamma_range(a)
    if not poisson.all():  # the range of a difference of two variables
        other_low, other_high = _log_gamma_range(shape)
        low, high = low - other_high, high - other_low
    count = int(np.clip(np.ceil((high - low).max() / CDF_STEP), MIN_CDF_NODES, MAX_NODES))
    d = low[:, None] + (high - low)[:, None] * np.linspace(0.0, 1.0, count)
    weights = np.exp(-_log_drop(d, a[:, None], shape[:, None]))
    z = (np.log(a)[:, None] + d - mean[:, None]) / std[:, None]
    return (weights * ndtr(z)).sum(1) / weights.sum(1)


def _log_gamma_range(a: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Bound the distances d from the mode of log Gamma(a) at which its log density drops by `MAX_LOG_DROP`."""
    c = MAX_LOG_DROP / a
    return -(c + np.sqrt(2 * c)), np.log1p(c + np.sqrt(2 * c))


def _log_drop(d: np.ndarray, a: np.ndarray, shape: np.ndarray) -> np.ndarray:
    """Compute the drop of the threshold's log density below its mode, at a distance d from it."""
    if np.isinf(shape).all():
        return a * (np.expm1(d) - d)
    fraction = a / (a + shape)
    near = np.log1p(fraction * np.expm1(np.minimum(d, 30.0)))
    far = d + np.log(fraction + (1 - fraction) * np.exp(-np.maximum(d, 30.0)))
    return (a + shape) * np.where(d < 30, near, far) - a * d
