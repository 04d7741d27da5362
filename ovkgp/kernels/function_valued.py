"""Function-valued kernels: f(x) is a function of a task θ, with covariance k_X(x, x') k_Θ(θ, θ') (BT-31, BT-32, LT-34).

The kernel k_X · I on the task RKHS, the integral operator k_X · T_{k_Θ} and the product kernel on pairs (x, θ)
are three views of this one process; a measure on the tasks matters to the loss, not to the prior.
"""

from __future__ import annotations

import torch
from gpytorch.kernels import Kernel
from gpytorch.settings import lazily_evaluate_kernels
from linear_operator import LinearOperator, to_dense
from torch import Tensor

from ovkgp.exceptions import InputError, KernelTypeError, OptionError
from ovkgp.kernels.decomposable import check_scalar, kronecker, kronecker_diagonal
from ovkgp.kernels.protocol import Component, OperatorValuedKernel, components, num_outputs, scalar_component


class FunctionValuedKernel(OperatorValuedKernel):
    """Covariance k_X(x, x') k_Θ(θ, θ') of a function-valued process.

    Args:
        input_kernel: k_X, scalar, or separable with q outputs for vector-valued tasks.
        task_kernel: k_Θ, scalar.
        tasks: a grid (m,) or (m, t) of tasks shared by all inputs. There are then p = m (or m·q, task-major)
            outputs and the matrix is the Kronecker product of k_X with k_Θ on the grid. With None the inputs are
            pairs: the last t columns of x are the task, t from the task kernel's ARD, or 1.

    Cost: on a grid as `DecomposableKernel` with p = m; on pairs that of the two kernels.

    Example:
        >>> import torch
        >>> from gpytorch.kernels import RBFKernel
        >>> from ovkgp.kernels import FunctionValuedKernel
        >>> grid = FunctionValuedKernel(RBFKernel(), RBFKernel(), tasks=torch.linspace(0, 1, 4))
        >>> pairs = FunctionValuedKernel(RBFKernel(), RBFKernel())
        >>> grid(torch.randn(5, 2)).shape, pairs(torch.randn(5, 3)).shape
        (torch.Size([20, 20]), torch.Size([5, 5]))
    """

    def __init__(self, input_kernel: Kernel, task_kernel: Kernel, tasks: Tensor | None = None):
        super().__init__()
        check_scalar(task_kernel, "task kernel")
        if components(input_kernel) is None:
            raise KernelTypeError(f"the input kernel must be scalar or separable, got {type(input_kernel).__name__}.")
        self.input_kernel = input_kernel
        self.task_kernel = task_kernel
        self.register_buffer("tasks", None if tasks is None else _as_grid(tasks))
        if tasks is not None and task_kernel.ard_num_dims not in (None, self.tasks.shape[-1]):
            raise OptionError(
                f"the task kernel has {task_kernel.ard_num_dims} lengthscales, but tasks have {self.tasks.shape[-1]} column(s)."
            )

    @property
    def num_outputs(self) -> int:
        return num_outputs(self.input_kernel) * (1 if self.tasks is None else len(self.tasks))

    @property
    def is_scalar(self) -> bool:
        return self.tasks is None and num_outputs(self.input_kernel) == 1

    @property
    def num_task_dims(self) -> int:
        """How many columns hold the task, where inputs are (x, task) pairs."""
        return self.task_kernel.ard_num_dims or 1

    @property
    def components(self) -> list[Component] | None:
        if self.tasks is None:
            return scalar_component(self) if self.is_scalar else None
        with lazily_evaluate_kernels(False):
            grid = to_dense(self.task_kernel(self.tasks))
        return [(kernel, _kron(grid, matrix.to(grid))) for kernel, matrix in components(self.input_kernel)]

    def forward(self, x1: Tensor, x2: Tensor, diag: bool = False, **params) -> LinearOperator | Tensor:
        product = kronecker_diagonal if diag else kronecker
        scalar = torch.ones((), dtype=x1.dtype, device=x1.device)
        parts = components(self.input_kernel) if self.tasks is None else self.components
        if self.tasks is None:
            (x1, t1), (x2, t2) = self._split(x1), self._split(x2)
            scalar = to_dense(self.task_kernel(t1, t2, diag=diag, **params))
        first, *rest = (product(scalar * to_dense(k(x1, x2, diag=diag, **params)), matrix) for k, matrix in parts)
        return sum(rest, first)

    def _split(self, x: Tensor) -> tuple[Tensor, Tensor]:
        if x.shape[-1] <= self.num_task_dims:
            raise InputError(
                f"without a grid of tasks the inputs are (x, task) pairs with the task in the last "
                f"{self.num_task_dims} column(s); got only {x.shape[-1]} column(s)."
            )
        return x[..., : -self.num_task_dims], x[..., -self.num_task_dims :]


def _kron(a: Tensor, b: Tensor) -> Tensor:
    """The Kronecker product over the last two dimensions; `torch.kron` would multiply batch shapes too."""
    return torch.einsum("...ij,...kl->...ikjl", a, b).flatten(-2).flatten(-3, -2)


def _as_grid(tasks: Tensor) -> Tensor:
    tasks = torch.as_tensor(tasks)
    tasks = tasks.to(torch.get_default_dtype()) if not tasks.is_floating_point() else tasks
    tasks = tasks.unsqueeze(-1) if tasks.dim() == 1 else tasks
    if tasks.dim() != 2 or len(tasks) == 0 or not torch.isfinite(tasks).all():
        raise InputError(f"tasks must be a finite grid of shape (m,) or (m, t), got shape {tuple(tasks.shape)}.")
    return tasks
