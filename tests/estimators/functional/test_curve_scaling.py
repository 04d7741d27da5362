"""Tests of `ovkgp.estimators.functional.curve_scaling`."""

import numpy as np
import pytest

from ovkgp.estimators.functional.curve_scaling import CurveScaling, PointWarp, fit_smooth_mean


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
    smooth = fit_smooth_mean(points, values)(points)[:, 0]
    pointwise = np.nanmean(values[..., 0], 0)
    assert np.abs(smooth - truth).max() < 0.35
    assert np.abs(pointwise - truth).max() > 0.6  # the average of those that remain
    assert np.abs(smooth - truth).mean() < 0.3 * np.abs(pointwise - truth).mean()


def test_mean_curve_of_complete_curves_is_close_to_the_average():
    rng = np.random.default_rng(0)
    points = np.linspace(-1.7, 1.7, 30)[:, None]
    values = (np.cos(3 * points[:, 0]) + 0.1 * rng.standard_normal((50, 30)))[..., None]
    np.testing.assert_allclose(fit_smooth_mean(points, values)(points)[:, 0], np.cos(3 * points[:, 0]), atol=0.06)


def test_mean_derivative_is_the_limit_of_differences():
    points, values, _ = cut_curves()
    mean, h = fit_smooth_mean(points, values), 1e-5
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


DEPTHS = np.array([0, 2, 5, 10, 20, 30, 50, 75, 100, 150, 200, 300, 500, 800, 1500, 3000, 5000.0])


def test_mean_curve_of_uneven_depths_is_right_between_them():
    rng = np.random.default_rng(0)
    values = (10 * np.exp(-DEPTHS / 300) + 0.05 * rng.standard_normal((60, len(DEPTHS))))[..., None]
    scaling = CurveScaling.of(rng.uniform(size=(60, 1)), DEPTHS[:, None], values)
    at = np.array([40.0, 400, 650, 2000, 4000])
    np.testing.assert_allclose(scaling.mean_values(at[:, None])[:, 0], 10 * np.exp(-at / 300), atol=0.5)
    h = 1e-3
    slopes = (scaling.mean_values(at[:, None] + h) - scaling.mean_values(at[:, None] - h)) / (2 * h)
    np.testing.assert_allclose(scaling.mean_values(at[:, None], 1), slopes, rtol=1e-5, atol=1e-8)


def test_domain_is_warped_only_if_its_points_are_very_uneven():
    warp, rng = PointWarp.of(DEPTHS[:, None]), np.random.default_rng(0)
    image = warp(np.linspace(-10, 6000, 2000)[:, None])
    assert (np.diff(image[:, 0]) > 0).all()
    assert np.abs(warp(DEPTHS[:, None])[:, 0] - np.arange(len(DEPTHS))).max() < 0.5
    for points in (np.linspace(0, 1, 30), np.sort(rng.uniform(size=30)), np.sort(rng.uniform(size=3000))):
        assert PointWarp.of(points[:, None]) is None
    assert PointWarp.of(rng.uniform(size=(30, 2))) is None
