"""The interface of operator-valued kernels, and functions that read the structure of any kernel.

An operator-valued kernel with p outputs is a GPyTorch kernel whose matrix at x (n, d) and z (m, d) has size (n·p) ×
(m·p), **data-major**: block (i, j) is the p × p matrix K(x_i, z_j). `num_outputs`, `block` and `components` support the
kernels of this package and GPyTorch's scalar, multitask, scaled, sum and product kernels; custom kernels define
attributes of these names.
"""

from __future__ import annotations

from functools import singledispatch

import torch
from gpytorch.kernels import AdditiveKernel, Kernel, LCMKernel, MultitaskKernel, ProductKernel, ScaleKernel
from linear_operator import LinearOperator, to_dense, to_linear_operator
from linear_operator.operators import KroneckerProductLinearOperator
from torch import Tensor

from ovkgp.exceptions import InputError, KernelTypeError, OptionError
from ovkgp.kernels.batch_index import BatchIndexMixin
from ovkgp.kernels.evaluation import evaluate_kernel

Component = tuple[Kernel, Tensor]


class OperatorValuedKernel(BatchIndexMixin, Kernel):
    """Base class of kernels with p outputs.

    A subclass defines `forward` and `num_outputs`, or `num_outputs_per_input` if p is the dimension of the inputs.
    ``kernel * scalar_kernel`` and ``scalar_kernel * kernel`` multiply every block by the value of the scalar kernel; the sum of
    kernels with different numbers of outputs is an error.

    Examples
    --------
    Two outputs, a function with covariance k(δ) = exp(−δ²/2) and its derivative, in one dimension.

    >>> import torch
    >>> from ovkgp.kernels import OperatorValuedKernel, block
    >>> class ValueAndSlope(OperatorValuedKernel):
    ...     num_outputs = 2
    ...     def forward(self, x1, x2, diag=False, **params):
    ...         t = x1 - x2 if diag else x1 - x2.mT  # lags
    ...         k = torch.exp(-t.square() / 2)
    ...         if diag:
    ...             return torch.stack([k, k * (1 - t.square())], -1).flatten(-3)
    ...         blocks = torch.stack([k, t * k, -t * k, k * (1 - t.square())], -1).unflatten(-1, (2, 2))
    ...         return blocks.transpose(-3, -2).flatten(-2).flatten(-3, -2)  # data-major
    >>> ValueAndSlope()(torch.randn(5, 1)).shape
    torch.Size([10, 10])
    >>> block(ValueAndSlope(), torch.zeros(1), torch.zeros(1)).abs().tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """

    @property
    def num_outputs(self) -> int:
        """Number p of outputs."""
        raise KernelTypeError(f"{type(self).__name__} must define `num_outputs`.")

    @property
    def is_scalar(self) -> bool:
        """Whether the kernel has one output and can be used as a scalar kernel."""
        return False

    @property
    def components(self) -> list[Component] | None:
        """Pairs (scalar kernel, (p, p) output matrix) whose products sum to this kernel; None if not separable."""
        return None

    def num_outputs_per_input(self, x1: Tensor, x2: Tensor) -> int:
        return self.num_outputs

    def block(self, x: Tensor, z: Tensor) -> Tensor:
        """Return K(x, z) as a (p, p) tensor; see `ovkgp.kernels.block`.

        Parameters
        ----------
        x, z : Tensor of shape (d,)
            Two points.

        Returns
        -------
        Tensor of shape (p, p)
            Block of the kernel.
        """
        return block(self, x, z)


