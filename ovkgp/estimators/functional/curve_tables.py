"""Entry of all functional estimators: inputs and curves of a fit or of a prediction, from arrays, tables and functional data."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from ovkgp.estimators.common.base import INPUT_ATTRIBUTES
from ovkgp.estimators.common.dates import reject_times
from ovkgp.estimators.common.validation import as_array, check_reach, input_table, output_table
from ovkgp.estimators.storage.values import storable_record
from ovkgp.exceptions import FitWarning, InputError
from ovkgp.functional import FunctionalData, as_functional_data
from ovkgp.functional.conversion import has_default_columns, has_points
from ovkgp.functional.data import is_ragged
from ovkgp.functional.point_names import grid_of_names
from ovkgp.functional.quadrature import as_points, as_values

MAX_DEFAULT_POINTS = (
    200  # points at which curves are predicted by default, if they were observed at more different ones
)
NUM_INPUT_POINTS = 100  # points of input curves that are observed at different points
MAX_INPUT_SCORES = 10  # principal components of input curves
EXPLAINED_INPUT_VARIANCE = 0.99


class EnteredCurves(NamedTuple):
    """Curves, the column names of their table or None, and whether y was one-dimensional."""

    data: FunctionalData
    names: list[str] | None
    is_flat: bool


def enter_curves(y, grid, num_rows: int) -> EnteredCurves:
    """Read the curves of a fit, one per row of the inputs, from functional data, an array, a table or a list of arrays."""
    y, names, is_flat = _unpack_rows(y), None, False
    if _is_table(y, grid):
        y, names, is_flat = _read_table(y)
        if grid is None and names is not None and not is_flat:
            grid, source = grid_of_names(names, len(names))
            if source == "plane":
                warnings.warn(
                    "The column names of y hold two numbers and are read as points of a plane. Pass `grid` to set other points.",
                    FitWarning,
                    stacklevel=4,
                )
    data = as_functional_data(y, grid)
    if len(data) != num_rows:
        raise InputError(f"X and y must have equally many rows, got {num_rows} and {len(data)}.")
    return EnteredCurves(data, names, is_flat)


def read_curves(estimator, y, grid, num_rows: int, num_channels: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Return values (k, g, q) of further curves, NaN if missing, and their points (g, b) in the domain of the fit.

    Rows of a table may have no observed value. Columns of a table that have the names of the fit are at the points of the fit.
    """
    y = _unpack_rows(y)
    if _is_table(y, grid):
        values, names, is_flat = _read_table(y)
        names = None if is_flat else names
        grid = _find_columns(estimator, names) if grid is None else grid
    elif has_points(y) or is_ragged(y, grid):
        data = as_functional_data(y, grid).on_common_grid()
        values, grid = data.values, data.grid
    else:
        values, grid = as_values(as_array(y), "y"), estimator.grid_ if grid is None else grid
    values, points = np.asarray(values, dtype=np.float64), as_points(grid, estimator.domain_, "grid")
    values = values[..., None] if values.ndim == 2 else values
    if values.ndim != 3 or values.shape[:2] != (num_rows, len(points)):
        raise InputError(
            f"y has shape {np.shape(values)[:2]}, expected {num_rows} rows and {len(points)} columns, one per point of the grid."
        )
    if values.shape[2] != num_channels:
        raise InputError(f"y has {values.shape[2]} channels, expected {num_channels} as in fit.")
    if np.isinf(values).any():
        raise InputError("y must not contain infinity. Mark missing values by NaN.")
    if len(np.unique(points, axis=0)) < len(points):
        raise InputError("grid must have distinct points. Average values at repeated points.")
    return values, points


def _find_columns(estimator, names: list[str] | None) -> np.ndarray:
    """Return the points of the columns of a further table: those of the fit for its names, else those in the names.

    Columns without points, or numbered from 0, are at the points of the fit if that had no names.
    """
    fitted, grid = estimator.output_names_, estimator.grid_
    if names is None:
        return grid
    if len(fitted) == len(grid) and set(fitted) >= set(names):
        return grid[[fitted.index(name) for name in names]]
    is_numbered = names == [str(i) for i in range(len(names))]
    points, source = (None, "none") if is_numbered else grid_of_names(names, len(names))
    if source != "none":
        return points
    if estimator.has_output_names or len(names) != len(grid):
        raise InputError(
            f"y must have columns of the fit, such as {fitted[:3]}, got {names[:3]}. Rename them or pass y as an array."
        )
    return grid


