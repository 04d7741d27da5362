"""Stationary scalar kernels that GPyTorch lacks: Laplace, Cauchy and Sobolev as products over coordinates, radial Cauchy, and Matérn of any smoothness."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import torch
from gpytorch.kernels import Kernel
from scipy.special import kve, zeta
from torch import Tensor

from ovkgp.checks import check_positive
from ovkgp.exceptions import OptionError
from ovkgp.kernels.batch_index import BatchIndexMixin
from ovkgp.kernels.evaluation import covar_dist
from ovkgp.kernels.gpytorch_records import matern_mixture
from ovkgp.kernels.radial_derivatives import Jet, per_pair, separable_jet
from ovkgp.kernels.records import KernelRecord, NamedKernel, Profile, register_kernel
from ovkgp.kernels.spectral import ScaleMixture, SpectralPair, draw_sign, gamma_quantile, gamma_ratio, unit_factor

MAX_SMOOTHNESS = 100.0  # of a Matérn kernel; Bessel functions of higher orders overflow


class LaplaceKernel(BatchIndexMixin, Kernel):
    """ℓ1 Laplace kernel, k(x, z) = exp(−Σ_k |x_k − z_k| / ℓ_k).

    At coincident points the gradient in x is the subgradient 0.

    Parameters
    ----------
    ard_num_dims : int or None, default=None
        Number d of lengthscales, one per column. If None, all columns share one lengthscale.
    **kwargs
        Arguments of `gpytorch.kernels.Kernel`, such as `batch_shape`, `active_dims` and `lengthscale_prior`.

    Notes
    -----
    Complexity: O(n m d) operations and O(n m) memory, including gradients; O(n d) for the diagonal.

    Examples
    --------
    >>> import torch
    >>> from ovkgp.kernels import LaplaceKernel
    >>> kernel = LaplaceKernel(ard_num_dims=2)
    >>> kernel.lengthscale = torch.tensor([1.0, 2.0])
    >>> kernel(torch.zeros(1, 2), torch.ones(1, 2)).to_dense().log().item()
    -1.5
    """

    has_lengthscale = True

    def forward(self, x1: Tensor, x2: Tensor, diag: bool = False, last_dim_is_batch: bool = False, **params) -> Tensor:
        x1, x2 = x1 / self.lengthscale, x2 / self.lengthscale
        if last_dim_is_batch:
            x1, x2 = x1.mT.unsqueeze(-1), x2.mT.unsqueeze(-1)
        return l1_distance(x1, x2, diag=diag).neg().exp()


def _laplace_pair(kernel: LaplaceKernel, num_dims: int) -> SpectralPair:
    """Return the pair ω_k = C_k / ℓ_k with C_k standard Cauchy (BT-06)."""
    return SpectralPair(num_dims, lambda u: _cauchy_quantile(u) / kernel.lengthscale)


register_kernel(
    KernelRecord(
        LaplaceKernel,
        roles={"lengthscale": "lengthscale"},
        spectral_pair=_laplace_pair,
        moment_order=lambda kernel: 1.0,
        names={
            "laplace": NamedKernel("Laplace", "draws are continuous and rough", "k(x, z) = exp(−Σ_i |x_i − z_i|/ℓ_i)")
        },
    )
)


def l1_distance(x1: Tensor, x2: Tensor, diag: bool = False) -> Tensor:
    """Return Σ_k |x_k − z_k| between all rows of x1 (..., n, d) and x2 (..., m, d), or between rows of equal index."""
    return (x1 - x2).abs().sum(-1) if diag else torch.cdist(x1, x2, p=1)


class CauchyKernel(BatchIndexMixin, Kernel):
    """Product Cauchy kernel, k(x, z) = Π_k 1 / (1 + (x_k − z_k)² / ℓ_k²).

    Parameters
    ----------
    ard_num_dims, **kwargs
        As for `LaplaceKernel`.

    See Also
    --------
    RadialCauchyKernel : Cauchy kernel of the distance; equal to this one in one dimension.

    Notes
    -----
    Complexity: O(n m d) operations and O(n m) memory (O(n m d) with gradients); O(n d) for the diagonal.

    Examples
    --------
    >>> import torch
    >>> from ovkgp.kernels import CauchyKernel
    >>> kernel = CauchyKernel()
    >>> kernel.lengthscale = 1.0
    >>> round(kernel(torch.zeros(1, 2), torch.ones(1, 2)).to_dense().item(), 6)
    0.25
    """

    has_lengthscale = True

    def forward(self, x1: Tensor, x2: Tensor, diag: bool = False, last_dim_is_batch: bool = False, **params) -> Tensor:
        x1, x2 = x1 / self.lengthscale, x2 / self.lengthscale
        if last_dim_is_batch:
            x1, x2 = x1.mT.unsqueeze(-1), x2.mT.unsqueeze(-1)
        # sums of logarithms: a product of many large terms would overflow in single precision
        return sum_over_coordinates(_log_term, x1, x2, diag=diag).neg().exp()


def _cauchy_jet(kernel: CauchyKernel, lag: Tensor) -> Jet:
    lengthscale = per_pair(kernel.lengthscale)
    t = lag / lengthscale
    value = 1 / (1 + t**2)
    return separable_jet(value, -2 * t * value**2 / lengthscale, (6 * t**2 - 2) * value**3 / lengthscale**2)


def _cauchy_pair(kernel: CauchyKernel, num_dims: int) -> SpectralPair:
    """Return the pair ω_k = L_k / ℓ_k with L_k standard Laplace."""
    return SpectralPair(num_dims, lambda u: _laplace_quantile(u) / kernel.lengthscale)


register_kernel(
    KernelRecord(CauchyKernel, roles={"lengthscale": "lengthscale"}, jet=_cauchy_jet, spectral_pair=_cauchy_pair)
)


class RadialCauchyKernel(BatchIndexMixin, Kernel):
    """Radial Cauchy kernel, k(x, z) = 1 / (1 + Σ_k (x_k − z_k)² / ℓ_k²), a rational quadratic kernel with α = 1.

    Parameters
    ----------
    ard_num_dims, **kwargs
        As for `LaplaceKernel`.

    See Also
    --------
    CauchyKernel : Product over the columns.

    Notes
    -----
    Equal to GPyTorch's `RQKernel` with α = 1 and lengthscale ℓ/√2.
    Complexity: O(n m d) operations and O(n m) memory; O(n d) for the diagonal.

    References
    ----------
    KT-06

    Examples
    --------
    >>> import torch
    >>> from ovkgp.kernels import RadialCauchyKernel
    >>> kernel = RadialCauchyKernel()
    >>> kernel.lengthscale = 1.0
    >>> round(kernel(torch.zeros(1, 3), torch.ones(1, 3)).to_dense().item(), 6)
    0.25
    """

    has_lengthscale = True

    def forward(self, x1: Tensor, x2: Tensor, diag: bool = False, **params) -> Tensor:
        scaled = x1 / self.lengthscale, x2 / self.lengthscale
        return 1 / (1 + covar_dist(*scaled, diag=diag, square_dist=True, **params))


def _radial_cauchy_profile(xp, s, kernel: RadialCauchyKernel) -> Profile:
    k = 1 / (1 + s)
    return Profile(k, lambda: -(k**2), lambda: 2 * k**3)


def _radial_cauchy_mixture(kernel: RadialCauchyKernel) -> ScaleMixture:
    """Return τ = 2 Gamma(1): E exp(−τ s/2) = 1 / (1 + s)."""

    def quantile(shape: float, u: Tensor) -> Tensor:
        return 2 * gamma_quantile(torch.tensor(shape).to(u), u)

    return ScaleMixture(
        lambda s: 2 ** (s / 2) * gamma_ratio(1.0, s / 2), partial(quantile, 1.0), partial(quantile, 2.0)
    )


register_kernel(
    KernelRecord(
        RadialCauchyKernel,
        roles={"lengthscale": "lengthscale"},
        profile=_radial_cauchy_profile,
        scale_mixture=_radial_cauchy_mixture,
    )
)


def _log_term(x: Tensor, z: Tensor) -> Tensor:
    return torch.log1p((x - z).square())


def sum_over_coordinates(term, x1: Tensor, x2: Tensor, diag: bool = False) -> Tensor:
    """Return Σ_k term(x_k, z_k), (..., n, m), or (..., n) if diag, without a tensor of shape (n, m, d)."""
    if diag:
        return term(x1, x2).sum(-1)
    total = 0
    for x, z in zip(x1.unbind(-1), x2.unbind(-1), strict=True):
        total = total + term(x.unsqueeze(-1), z.unsqueeze(-2))
    return total


class GeneralMaternKernel(BatchIndexMixin, Kernel):
    """Matérn kernel of any smoothness ν > 0, k(x, z) = 2^(1−ν)/Γ(ν) a^ν K_ν(a) with a² = 2ν Σ_k (x_k − z_k)²/ℓ_k².

    Parameters
    ----------
    nu : float, default=2.0
        Smoothness ν, at most 100: draws have ⌈ν⌉ − 1 derivatives. ν = 1/2, 3/2 and 5/2 are GPyTorch's `MaternKernel`, which is faster; ν → ∞ is the
        Gaussian kernel.
    **kwargs
        Arguments of `gpytorch.kernels.Kernel`, such as `ard_num_dims`, `active_dims` and `lengthscale_prior`.

    Notes
    -----
    K_ν is the modified Bessel function of the second kind, computed by SciPy; derivatives follow from
    d/ds [a^ν K_ν(a)] = −ν a^(ν−1) K_(ν−1)(a) for a² = 2νs.
    Complexity: O(n m d) operations and O(n m) memory; O(n d) for the diagonal.

    References
    ----------
    BO-03

    Examples
    --------
    >>> import torch
    >>> from ovkgp.kernels import GeneralMaternKernel
    >>> kernel = GeneralMaternKernel(nu=0.5).double()
    >>> kernel.lengthscale = 1.0
    >>> round(kernel(torch.zeros(1, 1).double(), torch.ones(1, 1).double()).to_dense().item(), 6)  # exp(−1)
    0.367879
    """

    has_lengthscale = True

    def __init__(self, nu: float = 2.0, **kwargs):
        super().__init__(**kwargs)
        self.nu = check_positive("nu", nu)
        if nu > MAX_SMOOTHNESS:
            raise OptionError(f"nu must be at most {MAX_SMOOTHNESS:g}, got {nu}. Use RBFKernel, the limit.")

    def forward(self, x1: Tensor, x2: Tensor, diag: bool = False, **params) -> Tensor:
        scaled = x1 / self.lengthscale, x2 / self.lengthscale
        return _bessel_profile(torch, covar_dist(*scaled, diag=diag, square_dist=True, **params), self).value


def _bessel_profile(xp, s, kernel: GeneralMaternKernel) -> Profile:
    nu = kernel.nu

    def term(order: float):
        return _BesselTerm.apply(s, order, nu) if xp is torch else _bessel_term(s, order, nu)

    return Profile(term(nu), lambda: -nu * term(nu - 1), lambda: nu**2 * term(nu - 2))


class _BesselTerm(torch.autograd.Function):
    """2^(1−ν)/Γ(ν) a^μ K_μ(a) of s, a² = 2νs, for an order μ; its derivative in s is −ν times the term of order μ − 1."""

    @staticmethod
    def forward(s: Tensor, order: float, nu: float) -> Tensor:
        return torch.from_numpy(np.asarray(_bessel_term(s.detach().cpu().double().numpy(), order, nu))).to(s)

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:
        s, ctx.order, ctx.nu = inputs
        ctx.save_for_backward(s)

    @staticmethod
    def backward(ctx, grad: Tensor):
        (s,) = ctx.saved_tensors
        return -ctx.nu * grad * _BesselTerm.apply(s, ctx.order - 1, ctx.nu), None, None

    @staticmethod
    def vmap(info, in_dims, s: Tensor, order: float, nu: float):
        return _BesselTerm.apply(s, order, nu), in_dims[0]  # elementwise


def _bessel_term(s: np.ndarray, order: float, nu: float) -> np.ndarray:
    """Return 2^(1−ν)/Γ(ν) a^μ K_μ(a), a² = 2νs; at 0 its limit if μ > 0, else a finite number."""
    a = np.sqrt(np.maximum(2 * nu * np.asarray(s, dtype=np.float64), 0.0))
    near = a < 1e-8
    a = np.where(near, 1e-8, a)
    log_scale = (1 - nu) * math.log(2) - math.lgamma(nu)
    with np.errstate(over="ignore", divide="ignore"):
        value = np.exp(log_scale + order * np.log(a) - a + np.log(kve(order, a)))
    if order <= 0:
        return np.minimum(value, np.finfo(np.float64).max ** 0.25)
    # K_μ overflows at small a and large μ, where three terms of the power series are exact
    series = 1.0
    if order > 2:
        series = 1 - a**2 / (4 * (order - 1)) + a**4 / (32 * (order - 1) * (order - 2))
    limit = math.exp(log_scale + (order - 1) * math.log(2) + math.lgamma(order)) * series
    return np.where(near | ~np.isfinite(value), limit, value)


register_kernel(
    KernelRecord(
        GeneralMaternKernel,
        roles={"lengthscale": "lengthscale"},
        profile=_bessel_profile,
        scale_mixture=matern_mixture,
        moment_order=lambda kernel: 2 * kernel.nu,
        options=("nu",),
    )
)


class SobolevKernel(BatchIndexMixin, Kernel):
    """Reproducing kernel of a Sobolev space, as a product over coordinates.

    The kernel is *not* normalized: k(x, x) is `value_at_zero` to the power d.

    Parameters
    ----------
    order : int, default=1
        Number s of derivatives in the norm: 1 or 2 on R; 1, 2 or 3 on the circle.
    periodic : bool, default=False
        Whether functions live on the circle [0, 1), with equal derivatives up to s − 1 at both ends. There is no
        lengthscale then.
    **kwargs
        Arguments of `gpytorch.kernels.Kernel`, such as `ard_num_dims`, `active_dims` and `lengthscale_prior`.

    Notes
    -----
    On R, with Δ = (x − z) / ℓ: ½ e^{−|Δ|} has the norm ∫v² + ∫v'², and (√3/3) e^{−√3|Δ|/2} sin(|Δ|/2 + π/6) has
    ∫v² + ∫v'² + ∫v''². On the circle: 1 + (−1)^{s−1} B_{2s}({x − z}) / (2s)!, with the Bernoulli polynomial B_{2s}, has
    (∫v)² + ∫(v^{(s)})².
    Complexity: O(n m d) operations and O(n m) memory (O(n m d) with gradients, except order 1 on R).

    References
    ----------
    BO-04; BO-E-09 for the norm on the circle

    Examples
    --------
    >>> import torch
    >>> from ovkgp.kernels import SobolevKernel
    >>> SobolevKernel(order=1)(torch.zeros(1, 1)).to_dense().item()
    0.5
    >>> kernel = SobolevKernel(order=2, periodic=True)
    >>> torch.allclose(kernel(torch.zeros(1, 1), torch.ones(1, 1)).to_dense(), kernel(torch.zeros(1, 1)).to_dense())
    True
    """

    def __init__(self, order: int = 1, periodic: bool = False, **kwargs):
        allowed = (1, 2, 3) if periodic else (1, 2)
        if order not in allowed:
            raise OptionError(f"order must be one of {allowed} if periodic={periodic}, got {order!r}.")
        self.has_lengthscale = not periodic  # read by the parent's constructor
        super().__init__(**kwargs)
        self.order = order
        self.periodic = periodic

    @property
    def is_stationary(self) -> bool:
        return True

    @property
    def value_at_zero(self) -> float:
        """Value k(x, x) in one dimension."""
        if self.periodic:
            return 1 + {1: 1 / 12, 2: 1 / 720, 3: 1 / 30240}[self.order]
        return {1: 0.5, 2: math.sqrt(3) / 6}[self.order]

    def forward(self, x1: Tensor, x2: Tensor, diag: bool = False, last_dim_is_batch: bool = False, **params) -> Tensor:
        if not self.periodic:
            x1, x2 = x1 / self.lengthscale, x2 / self.lengthscale
        if last_dim_is_batch:
            x1, x2 = x1.mT.unsqueeze(-1), x2.mT.unsqueeze(-1)
        if self.order == 1 and not self.periodic:
            return 0.5 ** x1.shape[-1] * l1_distance(x1, x2, diag=diag).neg().exp()
        if diag:
            return self._profile((x1 - x2).abs()).prod(-1)
        product = 1
        for x, z in zip(x1.unbind(-1), x2.unbind(-1), strict=True):
            product = product * self._profile((x.unsqueeze(-1) - z.unsqueeze(-2)).abs())
        return product

    def _profile(self, distance: Tensor) -> Tensor:
        """Return the one-dimensional kernel at |Δ|, except for order 1 on R."""
        if self.periodic:
            return 1 + _scaled_bernoulli(distance, self.order)
        decay = (distance * (-math.sqrt(3) / 2)).exp()
        return decay * (distance / 2 + math.pi / 6).sin() * (math.sqrt(3) / 3)


def _sobolev_jet(kernel: SobolevKernel, lag: Tensor) -> Jet:
    if kernel.periodic:
        return separable_jet(*_periodic_sobolev(lag, kernel.order))
    lengthscale = per_pair(kernel.lengthscale)
    t, sign = (lag / lengthscale).abs(), lag.sign()
    decay = torch.exp(-math.sqrt(3) / 2 * t) / math.sqrt(3)
    value, second = (decay * torch.sin(t / 2 + phase) for phase in (math.pi / 6, math.pi * 5 / 6))
    first = decay * torch.cos(t / 2 + math.pi / 2)
    return separable_jet(value, sign * first / lengthscale, -second / lengthscale**2)


def _periodic_sobolev(lag: Tensor, order: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return 1 + (−1)^{s−1} B_{2s}(u) / (2s)!, u the fractional part of the lag, and two derivatives."""
    value, u = 1 + _scaled_bernoulli(lag, order), lag - lag.floor()
    w = u * (1 - u)
    if order == 2:
        return value, -w * (1 - 2 * u) / 12, -(1 / 6 - w) / 2
    return value, -w * (1 - 2 * u) * (3 * w + 1) / 720, (w**2 - 1 / 30) / 24


