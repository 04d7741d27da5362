"""How many random features are enough? Bounds on P[sup over C × C of ‖K̃ − K‖ ≥ ε] (thesis §5.1, BT-57..61).

Three inequalities, for D independent frequencies and inputs in a set C of diameter |C| in R^d:

    hoeffding            2⁸ (σ_p‖Γ‖|C|/ε)² exp(−ε²D / 4‖Γ‖²(d+2))                                   K = k Γ only
    bernstein_bounded    C_d (4m|C|/ε)^{d/(d+1)} p_int^{1/(d+1)} exp(−Dε² / 8(d+1)(v + uε/6))       ess sup‖A‖ < ∞
    bernstein_unbounded  C_d (4m|C|/ε)^{d/(d+1)} (p_int r)^{1/(d+1)} exp(−Dε² / 8v(d+1)(1+1/p))     ‖‖A‖‖_ψ₁ < ∞, p < ∞
                                                             or exp(−Dε / 8u(d+1)κ) for larger ε

    C_d = 4 (d^{1/(d+1)} + d^{−d/(d+1)}),   κ = log(16√2 p) + log(u²/v),   r = 1 + 3 / (ε² log²(1 + Dε/v)).
"""

from __future__ import annotations

import math

from gpytorch.kernels import Kernel

from ovkgp.exceptions import OptionError
from ovkgp.features.bounds.checks import VARIANTS, nonnegative, one_of, positive, probability
from ovkgp.features.bounds.constants import SpectralConstants
from ovkgp.features.bounds.kernel_constants import spectral_constants
from ovkgp.kernels.checks import whole_number

METHODS = ("auto", "hoeffding", "bernstein_bounded", "bernstein_unbounded")
_MOST = 2**62


def uniform_error_bound(
    kernel: Kernel,
    num_frequencies: int,
    epsilon: float,
    diameter: float,
    *,
    method: str = "auto",
    bounded: bool = True,
    variant: str = "corrected",
    num_dims: int | None = None,
    lipschitz: float = 1.0,
) -> float:
    """An upper bound on the probability that random features miss the kernel by ε or more somewhere on C × C.

    The error is the largest operator norm ‖K̃(x, z) − K(x, z)‖ over x, z in C, for independent frequencies
    (``sampler="iid"``). The formulas stand at the head of this module, with u = ess sup‖A‖ + ‖K_e(e)‖ (bounded) or
    u = 4(‖‖A‖‖_ψ₁ + ‖K_e(e)‖) (unbounded), and m, v, p_int as in `spectral_constants`.

    The default ``variant="corrected"`` repairs the covering number (BT-E-21), the constant 8√2 (BT-E-20) and the
    exponent of the bounded case (BT-E-22). ``"printed"`` evaluates Corollaries 5.2 and 5.3 as the thesis prints
    them: 8√2 (m|C|/ε) for C_d(·)^{d/(d+1)}, and exp(−Dε² / 2(d+1)(v + uε/3)); it may be too small to be true.
    Hoeffding's bound is the same in both. Where ε exceeds what a theorem allows for |C|, the bound for the
    smallest larger set it does allow is returned. A bound above 1 says nothing and is reported as 1.0, and so is
    one with an infinite moment (the Laplace kernel, rough Matérn kernels). For a kernel whose constants have no closed
    form they are estimated at 2¹⁴ Sobol frequencies, and the bound is as good as those estimates.

    Args:
        kernel: a shift-invariant kernel; its hyperparameters count.
        num_frequencies: D.
        epsilon: the error, in the units of the kernel.
        diameter: |C|, the largest distance between two inputs.
        method: "hoeffding", "bernstein_bounded", "bernstein_unbounded", or "auto", the least of those that apply.
        bounded: for curl- and divergence-free kernels, the bounded factor.
        variant: "corrected" or "printed".
        num_dims: the input dimension, for kernels that do not know it.
        lipschitz: multiplies H_ω; for a kernel on another group, the Lipschitz constant of its logarithm on C
            (BT-E-19), which `ovkgp.kernels.groups` knows as ``group.lipschitz(lower)``. Not needed on (R^d, +).

    Returns:
        A probability in [0, 1].

    Raises:
        SpectralError: the kernel has no spectral pair.
        OptionError: an argument out of range, or Hoeffding asked of a kernel that is not k Γ.

    Example:
        >>> from gpytorch.kernels import RBFKernel
        >>> from ovkgp.features.bounds import uniform_error_bound
        >>> kernel = RBFKernel(ard_num_dims=2)
        >>> uniform_error_bound(kernel, 10, epsilon=0.1, diameter=1.0)
        1.0
        >>> uniform_error_bound(kernel, 100_000, epsilon=0.1, diameter=1.0) < 1e-6
        True
    """
    num_frequencies = whole_number("num_frequencies", num_frequencies)
    epsilon, diameter = positive("epsilon", epsilon), nonnegative("diameter", diameter)
    one_of("method", method, METHODS)
    one_of("variant", variant, VARIANTS)
    constants = spectral_constants(kernel, num_dims=num_dims, bounded=bounded, lipschitz=lipschitz)
    return math.exp(min(0.0, _log_bound(constants, num_frequencies, epsilon, diameter, method, variant)))


