"""C = Σ_q K_q ⊗ Γ_q + N between the observed entries, as an operator with O(n²) memory.

Vectors are padded with zeros for missing outputs, and k of them are one tensor V (n, k, p), so that both sides of a
Kronecker product are one matrix product each: (K ⊗ Γ) V is K (n, n) times (n, k·p), then (n·k, p) times Γ.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ovkgp.exceptions import InputError
from ovkgp.inference.algebra.dense import safe_cholesky


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
    """C = Σ_q K_q ⊗ Γ_q + N on the observed entries (n, p). O(n² p k) per component for a product with k columns.

    `grams` are the K_q (n, n) and `output_matrices` the Γ_q (p, p). `noise` is variances (n, p) or covariances between
    the outputs of a point (n, p, p), with first axis 1 if all points share them.
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
