"""The least-squares step argmin (1/2n) Σ g (φᵀWψ − v)² + (μ/2)‖W‖², against dense normal equations."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from loss_cases import normal
from task_cases import M, N, case, own_nodes

from ovkgp.inference.tasks.solvers.admm import DenseStep, KroneckerStep, normal_matrix, row_curvatures

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
    normal_equations = F.T @ (g[:, None] * F) / N + mu * np.eye(F.shape[1])
    return np.linalg.solve(normal_equations, F.T @ (g * V.numpy().ravel()) / N).reshape(problem.shape)


@pytest.mark.parametrize("mu", [1e-3, 1.0])
def test_kronecker_step_is_the_dense_one(mu):
    problem, V = problem_with(), normal(N, M, seed=3)
    step = KroneckerStep(problem, ROWS, COLUMNS)
    expected = dense_step(problem, ROWS[:, None] * COLUMNS, V, mu)
    np.testing.assert_allclose(step.back(step(V, mu)), expected, atol=1e-10)


def test_kronecker_step_leaves_coordinates_that_are_diagonal_as_they_are():
    """Those of a kernel on its anchors, with equal weights, are: ΦᵀΦ = S."""
    problem = case("square")
    step = KroneckerStep(problem, torch.ones(N).double(), torch.ones(M).double())
    assert step.row_vectors is None and step.column_vectors is None
    assert step.problem.inputs is problem.inputs
    weighted = KroneckerStep(problem, ROWS, COLUMNS)
    assert weighted.row_vectors is not None and weighted.column_vectors is not None


def test_coordinates_go_there_and_back():
    problem = problem_with()
    step, W = KroneckerStep(problem, ROWS, COLUMNS), normal(*problem.shape, seed=4)
    torch.testing.assert_close(step.back(step.into(W)), W)
    torch.testing.assert_close(step.problem.values(step.into(W)), problem.values(W))
    assert step.problem.objective(step.into(W)).item() == pytest.approx(problem.objective(W).item(), rel=1e-12)


@pytest.mark.parametrize("nodes", [None, own_nodes()], ids=["shared", "own"])
def test_dense_step_takes_any_metric(nodes):
    problem = problem_with(nodes=nodes)
    shape = problem.entry_weights.shape
    metric, V = normal(*shape, seed=5).abs(), normal(*shape, seed=6)
    metric[2] = 0.0
    step = DenseStep(problem, metric)
    for mu in (0.1, 0.1, 2.0):  # the factor is kept for the same μ only
        np.testing.assert_allclose(step(V, mu), dense_step(problem, metric, V, mu), atol=1e-10)
    assert step.back(V) is V and step.into(V) is V


def test_both_steps_agree():
    problem, V = problem_with(), normal(N, M, seed=7)
    fast = KroneckerStep(problem, ROWS, COLUMNS)
    slow = DenseStep(problem, ROWS[:, None] * COLUMNS)
    torch.testing.assert_close(fast.back(fast(V, 0.3)), slow(V, 0.3))


@pytest.mark.parametrize("nodes", [None, own_nodes()], ids=["shared", "own"])
def test_normal_matrix_is_a_sum_over_all_entries(nodes):
    problem = problem_with(nodes=nodes)
    entries = normal(*problem.entry_weights.shape, seed=8).abs()
    F = design(problem)
    expected = F.T @ (entries.numpy().ravel()[:, None] * F)
    np.testing.assert_allclose(normal_matrix(problem, row_curvatures(problem, entries)), expected, atol=1e-9)


def test_diagonal_of_a_kronecker_step_is_that_of_the_normal_matrix():
    """What conjugate gradients divide by."""
    problem = problem_with()
    step = KroneckerStep(problem, ROWS, COLUMNS)
    matrix = normal_matrix(step.problem, row_curvatures(step.problem, step.metric / N))
    torch.testing.assert_close(matrix, torch.diag(step.values.flatten()), atol=1e-10, rtol=0)
