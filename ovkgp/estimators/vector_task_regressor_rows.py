"""Data and paths of style transfer: which rows are inputs, and where in the space of tasks one may walk (LT-100, 101, 104)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ovkgp.estimators.tables import as_array, numbers
from ovkgp.exceptions import InputError


class TaskRows(NamedTuple):
    """Inputs X (t, d), targets Y (t, T, d) with NaN where missing, and the person (t,) that each row came from."""

    X: np.ndarray
    Y: np.ndarray
    persons: np.ndarray


def single_rows(values, task: int) -> TaskRows:
    """Each person as seen at one task, with all tasks of the same person as targets (LT-100).

    Args:
        values: z (n, T, d), NaN where a person was not seen at a task; such persons are left out where it is the input.
        task: the number of the input task.

    Example:
        >>> import numpy as np
        >>> from ovkgp.estimators.vector_task_regressor_rows import single_rows
        >>> X, Y, persons = single_rows(np.ones((5, 3, 2)), task=0)
        >>> X.shape, Y.shape
        ((5, 2), (5, 3, 2))
    """
    values = _tensor(values)
    if not 0 <= task < values.shape[1]:
        raise InputError(f"there are tasks 0 to {values.shape[1] - 1}, not {task}.")
    seen = np.isfinite(values[:, task]).all(-1)
    return TaskRows(values[seen, task], values[seen], np.flatnonzero(seen))


def joint_rows(values) -> TaskRows:
    """Each person as seen at each task, with all tasks of the same person as targets (LT-101).

    Row m(i − 1) + l is z_i(θ_l). The targets of a person are repeated for each of its inputs: the likelihood of such rows is a
    composite one, and a standard deviation from them says less than it seems to. A missing z_i(θ_l) is neither input nor target.

    Args:
        values: z (n, T, d), NaN where a person was not seen at a task.

    Cost: O(n T² d) memory.

    Example:
        >>> import numpy as np
        >>> from ovkgp.estimators.vector_task_regressor_rows import joint_rows
        >>> z = np.arange(12.0).reshape(2, 3, 2)
        >>> z[0, 1] = np.nan
        >>> X, Y, persons = joint_rows(z)
        >>> X.shape, Y.shape, persons
        ((5, 2), (5, 3, 2), array([0, 0, 1, 1, 1]))
    """
    values = _tensor(values)
    n, num_tasks, d = values.shape
    persons = np.repeat(np.arange(n), num_tasks)
    X = values.reshape(n * num_tasks, d)
    seen = np.isfinite(X).all(-1)
    return TaskRows(X[seen], values[persons[seen]], persons[seen])


def radial_tasks(task, radii) -> np.ndarray:
    """ρ θ for each radius ρ, (k, q): from neutral, the origin, to a task and beyond (LT-104).

    Example:
        >>> from ovkgp.estimators.vector_task_regressor_rows import radial_tasks
        >>> radial_tasks([0.0, 2.0], [0.0, 0.5, 1.0]).tolist()
        [[0.0, 0.0], [0.0, 1.0], [0.0, 2.0]]
    """
    return np.outer(numbers(radii, "radii"), numbers(task, "task"))


def angular_tasks(angles) -> np.ndarray:
    """(cos φ, sin φ) for each angle φ, (k, 2): around the circle of tasks (LT-104).

    Example:
        >>> from ovkgp.estimators.vector_task_regressor_rows import angular_tasks
        >>> angular_tasks([0.0]).tolist()
        [[1.0, 0.0]]
    """
    angles = numbers(angles, "angles")
    return np.stack([np.cos(angles), np.sin(angles)], -1)


def _tensor(values) -> np.ndarray:
    values = numbers(as_array(values), "values")
    if values.ndim != 3:
        raise InputError(f"values must be (n, T, d): a vector for each person and task; got {values.shape}.")
    if np.isinf(values).any():
        raise InputError("values hold infinity; a missing one is NaN.")
    return values
