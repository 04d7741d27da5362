"""Pareto shape k̂ of importance ratios (Vehtari et al. 2024, "Pareto smoothed importance sampling")."""

from __future__ import annotations

import math

import numpy as np
from scipy.special import softmax

MAX_PARETO_K = 0.7  # above it, averages with importance ratios are unreliable
MAX_EQUAL_RANGE = 1e-4
"""Log ratios that vary by less are those of the posterior itself, up to the differences in its Hessian."""
MIN_RATIOS = 25  # minimum number of ratios for k̂
MAX_FIFTH = 225  # up to this number of ratios, the tail is a fifth of them; three times their square root beyond


def pareto_shape(log_ratios: np.ndarray) -> float:
    """Return k̂ of importance ratios (draws,) by Pareto smoothing: NaN if fewer than 25, ∞ if all are zero."""
    log_ratios = np.asarray(log_ratios, dtype=np.float64)
    is_finite, count = np.isfinite(log_ratios), len(log_ratios)
    if count < MIN_RATIOS or not is_finite.any():
        return np.nan if is_finite.any() else np.inf
    ordered = np.sort(np.where(is_finite, log_ratios, log_ratios[is_finite].min() - 50))  # a ratio of zero is no tail
    if np.ptp(ordered[-(count // 5) :]) < MAX_EQUAL_RANGE:
        return 0.0
    size = count // 5 if count <= MAX_FIFTH else math.floor(3 * count**0.5)
    ratios = np.exp(ordered[-size - 1 :] - ordered[-1])
    return _fit_shape(ratios[1:] - ratios[0])


def _fit_shape(excesses: np.ndarray) -> float:
    """Return the shape of a generalized Pareto distribution (Zhang and Stephens 2009), shrunk to ½ like ten more excesses.

    `excesses` (m,) over the threshold are sorted; the estimate averages over a grid of b = −shape / scale.
    """
    m = len(excesses)
    num_points = 30 + int(m**0.5)
    grid = 1 - np.sqrt(num_points / (np.arange(num_points) + 0.5))
    grid = grid / (3 * max(excesses[int(m / 4 + 0.5) - 1], 1e-100)) + 1 / excesses[-1]
    shapes = np.log1p(-grid[:, None] * excesses).mean(1)
    b = grid @ softmax(m * (np.log(-grid / shapes) - shapes - 1))
    return float((m * np.log1p(-b * excesses).mean() + 5) / (m + 10))
