"""Iterative solution of the primal and the dual ridge problem with matrix products only (BT-67, BT-78).

    primal  (I + Φᵀ N⁻¹ Φ) θ = Φᵀ N⁻¹ (y − m),        dual  (K + N) α = y − m

Products run over chunks of rows of Φ or K, so neither r × r nor (n·p) × (n·p) matrices are formed.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property, partial

import torch
from gpytorch.kernels import Kernel
from linear_operator import LinearOperator, to_dense
from torch import Tensor

from ovkgp.exceptions import OptionError
from ovkgp.inference.algebra.dense import check_finite
from ovkgp.inference.algebra.iterative import IterativeSolver
from ovkgp.inference.algebra.kronecker_sum import (
    RESIDUAL_FRACTION,
    BlockNoise,
    DiagonalNoise,
    KroneckerSum,
    pivoted_cholesky,
)
from ovkgp.inference.algebra.krylov import (
    Quadratic,
    SketchedPreconditioner,
    minimize_quadratic,
    solve_with_refinement,
)
from ovkgp.inference.posteriors.posterior import KernelProcess, prior_covariance, select_form
from ovkgp.inference.ridge.weight_products import WeightProducts

CHUNK_COLUMNS = 256  # number of right-hand sides that are solved together
CHUNK_ENTRIES = 4_000_000  # approximate number of entries of K in one chunk of rows (32 MB)

MAX_RANK, MAX_FACTOR_ENTRIES = 300, 16_000_000
"""Maximum number of columns and of entries (128 MB) of the pivoted Cholesky factor L."""


class MatrixFreeSystem:
    """Posterior of the weights θ with the interface of `WeightSystem`, without an r × r matrix.

    `products` holds the data, which must not change afterwards. The posterior mean `weights` (r,) is given or computed
    by `method` ("cg" or "lbfgs"); variances and draws use conjugate gradients. `tolerance` is the relative residual of
    all solves. For the mean, ‖v − Cθ‖ is also compared to √((y − m)ᵀ N⁻¹ (y − m)), so that predictions at the data, in
    units of noise, are as accurate. `log_density` is NaN, since products do not give the log determinant. A solve with
    k columns costs O(n M p k) per iteration.
    """

    @torch.no_grad()
    def __init__(
        self,
        products: WeightProducts,
        weights: Tensor | None = None,
        num_iterations: int = 0,
        *,
        method: str = "cg",
        tolerance: float = 1e-9,
        max_iter: int | None = None,
        verbose: int = 0,
    ):
        self.products, self.tolerance = products, tolerance
        self.max_iter = default_iterations(products.num_features, "cg") if max_iter is None else max_iter
        self.log_density = torch.tensor(torch.nan, dtype=torch.float64)
        if weights is None:
            limit = default_iterations(products.num_features, method) if max_iter is None else max_iter
            moment = products.moment().unsqueeze(-1)
            norms = [torch.linalg.vector_norm(part).item() for part in (products.targets(), moment)]
            tolerance *= min(norms[0] / max(norms[1], 1e-300), 1.0)
            found = minimize_quadratic(self.quadratic, moment, method, tolerance, limit, verbose)
            weights, num_iterations = found.solution.flatten(), found.num_iterations
        self.weights, self.num_iterations = weights, num_iterations

    @cached_property
    def preconditioner(self) -> SketchedPreconditioner:
        """Return P̂ ≈ C."""
        products = self.products
        return SketchedPreconditioner(products.apply, products.num_features, like=products.data.X)

    @property
    def quadratic(self) -> Quadratic:
        """Return C as an operator on vectors (r, k, 1)."""
        P, half = self.preconditioner, partial(self.preconditioner.power, power=0.5)
        return Quadratic(self._apply, partial(P.power, power=1.0), half, half, 1 + self.products.trace)

    def _apply(self, V: Tensor) -> Tensor:
        return self.products.apply(V.squeeze(-1)).unsqueeze(-1)

    @property
    def num_features(self) -> int:
        return len(self.weights)

    @torch.no_grad()
    def solve(self, columns: Tensor) -> Tensor:
        """Return C⁻¹ columns, (r, k) → (r, k)."""
        C = self.quadratic
        options = self.tolerance, self.max_iter, C.norm
        parts = [
            solve_with_refinement(C.apply, C.precondition, part[..., None], *options).solution
            for part in columns.split(CHUNK_COLUMNS, 1)
        ]
        return torch.cat(parts, 1).squeeze(-1)

    def variance(self, Phi: LinearOperator, form: str = "diag", num_outputs: int | None = None) -> Tensor:
        """Return Cov(Φ_* θ | y) = Φ_* C⁻¹ Φ_*ᵀ: (m, q) for "diag", (m, q, q) for "output", (m·q, m·q) for "full".

        If `num_outputs` is None, q is that of Φ_*. Complexity: one solve per row of Φ_*; O(m q (r + m q)) memory.
        """
        rows = to_dense(Phi)
        full = rows @ self.solve(rows.detach().mT)
        return select_form((full + full.mT) / 2, Phi.num_outputs if num_outputs is None else num_outputs, form)

    def draw(self, k: int, generator: torch.Generator | None = None) -> Tensor:
        """Draw k samples of the weights, (k, r), with one solve each."""
        prior = torch.randn(self.num_features, k, generator=generator, dtype=torch.float64).to(self.weights.device)
        return self.weights + self.solve(prior + self.products.noise_draws(k, generator)).mT

    def path(self, multipliers: Tensor) -> Tensor:
        raise _needs_factor("The evidence along a path of noise levels")

    def path_weights(self, multiplier: float) -> Tensor:
        raise _needs_factor("The path of weights")


class ProductSolver(IterativeSolver):
    """C⁻¹ for predictions, for a covariance C = K + N that is known by its products only.

    `rows` gives K to the preconditioner, `residuals` (n, p) are NaN where missing, and `method` ("cg" or "lbfgs")
    computes `alpha` = C⁻¹ r (n, p); all other solves use conjugate gradients. `log_density` and `standard_error` are
    NaN, since products do not give the log determinant. Complexity: one product with C per iteration.
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
        self.preconditioner, self.norm = LowRankPreconditioner.from_rows(covariance, rows), covariance.norm_bound()
        P = self.preconditioner
        quadratic = Quadratic(covariance.apply, P.solve, P.half, P.half_transposed, self.norm)
        rhs = residuals.nan_to_num().unsqueeze(1)
        found = minimize_quadratic(quadratic, rhs, method, tolerance, max_iter, verbose)
        self.alpha, self.num_iterations = found.solution.squeeze(1), found.num_iterations
        self.log_density, self.standard_error = rhs.new_tensor(torch.nan), float("nan")


