"""Tests of `ovkgp.functional.quadrature`."""

import numpy as np
import pytest

from ovkgp.exceptions import DomainError, InputError, OptionError
from ovkgp.functional import Fourier, quadrature_weights
from ovkgp.functional.quadrature import as_domain, as_points, gauss_rule, product_rule


@pytest.mark.parametrize("grid", [[0.0, 0.1, 0.4, 1.0], [0.2, 0.5, 0.6]])
def test_trapezoid_weights_integrate_linear_splines_constant_beyond_the_grid(grid):
    weights, fine = quadrature_weights(grid, (0, 1), "trapezoid"), np.linspace(0, 1, 100_001)
    values = np.random.default_rng(0).standard_normal(len(grid))
    assert weights @ values == pytest.approx(np.trapezoid(np.interp(fine, grid, values), fine), abs=1e-8)
    assert weights.sum() == pytest.approx(1)


def test_trapezoid_weights_of_midpoints_are_equal():
    assert np.allclose(quadrature_weights((np.arange(8) + 0.5) / 4, (0, 2), "trapezoid"), 1 / 8)


def test_weights_of_a_cartesian_grid_are_products():
    x, y = np.linspace(0, 1, 4), np.array([0.0, 0.3, 2.0])
    grid = np.stack(np.meshgrid(x, y, indexing="ij"), -1).reshape(-1, 2)
    expected = np.kron(quadrature_weights(x, rule="trapezoid"), quadrature_weights(y, rule="trapezoid"))
    assert np.allclose(quadrature_weights(grid, rule="trapezoid"), expected)
    with pytest.raises(OptionError, match="rule"):
        quadrature_weights(grid[:-1], rule="trapezoid")


def test_mean_weights_count_the_end_of_a_period_twice():
    """BO §0.2: a Fourier basis is orthonormal on midpoints and for the trapezoidal rule, not for 1/m on both ends."""
    fourier, ends, m = Fourier(4), np.linspace(0, 1, 21), 20
    rows = fourier(ends)
    printed = rows.T @ rows / len(ends)
    assert np.abs(printed - np.eye(7)).max() > 0.04
    weights = quadrature_weights(ends, rule="trapezoid")
    assert np.allclose((rows * weights[:, None]).T @ rows, np.eye(7), atol=1e-12)
    middle = fourier((np.arange(m) + 0.5) / m)
    assert np.allclose(middle.T @ middle / m, np.eye(7), atol=1e-12)


def test_gauss_rule_is_exact_for_polynomials_on_each_panel():
    nodes, weights = gauss_rule(np.array([0.0, 0.3, 0.3, 1.0, 4.0]), 3)
    assert weights @ nodes**5 == pytest.approx(4**6 / 6)
    points, products = product_rule([(nodes, weights), gauss_rule(np.array([0.0, 2.0]), 2)])
    assert products @ (points[:, 0] ** 5 * points[:, 1] ** 3) == pytest.approx(4**6 / 6 * 4)


def test_points_and_domains_are_checked():
    with pytest.raises(InputError, match="domain"):
        as_domain((1.0, 0.0))
    with pytest.raises(DomainError, match="domain"):
        as_points([0.5, 1.1], as_domain((0, 1)))
    with pytest.raises(InputError, match="shape"):
        as_points(np.zeros((3, 2)), as_domain((0, 1)))
    with pytest.raises(InputError, match="finite"):
        as_points([np.nan], as_domain((0, 1)))
    assert as_points([1 + 1e-12], as_domain((0, 1)))[0, 0] == 1.0
