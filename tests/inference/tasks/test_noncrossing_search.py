"""Tests of `ovkgp.inference.tasks.noncrossing_search`."""

import pytest
import torch
from loss_cases import normal
from noncrossing_cases import GAMMA_X, quantile_case, rbf, sine_toy
from task_cases import case, own_nodes

from ovkgp.exceptions import FitWarning, OptionError
from ovkgp.inference.tasks.factors import KernelFactor
from ovkgp.inference.tasks.noncrossing import solve_noncrossing
from ovkgp.inference.tasks.noncrossing_search import ExactCertificate, JoinedLoss, JointSearch, join_problems
from ovkgp.inference.tasks.problem import TaskProblem
from ovkgp.inference.tasks.solvers.admm import ADMM
from ovkgp.inference.tasks.solvers.certificates import Certificate
from ovkgp.inference.tasks.solvers.dual import solve_dual
from ovkgp.inference.tasks.solvers.primal import AugmentedLagrangian, solve_primal
from ovkgp.losses import EpsilonInsensitive, Huber, IntegralLoss, Pinball, SmoothedPinball, TaskMeasure, gauss_legendre


@pytest.fixture(scope="module")
def toy():
    return quantile_case(*sine_toy(30, seed=3), num_tasks=8)


def test_joint_search_is_independent_of_the_unit_of_slopes(toy):
    """J + Ω as a function of W, and the multipliers in the caller's units."""
    search, W = JointSearch(toy.problem, toy.penalty), normal(*toy.problem.shape, seed=0)
    assert search.unit > 1.5  # slopes are larger than values
    assert search.joint.objective(W).item() == pytest.approx(
        (toy.problem.objective(W) + toy.penalty.value(W)).item(), rel=1e-12
    )
    dual = torch.zeros_like(search.joint.entry_weights)
    dual[30:, 8:] = search.unit
    torch.testing.assert_close(search.multipliers(dual), torch.full((30, 8), 1 / 240).double())
    assert search.has_multiplier_at_bound(dual) and not search.has_multiplier_at_bound(0.9 * dual)


def test_joint_search_solves_the_joint_problem(toy):
    search = JointSearch(toy.problem, toy.penalty)
    found = search.run(None, None, Certificate(search.joint, 1e-9))
    direct = solve_primal(search.joint, tolerance=1e-9)
    assert found.objective == pytest.approx(direct.objective, rel=2e-9)
    assert search.problem_dual(found.dual).shape == (30, 8)


def test_joint_search_continues_from_a_small_gap_to_an_exact_solution(toy):
    search = JointSearch(toy.problem, toy.with_lam_nc(100.0))
    rough = search.run(None, None, Certificate(search.joint, 1e-6))
    certificate = ExactCertificate(search, 1e-10, tolerance=1e-6)
    certificate.evaluate(rough.weights, -rough.dual)
    assert search.has_violation(rough.weights, 1e-10)
    assert certificate.gap <= 1e-6 * certificate.objective and not certificate.is_done
    exact = search.run(rough.weights, rough.dual, certificate)
    assert certificate.is_done and exact.report.converged
    assert not search.has_violation(exact.weights, 1e-10)


def test_joint_search_takes_no_steps_from_the_solution(toy):
    search = JointSearch(toy.problem, toy.penalty)
    cold = search.run(None, None, Certificate(search.joint, 1e-8))
    warm = search.run(cold.weights, cold.dual, Certificate(search.joint, 1e-7))
    assert warm.report.iterations == 0 < cold.report.iterations


@pytest.mark.parametrize("method", ["penalty", "exact"])
@pytest.mark.parametrize(("owner", "name", "steps"), [(ADMM, "_advance", 15), (AugmentedLagrangian, "_curvature", 3)])
def test_ctrl_c_keeps_the_best_so_far(toy, owner, name, steps, method, monkeypatch):
    ordinary, calls = getattr(owner, name), []

    def interrupt(self, *arguments):
        calls.append(1)
        if len(calls) > steps:
            raise KeyboardInterrupt
        return ordinary(self, *arguments)

    monkeypatch.setattr(owner, name, interrupt)
    with pytest.warns(FitWarning, match="interrupted"):
        found = solve_noncrossing(toy.problem, toy.penalty, method=method, tolerance=1e-12)
    assert found.report.interrupted and not found.report.converged
    zero = torch.zeros_like(found.weights)
    assert found.objective < (toy.problem.objective(zero) + toy.penalty.value(zero)).item()


TASKS = torch.tensor([0.2, 0.7, 0.4, 0.5, 0.9]).double()
LOSSES, SIZES = [Pinball(), EpsilonInsensitive(0.3), SmoothedPinball(0.2)], [2, 1, 2]
GROUPS = [slice(0, 2), slice(2, 3), slice(3, 5)]


def problem_of(loss, num_rows=30, lam=1e-3, measure=None):
    X, y = sine_toy(num_rows)
    measure = measure or gauss_legendre(6)
    rows, psi = KernelFactor(rbf(GAMMA_X), X).anchor_rows, KernelFactor(rbf(5.0), measure.nodes[:, None]).anchor_rows
    return TaskProblem(rows, psi, y, IntegralLoss(loss, measure), lam)


