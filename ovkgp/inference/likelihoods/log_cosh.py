"""Noise with the log-cosh loss as negative log density: powers of the hyperbolic secant (BO §6.3).

y = f + s·e with p(e) = cosh(νe)^{−a}/Z, a = 1/ν, Z = √π Γ(a/2) / (ν Γ((a + 1)/2)). As 1/(1 + e^{−2νe}) ~ Beta(a/2, a/2), draws and the
distribution function of e are closed. log cosh z = softplus(−2z) + z − log 2 has the expectation of a softplus.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from scipy.special import betainc, gammaln, polygamma
from torch import Tensor

from ovkgp.checks import check_positive
from ovkgp.inference.likelihoods.base import marginal_variance
from ovkgp.inference.likelihoods.location import LocationLikelihood
from ovkgp.inference.likelihoods.quadrature import (
    MAX_NODES,
    apply_by_blocks,
    expected_softplus,
    log_expected,
    normal_cdf,
    normal_density,
)

NODE_STEP, NORMAL_REACH = 0.25, 8.5
"""Step of the trapezoidal rules in units of the narrower of two distributions, and their range in standard deviations."""
MAX_LOG_DROP = 36.0  # nodes cover the range in which the log density is less than this below its mode


class LogCosh(LocationLikelihood):
    """Noise with the log-cosh loss as negative log density, Gaussian near 0 and Laplace in the tails.

    Parameters
    ----------
    num_outputs, scale
        As for `StudentT`.
    nu : float, default=1.0
        Inverse width ν > 0 of the center, in units of the inverse scale. The default is the hyperbolic secant distribution. The limit ν → ∞
        is Laplace noise; for a small ν it is Gaussian noise of variance s²/ν.

    Notes
    -----
    p(e) = exp(−log cosh(νe)/ν)/Z. log p is analytic and concave in f, with slopes up to 1/s and curvatures up to ν/s².
    Complexity: `expected` takes 32 or 121 nodes per entry, `cdf` about 70 or 290 ν (at most 4096).

    References
    ----------
    BO-64, BO-76

    Examples
    --------
    >>> import torch
    >>> from ovkgp.inference.likelihoods import LogCosh
    >>> likelihood, zero = LogCosh(num_outputs=1, scale=1.0), torch.zeros(1, 1)
    >>> round(likelihood.log_density(zero, zero).exp().item(), 6)  # 1/π
    0.31831
    """

    name = "log_cosh"

    def __init__(self, num_outputs: int, scale=None, nu: float = 1.0):
        super().__init__(num_outputs, scale)
        self.nu = check_positive("nu", nu)

    @property
    def _power(self) -> float:
        return 1 / self.nu

    def entry_log_density(self, y: Tensor, f: Tensor) -> Tensor:
        return self._constant() - self._power * _log_cosh(self.nu * (y - f) / self.scale)

    def entry_expected(self, y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        rate = self.nu / self.scale
        size = rate * (y - mean).abs()
        softened = expected_softplus(-2 * size, 4 * rate.square() * variance)
        return self._constant() - self._power * (size - math.log(2) + softened)

    def _constant(self) -> Tensor:
        half = self._power / 2
        log_beta = float(gammaln(half) - gammaln(half + 0.5)) if half < 1e3 else -math.log(half) / 2 + 1 / (8 * half)
        return math.log(self.nu) - math.log(math.pi) / 2 - log_beta - self.scale.log()

    def unit_moments(self) -> tuple[Tensor, Tensor]:
        variance = float(polygamma(1, self._power / 2)) / (2 * self.nu**2)
        return torch.zeros_like(self.scale), torch.full_like(self.scale, variance)

    @torch.no_grad()
    def cdf(self, y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        """Average the normal distribution function over e, or that of e over the latent value, whichever is smoother."""
        gap, std = self._standardize(y.double(), mean.double(), marginal_variance(mean, variance))
        gap, std = self.nu * gap, (self.nu * std).expand(gap.shape)
        nodes, weights = (part.to(gap.device) for part in self._nodes())
        z = torch.linspace(-NORMAL_REACH, NORMAL_REACH, 1 + round(2 * NORMAL_REACH / NODE_STEP), dtype=torch.float64)
        normal_weights = normal_density(z) / normal_density(z).sum()
        width = min(1.0, math.sqrt(1 / self._power))

        def average(gap: Tensor, std: Tensor) -> Tensor:
            gap, std = gap.unsqueeze(-1), std.unsqueeze(-1)
            result, is_wide = torch.empty_like(gap[:, 0]), std[:, 0] > width
            result[is_wide] = normal_cdf((gap[is_wide] - nodes) / std[is_wide]) @ weights
            result[~is_wide] = self._noise_cdf(gap[~is_wide] - std[~is_wide] * z) @ normal_weights
            return result

        parts = gap.reshape(-1), std.reshape(-1)
        return apply_by_blocks(average, max(len(nodes), len(z)), *parts).reshape(gap.shape)

    def _nodes(self) -> tuple[Tensor, Tensor]:
        """Compute nodes and weights of the trapezoidal rule for the distribution of νe."""
        drop = MAX_LOG_DROP / self._power
        reach = drop + math.log1p(math.sqrt(-math.expm1(-2 * drop)))  # arcosh(e^drop)
        step = NODE_STEP * min(1.0, math.sqrt(1 / self._power))
        count = min(1 + 2 * math.ceil(reach / step), MAX_NODES + 1)
        nodes = torch.linspace(-reach, reach, count, dtype=torch.float64)
        weights = torch.exp(-self._power * _log_cosh(nodes))
        return nodes, weights / weights.sum()

    def _noise_cdf(self, x: Tensor) -> Tensor:
        """Compute P(νe ≤ x) by the incomplete beta function."""
        half, x = self._power / 2, x.cpu().numpy()
        lower = betainc(half, half, np.exp(-np.logaddexp(0.0, 2 * np.abs(x))))  # P(νe ≤ −|x|)
        return torch.from_numpy(np.where(x > 0, 1 - lower, lower)).to(dtype=torch.float64)

    @torch.no_grad()
    def log_predictive(self, y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        """Integrate numerically in units of the width of the center."""
        gap, std = self._standardize(y.double(), mean.double(), marginal_variance(mean, variance))
        gap, std = torch.broadcast_tensors(self.nu * gap, self.nu * std)
        found = log_expected(lambda x: -self._power * _log_cosh(x), gap.nan_to_num(), std)
        return torch.where(torch.isnan(gap), torch.nan, self._constant() + found)

    @torch.no_grad()
    def draw(self, F: Tensor, generator: torch.Generator) -> Tensor:
        """Draw logit(B)/(2ν) with B ~ Beta(a/2, a/2), from logarithms of Gamma variables, which do not underflow."""
        half = torch.full((2, *F.shape), self._power / 2, dtype=torch.float64)
        # Gamma(a) = Gamma(a + 1) · U^{1/a}
        gamma = torch._standard_gamma(half + 1, generator=generator).log()
        uniform = torch.rand(half.shape, generator=generator, dtype=torch.float64)
        up, down = gamma + torch.log1p(-uniform) / half
        return F.double() + self.scale * ((up - down) / (2 * self.nu)).to(F.device)


def _log_cosh(z: Tensor) -> Tensor:
    """Compute log cosh z without overflow, accurately for small z."""
    size = z.abs()
    return size + torch.log1p(torch.expm1(-2 * size) / 2)
