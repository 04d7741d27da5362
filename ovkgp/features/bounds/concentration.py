"""Concentration of random features around their kernel, at one lag and uniformly, and the error of actual features."""

from __future__ import annotations

import math

import numpy as np
import torch
from gpytorch.kernels import Kernel
from linear_operator import to_dense
from torch import Tensor

from ovkgp.checks import (
    VARIANTS,
    as_seed,
    check_integer,
    check_nonnegative,
    check_one_of,
    check_positive,
    check_probability,
)
from ovkgp.exceptions import InputError, OptionError, SpectralError
from ovkgp.features.bounds.constants import SpectralConstants, intrinsic_dimension, spectral_constants
from ovkgp.features.bounds.variance import kernel_variance
from ovkgp.features.orff import ORFF
from ovkgp.kernels.evaluation import evaluate_kernel

BERNSTEIN_METHODS = ("dimension", "intrinsic", "orlicz")
MAX_FREQUENCIES = 2**62


def bernstein_bound(
    variance: Tensor, size: float, epsilon: float, *, method: str, num_terms: int = 1, variant: str = "corrected"
) -> float:
    """Bound P[‖S‖ ≥ ε] for a sum S = X_1 + … + X_D of independent centered symmetric random matrices.

    Parameters
    ----------
    variance : Tensor of shape (p, p)
        V, at least Σ_j E X_j².
    size : float
        U, a bound on ‖X_j‖, or for "orlicz" on its ψ₁ norm.
    epsilon : float
        Deviation ε.
    method : {"dimension", "intrinsic", "orlicz"}
        Inequality to use, see Notes.
    num_terms : int, default=1
        Number D of terms. Ignored unless `method="orlicz"`, where κ = log(16√2 p) + log(D U² / ‖V‖).
    variant : {"corrected", "printed"}, default="corrected"
        "printed" has p instead of 2p in Theorem A.1; it holds for the largest eigenvalue but not for the norm: one
        random sign has ‖X‖ ≥ 1 surely, and p exp(−3/8) < 1.

    Returns
    -------
    float
        Probability in [0, 1]; 1.0 if the theorem does not apply.

    Notes
    -----
    With V ≽ Σ E X_j² (thesis A.1.3, BT-65),

        dimension   P[‖S‖ ≥ ε] ≤ 2p exp(−ε² / (2‖V‖ + 2Uε/3))                        ‖X_j‖ ≤ U             (Thm A.1)
        intrinsic   P[‖S‖ ≥ ε] ≤ 4 IntDim(V) exp(the same),  ε ≥ √‖V‖ + U/3          ‖X_j‖ ≤ U             (Thm A.2)
        orlicz      P[‖S‖ ≥ ε] ≤ 2 IntDim(V) r exp(−ε² / 2‖V‖(1 + 1/p)) or           ‖‖X_j‖‖_ψ₁ ≤ U        (Thm A.3)
                                 2 IntDim(V) r exp(−ε / 4Uκ) for larger ε

    Examples
    --------
    >>> import torch
    >>> from ovkgp.features.bounds import bernstein_bound
    >>> round(bernstein_bound(torch.eye(2) / 100, 0.01, 0.5, method="dimension"), 6)
    8.9e-05
    """
    epsilon, size = check_positive("epsilon", epsilon), check_positive("size", size)
    num_terms = check_integer("num_terms", num_terms)
    check_one_of("method", method, BERNSTEIN_METHODS)
    check_one_of("variant", variant, VARIANTS)
    variance = torch.as_tensor(variance).detach().to(torch.float64)
    dim = intrinsic_dimension(variance)
    norm, p = float(torch.linalg.matrix_norm(variance, ord=2)), variance.shape[-1]
    if method == "orlicz":
        return min(1.0, _orlicz_tail(norm, dim, p, size, epsilon, num_terms))
    decay = math.exp(-(epsilon**2) / (2 * norm + 2 * size * epsilon / 3))
    if method == "intrinsic":
        return min(1.0, 4 * dim * decay) if epsilon >= math.sqrt(norm) + size / 3 else 1.0
    return min(1.0, (p if variant == "printed" else 2 * p) * decay)


def _orlicz_tail(norm: float, dim: float, p: int, size: float, epsilon: float, num_terms: int) -> float:
    if norm == 0:
        return 0.0  # every X_j is zero
    kappa = math.log(16 * math.sqrt(2) * p) + math.log(num_terms * size**2 / norm)
    if kappa <= 0:
        raise InputError(f"size must be a ψ₁ norm of matrices of variance {norm}, got {size}. Increase it.")
    tail = 1 + 3 / (epsilon * math.log1p(epsilon / norm)) ** 2
    if epsilon <= norm / (2 * size) * (1 + 1 / p) / kappa:
        return 2 * dim * tail * math.exp(-(epsilon**2) / (2 * norm * (1 + 1 / p)))
    return 2 * dim * tail * math.exp(-epsilon / (4 * size * kappa))


