"""`GPClassifier`, Gaussian process classification of one or several columns of labels by Laplace approximations."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

import numpy as np
import pandas as pd
from sklearn.base import ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_consistent_length, check_is_fitted
from tqdm import tqdm

from ovkgp.checks import as_seed
from ovkgp.estimators.common.descriptions import Description, ModelDescription
from ovkgp.estimators.common.estimator import Estimator
from ovkgp.estimators.common.fit_checks import list_training_problems
from ovkgp.estimators.common.formatting import format_number
from ovkgp.estimators.common.options import RANDOM_STATE, VERBOSE, integer, names_in, restore_on_error
from ovkgp.estimators.common.prediction_columns import PredictionColumns, PredictionRequest
from ovkgp.estimators.common.scaling import Moments, Scaling
from ovkgp.estimators.common.summary import Hyperparameter, pluralize
from ovkgp.estimators.common.validation import (
    as_dense_array,
    input_table,
    output_names,
    raise_input_errors,
    warn_about_distant_rows,
)
from ovkgp.estimators.storage.storage import storable
from ovkgp.estimators.storage.values import storable_record
from ovkgp.exceptions import FitWarning, InputError, OptionError
from ovkgp.inference.model.fit_report import FitReport
from ovkgp.inference.stacking.class_mixture import (
    ClassMixture,
    class_candidates,
    fit_class_mixture,
    max_posterior_rows,
)
from ovkgp.inference.stacking.output_kernel import is_output_kernel
from ovkgp.kernels.records import named_kernels


@storable_record
@dataclass(frozen=True, eq=False)
class LabelColumn:
    """Fitted model of one column: its classes (C,), sorted, the standardization of the inputs, and the classifier."""

    classes: np.ndarray
    scaling: Scaling
    mixture: ClassMixture


@storable("n_features_in_", "output_names_", "classes_", "columns_", "_seed")
class GPClassifier(ClassifierMixin, Estimator):
    """Gaussian process classification with calibrated probabilities and without options to tune.

    Two classes have one latent function, the log odds of the second one; more classes have one each and the softmax link. Latent
    functions are Gaussian processes with a constant, a linear and a smooth term, whose posterior is approximated by Laplace's
    method. The prediction is a mixture of two models, with one lengthscale and with one per input, with weights and a calibration from
    leave-one-out predictions. Several columns of labels are learned independently of each other.

    Parameters
    ----------
    base_kernel : {"matern52", "matern32", "matern12", "rbf", "rq"}, default="matern52"
        Kernel of the smooth term.
    training_rows : int or None, default=300
        Maximum number of rows used to train the hyperparameters. If a column has more labels, a random subset with the same class
        frequencies is used. If None, all rows are used.
    random_state : int, RandomState instance or None, default=None
        Seed that selects the subset.
    verbose : int, default=0
        If 1, progress is shown.

    Attributes
    ----------
    classes_ : ndarray of shape (K,), or list of ndarray
        Labels, sorted; a list with one array per column if y has several columns.
    columns_ : list of LabelColumn
        Classes, standardization of the inputs and mixture of Gaussian process classifiers of each column.
    output_names_, n_features_in_, feature_names_in_
        Names of the columns of y, names and number of inputs.

    See Also
    --------
    SimplexClassifier : Classification by ridge regression, for a given λ.
    GPRegressor : Regression; `likelihood="bernoulli"` and `"softmax"` are variational models of labels.

    Notes
    -----
    The covariance of standardized inputs is 10 + v x·z + s² κ(|x − z|/ℓ). Hyperparameters maximize the approximate evidence under
    priors that are normal in the logarithm; its gradient is exact. Laplace's method is underconfident: the probabilities π become
    π^τ / Σ π^τ, where τ maximizes the leave-one-out density [1]_ [2]_.

    Complexity: O(C n³) for each Newton step and each evaluation of the evidence, n ≤ `training_rows` in training, and O(C n²) memory, with
    C = 1 for two classes. A posterior has at most 4000 rows (5657/√C for C > 2 classes); of more, a random subset with the same class
    frequencies is used, with a warning.

    References
    ----------
    .. [1] C. E. Rasmussen and C. K. I. Williams, "Gaussian processes for machine learning", MIT Press 2006, chapters 3 and 5.
    .. [2] A. Vehtari, T. Mononen, V. Tolvanen, T. Sivula and O. Winther, "Bayesian leave-one-out cross-validation approximations for
       Gaussian latent variable models", JMLR 17, 2016.

    Examples
    --------
    >>> import ovkgp
    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> model = ovkgp.GPClassifier().fit(X[::2], y[::2])
    >>> model.score(X[1::2], y[1::2]) > 0.9
    True
    >>> model.predict_proba(X[:2]).shape
    (2, 3)
    """

    kind = "labels"
    description = Description(
        "Gaussian process classification",
        "Each class has a latent function (two classes have one, the log odds), a Gaussian process whose posterior is approximated by Laplace's method. The prediction averages over a model with one lengthscale and one with a lengthscale per input; its probabilities are calibrated by leave-one-out predictions.",
        "P(y = c | x) = E e^{f_c(x)} / Σ_k e^{f_k(x)},   f_c ~ GP(0, 10 + v x·z + s^2 κ(|x − z|/ℓ))",
    )
    parameter_note = (
        "These values maximize the approximate evidence under weak priors. Variances are those of log odds."
    )
    _parameter_constraints: ClassVar[dict[str, list]] = {
        "base_kernel": [names_in(lambda: filter(is_output_kernel, named_kernels()))],
        "training_rows": [integer(2), None],
        "random_state": RANDOM_STATE,
        "verbose": VERBOSE,
    }

    def __init__(self, base_kernel="matern52", training_rows=300, random_state=None, verbose=0):
        self.base_kernel = base_kernel
        self.training_rows = training_rows
        self.random_state = random_state
        self.verbose = verbose

    def fit(self, X, y) -> GPClassifier:
        """Fit the classifier.

        Parameters
        ----------
        X : array-like of shape (n, d)
            Inputs.
        y : array-like of shape (n,) or (n, q)
            Labels: numbers, strings or booleans, with at least two classes in each column. NaN, None and NaT are missing labels;
            their rows are not used for that column.

        Returns
        -------
        self : GPClassifier
            Fitted estimator.
        """
        with restore_on_error(self):
            self.check_options()
            X = input_table(self, X, reset=True)
            columns = _read_labels(y, X)
            self.output_names_ = output_names(y) or (
                ["y"] if len(columns) == 1 else [f"output {j}" for j in range(len(columns))]
            )
            warn_about_distant_rows(X, self.input_labels())
            self._seed = as_seed(self.random_state)
            self.columns_ = [
                self._fit_column(X, *column, name) for column, name in zip(columns, self.output_names_, strict=True)
            ]
            classes = [column.classes for column in self.columns_]
            self.classes_ = classes[0] if len(classes) == 1 else classes
            for problem in list_training_problems(self):
                warnings.warn(problem, FitWarning, stacklevel=2)
        return self

    @property
    def fit_report_(self) -> FitReport:
        """Report of the training of all components: number of evaluations, and whether all converged."""
        check_is_fitted(self)
        parts = [part.report for column in self.columns_ for part in column.mixture.components]
        slow = next((part for part in parts if not part.converged), parts[0])
        totals = {
            name: sum(getattr(part, name) for part in parts)
            for name in ("iterations", "evaluations", "failures", "seconds")
        }
        return replace(
            slow,
            objective=sum(part.objective for part in parts),
            num_rows=sum(len(column.mixture.X) for column in self.columns_),
            **totals,
        )

    def _fit_column(self, X: np.ndarray, labels: np.ndarray, is_observed: np.ndarray, name: str) -> LabelColumn:
        """Fit the classifier of one column to the rows with labels."""
        rows = X[is_observed].astype(np.float64)
        classes, indices = np.unique(labels, return_inverse=True)
        if len(classes) < 2:
            found = f"one class only: {classes.tolist()[0]!r}" if len(classes) else "no labels"
            raise InputError(
                f"y must have at least 2 classes in each column, got {found}, in column {name!r}. Drop the column or add rows."
            )
        if len(rows) > (limit := max_posterior_rows(len(classes))):
            warnings.warn(
                f"Column {name!r} has {len(rows)} labels, of which a random subset of {limit} is used: the matrices of {pluralize(len(classes), 'class', 'classes')} would not fit in memory. Use SimplexClassifier with num_frequencies, or GPRegressor with a likelihood of labels, to use all rows.",
                FitWarning,
                stacklevel=4,
            )
        moments = Moments.of(rows)
        scaling = Scaling.of(rows, np.zeros((len(rows), 1)), scale_inputs=True, shared=False)
        scaling = scaling.without_constant_inputs(moments)
        inputs = scaling.inputs(rows).numpy()
        mixture = fit_class_mixture(
            inputs,
            indices.reshape(-1),
            len(classes),
            class_candidates(inputs.shape[1], self.base_kernel),
            self.training_rows,
            self._seed,
            partial(tqdm, desc=f"candidates of {name}", disable=not self.verbose),
        )
        return LabelColumn(classes, scaling, mixture)

    def predict(self, X) -> np.ndarray:
        """Return the most probable class.

        Parameters
        ----------
        X : array-like of shape (m, d)
            Inputs.

        Returns
        -------
        ndarray of shape (m,) or (m, q)
            Labels; two-dimensional if y had several columns.
        """
        log_probabilities = self._by_column(X, ClassMixture.log_probabilities)
        labels = [c.classes[log_p.argmax(1)] for c, log_p in zip(self.columns_, log_probabilities, strict=True)]
        if len(labels) == 1:
            return labels[0]
        kinds = {column.dtype.kind for column in labels}
        return np.stack(labels if len(kinds) == 1 else [column.astype(object) for column in labels], 1)

    def predict_proba(self, X, return_std=False):
        """Return the calibrated probability of each class.

        Parameters
        ----------
        X : array-like of shape (m, d)
            Inputs.
        return_std : bool, default=False
            Whether to return the standard deviations of the latent functions of `predict_latent`.

        Returns
        -------
        probabilities : ndarray of shape (m, K), or list of ndarray
            Probabilities in the order of `classes_`; a list with one array per column if y had several.
        std : ndarray of shape (m,) or (m, K), or list of ndarray
            Only if `return_std`. Standard deviations of the log odds (m,) of two classes, or of the latent functions (m, K).
        """
        probabilities = [np.exp(log_p) for log_p in self._by_column(X, ClassMixture.log_probabilities)]
        if not return_std:
            return self._unlisted(probabilities)
        return self._unlisted(probabilities), self.predict_latent(X, return_std=True)[1]

    def predict_log_proba(self, X):
        """Return the logarithm of `predict_proba`.

        Parameters
        ----------
        X : array-like of shape (m, d)
            Inputs.

        Returns
        -------
        ndarray of shape (m, K), or list of ndarray
            Log probabilities in the order of `classes_`.
        """
        return self._unlisted(self._by_column(X, ClassMixture.log_probabilities))

    def predict_latent(self, X, return_std=False):
        """Return the latent functions: log odds of `classes_[1]` of two classes, else one function per class, which sum to zero.

        They are those of the approximate posterior, before probabilities are calibrated.

        Parameters
        ----------
        X : array-like of shape (m, d)
            Inputs.
        return_std : bool, default=False
            Whether to return standard deviations.

        Returns
        -------
        mean : ndarray of shape (m,) or (m, K), or list of ndarray
            Posterior means; a list with one array per column if y had several.
        std : ndarray of the same shape
            Only if `return_std`.
        """
        means, stds = zip(*self._by_column(X, ClassMixture.scores), strict=True)
        return (self._unlisted(means), self._unlisted(stds)) if return_std else self._unlisted(means)

    def score(self, X, y, sample_weight=None) -> float:
        """Return the accuracy: the fraction of rows whose labels are all predicted.

        Parameters
        ----------
        X : array-like of shape (m, d)
            Inputs.
        y : array-like of shape (m,) or (m, q)
            Labels. Missing ones are ignored, and rows without any label.
        sample_weight : array-like of shape (m,) or None, default=None
            Weights of the rows.

        Returns
        -------
        float
            Accuracy.
        """
        predicted = np.reshape(self.predict(X), (len(X), -1))
        columns = _read_labels(y, predicted)
        if len(columns) != len(self.columns_):
            raise InputError(f"y has {pluralize(len(columns), 'column')}, expected {len(self.columns_)}, as in fit.")
        is_right, has_labels = np.ones(len(predicted), dtype=bool), np.zeros(len(predicted), dtype=bool)
        for (labels, is_observed), column in zip(columns, predicted.T, strict=True):
            is_right[is_observed] &= labels == column[is_observed]
            has_labels |= is_observed
        if not has_labels.any():
            raise InputError("y has no labels. Pass at least one row with a label.")
        weights = None if sample_weight is None else np.asarray(sample_weight, dtype=np.float64)[has_labels]
        return float(np.average(is_right[has_labels], weights=weights))

    def prediction_columns(self, X, request: PredictionRequest) -> PredictionColumns:
        """Predict class and probabilities of each column of labels."""
        request.reject_options("this classifier", "quantiles", "level", "latent", "costs")
        found = {}
        log_probabilities = self._by_column(X, ClassMixture.log_probabilities)
        for name, column, log_p in zip(self.output_names_, self.columns_, log_probabilities, strict=True):
            found[f"{name}_class"] = column.classes[log_p.argmax(1)]
            found |= {f"{name}_p_{label}": np.exp(log_p[:, k]) for k, label in enumerate(column.classes)}
        return found

    def training_data(self) -> tuple[np.ndarray, np.ndarray] | None:
        """Return the rows X (n, d) of the posterior and their labels (n,); None if y had several columns."""
        check_is_fitted(self)
        if len(self.columns_) > 1:
            return None
        column = self.columns_[0]
        X, _ = column.scaling.original(column.mixture.X, np.zeros((len(column.mixture.X), 1)))
        return X, column.classes[column.mixture.labels]

    def list_parameters(self) -> list[Hyperparameter]:
        """List weights, lengthscales and variances of the components of each column, and the power τ of the probabilities."""
        found = []
        for name, column in zip(self.output_names_, self.columns_, strict=True):
            row = partial(_make_row, name if len(self.columns_) > 1 else "")
            scaling, inputs = column.scaling, np.array(self.input_labels())
            found.append(row("power τ of probabilities", column.mixture.power))
            for part in column.mixture.components:
                label = part.candidate.name
                found.append(row(f"{label}: weight", part.weight))
                for parameter, values in part.hyperparameters(column.mixture.X).items():
                    if parameter != "lengthscale":
                        found.append(row(f"{label}: {parameter}", values.item()))
                        continue
                    own = values * scaling.input_scale[scaling.used_inputs]
                    names = inputs[scaling.used_inputs]
                    found += [row(f"{label}: lengthscale", v, i) for v, i in zip(own, names, strict=True)]
        return found

    def describe(self) -> ModelDescription:
        """Describe the fitted model; raise OptionError if y had several columns."""
        check_is_fitted(self)
        if len(self.columns_) > 1:
            raise OptionError(
                f"Descriptions and reports are of one column of labels, got {len(self.columns_)}. Fit one GPClassifier per column."
            )
        return super().describe()

    def _facts(self) -> dict[str, str | None]:
        mixture = self.columns_[0].mixture
        weights = ", ".join(f"{part.candidate.name}: {part.weight:.2f}" for part in mixture.components)
        num_rows = len(mixture.X)
        trained = num_rows if self.training_rows is None else min(self.training_rows, num_rows)
        return super()._facts() | {
            "Approximation": f"Laplace approximation at {pluralize(num_rows, 'row')}",
            "Hyperparameters": f"by approximate evidence on {pluralize(trained, 'row')}",
            "Candidates": weights,
        }

    def _about(self) -> dict:
        column = self.columns_[0]
        frequencies = np.bincount(column.mixture.labels) / len(column.mixture.labels)
        entropy = -float(np.sum(frequencies * np.log(frequencies)))
        note = (
            f"Probabilities were calibrated by leave-one-out predictions of {pluralize(len(column.mixture.X), 'row')}. Log loss of these: "
            f"{format_number(column.mixture.log_loss, 3)} ({format_number(entropy, 3)} for the class frequencies alone)."
        )
        return super()._about() | {"calibration": note, "num_rows": len(column.mixture.X)}

    @property
    def scaling_(self) -> Scaling:
        """Standardization of the inputs, of the first column of labels."""
        check_is_fitted(self)
        return self.columns_[0].scaling

    def _by_column(self, X, compute: Callable) -> list:
        """Apply a method of `ClassMixture` to the standardized inputs of each column."""
        check_is_fitted(self)
        X = input_table(self, X, reset=False)
        return [compute(column.mixture, column.scaling.inputs(X).numpy()) for column in self.columns_]

    def _unlisted(self, values):
        """Return the only value, or the list of those of several columns."""
        return values[0] if len(values) == 1 else list(values)

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_label = True
        tags.target_tags.multi_output = True
        return tags


def _make_row(output: str, parameter: str, value: float, input: str = "") -> Hyperparameter:
    return Hyperparameter(parameter, output, str(input), np.full((1, 1), float(value)))


def _read_labels(y, X: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return the observed labels and the mask (n,) of their rows, of each column of y (n,) or (n, q)."""
    if y is None:
        raise InputError("This estimator requires y to be passed, but the target y is None.")
    y = as_dense_array(y, "y")
    if isinstance(y, pd.DataFrame):
        columns = [y.iloc[:, j].to_numpy() for j in range(y.shape[1])]
    else:
        # a list with NaN among strings would become an array with the string "nan"
        table = y.to_numpy() if isinstance(y, pd.Series | pd.Categorical) else y
        table = np.asarray(table) if hasattr(table, "dtype") else np.array(table, dtype=object)
        if table.ndim not in (1, 2):
            raise InputError(f"y must have shape (n,) or (n, q), got {table.shape}.")
        columns = list(table.reshape(len(table), -1).T)
    if not columns or not len(columns[0]):
        raise InputError(f"y must have at least one row and one column, got shape {np.shape(y)}.")
    with raise_input_errors("y"):
        check_consistent_length(X, columns[0])
    return [_read_column(np.asarray(column)) for column in columns]


def _read_column(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the observed labels of a column, and the mask (n,) of their rows."""
    is_observed = ~pd.isna(values)
    labels = values[is_observed]
    if labels.dtype.kind == "O":
        kinds = {str if isinstance(label, str) else type(label) for label in labels.tolist()}
        if str in kinds and len(kinds) > 1:
            raise InputError(
                f"y must have labels of one type in each column, got {', '.join(sorted(kind.__name__ for kind in kinds))}. Convert them to strings."
            )
        labels = np.array(labels.tolist())
    if labels.dtype.kind == "f" and np.isinf(labels).any():
        raise InputError("y must have finite labels, got infinity. Use NaN for missing labels.")
    if len(labels):
        with raise_input_errors("y"):
            check_classification_targets(labels)
    return labels, is_observed
