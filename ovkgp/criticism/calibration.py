"""Calibration of predictive distributions: probability integral transforms and coverage of central intervals.

An interval of level q contains y if |u − ½| ≤ q/2 for its probability integral transform u. If the model is right and n entries
are predicted independently, the number of entries inside is Binomial(n, q).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.stats import binom

from ovkgp.checks import check_probability
from ovkgp.criticism.predictive_distributions import predictive
from ovkgp.exceptions import InputError, OptionError

LEVELS = tuple(np.round(np.arange(0.05, 1.0, 0.05), 2).tolist())  # 5 %, 10 %, …, 95 %


def pit_values(estimator, X=None, Y=None) -> np.ndarray:
    """Compute the probability integral transforms u = P(y′ ≤ y) of observations.

    They are uniform on [0, 1] if the model is right. They accumulate at 0 and 1 if the model is overconfident, around ½ if it is
    underconfident, and on one side if its mean is biased. For labels, classes and counts u = P(y′ < y) + v P(y′ = y) with v
    uniform, the same numbers at every call, is uniform too.

    Parameters
    ----------
    estimator : GPRegressor, OVKRidge, ORFFRidge or InfiniteQuantileRegressor
        Fitted estimator.
    X, Y : array-like of shape (m, d) and (m, p), or None, default=None
        Rows held out of the fit. If None, each stored training entry is predicted from all others, in closed form.

    Returns
    -------
    ndarray of shape (m, p)
        u, NaN where Y is missing.

    Raises
    ------
    OptionError
        If no rows are passed and the model stores none or has no closed-form leave-one-out predictions.

    Notes
    -----
    Complexity: one prediction, or one factorization (one per draw that predictions average over).

    Examples
    --------
    >>> import numpy as np
    >>> import ovkgp
    >>> from ovkgp.criticism import pit_values
    >>> rng = np.random.default_rng(0)
    >>> X = np.linspace(0, 6, 200)[:, None]
    >>> model = ovkgp.OVKRidge(lam=0.1).fit(X, np.sin(X) + np.sqrt(0.1) * rng.normal(size=X.shape))
    >>> u = pit_values(model)
    >>> bool(abs(np.mean(u < 0.25) - 0.25) < 0.1), bool(abs(np.mean(u > 0.75) - 0.25) < 0.1)
    (True, True)
    """
    return predictive(estimator, X, Y).pit()


def coverage(estimator, X=None, Y=None, levels=LEVELS) -> Coverage:
    """Compute how often central predictive intervals contain the observation, for each level and output.

    Parameters
    ----------
    estimator, X, Y
        As for `pit_values`. The intervals of an `InfiniteQuantileRegressor` are those between its curves, before the calibration of
        `predict_interval`.
    levels : array-like of shape (k,), default=(0.05, 0.1, ..., 0.95)
        Levels strictly between 0 and 1.

    Returns
    -------
    Coverage
        Counts by level and output.

    Examples
    --------
    >>> import numpy as np
    >>> import ovkgp
    >>> from ovkgp.criticism import coverage
    >>> rng = np.random.default_rng(0)
    >>> X = np.linspace(0, 6, 200)[:, None]
    >>> model = ovkgp.OVKRidge(lam=0.1).fit(X, np.sin(X) + np.sqrt(0.1) * rng.normal(size=X.shape))
    >>> found = coverage(model, levels=[0.5, 0.9])
    >>> lower, upper = found.band(0.99)
    >>> bool((lower < found.observed).all() and (found.observed < upper).all())
    True
    """
    levels = check_levels(levels)
    return Coverage.of(pit_values(estimator, X, Y), levels)


@dataclass(frozen=True)
class Coverage:
    """Numbers of observations inside predictive intervals.

    Attributes
    ----------
    levels : ndarray of shape (k,)
        Levels, increasing.
    held : ndarray of shape (k, p)
        Number of entries of each output inside.
    counts : ndarray of shape (p,)
        Number of observed entries of each output.

    Examples
    --------
    >>> import numpy as np
    >>> from ovkgp.criticism import Coverage
    >>> found = Coverage.of(np.array([[0.5], [0.2], [0.9], [0.99]]), levels=[0.5, 0.9])
    >>> found.observed.ravel().tolist(), found.overall.tolist(), found.counts.tolist()
    ([0.25, 0.75], [0.25, 0.75], [4])
    """

    levels: np.ndarray
    held: np.ndarray
    counts: np.ndarray

    @classmethod
    def of(cls, pit: np.ndarray, levels=LEVELS) -> Coverage:
        """Count from probability integral transforms (m, p), NaN where missing."""
        levels, observed = check_levels(levels), np.isfinite(pit)
        counts = observed.sum(0)
        if not counts.any():
            raise InputError("Y has no observed values: every entry is missing. Pass at least one observation.")
        # u is rounded near 1, and a level such as 0.95 is not a binary fraction
        inside = np.abs(pit - 0.5) <= levels[:, None, None] / 2 + 1e-12
        return cls(levels, (inside & observed).sum(1), counts)

    @property
    def observed(self) -> np.ndarray:
        """Fraction (k, p) of the entries of each output inside; NaN for outputs without entries."""
        return np.where(self.counts > 0, self.held / np.maximum(self.counts, 1), np.nan)

    @property
    def overall(self) -> np.ndarray:
        """Fraction (k,) of the entries of all outputs inside."""
        return self.held.sum(1) / self.counts.sum()

    def band(self, confidence: float = 0.9) -> tuple[np.ndarray, np.ndarray]:
        """Compute the range (k, p) of each fraction under a right model with probability `confidence`, per level.

        This is Binomial(n, level)/n. Errors of nearby entries are dependent, so fractions of a right model leave it more often.
        """
        confidence = check_probability("confidence", confidence)
        number, level = np.maximum(self.counts, 1), self.levels[:, None]
        lower, upper = (binom.ppf(q, number, level) / number for q in ((1 - confidence) / 2, (1 + confidence) / 2))
        return lower, upper


def check_levels(levels) -> np.ndarray:
    """Return levels as an increasing array (k,), each strictly between 0 and 1."""
    message = f"levels must be numbers strictly between 0 and 1, got {levels!r}."
    try:
        found = np.unique(np.atleast_1d(np.asarray(levels, dtype=np.float64)))
    except (TypeError, ValueError) as error:
        raise OptionError(message) from error
    if not len(found) or not ((found > 0) & (found < 1)).all():
        raise OptionError(message)
    return found
