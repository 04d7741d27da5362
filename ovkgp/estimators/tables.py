"""Arrays, tensors and data frames at the door of an estimator."""

from __future__ import annotations

import numpy as np
import torch
from sklearn.utils import check_array
from sklearn.utils.validation import check_consistent_length, validate_data

from ovkgp.exceptions import InputError


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