def pointwise_error_bound(
    kernel: Kernel,
    lag: Tensor,
    num_frequencies: int,
    epsilon: float,
    *,
    method: str = "dimension",
    bounded: bool = True,
    variant: str = "corrected",
) -> float:
    """Bound P[‖K̃(δ) − K(δ)‖ ≥ ε] at a single lag.

    This is `bernstein_bound` with V = Var K̃(δ) and U = u/D, where u = ess sup‖A‖ + ‖K_e(e)‖, or 4(‖‖A‖‖_ψ₁ + ‖K_e(e)‖)
    for "orlicz".

    Parameters
    ----------
    kernel, lag, num_frequencies, bounded
        As for `kernel_variance`; K̃ must be symmetric.
    epsilon : float
        Error ε in the units of the kernel.
    method : {"dimension", "intrinsic", "orlicz"}, default="dimension"
        Inequality to use; only "orlicz" is informative for unbounded features.
    variant : {"corrected", "printed"}, default="corrected"
        Form of Theorem A.1, as in `bernstein_bound`. The variance is corrected in both (BT-E-16).

    Returns
    -------
    float
        Probability in [0, 1].

    Examples
    --------
    >>> import torch
    >>> from gpytorch.kernels import RBFKernel
    >>> from ovkgp.features.bounds import pointwise_error_bound
    >>> pointwise_error_bound(RBFKernel(ard_num_dims=2), torch.ones(2), 2000, epsilon=0.1) < 1e-4
    True
    """
    num_frequencies = check_integer("num_frequencies", num_frequencies)
    check_one_of("method", method, BERNSTEIN_METHODS)
    lag = torch.as_tensor(lag)
    variance = kernel_variance(kernel, lag, num_frequencies, bounded=bounded)
    c = spectral_constants(kernel, num_dims=lag.shape[-1], bounded=bounded)
    size = 4 * (c.orlicz + c.kernel_norm) if method == "orlicz" else c.sup_norm + c.kernel_norm
    if c.num_outputs != len(variance):  # the constants are those of a dilation
        raise SpectralError("These bounds are not supported with features that are not symmetric at a single lag.")
    if not math.isfinite(size) or not torch.isfinite(variance).all():
        return 1.0
    if size == 0:
        return 0.0
    # Rounding may leave a variance that is zero (at zero lag) with a tiny negative eigenvalue.
    variance = variance + 1e-12 * size**2 / num_frequencies * torch.eye(len(variance), dtype=variance.dtype)
    return bernstein_bound(
        variance, size / num_frequencies, epsilon, method=method, num_terms=num_frequencies, variant=variant
    )


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
    """Bound the probability that random features miss the kernel by ε or more somewhere on C × C.

    The error is the largest operator norm ‖K̃(x, z) − K(x, z)‖ over x, z in C, for independent frequencies.

    Parameters
    ----------
    kernel : Kernel
        Shift-invariant kernel at its current hyperparameters.
    num_frequencies, epsilon, diameter : int and float
        Number D of frequencies, error ε in the units of the kernel, and |C|, the largest distance between two inputs.
    method : {"auto", "hoeffding", "bernstein_bounded", "bernstein_unbounded"}, default="auto"
        Inequality to use, see Notes; "auto" is the smallest of those that apply.
    variant : {"corrected", "printed"}, default="corrected"
        "corrected" repairs the covering number (BT-E-21), the constant 8√2 (BT-E-20) and the exponent of the bounded
        case (BT-E-22). "printed" evaluates Corollaries 5.2 and 5.3 of the thesis: 8√2 (m|C|/ε) for C_d(·)^{d/(d+1)},
        and exp(−Dε² / 2(d+1)(v + uε/3)); it may be too small to hold. Hoeffding's bound is the same in both.
    bounded, num_dims
        As for `spectral_constants`.
    lipschitz : float, default=1.0
        Factor of H_ω. For a kernel on another group than (R^d, +), the Lipschitz constant of its logarithm on C
        (BT-E-19), which `ovkgp.kernels.groups` provides as ``group.lipschitz(lower)``.

    Returns
    -------
    float
        Probability in [0, 1]. Uninformative bounds above 1, and bounds with an infinite moment (the Laplace kernel,
        rough Matérn kernels), are reported as 1.0.

    Raises
    ------
    SpectralError
        If the kernel has no spectral pair.
    OptionError
        If an argument is out of range, or `method="hoeffding"` and the kernel is not k Γ.

    Notes
    -----
    For D independent frequencies and inputs in a set C of diameter |C| in R^d (thesis §5.1, BT-57..61),

        hoeffding            2⁸ (σ_p‖Γ‖|C|/ε)² exp(−ε²D / 4‖Γ‖²(d+2))                                K = k Γ only
        bernstein_bounded    C_d (4m|C|/ε)^{d/(d+1)} p_int^{1/(d+1)} exp(−Dε² / 8(d+1)(v + uε/6))    ess sup‖A‖ < ∞
        bernstein_unbounded  C_d (4m|C|/ε)^{d/(d+1)} (p_int r)^{1/(d+1)} exp(−Dε² / 8v(d+1)(1+1/p))  ‖‖A‖‖_ψ₁ < ∞, p < ∞
                                                                 or exp(−Dε / 8u(d+1)κ) for larger ε

        C_d = 4 (d^{1/(d+1)} + d^{−d/(d+1)}),   κ = log(16√2 p) + log(u²/v),   r = 1 + 3 / (ε² log²(1 + Dε/v)),

    with u = ess sup‖A‖ + ‖K_e(e)‖ (bounded) or u = 4(‖‖A‖‖_ψ₁ + ‖K_e(e)‖) (unbounded), and m, v, p_int as in
    `spectral_constants`. If ε exceeds what a theorem allows for |C|, the bound for the smallest larger allowed set is
    returned. Constants without closed form are estimated at 2¹⁴ Sobol frequencies, and the bound is as accurate as
    these estimates.

    Examples
    --------
    >>> from gpytorch.kernels import RBFKernel
    >>> from ovkgp.features.bounds import uniform_error_bound
    >>> kernel = RBFKernel(ard_num_dims=2)
    >>> uniform_error_bound(kernel, 10, epsilon=0.1, diameter=1.0)
    1.0
    >>> uniform_error_bound(kernel, 100_000, epsilon=0.1, diameter=1.0) < 1e-6
    True
    """
    num_frequencies = check_integer("num_frequencies", num_frequencies)
    options = {"num_dims": num_dims, "bounded": bounded, "lipschitz": lipschitz}
    log_bound = _make_log_bound(kernel, epsilon, diameter, method, variant, options)
    return math.exp(min(0.0, log_bound(num_frequencies)))


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
    """Return the smallest D for which `uniform_error_bound` is at most δ.

    The number is a guarantee, and conservative: far fewer features usually suffice.

    Parameters
    ----------
    kernel, epsilon, diameter, method, bounded, variant, num_dims, lipschitz
        As for `uniform_error_bound`; `diameter` is 1 by default.
    delta : float, default=0.05
        Probability with which the error may be exceeded.

    Returns
    -------
    int or float
        D, or `math.inf` if a moment that the bound needs is infinite.

    Examples
    --------
    >>> from gpytorch.kernels import RBFKernel
    >>> from ovkgp.features.bounds import required_features
    >>> kernel = RBFKernel(ard_num_dims=4)
    >>> kernel.lengthscale = 1.0
    >>> required_features(kernel, epsilon=0.5, delta=0.05, diameter=4.0, method="hoeffding")
    1353
    >>> required_features(kernel, epsilon=0.5, delta=0.05, diameter=4.0)
    871
    """
    level = math.log(check_probability("delta", delta))
    options = {"num_dims": num_dims, "bounded": bounded, "lipschitz": lipschitz}
    log_bound = _make_log_bound(kernel, epsilon, diameter, method, variant, options)
    return _find_smallest(lambda num_frequencies: log_bound(num_frequencies) <= level)


