"""Records of the scalar kernels of GPyTorch: profiles or jets, spectral distributions, names and roles of parameters."""

from __future__ import annotations

import math

import numpy as np
import torch
from gpytorch.kernels import (
    ConstantKernel,
    CosineKernel,
    LinearKernel,
    MaternKernel,
    PeriodicKernel,
    PolynomialKernel,
    RBFKernel,
    RQKernel,
    SpectralMixtureKernel,
)
from scipy.special import ive
from torch import Tensor

from ovkgp.exceptions import SmoothnessError, SpectralError
from ovkgp.kernels.radial_derivatives import SMOOTH_ADVICE, Jet, per_pair, separable_jet
from ovkgp.kernels.records import KernelRecord, NamedKernel, Profile, register_kernel, safe_root
from ovkgp.kernels.spectral import (
    ScaleMixture,
    SpectralPair,
    SpectralSum,
    density_ratio,
    draw_sign,
    gamma_quantile,
    gamma_ratio,
)
from ovkgp.kernels.state_space import constant_form, linear_form, matern_form

TWO_PI = 2 * math.pi


def _named(title: str, description: str, value: str, **options) -> NamedKernel:
    formula = f"k(x, z) = {value},   r^2 = Σ_i (x_i − z_i)^2/ℓ_i^2"
    return NamedKernel(title, description, formula, options)


def rbf_profile(xp, s, kernel: RBFKernel | None = None) -> Profile:
    """Return exp(−s/2).

    Parameters
    ----------
    xp : module
        NumPy or torch.
    s : ndarray or Tensor
        Scaled squared distances.
    kernel : Kernel or None, default=None
        Kernel with further parameters.

    Returns
    -------
    Profile
        Value and derivatives in s.
    """
    exponent = -0.5 * s
    # without gradients, overwriting saves a pass over fresh memory
    k = xp.exp(exponent) if xp is not torch or torch.is_grad_enabled() else exponent.exp_()
    return Profile(k, lambda: -0.5 * k, lambda: 0.25 * k)


register_kernel(
    KernelRecord(
        RBFKernel,
        roles={"lengthscale": "lengthscale"},
        profile=rbf_profile,
        scale_mixture=lambda kernel: ScaleMixture(lambda s: 1.0, variance=0.5),
        names={"rbf": _named("squared exponential", "draws are infinitely smooth", "exp(−r^2/2)")},
    )
)


def exponential_profile(xp, s, kernel: MaternKernel | None = None) -> Profile:
    """Return exp(−√s), with a finite derivative at s = 0.

    Parameters
    ----------
    xp : module
        NumPy or torch.
    s : ndarray or Tensor
        Scaled squared distances.
    kernel : Kernel or None, default=None
        Kernel with further parameters.

    Returns
    -------
    Profile
        Value and derivatives in s.
    """
    r = safe_root(xp, s)
    k = xp.exp(-r)
    return Profile(k, lambda: _ratio(xp, -0.5 * k, r), lambda: _ratio(xp, 0.25 * k * (1 + r), r**3))


def _matern_profile(xp, s, kernel: MaternKernel) -> Profile:
    if kernel.nu == 0.5:
        return exponential_profile(xp, s)
    a = safe_root(xp, 2 * kernel.nu * s)
    decay = xp.exp(-a)
    grown = (1 + a) * decay
    if kernel.nu == 1.5:
        return Profile(grown, lambda: -1.5 * decay, lambda: _ratio(xp, 2.25 * decay, a))
    return Profile(grown + (5 / 3) * s * decay, lambda: (-5 / 6) * grown, lambda: (25 / 12) * decay)


def _ratio(xp, numerator, r):
    """Return numerator / r, and a finite number where r = 0."""
    return numerator / xp.where(r > 0, r, 1.0)


def matern_mixture(kernel) -> ScaleMixture:
    """Return τ = ν / Gamma(ν), for a Matérn kernel with any smoothness `nu`."""
    nu = kernel.nu
    shape = torch.tensor(nu, dtype=torch.float64)
    # Gamma(ν − 1) exists only if E‖ω‖² does; rougher kernels never use the tilted distribution.
    return ScaleMixture(
        lambda s: nu ** (s / 2) * gamma_ratio(nu, -s / 2) if s < 2 * nu else math.inf,
        lambda u: nu / gamma_quantile(shape, u),
        lambda u: nu / gamma_quantile(shape - 1, u),
        variance=0.5 if nu >= 0.5 else 1.0,  # k(2δ) ≤ 2k(δ)² fails at large lags below ½
    )


