"""Shift-invariant kernels on a group, as kernels of warped inputs: K(x, z) = K_0(w(x), w(z)) (BT-18).

The warp w is the group's `embed` and K_0 any kernel on R^q, scalar or operator-valued, so that everything
written for R^q is reused: features, separable structure, derivatives in the hyperparameters.
"""

from __future__ import annotations

from gpytorch.kernels import Kernel
from torch import Tensor

from ovkgp.exceptions import KernelTypeError
from ovkgp.kernels.groups import AdditiveGroup, check_group, column_names
from ovkgp.kernels.protocol import (
    BatchIndexMixin,
    Component,
    OperatorValuedKernel,
    components,
    is_operator_valued,
    num_outputs,
)


class WarpedKernel(BatchIndexMixin, Kernel):
    """A kernel on a group: K(x, z) = K_0(w(x), w(z)), w = `group.embed`.

    The matrix at x (..., n, d) and z (..., m, d) is that of the base kernel at (..., n, q) and (..., m, q),
    q = `group.embedding_dim`; the warp adds O((n + m)·d). The base kernel's ARD and `active_dims` refer to the q
    warped columns, those of this kernel to the inputs. If K_0 is stationary, K(x ⋆ t, z ⋆ t) = K(x, z) (with a
    cyclic group: if K_0 also depends on its column pairs through their distances alone). If K_0 has p outputs, so has
    this kernel: the constructor then returns an `OperatorValuedWarpedKernel`.

    Args:
        base_kernel: the kernel on R^q.
        group: an `AdditiveGroup`, `MultiplicativeGroup`, `SkewedMultiplicativeGroup`, `CyclicGroup` or `ProductGroup`.
        active_dims: the columns of the inputs that the group sees; None is all.

    Raises:
        KernelTypeError, OptionError: the first argument is no kernel, or the second no group.
        DomainError: on a call with an input outside the group.

    Example:
        >>> import torch
        >>> from gpytorch.kernels import RBFKernel
        >>> from ovkgp.kernels import CyclicGroup, WarpedKernel
        >>> kernel = WarpedKernel(RBFKernel(), CyclicGroup(24.0))
        >>> round(kernel(torch.tensor([[1.0]]), torch.tensor([[25.0]])).to_dense().item(), 4)
        1.0
    """

    def __new__(
        cls,
        base_kernel: Kernel | None = None,  # no argument is given when an object is copied or unpickled
        group: AdditiveGroup | None = None,
        active_dims: Tensor | tuple[int, ...] | None = None,
    ):
        if cls is WarpedKernel and isinstance(base_kernel, Kernel) and is_operator_valued(base_kernel):
            cls = OperatorValuedWarpedKernel
        return super().__new__(cls)

    def __init__(self, base_kernel: Kernel, group: AdditiveGroup, active_dims: Tensor | tuple[int, ...] | None = None):
        super().__init__(active_dims=active_dims)
        if not isinstance(base_kernel, Kernel):
            raise KernelTypeError(
                f"the base kernel must be a gpytorch.kernels.Kernel, got {type(base_kernel).__name__}."
            )
        check_group(group)
        self.columns = column_names(self.active_dims)
        self.base_kernel = base_kernel
        self.group = group

    @property
    def is_stationary(self) -> bool:
        return type(self.group) is AdditiveGroup and self.base_kernel.is_stationary

    def forward(self, x1: Tensor, x2: Tensor, diag: bool = False, **params):
        z1 = self.group(x1, self.columns)
        z2 = z1 if x2 is x1 else self.group(x2, self.columns)
        return self.base_kernel(z1, z2, diag=diag, **params)


class OperatorValuedWarpedKernel(WarpedKernel, OperatorValuedKernel):
    """What `WarpedKernel` makes of a base kernel with p outputs; it has the same arguments.

    Example:
        >>> from gpytorch.kernels import MultitaskKernel, RBFKernel
        >>> from ovkgp.kernels import MultiplicativeGroup, WarpedKernel
        >>> WarpedKernel(MultitaskKernel(RBFKernel(), num_tasks=3), MultiplicativeGroup()).num_outputs
        3
    """

    @property
    def num_outputs(self) -> int:
        """The number p of outputs of the base kernel."""
        return num_outputs(self.base_kernel)

    @property
    def components(self) -> list[Component] | None:
        """Those of the base kernel, each scalar kernel warped; None where the base kernel is not separable."""
        inner = components(self.base_kernel)
        if inner is None:
            return None
        return [(WarpedKernel(kernel, self.group, self.active_dims), matrix) for kernel, matrix in inner]

    def num_outputs_per_input(self, x1: Tensor, x2: Tensor) -> int:
        return self.base_kernel.num_outputs_per_input(self.group.embed(x1), self.group.embed(x2))
