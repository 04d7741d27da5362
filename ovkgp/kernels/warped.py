"""Shift-invariant kernels on a group, as kernels of warped inputs: K(x, z) = K_0(w(x), w(z)) (BT-18)."""

from __future__ import annotations

from gpytorch.kernels import Kernel
from torch import Tensor

from ovkgp.kernels.evaluation import evaluate_kernel
from ovkgp.kernels.groups import AdditiveGroup, check_group, list_columns
from ovkgp.kernels.protocol import (
    BatchIndexMixin,
    Component,
    OperatorValuedKernel,
    check_kernel,
    components,
    is_operator_valued,
    num_outputs,
)


class WarpedKernel(BatchIndexMixin, Kernel):
    """Kernel on a group: K(x, z) = K_0(w(x), w(z)) with the warp w = `group.embed` from R^d to R^q.

    If K_0 is stationary, K is shift-invariant, K(x ⋆ t, z ⋆ t) = K(x, z); with a cyclic group K_0 must also depend on
    pairs of warped columns only through their distance. If K_0 has p outputs, the constructor returns an
    `OperatorValuedWarpedKernel`, which has p outputs too.

    Parameters
    ----------
    base_kernel : Kernel
        Kernel K_0 on R^q, scalar or operator-valued. Its ARD and `active_dims` refer to the q warped columns.
    group : AdditiveGroup
        An `AdditiveGroup`, `MultiplicativeGroup`, `SkewedMultiplicativeGroup`, `CyclicGroup` or `ProductGroup`.
    active_dims : tuple of int or Tensor or None, default=None
        Input columns passed to the group. If None, all columns.

    Raises
    ------
    KernelTypeError, OptionError
        If `base_kernel` is not a kernel or `group` is not a group.
    DomainError
        If the kernel is called with an input outside the group.

    Notes
    -----
    Complexity: that of the base kernel, plus O((n + m) d) for the warp.

    References
    ----------
    BT-18

    Examples
    --------
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
        check_kernel(base_kernel, "base_kernel")
        check_group(group)
        self.columns = list_columns(self.active_dims)
        self.base_kernel = base_kernel
        self.group = group

    @property
    def is_stationary(self) -> bool:
        return type(self.group) is AdditiveGroup and self.base_kernel.is_stationary

    def forward(self, x1: Tensor, x2: Tensor, diag: bool = False, **params):
        z1 = self.group(x1, self.columns)
        z2 = z1 if x2 is x1 else self.group(x2, self.columns)
        return evaluate_kernel(self.base_kernel, z1, z2, diag, **params)


class OperatorValuedWarpedKernel(WarpedKernel, OperatorValuedKernel):
    """`WarpedKernel` of a base kernel with p outputs."""

    @property
    def num_outputs(self) -> int:
        """Number p of outputs of the base kernel."""
        return num_outputs(self.base_kernel)

    @property
    def components(self) -> list[Component] | None:
        """Components of the base kernel with warped scalar kernels; None if the base kernel is not separable."""
        inner = components(self.base_kernel)
        if inner is None:
            return None
        return [(WarpedKernel(kernel, self.group, self.active_dims), matrix) for kernel, matrix in inner]

    def num_outputs_per_input(self, x1: Tensor, x2: Tensor) -> int:
        return self.base_kernel.num_outputs_per_input(self.group.embed(x1), self.group.embed(x2))
