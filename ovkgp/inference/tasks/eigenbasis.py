"""Ridge regression of curves in the eigenbasis of a task kernel.

A curve that is known everywhere is given by its coefficients R_ij = ⟨y_i, ψ_j⟩, with white noise of intensity λn each and
prior covariance K_X ⊗ Λ (LT-80). Curves sampled at locations θ_ij are N = nm rows (x_i, θ_ij) (LT-81). There are two
scalings: the *representer* coefficients a, h = Σ K(·, x_i) a_i, and the *dual* ones, h = (1/c) Σ K(·, x_i) α_i with
α = c a, for a ridge c of λn for curves and λnm for samples (LT-E-38). Eigenpairs: `ovkgp.functional.eigenfunctions`.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ovkgp.functional.eigenfunctions import EigenFactor, Eigenpairs
from ovkgp.functional.factors import KernelFactor
from ovkgp.inference.algebra.kronecker import KroneckerSolver
from ovkgp.inference.tasks.problem import TaskFunction
from ovkgp.inference.tasks.solvers.square import ridge_weights


def functional_ridge(inputs: KernelFactor, pairs: Eigenpairs, coefficients: Tensor, lam: float) -> TaskFunction:
    """Compute argmin_h (1/n) Σ_i ½ ‖y_i − h(x_i)‖²_{L²(μ)} + (λ/2) ‖h‖² in closed form (LT-80).

    The input kernel `inputs` is exact at the n training inputs, `pairs` are the eigenpairs of the task kernel under μ,
    and `coefficients` R (n, m) come from `pairs.coefficients(curves, measure)`. Complexity: O(n³ + n² m).
    """
    Psi = torch.diag(pairs.values.sqrt())
    weights = ridge_weights(inputs.anchor_rows, Psi, coefficients, lam * len(coefficients))
    return TaskFunction(inputs, EigenFactor(pairs), weights)


class RidgeCoefficients(NamedTuple):
    """Solution of (K ⊗ A + c) a = Y: representer a (N, s), h = Σ_i k(·, x_i) A a_i, and dual α = c a = Y − K a A."""

    representer: Tensor
    dual: Tensor


def ridge_coefficients(K: Tensor, output_matrix: Tensor, targets: Tensor, ridge: float) -> RidgeCoefficients:
    """Solve the Sylvester equation K α A + c α = c Y by two eigendecompositions, for any A, singular or not (LT-81).

    K (N, N) is the Gram matrix of the rows, A (s, s) the output matrix, Y (N, s) the targets. In an eigenbasis A =
    diag(λ_1, …) and c = λn, and α is that of LT-80: λn/(λn + σ_i λ_j) times the coefficients (LT-E-01). Complexity:
    O(N³ + s³ + N s (N + s)).
    """
    noise = ridge * torch.eye(targets.shape[1], dtype=targets.dtype)
    representer = KroneckerSolver(K, output_matrix, noise, targets).alpha
    return RidgeCoefficients(representer, ridge * representer)
