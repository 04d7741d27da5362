"""Factorizations of the posterior precision C = I + A of the weights: by Cholesky, or as I + S ⊗ T by eigenvectors.

`evidence_terms` computes vᵀC⁻¹v − log det C with gradients in closed form, ∂A = −(wwᵀ + C⁻¹) and ∂v = 2w for w = C⁻¹v.
Both factors provide square roots of C⁻¹, variances of Φ_* θ, and the spectrum of A.
"""

from __future__ import annotations

import torch
from linear_operator import LinearOperator, to_dense, to_linear_operator
from torch import Tensor

from ovkgp.features.covariance import KroneckerCapacitance, chol_logdet
from ovkgp.features.operators import FeatureOperator
from ovkgp.inference.algebra.dense import gram_in_form, safe_cholesky, spectral_in_form


def evidence_terms(
    precision: Tensor | tuple[Tensor, Tensor], moment: Tensor
) -> tuple[Tensor, Tensor, DenseFactor | KroneckerFactor]:
    """Compute vᵀC⁻¹v − log det C (differentiable), the weights w = C⁻¹v and the factor of C (not differentiable)."""
    if torch.is_tensor(precision):
        value, chol, weights = _DenseTerms.apply(precision, moment)
        return value, weights, DenseFactor(chol)
    value, weights, *eigen = _KroneckerTerms.apply(*precision, moment)
    return value, weights, KroneckerFactor(*eigen)


class DenseFactor:
    """C = L Lᵀ with `chol` L (r, r)."""

    def __init__(self, chol: Tensor):
        self.chol, self._eigen = chol, None

    def half_solve(self, columns: Tensor) -> Tensor:
        """Multiply a root of C⁻¹ and columns (r, k): L⁻ᵀ z."""
        return torch.linalg.solve_triangular(self.chol.mT, columns, upper=True)

    def variance(self, Phi: LinearOperator, form: str, num_outputs: int) -> Tensor:
        """Compute Φ_* C⁻¹ Φ_*ᵀ in O(m q r²); see `WeightSystem.variance`."""
        half = torch.linalg.solve_triangular(self.chol, to_dense(Phi).mT, upper=False)  # (r, m·q)
        return gram_in_form(half.mT, form, num_outputs)

    def spectrum(self, moment: Tensor) -> tuple[Tensor, Tensor]:
        """Compute the eigenvalues (r,) of A, and v in its eigenvectors (r,). Complexity: O(r³) once."""
        values, vectors = self._eigenvectors()
        return values, vectors.mT @ moment

    def unrotate(self, coordinates: Tensor) -> Tensor:
        """Transform coordinates (r,) in the eigenvectors of A to weights."""
        return self._eigenvectors()[1] @ coordinates

    def _eigenvectors(self) -> tuple[Tensor, Tensor]:
        if self._eigen is None:
            values, vectors = torch.linalg.eigh(self.chol @ self.chol.mT)
            self._eigen = (values - 1).clamp_min(0), vectors
        return self._eigen

    def scale_noise(self, multiplier: float) -> KroneckerFactor:
        """Factorize C with the noise multiplied by a number: I + A / c."""
        values, vectors = self._eigenvectors()
        return KroneckerFactor(vectors, vectors.new_ones(1, 1), (1 + values / multiplier).unsqueeze(-1))


class KroneckerFactor:
    """C = (U ⊗ V) diag(values) (U ⊗ V)ᵀ with eigenvectors U (M, M), V (q, q), None for I, and values 1 + s tᵀ."""

    def __init__(self, U: Tensor | None, V: Tensor | None, values: Tensor):
        self.U, self.V, self.values = U, V, values

    def half_solve(self, columns: Tensor) -> Tensor:
        """Multiply a root of C⁻¹ and columns (M·q, k)."""
        scaled = columns.unflatten(0, self.values.shape) / self.values.sqrt().unsqueeze(-1)
        mixed = (self.V @ scaled).flatten(1)  # (M, q k)
        return (self.U @ mixed).unflatten(1, scaled.shape[1:]).flatten(0, 1)

    def variance(self, Phi: LinearOperator, form: str, num_outputs: int) -> Tensor:
        """Compute Φ_* C⁻¹ Φ_*ᵀ in O(m M (M + q) + m q p) for separable features; see `WeightSystem.variance`."""
        if self._fits(Phi, num_outputs):
            return spectral_in_form(_rotate(Phi.features, self.U), self.values, _rotate(Phi.factor, self.V), form)
        half = self._rotate_dense(to_dense(Phi)) / self.values.sqrt()  # (m·q', M, q)
        return gram_in_form(half.flatten(1), form, num_outputs)

    def _fits(self, Phi: LinearOperator, num_outputs: int) -> bool:
        if not isinstance(Phi, FeatureOperator) or not Phi.is_separable or Phi.num_outputs != num_outputs:
            return False
        return (Phi.features.shape[-1], Phi.factor.shape[-1]) == tuple(self.values.shape)

    def _rotate_dense(self, Phi: Tensor) -> Tensor:
        rotated = _rotate(Phi.unflatten(-1, self.values.shape), self.V)
        return rotated if self.U is None else torch.einsum("nmq,mk->nkq", rotated, self.U)  # (m·q', M, q)

    def rotate(self, Phi: LinearOperator, num_outputs: int) -> LinearOperator:
        """Compute Φ (U ⊗ V), for weights that are coordinates in the eigenvectors."""
        if self._fits(Phi, num_outputs):
            return FeatureOperator(Phi.features @ self.U, Phi.factor @ self.V, num_outputs=num_outputs)
        return to_linear_operator(self._rotate_dense(to_dense(Phi)).flatten(1))

    def spectrum(self, moment: Tensor) -> tuple[Tensor, Tensor]:
        """Compute the eigenvalues s tᵀ of A, flattened, and v in its eigenvectors."""
        rotated = self.U.mT @ moment.unflatten(0, self.values.shape) @ self.V
        return (self.values - 1).flatten(), rotated.flatten()

    def unrotate(self, coordinates: Tensor) -> Tensor:
        """Transform coordinates in the eigenvectors of A to weights."""
        return (self.U @ coordinates.unflatten(0, self.values.shape) @ self.V.mT).flatten()

    def scale_noise(self, multiplier: float) -> KroneckerFactor:
        """Factorize C with the noise multiplied by a number: I + A / c."""
        return KroneckerFactor(self.U, self.V, 1 + (self.values - 1) / multiplier)


