"""Data of a report on curves: the given or stored curves, and their predictions with bands, one entry per observed value."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from ovkgp.estimators.common.validation import as_array, as_inputs, input_table, select_rows
from ovkgp.exceptions import InputError
from ovkgp.functional import FunctionalData, as_functional_data
from ovkgp.functional.conversion import has_points
from ovkgp.functional.quadrature import as_points
from ovkgp.plotting.report.evaluation_data import add_column_names, check_table

LEVELS = (0.5, 0.9)  # levels of the assessed pointwise bands
MAX_POINTS = 200  # points of drawn curves and of simultaneous bands
MAX_BAND_CURVES = 200  # curves whose simultaneous bands are assessed


@dataclass(frozen=True)
class CurveRows:
    """Curves of a report with their inputs; `inputs` (n, d) are numbers, None if the inputs are curves."""

    X: pd.DataFrame | np.ndarray | FunctionalData
    inputs: np.ndarray | None
    data: FunctionalData
    is_given: bool
    is_training: np.ndarray

    def select(self, rows: np.ndarray) -> CurveRows:
        """Return the curves with these indices (k,)."""
        inputs = None if self.inputs is None else self.inputs[rows]
        return CurveRows(select_rows(self.X, rows), inputs, self.data[rows], self.is_given, self.is_training[rows])


@dataclass(frozen=True)
class CurveEntries:
    """Observed values with their predictions, arrays (N,), at points (N, b); bands are None if the model has none."""

    curve: np.ndarray
    point: np.ndarray
    channel: np.ndarray
    y: np.ndarray
    mean: np.ndarray
    std: np.ndarray | None = None
    inside: np.ndarray | None = None  # (2, N), whether the bands of `LEVELS` contain the value

    def select(self, which: np.ndarray) -> CurveEntries:
        """Return some of the entries, by a mask (N,)."""
        std, inside = (None if a is None else a[..., which] for a in (self.std, self.inside))
        columns = (self.curve, self.point, self.channel, self.y, self.mean)
        return CurveEntries(*(column[which] for column in columns), std, inside)

    @property
    def residual(self) -> np.ndarray:
        """Observation minus prediction."""
        return self.y - self.mean

    @property
    def explained(self) -> float:
        """Explained variance 1 − Σ(y − mean)² / Σ(y − ȳ)², with the mean ȳ of each channel; NaN for constant values."""
        centered = self.y.copy()
        for channel in np.unique(self.channel):
            centered[self.channel == channel] -= self.y[self.channel == channel].mean()
        total = float(np.sum(centered**2))
        return 1 - float(np.sum(self.residual**2)) / total if total > 0 else np.nan


def collect_curve_rows(estimator, X=None, Y=None) -> CurveRows | None:
    """Check the given curves, or return those of the fit; None if the model does not store them."""
    if X is None and Y is None:
        return get_training_rows(estimator)
    if X is None or Y is None:
        raise InputError("X and Y must be given together or not at all. Pass both, in the form used for fit.")
    X, Y = (as_functional_data(one) if has_points(one) else one for one in (X, Y))
    X, inputs = _split_inputs(
        estimator, X, lambda X: input_table(estimator, add_column_names(estimator, as_array(X)), reset=False)
    )
    if isinstance(Y, FunctionalData):
        data, observed = Y, np.ones(len(Y), dtype=bool)
    else:
        table = check_table(lambda: np.asarray(estimator._outputs(Y, inputs), dtype=np.float64), "Y")
        observed = np.isfinite(table).any(1)
        if not observed.any():
            raise InputError("Y has no observed values: every entry is missing. Pass at least one observation.")
        shape = (int(observed.sum()), len(estimator.grid_), -1)
        values = table[observed].reshape(shape)
        data = FunctionalData(values if values.shape[2] > 1 else values[..., 0], estimator.grid_, estimator.domain_)
    if len(X) != len(observed):
        raise InputError(f"X and Y must have equally many rows, got {len(X)} and {len(observed)}.")
    rows = np.flatnonzero(observed)
    found = CurveRows(
        select_rows(X, rows), None if inputs is None else inputs[rows], data, True, np.zeros(len(rows), dtype=bool)
    )
    is_training = _find_training_rows(found, get_training_rows(estimator))
    return CurveRows(found.X, found.inputs, data, True, is_training)


def _split_inputs(estimator, X, convert=np.asarray):
    """Return inputs as `predict` takes them, and as numbers (n, d), None if they are curves."""
    if isinstance(X, FunctionalData):
        return X, None
    table = check_table(lambda: convert(X), "X")
    return as_inputs(estimator, table), np.asarray(table, dtype=np.float64)


def get_training_rows(estimator) -> CurveRows | None:
    """Return the curves of the fit; None if the model does not store them."""
    if (stored := estimator.training_curves()) is None:
        return None
    (X, inputs), data = _split_inputs(estimator, stored[0]), stored[1]
    return CurveRows(X, inputs, data, False, np.ones(len(data), dtype=bool))


def _find_training_rows(rows: CurveRows, stored: CurveRows | None) -> np.ndarray:
    """Find the given curves (n,) that are also curves of the fit, by their observed values up to rounding."""
    if stored is None:
        return np.zeros(len(rows.data), dtype=bool)
    known = set(_make_keys(stored.data))
    return np.array([key in known for key in _make_keys(rows.data)])


def _make_keys(data: FunctionalData) -> list[tuple[float, ...]]:
    return [tuple(f"{value:.6e}" for value in (*points.ravel(), *values.ravel())) for points, values in data.curves()]


def thin_points(points: np.ndarray, count: int = MAX_POINTS) -> np.ndarray:
    """Return at most `count` of the points, evenly spaced among all."""
    return points[np.unique(np.linspace(0, len(points) - 1, min(count, len(points))).round().astype(int))]


def plot_points(estimator) -> np.ndarray:
    """Return the points (m, b) at which predicted curves are drawn: equidistant ones between the ends of a one-dimensional grid."""
    points = as_points(estimator.grid_, estimator.domain_, "grid")
    if points.shape[1] > 1 or len(points) > MAX_POINTS:
        return thin_points(points) if points.shape[1] == 1 else points
    return np.unique(np.concatenate([points[:, 0], np.linspace(points.min(), points.max(), 60)]))[:, None]


def predict_entries(estimator, rows: CurveRows) -> CurveEntries:
    """Predict the observed values of curves, with bands if there are any.

    Curves at different points are predicted at 200 points and interpolated.
    """
    data = rows.data
    is_interpolated = data.is_ragged and data.num_dims == 1 and data.num_points > MAX_POINTS
    grid = np.linspace(*data.domain[0], MAX_POINTS)[:, None] if is_interpolated else _as_columns(data.union_grid)
    tables = [_predict(estimator, rows, grid)]
    if estimator.has_predictive:
        tables += [_predict(estimator, rows, grid, index=1)]
        for level in LEVELS:
            tables += [_stack(end, rows) for end in estimator.predict_interval(rows.X, level, grid=_as_grid(grid))]
    long = data.to_long()
    if is_interpolated:
        columns = [np.empty(len(long.value)) for _ in tables]
        for i in np.unique(long.curve):
            own = long.curve == i
            for column, table in zip(columns, tables, strict=True):
                for c in np.unique(long.channel[own]):
                    at = own & (long.channel == c)
                    column[at] = np.interp(long.point[at, 0], grid[:, 0], table[i, :, c])
    else:
        index = {tuple(point): k for k, point in enumerate(grid.tolist())}
        at = np.array([index[tuple(point)] for point in long.point.tolist()])
        columns = [table[long.curve, at, long.channel] for table in tables]
    inside = None
    if estimator.has_predictive:
        ends = np.array(columns[2:]).reshape(len(LEVELS), 2, -1)
        inside = (ends[:, 0] <= long.value) & (long.value <= ends[:, 1])
    std = columns[1] if estimator.has_predictive else None
    return CurveEntries(long.curve, long.point, long.channel, long.value, columns[0], std, inside)


def _as_columns(points: np.ndarray) -> np.ndarray:
    return points[:, None] if points.ndim == 1 else points


def _as_grid(points: np.ndarray) -> np.ndarray:
    return points[:, 0] if points.shape[1] == 1 else points


def _predict(estimator, rows: CurveRows, grid: np.ndarray, index: int = 0) -> np.ndarray:
    """Return predicted means (n, m, q), or standard deviations if `index` is 1."""
    found = estimator.predict(rows.X, grid=_as_grid(grid), return_std=bool(index))
    return _stack(found[1] if index else found, rows)


def _stack(values: np.ndarray, rows: CurveRows) -> np.ndarray:
    return values.reshape(len(rows.data), -1, rows.data.num_channels)


def cover_whole_curves(estimator, rows: CurveRows, level: float) -> np.ndarray:
    """Return which curves (k,) lie in their simultaneous bands at all observed points, of at most 200 curves and points."""
    chosen = thin_points(np.arange(len(rows.data)), MAX_BAND_CURVES)
    rows = rows.select(chosen)
    if not rows.data.is_ragged:
        points = thin_points(_as_columns(rows.data.union_grid))
        which = [index for index, p in enumerate(_as_columns(rows.data.union_grid)) if (points == p).all(1).any()]
        values = rows.data.values[:, which].reshape(len(rows.data), len(which), -1)
        ends = estimator.predict_interval(rows.X, level, simultaneous=True, grid=_as_grid(points))
        lower, upper = (_stack(end, rows) for end in ends)
        return (((lower <= values) & (values <= upper)) | np.isnan(values)).all((1, 2))
    found = []
    for i, (points, values) in enumerate(rows.data.curves()):
        own = rows.select(np.array([i]))
        ends = estimator.predict_interval(own.X, level, simultaneous=True, grid=_as_grid(points))
        lower, upper = (end.reshape(values.shape) for end in ends)
        found.append(bool((((lower <= values) & (values <= upper)) | np.isnan(values)).all()))
    return np.array(found)
