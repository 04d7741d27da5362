"""Validation of X, Y, weights and noise variances, and the tables that estimators pass on."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import torch
from scipy import sparse
from sklearn.utils import check_array
from sklearn.utils.validation import check_consistent_length, validate_data

from ovkgp.checks import as_numbers
from ovkgp.estimators.common.dates import check_kinds, from_days, to_days
from ovkgp.exceptions import FitWarning, InputError, InputTypeError
from ovkgp.inference.model.row_sample import draw_random_rows
from ovkgp.scales import mean_and_std

if TYPE_CHECKING:
    from ovkgp.estimators.common.scaling import Scaling


MIN_FAR_INPUT = 1e50  # absolute value from which inputs are compared with the lengthscales
MAX_SIZE = 1e145  # largest absolute value whose squares can be summed, and the inverse of the smallest
MAX_LENGTHSCALES = 1e100  # distance whose square, and the phases of random features at it, do not overflow


def as_array(values):
    """Convert a tensor to an array and a masked array to one with NaN; return everything else unchanged."""
    if isinstance(values, np.ma.MaskedArray):
        return values.astype(np.float64).filled(np.nan)
    return values.detach().cpu().numpy() if torch.is_tensor(values) else values


def input_table(estimator, X, *, reset: bool) -> np.ndarray:
    """Return X as a finite (n, d) array in float64 or float32, C-contiguous, with dates in days since those of the fit.

    Check its columns, or store them if `reset`.
    """
    fitted = None if reset else getattr(estimator, "input_times_", None)
    X, times = to_days(as_dense_array(X, "X"), fitted)
    names = output_names(X)
    # the memory layout would change the order of sums, and so the last digits
    options = {"dtype": [np.float64, np.float32], "order": "C", "ensure_all_finite": False}
    with raise_input_errors("X"):
        X = validate_data(estimator, X, reset=reset, **options)
    labels = range(X.shape[1]) if names is None else map(repr, names)
    check_finite(X, labels := list(labels))
    if not reset:
        check_kinds(times, fitted, labels, "X")
        if float(np.abs(X).max(initial=0.0)) > MIN_FAR_INPUT and hasattr(estimator, "largest_lengthscale"):
            check_reach(X, labels, estimator.largest_lengthscale())
    elif times is None:
        vars(estimator).pop("input_times_", None)
    else:
        estimator.input_times_ = times
    return X


@contextmanager
def raise_input_errors(name: str) -> Iterator[None]:
    """Turn errors of scikit-learn's validation of an argument into `InputError`s that name it."""
    try:
        yield
    except InputError:
        raise
    except (TypeError, ValueError) as error:
        message, kind = str(error), InputTypeError if isinstance(error, TypeError) else InputError
        raise kind(message if f" {name} " in f" {message} " else f"{name} is invalid: {message}") from error


def check_finite(X: np.ndarray, labels: Sequence) -> None:
    """Check that X (n, d) has neither NaN nor infinity; `labels` are those of its columns."""
    if (is_finite := np.isfinite(X)).all():
        return
    row, column = np.argwhere(~is_finite)[0]
    value = "NaN" if np.isnan(X[row, column]) else "infinity"
    raise InputError(
        f"X must be finite, got {value} in row {row}, column {labels[column]}. Drop the row or fill in the value, for example with sklearn.impute.SimpleImputer."
    )


def check_reach(X: np.ndarray, labels: Sequence, lengthscale: float) -> None:
    """Check that no point is so far away that squared distances, in lengthscales, overflow."""
    if (is_far := np.abs(X) > MAX_LENGTHSCALES * lengthscale).any():
        row, column = np.argwhere(is_far)[0]
        raise InputError(
            f"X must lie within {MAX_LENGTHSCALES:g} lengthscales of the origin, got {X[row, column]:.3g} in row {row}, column {labels[column]}. Drop the row or replace the value."
        )


def as_dense_array(values, name: str):
    """Convert tensors and masked arrays as `as_array` does; reject sparse ones."""
    if sparse.issparse(values):
        raise InputError(f"{name} must be dense, got a sparse {type(values).__name__}. Pass {name}.toarray().")
    if torch.is_tensor(values) and values.layout is not torch.strided:
        raise InputError(f"{name} must be dense, got a sparse tensor. Pass {name}.to_dense().")
    return as_array(values)


def as_inputs(estimator, X: np.ndarray) -> np.ndarray | pd.DataFrame:
    """Return points (m, d) with column names if the estimator was fitted to a data frame, and with dates instead of days."""
    names, times = (getattr(estimator, name, None) for name in ("feature_names_in_", "input_times_"))
    if times is not None and isinstance(X, np.ndarray) and X.dtype.kind == "f":
        X = pd.DataFrame(dict(enumerate(from_days(X, times))))
    if names is None or isinstance(X, pd.DataFrame):
        return X if names is None else X.set_axis(names, axis=1)
    return pd.DataFrame(X, columns=names)


