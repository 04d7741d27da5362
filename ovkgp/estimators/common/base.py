"""Base classes of the regressors: predictions, draws and scores in original units.

A `PosteriorRegressor` fits `posterior_` in the standardized units of `scaling_`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, overload

import numpy as np
import torch
from gpytorch.kernels import Kernel
from sklearn.base import MultiOutputMixin, RegressorMixin
from sklearn.utils.validation import check_is_fitted

from ovkgp.checks import as_seed
from ovkgp.criticism.predictive_distributions import EntryPredictions, PredictiveDistribution, combine_leave_one_out
from ovkgp.criticism.residuals import Residuals, match_rows
from ovkgp.estimators.common.descriptions import NO_LEAVE_ONE_OUT, SINGLE_OUTPUT_STRUCTURES, describe_mean
from ovkgp.estimators.common.estimator import Estimator
from ovkgp.estimators.common.field_parts import FieldPartsMixin
from ovkgp.estimators.common.prediction_columns import PredictionColumns, PredictionRequest
from ovkgp.estimators.common.residuals import whiten_new_rows, whiten_training_rows
from ovkgp.estimators.common.scaling import ScaledDraws
from ovkgp.estimators.common.validation import check_observed, convert_output_times, input_table, output_table
from ovkgp.exceptions import InputError, OptionError
from ovkgp.inference import OperatorValuedGP
from ovkgp.inference.likelihoods import Likelihood
from ovkgp.inference.model.observations import Observations
from ovkgp.inference.model.parameter_vector import hyperparameters
from ovkgp.inference.posteriors.exact import stored_observations
from ovkgp.inference.posteriors.leave_one_out import group_index
from ovkgp.inference.posteriors.mixture import ConditionedDraws
from ovkgp.inference.posteriors.prediction import Prediction
from ovkgp.inference.stacking.stack import StackPosterior
from ovkgp.metrics import r2_score

POSTERIOR_ATTRIBUTES = (  # fitted attributes of every regressor with a `posterior_`, for model files
    "n_features_in_",
    "n_outputs_",
    "output_names_",
    "kernel_",
    "scaling_",
    "_is_flat",
    "_has_names",
)
INPUT_ATTRIBUTES = {
    "n_features_in_",
    "feature_names_in_",
    "input_times_",
    "output_times_",
}  # set by the validation of data
LENGTHSCALE = "lengthscale"  # last part of the names of lengthscales


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
        """Return R² over the observed entries of each output, averaged over the outputs (`ovkgp.metrics.r2_score`).

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
        return r2_score(self._outputs(y, predicted), predicted, sample_weight=sample_weight)

    def _enter(self, X, Y) -> tuple[np.ndarray, np.ndarray]:
        """Check X (n, d) and Y (n, p), store their columns, and remove the attributes of an earlier fit."""
        X = input_table(self, X, reset=True)
        Y, names, self._is_flat = output_table(convert_output_times(self, Y, reset=True), X)
        check_observed(np.isfinite(Y).sum(0), names)
        for fitted in [name for name in vars(self) if name.endswith("_") and name not in INPUT_ATTRIBUTES]:
            delattr(self, fitted)
        self.n_outputs_ = Y.shape[1]
        self.output_names_ = names or [f"y{a}" for a in range(Y.shape[1])]
        self._has_names = names is not None
        return X, Y

    def _outputs(self, Y, X: np.ndarray) -> np.ndarray:
        """Check further outputs (n, p); if named, their names must be those of the fit."""
        table, names, _ = output_table(convert_output_times(self, Y, reset=False), X)
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


