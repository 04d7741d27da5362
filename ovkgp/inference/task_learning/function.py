"""A learned function of input and task, h(x)(θ) = b(θ) + φ(x)ᵀ W ψ(θ), a point in the RKHS with ‖h − b‖ = ‖W‖_F (LT-34)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ovkgp.exceptions import InputError
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

    Cost: O(n r q + n m q) a call, and the rows of φ and ψ.

    Example:
        >>> import torch
        >>> from gpytorch.kernels import RBFKernel
        >>> from ovkgp.inference.task_learning.factors import KernelFactor
        >>> from ovkgp.inference.task_learning.function import TaskFunction
        >>> X, tasks = torch.randn(4, 2).double(), torch.tensor([0.1, 0.5, 0.9]).double()
        >>> phi, psi = KernelFactor(RBFKernel().double(), X), KernelFactor(RBFKernel().double(), tasks)
        >>> h = TaskFunction(phi, psi, torch.ones(4, 3).double())
        >>> h(X, tasks).shape, h.slopes(X, tasks).shape, round(h.norm(), 3)
        (torch.Size([4, 3]), torch.Size([4, 3]), 3.464)
    """

    inputs: Factor
    tasks: Factor
    weights: Tensor
    offset: Callable[[Tensor], Tensor] = zero_offset

    def __call__(self, X: Tensor, tasks: Tensor) -> Tensor:
        """h(x_i)(θ_j), (n, m), for X (n, d) and tasks (m,)."""
        tasks = _vector(tasks)
        return self.offset(tasks) + self._along(X, self.tasks(tasks.unsqueeze(-1)))

    def slopes(self, X: Tensor, tasks: Tensor) -> Tensor:
        """∂_θ h(x_i)(θ_j), (n, m), the slope of the offset included.

        Raises:
            SmoothnessError: ψ has no derivative.
        """
        tasks = _vector(tasks)
        with torch.enable_grad():
            moved = tasks.detach().clone().requires_grad_()
            offset = self.offset(moved)
            slope = torch.autograd.grad(offset.sum(), moved)[0] if offset.requires_grad else torch.zeros_like(tasks)
        return slope + self._along(X, self.tasks.slopes(tasks.unsqueeze(-1)))

    def left_out(self, X: Tensor, tasks: Tensor) -> Tensor:
        """k_X k_Θ − ‖φ‖² ‖ψ‖² (n, m): the prior variance that the coordinates do not hold, all of it far from their anchors."""
        tasks = _vector(tasks).unsqueeze(-1)
        inputs, rows = (factor(points).square().sum(-1) for factor, points in ((self.inputs, X), (self.tasks, tasks)))
        whole = (inputs + self.inputs.left_out(X))[:, None] * (rows + self.tasks.left_out(tasks))
        return whole - inputs[:, None] * rows

    def norm(self) -> float:
        """‖h − b‖ in the RKHS of k_X · k_Θ."""
        return torch.linalg.vector_norm(self.weights).item()

    def _along(self, X: Tensor, rows: Tensor) -> Tensor:
        return self.inputs(X) @ (self.weights @ rows.T)


def _vector(tasks: Tensor) -> Tensor:
    if not torch.is_tensor(tasks) or tasks.dim() != 1:
        given = tuple(tasks.shape) if torch.is_tensor(tasks) else type(tasks).__name__
        raise InputError(f"tasks must be a tensor (m,), got {given}.")
    return tasks.double()
