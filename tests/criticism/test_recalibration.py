"""Recalibrated intervals: order statistics by hand, coverage on held-out rows, and invalid arguments."""

import pickle

import numpy as np
import pytest

import ovkgp
from ovkgp.criticism import recalibrate
from ovkgp.exceptions import InputError, OptionError

rng = np.random.default_rng(0)


def draw_rows(n, rng):
    """Draw rows with heavy-tailed noise."""
    X = rng.uniform(0, 6, (n, 1))
    return X, np.column_stack([np.sin(X[:, 0]), np.cos(X[:, 0])]) + 0.2 * rng.standard_t(3, size=(n, 2))


X, Y = draw_rows(60, rng)
HELD_X, HELD_Y = draw_rows(99, rng)
HELD_Y[0, 1] = np.nan
POINTS = np.linspace(0, 6, 7)[:, None]


@pytest.fixture(scope="module")
def model():
    return ovkgp.OVKRidge(lam=0.5).fit(X, Y)  # the noise is too large by far


def test_conformal_intervals_have_order_statistics_of_standardized_errors(model):
    lower, upper = recalibrate(model, HELD_X, HELD_Y).predict_interval(POINTS, 0.9)
    held_mean, held_std = model.predict(HELD_X, return_std=True)
    mean, std = model.predict(POINTS, return_std=True)
    errors = np.sort(((HELD_Y - held_mean) / held_std)[:, 0])
    # tails of .05 of 99 + 1 values: the fifth from both ends
    np.testing.assert_allclose(lower[:, 0], mean[:, 0] + errors[4] * std[:, 0])
    np.testing.assert_allclose(upper[:, 0], mean[:, 0] + errors[94] * std[:, 0])


def test_pit_intervals_map_the_levels_of_the_model(model):
    lower, upper = recalibrate(model, HELD_X, HELD_Y, method="pit").predict_interval(POINTS, 0.9)
    u = np.sort(model.predictive(HELD_X).at(HELD_Y).pit()[:, 0])
    predictive = model.predictive(POINTS)
    np.testing.assert_allclose(lower[:, 0], predictive.quantile(u[4])[:, 0])
    np.testing.assert_allclose(upper[:, 0], predictive.quantile(u[94])[:, 0])


@pytest.mark.parametrize("method", ["conformal", "pit"])
def test_recalibrated_intervals_cover_new_rows(model, method):
    """Averaged over calibration sets the coverage is at least the level, and at most 2/(n + 1) above."""
    inside, before, local = [], [], np.random.default_rng(1)
    for _ in range(60):
        calibrated = recalibrate(model, *draw_rows(99, local), method=method)
        new_X, new_Y = draw_rows(200, local)
        for estimator, found in ((calibrated, inside), (model, before)):
            lower, upper = estimator.predict_interval(new_X, 0.8)
            found.append(((lower <= new_Y) & (new_Y <= upper)).mean())
    assert np.mean(before) > 0.95
    assert 0.785 < np.mean(inside) < 0.83


def test_mean_and_shape_are_those_of_the_model():
    model = ovkgp.OVKRidge(lam=0.5).fit(X, Y[:, 0])
    calibrated = recalibrate(model, HELD_X, HELD_Y[:, 0])
    np.testing.assert_array_equal(calibrated.predict(POINTS), model.predict(POINTS))
    lower, upper = calibrated.predict_interval(POINTS, 0.5)
    assert lower.shape == upper.shape == (7,)
    assert (lower < upper).all()


def test_recalibrated_model_can_be_pickled(model):
    calibrated = recalibrate(model, HELD_X, HELD_Y)
    copy = pickle.loads(pickle.dumps(calibrated))
    np.testing.assert_array_equal(copy.predict_interval(POINTS), calibrated.predict_interval(POINTS))


def test_few_rows_limit_the_level(model):
    calibrated = recalibrate(model, HELD_X[1:20], HELD_Y[1:20])
    calibrated.predict_interval(POINTS, 0.9)  # 19 rows: tails of 1/20
    with pytest.raises(InputError, match=r"level must be at most 0\.9 .* 19 held-out entries, got 0\.95"):
        calibrated.predict_interval(POINTS)


def test_recalibration_rejects_invalid_arguments(model):
    with pytest.raises(InputError, match="no observed values of output 1"):
        recalibrate(model, HELD_X[:1], HELD_Y[:1])
    with pytest.raises(OptionError, match="method"):
        recalibrate(model, HELD_X, HELD_Y, method="scale")
    with pytest.raises(OptionError, match="no predictive distributions"):
        recalibrate(ovkgp.ConstrainedORFF(num_frequencies=9, random_state=0).fit(X, Y), HELD_X, HELD_Y)
    with pytest.raises(OptionError, match="level"):
        recalibrate(model, HELD_X, HELD_Y).predict_interval(POINTS, 1.0)
