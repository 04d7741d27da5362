"""Two numbers that measure a random operator: its ψ₁-Orlicz norm and its intrinsic dimension (BT-59).

‖X‖_ψ₁ = inf{C > 0 : E exp(|X|/C) ≤ 2} is finite exactly for variables with exponential tails, and
IntDim(V) = Tr V / ‖V‖ counts the directions in which V is large.
"""

from __future__ import annotations

import math

import torch
from gpytorch.kernels import Kernel
from scipy.optimize import brentq
from torch import Tensor

from ovkgp.exceptions import InputError


def orlicz_norm(samples_or_kernel: Tensor | Kernel, *, bounded: bool = False, num_dims: int | None = None) -> float:
    """The ψ₁-Orlicz norm of a variable from draws of it, or of ‖A(ω)‖ for the spectral pair of a kernel.

    For draws, the root C of (1/n) Σ exp(|x_i|/C) = 2 (thesis Lemma A.3). For a kernel, exact where it is known:

    - ‖A‖ constant (scalar and decomposable kernels): ‖A‖ / ln 2;
    - curl- or divergence-free Gaussian, unbounded map, lengthscale σ: 2 / (σ² (1 − 4^(−1/d))); with ARD, the root of
      Π_k (1 − 2 / (C ℓ_k²))^(−1/2) = 2;
    - bounded maps: sup‖A‖ / ln 2, an upper bound;
    - heavy tails (Matérn under an unbounded map): infinity.

    The formulas are the thesis' own; there is nothing to correct in them.

    Args:
        samples_or_kernel: draws of any shape, or a shift-invariant kernel.
        bounded: for a kernel, whether the bounded factor is meant; the norm matters for the unbounded one.
        num_dims: for a kernel that does not know its input dimension.

    Returns:
        The norm, possibly `math.inf`.

    Example:
        >>> import math, torch
        >>> from ovkgp.features.bounds import orlicz_norm
        >>> math.isclose(orlicz_norm(torch.full((10,), 3.0)), 3 / math.log(2))
        True
    """
    if isinstance(samples_or_kernel, Kernel):
        from ovkgp.features.bounds.kernel_constants import spectral_constants  # it is built on this module

        return spectral_constants(samples_or_kernel, bounded=bounded, num_dims=num_dims).orlicz
    return _empirical(samples_or_kernel)


def _empirical(samples) -> float:
    size = torch.as_tensor(samples).detach().to(torch.float64).abs().flatten()
    if size.numel() == 0 or not torch.isfinite(size).all():
        raise InputError("orlicz_norm needs at least one draw, and all of them finite.")
    largest = float(size.max())
    if largest == 0:
        return 0.0
    size = size / largest
    target = math.log(2 * size.numel())
    # The largest draw alone puts the root above 1 / log(2n); no draw exceeds 1, which puts it below 1 / log 2.
    low, high = math.log(2) * (1 - 1e-12), target * (1 + 1e-12)
    return largest / brentq(lambda t: float(torch.logsumexp(size * t, 0)) - target, low, high, xtol=1e-14)


def gaussian_orlicz_norm(weights: Tensor) -> float:
    """‖Σ_k w_k ε_k²‖_ψ₁ for standard normal ε: the root C of Π_k (1 − 2 w_k / C)^(−1/2) = 2.

    With all w equal to w this is 2 w / (1 − 4^(−1/d)).
    """
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
    """IntDim(V) = Tr V / ‖V‖ of a positive semi-definite matrix V (p, p), between 1 and its rank.

    A zero matrix, for which the ratio has no value, gives 1: the least that any other matrix gives.

    Args:
        matrix: V.

    Example:
        >>> import torch
        >>> from ovkgp.features.bounds import intrinsic_dimension
        >>> intrinsic_dimension(torch.diag(torch.tensor([2.0, 1.0, 1.0])))
        2.0
    """
    matrix = torch.as_tensor(matrix).detach().to(torch.float64)
    if matrix.dim() != 2 or matrix.shape[0] != matrix.shape[1]:
        raise InputError(f"intrinsic_dimension takes one square matrix, got shape {tuple(matrix.shape)}.")
    if not torch.isfinite(matrix).all() or not torch.allclose(matrix, matrix.T, atol=1e-6 * float(matrix.abs().max())):
        raise InputError("intrinsic_dimension takes a finite symmetric matrix.")
    eigenvalues = torch.linalg.eigvalsh(matrix)
    largest = float(eigenvalues[-1])
    if float(eigenvalues[0]) < -1e-6 * max(largest, abs(float(eigenvalues[0]))):
        raise InputError(
            "intrinsic_dimension takes a positive semi-definite matrix, and this one has an eigenvalue < 0."
        )
    return float(eigenvalues.sum()) / largest if largest > 0 else 1.0
