"""Tests of `ovkgp.estimators.quantiles.conformal`."""

import numpy as np
import pytest
import torch

from ovkgp.datasets import make_sine_quantiles
from ovkgp.estimators import InfiniteQuantileRegressor
from ovkgp.estimators.quantiles.conformal import conformal_margin, fit_folds
from ovkgp.estimators.quantiles.model import rebuild_model
from ovkgp.estimators.quantiles.rows import NUM_FOLDS
from ovkgp.inference.tasks.problem import TaskProblem
from ovkgp.inference.tasks.solvers.primal import solve_primal

LEVELS = np.array([0.1, 0.9])


@pytest.fixture(scope="module")
def fitted():
    X, y, _ = make_sine_quantiles(60, random_state=0)
    return InfiniteQuantileRegressor(
        lengthscale=0.5, lam=1e-3, prior_mean="zero", intercept=False, tol=1e-6, noncrossing=None, random_state=0
    ).fit(X, y)


def test_fit_folds_holds_out_every_row_once(fitted):
    fits = fit_folds(fitted, seed=0)
    assert fits.weights.shape == (NUM_FOLDS, *fitted.function_.weights.shape)
    assert np.bincount(fits.folds).tolist() == [12] * 5


def test_fit_folds_fits_the_other_rows(fitted):
    """λ grows for fewer rows, and the coordinates of all rows contain the solution of some (LT-83)."""
    fits, (model, side) = fit_folds(fitted, seed=0), rebuild_model(fitted)
    whole = model.problem(side, fitted.lam_)
    kept = np.flatnonzero(fits.folds != 2)
    training = TaskProblem(whole.inputs[kept], whole.tasks, whole.targets[kept], whole.loss, fitted.lam_ * 60 / 48)
    expected = whole.values(solve_primal(training, tolerance=1e-8).weights)
    found = whole.values(torch.from_numpy(fits.weights[2]))
    assert (found - expected).abs().max() < 0.02


def test_conformal_margin_is_the_quantile_of_distances(fitted):
    fits, rows, h = fit_folds(fitted, seed=0), fitted._data, fitted.function_
    outside = []
    for i in range(60):
        curve = h.inputs(torch.from_numpy(rows.X[[i]])) @ torch.from_numpy(fits.weights[fits.folds[i]])
        low, high = (curve @ h.tasks(torch.from_numpy(LEVELS)[:, None]).T)[0].tolist()
        outside.append(max(min(low, high) - rows.y[i], rows.y[i] - max(low, high)))
    expected = np.sort(outside)[int(np.ceil(60 * 0.8 * 61 / 60 - 1e-9)) - 1]
    assert conformal_margin(fitted, fits, LEVELS) == pytest.approx(expected)