class PosteriorRegressor(FieldPartsMixin, TableRegressor):
    """Base class of regressors with a `posterior_` and a `scaling_`."""

    has_predictive = has_posterior = True
    calibration_note = NO_LEAVE_ONE_OUT

    @overload
    def predict(
        self, X, return_std: Literal[False] = ..., return_cov: Literal[False] = ..., noise: bool = ...
    ) -> np.ndarray: ...
    @overload
    def predict(
        self, X, return_std: Literal[True], return_cov: Literal[False] = ..., noise: bool = ...
    ) -> tuple[np.ndarray, np.ndarray]: ...
    @overload
    def predict(
        self, X, return_std: Literal[False] = ..., *, return_cov: Literal[True, "full"], noise: bool = ...
    ) -> tuple[np.ndarray, np.ndarray]: ...
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
        X, noise
            As for `predict`.
        quantiles : float, array-like of shape (q,) or None, default=None
            Levels strictly between 0 and 1. If None, the median.

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
        return self._flat(found if found.ndim == 2 else np.moveaxis(found, 0, -1))

    def predict_interval(self, X, level=0.95, noise=True) -> tuple[np.ndarray, np.ndarray]:
        """Predict central intervals at X.

        Parameters
        ----------
        X, noise
            As for `predict`.
        level : float, default=0.95
            Probability that an interval contains the entry, strictly between 0 and 1.

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
        X, noise
            As for `predict`.
        n_samples : int, default=1
            Number of draws.
        random_state : int, RandomState instance or None, default=0
            Seed.

        Returns
        -------
        ndarray of shape (m, p, n_samples), or (m, n_samples) if Y was one-dimensional
            Draws.
        """
        X = self._inputs(X)
        draws = self.posterior_.sample(X, n_samples, noise=noise, random_state=random_state)
        return self._flat(np.moveaxis(self.scaling_.mean(draws), 0, -1))

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
        about = getattr(self, "input_times_", None), self.largest_lengthscale()
        return ScaledDraws(draws, self.scaling_, self._is_flat, *about)

    def training_data(self) -> tuple[np.ndarray, np.ndarray] | None:
        """Return the stored training rows X (n, d) and Y (n, p) in original units; None if the model stores none."""
        data = self.training_observations()
        return None if data is None else self.scaling_.original(data.X.numpy(), data.Y.numpy())

    def training_observations(self) -> Observations | None:
        """Return the stored training rows in standardized units, with known noise; None if the model stores none.

        Returns
        -------
        Observations or None
            Inputs, outputs and noise.
        """
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
        """Return lengthscales (S, k) in standardized units by name; S is 1 unless they were sampled.

        Constant inputs that a model with one lengthscale per input does not use have the lengthscale infinity.
        """
        if self.hyperparameter_draws is None:
            found = {name: value.detach().numpy()[None] for name, value in hyperparameters(self.gp_.kernel).items()}
        else:
            group = self.hyperparameter_draws["posterior"].stack(sample=("chain", "draw")).transpose("sample", ...)
            found = {str(name): group[name].values for name in group.data_vars}
        found = {n: v.reshape(len(v), -1) for n, v in found.items() if n.rpartition(".")[2] == LENGTHSCALE}
        used = self.scaling_.used_inputs
        return {name: self._expand(values, used) for name, values in found.items()}

    def _expand(self, values: np.ndarray, used: np.ndarray) -> np.ndarray:
        """Add infinity for inputs that are not used, if there is one value (S, k) per input."""
        if values.shape[1] != len(used) or len(used) == self.n_features_in_:
            return values
        expanded = np.full((len(values), self.n_features_in_), np.inf)
        expanded[:, used] = values
        return expanded

    def output_kernels(self) -> Iterator[Kernel]:
        """Yield the kernel, of each draw if there are any; the next one may replace its values."""
        return (gp.kernel for gp in self._drawn_models())

    @property
    def averages_draws(self) -> bool:
        """Whether predictions are averaged over hyperparameter draws of `gp_`."""
        return isinstance(getattr(self.posterior_, "parts", None), ConditionedDraws)

    def _drawn_models(self) -> Iterator[OperatorValuedGP]:
        """Yield the model at each hyperparameter draw, or at the point estimate; the next one may replace its values."""
        if self.averages_draws:
            yield from map(self.posterior_.parts.set_draw, range(len(self.posterior_)))
        else:
            yield self.gp_

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

        @torch.no_grad()
        def log_density(Y: np.ndarray) -> np.ndarray:
            return prediction.log_density(self.scaling_.outputs(Y)).numpy() - np.log(self.scaling_.output_scale)

        mean, std = self.scaling_.mean(prediction.mean), self.scaling_.std(prediction.std)
        below, is_gaussian = cdf if is_continuous.all() else cdf_below, type(prediction) is Prediction
        return PredictiveDistribution(mean, std, cdf, below, is_gaussian, log_density)

    def log_density(self, X, Y, joint=True) -> np.ndarray:
        """Compute the log density of new observations, in original units.

        Parameters
        ----------
        X : array-like of shape (m, d)
            Inputs.
        Y : array-like of shape (m, p) or (m,)
            Observations, NaN where missing.
        joint : bool, default=True
            Whether to return the joint density of the observed outputs of each row; otherwise that of each entry.

        Returns
        -------
        ndarray of shape (m,), or (m, p) if not `joint`
            log p(y_i | x_i, data), where a row without observed outputs has 0; NaN for missing entries if not `joint`.

        Notes
        -----
        Outputs of the independent candidates of `kernel="auto"` are joined by a Gaussian copula with the correlation of
        leave-one-out residuals. Complexity: that of a prediction, and O(m p³).

        Examples
        --------
        >>> import numpy as np
        >>> import ovkgp
        >>> X = np.linspace(0, 6, 40)[:, None]
        >>> Y = np.hstack([np.sin(X), np.cos(X)]) + 0.1 * np.random.default_rng(0).normal(size=(40, 2))
        >>> model = ovkgp.GPRegressor(random_state=0).fit(X, Y)
        >>> model.log_density([[1.0], [2.0]], [[0.8, 0.5], [0.9, float("nan")]]).shape
        (2,)
        """
        given, (X, Y) = X, self.check_rows(X, Y)
        if not joint:
            return self._flat(self.predictive(given).log_density(Y))
        found = self.posterior_.joint_log_density(self.scaling_.inputs(X), self.scaling_.outputs(Y)).numpy()
        return found - np.isfinite(Y) @ np.log(self.scaling_.output_scale)

    @property
    def has_leave_one_out(self) -> bool:
        """Whether there is a closed form, which variational models do not have, and training rows are stored."""
        return self.likelihood_ is None and self.training_observations() is not None

    def leave_one_out_entries(self, X=None, Y=None, groups="rows") -> EntryPredictions:
        """Predict each training entry from the rows other than its own, in closed form.

        Parameters
        ----------
        X, Y : array-like of shape (n, d) and (n, p), default=None
            Training rows, which a model with features does not store. If None, the stored rows are used.
        groups : {"rows", "entries"} or array-like of shape (n,), default="rows"
            What is held out together: rows, single entries (other outputs of the row are then known), or all rows with the
            same label. Labels belong to the rows of X and Y, which are then required.

        Returns
        -------
        EntryPredictions
            Predictions in original units.

        Raises
        ------
        InputError
            If labels are passed without X and Y, or do not match them.
        OptionError
            If no rows are stored and none are passed, or the model has no closed form.
        """
        if self.likelihood_ is not None:
            raise OptionError(
                "A variational model has no closed-form leave-one-out predictions. Use rows X, Y that were held out of the fit."
            )
        if X is not None or Y is not None:
            data = self._given_observations(X, Y)
        elif not isinstance(groups, str):
            raise InputError("groups must be passed with X and Y, the training rows that the labels belong to.")
        elif (data := self.training_observations()) is None:
            raise OptionError(
                "The model stores no training rows. Pass X and Y: the training rows for leave-one-out, or held-out rows."
            )
        is_by_entry = isinstance(groups, str) and groups == "entries"
        index = None if is_by_entry else group_index(groups, data.num_rows)
        if isinstance(self.posterior_, StackPosterior):
            index = torch.arange(data.num_rows) if index is None else index  # its outputs are independent
            (mean, std, cdf), is_gaussian = self.posterior_.leave_groups_out(index), False
        else:
            predictions = (gp.leave_one_out(data.X, data.Y, data.noise, groups=groups) for gp in self._drawn_models())
            weights = self.posterior_.weights if self.averages_draws else None
            mean, std, cdf, is_gaussian = combine_leave_one_out(predictions, data.Y, index, weights)
        scaling = self.scaling_
        u = cdf.numpy()
        return EntryPredictions(scaling.mean(data.Y), scaling.mean(mean), scaling.std(std), u, u, is_gaussian)

    def normal_residuals(self, X=None, Y=None, random_state=None) -> Residuals:
        """Return whitened residuals of training rows, or of the joint prediction of held-out rows.

        Rows X, Y that are the stored training rows, in any order, are treated as such.
        """
        if self.likelihood_ is not None:
            return super().normal_residuals(X, Y, random_state)
        rng, stored = np.random.default_rng(as_seed(random_state)), self.training_data()
        if X is None and Y is None:
            if stored is None:
                raise OptionError("The model stores no training rows. Pass rows X and Y that were held out of the fit.")
            return whiten_training_rows(self, stored[0], self.training_observations(), rng)
        inputs, outputs = self.check_rows(X, Y)
        is_training = np.zeros(len(inputs), dtype=bool) if stored is None else match_rows(inputs, outputs, stored) >= 0
        is_training[~np.isfinite(outputs).any(1)] = is_training.any()  # rows without observations are not stored
        if is_training.all():
            return whiten_training_rows(self, inputs, self._given_observations(X, Y), rng)
        if is_training.any():
            raise InputError(
                f"{is_training.sum()} of the {len(inputs)} rows are training rows. Pass only held-out rows, or omit X and Y."
            )
        return whiten_new_rows(self, inputs, outputs, rng)

    def _given_observations(self, X, Y) -> Observations:
        """Return given training rows in standardized units, with the known noise of the stored rows if there is any."""
        X, Y = self.check_rows(X, Y)
        given, stored = Observations(self.scaling_.inputs(X), self.scaling_.outputs(Y)), self.training_observations()
        if stored is None or stored.noise is None:
            return given
        pairs = (given.X, stored.X), (given.Y, stored.Y)
        if all(a.shape == b.shape and torch.allclose(a.double(), b.double(), equal_nan=True) for a, b in pairs):
            return stored
        raise OptionError(
            "Leave-one-out predictions of a model with known noise are supported only for its training rows, in their order. Pass these, or omit X and Y."
        )

    def _inputs(self, X) -> torch.Tensor:
        X = self._points(X)  # which checks that the estimator is fitted
        return self.scaling_.inputs(X)

    def _points(self, X) -> np.ndarray:
        """Check points (m, d) in original units."""
        check_is_fitted(self, "posterior_")
        return input_table(self, X, reset=False)
