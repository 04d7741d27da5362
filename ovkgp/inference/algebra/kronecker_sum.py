"""C = Σ_q K_q ⊗ Γ_q + N between the observed entries, as an operator with O(n²) memory, and its preconditioner.

Vectors are padded with zeros for missing outputs, and k of them are one tensor V (n, k, p), so that both sides of a
Kronecker product are one matrix product each: (K ⊗ Γ) V is K (n, n) times (n, k·p), then (n·k, p) times Γ. The
preconditioner is P̂ = N + F Fᵀ, with the columns L_q ⊗ B_q of F from pivoted Cholesky factors K_q ≈ L_q L_qᵀ and Γ_q =
B_q B_qᵀ, inverted by S = I + Fᵀ N⁻¹ F.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from ovkgp.exceptions import InputError
from ovkgp.inference.algebra.dense import MATRIX_CHUNK_ENTRIES, check_finite, safe_cholesky
from ovkgp.kernels.outputs.matrices import thin_root

MAX_RANK = 1500  # maximum number of columns of F, over all components
RESIDUAL_FRACTION = 0.01
"""A factor of K is accurate enough if its residual variance is at most this fraction of the smallest noise variance."""


class DiagonalNoise:
    """N = diag(variances), from variances (n, p) or (1, p) and `observed` (n, p)."""

    def __init__(self, variances: Tensor, observed: Tensor):
        self.variances = torch.where(observed, variances, 1.0).unsqueeze(1)  # (n, 1, p); missing entries are zero in V
        self.scale = self.variances.sqrt()

    def apply(self, V: Tensor) -> Tensor:
        return V * self.variances

    def solve(self, V: Tensor) -> Tensor:
        return V / self.variances

    def unwhiten(self, V: Tensor) -> Tensor:
        """Compute N^½ V, which turns white noise into noise."""
        return V * self.scale

    def whiten(self, V: Tensor) -> Tensor:
        return V / self.scale

    def logdet(self) -> Tensor:
        return self.variances.log().sum()

    def inverse_blocks(self, observed: Tensor) -> Tensor:
        """Compute N⁻¹ at each point (n, p, p), zero for missing outputs."""
        return torch.diag_embed(observed / self.variances.squeeze(1))

    def min_variance(self) -> float:
        """Estimate the smallest eigenvalue of N."""
        return self.variances.min().item()


class BlockNoise:
    """Block-diagonal N: the covariance (n, p, p) or (1, p, p) between the observed outputs of each point."""

    def __init__(self, covariance: Tensor, observed: Tensor):
        self.covariance = covariance if len(covariance) > 1 else covariance[0]
        both = observed.unsqueeze(-1) & observed.unsqueeze(-2)
        eye = torch.eye(observed.shape[1], dtype=covariance.dtype, device=covariance.device)
        self.num_points, self.observed = len(observed), observed
        if bool(observed.all()) and len(covariance) == 1:
            self.chol = safe_cholesky(covariance[0])
        else:
            self.chol = torch.linalg.cholesky(torch.where(both, covariance, eye))  # (n, p, p)
        self.inverse_root = torch.linalg.solve_triangular(self.chol, eye.expand_as(self.chol), upper=False)
        self.precision = self.inverse_root.mT @ self.inverse_root

    def apply(self, V: Tensor) -> Tensor:
        return (V @ self.covariance) * self.observed.unsqueeze(1)

    def solve(self, V: Tensor) -> Tensor:
        return V @ self.precision

    def unwhiten(self, V: Tensor) -> Tensor:
        return V @ self.chol.mT

    def whiten(self, V: Tensor) -> Tensor:
        return V @ self.inverse_root.mT

    def logdet(self) -> Tensor:
        logs = 2 * self.chol.diagonal(dim1=-2, dim2=-1).log().sum()
        return logs * (self.num_points if self.chol.dim() == 2 else 1)

    def inverse_blocks(self, observed: Tensor) -> Tensor:
        return torch.where(observed.unsqueeze(-1) & observed.unsqueeze(-2), self.precision, 0.0)

    def min_variance(self) -> float:
        return 1 / self.precision.diagonal(dim1=-2, dim2=-1).max().item()


class KroneckerSum:
    """C = Σ_q K_q ⊗ Γ_q + N on the observed entries (n, p), from `grams` K_q (n, n) and `output_matrices` Γ_q (p, p).

    `noise` is variances (n, p) or covariances between the outputs of a point (n, p, p), with first axis 1 if shared.
    """

    def __init__(self, grams: Sequence[Tensor], output_matrices: Sequence[Tensor], noise: Tensor, observed: Tensor):
        _check_shapes(grams, output_matrices, noise, observed)
        self.grams, self.output_matrices, self.observed = list(grams), list(output_matrices), observed
        self.mask = None if bool(observed.all()) else observed.to(noise).unsqueeze(1)  # (n, 1, p)
        self.noise = DiagonalNoise(noise, observed) if noise.dim() == 2 else BlockNoise(noise, observed)

    def zero_missing(self, V: Tensor) -> Tensor:
        """Set missing entries of V to zero."""
        return V if self.mask is None else V * self.mask

    def apply(self, V: Tensor) -> Tensor:
        """Compute C V for V (n, k, p), zero for missing entries."""
        products = (multiply_first_axis(K, V) @ G for K, G in zip(self.grams, self.output_matrices, strict=True))
        return self.zero_missing(sum(products)) + self.noise.apply(V)

    def stack(self, rhs: Tensor) -> Tensor:
        """Reshape (n·p, k) to (n, k, p), with zeros for missing entries."""
        stacked = rhs.unflatten(0, self.observed.shape).transpose(1, 2)
        return stacked.contiguous() if self.mask is None else torch.where(self.mask.bool(), stacked, 0.0)

    @staticmethod
    def flatten(V: Tensor) -> Tensor:
        """Reshape (n, k, p) to (n·p, k)."""
        return V.transpose(1, 2).flatten(0, 1)

    def norm_bound(self) -> float:
        """Bound the largest eigenvalue of C by the largest row sums. O(n²)."""
        pairs = zip(self.grams, self.output_matrices, strict=True)
        signal = sum(_row_sum(K) * _row_sum(G) for K, G in pairs)
        return signal + self.noise.apply(self.observed.to(self.grams[0]).unsqueeze(1)).abs().max().item()


def multiply_first_axis(matrix: Tensor, V: Tensor) -> Tensor:
    """Multiply (a, n) and (n, k, p) over n, as one matrix product."""
    return (matrix @ V.flatten(1)).unflatten(1, V.shape[1:])


def _row_sum(matrix: Tensor) -> float:
    return torch.linalg.matrix_norm(matrix, ord=torch.inf).item()


def _check_shapes(grams: Sequence[Tensor], output_matrices: Sequence[Tensor], noise: Tensor, observed: Tensor) -> None:
    n, p = observed.shape
    if len(grams) == 0 or len(grams) != len(output_matrices):
        raise InputError(
            f"grams and output_matrices must have one matrix per component, got {len(grams)} and {len(output_matrices)}."
        )
    for name, size, matrices in (("grams", n, grams), ("output_matrices", p, output_matrices)):
        wrong = [tuple(matrix.shape) for matrix in matrices if matrix.shape != (size, size)]
        if wrong:
            raise InputError(
                f"{name} has a matrix of shape {wrong[0]}, expected {(size, size)} for residuals {(n, p)}."
            )
    if tuple(noise.shape) not in {(n, p), (1, p), (n, p, p), (1, p, p)}:
        raise InputError(
            f"noise has shape {tuple(noise.shape)}, expected variances {(n, p)} or {(1, p)}, or covariances {(n, p, p)} or {(1, p, p)}. Pass a shared Σ as Σ.unsqueeze(0)."
        )


def pivoted_cholesky(matrix: Tensor, max_rank: int, tolerance: float) -> Tensor:
    """Compute L (n, r) with L Lᵀ ≈ A, eliminating the largest diagonal entry until none exceeds `tolerance`. O(n r²)."""
    rows = matrix.new_zeros(min(max_rank, len(matrix)), len(matrix))
    left = matrix.diagonal().clone()
    for rank in range(len(rows)):
        largest, pivot = (value.item() for value in left.max(0))
        if largest <= tolerance:
            return rows[:rank].clone().mT  # frees the unused rows
        torch.sub(matrix[pivot], rows[:rank, pivot] @ rows[:rank], out=rows[rank]).div_(largest**0.5)
        left.sub_(rows[rank].square())
    return rows.mT


class Preconditioner:
    """P̂ = N + F Fᵀ of a `KroneckerSum`, from L_q (n, r_q) and B_q (p, b_q); `chol` is the factor of S."""

    def __init__(self, covariance: KroneckerSum, factors: Sequence[Tensor], roots: Sequence[Tensor]):
        self.covariance, self.factors, self.roots = covariance, list(factors), list(roots)
        self.sizes = [L.shape[1] * B.shape[1] for L, B in zip(factors, roots, strict=True)]
        self.chol = safe_cholesky(self._capacitance())

    def _capacitance(self) -> Tensor:
        """Compute S = I + Fᵀ N⁻¹ F."""
        noise = self.covariance.noise
        gram = torch.cat([self._multiply_transposed(noise.solve(columns)) for columns in self.columns()], 1)
        return ((gram + gram.mT) / 2).add_(torch.eye(len(gram), dtype=gram.dtype, device=gram.device))

    def columns(self) -> Iterator[Tensor]:
        """Iterate over the columns of F in chunks (n, k, p)."""
        yield self.factors[0].new_zeros(len(self.factors[0]), 0, len(self.roots[0]))  # so that there is always one
        for L, B in zip(self.factors, self.roots, strict=True):
            for part in L.split(max(1, MATRIX_CHUNK_ENTRIES // (len(L) * B.numel() + 1)), 1):
                yield self.covariance.zero_missing((part[:, :, None, None] * B.mT).flatten(1, 2))

    def _multiply_transposed(self, V: Tensor) -> Tensor:
        """Compute Fᵀ V (R, k) for V (n, k, p) with zeros for missing entries."""
        pairs = zip(self.factors, self.roots, strict=True)
        return torch.cat([(multiply_first_axis(L.mT, V) @ B).transpose(1, 2).flatten(0, 1) for L, B in pairs])

    def _multiply(self, weights: Tensor) -> Tensor:
        """Compute F w (n, k, p) for w (R, k)."""
        parts = zip(self.factors, self.roots, weights.split(self.sizes), strict=True)
        parts = ((L, B, w.unflatten(0, (L.shape[1], B.shape[1])).transpose(1, 2)) for L, B, w in parts)
        return self.covariance.zero_missing(sum(multiply_first_axis(L, w @ B.mT) for L, B, w in parts))

    def solve(self, V: Tensor) -> Tensor:
        """Compute P̂⁻¹ V for V (n, k, p)."""
        white = self.covariance.noise.solve(V)
        correction = self._multiply(torch.cholesky_solve(self._multiply_transposed(white), self.chol))
        return white - self.covariance.noise.solve(correction)

    def sample(self, num_samples: int, seed: int) -> Tensor:
        """Draw (n, k, p) from N(0, P̂)."""
        generator = torch.Generator(self.chol.device).manual_seed(seed)
        kind = {"generator": generator, "dtype": self.chol.dtype, "device": self.chol.device}
        n, p = self.covariance.observed.shape
        weights = torch.randn(len(self.chol), num_samples, **kind)
        white = self.covariance.zero_missing(torch.randn(n, num_samples, p, **kind))
        return self._multiply(weights) + self.covariance.noise.unwhiten(white)

    def logdet(self) -> Tensor:
        return 2 * self.chol.diagonal().log().sum() + self.covariance.noise.logdet()


def make_preconditioner(covariance: KroneckerSum, max_rank: int = MAX_RANK) -> Preconditioner:
    """Make P̂ with at most `max_rank` columns, divided equally between components; unused columns go to the next."""
    for K in covariance.grams:
        check_finite(K, "A Gram matrix")
    roots = [thin_root(G) for G in covariance.output_matrices]
    tolerance = RESIDUAL_FRACTION * covariance.noise.min_variance()
    factors, left = {}, max_rank
    for q in sorted(range(len(roots)), key=lambda q: -roots[q].shape[1]):
        waiting = sum(B.shape[1] for i, B in enumerate(roots) if i not in factors)
        strength = max(torch.linalg.matrix_norm(covariance.output_matrices[q], ord=2).item(), 1e-300)
        factors[q] = pivoted_cholesky(covariance.grams[q], left // max(1, waiting), tolerance / strength)
        left -= factors[q].shape[1] * roots[q].shape[1]
    return Preconditioner(covariance, [factors[q] for q in range(len(roots))], roots)
