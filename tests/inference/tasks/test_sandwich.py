"""Tests of `ovkgp.inference.tasks.sandwich`."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from ovkgp.inference.tasks.problem import TaskProblem
from ovkgp.inference.tasks.sandwich import ResidualDensity, RowResiduals, Sandwich, sandwich, score_covariance
from ovkgp.inference.tasks.solvers.primal import solve_primal
from ovkgp.losses import IntegralLoss, Pinball, SmoothedPinball, gauss_legendre, grid


def case(
    n=40, r=3, q=2, m=5, lam=1e-2, seed=0, loss=None, weights=None
) -> tuple[TaskProblem, torch.Tensor, torch.Tensor]:
    """A problem, any W, and the offset."""
    rng = np.random.default_rng(seed)
    inputs, tasks = torch.from_numpy(rng.standard_normal((n, r))), torch.from_numpy(rng.standard_normal((m, q)))
    y = torch.from_numpy(rng.standard_normal((n, 1)))
    problem = TaskProblem(inputs, tasks, y, IntegralLoss(loss or Pinball(), gauss_legendre(m)), lam, weights)
    return problem, torch.from_numpy(0.3 * rng.standard_normal((r, q))), torch.linspace(-1, 1, m).double()


def dense(problem: TaskProblem, W: torch.Tensor, offset: torch.Tensor, count: float) -> np.ndarray:
    """Cov[vec W] from the formulas of the module, with nothing but Kronecker products."""
    rows = RowResiduals.from_parts([problem], W, offset)
    g = ResidualDensity(rows.residuals / rows.scale, rows.weights, count)(problem.loss.nodes).numpy()
    Phi, Psi, eta = problem.inputs.numpy(), problem.tasks.numpy(), problem.loss.weights.numpy()
    s, a, n, lam = problem.row_weights.numpy(), 1 / rows.scale.numpy(), problem.num_rows, problem.lam
    features = np.einsum("ir,jq->ijrq", Phi, Psi).reshape(n, len(eta), -1)
    entries = s[:, None] * a[:, None] * eta * g
    S = np.einsum("ij,ijx,ijy->xy", entries, features, features) / n
    # how far each row moves its own curve: h_ij is moved by y_i through all levels k
    inverse = np.linalg.inv(S + lam * np.eye(len(S)))
    pulled = np.einsum("ik,ikx->ix", entries / n, features)
    moved = np.einsum("ijx,xy,iy->ij", features, inverse, pulled)
    freedom = (moved @ eta).sum()
    S = S * max(1 - freedom / count, 0.1)
    scores = np.einsum("ijx,j->ijx", features, eta)
    V = np.einsum("i,ijx,jk,iky->xy", s, scores, score_covariance(problem.loss.nodes).numpy(), scores) / (n * count)
    T = np.trace(V) / (lam * np.trace(S))
    inverse = np.linalg.inv(S + lam * np.eye(len(S)))
    return inverse @ (V + lam**2 * T * np.eye(len(S))) @ inverse, T, freedom


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("lam", [1e-3, 0.3])
def test_variance_is_that_of_dense_algebra(lam, weighted):
    weights = torch.linspace(0.5, 1.5, 40).double() if weighted else None
    problem, W, offset = case(lam=lam, weights=weights)
    found = sandwich(lambda: [problem], W, offset, count=60.0)
    covariance, T, freedom = dense(problem, W, offset, 60.0)
    points, levels = problem.inputs[:4], problem.tasks[:3]
    features = np.einsum("ir,jq->ijrq", points, levels).reshape(4, 3, -1)
    expected = np.einsum("ijx,xy,ijy->ij", features, covariance, features)
    np.testing.assert_allclose(found.variance(points, levels).numpy(), expected, rtol=1e-9)
    assert found.temperature == pytest.approx(T, rel=1e-9)
    assert found.freedom == pytest.approx(freedom, rel=1e-9)


def test_sandwich_is_independent_of_parts():
    problem, W, offset = case()
    y, parts = problem.targets, []
    for rows in torch.arange(40).split(11):
        parts.append(TaskProblem(problem.inputs[rows], problem.tasks, y[rows], problem.loss, problem.lam))
    whole, in_parts = (sandwich(lambda p=p: p, W, offset, count=40.0) for p in ([problem], parts))
    torch.testing.assert_close(
        in_parts.variance(problem.inputs, problem.tasks), whole.variance(problem.inputs, problem.tasks)
    )


def test_directions_without_data_keep_the_variance_of_the_prior():
    problem, W, offset = case(r=3)
    blind = torch.cat([problem.inputs, torch.zeros(40, 2).double()], -1)
    problem = TaskProblem(blind, problem.tasks, problem.targets, problem.loss, problem.lam)
    found = sandwich(lambda: [problem], torch.cat([W, torch.zeros(2, 2).double()]), offset, count=40.0)
    aside = torch.tensor([[0.0, 0.0, 0.0, 1.0, 2.0]], dtype=torch.float64)
    expected = found.temperature * 5 * problem.tasks.square().sum(-1)
    torch.testing.assert_close(found.variance(aside, problem.tasks)[0], expected)


def test_score_covariance_is_tau_times_one_minus_tau():
    levels = torch.tensor([0.1, 0.5, 0.9], dtype=torch.float64)
    uniforms = torch.rand(200_000, 1, generator=torch.Generator().manual_seed(0)).double()
    empirical = torch.cov((uniforms <= levels).double().T)
    torch.testing.assert_close(score_covariance(levels), empirical, atol=3e-3, rtol=0)
    torch.testing.assert_close(score_covariance(levels).diagonal(), levels * (1 - levels))


@pytest.mark.parametrize("tau", [0.2, 0.5, 0.8])
@pytest.mark.parametrize("distribution", [stats.norm(), stats.expon()])
def test_sandwich_std_of_a_quantile_is_the_textbook_value(distribution, tau):
    """√(τ(1 − τ)/N)/f(q) for the quantile of a sample, which is this problem without inputs and with λ → 0."""
    n = 4000
    y = torch.from_numpy(distribution.ppf(np.random.default_rng(1).random((n, 1))))
    one = torch.ones(n, 1).double()
    problem = TaskProblem(one, one[:1], y, IntegralLoss(Pinball(), grid([tau])), lam=1e-9)
    W = torch.quantile(y, tau).view(1, 1)
    std = sandwich(lambda: [problem], W, torch.zeros(1).double(), count=n).variance(one[:1], one[:1]).sqrt().item()
    assert std == pytest.approx(np.sqrt(tau * (1 - tau) / n) / distribution.pdf(distribution.ppf(tau)), rel=0.12)


def test_sandwich_is_independent_of_the_smoothing_width():
    found = []
    for loss in (Pinball(), SmoothedPinball(1e-4), SmoothedPinball(5.0)):
        problem, W, offset = case(loss=loss)
        found.append(sandwich(lambda p=problem: [p], W, offset, count=40.0).variance(problem.inputs, problem.tasks))
    torch.testing.assert_close(found[1], found[0])
    torch.testing.assert_close(found[2], found[0])


def test_sandwich_is_the_posterior_covariance_if_the_score_varies_as_the_curvature():
    eye = torch.eye(2).double()
    curvature = torch.tensor([[1.0, 3.0], [2.0, 6.0]], dtype=torch.float64)  # an outer product, as S is
    lam, T = 0.5, 0.7
    rows, columns = torch.tensor([1.0, 2.0], dtype=torch.float64), torch.tensor([1.0, 3.0], dtype=torch.float64)
    # V = λ T S
    found = Sandwich(eye, eye, curvature, (lam * T * rows).sqrt().diag(), columns.sqrt().diag(), lam, T, 0.0)
    points = torch.randn(3, 2, generator=torch.Generator().manual_seed(0)).double()
    posterior_variance = T * (points.square() @ (lam / (lam + curvature)))  # of λ T H⁻¹
    torch.testing.assert_close(found.variance(points, eye), posterior_variance)


def line(seed: int, weights=None) -> TaskProblem:
    """Quartiles of a straight line with noise, almost without a penalty."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(-1, 1, 300)
    inputs, y = (
        torch.from_numpy(np.stack([np.ones(300), x], 1)),
        torch.from_numpy(x + rng.standard_normal(300))[:, None],
    )
    loss = IntegralLoss(Pinball(), grid([0.25, 0.5, 0.75]))
    return TaskProblem(inputs, torch.eye(3).double(), y, loss, 1e-6, weights)


