"""Protocol of all estimators, and base classes of the regressors: predictions, draws and scores in original units.

`Estimator` declares all that commands, plots, reports and recipes know of an estimator. A `PosteriorRegressor` fits `posterior_`
in the standardized units of `scaling_`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import numpy as np
import torch
from gpytorch.kernels import Kernel
from sklearn.base import BaseEstimator, MultiOutputMixin, RegressorMixin
from sklearn.metrics import r2_score
from sklearn.utils.validation import check_is_fitted

from ovkgp.criticism.predictive_distributions import EntryPredictions, PredictiveDistribution, combine_leave_one_out
from ovkgp.estimators.common.descriptions import (
    NO_LEAVE_ONE_OUT,
    NO_STD,
    SINGLE_OUTPUT_STRUCTURES,
    Description,
    ModelDescription,
    compose_description,
    describe_base_kernel,
    describe_mean,
    describe_options,
    describe_penalty,
    describe_training,
)
from ovkgp.estimators.common.options import check_constraints
from ovkgp.estimators.common.prediction_columns import PredictionColumns, PredictionRequest
from ovkgp.estimators.common.scaling import ScaledDraws
from ovkgp.estimators.common.summary import Hyperparameter, Summary, pluralize, summarize_facts
from ovkgp.estimators.common.validation import check_observed, input_table, output_table
from ovkgp.estimators.storage.storage import SavableMixin
from ovkgp.exceptions import InputError, OptionError
from ovkgp.inference.likelihoods import Likelihood
from ovkgp.inference.model.fit_report import FitReport
from ovkgp.inference.model.observations import Observations
from ovkgp.inference.model.parameter_vector import hyperparameters
from ovkgp.inference.posteriors.exact import stored_observations
from ovkgp.inference.posteriors.leave_one_out import LeaveOneOut
from ovkgp.inference.posteriors.mixture import MixturePosterior
from ovkgp.inference.posteriors.prediction import Prediction

POSTERIOR_ATTRIBUTES = (  # fitted attributes of every regressor with a `posterior_`, for model files
    "n_features_in_",
    "n_outputs_",
    "output_names_",
    "kernel_",
    "scaling_",
    "_is_flat",
    "_has_names",
)
INPUT_ATTRIBUTES = {"n_features_in_", "feature_names_in_"}  # fitted attributes that the validation of X sets


RANGE_STDS = 2.0  # standard deviations to either side of the mean input that `input_range` covers
LENGTHSCALE = "lengthscale"  # last part of the names of lengthscales


class Estimator(SavableMixin, BaseEstimator):
    """Protocol of the estimators: all that commands, plots, reports and recipes know of them.

    A subclass sets `kind` and `description`, has `fit` and `predict`, and overrides the methods that it can do better.

    Attributes
    ----------
    kind : {"table", "tasks", "target", "labels", "none"}
        What is learned: a table (n, p), vectors at tasks (n, T, p), the quantiles of a target (n,), labels (n,), or level
        sets without outputs.
    description : Description
        Name, sentences and formula of the model.
    has_predictive : bool
        Whether `predictive` returns distributions of new observations.
    has_posterior : bool
        Whether there is a `posterior_` of functions, whose intervals, draws and kernel can be plotted.
    has_costs : bool
        Whether labels are predicted at any cost of a mistake, instead of their probabilities.
    has_trained_hyperparameters : bool
        Whether hyperparameters are trained on the evidence, as those of a `GPRegressor`.
    has_leave_one_out : bool
        Whether stored training entries can be predicted from all others.
    learned_levels : ndarray or None
        Quantile levels that predictions are restricted to.
    hyperparameter_draws : ArviZ object or None
        Sampled hyperparameters.
    calibration_note : str
        Why, or how, calibration is not assessed without held-out rows.
    reported : tuple of tuple of str
        Pairs (attribute, name) that are shown as parameters if they are numbers.
    _parameter_constraints : dict
        Allowed values of the options, as in scikit-learn, with the rules of `common/options`.
    """

    kind: ClassVar[str] = "table"
    description: ClassVar[Description]
    has_predictive: ClassVar[bool] = False
    has_posterior: ClassVar[bool] = False
    has_costs: ClassVar[bool] = False
    has_trained_hyperparameters: ClassVar[bool] = False
    has_leave_one_out = False
    learned_levels = hyperparameter_draws = None
    calibration_note: ClassVar[str] = NO_STD
    reported: ClassVar[tuple[tuple[str, str], ...]] = ()
    _parameter_constraints: ClassVar[dict[str, list]] = {}

    def check_options(self) -> None:
        """Check the options; a subclass adds those of their combinations that are not supported."""
        check_constraints(self.get_params(deep=False), self._parameter_constraints)

    def training_data(self) -> tuple[np.ndarray, np.ndarray | None] | None:
        """Return the stored training rows X (n, d) and Y in original units; None if the model stores none.

        Y is (n, p) with NaN where missing, labels (n,), or None for models without outputs.
        """
        return None

    def predictive(self, X) -> PredictiveDistribution:
        """Return the distributions of new observations at X (m, d); raise OptionError if there are none."""
        raise OptionError(
            f"{type(self).__name__} has no predictive distributions. Use GPRegressor, OVKRidge, ORFFRidge or InfiniteQuantileRegressor."
        )

    def leave_one_out_entries(self, X=None, Y=None) -> EntryPredictions:
        """Predict each training entry from all others; raise OptionError if there is no closed form."""
        return self.predictive(X)

    def check_rows(self, X, Y) -> tuple[np.ndarray, np.ndarray]:
        """Return X (m, d) and Y (m, p) as arrays, their columns checked against those of the fit."""
        check_is_fitted(self)
        if X is None or Y is None:
            raise InputError("X and Y must be passed together. Omit both to use the training rows.")
        X = input_table(self, X, reset=False)
        return X, self._outputs(Y, X)

    def _outputs(self, Y, X: np.ndarray) -> np.ndarray:
        """Check further outputs (n, p)."""
        table, p = output_table(Y, X)[0], len(self.output_names_)
        if table.shape[1] != p:
            raise InputError(f"Y must have {pluralize(p, 'column')}, as in fit, got {table.shape[1]}.")
        return table

    def prediction_columns(self, X, request: PredictionRequest) -> PredictionColumns:
        """Predict at X (m, d), a data frame or an array; return the columns by name, in their order."""
        request.reject_options("this regressor", "quantiles", "level", "latent", "costs")
        mean = np.reshape(self.predict(X), (len(X), -1))
        return {f"{name}_mean": mean[:, j] for j, name in enumerate(self.output_names_)}

    def describe(self) -> ModelDescription:
        """Describe the fitted model in sentences, formulas and facts."""
        check_is_fitted(self)
        base = describe_base_kernel(self.get_params(deep=False))
        return compose_description(self.description, base, self._facts(), **self._about())

    def _facts(self) -> dict[str, str | None]:
        """Return the facts of the description by name, None where they do not apply."""
        options = self.get_params(deep=False)
        own = {"Estimator": type(self).__name__, "Penalty": describe_penalty(self, options)}
        return own | describe_options(options) | {"Training": describe_training(self)}

    def _about(self) -> dict[str, Any]:
        """Return further fields of the description."""
        num_rows = getattr(self, "num_rows_", None)
        return {"structure": self._structure(), "calibration": self.calibration_note, "num_rows": num_rows}

    def _structure(self) -> str | None:
        """Return the structure of the kernel; None if there is no choice."""
        return None

    def list_parameters(self) -> list[Hyperparameter]:
        """List the parameters of the fitted model in original units; a point estimate is one draw."""
        known = ((name, getattr(self, attribute, None)) for attribute, name in self.reported)
        return [Hyperparameter.of(name, value) for name, value in known if isinstance(value, float | int)]

    def lengthscales(self) -> dict[str, np.ndarray]:
        """Return lengthscales (S, k) of the inputs in standardized units, by the name of the hyperparameter."""
        return {}

    def output_kernels(self) -> Iterator[Kernel]:
        """Yield the kernel between outputs, of each draw if there are any; the next one may replace its values."""
        yield from ()

    def summary(self) -> Summary:
        """Return a text with the columns, the size and the training of the model."""
        check_is_fitted(self)
        return summarize_facts(self)

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
        """Return the input columns; "input 0", … if the estimator was fitted to an array."""
        return self.input_names or [f"input {i}" for i in range(self.n_features_in_)]

    @property
    def has_output_names(self) -> bool:
        """Whether the outputs had names."""
        return self.output_names_ != ["y"]

    def output_labels(self) -> list[str]:
        """Return the output columns; "output 0", … if the estimator was fitted to an array."""
        return [] if self.kind == "none" else list(self.output_names_)

    def input_range(self) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
        """Return low, center and high (d,) of the training inputs, derived from the scaling; None if it is unknown."""
        scaling = getattr(self, "scaling_", None)
        if scaling is None or not (scaling.input_offset.any() or (scaling.input_scale != 1).any()):
            return None
        offset, margin = scaling.input_offset, RANGE_STDS * scaling.input_scale
        return offset - margin, offset, offset + margin

    @classmethod
    def has_checkpoints(cls, options: Mapping[str, Any]) -> bool:
        """Whether a fit with these options stores its progress in a file."""
        return False

    @classmethod
    def reason_not_streamable(cls, options: Mapping[str, Any]) -> str | None:
        """Return why a fit with these options needs all rows in memory; None if it supports `fit_stream`."""
        return "only GPRegressor and ORFFRidge can be fitted in chunks"

    def complete(self) -> None:
        """Compute what predictions would compute at their first call, so that a model file contains it."""


def check_estimator(estimator) -> None:
    """Check that an object is a fitted estimator of this package."""
    if not isinstance(estimator, Estimator):
        raise InputError(
            f"estimator must be an estimator of ovkgp, such as GPRegressor, got {type(estimator).__name__}. Pass the estimator itself, not a pipeline or search that contains it."
        )
    check_is_fitted(estimator)


class TableRegressor(MultiOutputMixin, RegressorMixin, Estimator):
    """Base class of regressors with tables X (n, d) and Y (n, p)."""

    @property
    def has_output_names(self) -> bool:
        """Whether the outputs had names."""
        return self._has_names

    def output_labels(self) -> list[str]:
        """Return the output columns; "output 0", … if the estimator was fitted to an array."""
        return list(self.output_names_) if self._has_names else [f"output {a}" for a in range(self.n_outputs_)]

    def _structure(self) -> str | None:
        """Return the structure of the kernel; "auto" and "independent" of a ridge are one kernel for all outputs."""
        structure = getattr(self, "kernel_", None)
        if structure in SINGLE_OUTPUT_STRUCTURES and self.n_outputs_ == 1:
            return "single"
        if structure in ("auto", "independent") and not self.has_trained_hyperparameters:
            return "identity" if self.output_matrix is None else "decomposable"
        return structure

    def score(self, X, y, sample_weight=None) -> float:
        """Return R² over the observed entries of each output, averaged over the outputs.

        Parameters
        ----------
        X : array-like of shape (m, d)
            Inputs.
        y : array-like of shape (m, p) or (m,)
            Outputs, NaN where missing.
        sample_weight : array-like of shape (m,) or None, default=None
            Weights of the rows.

        Returns
        -------
        float
            Mean R².
        """
        predicted = np.reshape(self.predict(X), (-1, self.n_outputs_))
        Y = self._outputs(y, predicted)
        weight = np.ones(len(Y)) if sample_weight is None else np.asarray(sample_weight, dtype=float)
        observed = np.isfinite(Y)
        columns = [a for a in range(Y.shape[1]) if observed[:, a].any()]
        if not columns:
            raise InputError("y has no observed values. Pass at least one observation.")
        scores = [
            r2_score(Y[s, a], predicted[s, a], sample_weight=weight[s]) for a in columns for s in [observed[:, a]]
        ]
        return float(np.mean(scores))

    def _enter(self, X, Y) -> tuple[np.ndarray, np.ndarray]:
        """Check X (n, d) and Y (n, p), store their columns, and remove the attributes of an earlier fit."""
        X = input_table(self, X, reset=True)
        Y, names, self._is_flat = output_table(Y, X)
        check_observed(np.isfinite(Y).sum(0), names)
        for fitted in [name for name in vars(self) if name.endswith("_") and name not in INPUT_ATTRIBUTES]:
            delattr(self, fitted)
        self.n_outputs_ = Y.shape[1]
        self.output_names_ = names or [f"y{a}" for a in range(Y.shape[1])]
        self._has_names = names is not None
        return X, Y

    def _outputs(self, Y, X: np.ndarray) -> np.ndarray:
        """Check further outputs (n, p); if named, their names must be those of the fit."""
        table, names, _ = output_table(Y, X)
        if table.shape[1] != self.n_outputs_:
            raise InputError(f"Y must have {self.n_outputs_} columns, as in fit, got {table.shape[1]}.")
        if names is not None and self._has_names and names != self.output_names_:
            raise InputError(f"Y must have the columns {self.output_names_}, in this order, got {names}.")
        return table

    def _flat(self, values: np.ndarray) -> np.ndarray:
        return values[:, 0] if self._is_flat else values

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.target_tags.single_output = True
        return tags


class PosteriorRegressor(TableRegressor):
    """Base class of regressors with a `posterior_` and a `scaling_`."""

    has_predictive = has_posterior = True
    calibration_note = NO_LEAVE_ONE_OUT

    def predict(self, X, return_std=False, return_cov=False, noise=True):
        """Predict at X.

        Parameters
        ----------
        X : array-like of shape (m, d)
            Inputs.
        return_std : bool, default=False
            Whether to return the standard deviation.
        return_cov : bool or "full", default=False
            Whether to return the covariance between outputs at each point, (m, p, p), or, for "full", between all entries,
            (m·p, m·p), data-major. Not available for new labels, classes and counts.
        noise : bool, default=True
            Whether to predict a new observation, or the latent function. For labels and classes the latent function is a
            log-odds, for counts the logarithm of the expected count.

        Returns
        -------
        mean : ndarray of shape (m, p), or (m,) if Y was one-dimensional
            Posterior mean; for labels, classes and counts, the probability or the expected count.
        std or cov : ndarray
            Only if requested.
        """
        if return_std and return_cov:
            raise OptionError(
                "return_std and return_cov cannot both be set. The standard deviation is the square root of the diagonal of cov."
            )
        if return_cov not in (False, True, "full"):
            raise OptionError(f'return_cov must be False, True or "full", got {return_cov!r}.')
        form = "full" if return_cov == "full" else "output" if return_cov else "diag" if return_std else "none"
        X = self._inputs(X)
        prediction = self.posterior_.predict(X, form, noise=bool(noise))
        if return_cov and prediction.form == "diag":
            raise OptionError(
                "return_cov is not supported for new labels, classes and counts. Use return_std, noise=False for the latent function, or the covariance of sample_y."
            )
        mean = self._flat(self.scaling_.mean(prediction.mean))
        if return_std:
            return mean, self._flat(self.scaling_.std(prediction.std))
        return (mean, self.scaling_.cov(prediction.cov)) if return_cov else mean

    def predict_quantiles(self, X, quantiles=None, noise=True) -> np.ndarray:
        """Predict quantiles at X.

        They are those of the mixture if predictions average over hyperparameter draws, and those of the likelihood if outputs
        are not Gaussian: for a count, the smallest value that is not exceeded with the given probability.

        Parameters
        ----------
        X : array-like of shape (m, d)
            Inputs.
        quantiles : float, array-like of shape (q,) or None, default=None
            Levels strictly between 0 and 1. If None, the median.
        noise : bool, default=True
            Whether to predict a new observation, or the latent function.

        Returns
        -------
        ndarray of shape (m, p) for one level, (m, p, q) for q levels
            Without the axis of outputs if Y was one-dimensional.

        Examples
        --------
        >>> import numpy as np
        >>> import ovkgp
        >>> X = np.linspace(0, 6, 30)[:, None]
        >>> model = ovkgp.GPRegressor(random_state=0).fit(X, np.sin(X[:, 0]))
        >>> model.predict_quantiles(X[:3], [0.05, 0.5, 0.95]).shape
        (3, 3)
        """
        X = self._inputs(X)
        found = self.posterior_.predict(X, "diag", noise=bool(noise)).quantile(0.5 if quantiles is None else quantiles)
        if found.dim() > 3:
            raise OptionError(f"quantiles must be a level or a list of levels, got shape {np.shape(quantiles)}.")
        found = self.scaling_.mean(found)
        found = found if found.ndim == 2 else np.moveaxis(found, 0, -1)
        return self._flat(found)

    def predict_interval(self, X, level=0.95, noise=True) -> tuple[np.ndarray, np.ndarray]:
        """Predict central intervals at X.

        Parameters
        ----------
        X : array-like of shape (m, d)
            Inputs.
        level : float, default=0.95
            Probability that an interval contains the entry, strictly between 0 and 1.
        noise : bool, default=True
            Whether to predict a new observation, or the latent function.

        Returns
        -------
        lower, upper : ndarray of shape (m, p), or (m,) if Y was one-dimensional
            Ends of the intervals.

        Examples
        --------
        >>> import numpy as np
        >>> import ovkgp
        >>> X = np.linspace(0, 6, 30)[:, None]
        >>> model = ovkgp.OVKRidge(lam=0.1).fit(X, np.sin(X[:, 0]))
        >>> lower, upper = model.predict_interval(X, 0.9)
        >>> lower.shape, bool((lower < upper).all())
        ((30,), True)
        """
        X = self._inputs(X)
        ends = self.posterior_.predict(X, "diag", noise=bool(noise)).interval(level)
        lower, upper = (self._flat(self.scaling_.mean(end)) for end in ends)
        return lower, upper

    def sample_y(self, X, n_samples=1, random_state=0, noise=True) -> np.ndarray:
        """Sample jointly from the predictive distribution at X.

        Parameters
        ----------
        X : array-like of shape (m, d)
            Inputs.
        n_samples : int, default=1
            Number of draws.
        random_state : int, RandomState instance or None, default=0
            Seed.
        noise : bool, default=True
            Whether to sample new observations, or the latent function.

        Returns
        -------
        ndarray of shape (m, p, n_samples), or (m, n_samples) if Y was one-dimensional
            Draws.
        """
        X = self._inputs(X)
        draws = self.posterior_.sample(X, n_samples, noise=noise, random_state=random_state)
        draws = np.moveaxis(self.scaling_.mean(draws), 0, -1)
        return draws[:, 0] if self._is_flat else draws

    def sample_functions(self, k=1, random_state=None) -> ScaledDraws:
        """Sample latent functions from the posterior.

        Parameters
        ----------
        k : int, default=1
            Number of functions.
        random_state : int, RandomState instance or None, default=None
            Seed.

        Returns
        -------
        ScaledDraws
            `draws[i](X)` is (m, p) and `draws(X)` is (k, m, p), the same functions at every call.
        """
        check_is_fitted(self, "posterior_")
        draws = self.posterior_.sample_functions(k, random_state=random_state)
        return ScaledDraws(draws, self.scaling_, self._is_flat)

    def training_data(self) -> tuple[np.ndarray, np.ndarray] | None:
        """Return the stored training rows X (n, d) and Y (n, p) in original units; None if the model stores none."""
        data = self.training_observations()
        return None if data is None else self.scaling_.original(data.X.numpy(), data.Y.numpy())

    def training_observations(self) -> Observations | None:
        """Return the stored training rows in standardized units, with known noise; None if the model stores none."""
        check_is_fitted(self, "posterior_")
        return stored_observations(self.posterior_)

    @property
    def likelihood_(self) -> Likelihood | None:
        """Likelihood p(y | f) of a variational model; None for additive Gaussian noise."""
        return getattr(getattr(self, "gp_", None), "likelihood", None)

    def prediction_columns(self, X, request: PredictionRequest) -> PredictionColumns:
        """Predict mean, standard deviation and quantiles of each output at X (m, d), from one prediction."""
        request.reject_options("a regressor", "costs")
        prediction = self.posterior_.predict(self._inputs(X), "diag", noise=not request.latent)
        levels, scaling = request.levels, self.scaling_
        quantiles = scaling.mean(prediction.quantile(levels)) if levels else np.empty((0, *prediction.mean.shape))
        return request.name_columns(
            self.output_names_, scaling.mean(prediction.mean), scaling.std(prediction.std), quantiles
        )

    def lengthscales(self) -> dict[str, np.ndarray]:
        """Return lengthscales (1, k) of the kernel in standardized units, by the name of the hyperparameter."""
        found = hyperparameters(self.gp_.kernel).items()
        return {n: v.detach().numpy().reshape(1, -1) for n, v in found if n.rpartition(".")[2] == LENGTHSCALE}

    def output_kernels(self) -> Iterator[Kernel]:
        """Yield the kernel, of each draw if there are any; the next one may replace its values."""
        if not isinstance(self.posterior_, MixturePosterior):
            yield self.gp_.kernel
            return
        for index in range(len(self.posterior_)):
            yield self.posterior_.parts.set_draw(index).kernel

    def _facts(self) -> dict[str, str | None]:
        return super()._facts() | {"Prior mean": describe_mean(self.gp_.mean, self.scaling_.output_offset)}

    def predictive(self, X) -> PredictiveDistribution:
        """Return the distributions of new observations at X (m, d)."""
        prediction = self.posterior_.predict(self._inputs(X), "diag", noise=True)
        likelihood = self.likelihood_
        is_continuous = torch.ones(self.n_outputs_, dtype=torch.bool) if likelihood is None else likelihood.is_real

        @torch.no_grad()
        def cdf(Y: np.ndarray) -> np.ndarray:
            return prediction.cdf(self.scaling_.outputs(Y)).numpy()

        @torch.no_grad()
        def cdf_below(Y: np.ndarray) -> np.ndarray:
            y = self.scaling_.outputs(Y)
            return torch.where(is_continuous, prediction.cdf(y), prediction.cdf(y - 1)).numpy()

        mean, std = self.scaling_.mean(prediction.mean), self.scaling_.std(prediction.std)
        below = cdf if is_continuous.all() else cdf_below
        return PredictiveDistribution(mean, std, cdf, below, is_gaussian=type(prediction) is Prediction)

    @property
    def has_leave_one_out(self) -> bool:
        """Whether there is a closed form, which variational models do not have, and training rows are stored."""
        return self.likelihood_ is None and self.training_observations() is not None

    def leave_one_out_entries(self, X=None, Y=None) -> EntryPredictions:
        """Predict each training entry from all others in closed form.

        X and Y are the training rows, which a model with features does not store; without them the stored rows are used.

        Raises
        ------
        OptionError
            If no rows are stored and none are passed, or the model has no closed form.
        """
        if self.likelihood_ is not None:
            raise OptionError(
                "A variational model has no closed-form leave-one-out predictions. Use rows X, Y that were held out of the fit."
            )
        if X is not None or Y is not None:
            X, Y = self.check_rows(X, Y)
            data = Observations(self.scaling_.inputs(X), self.scaling_.outputs(Y))
        elif (data := self.training_observations()) is None:
            raise OptionError(
                "The model stores no training rows. Pass X and Y: the training rows for leave-one-out, or held-out rows."
            )
        mean, std, cdf, is_gaussian = combine_leave_one_out(self._leave_one_out(data), data.Y)
        scaling = self.scaling_
        u = cdf.numpy()
        return EntryPredictions(scaling.mean(data.Y), scaling.mean(mean), scaling.std(std), u, u, is_gaussian)

    def _leave_one_out(self, data: Observations) -> Iterator[LeaveOneOut]:
        """Yield leave-one-out predictions of each hyperparameter draw, or of the point estimate."""
        if not isinstance(self.posterior_, MixturePosterior):
            yield self.gp_.leave_one_out(data.X, data.Y, data.noise)
            return
        for index in range(len(self.posterior_)):
            yield self.posterior_.parts.set_draw(index).leave_one_out(data.X, data.Y, data.noise)

    def _inputs(self, X) -> torch.Tensor:
        check_is_fitted(self, "posterior_")
        return self.scaling_.inputs(input_table(self, X, reset=False))
