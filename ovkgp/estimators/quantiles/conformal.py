"""Calibration of intervals by conformalized quantile regression.

Curves are fitted too closely to their own rows. For each held-out fifth of the rows, e_i = max(q_low(x_i) − y_i, y_i −
q_high(x_i)) is the distance of y_i from the interval of the fit to the rest. The interval widened by the
`level`-quantile of all e_i contains a new y with probability `level` on average over the inputs (Romano, Patterson and
Candès, 2019; with folds instead of a held-out part).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch

from ovkgp.estimators.common.bootstrap import refitted_weights
from ovkgp.estimators.quantiles.model import rebuild_model, solve_quantiles
from ovkgp.estimators.quantiles.rows import NUM_FOLDS, weighted_quantiles
from ovkgp.estimators.storage.values import storable_record


@storable_record
@dataclass(frozen=True)
class CrossValidationFits:
    """Weights W (F, r, q) of the fits without one fold each, and the fold (n,), int64, that holds out each row."""

    weights: np.ndarray
    folds: np.ndarray


def fit_folds(estimator, seed: int) -> CrossValidationFits:
    """Refit an `InfiniteQuantileRegressor` without each fifth of the rows, with its kernel and λ. Five solutions."""
    model, side = rebuild_model(estimator)
    folds, weights = np.empty(len(model.rows), dtype=np.int64), []
    for number, fold in enumerate(model.rows.folds(NUM_FOLDS, seed)):
        folds[fold] = number
        kept = np.setdiff1d(np.arange(len(model.rows)), fold)
        rows = model.rows.select(kept)
        part = replace(model, rows=rows, Phi=None if model.Phi is None else model.Phi[torch.from_numpy(kept)])
        lam = estimator.lam_ * model.rows.count / rows.count  # the weight of data against prior is λ n
        weights.append(refitted_weights(solve_quantiles(estimator, part, side, lam, estimator.function_.weights)))
    return CrossValidationFits(np.stack(weights), folds)


def conformal_margin(estimator, fits: CrossValidationFits, levels: np.ndarray) -> float:
    """Compute the margin to add at both ends of the interval between two levels (2,); negative if it is too wide."""
    h, rows, coverage = estimator.function_, estimator._data, levels[1] - levels[0]
    tasks = torch.from_numpy(levels)
    ends = np.empty((len(rows), 2))
    for number, weights in enumerate(fits.weights):
        index = np.flatnonzero(fits.folds == number)
        curves = replace(h, weights=torch.from_numpy(weights))(torch.from_numpy(rows.X[index]), tasks)
        ends[index] = curves.sort(-1).values.numpy()
    outside = np.maximum(ends[:, 0] - rows.y, rows.y - ends[:, 1])
    level = np.array([min(1.0, coverage * (1 + 1 / rows.count))])
    return float(weighted_quantiles(outside, rows.weights, level)[0])