def as_outputs(estimator, Y: np.ndarray) -> np.ndarray | pd.DataFrame:
    """Return outputs (m, p) with dates and durations instead of days if the estimator was fitted to them."""
    times = getattr(estimator, "output_times_", None)
    if times is None or not isinstance(Y, np.ndarray):
        return Y
    return pd.DataFrame(dict(enumerate(from_days(Y, times)))).set_axis(estimator.output_names_, axis=1)


def select_rows(X, rows: np.ndarray):
    """Return the rows with these indices (k,) of a table, an array or functional data."""
    return getattr(X, "iloc", X)[rows]


def convert_output_times(estimator, Y, *, reset: bool):
    """Return Y with dates in days since those of the fit, NaN where missing; check its columns, or store them if `reset`."""
    fitted = None if reset else getattr(estimator, "output_times_", None)
    Y, times = to_days(as_dense_array(Y, "Y"), fitted, "Y")
    if not reset:
        names = estimator.output_names_
        p = len(names) if np.ndim(Y) > 1 and np.shape(Y)[1] == len(names) else 1
        check_kinds(times, fitted, list(map(repr, names))[:p], "Y")
    elif times is None:
        vars(estimator).pop("output_times_", None)
    else:
        estimator.output_times_ = times
    return Y


def output_table(Y, X: np.ndarray | None) -> tuple[np.ndarray, list[str] | None, bool]:
    """Return Y as an (n, p) array with NaN where missing, its column names, and whether it was one-dimensional.

    It must have as many rows as X, unless that is None.
    """
    if Y is None:
        raise InputError("This estimator requires y to be passed, but the target y is None.")
    names, Y = output_names(Y), to_days(as_dense_array(Y, "Y"), name="Y")[0]
    options = {"dtype": [np.float64, np.float32], "order": "C", "ensure_all_finite": "allow-nan", "input_name": "Y"}
    with raise_input_errors("Y"):
        table = check_array(Y, ensure_2d=False, **options)
        check_consistent_length(X, table)
    is_flat = table.ndim == 1
    return (table[:, None] if is_flat else table), names, is_flat


def check_observed(counts: np.ndarray, names: Sequence[str] | None) -> None:
    """Check that every output has observed values, from their numbers (p,)."""
    unobserved = np.flatnonzero(counts == 0)
    if len(unobserved):
        column = names[unobserved[0]] if names else int(unobserved[0])
        raise InputError(f"Y has no observed values for output {column!r}. Drop the column or add observations.")


def check_size(parts: Sequence[np.ndarray], name: str, limit: float = MAX_SIZE) -> None:
    """Check that squares of values neither overflow nor underflow, for models whose losses or kernels are in units of the data."""
    largest = max(float(np.nanmax(np.abs(values), initial=0.0)) for values in parts)
    if largest > limit or 0 < largest < 1 / limit:
        bound = f"at most {limit:g}" if largest > 1 else f"at least {1 / limit:g}"
        raise InputError(
            f"The largest absolute value of {name} must be {bound}, got {largest:.3g}, since powers of it are not representable. Measure {name} in another unit."
        )


def output_names(Y) -> list[str] | None:
    """Return the column names of a data frame, or the name of a series."""
    if hasattr(Y, "columns"):
        return [str(name) for name in Y.columns]
    name = getattr(Y, "name", None)
    return None if name is None else [str(name)]


def entry_values(values, Y: np.ndarray, name: str) -> np.ndarray | None:
    """Return values with the shape of Y (n, p), such as variances; None stays None."""
    if values is None:
        return None
    values = as_numbers(as_array(values), name)
    values = values[:, None] if values.ndim == 1 and Y.shape[1] == 1 else values
    if values.shape != Y.shape:
        raise InputError(f"{name} has shape {values.shape}, expected {Y.shape}, the shape of Y.")
    return values


@dataclass(frozen=True)
class WeightedData:
    """X (n, d), Y (n, p) with NaN where missing or of weight zero, 1 / weight of each entry, and the weight of each row."""

    X: np.ndarray
    Y: np.ndarray
    variances: np.ndarray | None = None
    counts: np.ndarray | None = None

    @property
    def num_rows(self) -> float:
        """Number of rows with an observed entry."""
        return float((np.isfinite(self.Y).any(1) * (1 if self.counts is None else self.counts)).sum())

    @property
    def num_observed(self) -> float:
        """Number of observed entries."""
        return float((np.isfinite(self.Y).sum(1) * (1 if self.counts is None else self.counts)).sum())

    def simplified(self) -> WeightedData:
        """Return the data without weights if all are one."""
        is_complete = self.variances is None or bool((self.variances == 1).all())
        return WeightedData(self.X, self.Y) if is_complete else self

    def mean(self) -> np.ndarray:
        """Return the weighted mean (p,) of each output."""
        weights = np.isfinite(self.Y) / (1.0 if self.variances is None else self.variances)
        return np.nansum(weights * np.nan_to_num(self.Y), 0) / weights.sum(0)


