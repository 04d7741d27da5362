"""Spectral pairs of scaled, summed, multiplied, separable, independent, transformed and warped kernels.

Products live on stacked inputs: with h = (h₁, h₂) and ω = (ω₁, ω₂) independent, k₁ k₂ has the pair (ρ₁ ⊗ ρ₂, B₁ B₂), so
that each factor keeps its own frequencies.
"""

from __future__ import annotations

from dataclasses import replace
from functools import reduce

import torch
from gpytorch.kernels import AdditiveKernel, Kernel, LCMKernel, MultitaskKernel, ProductKernel, ScaleKernel
from torch import Tensor

from ovkgp.exceptions import OptionError, SpectralError
from ovkgp.features.spectral.pair import map_terms, precompose, scale_pair, spectral_pair
from ovkgp.kernels import (
    BlockwiseProductKernel,
    DecomposableKernel,
    FunctionValuedKernel,
    IndependentKernel,
    TransformableKernel,
    WarpedKernel,
    components,
    num_outputs,
)
from ovkgp.kernels.outputs.matrices import thin_root
from ovkgp.kernels.protocol import infer_num_dims
from ovkgp.kernels.spectral import SpectralPair, SpectralSum


@spectral_pair.register(ScaleKernel)
def _(kernel: ScaleKernel, num_dims: int | None = None, bounded: bool = True):
    # GPyTorch's ScaleKernel takes over the active_dims of its base kernel.
    pair = spectral_pair.ignoring_active_dims(kernel.base_kernel, num_dims=num_dims, bounded=bounded)
    return scale_pair(pair, lambda: kernel.outputscale)


@spectral_pair.register(AdditiveKernel)
def _(kernel: AdditiveKernel, num_dims: int | None = None, bounded: bool = True) -> SpectralSum:
    pairs = [spectral_pair(k, num_dims=num_dims, bounded=bounded) for k in kernel.kernels]
    return SpectralSum(tuple(term for pair in pairs for term in pair.terms))


@spectral_pair.register(ProductKernel)
def _(kernel: ProductKernel, num_dims: int | None = None, bounded: bool = True):
    if num_outputs(kernel) > 1:
        raise SpectralError("The entrywise product of two operator-valued kernels has no spectral pair. Use Nystrom.")
    return reduce(multiply_pairs, (spectral_pair(k, num_dims=num_dims, bounded=bounded) for k in kernel.kernels))


@spectral_pair.register(BlockwiseProductKernel)
def _(kernel: BlockwiseProductKernel, num_dims: int | None = None, bounded: bool = True):
    parts = kernel.base_kernel, kernel.scalar_kernel
    return multiply_pairs(*(spectral_pair(k, num_dims=num_dims, bounded=bounded) for k in parts))


def multiply_pairs(left: SpectralPair | SpectralSum, right: SpectralPair | SpectralSum) -> SpectralPair | SpectralSum:
    """Return the pair of the (blockwise) product of two kernels of which at most one is operator-valued."""
    terms = tuple(_multiply_terms(a, b) for a in left.terms for b in right.terms)
    return terms[0] if len(terms) == 1 else SpectralSum(terms)


def _multiply_terms(left: SpectralPair, right: SpectralPair) -> SpectralPair:
    split = left.base_dim
    width = left.frequencies(torch.full((1, split), 0.5, dtype=torch.float64)).shape[-1]

    def frequencies(u: Tensor) -> Tensor:
        parts = left.frequencies(u[:, :split]), right.frequencies(u[:, split:])
        batch = torch.broadcast_shapes(*(part.shape[:-1] for part in parts))
        return torch.cat([part.expand(*batch, part.shape[-1]) for part in parts], dim=-1)

    return SpectralPair(
        base_dim=left.base_dim + right.base_dim,
        frequencies=frequencies,
        factor=lambda w: left.factor(w[..., :width]) * right.factor(w[..., width:]),
        even=left.even and right.even,
        warp=lambda x: _side_by_side(*(x if part.warp is None else part.warp(x) for part in (left, right))),
        discrete=left.discrete or right.discrete,
    )


