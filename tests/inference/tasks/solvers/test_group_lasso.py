"""Tests of `ovkgp.inference.tasks.solvers.group_lasso`."""

import numpy as np
import pytest

from ovkgp.exceptions import InputError
from ovkgp.inference.tasks.solvers.group_lasso import GroupLassoProblem, group_lasso_path, solve_group_lasso

N, Q, D, M = 30, 3, 6, 12


@pytest.fixture
def problem():
    rng = np.random.default_rng(0)
    X, Phi = rng.standard_normal((N, Q)), rng.standard_normal((M, D))
    C = np.zeros((Q, D))
    C[:, [1, 4]] = rng.standard_normal((Q, 2))
    Y = X @ C @ Phi.T + 0.3 * rng.standard_normal((N, M))
    return GroupLassoProblem.from_rows(X, Y @ Phi / M, Phi.T @ Phi / M, np.square(Y).sum() / M), X, Y, Phi


def dense_solution(X, Y, Phi, lam):
    """Minimum by proximal gradient steps on all coefficients, which converge linearly as the risk is strongly convex."""
    C, step = np.zeros((Q, D)), N * M / (2 * np.linalg.norm(X, 2) ** 2 * np.linalg.norm(Phi, 2) ** 2)
    for _ in range(10_000):
        moved = C - step * 2 / (N * M) * X.T @ (X @ C @ Phi.T - Y) @ Phi
        C = moved * np.maximum(1 - lam * step / np.linalg.norm(moved, axis=0), 0.0)
    return np.mean(np.square(Y - X @ C @ Phi.T).sum(1)) / M + lam * np.linalg.norm(C, axis=0).sum()


def test_objective_and_gradient_are_those_of_the_data(problem):
    problem, X, Y, Phi = problem
    C = np.random.default_rng(1).standard_normal((Q, D))
    risk = np.square(Y - X @ C @ Phi.T).sum() / (N * M)
    assert problem.risk(C) == pytest.approx(risk)
    step = 1e-6 * np.eye(Q * D).reshape(-1, Q, D)
    numeric = [(problem.risk(C + s) - problem.risk(C - s)) / 2e-6 for s in step]
    np.testing.assert_allclose(problem.gradient(C).ravel(), numeric, atol=1e-7)


@pytest.mark.parametrize("part", [0.9, 0.5, 0.1, 0.02])
def test_solution_equals_a_dense_solver(problem, part):
    problem, X, Y, Phi = problem
    lam = part * problem.lam_max
    found = solve_group_lasso(problem, lam, tolerance=1e-10)
    assert found.gap <= 1e-10
    assert found.objective == pytest.approx(dense_solution(X, Y, Phi, lam), rel=1e-9)


def test_optimality_conditions_hold_bo_e_38(problem):
    """C-33: active ∇f_l = −λc_l/‖c_l‖, inactive ‖∇f_l‖ ≤ λ, with groups of the columns of C (q, d)."""
    problem = problem[0]
    lam = 0.3 * problem.lam_max
    found = solve_group_lasso(problem, lam, tolerance=1e-12)
    gradient, norms = problem.gradient(found.weights), np.linalg.norm(found.weights, axis=0)
    assert 0 < len(found.selected) < D
    active = norms > 0
    np.testing.assert_allclose(gradient[:, active], -lam * found.weights[:, active] / norms[active], atol=1e-5 * lam)
    assert (np.linalg.norm(gradient[:, ~active], axis=0) <= lam * (1 + 1e-9)).all()


def test_working_set_equals_all_functions(problem):
    problem = problem[0]
    for part in (0.5, 0.1):
        sparse, full = (
            solve_group_lasso(problem, part * problem.lam_max, tolerance=1e-12, working_set=flag)
            for flag in (True, False)
        )
        np.testing.assert_allclose(sparse.weights, full.weights, atol=1e-5)


def test_largest_penalty_selects_nothing(problem):
    problem = problem[0]
    assert len(solve_group_lasso(problem, problem.lam_max * (1 + 1e-9)).selected) == 0
    assert len(solve_group_lasso(problem, problem.lam_max * 0.99).selected) > 0


def test_path_equals_single_solutions(problem):
    problem = problem[0]
    lams = problem.lam_max * np.array([0.05, 0.5, 0.2])
    for lam, found in zip(lams, group_lasso_path(problem, lams, tolerance=1e-10), strict=True):
        assert found.objective == pytest.approx(solve_group_lasso(problem, lam, tolerance=1e-10).objective, rel=1e-9)


def test_ridge_gap_is_valid(problem):
    _, X, Y, Phi = problem
    rows = GroupLassoProblem.from_rows(X, Y @ Phi / M, Phi.T @ Phi / M, np.square(Y).sum() / M, ridge=0.1)
    found = solve_group_lasso(rows, 0.05, tolerance=1e-10)
    perturbed = found.weights + 1e-3 * np.random.default_rng(0).standard_normal((Q, D))
    assert found.gap <= 1e-10
    assert rows.gap(perturbed, 0.05) >= rows.objective(perturbed, 0.05) - found.objective - 1e-12


def test_invalid_penalty_is_rejected(problem):
    with pytest.raises(InputError, match="lam"):
        solve_group_lasso(problem[0], 0.0)
