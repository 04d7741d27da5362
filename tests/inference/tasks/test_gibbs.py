"""Tests of `ovkgp.inference.tasks.gibbs`."""

import numpy as np
import pytest
import torch
from scipy.integrate import quad
from scipy.stats import norm

from ovkgp.exceptions import OptionError
from ovkgp.inference.tasks.gibbs import _FreeEnergy, expected_pinball, fit_gibbs_posterior
from ovkgp.inference.tasks.problem import TaskProblem
from ovkgp.inference.tasks.sandwich import sandwich
from ovkgp.inference.tasks.solvers.primal import solve_primal
from ovkgp.losses import Huber, IntegralLoss, Pinball, TaskMeasure, gauss_legendre


@pytest.fixture(scope="module")
def case():
    """A line with noise at five levels: the problem, its solution and its sandwich."""
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, 120)
    inputs = torch.from_numpy(np.stack([np.ones(120), x], 1))
    measure = gauss_legendre(5)
    tasks = torch.stack([torch.ones(5).double(), measure.nodes - 0.5], -1)
    y = torch.from_numpy(x + 0.5 * rng.standard_normal(120))[:, None]
    problem = TaskProblem(inputs, tasks, y, IntegralLoss(Pinball(), measure), lam=1e-3)
    W = solve_primal(problem).weights
    return problem, W, sandwich(lambda: [problem], W, torch.zeros(5).double(), count=120)


