"""Tests of `ovkgp.inference.tasks.solvers.streamed`."""

import pytest
import torch
from loss_cases import MEASURE, curve_losses, normal
from streamed_cases import in_memory, sine, streamed

from ovkgp.exceptions import FitWarning, InputError, OptionError
from ovkgp.inference.tasks.solvers import streamed as streamed_module
from ovkgp.inference.tasks.solvers.certificates import Certificate
from ovkgp.inference.tasks.solvers.primal import solve_primal
from ovkgp.inference.tasks.solvers.streamed import (
    StreamedCoordinates,
    StreamedProblem,
    StreamedRun,
    TaskBatch,
    estimate_target_unit,
    task_curvatures,
)
from ovkgp.losses import (
    CurveEnvelope,
    IntegralLoss,
    LogCosh,
    Pinball,
    PinballEnvelope,
    Square,
    TaskMeasure,
    gauss_legendre,
)

OFFSET = normal(6, seed=3)
WEIGHTS = torch.linspace(0, 2, 400, dtype=torch.float64)
OPTIONS = {
    "default": {},
    "offset": {"offset": OFFSET},
    "row weights": {"row_weights": WEIGHTS},
    "a target each": {"targets": normal(400, 6, seed=4), "offset": OFFSET, "row_weights": WEIGHTS},
    "square loss": {"loss": Square(), "offset": OFFSET},
}


@pytest.mark.parametrize("kappa", [0.0, 0.1])
@pytest.mark.parametrize("name", OPTIONS)
def test_evaluate_agrees_with_the_problem_in_memory(name, kappa):
    problem = streamed(**OPTIONS[name])
    dense, W = in_memory(problem), normal(*problem.shape, seed=5)
    found = problem.evaluate(W, kappa)
    H = dense.values(W)
    smooth = CurveEnvelope(dense.loss, kappa) if kappa else dense.loss
    slopes = smooth.derivative(H, dense.targets)
    penalty = dense.lam / 2 * W.square().sum()
    assert found.objective == pytest.approx(dense.objective(W).item(), rel=1e-12)
    assert found.smoothed == pytest.approx((dense.risk(H, smooth) + penalty).item(), rel=1e-12)
    gap = dense.objective(W) - dense.dual_objective(-slopes)
    assert found.gap == pytest.approx(gap.item(), rel=1e-9)
    gradient = dense.adjoint(dense.entry_weights * slopes) / dense.num_rows + dense.lam * W
    torch.testing.assert_close(found.gradient, gradient, rtol=1e-12, atol=1e-12)


def test_evaluate_returns_the_gradient_of_the_smoothed_objective():
    problem = streamed(50)
    W, direction = normal(*problem.shape, seed=1), normal(*problem.shape, seed=2)
    step = 1e-6
    ends = [problem.evaluate(W + sign * step * direction, 0.2).smoothed for sign in (1, -1)]
    slope = (problem.evaluate(W, 0.2).gradient * direction).sum().item()
    assert (ends[0] - ends[1]) / (2 * step) == pytest.approx(slope, rel=1e-6)


@pytest.mark.parametrize("at_once", [1, 7, 399, 1000])
def test_evaluate_is_independent_of_the_chunk_size(at_once):
    problem = streamed(row_weights=WEIGHTS)
    W = normal(*problem.shape)
    whole = problem.evaluate(W, 0.1)
    problem.max_chunk_rows = at_once
    found = problem.evaluate(W, 0.1)
    assert found.gap == pytest.approx(whole.gap, rel=1e-11)
    torch.testing.assert_close(found.gradient, whole.gradient, rtol=1e-11, atol=1e-13)


def test_evaluate_is_independent_of_the_order_of_rows():
    first, second = (streamed(random_state=seed) for seed in (0, 1))
    W = normal(*first.shape)
    assert not torch.equal(first.order, second.order)
    assert first.evaluate(W, 0.1).gap == pytest.approx(second.evaluate(W, 0.1).gap, rel=1e-12)


