"""Independent outputs: K(x, z) = diag(k_1(x, z), …, k_p(x, z)), a scalar kernel for each output.

Nothing is shared between the outputs. The matrix is kept as its p blocks of n × m numbers: a product costs O(n·m·p)
and a Cholesky factorisation O(n³p), against O(n·m·p²) and O(n³p³) for the dense matrix.
"""

from __future__ import annotations

from collections.abc import Iterable
from copy import deepcopy

import torch
from gpytorch.kernels import Kernel, ProductKernel
from linear_operator import LinearOperator, to_dense, to_linear_operator
from linear_operator.operators import BlockInterleavedLinearOperator, KroneckerProductLinearOperator
from torch import Tensor

from ovkgp.checks import check_integer
from ovkgp.exceptions import KernelTypeError, OptionError
from ovkgp.kernels.outputs.matrices import FreeMatrix, KnownMatrix, OutputMatrix
from ovkgp.kernels.protocol import Component, OperatorValuedKernel, components, is_operator_valued, num_outputs


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


def check_scalar(kernel: Kernel, role: str) -> None:
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
        check_scalar(base_kernel, "base kernel")
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


class BlockwiseProductKernel(OperatorValuedKernel):
    """k(x, z) K(x, z): what ``operator_valued * scalar`` makes. Kronecker products stay Kronecker products.

    Args:
        base_kernel: K, with p outputs.
        scalar_kernel: k.

    Cost: that of the two kernels, and O(n·m·p²) for a base kernel that is not separable.

    Example:
        >>> from gpytorch.kernels import PeriodicKernel, RBFKernel
        >>> from ovkgp.kernels import DecomposableKernel
        >>> kernel = DecomposableKernel(RBFKernel(), num_outputs=2) * PeriodicKernel()
        >>> len(kernel.components)
        1
    """

    def __init__(self, base_kernel: Kernel, scalar_kernel: Kernel):
        super().__init__()
        if not isinstance(base_kernel, Kernel):
            raise KernelTypeError(
                f"the first factor must be a gpytorch.kernels.Kernel, got {type(base_kernel).__name__}."
            )
        check_scalar(scalar_kernel, "second factor")
        self.base_kernel = base_kernel
        self.scalar_kernel = scalar_kernel

    @property
    def num_outputs(self) -> int:
        return num_outputs(self.base_kernel)

    def num_outputs_per_input(self, x1: Tensor, x2: Tensor) -> int:
        return self.base_kernel.num_outputs_per_input(x1, x2)

    @property
    def is_stationary(self) -> bool:
        return self.base_kernel.is_stationary and self.scalar_kernel.is_stationary

    @property
    def components(self) -> list[Component] | None:
        parts = components(self.base_kernel)
        return None if parts is None else [(ProductKernel(k, self.scalar_kernel), matrix) for k, matrix in parts]

    def forward(self, x1: Tensor, x2: Tensor, diag: bool = False, **params) -> LinearOperator | Tensor:
        parts = components(self.base_kernel)
        if diag or parts is None:
            p = self.num_outputs_per_input(x1, x2)
            scalar = to_dense(self.scalar_kernel(x1, x2, diag=diag, **params))
            for dim in (-1,) if diag else (-1, -2):
                scalar = scalar.repeat_interleave(p, dim)
            return scalar * to_dense(self.base_kernel(x1, x2, diag=diag, **params))
        scalar = to_dense(self.scalar_kernel(x1, x2, **params))
        first, *rest = (kronecker(scalar * to_dense(k(x1, x2, **params)), matrix) for k, matrix in parts)
        return sum(rest, first)


class IndependentKernel(OperatorValuedKernel):
    """K(x, z) = diag(k_1(x, z), …, k_p(x, z)): p scalar kernels, each with hyperparameters of its own.

    Args:
        kernels: k_1, …, k_p, scalar GPyTorch kernels; batch shapes, ARD and `active_dims` are their own.

    Cost: O(n·m·p) to build (plus the scalar kernels themselves) and for a product; the matrix at x (..., n, d) and
    z (..., m, d) is (..., n·p, m·p), and its off-diagonal zeros are not stored.

    Example:
        >>> import torch
        >>> from gpytorch.kernels import MaternKernel, RBFKernel
        >>> from ovkgp.kernels import IndependentKernel, block
        >>> kernel = IndependentKernel([RBFKernel(), MaternKernel(nu=1.5)])
        >>> kernel(torch.randn(5, 2)).shape
        torch.Size([10, 10])
        >>> block(kernel, torch.zeros(2), torch.zeros(2)).tolist()
        [[1.0, 0.0], [0.0, 1.0]]
    """

    def __init__(self, kernels: Iterable[Kernel]):
        super().__init__()
        if not isinstance(kernels, Iterable) or len(kernels := list(kernels)) < 1:
            raise OptionError("independent outputs need a list of scalar kernels, one for each output.")
        for place, kernel in enumerate(kernels):
            check_scalar(kernel, f"kernel of output {place}")
        self.kernels = torch.nn.ModuleList(kernels)

    @classmethod
    def copies(cls, base_kernel: Kernel, num_outputs: int) -> IndependentKernel:
        """p copies of one kernel, which then go their own ways.

        Args:
            base_kernel: where each starts; itself left alone.
            num_outputs: p.

        Example:
            >>> from gpytorch.kernels import RBFKernel
            >>> from ovkgp.kernels import IndependentKernel
            >>> IndependentKernel.copies(RBFKernel(), num_outputs=3).num_outputs
            3
        """
        return cls(deepcopy(base_kernel) for _ in range(check_integer("num_outputs", num_outputs)))

    @property
    def num_outputs(self) -> int:
        return len(self.kernels)

    @property
    def is_stationary(self) -> bool:
        return all(kernel.is_stationary for kernel in self.kernels)

    @property
    def components(self) -> list[Component]:
        eye = torch.eye(self.num_outputs, dtype=self.dtype, device=self.device)
        return [(kernel, torch.diag(row)) for kernel, row in zip(self.kernels, eye, strict=True)]

    def forward(self, x1: Tensor, x2: Tensor, diag: bool = False, **params) -> LinearOperator | Tensor:
        blocks = torch.broadcast_tensors(*(to_dense(kernel(x1, x2, diag=diag, **params)) for kernel in self.kernels))
        if diag:
            return torch.stack(blocks, -1).flatten(-2)
        return OutputBlocks(to_linear_operator(torch.stack(blocks, -3)))


class OutputBlocks(BlockInterleavedLinearOperator):
    """The data-major (..., n·p, m·p) operator of p blocks (..., p, n, m), one an output, zero between outputs.

    GPyTorch's operator for the same matrix makes it dense by a product with the identity, O(n·m·p) times m·p, and
    takes a batch of constants for one constant a block; both are mended here.
    """

    def to_dense(self) -> Tensor:
        blocks = to_dense(self.base_linear_op).movedim(-3, -1)  # (..., n, m, p)
        return torch.diag_embed(blocks).transpose(-3, -2).flatten(-2).flatten(-3, -2)

    def _mul_constant(self, other: float | Tensor) -> OutputBlocks:
        if torch.is_tensor(other) and other.dim():
            other = other[..., None, None, None]
        return self.__class__(to_linear_operator(to_dense(self.base_linear_op) * other))
