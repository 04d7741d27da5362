"""Thin, differentiable roots of covariance matrices that may be singular.

The eigenvectors V with eigenvalues above a cutoff are constants; A V (Vᵀ A V)⁻¹ Vᵀ Aᵀ is the Nyström form of A on their
span. It equals A if no eigenvalue is dropped, for any V, so that its derivative needs none of `eigh`.
"""

from __future__ import annotations

import torch
from torch import Tensor

CUTOFF = 1e-10  # relative size below which an eigenvalue is considered zero in float64; float32 uses 1e-5


def leading_subspace(matrix: Tensor, cutoff: float = CUTOFF) -> tuple[Tensor, Tensor]:
    """Return a constant V (..., m, r) and the differentiable Cholesky factor L of Vᵀ A V (..., r, r).

    All batches use the largest rank of any of them. Complexity: O(m³).
    """
    cutoff = cutoff if matrix.dtype == torch.float64 else max(cutoff, 1e-5)
    with torch.no_grad():
        values, vectors = torch.linalg.eigh(matrix)
        large = values > cutoff * values.amax(-1, keepdim=True)
        keep = large.reshape(-1, values.shape[-1]).any(0)
        large = large[..., keep].to(matrix)
        vectors = vectors[..., keep] * large.unsqueeze(-2)  # zero columns if another batch has a larger rank
    core = vectors.mT @ matrix @ vectors + torch.diag_embed(1 - large)
    return vectors, torch.linalg.cholesky((core + core.mT) / 2)


def thin_root(matrix: Tensor, cutoff: float = CUTOFF) -> Tensor:
    """Return B (..., m, r) with B Bᵀ = A up to the cutoff, for a positive semi-definite A (..., m, m) of rank r."""
    vectors, chol = leading_subspace(matrix, cutoff)
    return torch.linalg.solve_triangular(chol, (matrix @ vectors).mT, upper=False).mT
