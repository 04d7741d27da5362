"""Tests of `ovkgp.functional.mean_curve`."""

import numpy as np

from ovkgp.functional import FunctionalData

T = np.linspace(0, 1, 40)


def cut_curves(n=30, seed=0):
    """Curves with individual levels, of which those with a high level end early."""
    rng = np.random.default_rng(seed)
    levels = rng.standard_normal(n)
    truth = np.sin(5 * T)
    Y = truth + levels[:, None] + 0.05 * rng.standard_normal((n, 40))
    cut = Y.copy()
    for i in np.flatnonzero(levels > 0):
        cut[i, 12 + rng.integers(10) :] = np.nan
    return cut, Y


def test_mean_of_cut_curves_is_smooth_and_not_that_of_the_few_curves_observed():
    """The pointwise mean follows the remaining curves; the spline with levels stays near the mean of the complete curves."""
    cut, full = cut_curves()
    mean = FunctionalData(cut, T).fit_mean()(T)[:, 0]
    pointwise, expected = np.nanmean(cut, 0), full.mean(0)
    assert np.abs(mean - expected).max() < 0.15
    assert np.abs(pointwise - expected).max() > 0.5
    assert np.abs(np.diff(mean, 2)).max() < 0.5 * np.abs(np.diff(pointwise, 2)).max()


def test_mean_is_exact_for_curves_that_are_linear_functions_with_levels():
    rng = np.random.default_rng(1)
    Y = 2 * T - 1 + rng.standard_normal((10, 1))
    Y[:5, 25:] = np.nan
    mean = FunctionalData(Y, T).fit_mean()(T)[:, 0]
    assert np.allclose(np.diff(mean), 2 * np.diff(T), atol=1e-6)


def test_mean_of_ragged_and_dense_data_agree():
    cut, _ = cut_curves()
    keep = ~np.isnan(cut)
    ragged = FunctionalData([y[k] for y, k in zip(cut, keep, strict=True)], [T[k] for k in keep])
    assert np.allclose(ragged.fit_mean()(T), FunctionalData(cut, T).fit_mean()(T))


def test_mean_follows_dense_points_of_an_uneven_grid():
    """As temperature over depth: most of the change happens where the points are dense."""
    depth = np.array([0, 10, 20, 30, 50, 75, 100, 150, 200, 300, 400, 600, 800, 1000, 1500, 2000, 3000, 4000, 5000.0])
    rng = np.random.default_rng(0)
    truth = 2 + 20 * np.exp(-depth / 150)
    Y = truth + 2 * rng.standard_normal((80, 1)) * np.exp(-depth / 500) + 0.1 * rng.standard_normal((80, 19))
    full = Y.mean(0)
    for i in range(60):
        Y[i, rng.integers(8, 19) :] = np.nan
    mean = FunctionalData(Y, depth).fit_mean()(depth)[:, 0]
    assert np.abs(mean - full).max() < 0.6


def test_mean_stays_near_the_data_where_deviations_vary_along_the_curve():
    """Curves that differ at the left end only, of which the low ones end early: constant levels would bend the right end."""
    rng, scores = np.random.default_rng(0), np.random.default_rng(1).standard_normal(60)
    Y = 3 - T + 4 * scores[:, None] * np.exp(-6 * T) + 0.05 * rng.standard_normal((60, 40))
    cut = Y.copy()
    cut[scores < 0, 20:] = np.nan
    mean = FunctionalData(cut, T).fit_mean()(T)[:, 0]
    assert np.abs(mean - Y.mean(0))[20:].max() < 0.05  # where only half of the curves are observed
    assert np.abs(mean - (3 - T)).max() < 4 / np.sqrt(60)  # one standard error of the mean of complete curves at 0


def test_mean_in_two_dimensions_and_per_channel():
    rng = np.random.default_rng(2)
    grid = rng.uniform(size=(60, 2))
    Y = np.stack([grid[:, 0] + rng.standard_normal((8, 1)), 3 - grid[:, 1] + 0 * rng.standard_normal((8, 1))], -1)
    Y[0, :20, 0] = np.nan
    mean = FunctionalData(Y, grid, [(0, 1), (0, 1)]).fit_mean()
    found = mean(grid)
    assert np.abs(found[:, 1] - (3 - grid[:, 1])).max() < 1e-3
    assert np.abs((found[:, 0] - grid[:, 0]) - (found[:, 0] - grid[:, 0]).mean()).max() < 0.05
    complete = FunctionalData(np.nan_to_num(Y), grid, [(0, 1), (0, 1)]).fit_mean()
    assert np.allclose(complete(grid), np.nan_to_num(Y).mean(0))


def test_robust_mean_with_gaps_ignores_outlying_curves_and_values():
    """At most one standard error of the mean of the regular curves, for outliers of any size in a quarter of the curves or values."""
    rng = np.random.default_rng(0)
    truth = np.sin(5 * T)
    regular = truth + 0.5 * rng.standard_normal((60, 1)) * np.cos(3 * T) + 0.1 * rng.standard_normal((60, 40))
    gaps = np.where(rng.random(regular.shape) < 0.2, np.nan, regular)
    for size in (5.0, 1e6):
        curves, values = gaps.copy(), gaps.copy()
        curves[:15] += size
        values[rng.random(gaps.shape) < 0.25] -= size
        for one in (curves, values):
            mean = FunctionalData(one, T).fit_mean(is_robust=True)(T)[:, 0]
            assert np.abs(mean - truth).max() < 3 * 0.5 / np.sqrt(45)
        keep = ~np.isnan(curves)
        ragged = FunctionalData([y[k] for y, k in zip(curves, keep, strict=True)], [T[k] for k in keep])
        found, expected = (data.fit_mean(is_robust=True)(T) for data in (ragged, FunctionalData(curves, T)))
        assert np.allclose(found, expected)
    assert np.allclose(FunctionalData(regular, T).fit_mean(is_robust=True)(T)[:, 0], np.median(regular, 0))


def test_robust_mean_without_outliers_is_near_the_mean():
    cut, full = cut_curves()
    mean = FunctionalData(cut, T).fit_mean(is_robust=True)(T)[:, 0]
    assert np.abs(mean - full.mean(0)).max() < 0.3
    constant = np.where(np.arange(40) % 7 == 0, np.nan, np.full((5, 40), 3.0))
    constant[0, 0] = 3.0
    assert np.allclose(FunctionalData(constant, T).fit_mean(is_robust=True)(T), 3.0)
