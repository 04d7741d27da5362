"""Data whose conditional quantiles are known."""

import numpy as np
import pytest
from scipy import stats

from ovkgp.datasets import make_exponential_quantiles, make_sine_quantiles
from ovkgp.exceptions import InputError, OptionError

LEVELS = np.array([0.1, 0.5, 0.8])


def test_sine_rows_follow_the_stated_distribution():
    X, y, quantiles = make_sine_quantiles(20_000, random_state=0)
    assert X.shape == (20_000, 1) and y.shape == (20_000,) and X.min() >= 0 and X.max() <= 1.5
    mean = -np.sin(2 * np.pi * X[:, 0]) * (1 + np.sin(2 * np.pi * X[:, 0] / 3))
    scale = 0.2 + (1.5 - X[:, 0]) / 1.5
    assert stats.kstest((y - mean) / scale, "norm").pvalue > 1e-3
    np.testing.assert_allclose(quantiles(X, 0.8)[:, 0], mean + scale * stats.norm.ppf(0.8), rtol=1e-12)


@pytest.mark.parametrize("make", [make_sine_quantiles, make_exponential_quantiles])
def test_fraction_below_each_quantile_is_its_level(make):
    X, y, quantiles = make(50_000, random_state=1)
    np.testing.assert_allclose((y[:, None] <= quantiles(X, LEVELS)).mean(0), LEVELS, atol=0.01)


def test_sine_risk_is_mean_scale_over_two_root_pi():
    x, weights = np.polynomial.legendre.leggauss(40)
    levels, eta = (x + 1) / 2, weights / 2
    X = np.linspace(0, 1.5, 2001)[:, None]
    risk = (make_sine_quantiles(5, random_state=0).quantiles.risk(X, levels) @ eta).mean()
    assert risk == pytest.approx(0.7 / (2 * np.sqrt(np.pi)), rel=1e-3)


def test_risk_is_the_pinball_loss_of_the_true_quantiles():
    X, y, quantiles = make_exponential_quantiles(200_000, random_state=2)
    residuals = y[:, None] - quantiles(X, LEVELS)
    loss = np.maximum(LEVELS * residuals, (LEVELS - 1) * residuals).mean(0)
    np.testing.assert_allclose(loss, quantiles.risk(X[:1], LEVELS)[0], rtol=0.02)
    np.testing.assert_allclose(quantiles.risk(X[:1], LEVELS)[0], -(1 - LEVELS) * np.log(1 - LEVELS), rtol=1e-8)


def test_quantile_seed_gives_the_same_first_rows():
    few, many = make_sine_quantiles(5, random_state=3), make_sine_quantiles(50, random_state=3)
    np.testing.assert_array_equal(few.X, many.X[:5])
    np.testing.assert_array_equal(few.y, many.y[:5])


def test_quantiles_reject_invalid_arguments():
    with pytest.raises(OptionError, match="num_rows"):
        make_sine_quantiles(0)
    with pytest.raises(InputError, match="between 0 and 1"):
        make_sine_quantiles(5, random_state=0).quantiles([[0.1]], [0.5, 1.0])
