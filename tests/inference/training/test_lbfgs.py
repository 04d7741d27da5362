"""Modes and second derivatives of densities that are known in closed form."""

import numpy as np
import pytest
import torch

from ovkgp.exceptions import FactorizationError
from ovkgp.inference.model.parameter_vector import ParameterVector
from ovkgp.inference.training.lbfgs import compute_hessian, find_mode


class Free(torch.nn.Module):
    """Three variables without constraints."""

    def __init__(self):
        super().__init__()
        self.x = torch.nn.Parameter(torch.zeros(3, dtype=torch.float64))


def narrow(u):
    """A correlated density with widths from 1e-3 to 10, and fourth derivatives."""
    scales = np.array([1e-3, 1.0, 10.0])
    mixing = np.array([[1.0, 0.3, 0.0], [0.0, 1.0, 0.5], [0.0, 0.0, 1.0]])
    z = mixing @ (u / scales)
    return -np.logaddexp(z, -z).sum(), -(mixing.T @ np.tanh(z)) / scales


def test_hessian_adapts_step_to_width():
    scales = np.array([1e-3, 1.0, 10.0])
    mixing = np.array([[1.0, 0.3, 0.0], [0.0, 1.0, 0.5], [0.0, 0.0, 1.0]])
    expected = -(mixing.T @ mixing)
    found = compute_hessian(narrow, np.zeros(3)) * np.outer(scales, scales)
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_find_mode_uses_best_initial_point():
    found = find_mode(ParameterVector(Free()), narrow, [np.array([0.5, 3.0, -20.0]), np.array([0.01, 1.0, 1.0])], 500)
    assert found.converged and np.abs(found.u / [1e-3, 1.0, 10.0]).max() < 1e-3


def test_find_mode_steps_back_from_failures():
    def walled(u):
        value, gradient = -0.5 * u @ u + 2 * u.sum(), 2 - u
        return (value, gradient) if u.max() < 2.5 else (-np.inf, np.zeros(3))

    found = find_mode(ParameterVector(Free()), walled, [np.full(3, -30.0), np.full(3, 9.0)], 500)
    assert found.converged and found.u == pytest.approx(np.full(3, 2.0), abs=1e-4)


def test_hessian_shortens_steps_near_edge():
    def walled(u, wall):
        value, gradient = narrow(u)
        return (value, gradient) if u[1] < wall else (-np.inf, np.zeros(3))

    found = compute_hessian(lambda u: walled(u, 1e-4), np.zeros(3))
    np.testing.assert_allclose(found, compute_hessian(narrow, np.zeros(3)), rtol=1e-4, atol=1e-4)
    with pytest.raises(FactorizationError, match=r"curvature .* \[0.0, 0.0, 0.0\]"):
        compute_hessian(lambda u: walled(u, 0.0), np.zeros(3))


def test_hessian_is_one_sided_at_edge():
    """The end of a uniform prior is often the mode, and there is no density on its other side."""

    def edged(u):
        value, gradient = narrow(u)
        return (value, gradient) if u[1] <= 0 else (-np.inf, np.zeros(3))

    scales, whole = np.array([1e-3, 1.0, 10.0]), compute_hessian(narrow, np.zeros(3))
    found = compute_hessian(edged, np.zeros(3))
    np.testing.assert_allclose(found * np.outer(scales, scales), whole * np.outer(scales, scales), atol=1e-3)


def test_find_mode_restarts_from_the_best_points_of_other_groups():
    def two_modes(u):  # near -2 and, higher but narrower, near 3
        parts = np.array([-0.5 * ((u + 2) ** 2).sum(), 1.0 - 8 * ((u - 3) ** 2).sum()])
        weights = np.exp(parts - np.logaddexp(*parts))
        return np.logaddexp(*parts), weights[0] * -(u + 2) + weights[1] * -16 * (u - 3)

    groups = [np.array([[-2.5] * 3, [-2.1] * 3]), np.array([[2.7] * 3, [1.0] * 3])]
    one, two = (find_mode(ParameterVector(Free()), two_modes, groups, 500, restarts=n) for n in (1, 2))
    assert one.u == pytest.approx(np.full(3, -2.0), abs=1e-3) and two.u == pytest.approx(np.full(3, 3.0), abs=1e-3)