register_kernel(
    KernelRecord(
        MaternKernel,
        roles={"lengthscale": "lengthscale"},
        profile=_matern_profile,
        scale_mixture=matern_mixture,
        moment_order=lambda kernel: 2 * kernel.nu,
        state_space=lambda kernel: matern_form(kernel.nu, kernel.lengthscale),
        names={
            "matern12": _named("Matérn 1/2", "draws are continuous and rough", "exp(−r)", nu=0.5),
            "matern32": _named("Matérn 3/2", "draws have one derivative", "(1 + √3 r) exp(−√3 r)", nu=1.5),
            "matern52": _named("Matérn 5/2", "draws have two derivatives", "(1 + √5 r + 5r^2/3) exp(−√5 r)", nu=2.5),
        },
        options=("nu",),
    )
)


def _rq_profile(xp, s, kernel: RQKernel, alpha) -> Profile:
    part = s / (2 * alpha)
    logs = xp.log1p(part)
    k = xp.exp(-alpha * logs)
    return Profile(
        k,
        lambda: -0.5 * k / (1 + part),
        lambda: (alpha + 1) / (4 * alpha) * k / (1 + part) ** 2,
        {"alpha": lambda: k * (part / (1 + part) - logs)},
    )


def _rq_mixture(kernel: RQKernel) -> ScaleMixture:
    """Return τ = Gamma(α) / α."""

    def alpha(u):
        return kernel.alpha.to(u)  # (*batch, 1) against uniforms (D,)

    def moment(s: float) -> float:
        if s == 2:
            return 1.0  # for every α, and so for batches of them
        value = float(kernel.alpha)
        return value ** (-s / 2) * gamma_ratio(value, s / 2)

    return ScaleMixture(
        moment, lambda u: gamma_quantile(alpha(u), u) / alpha(u), lambda u: gamma_quantile(alpha(u) + 1, u) / alpha(u)
    )


register_kernel(
    KernelRecord(
        RQKernel,
        roles={"lengthscale": "lengthscale", "alpha": "shape"},
        profile=_rq_profile,
        scale_mixture=_rq_mixture,
        names={"rq": _named("rational quadratic", "a mixture of lengthscales", "(1 + r^2/(2α))^{−α}")},
    )
)


def _periodic_jet(kernel: PeriodicKernel, lag: Tensor) -> Jet:
    rate, lengthscale = 2 * math.pi / per_pair(kernel.period_length), per_pair(kernel.lengthscale)
    value = torch.exp((torch.cos(rate * lag) - 1) / lengthscale)
    slope = -rate * torch.sin(rate * lag) / lengthscale
    return separable_jet(value, slope * value, (slope**2 - rate**2 * torch.cos(rate * lag) / lengthscale) * value)


def _periodic_pair(kernel: PeriodicKernel, num_dims: int) -> SpectralPair:
    """Return the Fourier series of exp(−2 sin²(πδ/p) / ℓ): ω_i = 2πk_i / p_i, P(k) = e^{−z} I_|k|(z), z = 1/ℓ_i."""

    def frequencies(u: Tensor) -> Tensor:
        return TWO_PI * _bessel_integers(u, 1 / kernel.lengthscale) / kernel.period_length

    def factor(frequencies: Tensor) -> Tensor:
        integers = (frequencies * kernel.period_length / TWO_PI).detach().round().abs()
        log_density = log_bessel(integers, 1 / kernel.lengthscale.to(frequencies)).sum(-1)
        return density_ratio(log_density)

    return SpectralPair(num_dims, frequencies, factor, discrete=True)


def _bessel_integers(u: Tensor, z: Tensor) -> Tensor:
    """Return integers k (*batch, D, d) with P(k) = e^{−z} I_|k|(z), for u (D, d) and z (*batch, 1, d or 1)."""
    rates = z.detach().cpu().double().expand(*z.shape[:-1], u.shape[-1]).numpy()
    orders = np.arange(int(10 * np.sqrt(rates.max())) + 30)  # the variance is z: all but 1e-17 of the mass
    masses = ive(orders, rates[..., None]) * np.where(orders == 0, 1, 2)
    edges = torch.as_tensor(masses.cumsum(-1)).transpose(-3, -2).squeeze(-2)  # (*batch, d, terms)
    folded = (2 * u.detach().cpu().double() - 1).abs().mT.expand(*edges.shape[:-1], -1).contiguous()
    k = torch.searchsorted(edges.contiguous(), folded).mT
    return k.to(u) * draw_sign(u)


def log_bessel(order: Tensor, z: Tensor) -> Tensor:
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


register_kernel(
    KernelRecord(
        PeriodicKernel,
        {"period_length": "period", "lengthscale": "relative_lengthscale"},
        jet=_periodic_jet,
        spectral_pair=_periodic_pair,
    )
)


def _cosine_jet(kernel: CosineKernel, lag: Tensor) -> Jet:
    if lag.shape[-1] != 1:
        raise SmoothnessError(
            f"CosineKernel is only supported in 1 input dimension, got {lag.shape[-1]}. {SMOOTH_ADVICE}."
        )
    rate = math.pi / per_pair(kernel.period_length)
    value = torch.cos(rate * lag)
    return separable_jet(value, -rate * torch.sin(rate * lag), -(rate**2) * value)


