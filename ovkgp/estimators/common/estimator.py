"""Protocol of the estimators: all that commands, plots, reports and recipes know of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, ClassVar

import numpy as np
from gpytorch.kernels import Kernel
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from ovkgp.checks import suggest_name
from ovkgp.criticism.predictive_distributions import EntryPredictions, PredictiveDistribution
from ovkgp.criticism.residuals import Residuals, residuals_of_entries
from ovkgp.estimators.common.dates import describe_origin
from ovkgp.estimators.common.descriptions import (
    NO_STD,
    Description,
    ModelDescription,
    compose_description,
    describe_base_kernel,
    describe_options,
    describe_penalty,
    describe_training,
)
from ovkgp.estimators.common.fit_checks import list_fit_notes, list_training_problems
from ovkgp.estimators.common.options import check_constraints
from ovkgp.estimators.common.prediction_columns import PredictionColumns, PredictionRequest
from ovkgp.estimators.common.summary import Hyperparameter, Summary, pluralize, summarize_facts
from ovkgp.estimators.common.validation import convert_output_times, input_table, output_table
from ovkgp.estimators.storage.storage import SavableMixin
from ovkgp.exceptions import InputError, OptionError
from ovkgp.inference.model.fit_report import FitReport

RANGE_STDS = 2.0  # standard deviations to either side of the mean input that `input_range` covers


class Estimator(SavableMixin, BaseEstimator):
    """Protocol of the estimators: all that commands, plots, reports and recipes know of them.

    A subclass sets `kind` and `description`, has `fit` and `predict`, and overrides the methods that it can do better.

    Attributes
    ----------
    kind : {"table", "tasks", "target", "labels", "none", "series"}
        What is learned: a table (n, p), vectors at tasks (n, T, p), the quantiles of a target (n,), labels (n,), level
        sets without outputs, or a series, whose estimators have `fit_table`.
    description : Description
        Name, sentences and formula of the model.
    has_predictive : bool
        Whether `predictive` returns distributions of new observations.
    has_curves : bool
        Whether outputs are the values of curves at the points `grid_`, which can be predicted on any grid.
    has_posterior : bool
        Whether there is a `posterior_` of functions, whose intervals, draws and kernel can be plotted.
    has_costs : bool
        Whether labels are predicted at any cost of a mistake, instead of their probabilities.
    has_trained_hyperparameters : bool
        Whether hyperparameters are trained on the evidence, as those of a `GPRegressor`.
    has_leave_one_out : bool
        Whether stored training rows can be predicted from all others.
    learned_levels : ndarray or None
        Quantile levels that predictions are restricted to.
    hyperparameter_draws : ArviZ object or None
        Sampled hyperparameters.
    calibration_note : str
        Why, or how, calibration is not assessed without held-out rows.
    parameter_note, parameter_units : str
        Origin and units of `list_parameters` if hyperparameters are not trained as those of a `GPRegressor`.
    reported : tuple of tuple of str
        Pairs (attribute, name) that are shown as parameters if they are numbers.
    _parameter_constraints : dict
        Allowed values of the options, as in scikit-learn, with the rules of `common/options`.
    """

    kind: ClassVar[str] = "table"
    description: ClassVar[Description]
    has_predictive: ClassVar[bool] = False
    has_curves: ClassVar[bool] = False
    has_posterior: ClassVar[bool] = False
    has_costs: ClassVar[bool] = False
    has_trained_hyperparameters: ClassVar[bool] = False
    has_leave_one_out = False
    learned_levels = None
    calibration_note: ClassVar[str] = NO_STD
    parameter_note: ClassVar[str] = "These values were given or selected, not trained, so they have no intervals."
    parameter_units: ClassVar[str] = "original units"
    reported: ClassVar[tuple[tuple[str, str], ...]] = ()
    _parameter_constraints: ClassVar[dict[str, list]] = {}

    def __new__(cls, *arguments, **options):
        """Raise with the closest name if an option is unknown."""
        _check_names(options, cls)
        return super().__new__(cls)

    def set_params(self, **params):
        """Set options; those of a nested object are `name__option`.

        Parameters
        ----------
        **params : dict
            Options by name.

        Returns
        -------
        self : estimator
            The estimator.
        """
        _check_names((name.partition("__")[0] for name in params), type(self))
        return super().set_params(**params)

    def check_options(self) -> None:
        """Check the options; a subclass adds those of their combinations that are not supported."""
        check_constraints(self.get_params(deep=False), self._parameter_constraints)

    @property
    def class_name(self) -> str:
        """Name of the class, for messages."""
        return type(self).__name__

    def training_data(self) -> tuple[np.ndarray, np.ndarray | None] | None:
        """Return the stored training rows X (n, d) and Y in original units; None if the model stores none.

        Y is (n, p) with NaN where missing, labels (n,), or None for models without outputs.

        Returns
        -------
        X, Y : ndarray, or None
            Rows, or None instead of both.
        """
        return None

    def predictive(self, X) -> PredictiveDistribution:
        """Return the distributions of new observations at X (m, d); raise OptionError if there are none.

        Parameters
        ----------
        X : array-like of shape (m, d)
            Inputs.

        Returns
        -------
        PredictiveDistribution
            Distributions of the entries (m, p).
        """
        raise OptionError(
            f"{self.class_name} has no predictive distributions. Use GPRegressor, OVKRidge, ORFFRidge or InfiniteQuantileRegressor."
        )

    def leave_one_out_entries(self, X=None, Y=None, groups="rows") -> EntryPredictions:
        """Predict each training entry without its row or group; raise OptionError if there is no closed form.

        Parameters
        ----------
        X, Y : array-like of shape (n, d) and (n, p), or None, default=None
            Rows of the fit, for models that do not store them.
        groups : {"rows"} or array-like of shape (n,), default="rows"
            Rows with the same label are held out together.

        Returns
        -------
        EntryPredictions
            Predictions of each observed entry from the others.
        """
        if not self.has_predictive:
            return self.predictive(X)  # raises
        raise OptionError(
            f"{self.class_name} has no closed-form leave-one-out predictions. Use rows X, Y that were held out of the fit."
        )

    def normal_residuals(self, X=None, Y=None, random_state=None) -> Residuals:
        """Return residuals that are independent standard normal if the model is right, at new or at the stored training rows.

        Those of Gaussian models are whitened; others are normal scores of single entries.

        Parameters
        ----------
        X, Y : array-like of shape (m, d) and (m, p), or None, default=None
            Rows held out of the fit. If None, the stored training rows.
        random_state : int, RandomState instance or None, default=None
            Seed that selects rows of large tables, and of the random part of transforms of labels and counts.

        Returns
        -------
        Residuals
            Residuals with the index of their rows, and how they were computed.
        """
        return residuals_of_entries(self, X, Y, random_state)

    def check_rows(self, X, Y) -> tuple[np.ndarray, np.ndarray]:
        """Return X (m, d) and Y (m, p) as arrays, their columns checked against those of the fit.

        Parameters
        ----------
        X : array-like of shape (m, d)
            Inputs.
        Y : array-like of shape (m, p) or (m,)
            Outputs, NaN where missing.

        Returns
        -------
        X, Y : ndarray of shape (m, d) and (m, p)
            Arrays in the column order of the fit.
        """
        check_is_fitted(self)
        if X is None or Y is None:
            raise InputError("X and Y must be passed together. Omit both to use the training rows.")
        X = input_table(self, X, reset=False)
        return X, self._outputs(Y, X)

    def _outputs(self, Y, X: np.ndarray) -> np.ndarray:
        """Check further outputs (n, p)."""
        table, p = output_table(convert_output_times(self, Y, reset=False), X)[0], len(self.output_names_)
        if table.shape[1] != p:
            raise InputError(f"Y must have {pluralize(p, 'column')}, as in fit, got {table.shape[1]}.")
        return table

    def prediction_columns(self, X, request: PredictionRequest) -> PredictionColumns:
        """Predict at X (m, d), a data frame or an array; return the columns by name, in their order.

        Parameters
        ----------
        X : array-like of shape (m, d)
            Inputs.
        request : PredictionRequest
            Levels, quantiles, costs and grid of the prediction.

        Returns
        -------
        PredictionColumns
            Columns (m,) by name.
        """
        request.reject_options("this regressor", "quantiles", "level", "latent", "costs")
        mean = np.reshape(self.predict(X), (len(X), -1))
        return {f"{name}_mean": mean[:, j] for j, name in enumerate(self.output_names_)}

    def describe(self) -> ModelDescription:
        """Describe the fitted model in sentences, formulas and facts.

        Returns
        -------
        ModelDescription
            Title, sentences, formulas, facts and warnings.
        """
        check_is_fitted(self)
        base = describe_base_kernel(self.get_params(deep=False))
        return compose_description(self.description, base, self._facts(), **self._about())

    def _facts(self) -> dict[str, str | None]:
        """Return the facts of the description by name, None where they do not apply."""
        options = self.get_params(deep=False)
        own = {"Estimator": self.class_name, "Penalty": describe_penalty(self, options)}
        return own | describe_options(options) | {"Training": describe_training(self)}

    def _about(self) -> dict[str, Any]:
        """Return further fields of the description."""
        num_rows = getattr(self, "num_rows_", None)
        return {"structure": self._structure(), "calibration": self.calibration_note, "num_rows": num_rows}

    def _structure(self) -> str | None:
        """Return the structure of the kernel; None if there is no choice."""
        return None

    def list_parameters(self) -> list[Hyperparameter]:
        """List the parameters of the fitted model in original units; a point estimate is one draw.

        Returns
        -------
        list of Hyperparameter
            Names, values and, if they were sampled, draws.
        """
        known = ((name, getattr(self, attribute, None)) for attribute, name in self.reported)
        return [Hyperparameter.of(name, value) for name, value in known if isinstance(value, float | int)]

    def lengthscales(self) -> dict[str, np.ndarray]:
        """Return lengthscales (S, k) of the inputs in standardized units, by the name of the hyperparameter.

        Returns
        -------
        dict of str to ndarray
            Lengthscales, empty if the kernel has none.
        """
        return {}

    def largest_lengthscale(self) -> float:
        """Return the largest lengthscale in original units; the largest scale of an input if the kernel has none.

        Returns
        -------
        float
            Distance over which the model varies.
        """
        scaling = getattr(self, "scaling_", None)
        found = [row.draws.max() for row in self.list_parameters() if row.parameter.endswith("lengthscale")]
        return float(max(found, default=1.0 if scaling is None else scaling.input_scale.max()))

    def output_kernels(self) -> Iterator[Kernel]:
        """Yield the kernel between outputs, of each draw if there are any; the next one may replace its values.

        Returns
        -------
        iterator of Kernel
            Kernels whose output matrix can be read.
        """
        yield from ()

    def summary(self) -> Summary:
        """Return a text with the columns, the size and the training of the model.

        Returns
        -------
        Summary
            Text, also as rows of a table.
        """
        check_is_fitted(self)
        return summarize_facts(self, self.list_problems())

    def list_problems(self) -> list[str]:
        """List problems of the fit that a user should know of.

        Returns
        -------
        list of str
            Sentences, empty if nothing was found.
        """
        return [*list_training_problems(self), *list_fit_notes(self)]

    @property
    def hyperparameter_draws(self):
        """Sampled hyperparameters, `draws_`; None if they were not sampled."""
        return getattr(self, "draws_", None)

    @property
    def fit_report(self) -> FitReport | None:
        """Report of an iterative training; None if there was none."""
        return getattr(self, "fit_report_", None)

    @property
    def input_names(self) -> list[str] | None:
        """Input columns of the data frame that the estimator was fitted to; None for an array."""
        names = getattr(self, "feature_names_in_", None)
        return None if names is None else [str(name) for name in names]

    def input_labels(self) -> list[str]:
        """Return the input columns; "input 0", … if the estimator was fitted to an array.

        Returns
        -------
        list of str
            Labels of d columns.
        """
        return self.input_names or [f"input {i}" for i in range(self.n_features_in_)]

    def label_units(self, role: str, names: Iterable) -> list[str]:
        """Add "(days since …)" to the names of the columns, of `role` "input" or "output", that held dates.

        Parameters
        ----------
        role : {"input", "output"}
            Side of the columns.
        names : iterable of str
            Labels.

        Returns
        -------
        list of str
            Labels with their units.
        """
        names = [str(name) for name in names]
        times = getattr(self, f"{role}_times_", None) or [None] * len(names)
        return [n if time is None else f"{n} ({describe_origin(time)})" for n, time in zip(names, times, strict=True)]

    @property
    def has_output_names(self) -> bool:
        """Whether the outputs had names."""
        return self.output_names_ != ["y"]

    def output_labels(self) -> list[str]:
        """Return the output columns; "output 0", … if the estimator was fitted to an array.

        Returns
        -------
        list of str
            Labels of p columns.
        """
        return [] if self.kind == "none" else list(self.output_names_)

    def input_range(self) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
        """Return low, center and high (d,) of the training inputs, derived from the scaling; None if it is unknown.

        Returns
        -------
        low, center, high : ndarray of shape (d,), or None
            Range of each input.
        """
        scaling = getattr(self, "scaling_", None)
        if scaling is None or not (scaling.input_offset.any() or (scaling.input_scale != 1).any()):
            return None
        offset, margin = scaling.input_offset, RANGE_STDS * scaling.input_scale
        return offset - margin, offset, offset + margin

    @classmethod
    def has_checkpoints(cls, options: Mapping[str, Any]) -> bool:
        """Whether a fit with these options stores its progress in a file.

        Parameters
        ----------
        options : mapping
            Options of the constructor.

        Returns
        -------
        bool
            True if it does.
        """
        return False

    @classmethod
    def reason_not_streamable(cls, options: Mapping[str, Any]) -> str | None:
        """Return why a fit with these options needs all rows in memory; None if it supports `fit_stream`.

        Parameters
        ----------
        options : mapping
            Options of the constructor.

        Returns
        -------
        str or None
            Reason as a clause.
        """
        return "only GPRegressor and ORFFRidge can be fitted in chunks"


def _check_names(names: Iterable[str], kind: type[Estimator]) -> None:
    known = kind._get_param_names()
    for name in names:
        if name not in known:
            raise OptionError(
                f"{name!r} is not an option of {kind.__name__}{suggest_name(name, known)}. Allowed are {', '.join(known)}."
            )
