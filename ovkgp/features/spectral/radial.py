"""Spectral pairs of the radial kernels RBF, Matérn and rational quadratic (BT-42).

All three are Gaussian scale mixtures, k(δ) = E_τ exp(−τ s/2) with s = Σ δ_i²/ℓ_i², so that

    ω = √τ z ⊘ ℓ,   z ~ N(0, I),   τ = 1 (RBF), ν / Gamma(ν) (Matérn-ν), Gamma(α) / α (RQ):

one draw of τ per frequency, shared by the coordinates. Bounded curl- and divergence-free features need the *tilted*
distribution, reweighted by ‖ω ∘ ℓ‖²: ‖z‖² becomes χ²(d + 2), and τ changes its Gamma parameter.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from gpytorch.kernels import Kernel, MaternKernel, RBFKernel, RQKernel
from scipy.special import gammainc, gammaincinv
from torch import Tensor

from ovkgp.features.spectral.pair import SpectralPair, resolve_num_dims, spectral_pair, unit_factor
from ovkgp.kernels.records import KernelDispatcher


class GammaQuantile(torch.autograd.Function):
    """u-quantile x of Gamma(a, 1) for a and u of equal shape: F(x; a) = u, so dx/da = −∂F/∂a / density."""

    @staticmethod
    def forward(ctx, shape: Tensor, uniforms: Tensor) -> Tensor:
        value = torch.from_numpy(gammaincinv(shape.numpy(force=True), uniforms.numpy(force=True))).to(uniforms)
        value = value.clamp_min(torch.finfo(value.dtype).tiny)
        ctx.save_for_backward(shape, value)
        return value

    @staticmethod
    def backward(ctx, gradient: Tensor):
        shape, value = ctx.saved_tensors
        by_uniforms = gradient / gamma_density(shape, value)
        return -by_uniforms * GammaShapeDerivative.apply(shape, value), by_uniforms


class GammaShapeDerivative(torch.autograd.Function):
    """∂F/∂a (x; a) of the distribution function of Gamma(a, 1), by central differences.

    Accurate to about 1e-10, and its derivative in a to about 1e-7. Differentiable once, so that quantiles are twice.
    """

    @staticmethod
    def forward(ctx, shape: Tensor, value: Tensor) -> Tensor:
        ctx.save_for_backward(shape, value)
        below, _, above, step = _shifted_cdfs(shape, value, 1e-5)
        return (above - below) / (2 * step)

    @staticmethod
    def backward(ctx, gradient: Tensor):
        shape, value = ctx.saved_tensors
        below, here, above, step = _shifted_cdfs(shape, value, 1e-3)
        by_value = gamma_density(shape, value) * (value.log() - torch.digamma(shape))
        return gradient * (above - 2 * here + below) / step**2, gradient * by_value


def gamma_density(shape: Tensor, value: Tensor) -> Tensor:
    """Return the density of Gamma(shape, 1)."""
    return torch.exp((shape - 1) * value.log() - value - torch.lgamma(shape))


def _shifted_cdfs(shape: Tensor, value: Tensor, step: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return F(x; a − h), F(x; a), F(x; a + h) and h, which grows with a and stays below it."""
    a, x = shape.numpy(force=True), value.numpy(force=True)
    h = step * np.maximum(np.minimum(a, 1), a)
    return tuple(torch.from_numpy(np.asarray(t)).to(value) for t in (*(gammainc(a + c * h, x) for c in (-1, 0, 1)), h))


def gamma_quantile(shape: Tensor, uniforms: Tensor) -> Tensor:
    """Return the quantiles of Gamma(shape, 1) at `uniforms`, broadcast and twice differentiable in both."""
    return GammaQuantile.apply(*torch.broadcast_tensors(shape.to(uniforms), uniforms))


class ScaleMixture(NamedTuple):
    """Mixing distribution of a radial kernel: quantile functions of τ and of tilted τ, and s ↦ E[τ^(s/2)]."""

    quantile: Callable[[Tensor], Tensor] | None
    tilted_quantile: Callable[[Tensor], Tensor] | None
    moment: Callable[[float], float]

    @property
    def base_dim(self) -> int:
        return 0 if self.quantile is None else 1


class ScaleMixtureDispatcher(KernelDispatcher):
    """Dispatcher from kernels that are Gaussian scale mixtures to their mixing distributions."""

    def __call__(self, kernel: Kernel) -> ScaleMixture | None:
        """Return the mixing distribution, or None for any other kernel."""
        rule = self.find(kernel)
        return None if rule is None else rule(kernel)


scale_mixture = ScaleMixtureDispatcher()


@scale_mixture.register(RBFKernel)
def _(kernel: RBFKernel) -> ScaleMixture:
    return ScaleMixture(None, None, lambda s: 1.0)


@scale_mixture.register(MaternKernel)
def _(kernel: MaternKernel) -> ScaleMixture:
    nu = kernel.nu
    shape = torch.tensor(nu, dtype=torch.float64)
    # Gamma(ν − 1) exists only if E‖ω‖² does; rougher kernels never use the tilted distribution.
    return ScaleMixture(
        lambda u: nu / gamma_quantile(shape, u),
        lambda u: nu / gamma_quantile(shape - 1, u),
        lambda s: nu ** (s / 2) * gamma_ratio(nu, -s / 2) if s < 2 * nu else math.inf,
    )


@scale_mixture.register(RQKernel)
def _(kernel: RQKernel) -> ScaleMixture:
    def alpha(u):
        return kernel.alpha.to(u)  # (*batch, 1) against uniforms (D,)

    def moment(s: float) -> float:
        if s == 2:
            return 1.0  # for every α, and so for batches of them
        value = float(kernel.alpha)
        return value ** (-s / 2) * gamma_ratio(value, s / 2)

    return ScaleMixture(
        lambda u: gamma_quantile(alpha(u), u) / alpha(u), lambda u: gamma_quantile(alpha(u) + 1, u) / alpha(u), moment
    )


def gamma_ratio(x: float, step: float) -> float:
    """Return Γ(x + step) / Γ(x)."""
    return math.exp(math.lgamma(x + step) - math.lgamma(x))


def whitened_frequencies(uniforms: Tensor, d: int, mixture: ScaleMixture, tilted: bool = False) -> Tensor:
    """Return ω ∘ ℓ (*batch, D, d): √τ z, or if `tilted` R û with R² = τ χ²(d + 2), which takes one more uniform."""
    z = torch.special.ndtri(uniforms[:, :d])
    if tilted:
        squared = z.square().sum(-1, keepdim=True)
        z = z * ((squared - 2 * uniforms[:, d : d + 1].log()) / squared).sqrt()
    quantile = mixture.tilted_quantile if tilted else mixture.quantile
    return z if quantile is None else z * quantile(uniforms[:, -1]).sqrt().unsqueeze(-1)


@spectral_pair.register(RBFKernel)
@spectral_pair.register(MaternKernel)
@spectral_pair.register(RQKernel)
def radial_pair(kernel: Kernel, num_dims: int | None = None) -> SpectralPair:
    """Return the pair ω = √τ z ⊘ ℓ, B = 1."""
    d, mixture = resolve_num_dims(kernel, num_dims), scale_mixture(kernel)
    return SpectralPair(
        base_dim=d + mixture.base_dim,
        frequencies=lambda u: whitened_frequencies(u, d, mixture) / kernel.lengthscale.to(u),
        factor=unit_factor,
        isotropic=True,
        num_dims=d,
    )
