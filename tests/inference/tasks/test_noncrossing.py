"""Tests of `ovkgp.inference.tasks.noncrossing`."""

import warnings
from itertools import pairwise

import numpy as np
import pytest
import torch
from loss_cases import normal
from noncrossing_cases import GAMMA_X, dense_gram, quantile_case, rbf, sine_toy
from task_cases import case, own_nodes

from ovkgp.exceptions import FitWarning, InputError, OptionError
from ovkgp.functional.factors import KernelFactor
from ovkgp.inference.tasks.noncrossing import (
    ExactCertificate,
    JoinedLoss,
    JointSearch,
    NonCrossing,
    Shortfall,
    crossing_loss,
    crossing_slope,
    join_problems,
    solve_noncrossing,
)
from ovkgp.inference.tasks.problem import TaskProblem
from ovkgp.inference.tasks.solvers.admm import ADMM
from ovkgp.inference.tasks.solvers.certificates import Certificate
from ovkgp.inference.tasks.solvers.dual import solve_dual
from ovkgp.inference.tasks.solvers.primal import AugmentedLagrangian, solve_primal
from ovkgp.losses import EpsilonInsensitive, Huber, IntegralLoss, Pinball, SmoothedPinball, TaskMeasure, gauss_legendre

EMPTY = torch.zeros(0, dtype=torch.float64)


@pytest.fixture(scope="module")
def toy():
    return quantile_case(*sine_toy(40, seed=3))


def crafted(**options):
    """Two levels learned from three points, slopes penalised at other levels and inputs, where the data make the curves cross."""
    X, y = torch.tensor([[0.2], [0.5], [0.8]]).double(), torch.tensor([[1.0], [-2.0], [1.5]]).double()
    anchors, slope_nodes = torch.tensor([[0.35], [0.65]]).double(), torch.tensor([0.05, 0.3, 0.5, 0.9]).double()
    offset = torch.full((4,), -1.0, dtype=torch.float64)
    return quantile_case(X, y, 2, 1e-2, 5.0, anchors=anchors, slope_nodes=slope_nodes, offset_slopes=offset, **options)


@pytest.mark.parametrize("lam_nc", [0.01, 0.1, 10.0])
def test_gap_of_the_box_dual_by_dense_algebra(lam_nc):
    """§2.9: maximise Σ a y − cᵀ G c/(2λ) over the box; h = G c/λ; nothing of the solver is used here but a and b."""
    X, y = sine_toy(12)
    case = quantile_case(X, y, num_tasks=5, lam_nc=lam_nc)
    found = solve_noncrossing(case.problem, case.penalty, tolerance=1e-8)
    G, levels, eta = dense_gram(case), case.measure.nodes.numpy(), case.measure.weights.numpy()
    assert np.linalg.eigvalsh(G).min() > -1e-9
    a, b = found.dual.numpy() * eta / 12, found.multipliers.numpy()
    assert (a >= eta / 12 * (levels - 1) - 1e-15).all() and (a <= eta / 12 * levels + 1e-15).all()
    assert (b >= 0).all() and (b <= lam_nc / 60 * (1 + 1e-12)).all()
    c = np.concatenate([a.ravel(), b.ravel()])
    h, slopes = np.split(G @ c / 1e-3, 2)
    r = y.numpy() - h.reshape(12, 5)
    risk = (eta * np.maximum(levels * r, (levels - 1) * r)).sum() / 12
    primal = risk + lam_nc * np.maximum(-slopes, 0).mean() + c @ G @ c / 2e-3
    dual = (a * y.numpy()).sum() - c @ G @ c / 2e-3
    # dense h has the last word of the multipliers; that of W is better, as W is exact to the Newton step
    assert dual <= found.objective + 1e-12
    assert found.objective - dual <= 2e-8 * found.objective
    assert primal - dual <= 1e-6 * primal


