"""Rows a chunk at a time: the same J, gradient and duality gap as with all of them in memory."""

import pytest
import torch
from loss_cases import MEASURE, curve_losses, normal
from streamed_cases import in_memory, sine, streamed

from ovkgp.exceptions import InputError, OptionError
from ovkgp.inference.tasks.solvers.primal import solve_primal
from ovkgp.inference.tasks.solvers.streamed import StreamedProblem, TaskBatch
from ovkgp.losses import CurveEnvelope, IntegralLoss, LogCosh, Pinball, Square, TaskMeasure, gauss_legendre

OFFSET = normal(6, seed=3)
WEIGHTS = torch.linspace(0, 2, 400, dtype=torch.float64)
OPTIONS = {
    "plain": {},
    "offset": {"offset": OFFSET},
    "row weights": {"row_weights": WEIGHTS},
    "a target each": {"targets": normal(400, 6, seed=4), "offset": OFFSET, "row_weights": WEIGHTS},
    "square loss": {"loss": Square(), "offset": OFFSET},
}


@pytest.mark.parametrize("kappa", [0.0, 0.1])
@pytest.mark.parametrize("name", OPTIONS)
def test_a_pass_finds_what_is_found_in_memory(name, kappa):
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


def test_the_gradient_is_that_of_the_smoothed_objective():
    problem = streamed(50)
    W, direction = normal(*problem.shape, seed=1), normal(*problem.shape, seed=2)
    step = 1e-6
    ends = [problem.evaluate(W + sign * step * direction, 0.2).smoothed for sign in (1, -1)]
    slope = (problem.evaluate(W, 0.2).gradient * direction).sum().item()
    assert (ends[0] - ends[1]) / (2 * step) == pytest.approx(slope, rel=1e-6)


@pytest.mark.parametrize("at_once", [1, 7, 399, 1000])
def test_the_size_of_a_chunk_does_not_matter(at_once):
    problem = streamed(row_weights=WEIGHTS)
    W = normal(*problem.shape)
    whole = problem.evaluate(W, 0.1)
    problem.rows_at_once = at_once
    found = problem.evaluate(W, 0.1)
    assert found.gap == pytest.approx(whole.gap, rel=1e-11)
    torch.testing.assert_close(found.gradient, whole.gradient, rtol=1e-11, atol=1e-13)


def test_the_order_of_the_rows_does_not_matter_to_a_whole_pass():
    first, second = (streamed(random_state=seed) for seed in (0, 1))
    W = normal(*first.shape)
    assert not torch.equal(first.order, second.order)
    assert first.evaluate(W, 0.1).gap == pytest.approx(second.evaluate(W, 0.1).gap, rel=1e-12)


def test_a_part_of_the_rows_is_the_problem_on_these_rows():
    problem = streamed()
    W, part = normal(*problem.shape), problem.chunk(problem.order[:30])
    assert problem.evaluate(W, 0.0, num_rows=30).objective == pytest.approx(part.objective(W).item(), rel=1e-12)


@pytest.mark.parametrize("loss", curve_losses(), ids=str)
def test_every_loss_between_curves_has_a_gap_that_bounds_the_error(loss):
    X, y = sine(60)
    tasks = torch.eye(len(MEASURE), dtype=torch.float64)
    problem = StreamedProblem.of(lambda X: torch.cat([X, X**2], -1), X, tasks, y, loss, lam=0.05)
    least = solve_primal(in_memory(problem), tolerance=1e-8)
    for seed in range(3):
        for kappa in (0.0, 0.3):
            W = least.weights + 0.3 * seed * normal(*problem.shape, seed=seed)
            found = problem.evaluate(W, kappa)
            assert found.gap >= found.objective - least.objective - 1e-12


def test_a_batch_of_nodes_takes_its_columns_and_offsets():
    problem = streamed(targets=normal(400, 6, seed=4), offset=OFFSET)
    columns = torch.tensor([4, 1])
    loss = IntegralLoss(Pinball(), TaskMeasure(problem.loss.nodes[columns]))
    batch = TaskBatch(loss, problem.tasks[columns], OFFSET[columns], columns)
    part = problem.chunk(torch.tensor([3, 5, 8]), batch)
    expected = problem.targets[[3, 5, 8]][:, columns] - OFFSET[columns]
    torch.testing.assert_close(part.targets, expected)
    assert part.values(normal(*problem.shape)).shape == (3, 2)


def test_only_what_has_kinks_is_smoothed():
    assert streamed(loss=Pinball()).smoothing(1e-9) == 1e-9
    assert streamed(loss=Square()).smoothing(0.01) == 0.0
    assert streamed(loss=Square()).smoothing(1.0) == 1.0


# --- what is refused ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"targets": torch.zeros(0, 1)}, "for each target"),
        ({"targets": torch.zeros(400, 1).double() / 0}, "NaN or infinite"),
        ({"targets": torch.zeros(400, 5)}, "targets must be"),
        ({"row_weights": torch.ones(399)}, "row_weights"),
        ({"row_weights": -torch.ones(400)}, "row_weights"),
        ({"row_weights": torch.ones(400) / 0}, "row_weights"),
        ({"offset": torch.zeros(5)}, "offset must be 6"),
    ],
)
def test_bad_data_is_refused(options, words):
    with pytest.raises(InputError, match=words):
        streamed(**options)


def test_a_vector_of_targets_is_refused():
    X, y = sine(5)
    with pytest.raises(InputError, match="targets must be"):
        StreamedProblem.of(lambda X: X, X, torch.eye(2), y[:, 0], IntegralLoss(Pinball(), gauss_legendre(2)), lam=1.0)


def test_nodes_of_its_own_for_each_row_are_refused():
    X, y = sine(5)
    loss = IntegralLoss(LogCosh(1.0), TaskMeasure(torch.rand(5, 2)))
    with pytest.raises(InputError, match="one set of nodes"):
        StreamedProblem.of(lambda X: X, X, torch.eye(2), y, loss, lam=1.0)


def test_a_lambda_that_is_not_positive_is_refused():
    with pytest.raises(OptionError, match="lam"):
        streamed(lam=0.0)
