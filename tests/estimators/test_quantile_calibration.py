"""Folds that were left out, and by how much they ask intervals to grow: against refits and by hand."""

import numpy as np
import pytest
import torch

from ovkgp.datasets import make_sine_quantiles
from ovkgp.estimators import InfiniteQuantileRegressor
from ovkgp.estimators.quantiles.model import fitted_model
from ovkgp.estimators.quantiles.posterior import fold_fits, widening
from ovkgp.estimators.quantiles.rows import NUM_FOLDS, QuantileRows, weighted_quantiles
from ovkgp.inference.tasks.problem import TaskProblem
from ovkgp.inference.tasks.solvers.primal import solve_primal

LEVELS = np.array([0.1, 0.9])


@pytest.fixture(scope="module")
def fitted():
    X, y, _ = make_sine_quantiles(60, random_state=0)
    return InfiniteQuantileRegressor(
        lengthscale=0.5, lam=1e-3, prior_mean="zero", intercept=False, tol=1e-6, noncrossing=None, random_state=0
    ).fit(X, y)


def test_every_row_is_left_out_once(fitted):
    fits = fold_fits(fitted, seed=0)
    assert fits.weights.shape == (NUM_FOLDS, *fitted.function_.weights.shape)
    assert np.bincount(fits.folds).tolist() == [12] * 5


def test_a_fold_is_a_fit_to_the_other_rows(fitted):
    """In the units of the first fit: λ grows as rows are fewer, and the coordinates of all rows hold the solution of some (LT-83)."""
    fits, (model, side) = fold_fits(fitted, seed=0), fitted_model(fitted)
    whole = model.problem(side, fitted.lam_)
    kept = np.flatnonzero(fits.folds != 2)
    alone = TaskProblem(whole.inputs[kept], whole.tasks, whole.targets[kept], whole.loss, fitted.lam_ * 60 / 48)
    expected = whole.values(solve_primal(alone, tolerance=1e-8).weights)
    found = whole.values(torch.from_numpy(fits.weights[2]))
    assert (found - expected).abs().max() < 0.02


def test_widening_is_the_quantile_of_what_lies_outside(fitted):
    fits, rows, h = fold_fits(fitted, seed=0), fitted._data, fitted.function_
    outside = []
    for i in range(60):
        curve = h.inputs(torch.from_numpy(rows.X[[i]])) @ torch.from_numpy(fits.weights[fits.folds[i]])
        low, high = (curve @ h.tasks(torch.from_numpy(LEVELS)[:, None]).T)[0].tolist()
        outside.append(max(min(low, high) - rows.y[i], rows.y[i] - max(low, high)))
    expected = np.sort(outside)[int(np.ceil(60 * 0.8 * 61 / 60 - 1e-9)) - 1]
    assert widening(fitted, fits, LEVELS) == pytest.approx(expected)


def test_weighted_quantiles_count_weights_as_copies():
    y, weights = np.array([3.0, 1.0, 2.0]), np.array([1.0, 3.0, 1.0])
    levels = np.array([0.1, 0.6, 0.61, 0.8, 1.0])
    copies = np.repeat(y, weights.astype(int))
    expected = weighted_quantiles(copies, np.ones(5), levels)
    np.testing.assert_array_equal(weighted_quantiles(y, weights, levels), expected)
    np.testing.assert_array_equal(expected, [1.0, 1.0, 2.0, 2.0, 3.0])


def test_a_fence_holds_outliers_and_nothing_else():
    y = np.append(np.linspace(-1, 1, 21), [500.0, -300.0])
    rows = QuantileRows(np.zeros((23, 1)), y, np.ones(23))
    fenced = rows.fenced().y
    np.testing.assert_array_equal(fenced[:21], y[:21])
    low, high = weighted_quantiles(y, np.ones(23), np.array([0.25, 0.75]))
    np.testing.assert_allclose(fenced[21:], [high + 10 * (high - low), low - 10 * (high - low)])
    same = QuantileRows(np.zeros((5, 1)), np.array([1.0, 1.0, 1.0, 1.0, 9.0]), np.ones(5))
    assert same.fenced() is same
