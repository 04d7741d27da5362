"""Tests of `ovkgp.estimators.quantiles.conformal`."""

import numpy as np
import pytest
import torch

from ovkgp.datasets import make_sine_quantiles
from ovkgp.estimators import InfiniteQuantileRegressor
from ovkgp.estimators.quantiles import conformal
from ovkgp.estimators.quantiles.conformal import (
    QuantileCalibration,
    calibrate_quantiles,
    compute_margins,
    predict_heldout,
)
from ovkgp.estimators.quantiles.model import rebuild_model
from ovkgp.estimators.quantiles.rows import QuantileRows
from ovkgp.inference.tasks.problem import TaskProblem
from ovkgp.inference.tasks.solvers.primal import solve_primal

LEVELS = np.array([0.1, 0.9])


@pytest.fixture(scope="module")
def fitted():
    X, y, _ = make_sine_quantiles(60, random_state=0)
    return InfiniteQuantileRegressor(
        lengthscale=0.5, lam=1e-3, prior_mean="zero", intercept=False, tol=1e-6, noncrossing=None, random_state=0
    ).fit(X, y)


def heldout(estimator, levels=LEVELS):
    model, side = rebuild_model(estimator)
    return predict_heldout(estimator, model, side, estimator.lam_, estimator.function_.weights, 0, levels)


def test_predict_heldout_holds_out_every_row_once(fitted):
    curves, index = heldout(fitted)
    assert curves.shape == (60, 2)
    np.testing.assert_array_equal(np.sort(index), np.arange(60))


def test_predict_heldout_fits_the_other_rows(fitted):
    """λ grows for fewer rows, and the coordinates of all rows contain the solution of some (LT-83)."""
    (curves, index), (model, side) = heldout(fitted), rebuild_model(fitted)
    whole, fold = model.problem(side, fitted.lam_), index[24:36]
    kept = np.setdiff1d(np.arange(60), fold)
    training = TaskProblem(whole.inputs[kept], whole.tasks, whole.targets[kept], whole.loss, fitted.lam_ * 60 / 48)
    weights = solve_primal(training, tolerance=1e-8).weights
    expected = whole.inputs[fold] @ weights @ side.factor(torch.from_numpy(LEVELS)[:, None]).T
    np.testing.assert_allclose(curves[24:36], expected, atol=0.05)  # of curves from −2 to 2, by loose fits


def test_predict_heldout_holds_out_one_fold_of_many_rows(fitted, monkeypatch):
    every, order = heldout(fitted)
    monkeypatch.setattr(conformal, "MAX_ROWS_OF_ALL_FOLDS", 50)
    curves, index = heldout(fitted)
    np.testing.assert_array_equal(index, order[:12])
    np.testing.assert_array_equal(curves, every[:12])


def test_compute_margins_are_quantiles_of_distances():
    rng = np.random.default_rng(0)
    y, levels = rng.standard_normal(41), np.array([0.6, 0.75, 0.9])
    curves = np.sort(rng.standard_normal((41, 6)), axis=1)
    found = compute_margins(QuantileRows(np.zeros((41, 1)), y, np.ones(41)), curves, levels)
    for j, level in enumerate(levels):
        outside = [max(row[2 - j] - value, value - row[3 + j]) for row, value in zip(curves, y, strict=True)]
        number = int(np.ceil(41 * (2 * level - 1) * 42 / 41 - 1e-9))
        assert found.margins[j] == pytest.approx(np.sort(outside)[number - 1])


def test_widened_intervals_of_heldout_rows_have_nominal_coverage(fitted):
    """By construction: ⌈(n + 1) 0.8⌉ of n held-out rows."""
    model, side = rebuild_model(fitted)
    found = calibrate_quantiles(fitted, model, side, fitted.lam_, fitted.function_.weights, 0)
    curves, index = heldout(fitted)
    margin = found.margins[np.abs(found.levels - 0.9).argmin()]
    low, high = np.sort(curves, axis=1).T + np.array([[-margin], [margin]])
    y = model.rows.y[index]
    assert ((low <= y + 1e-12) & (y <= high + 1e-12)).sum() == 49


def test_shifts_are_antisymmetric_and_interpolated():
    calibration = QuantileCalibration(np.array([0.7, 0.9]), np.array([0.2, 0.4]))
    levels = torch.tensor([0.01, 0.1, 0.3, 0.5, 0.6, 0.7, 0.8, 0.9, 0.999], dtype=torch.float64)
    expected = [-0.4, -0.4, -0.2, 0.0, 0.1, 0.2, 0.3, 0.4, 0.4]
    np.testing.assert_allclose(calibration.shifts(levels), expected, atol=1e-12)


@pytest.mark.parametrize(
    "levels, expected", [([0.1, 0.4, 0.6, 0.9], [0.6, 0.9]), ([0.3], []), ([0.2, 0.5, 0.8], [0.8])]
)
def test_finite_levels_are_calibrated_in_pairs(levels, expected):
    X, y, _ = make_sine_quantiles(40, random_state=0)
    model = InfiniteQuantileRegressor(coupling="independent", levels=levels, lengthscale=0.5, lam=1e-2).fit(X, y)
    np.testing.assert_allclose(model.calibration_.levels, expected)
    if not expected:
        np.testing.assert_array_equal(model.predict(X, levels), model.predict(X, levels, calibrate=False))
