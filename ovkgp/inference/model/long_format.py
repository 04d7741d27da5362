"""Long tables, one observation (x, task, y) a row, and wide ones, X (n, d) with Y (n, p) and NaN where nothing was seen.

The engines of this package work on wide tables; many data sets come as long ones, where a point is seen for some of
its tasks only. Neither direction loses, averages or invents a number. One observed task a point is no special case.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from ovkgp.exceptions import InputError, OptionError

Array = np.ndarray | Tensor

LARGEST_TABLE = 10**9
"""Entries of a wide table beyond which whole numbers are taken for labels and not for the places of columns."""


def to_wide(x: Array, task: Array, y: Array, *, tasks: Sequence | None = None) -> tuple[Array, Array]:
    """Gather observations (x_i, task_i, y_i) into X (n, d) and Y (n, p), NaN where a task was not seen.

    Rows with equal x become one, in the order of their first appearance. Where one (x, task) was seen several times,
    each repetition goes to a further row of the same x. Observations whose y is NaN are dropped.

    Args:
        x: inputs (N, d), or (N,) for one column; an array, a tensor or a DataFrame. Finite.
        task: the task of each observation (N,): the column of Y it belongs to, or one of the labels in `tasks`.
        y: the observed values (N,).
        tasks: the labels of the p columns of Y, in their order; None counts them 0, 1, …, max(task).

    Returns:
        X (n, d) and Y (n, p) in float64: tensors where x or y is a tensor, else NumPy arrays.

    Cost: O(N d log N) time and O(N d + n p) memory, without a loop over observations.

    Example:
        >>> from ovkgp.inference.model.long_format import to_wide
        >>> X, Y = to_wide([0.0, 1.0, 0.0], ["wind", "rain", "rain"], [3.0, 5.0, 4.0], tasks=["wind", "rain"])
        >>> X.tolist(), Y.tolist()
        ([[0.0], [1.0]], [[3.0, 4.0], [nan, 5.0]])
    """
    points, values = _table(x, "x"), _numbers(y, "y")
    _require_finite(points, "x")
    if values.ndim != 1:
        raise InputError(f"y holds one number an observation, (N,); got shape {values.shape}.")
    columns, p = _columns(task, tasks)
    if not len(points) == len(columns) == len(values):
        raise InputError(
            f"x, task and y must have as many rows each, one an observation; got {len(points)}, {len(columns)} and "
            f"{len(values)}."
        )
    if np.isinf(values).any():
        raise InputError("y holds infinity; leave such observations out, or make them NaN.")
    observed = ~np.isnan(values)
    X, Y = _gather(points[observed], columns[observed], values[observed], p)
    return _like((X, Y), x, y)


def to_long(X: Array, Y: Array) -> tuple[Array, Array, Array]:
    """The observed entries of a wide table as x (N, d), task (N,) and y (N,), row by row.

    Args:
        X: inputs (n, d), or (n,) for one column; an array, a tensor or a DataFrame. Finite.
        Y: outputs (n, p), or (n,) for one, NaN where nothing was seen.

    Returns:
        x and y in float64 and task, the column of Y, in int64: tensors where X or Y is a tensor, else NumPy arrays.

    Cost: O(n (d + p)).

    Example:
        >>> import numpy as np
        >>> from ovkgp.inference.model.long_format import to_long
        >>> x, task, y = to_long([[0.0], [1.0]], [[3.0, 4.0], [np.nan, 5.0]])
        >>> x.ravel().tolist(), task.tolist(), y.tolist()
        ([0.0, 0.0, 1.0], [0, 1, 1], [3.0, 4.0, 5.0])
    """
    points, values = _table(X, "X"), _table(Y, "Y")
    _require_finite(points, "X")
    if len(points) != len(values):
        raise InputError(f"X and Y must have as many rows each; got {len(points)} and {len(values)}.")
    if np.isinf(values).any():
        raise InputError("Y holds infinity; a missing output is NaN.")
    rows, columns = np.nonzero(~np.isnan(values))
    return _like((points[rows], columns.astype(np.int64), values[rows, columns]), X, Y)


def _gather(points: np.ndarray, columns: np.ndarray, values: np.ndarray, p: int) -> tuple[np.ndarray, np.ndarray]:
    """The wide table of finite observations; `columns` lie between 0 and p − 1."""
    group = _groups(points)
    repeat = _repetitions(group * p + columns)
    height = np.zeros(group.max(initial=-1) + 1, dtype=np.int64)  # how many rows a point needs
    np.maximum.at(height, group, repeat + 1)
    row = (np.cumsum(height) - height)[group] + repeat
    first = np.full(height.sum(), len(row))
    np.minimum.at(first, row, np.arange(len(row)))
    if len(first) * p > LARGEST_TABLE:
        raise InputError(
            f"the wide table would have {len(first)} rows of {p} outputs. If the numbers in task are labels and not "
            "the places of columns, list those that occur: tasks=sorted(set(task))."
        )
    order = np.argsort(first)
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    Y = np.full((len(first), p), np.nan)
    Y[place[row], columns] = values
    return points[first[order]], Y


def _groups(points: np.ndarray) -> np.ndarray:
    """A number for each row of points (N, d), equal where the rows are equal."""
    if points.shape[1] == 0:
        return np.zeros(len(points), dtype=np.int64)
    points = np.ascontiguousarray(points + 0.0)  # −0 becomes 0: rows are compared by their bytes
    width = points.dtype.itemsize * points.shape[1]
    order = np.argsort(points[:, 0] if points.shape[1] == 1 else points.view(f"V{width}")[:, 0], kind="stable")
    new = np.ones(len(points), dtype=bool)
    points = points[order]
    new[1:] = (points[1:] != points[:-1]).any(1)
    return _undo(order, np.cumsum(new) - 1)


def _repetitions(codes: np.ndarray) -> np.ndarray:
    """How often each entry of codes (N,) has occurred before."""
    order = np.argsort(codes, kind="stable")
    new = np.ones(len(codes), dtype=bool)
    new[1:] = codes[order[1:]] != codes[order[:-1]]
    place = np.arange(len(codes))
    return _undo(order, place - np.maximum.accumulate(np.where(new, place, 0)))


def _undo(order: np.ndarray, values: np.ndarray) -> np.ndarray:
    """`values` of the sorted entries, back in the original order."""
    unsorted = np.empty_like(values)
    unsorted[order] = values
    return unsorted


def _columns(task, tasks: Sequence | None) -> tuple[np.ndarray, int]:
    """The column of Y for each observation, and their number p."""
    if tasks is not None:
        return _look_up(task, list(tasks))
    try:
        columns = np.asarray(_host(task))
        with np.errstate(invalid="ignore"):  # NaN is refused below
            whole = columns.astype(np.int64) if columns.size else np.zeros(0, dtype=np.int64)
        fits = columns.ndim == 1 and bool((whole == columns).all() and (whole >= 0).all())
    except (TypeError, ValueError):
        fits = False
    if not fits:
        raise InputError(
            "task holds one whole number an observation, (N,), from 0 on: the column of Y. For labels such as names, "
            "list them: tasks=[…]."
        )
    return whole, int(whole.max(initial=-1)) + 1


def _look_up(task, labels: list) -> tuple[np.ndarray, int]:
    places = {label: place for place, label in enumerate(labels)}
    if len(places) < len(labels):
        raise OptionError("tasks names a label twice; each is the name of one column of Y.")
    task = _host(task)
    task = task.tolist() if hasattr(task, "tolist") else list(task)
    try:
        columns = np.fromiter((places.get(label, -1) for label in task), dtype=np.int64, count=len(task))
    except TypeError as error:  # a list among the labels
        raise InputError(f"task holds one label an observation, (N,), as tasks does: {error}.") from error
    if (columns < 0).any():
        unknown = task[int((columns < 0).argmax())]
        raise InputError(f"task holds {unknown!r}, which is not among the {len(labels)} labels in tasks.")
    return columns, len(labels)


def _table(given, name: str) -> np.ndarray:
    array = _numbers(given, name)
    array = array[:, None] if array.ndim == 1 else array
    if array.ndim != 2:
        raise InputError(f"{name} is a table with one row a point; got shape {array.shape}.")
    return array


def _numbers(given, name: str) -> np.ndarray:
    try:
        return np.asarray(_host(given), dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"{name} must hold numbers only: {error}.") from error


def _require_finite(points: np.ndarray, name: str) -> None:
    if not np.isfinite(points).all():
        raise InputError(f"{name} holds NaN or infinity; inputs must be finite (only outputs may be missing).")


def _host(given):
    return given.detach().cpu().numpy() if torch.is_tensor(given) else given


def _like(arrays: tuple[np.ndarray, ...], *given) -> tuple[Array, ...]:
    """The arrays as tensors, on the device of the first tensor among `given`, where there is one."""
    for one in given:
        if torch.is_tensor(one):
            return tuple(torch.from_numpy(array).to(one.device) for array in arrays)
    return arrays
