"""Tests of `ovkgp.inference.stacking.domain_kriging`."""

import numpy as np
import pytest
import torch

from ovkgp.inference.stacking import domain_kriging
from ovkgp.inference.stacking.domain_kriging import DomainKriging


def standard_grid(count, seed=None):
    points = np.linspace(-1.7, 1.7, count) if seed is None else np.random.default_rng(seed).uniform(-1.7, 1.7, count)
    return torch.from_numpy(points[:, None])


def smooth_functions(points, seed=0, count=30):
    rng = np.random.default_rng(seed)
    return np.sin(rng.uniform(0.5, 2, (count, 1)) * points[:, 0].numpy() + rng.uniform(0, 6, (count, 1)))


def test_smooth_functions_are_interpolated_and_exact_on_the_grid():
    grid, at = standard_grid(30), torch.tensor([[-1.03], [0.4], [1.1]], dtype=torch.float64)
    kriging = DomainKriging(grid, smooth_functions(grid))
    np.testing.assert_allclose(kriging.at(smooth_functions(grid), at).numpy().T, smooth_functions(at), atol=1e-4)
    some = grid[[3, 17, 29]]
    np.testing.assert_allclose(kriging.at(smooth_functions(grid), some).numpy().T, smooth_functions(some), atol=1e-12)
    assert (kriging.variances(some, np.ones((2, 1))) == 0).all()
    assert kriging.at(np.zeros((0, 30)), at).shape == (3, 0)


def test_errors_of_rough_curves_have_the_estimated_variance():
    """Draws of a Matérn-3/2 process with noise on a dense grid, of which every fourth point is known."""
    grid, rng = standard_grid(121), np.random.default_rng(0)
    K = domain_kriging.matern32(np.abs(grid.numpy() - grid.numpy().T) / 0.4) + 0.01 * np.eye(121)
    Y = rng.standard_normal((300, 121)) @ np.linalg.cholesky(K).T
    known = np.arange(0, 121, 4)
    between = np.setdiff1d(np.arange(121), known)
    kriging = DomainKriging(grid[known], Y[:100, known])
    scale = kriging.error_scales(Y[:100, known])
    errors = kriging.at(Y[100:, known], grid[between]).numpy().T - Y[100:, between]
    variances = kriging.variances(grid[between], scale).numpy()
    assert np.mean(np.square(errors) / variances) == pytest.approx(1.0, abs=0.2)
    covariance = kriging.covariance(grid[between], scale).numpy()
    np.testing.assert_allclose(np.diag(covariance), variances, rtol=1e-10)
    assert np.linalg.eigvalsh(covariance).min() > -1e-8


def test_neighbors_agree_with_all_points(monkeypatch):
    points = torch.from_numpy(np.random.default_rng(0).uniform(-1.5, 1.5, (200, 2)))
    Y = np.sin(points[:, 0].numpy() + np.arange(20)[:, None]) * points[:, 1].numpy()
    at = torch.from_numpy(np.random.default_rng(1).uniform(-1, 1, (15, 2)))
    whole = DomainKriging(points, Y)
    expected, scale = whole.at(Y, at), whole.error_scales(Y)
    monkeypatch.setattr(domain_kriging, "MAX_DENSE_POINTS", 100)
    local = DomainKriging(points, Y)
    np.testing.assert_allclose(local.at(Y, at), expected, atol=1e-2)
    assert local.error_scales(Y) == pytest.approx(scale, rel=3)


def test_functions_are_bounded_beyond_the_grid():
    grid = standard_grid(20)
    kriging = DomainKriging(grid, smooth_functions(grid))
    far = torch.tensor([[-4.0], [5.0]], dtype=torch.float64)
    assert kriging.at(smooth_functions(grid), far).abs().max() < 6
    near = kriging.variances(torch.tensor([[0.05]], dtype=torch.float64), np.ones((2, 1)))
    assert (kriging.variances(far, np.ones((2, 1))) > 100 * near).all()
