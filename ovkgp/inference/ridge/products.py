"""The dual problem (K + N) α = y − m of any operator-valued kernel by products alone, a chunk of rows of K at a time (BT-67, BT-78).

Nothing of size (n·p)² is formed: memory is that of one chunk, and of the preconditioner (`ovkgp.inference.ridge.products`).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property, partial

import torch
from gpytorch.kernels import Kernel
from linear_operator import LinearOperator, to_dense
from torch import Tensor

from ovkgp.exceptions import OptionError
from ovkgp.inference.algebra.dense import check_finite, check_form
from ovkgp.inference.algebra.iterative import IterativeSolver
from ovkgp.inference.algebra.kronecker_sum import BlockNoise, DiagonalNoise, KroneckerSum
from ovkgp.inference.algebra.krylov import Quadratic, least_point, refined_solve
from ovkgp.inference.algebra.preconditioners import RESIDUAL, SketchedPreconditioner, pivoted_cholesky
from ovkgp.inference.posteriors.posterior import KernelProcess, of_form, prior_covariance
from ovkgp.inference.ridge.weight_products import WeightProducts

CHUNK_COLUMNS = 256
"""Right-hand sides that are solved together."""


class MatrixFreeSystem:
    """θ | y with the interface of `WeightSystem`, for a `WeightPosterior`. It keeps the data, and no r × r matrix.

    Args:
        products: C and v; its data must not change any more.
        weights: the posterior mean (r,), where it is known; found by `method` otherwise.
        num_iterations: how many it took, where it is known.
        method: "cg" or "lbfgs", for the mean; variances and draws always take conjugate gradients.
        tolerance: relative residual of all solves. That of the mean is also held against the data, ‖v − Cθ‖ below this part
            of √((y − m)ᵀ N⁻¹ (y − m)): predictions at the data, in units of noise, are then as close to the exact ones.
        max_iter: iterations of a solve; by default more than enough for all but singular problems.
        verbose: 1 shows the number of products.

    Cost: a solve with k columns takes O(n M p k) time an iteration, and memory for one chunk of rows and O(r k).

    Attributes:
        weights: the posterior mean (r,).
        log_density: NaN. The log determinant is not computed by products alone.
        num_features: r.

    Example:
        >>> import torch
        >>> from gpytorch.kernels import RBFKernel
        >>> from ovkgp.features import ORFF
        >>> from ovkgp.inference.model.observations import observations
        >>> from ovkgp.inference.ridge.products import MatrixFreeSystem
        >>> from ovkgp.inference.model.mean_noise import output_mean
        >>> from ovkgp.inference.model.mean_noise import OutputNoise
        >>> from ovkgp.inference.ridge.weight_products import WeightProducts
        >>> orff = ORFF(RBFKernel(ard_num_dims=1), 50, random_state=0)
        >>> X = torch.linspace(0, 6, 100, dtype=torch.float64).unsqueeze(-1)
        >>> data = observations(X, X.sin(), 1)
        >>> system = MatrixFreeSystem(WeightProducts(orff, output_mean("zero", 1), OutputNoise(0.01, 1), data))
        >>> bool(((orff(X) @ system.weights).unsqueeze(-1) - X.sin()).abs().max() < 0.1)
        True
        >>> system.variance(orff(X[:3])).shape, system.draw(4).shape
        (torch.Size([3, 1]), torch.Size([4, 100]))
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
            sizes = [torch.linalg.vector_norm(part).item() for part in (products.targets(), moment)]
            tolerance *= min(sizes[0] / max(sizes[1], 1e-300), 1.0)
            found = least_point(self.quadratic, moment, method, tolerance, limit, verbose)
            weights, num_iterations = found.solution.flatten(), found.num_iterations
        self.weights, self.num_iterations = weights, num_iterations

    @cached_property
    def preconditioner(self) -> SketchedPreconditioner:
        """P̂ ≈ C."""
        products = self.products
        return SketchedPreconditioner(products.apply, products.num_features, like=products.data.X)

    @property
    def quadratic(self) -> Quadratic:
        """C over vectors (r, k, 1)."""
        P, half = self.preconditioner, partial(self.preconditioner.power, power=0.5)
        return Quadratic(self._apply, partial(P.power, power=1.0), half, half, 1 + self.products.trace)

    def _apply(self, V: Tensor) -> Tensor:
        return self.products.apply(V.squeeze(-1)).unsqueeze(-1)

    @property
    def num_features(self) -> int:
        return len(self.weights)

    @torch.no_grad()
    def solve(self, columns: Tensor) -> Tensor:
        """C⁻¹ columns, (r, k) → (r, k)."""
        C = self.quadratic
        options = self.tolerance, self.max_iter, C.norm
        parts = [
            refined_solve(C.apply, C.precondition, part[..., None], *options).solution
            for part in columns.split(CHUNK_COLUMNS, 1)
        ]
        return torch.cat(parts, 1).squeeze(-1)

    def variance(self, Phi: LinearOperator, form: str = "diag", num_outputs: int | None = None) -> Tensor:
        """Cov(Φ_* θ | y) = Φ_* C⁻¹ Φ_*ᵀ: (m, q) for "diag", (m, q, q) for "output", (m·q, m·q) for "full".

        Args:
            Phi: Φ_* (m·q) × r.
            form: which part of it.
            num_outputs: q; that of Φ_* where it is None.

        Cost: a solve for each of the m·q rows; O(m q (r + m q)) memory.
        """
        check_form(form)
        rows = to_dense(Phi)
        full = rows @ self.solve(rows.detach().mT)
        return of_form((full + full.mT) / 2, Phi.num_outputs if num_outputs is None else num_outputs, form)

    def draw(self, k: int, generator: torch.Generator | None = None) -> Tensor:
        """k draws of the weights, (k, r): one solve each."""
        prior = torch.randn(self.num_features, k, generator=generator, dtype=torch.float64).to(self.weights.device)
        return self.weights + self.solve(prior + self.products.noise_draws(k, generator)).mT

    def path(self, multipliers: Tensor) -> Tensor:
        """Not by products alone: an `OptionError`."""
        raise _needs_factor("the evidence along a path of noises")

    def path_weights(self, multiplier: float) -> Tensor:
        """Not from one solve: an `OptionError`."""
        raise _needs_factor("the weights along a path of noises")

    def tensors(self) -> dict[str, Tensor]:
        """Not without the data: an `OptionError`."""
        raise _needs_factor("storing a posterior")


