"""QuantileCalibration of quantiles by conformalized quantile regression (Romano, Patterson and Candès, 2019).

Curves are fitted too closely to their own rows. For each held-out fifth of the rows, e_i = max(q_θ'(x_i) − y_i, y_i −
q_θ(x_i)) is the distance of y_i from the interval between the levels θ' = 1 − θ and θ of the fit to the rest. The
interval widened by c(θ), the (2θ − 1)-quantile of all e_i, contains a new y with probability 2θ − 1 on average over the
inputs. The calibrated curves q_θ + c(θ) and q_θ' − c(θ) are the ends of this interval at every level; the median stays.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from ovkgp.estimators.common.bootstrap import refitted_weights
from ovkgp.estimators.common.loss_options import weighted_quantiles
from ovkgp.estimators.quantiles.model import (
    REARRANGEMENT_LEVELS,
    QuantileModel,
    TaskSide,
    finite_levels,
    solve_quantiles,
)
from ovkgp.estimators.quantiles.rows import NUM_FOLDS, QuantileRows
from ovkgp.estimators.storage.values import storable_record
from ovkgp.exceptions import FitWarning

OUTER_LEVELS = (0.9975, 0.999, 0.9995)  # levels beyond those of the rearrangement; further out the margin is constant
LEVEL_TOLERANCE = 1e-9
TOLERANCE = 1e-3  # least relative duality gap of the fits without a fold; held-out distances vary by more
MAX_ROWS_OF_ALL_FOLDS = 5000
"""Number of rows up to which each fold is held out once; of more rows, the first fold alone."""


@storable_record
@dataclass(frozen=True)
class QuantileCalibration:
    """Margins c (k,) at increasing levels θ (k,) above one half, in standardized units; negative if curves are too far apart."""

    levels: np.ndarray
    margins: np.ndarray

    def shifts(self, levels: Tensor) -> Tensor:
        """Return what is added to the curves at levels (q,): ± c, linear in the level between those known."""
        known, margins = np.r_[0.5, self.levels], np.r_[0.0, self.margins]
        distances = (levels - 0.5).numpy()
        return torch.from_numpy(np.sign(distances) * np.interp(0.5 + np.abs(distances), known, margins))


def calibrate_quantiles(
    options, model: QuantileModel, side: TaskSide, lam: float, weights: Tensor, seed: int
) -> QuantileCalibration:
    """Compute the `QuantileCalibration` of a solution W (r, q) at λ, by fits to the rows outside each fold, in loose solutions.

    `options` are those of an `InfiniteQuantileRegressor`.
    """
    levels = _upper_levels(options)
    if not len(levels):
        return QuantileCalibration(levels, np.zeros(0))
    predicted, index = predict_heldout(options, model, side, lam, weights, seed, np.r_[1 - levels[::-1], levels])
    return compute_margins(model.rows.select(index), np.sort(predicted, axis=1), levels)


def _upper_levels(options) -> np.ndarray:
    """Return the levels above one half whose mirror images have curves too."""
    if options.coupling == "infinite":
        return np.r_[REARRANGEMENT_LEVELS[REARRANGEMENT_LEVELS > 0.5 + LEVEL_TOLERANCE].numpy(), OUTER_LEVELS]
    known = finite_levels(options)
    has_mirror = (np.abs(known[:, None] + known - 1) < LEVEL_TOLERANCE).any(1)
    return known[has_mirror & (known > 0.5 + LEVEL_TOLERANCE)]


def predict_heldout(
    options, model: QuantileModel, side: TaskSide, lam: float, weights: Tensor, seed: int, levels: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return curves (k, q) of held-out rows, each by the fit without its fold, and the indices (k,) of these rows."""
    folds = model.rows.folds(NUM_FOLDS, seed)
    folds = folds if len(model.rows) <= MAX_ROWS_OF_ALL_FOLDS else folds[:1]
    tasks, found = torch.from_numpy(levels), []
    for fold in tqdm(folds, "calibration", disable=not options.verbose, unit="fit"):
        kept = np.setdiff1d(np.arange(len(model.rows)), fold)
        part = model.select(kept)
        part_lam = lam * model.rows.count / part.rows.count  # the weight of data against prior is λ n
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FitWarning)  # loose on purpose; the fit itself has its own warnings
            solution = solve_quantiles(options, part, side, part_lam, weights, tolerance=max(TOLERANCE, options.tol))
        W = torch.from_numpy(refitted_weights(solution))
        found.append(model.select(fold).curves(side, W, tasks).numpy())
    return np.concatenate(found), np.concatenate(folds)


def compute_margins(rows: QuantileRows, predicted: np.ndarray, levels: np.ndarray) -> QuantileCalibration:
    """Compute margins (k,) from increasing curves (n, 2k) of held-out rows at 1 − θ, in reverse order, and at θ (k,)."""
    k = len(levels)
    outside = np.maximum(predicted[:, k - 1 :: -1] - rows.y[:, None], rows.y[:, None] - predicted[:, k:])
    coverage = np.minimum(1.0, (2 * levels - 1) * (1 + 1 / rows.count))
    margins = [
        weighted_quantiles(e, rows.weights, level[None])[0] for e, level in zip(outside.T, coverage, strict=True)
    ]
    return QuantileCalibration(levels, np.array(margins))
