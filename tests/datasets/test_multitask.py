"""Quadratic tasks and low-rank outputs against loops, and the conditions that their sources set."""

import numpy as np
import pytest

from ovkgp.datasets import make_low_rank_outputs, make_quadratic_tasks
from ovkgp.exceptions import OptionError

VARIANCES = (0.5, 0.25, 0.1, 0.05, 0.15, 0.1, 0.15)


def monomials(x):
    """BT-83, as printed, counting from one."""
    x = (None, *x)
    return np.array([x[1] ** 2, x[4] ** 2, x[1] * x[2], x[3] * x[5], x[2], x[4], 1.0])


def test_bt_83_outputs_are_the_printed_monomials():
    X, Y, truth = make_quadratic_tasks(30, random_state=0)
    np.testing.assert_allclose(Y, [truth.weights @ monomials(x) for x in X], atol=1e-14)
    assert X.shape == (30, 20) and Y.shape == (30, 4)


def test_bt_83_only_the_first_five_inputs_matter():
    X, Y, truth = make_quadratic_tasks(30, random_state=0)
    changed = X.copy()
    changed[:, 5:] = 0.5
    np.testing.assert_array_equal(truth(changed), Y)
    for column in range(5):
        moved = X.copy()
        moved[:, column] += 0.1
        assert abs(truth(moved) - Y).max() > 1e-3


def test_bt_83_inputs_and_weights_have_the_stated_distribution():
    X, _, truth = make_quadratic_tasks(4000, num_tasks=4000, random_state=0)
    assert X.min() >= 0 and X.max() <= 1
    np.testing.assert_allclose(X.mean(0), 0.5, atol=0.02)  # standard error .0046
    np.testing.assert_allclose(X.var(0), 1 / 12, atol=0.006)
    second = truth.weights.T @ truth.weights / 4000
    np.testing.assert_allclose(np.diag(second), VARIANCES, rtol=0.09)  # standard error √(2/4000) = .022
    scale = np.sqrt(np.outer(VARIANCES, VARIANCES))
    assert abs((second - np.diag(VARIANCES)) / scale)[~np.eye(7, dtype=bool)].max() < 4.5 / np.sqrt(4000)


def test_bt_83_outputs_have_the_mean_of_the_monomials_and_are_bounded():
    """E y_t = ⟨w_t, E φ⟩ with E φ = (1/3, 1/3, 1/4, 1/4, 1/2, 1/2, 1), and |y_t| ≤ ‖w_t‖₁ on the cube."""
    _, Y, truth = make_quadratic_tasks(20_000, random_state=0)
    mean = truth.weights @ [1 / 3, 1 / 3, 1 / 4, 1 / 4, 1 / 2, 1 / 2, 1]
    np.testing.assert_allclose(Y.mean(0), mean, atol=4.5 * Y.std() / np.sqrt(20_000))
    assert (abs(Y).max(0) <= abs(truth.weights).sum(1)).all()


def test_rescaled_inputs_keep_the_outputs():
    unscaled = make_quadratic_tasks(50, noise=0.01, random_state=0)
    rescaled = make_quadratic_tasks(50, noise=0.01, rescaled=True, random_state=0)
    np.testing.assert_array_equal(rescaled.X, 2 * unscaled.X - 1)
    np.testing.assert_allclose(rescaled.Y, unscaled.Y, atol=1e-13)
    np.testing.assert_allclose(rescaled.truth(rescaled.X), unscaled.truth(unscaled.X), atol=1e-13)


def test_quadratic_tasks_reject_too_few_dimensions_and_tasks():
    X, Y, _ = make_quadratic_tasks(6, num_tasks=1, num_dims=5, random_state=0)
    assert X.shape == (6, 5) and Y.shape == (6, 1)
    with pytest.raises(OptionError, match="num_dims"):
        make_quadratic_tasks(6, num_dims=4)
    with pytest.raises(OptionError, match="num_tasks"):
        make_quadratic_tasks(6, num_tasks=0)


@pytest.fixture(scope="module")
def low_rank():
    """BA-13 as printed, 10⁴ frequencies and all."""
    return make_low_rank_outputs(300, random_state=0)


def test_ba_13_output_matrix_has_rank_one_and_norm_one(low_rank):
    eigenvalues = np.linalg.eigvalsh(low_rank.truth.output_matrix)
    assert low_rank.truth.output_matrix.shape == (20, 20)
    np.testing.assert_allclose(eigenvalues[-1], 1, rtol=1e-12)
    np.testing.assert_allclose(eigenvalues[:-1], 0, atol=1e-12)


def test_ba_13_noiseless_outputs_have_rank_one_and_span_that_of_the_matrix(low_rank):
    clean, A = low_rank.truth(low_rank.X), low_rank.truth.output_matrix
    assert np.linalg.matrix_rank(clean, tol=1e-9) == 1
    np.testing.assert_allclose(clean @ A, clean, atol=1e-10)


