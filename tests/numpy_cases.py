"""Derivatives of the NumPy nodes of parameters, kernels and outputs, against differences."""

import numpy as np

from ovkgp.inference.model.parameter_vector import ParameterVector
from ovkgp.inference.training.numpy_values import NumpyVector


def assert_derivatives(function, theta, by_value):
    """`function` gives a value and its way back; the derivatives of ⟨by_value, value⟩ must agree."""
    _, backward = function(theta)
    out, h = np.zeros(len(theta)), 1e-6
    backward(by_value, out)
    steps = h * np.eye(len(theta))
    found = [np.vdot(by_value, function(theta + e)[0] - function(theta - e)[0]) / (2 * h) for e in steps]
    np.testing.assert_allclose(out, found, rtol=1e-7, atol=1e-9)


def away(module, seed=0):
    vector = ParameterVector(module)
    vector.set(vector.get() + 0.3 * np.random.default_rng(seed).standard_normal(len(vector)))
    values = NumpyVector(vector)
    return values, values.values(vector.get())[0]
