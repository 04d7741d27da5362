"""Conversion between long tables, one row per observation (x, task, y), and wide ones, X (n, d) with Y (n, p)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from ovkgp.checks import as_numbers
from ovkgp.exceptions import InputError, OptionError

Array = np.ndarray | Tensor

MAX_TABLE_ENTRIES = 10**9
"""Entries of a wide table beyond which integers in `task` are taken for labels rather than column indices."""


def to_wide(x: Array, task: Array, y: Array, *, tasks: Sequence | None = None) -> tuple[Array, Array]:
    """Convert observations (x_i, task_i, y_i) to X (n, d) and Y (n, p), with NaN for missing tasks.

    Rows with equal x become one, in the order of their first appearance. If one (x, task) was observed several times,
    each repetition goes to a further row of the same x. Observations with y = NaN are dropped.

    Parameters
    ----------
    x : array-like of shape (N, d) or (N,)
        Finite inputs: an array, a tensor or a DataFrame.
    task : array-like of shape (N,)
        Task of each observation: its name, or its column of Y, or one of the labels in `tasks`.
    y : array-like of shape (N,)
        Observed values.
    tasks : sequence, optional
        Labels of the p columns of Y, in their order. If None, these are the names in `task`, sorted (categories keep their
        order), or 0, 1, …, max(task) for integers.

    Returns
    -------
    X : array of shape (n, d)
        Inputs in float64: a tensor if x or y is a tensor, a DataFrame with the same columns if x is one, else a NumPy array.
    Y : array of shape (n, p)
        Outputs, NaN if missing: a DataFrame whose columns are the tasks if these are names and there is no tensor, so that models
        keep the names; else an array like X.

    Raises
    ------
    InputError
        If shapes or values are invalid.
    OptionError
        If `tasks` contains a label twice.

    Notes
    -----
    Complexity: O(N d log N) time and O(N d + n p) memory, without a loop over observations.

    Examples
    --------
    >>> from ovkgp.inference import to_wide
    >>> X, Y = to_wide([0.0, 1.0, 0.0], ["wind", "rain", "rain"], [3.0, 5.0, 4.0])
    >>> X.tolist(), Y.columns.tolist(), Y.to_numpy().tolist()
    ([[0.0], [1.0]], ['rain', 'wind'], [[4.0, 3.0], [5.0, nan]])
    """
    points, values = _as_table(x, "x"), _as_numbers(y, "y")
    _check_finite(points, "x")
    if values.ndim != 1:
        raise InputError(f"y has shape {values.shape}, expected (N,) with one number per observation.")
    tasks = _find_names(task) if tasks is None else list(tasks)
    columns, p = _find_columns(task, tasks)
    if not len(points) == len(columns) == len(values):
        raise InputError(
            f"x, task and y must have equally many rows (one per observation), got {len(points)}, {len(columns)} and {len(values)}."
        )
    if np.isinf(values).any():
        raise InputError("y must not contain infinity. Drop such observations or set them to NaN.")
    observed = ~np.isnan(values)
    X, Y = _pivot(points[observed], columns[observed], values[observed], p)
    if torch.is_tensor(x) or torch.is_tensor(y):
        return _convert_like((X, Y), x, y)
    return _add_names(X, getattr(x, "columns", None)), _add_names(Y, tasks)


def to_long(X: Array, Y: Array) -> tuple[Array, Array, Array]:
    """Convert a wide table to its observed entries x (N, d), task (N,) and y (N,), row by row.

    Parameters
    ----------
    X : array-like of shape (n, d) or (n,)
        Finite inputs: an array, a tensor or a DataFrame.
    Y : array-like of shape (n, p) or (n,)
        Outputs, NaN if missing.

    Returns
    -------
    x : array of shape (N, d)
        Inputs in float64: a tensor if X or Y is a tensor, else a NumPy array.
    task : array of shape (N,)
        Column of Y of each observation, in int64.
    y : array of shape (N,)
        Observed values in float64.

    Raises
    ------
    InputError
        If shapes or values are invalid.

    Examples
    --------
    >>> import numpy as np
    >>> from ovkgp.inference import to_long
    >>> x, task, y = to_long([[0.0], [1.0]], [[3.0, 4.0], [np.nan, 5.0]])
    >>> x.ravel().tolist(), task.tolist(), y.tolist()
    ([0.0, 0.0, 1.0], [0, 1, 1], [3.0, 4.0, 5.0])
    """
    points, values = _as_table(X, "X"), _as_table(Y, "Y")
    _check_finite(points, "X")
    if len(points) != len(values):
        raise InputError(f"X and Y must have equally many rows, got {len(points)} and {len(values)}.")
    if np.isinf(values).any():
        raise InputError("Y must not contain infinity. Mark missing outputs by NaN.")
    rows, columns = np.nonzero(~np.isnan(values))
    return _convert_like((points[rows], columns.astype(np.int64), values[rows, columns]), X, Y)


def _find_names(task) -> list | None:
    """Return the distinct names in `task`, sorted or in the order of its categories; None if it does not contain text."""
    if (categories := getattr(getattr(task, "dtype", None), "categories", None)) is not None:
        return list(categories) if all(isinstance(name, str) for name in categories) else None
    if torch.is_tensor(task):
        return None
    found = np.asarray(task, dtype=object)
    if found.ndim != 1 or not len(found) or not all(isinstance(name, str) for name in found):
        return None
    return sorted(set(found.tolist()))


def _add_names(table: np.ndarray, names):
    """Return a DataFrame if all columns have text as names, else the array."""
    import pandas as pd

    if names is None or not all(isinstance(name, str) for name in names):
        return table
    return pd.DataFrame(table, columns=list(names))


def _pivot(points: np.ndarray, columns: np.ndarray, values: np.ndarray, p: int) -> tuple[np.ndarray, np.ndarray]:
    """Make the wide table of finite observations; `columns` lie between 0 and p − 1."""
    import pandas as pd

    frame = pd.DataFrame(points)
    inputs = list(frame.columns)
    repeat = frame.groupby([*inputs, columns], sort=False).cumcount()
    row = frame.groupby([*inputs, repeat], sort=False).ngroup().to_numpy()  # in the order of first appearance
    first = np.unique(row, return_index=True)[1]
    if len(first) * p > MAX_TABLE_ENTRIES:
        raise InputError(
            f"task leads to a wide table with {len(first)} rows and {p} outputs. If its numbers are labels rather than column indices, list them: tasks=sorted(set(task))."
        )
    Y = np.full((len(first), p), np.nan)
    Y[row, columns] = values
    return points[first], Y


def _find_columns(task, tasks: Sequence | None) -> tuple[np.ndarray, int]:
    """Find the column of Y of each observation, and the number p of columns."""
    if tasks is not None:
        return _look_up_labels(task, list(tasks))
    try:
        columns = np.asarray(_as_numpy(task))
        with np.errstate(invalid="ignore"):  # NaN is rejected below
            integers = columns.astype(np.int64) if columns.size else np.zeros(0, dtype=np.int64)
        is_valid = columns.ndim == 1 and bool((integers == columns).all() and (integers >= 0).all())
    except (TypeError, ValueError):
        is_valid = False
    if not is_valid:
        raise InputError(
            "task must be one column index of Y per observation, integers (N,) from 0 on. For labels such as names, list them: tasks=[…]."
        )
    return integers, int(integers.max(initial=-1)) + 1


def _look_up_labels(task, labels: list) -> tuple[np.ndarray, int]:
    indices = {label: index for index, label in enumerate(labels)}
    if len(indices) < len(labels):
        raise OptionError("tasks must have distinct labels, one per column of Y.")
    task = _as_numpy(task)
    task = task.tolist() if hasattr(task, "tolist") else list(task)
    try:
        columns = np.fromiter((indices.get(label, -1) for label in task), dtype=np.int64, count=len(task))
    except TypeError as error:  # a list among the labels
        raise InputError(f"task must be one label of tasks per observation, (N,): {error}.") from error
    if (columns < 0).any():
        unknown = task[int((columns < 0).argmax())]
        raise InputError(f"task contains {unknown!r}, which is not among the {len(labels)} labels in tasks.")
    return columns, len(labels)


def _as_table(given, name: str) -> np.ndarray:
    array = _as_numbers(given, name)
    array = array[:, None] if array.ndim == 1 else array
    if array.ndim != 2:
        raise InputError(f"{name} has shape {array.shape}, expected a table with one row per point.")
    return array


def _as_numbers(given, name: str) -> np.ndarray:
    return as_numbers(_as_numpy(given), name)


def _check_finite(points: np.ndarray, name: str) -> None:
    if not np.isfinite(points).all():
        raise InputError(f"{name} must not contain NaN or infinity; only outputs may be missing.")


def _as_numpy(given):
    return given.detach().cpu().numpy() if torch.is_tensor(given) else given


def _convert_like(arrays: tuple[np.ndarray, ...], *given) -> tuple[Array, ...]:
    """Convert arrays to tensors on the device of the first tensor among `given`, if there is one."""
    for one in given:
        if torch.is_tensor(one):
            return tuple(torch.from_numpy(array).to(one.device) for array in arrays)
    return arrays
