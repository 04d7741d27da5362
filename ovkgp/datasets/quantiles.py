"""Regression data whose conditional quantiles are known: y = μ(x) + σ(x) ε with ε of a known law.

    q(x)(θ) = μ(x) + σ(x) F⁻¹(θ),      E ρ_θ(y − q(x)(θ)) = σ(x) (θ E ε − E[ε 1(ε ≤ F⁻¹(θ))])

No function has a smaller expected pinball loss than q, at any x and any level θ (LT-116), so that the second formula is the oracle
against which a fit is held.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats

from ovkgp.checks import as_seed, check_integer
from ovkgp.datasets.samples import INPUTS, NOISE, finite_rows, random_stream
from ovkgp.exceptions import InputError


class ConditionalQuantiles(NamedTuple):
    """The law of y given x: μ(x) + σ(x) ε.

    Args:
        location, scale: μ and σ, from x (m,) to (m,).
        distribution: that of ε, a frozen distribution of SciPy.

    Cost: O(m q) for m points and q levels.

    Example:
        >>> from ovkgp.datasets import make_exponential_quantiles
        >>> quantiles = make_exponential_quantiles(10, random_state=0).quantiles
        >>> quantiles([[0.0]], [0.5, 0.8]).round(3)
        array([[0.693, 1.609]])
    """

    location: Callable[[np.ndarray], np.ndarray]
    scale: Callable[[np.ndarray], np.ndarray]
    distribution: object

    def __call__(self, X: ArrayLike, levels: ArrayLike) -> np.ndarray:
        """q(x_i)(θ_j), (m, q), for X (m, 1) and levels (q,) in (0, 1)."""
        x = finite_rows(X, 1)[:, 0]
        return self.location(x)[:, None] + self.scale(x)[:, None] * self.distribution.ppf(_levels(levels))

    def risk(self, X: ArrayLike, levels: ArrayLike) -> np.ndarray:
        """The least expected pinball loss at each point and level, (m, q)."""
        x = finite_rows(X, 1)[:, 0]
        return self.scale(x)[:, None] * np.array([self._unit_risk(level) for level in _levels(levels)])

    def _unit_risk(self, level: float) -> float:
        below = self.distribution.expect(lambda value: value, ub=self.distribution.ppf(level))
        return level * self.distribution.mean() - below


class QuantileSample(NamedTuple):
    """Data and the law behind them.

    Attributes:
        X: (n, 1), float64.
        y: (n,), float64.
        quantiles: the law, called as quantiles(X, levels).
    """

    X: np.ndarray
    y: np.ndarray
    quantiles: ConditionalQuantiles


def make_sine_quantiles(num_rows: int = 500, *, random_state=None) -> QuantileSample:
    """The sine toy (LT-134, BT-103): Gaussian noise around a wave, wide on the left and narrow on the right.

        x ~ U[0, 1.5],   μ(x) = −sin(2πx) (1 + sin(2πx/3)),   σ(x) = 0.2 + (1.5 − x)/1.5

    Its expected pinball loss, averaged over all levels, is at least E σ / (2√π) = 0.1975.

    Args:
        num_rows: n.
        random_state: as in scikit-learn; the first rows are the same for every n.

    Example:
        >>> from ovkgp.datasets import make_sine_quantiles
        >>> X, y, quantiles = make_sine_quantiles(100, random_state=0)
        >>> X.shape, y.shape, quantiles(X, [0.1, 0.5, 0.9]).shape
        ((100, 1), (100,), (100, 3))
    """
    return _sample(num_rows, 1.5, ConditionalQuantiles(_wave, _narrowing, stats.norm()), random_state)


def make_exponential_quantiles(num_rows: int = 500, *, random_state=None) -> QuantileSample:
    """Skewed noise around nothing: y ~ Exp(1) for x ~ U[0, 1], so that q(x)(θ) = −log(1 − θ); the .8-quantile is 1.609.

    A loss with its sign turned finds the .2-quantile, 0.223, instead.

    Args:
        num_rows, random_state: as for `make_sine_quantiles`.

    Example:
        >>> from ovkgp.datasets import make_exponential_quantiles
        >>> X, y, quantiles = make_exponential_quantiles(1000, random_state=0)
        >>> bool(abs((y <= quantiles(X, 0.8)[:, 0]).mean() - 0.8) < 0.03)
        True
    """
    return _sample(num_rows, 1.0, ConditionalQuantiles(np.zeros_like, np.ones_like, stats.expon()), random_state)


def _sample(num_rows: int, width: float, quantiles: ConditionalQuantiles, random_state) -> QuantileSample:
    num_rows, seed = check_integer("num_rows", num_rows), as_seed(random_state)
    x = width * random_stream(seed, INPUTS).random(num_rows)
    noise = quantiles.distribution.ppf(random_stream(seed, NOISE).random(num_rows))
    return QuantileSample(x[:, None], quantiles.location(x) + quantiles.scale(x) * noise, quantiles)


def _wave(x: np.ndarray) -> np.ndarray:
    return -np.sin(2 * np.pi * x) * (1 + np.sin(2 * np.pi * x / 3))


def _narrowing(x: np.ndarray) -> np.ndarray:
    return 0.2 + (1.5 - x) / 1.5


def _levels(levels: ArrayLike) -> np.ndarray:
    levels = np.atleast_1d(np.asarray(levels, dtype=np.float64))
    if levels.ndim > 1 or not ((levels > 0) & (levels < 1)).all():
        raise InputError(f"levels must be numbers between 0 and 1, got {levels}.")
    return levels
