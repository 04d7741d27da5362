"""What an operator-valued kernel is, and three questions one can ask of any kernel.

An operator-valued kernel with p outputs is a GPyTorch kernel whose matrix at x (n, d) and
z (m, d) has size (n·p) × (m·p), **data-major**: block (i, j) is the p × p matrix K(x_i, z_j).

`num_outputs`, `block` and `components` answer for our kernels, for GPyTorch's scalar and
multitask kernels, and see through `ScaleKernel`, `AdditiveKernel` and `ProductKernel`.
A kernel of one's own answers through the attributes of the same names.
"""

from __future__ import annotations

from copy import deepcopy
from functools import singledispatch

import torch
from gpytorch.kernels import AdditiveKernel, Kernel, LCMKernel, MultitaskKernel, ProductKernel, ScaleKernel
from linear_operator import to_dense
from torch import Tensor

from ovkgp.exceptions import InputError, KernelTypeError, OptionError

Component = tuple[Kernel, Tensor]


class BatchIndexMixin:
    """Indexing and expanding of the batch shape for kernels that are built from others.

    GPyTorch's own recursion walks *all* descendants and writes them back under dotted names, where they count as
    parameters twice; it does not expand the terms of a sum, and it indexes `active_dims`. Here only direct children
    are visited (kernels and anything else with a batch shape), GPyTorch's own kernels by the same rules.
    """

    def _map_batch(self, on_tensor, on_child, batch_shape: torch.Size):
        copy = deepcopy(self)
        copy._batch_shape = batch_shape
        for name, parameter in self.named_parameters(recurse=False):
            getattr(copy, name).data = on_tensor(parameter.data)
        if not isinstance(self, BatchIndexMixin):  # a buffer of GPyTorch's has the batch shape in front
            for name, buffer in self.named_buffers(recurse=False):
                if name != "active_dims":
                    setattr(copy, name, on_tensor(buffer))
        for name, child in self.named_children():
            if hasattr(child, "expand_batch"):
                setattr(copy, name, on_child(child))
            elif isinstance(child, torch.nn.ModuleList) and all(hasattr(item, "expand_batch") for item in child):
                setattr(copy, name, torch.nn.ModuleList(on_child(item) for item in child))
        return copy

    def __getitem__(self, index):
        if len(self.batch_shape) == 0:
            return self
        index = index if isinstance(index, tuple) else (index,)
        batch_shape = self.batch_shape
        return BatchIndexMixin._map_batch(
            self,
            lambda t: t.expand(*batch_shape, *_event_shape(self, t))[index],
            lambda child: _indexed(_expanded(child, batch_shape), index) if len(child.batch_shape) else child,
            torch.empty(batch_shape)[index].shape,
        )

    def expand_batch(self, *sizes):
        batch_shape = torch.Size(sizes[0] if len(sizes) == 1 and not isinstance(sizes[0], int) else sizes)
        if batch_shape == self.batch_shape:
            return self
        return BatchIndexMixin._map_batch(
            self,
            lambda t: t.expand(*batch_shape, *_event_shape(self, t)),
            lambda child: _expanded(child, batch_shape),
            batch_shape,
        )


def _event_shape(kernel, tensor: Tensor) -> torch.Size:
    """The shape of a parameter without its batch shape, which in a `ScaleKernel` is that of the scaled kernel."""
    whole = kernel.batch_shape
    return tensor.shape[len(whole if tensor.shape[: len(whole)] == whole else kernel._batch_shape) :]


def _is_foreign(child) -> bool:
    """Whether a child is one of GPyTorch's kernels, and not something with indexing of its own."""
    return isinstance(child, Kernel) and not isinstance(child, BatchIndexMixin)


def _indexed(child, index):
    return BatchIndexMixin.__getitem__(child, index) if _is_foreign(child) else child[index]


def _expanded(child, batch_shape: torch.Size):
    return BatchIndexMixin.expand_batch(child, batch_shape) if _is_foreign(child) else child.expand_batch(batch_shape)


