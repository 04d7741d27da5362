"""Noise whose density has a Gaussian, flat or exponential shape in each of a few intervals, y = f + s·e.

ε-insensitive: p(e) = exp(−½ max(|e| − ε, 0)²) / Z, Z = 2ε + √(2π): flat for |e| ≤ ε, Gaussian beyond (LT §6.1).
Asymmetric Huber: p(e) = exp(−w ψ_κ(e)) / Z with w = τ for e > 0 and 1 − τ for e < 0, ψ_κ(e) = e²/(2κ) for |e| ≤ κ and |e| − κ/2
beyond, Z = Σ_w √(πκ/(2w)) erf(√(wκ/2)) + e^{−wκ/2}/w (LT §6.1).

Both losses are sums of squares of max(±e − c, 0), whose expectations under a normal distribution are closed, and the convolution
of each interval with a normal distribution is closed too.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from scipy.special import ndtr
from torch import Tensor

from ovkgp.checks import check_nonnegative, check_positive, check_probability
from ovkgp.inference.likelihoods.base import marginal_variance
from ovkgp.inference.likelihoods.location import (
    LocationLikelihood,
    bivariate_cdf,
    half_square,
    log_normal_interval,
)
from ovkgp.inference.likelihoods.quadrature import (
    expected_positive_part,
    log_tilted_cdf,
    normal_cdf,
    tilted_cdf,
)
from ovkgp.inference.likelihoods.two_sided import AsymmetricLaplace

TINY_LIMIT = 1e-300  # replacement of a limit 0 in `bivariate_cdf`, which divides by it


class Piece(ABC):
    """Part of an unnormalized density q(e); `gap` = e + std·z with a standard normal z."""

    @abstractmethod
    def moments(self) -> tuple[float, float, float]:
        """Compute ∫ q, ∫ e q and ∫ e² q."""

    @abstractmethod
    def log_convolved(self, gap: Tensor, std: Tensor) -> Tensor:
        """Compute log ∫ q(e) N(gap; e, std²) de, up to log std and in units of a density of `gap`."""

    @abstractmethod
    def cdf(self, gap: Tensor, std: Tensor) -> Tensor:
        """Compute ∫ q(e) Φ((gap − e)/std) de."""

    @abstractmethod
    def draw(self, uniform: Tensor) -> Tensor:
        """Compute quantiles of the normalized piece at uniform numbers."""


@dataclass(frozen=True)
class Normal(Piece):
    """exp(−(e − center)²/(2 width²)) on [low, high]."""

    center: float
    width: float
    low: float
    high: float

    @property
    def _limits(self) -> tuple[float, float]:
        return (self.low - self.center) / self.width, (self.high - self.center) / self.width

    def moments(self) -> tuple[float, float, float]:
        low, high = self._limits
        mass = math.sqrt(2 * math.pi) * float(_interval(low, high))
        ends = [(limit, math.exp(-(limit**2) / 2)) if math.isfinite(limit) else (0.0, 0.0) for limit in (low, high)]
        first = ends[0][1] - ends[1][1]
        second = mass + ends[0][0] * ends[0][1] - ends[1][0] * ends[1][1]
        c, w = self.center, self.width
        return w * mass, w * (c * mass + w * first), w * (c**2 * mass + 2 * c * w * first + w**2 * second)

    def log_convolved(self, gap: Tensor, std: Tensor) -> Tensor:
        gap, std = (gap - self.center) / self.width, std / self.width
        total = 1 + std.square()
        low, high = ((limit - gap / total) * total.sqrt() / std for limit in self._limits)
        return -total.log() / 2 - gap.square() / (2 * total) + _log_interval(low, high)

    def cdf(self, gap: Tensor, std: Tensor) -> Tensor:
        gap, std = (gap - self.center) / self.width, std.expand(gap.shape) / self.width
        total = (1 + std.square()).sqrt()
        low, high = (self._cdf_below(limit, gap / total, 1 / total, std / total) for limit in self._limits)
        return math.sqrt(2 * math.pi) * self.width * (high - low)

    @staticmethod
    def _cdf_below(limit: float, *parts: Tensor) -> Tensor:
        if math.isinf(limit):
            return normal_cdf(parts[0]) if limit > 0 else torch.zeros_like(parts[0])
        return bivariate_cdf(limit or TINY_LIMIT, *parts)

    def draw(self, uniform: Tensor) -> Tensor:
        low, high = self._limits
        if low >= 0:  # mirrored, where probabilities are accurate
            return self.center - self.width * torch.special.ndtri(ndtr(-low) - _interval(low, high) * uniform)
        return self.center + self.width * torch.special.ndtri(ndtr(low) + _interval(low, high) * uniform)


@dataclass(frozen=True)
class Tail(Piece):
    """exp(log_height − rate · t), t = side · (e − first) ≥ 0."""

    first: float
    rate: float
    side: int
    log_height: float

    def moments(self) -> tuple[float, float, float]:
        mass, mean = math.exp(self.log_height) / self.rate, self.side / self.rate
        return mass, mass * (self.first + mean), mass * (self.first**2 + 2 * self.first * mean + 2 * mean**2)

    def log_convolved(self, gap: Tensor, std: Tensor) -> Tensor:
        return self.log_height + log_tilted_cdf(self.rate * std, self.side * (gap - self.first) / std)

    def cdf(self, gap: Tensor, std: Tensor) -> Tensor:
        z = (gap - self.first) / std
        return self.moments()[0] * (normal_cdf(z) - self.side * tilted_cdf(self.rate * std, self.side * z))

    def draw(self, uniform: Tensor) -> Tensor:
        return self.first - self.side * torch.log1p(-uniform) / self.rate


@dataclass(frozen=True)
class Flat(Piece):
    """1 on [−half_width, half_width]."""

    half_width: float

    def moments(self) -> tuple[float, float, float]:
        return 2 * self.half_width, 0.0, 2 * self.half_width**3 / 3

    def log_convolved(self, gap: Tensor, std: Tensor) -> Tensor:
        return _log_interval((-self.half_width - gap) / std, (self.half_width - gap) / std)

    def cdf(self, gap: Tensor, std: Tensor) -> Tensor:
        ends = (expected_positive_part(gap + side * self.half_width, std) for side in (1, -1))
        return next(ends) - next(ends)

    def draw(self, uniform: Tensor) -> Tensor:
        return self.half_width * (2 * uniform - 1)


class PiecewiseLikelihood(LocationLikelihood):
    """y = f + s·e, where the density of e is given by `pieces`."""

    @property
    @abstractmethod
    def pieces(self) -> tuple[Piece, ...]:
        """Parts of the density at unit scale, times Z."""

    @abstractmethod
    def loss(self, residual: Tensor) -> Tensor:
        """Compute −log p(e) − log Z.

        Parameters
        ----------
        residual : Tensor of shape (..., n, p)
            e = y − f, in units of the scale.

        Returns
        -------
        Tensor of the same shape
            Losses.
        """

    @abstractmethod
    def expected_loss(self, gap: Tensor, std: Tensor) -> Tensor:
        """Compute E loss(e) for e ~ N(gap, std²).

        Parameters
        ----------
        gap, std : Tensor of shape (n, p)
            Moments of e.

        Returns
        -------
        Tensor of shape (n, p)
            Expectations.
        """

    @abstractmethod
    def expected_slopes(self, gap: Tensor, std: Tensor) -> tuple[Tensor, Tensor]:
        """Compute the expectations of the first and second derivative of the loss.

        Parameters
        ----------
        gap, std : Tensor of shape (n, p)
            Moments of e.

        Returns
        -------
        first, second : Tensor of shape (n, p)
            Expectations.
        """

    def entry_log_density(self, y: Tensor, f: Tensor) -> Tensor:
        return self._constant() - self.loss((y - f) / self.scale)

    def entry_expected(self, y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        return self._constant() - self.expected_loss(*self._standardize(y, mean, variance))

    def entry_terms(self, y: Tensor, mean: Tensor, variance: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        first, second = self.expected_slopes(*self._standardize(y, mean, variance))
        return self.entry_expected(y, mean, variance), first / self.scale, second / self.scale.square()

    def _moments(self) -> list[float]:
        """Return Z, Z E[e] and Z E[e²]."""
        return [math.fsum(values) for values in zip(*(piece.moments() for piece in self.pieces), strict=True)]

    def _constant(self) -> Tensor:
        return -math.log(self._moments()[0]) - self.scale.log()

    def unit_moments(self) -> tuple[Tensor, Tensor]:
        total, first, second = self._moments()
        mean, one = first / total, torch.ones_like(self.scale)
        return mean * one, (second / total - mean**2) * one

    @torch.no_grad()
    def cdf(self, y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        """Add up the pieces: bivariate normal rectangles, tilted tails and differences of E max(·, 0)."""
        gap, std = self._standardize(y.double(), mean.double(), marginal_variance(mean, variance))
        return (sum(piece.cdf(gap, std) for piece in self.pieces) / self._moments()[0]).clamp(0.0, 1.0)

    @torch.no_grad()
    def log_predictive(self, y: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
        """Add up the convolutions of the pieces with the latent normal distribution."""
        gap, std = self._standardize(y.double(), mean.double(), marginal_variance(mean, variance))
        parts = torch.stack([piece.log_convolved(gap, std) for piece in self.pieces])
        return self._constant() + parts.logsumexp(0)

    @torch.no_grad()
    def draw(self, F: Tensor, generator: torch.Generator) -> Tensor:
        """Draw by composition: first a piece, then a number in it."""
        uniform, which = torch.rand((2, *F.shape), generator=generator, dtype=torch.float64)
        masses = torch.tensor([piece.moments()[0] for piece in self.pieces], dtype=torch.float64)
        index = torch.searchsorted((masses.cumsum(0) / masses.sum())[:-1].contiguous(), which.contiguous())
        noise = torch.stack([piece.draw(uniform) for piece in self.pieces]).gather(0, index.unsqueeze(0)).squeeze(0)
        return F.double() + self.scale * noise.to(F.device)


class EpsilonInsensitive(PiecewiseLikelihood):
    """Noise with the squared ε-insensitive loss as negative log density: flat up to ε, Gaussian tails beyond.

    Parameters
    ----------
    num_outputs, scale
        As for `StudentT`.
    epsilon : float, default=0.5
        Half width ε ≥ 0 of the flat core of all outputs, in units of the scale; 0 is Gaussian noise.

    Notes
    -----
    p(e) = exp(−½ max(|e| − ε, 0)²) / (2ε + √(2π)). log p is concave in f, with curvatures between 0 and 1/s². The sparsity of the
    loss is a property of its minimizer; posterior means have none.
    Complexity: O(n p), in closed form; `cdf` runs on the CPU (Owen's T function).

    References
    ----------
    LT-61, BO-72

    Examples
    --------
    >>> import torch
    >>> from ovkgp.inference.likelihoods import EpsilonInsensitive
    >>> likelihood, zero = EpsilonInsensitive(num_outputs=1, scale=1.0, epsilon=0.5), torch.zeros(1, 1)
    >>> round(likelihood.log_density(zero + 0.4, zero).exp().item(), 6)  # 1/(2ε + √(2π)) everywhere in the core
    0.285174
    """

    name = "epsilon_insensitive"

    def __init__(self, num_outputs: int, scale=None, epsilon: float = 0.5):
        super().__init__(num_outputs, scale)
        self.epsilon = check_nonnegative("epsilon", epsilon)

    @property
    def pieces(self) -> tuple[Piece, ...]:
        eps = self.epsilon
        tails = Normal(-eps, 1.0, -math.inf, -eps), Normal(eps, 1.0, eps, math.inf)
        return tails if eps == 0 else (tails[0], Flat(eps), tails[1])

    def loss(self, residual: Tensor) -> Tensor:
        return (residual.abs() - self.epsilon).clamp_min(0.0).square() / 2

    def expected_loss(self, gap: Tensor, std: Tensor) -> Tensor:
        return half_square(gap - self.epsilon, std) + half_square(-gap - self.epsilon, std)

    def expected_slopes(self, gap: Tensor, std: Tensor) -> tuple[Tensor, Tensor]:
        above, below = gap - self.epsilon, -gap - self.epsilon
        first = expected_positive_part(above, std) - expected_positive_part(below, std)
        return first, normal_cdf(above / std) + normal_cdf(below / std)


class AsymmetricHuber(PiecewiseLikelihood):
    """Noise with the smoothed pinball loss as negative log density; f is an M-quantile of y.

    Parameters
    ----------
    num_outputs, scale
        As for `StudentT`.
    tau : float, default=0.5
        Level of all outputs, strictly between 0 and 1. It is not trained.
    kappa : float, default=1.0
        Width κ > 0 of the smoothing of all outputs, in units of the scale: f is the τ-quantile of y for κ → 0 (asymmetric Laplace
        noise), and the τ-expectile for κ → ∞.

    Notes
    -----
    p(e) = exp(−w ψ_κ(e))/Z with w = τ for e > 0 and 1 − τ for e < 0. log p is concave in f, with curvatures up to max(τ, 1 − τ)/(κ s²).
    Complexity: O(n p), in closed form; `cdf` runs on the CPU (Owen's T function).

    References
    ----------
    LT-52

    Examples
    --------
    >>> import torch
    >>> from ovkgp.inference.likelihoods import AsymmetricHuber
    >>> likelihood, zero = AsymmetricHuber(num_outputs=1, scale=1.0, tau=0.9, kappa=0.01), torch.zeros(1, 1)
    >>> round(likelihood.cdf(zero, zero, zero).item(), 3)
    0.9
    """

    name = "asymmetric_huber"
    initial_latent = AsymmetricLaplace.initial_latent

    def __init__(self, num_outputs: int, scale=None, tau: float = 0.5, kappa: float = 1.0):
        super().__init__(num_outputs, scale)
        self.tau, self.kappa = check_probability("tau", tau), check_positive("kappa", kappa)

    @property
    def pieces(self) -> tuple[Piece, ...]:
        left, right, kappa = 1 - self.tau, self.tau, self.kappa
        return (
            Tail(-kappa, left, -1, -left * kappa / 2),
            Normal(0.0, math.sqrt(kappa / left), -kappa, 0.0),
            Normal(0.0, math.sqrt(kappa / right), 0.0, kappa),
            Tail(kappa, right, 1, -right * kappa / 2),
        )

    def loss(self, residual: Tensor) -> Tensor:
        size = residual.abs()
        smooth = torch.where(size <= self.kappa, size.square() / (2 * self.kappa), size - self.kappa / 2)
        return torch.where(residual > 0, self.tau * smooth, (1 - self.tau) * smooth)

    def expected_loss(self, gap: Tensor, std: Tensor) -> Tensor:
        return self.tau * self._side_loss(gap, std) + (1 - self.tau) * self._side_loss(-gap, std)

    def _side_loss(self, gap: Tensor, std: Tensor) -> Tensor:
        """Compute E ψ(max(e, 0)); for a positive mean by the complement, as squares of large numbers would cancel."""
        kappa = self.kappa
        near = (half_square(gap, std) - half_square(gap - kappa, std)) / kappa
        far = gap - kappa / 2 + (half_square(kappa - gap, std) - half_square(-gap, std)) / kappa
        return torch.where(gap > 0, far, near)

    def expected_slopes(self, gap: Tensor, std: Tensor) -> tuple[Tensor, Tensor]:
        (up, above), (down, below) = self._side_slopes(gap, std), self._side_slopes(-gap, std)
        return self.tau * up - (1 - self.tau) * down, self.tau * above + (1 - self.tau) * below

    def _side_slopes(self, gap: Tensor, std: Tensor) -> tuple[Tensor, Tensor]:
        kappa = self.kappa
        near = expected_positive_part(gap, std) - expected_positive_part(gap - kappa, std)
        far = kappa + expected_positive_part(-gap, std) - expected_positive_part(kappa - gap, std)
        inside = torch.where(
            gap > 0,
            normal_cdf((kappa - gap) / std) - normal_cdf(-gap / std),
            normal_cdf(gap / std) - normal_cdf((gap - kappa) / std),
        )
        return torch.where(gap > 0, far, near) / kappa, inside / kappa


def _interval(low: float, high: float) -> float:
    """Compute P(low < Z < high), in the lower tail where probabilities are accurate."""
    return ndtr(high) - ndtr(low) if low < 0 else ndtr(-low) - ndtr(-high)


def _log_interval(low: Tensor, high: Tensor) -> Tensor:
    """Compute log P(low < Z < high), mirrored into the lower tail."""
    is_right = low + high > 0
    return log_normal_interval(torch.where(is_right, -high, low), torch.where(is_right, -low, high))
