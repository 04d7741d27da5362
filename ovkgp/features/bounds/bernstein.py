"""Bernstein's inequality for sums of random matrices: how far is K̃ from K at one lag? (thesis A.1.3, BT-65)

S = X_1 + … + X_D with independent, centred, symmetric p × p matrices, V ≽ Σ E X_j² and U a size of each X_j:

    dimension   P[‖S‖ ≥ ε] ≤ 2p exp(−ε² / (2‖V‖ + 2Uε/3))                        ‖X_j‖ ≤ U             (Thm A.1)
    intrinsic   P[‖S‖ ≥ ε] ≤ 4 IntDim(V) exp(the same),  ε ≥ √‖V‖ + U/3          ‖X_j‖ ≤ U             (Thm A.2)
    orlicz      P[‖S‖ ≥ ε] ≤ 2 IntDim(V) r exp(−ε² / 2‖V‖(1 + 1/p)) or           ‖‖X_j‖‖_ψ₁ ≤ U        (Thm A.3)
                             2 IntDim(V) r exp(−ε / 4Uκ) for larger ε
"""

from __future__ import annotations

import math

import torch
from gpytorch.kernels import Kernel
from torch import Tensor

from ovkgp.exceptions import InputError, SpectralError
from ovkgp.features.bounds.checks import VARIANTS, one_of, positive
from ovkgp.features.bounds.kernel_constants import spectral_constants
from ovkgp.features.bounds.orlicz import intrinsic_dimension
from ovkgp.features.bounds.variance import kernel_variance
from ovkgp.kernels.checks import whole_number

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
        whole_number("num_terms", num_terms),
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
    num_frequencies = whole_number("num_frequencies", num_frequencies)
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
