"""The operator variance of a random-feature estimate at one lag (BT-62)."""

from __future__ import annotations

from functools import singledispatch

import torch
from gpytorch.kernels import AdditiveKernel, Kernel, ScaleKernel
from torch import Tensor

from ovkgp.checks import check_integer
from ovkgp.exceptions import InputError, OptionError, SpectralError
from ovkgp.features.bounds.constants import inverse_squares
from ovkgp.features.spectral import moments
from ovkgp.features.spectral.fields import field_variance
from ovkgp.features.spectral.pair import spectral_pair
from ovkgp.kernels.chi_square import SkewedChi2Kernel
from ovkgp.kernels.fields import CurlFreeKernel, DivergenceFreeKernel
from ovkgp.kernels.protocol import block, components, is_operator_valued
from ovkgp.kernels.spectral import SpectralPair, is_gaussian
from ovkgp.kernels.warped import WarpedKernel


def kernel_variance(kernel: Kernel, lag: Tensor, num_frequencies: int = 1, *, bounded: bool = True) -> Tensor:
    """Return Var K̃(δ) = E[(K̃(δ) − K(δ))²], the operator variance of D independent random features at lag δ.

    The values are corrected (BT-E-16, 17, 18) and exact for the following kernels, also scaled and summed:

    - a scalar kernel k times a matrix Γ: Γ² (k(0)² + k(0) k(2δ) − 2k(δ)²) / 2D;
    - curl- and divergence-free RBF kernels, unbounded (any lengthscales) or bounded (equal lengthscales).

    Otherwise they are estimated at 2¹⁴ Sobol frequencies. If K̃ is not symmetric (a complex factor) the value is
    E[(K̃ − K)(K̃ − K)ᵀ].

    Parameters
    ----------
    kernel : Kernel
        Shift-invariant kernel with p outputs.
    lag : Tensor of shape (d,)
        Lag δ = x − z; for a kernel on another group, x ⋆ z⁻¹.
    num_frequencies : int, default=1
        Number D of frequencies, drawn independently.
    bounded : bool, default=True
        Whether to use the bounded factor of curl- and divergence-free kernels.

    Returns
    -------
    Tensor of shape (p, p)
        Variance in float64, symmetric and, up to rounding, positive semi-definite.

    Examples
    --------
    >>> import torch
    >>> from gpytorch.kernels import RBFKernel
    >>> from ovkgp.features.bounds import kernel_variance
    >>> from ovkgp.kernels import CurlFreeKernel
    >>> kernel = CurlFreeKernel(RBFKernel(ard_num_dims=3))
    >>> kernel.base_kernel.lengthscale = 1.0
    >>> kernel_variance(kernel, torch.zeros(3)).diagonal().round(decimals=4)  # (d − 1)/ℓ⁴
    tensor([2., 2., 2.], dtype=torch.float64)
    """
    num_frequencies = check_integer("num_frequencies", num_frequencies)
    lag = torch.as_tensor(lag).detach().to(torch.float64)
    if lag.dim() != 1 or not torch.isfinite(lag).all():
        raise InputError(f"lag must be one finite vector of shape (d,), got shape {tuple(lag.shape)}.")
    spectral_pair(kernel, num_dims=len(lag), bounded=bounded)  # raises for a kernel without one
    if len(kernel.batch_shape):
        raise OptionError(
            f"Batched kernels are not supported, got batch_shape={tuple(kernel.batch_shape)}. Index it first."
        )
    with torch.no_grad():
        return _variance(kernel, lag, bounded) / num_frequencies


@singledispatch
def _variance(kernel: Kernel, lag: Tensor, bounded: bool) -> Tensor:
    if not is_operator_valued(kernel):
        return _scalar_variance(kernel, lag, bounded)
    separable = components(kernel)
    if separable is None:
        return _estimate_variance(kernel, lag, bounded)
    selected = _select(kernel, lag)
    return sum(_variance(k, selected, bounded) * (m @ m).to(lag) for k, m in separable)


