"""Spectral pairs of curl-free and divergence-free kernels, bounded and unbounded (BT-44, BT-45, BT-E-05..08).

Differentiating k(δ) = E cos⟨ω, δ⟩ twice gives A(ω) = ωωᵀ (curl-free) and ‖ω‖² I − ωωᵀ (divergence-free): unbounded
factors. Over a Gaussian scale mixture the norm can be moved into the distribution of ω instead. With the tilted
distribution ω = R û ⊘ ℓ of `radial` and c = √(d E[τ]),

    curl-free        B = c û ⊘ ℓ            = c ω / ‖ω ∘ ℓ‖                    (d × 1)
    divergence-free  B = c ‖û ⊘ ℓ‖ Q(ω)     = c ‖ω‖ / ‖ω ∘ ℓ‖ Q(ω)             (d × (d − 1))

with Q(ω) an orthonormal basis of the complement of ω. Bounded features have lower variance near zero lag.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import torch
from gpytorch.kernels import AdditiveKernel, Kernel, ScaleKernel
from torch import Tensor

from ovkgp.features.operators import reflection_columns
from ovkgp.features.spectral.moments import check_moment_is_finite
from ovkgp.features.spectral.pair import (
    SpectralPair,
    SpectralSum,
    map_terms,
    precompose,
    resolve_num_dims,
    scale_pair,
    select_columns,
    spectral_pair,
)
from ovkgp.features.spectral.radial import scale_mixture, whitened_frequencies
from ovkgp.kernels import CurlFreeKernel, DivergenceFreeKernel


class Direction(NamedTuple):
    """Map ω (..., D, d) ↦ a factor (..., D, d, r) of A(ω), of degree one in ω, and its form as a reflection, if any."""

    factor: Callable[[Tensor], Tensor]
    reflection: Callable[[Tensor], tuple[Tensor, Tensor]] | None


def curl_free_factor(frequencies: Tensor) -> Tensor:
    """Return ω as a column: the factor of ωωᵀ."""
    return frequencies.unsqueeze(-1)


def householder_vector(frequencies: Tensor) -> tuple[Tensor, Tensor]:
    """Return v and ‖ω‖ (..., D, 1): the reflection I − 2vvᵀ/‖v‖² maps e₁ to ∓ω/‖ω‖, and its other columns are Q(ω).

    The sign follows the first coordinate of ω, so that Q is smooth in positive lengthscales.
    """
    norm = frequencies.norm(dim=-1, keepdim=True)
    unit = frequencies / norm.clamp_min(torch.finfo(norm.dtype).tiny)  # at ω = 0 the factor is 0
    sign = torch.where(frequencies[..., :1] >= 0, 1.0, -1.0).to(frequencies)
    return torch.cat([unit[..., :1] + sign, unit[..., 1:]], dim=-1), norm


def divergence_free_factor(frequencies: Tensor) -> Tensor:
    """Return ‖ω‖ Q(ω), d × (d − 1): the factor of ‖ω‖² I − ωωᵀ."""
    return reflection_columns(*householder_vector(frequencies))


CURL_FREE = Direction(curl_free_factor, None)
DIVERGENCE_FREE = Direction(divergence_free_factor, householder_vector)


@spectral_pair.register(CurlFreeKernel)
def _(kernel: CurlFreeKernel, num_dims: int | None = None, bounded: bool = True):
    return _field_pair(kernel, CURL_FREE, num_dims, bounded)


@spectral_pair.register(DivergenceFreeKernel)
def _(kernel: DivergenceFreeKernel, num_dims: int | None = None, bounded: bool = True):
    return _field_pair(kernel, DIVERGENCE_FREE, num_dims, bounded)


def _field_pair(kernel, direction: Direction, num_dims: int | None, bounded: bool):
    base, active = kernel.base_kernel, kernel.base_kernel.active_dims
    d = resolve_num_dims(kernel, num_dims if active is None else None)
    pair = _pair_over_base(base, direction, d, bounded)
    return pair if active is None else precompose(pair, lambda x: select_columns(x, active))


def _pair_over_base(base: Kernel, direction: Direction, d: int, bounded: bool) -> SpectralPair | SpectralSum:
    """Return the pair over a scalar base kernel on d columns, looking through scalings and sums."""
    if isinstance(base, ScaleKernel):
        return scale_pair(_pair_over_base(base.base_kernel, direction, d, bounded), lambda: base.outputscale)
    if isinstance(base, AdditiveKernel) and all(k.active_dims is None for k in base.kernels):
        return SpectralSum(tuple(t for k in base.kernels for t in _pair_over_base(k, direction, d, bounded).terms))
    if bounded and scale_mixture(base) is not None:
        return _bounded_pair(base, direction, d)
    check_moment_is_finite(base, 4, "unbounded curl- and divergence-free")
    return map_terms(
        spectral_pair.ignoring_active_dims(base, num_dims=d), lambda term: _unbounded_pair(term, direction, d)
    )


def _bounded_pair(base: Kernel, direction: Direction, d: int) -> SpectralPair:
    mixture = scale_mixture(base)
    check_moment_is_finite(base, 2, "curl- and divergence-free")
    pair = SpectralPair(
        base_dim=d + 1 + mixture.base_dim,
        frequencies=lambda u: whitened_frequencies(u, d, mixture, tilted=True) / base.lengthscale.to(u),
        factor=curl_free_factor,
        isotropic=True,
        num_dims=d,
    )

    def amplitude(frequencies: Tensor) -> Tensor:
        radius = (frequencies * base.lengthscale.to(frequencies)).norm(dim=-1, keepdim=True)
        return (d * mixture.moment(2)) ** 0.5 / radius

    return _directed_pair(pair, direction, lambda frequencies: frequencies, amplitude)


def _unbounded_pair(term: SpectralPair, direction: Direction, d: int) -> SpectralPair:
    """Multiply a scalar factor by the direction of the frequency of x.

    The warp of a smooth stationary kernel selects or repeats columns, so it is linear: ⟨ω, h(x)⟩ = ⟨ω Hᵀ, x⟩ with H =
    h(I).
    """

    def of_x(frequencies: Tensor) -> Tensor:
        eye = torch.eye(d, dtype=frequencies.dtype, device=frequencies.device)
        return frequencies if term.warp is None else frequencies @ term.warp(eye).mT

    return _directed_pair(term, direction, of_x, lambda frequencies: term.factor(frequencies).squeeze(-1))


def _directed_pair(term: SpectralPair, direction: Direction, of_x, amplitude) -> SpectralPair:
    """Return the pair with the factor direction(ω) · amplitude(ω), amplitude (..., D or 1, 1)."""

    def reflection(frequencies: Tensor) -> tuple[Tensor, Tensor]:
        vectors, norm = direction.reflection(of_x(frequencies))
        return vectors, norm * amplitude(frequencies)

    return replace(
        term,
        factor=lambda w: direction.factor(of_x(w)) * amplitude(w).unsqueeze(-1),
        reflection=reflection if direction.reflection else None,
    )
