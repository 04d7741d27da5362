"""Tests of `ovkgp.inference.stacking.output_draws` and `output_posterior`, against dense algebra."""

import copy
import dataclasses
import pickle

import numpy as np
import pytest
import torch
from scipy.stats import multivariate_normal, norm

from ovkgp.exceptions import FactorizationError
from ovkgp.inference.model.observations import Observations
from ovkgp.inference.stacking import output_draws, output_kernel
from ovkgp.inference.stacking.candidates import default_candidates
from ovkgp.inference.stacking.output_draws import (
    FINAL_EVALUATIONS,
    MIN_CURVATURE,
    MIN_SEARCH_ROWS,
    SEARCH_GAIN,
    Draws,
    OutputProblem,
)
from ovkgp.inference.stacking.output_posterior import IndependentMixture, OutputPosterior, _join_blocks
from ovkgp.inference.training import numpy_values

RNG = np.random.default_rng(0)
X, Z = RNG.standard_normal((14, 2)), RNG.standard_normal((5, 2))
Y = np.sin(2 * X[:, 0]) + 0.3 * X[:, 1] + 0.1 * RNG.standard_normal(14)
KNOWN = RNG.uniform(0.05, 0.2, 14)


def problem(candidate=2, known=False, inputs=X):
    return OutputProblem(default_candidates()[candidate], torch.from_numpy(inputs), known)


def posterior(candidate=2, known=None, count=4):
    found = problem(candidate, known is not None)
    points = found.points[0, 0] + 0.2 * np.random.default_rng(1).standard_normal((count, len(found.parameters)))
    weights = np.arange(1.0, count + 1) / np.arange(1, count + 1).sum()
    draws = Draws(found.parameters.theta(points), weights, points[0])
    return OutputPosterior(found, Y, known, draws)


def dense(one, draw, *points):
    """Blocks of the prior covariance at one draw, by GPyTorch's kernel."""
    kernel = one.problem.kernel_at(one.thetas[draw])
    with torch.no_grad():
        return [[kernel(*(torch.from_numpy(p) for p in pair)).to_dense().numpy() for pair in row] for row in points]


def conditional(one, draw, noise):
    ((K, cross), (_, prior)) = dense(one, draw, [(X, X), (X, Z)], [(Z, X), (Z, Z)])
    added = one.noise_variances[draw]
    C = K + np.diag(np.full(14, added) if one.known is None else one.known)
    solved = np.linalg.solve(C, np.c_[Y, cross])
    return cross.T @ solved[:, 0], prior - cross.T @ solved[:, 1:] + noise * added * np.eye(5)


# --- hyperparameters ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("candidate", [0, 1, 2])
@pytest.mark.parametrize("known", [None, KNOWN])
def test_density_is_evidence_plus_normal_priors_of_logarithms(candidate, known):
    one = problem(candidate, known is not None)
    density, u = one.density(Y, known), one.points[1, 0]
    theta = one.parameters.theta(u)
    gp = one.candidate.make_gp(2, 1)
    one.set_kernel(gp.kernel.kernels[0], theta)
    with torch.no_grad():
        gp.noise_model.log_scale.fill_(theta[-1])
        K = gp.kernel.kernels[0](torch.from_numpy(X)).to_dense().numpy()
    noise = gp.noise.item() if known is None else known
    expected = multivariate_normal(np.zeros(14), K + noise * np.eye(14)).logpdf(Y)
    for name, module, prior, read, _ in gp.named_priors():
        if known is None or not name.startswith("noise"):
            expected += norm(prior.loc.numpy(), prior.scale.numpy()).logpdf(read(module).detach().log().numpy()).sum()
            expected += np.log(2) if name.startswith("noise") else 0.0  # as a density of half the logarithm
    assert density(u)[0] == pytest.approx(expected, rel=1e-9)
    assert density.value(u) == pytest.approx(expected, rel=1e-9)


def test_mode_cannot_be_improved_and_is_at_least_every_point_of_the_grid():
    one = problem()
    draws = one.draw(Y)
    density = one.density(Y, None)
    assert draws.converged and draws.log_posterior >= max(density.value(u) for each in one.points for u in each)
    slope, hessian = density(draws.mode)[1], output_draws.difference_hessian(density, draws.mode)
    assert 0 <= 0.5 * slope @ np.linalg.solve(hessian, slope) < 2 * SEARCH_GAIN  # in nats, of Newton's step


@pytest.mark.parametrize("periods", [3, 8, 12])
def test_mode_finds_fast_oscillations(periods):
    x = np.linspace(-1.7, 1.7, 60)
    y = np.sqrt(2) * np.sin(np.pi * periods * x / 1.7) + 0.1 * np.random.default_rng(0).standard_normal(60)
    one = problem(1, inputs=x[:, None])
    noise = np.exp(2 * one.draw(y, average=False).mode[-1])
    assert noise < 0.1