def _side_by_side(a: Tensor, b: Tensor) -> Tensor:
    """Concatenate the columns of a and b; if one has one point per output, the other repeats its point."""
    if a.dim() != b.dim():
        a, b = (t if t.dim() > min(a.dim(), b.dim()) else t.unsqueeze(-2) for t in (a, b))
        shape = torch.broadcast_shapes(a.shape[:-1], b.shape[:-1])
        a, b = (t.expand(*shape, t.shape[-1]) for t in (a, b))
    return torch.cat([a, b], dim=-1)


@spectral_pair.register(DecomposableKernel)
def _(kernel: DecomposableKernel, num_dims: int | None = None):
    pair = spectral_pair(kernel.base_kernel, num_dims=num_dims)
    return make_separable(pair, kernel.output_module.factor)


@spectral_pair.register(IndependentKernel)
def _(kernel: IndependentKernel, num_dims: int | None = None) -> SpectralSum:
    eye = torch.eye(kernel.num_outputs, dtype=torch.float64)
    terms = []
    for part, column in zip(kernel.kernels, eye.split(1, -1), strict=True):  # k_a e_a e_aᵀ has the root e_a
        terms += make_separable(spectral_pair(part, num_dims=num_dims), lambda column=column: column).terms
    return SpectralSum(tuple(terms))


@spectral_pair.register(FunctionValuedKernel)
@spectral_pair.register(MultitaskKernel)
@spectral_pair.register(LCMKernel)
def _(kernel: Kernel, num_dims: int | None = None):
    if getattr(kernel, "tasks", ...) is None:
        return _on_pairs(kernel, num_dims)
    parts = components(kernel)
    if parts is None:
        raise SpectralError(
            f"{type(kernel).__name__} is not supported with active_dims. Use DecomposableKernel with them on its base."
        )
    terms = []
    for scalar, matrix in parts:
        pair = spectral_pair(scalar, num_dims=num_dims)
        terms += make_separable(pair, lambda matrix=matrix: thin_root(matrix)).terms
    return terms[0] if len(terms) == 1 else SpectralSum(tuple(terms))


def _on_pairs(kernel: FunctionValuedKernel, num_dims: int | None):
    """Return the pair of k_X(x, x') k_Θ(θ, θ') on inputs (x, θ)."""
    t = kernel.num_task_dims
    if num_dims is not None and num_dims <= t:
        raise OptionError(f"num_dims must count the columns of x and of the task, at least {t + 1}, got {num_dims}.")
    of_x = spectral_pair(kernel.input_kernel, num_dims=None if num_dims is None else num_dims - t)
    of_task = spectral_pair(kernel.task_kernel, num_dims=t)
    return multiply_pairs(precompose(of_x, lambda x: x[..., :-t]), precompose(of_task, lambda x: x[..., -t:]))


def make_separable(pair: SpectralPair | SpectralSum, root) -> SpectralPair | SpectralSum:
    """Return the pair of k(x, z) Γ from that of k and a function that returns a root of Γ (..., p, r)."""

    def change(term: SpectralPair) -> SpectralPair:
        def factor(frequencies: Tensor) -> Tensor:
            return term.factor(frequencies) * root().to(frequencies).unsqueeze(-3)

        return replace(term, factor=factor, reflection=None)

    return map_terms(pair, change)


@spectral_pair.register(TransformableKernel)
def _(kernel: TransformableKernel, num_dims: int | None = None):
    base = kernel.base_kernel  # its dimension is that of the transformed points; take the inputs' if unknown
    return precompose(spectral_pair(base, num_dims=num_dims if infer_num_dims(base) is None else None), kernel.points)


@spectral_pair.register(WarpedKernel)
def _(kernel: WarpedKernel, bounded: bool = True) -> SpectralPair | SpectralSum:
    """Return the pair of the base kernel on the warped inputs."""
    base = spectral_pair(kernel.base_kernel, num_dims=kernel.group.embedding_dim, bounded=bounded)
    return precompose(base, lambda x: kernel.group(x, kernel.columns))
