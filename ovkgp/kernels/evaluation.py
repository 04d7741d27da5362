"""Evaluation of kernels from distances whose error is bounded relative to the distance itself.

GPyTorch centers the inputs on the mean of a batch and expands ‖x − z‖² = ‖x‖² − 2xᵀz + ‖z‖², so that one distant row
changes the kernel at all other rows. `evaluate_kernel` computes radial kernels, scaled, summed or multiplied, from
differences, or from an expansion of which results that are small compared with its terms are computed again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import reduce
from operator import add, mul

import torch
from gpytorch.kernels import AdditiveKernel, Kernel, LCMKernel, MultitaskKernel, ProductKernel, ScaleKernel
from linear_operator import LinearOperator, to_dense, to_linear_operator
from linear_operator.operators import KroneckerProductLinearOperator, MatmulLinearOperator, RootLinearOperator
from torch import Tensor

from ovkgp.exceptions import InputError
from ovkgp.kernels.batch_index import BatchIndexMixin
from ovkgp.kernels.records import Profile, find_record

MAX_DIFFERENCE_DIMS = 3  # with more columns, one matrix product is faster than a pass per column
BLOCK_ENTRIES = 1 << 17  # number of distances that are computed together
SMALL_RATIO = (
    1 / 4500
)  # per column, results below this fraction of their terms are computed again: error 4500 ε = 1e-12
MAX_SMALL_FRACTION = 0.05  # if more results are small, all are computed from differences
MAX_EXPANDED_GRADIENT = 1e4  # largest scaled coordinate for which gradients are expanded


def evaluate_kernel(
    kernel: Kernel, x1: Tensor, x2: Tensor | None = None, diag: bool = False, **params
) -> Tensor | LinearOperator:
    """Evaluate a kernel at x1 (..., n, d) and x2 (..., m, d), or at pairs of rows if `diag`.

    The value at a pair of rows does not depend on the other rows: squared distances of radial kernels with a record, and
    of kernels that use GPyTorch's `covar_dist`, have a relative error of at most 1e-12 in double precision.

    Parameters
    ----------
    kernel : Kernel
        Scalar or operator-valued kernel.
    x1, x2 : Tensor of shape (..., n, d) and (..., m, d)
        Inputs; x2 is x1 if None.
    diag : bool, default=False
        Whether to return only the diagonal.
    **params
        Further arguments of GPyTorch's kernels.

    Returns
    -------
    Tensor or LinearOperator of shape (..., n·p, m·p), or Tensor of shape (..., n·p) if `diag`
        Values, not evaluated lazily.

    Notes
    -----
    Complexity: O(n m d) time and O(n m) memory for a radial kernel, with gradients too.
    """
    x1 = x1.unsqueeze(-1) if x1.dim() == 1 else x1
    x2 = x1 if x2 is None else x2.unsqueeze(-1) if x2.dim() == 1 else x2
    if any(params.values()) or not _is_supported(kernel):  # GPyTorch passes last_dim_is_batch=False
        return _call(kernel, x1, x2, diag, **params)
    if kernel.active_dims is not None:
        x1, x2 = (x.index_select(-1, kernel.active_dims) for x in (x1, x2))
    return _evaluate(kernel, x1, x2, diag)


def squared_distances(x: Tensor, z: Tensor) -> Tensor:
    """Compute ‖x_i − z_j‖² (..., n, m) with a relative error of at most 1e-12, differentiable in x and z."""
    ones = torch.ones(1, 1, dtype=x.dtype, device=x.device)
    return _Radial.apply(x, z, ones, _identity_profile, ())


def _is_supported(kernel: Kernel) -> bool:
    """Return whether `_evaluate` has a rule for a kernel."""
    if type(kernel) is ScaleKernel:
        return _is_supported(kernel.base_kernel)
    if type(kernel) in (AdditiveKernel, ProductKernel, MultitaskKernel, LCMKernel):
        return True
    record = find_record(kernel)
    if record is None or record.profile is None:
        return False
    return {name.removeprefix("raw_") for name, _ in kernel.named_parameters()} == record.roles.keys()


def _evaluate(kernel: Kernel, x1: Tensor, x2: Tensor, diag: bool) -> Tensor | LinearOperator:
    """Evaluate a supported kernel at the columns of its `active_dims`."""
    kind = type(kernel)
    if kind is ScaleKernel:
        scale = kernel.outputscale[(..., None) if diag else (..., None, None)]
        return _evaluate(kernel.base_kernel, x1, x2, diag) * scale
    if kind is AdditiveKernel:
        parts = [evaluate_kernel(part, x1, x2, diag) for part in kernel.kernels]
        # linear_operator would add a low-rank term to a matrix by a factorization with jitter
        is_low_rank = [isinstance(part, MatmulLinearOperator | RootLinearOperator) for part in parts]
        is_dense = any(map(torch.is_tensor, parts)) or (any(is_low_rank) and not all(is_low_rank))
        return reduce(add, map(to_dense if is_dense else to_linear_operator, parts))
    if kind is ProductKernel:
        return reduce(mul, (to_dense(evaluate_kernel(part, x1, x2, diag)) for part in kernel.kernels))
    if kind is LCMKernel:
        return reduce(add, (evaluate_kernel(part, x1, x2, diag) for part in kernel.covar_module_list))
    if kind is MultitaskKernel:
        return _evaluate_multitask(kernel, x1, x2, diag)
    return _evaluate_radial(kernel, x1, x2, diag)


def _evaluate_multitask(kernel: MultitaskKernel, x1: Tensor, x2: Tensor, diag: bool) -> Tensor | LinearOperator:
    scalar, matrix = evaluate_kernel(kernel.data_covar_module, x1, x2, diag), kernel.task_covar_module.covar_matrix
    if diag:
        return (scalar.unsqueeze(-1) * to_dense(matrix).diagonal(dim1=-2, dim2=-1).unsqueeze(-2)).flatten(-2)
    return KroneckerProductLinearOperator(to_linear_operator(scalar), matrix)


def _evaluate_radial(kernel: Kernel, x1: Tensor, x2: Tensor, diag: bool) -> Tensor:
    if kernel.ard_num_dims not in (None, x1.shape[-1]):
        return _call(kernel, x1, x2, diag)  # raises GPyTorch's error
    record = find_record(kernel)
    others = [name for name in record.roles if name != "lengthscale"]
    # one value per kernel of a batch, to broadcast against (*batch, n, m)
    values = [getattr(kernel, name).reshape(*kernel.batch_shape, 1, 1) for name in others]

    def profile(s: Tensor, *values: Tensor) -> Profile:
        return record.profile(torch, s, kernel, **dict(zip(others, values, strict=True)))

    if diag:
        s = ((x1 - x2) / kernel.lengthscale).square().sum(-1)
        return profile(_clamped(s).unsqueeze(-1), *values).value.squeeze(-1)
    return _Radial.apply(x1, x2, kernel.lengthscale, profile, tuple(others), *values)


def _call(kernel: Kernel, x1: Tensor, x2: Tensor, diag: bool, **params) -> Tensor | LinearOperator:
    """Call a kernel by GPyTorch's protocol, with distances of this module."""
    if isinstance(kernel, BatchIndexMixin):  # it evaluates its parts by `evaluate_kernel`
        found = kernel(x1, x2, diag=diag, **params)
        return found if diag else to_linear_operator(found).evaluate_kernel()
    with _stable_distances(kernel):
        found = kernel(x1, x2, diag=diag, **params)
        return found if diag else to_linear_operator(found).evaluate_kernel()


