"""Intervals that hold y as often as they say, also for rows that were not learned from: conformalised quantile regression.

A fit follows its own rows, so that its curves lie too close together for others. Each fifth of the rows is held against the curves of a fit to the
rest: e_i = max(q_low(x_i) − y_i, y_i − q_high(x_i)) is by how much y_i is outside. The interval widened by the `level`-quantile of all e_i
holds a new y with probability `level` on average over the inputs (Romano, Patterson and Candès, 2019; with folds instead of a held-out part).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from ovkgp.checks import check_integer
from ovkgp.estimators.common.validation import input_table
from ovkgp.estimators.quantiles.model import fitted_model, fitted_parts, offset_draws, offset_variance, solve_quantiles
from ovkgp.estimators.quantiles.options import check_levels
from ovkgp.estimators.quantiles.rows import NUM_FOLDS, PERCENTILES, weighted_quantiles
from ovkgp.exceptions import OptionError
from ovkgp.inference.sampling.arviz_data import SAMPLES, dataset, to_arviz_object
from ovkgp.inference.tasks.gibbs import gibbs_posterior


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
        h, number = self._estimator.function_, check_integer("num_samples", num_samples)
        inputs, rows = h.inputs(X), h.tasks(levels[:, None])
        draws = inputs @ self.gibbs.sample(number, random_state) @ rows.T + h.offset(levels)
        draws = draws + offset_draws(self._estimator, levels, number, random_state)[:, None]
        return self._scaling.mean(draws.flatten(0, 1)).reshape(draws.shape)

    def crossing_probability(self, X, quantiles=PERCENTILES, num_samples: int = 200, random_state=None) -> np.ndarray:
        """The probability (m,) that the curves of a point fall anywhere between neighbouring levels (ID-16)."""
        draws = self.sample(X, np.sort(check_levels(quantiles)), num_samples, random_state)
        return (np.diff(draws, axis=-1) < 0).any(-1).mean(0)

    def to_arviz(self, X, quantiles, num_samples: int = 500, random_state=None):
        """Draws of the curves as an ArviZ object: the variable `quantile`, with the dimensions `point` and `level`."""
        draws = self.sample(X, quantiles, num_samples, random_state)[None]
        group = dataset(
            {"quantile": draws},
            {"quantile": (*SAMPLES, "point", "level")},
            {"level": check_levels(quantiles)},
            {"inference_library": "ovkgp", "method": "gibbs", "temperature": self.temperature},
        )
        return to_arviz_object({"posterior": group})

    @property
    def _scaling(self):
        return self._estimator.scaling_

    def _enter(self, X, quantiles) -> tuple[Tensor, Tensor]:
        X = self._scaling.inputs(input_table(self._estimator, X, reset=False))
        return X, torch.from_numpy(check_levels(quantiles))


@dataclass(frozen=True)
class FoldFits:
    """Fits to the rows less a fold each.

    Attributes:
        weights: W (F, r, q).
        folds: which of them each row was left out of (n,), int64.
    """

    weights: np.ndarray
    folds: np.ndarray


def fold_fits(estimator, seed: int) -> FoldFits:
    """Fits of a fitted `InfiniteQuantileRegressor` with its kernel and λ, each without a fifth of the rows. Five solutions."""
    model, side = fitted_model(estimator)
    folds, weights = np.empty(len(model.rows), dtype=np.int64), []
    for number, fold in enumerate(model.rows.folds(NUM_FOLDS, seed)):
        folds[fold] = number
        kept = np.setdiff1d(np.arange(len(model.rows)), fold)
        rows = model.rows.at(kept)
        part = replace(model, rows=rows, Phi=None if model.Phi is None else model.Phi[torch.from_numpy(kept)])
        lam = estimator.lam_ * model.rows.count / rows.count  # what the rows weigh against the prior is λ n
        found = solve_quantiles(estimator, part, side, lam, estimator.function_.weights)
        if found.report.interrupted:
            raise KeyboardInterrupt
        weights.append(found.weights.numpy())
    return FoldFits(np.stack(weights), folds)


def widening(estimator, fits: FoldFits, levels: np.ndarray) -> float:
    """By how much, in the units of the model, the interval between two levels (2,) must grow at both ends; less than 0 where it is too wide."""
    h, rows, inside = estimator.function_, estimator._data, levels[1] - levels[0]
    tasks = torch.from_numpy(levels)
    ends = np.empty((len(rows), 2))
    for number, weights in enumerate(fits.weights):
        place = np.flatnonzero(fits.folds == number)
        curves = replace(h, weights=torch.from_numpy(weights))(torch.from_numpy(rows.X[place]), tasks)
        ends[place] = curves.sort(-1).values.numpy()
    outside = np.maximum(ends[:, 0] - rows.y, rows.y - ends[:, 1])
    share = np.array([min(1.0, inside * (1 + 1 / rows.count))])
    return float(weighted_quantiles(outside, rows.weights, share)[0])
