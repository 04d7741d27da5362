"""K + N of any operator-valued kernel by products alone, a chunk of rows of K at a time (BT-67, BT-78).

P̂ = N + L Lᵀ preconditions it, with L a pivoted Cholesky factor of K that looks only at the rows of its pivots. With N = S Sᵀ
and G = S⁻¹ L, both P̂⁻¹ and a square root of it are cheap:

    P̂⁻¹ = S⁻ᵀ (I + G Gᵀ)⁻¹ S⁻¹ = R Rᵀ,     R = S⁻ᵀ (I + G Gᵀ)^{-½},     (I + G Gᵀ)^{-a} = I − G E c_a(s) Eᵀ Gᵀ,   GᵀG = E s Eᵀ.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

import torch
from gpytorch.kernels import Kernel
from linear_operator import LinearOperator, to_dense
from torch import Tensor

from ovkgp.exceptions import OptionError
from ovkgp.inference.dense import check_finite
from ovkgp.inference.iterative import IterativeSolver
from ovkgp.inference.kronecker_sum import BlockNoise, DiagonalNoise, KroneckerSum
from ovkgp.inference.preconditioner import RESIDUAL, pivoted_cholesky
from ovkgp.inference.processes import KernelProcess, prior_covariance
from ovkgp.inference.quadratics import Quadratic, least_point

CHUNK_ENTRIES = 4_000_000
"""About how many entries of K one chunk of rows has (32 MB)."""

MAX_RANK, FACTOR_ENTRIES = 300, 16_000_000
"""The most columns of L, and the most entries (128 MB)."""


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
        ones = self.seen.to(self.X).unsqueeze(1)
        return KernelRows(self.process.kernel, self.X, self.seen).diagonal().sum().item() + (
            self.noise.apply(ones).abs().max().item()
        )


class KernelRows:
    """K between the n·p entries as `pivoted_cholesky` wants to see it: a diagonal, and rows on demand; zero where missing.

    Args:
        kernel: with p outputs.
        X: inputs (n, d).
        seen: which entries were observed, (n, p).

    Cost: O(n p²) time and memory a row.
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
    """P̂ = N + L Lᵀ; see the head of this module.

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
        >>> from ovkgp.inference.dual_products import KernelProducts, KernelRows, ProductSolver
        >>> from ovkgp.kernels import CurlFreeKernel
        >>> kernel, X, seen = CurlFreeKernel(RBFKernel(ard_num_dims=2)).double(), torch.randn(6, 2).double(), torch.ones(6, 2).bool()
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
        self.alpha = least_point(quadratic, rhs, method, tolerance, max_iter, verbose).squeeze(1)
        self.log_density, self.standard_error = rhs.new_tensor(torch.nan), float("nan")

    def tensors(self) -> dict[str, Tensor]:
        """Not without the kernel: an `OptionError`."""
        raise OptionError(
            "storing a posterior needs a factorised covariance, and this one was made by products alone: fit with "
            'solver="auto" or solver="closed_form".'
        )
