"""Outputs that never change, told where they could do harm.

Outputs of a coupled kernel share its lengthscales. The evidence of a constant one grows without end as its noise shrinks, and it is told as
well by a kernel that does not vary: training may then end where the others are taken for noise.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np
import torch
from sklearn.utils import check_array
from sklearn.utils.validation import check_consistent_length, validate_data

from ovkgp.exceptions import FitWarning, InputError


def as_array(values):
    """A tensor as an array, a masked array with NaN where it is masked, everything else as it is."""
    if isinstance(values, np.ma.MaskedArray):
        return values.astype(np.float64).filled(np.nan)
    return values.detach().cpu().numpy() if torch.is_tensor(values) else values


def input_table(estimator, X, *, reset: bool) -> np.ndarray:
    """X as a finite (n, d) array in float64 or float32, its column names and number checked or remembered."""
    return validate_data(estimator, as_array(X), reset=reset, dtype=[np.float64, np.float32])


def output_table(Y, X: np.ndarray) -> tuple[np.ndarray, list[str] | None, bool]:
    """Y as an (n, p) array with NaN where missing, its column names, and whether it was one-dimensional."""
    if Y is None:
        raise InputError("this estimator requires y to be passed, but the target y is None.")
    names = output_names(Y)
    table = check_array(
        as_array(Y), ensure_2d=False, dtype=[np.float64, np.float32], ensure_all_finite="allow-nan", input_name="Y"
    )
    if table.ndim > 2:
        raise InputError(f"Y must be (n,) or (n, p), got shape {table.shape}.")
    check_consistent_length(X, table)
    is_flat = table.ndim == 1
    return (table[:, None] if is_flat else table), names, is_flat


def output_names(Y) -> list[str] | None:
    """The column names of a data frame, or the name of a series."""
    if hasattr(Y, "columns"):
        return [str(name) for name in Y.columns]
    name = getattr(Y, "name", None)
    return None if name is None else [str(name)]


def numbers(values, name: str) -> np.ndarray:
    """Values as an array of float64."""
    try:
        return np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"{name} must be an array of numbers, got {values!r}.") from error


def entry_values(values, Y: np.ndarray, meaning: str) -> np.ndarray | None:
    """A number for each entry of Y (n, p), such as a variance, in its shape; None stays None."""
    if values is None:
        return None
    values = numbers(as_array(values), meaning.split()[0])
    values = values[:, None] if values.ndim == 1 and Y.shape[1] == 1 else values
    if values.shape != Y.shape:
        raise InputError(f"{meaning} for each entry of Y, {Y.shape}; got {values.shape}.")
    return values


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
    def num_observed(self) -> float:
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


def weighted(X: np.ndarray, Y: np.ndarray, weight) -> Weighed:
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


FEW = 3
"""Equal values that are no accident."""


def constant_outputs(Y: np.ndarray) -> list[int]:
    """The columns of Y (n, p), NaN where missing, that were seen at least three times and always with the same value.

    Example:
        >>> import numpy as np
        >>> from ovkgp.estimators.common.validation import constant_outputs
        >>> constant_outputs(np.array([[1.0, 2.0], [2.0, 2.0], [0.0, np.nan], [4.0, 2.0]]))
        [1]
    """
    columns = (y[np.isfinite(y)] for y in Y.T)
    return [a for a, y in enumerate(columns) if len(y) >= FEW and (y == y[0]).all()]


def warn_of_constants(estimator, Y: np.ndarray) -> None:
    """Name the constant outputs of a model whose outputs are trained together."""
    if Y.shape[1] == 1 or estimator.kernel in ("auto", "independent") or estimator.hyperparameters == "fixed":
        return
    if found := constant_outputs(Y):
        listed = ", ".join(repr(estimator.output_names_[a]) for a in found)
        warnings.warn(
            f"{listed} of Y never changes: nothing can be learned from it, and outputs that are trained together with it may be taken "
            'for noise. Leave it out, or use kernel="independent".',
            FitWarning,
            stacklevel=5,
        )
