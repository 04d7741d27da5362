"""Constants of a kernel in concentration bounds, their sums and multiples (BT-59, 63, 64).

K_e(δ) = E[cos⟨ω, δ⟩ A(ω)] is the spectral pair, and H_ω = ‖ω‖ on (R^d, +). Closed forms for RBF, Matérn and rational
quadratic kernels, alone, decomposable, curl- or divergence-free, scaled and summed; Sobol estimates otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import reduce, singledispatch

import torch
from gpytorch.kernels import AdditiveKernel, Kernel, ProductKernel, ScaleKernel
from scipy.optimize import brentq
from torch import Tensor

from ovkgp.checks import check_positive
from ovkgp.exceptions import InputError, OptionError, SpectralError
from ovkgp.features.spectral import moments
from ovkgp.features.spectral.fields import largest_radial_variance
from ovkgp.features.spectral.moments import moment_order
from ovkgp.features.spectral.pair import resolve_num_dims, spectral_pair
from ovkgp.kernels.fields import CurlFreeKernel, DivergenceFreeKernel
from ovkgp.kernels.protocol import BlockwiseProductKernel, components, is_operator_valued
from ovkgp.kernels.spectral import SpectralPair, SpectralSum, is_gaussian, scale_mixture
from ovkgp.kernels.transformable import TransformableKernel


@dataclass(frozen=True, eq=False)
class SpectralConstants:
    """Constants of a kernel and its features in concentration bounds; any of them may be infinite.

    Parameters
    ----------
    num_dims, num_outputs : int
        Dimension d of the lags that are covered by balls, and number p of outputs.
    at_zero : Tensor of shape (p, p)
        K_e(e).
    slope, root_slope : float
        m = E[H_ω ‖A(ω)‖], and √E[H_ω² ‖A(ω)‖²]; for K = k Γ the second is σ_p ‖Γ‖.
    sup_norm, orlicz : float
        ess sup ‖A(ω)‖, and the ψ₁ norm of ‖A(ω)‖.
    variance, intrinsic_dim : float
        v ≥ sup_δ ‖D · Var K̃(δ)‖, and p_int ≥ sup_δ IntDim(V(δ)) for a dominating V.
    separable : bool
        Whether the error K̃ − K is a random number times a fixed matrix, so that Hoeffding's inequality applies.

    Examples
    --------
    >>> from gpytorch.kernels import RBFKernel
    >>> from ovkgp.features.bounds import spectral_constants
    >>> constants = spectral_constants(RBFKernel(ard_num_dims=2))
    >>> constants.kernel_norm, constants.scaled(3.0).kernel_norm
    (1.0, 3.0)
    """

    num_dims: int
    num_outputs: int
    at_zero: Tensor
    slope: float
    root_slope: float
    sup_norm: float
    orlicz: float
    variance: float
    intrinsic_dim: float
    separable: bool

    @property
    def kernel_norm(self) -> float:
        """‖K_e(e)‖ = sup_δ ‖K_e(δ)‖."""
        return float(torch.linalg.matrix_norm(self.at_zero, ord=2))

    def scaled(self, scale: float) -> SpectralConstants:
        """Return the constants of s · K.

        Parameters
        ----------
        scale : float
            s > 0.

        Returns
        -------
        SpectralConstants
            Constants of the scaled kernel.
        """
        linear = {name: scale * getattr(self, name) if scale else 0.0 for name in _LINEAR}  # infinity · 0 would be NaN
        variance = scale**2 * self.variance if scale else 0.0
        return replace(self, at_zero=scale * self.at_zero, variance=variance, **linear)

    def times(self, matrix: Tensor) -> SpectralConstants:
        """Return the constants of k · Γ from those of the scalar kernel k.

        Parameters
        ----------
        matrix : Tensor of shape (p, p)
            Γ.

        Returns
        -------
        SpectralConstants
            Constants of the decomposable kernel.
        """
        matrix = matrix.detach().to("cpu", torch.float64)
        return replace(
            self.scaled(float(torch.linalg.matrix_norm(matrix, ord=2))),
            num_outputs=matrix.shape[-1],
            at_zero=self.at_zero * matrix,
            intrinsic_dim=intrinsic_dimension(matrix @ matrix),
        )

    def __add__(self, other: SpectralConstants) -> SpectralConstants:
        """Return the constants of a sum with independent features: all add, by the triangle inequality."""
        totals = {name: getattr(self, name) + getattr(other, name) for name in (*_LINEAR, "at_zero", "variance")}
        scalar = self.num_outputs == 1 and self.separable and other.separable
        p = max(self.num_outputs, other.num_outputs)
        return replace(self, **totals, num_outputs=p, intrinsic_dim=float(p), separable=scalar)


_LINEAR = ("slope", "root_slope", "sup_norm", "orlicz")


def spectral_constants(
    kernel: Kernel, *, num_dims: int | None = None, bounded: bool = True, lipschitz: float = 1.0
) -> SpectralConstants:
    """Return the constants of a shift-invariant kernel, corrected where the thesis errs (BT-E-16, 17, 18).

    Parameters
    ----------
    kernel : Kernel
        Any kernel known to `spectral_pair`, with an empty batch shape.
    num_dims : int or None, default=None
        Input dimension, for kernels that do not define it and sums of kernels on different columns.
    bounded : bool, default=True
        Whether to use the bounded factor of curl- and divergence-free kernels.
    lipschitz : float, default=1.0
        For a pair with a warp h, a Lipschitz constant of h: H_ω = lipschitz · ‖ω‖.

    Returns
    -------
    SpectralConstants
        Constants of the kernel.

    Raises
    ------
    SpectralError
        If the kernel has no spectral pair.

    Examples
    --------
    >>> from gpytorch.kernels import RBFKernel
    >>> from ovkgp.features.bounds import spectral_constants
    >>> kernel = RBFKernel(ard_num_dims=2)
    >>> kernel.lengthscale = 0.5
    >>> round(spectral_constants(kernel).root_slope ** 2, 4)  # E‖ω‖² = d/ℓ²
    8.0
    """
    lipschitz = check_positive("lipschitz", lipschitz)
    pair = spectral_pair(kernel, num_dims=num_dims, bounded=bounded)
    if len(kernel.batch_shape):
        raise OptionError(
            f"Batched kernels are not supported, got batch_shape={tuple(kernel.batch_shape)}. Index it first."
        )
    with torch.no_grad():
        found = _constants(kernel, num_dims, bounded)
    return replace(
        found,
        num_dims=_lag_dims(pair, num_dims),
        slope=lipschitz * found.slope,
        root_slope=lipschitz * found.root_slope,
    )


def sum_constants(parts: Iterable[SpectralConstants]) -> SpectralConstants:
    """Return the constants of a sum of kernels."""
    return reduce(SpectralConstants.__add__, parts)


def _lag_dims(pair: SpectralPair | SpectralSum, num_dims: int | None) -> int:
    with torch.no_grad():
        sizes = {
            term.frequencies(torch.full((1, term.base_dim), 0.5, dtype=torch.float64)).shape[-1] for term in pair.terms
        }
    if len(sizes) == 1 and (len(pair.terms) == 1 or all(term.warp is None for term in pair.terms)):
        return sizes.pop() if num_dims is None else min(num_dims, *sizes)
    if num_dims is None:
        raise OptionError("The terms of this kernel may use different columns. Pass the input dimension as num_dims.")
    return num_dims


@singledispatch
def _constants(kernel: Kernel, num_dims: int | None, bounded: bool) -> SpectralConstants:
    if (weights := inverse_squares(kernel, num_dims)) is not None:
        return _mixture_constants(kernel, weights)
    separable = components(kernel) if is_operator_valued(kernel) else None
    if separable is None:
        return estimate_constants(kernel, num_dims, bounded)
    dims = _num_input_dims(kernel, num_dims)
    return sum_constants(_constants(scalar, dims, bounded).times(matrix) for scalar, matrix in separable)


def _num_input_dims(kernel: Kernel, num_dims: int | None) -> int | None:
    return num_dims if kernel.active_dims is None else len(kernel.active_dims)


@_constants.register
def _(kernel: ScaleKernel, num_dims, bounded):
    return _constants(kernel.base_kernel, _num_input_dims(kernel, num_dims), bounded).scaled(float(kernel.outputscale))


@_constants.register
def _(kernel: AdditiveKernel, num_dims, bounded):
    dims = _num_input_dims(kernel, num_dims)
    return sum_constants(_constants(part, dims, bounded) for part in kernel.kernels)


@_constants.register
def _(kernel: TransformableKernel, num_dims, bounded):
    raise SpectralError(
        "TransformableKernel is not supported: it compares a different point per output, so it has no single lag."
    )


def inverse_squares(kernel: Kernel, num_dims: int | None) -> Tensor | None:
    """Return 1/ℓ² (d,) in float64 for a Gaussian scale mixture, such as an RBF, Matérn or RQ kernel; None for any other."""
    if scale_mixture(kernel) is None:
        return None
    lengthscale = kernel.lengthscale.detach().to("cpu", torch.float64).flatten()
    return lengthscale.square().reciprocal().expand(resolve_num_dims(kernel, num_dims))


def _mixture_constants(kernel: Kernel, weights: Tensor) -> SpectralConstants:
    """Return the constants of a Gaussian scale mixture; v bounds (1 + k(2δ) − 2k(δ)²)/2 (BT-E-18)."""
    mixture = scale_mixture(kernel)
    return SpectralConstants(
        num_dims=weights.numel(),
        num_outputs=1,
        at_zero=torch.ones(1, 1, dtype=torch.float64),
        slope=moments.gaussian_norm_moment(weights, 1) * mixture.moment(1),
        root_slope=math.sqrt(moments.gaussian_norm_moment(weights, 2) * mixture.moment(2)),
        sup_norm=1.0,
        orlicz=1 / math.log(2),
        variance=mixture.variance,
        intrinsic_dim=1.0,
        separable=True,
    )


@_constants.register(CurlFreeKernel)
@_constants.register(DivergenceFreeKernel)
def _(kernel, num_dims, bounded):
    dims = _num_input_dims(kernel, num_dims) if kernel.num_dims is None else kernel.num_dims
    base = kernel.base_kernel
    if isinstance(base, ScaleKernel):
        inner = type(kernel)(base.base_kernel, _num_input_dims(base, dims))
        return _constants(inner, dims, bounded).scaled(float(base.outputscale))
    if isinstance(base, AdditiveKernel) and all(part.active_dims is None for part in base.kernels):
        return sum_constants(
            _constants(type(kernel)(part, _num_input_dims(base, dims)), dims, bounded) for part in base.kernels
        )
    weights = inverse_squares(base, dims)
    if weights is None:
        return estimate_constants(kernel, num_dims, bounded)
    return _field_constants(kernel, weights, bounded)


def _field_constants(
    kernel: CurlFreeKernel | DivergenceFreeKernel, weights: Tensor, bounded: bool
) -> SpectralConstants:
    """Return the constants for A(ω) = ωωᵀ or ‖ω‖²I − ωωᵀ, of norm ‖ω‖², or d E[τ] ‖û ⊘ ℓ‖² if bounded."""
    d, curl = weights.numel(), isinstance(kernel, CurlFreeKernel)
    mix = scale_mixture(kernel.base_kernel).moment
    sup_norm = d * float(weights.max()) * mix(2) if bounded else math.inf
    is_exact = is_gaussian(kernel.base_kernel) and not bounded
    orlicz = gaussian_orlicz_norm(weights) if is_exact else sup_norm / math.log(2)
    at_zero = torch.diag(weights if curl else weights.sum() - weights)
    return SpectralConstants(
        num_dims=d,
        num_outputs=d,
        at_zero=at_zero * mix(2),
        slope=moments.gaussian_norm_moment(weights, 3) * mix(3),
        root_slope=math.inf,  # only Hoeffding's inequality needs it, and the error is not a number times a matrix
        sup_norm=sup_norm,
        orlicz=orlicz,
        variance=_field_variance(kernel, weights, bounded, mix),
        intrinsic_dim=float(d),
        separable=False,
    )


def _field_variance(kernel, weights: Tensor, bounded: bool, mix) -> float:
    """Return sup_δ ‖D Var K̃(δ)‖ if the kernel is radial and Gaussian, else the always valid ‖E[A²]‖ (BT-E-16)."""
    d, curl = weights.numel(), isinstance(kernel, CurlFreeKernel)
    if is_gaussian(kernel.base_kernel) and bool((weights == weights[0]).all()):
        return float(weights[0]) ** 2 * largest_radial_variance(d, curl, bounded)
    diagonal = weights * (weights.sum() + 2 * weights)  # the diagonal of E[‖ω‖² ωωᵀ] for Gaussian ω
    square = float((diagonal if curl else diagonal.sum() - diagonal).max())
    return square * d / (d + 2) * mix(2) ** 2 if bounded else square * mix(4)


def orlicz_norm(samples_or_kernel: Tensor | Kernel, *, bounded: bool = False, num_dims: int | None = None) -> float:
    """Return the ψ₁-Orlicz norm of a variable from draws of it, or of ‖A(ω)‖ for the spectral pair of a kernel.

    ‖X‖_ψ₁ = inf{C > 0 : E exp(|X|/C) ≤ 2} is finite for variables with exponential tails. For draws it is the root C of
    (1/n) Σ exp(|x_i|/C) = 2 (thesis Lemma A.3). For a kernel it is exact where it is known:

    - ‖A‖ constant (scalar and decomposable kernels): ‖A‖ / ln 2;
    - curl- or divergence-free Gaussian, unbounded map, lengthscale σ: 2 / (σ² (1 − 4^(−1/d))); with ARD, the root of
      Π_k (1 − 2 / (C ℓ_k²))^(−1/2) = 2;
    - bounded maps: sup‖A‖ / ln 2, an upper bound;
    - heavy tails (Matérn with an unbounded map): infinity.

    Parameters
    ----------
    samples_or_kernel : Tensor or Kernel
        Draws of any shape, or a shift-invariant kernel.
    bounded, num_dims
        As for `spectral_constants`, but `bounded` is False by default. Ignored for draws.

    Returns
    -------
    float
        Norm, possibly `math.inf`.

    Examples
    --------
    >>> import math, torch
    >>> from ovkgp.features.bounds import orlicz_norm
    >>> math.isclose(orlicz_norm(torch.full((10,), 3.0)), 3 / math.log(2))
    True
    """
    if isinstance(samples_or_kernel, Kernel):
        return spectral_constants(samples_or_kernel, bounded=bounded, num_dims=num_dims).orlicz
    return _empirical_orlicz_norm(samples_or_kernel)


def _empirical_orlicz_norm(samples) -> float:
    size = torch.as_tensor(samples).detach().to(torch.float64).abs().flatten()
    if size.numel() == 0 or not torch.isfinite(size).all():
        raise InputError("samples_or_kernel must hold at least one draw, all of them finite.")
    largest = float(size.max())
    if largest == 0:
        return 0.0
    size = size / largest
    target = math.log(2 * size.numel())
    # The largest draw alone makes the root larger than 1 / log(2n); as no draw exceeds 1, it is at most 1 / log 2.
    low, high = math.log(2) * (1 - 1e-12), target * (1 + 1e-12)
    return largest / brentq(lambda t: float(torch.logsumexp(size * t, 0)) - target, low, high, xtol=1e-14)


def gaussian_orlicz_norm(weights: Tensor) -> float:
    """Return ‖Σ_k w_k ε_k²‖_ψ₁ for standard normal ε: the root C of Π_k (1 − 2 w_k / C)^(−1/2) = 2."""
    weights = weights.to(torch.float64)
    d, largest = weights.numel(), float(weights.max())
    if float(weights.min()) == largest:
        return 2 * largest / (1 - 4 ** (-1 / d))

    def excess(c: float) -> float:
        return -0.5 * float(torch.log1p(-2 * weights / c).sum()) - math.log(2)

    # Between one variable of the largest weight and d variables of that weight.
    low, high = 2 * largest / (1 - 1 / 4), 2 * largest / (1 - 4 ** (-1 / d))
    return brentq(excess, low * (1 - 1e-12), high * (1 + 1e-12), xtol=1e-14 * largest)


def intrinsic_dimension(matrix: Tensor) -> float:
    """Return IntDim(V) = Tr V / ‖V‖ of a positive semi-definite matrix V (p, p), between 1 and its rank.

    Parameters
    ----------
    matrix : Tensor of shape (p, p)
        Matrix V.

    Returns
    -------
    float
        Intrinsic dimension; 1 for a zero matrix, for which the ratio is undefined.

    Examples
    --------
    >>> import torch
    >>> from ovkgp.features.bounds import intrinsic_dimension
    >>> intrinsic_dimension(torch.diag(torch.tensor([2.0, 1.0, 1.0])))
    2.0
    """
    matrix = torch.as_tensor(matrix).detach().to(torch.float64)
    if matrix.dim() != 2 or matrix.shape[0] != matrix.shape[1]:
        raise InputError(f"matrix has shape {tuple(matrix.shape)}, expected (p, p).")
    if not torch.isfinite(matrix).all() or not torch.allclose(matrix, matrix.T, atol=1e-6 * float(matrix.abs().max())):
        raise InputError("matrix must be finite and symmetric.")
    eigenvalues = torch.linalg.eigvalsh(matrix)
    largest = float(eigenvalues[-1])
    if float(eigenvalues[0]) < -1e-6 * max(largest, abs(float(eigenvalues[0]))):
        raise InputError(f"matrix must be positive semi-definite, got the eigenvalue {float(eigenvalues[0]):.3g}.")
    return float(eigenvalues.sum()) / largest if largest > 0 else 1.0


def estimate_constants(kernel: Kernel, num_dims: int | None, bounded: bool) -> SpectralConstants:
    """Return Sobol estimates, summed over the terms of the pair, with H_ω = ‖ω‖ and the largest ‖A‖ as ess sup."""
    pair = spectral_pair(kernel, num_dims=num_dims, bounded=bounded)
    order = moment_order(kernel)
    found = sum_constants(_estimate_term(term, order) for term in pair.terms)
    repeats = math.sqrt(_count_input_repeats(kernel))
    return replace(found, slope=repeats * found.slope, root_slope=repeats * found.root_slope)


def _count_input_repeats(kernel: Kernel) -> int:
    """Count how often products repeat the input: ω_1 + … + ω_n has norm ≤ √n ‖(ω_1, …, ω_n)‖."""
    repeats = 1
    for part in kernel.modules():
        if isinstance(part, ProductKernel):
            repeats *= len(part.kernels)
        elif isinstance(part, BlockwiseProductKernel):
            repeats *= 2
    return repeats


def _estimate_term(term: SpectralPair, order: float) -> SpectralConstants:
    """Return Sobol estimates for one term; if K̃ need not be symmetric, those of its dilation of size 2p."""
    frequencies = moments.draw_frequencies(term)
    length, norms = frequencies.norm(dim=-1), moments.operator_norms(term, frequencies)
    constant = norms.numel() == 1
    power, sup_norm = (0.0, float(norms)) if constant else moments.estimate_growth(term, frequencies)
    mean, square = moments.estimate_moments(term, frequencies)
    if not constant and power == 0 and mean.shape[-1] > 1:
        order -= 2  # a factor made bounded by moving its ‖ω‖² into the distribution of ω
    variance = float(torch.linalg.matrix_norm(square, ord=2)) if term.even else float(norms.square().mean())
    p = mean.shape[-1] if term.even else 2 * mean.shape[-1]
    return SpectralConstants(
        num_dims=frequencies.shape[-1],
        num_outputs=p,
        at_zero=mean.real if mean.is_complex() else mean,
        slope=float((length * norms).mean()) if order > 1 + power else math.inf,
        root_slope=float((length * norms).square().mean().sqrt()) if order > 2 + 2 * power else math.inf,
        sup_norm=sup_norm,
        orlicz=sup_norm / math.log(2),  # infinite for an unbounded factor: only Gaussian tails are light enough
        variance=variance if order > 2 * power else math.inf,
        intrinsic_dim=intrinsic_dimension(square) if constant and term.even else float(p),
        separable=term.even and (constant or p == 1),
    )
