"""The blockwise product of an operator-valued kernel with a scalar one: k(x, z) K(x, z)."""

from __future__ import annotations

from gpytorch.kernels import Kernel, ProductKernel
from linear_operator import LinearOperator, to_dense
from torch import Tensor

from ovkgp.exceptions import KernelTypeError
from ovkgp.kernels.decomposable import kronecker, require_scalar
from ovkgp.kernels.protocol import Component, OperatorValuedKernel, components, num_outputs


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
        require_scalar(scalar_kernel, "second factor")
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
