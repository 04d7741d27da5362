"""Posterior of coordinates u(x) in R^ρ of curves that were observed at different points (BO-63).

    y_i = H_i u(x_i) + ε_i,     u ~ GP(0, k_X(x, x') diag(t)),     ε_i ~ N(0, c_i I),

with the rows H_i (m_i, ρ) of an output basis at the points of curve i. A curve with more points than coordinates is first
replaced by ρ values: H_i = Q_i R_i, and Q_iᵀ y_i has the same noise. Small systems are factorized. Curves on a common grid with few gaps
are solved exactly by the Kronecker product of complete curves and the inverse at the missing values, `MissingSolver`. Other large
systems are solved by conjugate gradients for the weights w of u(X) = L w Rᵀ, with K_X = L Lᵀ and R = diag(t)^½ Q, where Q are the
eigenvectors of the average information of a curve: the system of curves that all have the average information is then diagonal, and
preconditions. Variances and the evidence follow from the covariance of the weights that the data influence, `CurveWeights`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from gpytorch.kernels import Kernel
from linear_operator import to_dense
from torch import Tensor

from ovkgp.checks import check_integer
from ovkgp.exceptions import OptionError
from ovkgp.inference.algebra.curve_weights import CurveWeights, TableInformation
from ovkgp.inference.algebra.dense import gaussian_log_density, safe_cholesky
from ovkgp.inference.algebra.kronecker import eigh
from ovkgp.inference.algebra.kronecker_missing import MissingSolver
from ovkgp.inference.model.mean_noise import PolynomialMean
from ovkgp.inference.posteriors.exact import ProcessPosterior, make_prior_features
from ovkgp.inference.posteriors.posterior import (
    CHUNK_ENTRIES,
    FunctionDraws,
    KernelProcess,
    draw_normal,
    spawn_seeds,
    subtract_explained,
)
from ovkgp.inference.strategies.selection import MAX_DENSE_ENTRIES
from ovkgp.inference.tasks.spectral_path import CurvePath
from ovkgp.kernels import DecomposableKernel
from ovkgp.kernels.evaluation import evaluate_kernel

MAX_WEIGHTS = 5000  # weights whose covariance is computed
MIN_INFLUENCE = 1e-5  # prior variance of a weight over that of its noise, below which it keeps its prior variance
MIN_EIGENVALUE = 1e-15  # of covariances, relative to the largest
SMALL_ENTRIES = 1000  # entries up to which a path of noise levels drops no weight
SOLVE_ENTRIES = 4_000_000  # entries of the right-hand sides that are solved together


@dataclass(frozen=True)
class CoordinateEntries:
    """Observed values of n curves: row index i_e (N,), basis rows h_e (N, ρ), values y_e (N,), noise ratios δ_e (N,).

    The noise variance of an entry is c δ_e. Entries of a curve are consecutive. For curves on a common grid `columns` are j_e (N,),
    `basis` is that of the grid (m, ρ), and h_e = row_scales[i_e] basis[j_e], δ_e = 1.
    """

    rows: Tensor
    basis: Tensor
    values: Tensor
    ratios: Tensor
    columns: Tensor | None = None
    row_scales: Tensor | None = None

    @cached_property
    def is_on_grid(self) -> bool:
        """Whether curves are on a common grid."""
        return self.columns is not None

    @property
    def entry_basis(self) -> Tensor:
        """Basis rows h_e (N, ρ)."""
        if not self.is_on_grid:
            return self.basis
        return self.basis[self.columns] * self.row_scales[self.rows].unsqueeze(-1)

    @property
    def has_few_gaps(self) -> bool:
        """Whether curves are on a common grid, with fewer missing than observed values."""
        if not self.is_on_grid:
            return False
        return self.num_missing < min(len(self), MAX_DENSE_ENTRIES)

    @property
    def num_missing(self) -> int:
        """Number of missing values of curves on a common grid."""
        return len(self.row_scales) * len(self.basis) - len(self)

    def make_solver(self, gram: Tensor, variances: Tensor, noise: float) -> MissingSolver:
        """Make the solver of the covariance of entries on a common grid with input covariance `gram` (n, n) and noise c."""
        scaled = gram * torch.outer(self.row_scales, self.row_scales)
        matrix = (self.basis * variances) @ self.basis.mT
        identity = torch.eye(len(matrix), dtype=matrix.dtype)
        return MissingSolver(scaled, matrix, noise * identity, self.to_table(self.values, torch.nan))

    def to_table(self, columns: Tensor, fill: float = 0.0) -> Tensor:
        """Arrange values of entries (N, ...) on the grid, (n, m, ...)."""
        shape = (len(self.row_scales), len(self.basis), *columns.shape[1:])
        table = columns.new_full(shape, fill)
        table[self.rows, self.columns] = columns
        return table

    def __len__(self) -> int:
        return len(self.values)

    @classmethod
    def compress(cls, basis: list[Tensor], values: list[Tensor], ratios: list[float]) -> CoordinateEntries:
        """Collect curves with basis rows (m_i, ρ), values (m_i,) and one noise ratio each; long ones are rotated to ρ values."""
        parts = []
        for i, (H, y, ratio) in enumerate(zip(basis, values, ratios, strict=True)):
            if len(H) > H.shape[1]:
                Q, R = torch.linalg.qr(H)
                H, y = R, Q.mT @ y
            parts.append((torch.full((len(y),), i), H, y, y.new_full((len(y),), ratio)))
        return cls(*(torch.cat(column) for column in zip(*parts, strict=True)))


class CoordinatePosterior(ProcessPosterior):
    """Posterior of the coordinates u(x) given entries of curves, with noise variance c δ_e.

    `alpha` is C⁻¹ y (N,) of the covariance C of the entries, `log_evidence` their log density (NaN if more than 5000 weights have a variance
    above that of the noise).
    Complexity: O(n³ + m³ + q³ + min(n, m) q (n + m)) for q < N missing
    values on a common grid, O(N³) for N ≤ 5000 entries after compression, else O(n² ρ + n ρ²) per iteration; k means O(k n ρ), k covariances
    O(k ρ N²) or k ρ iterative solves.
    """

    def __init__(self, kernel: Kernel, variances: Tensor, X: Tensor, entries: CoordinateEntries, noise: float):
        rank = len(variances)
        full = DecomposableKernel(kernel, output_matrix=torch.diag(variances)).double().requires_grad_(False)
        zero = PolynomialMean(rank, -1)
        super().__init__(KernelProcess(full, rank), zero, noise * torch.eye(rank, dtype=torch.float64), X.shape[1])
        self.scalar, self.variances, self.X, self.entries, self.noise_level = kernel, variances, X, entries, noise
        with torch.no_grad():
            self.gram = to_dense(evaluate_kernel(kernel, X)).double()
            self.missing = entries.make_solver(self.gram, variances, noise) if entries.has_few_gaps else None
            self.is_dense = self.missing is None and len(entries) <= MAX_DENSE_ENTRIES
            self.weights = None
            if self.is_dense:
                self._factorize()
            elif self.missing is None:
                self.weights = EntryWeights(InputRoot(self.gram), variances, entries, noise)
            self.alpha = self.solve(entries.values.unsqueeze(-1)).squeeze(-1)
        self.coefficients = self._collect(self.alpha.unsqueeze(-1)).squeeze(-1)  # (n, ρ)
        self.quadratic = float(entries.values @ self.alpha)
        self.log_evidence = self._log_evidence()

    def _log_evidence(self) -> float:
        if self.missing is not None:
            return float(self.missing.log_density)
        if self.weights is not None and not self.weights.has_all:
            return math.nan
        logdet = 2 * self.chol.diagonal().log().sum() if self.is_dense else self.weights.log_determinant
        return float(gaussian_log_density(self.quadratic, logdet, len(self.entries)))

    def _factorize(self) -> None:
        self.chol = safe_cholesky(entry_covariance(self.gram, self.variances, self.entries, self.noise_level))

    def _collect(self, columns: Tensor) -> Tensor:
        """Return Σ_e h_e v_e of each curve, (n, ρ, k), for columns v (N, k)."""
        entries = self.entries
        if entries.is_on_grid:
            table = entries.to_table(columns * entries.row_scales[entries.rows].unsqueeze(-1))
            return entries.basis.mT @ table
        products = entries.basis.unsqueeze(-1) * columns.unsqueeze(1)
        return products.new_zeros(len(self.X), *products.shape[1:]).index_add_(0, entries.rows, products)

    def _evaluate(self, coordinates: Tensor) -> Tensor:
        """Return h_eᵀ u_i of the entries, (k, N), for coordinates of the curves (k, n, ρ)."""
        entries = self.entries
        if entries.is_on_grid:
            return (coordinates @ entries.basis.mT)[:, entries.rows, entries.columns] * entries.row_scales[entries.rows]
        return torch.einsum("ker,er->ke", coordinates[:, entries.rows], entries.basis)

    @torch.no_grad()
    def solve(self, rhs: Tensor) -> Tensor:
        """Return C⁻¹ rhs, (N, k) → (N, k)."""
        if self.is_dense:
            return torch.cholesky_solve(rhs, self.chol)
        if self.missing is not None:
            found = self.missing.solve(self.entries.to_table(rhs).flatten(0, 1))
            return found.unflatten(0, self.missing.observed.shape)[self.entries.rows, self.entries.columns]
        size = max(SOLVE_ENTRIES // max(len(self.entries), self.gram.numel()), 1)
        parts, counts = zip(*(self.weights.solve(part) for part in rhs.split(size, 1)), strict=True)
        self.num_iterations = max(counts)
        return torch.cat(parts, 1)

    def max_chunk_rows(self, form: str) -> int:
        if self.missing is not None:
            return CHUNK_ENTRIES // max(
                len(self.missing.chol) * len(self.variances), len(self.variances) ** 2, len(self.X)
            )
        if self.weights is not None and self.weights.has_all:
            return CHUNK_ENTRIES // max(len(self.weights.algebra.pairs[0]), len(self.variances) ** 2)
        return CHUNK_ENTRIES // max(len(self.entries) * len(self.variances), len(self.X))

    def latent(self, X: Tensor, form: str) -> tuple[Tensor, Tensor | None]:
        cross = to_dense(evaluate_kernel(self.scalar, X, self.X)).double()  # (k, n)
        mean = cross @ (self.coefficients * self.variances)
        if form == "none":
            return mean, None
        if self.missing is not None:
            outputs = (self.entries.basis * self.variances).mT
            explained = self.missing.explained(cross * self.entries.row_scales, form, outputs)
            return mean, subtract_explained(self.process.prior(X, form), explained, form)
        if self.weights is not None and self.weights.has_all:
            explained = self.weights.explained(cross, torch.eye(len(self.variances)).double(), form)
            return mean, subtract_explained(self.process.prior(X, form), explained, form)
        columns = self._cross_columns(cross)  # (N, k·ρ)
        explained = self._explained(columns, len(X), form)
        return mean, subtract_explained(self.process.prior(X, form), explained, form)

    @torch.no_grad()
    def covariance_along(self, X: Tensor, rows: Tensor, form: str) -> Tensor:
        """Return variances (k, m) for form "diag", or covariances (k, m, m) for "output", of `rows` u(x) for rows (m, ρ).

        Systems are solved for min(m, ρ) right-hand sides per x, in chunks of X.
        """
        if len(rows) < len(self.variances):
            basis, along = rows, None
        else:
            basis, along = torch.eye(len(self.variances), dtype=rows.dtype), rows
        size = CHUNK_ENTRIES // max(len(self.entries), len(self.X)) // max(len(basis), 1)
        parts = [self._covariance_along(part, basis, along, form) for part in X.split(max(size, 1))]
        return torch.cat(parts)

    def _covariance_along(self, X: Tensor, basis: Tensor, along: Tensor | None, form: str) -> Tensor:
        """Return variances or covariances of `basis` u(x), or of `along` `basis` u(x)."""
        cross, inner = to_dense(evaluate_kernel(self.scalar, X, self.X)).double(), form if along is None else "output"
        scaled = basis * self.variances
        if self.missing is not None:
            outputs = scaled @ self.entries.basis.mT
            explained = self.missing.explained(cross * self.entries.row_scales, inner, outputs)
        elif self.weights is not None and self.weights.has_all:
            explained = self.weights.explained(cross, basis, inner)
        else:
            at_entries = self.entries.entry_basis @ scaled.mT  # (N, b)
            columns = (cross.mT[self.entries.rows].unsqueeze(-1) * at_entries.unsqueeze(1)).flatten(1)
            explained = self._explained(columns, len(X), inner)
        prior = self.scalar(X, diag=True).double()
        if inner == "diag":
            return (torch.outer(prior, (scaled * basis).sum(1)) - explained).clamp_min(0)
        covariance = prior.view(-1, 1, 1) * (scaled @ basis.mT) - explained
        if along is None:
            return covariance
        half = along @ covariance  # (k, m, ρ)
        return (half * along).sum(-1).clamp_min(0) if form == "diag" else half @ along.mT

    def _cross_columns(self, cross: Tensor) -> Tensor:
        """Return the covariances of the entries with u(x), (N, k·ρ), x-major."""
        scaled = self.entries.entry_basis * self.variances
        return (cross.mT[self.entries.rows].unsqueeze(-1) * scaled.unsqueeze(1)).flatten(1)

    def _explained(self, columns: Tensor, count: int, form: str) -> Tensor:
        if self.is_dense:
            left = right = torch.linalg.solve_triangular(self.chol, columns, upper=False)
        else:
            left, right = columns, self.solve(columns)
        if form == "full":
            return left.mT @ right
        left, right = (part.unflatten(1, (count, -1)) for part in (left, right))
        return torch.einsum("ekr,ekr->kr" if form == "diag" else "ekr,eks->krs", left, right)

    def sample_functions(self, k: int = 1, *, random_state=None, num_frequencies: int = 2000) -> FunctionDraws:
        """Draw k random functions; the prior is approximated by `num_frequencies` random features."""
        k, seeds = check_integer("the number of draws", k), spawn_seeds(random_state, 3)
        prior = make_prior_features(self.process.kernel, num_frequencies, self.num_dims, seeds[0])
        weights = draw_normal((k, prior.num_features), seeds[1], self.X)
        noise = draw_normal((k, len(self.entries)), seeds[2], self.X) * (self.noise_level * self.entries.ratios).sqrt()
        with torch.no_grad():
            drawn = (prior(self.X) @ weights.mT).mT.unflatten(-1, (len(self.X), -1))  # (k, n, ρ)
            changes = self.solve((self.entries.values - self._evaluate(drawn) - noise).mT)
            coefficients = self._collect(changes) * self.variances[:, None]  # (n, ρ, k)

        @torch.no_grad()
        def evaluate(X: Tensor, index: Tensor) -> Tensor:
            cross = to_dense(evaluate_kernel(self.scalar, X, self.X)).double()
            moved = torch.einsum("mn,nrk->kmr", cross, coefficients[..., index])
            return (prior(X) @ weights[index].mT).mT.unflatten(-1, (len(X), -1)) + moved

        return FunctionDraws(evaluate, k, self.num_dims)


class InputRoot:
    """L (n, a) with K_X = L Lᵀ for K_X (n, n), in eigenvectors, without eigenvalues lost to rounding."""

    def __init__(self, gram: Tensor):
        values, vectors = eigh(gram)
        kept = values > MIN_EIGENVALUE * values[-1]
        self.values, self.vectors = values[kept], vectors[:, kept]

    @cached_property
    def rows(self) -> Tensor:
        """L."""
        return self.vectors * self.values.sqrt()

    def features(self, cross: Tensor) -> Tensor:
        """Return ψ(x) = L⁺ k_X(X, x) for covariances (m, n) with the inputs, (m, a)."""
        return cross @ (self.vectors / self.values.sqrt())


class EntryWeights:
    """C⁻¹ of the covariance C of entries, from the weights w (a, b) of u(X) = L w Rᵀ; see `CurveWeights`.

    Entries are a table (n, M): the points of a common grid, or the first, second, … of each curve. Memory is O(n M + n² + R²) for curves
    on a common grid.
    """

    def __init__(self, root: InputRoot, variances: Tensor, entries: CoordinateEntries, noise: float):
        n, self.entries, self.root, self.noise = len(root.rows), entries, root, noise * entries.ratios
        if entries.is_on_grid:
            self.columns, basis, self.scales = entries.columns, entries.basis, entries.row_scales[entries.rows]
        else:
            counts = torch.bincount(entries.rows, minlength=n)
            self.columns = torch.arange(len(entries)) - (counts.cumsum(0) - counts)[entries.rows]
            basis = entries.basis.new_zeros(n, int(counts.max()), len(variances))
            basis[entries.rows, self.columns] = entries.basis
            self.scales = torch.ones_like(entries.values)
        self.shape = n, basis.shape[-2]
        precisions = self._to_table(self.scales.square() / self.noise)
        weighted = (precisions.sum(0) if entries.is_on_grid else precisions).unsqueeze(-1) * basis
        information = weighted.flatten(0, -2).mT @ basis.flatten(0, -2) / n
        roots = variances.sqrt()
        values, vectors = eigh(roots[:, None] * information * roots)
        kept = values > MIN_EIGENVALUE * values[-1]
        self.right = roots[:, None] * vectors[:, kept].flip(1)  # R
        self.functions = basis @ self.right
        information = TableInformation(self.functions, precisions)
        self.algebra = CurveWeights(root.rows, information, MAX_WEIGHTS, MIN_INFLUENCE)

    @property
    def has_all(self) -> bool:
        """Whether the covariance of all weights that the data influence is known."""
        return self.algebra.has_all

    @property
    def log_determinant(self) -> Tensor:
        """log det C."""
        return self.noise.log().sum() + self.algebra.log_determinant

    def _to_table(self, values: Tensor) -> Tensor:
        """Arrange values of entries (N, ...) as (n, M, ...), zero elsewhere."""
        table = values.new_zeros(*self.shape, *values.shape[1:])
        table[self.entries.rows, self.columns] = values
        return table

    def solve(self, rhs: Tensor) -> tuple[Tensor, int]:
        """Return C⁻¹ rhs, (N, k), and the number of iterations. O(n² b + n M b) per iteration and column."""
        k, L = rhs.shape[1], self.root.rows
        table = self._to_table(rhs * (self.scales / self.noise).unsqueeze(-1))
        moments = L.mT @ (table.mT @ self.functions).flatten(1)
        diagonal = self.algebra.diagonal.unsqueeze(1)
        weights, count = self.algebra.solve(moments.unflatten(1, (k, -1)), lambda W: W / diagonal)
        fitted = (L @ weights.flatten(1)).unflatten(1, (k, -1)) @ self.functions.mT  # (n, k, M)
        at_entries = fitted.mT[self.entries.rows, self.columns] * self.scales.unsqueeze(-1)
        return (rhs - at_entries) / self.noise.unsqueeze(-1), count

    def explained(self, cross: Tensor, rows: Tensor, form: str) -> Tensor:
        """Return the covariance of `rows` u(x), rows (m, ρ), that the data explain, for covariances (k, n) with the inputs."""
        return self.algebra.explained(self.root.features(cross), rows @ self.right, form)

    def inverse_blocks(self, curves: Tensor) -> tuple[Tensor, Tensor]:
        """Return the blocks (c, M, M) of C⁻¹ of some curves, the identity where there is no entry, and where there are (c, M)."""
        L, Phi = self.root.rows[curves], self.functions if self.entries.is_on_grid else self.functions[curves]
        known = self.algebra.explained(L, Phi, "output")
        V = L.square().sum(1)[:, None, None] * (Phi @ Phi.mT) - known  # posterior covariance
        half = self._to_table(self.scales / self.noise)[curves]
        inverse_noise = self._to_table(1 / self.noise)[curves]
        observed = inverse_noise > 0
        blocks = torch.diag_embed(torch.where(observed, inverse_noise, 1.0))
        return blocks - half.unsqueeze(-1) * V * half.unsqueeze(-2), observed


def entry_covariance(gram: Tensor, variances: Tensor, entries: CoordinateEntries, noise: float) -> Tensor:
    """Return C = K_X[i_e, i_f] Σ_r t_r h_er h_fr + c δ_e 1(e = f), (N, N)."""
    basis = entries.entry_basis
    C = gram[entries.rows][:, entries.rows] * ((basis * variances) @ basis.mT)
    C.diagonal().add_(noise * entries.ratios)
    return C


@torch.no_grad()
def curve_path(kernel: Kernel, variances: Tensor, X: Tensor, entries: CoordinateEntries, noises: Tensor) -> CurvePath:
    """Compute the criteria of several noise levels.

    `loo_error` is the mean over curves of the squared errors of a curve given all others, weighted by 1/δ. Complexity:
    O(N³ + k N² max_i m_i) by one eigendecomposition for N ≤ 5000, k solutions and O(n m q²) each for q missing values on a common grid,
    or O(n R² + R³) per level for R weights that the data influence, whichever takes the fewest operations.
    """
    gram = to_dense(evaluate_kernel(kernel, X)).double()
    (n, rank), N, k = (len(X), len(variances)), len(entries), len(noises)
    costs = {"dense": 10 * N**3 + k * N**2 * (N / n) if N <= MAX_DENSE_ENTRIES else math.inf}
    if entries.has_few_gaps:
        costs["grid"] = k * (n * rank * entries.num_missing**2 + entries.num_missing**3)
    if N > SMALL_ENTRIES:
        root = InputRoot(gram)
        least = EntryWeights(root, variances, entries, float(noises.min())).algebra
        R = least.num_influential
        costs["weights"] = k * (2 * n * R**2 + R**3) if least.has_all else math.inf
    cheapest = min(costs, key=costs.get)
    if costs[cheapest] == math.inf:
        raise OptionError(
            f"Several lam are not supported with gaps, {N} values and {R} eigenfunctions with a variance above that of the noise, at most {MAX_WEIGHTS}. Use one lam, larger lam or larger lengthscales."
        )
    if cheapest == "weights":
        return _path_of_weights(root, variances, entries, noises)
    if cheapest == "grid":
        return _path_on_grid(gram, variances, entries, noises)
    scale = entries.ratios.sqrt()
    C = entry_covariance(gram, variances, entries, 0.0)
    values, vectors = eigh(C / scale / scale[:, None])
    rotated = vectors.mT @ (entries.values / scale)
    counts = torch.bincount(entries.rows, minlength=len(X))
    blocks = [part for part in torch.arange(len(entries)).split(counts.tolist()) if len(part)]
    results = []
    for c in noises.tolist():
        shifted = values.clamp_min(0) + c
        quadratic, logdet = (rotated.square() / shifted).sum(), shifted.log().sum() + 2 * scale.log().sum()
        alpha, error, density = vectors @ (rotated / shifted), 0.0, 0.0
        for part in blocks:
            block = (vectors[part] / shifted) @ vectors[part].mT
            chol = safe_cholesky(block)
            missed = torch.cholesky_solve(alpha[part].unsqueeze(-1), chol).squeeze(-1)  # (y − mean)/√δ
            error += missed.square().sum()
            logs = -2 * chol.diagonal().log().sum() + 2 * scale[part].log().sum()
            density += gaussian_log_density(missed @ alpha[part], logs, len(part))
        results.append((gaussian_log_density(quadratic, logdet, len(entries)), quadratic, error / len(blocks), density))
    return CurvePath(*(torch.stack(column) for column in zip(*results, strict=True)))


def _path_on_grid(gram: Tensor, variances: Tensor, entries: CoordinateEntries, noises: Tensor) -> CurvePath:
    """Compute the criteria of curves on a common grid with few gaps."""
    results, counts = [], torch.bincount(entries.rows, minlength=len(gram))
    for c in noises.tolist():
        solver = entries.make_solver(gram, variances, c)
        blocks = solver.inverse_blocks(torch.arange(len(gram)).unsqueeze(-1))
        blocks.diagonal(dim1=1, dim2=2).add_((~solver.observed).double())  # α is 0 there
        chol = torch.linalg.cholesky(blocks)
        missed = torch.cholesky_solve(solver.alpha.unsqueeze(-1), chol).squeeze(-1)  # y − mean
        logs = -2 * chol.diagonal(dim1=1, dim2=2).log().sum()
        density = gaussian_log_density((missed * solver.alpha).sum(), logs, len(entries))
        table = entries.to_table(entries.values)
        error = missed.square().sum() / (counts > 0).sum()
        results.append((solver.log_density, (table * solver.alpha).sum(), error, density))
    return CurvePath(*(torch.stack([torch.as_tensor(v) for v in column]) for column in zip(*results, strict=True)))


def _path_of_weights(root: InputRoot, variances: Tensor, entries: CoordinateEntries, noises: Tensor) -> CurvePath:
    """Compute the criteria from the covariance of the weights that the data influence."""
    results, count = [], int((torch.bincount(entries.rows, minlength=len(root.rows)) > 0).sum())
    for c in noises.tolist():
        weights = EntryWeights(root, variances, entries, c)
        alpha = weights.solve(entries.values.unsqueeze(-1))[0].squeeze(-1)
        table, ratios = weights._to_table(alpha), weights._to_table(entries.ratios)
        error = density = 0.0
        for curves in torch.arange(len(table)).split(max(SOLVE_ENTRIES // weights.shape[1] ** 2, 1)):
            blocks, observed = weights.inverse_blocks(curves)
            chol = torch.linalg.cholesky(blocks)
            missed = torch.cholesky_solve(table[curves].unsqueeze(-1), chol).squeeze(-1)[observed]  # y − mean
            error += (missed.square() / ratios[curves][observed]).sum()
            logs = -2 * chol.diagonal(dim1=1, dim2=2).log().sum()
            density += gaussian_log_density(missed @ table[curves][observed], logs, int(observed.sum()))
        quadratic = entries.values @ alpha
        evidence = gaussian_log_density(quadratic, weights.log_determinant, len(entries))
        results.append((evidence, quadratic, error / count, density))
    return CurvePath(*(torch.stack([torch.as_tensor(v) for v in column]) for column in zip(*results, strict=True)))
