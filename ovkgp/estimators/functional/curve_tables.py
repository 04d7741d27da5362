"""Inputs and curves of a fit as arrays: vectors or curves as inputs, labels of groups, and curves on the union of their points."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from ovkgp.estimators.common.base import INPUT_ATTRIBUTES
from ovkgp.estimators.common.dates import reject_times
from ovkgp.estimators.common.validation import as_array, check_reach, input_table
from ovkgp.estimators.storage.values import storable_record
from ovkgp.exceptions import InputError
from ovkgp.functional import FunctionalData, as_functional_data
from ovkgp.functional.data import has_default_columns
from ovkgp.functional.quadrature import as_array as as_floats

MAX_DEFAULT_POINTS = (
    200  # points at which curves are predicted by default, if they were observed at more different ones
)
MAX_INPUT_SCORES = 10  # principal components of input curves
EXPLAINED_INPUT_VARIANCE = 0.99


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
    """Values (n, g, q), NaN if missing, at points (g, b), with names of the predicted columns."""

    values: np.ndarray
    points: np.ndarray
    format: OutputFormat
    names: list[str]
    has_names: bool

    @classmethod
    def of(cls, y, grid, num_rows: int) -> CurveOutputs:
        """Validate curves of any kind, one per row of the inputs."""
        if y is None:
            raise InputError("This estimator requires y to be passed, but the target y is None.")
        reject_times(y, "y")
        is_named = isinstance(y, pd.DataFrame) and not has_default_columns(y)
        columns = [str(name) for name in y.columns] if is_named else None
        y = as_array(y)
        if (
            not isinstance(y, np.ndarray | list | tuple | pd.DataFrame)
            and not hasattr(y, "values")
            and not _has_points(y)
        ):
            y = np.asarray(y)
        is_flat = not isinstance(y, FunctionalData) and _dimension(y) == 1
        if is_flat:
            y = as_floats(y, "y").reshape(-1, 1)
        if columns is not None and grid is None and not all(map(_is_number, columns)):
            y = y.to_numpy(dtype=np.float64, na_value=np.nan)
        data = as_functional_data(y, grid)
        if len(data) != num_rows:
            raise InputError(f"X and y must have equally many rows, got {num_rows} and {len(data)}.")
        union = data.on_common_grid()
        values = union.values if union.has_channels else union.values[..., None]
        observed = ~np.isnan(values).all((0, 2))
        values, grid = values[:, observed], union.grid[observed]
        shown = grid
        if data.is_ragged and data.num_dims == 1 and len(grid) > MAX_DEFAULT_POINTS:
            shown = np.linspace(*data.domain[0], MAX_DEFAULT_POINTS)
        about = OutputFormat(grid, shown, data.domain, union.has_channels, is_flat, data.is_ragged)
        points = grid[:, None] if grid.ndim == 1 else grid
        q = values.shape[2]
        if columns is not None and len(columns) == len(observed):
            columns = [name for name, is_observed in zip(columns, observed, strict=True) if is_observed]
        has_names = columns is not None and len(columns) == len(shown) * q
        names = columns if has_names else ["y"] if is_flat else [f"y{a}" for a in range(len(shown) * q)]
        return cls(values, points, about, names, has_names)


def partial_curves(y, grid, num_rows: int, num_channels: int) -> tuple[np.ndarray, np.ndarray]:
    """Return values (k, g, q), NaN if missing, and points (g, b) of curves that may have no observed value."""
    if isinstance(y, FunctionalData):
        found = CurveOutputs.of(y, None, num_rows)
        values, points = found.values, found.points
    else:
        values, points = as_floats(as_array(y), "y"), as_floats(grid, "grid")
        values = values[:, None] if values.ndim == 1 else values
        values = values[..., None] if values.ndim == 2 else values
        points = points[:, None] if points.ndim == 1 else points
        if values.ndim != 3 or values.shape[:2] != (num_rows, len(points)):
            raise InputError(
                f"y has shape {np.shape(y)}, expected ({num_rows}, {len(points)}), one column per grid point."
            )
    if values.shape[2] != num_channels:
        raise InputError(f"y has {values.shape[2]} channels, expected {num_channels} as in fit.")
    if np.isinf(values).any():
        raise InputError("y must not contain infinity. Mark missing values by NaN.")
    return values, points


def _dimension(y) -> int:
    try:
        return np.ndim(y)
    except ValueError:  # arrays of different lengths
        return 2


def _is_number(name: str) -> bool:
    try:
        float(name)
    except ValueError:
        return False
    return True


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
            return input_table(estimator, X, reset=False)
        table = self.scores(_curve_table(as_functional_data(X, None if _has_points(X) else self.grid), self.grid))
        check_reach(table, [f"score {a}" for a in range(table.shape[1])], estimator.largest_lengthscale())
        return table

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
            grid = data.grid if not data.is_ragged else np.linspace(*data.domain[0], 100)
            table = _curve_table(data, grid)
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
        about = InputFormat(about.grid, about.mean, about.components, sorted(set(labels)))
        return cls(table, about, labels)

    def add_groups(self, X: Tensor) -> Tensor:
        """Append the integer labels of groups to standardized inputs, if there are any."""
        return X if self.labels is None else self.format.add_groups(X, self.labels)


def _has_points(X) -> bool:
    return isinstance(X, FunctionalData) or hasattr(X, "grid_points") or hasattr(X, "start_indices")


def _is_functional(X) -> bool:
    return _has_points(X) or (hasattr(X, "dims") and len(X.dims) == 3)


def _curve_table(data: FunctionalData, grid: np.ndarray) -> np.ndarray:
    """Return curves on a grid as rows (n, g·q), with gaps interpolated."""
    same = not data.is_ragged and data.grid.shape == grid.shape and np.array_equal(data.grid, grid)
    if not (same and data.is_complete):
        data = data.resample(grid, extrapolate=True)
    return data.values.reshape(len(data), -1)


def _check_groups(groups, num_rows: int) -> list:
    labels = np.asarray(as_array(groups))
    if labels.shape != (num_rows,):
        raise InputError(f"groups has shape {labels.shape}, expected ({num_rows},), one label per row of X.")
    return labels.tolist()
