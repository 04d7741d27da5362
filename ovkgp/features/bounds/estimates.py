"""The constants of any spectral pair, estimated at Sobol points, with infinity where a moment is infinite."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from gpytorch.kernels import Kernel, ProductKernel

from ovkgp.features.bounds import moments
from ovkgp.features.bounds.constants import SpectralConstants, total
from ovkgp.features.bounds.orlicz import intrinsic_dimension
from ovkgp.features.spectral import SpectralPair, spectral_pair
from ovkgp.features.tails import moment_order
from ovkgp.kernels.blockwise import BlockwiseProductKernel


def estimated_constants(kernel: Kernel, num_dims: int | None, bounded: bool) -> SpectralConstants:
    """The sum over the terms of the kernel's pair; H_ω = ‖ω‖, and ess sup‖A‖ is the largest value met."""
    pair = spectral_pair(kernel, num_dims=num_dims, bounded=bounded)
    order = moment_order(kernel)
    found = total(_estimated_term(term, order) for term in pair.terms)
    repeats = math.sqrt(_repeats(kernel))
    return replace(found, slope=repeats * found.slope, root_slope=repeats * found.root_slope)


def _repeats(kernel: Kernel) -> int:
    """How often products repeat the input: n factors have the frequency ω_1 + … + ω_n, of norm ≤ √n ‖(ω_1, …, ω_n)‖."""
    repeats = 1
    for part in kernel.modules():
        if isinstance(part, ProductKernel):
            repeats *= len(part.kernels)
        elif isinstance(part, BlockwiseProductKernel):
            repeats *= 2
    return repeats


def _estimated_term(term: SpectralPair, order: float) -> SpectralConstants:
    """Sobol estimates for one term. Where K̃ need not be symmetric, its dilation of size 2p is what is bounded."""
    frequencies = moments.draw_frequencies(term)
    length, norms = frequencies.norm(dim=-1), moments.operator_norms(term, frequencies)
    constant = norms.numel() == 1
    power, sup_norm = (0.0, float(norms)) if constant else moments.growth(term, frequencies)
    mean, square = moments.mean_square(term, frequencies)
    if not constant and power == 0 and mean.shape[-1] > 1:
        order -= 2  # a factor made bounded by moving its ‖ω‖² into the law of ω
    variance = float(torch.linalg.matrix_norm(square, ord=2)) if term.even else float(norms.square().mean())
    p = mean.shape[-1] if term.even else 2 * mean.shape[-1]
    return SpectralConstants(
        num_dims=frequencies.shape[-1],
        num_outputs=p,
        at_zero=mean.real if mean.is_complex() else mean,
        slope=float((length * norms).mean()) if order > 1 + power else math.inf,
        root_slope=float((length * norms).square().mean().sqrt()) if order > 2 + 2 * power else math.inf,
        sup_norm=sup_norm,
        orlicz=sup_norm / math.log(2),  # infinite for an unbounded factor: only Gaussian laws are light enough
        variance=variance if order > 2 * power else math.inf,
        intrinsic_dim=intrinsic_dimension(square) if constant and term.even else float(p),
        separable=term.even and (constant or p == 1),
    )