class KernelProducts(KroneckerSum):
    """C = K + N between the observed entries for any operator-valued kernel; vectors as in `KroneckerSum`.

    Complexity of a product with k columns: O(n² p² k); the kernel is evaluated again unless one chunk of `chunk_rows`
    holds all rows. Memory: O(chunk_rows · n p²).
    """

    def __init__(self, kernel: Kernel, X: Tensor, noise: Tensor, observed: Tensor, chunk_rows: int | None = None):
        self.process, self.X, self.observed = KernelProcess(kernel, observed.shape[1]), X, observed
        self.mask = None if bool(observed.all()) else observed.to(noise).unsqueeze(1)
        self.noise = DiagonalNoise(noise, observed) if noise.dim() == 2 else BlockNoise(noise, observed)
        self.chunk_rows = chunk_rows or max(CHUNK_ENTRIES // (observed.numel() * observed.shape[1]), 1)

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
        """Return C V for V (n, k, p), zero where missing."""
        columns = self.flatten(V)
        product = torch.cat([rows @ columns for rows in self._rows()])
        return self.zero_missing(product.unflatten(0, self.observed.shape).transpose(1, 2)) + self.noise.apply(V)

    def norm_bound(self) -> float:
        """Return an upper bound of the largest eigenvalue of C: tr K plus the largest row sum of N. O(n p²)."""
        trace = KernelRows(self.process.kernel, self.X, self.observed).diagonal().sum().item()
        eye = torch.eye(self.observed.shape[1]).to(self.X).expand(len(self.X), -1, -1)
        return trace + self.noise.apply(self.zero_missing(eye)).abs().sum(1).max().item()


class KernelRows:
    """K between the n·p entries for `pivoted_cholesky`: its diagonal, and rows on demand; zero where missing.

    Complexity: O(n p²) time and memory per row.
    """

    def __init__(self, kernel: Kernel, X: Tensor, observed: Tensor):
        self.process, self.X, self.observed = KernelProcess(kernel, observed.shape[1]), X, observed.flatten().to(X)

    def __len__(self) -> int:
        return len(self.observed)

    def new_zeros(self, *shape: int) -> Tensor:
        return self.X.new_zeros(*shape)

    @torch.no_grad()
    def diagonal(self) -> Tensor:
        """Return the diagonal (n·p,)."""
        p = self.process.num_outputs
        return prior_covariance(self.process.kernel, self.X, p, "diag").flatten() * self.observed

    @torch.no_grad()
    def __getitem__(self, entry: int) -> Tensor:
        """Return the row (n·p,) of one entry."""
        point, output = divmod(entry, self.process.num_outputs)
        return to_dense(self.process.cross(self.X[point : point + 1], self.X))[output] * self.observed


class LowRankPreconditioner:
    """P̂ = N + L Lᵀ with its inverse and a root R of the inverse, for L (n·p, R) zero where missing.

    Complexity: O(n p R²) once, and O(n p R k) for k columns; O(n p R) memory.
    """

    def __init__(self, covariance: KroneckerSum, factor: Tensor):
        self.covariance, self.noise = covariance, covariance.noise
        whitened = covariance.flatten(self.noise.whiten(covariance.stack(factor)))
        values, vectors = torch.linalg.eigh(whitened.mT @ whitened)
        self.root = whitened @ vectors  # G E
        self.scale = (1 + values.clamp_min(0)).sqrt()

    @classmethod
    def from_rows(cls, covariance: KroneckerSum, rows: KernelRows) -> LowRankPreconditioner:
        """Build L by pivoted Cholesky until the remaining variance is small relative to the noise, or `MAX_RANK`."""
        check_finite(rows.diagonal(), "the diagonal of the kernel")
        rank = min(MAX_RANK, max(MAX_FACTOR_ENTRIES // len(rows), 1))
        return cls(covariance, pivoted_cholesky(rows, rank, RESIDUAL_FRACTION * covariance.noise.min_variance()))

    def _deflate(self, V: Tensor, fractions: Tensor) -> Tensor:
        """Return V − G E diag(fractions) Eᵀ Gᵀ V."""
        V = self.covariance.flatten(V)
        reduced = V - self.root @ (fractions.unsqueeze(-1) * (self.root.mT @ V))
        return self.covariance.stack(reduced)

    def solve(self, V: Tensor) -> Tensor:
        """Return P̂⁻¹ V for V (n, k, p)."""
        inner = self._deflate(self.noise.whiten(V), self.scale**-2)
        return self._unwhiten(inner)

    def half(self, V: Tensor) -> Tensor:
        """Return R V."""
        return self._unwhiten(self._deflate(V, 1 / (self.scale * (self.scale + 1))))

    def half_transposed(self, V: Tensor) -> Tensor:
        """Return Rᵀ V."""
        return self._deflate(self.noise.whiten(V), 1 / (self.scale * (self.scale + 1)))

    def _unwhiten(self, V: Tensor) -> Tensor:
        """Return S⁻ᵀ V = N⁻¹ S V."""
        return self.noise.solve(self.noise.unwhiten(V))


def default_iterations(size: int, method: str) -> int:
    """Return an iteration limit that a problem with `size` unknowns does not reach in exact arithmetic."""
    return max(1000, 2 * size) * (1 if method == "cg" else 20)


def _needs_factor(feature: str) -> OptionError:
    return OptionError(
        f'{feature} is not supported by matrix-free solvers, as it requires a factorized matrix. Fit with solver="auto" or solver="closed_form".'
    )
