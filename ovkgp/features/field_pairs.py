"""Spectral pairs of curl-free and divergence-free kernels, bounded and unbounded (BT-44, BT-45, BT-E-05..08).

Differentiating k(δ) = E cos⟨ω, δ⟩ twice gives A(ω) = ωωᵀ (curl-free) and ‖ω‖² I − ωωᵀ (divergence-free):
unbounded factors. Over a Gaussian scale mixture the norm can be moved into the law of ω instead. With the
tilted law ω = R û ⊘ ℓ of `radial_pairs` and c = √(d E[τ]),

    curl-free        B = c û ⊘ ℓ            = c ω / ‖ω ∘ ℓ‖                    (d × 1)
    divergence-free  B = c ‖û ⊘ ℓ‖ Q(ω)     = c ‖ω‖ / ‖ω ∘ ℓ‖ Q(ω)             (d × (d − 1))

with Q(ω) an orthonormal basis of the complement of ω. Bounded features have the lower variance near zero lag.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from gpytorch.kernels import AdditiveKernel, Kernel, ScaleKernel
from torch import Tensor

from ovkgp.features.moments import moment_order
from ovkgp.features.radial_pairs import require_finite, scale_mixture, whitened_frequencies
from ovkgp.features.spectral import SpectralPair, SpectralSum, input_dim, map_terms, precompose, scaled, spectral_pair
from ovkgp.kernels import CurlFreeKernel, DivergenceFreeKernel

Direction = Callable[[Tensor], Tensor]
"""ω (..., D, d) ↦ the factor (..., D, d, r) of A(ω), homogeneous of degree one in ω."""


def along(frequencies: Tensor) -> Tensor:
    """ω as a column: the factor of ωωᵀ."""
    return frequencies.unsqueeze(-1)


def across(frequencies: Tensor) -> Tensor:
    """‖ω‖ Q(ω), d × (d − 1): the factor of ‖ω‖² I − ωωᵀ.

    Q holds the last d − 1 columns of the Householder reflection that sends e₁ to ∓ω/‖ω‖; its sign follows the
    first coordinate, so that it is smooth in positive lengthscales.
    """
    norm = frequencies.norm(dim=-1, keepdim=True)
    sign = torch.where(frequencies[..., :1] >= 0, 1.0, -1.0).to(frequencies)
    unit = frequencies / norm.clamp_min(torch.finfo(norm.dtype).tiny)  # at ω = 0 the factor is 0
    mirror = torch.cat([unit[..., :1] + sign, unit[..., 1:]], dim=-1)
    scale = 2 * norm / mirror.square().sum(-1, keepdim=True)
    d = frequencies.shape[-1]
    eye = torch.eye(d, dtype=frequencies.dtype, device=frequencies.device)[:, 1:]
    return norm.unsqueeze(-1) * eye - (scale * mirror).unsqueeze(-1) * mirror[..., 1:].unsqueeze(-2)


@spectral_pair.register(CurlFreeKernel)
def _(kernel: CurlFreeKernel, num_dims: int | None = None, bounded: bool = True):
    return _field_pair(kernel, along, num_dims, bounded)


@spectral_pair.register(DivergenceFreeKernel)
def _(kernel: DivergenceFreeKernel, num_dims: int | None = None, bounded: bool = True):
    return _field_pair(kernel, across, num_dims, bounded)


def _field_pair(kernel, direction: Direction, num_dims: int | None, bounded: bool):
    base, active = kernel.base_kernel, kernel.base_kernel.active_dims
    d = input_dim(kernel, num_dims)
    pair = _over(base, direction, d, bounded)
    return pair if active is None else precompose(pair, lambda x: x.index_select(-1, active))


def _over(base: Kernel, direction: Direction, d: int, bounded: bool) -> SpectralPair | SpectralSum:
    """The pair over a scalar base kernel on d columns, looking through scalings and plain sums."""
    if isinstance(base, ScaleKernel):
        return scaled(_over(base.base_kernel, direction, d, bounded), lambda: base.outputscale)
    if isinstance(base, AdditiveKernel) and all(k.active_dims is None for k in base.kernels):
        return SpectralSum(tuple(t for k in base.kernels for t in _over(k, direction, d, bounded).terms))
    if bounded and scale_mixture(base) is not None:
        return _bounded(base, direction, d)
    require_finite(base, 4, moment_order(base), "unbounded curl- and divergence-free")
    return map_terms(
        spectral_pair.ignoring_active_dims(base, num_dims=d), lambda term: _unbounded(term, direction, d)
    )


def _bounded(base: Kernel, direction: Direction, d: int) -> SpectralPair:
    mixture = scale_mixture(base)
    require_finite(base, 2, moment_order(base), "curl- and divergence-free")

    def factor(frequencies: Tensor) -> Tensor:
        radius = (frequencies * base.lengthscale.to(frequencies)).norm(dim=-1)
        return direction(frequencies) * ((d * mixture.mean) ** 0.5 / radius)[..., None, None]

    return SpectralPair(
        base_dim=d + 1 + mixture.base_dim,
        frequencies=lambda u: whitened_frequencies(u, d, mixture, tilted=True) / base.lengthscale.to(u),
        factor=factor,
        isotropic=True,
        num_dims=d,
    )


def _unbounded(term: SpectralPair, direction: Direction, d: int) -> SpectralPair:
    """Multiply a scalar factor by the direction of the frequency of x itself: the warp of a smooth stationary kernel
    selects or repeats columns, so it is linear and ⟨ω, h(x)⟩ = ⟨ω Hᵀ, x⟩ with H = h(I)."""

    def factor(frequencies: Tensor) -> Tensor:
        eye = torch.eye(d, dtype=frequencies.dtype, device=frequencies.device)
        of_x = frequencies if term.warp is None else frequencies @ term.warp(eye).mT
        return direction(of_x) * term.factor(frequencies)

    return replace(term, factor=factor)