def test_box_dual_with_an_offset_has_its_linear_term():
    case = crafted()
    found = solve_noncrossing(case.problem, case.penalty, tolerance=1e-9)
    G, eta = dense_gram(case), case.measure.weights.numpy()
    a, b = found.dual.numpy() * eta / 3, found.multipliers.numpy()
    c = np.concatenate([a.ravel(), b.ravel()])
    dual = (a * case.y.numpy()).sum() - (b * -1.0).sum() - c @ G @ c / 2e-2
    assert found.multipliers.max() > 0
    assert dual == pytest.approx(found.objective, rel=1e-8)


def test_multipliers_satisfy_kkt(toy):
    penalty = toy.with_lam_nc(0.1)
    found = solve_noncrossing(toy.problem, penalty, tolerance=1e-10)
    slopes, bound = toy.penalty.inputs @ found.weights @ toy.penalty.slopes.T, 0.1 / 800
    falls, rises = slopes < -1e-6, slopes > 1e-6
    assert falls.any() and rises.any()
    assert torch.allclose(found.multipliers[falls], torch.tensor(bound).double(), rtol=1e-6)
    assert (found.multipliers[rises] <= 1e-6 * bound).all()
    residuals = toy.y - toy.problem.values(found.weights)
    levels = toy.measure.nodes.expand_as(residuals)
    assert torch.allclose(found.dual[residuals > 1e-5], levels[residuals > 1e-5], atol=1e-6)
    assert torch.allclose(found.dual[residuals < -1e-5], levels[residuals < -1e-5] - 1, atol=1e-6)


def test_penalty_falls_to_zero_as_lam_nc_grows(toy):
    """B-15."""
    falls, risks = [], []
    for lam_nc in (0.0, 0.003, 0.01, 0.03, 0.1, 0.3, 3.0):
        found = solve_noncrossing(toy.problem, toy.with_lam_nc(lam_nc), tolerance=1e-8)
        falls.append(toy.penalty.violations(found.weights).mean().item())
        risks.append(toy.problem.objective(found.weights).item())
    assert all(after < before for before, after in pairwise(falls[:-1]))
    assert falls[-1] < 1e-8
    assert all(after >= before - 1e-8 for before, after in pairwise(risks))


def test_lt_134_crossings_nearly_vanish_and_the_fit_stays(toy):
    """The shape of the spec's .0348, .0133, .0012, .0009; this draw gives .034, .013, .0010, .0008."""
    X, levels = torch.linspace(0, 1.5, 200).double()[:, None], torch.linspace(0.01, 0.99, 100).double()
    found = [solve_noncrossing(toy.problem, toy.with_lam_nc(cost)) for cost in (0.0, 0.01, 0.1, 1.0)]
    crossings = [crossing_loss(toy.values(each.weights, X, levels)) for each in found]
    slopes = [crossing_slope(toy.inputs(X) @ each.weights @ toy.tasks.slopes(levels).T) for each in found]
    pinball = [toy.problem.risk(toy.problem.values(each.weights)).item() for each in found]
    assert crossings == pytest.approx([0.0345, 0.0130, 0.0010, 0.0008], abs=2e-4)
    assert all(after < before for before, after in pairwise(slopes))
    assert slopes[-1] < 0.05 * slopes[0]
    assert pinball == pytest.approx([pinball[0]] * 4, rel=0.005)


def test_solution_is_exact_from_a_finite_lam_nc_on(toy):
    found = solve_noncrossing(toy.problem, toy.with_lam_nc(0.01), method="exact")
    assert found.report.converged
    assert found.violation <= 1e-9
    assert found.lam_nc == 1.0  # 0.01 and 0.1 do not suffice on this draw
    assert found.multipliers.max() < found.lam_nc / 800
    more = solve_noncrossing(toy.problem, toy.with_lam_nc(100.0), tolerance=1e-9)
    assert more.objective == pytest.approx(found.objective, rel=1e-7)
    assert torch.allclose(toy.problem.values(more.weights), toy.problem.values(found.weights), atol=1e-3)


