"""What every estimator with a posterior can be asked: means, standard deviations, draws and scores.

A subclass fits `posterior_` in the units of `scaling_`; this class speaks in the user's units.
"""

from __future__ import annotations

import numpy as np
import torch
from sklearn.base import BaseEstimator, MultiOutputMixin, RegressorMixin
from sklearn.metrics import r2_score
from sklearn.utils.validation import check_is_fitted

from ovkgp.estimators.common.scaling import ScaledDraws
from ovkgp.estimators.common.validation import input_table, output_table
from ovkgp.exceptions import InputError, OptionError

KEPT = {"n_features_in_", "feature_names_in_"}
"""Fitted attributes that the check of X has just set."""


class TableRegressor(MultiOutputMixin, RegressorMixin, BaseEstimator):
    """The common part of all regressors.

    Attributes:
        output_names_, n_outputs_, n_features_in_, feature_names_in_: of the data.
    """

    def score(self, X, y, sample_weight=None) -> float:
        """R² over the observed entries of each output, averaged over the outputs."""
        predicted = np.reshape(self.predict(X), (-1, self.n_outputs_))
        Y = self._outputs(y, predicted)
        weight = np.ones(len(Y)) if sample_weight is None else np.asarray(sample_weight, dtype=float)
        observed = np.isfinite(Y)
        columns = [a for a in range(Y.shape[1]) if observed[:, a].any()]
        if not columns:
            raise InputError("there is nothing to score: every entry of y is missing.")
        scores = [
            r2_score(Y[s, a], predicted[s, a], sample_weight=weight[s]) for a in columns for s in [observed[:, a]]
        ]
        return float(np.mean(scores))

    def _enter(self, X, Y) -> tuple[np.ndarray, np.ndarray]:
        """X (n, d) and Y (n, p) checked and remembered; what was fitted before is forgotten."""
        X = input_table(self, X, reset=True)
        Y, names, self._is_flat = output_table(Y, X)
        _check_observed(Y, names)
        for fitted in [name for name in vars(self) if name.endswith("_") and name not in KEPT]:
            delattr(self, fitted)
        self.n_outputs_ = Y.shape[1]
        self.output_names_ = names or [f"y{a}" for a in range(Y.shape[1])]
        self._has_names = names is not None
        return X, Y

    def _outputs(self, Y, X: np.ndarray) -> np.ndarray:
        """Further outputs (n, p), whose names must be those of the fit where both have names."""
        table, names, _ = output_table(Y, X)
        if table.shape[1] != self.n_outputs_:
            raise InputError(f"Y has {table.shape[1]} columns; the model was fitted with {self.n_outputs_}.")
        if names is not None and self._has_names and names != self.output_names_:
            raise InputError(
                f"the columns of Y are {names}; the model was fitted with {self.output_names_}, in this order."
            )
        return table

    def _flat(self, values: np.ndarray) -> np.ndarray:
        return values[:, 0] if self._is_flat else values

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.target_tags.single_output = True
        return tags


def _check_observed(Y: np.ndarray, names: list[str] | None) -> None:
    unobserved = np.flatnonzero(~np.isfinite(Y).any(0))
    if len(unobserved):
        column = names[unobserved[0]] if names else int(unobserved[0])
        raise InputError(f"nobody observed output {column!r} of Y (all NaN): leave that column out, or add data.")


