"""Functional data from arrays, tables, and objects of scikit-fda and xarray, which are recognized by their attributes."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from ovkgp.exceptions import InputError
from ovkgp.functional.data import FunctionalData
from ovkgp.functional.point_names import grid_of_names
from ovkgp.functional.quadrature import as_array, as_values

CHANNEL_DIMS = ("channel", "channels", "coordinate", "variable", "component")  # names of a channel dimension in xarray


def as_functional_data(data, grid=None, domain=None) -> FunctionalData:
    """Convert arrays, tables and objects of other libraries to functional data.

    Parameters
    ----------
    data : FunctionalData, array-like, DataFrame, FDataGrid, FDataIrregular or DataArray
        Values of shape (n, m) or (n, m, q) or a list of arrays; a frame whose rows are curves;
        an `FDataGrid` or `FDataIrregular` of scikit-fda; or an xarray `DataArray` whose first dimension enumerates the curves and
        whose other dimensions have numbers or dates as coordinates (a dimension without, or named "channel", holds the channels).
        Masked values are missing.
    grid : array-like of shape (m,) or (m, b), list, or None, default=None
        Points of arrays and tables. If None, the numbers in the column names of a frame ("0.5", "depth_10"), or m equidistant points
        from 0 to 1 if there are none. For data with points, None, or the same points. Dates are days since 1970-01-01.
    domain : array-like of shape (2,) or (b, 2) or None, default=None
        Domain. If None, that of the data, or the range of the points.

    Returns
    -------
    FunctionalData
        The curves.

    Examples
    --------
    >>> import pandas as pd
    >>> from ovkgp.functional import as_functional_data
    >>> as_functional_data(pd.DataFrame({"0.0": [1.0, 2.0], "0.5": [3.0, 4.0]})).grid.tolist()
    [0.0, 0.5]
    """
    if isinstance(data, FunctionalData):
        _check_same_grid(data, grid)
        return data if domain is None else FunctionalData(data.values, data.grid, domain, data.channel_names)
    for recognized, read in _READERS:
        if _has_attributes(data, recognized):
            read_data = read(data)
            _check_same_grid(read_data, grid)
            return read_data if domain is None else as_functional_data(read_data, domain=domain)
    if hasattr(data, "columns") and hasattr(data, "to_numpy"):
        if grid is None and has_default_columns(data):
            grid = np.linspace(0.0, 1.0, data.shape[1])
        elif grid is None:
            grid = grid_of_names(data.columns, len(data.columns)).points
        as_values(data.iloc[:0], "data")  # columns of dates would become ticks
        return FunctionalData(data.to_numpy(dtype=np.float64, na_value=np.nan), grid, domain)
    if grid is None:
        data = as_array(data, "data")
        if data.ndim not in (2, 3):
            raise InputError(
                f"data must have shape (n, m) or (n, m, q), got {data.shape}. Pass `grid` for ragged curves."
            )
        grid = np.linspace(0.0, 1.0, data.shape[1])
    return FunctionalData(data, grid, domain)


def has_points(values, grid=None) -> bool:
    """Whether values are functional data of ours or of another library, or curves with a list of a grid for each.

    A DataArray without numbers or dates as coordinates is a table.
    """
    if isinstance(values, FunctionalData):
        return True
    for recognized, read in _READERS:
        if _has_attributes(values, recognized):
            return read is not _read_xarray or callable(values.values) or bool(_coordinates(values))
    return isinstance(grid, list | tuple) and len(grid) > 0 and np.ndim(grid[0]) > 0


def _has_attributes(data, names: tuple[str, ...]) -> bool:
    return all(hasattr(data, name) for name in names)


def has_default_columns(frame) -> bool:
    """Return whether the columns of a frame are numbered by pandas, since no names were given."""
    columns = getattr(frame, "columns", None)
    return (getattr(columns, "start", None), getattr(columns, "step", None)) == (0, 1)


def _check_same_grid(data: FunctionalData, grid) -> None:
    """Raise if a grid was given besides data that have another one."""
    if grid is None:
        return
    same = not data.is_ragged and np.shape(grid) == data.grid.shape and np.allclose(data.grid, as_array(grid, "grid"))
    if not same:
        raise InputError("grid differs from the points of the functional data. Omit it, or use `resample`.")


def _read_fdata_grid(data) -> FunctionalData:
    axes = [np.asarray(axis, dtype=np.float64) for axis in data.grid_points]
    matrix = as_values(data.data_matrix, "values")
    values = matrix.reshape(len(matrix), -1, matrix.shape[-1])
    points = axes[0] if len(axes) == 1 else np.stack(np.meshgrid(*axes, indexing="ij"), -1).reshape(-1, len(axes))
    return FunctionalData(values[..., 0] if values.shape[-1] == 1 else values, points, np.asarray(data.domain_range))


def _read_fdata_irregular(data) -> FunctionalData:
    points, values = (as_values(a, "values") for a in (data.points, data.values))
    points = points[:, 0] if points.ndim == 2 and points.shape[1] == 1 else points
    values = values[:, 0] if values.ndim == 2 and values.shape[1] == 1 else values
    slices = [slice(a, b) for a, b in pairwise([*map(int, data.start_indices), len(points)])]
    return FunctionalData([values[s] for s in slices], [points[s] for s in slices], np.asarray(data.domain_range))


def _coordinates(data) -> dict[str, np.ndarray]:
    """Return the numbers and dates, as days, that are coordinates of the dimensions of a DataArray but the first."""
    axes = {}
    for dim in list(data.dims)[1:]:
        coordinate = np.asarray(data.coords[dim].values) if dim in data.coords else None
        if dim not in CHANNEL_DIMS and coordinate is not None and coordinate.dtype.kind in "iufMm":
            axes[dim] = as_array(coordinate, f"coordinate {dim!r}")
    return axes


def _read_xarray(data) -> FunctionalData:
    if callable(data.values):
        raise InputError("data must be a DataArray, got a Dataset. Use data['name'], or data.to_dataarray('channel').")
    values, dims, axes = as_values(data.values, "values"), list(data.dims), _coordinates(data)
    channels = [dim for dim in dims[1:] if dim not in axes]
    if not axes or len(channels) > 1:
        raise InputError(
            f"A DataArray must have dimensions (curve, point, …) with numbers or dates as coordinates of points and at most one channel dimension, got {dims} with coordinates {list(axes)}. "
            "Transpose it so that its first dimension enumerates the curves, and assign coordinates."
        )
    order = [0, *(dims.index(dim) for dim in (*axes, *channels))]
    values = values.transpose(order).reshape(len(values), int(np.prod([len(a) for a in axes.values()])), -1)
    points = np.stack(np.meshgrid(*axes.values(), indexing="ij"), -1).reshape(-1, len(axes))
    names = data.coords[channels[0]].values.tolist() if channels and channels[0] in data.coords else None
    points = points[:, 0] if len(axes) == 1 else points
    return FunctionalData(values if channels else values[..., 0], points, channel_names=names)


_READERS = (
    (("data_matrix", "grid_points"), _read_fdata_grid),
    (("start_indices", "points", "values"), _read_fdata_irregular),
    (("dims", "coords", "values"), _read_xarray),
)
"""Attributes of objects of other libraries, and functions that read these objects."""
