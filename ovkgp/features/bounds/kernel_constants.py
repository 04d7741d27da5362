"""The constants of a kernel (BT-59, 63, 64): exact where they are known.

With the spectral pair K_e(δ) = E[cos⟨ω, δ⟩ A(ω)], they are ‖K_e(e)‖, m = E[H_ω ‖A‖], √E[H_ω² ‖A‖²], ess sup ‖A‖,
the Orlicz norm of ‖A‖ and v ≥ sup_δ ‖D · Var K̃(δ)‖, where H_ω = ‖ω‖ on (R^d, +). Closed forms for RBF, Matérn and
rational quadratic kernels, alone, decomposable, curl- or divergence-free, scaled and summed; Sobol estimates otherwise.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import singledispatch

import torch
from gpytorch.kernels import AdditiveKernel, Kernel, MaternKernel, RBFKernel, RQKernel, ScaleKernel
from torch import Tensor

from ovkgp.exceptions import OptionError, SpectralError
from ovkgp.features.bounds import moments
from ovkgp.features.bounds.checks import positive
from ovkgp.features.bounds.constants import SpectralConstants, total
from ovkgp.features.bounds.estimates import estimated_constants
from ovkgp.features.bounds.orlicz import gaussian_orlicz_norm
from ovkgp.features.bounds.radial import largest_radial_variance
from ovkgp.features.radial_pairs import scale_mixture
from ovkgp.features.spectral import SpectralPair, SpectralSum, input_dim, spectral_pair
from ovkgp.kernels.fields import CurlFreeKernel, DivergenceFreeKernel
from ovkgp.kernels.protocol import components, is_operator_valued
from ovkgp.kernels.transformable import TransformableKernel


def spectral_constants(
    kernel: Kernel, *, num_dims: int | None = None, bounded: bool = True, lipschitz: float = 1.0
) -> SpectralConstants:
    """The constants of a shift-invariant kernel; with the thesis' formulas, corrected where it errs (BT-E-16, 17, 18).

    Args:
        kernel: anything `spectral_pair` knows, with an empty batch shape.
        num_dims: the input dimension, for kernels that do not know it and sums of kernels on different columns.
        bounded: for curl- and divergence-free kernels, the bounded factor.
        lipschitz: for a pair with a warp h, a Lipschitz constant of h: H_ω = lipschitz · ‖ω‖.

    Raises:
        SpectralError: the kernel has no spectral pair.

    Example:
        >>> from gpytorch.kernels import RBFKernel
        >>> from ovkgp.features.bounds import spectral_constants
        >>> kernel = RBFKernel(ard_num_dims=2)
        >>> kernel.lengthscale = 0.5
        >>> round(spectral_constants(kernel).root_slope ** 2, 4)  # E‖ω‖² = d/ℓ²
        8.0
    """
    lipschitz = positive("lipschitz", lipschitz)
    pair = spectral_pair(kernel, num_dims=num_dims, bounded=bounded)
    if len(kernel.batch_shape):
        raise OptionError(
            f"a bound is for one kernel, got a batch of shape {tuple(kernel.batch_shape)}: index it first."
        )
    with torch.no_grad():
        found = _constants(kernel, num_dims, bounded)
    return replace(
        found,
        num_dims=_lag_dim(pair, num_dims),
        slope=lipschitz * found.slope,
        root_slope=lipschitz * found.root_slope,
    )


def _lag_dim(pair: SpectralPair | SpectralSum, num_dims: int | None) -> int:
    with torch.no_grad():
        sizes = {
            term.frequencies(torch.full((1, term.base_dim), 0.5, dtype=torch.float64)).shape[-1] for term in pair.terms
        }
    alike = len(sizes) == 1 and (len(pair.terms) == 1 or all(term.warp is None for term in pair.terms))
    if alike:
        return sizes.pop() if num_dims is None else min(num_dims, *sizes)
    if num_dims is None:
        raise OptionError("the terms of this kernel may see different columns: give the input dimension as num_dims.")
    return num_dims


@singledispatch
def _constants(kernel: Kernel, num_dims: int | None, bounded: bool) -> SpectralConstants:
    separable = components(kernel) if is_operator_valued(kernel) else None
    if separable is None:
        return estimated_constants(kernel, num_dims, bounded)
    dims = _seen(kernel, num_dims)
    return total(_constants(scalar, dims, bounded).times(matrix) for scalar, matrix in separable)


def _seen(kernel: Kernel, num_dims: int | None) -> int | None:
    return num_dims if kernel.active_dims is None else len(kernel.active_dims)


@_constants.register
def _(kernel: ScaleKernel, num_dims, bounded):
    return _constants(kernel.base_kernel, _seen(kernel, num_dims), bounded).scaled(float(kernel.outputscale))


@_constants.register
def _(kernel: AdditiveKernel, num_dims, bounded):
    dims = _seen(kernel, num_dims)
    return total(_constants(part, dims, bounded) for part in kernel.kernels)


@_constants.register
def _(kernel: TransformableKernel, num_dims, bounded):
    raise SpectralError(
        "a TransformableKernel compares a different point for each output: it is no function of the lag."
    )


def inverse_squares(kernel: Kernel, num_dims: int | None) -> Tensor | None:
    """1/ℓ² (d,) in float64 for a Gaussian scale mixture: an RBF, Matérn or RQ kernel; None for any other."""
    if scale_mixture(kernel) is None:
        return None
    lengthscale = kernel.lengthscale.detach().to("cpu", torch.float64).flatten()
    return lengthscale.square().reciprocal().expand(input_dim(kernel, num_dims))


@_constants.register(RBFKernel)
@_constants.register(MaternKernel)
@_constants.register(RQKernel)
def _(kernel, num_dims, bounded):
    weights = inverse_squares(kernel, num_dims)
    if weights is None:
        return estimated_constants(kernel, num_dims, bounded)
    mix = scale_mixture(kernel).moment
    # v bounds (1 + k(2δ) − 2k(δ)²)/2 (BT-E-18): 1/2 where k(2δ) ≤ 2k(δ)², and rational quadratic kernels violate that.
    return SpectralConstants(
        num_dims=weights.numel(),
        num_outputs=1,
        at_zero=torch.ones(1, 1, dtype=torch.float64),
        slope=moments.gaussian_norm_moment(weights, 1) * mix(1),
        root_slope=math.sqrt(moments.gaussian_norm_moment(weights, 2) * mix(2)),
        sup_norm=1.0,
        orlicz=1 / math.log(2),
        variance=1.0 if isinstance(kernel, RQKernel) else 0.5,
        intrinsic_dim=1.0,
        separable=True,
    )


@_constants.register(CurlFreeKernel)
@_constants.register(DivergenceFreeKernel)
def _(kernel, num_dims, bounded):
    dims = _seen(kernel, num_dims) if kernel.num_dims is None else kernel.num_dims
    base = kernel.base_kernel
    if isinstance(base, ScaleKernel):
        inner = type(kernel)(base.base_kernel, _seen(base, dims))
        return _constants(inner, dims, bounded).scaled(float(base.outputscale))
    if isinstance(base, AdditiveKernel) and all(part.active_dims is None for part in base.kernels):
        return total(_constants(type(kernel)(part, _seen(base, dims)), dims, bounded) for part in base.kernels)
    weights = inverse_squares(base, dims)
    if weights is None:
        return estimated_constants(kernel, num_dims, bounded)
    return _field(kernel, weights, bounded)


def _field(kernel: CurlFreeKernel | DivergenceFreeKernel, weights: Tensor, bounded: bool) -> SpectralConstants:
    """A(ω) = ωωᵀ or ‖ω‖²I − ωωᵀ, of norm ‖ω‖²; bounded, of norm d E[scale²] ‖û ⊘ ℓ‖² under a law weighted by it."""
    d, curl = weights.numel(), isinstance(kernel, CurlFreeKernel)
    mix = scale_mixture(kernel.base_kernel).moment
    sup_norm = d * float(weights.max()) * mix(2) if bounded else math.inf
    if bounded:
        orlicz = sup_norm / math.log(2)
    else:
        orlicz = gaussian_orlicz_norm(weights) if type(kernel.base_kernel) is RBFKernel else math.inf
    at_zero = torch.diag(weights if curl else weights.sum() - weights)
    return SpectralConstants(
        num_dims=d,
        num_outputs=d,
        at_zero=at_zero * mix(2),
        slope=moments.gaussian_norm_moment(weights, 3) * mix(3),
        root_slope=math.inf,  # only Hoeffding's inequality asks for it, and the error is not a number times a matrix
        sup_norm=sup_norm,
        orlicz=orlicz,
        variance=_field_variance(kernel, weights, bounded, mix),
        intrinsic_dim=float(d),
        separable=False,
    )


def _field_variance(kernel, weights: Tensor, bounded: bool, mix) -> float:
    """sup_δ ‖D Var K̃(δ)‖ where the kernel is radial and Gaussian, else the always valid ‖E[A²]‖ (BT-E-16)."""
    d, curl = weights.numel(), isinstance(kernel, CurlFreeKernel)
    if type(kernel.base_kernel) is RBFKernel and bool((weights == weights[0]).all()):
        return float(weights[0]) ** 2 * largest_radial_variance(d, curl, bounded)
    along = weights * (weights.sum() + 2 * weights)  # the diagonal of E[‖ω‖² ωωᵀ] for Gaussian ω
    square = float((along if curl else along.sum() - along).max())
    return square * d / (d + 2) * mix(2) ** 2 if bounded else square * mix(4)
