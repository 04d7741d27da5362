"""Thin, differentiable roots of covariance matrices that may be singular.

The eigenvectors V with eigenvalues above a cut-off are chosen first, as constants; then
A V (Vᵀ A V)⁻¹ Vᵀ Aᵀ is the Nyström form of A on their span. It equals A itself where nothing was
dropped, whatever V is, so its derivative is right although none is taken through `eigh`.
"""

from __future__ import annotations

import torch
from torch import Tensor

CUTOFF = 1e-10
"""Relative size, in float64, below which an eigenvalue counts as zero; float32 uses 1e-5."""


def leading_subspace(matrix: Tensor, cutoff: float = CUTOFF) -> tuple[Tensor, Tensor]:
    """V (..., m, r), constant, and the Cholesky factor L of Vᵀ A V (..., r, r), differentiable.

    Batches share the largest rank found in any of them. Cost O(m³).
    """
    cutoff = cutoff if matrix.dtype == torch.float64 else max(cutoff, 1e-5)
    with torch.no_grad():
        values, vectors = torch.linalg.eigh(matrix)
        large = values > cutoff * values.amax(-1, keepdim=True)
        keep = large.reshape(-1, values.shape[-1]).any(0)
        large = large[..., keep].to(matrix)
        vectors = vectors[..., keep] * large.unsqueeze(-2)  # zero columns where another batch has the larger rank
    core = vectors.mT @ matrix @ vectors + torch.diag_embed(1 - large)
    return vectors, torch.linalg.cholesky((core + core.mT) / 2)


def thin_root(matrix: Tensor, cutoff: float = CUTOFF) -> Tensor:
    """B (..., m, r) with B Bᵀ = A up to the cut-off, r the numerical rank of the positive semi-definite A (..., m, m)."""
    vectors, chol = leading_subspace(matrix, cutoff)
    return torch.linalg.solve_triangular(chol, (matrix @ vectors).mT, upper=False).mT
