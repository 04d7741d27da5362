"""Fields against the closed forms of their potentials, their curl and divergence by central differences."""

import numpy as np
import pytest

from ovkgp.datasets import make_curl_free_field, make_gaussian_field
from ovkgp.exceptions import InputError, OptionError

STEP = 1e-5
DIFFERENCES = 1e-6
"""Error of central differences of cosines of size 10, ‖ω‖ ≤ 10: STEP² ‖ω‖³ · 10 / 6 ≈ 2e-7, and rounding of 1e-10."""
ROUNDING = 1e-12
"""Sums of hundreds of numbers of order ten, twice in another order."""


def jacobian(function, X):
    """∂f_i/∂x_j at every row (m, i, j), by central differences: good to about STEP² and 1e-16/STEP, relatively."""
    shifts = STEP * np.eye(X.shape[1])
    columns = [(function(X + shift) - function(X - shift)) / (2 * STEP) for shift in shifts]
    return np.stack(columns, axis=-1)


@pytest.mark.parametrize("num_dims", [1, 2, 5])
def test_bt_82_field_is_the_gradient_of_its_potential(num_dims):
    X, Y, truth = make_curl_free_field(20, num_dims=num_dims, num_frequencies=300, random_state=3)
    assert X.shape == Y.shape == (20, num_dims)
    np.testing.assert_allclose(jacobian(truth.potential, X), Y, atol=DIFFERENCES)


def test_bt_82_field_has_no_curl():
    X, _, truth = make_curl_free_field(20, random_state=0)
    J = jacobian(truth, X)
    assert abs(J).max() > 5
    np.testing.assert_allclose(J, J.swapaxes(1, 2), atol=DIFFERENCES)


def test_bt_82_field_is_the_closed_form_of_its_frequencies_and_weights():
    X, Y, truth = make_curl_free_field(7, num_dims=3, num_frequencies=40, random_state=1)
    frequencies, (a, b) = truth._scalar_features.frequencies.numpy(), truth._weights.numpy().reshape(2, 40)
    angles = X @ frequencies.T
    potential = (np.cos(angles) @ a + np.sin(angles) @ b) / np.sqrt(40)
    field = (b * np.cos(angles) - a * np.sin(angles)) @ frequencies / np.sqrt(40)
    np.testing.assert_allclose(truth.potential(X), potential, atol=ROUNDING)
    np.testing.assert_allclose(Y, field, atol=ROUNDING)


@pytest.mark.slow
def test_bt_82_potential_and_field_have_the_variances_of_the_kernel():
    """Over seeds, f(x) has variance 1 and ∇f(x) covariance I/σ²: the curl-free kernel at zero lag."""
    truths = [make_curl_free_field(1, num_dims=2, num_frequencies=200, random_state=i).truth for i in range(400)]
    here = [[0.3, -0.2]]
    potentials = np.array([truth.potential(here)[0] for truth in truths])
    values = np.array([truth(here)[0] for truth in truths])
    # Four standard errors of the second moments, √(2/400) = .07 each, times 1/σ² = 6.25 for the field.
    assert abs((potentials**2).mean() - 1) < 0.28
    np.testing.assert_allclose(values.T @ values / 400, np.eye(2) / 0.4**2, atol=0.28 * 6.25)
    assert abs(potentials.mean()) < 4 / np.sqrt(400)


def test_bt_82_inputs_fill_the_cube_and_the_defaults_are_those_of_the_thesis():
    X, Y, truth = make_curl_free_field(4000, random_state=0)
    assert X.shape == Y.shape == (4000, 5)
    assert X.min() >= -1 and X.max() <= 1
    np.testing.assert_allclose(X.mean(0), 0, atol=0.04)  # standard error √(1/3/4000) = .009
    np.testing.assert_allclose(X.var(0), 1 / 3, atol=0.02)
    assert truth._scalar_features.num_frequencies >= 1000
    np.testing.assert_allclose(truth._scalar_features.kernel.lengthscale.numpy(), 0.4)


@pytest.mark.parametrize(
    "option", [{"lengthscale": 0.0}, {"lengthscale": np.inf}, {"num_dims": 0}, {"num_frequencies": 0}]
)
def test_curl_free_field_rejects_invalid_options(option):
    with pytest.raises(OptionError, match=next(iter(option))):
        make_curl_free_field(5, **option)


def gaussian_potential(x):
    """BA-12, bump by bump."""
    bumps = [((0, 0), 1), ((0, 1), 1), ((0, -1), 1), ((-1, 0), -1), ((1, 0), -1)]
    return sum(sign * np.exp(-((x[0] - a) ** 2 + (x[1] - b) ** 2) / (2 * 0.4**2)) for (a, b), sign in bumps)


def test_ba_12_potential_is_five_signed_bumps():
    X, _, truth = make_gaussian_field(30, random_state=0)
    np.testing.assert_allclose(truth.potential(X), [gaussian_potential(x) for x in X], atol=1e-14)
    peaks = truth.potential([[0, 0], [0, 1], [0, -1], [-1, 0], [1, 0]])
    np.testing.assert_array_equal(np.sign(peaks), [1, 1, 1, -1, -1])


def test_ba_12_curl_free_field_is_the_gradient():
    X, Y, truth = make_gaussian_field(30, random_state=0)
    np.testing.assert_allclose(jacobian(truth.potential, X), Y, atol=1e-8)
    J = jacobian(truth, X)
    np.testing.assert_allclose(J[:, 0, 1], J[:, 1, 0], atol=1e-8)
    assert abs(np.trace(J, axis1=1, axis2=2)).max() > 1


def test_ba_12_divergence_free_field_is_the_rotated_gradient():
    X, Y, truth = make_gaussian_field(30, kind="divergence_free", random_state=0)
    gradient = make_gaussian_field(30, random_state=0).Y
    np.testing.assert_array_equal(Y, np.stack([gradient[:, 1], -gradient[:, 0]], axis=1))
    J = jacobian(truth, X)
    np.testing.assert_allclose(np.trace(J, axis1=1, axis2=2), 0, atol=1e-8)
    assert abs(J[:, 0, 1] - J[:, 1, 0]).max() > 1


def test_gaussian_field_accepts_other_bumps_and_domains():
    """The four bumps of the thesis author's library, precision 25."""
    centers, heights = [(0.5, 0), (-0.5, 0), (0, 0.5), (0, -0.5)], [1, 1, -1, -1]
    X, _, truth = make_gaussian_field(
        500, centers=centers, heights=heights, lengthscale=0.2, half_width=1.0, random_state=0
    )
    assert 0.9 < abs(X).max() <= 1
    expected = sum(h * np.exp(-12.5 * ((X - c) ** 2).sum(1)) for c, h in zip(centers, heights, strict=True))
    np.testing.assert_allclose(truth.potential(X), expected, atol=1e-14)


def test_gaussian_field_rejects_invalid_bumps():
    with pytest.raises(OptionError, match="kind"):
        make_gaussian_field(5, kind="helmholtz")
    for option in ("lengthscale", "half_width"):
        with pytest.raises(OptionError, match=option):
            make_gaussian_field(5, **{option: -1.0})
    with pytest.raises(InputError, match="heights"):
        make_gaussian_field(5, heights=[1.0, 2.0])
    with pytest.raises(InputError, match="NaN or infinity"):
        make_gaussian_field(5, centers=[[0.0, np.nan]], heights=[1.0])
