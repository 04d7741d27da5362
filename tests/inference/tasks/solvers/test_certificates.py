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
def test_certificate_bounds_the_minimum(name):
    """D(A) ≤ min J ≤ J(W) for weights and slopes that are far from the solution, and not even slopes."""
    problem = case(name)
    least, certificate = solve_primal(problem).objective, Certificate(problem)
    for seed in range(4):
        gap = certificate.evaluate(
            normal(*problem.shape, seed=seed, scale=0.1), normal(N, M, seed=seed + 10, scale=3.0)
        )
        assert certificate.lower <= least <= certificate.objective * (1 + 1e-6)
        assert gap == certificate.gap >= 0
        assert math.isfinite(gap)


def test_certificate_keeps_the_best_of_both_sides():
    problem = case("pinball")
    good, zero = solve_primal(problem), torch.zeros(problem.shape).double()
    certificate = Certificate(problem)
    certificate.evaluate(good.weights, torch.zeros(N, M).double())
    certificate.evaluate(zero, -good.dual)
    certificate.evaluate(zero, torch.zeros(N, M).double())
    assert torch.equal(certificate.weights, good.weights)
    assert torch.equal(certificate.dual, good.dual)
    assert certificate.objective == pytest.approx(good.objective, rel=1e-14)
    assert certificate.gap == pytest.approx(good.gap, abs=1e-15)
    assert certificate.is_done
    assert certificate.history == [certificate.objective] * 3


def test_slopes_at_the_solution_of_a_smooth_loss_close_the_gap():
    problem = case("square")
    exact, certificate = solve_square(problem), Certificate(problem, tolerance=1e-12)
    slopes = certificate.evaluate_at(exact.weights)
    torch.testing.assert_close(-slopes, exact.dual, rtol=0, atol=1e-10)
    assert certificate.is_done


def test_gap_is_never_negative_by_rounding():
    problem = case("square")
    certificate = Certificate(problem)
    certificate.evaluate_at(solve_square(problem).weights)
    certificate.lower += 1e-12
    assert certificate.gap == 0.0


def test_certificate_warns_after_too_few_steps():
    certificate = Certificate(case("pinball"), max_iter=1)
    with pytest.warns(FitWarning, match="stopped after 0 steps.*max_iter"):
        solution = certificate.run(lambda bar: certificate.evaluate_at(certificate.weights))
    assert not solution.report.converged
    assert solution.gap > 0


def test_certificate_reports_rounding():
    certificate = Certificate(case("pinball"))

    def search(bar):
        certificate.evaluate_at(certificate.weights)
        certificate.stuck = True

    with pytest.warns(FitWarning, match="stopped by rounding"):
        certificate.run(search)


@pytest.mark.parametrize("looks", [0, 1])
def test_certificate_keeps_the_best_after_an_interrupt(looks):
    problem = case("square")
    certificate, best = Certificate(problem), 0.5 * solve_square(problem).weights

    def search(bar):
        for _ in range(looks):
            certificate.evaluate_at(best)
            certificate.count_step(bar)
        raise KeyboardInterrupt

    with pytest.warns(FitWarning, match="interrupted"):
        solution = certificate.run(search)
    assert solution.report.interrupted
    assert not solution.report.converged
    assert solution.report.iterations == looks
    assert torch.equal(solution.weights, best if looks else torch.zeros(problem.shape).double())
    assert solution.objective == problem.objective(solution.weights).item()


def test_certificate_report_counts_steps_and_evaluations(capsys):
    problem = case("square")
    certificate = Certificate(problem, verbose=1)

    def search(bar):
        certificate.evaluate_at(solve_square(problem).weights)
        certificate.count_step(bar)

    report = certificate.run(search).report
    assert (report.converged, report.message, report.iterations, report.evaluations) == (True, "converged", 1, 1)
    assert (report.num_rows, report.num_observed) == (N, N * M)
    assert "gap=" in capsys.readouterr().err


@pytest.mark.parametrize("tolerance", [0.0, -1.0, math.nan, math.inf])
def test_certificate_rejects_invalid_tolerances(tolerance):
    with pytest.raises(OptionError, match="tolerance"):
        Certificate(case("square"), tolerance=tolerance)


def test_certificate_rejects_invalid_max_iter():
    with pytest.raises(OptionError, match="max_iter"):
        Certificate(case("square"), max_iter=0)


@pytest.mark.parametrize("init", [torch.zeros(2, 3), torch.full((2, 2), torch.nan)])
def test_check_initial_point_rejects_invalid_points(init):
    with pytest.raises(InputError, match="init"):
        check_initial_point("init", init, (2, 2))


