"""Batches of rows and tasks: their gradients are right on average (G-16)."""

from itertools import islice

import numpy as np
import pytest
import torch
from loss_cases import MEASURE, normal
from scipy import stats
from streamed_cases import sine, streamed
from task_cases import rbf

from ovkgp.exceptions import InputError, OptionError
from ovkgp.features import ORFF
from ovkgp.inference.tasks.factors import FeatureFactor
from ovkgp.inference.tasks.solvers.stochastic import FreshTasks, NodeBatches, batch_gradient, row_batches, task_batches
from ovkgp.inference.tasks.solvers.streamed import StreamedProblem, TaskBatch
from ovkgp.losses import CurveHuber, IntegralLoss, Pinball, TaskMeasure, gauss_legendre

OFFSET = normal(6, seed=3)
OPTIONS = {"row_weights": torch.linspace(0, 2, 60).double(), "offset": OFFSET}


def full_gradient(problem, W):
    return problem.evaluate(W, 0.0).gradient


@pytest.mark.parametrize("targets", ["shared", "each"])
def test_g_16_the_mean_over_batches_of_rows_and_single_nodes_is_the_gradient(targets):
    """Exactly: all batches of a pass, and every node with its weight for probability."""
    options = OPTIONS | ({} if targets == "shared" else {"targets": normal(60, 6, seed=4)})
    problem = streamed(60, **options)
    W, mean = normal(*problem.shape), 0.0
    for places in torch.randperm(60, generator=torch.Generator().manual_seed(0)).split(12):
        for j, weight in enumerate(problem.loss.weights):
            one = torch.tensor([j])
            loss = IntegralLoss(Pinball(), TaskMeasure(problem.loss.nodes[one]))
            batch = TaskBatch(loss, problem.tasks[one], OFFSET[one], one)
            mean += weight / 5 * batch_gradient(problem, W, places, batch)
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
    batches, rows = NodeBatches(problem, 3), row_batches(60, 7, rng)
    draws = torch.stack([batch_gradient(problem, W, next(rows), batches(rng)) for _ in range(500)])
    assert within_errors(draws, full_gradient(problem, W))


@pytest.mark.parametrize("law", [None, stats.beta(2, 2)])
def test_g_16_fresh_tasks_are_unbiased_for_the_integral(law):
    """The oracle is a rule of 400 nodes, beside which the kink of the loss in θ counts for little."""
    X, y = sine(40)
    psi = FeatureFactor(ORFF(rbf(3.0), 3, num_dims=1, random_state=0))
    measure = gauss_legendre(400, law=law)
    offset = torch.sin(measure.nodes)
    loss = IntegralLoss(Pinball(), measure)
    problem = StreamedProblem.of(lambda X: X, X, psi(measure.nodes[:, None]), y, loss, 0.1, offset=offset)
    W, rng = 0.3 * normal(*problem.shape), np.random.default_rng(0)
    fresh, places = FreshTasks(Pinball(), psi, 4, law, torch.sin), torch.arange(40)
    draws = torch.stack([batch_gradient(problem, W, places, fresh(rng)) for _ in range(500)])
    assert within_errors(draws, full_gradient(problem, W))


def test_a_pass_of_batches_holds_each_row_once_and_no_two_passes_are_alike():
    batches = list(islice(row_batches(12, 4, np.random.default_rng(0)), 6))
    first, second = torch.cat(batches[:3]), torch.cat(batches[3:])
    assert first.sort().values.tolist() == second.sort().values.tolist() == list(range(12))
    assert first.tolist() != second.tolist()


def test_a_batch_is_never_larger_than_the_data():
    assert len(next(row_batches(5, 100, np.random.default_rng(0)))) == 5


def test_every_row_is_as_likely_where_a_pass_leaves_some_over():
    counts = torch.zeros(5)
    for places in islice(row_batches(5, 3, np.random.default_rng(0)), 4000):
        counts[places] += 1
    assert (counts / 4000 - 0.6).abs().max() < 0.05


def test_all_nodes_some_or_fresh_ones():
    problem, rng = streamed(60), np.random.default_rng(0)
    assert task_batches(problem, None)(rng) is None
    assert task_batches(problem, 2)(rng).tasks.shape == (2, problem.shape[1])
    fresh = FreshTasks(Pinball(), lambda nodes: nodes)
    assert task_batches(problem, fresh) is fresh


def test_what_cannot_be_drawn_is_refused():
    X, y = sine(20)
    curves = StreamedProblem.of(lambda X: X, X, torch.eye(4).double(), y, CurveHuber(0.5, 2, MEASURE), lam=0.1)
    with pytest.raises(OptionError, match="whole curves"):
        task_batches(curves, 2)
    with pytest.raises(InputError, match="no targets of their own"):
        task_batches(streamed(60, targets=normal(60, 6)), FreshTasks(Pinball(), lambda nodes: nodes))
    with pytest.raises(OptionError, match="tasks"):
        task_batches(streamed(60), 0)
    with pytest.raises(OptionError, match="rows"):
        next(row_batches(5, 0, np.random.default_rng(0)))
