"""The decision function between levels, held-out values and calibrated thresholds."""

import numpy as np
import pytest
import torch
from gpytorch.kernels import MaternKernel

from ovkgp.inference.tasks.factors import KernelFactor
from ovkgp.inference.tasks.one_class_function import (
    ThresholdOffset,
    calibrated_thresholds,
    held_out_values,
    joined,
    joined_values,
    thresholds_at,
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


def test_the_joined_function_passes_through_what_is_known(parts):
    w, t, X = parts
    d = joined(lambda X: X, TASKS, THRESHOLDS, torch.from_numpy(w), torch.from_numpy(t))
    np.testing.assert_allclose(thresholds_at(d, GRID), t, atol=1e-8)
    got = d(torch.from_numpy(X), torch.from_numpy(LEVELS)).numpy()
    np.testing.assert_allclose(got, X @ w - thresholds_at(d, LEVELS), atol=1e-8)


def test_between_levels_it_is_the_interpolation_of_least_norm(parts):
    """h(x)(θ) = k_Θ(θ, levels) K_Θ⁻¹ (φ(x)ᵀ w_j)_j, written out."""
    w, t, X = parts
    d = joined(lambda X: X, TASKS, THRESHOLDS, torch.from_numpy(w), torch.from_numpy(t))
    new = np.array([0.1, 0.33, 0.9])

    def along(kernel, anchors, values):
        gram = kernel(torch.from_numpy(anchors)[:, None]).to_dense().numpy()
        cross = kernel(torch.from_numpy(new)[:, None], torch.from_numpy(anchors)[:, None]).to_dense().numpy()
        return np.linalg.solve(gram, values).T @ cross.T

    expected = along(TASKS.kernel, LEVELS, (X @ w).T) - along(THRESHOLDS.kernel, GRID, t)
    np.testing.assert_allclose(d(torch.from_numpy(X), torch.from_numpy(new)), expected, atol=1e-7)
    np.testing.assert_allclose(joined_values(X @ w, TASKS, new) - thresholds_at(d, new), expected, atol=1e-7)


def test_slopes_of_the_offset_are_differences(parts):
    offset = ThresholdOffset(TASKS, torch.from_numpy(parts[1][:7]))
    points, step = torch.tensor([0.2, 0.5, 0.71]).double(), 1e-6
    differences = (offset(points + step) - offset(points - step)) / (2 * step)
    torch.testing.assert_close(offset.slopes(points), differences, rtol=1e-6, atol=1e-6)


def test_held_out_values_are_those_of_the_path_times_the_threshold():
    rng = np.random.default_rng(0)
    path = OneClassPath(np.abs(rng.standard_normal((12, 6))))
    C = np.array([path.position(0.2), path.position(0.7), np.inf])
    t = np.array([0.5, 2.0, -1.0])
    held = held_out_values(path, C, t)
    np.testing.assert_allclose(held[:, 0], 0.5 * leave_one_out(path, C[0]))
    np.testing.assert_allclose(held[:, 1], 2.0 * leave_one_out(path, C[1]))
    assert (held[:, 2] == 0).all()  # a threshold of 0 or less has h = 0


def test_calibrated_thresholds_leave_their_level_below():
    rng = np.random.default_rng(0)
    curves = rng.uniform(0.1, 1, (2000, 1)) * np.ones(31) + 0.1 * GRID
    t = calibrated_thresholds(curves, np.ones(2000), GRID)
    np.testing.assert_allclose((curves < t).mean(0), GRID, atol=2e-3)
    heavy = np.where(curves[:, 0] < 0.5, 3.0, 1.0)
    t = calibrated_thresholds(curves, heavy, GRID)
    np.testing.assert_allclose(np.average(curves < t, axis=0, weights=heavy), GRID, atol=4e-3)


def test_a_calibrated_threshold_is_positive_so_that_far_points_are_outside():
    t = calibrated_thresholds(np.array([[0.0], [0.0], [1.0]]), np.ones(3), np.array([0.3]))
    assert 0 < t[0] <= 1e-6