@contextmanager
def _stable_distances(kernel: Kernel) -> Iterator[None]:
    """Replace GPyTorch's `covar_dist` in a kernel and its parts."""
    parts = [part for part in kernel.modules() if isinstance(part, Kernel) and "covar_dist" not in vars(part)]
    for part in parts:
        part.covar_dist = covar_dist
    try:
        yield
    finally:
        for part in parts:
            del part.covar_dist


def covar_dist(
    x1: Tensor, x2: Tensor, diag: bool = False, last_dim_is_batch: bool = False, square_dist: bool = False, **params
) -> Tensor:
    """Compute distances with the arguments of GPyTorch's `Kernel.covar_dist`."""
    if last_dim_is_batch:
        x1, x2 = x1.mT.unsqueeze(-1), x2.mT.unsqueeze(-1)
    s = _clamped((x1 - x2).square().sum(-1)) if diag else squared_distances(x1, x2)
    return s if square_dist else s.clamp_min(1e-30).sqrt()


def _identity_profile(s: Tensor) -> Profile:
    return Profile(s, lambda: torch.ones_like(s), lambda: torch.zeros_like(s))


def _largest_square(dtype: torch.dtype) -> float:
    """Return a bound of squared distances, at which decaying profiles are zero and no product overflows."""
    return torch.finfo(dtype).max / 1e8


def _clamped(s: Tensor) -> Tensor:
    return s.clamp_max(_largest_square(s.dtype))


