"""Doubly stochastic gradients: a step sees a few rows and a few tasks, so that its cost does not depend on n (LT-85, LT-86, BT-102).

    W ← W − γ_t P g_t,      E g_t = ∇J(W),      γ_t = γ_0/√(1 + γ_0 t/10),

with the preconditioner P of `streamed_coordinates`, in which the curvature is about one: γ_0 = 1/(1 + d/k + d_Θ/m), for k rows, m tasks
and d, d_Θ effective coordinates, needs no tuning. The mean of the second half of the iterates is the solution; one pass over the rows says how good it is.
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
from ovkgp.inference.tasks.factors import Factor
from ovkgp.inference.tasks.solvers.certificates import check_initial_point
from ovkgp.inference.tasks.solvers.streamed import (
    StreamedCoordinates,
    StreamedProblem,
    StreamedRun,
    StreamedSolution,
    TaskBatch,
    target_unit,
)
from ovkgp.inference.tasks.solvers.streamed_lbfgs import KAPPA
from ovkgp.losses import IntegralLoss, Loss, TaskMeasure, monte_carlo


class NodeBatches:
    """Nodes of a problem, drawn by their weights with return.

    Args:
        problem: with an `IntegralLoss`: other losses see whole curves.
        num_tasks: k.

    Cost: O(k log m) a draw.

    Example:
        >>> import numpy as np, torch
        >>> from ovkgp.inference.tasks.solvers.streamed import StreamedProblem
        >>> from ovkgp.inference.tasks.solvers.stochastic import NodeBatches
        >>> from ovkgp.losses import IntegralLoss, Pinball, grid
        >>> loss, y = IntegralLoss(Pinball(), grid([0.1, 0.5, 0.9])), torch.ones(4, 1).double()
        >>> problem = StreamedProblem.of(torch.ones_like, y, torch.eye(3).double(), y, loss, lam=1.0)
        >>> NodeBatches(problem, 2)(np.random.default_rng(0)).loss.nodes
        tensor([0.5000, 0.1000], dtype=torch.float64)
    """

    def __init__(self, problem: StreamedProblem, num_tasks: int):
        if not isinstance(problem.loss, IntegralLoss):
            raise OptionError(
                f"{problem.loss!r} sees whole curves: a few of their nodes do not give its gradient. Take all of them, tasks=None."
            )
        self.problem, self.num_tasks = problem, check_integer("tasks", num_tasks)

    def __call__(self, rng: np.random.Generator) -> TaskBatch:
        problem, loss = self.problem, self.problem.loss
        columns = torch.from_numpy(rng.choice(len(loss.nodes), self.num_tasks, p=loss.weights.numpy()))
        drawn = IntegralLoss(loss.loss, TaskMeasure(loss.nodes[columns]))
        offset = None if problem.offset is None else problem.offset[columns]
        return TaskBatch(drawn, problem.tasks[columns], offset, columns)


@dataclass
class FreshTasks:
    """New tasks θ ~ μ at every step: a continuum of them is learned, not its nodes (LT-85, BT-100).

    Args:
        loss: ℓ.
        factor: ψ, defined for all tasks.
        num_tasks: k.
        distribution: μ, a frozen law of `scipy.stats`; uniform on [0, 1] where None.
        offset: b, from tasks (k,) to (k,); zero where None.

    All tasks must share the target of a row.

    Cost: that of ψ at k tasks.

    Example:
        >>> import numpy as np, torch
        >>> from gpytorch.kernels import RBFKernel
        >>> from ovkgp.features import ORFF
        >>> from ovkgp.inference.tasks.factors import FeatureFactor
        >>> from ovkgp.inference.tasks.solvers.stochastic import FreshTasks
        >>> from ovkgp.losses import Pinball
        >>> psi = FeatureFactor(ORFF(RBFKernel(), 10, num_dims=1, random_state=0))
        >>> FreshTasks(Pinball(), psi, num_tasks=4)(np.random.default_rng(0)).tasks.shape
        torch.Size([4, 20])
    """

    loss: Loss
    factor: Factor
    num_tasks: int = 8
    distribution: object = None
    offset: Callable[[Tensor], Tensor] | None = None

    def __call__(self, rng: np.random.Generator) -> TaskBatch:
        measure = monte_carlo(self.num_tasks, self.distribution, random_state=int(rng.integers(2**31)))
        offset = None if self.offset is None else self.offset(measure.nodes)
        return TaskBatch(IntegralLoss(self.loss, measure), self.factor(measure.nodes[:, None]), offset)


def task_batches(problem: StreamedProblem, tasks) -> Callable[[np.random.Generator], TaskBatch | None]:
    """What draws the tasks of a step: `tasks` is a number of nodes, `FreshTasks`, or None for all nodes at every step."""
    if tasks is None:
        return lambda rng: None
    if not isinstance(tasks, FreshTasks):
        return NodeBatches(problem, tasks)
    if problem.targets.shape[1] != 1:
        raise InputError(f"fresh tasks have no targets of their own: give (n, 1), got {tuple(problem.targets.shape)}.")
    return tasks


def row_batches(num_rows: int, size: int, rng: np.random.Generator) -> Iterator[Tensor]:
    """Places (k,) of rows, each once a pass, in a new order each pass, without end; what a pass leaves over is left out.

    Example:
        >>> import numpy as np
        >>> from ovkgp.inference.tasks.solvers.stochastic import row_batches
        >>> batches = row_batches(5, 2, np.random.default_rng(0))
        >>> len({*next(batches).tolist(), *next(batches).tolist()})
        4
    """
    size = min(check_integer("rows", size), num_rows)
    while True:
        order = torch.from_numpy(rng.permutation(num_rows))
        yield from order[: num_rows // size * size].split(size)


def batch_gradient(problem: StreamedProblem, weights: Tensor, places: Tensor, batch: TaskBatch | None) -> Tensor:
    """∇J (r, q) at W on the rows at some places and a batch of tasks. Its mean over the batches is ∇J (G-16).

    Cost: O(k q (r + m)) for k rows and m tasks, and the making of the k rows of Φ.
    """
    part = problem.chunk(places, batch)
    slopes = part.loss.derivative(part.values(weights), part.targets)
    return part.adjoint(part.entry_weights * slopes) / len(places) + problem.lam * weights


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
        >>> from ovkgp.inference.tasks.solvers.stochastic import solve_stochastic
        >>> from ovkgp.inference.tasks.solvers.streamed import StreamedProblem, TaskBatch
        >>> from ovkgp.losses import IntegralLoss, Pinball, gauss_legendre
        >>> y = torch.linspace(0, 1, 1001).double()[:, None]  # quantiles of U[0, 1], without any input
        >>> loss = IntegralLoss(Pinball(), gauss_legendre(3))
        >>> problem = StreamedProblem.of(torch.ones_like, y, torch.eye(3).double(), y, loss, lam=1e-3, random_state=0)
        >>> solution = solve_stochastic(problem, rows=50, tasks=2, max_iter=500, random_state=0)
        >>> bool((solution.weights - loss.nodes).abs().max() < 0.02)
        True
    """
    check_initial_point("start", start, problem.shape)
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
