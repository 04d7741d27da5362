import numpy as np
import pytest
import torch
from noncrossing_cases import GAMMA_X, quantile_case, rbf, sine_toy
from scipy.optimize import minimize

from ovkgp.exceptions import OptionError
from ovkgp.inference.task_learning import noncrossing_newton
from ovkgp.inference.task_learning.factors import KernelFactor
from ovkgp.inference.task_learning.noncrossing_newton import solve_joint
from ovkgp.inference.task_learning.problem import TaskProblem
from ovkgp.losses import IntegralLoss, Pinball, PinballEnvelope, TaskMeasure, gauss_legendre


def problem_of(loss, num_rows=30, lam=1e-3, measure=None):
    X, y = sine_toy(num_rows)
    measure = measure or gauss_legendre(6)
    rows, psi = KernelFactor(rbf(GAMMA_X), X).anchor_rows, KernelFactor(rbf(5.0), measure.nodes[:, None]).anchor_rows
    return TaskProblem(rows, psi, y, IntegralLoss(loss, measure), lam)


@pytest.mark.parametrize("lam", [1e-1, 1e-3, 1e-6])
def test_gap_is_small_and_independent_of_the_solver(lam):
    problem = problem_of(Pinball(), lam=lam)
    point, report = solve_joint([problem], tolerance=1e-8)
    gap = problem.objective(point.weights) - problem.dual_objective(point.duals[0])
    assert report.converged
    assert -1e-14 < gap <= 1.001e-8 * point.objective
    assert point.gap == pytest.approx(gap.item(), abs=1e-14)


def test_box_dual_by_l_bfgs_b_finds_the_same_value():
    problem = problem_of(Pinball(), num_rows=12, lam=1e-2)
    point, _ = solve_joint([problem], tolerance=1e-9)
    rows = np.kron(problem.inputs, problem.tasks)
    weight = (problem.entry_weights / problem.num_rows).numpy().ravel()
    y = problem.targets.expand(-1, 6).numpy().ravel()

    def negative(a):
        pulled = rows.T @ (weight * a) / problem.lam
        return problem.lam / 2 * pulled @ pulled - (weight * a) @ y, weight * (rows @ pulled - y)

    levels = np.tile(problem.loss.nodes.numpy(), 12)
    found = minimize(
        negative,
        0 * y,
        jac=True,
        bounds=list(zip(levels - 1, levels, strict=True)),
        options={"maxiter": 5000, "ftol": 1e-15},
    )
    assert -found.fun <= point.objective + 1e-12
    assert point.objective == pytest.approx(-found.fun, rel=1e-5)


def test_smooth_loss_has_a_vanishing_gradient():
    problem = problem_of(PinballEnvelope(0.3))
    point, report = solve_joint([problem], tolerance=1e-10)
    slope = problem.loss.derivative(problem.values(point.weights), problem.targets)
    gradient = problem.lam * (point.weights + problem.dual_weights(slope))
    assert report.converged
    assert gradient.abs().max() < 1e-6


def test_two_parts_are_one_problem_with_all_their_rows():
    """Two halves of the data, each with half the weight, are the whole."""
    whole = problem_of(Pinball())
    halves = [
        TaskProblem(
            whole.inputs[part], whole.tasks, whole.targets[part], whole.loss, whole.lam, 0.5 * torch.ones(15).double()
        )
        for part in (slice(0, 15), slice(15, 30))
    ]
    one, _ = solve_joint([whole], tolerance=1e-9)
    two, _ = solve_joint(halves, tolerance=1e-9)
    assert two.objective == pytest.approx(one.objective, rel=1e-8)
    assert torch.allclose(two.weights, one.weights, atol=1e-3)


def test_units_of_the_targets_do_not_matter():
    problem = problem_of(Pinball())
    scaled = TaskProblem(problem.inputs, problem.tasks, 1e6 * problem.targets, problem.loss, problem.lam / 1e6)
    one, _ = solve_joint([problem], tolerance=1e-8)
    million, report = solve_joint([scaled], tolerance=1e-8)
    assert report.converged
    assert million.objective == pytest.approx(1e6 * one.objective, rel=1e-7)