def _select(kernel: Kernel, lag: Tensor) -> Tensor:
    return lag if kernel.active_dims is None else lag[kernel.active_dims]


@_variance.register
def _(kernel: ScaleKernel, lag, bounded):
    # GPyTorch's ScaleKernel takes over the active_dims of its base kernel, which then selects once, not twice.
    selected = _select(kernel, lag) if kernel.base_kernel.active_dims is None else lag
    return kernel.outputscale.to(lag) ** 2 * _variance(kernel.base_kernel, selected, bounded)


@_variance.register
def _(kernel: AdditiveKernel, lag, bounded):
    selected = _select(kernel, lag)
    return sum(_variance(part, selected, bounded) for part in kernel.kernels)


@_variance.register(CurlFreeKernel)
@_variance.register(DivergenceFreeKernel)
def _(kernel, lag, bounded):
    base, scale = kernel.base_kernel, 1.0
    selected = _select(base, _select(kernel, lag))
    while isinstance(base, ScaleKernel):
        scale, base = scale * base.outputscale.to(lag), base.base_kernel
    weights = inverse_squares(base, len(selected)) if is_gaussian(base) else None
    if weights is None or (bounded and bool((weights != weights[0]).any())):
        return _estimate_variance(kernel, lag, bounded)
    return scale**2 * field_variance(weights, selected, isinstance(kernel, CurlFreeKernel), bounded)


def _scalar_variance(kernel: Kernel, lag: Tensor, bounded: bool) -> Tensor:
    """Return (k(0)² + k(0) k(2δ) − 2 k(δ)²)/2 if A is a constant on (R^d, +), else an estimate."""
    selected = _select(kernel, lag)
    inner = spectral_pair.ignoring_active_dims(kernel, num_dims=len(selected), bounded=bounded)
    is_single = len(inner.terms) == 1 and inner.even and inner.terms[0].warp is None
    if not is_single or not moments.has_constant_factor(inner.terms[0]):
        return _estimate_variance(kernel, lag, bounded)
    at_zero, once, twice = (block(kernel, s * lag, torch.zeros_like(lag)).to(lag) for s in (0.0, 1.0, 2.0))
    return (at_zero**2 + at_zero * twice) / 2 - once**2


def _estimate_variance(kernel: Kernel, lag: Tensor, bounded: bool) -> Tensor:
    pair = spectral_pair(kernel, num_dims=len(lag), bounded=bounded)
    points = torch.stack([lag, _identity(kernel, lag)])
    return sum(_estimate_term(term, points) for term in pair.terms)


def _identity(kernel: Kernel, lag: Tensor) -> Tensor:
    """Return the neutral element of the group on which `kernel` is shift-invariant: 0, except in warped columns."""
    identity = torch.zeros_like(lag)
    for part in kernel.modules():
        if isinstance(part, (SkewedChi2Kernel, WarpedKernel)):
            neutral = 1 - part.c if isinstance(part, SkewedChi2Kernel) else part.group.identity
            columns = slice(None) if part.active_dims is None else part.active_dims
            identity[columns] = neutral.flatten().to(lag)
    return identity


def _estimate_term(term: SpectralPair, points: Tensor) -> Tensor:
    warped = points if term.warp is None else term.warp(points).to(points)
    point = warped[0] - warped[1]
    if point.dim() != 1:
        raise SpectralError("kernel must be a function of the lag, got one that compares a different point per output.")
    first, second = [], []
    for frequencies, factor in moments.draw_factors(term, moments.draw_frequencies(term)):
        phase = (frequencies @ point)[:, None, None]
        operators = factor @ factor.mH
        draws = phase.cos() * operators.real
        if operators.is_complex():
            draws = draws + phase.sin() * operators.imag
        first.append(draws.mean(0))
        second.append((draws @ draws.mT).mean(0))
    mean = torch.stack(first).mean(0)
    return torch.stack(second).mean(0) - mean @ mean.mT
