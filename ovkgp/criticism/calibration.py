"""Calibration of predictive distributions: probability integral transforms and coverage of central intervals.

An interval of level q contains y if |u − ½| ≤ q/2 for its probability integral transform u. If the model is right and n entries
are predicted independently, the number of entries inside is Binomial(n, q). A simultaneous band contains the whole curve of a
right model, at all levels, with a given probability. Entries of a row or group are dependent; n is then reduced to the number
of independent entries with the same variance.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy.stats import binom

from ovkgp.checks import check_probability
from ovkgp.criticism.predictive_distributions import are_labels, predictive
from ovkgp.exceptions import InputError, OptionError

LEVELS = tuple(np.round(np.arange(0.05, 1.0, 0.05), 2).tolist())  # 5 %, 10 %, …, 95 %
NUM_SIMULATIONS = 4000  # curves of a right model from which simultaneous bands are computed


def pit_values(estimator, X=None, Y=None, *, groups="rows") -> np.ndarray:
    """Compute the probability integral transforms u = P(y′ ≤ y) of observations.

    They are uniform on [0, 1] if the model is right. They accumulate at 0 and 1 if the model is overconfident, around ½ if it is
    underconfident, and on one side if its mean is biased. For labels, classes and counts u = P(y′ < y) + v P(y′ = y) with v
    uniform, the same numbers at every call, is uniform too.

    Parameters
    ----------
    estimator : GPRegressor, OVKRidge, ORFFRidge or InfiniteQuantileRegressor
        Fitted estimator.
    X, Y : array-like of shape (m, d) and (m, p), or None, default=None
        Rows held out of the fit. If None, each stored training row is predicted from all others, in closed form.
    groups : {"rows", "entries"} or array-like of shape (m,), default="rows"
        If labels are passed, X and Y are the training rows, and all rows of a label (a track, a station) are predicted from the
        others. Without X and Y, "rows" holds out rows and "entries" single entries, for which the other outputs of the row are
        known: a prediction that is more accurate than that of a new row if outputs are coupled.

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
    return predictive(estimator, X, Y, groups).pit()


