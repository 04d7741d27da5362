"""A preconditioner of C = I + A from a few products with A: its leading eigenvectors, from a random sketch of it.

With Ω (r, R) orthonormal and Y = A Ω, Nyström's Â = Y (ΩᵀY)⁻¹ Yᵀ = U diag(λ) Uᵀ is below A, and

    P̂ = U diag(1 + λ) Uᵀ + τ (I − U Uᵀ),     P̂^{-a} = τ^{-a} (I + U diag((τ/(1 + λ))^a − 1) Uᵀ),

with τ = 1 + λ_R for the directions that were not seen, or 1 where the sketch exhausts A.

Features of a smooth kernel have few large eigenvalues: once they are divided out, conjugate gradients need few iterations,
where the diagonal of C, nearly constant for waves, is of no help.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from ovkgp.inference.algebra.dense import check_finite, safe_cholesky
from ovkgp.inference.algebra.kronecker_sum import KroneckerSum, times
from ovkgp.kernels.outputs.roots import thin_root

MAX_RANK = 1500
"""The most columns of F, over all components."""

RESIDUAL = 0.01
"""A factor of K is good enough when the variance that it leaves anywhere is this part of the smallest noise."""

CHUNK_ENTRIES = 1 << 22
"""Entries of F that are formed at once on the way to S: 32 MB."""


def pivoted_cholesky(matrix: Tensor, max_rank: int, tolerance: float) -> Tensor:
    """L (n, r) with L Lᵀ ≈ A: each column takes away the largest diagonal entry left, until none exceeds `tolerance`.

    Cost: O(n r²).

    Example:
        >>> import torch
        >>> from ovkgp.inference.algebra.preconditioners import pivoted_cholesky
        >>> pivoted_cholesky(torch.diag(torch.tensor([4.0, 1.0, 9.0])), max_rank=3, tolerance=2.0)
        tensor([[0., 2.],
                [0., 0.],
                [3., 0.]])
    """
    rows = matrix.new_zeros(min(max_rank, len(matrix)), len(matrix))
    left = matrix.diagonal().clone()
    for rank in range(len(rows)):
        largest, pivot = (value.item() for value in left.max(0))
        if largest <= tolerance:
            return rows[:rank].clone().mT  # lets go of the rows that were not needed
        torch.sub(matrix[pivot], rows[:rank, pivot] @ rows[:rank], out=rows[rank]).div_(largest**0.5)
        left.sub_(rows[rank].square())
    return rows.mT


class Preconditioner:
    """P̂ = N + F Fᵀ for a `KroneckerSum`; `precondition` makes one.

    Args:
        covariance: C, whose N and mask are used.
        factors: the L_q, each (n, r_q).
        roots: the B_q, each (p, b_q).
        chol: the Cholesky factor of S; made where it is not given, in O(n p r_q R) with R = Σ r_q b_q.

    Cost of a product with k columns: O((n p Σ r_q + R²) k).
    """

    def __init__(
        self, covariance: KroneckerSum, factors: Sequence[Tensor], roots: Sequence[Tensor], chol: Tensor | None = None
    ):
        self.covariance, self.factors, self.roots = covariance, list(factors), list(roots)
        self.sizes = [L.shape[1] * B.shape[1] for L, B in zip(factors, roots, strict=True)]
        self.chol = safe_cholesky(self._capacitance()) if chol is None else chol

    def _capacitance(self) -> Tensor:
        """S = I + Fᵀ N⁻¹ F."""
        gram = torch.cat([self._down(self.covariance.noise.solve(columns)) for columns in self.columns()], 1)
        return ((gram + gram.mT) / 2).add_(torch.eye(len(gram), dtype=gram.dtype, device=gram.device))

    def columns(self) -> Iterator[Tensor]:
        """The columns of F, some at a time, as (n, k, p)."""
        yield self.factors[0].new_zeros(len(self.factors[0]), 0, len(self.roots[0]))  # so that there is always one
        for L, B in zip(self.factors, self.roots, strict=True):
            for part in L.split(max(1, CHUNK_ENTRIES // (len(L) * B.numel() + 1)), 1):
                yield self.covariance.masked((part[:, :, None, None] * B.mT).flatten(1, 2))

    def _down(self, V: Tensor) -> Tensor:
        """Fᵀ V (R, k), for V (n, k, p) that is zero where nothing was seen."""
        pairs = zip(self.factors, self.roots, strict=True)
        return torch.cat([(times(L.mT, V) @ B).transpose(1, 2).flatten(0, 1) for L, B in pairs])

    def _up(self, weights: Tensor) -> Tensor:
        """F w (n, k, p), for w (R, k)."""
        parts = zip(self.factors, self.roots, weights.split(self.sizes), strict=True)
        return self.covariance.masked(
            sum(times(L, w.unflatten(0, (L.shape[1], B.shape[1])).transpose(1, 2) @ B.mT) for L, B, w in parts)
        )

    def solve(self, V: Tensor) -> Tensor:
        """P̂⁻¹ V for V (n, k, p)."""
        white = self.covariance.noise.solve(V)
        correction = self._up(torch.cholesky_solve(self._down(white), self.chol))
        return white - self.covariance.noise.solve(correction)

    def sample(self, num_samples: int, seed: int) -> Tensor:
        """Draws (n, k, p) from N(0, P̂)."""
        generator = torch.Generator(self.chol.device).manual_seed(seed)
        kind = {"generator": generator, "dtype": self.chol.dtype, "device": self.chol.device}
        n, p = self.covariance.observed.shape
        weights = torch.randn(len(self.chol), num_samples, **kind)
        white = self.covariance.masked(torch.randn(n, num_samples, p, **kind))
        return self._up(weights) + self.covariance.noise.colour(white)

    def logdet(self) -> Tensor:
        return 2 * self.chol.diagonal().log().sum() + self.covariance.noise.logdet()


def precondition(covariance: KroneckerSum, max_rank: int = MAX_RANK) -> Preconditioner:
    """P̂ with at most `max_rank` columns: an equal share for each component, and what one leaves goes to the next.

    Example:
        >>> import torch
        >>> from ovkgp.inference.algebra.kronecker_sum import KroneckerSum
        >>> from ovkgp.inference.algebra.preconditioners import precondition
        >>> I = torch.eye(3).double()
        >>> C = KroneckerSum([I], [I[:2, :2]], torch.full((1, 2), 0.5).double(), torch.ones(3, 2).bool())
        >>> precondition(C).logdet() / 6  # exact here: log 1.5
        tensor(0.4055, dtype=torch.float64)
    """
    for K in covariance.grams:
        check_finite(K, "a Gram matrix")
    roots = [thin_root(G) for G in covariance.output_matrices]
    tolerance = RESIDUAL * covariance.noise.smallest()
    factors, left = {}, max_rank
    for q in sorted(range(len(roots)), key=lambda q: -roots[q].shape[1]):
        waiting = sum(B.shape[1] for i, B in enumerate(roots) if i not in factors)
        strength = max(torch.linalg.matrix_norm(covariance.output_matrices[q], ord=2).item(), 1e-300)
        factors[q] = pivoted_cholesky(covariance.grams[q], left // max(1, waiting), tolerance / strength)
        left -= factors[q].shape[1] * roots[q].shape[1]
    return Preconditioner(covariance, [factors[q] for q in range(len(roots))], roots)


SKETCHED_MAX_RANK = 200
"""The most columns of the sketch."""

SKETCH_ENTRIES = 4_000_000
"""The most entries of the sketch (32 MB): that of one chunk of rows."""


class SketchedPreconditioner:
    """P̂ for C = I + A, with vectors (r, k, 1).

    Args:
        apply: V ↦ C V for V (r, k).
        size: r.
        rank: R; as many as there is room for where it is None.
        seed: of the sketch.
        like: a tensor that lives where the sketch shall.

    Cost: one product with R columns and O(r R²) once, then O(r R k); O(r R) memory.

    Example:
        >>> import torch
        >>> from ovkgp.inference.algebra.preconditioners import SketchedPreconditioner
        >>> A = torch.diag(torch.tensor([1e6, 1e3, 0.0, 0.0])).double()
        >>> P = SketchedPreconditioner(lambda V: V + A @ V, 4, rank=3, like=A)
        >>> 1 / P.power(torch.ones(4, 1, 1).double(), 1.0).flatten()  # the diagonal of C
        tensor([1.0000e+06, 1.0010e+03, 1.0000e+00, 1.0000e+00], dtype=torch.float64)
    """

    def __init__(
        self,
        apply: Callable[[Tensor], Tensor],
        size: int,
        *,
        rank: int | None = None,
        seed: int = 0,
        like: Tensor,
    ):
        rank = min(size, SKETCHED_MAX_RANK, max(SKETCH_ENTRIES // size, 1)) if rank is None else rank
        scores = torch.randn(size, rank, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        sketch = torch.linalg.qr(scores.to(like.device)).Q
        self.vectors, self.values = _nystrom(sketch, apply(sketch) - sketch)
        is_all = self.vectors.shape[1] < rank
        self.tail = 1.0 if is_all else self.values[-1].item()

    def power(self, V: Tensor, power: float) -> Tensor:
        """P̂^{-power} V."""
        shares = (self.tail / self.values) ** power - 1
        columns = V.squeeze(-1)
        reduced = columns + self.vectors @ (shares.unsqueeze(-1) * (self.vectors.mT @ columns))
        return (reduced * self.tail**-power).unsqueeze(-1)


def _nystrom(sketch: Tensor, image: Tensor) -> tuple[Tensor, Tensor]:
    """U (r, R') and 1 + λ (R',), decreasing, without what is lost to rounding."""
    core = sketch.mT @ image
    weights, rotation = torch.linalg.eigh((core + core.mT) / 2)
    kept = weights > len(weights) * torch.finfo(weights.dtype).eps * weights[-1].clamp_min(
        torch.finfo(weights.dtype).tiny
    )
    root = image @ (rotation[:, kept] / weights[kept].sqrt())
    vectors, singular, _ = torch.linalg.svd(root, full_matrices=False)
    return vectors, 1 + singular.square()
