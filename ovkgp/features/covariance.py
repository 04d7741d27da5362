"""Covariances of finitely many features: Φ Φᵀ, Φ Φ'ᵀ, and Φ Φᵀ + noise by Woodbury's formula.

With noise N = I ⊗ Σ (or any diagonal) and the r × r capacitance C = I + Φᵀ N⁻¹ Φ,

    (Φ Φᵀ + N)⁻¹ = N⁻¹ − N⁻¹ Φ C⁻¹ Φᵀ N⁻¹,    log det(Φ Φᵀ + N) = log det C + log det N.
"""

from __future__ import annotations

import torch
from linear_operator import LinearOperator, to_dense, to_linear_operator
from linear_operator.operators import (
    CatLinearOperator,
    ConstantDiagLinearOperator,
    DiagLinearOperator,
    KroneckerProductDiagLinearOperator,
    KroneckerProductLinearOperator,
    LowRankRootLinearOperator,
    RootLinearOperator,
    SumLinearOperator,
    ZeroLinearOperator,
)
from linear_operator.utils.cholesky import psd_safe_cholesky
from linear_operator.utils.memoize import cached
from torch import Tensor

from ovkgp.features.operators import FeatureOperator, stack_features


class FeatureCovariance(LowRankRootLinearOperator):
    """Φ Φᵀ. Adding noise gives a `NoisyFeatureCovariance`; adding another one stacks the features."""

    def _diagonal(self) -> Tensor:
        return self.root.squared_rows()

    def add_diagonal(self, diag: Tensor) -> LinearOperator:
        if diag.dim() == 0 or diag.shape[-1] == 1:
            return self + ConstantDiagLinearOperator(diag.reshape(*diag.shape[:-1], 1), self.shape[-1])
        return self + DiagLinearOperator(diag.expand(self.shape[:-1]))

    def __add__(self, other):
        if isinstance(other, FeatureCovariance):
            return FeatureCovariance(stack_features(self.root, other.root))
        if isinstance(other, DiagLinearOperator) or output_noise(other) is not None:
            return NoisyFeatureCovariance(self, other)
        if isinstance(other, ZeroLinearOperator):
            return self
        return LinearOperator.__add__(self, other)


class FeatureCrossCovariance(LinearOperator):
    """Φ Φ'ᵀ between different points, from Φ and Φ'."""

    def __init__(self, left: LinearOperator, right: LinearOperator):
        super().__init__(left, right)
        self.left, self.right = left, right

    def _size(self) -> torch.Size:
        batch = torch.broadcast_shapes(self.left.batch_shape, self.right.batch_shape)
        return torch.Size((*batch, self.left.shape[-2], self.right.shape[-2]))

    def _matmul(self, rhs: Tensor) -> Tensor:
        return self.left._matmul(self.right._t_matmul(rhs))

    def _t_matmul(self, rhs: Tensor) -> Tensor:
        return self.right._matmul(self.left._t_matmul(rhs))

    def _transpose_nonbatch(self) -> FeatureCrossCovariance:
        return self.__class__(self.right, self.left)

    def _mul_constant(self, other: float | Tensor) -> LinearOperator:
        other = torch.as_tensor(other, dtype=self.dtype, device=self.device)
        if not (other > 0).all():
            return super()._mul_constant(other)
        return self.__class__(self.left._mul_constant(other.sqrt()), self.right._mul_constant(other.sqrt()))

    def __add__(self, other):
        if isinstance(other, FeatureCrossCovariance):
            return self.__class__(stack_features(self.left, other.left), stack_features(self.right, other.right))
        return super().__add__(other)

    def to_dense(self) -> Tensor:
        return self.left.to_dense() @ self.right.to_dense().mT