ZERO, ONE = torch.zeros(1, 1), torch.ones(1, 1)


class Parabola(GapTracker):
    """J(w) = 1 + (w − 1)², whose least value 1 is known from below."""

    def evaluate_at(self, weights):
        self.update_upper(weights, 1 + (weights.item() - 1) ** 2)
        self.update_lower(1.0)

    def solution(self, report):
        return report

    def counts(self):
        return {"evaluations": len(self.history), "num_rows": 3, "num_observed": 2}


def bracket(**options):
    return Parabola(**{"weights": ZERO, "tolerance": 1e-3, "max_iter": 5} | options)


def test_gap_tracker_has_an_infinite_gap_initially():
    fresh = bracket()
    assert not fresh.is_done and not fresh.is_over and fresh.gap == float("inf")


def test_gap_tracker_keeps_the_best_of_both_sides():
    found = bracket()
    for weights, objective in ((ZERO, 3.0), (ONE, 2.0), (2 * ONE, 2.5)):
        found.update_upper(weights, objective)
    assert [found.update_lower(lower) for lower in (0.5, 1.5, 1.0)] == [True, True, False]
    assert found.weights is ONE and found.gap == 0.5 and found.relative_gap == 0.25
    assert found.history == [3.0, 2.0, 2.0]


def test_gap_tracker_clips_the_gap_at_zero():
    found = bracket()
    found.update_upper(ONE, 1.0)
    found.update_lower(1.0 + 1e-12)
    assert found.gap == 0.0 and found.is_done


def test_gap_tracker_is_done_at_an_objective_of_zero():
    found = bracket()
    found.update_upper(ONE, 0.0)
    found.update_lower(0.0)
    assert found.is_done and found.relative_gap == 0.0


def test_gap_tracker_reports_convergence_without_a_warning(recwarn):
    run = bracket()
    report = run.run(lambda bar: (run.count_step(bar), run.evaluate_at(ONE)))
    assert report.converged and report.message == "converged" and not recwarn.list
    assert (report.iterations, report.evaluations, report.num_rows, report.num_observed) == (1, 1, 3, 2)
    assert report.objective == 1.0 and report.history == (1.0,) and report.seconds >= 0


@pytest.mark.parametrize(("stuck", "match"), [(False, "stopped after 1 steps.*max_iter"), (True, "rounding.*lam")])
def test_gap_tracker_warns_without_convergence(stuck, match):
    run = bracket()

    def search(bar):
        run.count_step(bar)
        run.evaluate_at(ZERO)
        run.stuck = stuck

    with pytest.warns(FitWarning, match=match):
        report = run.run(search)
    assert not report.converged and "5.0e-01" in report.message


def test_gap_tracker_evaluates_once_after_ctrl_c():
    run = bracket()

    def search(bar):
        raise KeyboardInterrupt

    with pytest.warns(FitWarning, match="was interrupted"):
        report = run.run(search)
    assert report.interrupted and report.evaluations == 1 and report.objective == 2.0


def test_gap_tracker_converges_despite_later_ctrl_c(recwarn):
    run = bracket()

    def search(bar):
        run.evaluate_at(ONE)
        raise KeyboardInterrupt

    report = run.run(search)
    assert report.interrupted and report.converged and not recwarn.list


def test_gap_tracker_is_over_after_the_last_step():
    run = bracket(max_iter=1)
    run.evaluate_at(ZERO)
    assert not run.is_over
    run.steps = 1
    assert run.is_over and not run.is_done


def test_gap_tracker_shows_progress_if_verbose(capsys):
    run = bracket(verbose=1)
    run.run(lambda bar: (run.evaluate_at(ONE), run.count_step(bar)))
    assert "objective=1" in capsys.readouterr().err


def test_gap_tracker_rejects_invalid_options():
    for tolerance in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(OptionError, match="tolerance"):
            bracket(tolerance=tolerance)
    for max_iter in (0, 2.5):
        with pytest.raises(OptionError, match="max_iter"):
            bracket(max_iter=max_iter)


def test_check_initial_point_checks_shape_and_values():
    check_initial_point("init", None, (2, 3))
    check_initial_point("init", torch.zeros(2, 3), (2, 3))
    for bad in (torch.zeros(3, 2), torch.full((2, 3), torch.inf)):
        with pytest.raises(InputError, match="init"):
            check_initial_point("init", bad, (2, 3))