@pytest.mark.parametrize("level", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("mean, variance", [(0.0, 1.0), (3.0, 0.04), (-2.0, 4.0)])
def test_expected_pinball_is_the_integral(level, mean, variance):
    one = torch.ones(1, 1).double()

    def integral(mean, variance):
        def loss(z):
            r = 1 - mean - np.sqrt(variance) * z
            return max(level * r, (level - 1) * r) * norm.pdf(z)

        kink = (1 - mean) / np.sqrt(variance)
        return quad(loss, -12, 12, points=[np.clip(kink, -12, 12)], limit=200, epsabs=1e-13)[0]

    found = expected_pinball(one, mean * one, variance * one, torch.tensor([level], dtype=torch.float64))
    step = 1e-5
    assert found[0].item() == pytest.approx(integral(mean, variance), abs=1e-9)
    assert found[1].item() == pytest.approx(
        (integral(mean + step, variance) - integral(mean - step, variance)) / 2e-5, abs=1e-6
    )
    assert found[2].item() == pytest.approx(
        (integral(mean, variance + step) - integral(mean, variance - step)) / 2e-5, abs=1e-6
    )


def test_gradient_of_the_free_energy_is_that_of_finite_differences(case):
    problem, _, cov = case
    energy = _FreeEnergy(lambda: [problem], cov, 0.5)
    x = 0.1 * np.random.default_rng(1).standard_normal(8)
    gradient = energy(x)[1]
    for k in range(8):
        step = np.zeros(8)
        step[k] = 1e-6
        assert gradient[k] == pytest.approx((energy(x + step)[0] - energy(x - step)[0]) / 2e-6, rel=1e-5, abs=1e-10)


def test_gibbs_posterior_is_the_fit_at_low_temperature(case):
    problem, W, cov = case
    cold = fit_gibbs_posterior(lambda: [problem], W, cov, temperature=1e-8)
    torch.testing.assert_close(problem.values(cold.weights), problem.values(W), atol=2e-3, rtol=0)
    assert cold.variance(problem.inputs, problem.tasks).max() < 1e-6


def test_g_15_posterior_mean_is_near_the_mode_and_differs_from_it(case):
    problem, W, cov = case
    posterior = fit_gibbs_posterior(lambda: [problem], W, cov)
    moved = problem.values(posterior.weights) - problem.values(W)
    std = posterior.variance(problem.inputs, problem.tasks).sqrt()
    assert moved.abs().max() > 1e-4
    assert (moved.abs() < std).all()


def test_temperature_gives_the_curves_the_variance_of_the_sandwich(case):
    problem, W, cov = case
    posterior = fit_gibbs_posterior(lambda: [problem], W, cov)
    means = [
        float((problem.entry_weights * distribution.variance(problem.inputs, problem.tasks)).sum())
        for distribution in (posterior, cov)
    ]
    assert means[0] == pytest.approx(means[1], rel=0.011)
    colder, hotter = (
        fit_gibbs_posterior(lambda: [problem], W, cov, temperature=f * posterior.temperature) for f in (0.5, 2.0)
    )
    at = problem.inputs[:1], problem.tasks[:1]
    assert colder.variance(*at) < posterior.variance(*at) < hotter.variance(*at)


def test_gibbs_draws_have_mean_and_variance(case):
    problem, W, cov = case
    posterior = fit_gibbs_posterior(lambda: [problem], W, cov)
    draws = problem.inputs[:3] @ posterior.sample(20_000, random_state=0) @ problem.tasks.T
    variance = posterior.variance(problem.inputs[:3], problem.tasks)
    torch.testing.assert_close(draws.var(0), variance, rtol=0.06, atol=0)
    expected = problem.inputs[:3] @ posterior.weights @ problem.tasks.T
    assert ((draws.mean(0) - expected).abs() < 5 * (variance / 20_000).sqrt()).all()
    assert torch.equal(posterior.sample(3, random_state=1), posterior.sample(3, random_state=1))


def test_gibbs_posterior_is_near_a_long_chain(case):
    """Random-walk Metropolis on exp(−J/(λT)) itself."""
    problem, W, cov = case
    posterior = fit_gibbs_posterior(lambda: [problem], W, cov)
    heat, generator = problem.lam * posterior.temperature, torch.Generator().manual_seed(0)
    chol = torch.linalg.cholesky(torch.cov(posterior.sample(4000, random_state=0).flatten(1).T))
    state, energy, kept = W, problem.objective(W).item(), []
    for step in range(12_000):
        moved = state + (chol @ torch.randn(4, dtype=torch.float64, generator=generator)).view(2, 2)
        found = problem.objective(moved).item()
        if torch.rand((), generator=generator).item() < np.exp(min(0.0, (energy - found) / heat)):
            state, energy = moved, found
        if step >= 1000:
            kept.append(state)
    values = problem.inputs[:5] @ torch.stack(kept[::5]) @ problem.tasks.T
    std = values.std(0)
    mean = problem.inputs[:5] @ posterior.weights @ problem.tasks.T
    assert ((values.mean(0) - mean).abs() < 0.3 * std).all()
    ratio = posterior.variance(problem.inputs[:5], problem.tasks).sqrt() / std
    assert ((ratio > 0.75) & (ratio < 1.25)).all()  # of a mean-field Gaussian in good coordinates


def test_g_08_gibbs_posterior_is_unchanged_by_a_repeated_node_with_half_its_weight(case):
    problem, W, cov = case
    nodes, weights = problem.loss.nodes.repeat(2), problem.loss.weights.repeat(2) / 2
    twice = TaskProblem(
        problem.inputs,
        problem.tasks.repeat(2, 1),
        problem.targets,
        IntegralLoss(Pinball(), TaskMeasure(nodes, weights)),
        1e-3,
    )
    again = sandwich(lambda: [twice], W, torch.zeros(10).double(), count=120)
    torch.testing.assert_close(
        again.variance(problem.inputs, problem.tasks), cov.variance(problem.inputs, problem.tasks)
    )
    first, second = (fit_gibbs_posterior(lambda p=p: [p], W, cov, temperature=1.0) for p in (problem, twice))
    torch.testing.assert_close(first.weights, second.weights, atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(first.variances, second.variances, rtol=1e-4, atol=0)


def test_gibbs_posterior_rejects_other_losses(case):
    problem, W, cov = case
    other = TaskProblem(
        problem.inputs, problem.tasks, problem.targets, IntegralLoss(Huber(1.0), gauss_legendre(5)), 1e-3
    )
    with pytest.raises(OptionError, match="pinball"):
        fit_gibbs_posterior(lambda: [other], W, cov)
