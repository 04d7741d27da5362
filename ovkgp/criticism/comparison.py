"""Comparison of two models by the scores of their predictions of the same held-out rows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.polynomial.legendre import leggauss
from scipy.special import ndtr
from scipy.stats import norm

from ovkgp.checks import check_estimator, check_one_of, check_probability
from ovkgp.criticism.predictive_distributions import PredictiveDistribution
from ovkgp.exceptions import InputError, OptionError

SCORES = ("log_density", "crps", "squared_error")
NUM_NODES = 64  # of the quadrature over quantile levels of a CRPS


@dataclass(frozen=True, repr=False)
class Comparison:
    """Difference of the mean scores of two models on the same rows.

    Attributes
    ----------
    score : str
        Name of the score. "log_density" is larger for the better model, "crps" and "squared_error" are smaller.
    first, second : float
        Mean score of each model.
    difference : float
        `first` − `second`.
    standard_error : float
        Standard error of the difference, from the differences of rows, or of groups.
    num_units : int
        Number of rows or groups.
    differences : ndarray of shape (num_units,)
        Sum of differences of each row or group, divided by the mean number of its entries.
    """

    score: str
    first: float
    second: float
    difference: float
    standard_error: float
    num_units: int
    differences: np.ndarray

    @property
    def pvalue(self) -> float:
        """Two-sided p-value of equal scores, by the normal approximation."""
        return float(2 * norm.sf(abs(self.difference) / self.standard_error)) if self.standard_error > 0 else 1.0

    @property
    def better(self) -> str:
        """ "first", "second", or "neither" if both scores are equal."""
        gain = self.difference if self.score == "log_density" else -self.difference
        return "first" if gain > 0 else "second" if gain < 0 else "neither"

    def interval(self, level: float = 0.95) -> tuple[float, float]:
        """Return the interval of the difference by the normal approximation.

        Parameters
        ----------
        level : float, default=0.95
            Probability, strictly between 0 and 1.

        Returns
        -------
        lower, upper : float
            Ends.
        """
        half = norm.isf((1 - check_probability("level", level)) / 2) * self.standard_error
        return self.difference - half, self.difference + half

    def __repr__(self) -> str:
        return (
            f"Comparison({self.score}: {self.first:.4g} − {self.second:.4g} = {self.difference:.4g} ± {self.standard_error:.2g}, "
            f"{self.num_units} rows or groups, p = {self.pvalue:.2g}; better: {self.better})"
        )


def compare(a, b, X, Y, *, score="log_density", groups=None) -> Comparison:
    """Compare two models by the mean score of their predictions of held-out entries.

    Parameters
    ----------
    a, b : estimator
        Fitted estimators with predictive distributions of the same outputs.
    X, Y : array-like of shape (m, d) and (m, p) or (m,)
        Rows held out of both fits, NaN in Y where missing.
    score : {"log_density", "crps", "squared_error"}, default="log_density"
        Score of an entry.
    groups : array-like of shape (m,) or None, default=None
        Labels of rows with dependent errors (a track, a station). If None, rows are independent.

    Returns
    -------
    Comparison
        Difference of mean scores with its standard error.

    Raises
    ------
    InputError
        If fewer than two rows or groups have observations.
    OptionError
        If a model has no predictive distributions, or no density.

    Notes
    -----
    Outputs of a row are one unit. With groups, the standard error is that of a ratio of sums over groups.

    Examples
    --------
    >>> import numpy as np
    >>> import ovkgp
    >>> from ovkgp.criticism import compare
    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(0, 6, (120, 1))
    >>> y = np.sin(X[:, 0]) + 0.3 * rng.normal(size=120)
    >>> right, rough = (ovkgp.OVKRidge(lam=lam).fit(X[:80], y[:80]) for lam in (0.09, 1e-4))
    >>> compare(right, rough, X[80:], y[80:]).better
    'first'
    """
    check_one_of("score", score, SCORES)
    first, second = (_score_entries(estimator, X, Y, score) for estimator in (a, b))
    if first.shape != second.shape:
        raise InputError(f"The models predict {first.shape[1]} and {second.shape[1]} outputs, expected the same.")
    observed = np.isfinite(first) & np.isfinite(second)
    labels = np.arange(len(first)) if groups is None else np.asarray(groups)
    if labels.shape != (len(first),):
        raise InputError(f"groups has shape {labels.shape}, expected ({len(first)},). Pass one label per row.")
    index = np.unique(labels, return_inverse=True)[1]
    counts = np.bincount(index, observed.sum(1))
    sums = np.bincount(index, np.where(observed, first - second, 0.0).sum(1))
    sums, counts = sums[counts > 0], counts[counts > 0]
    if len(counts) < 2:
        raise InputError(f"Y must have observations in at least 2 rows or groups, got {len(counts)}.")
    difference = float(sums.sum() / counts.sum())
    deviations = (sums - difference * counts) / counts.mean()
    error = float(np.sqrt(np.square(deviations).sum() / (len(counts) - 1) / len(counts)))
    means = (float(part[observed].mean()) for part in (first, second))
    return Comparison(score, *means, difference, error, len(counts), sums / counts.mean())


def _score_entries(estimator, X, Y, score: str) -> np.ndarray:
    """Return the scores (m, p) of entries, NaN where missing."""
    check_estimator(estimator)
    found, Y = estimator.predictive(X), estimator.check_rows(X, Y)[1]
    if score == "squared_error":
        return np.square(Y - found.mean)
    if score == "crps":
        return _crps(found, Y)
    if found.log_density is None:
        raise OptionError(f'{estimator.class_name} has no densities. Use score="crps".')
    return np.where(np.isfinite(Y), found.log_density(Y), np.nan)


def _crps(found: PredictiveDistribution, Y: np.ndarray) -> np.ndarray:
    """Return the CRPS (m, p) of normal distributions in closed form, of others 2 ∫ pinball loss dτ by quadrature."""
    if found.is_gaussian:
        z = (Y - found.mean) / found.std
        return found.std * (z * (2 * ndtr(z) - 1) + 2 * norm.pdf(z) - 1 / np.sqrt(np.pi))
    nodes, weights = leggauss(NUM_NODES)
    total = np.zeros_like(Y)
    for level, weight in zip((nodes + 1) / 2, weights / 2, strict=True):
        gap = Y - found.quantile(float(level))
        total += 2 * weight * np.maximum(level * gap, (level - 1) * gap)
    return total
