"""How far random features are from their kernel, measured: beside the bounds, what really happens.

The error of one map is the largest operator norm ‖Φ(x)Φ(z)ᵀ − K(x, z)‖ over pairs of given points, divided by the largest
‖K(x, x)‖; it falls as D^(−1/2) with the number D of frequencies (BT-57).
"""

from __future__ import annotations

import math

import numpy as np
import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from ovkgp.checks import VARIANTS, as_seed, check_integer, nonnegative, one_of, positive, probability
from ovkgp.exceptions import InputError, OptionError, SpectralError
from ovkgp.features.bounds.constants import SpectralConstants, intrinsic_dimension, spectral_constants
from ovkgp.features.bounds.variance import kernel_variance
from ovkgp.features.orff import ORFF

METHODS = ("dimension", "intrinsic", "orlicz")


def bernstein_bound(
    variance: Tensor, size: float, epsilon: float, *, method: str, num_terms: int = 1, variant: str = "corrected"
) -> float:
    """P[‖Σ_j X_j‖ ≥ ε] for D independent centred symmetric random matrices, by one of the three theorems above.

    Args:
        variance: V (p, p), at least Σ_j E X_j².
        size: U, a bound on ‖X_j‖, or for "orlicz" on its ψ₁ norm.
        epsilon: the deviation.
        method: "dimension", "intrinsic" or "orlicz".
        num_terms: D; only "orlicz" uses it, in κ = log(16√2 p) + log(D U² / ‖V‖).
        variant: "corrected", or "printed" for the thesis' p in place of 2p in Theorem A.1; that holds for the
            largest eigenvalue but not for the norm: one random sign has ‖X‖ ≥ 1 surely, and p exp(−3/8) < 1.

    Returns:
        A probability in [0, 1]; 1.0 where the theorem does not apply.

    Example:
        >>> import torch
        >>> from ovkgp.features.bounds import bernstein_bound
        >>> round(bernstein_bound(torch.eye(2) / 100, 0.01, 0.5, method="dimension"), 6)
        8.9e-05
    """
    epsilon, size, num_terms = (
        positive("epsilon", epsilon),
        positive("size", size),
        check_integer("num_terms", num_terms),
    )
    one_of("method", method, METHODS)
    one_of("variant", variant, VARIANTS)
    variance = torch.as_tensor(variance).detach().to(torch.float64)
    dim = intrinsic_dimension(variance)
    norm, p = float(torch.linalg.matrix_norm(variance, ord=2)), variance.shape[-1]
    if method == "orlicz":
        return min(1.0, _orlicz(norm, dim, p, size, epsilon, num_terms))
    decay = math.exp(-(epsilon**2) / (2 * norm + 2 * size * epsilon / 3))
    if method == "intrinsic":
        return min(1.0, 4 * dim * decay) if epsilon >= math.sqrt(norm) + size / 3 else 1.0
    return min(1.0, (p if variant == "printed" else 2 * p) * decay)


def _orlicz(norm: float, dim: float, p: int, size: float, epsilon: float, num_terms: int) -> float:
    if norm == 0:
        return 0.0  # every X_j is zero
    kappa = math.log(16 * math.sqrt(2) * p) + math.log(num_terms * size**2 / norm)
    if kappa <= 0:
        raise InputError(f"size={size} is too small to be a ψ₁ norm of matrices of variance {norm}.")
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
    """P[‖K̃(δ) − K(δ)‖ ≥ ε] at a single lag: `bernstein_bound` with V = Var K̃(δ) and U = u/D.

    Here u = ess sup‖A‖ + ‖K_e(e)‖, or 4(‖‖A‖‖_ψ₁ + ‖K_e(e)‖) for "orlicz". Corrected by default, in the variance
    (BT-E-16) always and in Theorem A.1's factor unless ``variant="printed"``.

    Args:
        kernel: a shift-invariant kernel with a symmetric K̃.
        lag: δ, shape (d,).
        num_frequencies: D, drawn independently.
        epsilon: the error, in the units of the kernel.
        method: "dimension", "intrinsic" or "orlicz" (the only one that says anything about unbounded features).
        bounded: for curl- and divergence-free kernels, the bounded factor.

    Example:
        >>> import torch
        >>> from gpytorch.kernels import RBFKernel
        >>> from ovkgp.features.bounds import pointwise_error_bound
        >>> pointwise_error_bound(RBFKernel(ard_num_dims=2), torch.ones(2), 2000, epsilon=0.1) < 1e-4
        True
    """
    num_frequencies = check_integer("num_frequencies", num_frequencies)
    one_of("method", method, METHODS)
    lag = torch.as_tensor(lag)
    variance = kernel_variance(kernel, lag, num_frequencies, bounded=bounded)
    c = spectral_constants(kernel, num_dims=lag.shape[-1], bounded=bounded)
    size = 4 * (c.orlicz + c.kernel_norm) if method == "orlicz" else c.sup_norm + c.kernel_norm
    if c.num_outputs != len(variance):  # the constants are those of a dilation
        raise SpectralError(
            "the features of this kernel are not symmetric at a single lag, as these inequalities need."
        )
    if not math.isfinite(size) or not torch.isfinite(variance).all():
        return 1.0
    if size == 0:
        return 0.0
    # Rounding may leave a variance that is zero (at zero lag) with a tiny negative eigenvalue.
    variance = variance + 1e-12 * size**2 / num_frequencies * torch.eye(len(variance), dtype=variance.dtype)
    return bernstein_bound(
        variance, size / num_frequencies, epsilon, method=method, num_terms=num_frequencies, variant=variant
    )


