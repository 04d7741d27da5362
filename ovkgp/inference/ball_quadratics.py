"""The least-squares objective of weights, F(θ) = ½ θᵀAθ − vᵀθ + ½ s, and what a solver may ask of it.

With features Φ and outputs y, A = ΦᵀΦ/n, v = Φᵀy/n and s = yᵀy/n make F the mean of ½ ‖Φ(x_i)θ − y_i‖². Where A is at hand, as a
matrix or as a Kronecker product, so are its eigenvectors; otherwise there are products with Φ.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from scipy.sparse.linalg import LinearOperator as Products
from scipy.sparse.linalg import eigsh
from torch import Tensor

from ovkgp.exceptions import InputError

CURVATURE_MARGIN = 1.01
"""By how much the largest eigenvalue that Lanczos finds, from below, is raised."""


@dataclass(frozen=True, eq=False)
class Spectrum:
    """A = Q diag(values) Qᵀ with Q = Q_1 ⊗ Q_2.

    Args:
        values: (r,), not negative.
        left, right: Q_1 (M, M) and Q_2 (q, q), M q = r.
    """

    values: Tensor
    left: Tensor
    right: Tensor

    @classmethod
    def of(cls, left: Tensor, right: Tensor) -> Spectrum:
        """That of A_1 ⊗ A_2. O(M³ + q³)."""
        (values, vectors), (others, other_vectors) = (torch.linalg.eigh(matrix) for matrix in (left, right))
        return cls(torch.outer(values.clamp_min(0), others.clamp_min(0)).flatten(), vectors, other_vectors)

    def into(self, weights: Tensor) -> Tensor:
        """Qᵀθ."""
        return (self.left.mT @ weights.view(len(self.left), -1) @ self.right).flatten()

    def back(self, coordinates: Tensor) -> Tensor:
        """Q c."""
        return (self.left @ coordinates.view(len(self.left), -1) @ self.right.mT).flatten()


@dataclass(frozen=True, eq=False)
class BallQuadratic:
    """F(θ) = ½ θᵀAθ − vᵀθ + ½ s.

    Args:
        apply: θ ↦ Aθ, for A symmetric and positive semi-definite.
        moment: v (r,).
        square: s.
        spectrum: of A, where it is known.

    Example:
        >>> import torch
        >>> from ovkgp.inference.ball_quadratics import BallQuadratic
        >>> quadratic = BallQuadratic.of(2 * torch.eye(3).double(), torch.ones(3).double(), square=3.0)
        >>> weights = torch.ones(3).double() / 2
        >>> quadratic.value(weights, quadratic.apply(weights)), quadratic.curvature()
        (0.75, 2.0)
    """

    apply: Callable[[Tensor], Tensor]
    moment: Tensor
    square: float
    spectrum: Spectrum | None = None

    @classmethod
    def of(
        cls, matrix: Tensor | tuple[Tensor, Tensor], moment: Tensor, square: float, *, factorise: bool = True
    ) -> BallQuadratic:
        """From A (r, r), or S (M, M) and T (q, q) with A = S ⊗ T; with its spectrum unless `factorise` is False."""
        left, right = matrix if isinstance(matrix, tuple) else (matrix, matrix.new_ones(1, 1))
        if len(left) * len(right) != len(moment):
            raise InputError(f"A has {len(left) * len(right)} rows and v has {len(moment)} entries; they must agree.")

        def apply(weights: Tensor) -> Tensor:
            return (left @ weights.view(len(left), -1) @ right).flatten()

        return cls(apply, moment, float(square), Spectrum.of(left, right) if factorise else None)

    def value(self, weights: Tensor, product: Tensor) -> float:
        """F(θ), given Aθ."""
        return float(weights @ (product / 2 - self.moment)) + self.square / 2

    def least_norm(self) -> Tensor:
        """A⁺v: of the weights with the least F, the shortest; for a quadratic with its spectrum."""
        values = self.spectrum.values
        kept = values > len(values) * torch.finfo(values.dtype).eps * values.max()
        return self.spectrum.back(torch.where(kept, self.spectrum.into(self.moment) / values, 0.0))

    def curvature(self) -> float:
        """The largest eigenvalue of A; where Lanczos has to find it, a little raised."""
        if self.spectrum is not None:
            return float(self.spectrum.values.max())
        r = len(self.moment)
        if r < 3:  # too small for Lanczos
            return float(torch.stack([self.apply(e) for e in torch.eye(r, dtype=torch.float64)]).norm())
        products = Products(
            (r, r), matvec=lambda x: self.apply(torch.from_numpy(x.reshape(-1))).numpy(), dtype=np.float64
        )
        start = np.random.default_rng(0).standard_normal(r)
        return CURVATURE_MARGIN * float(eigsh(products, k=1, tol=1e-3, v0=start, return_eigenvectors=False)[0])
