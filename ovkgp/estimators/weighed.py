"""Data with weights: of rows, which then count so many times, or of entries."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ovkgp.estimators.tables import as_array, entry_values
from ovkgp.exceptions import InputError


@dataclass(frozen=True)
class Weighed:
    """X (n, d), Y (n, p) with NaN where missing or without weight, 1 / weight of each entry, and how often a row counts."""

    X: np.ndarray
    Y: np.ndarray
    variances: np.ndarray | None = None
    counts: np.ndarray | None = None

    @property
    def num_rows(self) -> float:
        """How many rows have something observed."""
        return float((np.isfinite(self.Y).any(1) * (1 if self.counts is None else self.counts)).sum())

    @property
    def num_seen(self) -> float:
        """How many entries are observed."""
        return float((np.isfinite(self.Y).sum(1) * (1 if self.counts is None else self.counts)).sum())

    def simplified(self) -> Weighed:
        """The same without weights that are all one."""
        is_plain = self.variances is None or bool((self.variances == 1).all())
        return Weighed(self.X, self.Y) if is_plain else self

    def mean(self) -> np.ndarray:
        """The weighted mean (p,) of each output."""
        weights = np.isfinite(self.Y) / (1.0 if self.variances is None else self.variances)
        return np.nansum(weights * np.nan_to_num(self.Y), 0) / weights.sum(0)


def weighed(X: np.ndarray, Y: np.ndarray, weight) -> Weighed:
    """Data with the weights of rows (n,) or entries (n, p)."""
    if weight is None:
        return Weighed(X, Y)
    weight = np.asarray(as_array(weight), dtype=np.float64)
    counts = weight if weight.ndim == 1 and len(weight) == len(Y) else None
    weight = np.broadcast_to(weight[:, None], Y.shape) if counts is not None else weight
    weight = entry_values(weight, Y, "sample_weight is a number for each row, or")
    if not bool((np.isfinite(weight) & (weight >= 0)).all()):
        raise InputError("sample_weight must be finite and not negative.")
    Y = np.where(weight > 0, Y, np.nan)
    return Weighed(X, Y, 1 / np.where(weight > 0, weight, 1.0), counts)