class OperatorValuedKernel(BatchIndexMixin, Kernel):
    """Base class of the kernels in this package with p outputs.

    A subclass gives `num_outputs` (or overrides `num_outputs_per_input`, where p is the
    dimension of the inputs) and `forward`; everything else follows.

    ``kernel * scalar_kernel`` multiplies every block by the scalar kernel's value.

    Example:
        Two outputs, the second the slope of the first: k(δ) = exp(−δ²/2), and its derivatives, in one dimension.

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
        """The number p of outputs."""
        raise KernelTypeError(f"{type(self).__name__} does not say how many outputs it has: define `num_outputs`.")

    @property
    def is_scalar(self) -> bool:
        """Whether this is a scalar kernel all the same, and may stand wherever one is wanted."""
        return False

    @property
    def components(self) -> list[Component] | None:
        """The (scalar kernel, (p, p) output matrix) pairs whose sum of products this kernel is, or None."""
        return None

    def num_outputs_per_input(self, x1: Tensor, x2: Tensor) -> int:
        return self.num_outputs

    def block(self, x: Tensor, z: Tensor) -> Tensor:
        """K(x, z) as a (p, p) tensor; see `ovkgp.kernels.block`."""
        return block(self, x, z)

    def __mul__(self, other: Kernel) -> Kernel:
        from ovkgp.kernels.decomposable import BlockwiseProductKernel

        return super().__mul__(other) if is_operator_valued(other) else BlockwiseProductKernel(self, other)


def is_operator_valued(kernel: Kernel) -> bool:
    """Whether `kernel` gives a matrix, and not a number, for a pair of points.

    Args:
        kernel: any GPyTorch kernel.

    Example:
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
    if (inner := _wrapped(kernel)) is not None:
        return is_operator_valued(inner)
    return hasattr(kernel, "num_outputs") or type(kernel).num_outputs_per_input is not Kernel.num_outputs_per_input


def _wrapped(kernel: Kernel) -> Kernel | None:
    """The kernel inside one of GPyTorch's wrappers (scale, inducing points, grid, cylinder, …)."""
    for name in ("base_kernel", "radial_base_kernel"):
        if isinstance(inner := getattr(kernel, name, None), Kernel):
            return inner
    return None


def block(kernel: Kernel, x: Tensor, z: Tensor) -> Tensor:
    """The p × p covariance K(x, z) between the outputs at one point x and at one point z.

    Args:
        kernel: any kernel; a scalar one gives a (1, 1) block.
        x, z: one point each, of shape (d,) or (1, d).

    Example:
        >>> import torch
        >>> from gpytorch.kernels import RBFKernel
        >>> from ovkgp.kernels import CurlFreeKernel, block
        >>> block(CurlFreeKernel(RBFKernel(ard_num_dims=2)), torch.zeros(2), torch.ones(2)).shape
        torch.Size([2, 2])
    """
    _require_kernel(kernel)
    if isinstance(kernel, ProductKernel):
        num_outputs(kernel)  # raises where the factors do not fit
    x, z = torch.atleast_1d(x), torch.atleast_1d(z)
    if x.dim() == 1:
        x = x.unsqueeze(0)
    if z.dim() == 1:
        z = z.unsqueeze(0)
    if x.shape[-2] != 1 or z.shape[-2] != 1:
        raise InputError(
            f"block takes one point x and one point z, of shape (d,) or (1, d); got {tuple(x.shape)} and "
            f"{tuple(z.shape)}. For many points call the kernel itself: kernel(x, z)."
        )
    return to_dense(kernel(x, z))


@singledispatch
def num_outputs(kernel: Kernel) -> int:
    """The number p of outputs of any kernel: 1 for a scalar one.

    Args:
        kernel: any GPyTorch kernel.

    Example:
        >>> from gpytorch.kernels import RBFKernel, ScaleKernel
        >>> from ovkgp.kernels import DecomposableKernel, num_outputs
        >>> num_outputs(ScaleKernel(DecomposableKernel(RBFKernel(), num_outputs=3))), num_outputs(RBFKernel())
        (3, 1)
    """
    _require_kernel(kernel)
    if hasattr(kernel, "num_outputs"):
        return int(kernel.num_outputs)
    if type(kernel).num_outputs_per_input is Kernel.num_outputs_per_input:
        return 1
    if (inner := _wrapped(kernel)) is not None:
        return num_outputs(inner)
    raise KernelTypeError(
        f"{type(kernel).__name__} has several outputs but does not say how many: give it an attribute `num_outputs`."
    )


