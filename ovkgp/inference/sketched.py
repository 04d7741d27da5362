"""A preconditioner of C = I + A from a few products with A: its leading eigenvectors, from a random sketch of it.

With Ω (r, R) orthonormal and Y = A Ω, Nyström's Â = Y (ΩᵀY)⁻¹ Yᵀ = U diag(λ) Uᵀ is below A, and

    P̂ = U diag(1 + λ) Uᵀ + τ (I − U Uᵀ),     P̂^{-a} = τ^{-a} (I + U diag((τ/(1 + λ))^a − 1) Uᵀ),

with τ = 1 + λ_R for the directions that were not seen, or 1 where the sketch exhausts A.

Features of a smooth kernel have few large eigenvalues: once they are divided out, conjugate gradients need few iterations,
where the diagonal of C, nearly constant for waves, is of no help.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

MAX_RANK = 200
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
        >>> from ovkgp.inference.sketched import SketchedPreconditioner
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
        rank = min(size, MAX_RANK, max(SKETCH_ENTRIES // size, 1)) if rank is None else rank
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