def required_features(
    kernel: Kernel,
    epsilon: float,
    delta: float = 0.05,
    diameter: float = 1.0,
    *,
    method: str = "auto",
    bounded: bool = True,
    variant: str = "corrected",
    num_dims: int | None = None,
    lipschitz: float = 1.0,
) -> int | float:
    """The smallest D for which `uniform_error_bound` is at most δ: enough features for an error below ε.

    The number is a guarantee, and as guarantees go a generous one: far fewer features usually do. The options,
    and what ``variant`` changes (default "corrected"), are those of `uniform_error_bound`.

    Args:
        kernel: a shift-invariant kernel.
        epsilon: the error, in the units of the kernel.
        delta: the probability with which it may be exceeded.
        diameter: |C|, the largest distance between two inputs.

    Returns:
        D, or `math.inf` where a moment the bound needs is infinite.

    Example:
        >>> from gpytorch.kernels import RBFKernel
        >>> from ovkgp.features.bounds import required_features
        >>> kernel = RBFKernel(ard_num_dims=4)
        >>> kernel.lengthscale = 1.0
        >>> required_features(kernel, epsilon=0.5, delta=0.05, diameter=4.0, method="hoeffding")
        1353
        >>> required_features(kernel, epsilon=0.5, delta=0.05, diameter=4.0)
        871
    """
    epsilon, delta, diameter = (
        positive("epsilon", epsilon),
        probability("delta", delta),
        nonnegative("diameter", diameter),
    )
    one_of("method", method, METHODS)
    one_of("variant", variant, VARIANTS)
    constants = spectral_constants(kernel, num_dims=num_dims, bounded=bounded, lipschitz=lipschitz)

    def enough(num_frequencies: int) -> bool:
        return _log_bound(constants, num_frequencies, epsilon, diameter, method, variant) <= math.log(delta)

    return _smallest(enough)


def _smallest(enough) -> int | float:
    """The least whole number at which a monotone condition holds, by doubling and bisection."""
    high = 1
    while not enough(high):
        if high >= _MOST:
            return math.inf
        high *= 2
    low = high // 2  # does not hold there, or is 0
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def _log_bound(c: SpectralConstants, D: int, epsilon: float, diameter: float, method: str, variant: str) -> float:
    """The logarithm of the bound; 0 or more says nothing."""
    if method == "hoeffding" and not c.separable:
        raise OptionError(
            "Hoeffding's bound is for scalar and decomposable kernels k Γ, where the error is a number times a matrix: "
            'use method="auto".'
        )
    if c.kernel_norm == 0:  # K = 0 and so are its features
        return -math.inf
    rules = {
        "hoeffding": _hoeffding,
        "bernstein_bounded": _bernstein_bounded,
        "bernstein_unbounded": _bernstein_unbounded,
    }
    if method != "auto":
        return rules[method](c, D, epsilon, diameter, variant)
    return min(
        rule(c, D, epsilon, diameter, variant) for name, rule in rules.items() if c.separable or name != "hoeffding"
    )


def _hoeffding(c: SpectralConstants, D: int, epsilon: float, diameter: float, variant: str) -> float:
    if not math.isfinite(c.root_slope):
        return 0.0
    reach = max(c.root_slope * diameter / epsilon, 1.0)
    return 8 * math.log(2) + 2 * math.log(reach) - epsilon**2 * D / (4 * c.sup_norm**2 * (c.num_dims + 2))


def _bernstein_bounded(c: SpectralConstants, D: int, epsilon: float, diameter: float, variant: str) -> float:
    u, v, d = c.sup_norm + c.kernel_norm, c.variance, c.num_dims
    if not math.isfinite(u + v + c.slope):
        return 0.0
    level = epsilon if variant == "printed" else epsilon / 2  # at which the centres of the balls are held (BT-E-22)
    if math.sqrt(v / D) + u / (3 * D) >= level:
        return 0.0
    exponent = D * level**2 / (2 * (d + 1) * (v + u * level / 3))
    return _log_cover(c, epsilon, diameter, variant) + math.log(c.intrinsic_dim) / (d + 1) - exponent


def _bernstein_unbounded(c: SpectralConstants, D: int, epsilon: float, diameter: float, variant: str) -> float:
    u, v, d, p = 4 * (c.orlicz + c.kernel_norm), c.variance, c.num_dims, c.num_outputs
    if not math.isfinite(u + v + c.slope):
        return 0.0
    kappa = math.log(16 * math.sqrt(2) * p) + math.log(u**2 / v)
    tail = 1 + 3 / (epsilon * math.log1p(D * epsilon / v)) ** 2
    if epsilon <= v / u * (1 + 1 / p) / kappa:
        exponent = D * epsilon**2 / (8 * v * (d + 1) * (1 + 1 / p))
    else:
        exponent = D * epsilon / (8 * u * (d + 1) * kappa)
    return _log_cover(c, epsilon, diameter, variant) + math.log(c.intrinsic_dim * tail) / (d + 1) - exponent


def _log_cover(c: SpectralConstants, epsilon: float, diameter: float, variant: str) -> float:
    """What covering the lags by balls costs: log C_d (4m|C|/ε)^{d/(d+1)}; printed, log 8√2 m|C|/ε (BT-E-20, 21)."""
    d, reach = c.num_dims, max(c.slope * diameter / epsilon, 1.0)
    if variant == "printed":
        return math.log(8 * math.sqrt(2) * reach)
    return math.log(cover_constant(d)) + d / (d + 1) * math.log(4 * reach)


def cover_constant(num_dims: int) -> float:
    """C_d = 4 (d^{1/(d+1)} + d^{−d/(d+1)}), the least of 4(r + r^−d) over the radius r of the balls.

    With the printed covering number it comes with 2^{d/(d+1)}, and the product exceeds 8√2 for d = 2, 3, 4 (BT-E-20).
    """
    d = num_dims
    return 4 * (d ** (1 / (d + 1)) + d ** (-d / (d + 1)))