def default_iterations(size: int, method: str) -> int:
    """Iterations that are more than enough for a problem of so many unknowns, were it not for rounding."""
    return max(1000, 2 * size) * (1 if method == "cg" else 20)


def _needs_factor(what: str) -> OptionError:
    return OptionError(
        f"{what} needs the factorised matrix of the weights, and this posterior was made by products alone: fit with "
        'solver="auto" or solver="closed_form".'
    )


MAX_RANK, FACTOR_ENTRIES = 300, 16_000_000
"""The most columns of L, and the most entries (128 MB)."""


class KernelRows:
    """K between the n·p entries as `pivoted_cholesky` wants to see it: a diagonal, and rows on demand; zero where missing.

    Args:
        kernel: with p outputs.
        X: inputs (n, d).
        observed: which entries were observed, (n, p).

    Cost: O(n p²) time and memory a row.

    Example:
        >>> import torch
        >>> from gpytorch.kernels import RBFKernel
        >>> from ovkgp.inference.algebra.preconditioners import pivoted_cholesky
        >>> from ovkgp.inference.ridge.products import KernelRows
        >>> from ovkgp.kernels import CurlFreeKernel
        >>> X, kernel = torch.randn(6, 2).double(), CurlFreeKernel(RBFKernel(ard_num_dims=2)).double()
        >>> L = pivoted_cholesky(KernelRows(kernel, X, torch.ones(6, 2).bool()), max_rank=12, tolerance=1e-12)
        >>> bool(torch.allclose(L @ L.mT, kernel(X).to_dense()))
        True
    """

    def __init__(self, kernel: Kernel, X: Tensor, observed: Tensor):
        self.process, self.X, self.observed = KernelProcess(kernel, observed.shape[1]), X, observed.flatten().to(X)

    def __len__(self) -> int:
        return len(self.observed)

    def new_zeros(self, *shape: int) -> Tensor:
        return self.X.new_zeros(*shape)

    @torch.no_grad()
    def diagonal(self) -> Tensor:
        """(n·p,)."""
        p = self.process.num_outputs
        return prior_covariance(self.process.kernel, self.X, p, "diag").flatten() * self.observed

    @torch.no_grad()
    def __getitem__(self, entry: int) -> Tensor:
        """The row (n·p,) of one entry."""
        point, output = divmod(entry, self.process.num_outputs)
        return to_dense(self.process.cross(self.X[point : point + 1], self.X))[output] * self.observed


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