def default_grid(data: FunctionalData) -> np.ndarray:
    """Return the grid at which to predict by default: that of the data, or an equidistant one if curves have many different points."""
    points = data.union_grid
    if data.is_ragged and data.num_dims == 1 and len(points) > MAX_DEFAULT_POINTS:
        return np.linspace(*data.domain[0], MAX_DEFAULT_POINTS)
    return points


def curve_table(data: FunctionalData, grid: np.ndarray) -> np.ndarray:
    """Return curves on a grid as rows (n, g·q), with gaps interpolated."""
    same = not data.is_ragged and data.grid.shape == grid.shape and np.array_equal(data.grid, grid)
    if not (same and data.is_complete):
        data = data.resample(grid, extrapolate=True)
    return data.values.reshape(len(data), -1)


def _read_table(y) -> tuple[np.ndarray, list[str] | None, bool]:
    """Return a table of curves as an array (n, m), its column names if it has one for each, and whether it was one-dimensional."""
    reject_times(y, "y")
    is_named = not has_default_columns(y)
    values, names, is_flat = output_table(y, None)
    is_named = is_named and names is not None and len(names) == values.shape[1]  # a DataArray has one name
    return values, names if is_named else None, is_flat


def _is_table(y, grid) -> bool:
    return not has_points(y) and _count_dims(y) < 3 and not (grid is not None and is_ragged(y, grid))


def _unpack_rows(y):
    """Return a series, or an array of objects, whose values are arrays as a list; None and lists of different lengths raise."""
    if y is None:
        raise InputError("This estimator requires y to be passed, but the target y is None.")
    if has_points(y) or isinstance(y, pd.DataFrame):
        return y
    is_objects = getattr(getattr(y, "dtype", None), "kind", "") == "O" and y.ndim == 1 and len(y) > 0
    if is_objects and np.ndim(next(iter(y))) > 0:
        return list(y)
    return y


def _count_dims(y) -> int:
    try:
        return y.ndim if hasattr(y, "ndim") else np.asarray(y).ndim
    except ValueError:  # arrays of different lengths
        return 3


@storable_record
@dataclass(frozen=True)
class OutputFormat:
    """Layout of y in `fit`: grids of training and prediction, domain (b, 2), and whether there are channels or one number per row."""

    training_grid: np.ndarray
    grid: np.ndarray
    domain: np.ndarray
    has_channels: bool
    is_flat: bool
    is_ragged: bool


@dataclass(frozen=True)
class CurveOutputs:
    """Values (n, g, q), NaN if missing, at points (g, b) with values, with names of the predicted columns."""

    values: np.ndarray
    points: np.ndarray
    format: OutputFormat
    names: list[str]
    has_names: bool

    @classmethod
    def of(cls, y, grid, num_rows: int) -> CurveOutputs:
        """Validate curves of any kind, one per row of the inputs; points without any value are predicted, but not trained on."""
        data, columns, is_flat = enter_curves(y, grid, num_rows)
        union, shown = data.on_common_grid(), default_grid(data)
        values = union.values if union.has_channels else union.values[..., None]
        observed = ~np.isnan(values).all((0, 2))
        if not observed.all():
            first = np.flatnonzero(~observed)[0]
            warnings.warn(
                f"No curve has a value at {(~observed).sum()} of {len(observed)} points of the grid, such as {union.grid[first]}. "
                "Predictions there are extrapolated. Drop these points or add observations.",
                FitWarning,
                stacklevel=3,
            )
        values, grid = values[:, observed], union.grid[observed]
        about = OutputFormat(grid, shown, data.domain, union.has_channels, is_flat, data.is_ragged)
        points = grid[:, None] if grid.ndim == 1 else grid
        count = len(shown) * values.shape[2]
        has_names = columns is not None and len(columns) == count
        names = columns if has_names else ["y"] if is_flat else [f"y{a}" for a in range(count)]
        return cls(values, points, about, names, has_names)


