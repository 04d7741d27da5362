"""Kernel computations of an expansion f = Σ_j K(·, x_j) a_j: values, norms of its terms, and projections.

The projection of K(·, x)a on the functions K(·, z)b is K(·, z) K(z, z)⁺ K(z, x) a; the squared norm of the remainder is
‖K(·, x)a‖² − uᵀ K(z, z)⁺ u with u = K(z, x) a. A kernel k(x, z) Γ needs the scalar k only, any other its p × p blocks.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
import torch
from gpytorch.kernels import Kernel
from linear_operator import to_dense

from ovkgp.inference.algebra.dense import check_finite
from ovkgp.inference.posteriors.posterior import prior_covariance
from ovkgp.kernels import components


class KernelBlocks(ABC):
    """Geometry of the terms K(·, x_j) a_j, with float64 NumPy arrays.

    `self_blocks` derive from K(x, x), with one entry of the first axis per point. A `row` is the part of `cross` for
    one x.
    """

    entries: int
    """Number of entries that a pair of points takes."""

    @abstractmethod
    def self_blocks(self, X: np.ndarray) -> np.ndarray:
        """Return K(x, x) and derived quantities for each row of X (n, d)."""

    @abstractmethod
    def cross(self, X: np.ndarray, Z: np.ndarray) -> np.ndarray:
        """Return the rows for X (n, d); the first axis belongs to X, the second to Z (m, d)."""

    @abstractmethod
    def norms(self, self_blocks: np.ndarray) -> np.ndarray:
        """Return ‖K(x, x)‖ (n,)."""

    @abstractmethod
    def value(self, row: np.ndarray, coefficients: np.ndarray) -> np.ndarray:
        """Return Σ_j K(x, x_j) a_j (p,), for coefficients (m, p)."""

    @abstractmethod
    def squares(self, self_blocks: np.ndarray, coefficients: np.ndarray) -> np.ndarray:
        """Return ‖K(·, x_j) a_j‖² = a_jᵀ K(x_j, x_j) a_j, (m,)."""

    @abstractmethod
    def covered(self, row: np.ndarray, self_blocks: np.ndarray, coefficient: np.ndarray) -> np.ndarray:
        """Return the squared norm of the projection of K(·, x)a on each x_j, (m,)."""

    @abstractmethod
    def transfer(self, row: np.ndarray, self_blocks: np.ndarray, j: int, coefficient: np.ndarray) -> np.ndarray:
        """Return the coefficient of the projection on x_j: K(x_j, x_j)⁺ K(x_j, x) a, (p,)."""


class SeparableBlocks(KernelBlocks):
    """A kernel k(x, z) Γ: a row is k(x, x_j) (m,), self_blocks are k(x, x) (n,). O(m p) per row, O(m p²) for norms."""

    entries = 1

    def __init__(self, scalar: Kernel, output_matrix: torch.Tensor):
        self.scalar, self.matrix = scalar, output_matrix.detach().numpy()
        self.norm = float(np.linalg.norm(self.matrix, 2))

    @torch.no_grad()
    def self_blocks(self, X: np.ndarray) -> np.ndarray:
        return prior_covariance(self.scalar, torch.from_numpy(X), 1, "diag")[:, 0].numpy()

    def cross(self, X: np.ndarray, Z: np.ndarray) -> np.ndarray:
        return _evaluate(self.scalar, X, Z)

    def norms(self, self_blocks: np.ndarray) -> np.ndarray:
        return self_blocks * self.norm

    def value(self, row: np.ndarray, coefficients: np.ndarray) -> np.ndarray:
        return self.matrix @ (row @ coefficients)

    def squares(self, self_blocks: np.ndarray, coefficients: np.ndarray) -> np.ndarray:
        return self_blocks * ((coefficients @ self.matrix) * coefficients).sum(-1)

    def covered(self, row: np.ndarray, self_blocks: np.ndarray, coefficient: np.ndarray) -> np.ndarray:
        ratios = np.divide(row * row, self_blocks, out=np.zeros_like(row), where=self_blocks > 0)
        return ratios * (coefficient @ self.matrix @ coefficient)

    def transfer(self, row: np.ndarray, self_blocks: np.ndarray, j: int, coefficient: np.ndarray) -> np.ndarray:
        return coefficient * (row[j] / self_blocks[j] if self_blocks[j] > 0 else 0.0)


class DenseBlocks(KernelBlocks):
    """Any kernel: a row is K(x, x_j) (m, p, p), self_blocks are K(x, x) and K(x, x)⁺ (n, 2, p, p). O(m p²)."""

    def __init__(self, kernel: Kernel, num_outputs: int):
        self.kernel, self.num_outputs, self.entries = kernel, num_outputs, num_outputs**2
        self.parts = components(kernel)

    @torch.no_grad()
    def self_blocks(self, X: np.ndarray) -> np.ndarray:
        blocks = prior_covariance(self.kernel, torch.from_numpy(X), self.num_outputs, "output")
        blocks = blocks.expand(len(X), self.num_outputs, self.num_outputs)
        return torch.stack([blocks, torch.linalg.pinv(blocks, rtol=1e-10, hermitian=True)], 1).numpy()

    def cross(self, X: np.ndarray, Z: np.ndarray) -> np.ndarray:
        if self.parts is not None:
            return sum(_evaluate(k, X, Z)[:, :, None, None] * matrix.detach().numpy() for k, matrix in self.parts)
        p = self.num_outputs
        blocks = _evaluate(self.kernel, X, Z).reshape(len(X), p, len(Z), p)
        return np.ascontiguousarray(blocks.transpose(0, 2, 3, 1))  # so that K(x_j, x) a is one product for all rows

    def norms(self, self_blocks: np.ndarray) -> np.ndarray:
        return np.linalg.eigvalsh(self_blocks[:, 0])[:, -1].clip(0)

    def value(self, row: np.ndarray, coefficients: np.ndarray) -> np.ndarray:
        return coefficients.reshape(-1) @ row.reshape(-1, self.num_outputs)

    def squares(self, self_blocks: np.ndarray, coefficients: np.ndarray) -> np.ndarray:
        return _quadratic_forms(self_blocks[:, 0], coefficients)

    def covered(self, row: np.ndarray, self_blocks: np.ndarray, coefficient: np.ndarray) -> np.ndarray:
        return _quadratic_forms(
            self_blocks[:, 1], (row.reshape(-1, self.num_outputs) @ coefficient).reshape(-1, self.num_outputs)
        )

    def transfer(self, row: np.ndarray, self_blocks: np.ndarray, j: int, coefficient: np.ndarray) -> np.ndarray:
        return self_blocks[j, 1] @ (row[j] @ coefficient)


def make_kernel_blocks(kernel: Kernel, num_outputs: int) -> KernelBlocks:
    """Return the cheapest `KernelBlocks` of a kernel in float64."""
    parts = components(kernel)
    return SeparableBlocks(*parts[0]) if parts is not None and len(parts) == 1 else DenseBlocks(kernel, num_outputs)


@torch.no_grad()
def _evaluate(kernel: Kernel, X: np.ndarray, Z: np.ndarray) -> np.ndarray:
    matrix = to_dense(kernel(torch.from_numpy(X), torch.from_numpy(Z)))
    check_finite(matrix, "the kernel between the rows and the kept points")
    return matrix.numpy()


def _quadratic_forms(blocks: np.ndarray, vectors: np.ndarray) -> np.ndarray:
    """Return v_jᵀ M_j v_j (m,), for M (m, p, p) and v (m, p)."""
    size = vectors.shape[1] ** 2  # long rows, since NumPy multiplies small matrices one by one
    squares = (vectors[:, :, None] * vectors[:, None, :]).reshape(-1, size)
    return np.einsum("jk,jk->j", blocks.reshape(-1, size), squares)
