"""The best of both sides of the least value, and how a run ends."""

import math

import pytest
import torch
from loss_cases import normal
from task_cases import NAMES, M, N, case

from ovkgp.exceptions import FitWarning, InputError, OptionError
from ovkgp.inference.tasks.solvers.certificates import Certificate, require_start
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
    assert (report.num_rows, report.num_seen) == (N, N * M)
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
        require_start("start", start, (2, 2))
