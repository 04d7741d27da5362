"""A learned function of input and task, h(x)(θ) = b(θ) + φ(x)ᵀ W ψ(θ)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ovkgp.inference.task_learning.factors import Factor


def zero_offset(tasks: Tensor) -> Tensor:
    """b = 0."""
    return torch.zeros_like(tasks)


@dataclass
class TaskFunction:
    """h.

    Args:
        inputs, tasks: φ and ψ.
        weights: W (r, q).
        offset: b, from tasks (m,) to (m,): the mean of the prior.
    """

    inputs: Factor
    tasks: Factor
    weights: Tensor
    offset: Callable[[Tensor], Tensor] = zero_offset

    def __call__(self, X: Tensor, tasks: Tensor) -> Tensor:
        """h(x_i)(θ_j), (n, m), for X (n, d) and tasks (m,). Cost O(n r q + n m q) and the rows of φ."""
        return self.offset(tasks) + self.inputs(X) @ self.weights @ self.tasks(tasks.unsqueeze(-1)).T
