"""Draws of whole quantile functions: around the fit, as wide as the sandwich, and honest about crossings."""

import numpy as np
import pytest
from sklearn.exceptions import NotFittedError

from ovkgp.datasets import make_sine_quantiles
from ovkgp.estimators import InfiniteQuantileRegressor
from ovkgp.exceptions import OptionError

LEVELS = [0.1, 0.5, 0.9]


@pytest.fixture(scope="module")
def fitted():
    X, y, _ = make_sine_quantiles(150, random_state=0)
    return InfiniteQuantileRegressor(lengthscale=0.5, lam=1e-3, random_state=0).fit(X, y)


AT = np.linspace(0.1, 1.4, 12)[:, None]


def test_g_15_its_mean_is_near_the_fit_and_another_object(fitted):
    mode, std = fitted.predict(AT, LEVELS, return_std=True)
    mean = fitted.posterior_.predict(AT, LEVELS)
    assert mean.shape == mode.shape
    assert 0 < np.abs(mean - mode).max() < 1.5 * std.max()


def test_its_std_is_that_of_the_sandwich_on_the_whole(fitted):
    ours = fitted.posterior_.predict(AT, LEVELS, return_std=True)[1]
    sandwich = fitted.predict(AT, LEVELS, return_std=True)[1]
    assert np.mean(ours) == pytest.approx(np.mean(sandwich), rel=0.15)


def test_far_from_the_data_its_std_is_that_of_the_prior(fitted):
    far = fitted.posterior_.predict([[50.0]], 0.5, return_std=True)[1]
    prior = fitted.scaling_.output_scale[0] * np.sqrt(fitted.posterior_.temperature)
    assert prior <= far[0] < 1.5 * prior


def test_draws_have_its_mean_and_std(fitted):
    draws = fitted.posterior_.sample(AT, LEVELS, 4000, random_state=0)
    mean, std = fitted.posterior_.predict(AT, LEVELS, return_std=True)
    np.testing.assert_allclose(draws.mean(0), mean, atol=5 * std.max() / np.sqrt(4000))
    np.testing.assert_allclose(draws.std(0), std, rtol=0.06)
    np.testing.assert_array_equal(
        fitted.posterior_.sample(AT, LEVELS, 3, 1), fitted.posterior_.sample(AT, LEVELS, 3, 1)
    )


def test_curves_of_close_levels_cross_more_often_than_those_of_far_ones(fitted):
    close = fitted.posterior_.crossing_probability(AT, [0.5, 0.505], random_state=0)
    far = fitted.posterior_.crossing_probability(AT, [0.1, 0.9], random_state=0)
    assert close.shape == (12,) and ((close >= 0) & (close <= 1)).all()
    assert close.mean() > far.mean() and far.max() < 0.05


def test_arviz_reads_the_draws(fitted):
    import arviz

    data = fitted.posterior_.to_arviz(AT[:3], LEVELS, 200, random_state=0)
    summary = arviz.summary(data, kind="stats")
    assert len(summary) == 9
    expected = fitted.posterior_.sample(AT[:3], LEVELS, 200, random_state=0).mean(0)
    np.testing.assert_allclose(data["posterior"]["quantile"].mean(("chain", "draw")), expected)
    assert data["posterior"].attrs["temperature"] == fitted.posterior_.temperature


def test_it_is_made_once_and_forgotten_with_the_fit(fitted):
    assert fitted.posterior_ is fitted.posterior_
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