@storable_record
@dataclass(frozen=True)
class InputFormat:
    """Format of the inputs: principal components (K, g·q) of curves and their mean (g·q,), or None, and labels of groups."""

    grid: np.ndarray | None = None
    mean: np.ndarray | None = None
    components: np.ndarray | None = None
    groups: list | None = None

    def table(self, estimator, X) -> np.ndarray:
        """Return inputs (k, d) of a prediction."""
        if self.components is None:
            if _is_functional(X):
                raise InputError("X must be a table of inputs as in fit, got curves with a grid. Pass their values.")
            return input_table(estimator, X, reset=False)
        table = curve_table(as_functional_data(X, None if has_points(X) else self.grid), self.grid)
        if table.shape[1] != len(self.mean):
            found, expected = table.shape[1] // len(self.grid), len(self.mean) // len(self.grid)
            raise InputError(f"X has curves of {found} channels, expected {expected} as in fit.")
        scores = self.scores(table)
        check_reach(scores, [f"score {a}" for a in range(scores.shape[1])], estimator.largest_lengthscale())
        return scores

    def scores(self, table: np.ndarray) -> np.ndarray:
        """Return the scores (k, K) of curves (k, g·q) on the grid."""
        return (table - self.mean) @ self.components.T

    def add_groups(self, X: Tensor, groups=None) -> Tensor:
        """Append the integer labels of groups to standardized inputs; rows without a known label are new groups."""
        if self.groups is None:
            if groups is not None:
                raise InputError("groups is not supported: the model was fitted without groups. Omit it.")
            return X
        if groups is None:
            codes = np.arange(len(X)) + len(self.groups)
        else:
            labels = _check_groups(groups, len(X))
            known = {label: code for code, label in enumerate(self.groups)}
            for label in labels:
                known.setdefault(label, len(known))
            codes = [known[label] for label in labels]
        return torch.cat([X, torch.tensor(codes, dtype=torch.float64).unsqueeze(-1)], 1)


@dataclass(frozen=True)
class CurveInputs:
    """Inputs (n, d) of a fit and the labels of their groups."""

    table: np.ndarray
    format: InputFormat
    labels: list | None = None

    @classmethod
    def of(cls, estimator, X, groups=None) -> CurveInputs:
        """Validate vectors, or curves, which are reduced to the scores of their principal components."""
        about = InputFormat()
        if _is_functional(X):
            data = as_functional_data(X)
            is_spread = data.is_ragged and data.num_dims == 1
            grid = np.linspace(*data.domain[0], NUM_INPUT_POINTS) if is_spread else data.union_grid
            table = curve_table(data, grid)
            mean = table.mean(0)
            _, s, Vt = np.linalg.svd(table - mean, full_matrices=False)
            fraction = np.cumsum(s**2) / max((s**2).sum(), 1e-300)
            keep = min(int(np.searchsorted(fraction, EXPLAINED_INPUT_VARIANCE)) + 1, MAX_INPUT_SCORES, len(s))
            about = InputFormat(grid, mean, Vt[:keep])
            table = about.scores(table)
            estimator.n_features_in_ = table.shape[1]
            for name in INPUT_ATTRIBUTES - {"n_features_in_"}:
                vars(estimator).pop(name, None)
        else:
            table = input_table(estimator, X, reset=True)
        table = np.asarray(table, dtype=np.float64)
        if groups is None:
            return cls(table, about)
        labels = _check_groups(groups, len(table))
        about = InputFormat(about.grid, about.mean, about.components, list(dict.fromkeys(labels)))
        return cls(table, about, labels)

    def add_groups(self, X: Tensor) -> Tensor:
        """Append the integer labels of groups to standardized inputs, if there are any."""
        return X if self.labels is None else self.format.add_groups(X, self.labels)


def _is_functional(X) -> bool:
    return has_points(X) or (hasattr(X, "dims") and len(X.dims) == 3)


def _check_groups(groups, num_rows: int) -> list:
    labels = np.asarray(as_array(groups))
    if labels.shape != (num_rows,):
        raise InputError(f"groups has shape {labels.shape}, expected ({num_rows},), one label per row of X.")
    if (missing := pd.isna(labels)).any():
        raise InputError(
            f"groups must not have missing labels, got one in row {np.flatnonzero(missing)[0]}. Give each such curve a separate label."
        )
    return labels.tolist()
