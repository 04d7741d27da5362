"""What an output is, and what its latent function means."""

import numpy as np
import plot_cases

import ovkgp
from ovkgp.plotting.slices import output_kinds, responses


def test_kinds_of_outputs():
    assert output_kinds(plot_cases.mixed(), 3) == ["label", "count", "real"]
    assert output_kinds(plot_cases.two_outputs(), 2) == ["real", "real"]
    X, Y = np.linspace(0, 1, 12)[:, None], np.eye(2)[np.arange(12) % 2]
    options = {"num_frequencies": 4, "hyperparameters": "fixed", "random_state": 0}
    classes = ovkgp.GPRegressor("independent", likelihood="softmax", **options).fit(X, Y)
    assert output_kinds(classes, 2) == ["class", "class"]
    np.testing.assert_allclose(responses(classes, np.array([[1.0, 3.0]])), [[1 / (1 + np.e**2), 1 / (1 + np.e**-2)]])
    heavy = ovkgp.GPRegressor("independent", likelihood="student_t", **options).fit(X, X)
    assert output_kinds(heavy, 1) == ["real"]
    np.testing.assert_array_equal(responses(heavy, np.ones((2, 1))), np.ones((2, 1)))


def test_latent_functions_become_probabilities_expected_counts_and_themselves():
    latent = np.array([[[-2.0, 0.5, 7.0], [0.0, 1.0, -7.0]]])
    wanted = np.stack([1 / (1 + np.exp(-latent[..., 0])), np.exp(latent[..., 1]), latent[..., 2]], -1)
    np.testing.assert_allclose(responses(plot_cases.mixed(), latent), wanted, rtol=1e-6)
    np.testing.assert_array_equal(responses(plot_cases.two_outputs(), latent), latent)
