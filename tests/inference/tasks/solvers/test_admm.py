"""Tests of `ovkgp.inference.tasks.solvers.admm`."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from loss_cases import normal
from task_cases import NAMES, M, N, case, loss_on, own_nodes
from tqdm import tqdm

from ovkgp.inference.tasks.solvers import admm
from ovkgp.inference.tasks.solvers.admm import (
    ADMM,
    DenseStep,
    KroneckerStep,
    is_entrywise,
    make_ridge_step,
    normal_matrix,
    row_curvatures,
)
from ovkgp.inference.tasks.solvers.certificates import Certificate
from ovkgp.inference.tasks.solvers.primal import solve_primal
from ovkgp.inference.tasks.solvers.square import mask_measure
from ovkgp.losses import CurveEnvelope, CurveHuber, IntegralLoss, Pinball, gauss_legendre

ROWS, COLUMNS = torch.linspace(0.0, 2.0, N).double(), torch.linspace(0.5, 1.0, M).double()


def problem_with(inputs=5, tasks=3, nodes=None):
    """A problem with coordinates in general position: few enough for a well-conditioned dense system."""
    problem = case("square", nodes)
    shape = problem.tasks.shape[:-1]
    return replace(problem, inputs=normal(N, inputs, seed=1), tasks=normal(*shape, tasks, seed=2))


def design(problem):
    """The rows φ_i ⊗ ψ_ij, (nm, rq), data-major."""
    n, m = problem.entry_weights.shape
    tasks = problem.tasks.expand(n, m, -1).numpy()
    return np.array([np.kron(problem.inputs[i].numpy(), tasks[i, j]) for i in range(n) for j in range(m)])


def dense_step(problem, metric, V, mu):
    F, g = design(problem), metric.numpy().ravel()
    make_normal_equations = F.T @ (g[:, None] * F) / N + mu * np.eye(F.shape[1])
    return np.linalg.solve(make_normal_equations, F.T @ (g * V.numpy().ravel()) / N).reshape(problem.shape)


@pytest.mark.parametrize("mu", [1e-3, 1.0])
def test_kronecker_step_is_the_dense_one(mu):
    problem, V = problem_with(), normal(N, M, seed=3)
    step = KroneckerStep(problem, ROWS, COLUMNS)
    expected = dense_step(problem, ROWS[:, None] * COLUMNS, V, mu)
    np.testing.assert_allclose(step.from_coordinates(step(V, mu)), expected, atol=1e-10)


def test_kronecker_step_keeps_diagonal_coordinates():
    """The coordinates of a kernel on its anchors, with equal weights, are diagonal: ΦᵀΦ = S."""
    problem = case("square")
    step = KroneckerStep(problem, torch.ones(N).double(), torch.ones(M).double())
    assert step.row_vectors is None and step.column_vectors is None
    assert step.problem.inputs is problem.inputs
    weighted = KroneckerStep(problem, ROWS, COLUMNS)
    assert weighted.row_vectors is not None and weighted.column_vectors is not None


def test_step_coordinates_are_inverse_to_each_other():
    problem = problem_with()
    step, W = KroneckerStep(problem, ROWS, COLUMNS), normal(*problem.shape, seed=4)
    torch.testing.assert_close(step.from_coordinates(step.to_coordinates(W)), W)
    torch.testing.assert_close(step.problem.values(step.to_coordinates(W)), problem.values(W))
    assert step.problem.objective(step.to_coordinates(W)).item() == pytest.approx(
        problem.objective(W).item(), rel=1e-12
    )


@pytest.mark.parametrize("nodes", [None, own_nodes()], ids=["shared", "own"])
def test_dense_step_takes_any_metric(nodes):
    problem = problem_with(nodes=nodes)
    shape = problem.entry_weights.shape
    metric, V = normal(*shape, seed=5).abs(), normal(*shape, seed=6)
    metric[2] = 0.0
    step = DenseStep(problem, metric)
    for mu in (0.1, 0.1, 2.0):  # the factor is kept for the same μ only
        np.testing.assert_allclose(step(V, mu), dense_step(problem, metric, V, mu), atol=1e-10)
    assert step.from_coordinates(V) is V and step.to_coordinates(V) is V


def test_both_steps_agree():
    problem, V = problem_with(), normal(N, M, seed=7)
    fast = KroneckerStep(problem, ROWS, COLUMNS)
    slow = DenseStep(problem, ROWS[:, None] * COLUMNS)
    torch.testing.assert_close(fast.from_coordinates(fast(V, 0.3)), slow(V, 0.3))


@pytest.mark.parametrize("nodes", [None, own_nodes()], ids=["shared", "own"])
def test_normal_matrix_is_a_sum_over_all_entries(nodes):
    problem = problem_with(nodes=nodes)
    entries = normal(*problem.entry_weights.shape, seed=8).abs()
    F = design(problem)
    expected = F.T @ (entries.numpy().ravel()[:, None] * F)
    np.testing.assert_allclose(normal_matrix(problem, row_curvatures(problem, entries)), expected, atol=1e-9)


def test_diagonal_of_a_kronecker_step_is_that_of_the_normal_matrix():
    """It preconditions conjugate gradients."""
    problem = problem_with()
    step = KroneckerStep(problem, ROWS, COLUMNS)
    matrix = normal_matrix(step.problem, row_curvatures(step.problem, step.metric / N))
    torch.testing.assert_close(matrix, torch.diag(step.values.flatten()), atol=1e-10, rtol=0)


BAR = tqdm(disable=True)
OBSERVED = normal(N, M, seed=4) > -0.5


def masked(name):
    return replace(case(name), loss=loss_on(name, mask_measure(gauss_legendre(M), OBSERVED)))


def begin(problem, tolerance=1e-6, slopes=None, weights=None) -> ADMM:
    certificate = Certificate(problem, tolerance, max_iter=10_000)
    found = certificate.evaluate_at(certificate.weights if weights is None else weights)
    return ADMM(
        make_ridge_step(problem), certificate, found if slopes is None else slopes, problem.values(certificate.weights)
    )


def test_is_entrywise_is_true_for_entrywise_losses_only():
    measure = gauss_legendre(M)
    integral, curve = IntegralLoss(Pinball(), measure), CurveHuber(1.0, 2, measure)
    assert is_entrywise(integral) and is_entrywise(CurveEnvelope(integral, 0.1))
    assert not is_entrywise(curve) and not is_entrywise(CurveEnvelope(curve, 0.1))


def test_ridge_step_is_the_fastest_that_fits(monkeypatch):
    """Kronecker for shared nodes, even with holes where the loss acts entry by entry; dense else, while that fits."""
    assert isinstance(make_ridge_step(case("curve_huber_2")), KroneckerStep)
    assert isinstance(make_ridge_step(masked("pinball")), KroneckerStep)
    assert isinstance(make_ridge_step(masked("curve_huber_2")), DenseStep)
    assert isinstance(make_ridge_step(case("pinball", own_nodes())), DenseStep)
    monkeypatch.setattr(admm, "DENSE_COORDINATES", 10)
    assert make_ridge_step(case("pinball", own_nodes())) is None


@pytest.mark.parametrize("make", [case, masked, lambda name: case(name, own_nodes())], ids=["shared", "holes", "own"])
@pytest.mark.parametrize("name", NAMES)
def test_admm_bounds_the_minimum_after_few_iterations(name, make):
    problem = make(name)
    state = begin(problem, tolerance=1e-3)
    state.run(200, BAR)
    certificate = state.certificate
    assert certificate.is_done
    least = solve_primal(problem).objective
    assert certificate.lower <= least * (1 + 1e-12) and certificate.objective >= least * (1 - 1e-6)
    # slopes are those of the loss at U: feasible, and equal there in Fenchel's inequality
    loss, S, U = problem.loss, state.slopes, state.U
    young = loss.value(U, problem.targets) + loss.conjugate(loss.nearest_slope(S, problem.targets), problem.targets)
    torch.testing.assert_close(young, (loss.weights * S * U).sum(-1), rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("make", [case, masked, lambda name: case(name, own_nodes())], ids=["shared", "holes", "own"])
@pytest.mark.parametrize(
    "name", ["square", "pinball", "hinge", "insensitive", "curve_huber_inf", "curve_insensitive_2"]
)
def test_solution_is_a_fixed_point(name, make):
    """B-05, for the iteration: from W and the slopes of the solution nothing moves."""
    problem = make(name)
    solution = solve_primal(problem, tolerance=1e-13)
    state = begin(problem, slopes=-solution.dual, weights=solution.weights)
    state.U = problem.values(solution.weights)
    for _ in range(5):
        H, moved = state._advance()
    size = problem.values(solution.weights).abs().max()
    weighted = problem.entry_weights > 0
    assert (H - problem.values(solution.weights)).abs().max() < 2e-6 * size
    assert moved[weighted].abs().max() < 2e-6 * size
    assert (state.slopes + solution.dual)[weighted].abs().max() < 2e-5


def test_entries_without_weight_have_no_slope():
    state = begin(masked("pinball"))
    state.run(20, BAR)
    assert (state.slopes[~OBSERVED] == 0).all()
    assert (state.T[~OBSERVED] == 0).all()


def test_kappa_changes_in_the_first_steps_only(monkeypatch):
    """An iteration whose κ keeps changing need not converge."""
    calls = []
    monkeypatch.setattr(ADMM, "_balance", lambda self, H, moved: calls.append(self.certificate.steps))
    begin(case("hinge", lam=1e-4), tolerance=1e-14).run(400, BAR)
    assert calls == list(range(10, admm.MAX_ADAPTIVE_STEPS + 1, admm.CHECK_INTERVAL_STEPS))


def test_balance_keeps_the_slopes():
    state = begin(case("pinball", lam=1e-4), tolerance=1e-14)
    H, moved = state._advance()
    before = state.kappa
    state._balance(H + 100.0, 1e-3 * moved)  # a large primal and a small dual residual: κ must fall
    assert state.kappa < before
    torch.testing.assert_close(state.T, state.kappa * state.weight_ratio * state.slopes)


def test_admm_stops_if_the_gap_stalls():
    assert admm._is_stalled([1.0] * 12, budget=30)
    assert not admm._is_stalled([0.5**k for k in range(12)], budget=30)
    assert not admm._is_stalled([1.0] * 9, budget=30)


def test_initial_kappa_is_defined_for_zero_targets():
    problem = replace(case("square"), targets=torch.zeros(N, M).double())
    assert begin(problem).kappa == pytest.approx(admm.INITIAL_KAPPA)
