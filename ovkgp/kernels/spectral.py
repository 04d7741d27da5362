"""Spectral distributions of kernels: pairs of frequencies and factor, scale mixtures, and the quantiles they need.

A shift-invariant operator-valued kernel is an expectation over frequencies (R. Brault's thesis, §4.2; see
``docs/references.md``),

    K(x, z) = E_ω [ cos⟨ω, h(x) − h(z)⟩ B(ω) B(ω)ᵀ ]            (even signatures, B real)
    K(x, z) = E_ω [ Re( e^{−i⟨ω, h(x) − h(z)⟩} B(ω) B(ω)* ) ]      (any signature, B complex)

A uniform is mapped by the quantile function of a distribution symmetric about 0, as products over coordinates require:
E cos(ω_1δ_1 + ω_2δ_2) = E cos(ω_1δ_1) · E cos(ω_2δ_2). Continuous distributions are differentiated through the
frequency. Distributions on the integers cannot be: there the factor has the weight `density_ratio`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from gpytorch.kernels import Kernel
from scipy.special import gammainc, gammaincinv
from torch import Tensor

from ovkgp.exceptions import OptionError
from ovkgp.kernels.records import find_record


def unit_factor(frequencies: Tensor) -> Tensor:
    """Return B = 1, the factor of a scalar kernel with k(0) = 1.

    Parameters
    ----------
    frequencies : Tensor of shape (..., D, d)
        Frequencies, of which only dtype and device matter.

    Returns
    -------
    Tensor of shape (1, 1, 1)
        The number 1.
    """
    return torch.ones(1, 1, 1, dtype=frequencies.dtype, device=frequencies.device)


@dataclass(frozen=True)
class SpectralPair:
    """Distribution of frequencies and factor of the spectral density: (ρ, B) with K = E_ρ[cos · B Bᵀ].

    Parameters
    ----------
    base_dim : int
        Number of uniforms per frequency.
    frequencies : callable
        Map from u (D, base_dim) in (0, 1) to frequencies (..., D, q), differentiable in the hyperparameters.
    factor : callable, optional
        Map from frequencies (..., D, q) to B (..., D, p, r), or (..., 1, p, r) if B does not depend on the frequency
        (the kernel is then separable and its features a Kronecker product). Complex if and only if `even` is False.
        By default B = 1.
    isotropic : bool, default=False
        Whether the distribution is a scaled rotation-invariant one whose direction is that of the normal quantiles of
        the first `num_dims` uniforms, as orthogonal sampling requires.
    even : bool, default=True
        Whether K_e(δ) = K_e(−δ). A real factor can only represent even signatures (BT-E-15).
    warp : callable or None, default=None
        Map h from x (..., n, d) to (..., n, q), or to (..., n, p, q) for one point per output. If None, the identity.
    num_dims : int or None, default=None
        Number of uniforms that hold the direction. If None, `base_dim`.
    reflection : callable or None, default=None
        Map from frequencies to (v (..., D, p), s (..., D, 1)), if the factor is s (I − 2vvᵀ/‖v‖²) without its first
        column: it avoids the (D, p, p − 1) tensor. `factor` must agree with it.
    discrete : bool, default=False
        Whether the frequencies lie on a lattice, so that they have no derivative in the uniforms.

    Examples
    --------
    >>> import torch
    >>> from ovkgp.features import ORFF, SpectralPair
    >>> pair = SpectralPair(1, torch.special.ndtri)
    >>> ORFF(pair, num_frequencies=8, random_state=0)(torch.zeros(3, 1)).shape
    torch.Size([3, 16])
    """

    base_dim: int
    frequencies: Callable[[Tensor], Tensor]
    factor: Callable[[Tensor], Tensor] = unit_factor
    isotropic: bool = False
    even: bool = True
    warp: Callable[[Tensor], Tensor] | None = None
    num_dims: int | None = None
    reflection: Callable[[Tensor], tuple[Tensor, Tensor]] | None = None
    discrete: bool = False

    def __post_init__(self):
        if self.base_dim < 1:
            raise OptionError(f"base_dim must be at least 1, got {self.base_dim}.")

    @property
    def terms(self) -> tuple[SpectralPair, ...]:
        """Pairs whose kernels add up to this one: only itself."""
        return (self,)


@dataclass(frozen=True)
class SpectralSum:
    """Sum of shift-invariant kernels: one pair per term, whose features are concatenated.

    Parameters
    ----------
    terms : tuple of SpectralPair
        Pairs of the terms.

    Examples
    --------
    >>> from gpytorch.kernels import MaternKernel, RBFKernel
    >>> from ovkgp.features import spectral_pair
    >>> pair = spectral_pair(RBFKernel(ard_num_dims=2) + MaternKernel(ard_num_dims=2))
    >>> type(pair).__name__, len(pair.terms), pair.isotropic
    ('SpectralSum', 2, True)
    """

    terms: tuple[SpectralPair, ...]

    @property
    def isotropic(self) -> bool:
        return all(term.isotropic for term in self.terms)

    @property
    def even(self) -> bool:
        return all(term.even for term in self.terms)


@dataclass(frozen=True)
class ScaleMixture:
    """Distribution of τ in a mixture of Gaussian kernels, k(δ) = E_τ exp(−τ s/2) with s = Σ δ_i²/ℓ_i².

    Then ω = √τ z ⊘ ℓ with z ~ N(0, I) and one draw of τ per frequency. Bounded curl- and divergence-free features need
    the *tilted* distribution, reweighted by ‖ω ∘ ℓ‖²: ‖z‖² becomes χ²(d + 2), and τ has a density ∝ τ times the old one.

    Parameters
    ----------
    moment : callable
        Map from s to E[τ^(s/2)].
    quantile, tilted_quantile : callable or None, default=None
        Quantile functions of τ and of tilted τ. If both are None, τ = 1.
    variance : float, default=1.0
        Upper bound of (1 + k(2δ) − 2k(δ)²)/2 over δ: 1/2 if k(2δ) ≤ 2k(δ)².
    """

    moment: Callable[[float], float]
    quantile: Callable[[Tensor], Tensor] | None = None
    tilted_quantile: Callable[[Tensor], Tensor] | None = None
    variance: float = 1.0

    def __post_init__(self):
        if (self.quantile is None) != (self.tilted_quantile is None):
            raise OptionError("quantile and tilted_quantile must be given together.")

    @property
    def base_dim(self) -> int:
        return 0 if self.quantile is None else 1


def scale_mixture(kernel: Kernel) -> ScaleMixture | None:
    """Return the mixing distribution of a Gaussian scale mixture, or None for any other kernel."""
    record = find_record(kernel)
    return None if record is None or record.scale_mixture is None else record.scale_mixture(kernel)


def is_gaussian(kernel: Kernel) -> bool:
    """Whether the frequencies of a kernel are normal: a scale mixture with τ = 1."""
    mixture = scale_mixture(kernel)
    return mixture is not None and mixture.quantile is None


def draw_sign(u: Tensor) -> Tensor:
    """Return −1 for uniforms below 1/2, else 1."""
    return torch.where(u < 0.5, -1.0, 1.0).to(u)


def density_ratio(log_density: Tensor) -> Tensor:
    """Return √(P / P'), P' = P held constant, as a factor (..., D, 1, 1): value 1, gradient ½ that of log P."""
    return ((log_density - log_density.detach()) / 2).exp()[..., None, None]


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
    """∂F/∂a (x; a) of Gamma(a, 1) by central differences, to about 1e-10; differentiable once, in a to about 1e-7."""

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


def gamma_ratio(x: float, step: float) -> float:
    """Return Γ(x + step) / Γ(x)."""
    return math.exp(math.lgamma(x + step) - math.lgamma(x))
