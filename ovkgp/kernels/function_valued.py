"""Function-valued kernels: f(x) is a function of a task θ, with covariance k_X(x, x') k_Θ(θ, θ') (BT-31, BT-32, LT-34).

The kernel k_X · I on the task RKHS, the integral operator k_X · T_{k_Θ} and the product kernel on pairs (x, θ) describe
the same process. A measure on the tasks is part of the loss, not of the prior.
"""

from __future__ import annotations

import torch
from gpytorch.kernels import Kernel
from linear_operator import LinearOperator, to_dense
from torch import Tensor

from ovkgp.exceptions import InputError, KernelTypeError, OptionError
from ovkgp.kernels.evaluation import evaluate_kernel
from ovkgp.kernels.protocol import (
    Component,
    OperatorValuedKernel,
    check_scalar_kernel,
    components,
    kronecker,
    kronecker_diagonal,
    num_outputs,
    scalar_component,
)


class FunctionValuedKernel(OperatorValuedKernel):
    """Covariance k_X(x, x') k_Θ(θ, θ') of a function-valued process.

    Parameters
    ----------
    input_kernel : Kernel
        Kernel k_X, scalar, or separable with q outputs for vector-valued functions.
    task_kernel : Kernel
        Scalar kernel k_Θ.
    tasks : Tensor of shape (m,) or (m, t) or None, default=None
        Grid of tasks shared by all inputs. There are then p = m (or m·q, task-major) outputs, and the matrix is the
        Kronecker product of k_X with k_Θ on the grid. If None, inputs are pairs (x, θ): the last t columns are the
        task, with t from the ARD of the task kernel, or 1.

    Notes
    -----
    Complexity: on a grid that of `DecomposableKernel` with p = m; on pairs that of the two kernels.

    References
    ----------
    BT-31, BT-32, LT-34

    Examples
    --------
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
        check_scalar_kernel(task_kernel, "task_kernel")
        if components(input_kernel) is None:
            raise KernelTypeError(f"input_kernel must be scalar or separable, got {type(input_kernel).__name__}.")
        self.input_kernel = input_kernel
        self.task_kernel = task_kernel
        self.register_buffer("tasks", None if tasks is None else _as_grid(tasks))
        if tasks is not None and task_kernel.ard_num_dims not in (None, self.tasks.shape[-1]):
            raise OptionError(
                f"task_kernel has {task_kernel.ard_num_dims} lengthscales, expected {self.tasks.shape[-1]}, the number of columns of tasks."
            )

    @property
    def num_outputs(self) -> int:
        return num_outputs(self.input_kernel) * (1 if self.tasks is None else len(self.tasks))

    @property
    def is_scalar(self) -> bool:
        return self.tasks is None and num_outputs(self.input_kernel) == 1

    @property
    def num_task_dims(self) -> int:
        """Number t of task columns of inputs (x, task)."""
        return self.task_kernel.ard_num_dims or 1

    @property
    def components(self) -> list[Component] | None:
        if self.tasks is None:
            return scalar_component(self) if self.is_scalar else None
        grid = to_dense(evaluate_kernel(self.task_kernel, self.tasks))
        return [(kernel, _kron(grid, matrix.to(grid))) for kernel, matrix in components(self.input_kernel)]

    def forward(self, x1: Tensor, x2: Tensor, diag: bool = False, **params) -> LinearOperator | Tensor:
        product = kronecker_diagonal if diag else kronecker
        scalar = torch.ones((), dtype=x1.dtype, device=x1.device)
        pairs = components(self.input_kernel) if self.tasks is None else self.components
        if self.tasks is None:
            (x1, t1), (x2, t2) = self._split(x1), self._split(x2)
            scalar = to_dense(evaluate_kernel(self.task_kernel, t1, t2, diag, **params))
        first, *rest = (
            product(scalar * to_dense(evaluate_kernel(k, x1, x2, diag, **params)), matrix) for k, matrix in pairs
        )
        return sum(rest, first)

    def _split(self, x: Tensor) -> tuple[Tensor, Tensor]:
        if x.shape[-1] <= self.num_task_dims:
            raise InputError(
                f"Without tasks, inputs must be (x, task) pairs with the task in the last {self.num_task_dims} column(s), got {x.shape[-1]} column(s)."
            )
        return x[..., : -self.num_task_dims], x[..., -self.num_task_dims :]


def _kron(a: Tensor, b: Tensor) -> Tensor:
    """Return the Kronecker product over the last two dimensions; `torch.kron` would multiply batch shapes too."""
    return torch.einsum("...ij,...kl->...ikjl", a, b).flatten(-2).flatten(-3, -2)


def _as_grid(tasks: Tensor) -> Tensor:
    tasks = torch.as_tensor(tasks)
    tasks = tasks.to(torch.get_default_dtype()) if not tasks.is_floating_point() else tasks
    tasks = tasks.unsqueeze(-1) if tasks.dim() == 1 else tasks
    if tasks.dim() != 2 or len(tasks) == 0 or not torch.isfinite(tasks).all():
        raise InputError(f"tasks must be a finite grid of shape (m,) or (m, t), got shape {tuple(tasks.shape)}.")
    return tasks