UNIFORM_METHODS = ("auto", "hoeffding", "bernstein_bounded", "bernstein_unbounded")
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
    num_frequencies = check_integer("num_frequencies", num_frequencies)
    epsilon, diameter = positive("epsilon", epsilon), nonnegative("diameter", diameter)
    one_of("method", method, UNIFORM_METHODS)
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
    one_of("method", method, UNIFORM_METHODS)
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


def measured_error(
    kernel: Kernel, X: Tensor, num_frequencies: int, *, repeats: int = 5, sampler: str = "iid", random_state=None
) -> float:
    """The relative sup error of random features on the points X (n, d), averaged over several maps.

    Args:
        kernel: a kernel with random features, scalar or operator-valued.
        X: points; all pairs of them are looked at.
        num_frequencies: D.
        repeats: how many maps.
        sampler: as for `ORFF`; the bounds are for "iid".
        random_state: as in scikit-learn.

    Cost: O(repeats · (n p)² D r) time and O(n p D r) memory, for r columns of the kernel's factor.

    Example:
        >>> import torch
        >>> from gpytorch.kernels import RBFKernel
        >>> from ovkgp.features.bounds import measured_error
        >>> X = torch.rand(20, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        >>> few, many = (measured_error(RBFKernel(ard_num_dims=2), X, D, random_state=0) for D in (100, 10_000))
        >>> 5 < few / many < 20
        True
    """
    if X.dim() != 2 or len(X) == 0:
        raise InputError(f"X holds points, (n, d) with n at least 1; got {tuple(X.shape)}.")
    num_frequencies, repeats = check_integer("num_frequencies", num_frequencies), check_integer("repeats", repeats)
    with torch.no_grad():
        exact = kernel(X).to_dense()
        size = block_norms(exact, len(X)).diagonal().max().item()
        seeds = np.random.SeedSequence(as_seed(random_state)).generate_state(repeats).tolist()
        errors = [
            _error(ORFF(kernel, num_frequencies, num_dims=X.shape[1], sampler=sampler, random_state=seed), X, exact)
            for seed in seeds
        ]
    return float(np.mean(errors)) / size


def _error(features: ORFF, X: Tensor, exact: Tensor) -> float:
    Phi = features(X).to_dense()
    return block_norms(Phi @ Phi.mT - exact, len(X)).max().item()


def block_norms(gram: Tensor, num_points: int) -> Tensor:
    """The spectral norm of every p × p block of a data-major (n·p) × (n·p) matrix, (n, n).

    Example:
        >>> import torch
        >>> from ovkgp.features.bounds.concentration import block_norms
        >>> block_norms(torch.diag(torch.tensor([1.0, 3.0, 2.0, 5.0])), 2)
        tensor([[3., 0.],
                [0., 5.]])
    """
    blocks = gram.unflatten(0, (num_points, -1)).unflatten(2, (num_points, -1)).transpose(1, 2)
    return torch.linalg.matrix_norm(blocks, ord=2)