def _find_smallest(is_enough) -> int | float:
    """Return the smallest integer at which a monotone condition holds, by doubling and bisection."""
    high = 1
    while not is_enough(high):
        if high >= MAX_FREQUENCIES:
            return math.inf
        high *= 2
    low = high // 2  # the condition does not hold there, or it is 0
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    return high


def _make_log_bound(kernel: Kernel, epsilon: float, diameter: float, method: str, variant: str, options: dict):
    """Check the arguments of a uniform bound, and return its logarithm (uninformative from 0 on) as a function of D."""
    epsilon, diameter = check_positive("epsilon", epsilon), check_nonnegative("diameter", diameter)
    rules = {
        "hoeffding": _hoeffding,
        "bernstein_bounded": _bernstein_bounded,
        "bernstein_unbounded": _bernstein_unbounded,
    }
    check_one_of("method", method, ("auto", *rules))
    check_one_of("variant", variant, VARIANTS)
    c = spectral_constants(kernel, **options)
    if method == "hoeffding" and not c.separable:
        raise OptionError(
            'method="hoeffding" is only supported with scalar and decomposable kernels k Γ, whose error is a number times a matrix. Use method="auto".'
        )
    if c.kernel_norm == 0:  # K = 0 and so are its features
        return lambda D: -math.inf
    names = [name for name in rules if c.separable or name != "hoeffding"] if method == "auto" else [method]
    return lambda D: min(rules[name](c, D, epsilon, diameter, variant) for name in names)


