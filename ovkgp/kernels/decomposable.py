"""Separable kernels, whose matrices are stored as Kronecker products or as blocks and are never dense."""

from __future__ import annotations

from collections.abc import Iterable
from copy import deepcopy

import torch
from gpytorch.kernels import Kernel
from linear_operator import LinearOperator, to_dense, to_linear_operator
from linear_operator.operators import BlockInterleavedLinearOperator
from torch import Tensor

from ovkgp.checks import check_integer
from ovkgp.exceptions import OptionError
from ovkgp.kernels.evaluation import evaluate_kernel
from ovkgp.kernels.outputs.matrices import FreeMatrix, KnownMatrix, OutputMatrix
from ovkgp.kernels.protocol import (
    Component,
    OperatorValuedKernel,
    check_scalar_kernel,
    kronecker,
    kronecker_diagonal,
)


class DecomposableKernel(OperatorValuedKernel):
    """Decomposable kernel K(x, z) = k(x, z) Γ with a scalar kernel k and an output matrix Γ (p, p).

    Parameters
    ----------
    base_kernel : Kernel
        Scalar GPyTorch kernel k, with any batch shape, ARD and `active_dims`.
    num_outputs : int or None, default=None
        Number p of outputs. If None, it is taken from `output_matrix`.
    rank : int or None, default=None
        Rank of the low-rank part of Γ. If None, 1. Must be None if `output_matrix` is given.
    output_matrix : OutputMatrix, Tensor of shape (p, p) or None, default=None
        Output matrix Γ; a tensor is not trained. If None, a trained low-rank-plus-diagonal matrix
        `FreeMatrix(num_outputs, rank)`.

    Notes
    -----
    Complexity: O(n²d + p²) to build, O(n²p + np²) per product; the np × np matrix is never formed.

    Examples
    --------
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
        check_scalar_kernel(base_kernel, "base_kernel")
        self.base_kernel = base_kernel
        self.output_module = _make_output_module(output_matrix, num_outputs, rank, base_kernel.batch_shape)

    @property
    def num_outputs(self) -> int:
        return self.output_module.num_outputs

    @property
    def output_matrix(self) -> Tensor:
        """Output matrix Γ (..., p, p)."""
        return self.output_module()

    @property
    def batch_shape(self) -> torch.Size:
        return torch.broadcast_shapes(super().batch_shape, self.output_module.batch_shape)

    @batch_shape.setter
    def batch_shape(self, value: torch.Size) -> None:  # set by GPyTorch when samples of hyperparameters are loaded
        self._batch_shape = value

    @property
    def is_stationary(self) -> bool:
        return self.base_kernel.is_stationary

    @property
    def components(self) -> list[Component]:
        return [(self.base_kernel, self.output_matrix)]

    def forward(self, x1: Tensor, x2: Tensor, diag: bool = False, **params) -> LinearOperator | Tensor:
        scalar = evaluate_kernel(self.base_kernel, x1, x2, diag, **params)
        return (kronecker_diagonal if diag else kronecker)(scalar, self.output_matrix)


def _make_output_module(matrix, num_outputs: int | None, rank: int | None, batch_shape: torch.Size) -> OutputMatrix:
    if matrix is None:
        if num_outputs is None:
            raise OptionError("num_outputs must be given if output_matrix is None.")
        return FreeMatrix(num_outputs, 1 if rank is None else rank, batch_shape)
    if rank is not None:
        raise OptionError("rank is not supported together with output_matrix. Omit rank.")
    module = matrix if isinstance(matrix, OutputMatrix) else KnownMatrix(matrix)
    if num_outputs is not None and num_outputs != module.num_outputs:
        raise OptionError(f"num_outputs must be {module.num_outputs}, the size of output_matrix, got {num_outputs}.")
    return module


class IndependentKernel(OperatorValuedKernel):
    """Kernel of independent outputs, K(x, z) = diag(k_1(x, z), …, k_p(x, z)), with separate hyperparameters.

    Parameters
    ----------
    kernels : iterable of Kernel
        Scalar GPyTorch kernels k_1, …, k_p, with any batch shape, ARD and `active_dims`.

    Notes
    -----
    Only the p blocks of size n × m are stored. Complexity: O(n m p) to build and per product, O(n³p) for a Cholesky
    factorization, instead of O(n m p²) and O(n³p³) for the dense matrix.

    Examples
    --------
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
            raise OptionError("kernels must be a list of scalar kernels, one per output.")
        for output, kernel in enumerate(kernels):
            check_scalar_kernel(kernel, f"kernels[{output}]")
        self.kernels = torch.nn.ModuleList(kernels)

    @classmethod
    def copies(cls, base_kernel: Kernel, num_outputs: int) -> IndependentKernel:
        """Return a kernel of p copies of a scalar kernel, which are trained separately.

        Parameters
        ----------
        base_kernel : Kernel
            Scalar kernel to copy; it is not modified.
        num_outputs : int
            Number p of outputs.

        Returns
        -------
        IndependentKernel
            The kernel with p copies.

        Examples
        --------
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
        blocks = torch.broadcast_tensors(
            *(to_dense(evaluate_kernel(kernel, x1, x2, diag, **params)) for kernel in self.kernels)
        )
        if diag:
            return torch.stack(blocks, -1).flatten(-2)
        return OutputBlocks(to_linear_operator(torch.stack(blocks, -3)))


class OutputBlocks(BlockInterleavedLinearOperator):
    """Data-major operator (..., n·p, m·p) of p blocks (..., p, n, m), one per output, and zeros between outputs."""

    def to_dense(self) -> Tensor:  # the parent's is a product with the identity, which costs m p times as much
        blocks = to_dense(self.base_linear_op).movedim(-3, -1)  # (..., n, m, p)
        return torch.diag_embed(blocks).transpose(-3, -2).flatten(-2).flatten(-3, -2)

    def _mul_constant(self, other: float | Tensor) -> OutputBlocks:  # the parent's multiplies one constant per block
        if torch.is_tensor(other) and other.dim():
            other = other[..., None, None, None]
        return self.__class__(to_linear_operator(to_dense(self.base_linear_op) * other))
