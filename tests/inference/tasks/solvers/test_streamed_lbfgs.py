"""Tests of `ovkgp.inference.tasks.solvers.streamed_lbfgs`."""

import warnings

import pytest
import torch
from loss_cases import MEASURE, curve_losses, normal
from peak_memory import PeakMemory
from streamed_cases import in_memory, sine, streamed

from ovkgp.exceptions import FitWarning, InputError, OptionError
from ovkgp.inference.tasks.solvers import streamed as streamed_module
from ovkgp.inference.tasks.solvers.primal import solve_primal
from ovkgp.inference.tasks.solvers.streamed import StreamedProblem
from ovkgp.inference.tasks.solvers.streamed_lbfgs import solve_streamed
from ovkgp.losses import CostSensitiveHinge, Huber, IntegralLoss, LogCosh, SmoothedPinball, Square, TaskMeasure

WEIGHTS = torch.linspace(0, 2, 2000, dtype=torch.float64)
CASES = {
    "default": {},
    "small lambda": {"lam": 1e-6},
    "large lambda": {"lam": 10.0},
    "offset": {"offset": torch.linspace(-1, 1, 6).double()},
    "row weights": {"row_weights": WEIGHTS},
    "a target each": {"targets": normal(2000, 6)},
    "few rows": {"num_rows": 20},
    "one row": {"num_rows": 1},
    "square": {"loss": Square()},
    "Huber": {"loss": Huber(0.1)},
    "log cosh": {"loss": LogCosh(3.0)},
    "smoothed": {"loss": SmoothedPinball(0.05)},
    "large targets": {"targets": 1e4 * sine(2000)[1], "lam": 1e-7},
}


