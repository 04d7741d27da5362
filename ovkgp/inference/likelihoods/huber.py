"""Huber's loss as a normalised density: Gaussian up to κ scales, exponential beyond.

p(y | f) = exp(−h_κ(r/s)) / (s Z), h_κ(u) = ½u² for |u| ≤ κ and κ(|u| − κ/2) beyond (LT-56),
Z = √(2π)(2Φ(κ) − 1) + (2/κ) e^{−κ²/2}. Since h_κ(u) = κu − ½κ² + ½ max(κ − u, 0)² − ½ max(−κ − u, 0)², its expectation under a normal
law is closed, and for u of positive mean nothing large is subtracted from anything large.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from scipy.special import ndtr, owens_t
from torch import Tensor

from ovkgp.exceptions import OptionError
from ovkgp.inference.likelihoods.entrywise import marginal
from ovkgp.inference.likelihoods.location import LocationLikelihood
from ovkgp.inference.likelihoods.quadrature import (
    expected_positive_part,
    log_tilted_cdf,
    normal_cdf,
    normal_density,
    standard_deviation,
    tilted_cdf,
)


class Huber(LocationLikelihood):
    """y = f + s·e, e with density exp(−h_κ(e)) / Z.

    Args:
        num_outputs: p.
        scale: s, a number or (p,), kept fixed; None trains one an output.
        kappa: κ > 0, for all outputs; 1.345 is 95 % efficient where noise is Gaussian.

    log p is concave in f, with curvatures between 0 and 1/s².

    Cost: O(n p), closed forms throughout; `cdf` runs on the CPU (Owen's T function).

    Example:
        >>> import torch
        >>> from ovkgp.inference.likelihoods import Huber
        >>> likelihood = Huber(num_outputs=1, scale=1.0)
        >>> _, first, curvature = likelihood.terms(torch.tensor([[50.0]]), torch.zeros(1, 1), torch.ones(1, 1))
        >>> round(first.item(), 9), curvature.item()
        (1.345, 0.0)
    """

    name = "huber"

    def __init__(self, num_outputs: int, scale=None, kappa: float = 1.345):
        if not (math.isfinite(kappa) and kappa > 0):
            raise OptionError(f"kappa is where the loss turns linear, a positive number of scales; got {kappa!r}.")
        super().__init__(num_outputs, scale)
        self.kappa = float(kappa)

    def entry_log_density(self, y: Tensor, f: Tensor) -> Tensor:
        size = ((y - f) / self.scale).abs()
        loss = torch.where(size <= self.kappa, size.square() / 2, self.kappa * (size - self.kappa / 2))
        return self._constant() - loss

    def entry_expected(self, y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        gap, std = self._standardised(y, mean, variance)
        size = gap.abs()
        inside = _half_square(self.kappa - size, std) - _half_square(-self.kappa - size, std)
        return self._constant() - self.kappa * (size - self.kappa / 2) - inside

    def entry_terms(self, y: Tensor, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        gap, std = self._standardised(y, mean, variance)
        below, beyond = self.kappa - gap.abs(), -self.kappa - gap.abs()
        first = self.kappa - expected_positive_part(below, std) + expected_positive_part(beyond, std)
        curvature = normal_cdf(below / std) - normal_cdf(beyond / std)
        return self.entry_expected(y, mean, variance), gap.sign() * first / self.scale, curvature / self.scale.square()

    def _standardised(self, y: Tensor, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
        return (y - mean) / self.scale, standard_deviation(variance / self.scale.square(), torch.ones_like(self.scale))

    @property
    def _masses(self) -> tuple[float, float]:
        """Of the Gaussian middle and of both tails together, times Z."""
        middle = math.sqrt(2 * math.pi) * (2 * ndtr(self.kappa) - 1)
        return middle, 2 / self.kappa * math.exp(-(self.kappa**2) / 2)

    def _constant(self) -> Tensor:
        return -math.log(sum(self._masses)) - self.scale.log()

    def unit_moments(self) -> tuple[Tensor, Tensor]:
        middle, tails = self._masses
        variance = (middle + tails * (2 + 2 / self.kappa**2)) / (middle + tails)
        return torch.zeros_like(self.scale), torch.full_like(self.scale, variance)

    @torch.no_grad()
    def cdf(self, y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        """Middle and tails of the noise apart: a bivariate normal rectangle, and two exponential tails."""
        gap, std = self._standardised(y.double(), mean.double(), marginal(mean, variance))
        kappa, tail = self.kappa, math.exp(-(self.kappa**2) / 2) / self.kappa
        above, below = (gap - kappa) / std, (gap + kappa) / std
        right = tail * (normal_cdf(above) - tilted_cdf(kappa * std, above))
        left = tail * (normal_cdf(below) + tilted_cdf(kappa * std, -below))
        total, std = (1 + std.square()).sqrt(), std.expand(gap.shape)
        rectangle = [bivariate_cdf(end, gap / total, 1 / total, std / total) for end in (kappa, -kappa)]
        middle = math.sqrt(2 * math.pi) * (rectangle[0] - rectangle[1])
        return ((left + middle + right) / sum(self._masses)).clamp(0.0, 1.0)

    @torch.no_grad()
    def log_predictive(self, y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        """Middle and tails of the noise apart: a normal density times a normal probability, and two exponential tails."""
        gap, std = self._standardised(y.double(), mean.double(), marginal(mean, variance))
        kappa, total, size = self.kappa, 1 + std.square(), gap.abs()
        low, high = ((end - size / total) * total.sqrt() / std for end in (-kappa, kappa))
        middle = -total.log() / 2 - size.square() / (2 * total) + log_normal_interval(low, high)
        tails = [log_tilted_cdf(kappa * std, (side - kappa) / std) - kappa**2 / 2 for side in (gap, -gap)]
        return self._constant() + torch.logaddexp(middle, torch.logaddexp(*tails))

    @torch.no_grad()
    def draw(self, F: Tensor, generator: torch.Generator) -> Tensor:
        """By composition: a normal number inside (−κ, κ), or an exponential one beyond."""
        uniform, which, sign = torch.rand((3, *F.shape), generator=generator, dtype=torch.float64)
        low = ndtr(-self.kappa)
        inside = torch.special.ndtri(low + (1 - 2 * low) * uniform)
        beyond = torch.where(sign < 0.5, -1.0, 1.0) * (self.kappa - torch.log1p(-uniform) / self.kappa)
        middle, tails = self._masses
        noise = torch.where(which < middle / (middle + tails), inside, beyond)
        return F.double() + self.scale * noise.to(F.device)


def _half_square(mean: Tensor, std: Tensor) -> Tensor:
    """½ E max(u, 0)² for u ~ N(mean, std²)."""
    z = mean / std
    return ((mean.square() + std.square()) * normal_cdf(z) + mean * std * normal_density(z)) / 2


def log_normal_interval(low: Tensor, high: Tensor) -> Tensor:
    """log P(low < Z < high), with all digits where the interval lies in the left tail or around zero."""
    above, below = torch.special.log_ndtr(high), torch.special.log_ndtr(low)
    return above + torch.log1p(-torch.exp(below - above))


def bivariate_cdf(h: float, k: Tensor, correlation: Tensor, complement: Tensor) -> Tensor:
    """P(X ≤ h, Y ≤ k) of standard normals with a correlation ρ > 0 and its complement √(1 − ρ²), by Owen's T function."""
    k, rho, rest = (part.cpu().numpy() for part in (k, correlation, complement))
    k = np.where(k == 0, 1e-300, k)  # the formula divides by k; the function is continuous there
    with np.errstate(over="ignore"):  # T(h, ±∞) is defined
        at_h = owens_t(h, (k - rho * h) / (h * rest))
        at_k = owens_t(k, (h - rho * k) / (k * rest))
    value = (ndtr(h) + ndtr(k)) / 2 - at_h - at_k - np.where(h * k < 0, 0.5, 0.0)
    return torch.from_numpy(np.asarray(value)).to(correlation.device)