class PosteriorRegressor(TableRegressor):
    """The common part of regressors with a `posterior_` and its `scaling_`."""

    # --- asking -----------------------------------------------------------------------------------------------------

    def predict(self, X, return_std=False, return_cov=False, noise=True):
        """The posterior mean at X (m, d), (m, p) or, where Y was one-dimensional, (m,).

        With a likelihood of labels, classes or counts that is the probability of each, or the expected count.

        Args:
            return_std: also the standard deviation, of the same shape.
            return_cov: also the covariance between outputs at each point (m, p, p), or, for "full", between everything,
                (m·p, m·p), data-major. Not of new labels, classes and counts, which are not the latent function plus noise.
            noise: of a new observation (True), or of the latent function (False), which for labels and classes is a log-odds and
                for counts the logarithm of the expected count.
        """
        if return_std and return_cov:
            raise OptionError("ask for return_std or return_cov, not both: the std is the root of cov's diagonal.")
        if return_cov not in (False, True, "full"):
            raise OptionError(f'return_cov must be False, True or "full", got {return_cov!r}.')
        form = "full" if return_cov == "full" else "output" if return_cov else "diag" if return_std else "none"
        X = self._inputs(X)
        prediction = self.posterior_.predict(X, form, noise=bool(noise))
        if return_cov and prediction.form == "diag":
            raise OptionError(
                "new labels, classes and counts are not the latent function plus noise, so that only their variances are known: ask for "
                "return_std, for the covariance of the latent function (noise=False), or take that of sample_y."
            )
        mean = self._flat(self.scaling_.mean(prediction.mean))
        if return_std:
            return mean, self._flat(self.scaling_.std(prediction.std))
        return (mean, self.scaling_.cov(prediction.cov)) if return_cov else mean

    def predict_quantiles(self, X, quantiles=None, noise=True) -> np.ndarray:
        """Quantiles at X (m, d); those of the mixture where predictions average over draws of the hyperparameters, or where
        outputs are not Gaussian: of a count the smallest value that is not exceeded with the probability asked for.

        Args:
            quantiles: a level strictly between 0 and 1, for an answer (m, p), or (m,) where Y was one-dimensional; q levels,
                for (m, p, q) or (m, q), in their order; None for the median.
            noise: of a new observation (True), or of the latent function (False).

        Example:
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
            raise OptionError(f"quantiles is a level or a list of levels, got {np.shape(quantiles)}.")
        found = self.scaling_.mean(found)
        found = found if found.ndim == 2 else np.moveaxis(found, 0, -1)
        return self._flat(found)

    def predict_interval(self, X, level=0.95, noise=True) -> tuple[np.ndarray, np.ndarray]:
        """The central interval at X (m, d) that holds each entry with probability `level`: lower and upper ends, each
        (m, p), or (m,) where Y was one-dimensional.

        Args:
            level: strictly between 0 and 1.
            noise: of a new observation (True), or of the latent function (False).

        Example:
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
        """Joint draws at X (m, d): (m, p, n_samples), or (m, n_samples) where Y was one-dimensional."""
        X = self._inputs(X)
        draws = self.posterior_.sample(X, n_samples, noise=noise, random_state=random_state)
        draws = np.moveaxis(self.scaling_.mean(draws), 0, -1)
        return draws[:, 0] if self._is_flat else draws

    def sample_functions(self, k=1, random_state=None) -> ScaledDraws:
        """k random latent functions: `draws[i](X)` is (m, p), `draws(X)` is (k, m, p), the same at every call."""
        check_is_fitted(self, "posterior_")
        draws = self.posterior_.sample_functions(k, random_state=random_state)
        return ScaledDraws(draws, self.scaling_, self._is_flat)

    def save(self, path) -> None:
        """Write the fitted model to one file, all or nothing; `ovkgp.load(path)` gives it back, equal to the bit.

        The file holds the options, what was learned and the factorised posterior, in safetensors with a checksum: no
        pickle. Draws of hyperparameters are stored too; averages over them with the exact kernel are made again from the
        data, and equal to 1e-12. A kernel of a class of one's own is saved by its values; `ovkgp.load(path, kernel=…)` must then supply the
        object. Neither the priors of a kernel object nor a random state that is not a number are stored.

        Args:
            path: where; the folder must exist, and a file of this name is replaced.

        Raises:
            NotFittedError: there is nothing to save yet.
            OSError: the folder is missing or not writable, or the disk is full; an older file is then untouched.

        Example:
            See `ovkgp.load`.
        """
        from ovkgp.estimators.storage.storage import save  # which makes regressors, and so imports this module

        save(self, path)

    def _inputs(self, X) -> torch.Tensor:
        check_is_fitted(self, "posterior_")
        return self.scaling_.inputs(input_table(self, X, reset=False))
