"""Pairs of lagged rows and next rows of series, and a fitted regressor given other pairs at the same hyperparameters."""

from __future__ import annotations

from collections.abc import Iterable
from copy import copy
from functools import partial
from typing import NamedTuple

import numpy as np

from ovkgp.estimators.common.base import PosteriorRegressor
from ovkgp.estimators.common.options import noise_of
from ovkgp.estimators.ridge.base import RidgeEstimator, make_ridge_gp
from ovkgp.exceptions import InputError
from ovkgp.inference import Posterior
from ovkgp.inference.model.observations import Observations
from ovkgp.inference.posteriors.mixture import ConditionedDraws, MixturePosterior
from ovkgp.inference.stacking.stack import StackPosterior


class Pairs(NamedTuple):
    """Inputs X (n, lags·p), the last row first, and next rows Y (n, p), of which some values may be missing."""

    X: np.ndarray
    Y: np.ndarray

    def __len__(self) -> int:
        return len(self.X)


def lagged_inputs(values: np.ndarray, lags: int) -> np.ndarray:
    """Return the inputs (T − lags + 1, lags·p) of the rows lags, …, T of a series (T, p), NaN where missing."""
    T, p = values.shape
    windows = [values[lags - lag : T + 1 - lag] for lag in range(1, lags + 1)]
    return np.concatenate(windows, 1) if lags <= T else np.empty((0, lags * p))


def make_pairs(parts: Iterable[np.ndarray], lags: int) -> Pairs:
    """Return the pairs of several series (T, p) with complete inputs and at least one observed output."""
    found = []
    for values in parts:
        X, Y = lagged_inputs(values, lags)[:-1], values[lags:]
        kept = np.isfinite(X).all(1) & np.isfinite(Y).any(1)
        found.append(Pairs(X[kept], Y[kept]))
    return Pairs(*(np.concatenate(columns) for columns in zip(*found, strict=True)))


def replace_pairs(regressor: PosteriorRegressor, pairs: Pairs, added: Pairs, removed: Pairs) -> PosteriorRegressor:
    """Return a copy of a fitted regressor that is conditioned on `pairs`: the earlier ones and `added`, without `removed`.

    Hyperparameters and scaling stay. Statistics are added and subtracted, at a cost that does not depend on the number of pairs;
    without a feature map the exact kernel is factorized again.
    """
    regressor = copy(regressor)
    num_observed = np.isfinite(pairs.Y).sum(0)
    if isinstance(regressor, RidgeEstimator):
        _set_ridge_noise(regressor, len(pairs), int(num_observed.sum()))
    if hasattr(regressor, "statistics_"):
        regressor.statistics_ = _replace_statistics(regressor, pairs, added, removed)
        regressor.posterior_ = regressor.gp_.condition(regressor.statistics_, variance=regressor.variance)
    else:
        regressor.posterior_ = _condition(regressor, pairs)
    if not isinstance(regressor, RidgeEstimator):
        regressor._num_observed = num_observed
        regressor._report()
    return regressor


def _set_ridge_noise(regressor: RidgeEstimator, num_rows: int, num_observed: int) -> None:
    """Set σ² of the selected λ for another number of rows, at the same scale."""
    noise = noise_of(regressor.lam_, regressor.convention, num_rows, num_observed)
    regressor._counts = num_rows, num_observed
    if noise != regressor.noise_:
        regressor.noise_, gp = noise, regressor.gp_
        regressor.gp_ = make_ridge_gp(gp.kernel, regressor._scaled_noise, None, gp.features)


def _replace_statistics(regressor: PosteriorRegressor, pairs: Pairs, added: Pairs, removed: Pairs):
    found = regressor.statistics_
    try:
        found = found + _statistics(regressor, added) if len(added) else found
        return found - _statistics(regressor, removed) if len(removed) else found
    except InputError:  # the sums of the pairs removed are larger than those that remain by orders of magnitude
        return _statistics(regressor, pairs)


def _statistics(regressor: PosteriorRegressor, pairs: Pairs):
    return regressor.gp_.statistics(*_scaled(regressor, pairs))


def _scaled(regressor: PosteriorRegressor, pairs: Pairs):
    return regressor.scaling_.inputs(pairs.X), regressor.scaling_.outputs(pairs.Y)


def _condition(regressor: PosteriorRegressor, pairs: Pairs) -> Posterior:
    """Return the posterior given pairs by factorizations of the exact kernel, one for each draw of the hyperparameters."""
    X, Y = _scaled(regressor, pairs)
    posterior = regressor.posterior_
    if isinstance(posterior, StackPosterior):
        data = Observations(X, Y).observed_rows()
        parts = posterior.candidates, posterior.states, posterior.weights
        return StackPosterior.of_states(*parts, data, posterior.correlation)
    if isinstance(posterior, MixturePosterior):
        drawn = posterior.parts
        again = partial(drawn.condition.func, **(drawn.condition.keywords | {"X": X, "Y": Y}))
        return MixturePosterior(ConditionedDraws(drawn.gp, drawn.raw, again), posterior.weights)
    return regressor.gp_.condition(X, Y)
