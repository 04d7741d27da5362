"""Independent outputs: K(x, z) = diag(k_1(x, z), …, k_p(x, z)), a scalar kernel for each output.

Nothing is shared between the outputs. The matrix is kept as its p blocks of n × m numbers: a product costs O(n·m·p)
and a Cholesky factorisation O(n³p), against O(n·m·p²) and O(n³p³) for the dense matrix.
"""

from __future__ import annotations

from collections.abc import Iterable
from copy import deepcopy

import torch
from gpytorch.kernels import Kernel
from linear_operator import LinearOperator, to_dense, to_linear_operator
from linear_operator.operators import BlockInterleavedLinearOperator
from torch import Tensor

from ovkgp.exceptions import OptionError
from ovkgp.kernels.checks import whole_number
from ovkgp.kernels.decomposable import require_scalar
from ovkgp.kernels.protocol import Component, OperatorValuedKernel


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
            require_scalar(kernel, f"kernel of output {place}")
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
        return cls(deepcopy(base_kernel) for _ in range(whole_number("num_outputs", num_outputs)))

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
