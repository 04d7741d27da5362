"""Tests of `ovkgp.inference.tasks.solvers.stochastic`."""

from itertools import islice

import numpy as np
import pytest
import torch
from loss_cases import MEASURE, normal
from scipy import stats
from streamed_cases import in_memory, sine, streamed
from task_cases import rbf

from ovkgp.exceptions import FitWarning, InputError, OptionError
from ovkgp.features import ORFF
from ovkgp.functional.factors import FeatureFactor
from ovkgp.inference.tasks.solvers.stochastic import (
    FreshTasks,
    NodeBatches,
    batch_gradient,
    iterate_row_batches,
    make_task_sampler,
    solve_stochastic,
)
from ovkgp.inference.tasks.solvers.streamed import StreamedProblem, TaskBatch
from ovkgp.inference.tasks.solvers.streamed_lbfgs import solve_streamed
from ovkgp.losses import CurveHuber, Huber, IntegralLoss, Pinball, Square, TaskMeasure, gauss_legendre

pytestmark = pytest.mark.filterwarnings("ignore::ovkgp.exceptions.FitWarning")

CASES = {
    "default": {},
    "small lambda": {"lam": 1e-5},
    "offset and row weights": {
        "offset": torch.linspace(-1, 1, 6).double(),
        "row_weights": torch.linspace(0, 2, 4000).double(),
    },
    "a target each": {"targets": normal(4000, 6)},
    "large targets": {"targets": 1e4 * sine(4000)[1], "lam": 1e-7},
    "square": {"loss": Square()},
    "Huber": {"loss": Huber(0.1)},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_b_33_solve_stochastic_is_within_one_percent_of_the_optimum_after_a_fixed_budget(name):
    problem = streamed(4000, **CASES[name])
    best = solve_streamed(problem, tolerance=1e-5)
    found = solve_stochastic(problem, rows=100, tasks=3, max_iter=500, random_state=0)
    assert best.objective - best.gap <= found.objective <= 1.01 * best.objective
    assert found.report.iterations == 500


def test_b_33_solve_stochastic_supports_fresh_tasks():
    """BT-102: features on both sides, θ ~ μ at every step; evaluated by the objective of a fine rule."""
    X, y = sine(3000)
    phi = FeatureFactor(ORFF(rbf(0.5), 8, num_dims=2, random_state=0))
    psi = FeatureFactor(ORFF(rbf(3.0), 8, num_dims=1, random_state=0))
    measure = gauss_legendre(40)
    offset = torch.special.ndtri
    problem = StreamedProblem.from_factor(
        phi, X, psi(measure.nodes[:, None]), y, IntegralLoss(Pinball(), measure), 1e-3, offset=offset(measure.nodes)
    )
    best = solve_streamed(problem, tolerance=1e-4).objective
    fresh = FreshTasks(Pinball(), psi, 4, stats.uniform(), offset)
    found = solve_stochastic(problem, rows=100, tasks=fresh, max_iter=500, random_state=0)
    assert best * (1 - 1e-4) <= found.objective <= 1.01 * best


def test_curve_losses_use_all_nodes():
    X, y = sine(1000)
    loss, tasks = CurveHuber(0.5, 2, MEASURE), torch.eye(4).double()
    problem = StreamedProblem.from_factor(lambda X: torch.cat([X, X**2], -1), X, tasks, y, loss, lam=0.01)
    found = solve_stochastic(problem, rows=100, tasks=None, max_iter=300, random_state=0)
    assert found.objective <= 1.01 * solve_streamed(problem).objective


def test_independent_tasks_with_few_of_them_in_a_batch_do_not_diverge():
    y = torch.linspace(0, 1, 1001).double()[:, None]
    loss = IntegralLoss(Pinball(), gauss_legendre(12))
    problem = StreamedProblem.from_factor(torch.ones_like, y, torch.eye(12).double(), y, loss, lam=1e-4, random_state=0)
    best = solve_streamed(problem, tolerance=1e-3).objective
    for seed in range(3):
        found = solve_stochastic(problem, rows=50, tasks=2, max_iter=500, random_state=seed)
        assert found.objective <= 1.02 * best


def test_solve_stochastic_reports_gap_and_objective_of_all_rows():
    problem = streamed(4000)
    least = solve_streamed(problem, tolerance=1e-5)
    found = solve_stochastic(problem, max_iter=100, random_state=0)
    assert found.objective == pytest.approx(in_memory(problem).objective(found.weights).item(), rel=1e-10)
    assert found.gap >= found.objective - least.objective


def test_mean_of_the_iterates_is_better_than_the_last_one(monkeypatch):
    problem, options = streamed(4000), {"rows": 10, "tasks": 2, "max_iter": 400, "random_state": 0}
    averaged = solve_stochastic(problem, **options).objective
    monkeypatch.setattr(torch, "lerp", lambda mean, last, part: last)
    last = solve_stochastic(problem, **options).objective
    least = solve_streamed(problem, tolerance=1e-5).objective
    assert averaged - least < 0.5 * (last - least)


def test_solve_stochastic_is_reproducible():
    problem, options = streamed(1000), {"rows": 50, "tasks": 2, "max_iter": 30}
    first, again, other = (solve_stochastic(problem, random_state=seed, **options).weights for seed in (0, 0, 1))
    assert torch.equal(first, again) and not torch.equal(first, other)


def test_solve_stochastic_keeps_a_good_initial_point():
    problem = streamed(4000)
    best = solve_streamed(problem, tolerance=1e-5)
    found = solve_stochastic(problem, init=best.weights, max_iter=50, random_state=0)
    assert found.objective <= 1.01 * best.objective


def test_solve_streamed_starts_from_a_stochastic_solution():
    problem = streamed(40_000)
    rough = solve_stochastic(problem, max_iter=200, random_state=0)
    assert solve_streamed(problem, init=rough.weights, tolerance=1e-4).report.evaluations <= 12


def test_steps_count_as_parts_of_passes():
    report = solve_stochastic(streamed(4000), rows=40, max_iter=50, random_state=0).report
    assert report.evaluations == 2  # half a pass of batches, and the last pass


@pytest.mark.filterwarnings("default::ovkgp.exceptions.FitWarning")
def test_solve_stochastic_warns_of_a_large_gap():
    with pytest.warns(FitWarning, match="duality gap"):
        assert not solve_stochastic(streamed(1000), max_iter=5, random_state=0).report.converged


@pytest.mark.filterwarnings("default::ovkgp.exceptions.FitWarning")
@pytest.mark.parametrize("call", [1, 4, 60])
def test_solve_stochastic_keeps_the_weights_after_ctrl_c(call):
    problem, count = streamed(1000), 0
    rows, zero = problem.rows, in_memory(streamed(1000)).objective(torch.zeros(problem.shape).double()).item()

    def interrupted(indices):
        nonlocal count
        count += 1
        if count == call:
            raise KeyboardInterrupt
        return rows(indices)

    problem.rows = interrupted
    with pytest.warns(FitWarning, match="was interrupted"):
        found = solve_stochastic(problem, rows=50, max_iter=100, random_state=0)
    assert found.report.interrupted
    assert found.objective == pytest.approx(in_memory(problem).objective(found.weights).item(), rel=1e-10)
    assert (found.objective < zero) == (call == 60)


def test_solve_stochastic_rejects_invalid_options():
    problem = streamed()
    with pytest.raises(InputError, match="init"):
        solve_stochastic(problem, init=torch.zeros(3, 3))
    for name in ("rows", "tasks", "max_iter"):
        with pytest.raises(OptionError, match=name):
            solve_stochastic(problem, **{name: 0})


OFFSET = normal(6, seed=3)
OPTIONS = {"row_weights": torch.linspace(0, 2, 60).double(), "offset": OFFSET}


def full_gradient(problem, W):
    return problem.evaluate(W, 0.0).gradient


@pytest.mark.parametrize("targets", ["shared", "each"])
def test_g_16_mean_over_batches_of_rows_and_single_nodes_is_the_gradient(targets):
    """Exactly: all batches of a pass, and every node with its weight for probability."""
    options = OPTIONS | ({} if targets == "shared" else {"targets": normal(60, 6, seed=4)})
    problem = streamed(60, **options)
    W, mean = normal(*problem.shape), 0.0
    for indices in torch.randperm(60, generator=torch.Generator().manual_seed(0)).split(12):
        for j, weight in enumerate(problem.loss.weights):
            one = torch.tensor([j])
            loss = IntegralLoss(Pinball(), TaskMeasure(problem.loss.nodes[one]))
            batch = TaskBatch(loss, problem.tasks[one], OFFSET[one], one)
            mean += weight / 5 * batch_gradient(problem, W, indices, batch)
    torch.testing.assert_close(mean, full_gradient(problem, W), rtol=1e-12, atol=1e-13)


def test_all_rows_and_all_nodes_give_the_gradient():
    problem = streamed(60, **OPTIONS)
    W = normal(*problem.shape)
    found = batch_gradient(problem, W, torch.arange(60), None)
    torch.testing.assert_close(found, full_gradient(problem, W), rtol=1e-12, atol=1e-13)


def within_errors(draws, expected):
    """Whether the mean of draws (k, …) is the one expected, to five standard errors in each entry."""
    error = draws.std(0) / len(draws) ** 0.5
    return bool(((draws.mean(0) - expected).abs() <= 5 * error + 1e-12).all())


def test_g_16_draws_of_nodes_are_unbiased_for_weights_that_differ():
    problem = streamed(60, num_tasks=6, **OPTIONS)
    W, rng = normal(*problem.shape), np.random.default_rng(0)
    assert problem.loss.weights.max() > 2 * problem.loss.weights.min()
    batches, rows = NodeBatches(problem, 3), iterate_row_batches(60, 7, rng)
    draws = torch.stack([batch_gradient(problem, W, next(rows), batches(rng)) for _ in range(500)])
    assert within_errors(draws, full_gradient(problem, W))


@pytest.mark.parametrize("distribution", [None, stats.beta(2, 2)])
def test_g_16_fresh_tasks_are_unbiased_for_the_integral(distribution):
    """The oracle is a rule of 400 nodes, beside which the kink of the loss in θ counts for little."""
    X, y = sine(40)
    psi = FeatureFactor(ORFF(rbf(3.0), 3, num_dims=1, random_state=0))
    measure = gauss_legendre(400, distribution=distribution)
    offset = torch.sin(measure.nodes)
    loss = IntegralLoss(Pinball(), measure)
    problem = StreamedProblem.from_factor(lambda X: X, X, psi(measure.nodes[:, None]), y, loss, 0.1, offset=offset)
    W, rng = 0.3 * normal(*problem.shape), np.random.default_rng(0)
    fresh, indices = FreshTasks(Pinball(), psi, 4, distribution, torch.sin), torch.arange(40)
    draws = torch.stack([batch_gradient(problem, W, indices, fresh(rng)) for _ in range(500)])
    assert within_errors(draws, full_gradient(problem, W))


def test_row_batches_hold_each_row_once_per_pass_in_a_new_order():
    batches = list(islice(iterate_row_batches(12, 4, np.random.default_rng(0)), 6))
    first, second = torch.cat(batches[:3]), torch.cat(batches[3:])
    assert first.sort().values.tolist() == second.sort().values.tolist() == list(range(12))
    assert first.tolist() != second.tolist()


def test_batch_is_never_larger_than_the_data():
    assert len(next(iterate_row_batches(5, 100, np.random.default_rng(0)))) == 5


def test_row_batches_are_uniform_with_incomplete_passes():
    counts = torch.zeros(5)
    for indices in islice(iterate_row_batches(5, 3, np.random.default_rng(0)), 4000):
        counts[indices] += 1
    assert (counts / 4000 - 0.6).abs().max() < 0.05


def test_task_sampler_draws_all_some_or_fresh_tasks():
    problem, rng = streamed(60), np.random.default_rng(0)
    assert make_task_sampler(problem, None)(rng) is None
    assert make_task_sampler(problem, 2)(rng).tasks.shape == (2, problem.shape[1])
    fresh = FreshTasks(Pinball(), lambda nodes: nodes)
    assert make_task_sampler(problem, fresh) is fresh


def test_task_sampler_rejects_invalid_arguments():
    X, y = sine(20)
    curves = StreamedProblem.from_factor(lambda X: X, X, torch.eye(4).double(), y, CurveHuber(0.5, 2, MEASURE), lam=0.1)
    with pytest.raises(OptionError, match="IntegralLoss"):
        make_task_sampler(curves, 2)
    with pytest.raises(InputError, match="targets"):
        make_task_sampler(streamed(60, targets=normal(60, 6)), FreshTasks(Pinball(), lambda nodes: nodes))
    with pytest.raises(OptionError, match="tasks"):
        make_task_sampler(streamed(60), 0)
    with pytest.raises(OptionError, match="rows"):
        next(iterate_row_batches(5, 0, np.random.default_rng(0)))


def test_batches_of_tasks_in_the_plane():
    """LT-70 in R²: nodes drawn from a product rule, and fresh tasks of two distributions with an offset."""
    measure = gauss_legendre(3, num_dims=2)
    psi = FeatureFactor(ORFF(rbf(3.0), 8, num_dims=2, random_state=0))
    problem = StreamedProblem(
        lambda rows: torch.eye(20).double()[rows],
        psi(measure.points),
        normal(20, 1),
        IntegralLoss(Huber(0.5), measure),
        0.1,
    )
    batch = NodeBatches(problem, 4)(np.random.default_rng(0))
    assert batch.loss.num_dims == 2 and torch.equal(batch.loss.nodes, measure.nodes[batch.columns])
    assert torch.equal(batch.tasks, problem.tasks[batch.columns])
    fresh = FreshTasks(Huber(0.5), psi, 5, [stats.beta(2, 1), stats.uniform(2, 1)], lambda tasks: tasks.sum(-1))
    drawn = fresh(np.random.default_rng(0))
    assert (
        drawn.tasks.shape == (5, 16) and drawn.loss.nodes.shape == (5, 2) and bool((drawn.loss.nodes[:, 1] > 2).all())
    )
    torch.testing.assert_close(drawn.offset, drawn.loss.nodes.sum(-1))
    assert batch_gradient(problem, torch.zeros(problem.shape).double(), torch.arange(6), drawn).shape == (20, 16)
