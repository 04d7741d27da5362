"""What an expansion f = Σ_j K(·, x_j) a_j asks of its kernel: values at a row, norms of its terms, and how much of a new term the
others can take over.

K(·, x)a projected on the functions K(·, z)b is K(·, z) K(z, z)⁺ K(z, x) a, and leaves ‖K(·, x)a‖² − uᵀ K(z, z)⁺ u, u = K(z, x) a.
One kernel k(x, z) Γ needs the scalar k alone; any other its p × p blocks.
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


class Blocks(ABC):
    """The geometry of the terms K(·, x_j) a_j; arrays are NumPy's, in float64.

    `own` is what a point carries of itself, one entry of the first axis each, and a `row` is what `cross` says of one x and
    some points x_j.
    """

    entries: int
    """How many numbers a pair of points takes."""

    @abstractmethod
    def own(self, X: np.ndarray) -> np.ndarray:
        """K(x, x) and what follows from it, for each of X (n, d)."""

    @abstractmethod
    def cross(self, X: np.ndarray, Z: np.ndarray) -> np.ndarray:
        """Rows for X (n, d): the first axis is that of X, the second that of Z (m, d)."""

    @abstractmethod
    def norms(self, own: np.ndarray) -> np.ndarray:
        """‖K(x, x)‖ (n,)."""

    @abstractmethod
    def value(self, row: np.ndarray, coefficients: np.ndarray) -> np.ndarray:
        """Σ_j K(x, x_j) a_j (p,), for coefficients (m, p)."""

    @abstractmethod
    def squares(self, own: np.ndarray, coefficients: np.ndarray) -> np.ndarray:
        """‖K(·, x_j) a_j‖² = a_jᵀ K(x_j, x_j) a_j, (m,)."""

    @abstractmethod
    def covered(self, row: np.ndarray, own: np.ndarray, coefficient: np.ndarray) -> np.ndarray:
        """The square of the norm of K(·, x)a that each x_j can take over, (m,)."""

    @abstractmethod
    def transfer(self, row: np.ndarray, own: np.ndarray, j: int, coefficient: np.ndarray) -> np.ndarray:
        """What x_j takes over: K(x_j, x_j)⁺ K(x_j, x) a, (p,)."""


class SeparableBlocks(Blocks):
    """A kernel k(x, z) Γ. A row is k(x, x_j) (m,), own is k(x, x) (n,). O(m p) a row, and O(m p²) for norms."""

    entries = 1

    def __init__(self, scalar: Kernel, output_matrix: torch.Tensor):
        self.scalar, self.matrix = scalar, output_matrix.detach().numpy()
        self.norm = float(np.linalg.norm(self.matrix, 2))

    @torch.no_grad()
    def own(self, X: np.ndarray) -> np.ndarray:
        return prior_covariance(self.scalar, torch.from_numpy(X), 1, "diag")[:, 0].numpy()

    def cross(self, X: np.ndarray, Z: np.ndarray) -> np.ndarray:
        return _evaluated(self.scalar, X, Z)

    def norms(self, own: np.ndarray) -> np.ndarray:
        return own * self.norm

    def value(self, row: np.ndarray, coefficients: np.ndarray) -> np.ndarray:
        return self.matrix @ (row @ coefficients)

    def squares(self, own: np.ndarray, coefficients: np.ndarray) -> np.ndarray:
        return own * ((coefficients @ self.matrix) * coefficients).sum(-1)

    def covered(self, row: np.ndarray, own: np.ndarray, coefficient: np.ndarray) -> np.ndarray:
        ratios = np.divide(row * row, own, out=np.zeros_like(row), where=own > 0)
        return ratios * (coefficient @ self.matrix @ coefficient)

    def transfer(self, row: np.ndarray, own: np.ndarray, j: int, coefficient: np.ndarray) -> np.ndarray:
        return coefficient * (row[j] / own[j] if own[j] > 0 else 0.0)


class DenseBlocks(Blocks):
    """Any kernel. A row is K(x, x_j) (m, p, p), own is K(x, x) and its pseudo-inverse (n, 2, p, p). O(m p²) a row."""

    def __init__(self, kernel: Kernel, num_outputs: int):
        self.kernel, self.num_outputs, self.entries = kernel, num_outputs, num_outputs**2
        self.parts = components(kernel)

    @torch.no_grad()
    def own(self, X: np.ndarray) -> np.ndarray:
        blocks = prior_covariance(self.kernel, torch.from_numpy(X), self.num_outputs, "output")
        blocks = blocks.expand(len(X), self.num_outputs, self.num_outputs)
        return torch.stack([blocks, torch.linalg.pinv(blocks, rtol=1e-10, hermitian=True)], 1).numpy()

    def cross(self, X: np.ndarray, Z: np.ndarray) -> np.ndarray:
        if self.parts is not None:
            return sum(_evaluated(k, X, Z)[:, :, None, None] * matrix.detach().numpy() for k, matrix in self.parts)
        p = self.num_outputs
        blocks = _evaluated(self.kernel, X, Z).reshape(len(X), p, len(Z), p)
        return np.ascontiguousarray(blocks.transpose(0, 2, 3, 1))  # K(x_j, x) a is then one product with all rows

    def norms(self, own: np.ndarray) -> np.ndarray:
        return np.linalg.eigvalsh(own[:, 0])[:, -1].clip(0)

    def value(self, row: np.ndarray, coefficients: np.ndarray) -> np.ndarray:
        return coefficients.reshape(-1) @ row.reshape(-1, self.num_outputs)

    def squares(self, own: np.ndarray, coefficients: np.ndarray) -> np.ndarray:
        return _forms(own[:, 0], coefficients)

    def covered(self, row: np.ndarray, own: np.ndarray, coefficient: np.ndarray) -> np.ndarray:
        return _forms(own[:, 1], (row.reshape(-1, self.num_outputs) @ coefficient).reshape(-1, self.num_outputs))

    def transfer(self, row: np.ndarray, own: np.ndarray, j: int, coefficient: np.ndarray) -> np.ndarray:
        return own[j, 1] @ (row[j] @ coefficient)


def blocks_of(kernel: Kernel, num_outputs: int) -> Blocks:
    """The cheapest `Blocks` of a kernel in float64.

    Example:
        >>> from gpytorch.kernels import RBFKernel
        >>> from ovkgp.inference.ridge.online_blocks import blocks_of
        >>> from ovkgp.kernels import CurlFreeKernel, DecomposableKernel
        >>> type(blocks_of(DecomposableKernel(RBFKernel(), num_outputs=2).double(), 2)).__name__
        'SeparableBlocks'
        >>> type(blocks_of(CurlFreeKernel(RBFKernel(), num_dims=2).double(), 2)).__name__
        'DenseBlocks'
    """
    parts = components(kernel)
    return SeparableBlocks(*parts[0]) if parts is not None and len(parts) == 1 else DenseBlocks(kernel, num_outputs)


@torch.no_grad()
def _evaluated(kernel: Kernel, X: np.ndarray, Z: np.ndarray) -> np.ndarray:
    matrix = to_dense(kernel(torch.from_numpy(X), torch.from_numpy(Z)))
    check_finite(matrix, "the kernel between the rows and the kept points")
    return matrix.numpy()


def _forms(blocks: np.ndarray, vectors: np.ndarray) -> np.ndarray:
    """v_jᵀ M_j v_j (m,), for M (m, p, p) and v (m, p)."""
    size = vectors.shape[1] ** 2  # long rows in place of small matrices, which NumPy multiplies one by one
    squares = (vectors[:, :, None] * vectors[:, None, :]).reshape(-1, size)
    return np.einsum("jk,jk->j", blocks.reshape(-1, size), squares)