def test_part_of_the_rows_is_the_problem_on_these_rows():
    problem = streamed()
    W, part = normal(*problem.shape), problem.chunk(problem.order[:30])
    assert problem.evaluate(W, 0.0, num_rows=30).objective == pytest.approx(part.objective(W).item(), rel=1e-12)


@pytest.mark.parametrize("loss", curve_losses(), ids=str)
def test_every_loss_between_curves_has_a_gap_that_bounds_the_error(loss):
    X, y = sine(60)
    tasks = torch.eye(len(MEASURE), dtype=torch.float64)
    problem = StreamedProblem.from_factor(lambda X: torch.cat([X, X**2], -1), X, tasks, y, loss, lam=0.05)
    least = solve_primal(in_memory(problem), tolerance=1e-8)
    for seed in range(3):
        for kappa in (0.0, 0.3):
            W = least.weights + 0.3 * seed * normal(*problem.shape, seed=seed)
            found = problem.evaluate(W, kappa)
            assert found.gap >= found.objective - least.objective - 1e-12


def test_batch_of_nodes_takes_its_columns_and_offsets():
    problem = streamed(targets=normal(400, 6, seed=4), offset=OFFSET)
    columns = torch.tensor([4, 1])
    loss = IntegralLoss(Pinball(), TaskMeasure(problem.loss.nodes[columns]))
    batch = TaskBatch(loss, problem.tasks[columns], OFFSET[columns], columns)
    part = problem.chunk(torch.tensor([3, 5, 8]), batch)
    expected = problem.targets[[3, 5, 8]][:, columns] - OFFSET[columns]
    torch.testing.assert_close(part.targets, expected)
    assert part.values(normal(*problem.shape)).shape == (3, 2)


def test_smoothing_is_zero_for_smooth_losses():
    assert streamed(loss=Pinball()).smoothing(1e-9) == 1e-9
    assert streamed(loss=Square()).smoothing(0.01) == 0.0
    assert streamed(loss=Square()).smoothing(1.0) == 1.0


# --- invalid data ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"targets": torch.zeros(0, 1)}, "X must"),
        ({"targets": torch.zeros(400, 1).double() / 0}, "targets"),
        ({"targets": torch.zeros(400, 5)}, "targets"),
        ({"row_weights": torch.ones(399)}, "row_weights"),
        ({"row_weights": -torch.ones(400)}, "row_weights"),
        ({"row_weights": torch.ones(400) / 0}, "row_weights"),
        ({"offset": torch.zeros(5)}, "offset"),
    ],
)
def test_streamed_problem_rejects_invalid_data(options, match):
    with pytest.raises(InputError, match=match):
        streamed(**options)


def test_streamed_problem_rejects_a_vector_of_targets():
    X, y = sine(5)
    with pytest.raises(InputError, match="targets"):
        StreamedProblem.from_factor(
            lambda X: X, X, torch.eye(2), y[:, 0], IntegralLoss(Pinball(), gauss_legendre(2)), lam=1.0
        )


def test_streamed_problem_rejects_separate_nodes_per_row():
    X, y = sine(5)
    loss = IntegralLoss(LogCosh(1.0), TaskMeasure(torch.rand(5, 2)))
    with pytest.raises(InputError, match="tasks"):
        StreamedProblem.from_factor(lambda X: X, X, torch.eye(2), y, loss, lam=1.0)


def test_streamed_problem_rejects_a_nonpositive_lam():
    with pytest.raises(OptionError, match="lam"):
        streamed(lam=0.0)


def normal_curvature(coordinates, kappa):
    """The Hessian in U at a fit, (rq, rq), by differences of the gradient."""
    problem, size = coordinates.problem, coordinates.scale.numel()
    fit = solve_primal(in_memory(problem), tolerance=1e-6).weights

    def slope(W):
        return coordinates.gradient(problem.evaluate(W, kappa).gradient).flatten()

    steps = 1e-4 * torch.eye(size, dtype=torch.float64).view(size, *problem.shape)
    return torch.stack(
        [
            (slope(fit + coordinates.from_coordinates(d)) - slope(fit - coordinates.from_coordinates(d))) / 2e-4
            for d in steps
        ]
    )


