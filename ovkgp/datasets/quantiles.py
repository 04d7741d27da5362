"""Regression data with known conditional quantiles: y = μ(x) + σ(x) ε with ε of a known distribution.

    q(x)(θ) = μ(x) + σ(x) F⁻¹(θ),      E ρ_θ(y − q(x)(θ)) = σ(x) (θ E ε − E[ε 1(ε ≤ F⁻¹(θ))])

No function has a smaller expected pinball loss than q at any x and level θ (LT-116); the second formula is its loss.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats

from ovkgp.checks import as_seed, check_integer
from ovkgp.datasets.samples import INPUTS, NOISE, check_points, make_rng
from ovkgp.exceptions import InputError


class ConditionalQuantiles(NamedTuple):
    """Distribution of y given x, μ(x) + σ(x) ε, with ε of a frozen SciPy distribution."""

    location: Callable[[np.ndarray], np.ndarray]
    scale: Callable[[np.ndarray], np.ndarray]
    distribution: object

    def __call__(self, X: ArrayLike, levels: ArrayLike) -> np.ndarray:
        """Return q(x_i)(θ_j), (m, q), for X (m, 1) and levels (q,) in (0, 1)."""
        x = check_points(X, 1)[:, 0]
        return self.location(x)[:, None] + self.scale(x)[:, None] * self.distribution.ppf(_check_levels(levels))

    def risk(self, X: ArrayLike, levels: ArrayLike) -> np.ndarray:
        """Return the minimum expected pinball loss at each point and level, (m, q)."""
        x = check_points(X, 1)[:, 0]
        return self.scale(x)[:, None] * np.array([self._unit_risk(level) for level in _check_levels(levels)])

    def _unit_risk(self, level: float) -> float:
        below = self.distribution.expect(lambda value: value, ub=self.distribution.ppf(level))
        return level * self.distribution.mean() - below


class QuantileSample(NamedTuple):
    """X (n, 1), y (n,), both float64, and their conditional quantiles, called as quantiles(X, levels)."""

    X: np.ndarray
    y: np.ndarray
    quantiles: ConditionalQuantiles


def make_sine_quantiles(num_rows: int = 500, *, random_state=None) -> QuantileSample:
    """Generate Gaussian noise around a sine curve, wide on the left and narrow on the right (LT-134, BT-103).

        x ~ U[0, 1.5],   μ(x) = −sin(2πx) (1 + sin(2πx/3)),   σ(x) = 0.2 + (1.5 − x)/1.5

    The expected pinball loss, averaged over all levels, is at least E σ / (2√π) = 0.1975.

    Parameters
    ----------
    num_rows : int, default=500
        Number n of rows.
    random_state : int, RandomState or None, default=None
        Seed; the first rows are the same for every n.

    Returns
    -------
    QuantileSample
        X (n, 1), y (n,) and the conditional quantiles, called as quantiles(X, levels).

    Examples
    --------
    >>> from ovkgp.datasets import make_sine_quantiles
    >>> X, y, quantiles = make_sine_quantiles(100, random_state=0)
    >>> X.shape, y.shape, quantiles(X, [0.1, 0.5, 0.9]).shape
    ((100, 1), (100,), (100, 3))
    """
    return _sample(num_rows, 1.5, ConditionalQuantiles(_sine_curve, _narrowing_scale, stats.norm()), random_state)


def make_exponential_quantiles(num_rows: int = 500, *, random_state=None) -> QuantileSample:
    """Generate skewed noise: y ~ Exp(1) for x ~ U[0, 1], so that q(x)(θ) = −log(1 − θ).

    The 0.8-quantile is 1.609. A loss of the wrong sign gives the 0.2-quantile, 0.223, instead.

    Parameters
    ----------
    num_rows, random_state
        As for `make_sine_quantiles`.

    Returns
    -------
    QuantileSample
        As for `make_sine_quantiles`.

    Examples
    --------
    >>> from ovkgp.datasets import make_exponential_quantiles
    >>> X, y, quantiles = make_exponential_quantiles(1000, random_state=0)
    >>> bool(abs((y <= quantiles(X, 0.8)[:, 0]).mean() - 0.8) < 0.03)
    True
    """
    return _sample(num_rows, 1.0, ConditionalQuantiles(np.zeros_like, np.ones_like, stats.expon()), random_state)


def _sample(num_rows: int, width: float, quantiles: ConditionalQuantiles, random_state) -> QuantileSample:
    num_rows, seed = check_integer("num_rows", num_rows), as_seed(random_state)
    x = width * make_rng(seed, INPUTS).random(num_rows)
    noise = quantiles.distribution.ppf(make_rng(seed, NOISE).random(num_rows))
    return QuantileSample(x[:, None], quantiles.location(x) + quantiles.scale(x) * noise, quantiles)


def _sine_curve(x: np.ndarray) -> np.ndarray:
    return -np.sin(2 * np.pi * x) * (1 + np.sin(2 * np.pi * x / 3))


def _narrowing_scale(x: np.ndarray) -> np.ndarray:
    return 0.2 + (1.5 - x) / 1.5


def _check_levels(levels: ArrayLike) -> np.ndarray:
    levels = np.atleast_1d(np.asarray(levels, dtype=np.float64))
    if levels.ndim > 1 or not ((levels > 0) & (levels < 1)).all():
        raise InputError(f"levels must lie strictly between 0 and 1, got {levels}.")
    return levels
