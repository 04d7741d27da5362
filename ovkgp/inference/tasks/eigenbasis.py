"""Eigenpairs of the integral operator of a task kernel, T f(θ) = ∫ k(θ, t) f(t) dμ(t), in three ways (LT-21, 22, 24, 25).

With T ψ_j = λ_j ψ_j, orthonormal in L²(μ), Mercer's k = Σ λ_j ψ_j ψ_j makes √λ_j ψ_j(θ) coordinates of the kernel, and
‖f‖²_H = Σ ⟨f, ψ_j⟩²/λ_j: f is in the RKHS where f = T^½ g with g in L² (LT-E-13), not only where f = T g.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from gpytorch.kernels import Kernel
from linear_operator import to_dense
from scipy.optimize import brentq
from torch import Tensor

from ovkgp.checks import check_integer
from ovkgp.exceptions import InputError
from ovkgp.inference.algebra.kronecker import eigh
from ovkgp.kernels.decomposable import check_scalar
from ovkgp.losses import TaskMeasure

CUTOFF = 1e-10
"""Eigenvalues below this part of the largest are dropped."""


@dataclass(frozen=True)
class Eigenpairs:
    """λ_1 ≥ λ_2 ≥ … > 0 and ψ_1, ψ_2, ….

    Args:
        values: λ (m,).
        functions: tasks (k,) ↦ ψ_j(θ_k), (k, m).

    Example:
        >>> from ovkgp.inference.tasks.eigenbasis import laplace_eigenpairs
        >>> from ovkgp.losses import gauss_legendre
        >>> measure, pairs = gauss_legendre(50), laplace_eigenpairs(30)
        >>> coefficients = pairs.coefficients(measure.nodes.square().unsqueeze(0), measure)  # of the curve θ²
        >>> coefficients.shape, round(coefficients.square().sum().item(), 3)  # ∫ θ⁴ dθ
        (torch.Size([1, 30]), 0.2)
    """

    values: Tensor
    functions: Callable[[Tensor], Tensor]

    def __len__(self) -> int:
        return len(self.values)

    def first(self, num_pairs: int) -> Eigenpairs:
        """The largest ones: the truncation T_m of T (LT-89)."""
        count = check_integer("num_pairs", num_pairs)
        return Eigenpairs(self.values[:count], lambda tasks: self.functions(tasks)[:, :count])

    def coefficients(self, curves: Tensor, measure: TaskMeasure) -> Tensor:
        """R_ij = ⟨y_i, ψ_j⟩ (n, m) of curves (n, k) at the k nodes of a measure, by its weights. O(n k m)."""
        if curves.shape[-1] != len(measure):
            raise InputError(
                f"the curves have {curves.shape[-1]} values and the measure {len(measure)} nodes; give one each."
            )
        return (curves * measure.weights) @ self.functions(measure.nodes)

    def squared_norm(self, coefficients: Tensor) -> Tensor:
        """‖f‖²_H = Σ_j c_j²/λ_j of f = Σ c_j ψ_j, for c (…, m) (LT-25)."""
        return (coefficients.square() / self.values).sum(-1)


class EigenFactor:
    """Coordinates √λ_j ψ_j(θ) of the kernel Σ_j λ_j ψ_j ψ_j, as `factors` have them.

    Example:
        >>> import torch
        >>> from ovkgp.inference.tasks.eigenbasis import EigenFactor, laplace_eigenpairs
        >>> EigenFactor(laplace_eigenpairs(5))(torch.tensor([[0.1], [0.7]]).double()).shape
        torch.Size([2, 5])
    """

    def __init__(self, pairs: Eigenpairs):
        self.pairs = pairs

    def __call__(self, points: Tensor) -> Tensor:
        return self.pairs.functions(points.flatten()) * self.pairs.values.sqrt()

    def slopes(self, points: Tensor) -> Tensor:
        """∂_θ of the rows, (k, m), by differentiating the eigenfunctions."""
        points = points.detach().clone()
        _, slopes = torch.autograd.functional.jvp(self, points, torch.ones_like(points))
        return slopes


def sampled_eigenpairs(kernel: Kernel, measure: TaskMeasure, cutoff: float = CUTOFF) -> Eigenpairs:
    """Eigenpairs of T with μ = Σ_j η_j δ_{θ_j}: the Nyström approximation of any other μ (LT-22).

    D^½ K D^½ = U λ Uᵀ with D = diag(η); ψ_j is D^{−½} U_j at the nodes and ψ_j(θ) = (1/λ_j) Σ_l η_l k(θ, θ_l) ψ_j(θ_l) elsewhere.

    Args:
        kernel: k, scalar.
        measure: nodes (m,) and weights; nodes without weight are left out.
        cutoff: eigenvalues below this part of the largest are dropped.

    Cost: O(m³) once, O(k m²) for k tasks.

    Example:
        >>> from gpytorch.kernels import RBFKernel
        >>> from ovkgp.inference.tasks.eigenbasis import sampled_eigenpairs
        >>> from ovkgp.losses import gauss_legendre
        >>> round(sampled_eigenpairs(RBFKernel().double(), gauss_legendre(20)).values.sum().item(), 6)  # ∫ k(θ, θ) dμ
        1.0
    """
    check_scalar(kernel, "task kernel")
    if not measure.is_shared:
        raise InputError("eigenpairs are those of one measure: give nodes (m,), shared by all rows.")
    keep = measure.weights > 0
    nodes, roots = measure.nodes[keep].unsqueeze(-1), measure.weights[keep].sqrt()
    with torch.no_grad():
        values, vectors = eigh(roots.unsqueeze(-1) * to_dense(kernel(nodes)) * roots)
    order = values.argsort(descending=True)
    order = order[values[order] > cutoff * values.max()]
    projection = roots.unsqueeze(-1) * vectors[:, order] / values[order]
    return Eigenpairs(values[order], lambda tasks: to_dense(kernel(tasks.unsqueeze(-1), nodes)) @ projection)


def laplace_eigenpairs(num_pairs: int, lengthscale: float = 1.0) -> Eigenpairs:
    """The exact eigenpairs of exp(−|θ − θ'|/ℓ) under the uniform measure on [0, 1] (LT-21).

    With γ = 1/ℓ and c_j the root of cot c = ½ (c/γ − γ/c) between (j − 1)π and jπ,

        λ_j = 2γ/(c_j² + γ²),      ψ_j(θ) = (c_j cos c_jθ + γ sin c_jθ) / √((c_j² + γ²)/2 + γ),

    normalised, which the source forgets (LT-E-15); it has ℓ = 1.

    Args:
        num_pairs: m.
        lengthscale: ℓ.

    Cost: O(m) once, O(k m) for k tasks.

    Example:
        >>> from ovkgp.inference.tasks.eigenbasis import laplace_eigenpairs
        >>> [round(value, 6) for value in laplace_eigenpairs(3).values.tolist()]
        [0.738811, 0.138004, 0.045088]
    """
    if not 0 < lengthscale < math.inf:
        raise InputError(f"lengthscale must be a positive number, got {lengthscale!r}.")
    rate = 1 / lengthscale
    ends = np.pi * np.arange(check_integer("num_pairs", num_pairs) + 1.0)
    ends[0] = 1e-9 * min(rate, 1.0)  # zero itself is a root, but of no eigenfunction

    def excess(c: float) -> float:
        return 2 * rate * c * np.cos(c) - (c * c - rate * rate) * np.sin(c)

    roots = [brentq(excess, low, high, xtol=1e-14) for low, high in pairwise(ends)]
    c = torch.tensor(roots, dtype=torch.float64)
    norm = ((c.square() + rate**2) / 2 + rate).sqrt()

    def functions(tasks: Tensor) -> Tensor:
        angles = tasks.unsqueeze(-1) * c
        return (c * angles.cos() + rate * angles.sin()) / norm

    return Eigenpairs(2 * rate / (c.square() + rate**2), functions)


def feature_eigenpairs(frequencies: Tensor, measure: TaskMeasure | None = None, cutoff: float = CUTOFF) -> Eigenpairs:
    """Eigenpairs of T for the random Fourier features F/√D, F(θ) = (cos ω_iθ, sin ω_iθ) (LT-24, LT-E-16).

    With ∫ F Fᵀ dμ = V e Vᵀ: λ_j = e_j/D and ψ_j = Fᵀ V_j/√e_j. Under the uniform measure on [0, 1] the integral is in closed form.

    Args:
        frequencies: ω (D,), as drawn for a kernel on one task coordinate.
        measure: μ as nodes and weights; None for the uniform measure on [0, 1].
        cutoff: eigenvalues below this part of the largest are dropped.

    Cost: O(D³) once, O(k D²) for k tasks.

    Example:
        >>> import torch
        >>> from ovkgp.inference.tasks.eigenbasis import feature_eigenpairs
        >>> pairs = feature_eigenpairs(torch.tensor([0.5, 3.0, 7.0]).double())
        >>> len(pairs), round(pairs.values.sum().item(), 6)
        (6, 1.0)
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
    """∫₀¹ F Fᵀ dθ (2D, 2D) of F = (cos ω_iθ, sin ω_iθ), in closed form.

    Example:
        >>> import torch
        >>> from ovkgp.inference.tasks.eigenbasis import uniform_moments
        >>> uniform_moments(torch.zeros(1).double())  # cos 0 = 1, sin 0 = 0
        tensor([[1., 0.],
                [0., 0.]], dtype=torch.float64)
    """
    less, more = frequencies.unsqueeze(-1) - frequencies, frequencies.unsqueeze(-1) + frequencies
    cosines, sines = (_sinc(less) + _sinc(more)) / 2, (_sinc(less) - _sinc(more)) / 2
    mixed = (_versed(more) + _versed(less)) / 2  # ∫ sin ω_iθ cos ω_jθ
    return torch.cat([torch.cat([cosines, mixed.mT], 1), torch.cat([mixed, sines], 1)])


def _sinc(z: Tensor) -> Tensor:
    """sin z / z."""
    return torch.sinc(z / math.pi)


def _versed(z: Tensor) -> Tensor:
    """(1 − cos z)/z = sin(z/2) sinc(z/2), 0 at 0."""
    return (z / 2).sin() * _sinc(z / 2)
