"""Sums of separable components, missing outputs and known noise: C = Σ_q K_q ⊗ Γ_q + N by conjugate gradients.

With P̂ ≈ C and probes z_i ~ N(0, P̂) of N entries each, u_i = P̂⁻¹ z_i, scaled to zᵀu = N,

    log det C     ≈ log det P̂     + mean_i N e₁ᵀ log(T_i) e₁,
    tr(C⁻¹ ∂C)    ≈ c tr(P̂⁻¹ ∂C) + mean_i (C⁻¹z_i − c u_i)ᵀ ∂C u_i,

both unbiased, and exact for P̂ = C. The scaling keeps the directions uniform and removes the variance of the lengths. A
seed fixes the probes, so that training is deterministic. The np × np matrix is never formed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from ovkgp.inference.algebra.dense import gaussian_log_density, gram, reject_second_derivatives
from ovkgp.inference.algebra.inverse_roots import quadrature_nodes
from ovkgp.inference.algebra.kronecker_sum import (
    MAX_RANK,
    KroneckerSum,
    Preconditioner,
    make_preconditioner,
    multiply_first_axis,
)
from ovkgp.inference.algebra.krylov import (
    RefinedSolution,
    conjugate_gradients,
    relative_norms,
    solve_with_refinement,
    warn_residual,
)

CHUNK_COLUMNS = 256  # Right-hand sides that are solved together
PROBE_TOLERANCE = 1e-6  # relative residual of the solves for probes, whose standard deviation is much larger


class PreconditionerTraces:
    """Derivatives of tr(P̂⁻¹ C) in the parts of C, with P̂ fixed. O(n p R²) for R columns of F."""

    def __init__(self, preconditioner: Preconditioner):
        self.preconditioner, self.noise = preconditioner, preconditioner.covariance.noise
        columns = torch.cat([self.noise.solve(V).transpose(0, 1) for V in preconditioner.columns()])  # (R, n, p)
        solved = torch.linalg.solve_triangular(preconditioner.chol, columns.flatten(1), upper=False)
        self.H = solved.view(columns.shape)  # Hᵀ, in fact

    def by_gram(self, index: int) -> Tensor:
        """Compute Σ_ab Γ_ab P̂⁻¹_{(i,a),(j,b)} (n, n)."""
        covariance = self.preconditioner.covariance
        blocks = self.noise.inverse_blocks(covariance.observed)  # (n, p, p)
        total = torch.diag(torch.einsum("iab,ab->i", blocks, covariance.output_matrices[index]))
        for column in self.preconditioner.roots[index].mT:
            total -= gram(self.H @ column)
        return total

    def by_output(self, index: int) -> Tensor:
        """Compute Σ_ij (L Lᵀ)_ij P̂⁻¹_{(i,a),(j,b)} (p, p), with the factor L of P̂ instead of K. O(n p r R)."""
        L = self.preconditioner.factors[index]
        blocks = self.noise.inverse_blocks(self.preconditioner.covariance.observed)
        diagonal = torch.einsum("iab,i->ab", blocks, L.square().sum(1))
        products = multiply_first_axis(L.mT, self.H.transpose(0, 1)).flatten(0, 1)  # (r·R, p)
        return diagonal - products.mT @ products

    def by_noise(self) -> Tensor:
        """Compute the blocks of P̂⁻¹ at each point (n, p, p)."""
        blocks = self.noise.inverse_blocks(self.preconditioner.covariance.observed)
        points = self.H.permute(1, 2, 0)  # (n, p, R)
        return blocks - points @ points.mT


def control_weight(spectrum: Tensor) -> float:
    """Compute c from the eigenvalues λ ≥ 1 of P̂^{-½} C P̂^{-½}, found in the solve for the residuals."""
    # In the directions of λ and λ', probes estimate a − c instead of a, the mean of 1/λ and 1/λ': no larger variance if
    # c ≤ 2/λ for all λ. A poor preconditioner does no harm, and a good one has c = 1.
    return min(1.0, 2 / spectrum.max().item())


class DensityDerivatives:
    """α αᵀ − c P̂⁻¹ − Σ_i w_i (x_i − c u_i) u_iᵀ, contracted with the parts of C: twice the derivatives."""

    def __init__(self, preconditioner: Preconditioner, c: float, alpha: Tensor, X: Tensor, U: Tensor, weights: Tensor):
        self.covariance, self.factors, self.c = preconditioner.covariance, preconditioner.factors, c
        self.traces = PreconditionerTraces(preconditioner)
        self.weighted = U * (c * weights)
        self.left = torch.cat([alpha, self.weighted - X * weights], 1)
        self.uncorrected = torch.cat([alpha, X * -weights], 1)
        self.right = torch.cat([alpha, U], 1)

    def by_gram(self, index: int) -> Tensor:
        """Contract with Γ_q: one matrix product (n, k·p) × (k·p, n) beyond the exact trace."""
        mixed = self.right @ self.covariance.output_matrices[index]
        return _symmetric(self.left.flatten(1) @ mixed.flatten(1).mT).sub_(self.traces.by_gram(index), alpha=self.c)

    def by_output(self, index: int) -> Tensor:
        """Contract with K_q; the exact part uses L Lᵀ, which is cheaper than K, and the probes correct the difference."""
        K, L = self.covariance.grams[index], self.factors[index]
        product = self.uncorrected.flatten(0, 1).mT @ multiply_first_axis(K, self.right).flatten(0, 1)
        left, right = (multiply_first_axis(L.mT, V).flatten(0, 1) for V in (self.weighted, self.right[:, 1:]))
        product += left.mT @ right
        return _symmetric(product).sub_(self.traces.by_output(index), alpha=self.c)

    def by_noise(self, shape: torch.Size) -> Tensor:
        """Compute the blocks at the points, or their diagonals, summed if the points share their noise."""
        blocks = _symmetric(self.left.mT @ self.right).sub_(self.traces.by_noise(), alpha=self.c)  # (n, p, p)
        blocks = blocks if len(shape) == 3 else blocks.diagonal(dim1=-2, dim2=-1)
        return blocks.clone() if len(blocks) == shape[0] else blocks.sum(0, keepdim=True)


def _symmetric(matrix: Tensor) -> Tensor:
    return (matrix + matrix.mT).div_(2)


def iterative_log_density(
    grams: Sequence[Tensor],
    output_matrices: Sequence[Tensor],
    noise: Tensor,
    residuals: Tensor,
    seed: int = 0,
    num_probes: int = 16,
    tolerance: float = PROBE_TOLERANCE,
    max_iterations: int = 1000,
    max_rank: int = MAX_RANK,
) -> Tensor:
    """Estimate log N(r | 0, C) of the observed entries of R (n, p), differentiable once; matrices as in `KroneckerSum`.

    `tolerance` is the relative residual of the solves, `max_rank` the number of columns of the preconditioner.
    """
    settings = seed, num_probes, tolerance, max_iterations, max_rank
    return _IterativeDensity.apply(settings, len(grams), noise, residuals, *grams, *output_matrices)


class _Probes:
    """Probes Z (n, k, p), U = P̂⁻¹ Z, the factors that scale them, and their estimate of log det C."""

    def __init__(self, preconditioner: Preconditioner, num_probes: int, seed: int):
        self.preconditioner = preconditioner
        self.Z = preconditioner.sample(num_probes, seed)
        self.U = preconditioner.solve(self.Z)
        self.num_entries = int(preconditioner.covariance.observed.sum())
        self.scales = self.num_entries / torch.einsum("ika,ika->k", self.Z, self.U)

    def logdet(self, values: Tensor, weights: Tensor) -> tuple[Tensor, float]:
        """Estimate log det C and the standard error of its half, from the spectra (k, J) of the Lanczos matrices."""
        estimates = self.num_entries * (weights * values.log()).sum(-1)
        error = estimates.std().item() / (2 * math.sqrt(len(estimates))) if len(estimates) > 1 else math.inf
        return self.preconditioner.logdet() + estimates.mean(), error


class _IterativeDensity(torch.autograd.Function):
    """∂C = ½ (α αᵀ − c P̂⁻¹ − mean_i (x_i − c u_i) u_iᵀ), symmetrized, with x = C⁻¹z, contracted with each part of C."""

    @staticmethod
    def forward(ctx, settings, num_components: int, noise: Tensor, residuals: Tensor, *matrices: Tensor) -> Tensor:
        seed, num_probes, tolerance, max_iterations, max_rank = settings
        grams, output_matrices = matrices[:num_components], matrices[num_components:]
        covariance = KroneckerSum(grams, output_matrices, noise, ~torch.isnan(residuals))
        preconditioner = make_preconditioner(covariance, max_rank)
        probes = _Probes(preconditioner, num_probes, seed)
        r = residuals.nan_to_num().unsqueeze(1)
        rhs = torch.cat([r, probes.Z], 1)
        run = conjugate_gradients(covariance.apply, preconditioner.solve, rhs, tolerance, max_iterations)
        relative = relative_norms(covariance.apply(run.solution) - rhs, rhs).max().item()
        if not relative <= 10 * tolerance:  # NaN too
            warn_residual(relative, tolerance)
        values, weights = run.spectra()
        logdet, _ = probes.logdet(values[1:], weights[1:])
        alpha, X = run.solution.split([1, num_probes], 1)
        ctx.preconditioner, ctx.noise_shape, ctx.control = preconditioner, noise.shape, control_weight(values[0])
        ctx.save_for_backward(alpha, X, probes.U, (probes.scales / num_probes).unsqueeze(-1))
        return gaussian_log_density((r * alpha).sum(), logdet, probes.num_entries)

    @staticmethod
    def backward(ctx, gradient: Tensor):
        reject_second_derivatives("iterative")
        needs_noise, needs_residuals, *needed = ctx.needs_input_grad[2:]
        alpha, half = ctx.saved_tensors[0].squeeze(1), gradient / 2
        by_residuals = -gradient * alpha if needs_residuals else None
        if not (needs_noise or any(needed)):
            return None, None, None, by_residuals, *[None] * len(needed)
        parts = DensityDerivatives(ctx.preconditioner, ctx.control, *ctx.saved_tensors)
        q = len(needed) // 2
        by_grams = [parts.by_gram(i).mul_(half) if needed[i] else None for i in range(q)]
        by_outputs = [parts.by_output(i).mul_(half) if needed[q + i] else None for i in range(q)]
        by_noise = parts.by_noise(ctx.noise_shape).mul_(half) if needs_noise else None
        return None, None, by_noise, by_residuals, *by_grams, *by_outputs


@torch.no_grad()
def iterative_inverse_root(
    grams: Sequence[Tensor],
    output_matrices: Sequence[Tensor],
    noise: Tensor,
    residuals: Tensor,
    tolerance: float = 1e-10,
    max_iterations: int = 1000,
    max_rank: int = MAX_RANK,
) -> Tensor:
    """Compute C^(−½) r (n, p), NaN if missing, by one solve per node; error ≤ `tolerance` √κ for condition number κ."""
    observed, r = ~torch.isnan(residuals), residuals.nan_to_num().unsqueeze(1)
    unit = torch.eye(r.shape[-1]).to(r) if noise.dim() == 3 else 1.0
    smallest = noise.min() if noise.dim() == 2 else torch.linalg.eigvalsh(noise).min()
    norm, total = KroneckerSum(grams, output_matrices, noise, observed).norm_bound(), torch.zeros_like(r)
    for shift, weight in quadrature_nodes(smallest.item(), norm):
        covariance = KroneckerSum(grams, output_matrices, noise + shift * unit, observed)
        operators = covariance.apply, make_preconditioner(covariance, max_rank).solve
        found = solve_with_refinement(*operators, r, tolerance, max_iterations, norm + shift)
        total.add_(found.solution, alpha=weight)
    return torch.where(observed, total.squeeze(1), torch.nan)


class IterativeSolver:
    """C⁻¹ for C = Σ_q K_q ⊗ Γ_q + N on the observed entries, for predictions; arguments as in `iterative_log_density`.

    `alpha` is C⁻¹ r (n, p), zero if missing; `log_density` is an estimate of log N(r | 0, C) with `standard_error`. If
    the `solution` of an earlier solver is given, nothing is solved again.
    """

    @torch.no_grad()
    def __init__(
        self,
        grams: Sequence[Tensor],
        output_matrices: Sequence[Tensor],
        noise: Tensor,
        residuals: Tensor,
        seed: int = 0,
        num_probes: int = 16,
        tolerance: float = 1e-10,
        max_iterations: int = 1000,
        max_rank: int = MAX_RANK,
        solution: tuple[Tensor, int, Tensor, float] | None = None,
    ):
        self.tolerance, self.max_iterations = tolerance, max_iterations
        matrices = [[matrix.detach() for matrix in part] for part in (grams, output_matrices)]
        self.covariance = KroneckerSum(*matrices, noise.detach(), ~torch.isnan(residuals))
        self.preconditioner = make_preconditioner(self.covariance, max_rank)
        self.norm = self.covariance.norm_bound()
        found = self._solve_and_estimate(residuals.nan_to_num(), num_probes, seed) if solution is None else solution
        self.alpha, self.num_iterations, self.log_density, self.standard_error = found

    def _solve_and_estimate(self, r: Tensor, num_probes: int, seed: int) -> tuple[Tensor, int, Tensor, float]:
        found = self._refine(r.unsqueeze(1))
        alpha, probes = found.solution.squeeze(1), _Probes(self.preconditioner, num_probes, seed)
        operators = self.covariance.apply, self.preconditioner.solve
        run = conjugate_gradients(*operators, probes.Z, max(self.tolerance, PROBE_TOLERANCE), self.max_iterations)
        logdet, standard_error = probes.logdet(*run.spectra())
        log_density = gaussian_log_density((r * alpha).sum(), logdet, probes.num_entries)
        return alpha, found.num_iterations, log_density, standard_error

    @property
    def solution(self) -> tuple[Tensor, int, Tensor, float]:
        """`alpha`, `num_iterations`, `log_density` and `standard_error`."""
        return self.alpha, self.num_iterations, self.log_density, self.standard_error

    def _refine(self, V: Tensor) -> RefinedSolution:
        """Compute C⁻¹ V for V (n, k, p)."""
        operators = self.covariance.apply, self.preconditioner.solve
        return solve_with_refinement(*operators, V, self.tolerance, self.max_iterations, self.norm)

    @torch.no_grad()
    def solve(self, rhs: Tensor) -> Tensor:
        """Compute C⁻¹ rhs, (n·p, k) → (n·p, k); missing entries are ignored on input and zero on output."""
        C = self.covariance
        parts = [C.flatten(self._refine(C.stack(part)).solution) for part in rhs.split(CHUNK_COLUMNS, 1)]
        return torch.cat(parts, 1)

    @torch.no_grad()
    def inverse_diagonal(self) -> Tensor:
        """Compute the diagonal of C⁻¹ (n, p), zero if missing, by one solve per observed entry."""
        diagonal = torch.zeros_like(self.alpha).flatten()
        for entries in self.covariance.observed.flatten().nonzero().squeeze(1).split(CHUNK_COLUMNS):
            columns = torch.arange(len(entries), device=entries.device)
            units = diagonal.new_zeros(len(diagonal), len(entries))
            units[entries, columns] = 1.0
            diagonal[entries] = self.solve(units)[entries, columns]
        return diagonal.view(self.alpha.shape)

    @torch.no_grad()
    def inverse_blocks(self, rows: Tensor) -> Tensor:
        """Compute the blocks (k, m·p, m·p) of C⁻¹ between the entries of `rows` (k, m), by one solve per entry."""
        p = self.alpha.shape[1]
        entries = (rows.unsqueeze(-1) * p + torch.arange(p, device=rows.device)).flatten(1)  # (k, m·p)
        blocks = self.alpha.new_zeros(*entries.shape, entries.shape[1])
        for part in torch.arange(entries.numel(), device=rows.device).split(CHUNK_COLUMNS):
            group, column = part // entries.shape[1], part % entries.shape[1]
            units = self.alpha.new_zeros(self.alpha.numel(), len(part))
            units[entries.flatten()[part], torch.arange(len(part), device=rows.device)] = 1.0
            solved = self.solve(units)  # (n·p, columns)
            blocks[group, :, column] = solved[entries[group], torch.arange(len(part), device=rows.device).unsqueeze(-1)]
        return (blocks + blocks.mT) / 2

    def explained(self, cross: Tensor, form: str, num_outputs: int | None = None) -> Tensor:
        """Compute K_* C⁻¹ K_*ᵀ as `DenseSolver.explained` does; differentiable once: dK_* S + (dK_* S)ᵀ, S fixed."""
        q = self.alpha.shape[1] if num_outputs is None else num_outputs
        observed = torch.where(self.covariance.observed.flatten(), cross, 0.0)
        solved = self.solve(observed.detach().mT)  # (n·p, m·q)
        value = _products(observed.detach(), solved, form, q)
        is_constant = not (torch.is_grad_enabled() and cross.requires_grad)
        return value if is_constant else 2 * _products(observed, solved, form, q) - value


def _products(rows: Tensor, solved: Tensor, form: str, num_outputs: int) -> Tensor:
    """Compute the symmetric part of rows (m·q, n·p) times `solved` (n·p, m·q), in the given form."""
    if form == "diag":
        return torch.einsum("ij,ji->i", rows, solved).view(-1, num_outputs)
    if form == "full":
        full = rows @ solved
        return (full + full.mT) / 2
    blocks = rows.unflatten(0, (-1, num_outputs)) @ solved.unflatten(1, (-1, num_outputs)).permute(1, 0, 2)
    return (blocks + blocks.mT) / 2
