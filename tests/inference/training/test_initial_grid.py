"""Tests of `ovkgp.inference.training.initial_grid`."""

import numpy as np
import pytest

from ovkgp.inference.training.initial_grid import make_lengthscale_grid


def test_grid_spans_neighbor_distance_to_three_root_d():
    X = np.random.default_rng(0).standard_normal((30, 2))
    distances = np.linalg.norm(X[:, None] - X, axis=-1) + np.diag(np.full(30, np.inf))
    grid = make_lengthscale_grid(X)
    assert len(grid) == 6
    assert grid[0] == pytest.approx(np.median(distances.min(1)))
    assert grid[-1] == pytest.approx(3 * np.sqrt(2))
    np.testing.assert_allclose(grid[1:] / grid[:-1], grid[1] / grid[0])


def test_grid_ignores_copies():
    X = np.random.default_rng(0).standard_normal((20, 1))
    np.testing.assert_array_equal(make_lengthscale_grid(np.vstack([X, X, X])), make_lengthscale_grid(X))


def test_grid_of_equal_or_distant_rows_is_finite_and_increasing():
    np.testing.assert_allclose(make_lengthscale_grid(np.zeros((5, 4))), [6.0])
    grid = make_lengthscale_grid(np.array([[0.0], [100.0]]))
    assert (np.diff(grid) > 0).all() and grid[-1] == pytest.approx(3.0)
