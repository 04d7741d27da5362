"""C = Σ_q K_q ⊗ Γ_q + N between the observed entries, as an operator of O(n²) memory.

Vectors are kept padded, with zeros where an output is missing, and k of them as one tensor V of shape (n, k, p), so that both
sides of a Kronecker product are one matrix product each: (K ⊗ Γ) V is K (n, n) times (n, k·p), then (n·k, p) times Γ.
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
        self.variances = torch.where(observed, variances, 1.0).unsqueeze(
            1
        )  # (n, 1, p); what is not seen is zero anyway
        self.scale = self.variances.sqrt()

    def apply(self, V: Tensor) -> Tensor:
        return V * self.variances

    def solve(self, V: Tensor) -> Tensor:
        return V / self.variances

    def colour(self, V: Tensor) -> Tensor:
        """N^½ V: white noise becomes noise."""
        return V * self.scale

    def whiten(self, V: Tensor) -> Tensor:
        return V / self.scale

    def logdet(self) -> Tensor:
        return self.variances.log().sum()

    def inverse_blocks(self, observed: Tensor) -> Tensor:
        """N⁻¹ at each point (n, p, p), zero where an output was not seen."""
        return torch.diag_embed(observed / self.variances.squeeze(1))

    def smallest(self) -> float:
        """About the smallest eigenvalue of N."""
        return self.variances.min().item()


class BlockNoise:
    """N block-diagonal: the covariance (n, p, p) or (1, p, p) between the seen outputs of each point, inverted pattern by pattern."""

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

    def colour(self, V: Tensor) -> Tensor:
        return V @ self.chol.mT

    def whiten(self, V: Tensor) -> Tensor:
        return V @ self.inverse_root.mT

    def logdet(self) -> Tensor:
        logs = 2 * self.chol.diagonal(dim1=-2, dim2=-1).log().sum()
        return logs * (self.num_points if self.chol.dim() == 2 else 1)

    def inverse_blocks(self, observed: Tensor) -> Tensor:
        return torch.where(observed.unsqueeze(-1) & observed.unsqueeze(-2), self.precision, 0.0)

    def smallest(self) -> float:
        return 1 / self.precision.diagonal(dim1=-2, dim2=-1).max().item()


class KroneckerSum:
    """C = Σ_q K_q ⊗ Γ_q + N on the observed entries.

    Args:
        grams: the scalar Gram matrices K_q, each (n, n).
        output_matrices: the Γ_q, each (p, p).
        noise: variances (n, p), or (1, p) where all points share them; or covariances between the outputs of a point,
            (n, p, p), or (1, p, p) where all points share them.
        observed: which entries were observed, (n, p).

    Cost of a product with k columns: O(n² p k) a component; nothing of size (n·p)² is formed.

    Example:
        >>> import torch
        >>> from ovkgp.inference.algebra.kronecker_sum import KroneckerSum
        >>> I, observed = torch.eye(2).double(), torch.tensor([[True, False], [True, True]])
        >>> C = KroneckerSum([I], [3 * I], 0.5 * torch.ones(1, 2).double(), observed)
        >>> C.matmul(torch.tensor([[1.0], [0.0], [0.0], [2.0]]).double()).flatten()
        tensor([3.5000, 0.0000, 0.0000, 7.0000], dtype=torch.float64)
    """

    def __init__(self, grams: Sequence[Tensor], output_matrices: Sequence[Tensor], noise: Tensor, observed: Tensor):
        _check_shapes(grams, output_matrices, noise, observed)
        self.grams, self.output_matrices, self.observed = list(grams), list(output_matrices), observed
        self.mask = None if bool(observed.all()) else observed.to(noise).unsqueeze(1)  # (n, 1, p)
        self.noise = DiagonalNoise(noise, observed) if noise.dim() == 2 else BlockNoise(noise, observed)

    def masked(self, V: Tensor) -> Tensor:
        """V with zeros where nothing was seen."""
        return V if self.mask is None else V * self.mask

    def apply(self, V: Tensor) -> Tensor:
        """C V for V (n, k, p), zero where missing."""
        products = (times(K, V) @ G for K, G in zip(self.grams, self.output_matrices, strict=True))
        return self.masked(sum(products)) + self.noise.apply(V)

    def matmul(self, rhs: Tensor) -> Tensor:
        """C rhs for rhs (n·p, k), zero where missing."""
        return self.flat(self.apply(self.stacked(rhs)))

    def stacked(self, rhs: Tensor) -> Tensor:
        """(n·p, k) to (n, k, p), with zeros where nothing was seen, whatever was there."""
        stacked = rhs.unflatten(0, self.observed.shape).transpose(1, 2)
        return stacked.contiguous() if self.mask is None else torch.where(self.mask.bool(), stacked, 0.0)

    @staticmethod
    def flat(V: Tensor) -> Tensor:
        """(n, k, p) to (n·p, k)."""
        return V.transpose(1, 2).flatten(0, 1)

    def norm_bound(self) -> float:
        """An upper bound of the largest eigenvalue of C: the largest row sums. O(n²)."""
        pairs = zip(self.grams, self.output_matrices, strict=True)
        signal = sum(_row_sum(K) * _row_sum(G) for K, G in pairs)
        return signal + self.noise.apply(self.observed.to(self.grams[0]).unsqueeze(1)).abs().max().item()


def times(matrix: Tensor, V: Tensor) -> Tensor:
    """(a, n) times (n, k, p) over n, as one matrix product."""
    return (matrix @ V.flatten(1)).unflatten(1, V.shape[1:])


def _row_sum(matrix: Tensor) -> float:
    return torch.linalg.matrix_norm(matrix, ord=torch.inf).item()


def _check_shapes(grams: Sequence[Tensor], output_matrices: Sequence[Tensor], noise: Tensor, observed: Tensor) -> None:
    n, p = observed.shape
    if len(grams) == 0 or len(grams) != len(output_matrices):
        raise InputError(
            f"each component needs a Gram and an output matrix; got {len(grams)} and {len(output_matrices)}."
        )
    for name, size, matrices in (("Gram", n, grams), ("output", p, output_matrices)):
        wrong = [tuple(matrix.shape) for matrix in matrices if matrix.shape != (size, size)]
        if wrong:
            raise InputError(f"residuals {(n, p)} need {name} matrices of shape {(size, size)}; got {wrong[0]}.")
    if tuple(noise.shape) not in {(n, p), (1, p), (n, p, p), (1, p, p)}:
        raise InputError(
            f"noise must be variances {(n, p)} or {(1, p)}, or covariances {(n, p, p)} or {(1, p, p)} (a shared Σ is "
            f"Σ.unsqueeze(0)); got {tuple(noise.shape)}."
        )