@singledispatch
def components(kernel: Kernel) -> list[Component] | None:
    """The separable structure of a kernel: K(x, z) = Σ_q k_q(x, z) Γ_q.

    Args:
        kernel: any GPyTorch kernel.

    Returns:
        The list of (scalar kernel k_q, output matrix Γ_q (p, p)) pairs, one for an ICM and several
        for an LMC, or None where the kernel is not separable. The matrices are differentiable in
        the hyperparameters. A scalar kernel is its own single component with Γ = [[1]].

    Example:
        >>> from gpytorch.kernels import MaternKernel, RBFKernel
        >>> from ovkgp.kernels import DecomposableKernel, components
        >>> lmc = DecomposableKernel(RBFKernel(), num_outputs=3) + DecomposableKernel(MaternKernel(), num_outputs=3)
        >>> [(type(k).__name__, matrix.shape) for k, matrix in components(lmc)]
        [('RBFKernel', torch.Size([3, 3])), ('MaternKernel', torch.Size([3, 3]))]
    """
    _require_kernel(kernel)
    if hasattr(kernel, "components"):
        return kernel.components
    return None if is_operator_valued(kernel) else scalar_component(kernel)


def scalar_component(kernel: Kernel) -> list[Component]:
    """A scalar kernel as its own single component."""
    return [(kernel, torch.ones(1, 1, dtype=kernel.dtype, device=kernel.device))]


def known_dims(kernel: Kernel) -> int | None:
    """How many columns a kernel looks at, from `active_dims` or ARD, also through scalings, sums and products."""
    dims = _dims_asked_for(kernel)
    if len(dims) > 1:
        raise OptionError(
            f"the parts of {type(kernel).__name__} ask for different numbers of dimensions: {sorted(dims)}. "
            "Make their ard_num_dims agree, or give each its active_dims."
        )
    return dims.pop() if dims else None


def _dims_asked_for(kernel: Kernel) -> set[int]:
    own = {kernel.ard_num_dims, getattr(kernel, "num_dims", None)}
    if kernel.active_dims is not None:
        own.add(len(kernel.active_dims))
    if isinstance(kernel, ScaleKernel):
        own |= _dims_asked_for(kernel.base_kernel)
    if isinstance(kernel, (AdditiveKernel, ProductKernel)):
        own |= {dims for k in kernel.kernels if k.active_dims is None for dims in _dims_asked_for(k)}
    return own - {None}


def _require_kernel(kernel) -> None:
    if not isinstance(kernel, Kernel):
        raise KernelTypeError(f"expected a gpytorch.kernels.Kernel, got {type(kernel).__name__}.")


@num_outputs.register
def _(kernel: AdditiveKernel) -> int:
    counts = {num_outputs(k) for k in kernel.kernels}
    if len(counts) != 1:
        raise KernelTypeError(f"a sum of kernels with different numbers of outputs {sorted(counts)} has no meaning.")
    return counts.pop()


@num_outputs.register
def _(kernel: ProductKernel) -> int:
    counts = {num_outputs(k) for k in kernel.kernels}
    if len(counts) > 1:
        raise KernelTypeError(
            "GPyTorch's ProductKernel multiplies matrices of equal size only. Write the operator-valued factor "
            "first, `operator_valued * scalar`, or `BlockwiseProductKernel(operator_valued, scalar)` where that factor "
            "is GPyTorch's own, and every block is multiplied by the scalar kernel."
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
    if kernel.active_dims is not None:  # they select columns before the base kernel sees them
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
            "GPyTorch's MultitaskKernel ignores the active_dims of its data kernel. Set them on the MultitaskKernel "
            "itself, or use DecomposableKernel, which heeds them."
        )
    if kernel.active_dims is not None:  # they select columns before the data kernel sees them
        return None
    return [(kernel.data_covar_module, to_dense(kernel.task_covar_module.covar_matrix))]


@components.register
def _(kernel: LCMKernel) -> list[Component]:
    return [pair for part in kernel.covar_module_list for pair in components(part)]
