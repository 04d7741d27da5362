"""The dual problem (K + N) α = y − m of any operator-valued kernel by products alone, a chunk of rows of K at a time (BT-67, BT-78).

Nothing of size (n·p)² is formed: memory is that of one chunk, and of the preconditioner (`ovkgp.inference.row_preconditioner`).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

import torch
from gpytorch.kernels import Kernel
from linear_operator import LinearOperator, to_dense
from torch import Tensor

from ovkgp.exceptions import OptionError
from ovkgp.inference.iterative import IterativeSolver
from ovkgp.inference.kronecker_sum import BlockNoise, DiagonalNoise, KroneckerSum
from ovkgp.inference.processes import KernelProcess
from ovkgp.inference.quadratics import Quadratic, least_point
from ovkgp.inference.row_preconditioner import KernelRows, LowRankPreconditioner

CHUNK_ENTRIES = 4_000_000
"""About how many entries of K one chunk of rows has (32 MB)."""


class KernelProducts(KroneckerSum):
    """C = K + N between the observed entries, for a kernel that need not be separable; vectors as in `KroneckerSum`.

    Args:
        kernel: with p outputs.
        X: inputs (n, d).
        noise: variances (n, p) or (1, p), or covariances (n, p, p) or (1, p, p).
        seen: which entries were observed, (n, p).
        chunk_rows: rows at a time; as many as make `CHUNK_ENTRIES` where it is None.

    Cost of a product with k columns: O(n² p² k) time, and the kernel again unless one chunk holds all rows; memory for one
    chunk of rows, O(chunk · n p²).

    Example:
        >>> import torch
        >>> from gpytorch.kernels import RBFKernel
        >>> from ovkgp.inference.dual_products import KernelProducts
        >>> from ovkgp.kernels import CurlFreeKernel
        >>> X, seen = torch.randn(6, 2).double(), torch.ones(6, 2).bool()
        >>> kernel = CurlFreeKernel(RBFKernel(ard_num_dims=2)).double()
        >>> C = KernelProducts(kernel, X, torch.ones(1, 2).double(), seen, chunk_rows=4)
        >>> V = torch.randn(12, 3).double()
        >>> bool(torch.allclose(C.matmul(V), (kernel(X).to_dense() + torch.eye(12).double()) @ V))
        True
    """

    def __init__(self, kernel: Kernel, X: Tensor, noise: Tensor, seen: Tensor, chunk_rows: int | None = None):
        self.process, self.X, self.seen = KernelProcess(kernel, seen.shape[1]), X, seen
        self.mask = None if bool(seen.all()) else seen.to(noise).unsqueeze(1)
        self.noise = DiagonalNoise(noise, seen) if noise.dim() == 2 else BlockNoise(noise, seen)
        self.chunk_rows = chunk_rows or max(CHUNK_ENTRIES // (seen.numel() * seen.shape[1]), 1)

    def _rows(self) -> Iterator[LinearOperator | Tensor]:
        if len(self.X) <= self.chunk_rows:
            yield self._all_rows
        else:
            yield from (self.process.cross(part, self.X) for part in self.X.split(self.chunk_rows))

    @cached_property
    def _all_rows(self) -> Tensor:
        return to_dense(self.process.cross(self.X, self.X))

    @torch.no_grad()
    def apply(self, V: Tensor) -> Tensor:
        """C V for V (n, k, p), zero where missing."""
        columns = self.flat(V)
        product = torch.cat([rows @ columns for rows in self._rows()])
        return self.masked(product.unflatten(0, self.seen.shape).transpose(1, 2)) + self.noise.apply(V)

    def norm_bound(self) -> float:
        """An upper bound of the largest eigenvalue of C: the trace of K and the largest row sum of N. O(n p²)."""
        trace = KernelRows(self.process.kernel, self.X, self.seen).diagonal().sum().item()
        eye = torch.eye(self.seen.shape[1]).to(self.X).expand(len(self.X), -1, -1)
        return trace + self.noise.apply(self.masked(eye)).abs().sum(1).max().item()


class ProductSolver(IterativeSolver):
    """C⁻¹ of a covariance of which only products are known, for predictions.

    Args:
        covariance: C = K + N on the observed entries.
        rows: the same K, for the preconditioner.
        residuals: R (n, p), NaN where missing.
        method: "cg" or "lbfgs", for `alpha`; everything else takes conjugate gradients.
        tolerance: relative residual of the solves.
        max_iter: iterations of a solve.
        verbose: 1 shows the number of products.

    Cost: one product with C an iteration.

    Attributes:
        alpha: C⁻¹ r (n, p), zero where missing.
        log_density, standard_error: NaN; the log determinant is not computed by products alone.

    Example:
        >>> import torch
        >>> from gpytorch.kernels import RBFKernel
        >>> from ovkgp.inference.dual_products import KernelProducts, ProductSolver
        >>> from ovkgp.inference.row_preconditioner import KernelRows
        >>> from ovkgp.kernels import CurlFreeKernel
        >>> X, seen = torch.randn(6, 2).double(), torch.ones(6, 2).bool()
        >>> kernel = CurlFreeKernel(RBFKernel(ard_num_dims=2)).double()
        >>> C, R = KernelProducts(kernel, X, torch.ones(1, 2).double(), seen), torch.randn(6, 2).double()
        >>> solver = ProductSolver(C, KernelRows(kernel, X, seen), R)
        >>> bool(torch.allclose(C.matmul(solver.alpha.reshape(-1, 1)).view(6, 2), R))
        True
    """

    @torch.no_grad()
    def __init__(
        self,
        covariance: KroneckerSum,
        rows: KernelRows,
        residuals: Tensor,
        method: str = "cg",
        tolerance: float = 1e-9,
        max_iter: int = 1000,
        verbose: int = 0,
    ):
        self.covariance, self.tolerance, self.max_iterations = covariance, tolerance, max_iter
        self.preconditioner, self.norm = LowRankPreconditioner.of(covariance, rows), covariance.norm_bound()
        P = self.preconditioner
        quadratic = Quadratic(covariance.apply, P.solve, P.half, P.half_transposed, self.norm)
        rhs = residuals.nan_to_num().unsqueeze(1)
        found = least_point(quadratic, rhs, method, tolerance, max_iter, verbose)
        self.alpha, self.num_iterations = found.solution.squeeze(1), found.num_iterations
        self.log_density, self.standard_error = rhs.new_tensor(torch.nan), float("nan")

    def tensors(self) -> dict[str, Tensor]:
        """Not without the kernel: an `OptionError`."""
        raise OptionError(
            "storing a posterior needs a factorised covariance, and this one was made by products alone: fit with "
            'solver="auto" or solver="closed_form".'
        )