def test_draws_have_truncated_importance_weights():
    one = problem(0)
    draws, density, scales = one.draw(Y), one.density(Y, None), one.parameters.scale
    assert draws.weights.sum() == pytest.approx(1.0) and len(draws.weights) == 32
    assert draws.weights.max() <= 32**-0.5 / (1 - 32**-0.5)
    step = 1e-4
    columns = [(density(draws.mode - e)[1] - density(draws.mode + e)[1]) / (2 * step) for e in step * np.eye(4)]
    H = np.stack(columns) * scales * scales[:, None]
    values, vectors = np.linalg.eigh((H + H.T) / 2)
    covariance = (vectors / np.maximum(values, MIN_CURVATURE)) @ vectors.T * scales * scales[:, None]
    points, *_ = one._laplace_draws(density, draws.mode, 1024)
    # differences of step 5e-3 are one-sided, and 1024 Sobol points have the moments of the normal distribution
    np.testing.assert_allclose(np.cov(points.T), covariance, rtol=0.1, atol=0.02 * covariance.diagonal().max())


@pytest.mark.parametrize("candidate", [0, 1, 2])
@pytest.mark.parametrize("known", [None, KNOWN])
@pytest.mark.parametrize("columns", [2, 7])  # with more than 6 columns, distances are matrix products
def test_densities_computed_together_are_those_of_single_points(monkeypatch, candidate, known, columns):
    inputs = np.random.default_rng(1).standard_normal((len(X), columns))
    own = problem(candidate, known is not None, inputs)
    density, k = own.density(Y, known), len(own.parameters)
    points = own.parameters.loc + np.random.default_rng(0).normal(0, 0.5, (5, k))
    monkeypatch.setattr(numpy_values, "BLOCK_ENTRIES", 2 * len(X) ** 2)  # two at a time
    together, apart = np.empty((2, 5, len(X), len(X)))
    values = density.values(points, together)
    np.testing.assert_allclose(values, [density.value(u, C) for u, C in zip(points, apart, strict=True)], rtol=1e-9)
    np.testing.assert_allclose(together, apart, atol=1e-9)
    np.testing.assert_array_equal(density.values(points), values)
    monkeypatch.setattr(output_kernel, "MAX_JOINT_ROWS", 1)
    np.testing.assert_allclose(density.values(points), values, rtol=1e-9)


@pytest.mark.parametrize("limit", [1, 100])
def test_densities_are_minus_infinity_where_the_covariance_is_singular(monkeypatch, limit):
    own = problem(0, True, np.repeat(X[:2], 7, axis=0))
    monkeypatch.setattr(output_kernel, "MAX_JOINT_ROWS", limit)
    values = own.density(Y, np.zeros(len(Y))).values(own.parameters.loc[None].repeat(2, 0))
    np.testing.assert_array_equal(values, -np.inf)


@pytest.mark.parametrize("candidate", [0, 1, 2])
def test_gradient_in_blocks_of_rows_equals_differences(candidate):
    rng = np.random.default_rng(0)
    many = rng.standard_normal((320, 3))  # several blocks, and squared distances by products
    one = problem(candidate, inputs=many)
    assert len(one.kernel.parts[-1].inner.blocks) > 1
    density = one.density(rng.standard_normal(320), None)
    u, steps = one.points[1, 0], 1e-5 * np.eye(len(one.parameters))
    slopes = [(density.value(u + step) - density.value(u - step)) / 2e-5 for step in steps]
    value, gradient = density(u)
    assert value == pytest.approx(density.value(u), rel=1e-12)
    np.testing.assert_allclose(gradient, slopes, rtol=1e-6, atol=1e-5)


@pytest.mark.parametrize("candidate", [0, 2])
def test_mode_from_a_subset_is_that_of_a_full_search(candidate):
    rng = np.random.default_rng(1)
    many = rng.standard_normal((330, 2))
    y = np.sin(2 * many[:, 0]) + many[:, 1] + 0.2 * rng.standard_normal(330)
    one = problem(candidate, inputs=many)
    rows, part = one.subset
    assert len(rows) == MIN_SEARCH_ROWS == len(part.X)
    draws = one.draw(y / y.std(), average=False)
    one.subset = None
    full = one.draw(y / y.std(), average=False)
    assert draws.converged and draws.evaluations <= min(FINAL_EVALUATIONS + 1, full.evaluations / 2)
    assert draws.log_posterior == pytest.approx(full.log_posterior, abs=0.2)


