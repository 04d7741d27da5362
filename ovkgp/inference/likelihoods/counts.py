"""Counts with a log link, E[y | f] = e^f: Poisson, and negative binomial where they vary more than that.

Poisson: E log p(y | f) = y m − e^{m + v/2} − log y!. Negative binomial with Var[y | f] = μ + α μ² and r = 1/α:
E log p(y | f) = log Γ(y + r)/Γ(r) y! + y (m − log r) − (y + r) E log(1 + e^{f − log r}), to 1e-8 at every variance and α ≥ 1e-6.
"""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor

from ovkgp.inference.likelihoods.base import refuse_values, require_outputs
from ovkgp.inference.likelihoods.count_mixtures import count_cdf
from ovkgp.inference.likelihoods.entrywise import EntrywiseLikelihood, marginal
from ovkgp.inference.likelihoods.log_expectations import log_expected
from ovkgp.inference.likelihoods.quadrature import expected_softplus, softplus
from ovkgp.inference.likelihoods.quantiles import LARGEST_COUNT, count_quantile

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
        Y = require_outputs(Y, self.num_outputs)
        is_count = (Y >= 0) & (Y.round() == Y) & torch.isfinite(Y)
        refuse_values(Y, ~torch.isnan(Y) & ~is_count, self.name, "whole numbers from 0 on")

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

    def latent_start(self, Y: Tensor) -> Tensor:
        """The logarithm of each average count, with half a count added."""
        Y = require_outputs(Y, self.num_outputs)
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
            Y = require_outputs(Y, self.num_outputs)
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
