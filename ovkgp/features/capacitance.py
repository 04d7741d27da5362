"""The r × r matrix of Woodbury's formula, C = I + Φᵀ N⁻¹ Φ, dense or as I + S ⊗ T.

For separable features Φ = φ ⊗ B and noise I ⊗ Σ it is I + S ⊗ T with S = φᵀφ (M × M) and T = Bᵀ Σ⁻¹ B, and the two small
eigendecompositions S = U s Uᵀ, T = V t Vᵀ give everything: C = (U ⊗ V) (1 + s tᵀ) (U ⊗ V)ᵀ in O(M³ + r_B³) instead of
O(M³ r_B³). Gradients are in closed form; none goes through `eigh`, which has no derivative at repeated eigenvalues.
"""

from __future__ import annotations

import torch
from linear_operator import LinearOperator
from linear_operator.utils.cholesky import psd_safe_cholesky
from torch import Tensor


def chol_logdet(chol: Tensor) -> Tensor:
    """log det A from its Cholesky factor."""
    return 2 * chol.diagonal(dim1=-2, dim2=-1).log().sum(-1)


class DenseCapacitance:
    """C from ΦᵀN⁻¹Φ (..., r, r), by Cholesky."""

    def __init__(self, gram: Tensor):
        eye = torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device)
        self.chol = psd_safe_cholesky(gram + eye)

    def solve(self, rhs: Tensor) -> Tensor:
        """C⁻¹ rhs, for rhs (..., r, k)."""
        return torch.cholesky_solve(rhs, self.chol)

    def logdet(self) -> Tensor:
        return chol_logdet(self.chol)

    def posterior_root(self, features: LinearOperator) -> Tensor:
        """A dense root (..., m·p, r) of Φ_* C⁻¹ Φ_*ᵀ."""
        eye = torch.eye(self.chol.shape[-1], dtype=self.chol.dtype, device=self.chol.device)
        return features._matmul(torch.linalg.solve_triangular(self.chol, eye, upper=False).mT)


class KroneckerCapacitance:
    """C = I + S ⊗ T from S (..., M, M) and T (..., q, q), both positive semi-definite."""

    def __init__(self, left: Tensor, right: Tensor):
        self.left, self.right = left, right
        with torch.no_grad():
            (s, self.U), (t, self.V) = torch.linalg.eigh(left), torch.linalg.eigh(right)
            self.values = 1 + s.clamp_min(0).unsqueeze(-1) * t.clamp_min(0).unsqueeze(-2)  # (..., M, q)

    def solve(self, rhs: Tensor) -> Tensor:
        """C⁻¹ rhs, for rhs (..., M·q, k)."""
        return _KroneckerSolve.apply(self.left, self.right, rhs, self.U, self.V, self.values)

    def logdet(self) -> Tensor:
        return _KroneckerLogdet.apply(self.left, self.right, self.U, self.V, self.values)

    def posterior_root(self, features: LinearOperator) -> Tensor:
        """A dense root (..., m·p, M·q) of Φ_* C⁻¹ Φ_*ᵀ, for separable features Φ_* = φ_* ⊗ B."""
        if torch.is_grad_enabled() and (self.left.requires_grad or self.right.requires_grad):
            return self.dense().posterior_root(features)  # U and V are constants here, and would hide a gradient
        rotated = torch.einsum("...nm,...pq->...npmq", features.features @ self.U, features.factor @ self.V)
        return (rotated / self.values.sqrt().unsqueeze(-3).unsqueeze(-3)).flatten(-2).flatten(-3, -2)

    def dense(self) -> DenseCapacitance:
        """The same matrix, formed."""
        return DenseCapacitance(torch.einsum("...ij,...kl->...ikjl", self.left, self.right).flatten(-2).flatten(-3, -2))


