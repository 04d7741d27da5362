"""Draws of whole quantile functions: the Gibbs posterior behind an `InfiniteQuantileRegressor`, in the user's units (LT §6, ID-15, ID-16).

Its mode is the fit. Its mean, its draws, and the probability that curves cross come from the nearest Gaussian, at the temperature that gives the
curves the variance of the sandwich (`ovkgp.inference.task_learning.gibbs`).
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ovkgp.estimators.quantile_fit import fitted_parts, offset_draws, offset_variance
from ovkgp.estimators.quantile_metrics import PERCENTILES
from ovkgp.estimators.quantile_options import require_levels
from ovkgp.estimators.tables import input_table
from ovkgp.exceptions import OptionError
from ovkgp.inference.arviz_data import SAMPLES, dataset, to_arviz_object
from ovkgp.inference.task_learning.gibbs import gibbs_posterior
from ovkgp.kernels.checks import whole_number


class QuantilePosterior:
    """The posterior of the quantile curves of a fitted regressor; `regressor.posterior_` makes one.

    Draws are functions of input and level as the regressor learns them, around a prior mean of which they are not sure either; away
    from the data, where the exact kernel has more than its coordinates hold, `return_std` adds what they lack.

    Args:
        estimator: a fitted `InfiniteQuantileRegressor` of all levels with the pinball loss.

    Attributes:
        gibbs: `GibbsPosterior`, in the units of the model.
        temperature: T.

    Cost: some hundred passes over the rows once; a draw is O(m r q) for m points.

    Example:
        >>> import ovkgp
        >>> from ovkgp.datasets import make_sine_quantiles
        >>> X, y, _ = make_sine_quantiles(100, random_state=0)
        >>> model = ovkgp.InfiniteQuantileRegressor(lengthscale=0.5, lam=1e-3).fit(X, y)
        >>> model.posterior_.sample(X[:4], [0.1, 0.9], num_samples=5, random_state=0).shape
        (5, 4, 2)
        >>> model.posterior_.crossing_probability(X[:4], random_state=0).shape
        (4,)
    """

    def __init__(self, estimator):
        if estimator.loss != "pinball":
            raise OptionError(
                f'the posterior is that of loss="pinball", and this fit has {estimator.loss!r}; `return_std` answers for any loss.'
            )
        self._estimator = estimator
        self.gibbs = gibbs_posterior(fitted_parts(estimator), estimator.function_.weights, estimator.sandwich_)
        self.temperature = self.gibbs.temperature

    def predict(self, X, quantiles=None, return_std=False):
        """The posterior mean of the curves at X (m, d): not the fit, which is the mode.

        Args:
            quantiles, return_std: as for `InfiniteQuantileRegressor.predict`.
        """
        X, levels = self._enter(X, 0.5 if quantiles is None else quantiles)
        one, h = np.ndim(quantiles) == 0, self._estimator.function_
        inputs, rows = h.inputs(X), h.tasks(levels[:, None])
        mean = self._scaling.mean(h.offset(levels) + inputs @ self.gibbs.weights @ rows.T)
        if not return_std:
            return mean[:, 0] if one else mean
        variance = self.gibbs.variance(inputs, rows) + self.temperature * h.left_out(X, levels)
        variance = variance + offset_variance(self._estimator, levels)
        std = float(self._scaling.output_scale[0]) * variance.sqrt().numpy()
        return (mean[:, 0], std[:, 0]) if one else (mean, std)

    def sample(self, X, quantiles, num_samples: int = 100, random_state=None) -> np.ndarray:
        """Draws (num_samples, m, q) of the curves at X (m, d) and q levels, jointly over points and levels; none is rearranged."""
        X, levels = self._enter(X, quantiles)
        h, number = self._estimator.function_, whole_number("num_samples", num_samples)
        inputs, rows = h.inputs(X), h.tasks(levels[:, None])
        draws = inputs @ self.gibbs.sample(number, random_state) @ rows.T + h.offset(levels)
        draws = draws + offset_draws(self._estimator, levels, number, random_state)[:, None]
        return self._scaling.mean(draws.flatten(0, 1)).reshape(draws.shape)

    def crossing_probability(self, X, quantiles=PERCENTILES, num_samples: int = 200, random_state=None) -> np.ndarray:
        """The probability (m,) that the curves of a point fall anywhere between neighbouring levels (ID-16)."""
        draws = self.sample(X, np.sort(require_levels(quantiles)), num_samples, random_state)
        return (np.diff(draws, axis=-1) < 0).any(-1).mean(0)

    def to_arviz(self, X, quantiles, num_samples: int = 500, random_state=None):
        """Draws of the curves as an ArviZ object: the variable `quantile`, with the dimensions `point` and `level`."""
        draws = self.sample(X, quantiles, num_samples, random_state)[None]
        group = dataset(
            {"quantile": draws},
            {"quantile": (*SAMPLES, "point", "level")},
            {"level": require_levels(quantiles)},
            {"inference_library": "ovkgp", "method": "gibbs", "temperature": self.temperature},
        )
        return to_arviz_object({"posterior": group})

    @property
    def _scaling(self):
        return self._estimator.scaling_

    def _enter(self, X, quantiles) -> tuple[Tensor, Tensor]:
        X = self._scaling.inputs(input_table(self._estimator, X, reset=False))
        return X, torch.from_numpy(require_levels(quantiles))