class BlockwiseProductKernel(OperatorValuedKernel):
    """Product k(x, z) K(x, z) of a scalar and an operator-valued kernel, the result of multiplying them.

    The product with a separable kernel is separable.

    Parameters
    ----------
    base_kernel : Kernel
        Kernel K with p outputs.
    scalar_kernel : Kernel
        Scalar kernel k.

    Notes
    -----
    Complexity: that of the two kernels, plus O(n m p²) if the base kernel is not separable.

    Examples
    --------
    >>> from gpytorch.kernels import PeriodicKernel, RBFKernel
    >>> from ovkgp.kernels import DecomposableKernel
    >>> kernel = DecomposableKernel(RBFKernel(), num_outputs=2) * PeriodicKernel()
    >>> len(kernel.components)
    1
    """

    def __init__(self, base_kernel: Kernel, scalar_kernel: Kernel):
        super().__init__()
        check_kernel(base_kernel, "base_kernel")
        check_scalar_kernel(scalar_kernel, "scalar_kernel")
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
        pairs = components(self.base_kernel)
        return None if pairs is None else [(ProductKernel(k, self.scalar_kernel), matrix) for k, matrix in pairs]

    def forward(self, x1: Tensor, x2: Tensor, diag: bool = False, **params) -> LinearOperator | Tensor:
        pairs = components(self.base_kernel)
        if diag or pairs is None:
            p = self.num_outputs_per_input(x1, x2)
            scalar = to_dense(evaluate_kernel(self.scalar_kernel, x1, x2, diag, **params))
            for dim in (-1,) if diag else (-1, -2):
                scalar = scalar.repeat_interleave(p, dim)
            return scalar * to_dense(evaluate_kernel(self.base_kernel, x1, x2, diag, **params))
        scalar = to_dense(evaluate_kernel(self.scalar_kernel, x1, x2, **params))
        first, *rest = (
            kronecker(scalar * to_dense(evaluate_kernel(k, x1, x2, **params)), matrix) for k, matrix in pairs
        )
        return sum(rest, first)


def is_operator_valued(kernel: Kernel) -> bool:
    """Return whether a kernel has a matrix, rather than a number, as the value at a pair of points.

    Parameters
    ----------
    kernel : Kernel
        Any GPyTorch kernel.

    Returns
    -------
    bool
        True for an operator-valued kernel.

    Examples
    --------
    >>> from gpytorch.kernels import RBFKernel, ScaleKernel
    >>> from ovkgp.kernels import CurlFreeKernel, is_operator_valued
    >>> is_operator_valued(RBFKernel()), is_operator_valued(ScaleKernel(CurlFreeKernel(RBFKernel(ard_num_dims=2))))
    (False, True)
    """
    if isinstance(kernel, OperatorValuedKernel):
        return not kernel.is_scalar
    if isinstance(kernel, (MultitaskKernel, LCMKernel)):
        return True
    if isinstance(kernel, (AdditiveKernel, ProductKernel)):
        return any(is_operator_valued(k) for k in kernel.kernels)
    if (inner := _get_wrapped_kernel(kernel)) is not None:
        return is_operator_valued(inner)
    return hasattr(kernel, "num_outputs") or type(kernel).num_outputs_per_input is not Kernel.num_outputs_per_input


def _get_wrapped_kernel(kernel: Kernel) -> Kernel | None:
    """Return the kernel inside one of GPyTorch's wrappers (scale, inducing points, grid, cylinder, …), or None."""
    for name in ("base_kernel", "radial_base_kernel"):
        if isinstance(inner := getattr(kernel, name, None), Kernel):
            return inner
    return None


def block(kernel: Kernel, x: Tensor, z: Tensor) -> Tensor:
    """Compute the covariance K(x, z) between the outputs at a point x and at a point z.

    Parameters
    ----------
    kernel : Kernel
        Any kernel; the block of a scalar kernel has shape (1, 1).
    x, z : Tensor of shape (d,) or (1, d)
        The two points.

    Returns
    -------
    Tensor of shape (p, p)
        The block K(x, z).

    Examples
    --------
    >>> import torch
    >>> from gpytorch.kernels import RBFKernel
    >>> from ovkgp.kernels import CurlFreeKernel, block
    >>> block(CurlFreeKernel(RBFKernel(ard_num_dims=2)), torch.zeros(2), torch.ones(2)).shape
    torch.Size([2, 2])
    """
    check_kernel(kernel)
    if isinstance(kernel, ProductKernel):
        num_outputs(kernel)  # raises if the factors are incompatible
    x, z = torch.atleast_2d(x, z)
    if x.shape[-2] != 1 or z.shape[-2] != 1:
        raise InputError(
            f"x and z must be single points of shape (d,) or (1, d), got {tuple(x.shape)} and {tuple(z.shape)}. For many points call kernel(x, z)."
        )
    return to_dense(evaluate_kernel(kernel, x, z))


@singledispatch
def num_outputs(kernel: Kernel) -> int:
    """Return the number p of outputs of a kernel.

    Parameters
    ----------
    kernel : Kernel
        Any GPyTorch kernel.

    Returns
    -------
    int
        Number of outputs; 1 for a scalar kernel.

    Examples
    --------
    >>> from gpytorch.kernels import RBFKernel, ScaleKernel
    >>> from ovkgp.kernels import DecomposableKernel, num_outputs
    >>> num_outputs(ScaleKernel(DecomposableKernel(RBFKernel(), num_outputs=3))), num_outputs(RBFKernel())
    (3, 1)
    """
    check_kernel(kernel)
    if hasattr(kernel, "num_outputs"):
        return int(kernel.num_outputs)
    if type(kernel).num_outputs_per_input is Kernel.num_outputs_per_input:
        return 1
    if (inner := _get_wrapped_kernel(kernel)) is not None:
        return num_outputs(inner)
    raise KernelTypeError(f"{type(kernel).__name__} has several outputs and must define `num_outputs`.")


