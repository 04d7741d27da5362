"""Tests of `ovkgp.datasets.curves`."""

import numpy as np
import pytest

from ovkgp.datasets import make_lip_curves, make_mixture_curves, make_spline_curves
from ovkgp.datasets.curves import draw_paths
from ovkgp.exceptions import OptionError


@pytest.mark.parametrize("make", [make_spline_curves, make_mixture_curves, make_lip_curves])
def test_curves_reproduce_from_their_seed_and_have_noise_on_request(make):
    a, b = make(6, num_points=50, noise=0.1, random_state=3), make(9, num_points=50, noise=0.1, random_state=3)
    assert np.allclose(a.truth, b.truth[:6])  # the same functions and the same first rows
    assert a.X.shape == a.Y.shape == (6, 50) and a.grid.shape == a.input_grid.shape == (50,)
    assert np.std(a.Y - a.truth) == pytest.approx(0.1, rel=0.2)
    assert np.array_equal(a.Y, make(6, num_points=50, noise=0.1, random_state=3).Y)
    with pytest.raises(OptionError, match="noise"):
        make(3, noise=-1.0)


def test_bo_100_spline_curves_are_bumps_of_unit_width():
    sample = make_spline_curves(400, input_noise=0.0, random_state=0)
    bumps = np.linalg.lstsq(sample.truth[:, ::10], sample.X, rcond=None)
    assert bumps[2] == 4  # both sides are combinations of four functions with the same coefficients
    peaks = np.abs(sample.X).max(0)
    inside = peaks > 0.05
    assert np.allclose(sample.input_grid[inside][[0, -1]], [0.62, 4.38], atol=0.1)
    assert np.abs(sample.X[:, np.abs(sample.input_grid - 1.5) < 0.02]).max() < 1e-3  # bumps do not overlap
    assert peaks.max() == pytest.approx(2 / 3, abs=0.02)  # the value of the cubic B-spline at its center, times max |a|


def test_paths_have_their_covariance():
    grid = np.linspace(0, 1, 15)
    paths = draw_paths(grid, np.full(20_000, 0.3), np.random.default_rng(0))
    assert np.allclose(paths.T @ paths / 20_000, np.exp(-((grid[:, None] - grid) ** 2) / (2 * 0.3**2)), atol=0.04)


def test_bo_101_mixture_curves_share_their_coefficients():
    sample = make_mixture_curves(50, random_state=0)
    assert np.linalg.matrix_rank(np.hstack([sample.X, sample.Y]), tol=1e-8) == 4
    assert (
        pytest.approx(4 * make_mixture_curves(5, random_state=0).Y)
        == make_mixture_curves(5, amplitude=2.0, random_state=0).Y
    )


def test_lip_curves_follow_their_inputs_with_a_delay():
    sample = make_lip_curves(noise=0.0, random_state=0)
    assert sample.X.shape == (32, 641) and (sample.X >= 0).all() and sample.truth.std() == pytest.approx(1, abs=0.3)
    quiet = sample.X.max(0) < 0.01
    first = np.argmin(quiet)
    delayed = int(0.05 / 0.64 * 640)
    assert np.abs(sample.truth[:, : first + delayed - 1]).max() < 0.02