@pytest.mark.parametrize("name", CASES)
def test_solve_streamed_finds_the_solution_in_memory(name):
    problem = streamed(**({"num_rows": 2000} | CASES[name]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = solve_streamed(problem, tolerance=1e-5)
    dense = in_memory(problem)
    exact = solve_primal(dense, tolerance=1e-7)
    assert found.report.converged and 0 <= found.gap <= 1e-5 * found.objective
    assert exact.objective - exact.gap <= found.objective <= exact.objective + found.gap + 1e-12
    assert found.objective == pytest.approx(dense.objective(found.weights).item(), rel=1e-10)
    # J is λ-strongly convex: ‖W − W*‖² ≤ 2 gap/λ
    distance = (found.weights - exact.weights).square().sum().item()
    assert distance <= 2 * ((found.gap / problem.lam) ** 0.5 + (exact.gap / problem.lam) ** 0.5) ** 2


@pytest.mark.parametrize("loss", curve_losses(), ids=str)
def test_solve_streamed_supports_every_curve_loss(loss):
    X, y = sine(300)
    tasks = torch.eye(len(MEASURE), dtype=torch.float64)
    problem = StreamedProblem.from_factor(
        lambda X: torch.cat([X, X**2], -1), X, tasks, y, loss, lam=1e-2, random_state=0
    )
    found = solve_streamed(problem, tolerance=1e-5)
    assert found.report.converged
    assert found.objective == pytest.approx(solve_primal(in_memory(problem), tolerance=1e-7).objective, rel=2e-5)


def test_solve_streamed_supports_cost_sensitive_classes():
    X, y = sine(500)
    loss = IntegralLoss(CostSensitiveHinge(), TaskMeasure([-0.5, 0.0, 0.5]))
    problem = StreamedProblem.from_factor(
        lambda X: torch.cat([X, X**2], -1), X, torch.eye(3).double(), y.sign(), loss, lam=1e-2
    )
    found = solve_streamed(problem, tolerance=1e-4)
    assert found.objective == pytest.approx(solve_primal(in_memory(problem), tolerance=1e-7).objective, rel=2e-4)


def test_solve_streamed_is_independent_of_the_chunk_size():
    first, second = streamed(2000), streamed(2000)
    second.max_chunk_rows = 97
    first, second = (solve_streamed(problem, tolerance=1e-6) for problem in (first, second))
    torch.testing.assert_close(first.weights, second.weights, rtol=1e-3, atol=1e-3)
    assert first.objective == pytest.approx(second.objective, rel=2e-6)


def test_solve_streamed_is_reproducible():
    first, second = (solve_streamed(streamed(2000)) for _ in range(2))
    assert torch.equal(first.weights, second.weights)


def test_most_steps_use_part_of_the_rows():
    report = solve_streamed(streamed(40_000, num_frequencies=5)).report
    assert report.evaluations < report.iterations and report.evaluations <= 12


def test_solve_streamed_from_the_solution_takes_few_passes():
    problem = streamed(2000)
    first = solve_streamed(problem, tolerance=1e-4)
    again = solve_streamed(problem, init=first.weights, tolerance=1e-3)
    assert again.report.evaluations <= 2 and again.report.converged


def test_solve_streamed_accepts_float32_and_distant_initial_points():
    problem = streamed(2000)
    best = solve_streamed(problem, tolerance=1e-5).objective
    for init in (torch.zeros(problem.shape), 10 * normal(*problem.shape)):
        assert solve_streamed(problem, init=init, tolerance=1e-5).objective == pytest.approx(best, rel=2e-5)


def test_solve_streamed_supports_constant_targets():
    for value in (0.0, 3.0):
        problem = streamed(targets=torch.full((400, 1), value).double(), lam=1e-2)
        found = solve_streamed(problem)
        assert found.report.converged
        assert found.objective == pytest.approx(solve_primal(in_memory(problem)).objective, rel=2e-4, abs=1e-12)


def test_solve_streamed_gives_zero_without_row_weights():
    found = solve_streamed(streamed(row_weights=torch.zeros(400)))
    assert found.objective == 0.0 and not found.weights.any()


# --- ends -----------------------------------------------------------------------------------------------------------------


def test_solve_streamed_warns_after_too_few_steps():
    with pytest.warns(FitWarning, match="max_iter"):
        found = solve_streamed(streamed(2000), max_iter=5, tolerance=1e-6)
    assert not found.report.converged and found.report.iterations == 5
    assert 1e-6 * found.objective < found.gap < float("inf")


def test_solve_streamed_warns_of_rounding():
    with pytest.warns(FitWarning, match="rounding"):
        found = solve_streamed(streamed(40), tolerance=1e-16, max_iter=10**6)
    assert found.gap <= 1e-4 * found.objective


@pytest.mark.parametrize("chunk", [1, 10, 20, 60])
def test_ctrl_c_keeps_the_best_so_far(chunk):
    problem, count = streamed(4000), 0
    rows = problem.rows

    def interrupted(indices):
        nonlocal count
        count += 1
        if count == chunk:
            raise KeyboardInterrupt
        return rows(indices)

    problem.max_chunk_rows, problem.rows = 1000, interrupted
    with pytest.warns(FitWarning, match="was interrupted"):
        found = solve_streamed(problem, tolerance=1e-8)
    assert found.report.interrupted and not found.report.converged
    assert found.objective == pytest.approx(in_memory(problem).objective(found.weights).item(), rel=1e-10)
    if chunk >= 20:  # the parts of the first steps are not lost
        assert found.objective < in_memory(problem).objective(torch.zeros(problem.shape).double()).item()


def test_solve_streamed_rejects_invalid_options():
    problem = streamed()
    with pytest.raises(InputError, match="init"):
        solve_streamed(problem, init=torch.zeros(3, 3))
    with pytest.raises(InputError, match="init"):
        solve_streamed(problem, init=torch.full(problem.shape, torch.nan))
    with pytest.raises(OptionError, match="tolerance"):
        solve_streamed(problem, tolerance=0.0)
    with pytest.raises(OptionError, match="max_iter"):
        solve_streamed(problem, max_iter=0)


# --- memory ---------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_memory_does_not_grow_with_the_rows(monkeypatch):
    """Five times the rows: the same peak but for the order of the rows and their weights, a number each."""
    monkeypatch.setattr(streamed_module, "MIN_ROWS", 500)
    peaks = []
    for num_rows in (1000, 5000):
        with PeakMemory() as watch:
            problem = streamed(num_rows)
            given = 8 * num_rows * (2 + 1)  # X and y
            problem.max_chunk_rows = 100
            solve_streamed(problem, tolerance=1e-3)
        peaks.append(watch.peak - given)
    assert peaks[1] - peaks[0] <= 2.5 * 8 * 4000 + 0.05 * peaks[0], peaks