POINTS = torch.tensor([[1.0, -0.8], [1.0, 0.0], [1.0, 0.8]], dtype=torch.float64)


def curves_and_std(problem: TaskProblem) -> tuple[torch.Tensor, torch.Tensor]:
    W = solve_primal(problem, tolerance=1e-4).weights
    cov = sandwich(lambda: [problem], W, torch.zeros(3).double(), count=300)
    return POINTS @ W, cov.variance(POINTS, problem.tasks).sqrt()


@pytest.mark.slow
def test_sandwich_is_the_variance_over_data_sets():
    curves, std = (
        torch.stack(found) for found in zip(*(curves_and_std(line(seed)) for seed in range(100)), strict=True)
    )
    ratio = std.mean(0) / curves.std(0)
    # 100 data sets know a standard deviation to 7 %
    assert ((ratio - 1).abs() < 0.2).all()
    assert abs(ratio.mean().item() - 1) < 0.1


@pytest.mark.slow
def test_sandwich_agrees_with_the_bayesian_bootstrap():
    rng, draws = np.random.default_rng(0), []
    for _ in range(60):
        weights = torch.from_numpy(rng.exponential(size=300))
        draws.append(curves_and_std(line(0, weights / weights.mean()))[0])
    ratio = curves_and_std(line(0))[1] / torch.stack(draws).std(0)
    # at one point the curves of a replicate jump from one row to the next: only the mean over points is as smooth as the sandwich
    assert abs(ratio.mean().item() - 1) < 0.2


