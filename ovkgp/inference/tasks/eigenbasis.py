"""Eigenpairs of the integral operator of a task kernel, and ridge regression of curves in their basis.

The operator is T f(θ) = ∫ k(θ, t) f(t) dμ(t). Its eigenpairs are computed from a quadrature rule, in closed form for the
Laplace kernel, and for random Fourier features (LT-21, 22, 24, 25).

With T ψ_j = λ_j ψ_j, orthonormal in L²(μ), k = Σ λ_j ψ_j ψ_j (Mercer), so √λ_j ψ_j(θ) are coordinates of the kernel,
and ‖f‖²_H = Σ ⟨f, ψ_j⟩²/λ_j: f is in the RKHS if f = T^½ g with g in L² (LT-E-13), not only if f = T g.

A curve that is known everywhere is given by its coefficients R_ij = ⟨y_i, ψ_j⟩, with white noise of intensity λn each and
prior covariance K_X ⊗ Λ (LT-80). Curves sampled at locations θ_ij are N = nm rows (x_i, θ_ij) (LT-81). There are two
scalings: the *representer* coefficients a, h = Σ K(·, x_i) a_i, and the *dual* ones, h = (1/c) Σ K(·, x_i) α_i with
α = c a, for a ridge c of λn for curves and λnm for samples (LT-E-38).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from gpytorch.kernels import Kernel
from linear_operator import to_dense
from scipy.optimize import brentq
from torch import Tensor

from ovkgp.checks import check_integer
from ovkgp.exceptions import InputError
from ovkgp.inference.algebra.kronecker import KroneckerSolver, eigh
from ovkgp.inference.tasks.factors import Factor, KernelFactor
from ovkgp.inference.tasks.problem import TaskFunction
from ovkgp.inference.tasks.solvers.square import ridge_weights
from ovkgp.kernels.evaluation import evaluate_kernel
from ovkgp.kernels.protocol import check_scalar_kernel
from ovkgp.losses import TaskMeasure

EIGENVALUE_CUTOFF = 1e-10  # eigenvalues below this fraction of the largest are dropped


@dataclass(frozen=True)
class Eigenpairs:
    """Eigenvalues λ_1 ≥ λ_2 ≥ … > 0 (m,) and eigenfunctions, which map tasks (k,) to ψ_j(θ_k), (k, m)."""

    values: Tensor
    functions: Callable[[Tensor], Tensor]

    def __len__(self) -> int:
        return len(self.values)

    def first(self, num_pairs: int) -> Eigenpairs:
        """Return the pairs of the largest eigenvalues: the truncation T_m of T (LT-89)."""
        count = check_integer("num_pairs", num_pairs)
        return Eigenpairs(self.values[:count], lambda tasks: self.functions(tasks)[:, :count])

    def coefficients(self, curves: Tensor, measure: TaskMeasure) -> Tensor:
        """Return R_ij = ⟨y_i, ψ_j⟩ (n, m) of curves (n, k) at the k nodes of a measure. O(n k m)."""
        if curves.shape[-1] != len(measure):
            raise InputError(
                f"curves must have {len(measure)} values, one per node of the measure, got {curves.shape[-1]}."
            )
        return (curves * measure.weights) @ self.functions(measure.nodes)

    def squared_norm(self, coefficients: Tensor) -> Tensor:
        """Return ‖f‖²_H = Σ_j c_j²/λ_j of f = Σ c_j ψ_j, for c (…, m) (LT-25)."""
        return (coefficients.square() / self.values).sum(-1)


class EigenFactor(Factor):
    """Coordinates √λ_j ψ_j(θ) of the kernel Σ_j λ_j ψ_j ψ_j, as a `Factor`."""

    def __init__(self, pairs: Eigenpairs):
        self.pairs = pairs

    def __call__(self, points: Tensor) -> Tensor:
        return self.pairs.functions(points.flatten()) * self.pairs.values.sqrt()

    def slopes(self, points: Tensor) -> Tensor:
        """Return ∂_θ of the rows, (k, m), by differentiating the eigenfunctions."""
        points = points.detach().clone()
        _, slopes = torch.autograd.functional.jvp(self, points, torch.ones_like(points))
        return slopes


def sampled_eigenpairs(kernel: Kernel, measure: TaskMeasure, cutoff: float = EIGENVALUE_CUTOFF) -> Eigenpairs:
    """Compute the eigenpairs of T for μ = Σ_j η_j δ_{θ_j}, the Nyström approximation of any other μ (LT-22).

    D^½ K D^½ = U λ Uᵀ with D = diag(η); ψ_j is D^{−½} U_j at the nodes and ψ_j(θ) = (1/λ_j) Σ_l η_l k(θ, θ_l) ψ_j(θ_l)
    elsewhere. Nodes without weight are omitted. Complexity: O(m³) once, O(k m²) for k tasks.
    """
    check_scalar_kernel(kernel, "task kernel")
    kernel = deepcopy(kernel).requires_grad_(False)  # functions belong to the values, which are not differentiable
    if not measure.is_shared:
        raise InputError("measure must have nodes of shape (m,), shared by all rows.")
    keep = measure.weights > 0
    nodes, roots = measure.nodes[keep].unsqueeze(-1), measure.weights[keep].sqrt()
    with torch.no_grad():
        values, vectors = eigh(roots.unsqueeze(-1) * to_dense(evaluate_kernel(kernel, nodes)) * roots)
    order = values.argsort(descending=True)
    order = order[values[order] > cutoff * values.max()]
    projection = roots.unsqueeze(-1) * vectors[:, order] / values[order]
    return Eigenpairs(
        values[order], lambda tasks: to_dense(evaluate_kernel(kernel, tasks.unsqueeze(-1), nodes)) @ projection
    )


def laplace_eigenpairs(num_pairs: int, lengthscale: float = 1.0) -> Eigenpairs:
    """Compute the exact eigenpairs of exp(−|θ − θ'|/ℓ) under the uniform measure on [0, 1] (LT-21).

    With γ = 1/ℓ and c_j the root of cot c = ½ (c/γ − γ/c) between (j − 1)π and jπ,

        λ_j = 2γ/(c_j² + γ²),      ψ_j(θ) = (c_j cos c_jθ + γ sin c_jθ) / √((c_j² + γ²)/2 + γ),

    where the source, with ℓ = 1, omits the normalization (LT-E-15). Complexity: O(m) once, O(k m) for k tasks.
    """
    if not 0 < lengthscale < math.inf:
        raise InputError(f"lengthscale must be a positive number, got {lengthscale!r}.")
    rate = 1 / lengthscale
    ends = np.pi * np.arange(check_integer("num_pairs", num_pairs) + 1.0)
    ends[0] = 1e-9 * min(rate, 1.0)  # zero is a root without an eigenfunction

    def excess(c: float) -> float:
        return 2 * rate * c * np.cos(c) - (c * c - rate * rate) * np.sin(c)

    roots = [brentq(excess, low, high, xtol=1e-14) for low, high in pairwise(ends)]
    c = torch.tensor(roots, dtype=torch.float64)
    norm = ((c.square() + rate**2) / 2 + rate).sqrt()

    def functions(tasks: Tensor) -> Tensor:
        angles = tasks.unsqueeze(-1) * c
        return (c * angles.cos() + rate * angles.sin()) / norm

    return Eigenpairs(2 * rate / (c.square() + rate**2), functions)


def feature_eigenpairs(
    frequencies: Tensor, measure: TaskMeasure | None = None, cutoff: float = EIGENVALUE_CUTOFF
) -> Eigenpairs:
    """Compute the eigenpairs of T for the random Fourier features F/√D, F(θ) = (cos ω_iθ, sin ω_iθ) (LT-24, LT-E-16).

    With ∫ F Fᵀ dμ = V e Vᵀ: λ_j = e_j/D and ψ_j = Fᵀ V_j/√e_j, for frequencies ω (D,). If `measure` is None, μ is
    uniform on [0, 1] and the integral is in closed form. Complexity: O(D³) once, O(k D²) for k tasks.
    """
    frequencies = torch.as_tensor(frequencies).double().flatten()

    def features(tasks: Tensor) -> Tensor:
        angles = tasks.unsqueeze(-1) * frequencies
        return torch.cat([angles.cos(), angles.sin()], -1)

    if measure is None:
        moments = uniform_moments(frequencies)
    else:
        F = features(measure.nodes)
        moments = (F * measure.weights.unsqueeze(-1)).mT @ F
    values, vectors = eigh(moments)
    order = values.argsort(descending=True)
    order = order[values[order] > cutoff * values.max()]
    projection = vectors[:, order] / values[order].sqrt()
    return Eigenpairs(values[order] / len(frequencies), lambda tasks: features(tasks) @ projection)


def uniform_moments(frequencies: Tensor) -> Tensor:
    """Return ∫₀¹ F Fᵀ dθ (2D, 2D) of F = (cos ω_iθ, sin ω_iθ) in closed form."""
    less, more = frequencies.unsqueeze(-1) - frequencies, frequencies.unsqueeze(-1) + frequencies
    cosines, sines = (_sinc(less) + _sinc(more)) / 2, (_sinc(less) - _sinc(more)) / 2
    mixed = (_versed(more) + _versed(less)) / 2  # ∫ sin ω_iθ cos ω_jθ
    return torch.cat([torch.cat([cosines, mixed.mT], 1), torch.cat([mixed, sines], 1)])


def _sinc(z: Tensor) -> Tensor:
    """Return sin z / z."""
    return torch.sinc(z / math.pi)


def _versed(z: Tensor) -> Tensor:
    """Return (1 − cos z)/z = sin(z/2) sinc(z/2), 0 at 0."""
    return (z / 2).sin() * _sinc(z / 2)


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
