"""How heavy the spectral tails of a kernel are: up to which order ‖ω‖ has finite moments."""

from __future__ import annotations

import math
from functools import singledispatch

from gpytorch.kernels import AdditiveKernel, Kernel, MaternKernel, ProductKernel, ScaleKernel

from ovkgp.kernels import (
    BlockwiseProductKernel,
    LaplaceKernel,
    OperatorValuedKernel,
    SobolevKernel,
    TransformableKernel,
    WarpedKernel,
)


@singledispatch
def moment_order(kernel: Kernel) -> float:
    """The supremum of the orders q with E‖ω‖^q < ∞ under the scalar spectral law; infinity for light tails.

    Register a rule for a kernel of your own with heavy tails: ``@moment_order.register(MyKernel)``.
    """
    return math.inf


@moment_order.register
def _(kernel: MaternKernel) -> float:
    return 2 * kernel.nu


@moment_order.register
def _(kernel: LaplaceKernel) -> float:
    return 1.0


@moment_order.register
def _(kernel: SobolevKernel) -> float:
    return 2.0 * kernel.order - 1


@moment_order.register(AdditiveKernel)
@moment_order.register(ProductKernel)
def _(kernel) -> float:
    return min(moment_order(k) for k in kernel.kernels)


@moment_order.register(ScaleKernel)
@moment_order.register(WarpedKernel)
@moment_order.register(TransformableKernel)
def _(kernel) -> float:
    return moment_order(kernel.base_kernel)


@moment_order.register
def _(kernel: BlockwiseProductKernel) -> float:
    return min(moment_order(kernel.base_kernel), moment_order(kernel.scalar_kernel))


@moment_order.register
def _(kernel: OperatorValuedKernel) -> float:
    parts = kernel.components
    if parts is not None:
        return min(moment_order(k) for k, _ in parts)
    return moment_order(kernel.base_kernel) if hasattr(kernel, "base_kernel") else math.inf