def coverage(estimator, X=None, Y=None, levels=LEVELS, *, groups="rows") -> Coverage:
    """Compute how often central predictive intervals contain the observation, for each level and output.

    Parameters
    ----------
    estimator, X, Y, groups
        As for `pit_values`.
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
    return Coverage.of(pit_values(estimator, X, Y, groups=groups), levels, groups)


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
    effective_counts : ndarray of shape (p,), default=None
        Numbers of independent entries that vary as much as those of each output, which depend on each other within a group.
        If None, `counts`.
    effective_total : float, default=None
        The same for the entries of all outputs, which depend on each other within a row. If None, the sum of `counts`.

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
    effective_counts: np.ndarray | None = None
    effective_total: float | None = None

    @classmethod
    def of(cls, pit: np.ndarray, levels=LEVELS, groups="rows") -> Coverage:
        """Count from probability integral transforms (m, p), NaN where missing; `groups` (m,) label dependent rows.

        Parameters
        ----------
        pit : ndarray of shape (m, p)
            Probability integral transforms.
        levels : array-like of shape (k,), default=(0.05, 0.1, ..., 0.95)
            Nominal levels of central intervals.
        groups : {"rows"} or ndarray of shape (m,), default="rows"
            Labels of dependent rows; "rows": rows are independent.

        Returns
        -------
        Coverage
            Counts of all levels.
        """
        levels, observed = check_levels(levels), np.isfinite(pit)
        counts = observed.sum(0)
        if not counts.any():
            raise InputError("Y has no observed values: every entry is missing. Pass at least one observation.")
        # u is rounded near 1, and a level such as 0.95 is not a binary fraction
        inside = np.abs(pit - 0.5) <= levels[:, None, None] / 2 + 1e-12
        index = np.unique(groups, return_inverse=True)[1] if are_labels(groups) else np.arange(len(pit))
        effective = [_count_independent(inside[:, :, [a]], observed[:, [a]], index) for a in range(len(counts))]
        total = _count_independent(inside, observed, index)
        return cls(levels, (inside & observed).sum(1), counts, np.array(effective), total)

    @property
    def observed(self) -> np.ndarray:
        """Fraction (k, p) of the entries of each output inside; NaN for outputs without entries."""
        return np.where(self.counts > 0, self.held / np.maximum(self.counts, 1), np.nan)

    @property
    def overall(self) -> np.ndarray:
        """Fraction (k,) of the entries of all outputs inside."""
        return self.held.sum(1) / self.counts.sum()

    def band(self, confidence: float = 0.9, *, simultaneous: bool = False) -> tuple[np.ndarray, np.ndarray]:
        """Compute the range (k, p) of each fraction under a right model with probability `confidence`.

        Parameters
        ----------
        confidence : float, default=0.9
            Probability, strictly between 0 and 1.
        simultaneous : bool, default=False
            Whether the fractions of all levels of an output are inside with that probability, or those of each level.

        Returns
        -------
        lower, upper : ndarray of shape (k, p)
            Ends, those of Binomial(n, level)/n with n = `effective_counts`. Errors of neighboring rows are dependent, so
            fractions of a right model may leave the band more often.
        """
        confidence = check_probability("confidence", confidence)
        numbers = self.counts if self.effective_counts is None else self.effective_counts
        ends = [binomial_band(number, self.levels, confidence, simultaneous) for number in numbers]
        lower, upper = (np.column_stack(part) for part in zip(*ends, strict=True))
        return lower, upper

    def overall_band(self, confidence: float = 0.9, *, simultaneous: bool = False) -> tuple[np.ndarray, np.ndarray]:
        """Compute the range (k,) of the fractions of all outputs, as `band`, with n = `effective_total`.

        Parameters
        ----------
        confidence : float, default=0.9
            Probability of the range.
        simultaneous : bool, default=False
            Whether the range holds for all levels at once.

        Returns
        -------
        low, high : ndarray of shape (k,)
            Ends of the range.
        """
        total = self.counts.sum() if self.effective_total is None else self.effective_total
        return binomial_band(total, self.levels, check_probability("confidence", confidence), simultaneous)


def binomial_band(
    number: float, levels: np.ndarray, confidence: float, simultaneous: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Compute the ends (k,) of the fractions of `number` uniform numbers below each level, with equal tails at all levels."""
    number = max(round(number), 1)
    tail = 1 - confidence
    if simultaneous and len(levels) > 1:
        tail = _simulate_tail(number, tuple(np.asarray(levels).tolist()), confidence)
    return binom.ppf(tail / 2, number, levels) / number, binom.isf(tail / 2, number, levels) / number


@lru_cache(maxsize=256)
def _simulate_tail(number: int, levels: tuple[float, ...], confidence: float) -> float:
    """Find the probability outside of the interval of each level such that whole curves leave with 1 − `confidence`."""
    steps = np.diff(levels, prepend=0.0, append=1.0)
    counts = np.random.default_rng(0).multinomial(number, steps, NUM_SIMULATIONS)[:, :-1].cumsum(1)
    p_values = 2 * np.minimum(binom.cdf(counts, number, levels), binom.sf(counts - 1, number, levels))
    return float(np.quantile(p_values.min(1), 1 - confidence, method="lower"))


def _count_independent(inside: np.ndarray, observed: np.ndarray, groups: np.ndarray) -> float:
    """Return the number of independent entries whose fractions `inside` (k, m, p) vary as much as those of dependent groups.

    The variance of a sum over groups (m,) is estimated from the totals of the groups, as in a cluster sample.
    """
    total = observed.sum()
    fractions = (inside & observed).sum((1, 2)) / max(total, 1)
    deviations = np.where(observed, inside - fractions[:, None, None], 0.0)
    by_row = deviations.sum(2)
    by_group = np.stack([np.bincount(groups, weights) for weights in by_row])
    single, grouped = (deviations**2).sum(), (by_group**2).sum()
    return float(total * min(single / grouped, 1.0)) if grouped > 0 and single > 0 else float(total)


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