def _sobolev_pair(kernel: SobolevKernel, num_dims: int) -> SpectralPair:
    """Return ω with ℓω of density ∝ 1/(1 + ξ²) or 1/(1 + ξ² + ξ⁴); on the circle 2πk with P(k) ∝ (2πk)^{−2s}, k ≠ 0."""
    scale = math.sqrt(kernel.value_at_zero**num_dims)

    def frequencies(u: Tensor) -> Tensor:
        if kernel.periodic:
            return 2 * math.pi * _zeta_integers(u, kernel.order, 1 / kernel.value_at_zero)
        quantile = _cauchy_quantile if kernel.order == 1 else _sobolev2_quantile
        return quantile(u) / kernel.lengthscale

    return SpectralPair(num_dims, frequencies, lambda w: unit_factor(w) * scale, discrete=kernel.periodic)


register_kernel(
    KernelRecord(
        SobolevKernel,
        roles={"lengthscale": "lengthscale"},
        jet=_sobolev_jet,
        spectral_pair=_sobolev_pair,
        moment_order=lambda kernel: 2.0 * kernel.order - 1,
        options=("order", "periodic"),
    )
)


def _scaled_bernoulli(distance: Tensor, order: int) -> Tensor:
    """Return (−1)^{s−1} B_{2s}({t}) / (2s)! as a function of t(1 − t), which makes the symmetry t → 1 − t exact."""
    fraction = distance - distance.floor()
    w = fraction * (1 - fraction)
    if order == 1:
        return (1 / 6 - w) / 2
    if order == 2:
        return (1 / 30 - w.square()) / 24
    return (1 / 42 - w.square() * (w + 0.5)) / 720