@singledispatch
def components(kernel: Kernel) -> list[Component] | None:
    """Return the separable structure of a kernel, K(x, z) = Σ_q k_q(x, z) Γ_q.

    Parameters
    ----------
    kernel : Kernel
        Any GPyTorch kernel.

    Returns
    -------
    list of (Kernel, Tensor) or None
        Scalar kernels k_q and output matrices Γ_q (p, p): one pair for an ICM, several for an LMC, None if the kernel
        is not separable. The matrices are differentiable in the hyperparameters. A scalar kernel has one pair, with Γ =
        [[1]].

    Examples
    --------
    >>> from gpytorch.kernels import MaternKernel, RBFKernel
    >>> from ovkgp.kernels import DecomposableKernel, components
    >>> lmc = DecomposableKernel(RBFKernel(), num_outputs=3) + DecomposableKernel(MaternKernel(), num_outputs=3)
    >>> [(type(k).__name__, matrix.shape) for k, matrix in components(lmc)]
    [('RBFKernel', torch.Size([3, 3])), ('MaternKernel', torch.Size([3, 3]))]
    """
    check_kernel(kernel)
    if hasattr(kernel, "components"):
        return kernel.components
    return None if is_operator_valued(kernel) else scalar_component(kernel)


def scalar_component(kernel: Kernel) -> list[Component]:
    """Return a scalar kernel as its single component."""
    return [(kernel, torch.ones(1, 1, dtype=kernel.dtype, device=kernel.device))]


def infer_num_dims(kernel: Kernel) -> int | None:
    """Infer the number of input columns from `active_dims` or ARD, also of sums and products; None if unknown."""
    dims = _collect_num_dims(kernel)
    if len(dims) > 1:
        raise OptionError(
            f"The parts of {type(kernel).__name__} have different numbers of dimensions: {sorted(dims)}. Use the same ard_num_dims, or set active_dims on each."
        )
    return dims.pop() if dims else None


def _collect_num_dims(kernel: Kernel) -> set[int]:
    dims = {kernel.ard_num_dims, getattr(kernel, "num_dims", None)}
    if kernel.active_dims is not None:
        dims.add(len(kernel.active_dims))
    if isinstance(kernel, ScaleKernel):
        dims |= _collect_num_dims(kernel.base_kernel)
    if isinstance(kernel, (AdditiveKernel, ProductKernel)):
        dims |= {count for k in kernel.kernels if k.active_dims is None for count in _collect_num_dims(k)}
    return dims - {None}


def check_kernel(kernel: Kernel, name: str = "kernel") -> None:
    """Raise KernelTypeError unless `kernel` is a GPyTorch kernel."""
    if not isinstance(kernel, Kernel):
        raise KernelTypeError(f"{name} must be a gpytorch.kernels.Kernel, got {type(kernel).__name__}.")


@num_outputs.register
def _(kernel: AdditiveKernel) -> int:
    counts = {num_outputs(k) for k in kernel.kernels}
    if len(counts) != 1:
        fix = f" Wrap a scalar kernel: DecomposableKernel(kernel, num_outputs={max(counts)})." if 1 in counts else ""
        raise KernelTypeError(f"The terms of a sum must have the same number of outputs, got {sorted(counts)}.{fix}")
    return counts.pop()


@num_outputs.register
def _(kernel: ProductKernel) -> int:
    counts = {num_outputs(k) for k in kernel.kernels}
    if len(counts) > 1:
        raise KernelTypeError(
            f"The factors of GPyTorch's ProductKernel must have the same number of outputs, got {sorted(counts)}. Multiply a "
            "scalar and an operator-valued kernel by `operator_valued * scalar` or `BlockwiseProductKernel(operator_valued, scalar)`."
        )
    return counts.pop()


@num_outputs.register
def _(kernel: MultitaskKernel) -> int:
    return kernel.num_tasks


@num_outputs.register
def _(kernel: LCMKernel) -> int:
    return num_outputs(kernel.covar_module_list[0])


