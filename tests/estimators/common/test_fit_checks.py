"""Tests of `ovkgp.estimators.common.fit_checks`."""

import warnings

import numpy as np
import pytest

import ovkgp
from ovkgp.estimators.common.fit_checks import _neighbor_ratio, list_fit_problems
from ovkgp.exceptions import FitWarning

RNG = np.random.default_rng(0)
X = RNG.uniform(0, 5, (40, 2))
Y = np.c_[np.sin(X[:, 0]), X[:, 1]] + 0.1 * RNG.standard_normal((40, 2))


def test_good_fit_has_no_problems():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = ovkgp.GPRegressor(random_state=0).fit(X, Y)
    assert list_fit_problems(model) == [] and "note" not in model.summary()


def test_copied_rows_are_reported_everywhere():
    with pytest.warns(FitWarning, match="40 rows of 80 are exact copies"):
        model = ovkgp.GPRegressor("independent", random_state=0).fit(np.r_[X, X], np.r_[Y, Y])
    assert "note: 40 rows of 80 are exact copies" in model.summary()
    assert any("exact copies" in text for text in model.list_problems())


def test_repeated_labels_are_not_copies():
    levels = RNG.integers(0, 2, (60, 2)).astype(float)
    model = ovkgp.GPRegressor(noise=0.1, random_state=0).fit(levels, RNG.integers(0, 3, 60).astype(float))
    assert not any("copies" in text for text in model.list_problems())


def test_signal_that_is_taken_for_noise_is_reported():
    x = np.linspace(0, 1, 200)[:, None]
    y = np.sin(8 * x[:, 0]) + 0.05 * np.random.default_rng(0).standard_normal(200)
    model = ovkgp.GPRegressor("independent", random_state=0).fit(x, y)
    assert model.list_problems() == []
    model.noise_ = np.array([[np.var(y)]])  # as if training had ended at a bad optimum
    assert any("explained as noise" in text for text in model.list_problems())


@pytest.mark.parametrize(("smooth", "expected"), [(True, 0.0), (False, 1.0)])
def test_neighbor_ratio_is_small_for_functions_and_one_for_noise(smooth, expected):
    x = np.linspace(0, 1, 400)[:, None]
    y = np.sin(5 * x[:, 0]) if smooth else np.random.default_rng(1).standard_normal(400)
    assert _neighbor_ratio(x, y) == pytest.approx(expected, abs=0.2)