def test_coordinates_are_inverse_to_each_other():
    coordinates = StreamedCoordinates(streamed(), unit=1.0)
    W, U = normal(*coordinates.problem.shape), normal(*coordinates.problem.shape, seed=1)
    torch.testing.assert_close(coordinates.from_coordinates(coordinates.to_coordinates(W)), W)
    inner = (coordinates.gradient(W) * U).sum()  # the chain rule: ⟨∇_U, U⟩ = ⟨∇_W, W(U)⟩
    torch.testing.assert_close(inner, (W * coordinates.from_coordinates(U)).sum())


@pytest.mark.parametrize("options", [{}, {"row_weights": WEIGHTS}])
def test_square_loss_has_curvature_one_in_all_directions(options):
    coordinates = StreamedCoordinates(streamed(loss=Square(), lam=1e-4, num_frequencies=4, **options), unit=1.0)
    hessian = normal_curvature(coordinates, 0.0)
    torch.testing.assert_close(hessian, torch.eye(len(hessian)).double(), rtol=1e-6, atol=1e-6)


def test_coordinates_precondition_quantile_problems():
    problem = streamed(2000, num_frequencies=3, num_tasks=4, lam=1e-4)
    coordinates = StreamedCoordinates(problem, estimate_target_unit(problem))
    coordinates.adapt(solve_primal(in_memory(problem), tolerance=1e-5).weights)
    hessian = normal_curvature(coordinates, 0.1)
    to_coordinates = torch.stack(
        [coordinates.to_coordinates(d).flatten() for d in torch.eye(len(hessian)).double().view(-1, *problem.shape)]
    )
    adapted, original = (
        torch.linalg.cond(matrix).item() for matrix in (hessian, to_coordinates @ hessian @ to_coordinates.T)
    )
    assert adapted < 6 < 100 < original


def test_effective_dimensions_are_degrees_of_freedom():
    """For the square loss they are tr A (A + λ)⁻¹, with A the normal matrix."""
    problem = streamed(loss=Square(), lam=1e-2, num_frequencies=4)
    dense = in_memory(problem)
    A = torch.kron(dense.inputs.T @ dense.inputs / 400, dense.tasks.T @ (dense.loss.weights[:, None] * dense.tasks))
    expected = torch.linalg.solve(A + problem.lam * torch.eye(len(A), dtype=torch.float64), A).trace().item()
    dimension, tasks = StreamedCoordinates(problem, unit=1.0).dimensions
    assert dimension == pytest.approx(expected, rel=1e-9)
    assert 1 < tasks <= min(6, dimension)


def test_coordinates_use_a_sample_of_the_rows(monkeypatch):
    monkeypatch.setattr(streamed_module, "MIN_ROWS", 50)
    monkeypatch.setattr(streamed_module, "ROWS_PER_COORDINATE", 4)
    problem, observed = streamed(), []
    rows = problem.rows
    problem.rows = lambda indices: observed.append(len(indices)) or rows(indices)
    StreamedCoordinates(problem, 1.0)
    assert sum(observed) == 2 * 4 * 16  # once for the inputs, once for the tasks


def test_task_curvatures_count_the_rows_near_the_kink():
    problem = streamed(row_weights=WEIGHTS)
    zero = torch.zeros(problem.shape).double()
    torch.testing.assert_close(task_curvatures(streamed(loss=Square()), zero, 0.3), torch.ones(6).double())
    inside = (problem.targets.abs() < 0.3).double().squeeze()
    fraction = (WEIGHTS * inside).sum() / WEIGHTS.sum()  # ρ_θ has a jump of one at its kink
    torch.testing.assert_close(task_curvatures(problem, zero, 0.3), (fraction / 0.6).expand(6))


def test_coordinates_have_positive_scales_without_rows_near_the_kink():
    problem = streamed(targets=torch.full((400, 1), 50.0).double())
    coordinates = StreamedCoordinates(problem, 1.0)
    assert bool(torch.isfinite(coordinates.scale).all()) and bool((coordinates.scale > 0).all())


