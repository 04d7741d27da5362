"""Spectral pairs of curl-free and divergence-free kernels (BT-44, BT-45, BT-E-05..08), and their variance.

Differentiating k(δ) = E cos⟨ω, δ⟩ twice gives A(ω) = ωωᵀ (curl-free) and ‖ω‖² I − ωωᵀ (divergence-free): unbounded
factors. Over a Gaussian scale mixture the norm can be moved into the distribution of ω instead. With the tilted
distribution ω = R û ⊘ ℓ of `whitened_frequencies` and c = √(d E[τ]),

    curl-free        B = c û ⊘ ℓ            = c ω / ‖ω ∘ ℓ‖                    (d × 1)
    divergence-free  B = c ‖û ⊘ ℓ‖ Q(ω)     = c ‖ω‖ / ‖ω ∘ ℓ‖ Q(ω)             (d × (d − 1))

with Q(ω) an orthonormal basis of the complement of ω. Bounded features have lower variance near zero lag.

For Gaussian ω the variance is exact (BT-E-16, 17): A² = ‖ω‖²A, so that it follows from E[cos⟨ω, δ⟩ ωωᵀ], from
E[cos⟨ω, δ⟩ ‖ω‖² ωωᵀ] and, for divergence-free kernels, from Tr(·) I − (·) of both.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import torch
from gpytorch.kernels import AdditiveKernel, Kernel, ScaleKernel
from torch import Tensor

from ovkgp.features.operators import reflection_columns
from ovkgp.features.spectral.moments import check_moment_is_finite
from ovkgp.features.spectral.pair import (
    map_terms,
    precompose,
    resolve_num_dims,
    scale_pair,
    select_columns,
    spectral_pair,
    whitened_frequencies,
)
from ovkgp.kernels import CurlFreeKernel, DivergenceFreeKernel
from ovkgp.kernels.spectral import SpectralPair, SpectralSum, scale_mixture


class Direction(NamedTuple):
    """Map ω (..., D, d) ↦ a factor (..., D, d, r) of A(ω), of degree one in ω, and its form as a reflection, if any."""

    factor: Callable[[Tensor], Tensor]
    reflection: Callable[[Tensor], tuple[Tensor, Tensor]] | None


def curl_free_factor(frequencies: Tensor) -> Tensor:
    """Return ω as a column: the factor of ωωᵀ."""
    return frequencies.unsqueeze(-1)


def householder_vector(frequencies: Tensor) -> tuple[Tensor, Tensor]:
    """Return v and ‖ω‖ (..., D, 1): the reflection I − 2vvᵀ/‖v‖² maps e₁ to ∓ω/‖ω‖, and its other columns are Q(ω)."""
    norm = frequencies.norm(dim=-1, keepdim=True)
    unit = frequencies / norm.clamp_min(torch.finfo(norm.dtype).tiny)  # at ω = 0 the factor is 0
    # the sign of the first coordinate makes Q smooth in positive lengthscales
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
    """Multiply a scalar factor by the direction of the frequency of x."""
    of_x = partial(input_frequencies, term, num_dims=d)
    return _directed_pair(term, direction, of_x, lambda frequencies: term.factor(frequencies).squeeze(-1))


def input_frequencies(term: SpectralPair, frequencies: Tensor, num_dims: int) -> Tensor:
    """Return the frequencies (..., D, d) of x itself, for a warp that selects or repeats columns, and so is linear."""
    if term.warp is None:
        return frequencies
    eye = torch.eye(num_dims, dtype=frequencies.dtype, device=frequencies.device)
    return frequencies @ term.warp(eye).mT  # ⟨ω, h(x)⟩ = ⟨ω Hᵀ, x⟩ with H = h(I)


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


def field_variance(weights: Tensor, lag: Tensor, curl: bool, bounded: bool) -> Tensor:
    """Return D · Var K̃(δ) = ½E[A²] + ½E[cos⟨ω, 2δ⟩A²] − K(δ)², (d, d), for ω ~ N(0, diag(weights)), weights 1/ℓ²."""
    zero = torch.zeros_like(lag)
    kernel = _outputs(_second_moment(weights, lag), curl)
    if bounded:  # for equal weights only: A² = (d/ℓ²) A
        d = weights.numel()
        total = _outputs(_second_moment(weights, zero) + _second_moment(weights, 2 * lag), curl)
        return d * weights[0] / 2 * total - kernel @ kernel
    total = _outputs(_fourth_moment(weights, zero) + _fourth_moment(weights, 2 * lag), curl)
    return total / 2 - kernel @ kernel


def _outputs(matrix: Tensor, curl: bool) -> Tensor:
    return matrix if curl else matrix.trace() * torch.eye(len(matrix), dtype=matrix.dtype) - matrix


def _second_moment(weights: Tensor, lag: Tensor) -> Tensor:
    """Return E[cos⟨ω, δ⟩ ωωᵀ] = k(δ) (W − ggᵀ), with g = W δ."""
    g = weights * lag
    return torch.exp(-(g * lag).sum() / 2) * (torch.diag(weights) - torch.outer(g, g))


def _fourth_moment(weights: Tensor, lag: Tensor) -> Tensor:
    """Return E[cos⟨ω, δ⟩ ‖ω‖² ωωᵀ] = k(δ) {(Tr W − ‖g‖²)(W − ggᵀ) + 2W² − 2(W ggᵀ + ggᵀ W)}, with g = W δ."""
    g = weights * lag
    outer = torch.outer(g, g)
    inner = (weights.sum() - g @ g) * (torch.diag(weights) - outer) + 2 * torch.diag(weights**2)
    return torch.exp(-(g * lag).sum() / 2) * (inner - 2 * (weights[:, None] + weights) * outer)


def largest_radial_variance(num_dims: int, curl: bool, bounded: bool) -> float:
    """Return sup_δ ‖D · Var K̃(δ)‖ for lengthscale 1, over a fine grid of ‖δ‖² up to where the kernel vanishes."""
    t = torch.linspace(0.0, 60.0, 12001, dtype=torch.float64)
    d = num_dims
    kernel, doubled, at_zero = (_radial_second(s, d, curl) for s in (t, 4 * t, torch.zeros_like(t)))
    if bounded:
        variance = d / 2 * (at_zero + doubled) - kernel**2
    else:
        fourth = _radial_fourth(torch.zeros_like(t), d, curl) + _radial_fourth(4 * t, d, curl)
        variance = fourth / 2 - kernel**2
    return float(variance[: 2 if d > 1 else 1].max())


def _radial_second(t: Tensor, d: int, curl: bool) -> Tensor:
    """Return the eigenvalues of K at ‖δ‖² = t, parallel and perpendicular to δ, as (2, ...)."""
    k = torch.exp(-t / 2)
    return _radial_outputs(k * (1 - t), k, d, curl)


def _radial_fourth(t: Tensor, d: int, curl: bool) -> Tensor:
    k = torch.exp(-t / 2)
    return _radial_outputs(k * (d + 2 - t + t * (t - d - 4)), k * (d + 2 - t), d, curl)


def _radial_outputs(parallel: Tensor, perpendicular: Tensor, d: int, curl: bool) -> Tensor:
    values = torch.stack([parallel, perpendicular])
    return values if curl else parallel + (d - 1) * perpendicular - values