def _hoeffding(c: SpectralConstants, D: int, epsilon: float, diameter: float, variant: str) -> float:
    if not math.isfinite(c.root_slope):
        return 0.0
    reach = max(c.root_slope * diameter / epsilon, 1.0)
    return 8 * math.log(2) + 2 * math.log(reach) - epsilon**2 * D / (4 * c.sup_norm**2 * (c.num_dims + 2))


def _bernstein_bounded(c: SpectralConstants, D: int, epsilon: float, diameter: float, variant: str) -> float:
    u, v, d = c.sup_norm + c.kernel_norm, c.variance, c.num_dims
    if not math.isfinite(u + v + c.slope):
        return 0.0
    level = epsilon if variant == "printed" else epsilon / 2  # bound on the error at the centers of the balls (BT-E-22)
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
    """Return the log of the factor of the covering: C_d (4m|C|/ε)^{d/(d+1)}; printed, 8√2 m|C|/ε (BT-E-20, 21)."""
    d, reach = c.num_dims, max(c.slope * diameter / epsilon, 1.0)
    if variant == "printed":
        return math.log(8 * math.sqrt(2) * reach)
    return math.log(cover_constant(d)) + d / (d + 1) * math.log(4 * reach)


def cover_constant(num_dims: int) -> float:
    """Return C_d = 4 (d^{1/(d+1)} + d^{−d/(d+1)}), the minimum of 4(r + r^−d) over the radius r of the balls."""
    d = num_dims
    return 4 * (d ** (1 / (d + 1)) + d ** (-d / (d + 1)))


def measured_error(
    kernel: Kernel, X: Tensor, num_frequencies: int, *, repeats: int = 5, sampler: str = "iid", random_state=None
) -> float:
    """Return the relative sup error of random features on given points, averaged over several maps.

    The error of one map is the largest operator norm ‖Φ(x)Φ(z)ᵀ − K(x, z)‖ over pairs of points, divided by the largest
    ‖K(x, x)‖; it decreases as D^(−1/2) (BT-57).

    Parameters
    ----------
    kernel : Kernel
        Kernel with random features, scalar or operator-valued.
    X : Tensor of shape (n, d)
        Points, of which all pairs are compared.
    num_frequencies : int
        Number D of frequencies.
    repeats : int, default=5
        Number of maps.
    sampler, random_state
        As for `ORFF`; the bounds assume "iid".

    Returns
    -------
    float
        Relative error.

    Notes
    -----
    Complexity: O(repeats · (n p)² D r) time and O(n p D r) memory, for r columns of the kernel's factor.

    Examples
    --------
    >>> import torch
    >>> from gpytorch.kernels import RBFKernel
    >>> from ovkgp.features.bounds import measured_error
    >>> X = torch.rand(20, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    >>> few, many = (measured_error(RBFKernel(ard_num_dims=2), X, D, random_state=0) for D in (100, 10_000))
    >>> 5 < few / many < 20
    True
    """
    if X.dim() != 2 or len(X) == 0:
        raise InputError(f"X has shape {tuple(X.shape)}, expected (n, d) with n at least 1.")
    num_frequencies, repeats = check_integer("num_frequencies", num_frequencies), check_integer("repeats", repeats)
    with torch.no_grad():
        exact = to_dense(evaluate_kernel(kernel, X))
        size = block_norms(exact, len(X)).diagonal().max().item()
        seeds = np.random.SeedSequence(as_seed(random_state)).generate_state(repeats).tolist()
        errors = [
            _max_error(ORFF(kernel, num_frequencies, num_dims=X.shape[1], sampler=sampler, random_state=seed), X, exact)
            for seed in seeds
        ]
    return float(np.mean(errors)) / size


def _max_error(features: ORFF, X: Tensor, exact: Tensor) -> float:
    Phi = features(X).to_dense()
    return block_norms(Phi @ Phi.mT - exact, len(X)).max().item()


def block_norms(gram: Tensor, num_points: int) -> Tensor:
    """Return the spectral norm of every p × p block of a data-major (n·p) × (n·p) matrix, (n, n)."""
    blocks = gram.unflatten(0, (num_points, -1)).unflatten(2, (num_points, -1)).transpose(1, 2)
    return torch.linalg.matrix_norm(blocks, ord=2)
