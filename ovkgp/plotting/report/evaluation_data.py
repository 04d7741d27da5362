"""Data of a report: the given or stored rows, and predictions of held-out entries.

Coverage and explained variance come from the same predictions: those of the given rows, or leave-one-out predictions.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from ovkgp.checks import check_estimator
from ovkgp.criticism.predictive_distributions import EntryPredictions, are_labels, predictive
from ovkgp.estimators.common.validation import as_array, as_inputs, as_outputs, input_table, output_names, select_rows
from ovkgp.exceptions import InputError
from ovkgp.scales import unit_of

IN_SAMPLE_CAVEAT = "the assessment is too optimistic. Use held-out rows."


@dataclass(frozen=True)
class Rows:
    """Rows of data, given by the user or stored by the model.

    X (n, d) is a data frame if the model was fitted to one. Y is (n, p) with NaN where missing, labels (n,) of a
    classifier, or None if there are no outputs.
    """

    X: pd.DataFrame | np.ndarray
    Y: np.ndarray | None
    is_given: bool
    inputs: np.ndarray  # X as numbers, with dates in days
    outputs: pd.DataFrame | np.ndarray | None = None  # Y as in fit, with dates

    @property
    def data(self) -> tuple:
        """X and Y as in fit, for plots and predictive distributions."""
        return self.X, self.outputs


@dataclass(frozen=True)
class HeldOutPredictions:
    """Predictive distributions of entries that the model was not conditioned on."""

    distribution: EntryPredictions
    rows: tuple  # given (X, Y), for plots; (None, None) for leave-one-out predictions
    preface: str = ""  # sentence on the choice of the rows
    caveat: str = ""  # sentence on rows that may be training rows
    rows_name: str = "the given rows"
    groups: np.ndarray | str = "rows"  # labels of rows that were held out together

    @property
    def is_leave_one_out(self) -> bool:
        """Whether these are leave-one-out predictions of training rows."""
        return self.rows[0] is None or self.has_groups

    @property
    def has_groups(self) -> bool:
        """Whether groups of training rows were held out."""
        return are_labels(self.groups)

    @property
    def explained(self) -> np.ndarray:
        """Explained variance 1 − Σ(y − mean)² / Σ(y − ȳ)² (p,) of each output; NaN for constant outputs."""
        error = np.nansum((self.distribution.Y - self.distribution.mean) ** 2, axis=0)
        centered = self.distribution.Y - column_means(self.distribution.Y)
        total = np.nansum(centered**2, axis=0)
        return np.where(total > 0, 1 - error / np.where(total > 0, total, 1.0), np.nan)


def describe_hold_out(held_out: HeldOutPredictions) -> str:
    """Describe what leave-one-out predictions hold out together."""
    return "all rows of a group are held out" if held_out.has_groups else "all outputs of a row are held out"


def format_output_name(estimator, name: str) -> str:
    """Format an output as the first words of a sentence: "Output 'u'", or "Output 2" if it has no name."""
    return f"Output '{name}'" if name in estimator.output_names_ else name.capitalize()


def collect_rows(estimator, X=None, Y=None) -> Rows | None:
    """Check the given rows, or return the stored ones; None if there are none."""
    check_estimator(estimator)
    if X is None and Y is None:
        return get_training_rows(estimator)
    if X is None or (Y is None and estimator.kind != "none"):
        raise InputError("X and Y must be given together or not at all. Pass both, in the form used for fit.")
    table = check_table(lambda: input_table(estimator, add_column_names(estimator, as_array(X)), reset=False), "X")
    outputs = None if estimator.kind == "none" else _check_outputs(estimator, Y, table)
    return _make_rows(estimator, table, outputs, True)


def _make_rows(estimator, X: np.ndarray, Y: np.ndarray | None, is_given: bool) -> Rows:
    return Rows(as_inputs(estimator, X), Y, is_given, np.asarray(X, dtype=np.float64), as_outputs(estimator, Y))


def add_column_names(estimator, X):
    """Add the column names of the fit to an array, if there are any."""
    is_array = output_names(X) is None and np.ndim(X) == 2 and np.shape(X)[1] == estimator.n_features_in_
    names = estimator.input_names
    return pd.DataFrame(X, columns=names) if is_array and names is not None else X


def _check_outputs(estimator, Y, X: np.ndarray) -> np.ndarray:
    if estimator.kind == "labels":
        return _check_labels(estimator, Y, len(X))
    if estimator.kind == "tasks" and np.ndim(as_array(Y)) == 3:
        Y = np.asarray(as_array(Y)).reshape(len(Y), -1)
    if estimator.kind == "target":
        Y = np.asarray(as_array(Y), dtype=np.float64).reshape(len(Y), -1)
        if Y.shape != (len(X), 1):
            raise InputError(f"Y has shape {Y.shape}, expected ({len(X)},) (one number per row of X).")
        return Y
    return check_table(lambda: np.asarray(estimator._outputs(Y, X), dtype=np.float64), "Y")


def _check_labels(estimator, Y, num_rows: int) -> np.ndarray:
    labels = np.asarray(as_array(Y))
    labels = labels[:, 0] if labels.ndim == 2 and labels.shape[1] == 1 else labels
    if labels.shape != (num_rows,):
        raise InputError(f"Y has shape {labels.shape}, expected ({num_rows},) (one label per row of X).")
    if unknown := sorted(set(labels.tolist()) - set(estimator.classes_.tolist()), key=str):
        raise InputError(
            f"Y must contain only the classes {estimator.classes_.tolist()}, got {unknown[0]!r}. Remove that row."
        )
    return labels


def check_table(read, name: str):
    """Convert errors of scikit-learn to errors of this package."""
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "X does not have valid feature names")  # an error follows
            return read()
    except InputError:
        raise
    except (TypeError, ValueError) as error:
        raise InputError(f"{name} does not match the training data: {' '.join(str(error).split())}") from error


def get_training_rows(estimator) -> Rows | None:
    """Return the training rows that a fitted estimator stores; None if it stores none."""
    found = estimator.training_data()
    if found is None:
        return None
    return _make_rows(estimator, *found, False)


def predict_held_out(estimator, rows: Rows | None, groups=None) -> HeldOutPredictions | None:
    """Predict held-out rows, or groups of them, of a regressor with predictive distributions; None if there are none."""
    if groups is not None:
        return _predict_groups(estimator, rows, groups)
    if not estimator.has_predictive:
        return None
    if rows is None or not rows.is_given:
        return _predict_leave_one_out(estimator) if estimator.has_leave_one_out else None
    has_observations, is_training = np.isfinite(rows.Y).any(1), find_training_rows(estimator, rows)
    if not has_observations.any():
        return None
    if (has_observations & ~is_training).any():
        return _predict_new(estimator, rows, is_training)
    if estimator.has_leave_one_out:
        which = "The given rows" if has_observations.all() else "The given rows with observations"
        return _predict_leave_one_out(estimator, f"{which} are the training rows.")
    return _predict_given(estimator, rows, f"The given rows are the training rows: {IN_SAMPLE_CAVEAT}")


def find_training_rows(estimator, rows: Rows) -> np.ndarray:
    """Find the given rows (n,) that are also stored training rows, comparing inputs and observed outputs."""
    stored, is_training = get_training_rows(estimator), np.zeros(len(rows.X), dtype=bool)
    if stored is None:
        return is_training
    keys, observed = _make_keys(rows, stored), np.isfinite(rows.Y)
    for outputs in np.unique(observed[observed.any(1)], axis=0):  # a cell emptied since does not make a row new
        has_pattern = (observed == outputs).all(1)
        masked = replace(stored, Y=np.where(outputs, stored.Y, np.nan))
        is_training[has_pattern] = np.isin(keys[has_pattern], _make_keys(masked, stored))
    return is_training


def _make_keys(rows: Rows, reference: Rows) -> np.ndarray:
    """Encode each row, standardized by `reference` and rounded, so that copies through a scaling stay equal."""
    table, reference_table = (np.column_stack([one.inputs, one.Y]) for one in (rows, reference))
    std = column_stds(reference_table)
    digits = np.round((table - column_means(reference_table)) / np.where(std > 0, std, 1.0), 6) + 0.0
    return np.array([row.tobytes().hex() for row in np.nan_to_num(digits, nan=1e300)])


def _predict_groups(estimator, rows: Rows | None, groups) -> HeldOutPredictions:
    """Predict each group of the given training rows from all others."""
    if rows is None or not rows.is_given:
        raise InputError("groups must be passed with X and Y, the training rows that the labels belong to.")
    distribution, is_stored = predictive(estimator, *rows.data, groups), get_training_rows(estimator) is not None
    if is_stored and not (find_training_rows(estimator, rows) | ~np.isfinite(rows.Y).any(1)).all():
        raise InputError("X and Y must be the training rows if groups is given. Omit groups to evaluate other rows.")
    labels = np.asarray(groups)
    return HeldOutPredictions(distribution, rows.data, groups=labels)


def _predict_leave_one_out(estimator, preface: str = "") -> HeldOutPredictions:
    return HeldOutPredictions(predictive(estimator), (None, None), preface)


def _predict_given(estimator, rows: Rows, caveat: str) -> HeldOutPredictions:
    return HeldOutPredictions(predictive(estimator, *rows.data), rows.data, caveat=caveat)


def _predict_new(estimator, rows: Rows, is_training: np.ndarray) -> HeldOutPredictions:
    """Predict the given rows without the training rows among them."""
    if not is_training.any():
        is_unknown = get_training_rows(estimator) is None
        return _predict_given(estimator, rows, f"If these are training rows, {IN_SAMPLE_CAVEAT}" if is_unknown else "")
    X, Y = (select_rows(part, ~is_training) for part in rows.data)
    number = int(is_training.sum())
    excluded = "is a training row and was" if number == 1 else "are training rows and were"
    preface = f"{number} of the {len(is_training)} given rows {excluded} excluded."
    rows_name = "the other given row" if len(Y) == 1 else f"the other {len(Y)} given rows"
    return HeldOutPredictions(predictive(estimator, X, Y), (X, Y), preface, rows_name=rows_name)


def column_means(Y: np.ndarray) -> np.ndarray:
    """Return the mean (p,) of the observed entries of each column of (n, p); 0 if there are none."""
    observed = np.isfinite(Y)
    return np.where(observed, Y, 0.0).sum(0) / np.maximum(observed.sum(0), 1)


def column_stds(Y: np.ndarray) -> np.ndarray:
    """Return the standard deviation (p,) of the observed entries of each column of (n, p); 0 if there are none."""
    unit = unit_of(np.nan_to_num(np.abs(Y)).max(0, initial=0.0))
    return np.sqrt(column_means((Y / unit - column_means(Y / unit)) ** 2)) * unit