def _rotate(rows: Tensor, vectors: Tensor | None) -> Tensor:
    return rows if vectors is None else rows @ vectors


class _DenseTerms(torch.autograd.Function):
    """vᵀC⁻¹v − log det C, the Cholesky factor of C and w = C⁻¹v."""

    @staticmethod
    def forward(ctx, precision: Tensor, moment: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        C = precision.clone()
        C.diagonal().add_(1)
        chol = safe_cholesky(C)
        weights = torch.cholesky_solve(moment.unsqueeze(-1), chol).squeeze(-1)
        ctx.save_for_backward(precision, moment, chol, weights)
        ctx.mark_non_differentiable(chol, weights)
        return moment @ weights - chol_logdet(chol), chol, weights

    @staticmethod
    def backward(ctx, gradient: Tensor, _, __) -> tuple[Tensor, Tensor]:
        precision, moment, chol, weights = ctx.saved_tensors
        if torch.is_grad_enabled():  # for second derivatives the factor must not be a constant
            inverse = torch.linalg.inv(precision + torch.eye(len(precision)).to(precision))
            weights = inverse @ moment
        else:
            inverse = torch.cholesky_inverse(chol)
        return -gradient * (inverse + torch.outer(weights, weights)), 2 * gradient * weights


class _KroneckerTerms(torch.autograd.Function):
    """vᵀC⁻¹v − log det C, w, U, V and 1 + s tᵀ; ∂S = −(w T wᵀ + U diag(Σ_j t_j/(1 + s_i t_j)) Uᵀ), ∂T likewise."""

    @staticmethod
    def forward(ctx, left: Tensor, right: Tensor, moment: Tensor) -> tuple[Tensor, ...]:
        (s, U), (t, V) = torch.linalg.eigh(left), torch.linalg.eigh(right)
        s, t = s.clamp_min(0), t.clamp_min(0)
        values = 1 + torch.outer(s, t)
        weights = U @ ((U.mT @ moment.unflatten(0, values.shape) @ V) / values) @ V.mT
        ctx.save_for_backward(left, right, moment, s, U, t, V, values, weights)
        weights = weights.flatten()
        ctx.mark_non_differentiable(weights, U, V, values)
        return moment @ weights - values.log().sum(), weights, U, V, values

    @staticmethod
    def backward(ctx, gradient: Tensor, *_) -> tuple[Tensor, Tensor, Tensor]:
        left, right, moment, s, U, t, V, values, weights = ctx.saved_tensors
        if torch.is_grad_enabled():  # for second derivatives U and V must not be constants
            capacitance = KroneckerCapacitance(left, right)
            value = moment @ capacitance.solve(moment.unsqueeze(-1)).squeeze(-1) - capacitance.logdet()
            needed = [part for part in (left, right, moment) if part.requires_grad]
            found = iter(torch.autograd.grad(value, needed, gradient, create_graph=True))
            return tuple(next(found) if part.requires_grad else None for part in (left, right, moment))
        on_s, on_t = (t / values).sum(1), (s.unsqueeze(1) / values).sum(0)
        by_left = (U * on_s) @ U.mT + weights @ right @ weights.mT
        by_right = (V * on_t) @ V.mT + weights.mT @ left @ weights
        return -gradient * by_left, -gradient * by_right, 2 * gradient * weights.flatten()
