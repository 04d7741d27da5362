"""Predictions of entries that the model has not seen: the rows given, or each kept entry given all others.

Calibration and explained variance are read from one such record, so that they are about the same entries.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ovkgp.criticism.predictives import Predictive, predictive
from ovkgp.plotting.report.kinds import class_name, kind_of
from ovkgp.plotting.report.rows import Rows, kept

SAME = 0.5
"""Rows given of which more than this share are rows of the fit are taken as such."""


@dataclass(frozen=True)
class Predicted:
    """Predictive distributions, and how they came about.

    Args:
        law: of each entry.
        rows: those given, as (X, Y) for a plot; (None, None) where kept entries were left out one at a time.
        how: in words, to begin a sentence with.
        caution: what may be wrong with it, in words.
    """

    law: Predictive
    rows: tuple
    how: str
    caution: str = ""

    @property
    def explained(self) -> np.ndarray:
        """The share (p,) of the variance of each output that the mean explains, 1 − Σ(y − mean)² / Σ(y − ȳ)²; NaN where it has none."""
        error = np.nansum((self.law.Y - self.law.mean) ** 2, axis=0)
        centred = self.law.Y - _mean(self.law.Y)
        total = np.nansum(centred**2, axis=0)
        return np.where(total > 0, 1 - error / np.where(total > 0, total, 1.0), np.nan)


def predicted(estimator, rows: Rows | None) -> Predicted | None:
    """Predictions of unseen entries of a regressor with predictive distributions; None where there are none.

    Cost: one prediction of all rows given, or one factorisation (one for each draw that predictions average over).
    """
    if kind_of(estimator) not in ("table", "target") or class_name(estimator) == "ConstrainedORFF":
        return None
    if rows is not None and rows.is_given and not np.isfinite(rows.Y).any():
        return None
    can_leave_out = hasattr(getattr(estimator, "gp_", None), "leave_one_out") and kept(estimator) is not None
    if rows is None or not rows.is_given:
        return _left_out(estimator, "Left out one at a time") if can_leave_out else None
    if can_leave_out and share_of_fit(estimator, rows) > SAME:
        return _left_out(estimator, "The rows given are those of the fit. Left out one at a time")
    caution = (
        ""
        if can_leave_out
        else "If these rows are those of the fit, the model looks better here than it is: give rows that it has not seen."
    )
    return Predicted(predictive(estimator, rows.X, rows.Y), (rows.X, rows.Y), "On the rows given", caution)


def share_of_fit(estimator, rows: Rows) -> float:
    """The share of the rows given that are also among those that the model has kept."""
    learned = kept(estimator)
    return 0.0 if learned is None else float(np.isin(_keys(rows, learned), _keys(learned, learned)).mean())


def _left_out(estimator, how: str) -> Predicted:
    return Predicted(predictive(estimator), (None, None), how)


def _keys(rows: Rows, unit: Rows) -> np.ndarray:
    """Each row as text, in units of the spread of `unit`, rounded as copies through a scaling are."""
    table, of_unit = (np.column_stack([one.inputs, one.Y]) for one in (rows, unit))
    spread = np.nanstd(of_unit, axis=0)
    digits = np.round((table - _mean(of_unit)) / np.where(spread > 0, spread, 1.0), 6) + 0.0
    return np.array([row.tobytes().hex() for row in np.nan_to_num(digits, nan=1e300)])


def _mean(Y: np.ndarray) -> np.ndarray:
    """The mean of each column; zero where nothing was observed."""
    seen = np.isfinite(Y)
    return np.where(seen, Y, 0.0).sum(0) / np.maximum(seen.sum(0), 1)
