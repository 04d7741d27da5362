"""Base classes of the regressors: predictions, draws, scores and training data in original units.

A subclass fits `posterior_` in the standardized units of `scaling_`.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from sklearn.base import BaseEstimator, MultiOutputMixin, RegressorMixin
from sklearn.metrics import r2_score
from sklearn.utils.validation import check_is_fitted

from ovkgp.criticism.predictive_distributions import EntryPredictions, PredictiveDistribution, combine_leave_one_out
from ovkgp.estimators.common.scaling import ScaledDraws
from ovkgp.estimators.common.validation import check_observed, check_rows, input_table, output_table
from ovkgp.estimators.storage.storage import SavableMixin
from ovkgp.exceptions import InputError, OptionError
from ovkgp.inference.model.observations import Observations
from ovkgp.inference.posteriors.exact import ExactPosterior, IndependentPosterior
from ovkgp.inference.posteriors.leave_one_out import LeaveOneOut
from ovkgp.inference.posteriors.mixture import MixturePosterior
from ovkgp.inference.posteriors.posterior import Posterior
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


class TableRegressor(SavableMixin, MultiOutputMixin, RegressorMixin, BaseEstimator):
    """Base class of regressors with tables X (n, d) and Y (n, p)."""

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

    def check_rows(self, X, Y) -> tuple[np.ndarray, np.ndarray]:
        """Return X (m, d) and Y (m, p) as arrays, their columns checked against those of the fit."""
        return check_rows(self, X, Y)

    def predictive(self, X) -> PredictiveDistribution:
        """Return the distributions of new observations at X (m, d)."""
        prediction = self.posterior_.predict(self._inputs(X), "diag", noise=True)
        likelihood = getattr(getattr(self, "gp_", None), "likelihood", None)
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

    def leave_one_out_entries(self, X=None, Y=None) -> EntryPredictions:
        """Predict each training entry from all others in closed form.

        X and Y are the training rows, which a model with features does not store; without them the stored rows are used.

        Raises
        ------
        OptionError
            If no rows are stored and none are passed, or the model has no closed form.
        """
        if not hasattr(getattr(self, "gp_", None), "leave_one_out"):
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


def stored_observations(posterior: Posterior) -> Observations | None:
    """Return the observations that a posterior stores; None if it has features or inducing points instead."""
    if isinstance(posterior, MixturePosterior):
        # a loaded model with features stores no rows
        given = getattr(getattr(posterior.parts, "condition", None), "keywords", {})
        if torch.is_tensor(given.get("X")) and torch.is_tensor(given.get("Y")):
            return Observations(given["X"], given["Y"], given.get("noise"))
        return None
    if isinstance(posterior, IndependentPosterior):
        parts = [part.data for part in posterior.parts if isinstance(part, ExactPosterior)]
        return _join_outputs(parts) if len(parts) == posterior.num_outputs else None
    return posterior.data if isinstance(posterior, ExactPosterior) else None


def _join_outputs(parts: list[Observations]) -> Observations:
    """Join outputs that were observed at different rows, (n_a, 1) each, into one table."""
    if all(torch.equal(part.X, parts[0].X) for part in parts):
        noise = None if parts[0].noise is None else torch.cat([part.noise for part in parts], 1)
        return Observations(parts[0].X, torch.cat([part.Y for part in parts], 1), noise)
    keys = [_row_keys(part.X) for part in parts]
    order = {key: i for i, key in enumerate(dict.fromkeys(key for of_part in keys for key in of_part))}
    X = parts[0].X.new_empty(len(order), parts[0].X.shape[1])
    Y = X.new_full((len(order), len(parts)), torch.nan)
    noise = None if parts[0].noise is None else torch.ones_like(Y)
    for a, (part, of_part) in enumerate(zip(parts, keys, strict=True)):
        rows = [order[key] for key in of_part]
        X[rows], Y[rows, a] = part.X, part.Y[:, 0]
        if noise is not None:
            noise[rows, a] = part.noise[:, 0]
    return Observations(X, Y, noise)


def _row_keys(X: torch.Tensor) -> list[tuple]:
    """Return each row with the number of equal rows before it."""
    counts: dict[tuple, int] = {}
    keys = []
    for row in map(tuple, X.tolist()):
        counts[row] = counts.get(row, -1) + 1
        keys.append((row, counts[row]))
    return keys
