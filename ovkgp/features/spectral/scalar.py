"""Spectral pairs of scalar kernels whose spectral distribution is a product over the coordinates (BT §2.5).

A uniform is mapped by the quantile function of a distribution symmetric about 0, as products over coordinates require:
E cos(ω_1δ_1 + ω_2δ_2) = E cos(ω_1δ_1) · E cos(ω_2δ_2). Continuous distributions are differentiated through the
frequency. Distributions on the integers cannot be: there the factor has the weight √(P / P'), with P' being P held
constant, whose value is 1 and whose gradient is that of the kernel.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from gpytorch.kernels import CosineKernel, PeriodicKernel, SpectralMixtureKernel
from scipy.special import ive, zeta
from torch import Tensor

from ovkgp.exceptions import SpectralError
from ovkgp.features.spectral.pair import (
    SpectralPair,
    SpectralSum,
    precompose,
    resolve_num_dims,
    spectral_pair,
    unit_factor,
)
from ovkgp.kernels.chi_square import SkewedChi2Kernel
from ovkgp.kernels.stationary import CauchyKernel, LaplaceKernel, SobolevKernel
from ovkgp.kernels.warped import WarpedKernel

TWO_PI = 2 * math.pi


@spectral_pair.register(LaplaceKernel)
def laplace_pair(kernel: LaplaceKernel, num_dims: int | None = None) -> SpectralPair:
    """Return the pair ω_k = C_k / ℓ_k with C_k standard Cauchy (BT-06)."""
    dims = resolve_num_dims(kernel, num_dims)
    return SpectralPair(dims, lambda u: _cauchy_quantile(u) / kernel.lengthscale, unit_factor)


@spectral_pair.register(CauchyKernel)
def cauchy_pair(kernel: CauchyKernel, num_dims: int | None = None) -> SpectralPair:
    """Return the pair ω_k = L_k / ℓ_k with L_k standard Laplace."""
    dims = resolve_num_dims(kernel, num_dims)
    return SpectralPair(dims, lambda u: _laplace_quantile(u) / kernel.lengthscale, unit_factor)


@spectral_pair.register(SkewedChi2Kernel)
def skewed_chi2_pair(kernel: SkewedChi2Kernel, num_dims: int | None = None) -> SpectralPair:
    """Return the pair ω_k = (1/π) log tan(πu_k/2), of density sech(πω), on the warped inputs log(x + c) (BT-E-10)."""
    return SpectralPair(
        resolve_num_dims(kernel, num_dims),
        lambda u: torch.tan(u * (math.pi / 2)).log() / math.pi,
        unit_factor,
        warp=lambda x: kernel.shift(x).log(),
    )


@spectral_pair.register(SobolevKernel)
def sobolev_pair(kernel: SobolevKernel, num_dims: int | None = None) -> SpectralPair:
    """Return the pair of a Sobolev kernel on R or on the circle.

    On R, ℓω has density ∝ 1/(1 + ξ²) or 1/(1 + ξ² + ξ⁴); on the circle ω = 2πk with P(k) ∝ (2πk)^{−2s}, k ≠ 0.
    """
    dims = resolve_num_dims(kernel, num_dims)
    scale = math.sqrt(kernel.value_at_zero**dims)

    def frequencies(u: Tensor) -> Tensor:
        if kernel.periodic:
            return TWO_PI * _zeta_integers(u, kernel.order, 1 / kernel.value_at_zero)
        quantile = _cauchy_quantile if kernel.order == 1 else _sobolev2_quantile
        return quantile(u) / kernel.lengthscale

    return SpectralPair(dims, frequencies, lambda w: unit_factor(w) * scale, discrete=kernel.periodic)


@spectral_pair.register(PeriodicKernel)
def periodic_pair(kernel: PeriodicKernel, num_dims: int | None = None) -> SpectralPair:
    """Return the pair from the Fourier series of exp(−2 sin²(πδ/p) / ℓ).

    ω_i = 2πk_i / period_i with P(k) = e^{−z} I_|k|(z), z = 1/ℓ_i.
    """
    dims = resolve_num_dims(kernel, num_dims)

    def frequencies(u: Tensor) -> Tensor:
        return TWO_PI * _bessel_integers(u, 1 / kernel.lengthscale) / kernel.period_length

    def factor(frequencies: Tensor) -> Tensor:
        integers = (frequencies * kernel.period_length / TWO_PI).detach().round().abs()
        log_density = _log_bessel(integers, 1 / kernel.lengthscale.to(frequencies)).sum(-1)
        return _held_ratio(log_density)

    return SpectralPair(dims, frequencies, factor, discrete=True)


@spectral_pair.register(CosineKernel)
def cosine_pair(kernel: CosineKernel, num_dims: int | None = None) -> SpectralPair:
    """Return the pair ω = ±π / period: in one dimension every frequency represents the kernel exactly."""
    dims = resolve_num_dims(kernel, num_dims)
    if dims != 1:
        raise SpectralError(
            f"cos(π‖x − z‖ / period) is not positive definite in {dims} dimensions and has no spectral distribution. Multiply one-dimensional CosineKernels, each with its own active_dims."
        )
    return SpectralPair(1, lambda u: _sign(u) * math.pi / kernel.period_length, unit_factor, discrete=True)


@spectral_pair.register(SpectralMixtureKernel)
def spectral_mixture_pair(kernel: SpectralMixtureKernel) -> SpectralSum | SpectralPair:
    """Return ω = 2π(±μ_q + σ_q z), z normal: one pair of weight w_q per component q in one dimension.

    In d > 1 dimensions GPyTorch's kernel is the *product over coordinates* of one-dimensional mixtures. Its
    distribution selects a component per coordinate, and the weights are differentiated through the density of the
    mixture.
    """
    if kernel.ard_num_dims > 1:
        return _mixture_product(kernel)
    return SpectralSum(tuple(_mixture_component(kernel, q) for q in range(kernel.num_mixtures)))


@spectral_pair.register(WarpedKernel)
def warped_pair(kernel: WarpedKernel, bounded: bool = True) -> SpectralPair | SpectralSum:
    """Return the pair of the base kernel on the warped inputs."""
    base = spectral_pair(kernel.base_kernel, num_dims=kernel.group.embedding_dim, bounded=bounded)
    return precompose(base, lambda x: kernel.group(x, kernel.columns))


def _mixture_component(kernel: SpectralMixtureKernel, q: int) -> SpectralPair:
    def frequencies(u: Tensor) -> Tensor:
        mean, scale = kernel.mixture_means[..., q, :, :], kernel.mixture_scales[..., q, :, :]
        return TWO_PI * (_sign(u[..., 1:]) * mean + torch.special.ndtri(u[..., :1]) * scale)

    return SpectralPair(2, frequencies, lambda w: kernel.mixture_weights[..., q, None, None, None].to(w).sqrt())


def _mixture_product(kernel: SpectralMixtureKernel) -> SpectralPair:
    dims = kernel.ard_num_dims

    def frequencies(u: Tensor) -> Tensor:
        normal, sign, choice = torch.special.ndtri(u[..., :dims]), _sign(u[..., dims : 2 * dims]), u[..., 2 * dims :]
        cumulative = kernel.mixture_weights.detach().to(u).cumsum(-1)
        edges = (cumulative / cumulative[..., -1:])[..., None, None, :-1]
        which = (choice[..., None] > edges).sum(-1, keepdim=True)  # (*batch, D, d, 1)
        mean, scale = (_choose(table, which) for table in (kernel.mixture_means, kernel.mixture_scales))
        return TWO_PI * (sign * mean + normal * scale)

    def factor(frequencies: Tensor) -> Tensor:
        weights = kernel.mixture_weights.to(frequencies)
        log_weights = (weights / weights.sum(-1, keepdim=True)).log()[..., None, None, :]
        log_density = (log_weights + _log_densities(kernel, frequencies)).logsumexp(-1).sum(-1)
        return weights.sum(-1)[..., None, None, None] ** (dims / 2) * _held_ratio(log_density)

    return SpectralPair(3 * dims, frequencies, factor)


def _choose(table: Tensor, which: Tensor) -> Tensor:
    """Return the entries `which` (..., D, d, 1) of a table (..., Q, 1, d), as (..., D, d)."""
    table = table.movedim(-3, -1)  # (..., 1, d, Q)
    return table.expand(*which.shape[:-1], -1).gather(-1, which).squeeze(-1)


def _log_densities(kernel: SpectralMixtureKernel, frequencies: Tensor) -> Tensor:
    """Return the log density, up to a constant, of each component at the frequencies, held constant: (..., D, d, Q)."""
    cycles = frequencies.detach().unsqueeze(-1) / TWO_PI
    mean, scale = (t.detach().movedim(-3, -1) for t in (kernel.mixture_means, kernel.mixture_scales))
    exponents = [-((cycles - sign * mean) / scale).square() / 2 for sign in (1, -1)]
    return torch.logaddexp(*exponents) - scale.log()


def _held_ratio(log_density: Tensor) -> Tensor:
    """Return √(P / P'), P' = P held constant, as a factor (..., D, 1, 1): value 1, gradient ½ that of log P."""
    return ((log_density - log_density.detach()) / 2).exp()[..., None, None]


def _sign(u: Tensor) -> Tensor:
    return torch.where(u < 0.5, -1.0, 1.0).to(u)


def _cauchy_quantile(u: Tensor) -> Tensor:
    return torch.tan(math.pi * (u - 0.5))


def _laplace_quantile(u: Tensor) -> Tensor:
    return -_sign(u) * (2 * torch.minimum(u, 1 - u)).log()


def _sobolev2_quantile(u: Tensor) -> Tensor:
    """Return quantiles of the density (√3/π) / (1 + ξ² + ξ⁴), by Newton steps on P(|ξ| > x) = 2·min(u, 1 − u).

    This tail is convex in x, and 1 + ξ² + ξ⁴ ≤ (1 + ξ)⁴ gives an initial value left of the root: the steps increase to
    it.
    """
    tail = 2 * torch.minimum(u, 1 - u)
    x = ((2 / (math.sqrt(3) * math.pi) / tail) ** (1 / 3) - 1).clamp_min(0)
    for _ in range(12):
        density = (2 * math.sqrt(3) / math.pi) / (1 + x**2 + x**4)
        x = x + (_sobolev2_tail(x) - tail) / density
    return _sign(u) * x


def _sobolev2_tail(x: Tensor) -> Tensor:
    """Return P(|ξ| > x), x ≥ 0: the primitive in closed form below 2; above, where it cancels, its series in 1/x."""
    near = x.clamp_max(2)
    logs = (near.square() + near + 1).log() - (near.square() - near + 1).log()
    arcs = ((2 * near + 1) / math.sqrt(3)).atan() + ((2 * near - 1) / math.sqrt(3)).atan()
    y = x.clamp_min(2).reciprocal()
    series = sum(y ** (6 * j + 3) / (6 * j + 3) - y ** (6 * j + 5) / (6 * j + 5) for j in range(10))
    primitive = logs / 4 + arcs / (2 * math.sqrt(3))
    return torch.where(x < 2, 1 - (2 * math.sqrt(3) / math.pi) * primitive, (2 * math.sqrt(3) / math.pi) * series)


def _zeta_integers(u: Tensor, order: int, mass_at_zero: float) -> Tensor:
    """Return integers k with P(0) = `mass_at_zero` and P(k) ∝ |k|^{−2·order} otherwise, of the shape and dtype of u.

    The tail Σ_{j>k} j^{−a} = ζ(a, k+1) lies between the integrals of t^{−a} from k + 1 and from k, which leaves two
    candidates for k: one evaluation of Hurwitz' ζ decides. O(1) per entry, however heavy the tail.
    """
    a = 2 * order
    folded = np.abs(2 * u.detach().cpu().double().numpy() - 1)
    tail = np.clip((1 - folded) / (1 - mass_at_zero), np.finfo(float).tiny, 1) * zeta(a)
    k = np.maximum(np.ceil(((a - 1) * tail) ** (-1 / (a - 1))) - 1, 1)
    k = np.where(zeta(a, k + 1) > tail, k + 1, k)
    return torch.as_tensor(np.where(folded < mass_at_zero, 0, k)).to(u) * torch.where(u < 0.5, -1, 1)


def _bessel_integers(u: Tensor, z: Tensor) -> Tensor:
    """Return integers k (*batch, D, d) with P(k) = e^{−z} I_|k|(z), for u (D, d) and z (*batch, 1, d or 1).

    The distribution has variance z; a table of 10√z + 30 terms holds all of it but 1e-17.
    """
    rates = z.detach().cpu().double().expand(*z.shape[:-1], u.shape[-1]).numpy()
    orders = np.arange(int(10 * np.sqrt(rates.max())) + 30)
    masses = ive(orders, rates[..., None]) * np.where(orders == 0, 1, 2)
    edges = torch.as_tensor(masses.cumsum(-1)).transpose(-3, -2).squeeze(-2)  # (*batch, d, terms)
    folded = (2 * u.detach().cpu().double() - 1).abs().mT.expand(*edges.shape[:-1], -1).contiguous()
    k = torch.searchsorted(edges.contiguous(), folded).mT
    return k.to(u) * torch.where(u < 0.5, -1, 1)


def _log_bessel(order: Tensor, z: Tensor) -> Tensor:
    """Return log(e^{−z} I_order(z)), integer orders ≥ 0; differentiable in z any number of times."""
    return _LogBessel.apply(*torch.broadcast_tensors(order, z))


class _LogBessel(torch.autograd.Function):
    @staticmethod
    def forward(ctx, order: Tensor, z: Tensor) -> Tensor:
        ctx.save_for_backward(order, z)
        value = ive(order.cpu().double().numpy(), z.detach().cpu().double().numpy())
        return torch.as_tensor(np.log(np.maximum(value, np.finfo(float).tiny))).to(z)

    @staticmethod
    def backward(ctx, grad: Tensor):
        # I_k' = (I_{k−1} + I_{k+1}) / 2, as ratios to I_k
        order, z = ctx.saved_tensors
        here = _LogBessel.apply(order, z)
        below, above = (_LogBessel.apply(near, z) for near in ((order - 1).abs(), order + 1))
        return None, grad * (((below - here).exp() + (above - here).exp()) / 2 - 1)
