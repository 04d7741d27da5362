"""Tests of `ovkgp.inference.stacking.curve_components` and `shared_kernel`."""

import numpy as np
import pytest
import torch
from curve_cases import simulate_curves

import ovkgp
from ovkgp.inference.stacking.candidates import default_candidates
from ovkgp.inference.stacking.curve_candidates import CurveCandidate, CurveData, held_out_densities
from ovkgp.inference.stacking.curve_components import ComponentPosterior, fill_gaps, fit_components
from ovkgp.inference.stacking.shared_kernel import SharedEvidence, SharedPosterior, SharedProblem, fit_shared

POINTS = torch.tensor([[-1.2], [0.1], [0.9]], dtype=torch.float64)


@pytest.fixture(scope="module")
def data():
    grid, X, Y = simulate_curves(40, 15)
    tasks = torch.from_numpy((grid - grid.mean()) / grid.std()).unsqueeze(-1)
    Y = Y - Y.mean(0)
    return CurveData(torch.from_numpy(X / X.std(0)), torch.from_numpy(Y / Y.std()), tasks)


@pytest.fixture(scope="module")
def components(data):
    return fit_components(data, 4)


def test_truncation_error_covers_held_out_curves(data):
    grid, X, Y = simulate_curves(400, 15, seed=1)
    del grid, X
    Y = torch.from_numpy(Y)
    Y = (Y - Y.mean(0)) / Y.std()
    train, test = Y[:40], Y[40:]
    found = fit_components(CurveData(data.X, train, data.tasks), 3).posterior.state
    residual = test.numpy() - test.numpy() @ found.components.T @ found.components
    expected = np.square(residual).mean(0)
    variance = np.square(found.residual).sum(0) + found.white
    np.testing.assert_allclose(variance.mean(), expected.mean(), rtol=0.35)
    in_sample = train.numpy() - train.numpy() @ found.components.T @ found.components
    assert variance.mean() > np.square(in_sample).mean()


def test_component_moments_are_consistent(data, components):
    posterior, X = components.posterior, data.X[:3]
    mean, variance = posterior.moments(X, data.tasks, "diag")
    same, covariance = posterior.moments(X, data.tasks, "output")
    torch.testing.assert_close(mean, same)
    torch.testing.assert_close(covariance.diagonal(dim1=1, dim2=2), variance)
    torch.testing.assert_close(posterior.deviation_at(POINTS).diagonal(), posterior.deviation_variances_at(POINTS))
    draws = posterior.sample(X, data.tasks, 4000, random_state=0)
    torch.testing.assert_close(draws.mean(0), mean, atol=0.05, rtol=0)
    torch.testing.assert_close(draws.std(0), variance.sqrt(), atol=0.05, rtol=0.2)


def test_component_posterior_is_restored_from_its_state(data, components):
    again = ComponentPosterior(components.posterior.state, data)
    for a, b in zip(
        again.moments(data.X, POINTS, "diag"), components.posterior.moments(data.X, POINTS, "diag"), strict=True
    ):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)


def test_shared_evidence_is_the_profiled_sum_and_has_its_gradient(data):
    problem = SharedProblem(default_candidates()[2], data.X[:12])
    Y = data.Y[:12, :5].numpy()
    evidence = SharedEvidence(problem.kernel, problem.noise, Y, 1.0)
    theta = problem.parameters.theta(problem.points[1, 1])
    M = problem.kernel.matrix(theta)[0] + problem.noise.variances(theta)[0][0] * np.eye(12)
    expected = 0.0
    for y in Y.T:  # the variance of each point at its maximum
        s2 = y @ np.linalg.solve(M, y) / 12
        full = s2 * M
        expected += -0.5 * (y @ np.linalg.solve(full, y) + np.linalg.slogdet(full)[1] - 12)
    gradient = np.zeros(len(theta))
    assert evidence(theta, gradient) == pytest.approx(expected, abs=1e-9)
    for i in range(len(theta)):
        step = 1e-6 * np.eye(len(theta))[i]
        difference = (evidence.value(theta + step) - evidence.value(theta - step)) / 2e-6
        assert gradient[i] == pytest.approx(difference, rel=1e-4, abs=1e-4)