@components.register
def _(kernel: ScaleKernel) -> list[Component] | None:
    if not is_operator_valued(kernel.base_kernel):
        return scalar_component(kernel)
    if kernel.active_dims is not None:  # they select columns before the base kernel is called
        return None
    inner = components(kernel.base_kernel)
    scale = kernel.outputscale[..., None, None]
    return None if inner is None else [(k, scale * matrix) for k, matrix in inner]


@components.register
def _(kernel: AdditiveKernel) -> list[Component] | None:
    if not is_operator_valued(kernel):
        return scalar_component(kernel)
    parts = [components(k) for k in kernel.kernels]
    return None if any(part is None for part in parts) else [pair for part in parts for pair in part]


@components.register
def _(kernel: ProductKernel) -> list[Component] | None:
    return scalar_component(kernel) if num_outputs(kernel) == 1 else None


@components.register
def _(kernel: MultitaskKernel) -> list[Component]:
    if kernel.data_covar_module.active_dims is not None:
        raise KernelTypeError(
            "GPyTorch's MultitaskKernel ignores the active_dims of its data kernel. Set them on the MultitaskKernel itself, or use DecomposableKernel."
        )
    if kernel.active_dims is not None:  # they select columns before the data kernel is called
        return None
    return [(kernel.data_covar_module, to_dense(kernel.task_covar_module.covar_matrix))]


@components.register
def _(kernel: LCMKernel) -> list[Component]:
    return [pair for part in kernel.covar_module_list for pair in components(part)]


def kronecker(scalar: LinearOperator | Tensor, matrix: Tensor) -> LinearOperator:
    """Return the data-major operator with blocks k(x_i, z_j) Γ from k (..., n, m) and Γ (..., p, p)."""
    scalar = to_linear_operator(scalar).evaluate_kernel()
    matrix = matrix.to(scalar.dtype)
    batch_shape = torch.broadcast_shapes(scalar.batch_shape, matrix.shape[:-2])
    if 0 in scalar.matrix_shape:  # linear_operator does not support empty Kronecker products
        rows, columns = (size * matrix.shape[-1] for size in scalar.matrix_shape)
        return to_linear_operator(matrix.new_zeros(*batch_shape, rows, columns))
    matrix = to_linear_operator(matrix.expand(*batch_shape, *matrix.shape[-2:]))
    return KroneckerProductLinearOperator(scalar.expand(*batch_shape, *scalar.matrix_shape), matrix)


def kronecker_diagonal(scalar: Tensor, matrix: Tensor) -> Tensor:
    """Return the diagonal (..., n·p) of `kronecker` from the scalar diagonal (..., n)."""
    diagonal = to_dense(scalar).unsqueeze(-1) * matrix.diagonal(dim1=-2, dim2=-1).unsqueeze(-2)
    return diagonal.flatten(-2)


def check_scalar_kernel(kernel: Kernel, name: str) -> None:
    """Raise KernelTypeError unless `kernel` is a GPyTorch kernel with one output."""
    check_kernel(kernel, name)
    if is_operator_valued(kernel):
        raise KernelTypeError(f"{name} must be a scalar kernel, got {type(kernel).__name__} with several outputs.")


def _add(self: Kernel, other: Kernel) -> Kernel:
    """Add two kernels; those that contain an operator-valued kernel of this package must have equally many outputs."""
    total = _ADD(self, other)
    if _has_operator_valued_part(total):
        num_outputs(total)  # raises if they differ
    return total


def _multiply(self: Kernel, other: Kernel) -> Kernel:
    """Multiply two kernels, blockwise if one of them is an operator-valued kernel of this package, or contains one."""
    if isinstance(other, Kernel) and any(map(_has_operator_valued_part, (self, other))):
        scalars, others = (
            [k for k in (self, other) if is_operator_valued(k) == is_other] for is_other in (False, True)
        )
        if len(scalars) == 1:
            return BlockwiseProductKernel(others[0], scalars[0])
        product = _MULTIPLY(self, other)
        num_outputs(product)  # raises if they differ
        return product
    return _MULTIPLY(self, other)


def _has_operator_valued_part(kernel: Kernel) -> bool:
    return any(isinstance(part, OperatorValuedKernel) for part in kernel.modules())


# GPyTorch's `k * K` never asks K: its operators do not return NotImplemented, and a product or sum with unequal numbers of
# outputs would fail on evaluation. Expressions without a kernel of this package are not affected.
_ADD, _MULTIPLY = Kernel.__add__, Kernel.__mul__
Kernel.__add__, Kernel.__mul__ = _add, _multiply
