"""Doubly stochastic gradients on batches of rows and tasks, at a cost per step independent of n (LT-85, 86, BT-102).

    W ← W − γ_t P g_t,      E g_t = ∇J(W),      γ_t = γ_0/√(1 + γ_0 t/10),

with the preconditioner P of `StreamedCoordinates`, in which the curvature is about one: γ_0 = 1/(1 + d/k + d_Θ/m), for
k rows, m tasks and d, d_Θ effective coordinates, needs no tuning. The solution is the mean of the second half of the
iterates; a last pass over the rows computes its duality gap.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from ovkgp.checks import as_seed, check_integer
from ovkgp.exceptions import InputError, OptionError
from ovkgp.functional.factors import Factor
from ovkgp.inference.tasks.solvers.certificates import check_initial_point
from ovkgp.inference.tasks.solvers.streamed import (
    StreamedCoordinates,
    StreamedProblem,
    StreamedRun,
    StreamedSolution,
    TaskBatch,
    estimate_target_unit,
)
from ovkgp.inference.tasks.solvers.streamed_lbfgs import FULL_DATA_KAPPA
from ovkgp.losses import IntegralLoss, Loss, TaskMeasure, monte_carlo

ADAPTATION_FRACTIONS, ADAPTATION_OPTIONS = (1 / 16, 1 / 4), (0.2, 0.1)
"""Fractions of the steps after which curvatures are measured again; and the options of `adapt`."""
DECAY_RATE = 0.1  # γ has fallen to γ_0/√2 after 1/(0.1 γ_0) steps


def solve_stochastic(
    problem: StreamedProblem,
    *,
    rows: int = 256,
    tasks: int | FreshTasks | None = 8,
    init: Tensor | None = None,
    max_iter: int = 2000,
    tolerance: float = 1e-2,
    random_state=None,
    verbose: int = 0,
) -> StreamedSolution:
    """Compute a W near the minimum of J from batches; `solve_streamed(problem, init=W)` improves it to any accuracy.

    A step uses `rows` rows and `tasks` nodes, `FreshTasks`, or all nodes if None; `init` is W (r, q). All `max_iter`
    steps are taken. A relative duality gap above `tolerance` is a `FitWarning`; for small λ the gap is much larger than
    the error. Ctrl-C keeps the current weights and takes the last pass.

    Complexity: O(k q (r + m) + r² q) per step and the evaluation of k rows of Φ, for any n; then one pass. Memory O(r²
    + r q) and a chunk.
    """
    check_initial_point("init", init, problem.shape)
    run = StreamedRun(problem, tolerance, max_iter, verbose)
    run.weights = run.weights if init is None else init.double()
    rng = np.random.default_rng(as_seed(random_state))
    batches = iterate_row_batches(problem.num_rows, rows, rng), make_task_sampler(problem, tasks)
    return run.run(lambda bar: _descend(run, *batches, rng, bar))


def _descend(run: StreamedRun, row_batches, draw_tasks, rng: np.random.Generator, bar: tqdm) -> None:
    problem, weights, unit = run.problem, run.weights, estimate_target_unit(run.problem)
    coordinates = StreamedCoordinates(problem, unit)
    adapt_at, half = {math.ceil(part * run.max_iter) for part in ADAPTATION_FRACTIONS}, run.max_iter // 2
    for step in range(run.max_iter):
        if step in adapt_at:
            coordinates.adapt(weights, *ADAPTATION_OPTIONS)
        indices, batch = next(row_batches), draw_tasks(rng)
        direction = coordinates.from_coordinates(coordinates.gradient(batch_gradient(problem, weights, indices, batch)))
        weights = weights - _step_size(coordinates, len(indices), batch, step) * direction
        run.weights = weights if step <= half else torch.lerp(run.weights, weights, 1 / (step - half + 1))
        run.passes += len(indices) / problem.num_rows
        run.count_step(bar)
    run.evaluate_at(run.weights, problem.smoothing(FULL_DATA_KAPPA * unit))


def _step_size(coordinates: StreamedCoordinates, num_rows: int, batch: TaskBatch | None, step: int) -> float:
    """Return γ_t."""
    dimension, tasks = coordinates.dimensions
    first = 1 / (1 + dimension / num_rows + (tasks / len(batch.tasks) if batch else 0.0))
    return first / math.sqrt(1 + DECAY_RATE * first * step)


def batch_gradient(problem: StreamedProblem, weights: Tensor, indices: Tensor, batch: TaskBatch | None) -> Tensor:
    """Return ∇J (r, q) at W on some rows and a batch of tasks; its mean over the batches is ∇J (G-16).

    Complexity: O(k q (r + m)) for k rows and m tasks, and the evaluation of k rows of Φ.
    """
    part = problem.chunk(indices, batch)
    slopes = part.loss.derivative(part.values(weights), part.targets)
    return part.adjoint(part.entry_weights * slopes) / len(indices) + problem.lam * weights


def iterate_row_batches(num_rows: int, size: int, rng: np.random.Generator) -> Iterator[Tensor]:
    """Iterate over indices (k,) of rows without end, in a new random order each pass, in full batches only."""
    size = min(check_integer("rows", size), num_rows)
    while True:
        order = torch.from_numpy(rng.permutation(num_rows))
        yield from order[: num_rows // size * size].split(size)


def make_task_sampler(problem: StreamedProblem, tasks) -> Callable[[np.random.Generator], TaskBatch | None]:
    """Return a function that draws the tasks of a step: `tasks` is a number, `FreshTasks`, or None for all."""
    if tasks is None:
        return lambda rng: None
    if not isinstance(tasks, FreshTasks):
        return NodeBatches(problem, tasks)
    if problem.targets.shape[1] != 1:
        raise InputError(f"targets must have shape (n, 1) with fresh tasks, got {tuple(problem.targets.shape)}.")
    return tasks


class NodeBatches:
    """Draws `num_tasks` nodes of a problem with an `IntegralLoss`, by their weights with replacement."""

    def __init__(self, problem: StreamedProblem, num_tasks: int):
        if not isinstance(problem.loss, IntegralLoss):
            raise OptionError(
                f"Batches of tasks require an IntegralLoss, got {problem.loss!r}. Use all nodes with tasks=None."
            )
        self.problem, self.num_tasks = problem, check_integer("tasks", num_tasks)

    def __call__(self, rng: np.random.Generator) -> TaskBatch:
        problem, loss = self.problem, self.problem.loss
        columns = torch.from_numpy(rng.choice(loss.num_nodes, self.num_tasks, p=loss.weights.numpy()))
        drawn = IntegralLoss(loss.loss, TaskMeasure(loss.nodes[columns], num_dims=loss.num_dims))
        offset = None if problem.offset is None else problem.offset[columns]
        return TaskBatch(drawn, problem.tasks[columns], offset, columns)


@dataclass
class FreshTasks:
    """Draws new tasks θ ~ μ at every step, so that a continuum of tasks is learned, not its nodes (LT-85, BT-100).

    `factor` ψ is defined for all tasks, `distribution` μ is a frozen distribution of `scipy.stats` or one per coordinate
    (None is uniform on [0, 1]), and `offset` b maps tasks (k,), or (k, b) in R^b, to (k,) (None is zero). All tasks must
    share the target of a row.
    Complexity: that of ψ at k tasks.
    """

    loss: Loss
    factor: Factor
    num_tasks: int = 8
    distribution: object = None
    offset: Callable[[Tensor], Tensor] | None = None

    def __call__(self, rng: np.random.Generator) -> TaskBatch:
        measure = monte_carlo(self.num_tasks, self.distribution, random_state=int(rng.integers(2**31)))
        offset = None if self.offset is None else self.offset(measure.nodes)
        return TaskBatch(IntegralLoss(self.loss, measure), self.factor(measure.points), offset)