CHUNK_ENTRIES = 4_000_000
"""About how many entries of K one chunk of rows has (32 MB)."""


class KernelProducts(KroneckerSum):
    """C = K + N between the observed entries, for a kernel that need not be separable; vectors as in `KroneckerSum`.

    Args:
        kernel: with p outputs.
        X: inputs (n, d).
        noise: variances (n, p) or (1, p), or covariances (n, p, p) or (1, p, p).
        observed: which entries were observed, (n, p).
        chunk_rows: rows at a time; as many as make `CHUNK_ENTRIES` where it is None.

    Cost of a product with k columns: O(n² p² k) time, and the kernel again unless one chunk holds all rows; memory for one
    chunk of rows, O(chunk · n p²).

    Example:
        >>> import torch
        >>> from gpytorch.kernels import RBFKernel
        >>> from ovkgp.inference.ridge.products import KernelProducts
        >>> from ovkgp.kernels import CurlFreeKernel
        >>> X, observed = torch.randn(6, 2).double(), torch.ones(6, 2).bool()
        >>> kernel = CurlFreeKernel(RBFKernel(ard_num_dims=2)).double()
        >>> C = KernelProducts(kernel, X, torch.ones(1, 2).double(), observed, chunk_rows=4)
        >>> V = torch.randn(12, 3).double()
        >>> bool(torch.allclose(C.matmul(V), (kernel(X).to_dense() + torch.eye(12).double()) @ V))
        True
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
        """C V for V (n, k, p), zero where missing."""
        columns = self.flat(V)
        product = torch.cat([rows @ columns for rows in self._rows()])
        return self.masked(product.unflatten(0, self.observed.shape).transpose(1, 2)) + self.noise.apply(V)

    def norm_bound(self) -> float:
        """An upper bound of the largest eigenvalue of C: the trace of K and the largest row sum of N. O(n p²)."""
        trace = KernelRows(self.process.kernel, self.X, self.observed).diagonal().sum().item()
        eye = torch.eye(self.observed.shape[1]).to(self.X).expand(len(self.X), -1, -1)
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
        >>> from ovkgp.inference.ridge.products import KernelProducts, ProductSolver
        >>> from ovkgp.inference.ridge.products import KernelRows
        >>> from ovkgp.kernels import CurlFreeKernel
        >>> X, observed = torch.randn(6, 2).double(), torch.ones(6, 2).bool()
        >>> kernel = CurlFreeKernel(RBFKernel(ard_num_dims=2)).double()
        >>> C, R = KernelProducts(kernel, X, torch.ones(1, 2).double(), observed), torch.randn(6, 2).double()
        >>> solver = ProductSolver(C, KernelRows(kernel, X, observed), R)
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
