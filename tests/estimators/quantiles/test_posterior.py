"""Tests of `ovkgp.estimators.quantiles.posterior`."""

import numpy as np
import pytest
from sklearn.exceptions import NotFittedError

from ovkgp.datasets import make_sine_quantiles
from ovkgp.estimators import InfiniteQuantileRegressor
from ovkgp.estimators.common.loss_options import weighted_quantiles
from ovkgp.estimators.quantiles.rows import QuantileRows
from ovkgp.exceptions import OptionError


def test_weighted_quantiles_count_weights_as_copies():
    y, weights = np.array([3.0, 1.0, 2.0]), np.array([1.0, 3.0, 1.0])
    levels = np.array([0.1, 0.6, 0.61, 0.8, 1.0])
    copies = np.repeat(y, weights.astype(int))
    expected = weighted_quantiles(copies, np.ones(5), levels)
    np.testing.assert_array_equal(weighted_quantiles(y, weights, levels), expected)
    np.testing.assert_array_equal(expected, [1.0, 1.0, 2.0, 2.0, 3.0])


def test_clip_outliers_changes_outliers_only():
    y = np.append(np.linspace(-1, 1, 21), [500.0, -300.0])
    rows = QuantileRows(np.zeros((23, 1)), y, np.ones(23))
    clipped = rows.clip_outliers().y
    np.testing.assert_array_equal(clipped[:21], y[:21])
    low, high = weighted_quantiles(y, np.ones(23), np.array([0.25, 0.75]))
    np.testing.assert_allclose(clipped[21:], [high + 10 * (high - low), low - 10 * (high - low)])
    same = QuantileRows(np.zeros((5, 1)), np.array([1.0, 1.0, 1.0, 1.0, 9.0]), np.ones(5))
    assert same.clip_outliers() is same


CURVE_LEVELS = [0.1, 0.5, 0.9]


@pytest.fixture(scope="module")
def regressor():
    X, y, _ = make_sine_quantiles(150, random_state=0)
    return InfiniteQuantileRegressor(lengthscale=0.5, lam=1e-3, random_state=0).fit(X, y)


POINTS = np.linspace(0.1, 1.4, 12)[:, None]


def test_g_15_posterior_mean_is_near_the_mode_and_differs(regressor):
    mode, std = regressor.predict(POINTS, CURVE_LEVELS, return_std=True)
    mean = regressor.posterior_.predict(POINTS, CURVE_LEVELS)
    assert mean.shape == mode.shape
    assert 0 < np.abs(mean - mode).max() < 1.5 * std.max()


def test_posterior_std_agrees_with_the_sandwich_on_average(regressor):
    ours = regressor.posterior_.predict(POINTS, CURVE_LEVELS, return_std=True)[1]
    sandwich = regressor.predict(POINTS, CURVE_LEVELS, return_std=True)[1]
    assert np.mean(ours) == pytest.approx(np.mean(sandwich), rel=0.15)


def test_posterior_std_is_that_of_the_prior_far_from_the_data(regressor):
    far = regressor.posterior_.predict([[50.0]], 0.5, return_std=True)[1]
    prior = regressor.scaling_.output_scale[0] * np.sqrt(regressor.posterior_.temperature)
    assert prior <= far[0] < 1.5 * prior


def test_draws_have_the_posterior_mean_and_std(regressor):
    draws = regressor.posterior_.sample(POINTS, CURVE_LEVELS, 4000, random_state=0)
    mean, std = regressor.posterior_.predict(POINTS, CURVE_LEVELS, return_std=True)
    np.testing.assert_allclose(draws.mean(0), mean, atol=5 * std.max() / np.sqrt(4000))
    np.testing.assert_allclose(draws.std(0), std, rtol=0.06)
    np.testing.assert_array_equal(
        regressor.posterior_.sample(POINTS, CURVE_LEVELS, 3, 1),
        regressor.posterior_.sample(POINTS, CURVE_LEVELS, 3, 1),
    )


def test_crossing_probability_is_larger_for_close_levels(regressor):
    close = regressor.posterior_.crossing_probability(POINTS, [0.5, 0.505], random_state=0)
    far = regressor.posterior_.crossing_probability(POINTS, [0.1, 0.9], random_state=0)
    assert close.shape == (12,) and ((close >= 0) & (close <= 1)).all()
    assert close.mean() > far.mean() and far.max() < 0.05


def test_posterior_to_arviz_holds_the_draws(regressor):
    import arviz

    data = regressor.posterior_.to_arviz(POINTS[:3], CURVE_LEVELS, 200, random_state=0)
    summary = arviz.summary(data, kind="stats")
    assert len(summary) == 9
    expected = regressor.posterior_.sample(POINTS[:3], CURVE_LEVELS, 200, random_state=0).mean(0)
    np.testing.assert_allclose(data["posterior"]["quantile"].mean(("chain", "draw")), expected)
    assert data["posterior"].attrs["temperature"] == regressor.posterior_.temperature


def test_posterior_is_cached_until_the_next_fit(regressor):
    assert regressor.posterior_ is regressor.posterior_
    X, y, _ = make_sine_quantiles(60, random_state=1)
    other = InfiniteQuantileRegressor(lengthscale=0.5, lam=1e-3).fit(X, y)
    first = other.posterior_
    assert other.fit(X[:40], y[:40]).posterior_ is not first


def test_posterior_raises_for_smoothed_losses_and_unfitted_models():
    X, y, _ = make_sine_quantiles(60, random_state=1)
    smooth = InfiniteQuantileRegressor(loss="smoothed_pinball", kappa=0.1, lengthscale=0.5, lam=1e-3).fit(X, y)
    with pytest.raises(OptionError, match="return_std"):
        _ = smooth.posterior_
    with pytest.raises(NotFittedError):
        _ = InfiniteQuantileRegressor().posterior_
