"""Functional data: n curves with q channels, observed on a common grid, with gaps, or each at its own points (BO-30)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.interpolate import CubicSpline, griddata

from ovkgp.checks import check_one_of, check_positive
from ovkgp.exceptions import DomainError, InputError, OptionError
from ovkgp.functional.mean_curve import MeanCurve, check_spread, fit_mean_curve
from ovkgp.functional.quadrature import as_array, as_domain, as_points, as_values, describe_domain, quadrature_weights


class LongFormat(NamedTuple):
    """Observed values of functional data, one row per value.

    Attributes
    ----------
    curve : ndarray of shape (N,)
        Index of the curve, int64.
    point : ndarray of shape (N, b)
        Point at which the value was observed.
    channel : ndarray of shape (N,)
        Index of the channel, int64.
    value : ndarray of shape (N,)
        Observed value.
    """

    curve: np.ndarray
    point: np.ndarray
    channel: np.ndarray
    value: np.ndarray


class FunctionalData:
    """Curves y_i(t), or vector-valued functions on a domain in R^b, observed at finitely many points.

    Parameters
    ----------
    values : array-like of shape (n, m) or (n, m, q), or list of n arrays of shape (m_i,) or (m_i, q)
        Values of n curves with q channels; NaN where a value was not observed. A list of arrays, with one grid per curve, holds
        curves that are observed at different points.
    grid : array-like of shape (m,) or (m, b), or list of n arrays of shape (m_i,) or (m_i, b)
        Points t; strictly increasing if b = 1.
    domain : array-like of shape (2,) or (b, 2) or None, default=None
        Ends of the domain in each dimension, which must contain the points. If None, the range of the points.
    channel_names : sequence of q str or None, default=None
        Names of the channels.

    Attributes
    ----------
    values : ndarray of shape (n, m) or (n, m, q), or list of ndarray
        Values in float64.
    grid : ndarray of shape (m,) or (m, b), or list of ndarray
        Points in float64.
    domain : ndarray of shape (b, 2)
        Ends of the domain.

    Raises
    ------
    InputError
        If a grid is not increasing, a curve has no values, or lengths differ.
    DomainError
        If points lie outside of the domain.

    Examples
    --------
    >>> import numpy as np
    >>> from ovkgp.functional import FunctionalData
    >>> data = FunctionalData([[0.0, 1.0, np.nan], [1.0, 2.0, 3.0]], grid=[0.0, 0.5, 1.0])
    >>> data
    FunctionalData(2 curves on 3 points, 1 of 6 values missing, domain [0, 1])
    >>> data[1:].values.tolist(), data.is_complete
    ([[1.0, 2.0, 3.0]], False)
    >>> ragged = FunctionalData([[0.0, 1.0], [1.0, 2.0, 3.0]], grid=[[0.0, 0.5], [0.1, 0.5, 1.0]])
    >>> ragged.on_common_grid().values.tolist()
    [[0.0, nan, 1.0, nan], [nan, 1.0, 2.0, 3.0]]
    """

    def __init__(self, values, grid, domain: ArrayLike | None = None, channel_names=None):
        self.is_ragged = is_ragged(values, grid)
        if self.is_ragged:
            self.values = [as_values(one, f"values[{i}]").copy() for i, one in enumerate(values)]
            self.grid = [as_array(one, f"grid[{i}]").copy() for i, one in enumerate(grid)]
        else:
            self.values, self.grid = as_values(values, "values").copy(), as_array(grid, "grid").copy()
        self._check_shapes()
        self._check_points()
        self._check_values()
        ends = np.concatenate([self._points(i) for i in range(len(self.grid))] if self.is_ragged else [self._points(0)])
        if domain is None:
            domain = np.stack([ends.min(0), ends.max(0)], 1)
            domain = np.where(domain[:, :1] < domain[:, 1:], domain, domain + np.array([-0.5, 0.5]))
        self.domain = as_domain(domain)
        if len(self.domain) != self.num_dims:
            raise DomainError(
                f"domain has {len(self.domain)} dimension(s), expected {self.num_dims}, the number of columns of grid."
            )
        as_points(ends, self.domain, "grid")
        self.channel_names = None if channel_names is None else tuple(str(name) for name in channel_names)
        if self.channel_names is not None and len(self.channel_names) != self.num_channels:
            raise InputError(f"channel_names has {len(self.channel_names)} names, expected {self.num_channels}.")

    def _check_shapes(self) -> None:
        if not self.is_ragged:
            if self.values.ndim not in (2, 3) or 0 in self.values.shape:
                raise InputError(f"values must have shape (n, m) or (n, m, q), not empty, got {self.values.shape}.")
            if self.grid.ndim not in (1, 2) or len(self.grid) != self.values.shape[1]:
                raise InputError(
                    f"grid has shape {self.grid.shape}, expected ({self.values.shape[1]},) or ({self.values.shape[1]}, b), one point per column of values."
                )
            return
        if len(self.values) != len(self.grid) or not self.values:
            raise InputError(
                f"values and grid must have one array per curve, got {len(self.values)} and {len(self.grid)}."
            )
        for i, (values, grid) in enumerate(zip(self.values, self.grid, strict=True)):
            if values.ndim not in (1, 2) or grid.ndim not in (1, 2) or len(values) != len(grid):
                raise InputError(
                    f"values[{i}] has shape {values.shape} and grid[{i}] {grid.shape}, expected (m_i,) or (m_i, q) and (m_i,) or (m_i, b) with the same m_i."
                )
        for name, arrays in (("values", self.values), ("grid", self.grid)):
            if len({one.shape[1:] for one in arrays}) > 1:
                raise InputError(f"All arrays of {name} must have the same number of columns.")

    def _check_points(self) -> None:
        for i in range(len(self.grid) if self.is_ragged else 1):
            points, name = self._points(i), f"grid[{i}]" if self.is_ragged else "grid"
            if not np.isfinite(points).all():
                raise InputError(f"{name} must be finite.")
            if points.shape[1] == 1 and not (np.diff(points[:, 0]) > 0).all():
                at = int(np.argmin(np.diff(points[:, 0]) > 0))
                raise InputError(
                    f"{name} must be strictly increasing, got {points[at, 0]:g} before {points[at + 1, 0]:g}. Sort the points and average repeated ones."
                )
            if points.shape[1] > 1 and len(np.unique(points, axis=0)) < len(points):
                raise InputError(f"{name} must have distinct points. Average values at repeated points.")

    def _check_values(self) -> None:
        for i, values in enumerate(self.values):
            if np.isinf(values).any():
                raise InputError(f"values of curve {i} contain infinity. Mark missing values by NaN.")
            if np.isnan(values).all():
                raise InputError(f"Curve {i} has no observed values. Drop it or add observations.")

    def _points(self, index: int) -> np.ndarray:
        """Return the points of a curve as (m_i, b)."""
        grid = self.grid[index] if self.is_ragged else self.grid
        return grid[:, None] if grid.ndim == 1 else grid

    @property
    def num_curves(self) -> int:
        """Number n of curves."""
        return len(self.values)

    @property
    def num_points(self) -> int:
        """Number m of points of the grid; of the union of all grids if ragged."""
        return len(self.union_grid)

    @property
    def num_channels(self) -> int:
        """Number q of channels."""
        return self.values[0].shape[1] if self.has_channels else 1

    @property
    def num_dims(self) -> int:
        """Dimension b of the domain."""
        return self._points(0).shape[1]

    @property
    def has_channels(self) -> bool:
        """Whether values have an axis of channels, which may be of length 1."""
        return self.values[0].ndim == 2

    @property
    def is_complete(self) -> bool:
        """Whether all curves share a grid and no value is missing."""
        return not self.is_ragged and not np.isnan(self.values).any()

    @property
    def counts(self) -> np.ndarray:
        """Number of points of each curve at which a channel was observed, (n,)."""
        return np.array([len(values) for _, values in self.curves()])

    @property
    def volume(self) -> float:
        """Length, area or volume of the domain."""
        return float(np.prod(self.domain[:, 1] - self.domain[:, 0]))

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the values; (n,) if ragged."""
        return (len(self),) if self.is_ragged else self.values.shape

    @property
    def union_grid(self) -> np.ndarray:
        """Sorted points at which some curve has a value or NaN, of shape (m,) or (m, b)."""
        if not self.is_ragged:
            return self.grid
        return np.unique(np.concatenate(self.grid), axis=0)

    def curves(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Iterate over pairs of points (m_i, b) and values (m_i, q); points without an observed channel are omitted.

        Returns
        -------
        iterator of tuple of ndarray
            Points and values of each curve, in order.
        """
        for i, values in enumerate(self.values):
            values = values if values.ndim == 2 else values[:, None]
            keep = ~np.isnan(values).all(1)
            yield self._points(i)[keep], values[keep]

    def __len__(self) -> int:
        return self.num_curves

    def __getitem__(self, rows) -> FunctionalData:
        """Select curves, as rows of an array; one index gives data of one curve."""
        if isinstance(rows, tuple):  # scikit-learn indexes arrays by (rows, ...)
            if len(rows) != 2 or rows[1] is not Ellipsis:
                raise InputError("Functional data are indexed by rows only. Use `resample` to change the grid.")
            rows = rows[0]
        index = np.atleast_1d(np.arange(len(self))[rows])
        if index.size == 0:
            raise InputError("The selection of curves is empty.")
        values = [self.values[i] for i in index] if self.is_ragged else self.values[index]
        return self._replace(values, [self.grid[i] for i in index] if self.is_ragged else self.grid)

    def __repr__(self) -> str:
        curves = f"{len(self)} curve{'s' * (len(self) > 1)}"
        counts = [len(values) for values in self.values]
        number = f"{min(counts)}" if min(counts) == max(counts) else f"{min(counts)} to {max(counts)}"
        points = f"with {number} points each" if self.is_ragged else f"on {counts[0]} points"
        channels = f", {self.num_channels} channels" if self.num_channels > 1 else ""
        size = sum(values.size for values in self.values)
        missing = sum(int(np.isnan(values).sum()) for values in self.values)
        gaps = f", {missing} of {size} values missing" if missing else ""
        return f"FunctionalData({curves} {points}{channels}{gaps}, domain {describe_domain(self.domain)})"

    def _replace(self, values, grid, domain=None) -> FunctionalData:
        return FunctionalData(values, grid, self.domain if domain is None else domain, self.channel_names)

    def weights(self, rule: str = "mean") -> np.ndarray | list[np.ndarray]:
        """Compute quadrature weights of the grid, which sum to 1; see `quadrature_weights`.

        Parameters
        ----------
        rule : {"mean", "trapezoid"}, default="mean"
            Quadrature rule.

        Returns
        -------
        ndarray of shape (m,), or list of n ndarray of shape (m_i,)
            Weights: one vector for a common grid (missing values do not change it), one per curve if ragged.
        """
        if not self.is_ragged:
            return quadrature_weights(self.grid, self.domain, rule)
        return [quadrature_weights(grid, self.domain, rule) for grid in self.grid]

    def center(self, mean: MeanCurve | None = None) -> tuple[FunctionalData, MeanCurve]:
        """Subtract the mean curve.

        The mean is pointwise if all curves share a complete grid. With gaps or different points it is a smooth spline, estimated together
        with smooth deviations of the curves, since the average of the few curves observed at a point depends on which curves these are.

        Parameters
        ----------
        mean : MeanCurve or None, default=None
            Mean to subtract, such as that of training data. If None, it is estimated.

        Returns
        -------
        centered : FunctionalData
            Curves minus the mean.
        mean : MeanCurve
            Function of points (k,) or (k, b) that returns (k, q).
        """
        mean = self.fit_mean() if mean is None else mean
        return self._shift(mean, -1.0), mean

    def fit_mean(self, is_robust: bool = False) -> MeanCurve:
        """Estimate the mean curve, as `center` does, or a robust one: the median of complete curves, else a mean without outliers.

        Parameters
        ----------
        is_robust : bool, default=False
            Whether outlying curves and values are disregarded.

        Returns
        -------
        MeanCurve
            Mean as a function of points.
        """
        if self.is_complete:
            average = np.median(self.values, 0) if is_robust else self.values.mean(0)
            return MeanCurve(self.domain, self._points(0), average if average.ndim == 2 else average[:, None])
        pairs = list(self.curves())
        curve = np.repeat(np.arange(len(self)), [len(values) for _, values in pairs])
        columns = (np.concatenate(parts) for parts in zip(*pairs, strict=True))
        return fit_mean_curve(self.domain, curve, *columns, is_robust=is_robust)

    def _shift(self, mean: MeanCurve, sign: float) -> FunctionalData:
        """Add `sign` times a mean curve."""
        if not self.is_ragged:
            shift = mean(self._points(0))
            return self._replace(self.values + sign * (shift if self.has_channels else shift[:, 0]), self.grid)
        shifts = [mean(self._points(i)) for i in range(len(self))]
        shifts = shifts if self.has_channels else [shift[:, 0] for shift in shifts]
        return self._replace([v + sign * s for v, s in zip(self.values, shifts, strict=True)], self.grid)

    def resample(self, grid, kind: str = "linear", extrapolate: bool = False) -> FunctionalData:
        """Interpolate each curve at the points of a grid; gaps between observed points are filled (BO-34).

        Parameters
        ----------
        grid : array-like of shape (k,) or (k, b)
            New points in the domain.
        kind : {"linear", "cubic"}, default="linear"
            Interpolation between the observed points of a curve. "cubic" requires b = 1 and falls back to "linear" for curves with
            fewer than 4 points.
        extrapolate : bool, default=False
            Whether points beyond the observed ones get the value of the nearest one. If False, they are NaN.

        Returns
        -------
        FunctionalData
            Curves on the new grid.
        """
        check_one_of("kind", kind, ("linear", "cubic"))
        if kind == "cubic" and self.num_dims > 1:
            raise OptionError('kind="cubic" is not supported with several dimensions. Use kind="linear".')
        points = as_points(grid, self.domain, "grid")
        out = np.full((len(self), len(points), self.num_channels), np.nan)
        for i, (at, values) in enumerate(self.curves()):
            for c, column in enumerate(values.T):
                keep = ~np.isnan(column)
                if keep.any():
                    out[i, :, c] = _interpolate(at[keep], column[keep], points, kind, extrapolate)
        empty = np.flatnonzero(np.isnan(out).all((1, 2)))
        if len(empty):
            raise InputError(
                f"Curve {empty[0]} has no observed values in the range of the new grid. Use extrapolate=True, or drop the curve."
            )
        grid = points[:, 0] if np.ndim(grid) == 1 else points
        return self._replace(out if self.has_channels else out[..., 0], grid)

    def on_common_grid(self, grid=None) -> FunctionalData:
        """Place all curves on one grid, NaN where a curve has no value at a point.

        Parameters
        ----------
        grid : array-like of shape (k,) or (k, b) or None, default=None
            Grid that contains all points. If None, the union of the points.

        Returns
        -------
        FunctionalData
            Dense data with missing values.
        """
        if not self.is_ragged and grid is None:
            return self
        union = self.union_grid if grid is None else as_array(grid, "grid")
        points = union[:, None] if union.ndim == 1 else union
        positions = {tuple(point): s for s, point in enumerate(points)}
        out = np.full((len(self), len(points), self.num_channels), np.nan)
        for i, (at, values) in enumerate(self.curves()):
            try:
                out[i, [positions[tuple(point)] for point in at]] = values
            except KeyError as error:
                raise InputError(
                    f"grid must contain all points, got no {error.args[0]} of curve {i}. Use `resample`."
                ) from None
        return self._replace(out if self.has_channels else out[..., 0], union)

    def extend_symmetric(self, fraction: float = 1.0, side: str = "right") -> FunctionalData:
        """Reflect curves at the ends of their observed intervals (BO-47).

        Curves become continuous and periodic, which bases of periodic functions require. Curves that end at different points are
        reflected at their own ends, repeatedly, up to the end of the common extended domain.

        Parameters
        ----------
        fraction : float, default=1.0
            Length of the extension on each side as a fraction of the length of the domain.
        side : {"right", "left", "both"}, default="right"
            Ends at which to extend.

        Returns
        -------
        FunctionalData
            Curves on the extended domain; restrict results to the original domain by `resample`.
        """
        check_positive("fraction", fraction)
        check_one_of("side", side, ("right", "left", "both"))
        if self.num_dims > 1:
            raise OptionError("extend_symmetric is not supported with several dimensions.")
        low, high = self.domain[0]
        length = fraction * (high - low)
        low, high = low - length * (side != "right"), high + length * (side != "left")
        grids, tables = [], []
        for i in range(len(self) if self.is_ragged else 1):
            grid = self._points(i)[:, 0]
            extended, index = _reflect(grid, low, high)
            grids.append(extended)
            tables.append(self.values[i][index] if self.is_ragged else self.values[:, index])
        return self._replace(
            tables if self.is_ragged else tables[0], grids if self.is_ragged else grids[0], [low, high]
        )

    def to_long(self) -> LongFormat:
        """Return the observed values as columns curve, point, channel and value, curve by curve.

        Returns
        -------
        LongFormat
            Columns of equal length.
        """
        parts = []
        for i, (points, values) in enumerate(self.curves()):
            s, c = np.nonzero(~np.isnan(values))
            parts.append((np.full(len(s), i), points[s], c, values[s, c]))
        return LongFormat(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def is_ragged(values, grid) -> bool:
    """Return whether values and grid are sequences with one array per curve."""
    if hasattr(values, "ndim") and str(getattr(values, "dtype", "")) != "object":
        return values.ndim > 1 and isinstance(grid, list | tuple) and _are_grids(grid, *values.shape[:2])
    sizes, points = _lengths(values), _lengths(grid)
    return sizes is not None and points is not None and (sizes == points or len({*sizes}) > 1 or len({*points}) > 1)


def _are_grids(grid, num_curves: int, num_points: int) -> bool:
    """Return whether a list has an increasing grid for each row of a table, rather than a point for each column."""
    if len(grid) != num_curves or _lengths(grid) != [num_points] * num_curves or np.ndim(grid[0]) != 1:
        return False
    return bool((np.diff(as_array(grid, "grid"), axis=1) > 0).all())


def _lengths(arrays) -> list[int] | None:
    """Return the lengths of a sequence of sequences, None for other objects."""
    try:
        return [len(one) for one in arrays]
    except TypeError:
        return None


def _interpolate(at: np.ndarray, values: np.ndarray, points: np.ndarray, kind: str, extrapolate: bool) -> np.ndarray:
    """Interpolate values at points (m, b) to points (k, b); NaN, or the nearest value, beyond them."""
    if at.shape[1] > 1:
        check_spread(at)
        inside = griddata(at, values, points, "linear") if len(at) > at.shape[1] + 1 else np.full(len(points), np.nan)
        return np.where(np.isnan(inside), griddata(at, values, points, "nearest"), inside) if extrapolate else inside
    at, points = at[:, 0], points[:, 0]
    clipped = np.clip(points, at[0], at[-1])
    if kind == "cubic" and len(at) > 3:
        found = CubicSpline(at, values)(clipped)
    else:
        found = np.interp(clipped, at, values)
    return found if extrapolate else np.where(clipped == points, found, np.nan)


def _reflect(grid: np.ndarray, low: float, high: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the points of a grid reflected at both of its ends until [low, high] is covered, and their indices."""
    if len(grid) == 1:
        return grid, np.array([0])
    points, index = grid, np.arange(len(grid))
    slack = 1e-12 * (high - low)
    while points[-1] < high - slack:
        points = np.concatenate([points, 2 * points[-1] - points[-2::-1]])
        index = np.concatenate([index, index[-2::-1]])
    while points[0] > low + slack:
        points = np.concatenate([2 * points[0] - points[:0:-1], points])
        index = np.concatenate([index[:0:-1], index])
    keep = (points >= low - slack) & (points <= high + slack)
    return points[keep], index[keep]
