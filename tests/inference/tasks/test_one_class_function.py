"""Tests of `ovkgp.inference.tasks.one_class_function`."""

import numpy as np
import pytest
import torch
from gpytorch.kernels import MaternKernel

from ovkgp.inference.tasks.factors import KernelFactor
from ovkgp.inference.tasks.one_class_function import (
    ThresholdOffset,
    are_nested,
    calibrate_thresholds,
    compute_level_scores,
    evaluate_thresholds,
    find_fraction_levels,
    interpolate_levels,
    interpolate_values,
    leave_one_out_values,
    make_decision_function,
    sort_curves,
    weighted_quantile,
)
from ovkgp.inference.tasks.one_class_path import OneClassPath, leave_one_out


def factor(levels, lengthscale):
    kernel = MaternKernel(nu=2.5).double().requires_grad_(False)
    kernel.lengthscale = lengthscale
    return KernelFactor(kernel, torch.as_tensor(levels, dtype=torch.float64))


LEVELS, GRID = np.linspace(0.05, 1, 7), np.linspace(0.05, 1, 31)
TASKS, THRESHOLDS = factor(LEVELS, 0.3), factor(GRID, 0.2)


@pytest.fixture
def parts():
    rng = np.random.default_rng(0)
    return rng.standard_normal((5, 7)), rng.standard_normal(31), rng.standard_normal((9, 5))


def test_decision_function_interpolates_the_levels(parts):
    w, t, X = parts
    d = make_decision_function(lambda X: X, TASKS, THRESHOLDS, torch.from_numpy(w), torch.from_numpy(t))
    np.testing.assert_allclose(evaluate_thresholds(d, GRID), t, atol=1e-8)
    got = d(torch.from_numpy(X), torch.from_numpy(LEVELS)).numpy()
    np.testing.assert_allclose(got, X @ w - evaluate_thresholds(d, LEVELS), atol=1e-8)


def test_decision_function_has_the_least_norm(parts):
    """h(x)(θ) = k_Θ(θ, levels) K_Θ⁻¹ (φ(x)ᵀ w_j)_j, written out."""
    w, t, X = parts
    d = make_decision_function(lambda X: X, TASKS, THRESHOLDS, torch.from_numpy(w), torch.from_numpy(t))
    new = np.array([0.1, 0.33, 0.9])

    def along(kernel, anchors, values):
        gram = kernel(torch.from_numpy(anchors)[:, None]).to_dense().numpy()
        cross = kernel(torch.from_numpy(new)[:, None], torch.from_numpy(anchors)[:, None]).to_dense().numpy()
        return np.linalg.solve(gram, values).T @ cross.T

    expected = along(TASKS.kernel, LEVELS, (X @ w).T) - along(THRESHOLDS.kernel, GRID, t)
    np.testing.assert_allclose(d(torch.from_numpy(X), torch.from_numpy(new)), expected, atol=1e-7)
    np.testing.assert_allclose(interpolate_values(X @ w, TASKS, new) - evaluate_thresholds(d, new), expected, atol=1e-7)


def test_slopes_of_the_offset_are_differences(parts):
    offset = ThresholdOffset(TASKS, torch.from_numpy(parts[1][:7]))
    points, step = torch.tensor([0.2, 0.5, 0.71]).double(), 1e-6
    differences = (offset(points + step) - offset(points - step)) / (2 * step)
    torch.testing.assert_close(offset.slopes(points), differences, rtol=1e-6, atol=1e-6)


def test_leave_one_out_values_are_those_of_the_path_times_the_threshold():
    rng = np.random.default_rng(0)
    path = OneClassPath(np.abs(rng.standard_normal((12, 6))))
    C = np.array([path.position(0.2), path.position(0.7), np.inf])
    t = np.array([0.5, 2.0, -1.0])
    held = leave_one_out_values(path, C, t)
    np.testing.assert_allclose(held[:, 0], 0.5 * leave_one_out(path, C[0]))
    np.testing.assert_allclose(held[:, 1], 2.0 * leave_one_out(path, C[1]))
    assert (held[:, 2] == 0).all()  # a threshold of 0 or less has h = 0


def test_calibrated_thresholds_have_their_level_below():
    rng = np.random.default_rng(0)
    curves = rng.uniform(0.1, 1, (2000, 1)) * np.ones(31) + 0.1 * GRID
    t = calibrate_thresholds(curves, np.ones(2000), GRID)
    np.testing.assert_allclose((curves < t).mean(0), GRID, atol=2e-3)
    heavy = np.where(curves[:, 0] < 0.5, 3.0, 1.0)
    t = calibrate_thresholds(curves, heavy, GRID)
    np.testing.assert_allclose(np.average(curves < t, axis=0, weights=heavy), GRID, atol=4e-3)


def test_calibrated_threshold_is_positive():
    t = calibrate_thresholds(np.array([[0.0], [0.0], [1.0]]), np.ones(3), np.array([0.3]))
    assert 0 < t[0] <= 1e-6


