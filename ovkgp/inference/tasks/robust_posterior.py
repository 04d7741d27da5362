"""Gaussian approximation of the posterior of curves under a robust likelihood, by a variational bound with weights (LT §6.1).

Groups of values, single ones or whole curves, have the density exp(−ρ(‖r‖²/σ²))/Z with a concave ρ: Huber, its radial form of
curves, log-cosh or Student-t. A tangent of ρ at ξ² bounds the density from below by a Gaussian with noise σ²/w,

    −ρ(‖r‖²/σ²) ≥ −ρ(ξ²) − ½ w(ξ²) (‖r‖²/σ² − ξ²),     w = 2ρ',

which is tight at ξ² = E‖r‖²/σ². Weights and posterior are updated in turn, and the scale s² of prior and noise maximizes the
bound of the normalized density.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.optimize import minimize_scalar
from scipy.special import gammaln, polygamma
from scipy.stats import gamma

from ovkgp.checks import check_positive

MAX_ROUNDS, TOLERANCE = 30, 1e-3
"""Maximum number of updates of the weights, and their largest change at convergence."""


class RobustDensity(ABC):
    """Density exp(−ρ(‖r‖²/σ²))/Z(σ²) of m values r with a scale σ² per value, ρ(x²) = min_w ½wx² + g(w)."""

    @abstractmethod
    def weight(self, squares: np.ndarray, sizes: np.ndarray, noise: float) -> np.ndarray:
        """Return w = 2ρ' at ‖r‖²/σ²."""

    @abstractmethod
    def offset(self, weights: np.ndarray, sizes: np.ndarray, noise: float) -> np.ndarray:
        """Return g(w)."""

    @abstractmethod
    def log_normalizer(self, sizes: np.ndarray, noise: float) -> np.ndarray:
        """Return log Z of m values."""

    @abstractmethod
    def variance(self, size: float, noise: float) -> float:
        """Return the variance of one of m values."""


@dataclass(frozen=True)
class HuberDensity(RobustDensity):
    """exp(−h_κ(‖r‖)/σ²): ½‖r‖² up to κ, then κ‖r‖ − κ²/2; for m = 1 the Huber density of one value, else radial."""

    kappa: float

    def __post_init__(self):
        check_positive("kappa", self.kappa)

    def weight(self, squares: np.ndarray, sizes: np.ndarray, noise: float) -> np.ndarray:
        return np.minimum(1.0, self.kappa / np.sqrt(np.maximum(squares * noise, 1e-300)))

    def offset(self, weights: np.ndarray, sizes: np.ndarray, noise: float) -> np.ndarray:
        return self.kappa**2 / (2 * noise) * (1 / weights - 1)

    def log_normalizer(self, sizes: np.ndarray, noise: float) -> np.ndarray:
        sizes = np.asarray(sizes, dtype=float)
        return self._log_moment(sizes, sizes, noise) + sizes / 2 * np.log(noise)

    def _log_moment(self, sizes: np.ndarray, power: np.ndarray, noise: float) -> np.ndarray:
        """Return log ∫ ‖x‖^(p − m) exp(−ρ(‖x‖²)) dx over R^m, by incomplete gamma functions of the radius."""
        k = self.kappa / np.sqrt(noise)
        sphere = np.log(2) + sizes / 2 * np.log(np.pi) - gammaln(sizes / 2)  # surface of the unit sphere
        inner = (power / 2 - 1) * np.log(2) + gammaln(power / 2) + gamma.logcdf(k**2 / 2, power / 2)
        outer = k**2 / 2 - power * np.log(k) + gammaln(power) + gamma.logsf(k**2, power)
        return sphere + np.logaddexp(inner, outer)

    def variance(self, size: float, noise: float) -> float:
        size = np.asarray(size, dtype=float)
        log_mean = self._log_moment(size, size + 2, noise) - self._log_moment(size, size, noise)
        return float(noise * np.exp(log_mean) / size)


