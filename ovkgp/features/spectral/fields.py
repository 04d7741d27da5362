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
from typing import NamedTuple

import torch
from gpytorch.kernels import AdditiveKernel, Kernel, ScaleKernel
from torch import Tensor

from ovkgp.features.operators import reflected_columns
from ovkgp.features.spectral.moments import check_finite
from ovkgp.features.spectral.pair import (
    SpectralPair,
    SpectralSum,
    input_dim,
    map_terms,
    precompose,
    scaled,
    select,
    spectral_pair,
)
from ovkgp.features.spectral.radial import scale_mixture, whitened_frequencies
from ovkgp.kernels import CurlFreeKernel, DivergenceFreeKernel


class Direction(NamedTuple):
    """ω (..., D, d) ↦ a factor (..., D, d, r) of A(ω), of degree one in ω, and its form as a reflection if it has one."""

    factor: Callable[[Tensor], Tensor]
    reflection: Callable[[Tensor], tuple[Tensor, Tensor]] | None


def along(frequencies: Tensor) -> Tensor:
    """ω as a column: the factor of ωωᵀ."""
    return frequencies.unsqueeze(-1)


def mirror(frequencies: Tensor) -> tuple[Tensor, Tensor]:
    """v and ‖ω‖ (..., D, 1): the reflection I − 2vvᵀ/‖v‖² sends e₁ to ∓ω/‖ω‖, and its other columns are Q(ω).

    The sign follows the first coordinate of ω, so that Q is smooth in positive lengthscales.
    """
    norm = frequencies.norm(dim=-1, keepdim=True)
    unit = frequencies / norm.clamp_min(torch.finfo(norm.dtype).tiny)  # at ω = 0 the factor is 0
    sign = torch.where(frequencies[..., :1] >= 0, 1.0, -1.0).to(frequencies)
    return torch.cat([unit[..., :1] + sign, unit[..., 1:]], dim=-1), norm


def across(frequencies: Tensor) -> Tensor:
    """‖ω‖ Q(ω), d × (d − 1): the factor of ‖ω‖² I − ωωᵀ."""
    return reflected_columns(*mirror(frequencies))


CURL_FREE = Direction(along, None)
DIVERGENCE_FREE = Direction(across, mirror)


@spectral_pair.register(CurlFreeKernel)
def _(kernel: CurlFreeKernel, num_dims: int | None = None, bounded: bool = True):
    return _field_pair(kernel, CURL_FREE, num_dims, bounded)


@spectral_pair.register(DivergenceFreeKernel)
def _(kernel: DivergenceFreeKernel, num_dims: int | None = None, bounded: bool = True):
    return _field_pair(kernel, DIVERGENCE_FREE, num_dims, bounded)


def _field_pair(kernel, direction: Direction, num_dims: int | None, bounded: bool):
    base, active = kernel.base_kernel, kernel.base_kernel.active_dims
    d = input_dim(kernel, num_dims if active is None else None)
    pair = _over(base, direction, d, bounded)
    return pair if active is None else precompose(pair, lambda x: select(x, active))


def _over(base: Kernel, direction: Direction, d: int, bounded: bool) -> SpectralPair | SpectralSum:
    """The pair over a scalar base kernel on d columns, looking through scalings and plain sums."""
    if isinstance(base, ScaleKernel):
        return scaled(_over(base.base_kernel, direction, d, bounded), lambda: base.outputscale)
    if isinstance(base, AdditiveKernel) and all(k.active_dims is None for k in base.kernels):
        return SpectralSum(tuple(t for k in base.kernels for t in _over(k, direction, d, bounded).terms))
    if bounded and scale_mixture(base) is not None:
        return _bounded(base, direction, d)
    check_finite(base, 4, "unbounded curl- and divergence-free")
    return map_terms(spectral_pair.ignoring_active_dims(base, num_dims=d), lambda term: _unbounded(term, direction, d))


def _bounded(base: Kernel, direction: Direction, d: int) -> SpectralPair:
    mixture = scale_mixture(base)
    check_finite(base, 2, "curl- and divergence-free")
    pair = SpectralPair(
        base_dim=d + 1 + mixture.base_dim,
        frequencies=lambda u: whitened_frequencies(u, d, mixture, tilted=True) / base.lengthscale.to(u),
        factor=along,
        isotropic=True,
        num_dims=d,
    )

    def amplitude(frequencies: Tensor) -> Tensor:
        radius = (frequencies * base.lengthscale.to(frequencies)).norm(dim=-1, keepdim=True)
        return (d * mixture.moment(2)) ** 0.5 / radius

    return _directed(pair, direction, lambda frequencies: frequencies, amplitude)


def _unbounded(term: SpectralPair, direction: Direction, d: int) -> SpectralPair:
    """Multiply a scalar factor by the direction of the frequency of x itself: the warp of a smooth stationary kernel
    selects or repeats columns, so it is linear and ⟨ω, h(x)⟩ = ⟨ω Hᵀ, x⟩ with H = h(I)."""

    def of_x(frequencies: Tensor) -> Tensor:
        eye = torch.eye(d, dtype=frequencies.dtype, device=frequencies.device)
        return frequencies if term.warp is None else frequencies @ term.warp(eye).mT

    return _directed(term, direction, of_x, lambda frequencies: term.factor(frequencies).squeeze(-1))


def _directed(term: SpectralPair, direction: Direction, of_x, amplitude) -> SpectralPair:
    """The pair with the factor direction(ω) · amplitude(ω), amplitude (..., D or 1, 1)."""

    def reflection(frequencies: Tensor) -> tuple[Tensor, Tensor]:
        vectors, norm = direction.reflection(of_x(frequencies))
        return vectors, norm * amplitude(frequencies)

    return replace(
        term,
        factor=lambda w: direction.factor(of_x(w)) * amplitude(w).unsqueeze(-1),
        reflection=reflection if direction.reflection else None,
    )
