"""Batches for doubly stochastic gradients: some rows, and some tasks, such that the gradient is right on average (LT-86, G-16).

Rows are drawn without return, pass after pass. Tasks are fresh draws of the measure μ, equally weighted, or nodes of a problem drawn
with their weights η as probabilities: in either case the mean of the batch's loss is the integral.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ovkgp.exceptions import InputError, OptionError
from ovkgp.inference.task_learning.factors import Factor
from ovkgp.inference.task_learning.streamed import StreamedProblem, TaskBatch
from ovkgp.kernels.checks import whole_number
from ovkgp.losses import IntegralLoss, Loss, TaskMeasure, monte_carlo


class NodeBatches:
    """Nodes of a problem, drawn by their weights with return.

    Args:
        problem: with an `IntegralLoss`: other losses see whole curves.
        num_tasks: k.

    Cost: O(k log m) a draw.

    Example:
        >>> import numpy as np, torch
        >>> from ovkgp.inference.task_learning.streamed import StreamedProblem
        >>> from ovkgp.inference.task_learning.task_batches import NodeBatches
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
        self.problem, self.num_tasks = problem, whole_number("tasks", num_tasks)

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
        law: μ, a frozen law of `scipy.stats`; uniform on [0, 1] where None.
        offset: b, from tasks (k,) to (k,); zero where None.

    All tasks must share the target of a row.

    Cost: that of ψ at k tasks.

    Example:
        >>> import numpy as np, torch
        >>> from gpytorch.kernels import RBFKernel
        >>> from ovkgp.features import ORFF
        >>> from ovkgp.inference.task_learning.factors import FeatureFactor
        >>> from ovkgp.inference.task_learning.task_batches import FreshTasks
        >>> from ovkgp.losses import Pinball
        >>> psi = FeatureFactor(ORFF(RBFKernel(), 10, num_dims=1, random_state=0))
        >>> FreshTasks(Pinball(), psi, num_tasks=4)(np.random.default_rng(0)).tasks.shape
        torch.Size([4, 20])
    """

    loss: Loss
    factor: Factor
    num_tasks: int = 8
    law: object = None
    offset: Callable[[Tensor], Tensor] | None = None

    def __call__(self, rng: np.random.Generator) -> TaskBatch:
        measure = monte_carlo(self.num_tasks, self.law, random_state=int(rng.integers(2**31)))
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
        >>> from ovkgp.inference.task_learning.task_batches import row_batches
        >>> batches = row_batches(5, 2, np.random.default_rng(0))
        >>> len({*next(batches).tolist(), *next(batches).tolist()})
        4
    """
    size = min(whole_number("rows", size), num_rows)
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