class NoisyFeatureCovariance(SumLinearOperator):
    """Φ Φᵀ + N with N diagonal or I ⊗ Σ; solves and determinants by Woodbury's formula."""

    def __init__(self, covariance: FeatureCovariance, noise: LinearOperator):
        super().__init__(covariance, noise)
        self.covariance, self.noise = self.linear_ops

    @property
    def features(self) -> LinearOperator:
        """Features Φ."""
        return self.covariance.root

    @property
    def is_wide(self) -> bool:
        """Whether C is no smaller than the covariance of the observations, so that the dense solve is cheaper."""
        size = self.features.features.shape[-1] if self._is_kronecker else self.features.num_columns
        return size >= self.shape[-1]

    @property
    @cached(name="output_noise_chol")
    def _noise_chol(self) -> Tensor | None:
        noise = output_noise(self.noise)
        return None if noise is None else psd_safe_cholesky(noise)

    def noise_solve(self, rhs: Tensor) -> Tensor:
        """Return N⁻¹ rhs, for rhs (..., n·p, k)."""
        chol = self._noise_chol
        if chol is None:
            return rhs / self.noise._diagonal().unsqueeze(-1)
        p = chol.shape[-1]
        columns = rhs.unflatten(-2, (-1, p)).transpose(-3, -2).flatten(-2)  # (..., p, n k)
        solved = torch.cholesky_solve(columns, chol).unflatten(-1, (-1, rhs.shape[-1]))
        return solved.transpose(-3, -2).flatten(-3, -2)

    @property
    def _output_precision(self) -> Tensor | None:
        """Σ⁻¹ (..., p, p) for the p of the features, if the noise is the same at all points; else None."""
        chol, p = self._noise_chol, self.features.num_outputs
        if chol is None or chol.shape[-1] not in (1, p):
            return None
        eye = torch.eye(p, dtype=chol.dtype, device=chol.device)
        return torch.cholesky_inverse(chol) * (eye if chol.shape[-1] == 1 else 1)

    @property
    def _is_kronecker(self) -> bool:
        """Whether C is I + S ⊗ T with T larger than 1 × 1: separable features, and the same noise at all points."""
        features = self.features
        separable = isinstance(features, FeatureOperator) and features.is_separable and features.factor.shape[-1] > 1
        return separable and self._output_precision is not None

    @property
    @cached(name="capacitance")
    def capacitance(self) -> DenseCapacitance | KroneckerCapacitance:
        """Factorized C = I + Φᵀ N⁻¹ Φ."""
        features, precision = self.features, self._output_precision
        if precision is None:
            dense = features.to_dense()
            return DenseCapacitance(dense.mT @ self.noise_solve(dense))
        if self._is_kronecker:
            return KroneckerCapacitance(features.scalar_gram(), features.factor.mT @ precision @ features.factor)
        return DenseCapacitance(features.cross_gram(features, precision))

    @property
    @cached(name="dense_chol")
    def _dense_chol(self) -> Tensor:
        return psd_safe_cholesky(self.to_dense())

    def weights(self, rhs: Tensor) -> Tensor:
        """Return C⁻¹ Φᵀ N⁻¹ rhs: the posterior mean of the weights given observations `rhs` (..., n·p, k)."""
        return self.capacitance.solve(self.features._t_matmul(self.noise_solve(rhs)))

    def observed_weights(self, rhs: Tensor, observed: Tensor) -> tuple[Tensor, DenseCapacitance]:
        """Return `weights` and `capacitance` given only the `observed` entries of `rhs` (..., n·p, 1)."""
        p = 1 if self._noise_chol is None else self._noise_chol.shape[-1]
        precision = self._observed_precision(observed.squeeze(-1).unflatten(-1, (-1, p)))  # (..., n, p, p)
        dense = self.features.to_dense()
        weighted = (precision @ dense.unflatten(-2, (-1, p))).flatten(-3, -2)
        capacitance = DenseCapacitance(dense.mT @ weighted)
        return capacitance.solve(weighted.mT @ torch.where(observed, rhs, 0.0)), capacitance

    def _observed_precision(self, observed: Tensor) -> Tensor:
        """Return the inverse noise covariance of the observed outputs of each row (..., n, p), zero elsewhere."""
        both = observed.unsqueeze(-1) & observed.unsqueeze(-2)
        eye = torch.eye(observed.shape[-1], dtype=self.dtype, device=self.device)
        noise = output_noise(self.noise)
        if noise is None:
            return torch.diag_embed(observed / self.noise._diagonal().unflatten(-1, observed.shape[-2:]))
        covariance = torch.where(both, noise.unsqueeze(-3), eye)
        return torch.where(both, torch.linalg.inv(covariance), 0.0)

    def _solve(self, rhs: Tensor, preconditioner=None, num_tridiag: int | None = 0) -> Tensor:
        if self.is_wide:
            return torch.cholesky_solve(rhs, self._dense_chol)
        return self.noise_solve(rhs - self.features._matmul(self.weights(rhs)))

    def solve(self, right_tensor: Tensor, left_tensor: Tensor | None = None) -> Tensor:
        column = right_tensor.unsqueeze(-1) if right_tensor.dim() == 1 else right_tensor
        solved = self._solve(column)
        solved = solved.squeeze(-1) if right_tensor.dim() == 1 else solved
        return solved if left_tensor is None else left_tensor @ solved

    def logdet(self) -> Tensor:
        if self.is_wide:
            return chol_logdet(self._dense_chol)
        chol = self._noise_chol
        if chol is None:
            noise = self.noise._diagonal().log().sum(-1)
        else:
            noise = chol_logdet(chol) * (self.shape[-1] // chol.shape[-1])
        return self.capacitance.logdet() + noise

    def inv_quad_logdet(self, inv_quad_rhs=None, logdet=False, reduce_inv_quad=True):
        inv_quad, log_determinant = None, None
        if inv_quad_rhs is not None:
            rhs = inv_quad_rhs.unsqueeze(-1) if inv_quad_rhs.dim() == 1 else inv_quad_rhs
            inv_quad = (rhs * self._solve(rhs)).sum(-2)
            inv_quad = inv_quad.sum(-1) if reduce_inv_quad or inv_quad_rhs.dim() == 1 else inv_quad
        if logdet:
            log_determinant = self.logdet()
        return inv_quad, log_determinant

    def root_decomposition(self, method: str | None = None) -> RootLinearOperator:
        """Return the exact root [Φ, N^½], of size np × (r + np) and as structured as its parts, for sampling."""
        return RootLinearOperator(CatLinearOperator(self.features, self._noise_root(), dim=-1))

    def _noise_root(self) -> LinearOperator:
        chol = self._noise_chol
        if chol is None:
            return DiagLinearOperator(self.noise._diagonal().sqrt())
        ones = torch.ones(*chol.shape[:-2], 1, dtype=chol.dtype, device=chol.device)
        eye = ConstantDiagLinearOperator(ones, diag_shape=self.shape[-1] // chol.shape[-1])
        return KroneckerProductLinearOperator(eye, to_linear_operator(chol))

    def diagonalization(self, method: str | None = None):
        """Use a dense eigendecomposition: Lanczos iterations miss the eigenvalues that the noise repeats."""
        return super().diagonalization(method="symeig")

    def _solve_preconditioner(self):
        return None

    def _mul_constant(self, other: float | Tensor) -> LinearOperator:
        parts = self.covariance._mul_constant(other), self.noise._mul_constant(other)
        is_positive = bool((torch.as_tensor(other) > 0).all())
        return parts[0] + parts[1] if is_positive else SumLinearOperator(*parts)

    def __add__(self, other):
        if isinstance(other, DiagLinearOperator) and isinstance(self.noise, DiagLinearOperator):
            return NoisyFeatureCovariance(self.covariance, self.noise + other)
        return super().__add__(other)

    def _getitem(self, row_index, col_index, *batch_indices) -> LinearOperator:
        return SumLinearOperator(self.covariance, self.noise)._getitem(row_index, col_index, *batch_indices)

    def evaluate_kernel(self) -> LinearOperator:
        return self


def output_noise(noise: LinearOperator) -> Tensor | None:
    """Return Σ (..., q, q) if `noise` is I ⊗ Σ in data-major order (q = 1 for one variance), else None."""
    if isinstance(noise, KroneckerProductLinearOperator | KroneckerProductDiagLinearOperator):
        eye, *blocks = noise.linear_ops
        is_output_noise = len(blocks) == 1 and isinstance(eye, ConstantDiagLinearOperator)
        return eye.diag_values.unsqueeze(-1) * to_dense(blocks[0]) if is_output_noise else None
    return noise.diag_values.unsqueeze(-1) if isinstance(noise, ConstantDiagLinearOperator) else None


class DenseCapacitance:
    """C from ΦᵀN⁻¹Φ (..., r, r), by Cholesky."""

    def __init__(self, gram: Tensor):
        eye = torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device)
        self.chol = psd_safe_cholesky(gram + eye)

    def solve(self, rhs: Tensor) -> Tensor:
        """Return C⁻¹ rhs, for rhs (..., r, k)."""
        return torch.cholesky_solve(rhs, self.chol)

    def logdet(self) -> Tensor:
        return chol_logdet(self.chol)

    def posterior_root(self, features: LinearOperator) -> Tensor:
        """Return a dense root (..., m·p, r) of Φ_* C⁻¹ Φ_*ᵀ."""
        eye = torch.eye(self.chol.shape[-1], dtype=self.chol.dtype, device=self.chol.device)
        return features._matmul(torch.linalg.solve_triangular(self.chol, eye, upper=False).mT)


class KroneckerCapacitance:
    """C = I + S ⊗ T = (U ⊗ V) (1 + s tᵀ) (U ⊗ V)ᵀ from S = U s Uᵀ (..., M, M) and T = V t Vᵀ (..., q, q), O(M³ + q³).

    Gradients are in closed form, as `eigh` has no derivative at repeated eigenvalues.
    """

    def __init__(self, left: Tensor, right: Tensor):
        self.left, self.right = left, right
        with torch.no_grad():
            (s, self.U), (t, self.V) = torch.linalg.eigh(left), torch.linalg.eigh(right)
            self.values = 1 + s.clamp_min(0).unsqueeze(-1) * t.clamp_min(0).unsqueeze(-2)  # (..., M, q)

    def solve(self, rhs: Tensor) -> Tensor:
        """Return C⁻¹ rhs, for rhs (..., M·q, k)."""
        return _KroneckerSolve.apply(self.left, self.right, rhs, self.U, self.V, self.values)

    def logdet(self) -> Tensor:
        return _KroneckerLogdet.apply(self.left, self.right, self.U, self.V, self.values)

    def posterior_root(self, features: LinearOperator) -> Tensor:
        """Return a dense root (..., m·p, M·q) of Φ_* C⁻¹ Φ_*ᵀ, for separable features Φ_* = φ_* ⊗ B."""
        if torch.is_grad_enabled() and (self.left.requires_grad or self.right.requires_grad):
            return self.dense().posterior_root(features)  # U and V are constants here, and would hide a gradient
        rotated = torch.einsum("...nm,...pq->...npmq", features.features @ self.U, features.factor @ self.V)
        return (rotated / self.values.sqrt().unsqueeze(-3).unsqueeze(-3)).flatten(-2).flatten(-3, -2)

    def dense(self) -> DenseCapacitance:
        """Return the same matrix, formed."""
        return DenseCapacitance(torch.einsum("...ij,...kl->...ikjl", self.left, self.right).flatten(-2).flatten(-3, -2))


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


def _apply_inverse(rhs: Tensor, U: Tensor, V: Tensor, values: Tensor) -> Tensor:
    """Return (U ⊗ V) diag(values)⁻¹ (U ⊗ V)ᵀ rhs for rhs (..., M, q, k)."""
    rotated = torch.einsum("...im,...iak,...aq->...mqk", U, rhs, V) / values.unsqueeze(-1)
    return torch.einsum("...im,...mqk,...aq->...iak", U, rotated, V)


def _spectral_traces(left: Tensor, right: Tensor, U: Tensor, V: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """Return the derivatives of log det C in S and T, from the eigenvalues. Complexity: O(M³ + q³)."""
    s = torch.einsum("...im,...ij,...jm->...m", U, left, U)
    t = torch.einsum("...aq,...ab,...bq->...q", V, right, V)
    on_s, on_t = (t.unsqueeze(-2) / values).sum(-1), (s.unsqueeze(-1) / values).sum(-2)
    return (U * on_s.unsqueeze(-2)) @ U.mT, (V * on_t.unsqueeze(-2)) @ V.mT


def _traces_of_inverse(left: Tensor, right: Tensor, *eigen: Tensor) -> tuple[Tensor, Tensor]:
    """Return these derivatives from C⁻¹, O((M q)² (M + q)), for second derivatives: U and V are constants here."""
    sizes = eigen[-1].shape[-2:]
    eye = torch.eye(sizes.numel(), dtype=left.dtype, device=left.device)
    inverse = _KroneckerSolve.apply(left, right, eye.expand(*left.shape[:-2], *eye.shape), *eigen)
    inverse = inverse.unflatten(-1, sizes).unflatten(-3, sizes)  # (..., M, q, M, q)
    by_left = torch.einsum("...iajb,...ab->...ij", inverse, right)
    return by_left, torch.einsum("...iajb,...ij->...ab", inverse, left)


def _symmetric(matrix: Tensor) -> Tensor:
    return (matrix + matrix.mT) / 2


def chol_logdet(chol: Tensor) -> Tensor:
    """Return log det A from its Cholesky factor."""
    return 2 * chol.diagonal(dim1=-2, dim2=-1).log().sum(-1)
