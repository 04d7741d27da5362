"""Posterior of coordinates u(x) in R^ρ of curves that were observed at different points (BO-63).

    y_i = H_i u(x_i) + ε_i,     u ~ GP(0, k_X(x, x') diag(t)),     ε_i ~ N(0, c_i I),

with the rows H_i (m_i, ρ) of an output basis at the points of curve i. A curve with more points than coordinates is first
replaced by ρ values: H_i = Q_i R_i, and Q_iᵀ y_i has the same noise. Small systems are factorized; larger ones are solved by
conjugate gradients in the coordinates (I + S D S) w with S = (K_X ⊗ diag(t))^½ and D = blockdiag(H_iᵀH_i/c_i), preconditioned
by the same system with the average of the blocks, which two eigendecompositions invert. Curves on a common grid with few gaps
are solved exactly by the Kronecker product of complete curves and the inverse at the missing values, `MissingSolver`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from gpytorch.kernels import Kernel
from linear_operator import to_dense
from torch import Tensor

from ovkgp.checks import check_integer
from ovkgp.inference.algebra.dense import gaussian_log_density, safe_cholesky
from ovkgp.inference.algebra.kronecker import eigh
from ovkgp.inference.algebra.kronecker_missing import MissingSolver
from ovkgp.inference.algebra.krylov import solve_with_refinement
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

CG_TOLERANCE, MAX_CG_ITERATIONS = 1e-11, 2000


@dataclass(frozen=True)
class CoordinateEntries:
    """Observed values of n curves: row index i_e (N,), basis rows h_e (N, ρ), values y_e (N,), noise ratios δ_e (N,).

    The noise variance of an entry is c δ_e. Entries of a curve are consecutive. Curves on a common grid also have `columns` j_e (N,),
    `grid_basis` (m, ρ) and `row_scales` (n,), with h_e = row_scales[i_e] grid_basis[j_e] and δ_e = 1.
    """

    rows: Tensor
    basis: Tensor
    values: Tensor
    ratios: Tensor
    columns: Tensor | None = None
    grid_basis: Tensor | None = None
    row_scales: Tensor | None = None

    @property
    def has_few_gaps(self) -> bool:
        """Whether curves are on a common grid, with fewer missing than observed values."""
        if self.columns is None:
            return False
        missing = len(self.row_scales) * len(self.grid_basis) - len(self)
        return missing < min(len(self), MAX_DENSE_ENTRIES)

    def make_solver(self, gram: Tensor, variances: Tensor, noise: float) -> MissingSolver:
        """Make the solver of the covariance of entries on a common grid with input covariance `gram` (n, n) and noise c."""
        scaled = gram * torch.outer(self.row_scales, self.row_scales)
        matrix = (self.grid_basis * variances) @ self.grid_basis.mT
        identity = torch.eye(len(matrix), dtype=matrix.dtype)
        return MissingSolver(scaled, matrix, noise * identity, self.to_table(self.values, torch.nan))

    def to_table(self, columns: Tensor, fill: float = 0.0) -> Tensor:
        """Arrange values of entries (N, ...) on the grid, (n, m, ...)."""
        shape = (len(self.row_scales), len(self.grid_basis), *columns.shape[1:])
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

    `alpha` is C⁻¹ y (N,) of the covariance C of the entries, `log_evidence` their log density (NaN for more than 5000 entries).
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
            if self.is_dense:
                self._factorize()
            elif self.missing is None:
                self._prepare_iterations()
            self.alpha = self.solve(entries.values.unsqueeze(-1)).squeeze(-1)
        self.coefficients = self._collect(self.alpha.unsqueeze(-1)).squeeze(-1)  # (n, ρ)
        self.quadratic = float(entries.values @ self.alpha)
        self.log_evidence = math.nan if self.missing is None else float(self.missing.log_density)
        if self.is_dense:
            logdet = 2 * self.chol.diagonal().log().sum()
            self.log_evidence = float(gaussian_log_density(entries.values @ self.alpha, logdet, len(entries)))

    def _factorize(self) -> None:
        self.chol = safe_cholesky(entry_covariance(self.gram, self.variances, self.entries, self.noise_level))

    def _prepare_iterations(self) -> None:
        entries, n, rank = self.entries, len(self.X), len(self.variances)
        weighted = entries.basis / (self.noise_level * entries.ratios).unsqueeze(-1)
        products = weighted.unsqueeze(-1) * entries.basis.unsqueeze(-2)
        roots = self.variances.sqrt()
        self.blocks = products.new_zeros(n, rank, rank).index_add_(0, entries.rows, products)
        self.blocks = roots[:, None] * self.blocks * roots  # T^½ D_i T^½
        values, vectors = eigh(self.gram)
        self.root = (vectors * values.clamp_min(0).sqrt()) @ vectors.mT  # K_X^½
        average = self.blocks.mean(0)
        self.left, self.right = (values, vectors), eigh(average)
        self.eigenvalues = torch.outer(values.clamp_min(0), self.right[0]) + 1

    def _collect(self, columns: Tensor) -> Tensor:
        """Return Σ_e h_e v_e of each curve, (n, ρ, k), for columns v (N, k)."""
        products = self.entries.basis.unsqueeze(-1) * columns.unsqueeze(1)
        return products.new_zeros(len(self.X), *products.shape[1:]).index_add_(0, self.entries.rows, products)

    @torch.no_grad()
    def solve(self, rhs: Tensor) -> Tensor:
        """Return C⁻¹ rhs, (N, k) → (N, k)."""
        if self.is_dense:
            return torch.cholesky_solve(rhs, self.chol)
        if self.missing is not None:
            found = self.missing.solve(self.entries.to_table(rhs).flatten(0, 1))
            return found.unflatten(0, self.missing.observed.shape)[self.entries.rows, self.entries.columns]
        n, roots = len(self.X), self.variances.sqrt()
        noise = (self.noise_level * self.entries.ratios).unsqueeze(-1)
        moments = self._collect(rhs / noise) * roots[:, None]  # T^½ Hᵀ N⁻¹ b

        def by_root(V: Tensor) -> Tensor:  # (n, k, ρ), as conjugate gradients store columns
            return torch.einsum("ij,jkr->ikr", self.root, V)

        def apply(V: Tensor) -> Tensor:
            return V + by_root(torch.einsum("irs,iks->ikr", self.blocks, by_root(V)))

        def precondition(V: Tensor) -> Tensor:
            U, W = self.left[1], self.right[1]
            rotated = torch.einsum("ji,jkr->ikr", U, V @ W)
            return torch.einsum("ij,jkr->ikr", U, rotated / self.eigenvalues.unsqueeze(1)) @ W.mT

        start = by_root(moments.movedim(-1, 1))
        norm = self.eigenvalues.max().item() * n
        found = solve_with_refinement(apply, precondition, start, CG_TOLERANCE, MAX_CG_ITERATIONS, norm)
        self.num_iterations = found.num_iterations
        fitted = by_root(found.solution) * roots  # û at the training inputs, (n, k, ρ)
        at_entries = torch.einsum("ekr,er->ek", fitted[self.entries.rows], self.entries.basis)
        return (rhs - at_entries) / noise

    def max_chunk_rows(self, form: str) -> int:
        if self.missing is not None:
            return CHUNK_ENTRIES // max(
                len(self.missing.chol) * len(self.variances), len(self.variances) ** 2, len(self.X)
            )
        return CHUNK_ENTRIES // max(len(self.entries) * len(self.variances), len(self.X))

    def latent(self, X: Tensor, form: str) -> tuple[Tensor, Tensor | None]:
        cross = to_dense(evaluate_kernel(self.scalar, X, self.X)).double()  # (k, n)
        mean = cross @ (self.coefficients * self.variances)
        if form == "none":
            return mean, None
        if self.missing is not None:
            outputs = (self.entries.grid_basis * self.variances).mT
            explained = self.missing.explained(cross * self.entries.row_scales, form, outputs)
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
            outputs = scaled @ self.entries.grid_basis.mT
            explained = self.missing.explained(cross * self.entries.row_scales, inner, outputs)
        else:
            at_entries = self.entries.basis @ scaled.mT  # (N, b)
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
        scaled = self.entries.basis * self.variances
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
            at_entries = torch.einsum("ker,er->ke", drawn[:, self.entries.rows], self.entries.basis)
            changes = self.solve((self.entries.values - at_entries - noise).mT)
            coefficients = self._collect(changes) * self.variances[:, None]  # (n, ρ, k)

        @torch.no_grad()
        def evaluate(X: Tensor, index: Tensor) -> Tensor:
            cross = to_dense(evaluate_kernel(self.scalar, X, self.X)).double()
            moved = torch.einsum("mn,nrk->kmr", cross, coefficients[..., index])
            return (prior(X) @ weights[index].mT).mT.unflatten(-1, (len(X), -1)) + moved

        return FunctionDraws(evaluate, k, self.num_dims)


def entry_covariance(gram: Tensor, variances: Tensor, entries: CoordinateEntries, noise: float) -> Tensor:
    """Return C = K_X[i_e, i_f] Σ_r t_r h_er h_fr + c δ_e 1(e = f), (N, N)."""
    C = gram[entries.rows][:, entries.rows] * ((entries.basis * variances) @ entries.basis.mT)
    C.diagonal().add_(noise * entries.ratios)
    return C


@torch.no_grad()
def curve_path(kernel: Kernel, variances: Tensor, X: Tensor, entries: CoordinateEntries, noises: Tensor) -> CurvePath:
    """Compute the criteria of several noise levels; requires at most 5000 entries, or few gaps on a common grid.

    `loo_error` is the mean over curves of the squared errors of a curve given all others, weighted by 1/δ. Complexity:
    O(N³ + k N² max_i m_i) by one eigendecomposition, or k solutions and O(n m q²) each for q missing values on a common grid.
    """
    if entries.has_few_gaps:
        return _path_on_grid(to_dense(evaluate_kernel(kernel, X)).double(), variances, entries, noises)
    scale = entries.ratios.sqrt()
    C = entry_covariance(to_dense(evaluate_kernel(kernel, X)).double(), variances, entries, 0.0)
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
