"""Doubly stochastic gradients: a step sees a few rows and a few tasks, so that its cost does not depend on n (LT-85, LT-86, BT-102).

    W ← W − γ_t P g_t,      E g_t = ∇J(W),      γ_t = γ_0/√(1 + γ_0 t/10),

with the preconditioner P of `streamed_coordinates`, in which the curvature is about one: γ_0 = 1/(1 + d/k + d_Θ/m), for k rows, m tasks
and d, d_Θ effective coordinates, needs no tuning. The mean of the second half of the iterates is the solution; one pass over the rows says how good it is.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from ovkgp.features.noise import as_seed
from ovkgp.inference.task_learning.brackets import require_start
from ovkgp.inference.task_learning.streamed import StreamedProblem, TaskBatch
from ovkgp.inference.task_learning.streamed_coordinates import StreamedCoordinates, target_unit
from ovkgp.inference.task_learning.streamed_lbfgs import KAPPA
from ovkgp.inference.task_learning.streamed_run import StreamedRun, StreamedSolution
from ovkgp.inference.task_learning.task_batches import FreshTasks, batch_gradient, row_batches, task_batches

ADAPT_AT, ADAPT = (1 / 16, 1 / 4), (0.2, 0.1)
"""Parts of the steps after which curvatures are measured again; and how, at a W that is not a fit yet: width, and least part."""
DECAY = 0.1
"""γ has fallen to γ_0/√2 after 1/(0.1 γ_0) steps."""


def solve_stochastic(
    problem: StreamedProblem,
    *,
    rows: int = 256,
    tasks: int | FreshTasks | None = 8,
    start: Tensor | None = None,
    max_iter: int = 2000,
    tolerance: float = 1e-2,
    random_state=None,
    verbose: int = 0,
) -> StreamedSolution:
    """A W near the minimum of J, from batches. `solve_streamed(problem, start=W)` takes it to any accuracy.

    Args:
        problem: J, whose nodes and weights the last pass judges by.
        rows: k, of a step.
        tasks: nodes of the problem in a step; or `FreshTasks`, new ones at every step; None for all nodes.
        start: W (r, q) to begin with.
        max_iter: steps. They are all taken.
        tolerance: of the relative duality gap, above which there is a `FitWarning`. The gap is much above the error where λ is small.
        random_state: of the batches.
        verbose: 1 shows progress.

    Ctrl-C keeps what is there, and takes the last pass.

    Cost: O(k q (r + m) + r² q) a step, and the making of k rows of Φ, whatever n; then one pass. Memory O(r² + r q) and a chunk.

    Example:
        >>> import torch
        >>> from ovkgp.inference.task_learning.stochastic import solve_stochastic
        >>> from ovkgp.inference.task_learning.streamed import StreamedProblem, TaskBatch
        >>> from ovkgp.losses import IntegralLoss, Pinball, gauss_legendre
        >>> y = torch.linspace(0, 1, 1001).double()[:, None]  # quantiles of U[0, 1], without any input
        >>> loss = IntegralLoss(Pinball(), gauss_legendre(3))
        >>> problem = StreamedProblem.of(torch.ones_like, y, torch.eye(3).double(), y, loss, lam=1e-3, random_state=0)
        >>> solution = solve_stochastic(problem, rows=50, tasks=2, max_iter=500, random_state=0)
        >>> bool((solution.weights - loss.nodes).abs().max() < 0.02)
        True
    """
    require_start("start", start, problem.shape)
    run = StreamedRun(problem, tolerance, max_iter, verbose)
    run.weights = run.weights if start is None else start.double()
    rng = np.random.default_rng(as_seed(random_state))
    batches = row_batches(problem.num_rows, rows, rng), task_batches(problem, tasks)
    return run.run(lambda bar: _descend(run, *batches, rng, bar))


def _descend(run: StreamedRun, row_batches, draw_tasks, rng: np.random.Generator, bar: tqdm) -> None:
    problem, weights, unit = run.problem, run.weights, target_unit(run.problem)
    coordinates = StreamedCoordinates(problem, unit)
    adapt_at, half = {math.ceil(part * run.max_iter) for part in ADAPT_AT}, run.max_iter // 2
    for step in range(run.max_iter):
        if step in adapt_at:
            coordinates.adapt(weights, *ADAPT)
        places, batch = next(row_batches), draw_tasks(rng)
        direction = coordinates.back(coordinates.gradient(batch_gradient(problem, weights, places, batch)))
        weights = weights - _pace(coordinates, len(places), batch, step) * direction
        run.weights = weights if step <= half else torch.lerp(run.weights, weights, 1 / (step - half + 1))
        run.passes += len(places) / problem.num_rows
        run.tick(bar)
    run.look_at(run.weights, problem.smoothing(KAPPA * unit))


def _pace(coordinates: StreamedCoordinates, num_rows: int, batch: TaskBatch | None, step: int) -> float:
    """γ_t."""
    dimension, tasks = coordinates.dimensions
    first = 1 / (1 + dimension / num_rows + (tasks / len(batch.tasks) if batch else 0.0))
    return first / math.sqrt(1 + DECAY * first * step)
