"""Predictions of entries that the model has not seen: the rows given, or each kept entry given all others.

Calibration and explained variance are read from one such record, so that they are about the same entries.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ovkgp.criticism.predictives import Predictive, predictive
from ovkgp.plotting.report.columns import means, spreads
from ovkgp.plotting.report.kinds import class_name, kind_of
from ovkgp.plotting.report.rows import Rows, kept

FLATTERED = "the model looks better here than it is: give rows that it has not seen."
"""What is wrong with rows of the fit."""


@dataclass(frozen=True)
class Predicted:
    """Predictive distributions, and how they came about.

    Args:
        law: of each entry.
        rows: those given, as (X, Y) for a plot; (None, None) where kept entries were left out one at a time.
        how: in words, to begin a sentence with.
        caution: what may be wrong with it, in words.
        which: the rows are, in words, for a caption.
    """

    law: Predictive
    rows: tuple
    how: str
    caution: str = ""
    which: str = "the rows given"

    @property
    def explained(self) -> np.ndarray:
        """The share (p,) of the variance of each output that the mean explains, 1 − Σ(y − mean)² / Σ(y − ȳ)²; NaN where it has none."""
        error = np.nansum((self.law.Y - self.law.mean) ** 2, axis=0)
        centred = self.law.Y - means(self.law.Y)
        total = np.nansum(centred**2, axis=0)
        return np.where(total > 0, 1 - error / np.where(total > 0, total, 1.0), np.nan)


def predicted(estimator, rows: Rows | None) -> Predicted | None:
    """Predictions of unseen entries of a regressor with predictive distributions; None where there are none.

    Cost: one prediction of all rows given, or one factorisation (one for each draw that predictions average over).
    """
    if kind_of(estimator) not in ("table", "target") or class_name(estimator) == "ConstrainedORFF":
        return None
    can_leave_out = hasattr(getattr(estimator, "gp_", None), "leave_one_out") and kept(estimator) is not None
    if rows is None or not rows.is_given:
        return _left_out(estimator, "Left out one at a time") if can_leave_out else None
    seen, old = np.isfinite(rows.Y).any(1), are_of_fit(estimator, rows)
    if not seen.any():
        return None
    if (seen & ~old).any():
        return _on_fresh(estimator, rows, old)
    if can_leave_out:
        which = "The rows given" if seen.all() else "The rows given that have observations"
        return _left_out(estimator, f"{which} are those of the fit. Left out one at a time")
    return _on_given(estimator, rows, f"These rows are those of the fit: {FLATTERED}")


def are_of_fit(estimator, rows: Rows) -> np.ndarray:
    """Which of the rows given (n,) are also among those that the model has kept, by their inputs and the outputs that they have;
    none where it has kept none."""
    learned, found = kept(estimator), np.zeros(len(rows.X), dtype=bool)
    if learned is None:
        return found
    keys, seen = _keys(rows, learned), np.isfinite(rows.Y)
    for outputs in np.unique(seen[seen.any(1)], axis=0):  # a cell that was emptied since does not make a row new
        alike = (seen == outputs).all(1)
        known = replace(learned, Y=np.where(outputs, learned.Y, np.nan))
        found[alike] = np.isin(keys[alike], _keys(known, learned))
    return found


def _left_out(estimator, how: str) -> Predicted:
    return Predicted(predictive(estimator), (None, None), how)


def _on_given(estimator, rows: Rows, caution: str) -> Predicted:
    return Predicted(predictive(estimator, rows.X, rows.Y), (rows.X, rows.Y), "On the rows given", caution)


def _on_fresh(estimator, rows: Rows, old: np.ndarray) -> Predicted:
    """Predictions of the rows given, those of the fit left out."""
    if not old.any():
        caution = f"If these rows are those of the fit, {FLATTERED}" if kept(estimator) is None else ""
        return _on_given(estimator, rows, caution)
    X, Y, number = rows.X[~old], rows.Y[~old], int(old.sum())
    were = "1 was a row of the fit and is" if number == 1 else f"{number} were rows of the fit and are"
    others = "row" if len(Y) == 1 else f"{len(Y)} rows"
    how = f"Of the {len(old)} rows given, {were} left out. On the other {others}"
    return Predicted(predictive(estimator, X, Y), (X, Y), how, which=f"the other {others} given")


def _keys(rows: Rows, unit: Rows) -> np.ndarray:
    """Each row as text, in units of the spread of `unit`, rounded as copies through a scaling are."""
    table, of_unit = (np.column_stack([one.inputs, one.Y]) for one in (rows, unit))
    spread = spreads(of_unit)
    digits = np.round((table - means(of_unit)) / np.where(spread > 0, spread, 1.0), 6) + 0.0
    return np.array([row.tobytes().hex() for row in np.nan_to_num(digits, nan=1e300)])
