"""What every estimator with a posterior can be asked: means, standard deviations, draws and scores.

A subclass fits `posterior_` in the units of `scaling_`; this class speaks in the user's units.
"""

from __future__ import annotations

import numpy as np
import torch
from sklearn.utils.validation import check_is_fitted

from ovkgp.estimators.scaled_draws import ScaledDraws
from ovkgp.estimators.table_regressor import TableRegressor
from ovkgp.estimators.tables import input_table
from ovkgp.exceptions import OptionError


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
        from ovkgp.estimators.storage import save  # which makes regressors, and so imports this module

        save(self, path)

    def _inputs(self, X) -> torch.Tensor:
        check_is_fitted(self, "posterior_")
        return self.scaling_.inputs(input_table(self, X, reset=False))
