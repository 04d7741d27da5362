"""Tests of `ovkgp.inference.tasks.solvers.certificates`."""

import math

import pytest
import torch
from loss_cases import normal
from task_cases import NAMES, M, N, case

from ovkgp.exceptions import FitWarning, InputError, OptionError
from ovkgp.inference.tasks.solvers.certificates import Certificate, GapTracker, check_initial_point
from ovkgp.inference.tasks.solvers.primal import solve_primal
from ovkgp.inference.tasks.solvers.square import solve_square


@pytest.mark.parametrize("name", NAMES)
def test_it_brackets_the_least_value_wherever_it_looks(name):
    """D(A) ≤ min J ≤ J(W) for weights and slopes that are far from the solution, and not even slopes."""
    problem = case(name)
    least, certificate = solve_primal(problem).objective, Certificate(problem)
    for seed in range(4):
        gap = certificate.look(normal(*problem.shape, seed=seed, scale=0.1), normal(N, M, seed=seed + 10, scale=3.0))
        assert certificate.lower <= least <= certificate.objective * (1 + 1e-6)
        assert gap == certificate.gap >= 0
        assert math.isfinite(gap)


def test_each_side_keeps_its_own_best():
    problem = case("pinball")
    good, zero = solve_primal(problem), torch.zeros(problem.shape).double()
    certificate = Certificate(problem)
    certificate.look(good.weights, torch.zeros(N, M).double())
    certificate.look(zero, -good.dual)
    certificate.look(zero, torch.zeros(N, M).double())
    assert torch.equal(certificate.weights, good.weights)
    assert torch.equal(certificate.dual, good.dual)
    assert certificate.objective == pytest.approx(good.objective, rel=1e-14)
    assert certificate.gap == pytest.approx(good.gap, abs=1e-15)
    assert certificate.done
    assert certificate.history == [certificate.objective] * 3


def test_slopes_at_the_solution_of_a_smooth_loss_close_the_gap():
    problem = case("square")
    exact, certificate = solve_square(problem), Certificate(problem, tolerance=1e-12)
    slopes = certificate.look_at(exact.weights)
    torch.testing.assert_close(-slopes, exact.dual, rtol=0, atol=1e-10)
    assert certificate.done


def test_gap_is_never_negative_by_rounding():
    problem = case("square")
    certificate = Certificate(problem)
    certificate.look_at(solve_square(problem).weights)
    certificate.lower += 1e-12
    assert certificate.gap == 0.0


def test_a_search_that_ends_too_early_warns_and_says_what_to_do():
    certificate = Certificate(case("pinball"), max_iter=1)
    with pytest.warns(FitWarning, match="stopped after 0 steps at a duality gap of .* raise max_iter"):
        solution = certificate.run(lambda bar: certificate.look_at(certificate.weights))
    assert not solution.report.converged
    assert solution.gap > 0


def test_rounding_is_named_where_it_ends_the_search():
    certificate = Certificate(case("pinball"))

    def search(bar):
        certificate.look_at(certificate.weights)
        certificate.stuck = True

    with pytest.warns(FitWarning, match="stopped by rounding"):
        certificate.run(search)


@pytest.mark.parametrize("looks", [0, 1])
def test_an_interruption_keeps_the_best_and_warns(looks):
    problem = case("square")
    certificate, best = Certificate(problem), 0.5 * solve_square(problem).weights

    def search(bar):
        for _ in range(looks):
            certificate.look_at(best)
            certificate.tick(bar)
        raise KeyboardInterrupt

    with pytest.warns(FitWarning, match="was interrupted at a duality gap"):
        solution = certificate.run(search)
    assert solution.report.interrupted
    assert not solution.report.converged
    assert solution.report.iterations == looks
    assert torch.equal(solution.weights, best if looks else torch.zeros(problem.shape).double())
    assert solution.objective == problem.objective(solution.weights).item()


def test_report_counts_what_was_done(capsys):
    problem = case("square")
    certificate = Certificate(problem, verbose=1)

    def search(bar):
        certificate.look_at(solve_square(problem).weights)
        certificate.tick(bar)

    report = certificate.run(search).report
    assert (report.converged, report.message, report.iterations, report.evaluations) == (True, "converged", 1, 1)
    assert (report.num_rows, report.num_observed) == (N, N * M)
    assert "gap=" in capsys.readouterr().err


@pytest.mark.parametrize("tolerance", [0.0, -1.0, math.nan, math.inf])
def test_bad_tolerances_are_refused(tolerance):
    with pytest.raises(OptionError, match="tolerance must be a positive number"):
        Certificate(case("square"), tolerance=tolerance)


