"""Preconditioners for conjugate gradients: pivoted Cholesky for sums of Kronecker products, and a random sketch.

For C = Σ_q K_q ⊗ Γ_q + N the first is P̂ = N + F Fᵀ, with the columns L_q ⊗ B_q of F from K_q ≈ L_q L_qᵀ and Γ_q = B_q
B_qᵀ, inverted by S = I + Fᵀ N⁻¹ F. For C = I + A the second is made of Nyström's Â = Y (ΩᵀY)⁻¹ Yᵀ = U diag(λ) Uᵀ with Ω
(r, R) orthonormal and Y = A Ω,

    P̂ = U diag(1 + λ) Uᵀ + τ (I − U Uᵀ),     P̂^{-a} = τ^{-a} (I + U diag((τ/(1 + λ))^a − 1) Uᵀ),

with τ = 1 + λ_R for the other directions, or 1 if the sketch exhausts A. Features of a smooth kernel have few large
eigenvalues, which it removes; the diagonal of C, nearly constant for Fourier features, would not help.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from ovkgp.inference.algebra.dense import check_finite, safe_cholesky
from ovkgp.inference.algebra.kronecker_sum import KroneckerSum, multiply_first_axis
from ovkgp.kernels.outputs.matrices import thin_root

MAX_RANK = 1500  # maximum number of columns of F, over all components

RESIDUAL_FRACTION = 0.01
"""A factor of K is accurate enough if its residual variance is at most this fraction of the smallest noise variance."""

MAX_SKETCH_COLUMNS = 200

MAX_SKETCH_ENTRIES = 4_000_000  # maximum number of entries of the sketch (32 MB), that of one chunk of rows
CHUNK_ENTRIES = 1 << 22  # entries of F that are formed together to compute S: 32 MB


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
    """P̂ = N + F Fᵀ of a `KroneckerSum`, from L_q (n, r_q) and B_q (p, b_q); `chol` is the factor of S.

    Complexity: O(n p r_q R), R = Σ r_q b_q, for S; O((n p Σ r_q + R²) k) for a product with k columns.
    """

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
            for part in L.split(max(1, CHUNK_ENTRIES // (len(L) * B.numel() + 1)), 1):
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


class SketchedPreconditioner:
    """P̂ for C = I + A of size r, with vectors (r, k, 1), from a sketch with `rank` columns (None: as many as allowed).

    `apply` is V ↦ C V for V (r, k); the sketch is on the device of `like`. One product with R columns and O(r R²) once,
    then O(r R k).
    """

    def __init__(
        self, apply: Callable[[Tensor], Tensor], size: int, *, rank: int | None = None, seed: int = 0, like: Tensor
    ):
        rank = min(size, MAX_SKETCH_COLUMNS, max(MAX_SKETCH_ENTRIES // size, 1)) if rank is None else rank
        scores = torch.randn(size, rank, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        sketch = torch.linalg.qr(scores.to(like.device)).Q
        self.vectors, self.values = _nystrom(sketch, apply(sketch) - sketch)
        is_exhaustive = self.vectors.shape[1] < rank
        self.tail = 1.0 if is_exhaustive else self.values[-1].item()

    def power(self, V: Tensor, power: float) -> Tensor:
        """Compute P̂^{-power} V."""
        weights = (self.tail / self.values) ** power - 1
        columns = V.squeeze(-1)
        reduced = columns + self.vectors @ (weights.unsqueeze(-1) * (self.vectors.mT @ columns))
        return (reduced * self.tail**-power).unsqueeze(-1)


def _nystrom(sketch: Tensor, image: Tensor) -> tuple[Tensor, Tensor]:
    """Compute U (r, R') and 1 + λ (R',), decreasing, without eigenvalues lost to rounding."""
    core = sketch.mT @ image
    weights, rotation = torch.linalg.eigh((core + core.mT) / 2)
    precision = torch.finfo(weights.dtype)
    kept = weights > len(weights) * precision.eps * weights[-1].clamp_min(precision.tiny)
    root = image @ (rotation[:, kept] / weights[kept].sqrt())
    vectors, singular, _ = torch.linalg.svd(root, full_matrices=False)
    return vectors, 1 + singular.square()
