"""Distribution of Q = Σ_j w_j χ²_1, a sum of independent chi-squares with positive weights.

P(Q > x) = (1/2πi) ∫ e^{K(s) − s x} ds/s over a path from c − i∞ to c + i∞ with 0 < c < β, where K(s) = −½ Σ log(1 − 2 w_j s) and
β = 1/(2 max w). The path passes near the saddle point K′(c) = x and is bent to a hyperbola around the branch cut [β, ∞). Along every
ray from the saddle point at 45° to 90° to the real axis the integrand decreases, whatever the weights are. The trapezoidal rule
converges exponentially, with a small relative error also far in the tails, unlike Imhof's and Davies' integrals over straight paths.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.optimize import brentq

ANGLE = np.radians(70)  # of the asymptotes of the path to the real axis
STEP = 0.055  # of the trapezoidal rule; the integrand is analytic for |Im t| < .35, the error is about e^{−2π .35/STEP} = e^{−40}
NEGLIGIBLE_EXPONENT = 45.0  # terms below e^{−45} of the largest are dropped


def weighted_chi2_sf(x: float, weights: np.ndarray) -> float:
    """Compute P(Σ_j w_j χ²_1 > x) for weights w ≥ 0 (m,), not all zero. O(m) per node of the integral."""
    weights, constant = _split(weights)
    x -= constant
    if x <= 0:
        return 1.0
    x, weights = x / weights.max(), weights / weights.max()
    saddle = _find_saddle_point(x, weights)
    deviation = math.sqrt(2 * np.sum(weights**2))
    # the path keeps a distance of about 1/sd(Q) from the pole at s = 0; a path left of it adds its residue 1
    distance = min(1 / deviation, 0.25)
    tip = saddle if abs(saddle) > distance else distance
    # scale of the path: the distances to the pole and to the cut, and the width of the integrand
    scale = min(abs(tip), 0.5 - tip, 1 / math.sqrt(2 * np.sum((weights / (1 - 2 * weights * tip)) ** 2)))
    total, largest, start = 0.0, -math.inf, 0
    while True:
        t = STEP * (np.arange(start, start + 64) + 0.5)
        s = tip + scale * (1j * np.sin(ANGLE) * np.sinh(t) + np.cos(ANGLE) * (np.cosh(t) - 1))
        slope = scale * (1j * np.sin(ANGLE) * np.cosh(t) + np.cos(ANGLE) * np.sinh(t))
        exponents = -0.5 * np.log1p(-2 * np.outer(s, weights)).sum(1) - s * x
        total += float((np.exp(exponents) * slope / s).imag.sum())  # the terms of −t are minus the conjugates
        largest, start = max(largest, exponents.real.max()), start + 64
        if exponents.real[-1] < largest - NEGLIGIBLE_EXPONENT:
            break
    value = total * STEP / math.pi + (1.0 if tip < 0 else 0.0)
    return min(max(value, 0.0), 1.0)


def weighted_chi2_isf(probability: float, weights: np.ndarray) -> float:
    """Compute the value that Σ_j w_j χ²_1 exceeds with the given probability in (0, 1)."""
    weights = np.asarray(weights, dtype=np.float64)
    mean, deviation = weights.sum(), math.sqrt(2 * np.sum(weights**2))
    upper = mean + deviation
    while weighted_chi2_sf(upper, weights) > probability:
        upper += 2 * deviation
    lower = mean
    while weighted_chi2_sf(lower, weights) < probability:
        lower /= 2
    return float(
        brentq(lambda x: weighted_chi2_sf(x, weights) - probability, lower, upper, xtol=1e-10 * mean, rtol=1e-10)
    )


def _split(weights: np.ndarray) -> tuple[np.ndarray, float]:
    """Separate weights whose part of Q is constant up to a relative error of √m · 1e-9; return the others, and that constant."""
    weights = np.asarray(weights, dtype=np.float64)
    kept = weights > 1e-9 * weights.max()
    return weights[kept], float(weights[~kept].sum())


def _find_saddle_point(x: float, weights: np.ndarray) -> float:
    """Solve K′(s) = Σ w/(1 − 2 w s) = x for s < ½, where the largest weight is 1."""
    # K′(s) ≥ 1/(1 − 2s) and K′(s) ≤ m/(1 − 2s) for s ≥ 0; for s < 0, K′(s) ≤ m/(−2s)
    lower = 0.0 if weights.sum() <= x else -len(weights) / (2 * x) - 1.0
    upper = 0.0 if weights.sum() > x else 0.5 * (1 - 0.5 / x)
    if lower == upper:
        return 0.0
    return float(brentq(lambda s: np.sum(weights / (1 - 2 * weights * s)) - x, lower, upper, xtol=1e-14))
