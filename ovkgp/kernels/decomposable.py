"""Decomposable kernels K(x, z) = k(x, z) Γ, the intrinsic coregionalisation model (BT-24).

The Gram matrix is the Kronecker product of the scalar Gram matrix with Γ, and is kept as one.
A sum of decomposable kernels is the linear model of coregionalisation (LMC).
"""

from __future__ import annotations

import torch
from gpytorch.kernels import Kernel
from linear_operator import LinearOperator, to_dense, to_linear_operator
from linear_operator.operators import KroneckerProductLinearOperator
from torch import Tensor

from ovkgp.exceptions import KernelTypeError, OptionError
from ovkgp.kernels.output_matrices import FreeMatrix, KnownMatrix, OutputMatrix
from ovkgp.kernels.protocol import Component, OperatorValuedKernel, is_operator_valued


def kronecker(scalar: LinearOperator | Tensor, matrix: Tensor) -> LinearOperator:
    """The data-major operator with blocks k(x_i, z_j) Γ from k (..., n, m) and Γ (..., p, p)."""
    scalar = to_linear_operator(scalar).evaluate_kernel()
    matrix = matrix.to(scalar.dtype)
    batch_shape = torch.broadcast_shapes(scalar.batch_shape, matrix.shape[:-2])
    if 0 in scalar.matrix_shape:  # a Kronecker product of linear_operator cannot be empty
        rows, columns = (size * matrix.shape[-1] for size in scalar.matrix_shape)
        return to_linear_operator(matrix.new_zeros(*batch_shape, rows, columns))
    matrix = to_linear_operator(matrix.expand(*batch_shape, *matrix.shape[-2:]))
    return KroneckerProductLinearOperator(scalar.expand(*batch_shape, *scalar.matrix_shape), matrix)


def kronecker_diagonal(scalar: Tensor, matrix: Tensor) -> Tensor:
    """The diagonal (..., n·p) of `kronecker`, from the scalar diagonal (..., n)."""
    diagonal = to_dense(scalar).unsqueeze(-1) * matrix.diagonal(dim1=-2, dim2=-1).unsqueeze(-2)
    return diagonal.flatten(-2)


def require_scalar(kernel: Kernel, role: str) -> None:
    """Raise unless `kernel` is a GPyTorch kernel with one output."""
    if not isinstance(kernel, Kernel):
        raise KernelTypeError(f"the {role} must be a gpytorch.kernels.Kernel, got {type(kernel).__name__}.")
    if is_operator_valued(kernel):
        raise KernelTypeError(f"the {role} must be a scalar kernel; {type(kernel).__name__} has several outputs.")


class DecomposableKernel(OperatorValuedKernel):
    """K(x, z) = k(x, z) Γ with a scalar kernel k and an output matrix Γ (p, p).

    Args:
        base_kernel: k, any scalar GPyTorch kernel; batch shapes, ARD and `active_dims` are its own.
        num_outputs: p; taken from `output_matrix` where that is given.
        rank: of the free part of Γ, where `output_matrix` is None; 1 by default.
        output_matrix: an `OutputMatrix` module, a (p, p) tensor (kept fixed), or None for a trained
            low-rank-plus-diagonal matrix `FreeMatrix(num_outputs, rank)`.

    Cost: O(n²d + p²) to build, O(n²p + np²) a product; the np × np matrix is never formed.

    Example:
        >>> import torch
        >>> from gpytorch.kernels import RBFKernel
        >>> from ovkgp.kernels import DecomposableKernel
        >>> kernel = DecomposableKernel(RBFKernel(), num_outputs=3, rank=2)
        >>> kernel(torch.randn(5, 2)).shape
        torch.Size([15, 15])
    """

    def __init__(
        self,
        base_kernel: Kernel,
        num_outputs: int | None = None,
        rank: int | None = None,
        output_matrix: OutputMatrix | Tensor | None = None,
    ):
        super().__init__()
        require_scalar(base_kernel, "base kernel")
        self.base_kernel = base_kernel
        self.output_module = _output_module(output_matrix, num_outputs, rank, base_kernel.batch_shape)

    @property
    def num_outputs(self) -> int:
        return self.output_module.num_outputs

    @property
    def output_matrix(self) -> Tensor:
        """Γ (..., p, p)."""
        return self.output_module()

    @property
    def batch_shape(self) -> torch.Size:
        return torch.broadcast_shapes(super().batch_shape, self.output_module.batch_shape)

    @batch_shape.setter
    def batch_shape(self, value: torch.Size) -> None:  # GPyTorch sets it when samples of hyperparameters are loaded
        self._batch_shape = value

    @property
    def is_stationary(self) -> bool:
        return self.base_kernel.is_stationary

    @property
    def components(self) -> list[Component]:
        return [(self.base_kernel, self.output_matrix)]

    def forward(self, x1: Tensor, x2: Tensor, diag: bool = False, **params) -> LinearOperator | Tensor:
        scalar = self.base_kernel(x1, x2, diag=diag, **params)
        return (kronecker_diagonal if diag else kronecker)(scalar, self.output_matrix)


def _output_module(given, num_outputs: int | None, rank: int | None, batch_shape: torch.Size) -> OutputMatrix:
    if given is None:
        if num_outputs is None:
            raise OptionError("say how many outputs there are: DecomposableKernel(base_kernel, num_outputs=p).")
        return FreeMatrix(num_outputs, 1 if rank is None else rank, batch_shape)
    if rank is not None:
        raise OptionError("rank describes the free output matrix; leave it out when output_matrix is given.")
    module = given if isinstance(given, OutputMatrix) else KnownMatrix(given)
    if num_outputs is not None and num_outputs != module.num_outputs:
        raise OptionError(f"num_outputs={num_outputs} contradicts the {module.num_outputs} outputs of output_matrix.")
    return module
