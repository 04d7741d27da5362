"""Tests of `ovkgp.estimators.quantiles.posterior`."""

import numpy as np
import pytest
import torch
from sklearn.exceptions import NotFittedError

from ovkgp.datasets import make_sine_quantiles
from ovkgp.estimators import InfiniteQuantileRegressor
from ovkgp.estimators.quantiles.model import fitted_model
from ovkgp.estimators.quantiles.posterior import fold_fits, widening
from ovkgp.estimators.quantiles.rows import NUM_FOLDS, QuantileRows, weighted_quantiles
from ovkgp.exceptions import OptionError
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


QUANTILE_POSTERIOR_LEVELS = [0.1, 0.5, 0.9]


@pytest.fixture(scope="module")
def fitted_quantile_posterior():
    X, y, _ = make_sine_quantiles(150, random_state=0)
    return InfiniteQuantileRegressor(lengthscale=0.5, lam=1e-3, random_state=0).fit(X, y)


AT = np.linspace(0.1, 1.4, 12)[:, None]


def test_g_15_its_mean_is_near_the_fit_and_another_object(fitted_quantile_posterior):
    mode, std = fitted_quantile_posterior.predict(AT, QUANTILE_POSTERIOR_LEVELS, return_std=True)
    mean = fitted_quantile_posterior.posterior_.predict(AT, QUANTILE_POSTERIOR_LEVELS)
    assert mean.shape == mode.shape
    assert 0 < np.abs(mean - mode).max() < 1.5 * std.max()


def test_its_std_is_that_of_the_sandwich_on_the_whole(fitted_quantile_posterior):
    ours = fitted_quantile_posterior.posterior_.predict(AT, QUANTILE_POSTERIOR_LEVELS, return_std=True)[1]
    sandwich = fitted_quantile_posterior.predict(AT, QUANTILE_POSTERIOR_LEVELS, return_std=True)[1]
    assert np.mean(ours) == pytest.approx(np.mean(sandwich), rel=0.15)


def test_far_from_the_data_its_std_is_that_of_the_prior(fitted_quantile_posterior):
    far = fitted_quantile_posterior.posterior_.predict([[50.0]], 0.5, return_std=True)[1]
    prior = fitted_quantile_posterior.scaling_.output_scale[0] * np.sqrt(
        fitted_quantile_posterior.posterior_.temperature
    )
    assert prior <= far[0] < 1.5 * prior


def test_draws_have_its_mean_and_std(fitted_quantile_posterior):
    draws = fitted_quantile_posterior.posterior_.sample(AT, QUANTILE_POSTERIOR_LEVELS, 4000, random_state=0)
    mean, std = fitted_quantile_posterior.posterior_.predict(AT, QUANTILE_POSTERIOR_LEVELS, return_std=True)
    np.testing.assert_allclose(draws.mean(0), mean, atol=5 * std.max() / np.sqrt(4000))
    np.testing.assert_allclose(draws.std(0), std, rtol=0.06)
    np.testing.assert_array_equal(
        fitted_quantile_posterior.posterior_.sample(AT, QUANTILE_POSTERIOR_LEVELS, 3, 1),
        fitted_quantile_posterior.posterior_.sample(AT, QUANTILE_POSTERIOR_LEVELS, 3, 1),
    )


def test_curves_of_close_levels_cross_more_often_than_those_of_far_ones(fitted_quantile_posterior):
    close = fitted_quantile_posterior.posterior_.crossing_probability(AT, [0.5, 0.505], random_state=0)
    far = fitted_quantile_posterior.posterior_.crossing_probability(AT, [0.1, 0.9], random_state=0)
    assert close.shape == (12,) and ((close >= 0) & (close <= 1)).all()
    assert close.mean() > far.mean() and far.max() < 0.05


def test_arviz_reads_the_draws(fitted_quantile_posterior):
    import arviz

    data = fitted_quantile_posterior.posterior_.to_arviz(AT[:3], QUANTILE_POSTERIOR_LEVELS, 200, random_state=0)
    summary = arviz.summary(data, kind="stats")
    assert len(summary) == 9
    expected = fitted_quantile_posterior.posterior_.sample(AT[:3], QUANTILE_POSTERIOR_LEVELS, 200, random_state=0).mean(
        0
    )
    np.testing.assert_allclose(data["posterior"]["quantile"].mean(("chain", "draw")), expected)
    assert data["posterior"].attrs["temperature"] == fitted_quantile_posterior.posterior_.temperature


def test_it_is_made_once_and_forgotten_with_the_fit(fitted_quantile_posterior):
    assert fitted_quantile_posterior.posterior_ is fitted_quantile_posterior.posterior_
    X, y, _ = make_sine_quantiles(60, random_state=1)
    other = InfiniteQuantileRegressor(lengthscale=0.5, lam=1e-3).fit(X, y)
    first = other.posterior_
    assert other.fit(X[:40], y[:40]).posterior_ is not first


def test_smoothed_losses_and_models_that_are_not_fitted_have_none():
    X, y, _ = make_sine_quantiles(60, random_state=1)
    smooth = InfiniteQuantileRegressor(loss="smoothed_pinball", kappa=0.1, lengthscale=0.5, lam=1e-3).fit(X, y)
    with pytest.raises(OptionError, match="return_std"):
        _ = smooth.posterior_
    with pytest.raises(NotFittedError):
        _ = InfiniteQuantileRegressor().posterior_
