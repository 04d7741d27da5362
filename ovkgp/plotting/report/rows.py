"""The rows that a report looks at: those given, or those that the model has kept, in the user's units.

Given ones are checked at the door, and get the column names of the fit, so that nothing behind has to ask again.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np
import pandas as pd

from ovkgp.criticism import kept_rows
from ovkgp.estimators.tables import as_array, input_table
from ovkgp.exceptions import InputError
from ovkgp.inference.task_learning.functional_ridge_posterior import GridPosterior
from ovkgp.plotting.report.kinds import kind_of


@dataclass(frozen=True)
class Rows:
    """Rows of data.

    Args:
        X: (n, d), a data frame where the model was fitted to one, else an array.
        Y: (n, p) with NaN where missing; labels (n,) of a classifier; None where there are no outputs.
        is_given: whether the user gave them; else the model has kept them.
    """

    X: pd.DataFrame | np.ndarray
    Y: np.ndarray | None
    is_given: bool

    @property
    def inputs(self) -> np.ndarray:
        """X as an array."""
        return np.asarray(self.X, dtype=np.float64)


def report_rows(estimator, X=None, Y=None) -> Rows | None:
    """The rows given, checked, or those kept; None where there are none.

    Raises:
        InputError: X came without Y or Y without X, or their columns are not those of the fit.
    """
    kind = kind_of(estimator)
    if X is None and Y is None:
        return kept(estimator)
    if X is None or (Y is None and kind != "none"):
        raise InputError("give X and Y together, as fit had them, or neither.")
    table = _checked(lambda: input_table(estimator, named(estimator, as_array(X)), reset=False), "X")
    return Rows(named(estimator, table), None if kind == "none" else _outputs(estimator, Y, table, kind), True)


def named(estimator, X):
    """An array with the column names of the fit, where that had some."""
    names = getattr(estimator, "feature_names_in_", None)
    if names is None or hasattr(X, "columns") or np.ndim(X) != 2 or np.shape(X)[1] != len(names):
        return X
    return pd.DataFrame(np.asarray(X), columns=list(names))


def _outputs(estimator, Y, X: np.ndarray, kind: str) -> np.ndarray:
    if kind == "labels":
        return _labels(estimator, Y, len(X))
    if kind == "tasks" and np.ndim(as_array(Y)) == 3:
        Y = np.asarray(as_array(Y)).reshape(len(Y), -1)
    if kind == "target":
        Y = np.asarray(as_array(Y), dtype=np.float64).reshape(len(Y), -1)
        if Y.shape != (len(X), 1):
            raise InputError(f"Y must be ({len(X)},), one number for each row of X; got shape {Y.shape}.")
        return Y
    return _checked(lambda: np.asarray(estimator._outputs(Y, X), dtype=np.float64), "Y")


def _labels(estimator, Y, num_rows: int) -> np.ndarray:
    labels = np.asarray(as_array(Y))
    labels = labels[:, 0] if labels.ndim == 2 and labels.shape[1] == 1 else labels
    if labels.shape != (num_rows,):
        raise InputError(f"Y must be ({num_rows},), a label for each row of X; got shape {labels.shape}.")
    if unknown := sorted(set(labels.tolist()) - set(estimator.classes_.tolist()), key=str):
        raise InputError(
            f"Y holds {unknown[0]!r}, and the model knows the classes {estimator.classes_.tolist()}: leave that row out."
        )
    return labels


def _checked(read, name: str):
    """What scikit-learn finds wrong, as an error of this package."""
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "X does not have valid feature names")  # an error follows
            return read()
    except InputError:
        raise
    except (TypeError, ValueError) as error:
        words = " ".join(str(error).split())
        raise InputError(f"{name} is not as it was at the fit: {words}") from error


# --- kept by the model ------------------------------------------------------------------------------------------------


def kept(estimator) -> Rows | None:
    """The rows that a fitted estimator has kept; None where it has kept none."""
    found = _KEPT[kind_of(estimator)](estimator)
    return None if found is None else Rows(named(estimator, found[0]), found[1], False)


def _kept_labels(estimator):
    if hasattr(estimator, "ridge_"):  # a regression of coded labels
        if (found := kept_rows(estimator.ridge_)) is None:
            return None
        return found[0], estimator.classes_[(found[1] @ estimator._targets().T).argmax(1)]
    positive = (estimator._labels > 0).astype(int)
    return _unscaled(estimator, estimator._rows), estimator.classes_[positive]


def _kept_points(estimator):
    return np.repeat(_unscaled(estimator, estimator._rows), estimator._row_counts.astype(int), 0), None


def _kept_tasks(estimator):
    posterior = estimator.posterior_
    if not isinstance(posterior, GridPosterior):  # pairs, of which some are missing
        return None
    Y = posterior.data.Y.numpy() + estimator.offset_
    return posterior.inputs.numpy(), Y.reshape(len(posterior.inputs), -1)


def _unscaled(estimator, rows: np.ndarray) -> np.ndarray:
    return rows * estimator.scaling_.input_scale + estimator.scaling_.input_offset


_KEPT = {
    "table": lambda estimator: kept_rows(estimator) if hasattr(estimator, "posterior_") else None,
    "tasks": _kept_tasks,
    "target": kept_rows,
    "labels": _kept_labels,
    "none": _kept_points,
}
