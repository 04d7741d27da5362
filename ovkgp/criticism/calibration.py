"""Coverage: how often central intervals of each level hold the observation, and how often they should, within chance.

An interval of level q holds y where |u − ½| ≤ q/2 for its probability integral transform u. Of n entries that a right model predicts
independently, Binomial(n, q) lie inside.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.stats import binom

from ovkgp.criticism.predictive_distributions import predictive
from ovkgp.exceptions import InputError, OptionError


def pit_values(estimator, X=None, Y=None) -> np.ndarray:
    """u = P(y′ ≤ y) (m, p) under the prediction of each entry by itself; NaN where Y is missing.

    They are uniform on [0, 1] where the model is right. Where it is too sure of itself they gather at 0 and 1, where it is not sure
    enough around ½, and where its mean is off at one side. Labels, classes and counts have u = P(y′ < y) + v P(y′ = y) with v uniform, always the
    same numbers, which is uniform too.

    Args:
        estimator: a fitted `GPRegressor`, `OVKRidge`, `ORFFRidge` or `InfiniteQuantileRegressor`.
        X, Y: rows that were held out of the fit. Without them each entry that the model keeps, given all others, in closed form.

    Raises:
        OptionError: there are no rows, and the model keeps none or has no leave-one-out predictions.

    Cost: one prediction, or one factorisation (one for each draw that predictions average over).

    Example:
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


LEVELS = tuple(np.round(np.arange(0.05, 1.0, 0.05), 2).tolist())
"""5 %, 10 %, …, 95 %."""


@dataclass(frozen=True)
class Coverage:
    """How many observations lie in the intervals that a model predicts.

    Attributes:
        levels: (k,), increasing.
        held: how many entries (k, p) of each output lie inside.
        counts: how many entries (p,) of each output there are.

    Example:
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
        """From probability integral transforms (m, p), NaN where missing."""
        levels, observed = check_levels(levels), np.isfinite(pit)
        counts = observed.sum(0)
        if not counts.any():
            raise InputError("there is nothing to judge by: every entry of Y is missing.")
        # u is rounded where it is near 1, and a level such as 0.95 is no binary fraction
        inside = np.abs(pit - 0.5) <= levels[:, None, None] / 2 + 1e-12
        return cls(levels, (inside & observed).sum(1), counts)

    @property
    def observed(self) -> np.ndarray:
        """The share (k, p) of the entries of each output inside; NaN where it has none."""
        return np.where(self.counts > 0, self.held / np.maximum(self.counts, 1), np.nan)

    @property
    def overall(self) -> np.ndarray:
        """The share (k,) of the entries of all outputs together."""
        return self.held.sum(1) / self.counts.sum()

    def band(self, confidence: float = 0.9) -> tuple[np.ndarray, np.ndarray]:
        """Between which shares (k, p) each of a right model lies with probability `confidence`, level by level.

        That is Binomial(n, level)/n. Entries near one another err together, so that shares of a right model leave it more often.
        """
        if not 0 < confidence < 1:
            raise OptionError(f"confidence lies strictly between 0 and 1, got {confidence}.")
        number, level = np.maximum(self.counts, 1), self.levels[:, None]
        lower, upper = (binom.ppf(q, number, level) / number for q in ((1 - confidence) / 2, (1 + confidence) / 2))
        return lower, upper


def coverage(estimator, X=None, Y=None, levels=LEVELS) -> Coverage:
    """How often central predictive intervals hold the observation, for each level and output.

    Args:
        estimator, X, Y: as for `pit_values`: rows that were held out of the fit or, without, each entry given all others. The intervals
            of an `InfiniteQuantileRegressor` are those between its curves, before `predict_interval` calibrates them.
        levels: strictly between 0 and 1.

    Cost: that of `pit_values`.

    Example:
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


def check_levels(levels) -> np.ndarray:
    """Levels as an increasing array (k,), each strictly between 0 and 1."""
    try:
        found = np.unique(np.atleast_1d(np.asarray(levels, dtype=np.float64)))
    except (TypeError, ValueError) as error:
        raise OptionError(f"levels are numbers strictly between 0 and 1, got {levels!r}.") from error
    if not len(found) or not ((found > 0) & (found < 1)).all():
        raise OptionError(f"levels are numbers strictly between 0 and 1, got {levels!r}.")
    return found
