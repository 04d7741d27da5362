"""Value, gradient and Hessian of stationary scalar kernels with respect to the lag δ = x − z, in closed form.

For radial kernels κ(s), s = Σ δ_i²/ℓ_i², with Λ = diag(ℓ⁻²): ∇k = 2 κ'(s) Λδ, ∇∇ᵀk = 2 κ'(s) Λ + 4 κ''(s) Λδ(Λδ)ᵀ.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import reduce
from typing import NamedTuple

import torch
from gpytorch.kernels import (
    AdditiveKernel,
    CosineKernel,
    Kernel,
    MaternKernel,
    PeriodicKernel,
    ProductKernel,
    RBFKernel,
    RQKernel,
    ScaleKernel,
    SpectralMixtureKernel,
)
from torch import Tensor

from ovkgp.exceptions import SmoothnessError
from ovkgp.kernels.records import KernelDispatcher
from ovkgp.kernels.stationary import CauchyKernel, LaplaceKernel, SobolevKernel

SMOOTH_ADVICE = "Use gpytorch.kernels.RBFKernel or MaternKernel(nu=2.5)"


class Jet(NamedTuple):
    """Value, gradient and Hessian of a function, which add and multiply like functions.

    Parameters
    ----------
    value : Tensor of shape (...)
        Value k.
    gradient : Tensor of shape (..., d)
        Gradient ∇k.
    hessian : Tensor of shape (..., d, d)
        Hessian ∇∇ᵀk.

    Examples
    --------
    >>> import torch
    >>> from ovkgp.kernels import Jet
    >>> linear = Jet(torch.tensor(3.0), torch.tensor([1.0]), torch.zeros(1, 1))  # f(t) = t at t = 3
    >>> (linear * linear).hessian.item()  # of t²
    2.0
    """

    value: Tensor
    gradient: Tensor
    hessian: Tensor

    def __mul__(self, other):
        """Return the product with another jet, by the product rule."""
        cross = self.gradient.unsqueeze(-1) * other.gradient.unsqueeze(-2)
        return Jet(
            self.value * other.value,
            self.value.unsqueeze(-1) * other.gradient + other.value.unsqueeze(-1) * self.gradient,
            self.value[..., None, None] * other.hessian
            + other.value[..., None, None] * self.hessian
            + cross
            + cross.mT,
        )

    def __add__(self, other):
        return Jet(*(a + b for a, b in zip(self, other, strict=True)))

    def scaled(self, scale: Tensor) -> Jet:
        """Return the jet of s · k for a scale s of shape (...)."""
        return Jet(scale * self.value, scale[..., None] * self.gradient, scale[..., None, None] * self.hessian)


class JetDispatcher(KernelDispatcher):
    """Compute value, gradient and Hessian of a stationary scalar kernel: `lag_jet(kernel, lag)`.

    `lag_jet` supports GPyTorch's RBF, Matérn, RQ, Periodic, Cosine and SpectralMixture kernels, the stationary kernels
    of this package, and scalings, sums and products of them. To add a stationary, twice differentiable kernel, register
    a function of the kernel and the lags that returns a `Jet`, for example with `radial_jet` or `separable_jet`. Use
    derivatives in closed form: automatic differentiation through a distance is wrong where two points coincide.

    Parameters
    ----------
    kernel : Kernel
        Stationary scalar kernel. Its `active_dims` are ignored.
    lag : Tensor of shape (*batch, n, m, d)
        Lags x − z.

    Returns
    -------
    Jet
        Tensors of shapes (*batch, n, m), (*batch, n, m, d) and (*batch, n, m, d, d).

    Raises
    ------
    SmoothnessError
        If the kernel has no second derivative at zero lag, or is not registered.

    Notes
    -----
    Complexity: O(n m d²).

    Examples
    --------
    >>> import torch
    >>> from gpytorch.kernels import Kernel
    >>> from ovkgp.kernels import CurlFreeKernel, Jet, lag_jet
    >>> class Gauss(Kernel):  # exp(−‖δ‖²/2)
    ...     def forward(self, x1, x2, diag=False, **params):
    ...         return self.covar_dist(x1, x2, diag=diag, square_dist=True).div(-2).exp()
    >>> @lag_jet.register(Gauss)
    ... def gauss_jet(kernel, lag):
    ...     k = lag.square().sum(-1).div(-2).exp()
    ...     outer = lag.unsqueeze(-1) * lag.unsqueeze(-2)
    ...     return Jet(k, -lag * k[..., None], (outer - torch.eye(lag.shape[-1])) * k[..., None, None])
    >>> lag_jet(Gauss(), torch.zeros(1, 1, 2)).value.item()
    1.0
    >>> CurlFreeKernel(Gauss(), num_dims=2)(torch.randn(3, 2)).shape
    torch.Size([6, 6])
    """

    def __call__(self, kernel: Kernel, lag: Tensor) -> Jet:
        rule = self.find(kernel)
        if rule is None:
            name = type(kernel).__name__
            raise SmoothnessError(
                f"Derivatives of {name} are not registered. {SMOOTH_ADVICE}, or register them with @ovkgp.kernels.lag_jet.register({name}) if the kernel is stationary and twice differentiable."
            )
        return rule(kernel, lag)


lag_jet = JetDispatcher()


def _per_pair(parameter: Tensor) -> Tensor:
    """Reshape a parameter (*batch, 1, d) to broadcast against lags (*batch, n, m, d)."""
    return parameter.unsqueeze(-2)


def radial_jet(lag: Tensor, lengthscale: Tensor, profile: Callable) -> Jet:
    """Compute the jet of a radial kernel k = κ(s), s = Σ δ_i²/ℓ_i², from the derivatives of κ.

    Parameters
    ----------
    lag : Tensor of shape (*batch, n, m, d)
        Lags δ.
    lengthscale : Tensor of shape (*batch, 1, d) or (*batch, 1, 1)
        Lengthscales ℓ, as in GPyTorch's kernels.
    profile : callable
        Function of s (*batch, n, m) that returns κ, κ' and κ'', finite at s = 0. If κ'' diverges there more slowly than
        1/s, it may be set to 0, since it is multiplied by a factor that vanishes.

    Returns
    -------
    Jet
        Value, gradient and Hessian of the kernel.

    Examples
    --------
    >>> import torch
    >>> from ovkgp.kernels import radial_jet
    >>> def inverse_quadratic(s):  # κ = 1 / (1 + s)
    ...     k = 1 / (1 + s)
    ...     return k, -(k**2), 2 * k**3
    >>> radial_jet(torch.zeros(1, 1, 2), torch.ones(1, 1), inverse_quadratic).hessian.squeeze()
    tensor([[-2.,  0.],
            [ 0., -2.]])
    """
    precision = _per_pair(lengthscale).pow(-2)
    direction = lag * precision
    value, first, second = profile((lag * direction).sum(-1))
    outer = direction.unsqueeze(-1) * direction.unsqueeze(-2)
    diagonal = (2 * first.unsqueeze(-1) * precision).expand_as(direction)
    hessian = 4 * second[..., None, None] * outer + torch.diag_embed(diagonal)
    return Jet(value, 2 * first.unsqueeze(-1) * direction, hessian)


def separable_jet(value: Tensor, first: Tensor, second: Tensor) -> Jet:
    """Compute the jet of a product over coordinates k = Π_i f_i(δ_i) from the one-dimensional derivatives.

    Parameters
    ----------
    value, first, second : Tensor of shape (..., d)
        f_i, f_i' and f_i'' at δ_i.

    Returns
    -------
    Jet
        Value, gradient and Hessian of the kernel.

    Examples
    --------
    >>> import torch
    >>> from ovkgp.kernels import separable_jet
    >>> t = torch.tensor([0.0, 0.5])  # cos δ_1 · cos δ_2
    >>> separable_jet(t.cos(), -t.sin(), -t.cos()).value == t.cos().prod()
    tensor(True)
    """
    axes = torch.eye(value.shape[-1], dtype=value.dtype, device=value.device)
    jets = (
        Jet(value[..., i], first[..., i, None] * axes[i], second[..., i, None, None] * torch.outer(axes[i], axes[i]))
        for i in range(value.shape[-1])
    )
    return reduce(Jet.__mul__, jets)


@lag_jet.register(RBFKernel)
def _(kernel: RBFKernel, lag: Tensor) -> Jet:
    def profile(s):
        value = torch.exp(-s / 2)
        return value, -value / 2, value / 4

    return radial_jet(lag, kernel.lengthscale, profile)


@lag_jet.register(MaternKernel)
def _(kernel: MaternKernel, lag: Tensor) -> Jet:
    if kernel.nu < 1.5:
        raise SmoothnessError(f"MaternKernel(nu={kernel.nu}) has no second derivative at zero lag. {SMOOTH_ADVICE}.")
    return radial_jet(lag, kernel.lengthscale, _matern32 if kernel.nu == 1.5 else _matern52)


def _safe_radius(s: Tensor) -> tuple[Tensor, Tensor]:
    """Return √s and the mask of s = 0, where the root is replaced by 1 to keep gradients finite."""
    zero = s == 0
    return torch.where(zero, 1.0, s).sqrt(), zero


def _matern32(s):
    r, zero = _safe_radius(s)
    decay = torch.exp(-math.sqrt(3) * torch.where(zero, 0.0, r))
    value = (1 + math.sqrt(3) * torch.where(zero, 0.0, r)) * decay
    return value, -1.5 * decay, torch.where(zero, 0.0, 0.75 * math.sqrt(3) * decay / r)


def _matern52(s):
    r, zero = _safe_radius(s)
    r = math.sqrt(5) * torch.where(zero, 0.0, r)
    decay = torch.exp(-r)
    return (1 + r + r**2 / 3) * decay, -5 / 6 * (1 + r) * decay, 25 / 12 * decay


@lag_jet.register(RQKernel)
def _(kernel: RQKernel, lag: Tensor) -> Jet:
    alpha = kernel.alpha.unsqueeze(-1)

    def profile(s):
        base = 1 + s / (2 * alpha)
        return base**-alpha, -(base ** (-alpha - 1)) / 2, (alpha + 1) / (4 * alpha) * base ** (-alpha - 2)

    return radial_jet(lag, kernel.lengthscale, profile)


@lag_jet.register(PeriodicKernel)
def _(kernel: PeriodicKernel, lag: Tensor) -> Jet:
    rate, lengthscale = 2 * math.pi / _per_pair(kernel.period_length), _per_pair(kernel.lengthscale)
    value = torch.exp((torch.cos(rate * lag) - 1) / lengthscale)
    slope = -rate * torch.sin(rate * lag) / lengthscale
    return separable_jet(value, slope * value, (slope**2 - rate**2 * torch.cos(rate * lag) / lengthscale) * value)


@lag_jet.register(CosineKernel)
def _(kernel: CosineKernel, lag: Tensor) -> Jet:
    if lag.shape[-1] != 1:
        raise SmoothnessError(
            f"CosineKernel is only supported in 1 input dimension, got {lag.shape[-1]}. {SMOOTH_ADVICE}."
        )
    rate = math.pi / _per_pair(kernel.period_length)
    value = torch.cos(rate * lag)
    return separable_jet(value, -rate * torch.sin(rate * lag), -(rate**2) * value)


@lag_jet.register(SpectralMixtureKernel)
def _(kernel: SpectralMixtureKernel, lag: Tensor) -> Jet:
    """Return the jet of a product over coordinates of one-dimensional mixtures."""
    lag = lag.unsqueeze(-4)  # the mixture dimension: parameters are (*batch, Q, 1, d)
    mean, scale = 2 * math.pi * _per_pair(kernel.mixture_means), 2 * math.pi * _per_pair(kernel.mixture_scales)
    envelope = kernel.mixture_weights[..., None, None, None] * torch.exp(-((scale * lag) ** 2) / 2)
    cos, sin = torch.cos(mean * lag), torch.sin(mean * lag)
    drift = scale**2 * lag
    value = envelope * cos
    first = -envelope * (drift * cos + mean * sin)
    second = envelope * ((drift**2 - scale**2 - mean**2) * cos + 2 * drift * mean * sin)
    return separable_jet(*(part.sum(-4) for part in (value, first, second)))


@lag_jet.register(CauchyKernel)
def _(kernel: CauchyKernel, lag: Tensor) -> Jet:
    lengthscale = _per_pair(kernel.lengthscale)
    t = lag / lengthscale
    value = 1 / (1 + t**2)
    return separable_jet(value, -2 * t * value**2 / lengthscale, (6 * t**2 - 2) * value**3 / lengthscale**2)


@lag_jet.register(LaplaceKernel)
def _(kernel: LaplaceKernel, lag: Tensor) -> Jet:
    raise SmoothnessError(f"LaplaceKernel has a kink at zero lag. {SMOOTH_ADVICE}.")


@lag_jet.register(SobolevKernel)
def _(kernel: SobolevKernel, lag: Tensor) -> Jet:
    if kernel.order < 2:
        raise SmoothnessError(f"SobolevKernel(order=1) has a kink at zero lag. {SMOOTH_ADVICE}, or order=2.")
    if kernel.periodic:
        return separable_jet(*_periodic_sobolev(lag, kernel.order))
    lengthscale = _per_pair(kernel.lengthscale)
    t, sign = (lag / lengthscale).abs(), lag.sign()
    decay = torch.exp(-math.sqrt(3) / 2 * t) / math.sqrt(3)
    value, second = (decay * torch.sin(t / 2 + phase) for phase in (math.pi / 6, math.pi * 5 / 6))
    first = decay * torch.cos(t / 2 + math.pi / 2)
    return separable_jet(value, sign * first / lengthscale, -second / lengthscale**2)


def _periodic_sobolev(lag: Tensor, order: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return 1 + (−1)^{s−1} B_{2s}(u) / (2s)!, u the fractional part of the lag, and two derivatives."""
    u = lag - lag.floor()
    w = u * (1 - u)
    if order == 2:
        return 1 + (1 / 30 - w**2) / 24, -w * (1 - 2 * u) / 12, -(1 / 6 - w) / 2
    return 1 + (1 / 42 - w**2 * (w + 0.5)) / 720, -w * (1 - 2 * u) * (3 * w + 1) / 720, (w**2 - 1 / 30) / 24


@lag_jet.register(ScaleKernel)
def _(kernel: ScaleKernel, lag: Tensor) -> Jet:
    return lag_jet(kernel.base_kernel, lag).scaled(kernel.outputscale[..., None, None])


@lag_jet.register(AdditiveKernel)
def _(kernel: AdditiveKernel, lag: Tensor) -> Jet:
    return reduce(Jet.__add__, (_child_jet(k, lag) for k in kernel.kernels))


@lag_jet.register(ProductKernel)
def _(kernel: ProductKernel, lag: Tensor) -> Jet:
    return reduce(Jet.__mul__, (_child_jet(k, lag) for k in kernel.kernels))


def _child_jet(kernel: Kernel, lag: Tensor) -> Jet:
    """Return the jet of a term or factor in all coordinates of `lag`, also if its `active_dims` select some."""
    if kernel.active_dims is None:
        return lag_jet(kernel, lag)
    jet = lag_jet(kernel, lag.index_select(-1, kernel.active_dims))
    selection = torch.eye(lag.shape[-1], dtype=jet.value.dtype, device=lag.device)[kernel.active_dims]
    return Jet(jet.value, jet.gradient @ selection, selection.mT @ jet.hessian @ selection)
