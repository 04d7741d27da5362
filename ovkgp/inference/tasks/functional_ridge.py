"""Ridge regression of whole curves: in an eigenbasis of the task kernel (LT-80), and at any locations (LT-81).

A curve that is known everywhere is its coefficients R_ij = ⟨y_i, ψ_j⟩, with white noise of intensity λn each and prior covariance
K_X ⊗ Λ; what is outside of the basis does not matter. Curves that are known at places θ_ij are N = nm rows (x_i, θ_ij).

Two scalings of the coefficients are about: h = Σ K(·, x_i) a_i with the *representer* coefficients a, and h = (1/c) Σ K(·, x_i) α_i
with the *dual* ones, α = c a for a ridge c: λn for curves, λnm for sampled ones (LT-E-38).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ovkgp.inference.algebra.kronecker import KroneckerSolver
from ovkgp.inference.tasks.eigenbasis import EigenFactor, Eigenpairs
from ovkgp.inference.tasks.factors import KernelFactor
from ovkgp.inference.tasks.problem import TaskFunction
from ovkgp.inference.tasks.solvers.square import ridge_weights


class RidgeCoefficients(NamedTuple):
    """The solution a of (K ⊗ A + c) a = Y, in its two scalings.

    Attributes:
        representer: a (N, s), h = Σ_i k(·, x_i) A a_i.
        dual: α = c a, the residuals Y − K a A.
    """

    representer: Tensor
    dual: Tensor


def ridge_coefficients(K: Tensor, output_matrix: Tensor, targets: Tensor, ridge: float) -> RidgeCoefficients:
    """The Sylvester equation K α A + c α = c Y by two eigendecompositions, for any A, singular or not (LT-81).

    Args:
        K: Gram matrix (N, N) of the rows, such as all pairs (x_i, θ_ij).
        output_matrix: A (s, s), positive semi-definite; diag(λ_1, …) in an eigenbasis, where it is α of LT-80:
            λn/(λn + σ_i λ_j) times the coefficients (LT-E-01).
        targets: Y (N, s).
        ridge: c > 0: λnm, or λn in an eigenbasis.

    Cost: O(N³ + s³ + N s (N + s)).

    Example:
        >>> import torch
        >>> from ovkgp.inference.tasks.functional_ridge import ridge_coefficients
        >>> I = torch.eye(2).double()
        >>> ridge_coefficients(I, I, torch.ones(2, 2).double(), 3.0).dual[0]
        tensor([0.7500, 0.7500], dtype=torch.float64)
    """
    noise = ridge * torch.eye(targets.shape[1], dtype=targets.dtype)
    representer = KroneckerSolver(K, output_matrix, noise, targets).alpha
    return RidgeCoefficients(representer, ridge * representer)


def functional_ridge(inputs: KernelFactor, pairs: Eigenpairs, coefficients: Tensor, lam: float) -> TaskFunction:
    """argmin_h (1/n) Σ_i ½ ‖y_i − h(x_i)‖²_{L²(μ)} + (λ/2) ‖h‖² in closed form (LT-80).

    Args:
        inputs: the input kernel, exact at the n training inputs.
        pairs: eigenpairs of the task kernel under μ; the task kernel is their Mercer sum.
        coefficients: R (n, m), from `pairs.coefficients(curves, measure)`.
        lam: λ > 0; the noise of a coefficient is λn.

    Cost: O(n³ + n² m).

    Example:
        >>> import torch
        >>> from gpytorch.kernels import RBFKernel
        >>> from ovkgp.inference.tasks.eigenbasis import laplace_eigenpairs
        >>> from ovkgp.inference.tasks.factors import KernelFactor
        >>> from ovkgp.inference.tasks.functional_ridge import functional_ridge
        >>> from ovkgp.losses import gauss_legendre
        >>> X, measure, pairs = torch.linspace(0, 1, 20).double()[:, None], gauss_legendre(60), laplace_eigenpairs(40)
        >>> curves = torch.sin(3 * X + 2 * measure.nodes)
        >>> factor = KernelFactor(RBFKernel().double(), X)
        >>> h = functional_ridge(factor, pairs, pairs.coefficients(curves, measure), lam=1e-6)
        >>> bool((h(X, measure.nodes) - curves).abs().max() < 0.05)
        True
    """
    Psi = torch.diag(pairs.values.sqrt())
    weights = ridge_weights(inputs.anchor_rows, Psi, coefficients, lam * len(coefficients))
    return TaskFunction(inputs, EigenFactor(pairs), weights)
