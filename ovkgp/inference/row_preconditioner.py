"""P̂ = N + L Lᵀ ≈ K + N for any operator-valued kernel, with L a pivoted Cholesky factor that looks only at its pivots' rows.

With N = S Sᵀ and G = S⁻¹ L, both P̂⁻¹ and a square root of it are cheap:

    P̂⁻¹ = S⁻ᵀ (I + G Gᵀ)⁻¹ S⁻¹ = R Rᵀ,     R = S⁻ᵀ (I + G Gᵀ)^{-½},     (I + G Gᵀ)^{-a} = I − G E c_a(s) Eᵀ Gᵀ,   GᵀG = E s Eᵀ.
"""

from __future__ import annotations

import torch
from gpytorch.kernels import Kernel
from linear_operator import to_dense
from torch import Tensor

from ovkgp.inference.dense import check_finite
from ovkgp.inference.kronecker_sum import KroneckerSum
from ovkgp.inference.preconditioner import RESIDUAL, pivoted_cholesky
from ovkgp.inference.processes import KernelProcess, prior_covariance

MAX_RANK, FACTOR_ENTRIES = 300, 16_000_000
"""The most columns of L, and the most entries (128 MB)."""


class KernelRows:
    """K between the n·p entries as `pivoted_cholesky` wants to see it: a diagonal, and rows on demand; zero where missing.

    Args:
        kernel: with p outputs.
        X: inputs (n, d).
        seen: which entries were observed, (n, p).

    Cost: O(n p²) time and memory a row.

    Example:
        >>> import torch
        >>> from gpytorch.kernels import RBFKernel
        >>> from ovkgp.inference.preconditioner import pivoted_cholesky
        >>> from ovkgp.inference.row_preconditioner import KernelRows
        >>> from ovkgp.kernels import CurlFreeKernel
        >>> X, kernel = torch.randn(6, 2).double(), CurlFreeKernel(RBFKernel(ard_num_dims=2)).double()
        >>> L = pivoted_cholesky(KernelRows(kernel, X, torch.ones(6, 2).bool()), max_rank=12, tolerance=1e-12)
        >>> bool(torch.allclose(L @ L.mT, kernel(X).to_dense()))
        True
    """

    def __init__(self, kernel: Kernel, X: Tensor, seen: Tensor):
        self.process, self.X, self.seen = KernelProcess(kernel, seen.shape[1]), X, seen.flatten().to(X)

    def __len__(self) -> int:
        return len(self.seen)

    def new_zeros(self, *shape: int) -> Tensor:
        return self.X.new_zeros(*shape)

    @torch.no_grad()
    def diagonal(self) -> Tensor:
        """(n·p,)."""
        p = self.process.num_outputs
        return prior_covariance(self.process.kernel, self.X, p, "diag").flatten() * self.seen

    @torch.no_grad()
    def __getitem__(self, entry: int) -> Tensor:
        """The row (n·p,) of one entry."""
        point, output = divmod(entry, self.process.num_outputs)
        return to_dense(self.process.cross(self.X[point : point + 1], self.X))[output] * self.seen


class LowRankPreconditioner:
    """P̂ = N + L Lᵀ, with P̂⁻¹ and its root R.

    Args:
        covariance: C, whose N is used.
        factor: L (n·p, R), zero where missing.

    Cost: O(n p R²) once, and O(n p R k) for k columns; O(n p R) memory.
    """

    def __init__(self, covariance: KroneckerSum, factor: Tensor):
        self.covariance, self.noise = covariance, covariance.noise
        whitened = covariance.flat(self.noise.whiten(covariance.stacked(factor)))
        values, vectors = torch.linalg.eigh(whitened.mT @ whitened)
        self.root = whitened @ vectors  # G E
        self.scale = (1 + values.clamp_min(0)).sqrt()

    @classmethod
    def of(cls, covariance: KroneckerSum, rows: KernelRows) -> LowRankPreconditioner:
        """With the pivots that leave little variance against the noise, or as many as there is room for."""
        check_finite(rows.diagonal(), "the diagonal of the kernel")
        rank = min(MAX_RANK, max(FACTOR_ENTRIES // len(rows), 1))
        return cls(covariance, pivoted_cholesky(rows, rank, RESIDUAL * covariance.noise.smallest()))

    def _less(self, V: Tensor, shares: Tensor) -> Tensor:
        """V − G E diag(shares) Eᵀ Gᵀ V."""
        V = self.covariance.flat(V)
        reduced = V - self.root @ (shares.unsqueeze(-1) * (self.root.mT @ V))
        return self.covariance.stacked(reduced)

    def solve(self, V: Tensor) -> Tensor:
        """P̂⁻¹ V for V (n, k, p)."""
        inner = self._less(self.noise.whiten(V), self.scale**-2)
        return self._unwhiten(inner)

    def half(self, V: Tensor) -> Tensor:
        """R V."""
        return self._unwhiten(self._less(V, 1 / (self.scale * (self.scale + 1))))

    def half_transposed(self, V: Tensor) -> Tensor:
        """Rᵀ V."""
        return self._less(self.noise.whiten(V), 1 / (self.scale * (self.scale + 1)))

    def _unwhiten(self, V: Tensor) -> Tensor:
        """S⁻ᵀ V = N⁻¹ S V."""
        return self.noise.solve(self.noise.colour(V))