def _cosine_pair(kernel: CosineKernel, num_dims: int) -> SpectralPair:
    """Return the pair ω = ±π / period: in one dimension every frequency represents the kernel exactly."""
    if num_dims != 1:
        raise SpectralError(
            f"cos(π‖x − z‖ / period) is not positive definite in {num_dims} dimensions and has no spectral distribution. Multiply one-dimensional CosineKernels, each with its own active_dims."
        )
    return SpectralPair(1, lambda u: draw_sign(u) * math.pi / kernel.period_length, discrete=True)


register_kernel(
    KernelRecord(CosineKernel, roles={"period_length": "period"}, jet=_cosine_jet, spectral_pair=_cosine_pair)
)


def _mixture_jet(kernel: SpectralMixtureKernel, lag: Tensor) -> Jet:
    """Return the jet of a product over coordinates of one-dimensional mixtures."""
    lag = lag.unsqueeze(-4)  # the mixture dimension: parameters are (*batch, Q, 1, d)
    mean, scale = 2 * math.pi * per_pair(kernel.mixture_means), 2 * math.pi * per_pair(kernel.mixture_scales)
    envelope = kernel.mixture_weights[..., None, None, None] * torch.exp(-((scale * lag) ** 2) / 2)
    cos, sin = torch.cos(mean * lag), torch.sin(mean * lag)
    drift = scale**2 * lag
    value = envelope * cos
    first = -envelope * (drift * cos + mean * sin)
    second = envelope * ((drift**2 - scale**2 - mean**2) * cos + 2 * drift * mean * sin)
    return separable_jet(*(part.sum(-4) for part in (value, first, second)))


def _mixture_pair(kernel: SpectralMixtureKernel, num_dims: int) -> SpectralSum | SpectralPair:
    """Return ω = 2π(±μ_q + σ_q z), z normal: one pair of weight w_q per component q in one dimension."""
    if num_dims > 1:  # GPyTorch's kernel is then the product over coordinates of one-dimensional mixtures
        return _mixture_product(kernel)
    return SpectralSum(tuple(_mixture_component(kernel, q) for q in range(kernel.num_mixtures)))


def _mixture_component(kernel: SpectralMixtureKernel, q: int) -> SpectralPair:
    def frequencies(u: Tensor) -> Tensor:
        mean, scale = kernel.mixture_means[..., q, :, :], kernel.mixture_scales[..., q, :, :]
        return TWO_PI * (draw_sign(u[..., 1:]) * mean + torch.special.ndtri(u[..., :1]) * scale)

    return SpectralPair(2, frequencies, lambda w: kernel.mixture_weights[..., q, None, None, None].to(w).sqrt())


def _mixture_product(kernel: SpectralMixtureKernel) -> SpectralPair:
    """Select a component per coordinate; the weights are differentiated through the density of the mixture."""
    dims = kernel.ard_num_dims

    def frequencies(u: Tensor) -> Tensor:
        normal, sign, choice = (
            torch.special.ndtri(u[..., :dims]),
            draw_sign(u[..., dims : 2 * dims]),
            u[..., 2 * dims :],
        )
        cumulative = kernel.mixture_weights.detach().to(u).cumsum(-1)
        edges = (cumulative / cumulative[..., -1:])[..., None, None, :-1]
        which = (choice[..., None] > edges).sum(-1, keepdim=True)  # (*batch, D, d, 1)
        mean, scale = (_choose(table, which) for table in (kernel.mixture_means, kernel.mixture_scales))
        return TWO_PI * (sign * mean + normal * scale)

    def factor(frequencies: Tensor) -> Tensor:
        weights = kernel.mixture_weights.to(frequencies)
        log_weights = (weights / weights.sum(-1, keepdim=True)).log()[..., None, None, :]
        log_density = (log_weights + _log_densities(kernel, frequencies)).logsumexp(-1).sum(-1)
        return weights.sum(-1)[..., None, None, None] ** (dims / 2) * density_ratio(log_density)

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


register_kernel(
    KernelRecord(
        SpectralMixtureKernel,
        {"mixture_weights": "mixture_weight", "mixture_scales": "mixture_scale", "mixture_means": "mixture_mean"},
        jet=_mixture_jet,
        spectral_pair=_mixture_pair,
        options=("num_mixtures",),
    )
)
register_kernel(
    KernelRecord(
        LinearKernel,
        roles={"variance": "slope_variance"},
        state_space=lambda kernel: linear_form(kernel.variance),
    )
)
register_kernel(
    KernelRecord(
        ConstantKernel, roles={"constant": "variance"}, state_space=lambda kernel: constant_form(kernel.constant)
    )
)
register_kernel(KernelRecord(PolynomialKernel, roles={"offset": "offset"}, options=("power",)))