LEVELS = torch.tensor([0.1, 0.3, 0.5, 0.7, 0.9], dtype=torch.float64)


def draws(distribution, number: int, seed: int = 0) -> torch.Tensor:
    return torch.from_numpy(distribution.ppf(np.random.default_rng(seed).random(number)))


@pytest.mark.parametrize("distribution", [stats.norm(), stats.logistic(), stats.gamma(3), stats.t(4)])
def test_density_at_the_quantiles_of_a_known_distribution(distribution):
    z = draws(distribution, 20_000)
    found = ResidualDensity(z, torch.ones_like(z))(LEVELS)
    truth = torch.from_numpy(distribution.pdf(distribution.ppf(LEVELS.numpy())))
    assert ((found / truth - 1).abs() < 0.1).all()


def test_density_is_the_sum_over_the_residuals_by_hand():
    z, weights = draws(stats.norm(), 7), torch.tensor([1.0, 2.0, 1.0, 1.0, 3.0, 1.0, 1.0], dtype=torch.float64)
    density = ResidualDensity(z, weights)
    at = density.quantile(LEVELS)
    expected = [
        sum(
            w * stats.norm.pdf(x.item(), loc=r, scale=density.bandwidth)
            for r, w in zip(z.tolist(), weights, strict=True)
        )
        for x in at
    ]
    torch.testing.assert_close(density(LEVELS), torch.tensor(expected).double() / 10)


def test_density_weight_of_two_equals_two_rows():
    z = draws(stats.norm(), 50)
    twice = ResidualDensity(torch.cat([z, z[:10]]), torch.ones(60).double())
    weights = torch.ones(50).double()
    weights[:10] = 2.0
    weighted = ResidualDensity(z, weights)
    torch.testing.assert_close(weighted.quantile(LEVELS), twice.quantile(LEVELS))
    torch.testing.assert_close(weighted(LEVELS), twice(LEVELS))


def test_equal_residuals_have_a_finite_density():
    density = ResidualDensity(torch.zeros(5).double(), torch.ones(5).double())
    assert torch.isfinite(density(LEVELS)).all()


def problem(y: torch.Tensor, loss=None, measure=None) -> TaskProblem:
    measure = gauss_legendre(5) if measure is None else measure
    one = torch.ones(len(y), 1).double()
    return TaskProblem(one, torch.eye(len(measure)).double(), y, IntegralLoss(loss or Pinball(), measure), lam=1e-3)


def test_row_residuals_are_independent_of_parts():
    y, weights = draws(stats.norm(), 31)[:, None], torch.linspace(-1, 1, 5).double()[None]
    offset = torch.linspace(-0.5, 0.5, 5).double()
    whole = RowResiduals.from_parts([problem(y)], weights, offset)
    parts = RowResiduals.from_parts([problem(part) for part in y.split(7)], weights, offset)
    torch.testing.assert_close(parts.scale, whole.scale)
    torch.testing.assert_close(parts.residuals, whole.residuals)


def test_scale_of_a_row_is_the_mean_distance_of_its_curve_from_its_middle():
    y, curve = torch.zeros(1, 1).double(), torch.tensor([[-2.0, -1.0, 0.0, 1.0, 2.0]], dtype=torch.float64)
    found = RowResiduals.from_parts([problem(y)], curve, torch.zeros(5).double())
    assert found.scale.item() == pytest.approx(float(gauss_legendre(5).weights @ curve[0].abs()))


def test_scale_is_one_for_a_single_level():
    y = draws(stats.norm(), 9)[:, None]
    found = RowResiduals.from_parts(
        [problem(y, measure=grid([0.5]))], torch.zeros(1, 1).double(), torch.zeros(1).double()
    )
    assert torch.equal(found.scale, torch.ones(9).double())


def test_row_residuals_are_independent_of_the_smoothing():
    y, weights = draws(stats.norm(), 31)[:, None], torch.linspace(-1, 1, 5).double()[None]
    offset = torch.zeros(5).double()
    sharp, smooth = (
        RowResiduals.from_parts([problem(y, loss)], weights, offset) for loss in (Pinball(), SmoothedPinball(9.0))
    )
    assert torch.equal(sharp.scale, smooth.scale) and torch.equal(sharp.residuals, smooth.residuals)


def test_scale_is_at_least_a_tenth_of_the_mean():
    inputs, one = torch.tensor([[0.0], [1.0]], dtype=torch.float64), torch.eye(5).double()
    loss = IntegralLoss(Pinball(), gauss_legendre(5))
    part = TaskProblem(inputs, one, torch.zeros(2, 1).double(), loss, lam=1.0)
    found = RowResiduals.from_parts([part], torch.linspace(-1, 1, 5).double()[None], torch.zeros(5).double())
    assert found.widths[0] == 0 and math.isclose(found.scale[0], 0.1 * found.widths.mean())