def test_ba_13_noise_covariance_is_full_with_the_standard_deviation_of_the_outputs_as_norm(low_rank):
    sigma = low_rank.truth.noise_covariance
    np.testing.assert_allclose(sigma, sigma.T, atol=1e-15)
    assert np.linalg.eigvalsh(sigma)[0] > 0 and np.linalg.matrix_rank(sigma) == 20
    assert np.count_nonzero(sigma) == 400
    # The standard deviation is measured on 1000 separate points: these are 2000 others.
    others = np.random.default_rng(5).uniform(-1, 1, (2000, 20))
    deviation = np.sqrt(low_rank.truth(others).var(0).mean())
    np.testing.assert_allclose(np.linalg.norm(sigma, 2), deviation, rtol=0.1)


def test_ba_13_lengthscale_is_the_median_distance(low_rank):
    X = low_rank.X
    distances = [np.linalg.norm(X[i] - X[j]) for i in range(len(X)) for j in range(i)]
    np.testing.assert_allclose(low_rank.truth.lengthscale, np.median(distances), rtol=0.02)


def test_ba_13_weights_are_uniform_on_both_sides_of_zero(low_rank):
    weights = low_rank.truth._weights.numpy()
    assert weights.shape == (2 * 10_000,)
    assert -1 <= weights.min() < -0.99 and 0.99 < weights.max() <= 1
    np.testing.assert_allclose([weights.mean(), weights.var()], [0, 1 / 3], atol=0.02)


def test_ba_13_outputs_are_the_feature_model():
    X, Y, truth = make_low_rank_outputs(7, num_frequencies=30, noise=0.0, random_state=2)
    angles = X @ truth._features.frequencies.numpy().T
    scalar_features = np.concatenate([np.cos(angles), np.sin(angles)], axis=1) / np.sqrt(30)
    scalar = scalar_features @ truth._weights.numpy()
    direction = np.linalg.eigh(truth.output_matrix)[1][:, -1]
    sign = np.sign(Y[0] @ direction * scalar[0])  # the root of A is known up to its sign
    np.testing.assert_allclose(Y, sign * np.outer(scalar, direction), atol=1e-10)


def test_ba_13_noise_of_a_sample_has_the_covariance_in_the_truth():
    X, Y, truth = make_low_rank_outputs(40_000, num_outputs=4, num_frequencies=20, random_state=0)
    residuals, sigma = Y - truth(X), truth.noise_covariance
    # The standard error of an entry is at most √2 ‖Σ‖ / √40 000.
    np.testing.assert_allclose(residuals.T @ residuals / len(X), sigma, atol=4 * 1.42 / 200 * np.linalg.norm(sigma, 2))
    assert abs(np.corrcoef(residuals.T) - np.eye(4)).max() > 0.1


@pytest.mark.parametrize("rank", [1, 3, 5])
def test_low_rank_outputs_have_the_requested_rank(rank):
    X, _, truth = make_low_rank_outputs(40, num_outputs=5, num_dims=3, rank=rank, num_frequencies=60, random_state=1)
    np.testing.assert_allclose(np.linalg.norm(truth.output_matrix, 2), 1, rtol=1e-12)
    assert np.linalg.matrix_rank(truth.output_matrix, tol=1e-9) == rank
    assert np.linalg.matrix_rank(truth(X), tol=1e-9) == rank


@pytest.mark.slow
def test_low_rank_outputs_have_the_covariance_of_the_kernel():
    """Over seeds, E y(x) y(z)ᵀ given A is k(x, z) A/3, as θ has variance 1/3; tr A = ‖A‖ = 1 at rank one."""
    points = np.array([[0.0, 0.0], [0.5, 0.5]])
    options = {"num_dims": 2, "num_outputs": 3, "num_frequencies": 100, "lengthscale": 1.0}
    draws = np.stack([make_low_rank_outputs(1, **options, random_state=i).truth(points) for i in range(400)])
    traces = np.einsum("sip,sjp->ij", draws, draws) / 400
    kernel = np.exp(-0.25) * np.ones((2, 2)) + (1 - np.exp(-0.25)) * np.eye(2)
    np.testing.assert_allclose(traces, kernel / 3, atol=4 * np.sqrt(2 / 400) / 3)


def test_low_rank_outputs_reject_invalid_options():
    for option in ({"rank": 21}, {"rank": 0}, {"num_outputs": 0}, {"lengthscale": -1.0}, {"num_frequencies": 0}):
        with pytest.raises(OptionError, match=next(iter(option))):
            make_low_rank_outputs(5, **option)
    with pytest.raises(OptionError, match="noise"):
        make_low_rank_outputs(5, noise="shared")
