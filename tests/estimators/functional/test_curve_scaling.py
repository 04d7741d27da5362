"""Tests of `ovkgp.estimators.functional.curve_scaling`."""

import numpy as np
import pytest

from ovkgp.estimators.functional.curve_scaling import CurveScaling, fit_mean_function


def cut_curves(seed=0):
    """Return points, curves whose larger half ends early, and their true mean."""
    rng = np.random.default_rng(seed)
    grid = np.linspace(-1.7, 1.7, 40)
    truth = np.sin(2 * grid)
    levels = np.sort(rng.standard_normal(30))
    Y = truth + levels[:, None] + 0.05 * rng.standard_normal((30, 40))
    Y[15:, 20:] = np.nan
    return grid[:, None], Y[..., None], truth + levels.mean()


def test_mean_curve_does_not_jump_where_curves_end():
    points, values, truth = cut_curves()
    smooth = fit_mean_function(points, values)(points)[:, 0]
    pointwise = np.nanmean(values[..., 0], 0)
    assert np.abs(smooth - truth).max() < 0.35
    assert np.abs(pointwise - truth).max() > 0.6  # the average of those that remain
    assert np.abs(smooth - truth).mean() < 0.3 * np.abs(pointwise - truth).mean()


def test_mean_curve_of_complete_curves_is_close_to_the_average():
    rng = np.random.default_rng(0)
    points = np.linspace(-1.7, 1.7, 30)[:, None]
    values = (np.cos(3 * points[:, 0]) + 0.1 * rng.standard_normal((50, 30)))[..., None]
    np.testing.assert_allclose(fit_mean_function(points, values)(points)[:, 0], np.cos(3 * points[:, 0]), atol=0.06)


def test_mean_derivative_is_the_limit_of_differences():
    points, values, _ = cut_curves()
    mean, h = fit_mean_function(points, values), 1e-5
    at = np.array([[-0.3], [0.8]])
    np.testing.assert_allclose(mean(at, 1), (mean(at + h) - mean(at - h)) / (2 * h), rtol=1e-6)


@pytest.mark.parametrize("num_channels", [1, 2])
def test_scaling_is_inverted(num_channels):
    rng = np.random.default_rng(0)
    X, points = rng.normal(5, 3, (12, 2)), np.linspace(10, 20, 9)[:, None]
    values = rng.normal(100, 20, (12, 9, num_channels))
    values[0, :3] = np.nan
    scaling = CurveScaling.of(X, points, values)
    standard = scaling.standardize(values, points)
    assert standard.shape == (12, 9 * num_channels)
    np.testing.assert_allclose(scaling.values(standard.numpy(), points), values, rtol=1e-10)
    np.testing.assert_allclose(np.nanmean(np.square(standard.numpy())), 1.0, rtol=1e-6)
    assert len(scaling.output_scale) == num_channels


def test_constant_curves_have_a_scale():
    scaling = CurveScaling.of(np.ones((4, 1)), np.arange(3.0)[:, None], np.full((4, 3, 1), 7.0))
    assert np.isfinite(scaling.standardize(np.full((4, 3, 1), 7.0), np.arange(3.0)[:, None])).all()