def _cauchy_quantile(u: Tensor) -> Tensor:
    return torch.tan(math.pi * (u - 0.5))


def _laplace_quantile(u: Tensor) -> Tensor:
    return -draw_sign(u) * (2 * torch.minimum(u, 1 - u)).log()


def _sobolev2_quantile(u: Tensor) -> Tensor:
    """Return quantiles of the density (√3/π) / (1 + ξ² + ξ⁴), by Newton steps on P(|ξ| > x) = 2·min(u, 1 − u)."""
    tail = 2 * torch.minimum(u, 1 - u)
    # left of the root, as 1 + ξ² + ξ⁴ ≤ (1 + ξ)⁴; the tail is convex, so that the steps increase to the root
    x = ((2 / (math.sqrt(3) * math.pi) / tail) ** (1 / 3) - 1).clamp_min(0)
    for _ in range(12):
        density = (2 * math.sqrt(3) / math.pi) / (1 + x**2 + x**4)
        x = x + (_sobolev2_tail(x) - tail) / density
    return draw_sign(u) * x


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
    """Return integers k with P(0) = `mass_at_zero` and P(k) ∝ |k|^{−2·order} otherwise, of the shape and dtype of u."""
    a = 2 * order
    folded = np.abs(2 * u.detach().cpu().double().numpy() - 1)
    tail = np.clip((1 - folded) / (1 - mass_at_zero), np.finfo(float).tiny, 1) * zeta(a)
    # Σ_{j>k} j^{−a} = ζ(a, k+1) lies between the integrals of t^{−a} from k + 1 and from k: two candidates for k
    k = np.maximum(np.ceil(((a - 1) * tail) ** (-1 / (a - 1))) - 1, 1)
    k = np.where(zeta(a, k + 1) > tail, k + 1, k)
    return torch.as_tensor(np.where(folded < mass_at_zero, 0, k)).to(u) * draw_sign(u)
