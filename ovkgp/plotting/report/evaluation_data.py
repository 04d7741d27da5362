"""Predictions of entries that the model has not seen: the rows given, or each kept entry given all others.

Calibration and explained variance are read from one such record, so that they are about the same entries.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from sklearn.utils.validation import check_is_fitted

from ovkgp.criticism import kept_rows
from ovkgp.criticism.predictive_distributions import Predictive, predictive
from ovkgp.estimators.common.validation import as_array, input_table
from ovkgp.exceptions import InputError
from ovkgp.inference.tasks.functional_ridge_grid import GridPosterior

KINDS = {
    "GPRegressor": "table",
    "OVKRidge": "table",
    "ORFFRidge": "table",
    "ManifoldRidge": "table",
    "ONORMA": "table",
    "ConstrainedORFF": "table",
    "VectorTaskRegressor": "tasks",
    "InfiniteQuantileRegressor": "target",
    "InfiniteCostSensitiveClassifier": "labels",
    "SimplexClassifier": "labels",
    "InfiniteOneClassSVM": "none",
}
"""By class: Y is a "table" (n, p), "tasks" (n, T, p), one "target" (n,), "labels" (n,), or "none"."""
CLASSES = ("function_", "posterior_", "calibration_", "coef_")
"""Fitted attributes, of which every estimator has one."""


def class_name(estimator) -> str:
    """The name of the estimator's class among `KINDS`, or of the one that it extends.

    Raises:
        InputError: it is none of them.
    """
    for kind in type(estimator).__mro__:
        if kind.__name__ in KINDS and kind.__module__.startswith("ovkgp."):
            return kind.__name__
    raise InputError(
        f"a report is about one of {', '.join(KINDS)}, got {type(estimator).__name__}: give the estimator itself, not a pipeline or "
        "a search around it."
    )


def kind_of(estimator) -> str:
    """What the outputs of a fitted estimator are.

    Raises:
        InputError: a report does not know this class.
        NotFittedError: nothing has been fitted yet.
    """
    kind = KINDS[class_name(estimator)]
    check_is_fitted(estimator, CLASSES, all_or_any=any)
    return kind


def called(estimator, name: str) -> str:
    """An output at the beginning of a sentence: by its name, or by its number where it has none.

    Example:
        >>> import numpy as np
        >>> import ovkgp
        >>> from ovkgp.plotting.report.evaluation_data import called
        >>> called(ovkgp.OVKRidge().fit(np.eye(3), np.eye(3)), "output 2")
        'Output 2'
    """
    return f"Output '{name}'" if getattr(estimator, "_has_names", True) else name.capitalize()


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


def means(Y: np.ndarray) -> np.ndarray:
    """The mean (p,) of the numbers in each column of (n, p); zero where there is none.

    Example:
        >>> import numpy as np
        >>> from ovkgp.plotting.report.evaluation_data import means
        >>> means(np.array([[1.0, np.nan], [3.0, np.nan]])).tolist()
        [2.0, 0.0]
    """
    observed = np.isfinite(Y)
    return np.where(observed, Y, 0.0).sum(0) / np.maximum(observed.sum(0), 1)


def spreads(Y: np.ndarray) -> np.ndarray:
    """The standard deviation (p,) of the numbers in each column of (n, p), divided by their count; zero where there is none.

    Example:
        >>> import numpy as np
        >>> from ovkgp.plotting.report.evaluation_data import spreads
        >>> spreads(np.array([[1.0, np.nan], [3.0, np.nan]])).tolist()
        [1.0, 0.0]
    """
    return np.sqrt(means((Y - means(Y)) ** 2))


IN_SAMPLE_CAVEAT = "the model looks better here than it is: give rows that it has not seen."
"""What is wrong with rows of the fit."""


@dataclass(frozen=True)
class HeldOutPredictions:
    """Predictive distributions, and how they came about.

    Args:
        distribution: of each entry.
        rows: those given, as (X, Y) for a plot; (None, None) where kept entries were left out one at a time.
        how: in words, to begin a sentence with.
        caution: what may be wrong with it, in words.
        which: the rows are, in words, for a caption.
    """

    distribution: Predictive
    rows: tuple
    how: str
    caution: str = ""
    which: str = "the rows given"

    @property
    def explained(self) -> np.ndarray:
        """The share (p,) of the variance of each output that the mean explains, 1 − Σ(y − mean)² / Σ(y − ȳ)²; NaN where it has none."""
        error = np.nansum((self.distribution.Y - self.distribution.mean) ** 2, axis=0)
        centred = self.distribution.Y - means(self.distribution.Y)
        total = np.nansum(centred**2, axis=0)
        return np.where(total > 0, 1 - error / np.where(total > 0, total, 1.0), np.nan)


def predicted(estimator, rows: Rows | None) -> HeldOutPredictions | None:
    """Predictions of unseen entries of a regressor with predictive distributions; None where there are none.

    Cost: one prediction of all rows given, or one factorisation (one for each draw that predictions average over).
    """
    if kind_of(estimator) not in ("table", "target") or class_name(estimator) == "ConstrainedORFF":
        return None
    can_leave_out = hasattr(getattr(estimator, "gp_", None), "leave_one_out") and kept(estimator) is not None
    if rows is None or not rows.is_given:
        return _left_out(estimator, "Left out one at a time") if can_leave_out else None
    observed, old = np.isfinite(rows.Y).any(1), are_of_fit(estimator, rows)
    if not observed.any():
        return None
    if (observed & ~old).any():
        return _on_fresh(estimator, rows, old)
    if can_leave_out:
        which = "The rows given" if observed.all() else "The rows given that have observations"
        return _left_out(estimator, f"{which} are those of the fit. Left out one at a time")
    return _on_given(estimator, rows, f"These rows are those of the fit: {IN_SAMPLE_CAVEAT}")


def are_of_fit(estimator, rows: Rows) -> np.ndarray:
    """Which of the rows given (n,) are also among those that the model has kept, by their inputs and the outputs that they have;
    none where it has kept none."""
    learned, found = kept(estimator), np.zeros(len(rows.X), dtype=bool)
    if learned is None:
        return found
    keys, observed = _keys(rows, learned), np.isfinite(rows.Y)
    for outputs in np.unique(
        observed[observed.any(1)], axis=0
    ):  # a cell that was emptied since does not make a row new
        alike = (observed == outputs).all(1)
        known = replace(learned, Y=np.where(outputs, learned.Y, np.nan))
        found[alike] = np.isin(keys[alike], _keys(known, learned))
    return found


def _left_out(estimator, how: str) -> HeldOutPredictions:
    return HeldOutPredictions(predictive(estimator), (None, None), how)


def _on_given(estimator, rows: Rows, caution: str) -> HeldOutPredictions:
    return HeldOutPredictions(predictive(estimator, rows.X, rows.Y), (rows.X, rows.Y), "On the rows given", caution)


def _on_fresh(estimator, rows: Rows, old: np.ndarray) -> HeldOutPredictions:
    """Predictions of the rows given, those of the fit left out."""
    if not old.any():
        caution = f"If these rows are those of the fit, {IN_SAMPLE_CAVEAT}" if kept(estimator) is None else ""
        return _on_given(estimator, rows, caution)
    X, Y, number = rows.X[~old], rows.Y[~old], int(old.sum())
    were = "1 was a row of the fit and is" if number == 1 else f"{number} were rows of the fit and are"
    others = "row" if len(Y) == 1 else f"{len(Y)} rows"
    how = f"Of the {len(old)} rows given, {were} left out. On the other {others}"
    return HeldOutPredictions(predictive(estimator, X, Y), (X, Y), how, which=f"the other {others} given")


def _keys(rows: Rows, unit: Rows) -> np.ndarray:
    """Each row as text, in units of the spread of `unit`, rounded as copies through a scaling are."""
    table, of_unit = (np.column_stack([one.inputs, one.Y]) for one in (rows, unit))
    spread = spreads(of_unit)
    digits = np.round((table - means(of_unit)) / np.where(spread > 0, spread, 1.0), 6) + 0.0
    return np.array([row.tobytes().hex() for row in np.nan_to_num(digits, nan=1e300)])
