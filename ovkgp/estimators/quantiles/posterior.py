"""Posterior of the quantile curves, and predicted distributions of observations."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ovkgp.checks import check_integer
from ovkgp.estimators.common.validation import input_table
from ovkgp.estimators.quantiles.model import (
    compute_offset_variance,
    draw_offset_errors,
    make_problem_chunks,
)
from ovkgp.estimators.quantiles.options import check_levels
from ovkgp.estimators.quantiles.rows import PERCENTILES
from ovkgp.exceptions import OptionError
from ovkgp.inference.sampling.arviz_data import SAMPLES, make_dataset, to_arviz_object
from ovkgp.inference.tasks.gibbs import fit_gibbs_posterior
from ovkgp.inference.tasks.quantile_distribution import LevelDistribution


class QuantilePosterior:
    """Posterior of the quantile curves, returned by `InfiniteQuantileRegressor.posterior_`.

    Draws are functions of input and level and include the error of the prior mean. `return_std` also includes, away
    from the data, the part of the exact kernel that its coordinates omit.

    Parameters
    ----------
    estimator : InfiniteQuantileRegressor
        Estimator fitted with `loss="pinball"`.

    Attributes
    ----------
    gibbs : GibbsPosterior
        Posterior of the weights in standardized units.
    temperature : float
        Temperature T.

    Notes
    -----
    Complexity: some hundred passes over the rows once; O(m r q) per draw at m points.

    Examples
    --------
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
                f'posterior_ is not supported with loss={estimator.loss!r}. Use loss="pinball" or return_std=True.'
            )
        self._estimator = estimator
        self.gibbs = fit_gibbs_posterior(
            make_problem_chunks(estimator), estimator.function_.weights, estimator.sandwich_
        )
        self.temperature = self.gibbs.temperature

    def predict(self, X, quantiles=None, return_std=False):
        """Return the posterior mean of the curves at X (m, d), which differs from the fit, the mode.

        `quantiles` and `return_std` are as for `InfiniteQuantileRegressor.predict`.
        """
        X, levels = self._validate(X, 0.5 if quantiles is None else quantiles)
        one, h = np.ndim(quantiles) == 0, self._estimator.function_
        inputs, rows = h.inputs(X), h.tasks(levels[:, None])
        mean = self._scaling.mean(h.offset(levels) + inputs @ self.gibbs.weights @ rows.T)
        if not return_std:
            return mean[:, 0] if one else mean
        variance = self.gibbs.variance(inputs, rows) + self.temperature * h.residual_variance(X, levels)
        variance = variance + compute_offset_variance(self._estimator, levels)
        std = float(self._scaling.output_scale[0]) * variance.sqrt().numpy()
        return (mean[:, 0], std[:, 0]) if one else (mean, std)

    def sample(self, X, quantiles, num_samples: int = 100, random_state=None) -> np.ndarray:
        """Draw curves (num_samples, m, q) jointly over points X (m, d) and q levels, without rearrangement."""
        X, levels = self._validate(X, quantiles)
        h, number = self._estimator.function_, check_integer("num_samples", num_samples)
        inputs, rows = h.inputs(X), h.tasks(levels[:, None])
        draws = inputs @ self.gibbs.sample(number, random_state) @ rows.T + h.offset(levels)
        draws = draws + draw_offset_errors(self._estimator, levels, number, random_state)[:, None]
        return self._scaling.mean(draws.flatten(0, 1)).reshape(draws.shape)

    def crossing_probability(self, X, quantiles=PERCENTILES, num_samples: int = 200, random_state=None) -> np.ndarray:
        """Estimate the probability (m,) that the curves decrease anywhere between neighboring levels (ID-16)."""
        draws = self.sample(X, np.sort(check_levels(quantiles)), num_samples, random_state)
        return (np.diff(draws, axis=-1) < 0).any(-1).mean(0)

    def to_arviz(self, X, quantiles, num_samples: int = 500, random_state=None):
        """Return draws of the curves as an ArviZ object: the variable `quantile`, dimensions `point`, `level`."""
        draws = self.sample(X, quantiles, num_samples, random_state)[None]
        group = make_dataset(
            {"quantile": draws},
            {"quantile": (*SAMPLES, "point", "level")},
            {"level": check_levels(quantiles)},
            {"inference_library": "ovkgp", "method": "gibbs", "temperature": self.temperature},
        )
        return to_arviz_object({"posterior": group})

    @property
    def _scaling(self):
        return self._estimator.scaling_

    def _validate(self, X, quantiles) -> tuple[Tensor, Tensor]:
        X = self._scaling.inputs(input_table(self._estimator, X, reset=False))
        return X, torch.from_numpy(check_levels(quantiles))


class QuantileDistribution:
    """Distributions of m observations from quantiles (m, k) at levels (k,), as NumPy arrays; see `LevelDistribution`."""

    def __init__(self, levels: np.ndarray, quantiles: np.ndarray):
        self._found = LevelDistribution(torch.from_numpy(levels), torch.from_numpy(quantiles))

    def __len__(self) -> int:
        return len(self._found)

    @property
    def levels(self) -> np.ndarray:
        """Levels (k,) of the quantiles."""
        return self._found.levels.numpy()

    @property
    def quantiles(self) -> np.ndarray:
        """Quantiles (m, k)."""
        return self._found.quantiles.numpy()

    @property
    def mean(self) -> np.ndarray:
        """Means (m,)."""
        return self._found.mean.numpy()

    @property
    def std(self) -> np.ndarray:
        """Standard deviations (m,)."""
        return self._found.std.numpy()

    def quantile(self, levels) -> np.ndarray:
        """Compute quantiles (m, q) at levels (q,), shared by all rows, or (m, q)."""
        return self._found.quantile(levels).numpy()

    def cdf(self, y) -> np.ndarray:
        """Compute P(Y ≤ y), (m, q), at y (q,), shared by all rows, or (m, q)."""
        return self._found.cdf(y).numpy()

    def density(self, y) -> np.ndarray:
        """Compute the density (m, q) at y (q,) or (m, q); infinite at an atom."""
        return self._found.density(y).numpy()

    def sample(self, num_samples: int, random_state=None) -> np.ndarray:
        """Draw independent samples (m, num_samples)."""
        return self._found.sample(num_samples, random_state).numpy()