def test_smallest_exact_lam_nc_is_the_largest_multiplier(toy):
    """Just above ñ m̃ max b the penalty is exact, just below it is not."""
    exact = solve_noncrossing(toy.problem, toy.penalty, method="exact", tolerance=1e-9)
    cost = 800 * exact.multipliers.max().item()
    above = solve_noncrossing(toy.problem, toy.with_lam_nc(1.02 * cost), tolerance=1e-11)
    below = solve_noncrossing(toy.problem, toy.with_lam_nc(0.9 * cost), tolerance=1e-11)
    assert above.violation < 1e-7
    assert below.violation > 1e-4


def test_zero_lam_nc_is_quantile_regression(toy):
    found = solve_noncrossing(toy.problem, toy.with_lam_nc(0.0))
    gap = toy.problem.objective(found.weights) - toy.problem.dual_objective(found.dual)
    assert gap <= 1e-6 * found.objective
    assert (found.multipliers == 0).all()


def test_thm_5_27_solution_is_unchanged_by_more_atoms():
    base = crafted()
    more_levels = torch.linspace(0, 1, 7).double()
    points = torch.cat([base.X, base.anchors, torch.tensor([[0.0], [0.42], [1.0]]).double()])
    atoms = (torch.cat([base.measure.nodes, more_levels]), torch.cat([base.slope_nodes, more_levels]))
    rich = crafted(points=points, atoms=atoms)
    one, other = (solve_noncrossing(case.problem, case.penalty, tolerance=1e-10) for case in (base, rich))
    assert other.objective == pytest.approx(one.objective, rel=1e-7)


@pytest.mark.parametrize("missing", ["derivative atoms", "anchors"])
def test_thm_5_27_atoms_of_the_penalty_are_needed(missing):
    base = crafted()
    poor = crafted(atoms=(base.measure.nodes, EMPTY)) if missing == "derivative atoms" else crafted(points=base.X)
    one, other = (solve_noncrossing(case.problem, case.penalty, tolerance=1e-9) for case in (base, poor))
    assert other.objective > one.objective * 1.002


def exponential_case(lam):
    rng = np.random.default_rng(0)
    X, y = torch.from_numpy(rng.uniform(0, 1, (100, 1))), torch.from_numpy(rng.exponential(size=(100, 1)))
    return quantile_case(X, y, num_tasks=10, lam=lam)


def test_bt_e_31_levels_increase_and_the_high_one_is_above_most_data():
    """There is no offset, so that λ must be small: at 1e-2 it draws the .8 quantile down to the .7 one."""
    case = exponential_case(lam=1e-3)
    found = solve_noncrossing(case.problem, case.penalty, method="exact")
    curves = case.values(found.weights, case.X, torch.tensor([0.2, 0.5, 0.8]))
    assert (case.y <= curves).double().mean(0).tolist() == pytest.approx([0.2, 0.5, 0.8], abs=0.06)
    assert crossing_loss(curves) == 0


def test_exact_raises_a_lam_nc_that_is_slightly_too_small():
    """At λ_nc = 1 a gap of 1e-6 leaves every multiplier below its bound, and yet the curves fall by 4e-7."""
    case = exponential_case(lam=1e-2)
    rough = solve_noncrossing(case.problem, case.penalty)
    assert rough.multipliers.max() < (1 - 1e-6) / 1000
    fine = solve_noncrossing(case.problem, case.penalty, tolerance=1e-12)
    assert fine.multipliers.max().item() == pytest.approx(1 / 1000, rel=1e-9) and fine.violation > 1e-7
    found = solve_noncrossing(case.problem, case.penalty, method="exact")
    assert found.report.converged
    assert found.lam_nc == 10.0
    assert found.violation <= 1e-9


def test_solve_noncrossing_takes_few_steps_for_two_hundred_rows():
    X, y = sine_toy(200)
    case = quantile_case(X, y, lam_nc=10.0)
    found = solve_noncrossing(case.problem, case.penalty, method="exact")
    assert found.report.converged and found.violation <= 1e-9
    assert found.report.iterations < 150


