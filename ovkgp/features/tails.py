"""How heavy the spectral tails of a kernel are: up to which order ‖ω‖ has finite moments."""

from __future__ import annotations

import math
from functools import singledispatch

from gpytorch.kernels import (
    AdditiveKernel,
    Kernel,
    LCMKernel,
    MaternKernel,
    MultitaskKernel,
    ProductKernel,
    ScaleKernel,
)

from ovkgp.exceptions import SpectralError
from ovkgp.kernels import (
    BlockwiseProductKernel,
    FunctionValuedKernel,
    HelmholtzKernel,
    LaplaceKernel,
    OperatorValuedKernel,
    SobolevKernel,
    TransformableKernel,
    WarpedKernel,
    components,
)


@singledispatch
def moment_order(kernel: Kernel) -> float:
    """The supremum of the orders q with E‖ω‖^q < ∞ under the scalar spectral law; infinity for light tails.

    Register a rule for a kernel of your own with heavy tails: ``@moment_order.register(MyKernel)``.

    Args:
        kernel: any kernel with a spectral pair; of an operator-valued one the scalar kernel counts.

    Example:
        >>> from gpytorch.kernels import MaternKernel, RBFKernel
        >>> from ovkgp.features import moment_order
        >>> moment_order(MaternKernel(nu=1.5)), moment_order(RBFKernel())
        (3.0, inf)
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
@moment_order.register(HelmholtzKernel)
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
def _(kernel: FunctionValuedKernel) -> float:
    order = moment_order(kernel.input_kernel)  # on a grid the task kernel is only a matrix
    return min(order, moment_order(kernel.task_kernel)) if kernel.tasks is None else order


@moment_order.register(OperatorValuedKernel)
@moment_order.register(MultitaskKernel)
@moment_order.register(LCMKernel)
def _(kernel) -> float:
    parts = components(kernel)
    if parts is not None:
        return min(moment_order(k) for k, _ in parts)
    return moment_order(kernel.base_kernel) if hasattr(kernel, "base_kernel") else math.inf


def require_finite(kernel: Kernel, order: float, what: str) -> None:
    """Raise where a moment of the frequencies that the features need is infinite."""
    if order >= moment_order(kernel):
        raise SpectralError(
            f"{what} features of {type(kernel).__name__} have infinite variance: E‖ω‖^{order:g} is infinite. Take a "
            "smoother base kernel. A plain RBF, Matérn (nu ≥ 1.5) or RQ kernel, scaled or in a sum, has bounded features "
            "of finite variance, with bounded=True."
        )
