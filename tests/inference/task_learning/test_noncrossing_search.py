"""The search for curves that do not cross: the joint problem, its units, and an end that is not a gap."""

import pytest
import torch
from loss_cases import normal
from noncrossing_cases import quantile_case, sine_toy

from ovkgp.exceptions import FitWarning
from ovkgp.inference.tasks.noncrossing import solve_noncrossing
from ovkgp.inference.tasks.noncrossing_search import ExactCertificate, JointSearch
from ovkgp.inference.tasks.solvers.admm import Splitting
from ovkgp.inference.tasks.solvers.certificates import Certificate
from ovkgp.inference.tasks.solvers.primal import Multipliers, solve_primal


@pytest.fixture(scope="module")
def toy():
    return quantile_case(*sine_toy(30, seed=3), num_tasks=8)


def test_the_unit_of_slopes_changes_nothing_but_the_numbers(toy):
    """J + Ω as a function of W, and the multipliers in the caller's units."""
    search, W = JointSearch(toy.problem, toy.penalty), normal(*toy.problem.shape, seed=0)
    assert search.unit > 1.5  # slopes are larger than values
    assert search.joint.objective(W).item() == pytest.approx(
        (toy.problem.objective(W) + toy.penalty.value(W)).item(), rel=1e-12
    )
    dual = torch.zeros_like(search.joint.entry_weights)
    dual[30:, 8:] = search.unit
    torch.testing.assert_close(search.multipliers_of(dual), torch.full((30, 8), 1 / 240).double())
    assert search.is_bounded(dual) and not search.is_bounded(0.9 * dual)


def test_it_is_the_joint_problem_that_is_solved(toy):
    search = JointSearch(toy.problem, toy.penalty)
    found = search.run(None, None, Certificate(search.joint, 1e-9))
    plain = solve_primal(search.joint, tolerance=1e-9)
    assert found.objective == pytest.approx(plain.objective, rel=2e-9)
    assert search.dual_of(found.dual).shape == (30, 8)


def test_a_small_gap_is_not_enough_for_an_exact_solution(toy):
    search = JointSearch(toy.problem, toy.with_lam_nc(100.0))
    rough = search.run(None, None, Certificate(search.joint, 1e-6))
    certificate = ExactCertificate(search, 1e-10, tolerance=1e-6)
    certificate.look(rough.weights, -rough.dual)
    assert search.falls(rough.weights, 1e-10)
    assert certificate.gap <= 1e-6 * certificate.objective and not certificate.done
    exact = search.run(rough.weights, rough.dual, certificate)
    assert certificate.done and exact.report.converged
    assert not search.falls(exact.weights, 1e-10)


def test_a_start_at_the_solution_takes_no_steps(toy):
    search = JointSearch(toy.problem, toy.penalty)
    cold = search.run(None, None, Certificate(search.joint, 1e-8))
    warm = search.run(cold.weights, cold.dual, Certificate(search.joint, 1e-7))
    assert warm.report.iterations == 0 < cold.report.iterations


@pytest.mark.parametrize("method", ["penalty", "exact"])
@pytest.mark.parametrize(("owner", "name", "steps"), [(Splitting, "_advance", 15), (Multipliers, "_curvature", 3)])
def test_ctrl_c_keeps_the_best_so_far(toy, owner, name, steps, method, monkeypatch):
    ordinary, calls = getattr(owner, name), []

    def interrupt(self, *arguments):
        calls.append(1)
        if len(calls) > steps:
            raise KeyboardInterrupt
        return ordinary(self, *arguments)

    monkeypatch.setattr(owner, name, interrupt)
    with pytest.warns(FitWarning, match="Non-crossing was interrupted"):
        found = solve_noncrossing(toy.problem, toy.penalty, method=method, tolerance=1e-12)
    assert found.report.interrupted and not found.report.converged
    zero = torch.zeros_like(found.weights)
    assert found.objective < (toy.problem.objective(zero) + toy.penalty.value(zero)).item()