class _Distances:
    """Squared distances (..., n, m) of rows x (..., n, d) and z (..., m, d), by blocks of rows of x."""

    def __init__(self, x: Tensor, z: Tensor):
        self.x, self.z, self.is_direct = x, z, z.shape[-1] <= MAX_DIFFERENCE_DIMS or z.shape[-2] == 0
        if self.is_direct:
            return
        self.is_symmetric = torch.equal(x, z)
        center = z.mean(-2, keepdim=True)
        z_centered, x_centered = z - center, x - center
        z_squares, x_squares = (rows.square().sum(-1, keepdim=True) for rows in (z_centered, x_centered))
        max_square = z_squares.amax(-2, keepdim=True)
        self.left = torch.cat([-2 * x_centered, x_squares, torch.ones_like(x_squares)], -1)
        self.right = torch.cat([z_centered, torch.ones_like(z_squares), z_squares], -1).mT
        self.limit = (z.shape[-1] * SMALL_RATIO * (x_squares + max_square)).squeeze(-1)
        self.is_direct = not bool((max_square < math.sqrt(_largest_square(z.dtype))).all())

    def __call__(self, block: slice, out: Tensor | None = None) -> Tensor:
        """Return the squared distances of a block of rows, in `out` if it is given."""
        if self.is_direct:
            return self._square_differences(block, out)
        s = torch.matmul(self.left[..., block, :], self.right, out=out)
        if self.is_symmetric:
            zeros = s.diagonal(block.start, -2, -1)
            zeros.fill_(torch.inf)  # not to be found among the small entries
        is_right = s.amin(-1) > self.limit[..., block]  # False for NaN
        if self.is_symmetric:
            zeros.fill_(0)
        return s if bool(is_right.all()) else self._correct(s, block, is_right)

    def _correct(self, s: Tensor, block: slice, is_right: Tensor) -> Tensor:
        """Compute small entries of s from differences, which are in rows that are not `is_right` (..., k)."""
        rows = (~is_right).nonzero(as_tuple=True)
        i, j = (~(s[rows] > self.limit[..., block][rows].unsqueeze(-1))).nonzero(as_tuple=True)
        if len(i) > MAX_SMALL_FRACTION * s.numel():
            return self._square_differences(block)
        *batch, i = (index[i] for index in rows)
        x, z = (table.expand(*s.shape[:-2], *table.shape[-2:]) for table in (self.x[..., block, :], self.z))
        s[(*batch, i, j)] = _clamped((x[(*batch, i)] - z[(*batch, j)]).square().sum(-1))
        return s

    def _square_differences(self, block: slice, out: Tensor | None = None) -> Tensor:
        x, z = self.x[..., block, :].unsqueeze(-2).unbind(-1), self.z.unsqueeze(-3).unbind(-1)
        total, difference = torch.sub(x[0], z[0], out=out).square_(), None
        for a, b in zip(x[1:], z[1:], strict=True):
            difference = torch.sub(a, b, out=difference)  # fresh memory would cost as much as the subtraction
            total.addcmul_(difference, difference)
        return total.clamp_max_(_largest_square(total.dtype))