def test_shared_posterior_equals_dense_matrix_normal(data):
    found = fit_shared(data, default_candidates()[2])
    posterior = SharedPosterior(found.state, data)
    K = posterior.kernel.matrix(posterior.theta)[0]
    M, Y = K + posterior.nugget * np.eye(len(K)), data.Y.numpy()
    Sigma = Y.T @ np.linalg.solve(M, Y) / len(Y)
    X = data.X[:3] + 0.1
    cross = posterior.kernel.cross(posterior.theta[None], X.numpy())[0]
    prior = np.diag(posterior.kernel.cross(posterior.theta[None], X.numpy(), X.numpy())[0])
    variance = prior - np.einsum("ij,ji->i", cross, np.linalg.solve(M, cross.T))
    mean, covariance = posterior.moments(X, data.tasks, "output")
    np.testing.assert_allclose(mean.numpy(), cross @ np.linalg.solve(M, Y), atol=1e-8)
    np.testing.assert_allclose(covariance.numpy(), variance[:, None, None] * Sigma, atol=1e-8)
    np.testing.assert_allclose(posterior.deviation_at(data.tasks).numpy(), posterior.nugget * Sigma, atol=1e-8)
    draws = posterior.sample(X, data.tasks, 5000, random_state=0)
    np.testing.assert_allclose(draws.mean(0).numpy(), mean.numpy(), atol=0.06)


def test_shared_held_out_densities_equal_refitted_rows(data):
    found = fit_shared(data, default_candidates()[1])
    posterior = SharedPosterior(found.state, data)
    K = posterior.kernel.matrix(posterior.theta)[0]
    M, Y, i = K + posterior.nugget * np.eye(len(K)), data.Y.numpy(), 5
    rest = np.delete(np.arange(len(M)), i)
    weights = np.linalg.solve(M[np.ix_(rest, rest)], M[rest, i])
    variance = (M[i, i] - weights @ M[rest, i]) * np.diag(Y.T @ np.linalg.solve(M, Y)) / len(Y)
    expected = -0.5 * ((Y[i] - weights @ Y[rest]) ** 2 / variance + np.log(2 * np.pi * variance))
    np.testing.assert_allclose(found.log_density[i], expected, atol=1e-8)


def test_gaps_are_filled_by_components_of_the_curves():
    _, _, Y = simulate_curves(40, 30, noise=0.0)
    gaps = np.where(np.random.default_rng(0).random(Y.shape) < 0.05, np.nan, Y)
    filled = fill_gaps(gaps)
    missing = np.isnan(gaps)
    np.testing.assert_array_equal(filled[~missing], Y[~missing])
    assert np.sqrt(np.mean((filled - Y)[missing] ** 2)) < 0.2 * (Y - Y.mean(0)).std()


def test_held_out_densities_of_incomplete_curves_equal_those_of_leave_one_out(data):
    Y = torch.where(torch.rand(data.Y.shape, generator=torch.Generator().manual_seed(0)) < 0.4, torch.nan, data.Y)
    gaps = CurveData(data.X, Y, data.tasks)
    gp = CurveCandidate("", "matern52", "matern52").make_gp(gaps)
    expected = gp.leave_one_out(gaps.X, gaps.Y, groups="rows")
    log_density, scores = held_out_densities(gp, gaps)
    np.testing.assert_allclose(scores, ((Y - expected.mean) / expected.std).numpy(), atol=1e-8)
    np.testing.assert_allclose(log_density + 0.5 * scores**2, -expected.std.log().numpy() - 0.5 * np.log(2 * np.pi))


def test_components_are_centered_at_the_grid():
    """Three components of fields whose mean has a front, which no smooth mean follows, are those of the centered fields."""
    rng = np.random.default_rng(0)
    a, b = np.meshgrid(np.linspace(0, 1, 12), np.linspace(0, 1, 12))
    grid, X = np.column_stack([a.ravel(), b.ravel()]), rng.uniform(-1, 1, (20, 2))
    patterns = rng.standard_normal((3, 144))
    Y = 10.0 * (grid.sum(1) > 1) + np.column_stack([X, X[:, 0] * X[:, 1]]) @ patterns
    model = ovkgp.FunctionGPRegressor(output_basis="pca", num_components=3, random_state=0).fit(X, Y, grid)
    assert np.sqrt(np.mean((model.predict(X) - Y) ** 2)) < 0.02 * Y.std(0).mean()