@pytest.mark.parametrize("loss", [Pinball(), PinballEnvelope(0.1), Square()], ids=str)
def test_target_unit_scales_with_the_targets_and_not_with_the_rows(loss):
    _, y = sine(400)
    units = [estimate_target_unit(streamed(loss=loss, targets=scale * y)) for scale in (1.0, 10.0)]
    assert units[1] / units[0] == pytest.approx(1.0 if isinstance(loss, Square) else 10.0, rel=0.1)
    assert estimate_target_unit(streamed(loss=loss), num_rows=200) == pytest.approx(units[0], rel=0.2)


def test_target_unit_is_one_for_zero_targets():
    assert estimate_target_unit(streamed(targets=torch.zeros(400, 1).double())) == 1.0
    assert estimate_target_unit(streamed(row_weights=torch.zeros(400))) == 1.0


def test_target_unit_rejects_targets_whose_squares_overflow():
    with pytest.raises(InputError, match="Scale"):
        estimate_target_unit(streamed(targets=torch.full((400, 1), 1e200, dtype=torch.float64)))


def evaluated(run, scales=(0.0, 1.0, 0.3)):
    W = solve_primal(in_memory(run.problem), tolerance=1e-5).weights
    for scale in scales:
        run.evaluate_at(scale * W)
    return run


def test_streamed_run_agrees_with_a_certificate_in_memory():
    problem = streamed()
    run, certificate = StreamedRun(problem, 1e-6, 10), Certificate(in_memory(problem))
    for seed in range(4):
        W = 0.1 * normal(*problem.shape, seed=seed)
        run.evaluate_at(W)
        certificate.evaluate_at(W)
    assert run.objective == pytest.approx(certificate.objective, rel=1e-12)
    assert run.gap == pytest.approx(certificate.gap, rel=1e-9)
    assert torch.equal(run.weights, certificate.weights)


def test_streamed_run_keeps_the_best_value():
    run = evaluated(StreamedRun(streamed(), 1e-6, 10))
    assert list(run.history) == sorted(run.history, reverse=True) and len(run.history) == 3
    assert run.objective == run.problem.evaluate(run.weights, 0.0).objective
    assert run.gap >= 0


def test_evaluation_on_part_of_the_rows_does_not_update_the_gap():
    run = StreamedRun(streamed(), 1e-6, 10)
    run.evaluate_at(run.weights, 0.1, 100)
    assert run.history == [] and not run.is_done and run.passes == pytest.approx(0.25)


def test_streamed_run_is_not_done_before_the_first_evaluation():
    run = StreamedRun(streamed(), 1e-6, 10)
    assert not run.is_done and not run.is_over


def test_report_counts_passes_rows_and_entries():
    weights = torch.ones(400)
    weights[:10] = 0
    run = StreamedRun(streamed(row_weights=weights), 1e-6, 10)
    with pytest.warns(FitWarning, match="max_iter"):
        solution = run.run(lambda bar: (run.evaluate_at(run.weights), run.evaluate_at(run.weights, 0.1, 100)))
    report = solution.report
    assert (report.num_rows, report.num_observed, report.evaluations) == (400, 390 * 6, 2)
    assert solution.objective == report.objective and not report.converged


def test_ctrl_c_before_the_first_evaluation_is_followed_by_one():
    run = StreamedRun(streamed(), 1e-6, 10)

    def search(bar):
        raise KeyboardInterrupt

    with pytest.warns(FitWarning, match="was interrupted"):
        solution = run.run(search)
    assert solution.report.interrupted
    assert solution.objective == pytest.approx(
        run.problem.evaluate(torch.zeros(run.problem.shape).double(), 0.0).objective
    )


def test_streamed_run_rejects_invalid_options():
    for tolerance in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(OptionError, match="tolerance"):
            StreamedRun(streamed(), tolerance, 10)
    with pytest.raises(OptionError, match="max_iter"):
        StreamedRun(streamed(), 1e-3, 2.5)