def test_missing_entries_are_as_rows_and_nodes_that_are_not_there():
    measure = TaskMeasure([0.2, 0.5, 0.8], [0.5, 0.5, 0.0])
    psi = KernelFactor(rbf(5.0), measure.nodes[:, None]).anchor_rows
    full = problem_of(Pinball(), measure=TaskMeasure([0.2, 0.5]))
    targets = torch.cat([full.targets.expand(-1, 2), torch.full((30, 1), torch.nan, dtype=torch.float64)], -1)
    missing = TaskProblem(full.inputs, psi, targets, IntegralLoss(Pinball(), measure), full.lam)
    assert solve_joint([missing], tolerance=1e-8)[0].objective == pytest.approx(
        solve_joint([full], tolerance=1e-8)[0].objective, rel=1e-7
    )


@pytest.mark.parametrize(
    ("X", "y"),
    [([[0.5]], [[2.0]]), ([[0.5], [0.5], [0.5]], [[1.0], [1.0], [-3.0]]), ([[0.1], [0.2]], [[0.0], [0.0]])],
    ids=["one row", "duplicates", "targets zero"],
)
def test_degenerate_data_converge(X, y):
    X, y, measure = torch.tensor(X).double(), torch.tensor(y).double(), gauss_legendre(1)
    rows, psi = KernelFactor(rbf(GAMMA_X), X).anchor_rows, KernelFactor(rbf(5.0), measure.nodes[:, None]).anchor_rows
    point, report = solve_joint([TaskProblem(rows, psi, y, IntegralLoss(Pinball(), measure), 1e-4)])
    assert report.converged
    assert torch.isfinite(point.weights).all()


def test_start_at_the_solution_needs_fewer_steps_and_duals_fewer_still():
    case = quantile_case(*sine_toy(30), num_tasks=8)
    parts = [case.problem, case.penalty.problem(case.problem.lam)]
    point, cold = solve_joint(parts)
    _, warm = solve_joint(parts, start=point.weights)
    _, warmer = solve_joint(parts, start=point.weights, duals=point.duals)
    assert warmer.iterations < warm.iterations < cold.iterations


def test_conjugate_gradients_reach_the_same_gap(monkeypatch):
    case = quantile_case(*sine_toy(20), num_tasks=6, lam=1e-2)
    parts = [case.problem, case.penalty.problem(case.problem.lam)]
    dense, _ = solve_joint(parts, tolerance=1e-8)
    monkeypatch.setattr("ovkgp.inference.task_learning.noncrossing_systems.DENSE", 0)
    matrix_free, report = solve_joint(parts, tolerance=1e-8)
    assert report.converged
    assert matrix_free.objective == pytest.approx(dense.objective, rel=2e-8)


def test_ctrl_c_keeps_the_best_so_far(monkeypatch):
    problem = problem_of(Pinball())
    original, calls = noncrossing_newton._Search.step, []

    def interrupted(self):
        calls.append(1)
        if len(calls) == 8:
            raise KeyboardInterrupt
        original(self)

    monkeypatch.setattr(noncrossing_newton._Search, "step", interrupted)
    point, report = solve_joint([problem])
    assert report.interrupted
    assert not report.converged
    assert point.objective < problem.objective(torch.zeros_like(point.weights)).item()


def test_max_iter_is_said_in_the_report():
    point, report = solve_joint([problem_of(Pinball())], max_iter=3)
    assert (report.iterations, report.converged) == (3, False)
    assert "max_iter" in report.message
    assert point.gap > 1e-6 * point.objective


def test_other_losses_and_nodes_of_their_own_are_refused():
    problem = problem_of(Pinball())
    with pytest.raises(OptionError, match="tolerance"):
        solve_joint([problem], tolerance=0.0)
    problem.tasks = problem.tasks.expand(30, -1, -1)
    with pytest.raises(OptionError, match="share"):
        solve_joint([problem])
    problem.loss = None
    with pytest.raises(OptionError, match="IntegralLoss"):
        solve_joint([problem])
