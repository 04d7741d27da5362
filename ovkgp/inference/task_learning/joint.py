"""Problems that share their weights, as one problem: J(W) = Σ_p risk_p(Φ_p W Ψ_pᵀ) + (λ/2) ‖W‖².

All rows are stacked, and all tasks beside each other; a row of one problem has no weight at the tasks of another. Every solver takes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from ovkgp.exceptions import OptionError
from ovkgp.inference.task_learning.problem import TaskProblem
from ovkgp.inference.task_learning.square_masks import ObservedTasks
from ovkgp.losses import IntegralLoss, Loss


class JoinedLoss(Loss):
    """One loss for the first tasks, another for the next, and so on.

    Args:
        losses: of each group of tasks.
        sizes: how many tasks each has.

    Example:
        >>> import torch
        >>> from ovkgp.inference.task_learning.joint import JoinedLoss
        >>> from ovkgp.losses import Pinball, Square
        >>> loss = JoinedLoss([Square(), Pinball()], [1, 1])
        >>> loss.value(torch.zeros(1, 2), torch.full((1, 2), 2.0), torch.tensor([0.0, 0.9]))
        tensor([[2.0000, 1.8000]])
    """

    name = "joined"

    def __init__(self, losses: Sequence[Loss], sizes: Sequence[int]):
        self.losses = list(losses)
        self.groups = [slice(low, high) for low, high in pairwise([0, *np.cumsum(sizes).tolist()])]

    def _each(self, method: str, u: Tensor, y: Tensor, tasks: Tensor, *step: float | Tensor) -> Tensor:
        parts = []
        for loss, group in zip(self.losses, self.groups, strict=True):
            steps = [each[..., group] if torch.is_tensor(each) else each for each in step]
            parts.append(getattr(loss, method)(u[..., group], y[..., group], tasks[..., group], *steps))
        return torch.cat(parts, -1)

    def value(self, u: Tensor, y: Tensor, tasks: Tensor) -> Tensor:
        return self._each("value", u, y, tasks)

    def derivative(self, u: Tensor, y: Tensor, tasks: Tensor) -> Tensor:
        return self._each("derivative", u, y, tasks)

    def curvature(self, u: Tensor, y: Tensor, tasks: Tensor) -> Tensor:
        return self._each("curvature", u, y, tasks)

    def finite_conjugate(self, a: Tensor, y: Tensor, tasks: Tensor) -> Tensor:
        return self._each("finite_conjugate", a, y, tasks)

    def conjugate(self, a: Tensor, y: Tensor, tasks: Tensor) -> Tensor:
        return self._each("conjugate", a, y, tasks)

    def prox(self, u: Tensor, y: Tensor, tasks: Tensor, step: float | Tensor) -> Tensor:
        return self._each("prox", u, y, tasks, step)

    def nearest_slope(self, a: Tensor, y: Tensor, tasks: Tensor) -> Tensor:
        return self._each("nearest_slope", a, y, tasks)

    def conjugate_prox(self, a: Tensor, y: Tensor, tasks: Tensor, step: float | Tensor) -> Tensor:
        return self._each("conjugate_prox", a, y, tasks, step)


def joined(parts: Sequence[TaskProblem]) -> TaskProblem:
    """The sum of problems in the same weights.

    Args:
        parts: with the same λ and coordinates; losses are `IntegralLoss`, tasks (m, q) shared by all rows.

    Cost: O(N M) memory for N rows and M tasks in all.

    Example:
        >>> import torch
        >>> from ovkgp.inference.task_learning.joint import joined
        >>> from ovkgp.inference.task_learning.problem import TaskProblem
        >>> from ovkgp.losses import IntegralLoss, Square, gauss_legendre
        >>> one, loss = torch.ones(1, 1).double(), IntegralLoss(Square(), gauss_legendre(1))
        >>> parts = [TaskProblem(one, one, y * one, loss, lam=1.0) for y in (1.0, 3.0)]
        >>> joined(parts).objective(one).item()  # ½ 0² + ½ 2² + ½
        2.5
    """
    if not all(isinstance(part.loss, IntegralLoss) and part.is_shared for part in parts):
        raise OptionError(
            "problems are joined whose losses act entry by entry, IntegralLoss(Pinball(), measure), and whose nodes (m,) all rows share."
        )
    rows = sum(part.num_rows for part in parts)
    weights = torch.block_diag(*(rows / part.num_rows * part.entry_weights for part in parts))
    targets = torch.block_diag(*(part.targets.expand(part.entry_weights.shape) for part in parts))
    loss = JoinedLoss([part.loss.loss for part in parts], [len(part.tasks) for part in parts])
    measure = ObservedTasks(torch.cat([part.loss.nodes for part in parts]), weights)
    inputs, tasks = (torch.cat([getattr(part, name) for part in parts]) for name in ("inputs", "tasks"))
    return TaskProblem(inputs, tasks, targets, IntegralLoss(loss, measure), parts[0].lam)