def _apply_inverse(rhs: Tensor, U: Tensor, V: Tensor, values: Tensor) -> Tensor:
    """(U ⊗ V) diag(values)⁻¹ (U ⊗ V)ᵀ rhs for rhs (..., M, q, k)."""
    rotated = torch.einsum("...im,...iak,...aq->...mqk", U, rhs, V) / values.unsqueeze(-1)
    return torch.einsum("...im,...mqk,...aq->...iak", U, rotated, V)


class _KroneckerSolve(torch.autograd.Function):
    """x = C⁻¹ b. With g = C⁻¹ ∂x: ∂b = g, and dC = dS ⊗ T + S ⊗ dT gives ∂S = −Σ g T xᵀ, ∂T = −Σ gᵀ S x."""

    @staticmethod
    def forward(ctx, left: Tensor, right: Tensor, rhs: Tensor, U: Tensor, V: Tensor, values: Tensor) -> Tensor:
        solution = _apply_inverse(rhs.unflatten(-2, values.shape[-2:]), U, V, values).flatten(-3, -2)
        ctx.save_for_backward(left, right, U, V, values, solution)
        return solution

    @staticmethod
    def backward(ctx, gradient: Tensor):
        left, right, *eigen, solution = ctx.saved_tensors
        by_rhs = _KroneckerSolve.apply(left, right, gradient, *eigen)
        g, x = (t.unflatten(-2, eigen[-1].shape[-2:]) for t in (by_rhs, solution))
        by_left = -torch.einsum("...iak,...ab,...jbk->...ij", g, right, x)
        by_right = -torch.einsum("...iak,...ij,...jbk->...ab", g, left, x)
        return _symmetric(by_left), _symmetric(by_right), by_rhs, None, None, None


class _KroneckerLogdet(torch.autograd.Function):
    """log det C = Σ log(1 + s_i t_j), with ∂S = U diag(Σ_j t_j/(1 + s_i t_j)) Uᵀ and likewise ∂T."""

    @staticmethod
    def forward(ctx, left: Tensor, right: Tensor, U: Tensor, V: Tensor, values: Tensor) -> Tensor:
        ctx.save_for_backward(left, right, U, V, values)
        return values.log().sum((-1, -2))

    @staticmethod
    def backward(ctx, gradient: Tensor):
        gradient = gradient[..., None, None]
        traces = _traces_of_inverse if torch.is_grad_enabled() else _spectral_traces
        by_left, by_right = traces(*ctx.saved_tensors)
        return gradient * by_left, gradient * by_right, None, None, None


def _spectral_traces(left: Tensor, right: Tensor, U: Tensor, V: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """The derivatives of log det C in S and T, from the eigenvalues: O(M³ + q³)."""
    s = torch.einsum("...im,...ij,...jm->...m", U, left, U)
    t = torch.einsum("...aq,...ab,...bq->...q", V, right, V)
    on_s, on_t = (t.unsqueeze(-2) / values).sum(-1), (s.unsqueeze(-1) / values).sum(-2)
    return (U * on_s.unsqueeze(-2)) @ U.mT, (V * on_t.unsqueeze(-2)) @ V.mT


def _traces_of_inverse(left: Tensor, right: Tensor, *eigen: Tensor) -> tuple[Tensor, Tensor]:
    """The same from C⁻¹ itself, O((M q)² (M + q)), for those who differentiate again: U and V are constants here."""
    sizes = eigen[-1].shape[-2:]
    eye = torch.eye(sizes.numel(), dtype=left.dtype, device=left.device)
    inverse = _KroneckerSolve.apply(left, right, eye.expand(*left.shape[:-2], *eye.shape), *eigen)
    inverse = inverse.unflatten(-1, sizes).unflatten(-3, sizes)  # (..., M, q, M, q)
    by_left = torch.einsum("...iajb,...ab->...ij", inverse, right)
    return by_left, torch.einsum("...iajb,...ij->...ab", inverse, left)


def _symmetric(matrix: Tensor) -> Tensor:
    return (matrix + matrix.mT) / 2
