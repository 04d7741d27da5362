"""Iterative solution of the primal and the dual ridge problem with matrix products only (BT-67, BT-78).

    primal  (I + Φᵀ N⁻¹ Φ) θ = Φᵀ N⁻¹ (y − m),        dual  (K + N) α = y − m

Products run over chunks of rows of Φ or K, so neither r × r nor (n·p) × (n·p) matrices are formed. With the whitened features
Ψ = N^{-½} Φ and z = N^{-½} (y − m), C = I + ΨᵀΨ, v = Ψᵀz, and ∇ = C θ − v is the gradient (6.9) of the ridge objective
½ ‖z − Ψθ‖² + ½ ‖θ‖² (BT-70, BT-75, BT-77).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property, partial

import torch
from gpytorch.kernels import Kernel
from linear_operator import LinearOperator, to_dense
from torch import Tensor

from ovkgp.exceptions import OptionError
from ovkgp.features import FeatureMap
from ovkgp.features.operators import FEATURE_CHUNK_ENTRIES
from ovkgp.inference.algebra.dense import check_finite, gram
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
from ovkgp.inference.model.mean_noise import OutputMean, OutputNoise
from ovkgp.inference.model.observations import Observations
from ovkgp.inference.posteriors.posterior import KernelProcess, prior_covariance, select_form
from ovkgp.inference.statistics.accumulation import CHUNK_ROWS, whitening_roots

CHUNK_COLUMNS = 256  # number of right-hand sides that are solved together

MAX_RANK, MAX_FACTOR_ENTRIES = 300, 16_000_000
"""Maximum number of columns and of entries (128 MB) of the pivoted Cholesky factor L."""

Chunk = tuple[LinearOperator, Tensor, slice]  # Φ_c, N_c^{-½} (n_c or 1, p, p), and the rows of the chunk


class WeightProducts:
    """Products with Ψ, Ψᵀ and C = I + ΨᵀΨ. Values at the rows are (n, p), whitened, and zero where missing.

    `noise` is ignored if the data have known noise variances. If `chunk_rows` is None, a chunk has about
    `FEATURE_CHUNK_ENTRIES` entries. Complexity: O(n M p k) for k columns and M scalar features, which are evaluated again in
    each product unless one chunk holds all rows; memory for one chunk.
    """

    def __init__(
        self,
        feature_map: FeatureMap,
        mean: OutputMean,
        noise: OutputNoise,
        data: Observations,
        chunk_rows: int | None = None,
    ):
        self.feature_map, self.mean, self.noise, self.data = feature_map, mean, noise, data
        self.chunk_rows = chunk_rows or max(FEATURE_CHUNK_ENTRIES // (self.num_features * data.num_outputs), 1)

    @property
    def num_features(self) -> int:
        return self.feature_map.num_features

    def chunks(self) -> Iterator[Chunk]:
        """Iterate over the chunks."""
        if self.data.num_rows <= self.chunk_rows:
            yield self._only_chunk
        else:
            yield from (self._chunk(start) for start in range(0, self.data.num_rows, self.chunk_rows))

    @cached_property
    def _only_chunk(self) -> Chunk:
        return self._chunk(0)

    @torch.no_grad()
    def _chunk(self, start: int) -> Chunk:
        rows = slice(start, min(start + self.chunk_rows, self.data.num_rows))
        chunk = self.data.rows(rows).double()
        return self.feature_map(chunk.X), self._root(chunk), rows

    @torch.no_grad()
    def targets(self) -> Tensor:
        """Return z = N^{-½} (y − m), (n, p)."""
        parts = []
        for start in range(0, self.data.num_rows, CHUNK_ROWS):
            chunk = self.data.rows(slice(start, start + CHUNK_ROWS)).double()
            values = torch.where(chunk.observed, chunk.Y - self.mean(chunk.X), 0.0)
            parts.append((self._root(chunk) @ values.unsqueeze(-1)).squeeze(-1))
        return torch.cat(parts)

    def _root(self, chunk: Observations) -> Tensor:
        return whitening_roots(chunk, None if chunk.noise is not None else self.noise.matrix())

    def forward(self, weights: Tensor) -> Tensor:
        """Return Ψ θ as (n, p) for θ (r,); columns (r, k) give (n·p, k)."""
        columns = weights if weights.dim() == 2 else weights.unsqueeze(-1)
        values = torch.cat([_by_row(root, Phi @ columns) for Phi, root, _ in self.chunks()])
        return values if weights.dim() == 2 else values.view(-1, self.data.num_outputs)

    def adjoint(self, values: Tensor) -> Tensor:
        """Return Ψᵀ values (r,), for values (n, p)."""
        return self.adjoint_columns(values.reshape(-1, 1)).squeeze(-1)

    def adjoint_columns(self, values: Tensor) -> Tensor:
        """Return Ψᵀ values (r, k), for values (n·p, k)."""
        p = self.data.num_outputs
        parts = ((Phi, root, values[rows.start * p : rows.stop * p]) for Phi, root, rows in self.chunks())
        return sum(Phi.mT @ _by_row(root.mT, part) for Phi, root, part in parts)

    def moment(self) -> Tensor:
        """Return v = Ψᵀ z, (r, 1)."""
        return self.adjoint_columns(self.targets().reshape(-1, 1))

    def apply(self, weights: Tensor) -> Tensor:
        """Return C θ (r, k), for θ (r, k)."""
        return weights + sum(Phi.mT @ _by_row(root.mT @ root, Phi @ weights) for Phi, root, _ in self.chunks())

    def matrix(self) -> Tensor:
        """Return A = ΨᵀΨ (r, r), accumulated over chunks of Φ (Algorithm 3). O(n p r²)."""
        return sum(gram(rows) for rows in self.whitened_rows())

    @cached_property
    def trace(self) -> float:
        """Return the trace of A, an upper bound of its largest eigenvalue. O(n p r)."""
        return sum(rows.square().sum().item() for rows in self.whitened_rows())

    def whitened_rows(self) -> Iterator[Tensor]:
        """Iterate over the dense rows of Ψ, one chunk at a time."""
        for Phi, root, _ in self.chunks():
            yield (root @ to_dense(Phi).unflatten(0, (-1, root.shape[-1]))).flatten(0, 1)

    def noise_draws(self, k: int, generator: torch.Generator | None = None) -> Tensor:
        """Draw k vectors (r, k) from N(0, A): Ψᵀ times white noise."""
        total = 0
        for Phi, root, _ in self.chunks():
            scores = torch.randn(Phi.shape[-2], k, generator=generator, dtype=torch.float64).to(root.device)
            total = total + Phi.mT @ _by_row(root.mT, scores)
        return total


def _by_row(blocks: Tensor, columns: Tensor) -> Tensor:
    """Apply blocks (n or 1, p, p) to each row's part of (n·p, k)."""
    return (blocks @ columns.unflatten(0, (-1, blocks.shape[-1]))).flatten(0, 1)


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
    def quadratic(self) -> Quadratic:
        """Return C as an operator on vectors (r, k, 1)."""
        products = self.products
        return sketched_quadratic(products.apply, products.num_features, 1 + products.trace, products.data.X)

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

    def path(self, multipliers) -> Tensor:
        raise OptionError(
            'A path of noise levels is not supported by matrix-free solvers, as it requires a factorized matrix. Fit with solver="auto" or solver="closed_form".'
        )

    path_weights = path


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
        check_finite(rows.diagonal(), "the diagonal of the kernel")
        rank = min(MAX_RANK, max(MAX_FACTOR_ENTRIES // len(rows), 1))
        factor = pivoted_cholesky(rows, rank, RESIDUAL_FRACTION * covariance.noise.min_variance())
        self.preconditioner = P = LowRankPreconditioner(covariance, factor)
        self.norm = covariance.norm_bound()
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
        self.chunk_rows = chunk_rows or max(FEATURE_CHUNK_ENTRIES // (observed.numel() * observed.shape[1]), 1)

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


def sketched_quadratic(apply: Callable[[Tensor], Tensor], size: int, norm: float, like: Tensor) -> Quadratic:
    """Return C = I + A with V ↦ C V for V (size, k) as an operator on vectors (size, k, 1), and P̂ ≈ C from a sketch."""
    power = SketchedPreconditioner(apply, size, like=like).power
    half = partial(power, power=0.5)
    return Quadratic(partial(_apply_columns, apply), partial(power, power=1.0), half, half, norm)


def _apply_columns(apply: Callable[[Tensor], Tensor], V: Tensor) -> Tensor:
    return apply(V.squeeze(-1)).unsqueeze(-1)


def default_iterations(size: int, method: str) -> int:
    """Return an iteration limit that a problem with `size` unknowns does not reach in exact arithmetic."""
    return max(1000, 2 * size) * (1 if method == "cg" else 20)