def test_exact_warns_of_infeasible_constraints():
    """One constant function of the level, and a prior mean that falls."""
    one, y = torch.ones(3, 1).double(), torch.zeros(3, 1).double()
    case = crafted()
    problem = type(case.problem)(one, torch.ones(2, 1).double(), y, case.problem.loss, 1e-2)
    penalty = NonCrossing(one, torch.zeros(1, 1).double(), torch.tensor([-1.0]).double())
    with pytest.warns(FitWarning, match="negative"):
        found = solve_noncrossing(problem, penalty, method="exact")
    assert not found.report.converged
    assert found.violation == 1.0


def test_penalty_solution_warns_without_convergence(toy):
    with pytest.warns(FitWarning, match="max_iter"):
        solve_noncrossing(toy.problem, toy.penalty, max_iter=2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        solve_noncrossing(toy.problem, toy.penalty)


def test_penalty_value_is_the_mean_violation(toy):
    weights = torch.randn(
        toy.penalty.inputs.shape[1], toy.penalty.slopes.shape[1], generator=torch.Generator().manual_seed(0)
    )
    penalty, weights = toy.with_lam_nc(3.0), weights.double()
    slopes = penalty.inputs @ weights @ penalty.slopes.T
    expected = 3.0 / 800 * np.maximum(-slopes.numpy(), 0).sum()
    assert penalty.value(weights).item() == pytest.approx(expected, rel=1e-12)
    part = penalty.problem(1.0)
    assert part.risk(part.values(weights)).item() == pytest.approx(expected, rel=1e-12)


def test_shortfall_is_convex_and_its_own_biconjugate():
    loss, tasks, y = Shortfall(2.0), torch.zeros(1).double(), torch.full((1, 1), 0.5).double()
    u = torch.linspace(-2, 2, 41).double()[None]
    slopes = torch.linspace(-2, 0, 2001).double()[:, None, None]
    twice = (slopes * u - loss.conjugate(slopes, y, tasks)).amax(0)
    assert torch.allclose(twice, loss.value(u, y, tasks), atol=1e-12)
    assert torch.isinf(loss.conjugate(torch.tensor([[-2.1, 0.1]]).double(), y, tasks)).all()


@pytest.mark.parametrize(
    ("change", "error", "match"),
    [
        ({"lam_nc": -1.0}, OptionError, "lam_nc"),
        ({"lam_nc": float("inf")}, OptionError, "lam_nc"),
        ({"offset_slopes": torch.zeros(2)}, InputError, "offset_slopes"),
        ({"offset_slopes": torch.full((3,), torch.inf)}, InputError, "infinite"),
        ({"inputs": torch.full((2, 2), torch.nan)}, InputError, "inputs"),
        ({"slopes": torch.zeros(3)}, InputError, "slopes"),
    ],
)
def test_noncrossing_rejects_invalid_arguments(change, error, match):
    with pytest.raises(error, match=match):
        NonCrossing(**{"inputs": torch.zeros(2, 2), "slopes": torch.zeros(3, 2), **change})


def test_solve_noncrossing_rejects_other_coordinates_and_methods(toy):
    with pytest.raises(InputError, match="same factors"):
        solve_noncrossing(toy.problem, NonCrossing(torch.zeros(2, 3).double(), torch.zeros(2, 2).double()))
    with pytest.raises(OptionError, match="method"):
        solve_noncrossing(toy.problem, toy.penalty, method="hard")


def test_crossing_measures_are_zero_for_rising_curves():
    rising = torch.linspace(-1, 1, 5).repeat(3, 1)
    assert crossing_loss(rising) == 0
    assert crossing_slope(rising.diff()) == 0


def test_crossing_measures_average_violations():
    quantiles = torch.tensor([[0.0, 2.0, 1.0, 0.5], [0.0, 1.0, 2.0, 3.0]])
    assert crossing_loss(quantiles) == pytest.approx(0.75)
    assert crossing_slope(quantiles.diff()) == pytest.approx(0.25)


@pytest.mark.parametrize("bad", [torch.zeros(3), torch.zeros(0, 3), torch.full((2, 3), torch.nan)])
def test_crossing_measures_reject_invalid_matrices(bad):
    with pytest.raises(InputError, match="quantiles"):
        crossing_loss(bad)
    with pytest.raises(InputError, match="slopes"):
        crossing_slope(bad)


def test_crossing_loss_rejects_one_level():
    with pytest.raises(InputError, match="quantiles"):
        crossing_loss(torch.zeros(3, 1))


@pytest.fixture(scope="module")
def small_toy():
    return quantile_case(*sine_toy(30, seed=3), num_tasks=8)


def test_joint_search_is_independent_of_the_unit_of_slopes(small_toy):
    """J + Ω as a function of W, and the multipliers in the caller's units."""
    search, W = JointSearch(small_toy.problem, small_toy.penalty), normal(*small_toy.problem.shape, seed=0)
    assert search.unit > 1.5  # slopes are larger than values
    assert search.joint.objective(W).item() == pytest.approx(
        (small_toy.problem.objective(W) + small_toy.penalty.value(W)).item(), rel=1e-12
    )
    dual = torch.zeros_like(search.joint.entry_weights)
    dual[30:, 8:] = search.unit
    torch.testing.assert_close(search.multipliers(dual), torch.full((30, 8), 1 / 240).double())
    assert search.has_multiplier_at_bound(dual) and not search.has_multiplier_at_bound(0.9 * dual)


def test_joint_search_solves_the_joint_problem(small_toy):
    search = JointSearch(small_toy.problem, small_toy.penalty)
    found = search.run(None, None, Certificate(search.joint, 1e-9))
    direct = solve_primal(search.joint, tolerance=1e-9)
    assert found.objective == pytest.approx(direct.objective, rel=2e-9)
    assert search.problem_dual(found.dual).shape == (30, 8)


def test_joint_search_continues_from_a_small_gap_to_an_exact_solution(small_toy):
    search = JointSearch(small_toy.problem, small_toy.with_lam_nc(100.0))
    rough = search.run(None, None, Certificate(search.joint, 1e-6))
    certificate = ExactCertificate(search, 1e-10, tolerance=1e-6)
    certificate.evaluate(rough.weights, -rough.dual)
    assert search.has_violation(rough.weights, 1e-10)
    assert certificate.gap <= 1e-6 * certificate.objective and not certificate.is_done
    exact = search.run(rough.weights, rough.dual, certificate)
    assert certificate.is_done and exact.report.converged
    assert not search.has_violation(exact.weights, 1e-10)


def test_joint_search_takes_no_steps_from_the_solution(small_toy):
    search = JointSearch(small_toy.problem, small_toy.penalty)
    cold = search.run(None, None, Certificate(search.joint, 1e-8))
    warm = search.run(cold.weights, cold.dual, Certificate(search.joint, 1e-7))
    assert warm.report.iterations == 0 < cold.report.iterations


@pytest.mark.parametrize("method", ["penalty", "exact"])
@pytest.mark.parametrize(("owner", "name", "steps"), [(ADMM, "_advance", 15), (AugmentedLagrangian, "_curvature", 3)])
def test_ctrl_c_keeps_the_best_so_far(small_toy, owner, name, steps, method, monkeypatch):
    ordinary, calls = getattr(owner, name), []

    def interrupt(self, *arguments):
        calls.append(1)
        if len(calls) > steps:
            raise KeyboardInterrupt
        return ordinary(self, *arguments)

    monkeypatch.setattr(owner, name, interrupt)
    with pytest.warns(FitWarning, match="interrupted"):
        found = solve_noncrossing(small_toy.problem, small_toy.penalty, method=method, tolerance=1e-12)
    assert found.report.interrupted and not found.report.converged
    zero = torch.zeros_like(found.weights)
    assert found.objective < (small_toy.problem.objective(zero) + small_toy.penalty.value(zero)).item()


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
