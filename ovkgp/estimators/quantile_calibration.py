"""Intervals that hold y as often as they say, also for rows that were not learned from: conformalised quantile regression.

A fit follows its own rows, so that its curves lie too close together for others. Each fifth of the rows is held against the curves of a fit to the
rest: e_i = max(q_low(x_i) − y_i, y_i − q_high(x_i)) is by how much y_i is outside. The interval widened by the `level`-quantile of all e_i
holds a new y with probability `level` on average over the inputs (Romano, Patterson and Candès, 2019; with folds instead of a held-out part).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch

from ovkgp.estimators.quantile_fit import fitted_model, solve_quantiles
from ovkgp.estimators.quantile_rows import NUM_FOLDS, weighted_quantiles


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
