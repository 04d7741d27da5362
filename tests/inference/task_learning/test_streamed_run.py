"""What a solver of streamed rows remembers: the best of both sides over whole passes."""

import pytest
import torch
from loss_cases import normal
from streamed_cases import in_memory, streamed

from ovkgp.exceptions import FitWarning, OptionError
from ovkgp.inference.tasks.solvers.certificates import Certificate
from ovkgp.inference.tasks.solvers.primal import solve_primal
from ovkgp.inference.tasks.solvers.streamed import StreamedRun


def looked(run, scales=(0.0, 1.0, 0.3)):
    W = solve_primal(in_memory(run.problem), tolerance=1e-5).weights
    for scale in scales:
        run.look_at(scale * W)
    return run


def test_it_remembers_what_a_certificate_in_memory_does():
    problem = streamed()
    run, certificate = StreamedRun(problem, 1e-6, 10), Certificate(in_memory(problem))
    for seed in range(4):
        W = 0.1 * normal(*problem.shape, seed=seed)
        run.look_at(W)
        certificate.look_at(W)
    assert run.objective == pytest.approx(certificate.objective, rel=1e-12)
    assert run.gap == pytest.approx(certificate.gap, rel=1e-9)
    assert torch.equal(run.weights, certificate.weights)


def test_the_best_is_kept_and_the_history_never_rises():
    run = looked(StreamedRun(streamed(), 1e-6, 10))
    assert list(run.history) == sorted(run.history, reverse=True) and len(run.history) == 3
    assert run.objective == run.problem.evaluate(run.weights, 0.0).objective
    assert run.gap >= 0


def test_a_part_of_the_rows_proves_nothing():
    run = StreamedRun(streamed(), 1e-6, 10)
    run.look_at(run.weights, 0.1, 100)
    assert run.history == [] and not run.done and run.passes == pytest.approx(0.25)


def test_before_the_first_look_nothing_is_done():
    run = StreamedRun(streamed(), 1e-6, 10)
    assert not run.done and not run.over


def test_the_report_counts_passes_rows_and_entries():
    weights = torch.ones(400)
    weights[:10] = 0
    run = StreamedRun(streamed(row_weights=weights), 1e-6, 10)
    with pytest.warns(FitWarning, match="raise max_iter"):
        solution = run.run(lambda bar: (run.look_at(run.weights), run.look_at(run.weights, 0.1, 100)))
    report = solution.report
    assert (report.num_rows, report.num_seen, report.evaluations) == (400, 390 * 6, 2)
    assert solution.objective == report.objective and not report.converged


def test_ctrl_c_before_the_first_look_is_followed_by_one():
    run = StreamedRun(streamed(), 1e-6, 10)

    def search(bar):
        raise KeyboardInterrupt

    with pytest.warns(FitWarning, match="was interrupted"):
        solution = run.run(search)
    assert solution.report.interrupted
    assert solution.objective == pytest.approx(
        run.problem.evaluate(torch.zeros(run.problem.shape).double(), 0.0).objective
    )


def test_a_tolerance_must_be_positive_and_steps_whole():
    for tolerance in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(OptionError, match="tolerance"):
            StreamedRun(streamed(), tolerance, 10)
    with pytest.raises(OptionError, match="max_iter"):
        StreamedRun(streamed(), 1e-3, 2.5)