def test_factors_of_draws_are_those_of_the_covariances():
    one = problem()
    draws = one.draw(Y)
    fresh = OutputPosterior(one, Y, None, dataclasses.replace(draws, factors=None))
    given = OutputPosterior(one, Y, None, draws)
    np.testing.assert_allclose(given.chol.numpy(), fresh.chol.numpy(), rtol=1e-9, atol=1e-12)
    assert given.draws.factors is None  # they are not stored twice


@pytest.mark.parametrize(("factor", "count"), [(1.0, 32), (1e-4, 1)])
def test_draws_far_below_the_mode_are_not_used(monkeypatch, factor, count):
    difference = output_draws.difference_hessian
    monkeypatch.setattr(output_draws, "difference_hessian", lambda *args: factor * difference(*args))  # curvatures
    monkeypatch.setattr(output_draws, "MIN_CURVATURE", factor * MIN_CURVATURE)
    assert len(problem().draw(Y).weights) == count


def test_large_problems_use_the_mode_alone():
    many = np.random.default_rng(0).standard_normal((1100, 2))
    one = problem(1, inputs=many)
    assert one.num_draws() == 0 and problem(1).num_draws() == 32
    draws = problem().draw(Y, average=False)
    assert draws.weights.tolist() == [1.0]


def test_failed_factorization_names_hyperparameters(monkeypatch):
    one = problem()
    monkeypatch.setattr("ovkgp.inference.stacking.output_kernel.OutputDensity.value", lambda self, u: -np.inf)
    monkeypatch.setattr("ovkgp.inference.stacking.output_kernel.OutputDensity.__call__", lambda self, u: (np.nan, u))
    with pytest.raises(FactorizationError, match="lengthscale"):
        one.draw(Y)


# --- predictions ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("noise", [False, True])
@pytest.mark.parametrize("known", [None, KNOWN])
@pytest.mark.parametrize("candidate", [0, 1, 2])
def test_moments_equal_dense_conditioning(candidate, known, noise):
    one = posterior(candidate, known)
    points = torch.from_numpy(Z)
    means, covariances = one.moments(points, "full", noise)
    _, variances = one.moments(points, "diag", noise)
    for draw in range(4):
        mean, covariance = conditional(one, draw, noise)
        np.testing.assert_allclose(means[draw], mean, rtol=1e-8, atol=1e-10)
        np.testing.assert_allclose(covariances[draw], covariance, rtol=1e-7, atol=1e-9)
        np.testing.assert_allclose(variances[draw], covariance.diagonal(), rtol=1e-7, atol=1e-9)
    prediction = one.predict(points, "full", noise)
    mean = one.weights @ means.numpy()
    total = np.einsum("s,sij->ij", one.weights, covariances) + np.cov(means.numpy().T, aweights=one.weights, ddof=0)
    np.testing.assert_allclose(prediction.mean[:, 0], mean, rtol=1e-10)
    np.testing.assert_allclose(prediction.cov, total, rtol=1e-9, atol=1e-12)