@pytest.mark.parametrize(
    "method",
    ["value", "derivative", "curvature", "finite_conjugate", "conjugate", "nearest_slope", "prox", "conjugate_prox"],
)
def test_joined_loss_applies_each_loss_to_its_tasks(method):
    joint, u, y = JoinedLoss(LOSSES, SIZES), normal(4, 5, seed=0), normal(4, 5, seed=1)
    steps = [normal(4, 5, seed=2).abs() + 0.1] if "prox" in method else []
    found = getattr(joint, method)(u, y, TASKS, *steps)
    for loss, group in zip(LOSSES, GROUPS, strict=True):
        own = getattr(loss, method)(u[:, group], y[:, group], TASKS[group], *(step[:, group] for step in steps))
        torch.testing.assert_close(found[:, group], own)
    if steps:
        same = getattr(joint, method)(u, y, TASKS, 0.3)
        torch.testing.assert_close(same, getattr(joint, method)(u, y, TASKS, torch.full((4, 5), 0.3).double()))


def parts_of():
    """Two problems with 7 and 5 rows, 3 and 2 tasks, in the same four weights, rows weighted."""
    parts = []
    for seed, (rows, tasks, loss) in enumerate(((7, 3, Pinball()), (5, 2, Huber(0.5)))):
        weights = 0.5 + torch.arange(rows).double()
        measure = IntegralLoss(loss, gauss_legendre(tasks))
        parts.append(
            TaskProblem(
                normal(rows, 2, seed=seed),
                normal(tasks, 2, seed=seed + 5),
                normal(rows, 1, seed=seed + 9),
                measure,
                0.1,
                weights,
            )
        )
    return parts


def test_objective_is_the_sum_of_the_risks_and_one_norm():
    parts, W = parts_of(), normal(2, 2, seed=20)
    whole = join_problems(parts)
    risks = sum(part.risk(part.values(W)).item() for part in parts)
    assert whole.objective(W).item() == pytest.approx(risks + 0.05 * W.square().sum().item(), rel=1e-12)


def test_dual_is_the_sum_of_the_conjugates_and_the_norm_of_the_sum():
    parts = parts_of()
    duals = [-part.loss.nearest_slope(normal(*part.entry_weights.shape, seed=3), part.targets) for part in parts]
    W = sum(part.dual_weights(dual) for part, dual in zip(parts, duals, strict=True))
    alone = sum(part.dual_objective(dual, 0 * W).item() for part, dual in zip(parts, duals, strict=True))
    whole, dual = join_problems(parts), torch.block_diag(*duals)
    torch.testing.assert_close(whole.dual_weights(dual), W)
    assert whole.dual_objective(dual).item() == pytest.approx(alone - 0.05 * W.square().sum().item(), rel=1e-12)


def test_joined_problems_work_with_every_solver():
    whole = join_problems(parts_of())
    one, other = solve_primal(whole, tolerance=1e-9), solve_dual(whole, tolerance=1e-9)
    assert one.report.converged and other.report.converged
    assert one.objective == pytest.approx(other.objective, rel=1e-8)


def test_joined_halves_of_the_data_equal_the_whole():
    whole = problem_of(Pinball())
    halves = [
        TaskProblem(
            whole.inputs[part], whole.tasks, whole.targets[part], whole.loss, whole.lam, 0.5 * torch.ones(15).double()
        )
        for part in (slice(0, 15), slice(15, 30))
    ]
    one, two = solve_primal(whole, tolerance=1e-9), solve_primal(join_problems(halves), tolerance=1e-9)
    assert two.objective == pytest.approx(one.objective, rel=1e-8)
    assert torch.allclose(two.weights, one.weights, atol=1e-3)


def test_joined_problem_is_equivariant_to_target_units():
    problem = problem_of(Pinball())
    scaled = TaskProblem(problem.inputs, problem.tasks, 1e6 * problem.targets, problem.loss, problem.lam / 1e6)
    one, million = (solve_primal(join_problems([each]), tolerance=1e-8) for each in (problem, scaled))
    assert million.report.converged
    assert million.objective == pytest.approx(1e6 * one.objective, rel=1e-7)


@pytest.mark.parametrize(
    ("X", "y"),
    [([[0.5]], [[2.0]]), ([[0.5], [0.5], [0.5]], [[1.0], [1.0], [-3.0]]), ([[0.1], [0.2]], [[0.0], [0.0]])],
    ids=["one row", "duplicates", "targets zero"],
)
def test_joined_problem_converges_for_degenerate_data(X, y):
    case = quantile_case(torch.tensor(X).double(), torch.tensor(y).double(), num_tasks=1, lam=1e-4)
    found = solve_primal(join_problems([case.problem, case.penalty.problem(1e-4)]))
    assert found.report.converged
    assert torch.isfinite(found.weights).all()


def test_join_problems_rejects_curve_losses_and_separate_nodes():
    for part in (case("curve_huber_2"), case("pinball", own_nodes())):
        with pytest.raises(OptionError, match="entrywise"):
            join_problems([part, part])


def test_missing_entries_equal_absent_nodes():
    measure = TaskMeasure([0.2, 0.5, 0.8], [0.5, 0.5, 0.0])
    psi = KernelFactor(rbf(5.0), measure.nodes[:, None]).anchor_rows
    full = problem_of(Pinball(), measure=TaskMeasure([0.2, 0.5]))
    targets = torch.cat([full.targets.expand(-1, 2), torch.full((30, 1), torch.nan).double()], -1)
    missing = TaskProblem(full.inputs, psi, targets, IntegralLoss(Pinball(), measure), full.lam)
    one, other = (solve_primal(join_problems([each]), tolerance=1e-8) for each in (missing, full))
    assert one.objective == pytest.approx(other.objective, rel=1e-7)