class _Radial(torch.autograd.Function):
    """κ(‖(x_i − z_j)/ℓ‖²; parameters) with ℓ (..., 1, d) or (..., 1, 1), in blocks of rows of x."""

    @staticmethod
    def forward(
        ctx, x: Tensor, z: Tensor, lengthscale: Tensor, profile: Callable, names: tuple[str, ...], *values: Tensor
    ) -> Tensor:
        ctx.profile, ctx.names = profile, names
        a, b = x / lengthscale, z / lengthscale
        if not bool(torch.isfinite(a.sum()) & torch.isfinite(b.sum())):
            _check_finite(lengthscale, (x, a), (z, b))
        ctx.save_for_backward(x, z, lengthscale, *values)
        needs_slope, batch = any(ctx.needs_input_grad[:3]), torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
        needs_values = ctx.needs_input_grad[5:]
        shape = *torch.broadcast_shapes(batch, *(value.shape[:-2] for value in values)), a.shape[-2], b.shape[-2]
        K = a.new_empty(shape)
        ctx.slope = a.new_empty(shape) if needs_slope else None
        ctx.by_value = [a.new_empty(shape) if needed else None for needed in needs_values]
        # the derivative in a lengthscale shared by all columns needs only s κ'(s)
        ctx.is_scaled = needs_slope and lengthscale.shape[-1] == 1 and not any(ctx.needs_input_grad[:2])
        distances, num_rows = _Distances(a, b), max(1, BLOCK_ENTRIES // max(1, b.shape[-2] * math.prod(shape[:-2])))
        for start in range(0, a.shape[-2], num_rows):
            block = slice(start, min(start + num_rows, a.shape[-2]))
            at = (..., block, slice(None))
            s = distances(block, K[at] if K.dim() == 2 else None)
            found = profile(s, *values)
            if needs_slope:
                ctx.slope[at] = found.first() * s if ctx.is_scaled else found.first()
            for name, out in zip(names, ctx.by_value, strict=True):
                if out is not None:
                    out[at] = found.by_parameter[name]()
            K[at] = found.value  # last, since it may overwrite s
            del s, found  # so that the next block reuses their memory, which is in the cache
        return K

    @staticmethod
    def backward(ctx, G: Tensor):
        x, z, lengthscale, *values = ctx.saved_tensors
        if torch.is_grad_enabled():  # derivatives of this gradient are requested
            return _differentiable_gradient(ctx, G, x, z, lengthscale, values)
        by_values = [
            None if out is None else (G * out).sum_to_size(value.shape)
            for out, value in zip(ctx.by_value, values, strict=True)
        ]
        by_x = by_z = by_lengthscale = None
        if ctx.is_scaled:
            product = torch.einsum("...ij,...ij->...", G, ctx.slope)[..., None, None]
            by_lengthscale = (-2 * product / lengthscale).sum_to_size(lengthscale.shape)
        elif ctx.slope is not None:
            by_a, by_b = _differences_times(G * ctx.slope, x / lengthscale, z / lengthscale)
            by_x = (by_a / lengthscale).sum_to_size(x.shape) if ctx.needs_input_grad[0] else None
            by_z = (by_b / lengthscale).sum_to_size(z.shape) if ctx.needs_input_grad[1] else None
            if ctx.needs_input_grad[2]:
                center = z.mean(-2, keepdim=True)
                product = (by_a * (x - center)).sum(-2, keepdim=True) + (by_b * (z - center)).sum(-2, keepdim=True)
                by_lengthscale = (-product / lengthscale**2).sum_to_size(lengthscale.shape)
        return by_x, by_z, by_lengthscale, None, None, *by_values


def _check_finite(lengthscale: Tensor, *pairs: tuple[Tensor, Tensor]) -> None:
    """Raise if finite inputs overflow when they are divided by a finite lengthscale."""
    if not bool(torch.isfinite(lengthscale).all()):
        return
    for given, scaled in pairs:
        if bool(torch.isfinite(given).all()) and not bool(torch.isfinite(scaled).all()):
            raise InputError(
                f"X divided by the lengthscale overflows: values up to {float(given.abs().amax()):.3g}, lengthscale {float(lengthscale.min()):.3g}. Rescale X or use a larger lengthscale."
            )


def _differences_times(W: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Return 2 Σ_j W_ij (a_i − b_j) (..., n, d) and 2 Σ_i W_ij (b_j − a_i) (..., m, d)."""
    center = b.mean(-2, keepdim=True)
    a, b = a - center, b - center
    if max(float(a.abs().max()), float(b.abs().max())) <= MAX_EXPANDED_GRADIENT:
        by_a = W.sum(-1).unsqueeze(-1) * a - W @ b
        return 2 * by_a, 2 * (W.sum(-2).unsqueeze(-1) * b - W.mT @ a)
    columns = zip(a.unbind(-1), b.unbind(-1), strict=True)
    pairs = [
        (product.sum(-1), product.sum(-2)) for i, j in columns for product in [W * (i.unsqueeze(-1) - j.unsqueeze(-2))]
    ]
    by_a, by_b = (torch.stack(sums, -1) for sums in zip(*pairs, strict=True))
    return 2 * by_a, -2 * by_b


def _differentiable_gradient(ctx, G: Tensor, x: Tensor, z: Tensor, lengthscale: Tensor, values: list[Tensor]):
    """Return the gradient by automatic differentiation, O(n m d) memory, so that it can be differentiated again."""
    inputs = [x, z, lengthscale, *values]
    scaled = (x.unsqueeze(-2) - z.unsqueeze(-3)) / lengthscale.unsqueeze(-2)
    K = ctx.profile(scaled.square().sum(-1), *values).value
    wanted = [needed and tensor.requires_grad for needed, tensor in zip(_of_tensors(ctx), inputs, strict=True)]
    chosen = [tensor for tensor, needed in zip(inputs, wanted, strict=True) if needed]
    found = iter(torch.autograd.grad(K, chosen, G, create_graph=True, allow_unused=True))
    by_x, by_z, by_lengthscale, *by_values = (next(found) if needed else None for needed in wanted)
    return by_x, by_z, by_lengthscale, None, None, *by_values


def _of_tensors(ctx) -> tuple[bool, ...]:
    return (*ctx.needs_input_grad[:3], *ctx.needs_input_grad[5:])