def test_bad_limits_of_steps_are_refused():
    with pytest.raises(OptionError, match="max_iter"):
        Certificate(case("square"), max_iter=0)


@pytest.mark.parametrize("start", [torch.zeros(2, 3), torch.full((2, 2), torch.nan)])
def test_bad_starts_are_refused(start):
    with pytest.raises(InputError, match=r"start must be a finite tensor of shape \(2, 2\)"):
        check_initial_point("start", start, (2, 2))


ZERO, ONE = torch.zeros(1, 1), torch.ones(1, 1)


class Parabola(GapTracker):
    """J(w) = 1 + (w − 1)², whose least value 1 is known from below."""

    def look_at(self, weights):
        self.above(weights, 1 + (weights.item() - 1) ** 2)
        self.below(1.0)

    def solution(self, report):
        return report

    def counts(self):
        return {"evaluations": len(self.history), "num_rows": 3, "num_observed": 2}


def bracket(**options):
    return Parabola(**{"weights": ZERO, "tolerance": 1e-3, "max_iter": 5} | options)


def test_nothing_is_known_at_first():
    fresh = bracket()
    assert not fresh.done and not fresh.over and fresh.gap == float("inf")


def test_the_best_of_each_side_is_kept():
    found = bracket()
    for weights, objective in ((ZERO, 3.0), (ONE, 2.0), (2 * ONE, 2.5)):
        found.above(weights, objective)
    assert [found.below(lower) for lower in (0.5, 1.5, 1.0)] == [True, True, False]
    assert found.weights is ONE and found.gap == 0.5 and found.relative_gap == 0.25
    assert found.history == [3.0, 2.0, 2.0]


def test_a_gap_below_zero_is_rounding():
    found = bracket()
    found.above(ONE, 1.0)
    found.below(1.0 + 1e-12)
    assert found.gap == 0.0 and found.done


def test_a_value_of_zero_is_done_when_both_sides_meet():
    found = bracket()
    found.above(ONE, 0.0)
    found.below(0.0)
    assert found.done and found.relative_gap == 0.0


def test_a_run_that_converges_says_so_without_a_warning(recwarn):
    run = bracket()
    report = run.run(lambda bar: (run.tick(bar), run.look_at(ONE)))
    assert report.converged and report.message == "converged" and not recwarn.list
    assert (report.iterations, report.evaluations, report.num_rows, report.num_observed) == (1, 1, 3, 2)
    assert report.objective == 1.0 and report.history == (1.0,) and report.seconds >= 0


@pytest.mark.parametrize(
    ("stuck", "words"), [(False, "stopped after 1 steps .* raise max_iter"), (True, "stopped by rounding .* or lam")]
)
def test_a_run_that_does_not_converge_says_what_to_do(stuck, words):
    run = bracket()

    def search(bar):
        run.tick(bar)
        run.look_at(ZERO)
        run.stuck = stuck

    with pytest.warns(FitWarning, match=words):
        report = run.run(search)
    assert not report.converged and "5.0e-01 of the objective" in report.message


def test_ctrl_c_keeps_the_best_and_one_look_is_taken_where_there_was_none():
    run = bracket()

    def search(bar):
        raise KeyboardInterrupt

    with pytest.warns(FitWarning, match="was interrupted"):
        report = run.run(search)
    assert report.interrupted and report.evaluations == 1 and report.objective == 2.0


def test_ctrl_c_after_convergence_is_no_failure(recwarn):
    run = bracket()

    def search(bar):
        run.look_at(ONE)
        raise KeyboardInterrupt

    report = run.run(search)
    assert report.interrupted and report.converged and not recwarn.list


def test_it_is_over_after_the_last_step():
    run = bracket(max_iter=1)
    run.look_at(ZERO)
    assert not run.over
    run.steps = 1
    assert run.over and not run.done


def test_progress_is_shown_where_it_is_asked_for(capsys):
    run = bracket(verbose=1)
    run.run(lambda bar: (run.look_at(ONE), run.tick(bar)))
    assert "objective=1" in capsys.readouterr().err


def test_bad_options_are_refused():
    for tolerance in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(OptionError, match="tolerance"):
            bracket(tolerance=tolerance)
    for max_iter in (0, 2.5):
        with pytest.raises(OptionError, match="max_iter"):
            bracket(max_iter=max_iter)


def test_a_start_must_fit():
    check_initial_point("start", None, (2, 3))
    check_initial_point("start", torch.zeros(2, 3), (2, 3))
    for bad in (torch.zeros(3, 2), torch.full((2, 3), torch.inf)):
        with pytest.raises(InputError, match=r"start must be a finite tensor of shape \(2, 3\)"):
            check_initial_point("start", bad, (2, 3))