@dataclass(frozen=True)
class LogCoshDensity(RobustDensity):
    """exp(−log cosh(ν r)/(ν² σ²)) of one value, ½ r²/σ² near 0 (BO §6.3)."""

    nu: float

    def __post_init__(self):
        check_positive("nu", self.nu)

    def weight(self, squares: np.ndarray, sizes: np.ndarray, noise: float) -> np.ndarray:
        z = np.maximum(self.nu * np.sqrt(squares * noise), 1e-12)
        return np.tanh(z) / z

    def offset(self, weights: np.ndarray, sizes: np.ndarray, noise: float) -> np.ndarray:
        weights = np.minimum(weights, 1 - 1e-12)
        z = np.maximum(1 / weights, np.sqrt(np.maximum(3 * (1 / weights - 1), 1e-24)))  # above the root of tanh z = w z
        for _ in range(60):
            z = z - (np.tanh(z) - weights * z) / (1 / np.cosh(np.minimum(z, 300)) ** 2 - weights)
        return (z + np.log1p(np.expm1(-2 * z) / 2) - weights * z**2 / 2) / (self.nu**2 * noise)

    def log_normalizer(self, sizes: np.ndarray, noise: float) -> np.ndarray:
        a = 1 / (self.nu**2 * noise)
        return np.asarray(sizes) * (np.log(np.pi) / 2 + gammaln(a / 2) - gammaln((a + 1) / 2) - np.log(self.nu))

    def variance(self, size: float, noise: float) -> float:
        return float(polygamma(1, 1 / (2 * self.nu**2 * noise)) / (2 * self.nu**2))


@dataclass(frozen=True)
class StudentDensity(RobustDensity):
    """Student-t density (1 + ‖r‖²/(df σ²))^(−(df + m)/2) of m values with scale σ²."""

    degrees: float = 4.0

    def weight(self, squares: np.ndarray, sizes: np.ndarray, noise: float) -> np.ndarray:
        return (self.degrees + sizes) / (self.degrees + squares)

    def offset(self, weights: np.ndarray, sizes: np.ndarray, noise: float) -> np.ndarray:
        squares = (self.degrees + sizes) / weights - self.degrees
        return (self.degrees + sizes) / 2 * np.log1p(squares / self.degrees) - weights * squares / 2

    def log_normalizer(self, sizes: np.ndarray, noise: float) -> np.ndarray:
        sizes, df = np.asarray(sizes, dtype=float), self.degrees
        return gammaln(df / 2) - gammaln((df + sizes) / 2) + sizes / 2 * np.log(np.pi * df * noise)

    def variance(self, size: float, noise: float) -> float:
        return noise * self.degrees / (self.degrees - 2)


class GaussianFit(NamedTuple):
    """Posterior given noise σ²/w of each group: ‖y − f̂‖² and summed variances of f, yᵀC⁻¹y and log det C."""

    errors: np.ndarray
    variances: np.ndarray
    quadratic: float
    logdet: float


class RobustFit(NamedTuple):
    """Weights w of the groups, the scale s², the bound on the log evidence and its value in each round."""

    weights: np.ndarray
    scale: float
    bound: float
    history: tuple[float, ...]


def fit_weights(
    density: RobustDensity,
    condition: Callable[[np.ndarray], GaussianFit],
    sizes: np.ndarray,
    noise: float,
    weights: np.ndarray,
    scale: float | None = None,
) -> RobustFit:
    """Maximize the bound over weights w of groups of `sizes` values, and over the scale s² of prior and noise if it is None.

    `condition(w)` returns the Gaussian posterior with noise σ²/w, before the scale. Complexity: one posterior per round.
    """
    is_scale_trained, scale, history = scale is None, scale or 1.0, []
    for _ in range(MAX_ROUNDS):
        fit = condition(weights)

        def bound(log_scale: float, fit=fit, weights=weights) -> float:
            s = np.exp(log_scale)
            terms = sizes / 2 * np.log(noise / weights) - density.offset(weights, sizes, s * noise)
            return float(
                np.sum(terms - density.log_normalizer(sizes, s * noise)) - (fit.quadratic / s + fit.logdet) / 2
            )

        before = scale
        if is_scale_trained:
            found = minimize_scalar(lambda u: -bound(u), bounds=np.log(scale) + np.array([-3, 3]), method="bounded")
            scale = float(np.exp(found.x))
        history.append(bound(np.log(scale)))
        squares = (fit.errors + scale * fit.variances) / (scale * noise)
        following = density.weight(squares, sizes, scale * noise)
        change = max(np.abs(following - weights).max(), abs(np.log(scale / before)))
        if change < TOLERANCE:
            break
        weights = following
    return RobustFit(weights, scale, history[-1], tuple(history))