def test_evidence_is_the_average_over_draws():
    one = posterior()
    expected = 0.0
    for draw in range(4):
        ((K,),) = dense(one, draw, [(X, X)])
        C = K + one.noise_variances[draw] * np.eye(14)
        expected += one.weights[draw] * multivariate_normal(np.zeros(14), C).logpdf(Y)
    assert one.log_evidence == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("groups", [np.arange(14), np.arange(14) // 3])
def test_leave_groups_out_equals_conditioning_on_the_others(groups):
    one = posterior()
    mean, std, cdf = one.leave_groups_out(torch.from_numpy(groups)).numpy()
    for group in np.unique(groups):
        held, kept = groups == group, groups != group
        means, variances, logs = [], [], []
        for draw in range(4):
            ((K,),) = dense(one, draw, [(X, X)])
            C = K + one.noise_variances[draw] * np.eye(14)
            solved = np.linalg.solve(C[np.ix_(kept, kept)], np.c_[Y[kept], C[np.ix_(kept, held)]])
            found = C[np.ix_(held, kept)] @ solved[:, 0]
            covariance = C[np.ix_(held, held)] - C[np.ix_(held, kept)] @ solved[:, 1:]
            means.append(found)
            variances.append(covariance.diagonal())
            logs.append(multivariate_normal(found, covariance).logpdf(Y[held]))
        weights = one.weights * np.exp(-np.array(logs) + min(logs))
        weights = np.minimum(weights / weights.sum(), 0.5)
        weights /= weights.sum()
        center = weights @ np.array(means)
        np.testing.assert_allclose(mean[held], center, rtol=1e-8)
        total = weights @ (np.array(variances) + (np.array(means) - center) ** 2)
        np.testing.assert_allclose(std[held] ** 2, total, rtol=1e-8)
        below = norm(np.array(means), np.sqrt(variances)).cdf(Y[held])
        np.testing.assert_allclose(cdf[held], weights @ below, rtol=1e-8, atol=1e-12)


def test_held_out_density_is_the_harmonic_mean_over_draws():
    one = posterior()
    log_density = one.leave_one_out.log_density.numpy()
    np.testing.assert_allclose(one.held_out_density(), -np.log(one.weights @ np.exp(-log_density)), rtol=1e-10)


def test_samples_and_functions_have_the_moments_of_the_prediction():
    one, points = posterior(), torch.from_numpy(Z)
    expected = one.predict(points, "full")
    samples = one.sample(points, 20_000, random_state=0)[..., 0]
    functions = one.sample_functions(4000, random_state=0)
    values = functions(points)[..., 0]
    size = expected.std.max().item()
    for drawn, count in ((samples, 20_000), (values, 4000)):
        error = size / count**0.5
        assert (drawn.mean(0) - expected.mean[:, 0]).abs().max() < 5 * error
        assert (torch.cov(drawn.T) - expected.cov).abs().max() < 0.1 * size**2
    torch.testing.assert_close(functions[7](points[:2])[:, 0], values[7, :2])


def test_predictions_do_not_depend_on_other_points():
    one = posterior()
    far = torch.from_numpy(np.r_[Z, [[1e9, -1e9]], np.tile(Z, (40, 1))])
    alone, together = (one.predict(points, "diag", True) for points in (torch.from_numpy(Z), far))
    torch.testing.assert_close(together.mean[:5], alone.mean, rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(together.std[:5], alone.std, rtol=1e-10, atol=0)


def test_copies_predict_the_same():
    one, points = posterior(), torch.from_numpy(Z)
    for again in (copy.deepcopy(one), pickle.loads(pickle.dumps(one))):
        torch.testing.assert_close(again.predict(points, "full").cov, one.predict(points, "full").cov, rtol=0, atol=0)
        functions = [p.sample_functions(2, random_state=1)(points) for p in (one, again)]
        torch.testing.assert_close(*functions, rtol=1e-12, atol=1e-13)


# --- several outputs ------------------------------------------------------------------------------------------------


def test_new_observations_of_outputs_are_correlated_and_functions_are_not():
    R = np.array([[1.0, 0.6], [0.6, 1.0]])
    both, points = IndependentMixture([posterior(0), posterior(2)], R), torch.from_numpy(Z)
    prediction = both.predict(points, "output", noise=True)
    std = prediction.std
    torch.testing.assert_close(prediction.cov[:, 0, 1], 0.6 * std[:, 0] * std[:, 1])
    assert not both.predict(points, "output").cov[:, 0, 1].any()
    full = both.predict(points, "full", noise=True).cov
    assert np.linalg.eigvalsh(full).min() > 0
    for a, part in enumerate(both.parts):
        torch.testing.assert_close(full[a::2, a::2], part.predict(points, "full", noise=True).cov)
    samples = both.sample(points[:1], 20_000, noise=True, random_state=0)[:, 0]
    np.testing.assert_allclose(np.corrcoef(samples.T)[0, 1], 0.6, atol=0.03)
    single = both.predict(points[:1], "full", noise=True).cov
    torch.testing.assert_close(single, both.predict(points[:1], "output", noise=True).cov[0])


def test_joined_blocks_without_correlation_are_block_diagonal():
    blocks = torch.stack([torch.eye(3) * 2, torch.eye(3) * 5]).double()
    joint = _join_blocks(blocks, None)
    torch.testing.assert_close(joint, torch.diag(torch.tensor([2.0, 5.0] * 3)).double())


def test_quantiles_and_densities_of_joined_outputs_are_those_of_the_parts():
    both, points = IndependentMixture([posterior(0), posterior(2)]), torch.from_numpy(Z)
    prediction, parts = both.predict(points, "diag", True), [p.predict(points, "diag", True) for p in both.parts]
    torch.testing.assert_close(prediction.quantile([0.1, 0.9]), torch.cat([p.quantile([0.1, 0.9]) for p in parts], -1))
    y = torch.from_numpy(RNG.standard_normal((5, 2)))
    expected = torch.cat([p.log_density(y[:, [a]]) for a, p in enumerate(parts)], -1)
    torch.testing.assert_close(prediction.log_density(y), expected)
    torch.testing.assert_close(prediction.cdf(prediction.quantile(0.3)), torch.full((5, 2), 0.3).double())
    assert prediction.mean.shape == (5, 2) and "JoinedPrediction" in repr(prediction)
    data = Observations(torch.from_numpy(X), torch.from_numpy(np.c_[Y, Y]))
    assert both.leave_groups_out(data, torch.arange(14)).shape == (3, 14, 2)