def apply_weights(X: np.ndarray, Y: np.ndarray, weight) -> WeightedData:
    """Apply the weights of rows (n,) or entries (n, p)."""
    if weight is None:
        return WeightedData(X, Y)
    weight = as_numbers(as_array(weight), "sample_weight")
    counts = weight if weight.ndim == 1 and len(weight) == len(Y) else None
    weight = np.broadcast_to(weight[:, None], Y.shape) if counts is not None else weight
    weight = entry_values(weight, Y, "sample_weight")
    if not bool((np.isfinite(weight) & (weight >= 0)).all()):
        raise InputError("sample_weight must be finite and nonnegative.")
    Y = np.where(weight > 0, Y, np.nan)
    return WeightedData(X, Y, 1 / np.where(weight > 0, weight, 1.0), counts)


MIN_EQUAL_VALUES = 3  # number of equal values from which an output counts as constant


def constant_outputs(Y: np.ndarray) -> list[int]:
    """Return the columns of Y (n, p) that have at least three observed values, all equal."""
    columns = (y[np.isfinite(y)] for y in Y.T)
    return [a for a, y in enumerate(columns) if len(y) >= MIN_EQUAL_VALUES and (y == y[0]).all()]


def warn_about_constants(estimator, Y: np.ndarray) -> None:
    """Warn if outputs that are trained jointly include constant ones.

    The evidence of a constant output grows without bound as its noise shrinks, so that training may end where the other
    outputs are taken for noise.
    """
    if Y.shape[1] == 1 or estimator.kernel in ("auto", "independent") or estimator.hyperparameters == "fixed":
        return
    if found := constant_outputs(Y):
        listed = ", ".join(repr(estimator.output_names_[a]) for a in found)
        warnings.warn(
            f"Output {listed} is constant and may degrade outputs trained jointly with it. Drop it or use "
            'kernel="independent".',
            FitWarning,
            stacklevel=5,
        )


MAX_SPREAD_RATIO = 1e3  # largest ratio of the standard deviation of an input to its interquartile range


def warn_about_distant_rows(X: np.ndarray, labels: Sequence[str]) -> None:
    """Warn if few rows determine the scale of an input, in units of which half of the rows are nearly equal."""
    _, std = mean_and_std(X.astype(np.float64))
    low, high = np.quantile(X, [0.25, 0.75], axis=0)
    between = high - low
    for index in np.flatnonzero((between > 0) & (std / MAX_SPREAD_RATIO > between)):
        row = int(np.abs(X[:, index] - (low + high)[index] / 2).argmax())
        warnings.warn(
            f"Input {labels[index]!r} has the value {X[row, index]:.3g} in row {row}, while half of the rows lie between {low[index]:.3g} and {high[index]:.3g}: in standardized units these are nearly equal, and predictions hardly depend on the input. Drop the row, or transform the input.",
            FitWarning,
            stacklevel=5,
        )


@dataclass(frozen=True)
class Table:
    """X (n, d), Y (n, p) with NaN where missing, and known variances (n, p) or None, in original units."""

    X: np.ndarray
    Y: np.ndarray
    noise: np.ndarray | None = None

    def __getitem__(self, rows) -> Table:
        return Table(self.X[rows], self.Y[rows], None if self.noise is None else self.noise[rows])

    @property
    def is_complete(self) -> bool:
        """Whether all outputs are observed, with noise that does not vary over rows."""
        return self.noise is None and bool(np.isfinite(self.Y).all())

    def scaled(self, scaling: Scaling) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """Return the table as tensors in standardized units."""
        noise = None if self.noise is None else scaling.variances(self.noise)
        return scaling.inputs(self.X), scaling.outputs(self.Y), noise

    def parts(self, num_rows: int) -> list[Table]:
        """Split into consecutive parts of at most `num_rows` rows."""
        return [self[start : start + num_rows] for start in range(0, len(self.X), num_rows)]

    def some_rows(self, limit: int | None, seed: int) -> Table:
        """Return a random subset of about `limit` rows, or all if there are fewer."""
        if limit is None or len(self.X) <= limit:
            return self
        return self[draw_random_rows(np.isfinite(self.Y), limit, seed)]
