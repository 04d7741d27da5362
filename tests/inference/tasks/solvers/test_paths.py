"""Tests of `ovkgp.inference.tasks.solvers.paths`."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from loss_cases import normal
from task_cases import M, N, case, loss_on, own_nodes

from ovkgp.exceptions import FitWarning, OptionError
from ovkgp.inference.tasks.solvers.dual import solve_dual
from ovkgp.inference.tasks.solvers.paths import (
    compute_sparsity,
    find_max_epsilon,
    find_max_kappa,
    solve_path,
    vary_parameter,
)
from ovkgp.inference.tasks.solvers.primal import solve_primal
from ovkgp.inference.tasks.solvers.square import mask_measure, solve_square
from ovkgp.losses import IntegralLoss, Square, gauss_legendre

SOLVERS = {"dual": solve_dual, "primal": solve_primal}
OBSERVED = normal(N, M, seed=4) > -0.5
OBSERVED[0] = False
SHAPES = {
    "shared": case,
    "own": lambda name: case(name, own_nodes()),
    "holes": lambda name: replace(case(name), loss=loss_on(name, mask_measure(gauss_legendre(M), OBSERVED))),
    "rows": lambda name: case(name, row_weights=torch.linspace(0.0, 2.0, N).double()),
}
HUBER = ["huber", "curve_huber_1", "curve_huber_2", "curve_huber_inf"]
INSENSITIVE = ["insensitive", "curve_insensitive_1", "curve_insensitive_2", "curve_insensitive_inf"]


def at(problem, parameter, value):
    return next(iter(vary_parameter(problem, parameter, [value])))


def ridge_of(problem):
    return solve_square(replace(problem, loss=IntegralLoss(Square(), problem.loss.measure)))


# --- where paths end ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", HUBER)
def test_huber_is_the_ridge_from_max_kappa_on(name, shape):
    """B-06; and just below it is not."""
    problem = SHAPES[shape](name)
    ridge, kappa = ridge_of(problem), find_max_kappa(problem)
    for factor in (1.0 + 1e-9, 10.0):
        same = at(problem, "kappa", factor * kappa)
        assert same.objective(ridge.weights) - same.dual_objective(ridge.dual) <= 1e-12 * ridge.objective
        found = solve_dual(same, init=ridge.dual, tolerance=1e-12)
        torch.testing.assert_close(same.values(found.weights), same.values(ridge.weights), rtol=0, atol=1e-8)
    below = at(problem, "kappa", 0.9 * kappa)
    assert below.dual_objective(ridge.dual).item() == -math.inf
    assert solve_primal(below, tolerance=1e-10).objective < ridge.objective * (1 - 1e-8)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", INSENSITIVE)
def test_solution_is_zero_from_max_epsilon_on(name, shape):
    """B-06: h = 0 and every dual variable an exact 0; and just below not."""
    problem = SHAPES[shape](name)
    epsilon = find_max_epsilon(problem)
    for solve in (solve_dual, solve_primal):
        found = solve(at(problem, "epsilon", epsilon * (1 + 1e-12)))
        assert (found.weights == 0).all() and found.objective == 0.0
        assert compute_sparsity(found.dual, problem.entry_weights) == (1.0, 1.0)
    below = solve_primal(at(problem, "epsilon", 0.95 * epsilon))
    assert below.objective > 0 and below.weights.norm() > 0


@pytest.mark.parametrize("name", INSENSITIVE)
def test_epsilon_zero_is_the_ridge(name):
    problem = at(case(name), "epsilon", 0.0)
    found = solve_primal(problem, tolerance=1e-14)
    torch.testing.assert_close(
        problem.values(found.weights), problem.values(ridge_of(problem).weights), rtol=0, atol=1e-6
    )


def test_ends_of_the_three_orders_are_those_of_their_norms():
    """κ_max: max |α|, max row norm, max mean size; ε_max: max |y|, max row norm, max mean size."""
    problem = case("square")
    alpha, y, eta = ridge_of(problem).dual.numpy(), problem.targets.numpy(), problem.loss.weights.numpy()
    for p, q_norm in (
        (1, np.abs(alpha).max()),
        (2, np.sqrt((eta * alpha**2).sum(1)).max()),
        (math.inf, (eta * np.abs(alpha)).sum(1).max()),
    ):
        assert find_max_kappa(case(f"curve_huber_{p}")) == pytest.approx(q_norm, rel=1e-10)
    for p, p_norm in (
        (math.inf, np.abs(y).max()),
        (2, np.sqrt((eta * y**2).sum(1)).max()),
        (1, (eta * np.abs(y)).sum(1).max()),
    ):
        assert find_max_epsilon(case(f"curve_insensitive_{p}")) == pytest.approx(p_norm, rel=1e-12)


def test_max_kappa_and_epsilon_reject_other_losses():
    with pytest.raises(OptionError, match="CurveHuber"):
        find_max_kappa(case("pinball"))
    with pytest.raises(OptionError, match="CurveInsensitive"):
        find_max_epsilon(case("huber"))


# --- warm starts --------------------------------------------------------------------------------------------------------------

PATHS = {
    "kappa": ("curve_huber_2", "kappa", np.geomspace(1.0, 0.05, 8)),
    "integral kappa": ("huber", "kappa", np.geomspace(1.0, 0.05, 8)),
    "epsilon": ("curve_insensitive_2", "epsilon", np.linspace(0.8, 0.0, 8)),
    "lam": ("pinball", "lam", np.geomspace(0.3, 1e-3, 8)),
    "lam of the ridge": ("square", "lam", np.geomspace(0.3, 1e-3, 8)),
    "smoothing": ("smoothed_pinball", "kappa", np.geomspace(1.0, 0.01, 8)),
}


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("path", PATHS)
def test_every_problem_of_a_path_is_solved(path, solver):
    name, parameter, values = PATHS[path]
    problem = case(name)
    found = solve_path(vary_parameter(problem, parameter, values), solver=solver)
    assert len(found) == len(values)
    for value, solution in zip(values, found, strict=True):
        alone = SOLVERS[solver](at(problem, parameter, value))
        assert solution.gap <= 1e-6 * solution.objective
        assert solution.objective == pytest.approx(alone.objective, rel=2e-6)


@pytest.mark.parametrize("path", PATHS)
def test_warm_starts_reduce_the_total_number_of_steps(path):
    name, parameter, values = PATHS[path]
    problems = list(vary_parameter(case(name), parameter, values))
    warm = sum(solution.report.iterations for solution in solve_path(problems))
    cold = sum(solve_dual(problem).report.iterations for problem in problems)
    assert warm < cold


def test_warm_starts_of_the_primal_solver_reduce_the_total_number_of_steps():
    problems = list(vary_parameter(case("hinge"), "lam", np.geomspace(0.1, 1e-3, 25)))
    warm = sum(solution.report.iterations for solution in solve_path(problems, solver="primal", tolerance=1e-4))
    cold = sum(solve_primal(problem, tolerance=1e-4).report.iterations for problem in problems)
    assert warm < cold


def test_kappa_path_begins_at_the_ridge():
    """LT-97: from κ_max down; the first problem takes no steps at all."""
    problem = case("curve_huber_2")
    top = find_max_kappa(problem)
    path = solve_path(
        vary_parameter(problem, "kappa", [1.0001 * top, 0.8 * top]), init=ridge_of(problem), tolerance=1e-8
    )
    assert path[0].report.iterations == 0 < path[1].report.iterations


def test_sparsity_grows_with_epsilon():
    """LT-133: along the path every curve is forgiven in the end."""
    problem = case("curve_insensitive_2")
    path = solve_path(vary_parameter(problem, "epsilon", np.linspace(0, find_max_epsilon(problem), 6)))
    fractions = [compute_sparsity(solution.dual).rows for solution in path]
    assert fractions[0] == 0.0 and fractions[-1] == 1.0
    assert 0 < fractions[3] < 1
    assert fractions == sorted(fractions)


def test_solve_path_ends_after_an_interrupt(monkeypatch):
    problem, calls, prox = case("huber"), [], IntegralLoss.conjugate_prox

    def interrupt(self, *arguments):
        calls.append(1)
        if len(calls) > 60:
            raise KeyboardInterrupt
        return prox(self, *arguments)

    monkeypatch.setattr(IntegralLoss, "conjugate_prox", interrupt)
    with pytest.warns(FitWarning, match="interrupted"):
        found = solve_path(vary_parameter(problem, "kappa", np.geomspace(1.0, 0.01, 10)))
    assert 1 < len(found) < 10
    assert [solution.report.interrupted for solution in found] == [False] * (len(found) - 1) + [True]


# --- bits -------------------------------------------------------------------------------------------------------------------


def test_sparsity_counts_entries_with_weight():
    dual = torch.tensor([[0.0, 0.0, 1.0], [0.0, 0.0, 0.0], [0.0, 2.0, 3.0]]).double()
    assert compute_sparsity(dual) == pytest.approx((1 / 3, 2 / 3))
    weights = torch.tensor([[1.0, 1.0, 0.0], [0.0, 0.0, 0.0], [1.0, 1.0, 1.0]]).double()
    assert compute_sparsity(dual, weights) == pytest.approx((1 / 2, 3 / 5))


def test_vary_parameter_does_not_change_the_problem():
    problem = case("huber")
    kappas = [each.loss.loss.kappa for each in vary_parameter(problem, "kappa", [3.0, 2.0])]
    assert kappas == [3.0, 2.0]
    assert problem.loss.loss.kappa == 0.4
    assert [each.lam for each in vary_parameter(problem, "lam", [0.5])] == [0.5]


def test_paths_reject_invalid_options():
    problem = case("huber")
    with pytest.raises(OptionError, match="parameter"):
        vary_parameter(problem, "nu", [1.0])
    with pytest.raises(OptionError, match="epsilon"):
        list(vary_parameter(problem, "epsilon", [1.0]))
    with pytest.raises(OptionError, match="kappa"):
        list(vary_parameter(problem, "kappa", [-1.0]))
    with pytest.raises(OptionError, match="solver"):
        solve_path([problem], solver="both")
