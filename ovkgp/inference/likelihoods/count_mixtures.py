"""P(Y ≤ k) of a count whose log-mean is uncertain, f ~ N(m, v).

Given f, y ≤ k exactly if f < L_k for a random threshold: the logarithm of a Gamma(k + 1) variable (Poisson), or of a ratio of two
(negative binomial). So P(Y ≤ k) = E_f P(L_k > f) = E_L Φ((L_k − m)/√v): whichever variable is the narrower is integrated out by nodes,
and the function that is averaged is smooth on its scale. A rule over f alone fails for large counts, where P(y ≤ k | f) is a step.
"""

from __future__ import annotations

import numpy as np
from scipy.special import betainc, gammaincc, ndtr, polygamma

from ovkgp.inference.likelihoods.blocks import BLOCK_ENTRIES
from ovkgp.inference.likelihoods.quadrature import HERMITE_NODES, hermite_rule

_NODES, _MOST_NODES, _STEP = 64, 4096, 0.3
_DROP = 34.0
"""Nodes of the threshold reach to where its log-density has fallen by this much: e^{−34} = 2e-15."""


def count_cdf(
    y: np.ndarray, mean: np.ndarray, variance: np.ndarray, dispersion: np.ndarray | None = None
) -> np.ndarray:
    """P(Y ≤ y), elementwise after broadcasting; NaN where y is NaN.

    Args:
        y: any numbers; what counts is their integer part.
        mean, variance: of the latent log-mean.
        dispersion: α of a negative binomial law; None for Poisson.

    Cost: 32 nodes for each entry where f is the narrower variable, else 64 to 160 (up to 4096 for α > 1, whose thresholds spread
    widely); memory O(entries), as they are done a few thousand at a time.

    Example:
        >>> import numpy as np
        >>> from ovkgp.inference.likelihoods.count_mixtures import count_cdf
        >>> count_cdf(np.array([0.0, 2.0]), np.zeros(2), np.zeros(2)).round(9).tolist()  # e^{−1} and 5/2 e^{−1}
        [0.367879441, 0.919698603]
    """
    shape = np.inf if dispersion is None else 1 / dispersion
    y, mean, std, shape = np.broadcast_arrays(y, mean, np.sqrt(variance), shape)
    value = np.where(np.isnan(y), np.nan, np.where(y < 0, 0.0, 1.0))
    asked = np.isfinite(y) & (y >= 0)
    entries, size = (np.floor(y[asked]) + 1, mean[asked], std[asked], shape[asked]), BLOCK_ENTRIES // _NODES
    starts = range(0, len(entries[0]), size)
    found = [_cdf(*(part[start : start + size] for part in entries)) for start in starts]
    value[asked] = np.concatenate(found) if found else 0.0
    return value


def _cdf(a: np.ndarray, mean: np.ndarray, std: np.ndarray, shape: np.ndarray) -> np.ndarray:
    """For vectors of a = k + 1."""
    width = np.sqrt(polygamma(1, a) + np.where(np.isinf(shape), 0.0, polygamma(1, np.minimum(shape, 1e15))))
    narrow = std <= np.minimum(width, 1.0)  # 1: the threshold's law has poles at ±iπ, however wide it is
    value = np.empty(len(a))
    for which, rule in ((narrow, _over_latent), (~narrow, _over_threshold)):
        if which.any():
            value[which] = rule(a[which], mean[which], std[which], shape[which])
    return np.clip(value, 0.0, 1.0)


def _over_latent(a: np.ndarray, mean: np.ndarray, std: np.ndarray, shape: np.ndarray) -> np.ndarray:
    nodes, weights = (part.numpy() for part in hermite_rule(HERMITE_NODES))
    f, a, shape = mean[:, None] + std[:, None] * nodes, a[:, None], shape[:, None]
    with np.errstate(over="ignore"):  # e^f = ∞ is the right limit
        rate = np.exp(f)
        poisson = np.isinf(shape)
        given = np.where(poisson, gammaincc(a, rate), betainc(np.where(poisson, 1.0, shape), a, 1 / (1 + rate / shape)))
    return given @ weights


def _over_threshold(a: np.ndarray, mean: np.ndarray, std: np.ndarray, shape: np.ndarray) -> np.ndarray:
    poisson = np.isinf(shape)
    low, high = _reach(a)
    if not poisson.all():  # the range of a difference of two variables
        other_low, other_high = _reach(shape)
        low, high = low - other_high, high - other_low
    count = int(np.clip(np.ceil((high - low).max() / _STEP), _NODES, _MOST_NODES))
    d = low[:, None] + (high - low)[:, None] * np.linspace(0.0, 1.0, count)
    weights = np.exp(-_log_drop(d, a[:, None], shape[:, None]))
    z = (np.log(a)[:, None] + d - mean[:, None]) / std[:, None]
    return (weights * ndtr(z)).sum(1) / weights.sum(1)


def _reach(a: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Where a (e^d − 1 − d), the drop of the log-density of log Gamma(a) at a distance d from its mode, has passed `_DROP`."""
    c = _DROP / a
    return -(c + np.sqrt(2 * c)), np.log1p(c + np.sqrt(2 * c))


def _log_drop(d: np.ndarray, a: np.ndarray, shape: np.ndarray) -> np.ndarray:
    """How far the log-density of the threshold is below its mode, at a distance d from it."""
    if np.isinf(shape).all():
        return a * (np.expm1(d) - d)
    share = a / (a + shape)
    near = np.log1p(share * np.expm1(np.minimum(d, 30.0)))
    far = d + np.log(share + (1 - share) * np.exp(-np.maximum(d, 30.0)))
    return (a + shape) * np.where(d < 30, near, far) - a * d