CURVE_LEVELS = np.linspace(0.01, 1, 101)


def curves(n=500, seed=0):
    """Return curves that decrease overall, with oscillations."""
    rng = np.random.default_rng(seed)
    height, phase = rng.uniform(size=(n, 1)) ** 2, rng.uniform(0, 2 * np.pi, (n, 1))
    return height + 0.1 - CURVE_LEVELS + 0.1 * np.sin(40 * CURVE_LEVELS + phase)


def test_sort_curves_keeps_the_values_and_makes_sets_nested():
    before, after = curves(), sort_curves(curves())
    np.testing.assert_array_equal(np.sort(after, 1), np.sort(before, 1))
    assert (np.diff(after, axis=1) <= 0).all()
    assert are_nested(before).mean() < 0.5 and are_nested(after).all()
    np.testing.assert_array_equal((after >= 0).sum(1), (before >= 0).sum(1))


def test_fraction_levels_give_each_level_its_mass():
    """Rearranging alone changes the mass of the sets; the levels of `find_fraction_levels` put it right, on fresh curves too."""
    sorted_curves = sort_curves(curves(5000))
    fractions = find_fraction_levels(curves(5000), CURVE_LEVELS, np.ones(5000))
    assert (np.diff(fractions) >= 0).all() and fractions.min() >= 0.01 and fractions.max() <= 1
    inner = (CURVE_LEVELS > 0.1) & (CURVE_LEVELS < 0.9)
    outside = (interpolate_levels(sorted_curves, CURVE_LEVELS, fractions) < 0).mean(0)
    np.testing.assert_allclose(outside[inner], CURVE_LEVELS[inner], atol=0.01)
    assert np.abs((sorted_curves < 0).mean(0) - CURVE_LEVELS)[inner].max() > 0.1
    fresh = interpolate_levels(sort_curves(curves(5000, seed=1)), CURVE_LEVELS, fractions)
    np.testing.assert_allclose((fresh < 0).mean(0)[inner], CURVE_LEVELS[inner], atol=0.03)


def test_weighted_quantile_counts_copies():
    values, weights = np.array([0.4, 0.1, 0.9]), np.array([1.0, 2.0, 3.0])
    repeated = np.repeat(values, [1, 2, 3])
    for level in (2 / 7, 3 / 7, 6 / 7):  # where a value's copies end
        assert weighted_quantile(values, weights, level) == pytest.approx(
            weighted_quantile(repeated, np.ones(6), level)
        )


@pytest.mark.parametrize("level", [0.05, 0.3, 0.5, 0.8])
def test_weighted_quantile_has_the_level_of_a_new_value(level):
    """The average over samples of 19 is the level, exactly where (n + 1) θ is whole: order statistics of a uniform variable."""
    rng = np.random.default_rng(0)
    quantiles = [weighted_quantile(rng.uniform(size=19), np.ones(19), level) for _ in range(4000)]
    assert np.mean(quantiles) == pytest.approx(level, abs=0.006)


def test_weighted_quantile_is_clipped_at_the_sample():
    values = np.array([3.0, 1.0, 2.0])
    assert weighted_quantile(values, np.ones(3), 0.01) == 1.0 and weighted_quantile(values, np.ones(3), 0.99) == 3.0


def test_curves_between_levels_are_linear():
    line = 2.0 - 3.0 * CURVE_LEVELS[None]
    levels = np.array([0.01, 0.123, 0.5, 0.999, 1.0])
    np.testing.assert_allclose(interpolate_levels(line, CURVE_LEVELS, levels)[0], 2 - 3 * levels, atol=1e-12)


def test_level_score_is_the_last_level_inside():
    """LT-107: s(x) = sup{θ: d(x)(θ) ≥ 0}; near 0 for rare points, near 1 for typical ones."""
    line = np.array([0.2, 0.77])[:, None] - CURVE_LEVELS
    np.testing.assert_allclose(compute_level_scores(line, CURVE_LEVELS), [0.2, 0.77], atol=1e-12)
    twice = np.where((CURVE_LEVELS < 0.2) | ((CURVE_LEVELS > 0.5) & (CURVE_LEVELS < 0.6)), 1.0, -1.0)[None]
    assert compute_level_scores(twice, CURVE_LEVELS)[0] == pytest.approx(0.6, abs=0.01)
    np.testing.assert_array_equal(compute_level_scores(np.array([[-1.0] * 101, [1.0] * 101]), CURVE_LEVELS), [0, 1])
    assert compute_level_scores(np.array([[0.0, -1.0]]), np.array([0.1, 1.0]))[0] == 0.1


def test_are_nested_is_false_for_a_curve_that_returns():
    signs = np.array([[1, 1, -1], [1, -1, 1], [-1, -1, -1], [-1, 1, 1], [1, 1, 1], [0, -1, -1.0]])
    assert are_nested(signs).tolist() == [True, False, True, False, True, True]
