"""Separable covariance with missing outputs, C = P (K ⊗ Γ + I ⊗ Σ) Pᵀ, exact, by the inverse for complete outputs.

With M = K ⊗ Γ + I ⊗ Σ, P and Q that select the observed and the k missing entries, and B = Q M⁻¹ Qᵀ (k, k),

    Pᵀ C⁻¹ P = M⁻¹ − M⁻¹ Qᵀ B⁻¹ Q M⁻¹,     log det C = log det M + log det B.

From K = U diag(s) Uᵀ, Wᵀ Σ W = I and Wᵀ Γ W = diag(t), M⁻¹ = I ⊗ Σ⁻¹ − (U ⊗ W) diag(e) (U ⊗ W)ᵀ with e = s t / (1 + s t).
Neither an np × np nor an np × k matrix is formed: missing entries are grouped by row, or by output, and sums over
entries of a group are matrix products. If the rows (outputs) of two groups are i and i', the gradient needs

    J_j[i, i'] = Σ_{a, a'} W_aj B⁻¹_{(i,a),(i',a')} W_a'j,     ∂K ∋ ½ Σ_j t_j N_j J_j N_j,   N_j = (I + t_j K)⁻¹,

and the same with the roles of rows and outputs exchanged. Differences to dense algebra are about 1e-17 times the condition
number of C: 1e-9 of the gradient at a noise of 1e-6, 1e-7 at 1e-8 (`benchmarks/posteriors.py --only missing`). Solutions
are refined by their residuals.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from ovkgp.inference.algebra.dense import (
    gaussian_log_density,
    gram_in_form,
    inverse_from_cholesky,
    reject_second_derivatives,
    safe_cholesky,
)
from ovkgp.inference.algebra.inverse_roots import quadrature_nodes
from ovkgp.inference.algebra.kronecker import KroneckerSolver

GROUP_CHUNK_ENTRIES = 1 << 21  # numbers of the temporary arrays that are formed together: 16 MB
RESIDUAL_TOLERANCE = 1e-14  # relative residual below which a solution is not corrected
MAX_REFINEMENTS = 3  # maximum number of corrections of a solution by its residual


def missing_log_density(K: Tensor, output_matrix: Tensor, noise: Tensor, residuals: Tensor) -> Tensor:
    """Compute log N(r | 0, C) of the observed entries of R (n, p), NaN if missing, differentiable once in all four."""
    return _MissingDensity.apply(K, output_matrix, noise, residuals)


class _MissingDensity(torch.autograd.Function):
    @staticmethod
    def forward(ctx, K: Tensor, output_matrix: Tensor, noise: Tensor, residuals: Tensor) -> Tensor:
        ctx.solver = MissingSolver(K.detach(), output_matrix.detach(), noise.detach(), residuals.detach())
        return ctx.solver.log_density

    @staticmethod
    def backward(ctx, gradient: Tensor):
        reject_second_derivatives("kronecker_missing")
        *needed, needs_residuals = ctx.needs_input_grad
        found = ctx.solver.derivatives(*needed)
        by_residuals = -gradient * ctx.solver.alpha if needs_residuals else None
        return *(None if part is None else part.mul_(gradient) for part in found), by_residuals


class Derivatives(NamedTuple):
    """Derivatives of the log density by K (n, n), Γ (p, p) and Σ (p, p); None if not requested."""

    gram: Tensor | None
    output_matrix: Tensor | None
    noise: Tensor | None


class MissingSolver:
    """C⁻¹ on the observed entries of R (n, p), NaN if missing: `alpha` = C⁻¹ r, zero if missing, and `log_density`.

    O(n³ + p³ + k³ + min(n, p) k (n + p)) time and O(n² + p² + np + k²) memory for k missing entries. The derivatives
    take O(k³ + (k + n) n² p + (k + p) p² n) in addition, or less if K or Γ has a low numerical rank.
    """

    standard_error = 0.0

    @torch.no_grad()
    def __init__(self, K: Tensor, output_matrix: Tensor, noise: Tensor, residuals: Tensor):
        self.K, self.output_matrix, self.noise = K, output_matrix, noise
        self.observed = ~torch.isnan(residuals)
        r = torch.where(self.observed, residuals, 0.0)
        self.complete = complete = KroneckerSolver(K, output_matrix, noise, r)
        for values in (complete.s, complete.t):
            _zero_rounding(values)
        self.rows, self.outputs = _make_axes(complete, self.observed)
        self.fractions = 1 - 1 / complete.values[self.rows.active][:, self.outputs.active]  # e
        self.chol = safe_cholesky(self._inverse_between_missing())
        self.alpha = self._refine(r)
        logdet = complete.values.log().sum() + complete.noise_logdet + 2 * self.chol.diagonal().log().sum()
        self.log_density = gaussian_log_density((r * self.alpha).sum(), logdet, int(self.observed.sum()))

    def _inverse_between_missing(self) -> Tensor:
        """Compute B (k, k); only its lower triangle is right."""
        rows, outputs = self.rows, self.outputs
        ordered = (outputs, rows, self.fractions.mT) if rows.order is not None else (rows, outputs, self.fractions)
        B = _sum_products(*ordered).neg_()
        left, right = rows.pairs
        B[left, right] += outputs.inverse[outputs.entries[left], outputs.entries[right]]
        return B

    # --- solutions -------------------------------------------------------------------------------------------------

    def _solve(self, R: Tensor) -> Tensor:
        """Compute C⁻¹ R for R (n, c, p), zero if missing, without refinement."""
        complete, missing = self.complete, (self.rows.entries, slice(None), self.outputs.entries)
        rotated = _rotate(complete.U.mT, R, complete.W)
        inner = rotated / complete.values.unsqueeze(1)
        at_missing = _rotate(complete.U, inner, complete.W.mT)[missing]  # (k, c)
        imputed = torch.zeros_like(R)
        imputed[missing] = -torch.cholesky_solve(at_missing, self.chol)
        inner += _rotate(complete.U.mT, imputed, complete.W) / complete.values.unsqueeze(1)
        return _rotate(complete.U, inner, complete.W.mT) * self.observed.unsqueeze(1)

    def _refine(self, r: Tensor) -> Tensor:
        """Compute C⁻¹ r for r (n, p) or (n, c, p), corrected by its residual while that becomes smaller."""
        R = r if r.dim() == 3 else r.unsqueeze(1)
        solution = self._solve(R)
        residual = R - self._multiply(solution)
        size, goal = (torch.linalg.vector_norm(V).item() for V in (residual, R))
        for _ in range(MAX_REFINEMENTS):
            if size <= RESIDUAL_TOLERANCE * goal:
                break
            proposal = solution + self._solve(residual)
            left = R - self._multiply(proposal)
            norm = torch.linalg.vector_norm(left).item()
            if not norm < size / 2:
                break
            solution, residual, size = proposal, left, norm
        return solution if r.dim() == 3 else solution.squeeze(1)

    def _multiply(self, V: Tensor) -> Tensor:
        """Compute C V for V (n, c, p), zero if missing."""
        return (_rotate(self.K, V, self.output_matrix) + V @ self.noise) * self.observed.unsqueeze(1)

    @torch.no_grad()
    def solve(self, rhs: Tensor) -> Tensor:
        """Compute C⁻¹ rhs, (n·p, c) → (n·p, c); missing entries are ignored on input and zero on output."""
        R = torch.where(self.observed.unsqueeze(-1), rhs.unflatten(0, self.observed.shape), 0.0).transpose(1, 2)
        return self._refine(R.contiguous()).transpose(1, 2).flatten(0, 1)

    @torch.no_grad()
    def path(self, multipliers) -> Tensor:
        """Compute the log density (c,) with noise c Σ for each c of `multipliers` (c,), by one factorization each."""
        r = torch.where(self.observed, self._multiply(self.alpha.unsqueeze(1)).squeeze(1), torch.nan)
        solvers = (MissingSolver(self.K, self.output_matrix, float(c) * self.noise, r) for c in multipliers)
        return torch.stack([solver.log_density for solver in solvers])

    # --- parts of the inverse --------------------------------------------------------------------------------------

    def _roots(self, scores: Tensor, mixing: Tensor) -> Tensor:
        """Compute (scores ⊗ mixing) D⁻¹ (U ⊗ W)ᵀ Qᵀ L⁻ᵀ (x, q, k) with B = L Lᵀ, for scores (x, n) and mixing (q, p)."""
        rows, complete = self.rows, self.complete
        products = scores.unsqueeze(1) * complete.U[rows.present]  # (x, g, n)
        between = (products @ (1 / complete.values))[:, rows.groups] * complete.W[self.outputs.entries]  # (x, k, p)
        columns = (between @ mixing.mT).permute(1, 0, 2)  # (k, x, q)
        found = torch.linalg.solve_triangular(self.chol, columns.flatten(1), upper=False)
        return found.unflatten(1, columns.shape[1:]).permute(1, 2, 0)

    def _num_rows_per_chunk(self) -> int:
        (n, p), k = self.observed.shape, len(self.chol)
        return max(GROUP_CHUNK_ENTRIES // max(k * p, len(self.rows.present) * n, 1), 1)

    @torch.no_grad()
    def inverse_diagonal(self) -> Tensor:
        """Compute the diagonal of C⁻¹ (n, p), zero if missing. O(n p k²)."""
        complete = self.complete
        parts = [self._roots(U, complete.W).square().sum(-1) for U in complete.U.split(self._num_rows_per_chunk())]
        return torch.where(self.observed, complete.inverse_diagonal() - torch.cat(parts), 0.0)

    @torch.no_grad()
    def inverse_blocks(self, rows: Tensor) -> Tensor:
        """Compute the blocks (c, m·p, m·p) of C⁻¹ between the entries of `rows` (c, m), zero if missing. O(c m p k²)."""
        complete, parts = self.complete, []
        for part in rows.split(max(self._num_rows_per_chunk() // rows.shape[1], 1)):
            roots = self._roots(complete.U[part.flatten()], complete.W).reshape(
                len(part), part.shape[1] * len(complete.t), len(self.chol)
            )
            parts.append(complete.inverse_blocks(part) - roots @ roots.mT)
        observed = self.observed[rows].flatten(1)
        return torch.cat(parts) * (observed.unsqueeze(-1) & observed.unsqueeze(-2))

    def explained(self, cross: Tensor, form: str, outputs: Tensor | None = None) -> Tensor:
        """Compute K_* C⁻¹ K_*ᵀ for K_* = k ⊗ Γ with the *scalar* covariance `cross` = k (m, n), differentiable in k.

        `outputs` (q, p) replaces Γ for other outputs than the observed ones. O(m p k²).
        """
        complete = self.complete
        mixing = complete.mixing if outputs is None else outputs @ complete.W
        size = len(cross) if form == "full" else self._num_rows_per_chunk()
        parts = [self._roots(part @ complete.U, mixing) for part in cross.split(max(size, 1))]
        corrections = [gram_in_form(root.flatten(0, 1), form, len(mixing)) for root in parts]
        return complete.explained(cross, form, outputs) - torch.cat(corrections)

    # --- derivatives of the log density ----------------------------------------------------------------------------

    @torch.no_grad()
    def derivatives(self, needs_gram: bool = True, needs_output: bool = True, needs_noise: bool = True) -> Derivatives:
        """Compute the derivatives of `log_density` that are needed: ½ (α αᵀ − C⁻¹), contracted with each part of C."""
        rows, outputs, alpha, n = self.rows, self.outputs, self.alpha, len(self.K)
        by_gram = by_output = by_noise = None
        if needs_gram:
            sums = _sum_components(rows, outputs.factor, self.inverse, self.fractions, outputs.values.unsqueeze(0))
            by_gram = _expand(rows, *(part[0] for part in sums), outputs.values.sum())
            by_gram.addmm_(alpha @ self.output_matrix, alpha.mT, beta=0.5, alpha=0.5)
        if needs_output or needs_noise:
            weights = torch.stack([rows.values, torch.ones_like(rows.values)])
            sums = _sum_components(outputs, rows.factor, self.inverse, self.fractions.mT, weights)
            by_output = _expand(outputs, *(part[0] for part in sums), rows.values.sum())
            by_output.addmm_(alpha.mT, self.K @ alpha, beta=0.5, alpha=0.5)
            within = self._sum_within_rows()  # over all eigenvectors of K, those with s = 0 included
            by_noise = _expand(outputs, within, *(part[1] for part in sums[1:]), n)
            by_noise.addmm_(alpha.mT, alpha, beta=0.5, alpha=0.5)
        return Derivatives(by_gram, by_output if needs_output else None, by_noise if needs_noise else None)

    @cached_property
    def inverse(self) -> Tensor:
        """B⁻¹ (k, k)."""
        return inverse_from_cholesky(self.chol) if len(self.chol) else self.chol

    def _sum_within_rows(self) -> Tensor:
        """Compute Σ_i B⁻¹_{(i,a),(i,a')} for the outputs a, a' that are missing in some row."""
        (left, right), groups = self.rows.pairs, self.outputs.groups
        zeros = self.chol.new_zeros(len(self.outputs.present), len(self.outputs.present))
        return zeros.index_put_((groups[left], groups[right]), self.inverse[left, right], accumulate=True)


def _zero_rounding(values: Tensor) -> None:
    """Set eigenvalues that are rounding errors to zero, in place, so that sums over the others are complete."""
    values[values <= torch.finfo(values.dtype).eps * values.max()] = 0.0


def _rotate(left: Tensor, V: Tensor, right: Tensor) -> Tensor:
    """Multiply V (n, c, p) by `left` (n, n) over n and by `right` (p, p) over p."""
    return (left @ V.flatten(1)).view(V.shape) @ right


class _Axis:
    """Rows or outputs: eigenvectors A (n, r) with eigenvalues that are not zero, and the missing entries grouped by index.

    The inverse of a component with fractions e (r,) is N = S − A diag(e) Aᵀ, with S = I for rows and Σ⁻¹ for outputs.
    """

    def __init__(self, vectors: Tensor, values: Tensor, entries: Tensor, inverse: Tensor | None):
        self.active = values > 0
        self.basis, self.values = vectors[:, self.active].contiguous(), values[self.active]
        self.inverse = inverse  # S, or None for the identity
        self.entries = entries  # (k,) index of each missing entry
        self.factor = self.basis[entries]  # (k, r)
        self.present, self.groups, sizes = torch.unique(entries, return_inverse=True, return_counts=True)
        is_sorted = bool((entries[1:] >= entries[:-1]).all())
        self.order = None if is_sorted else torch.argsort(entries, stable=True)
        """Permutation that sorts the missing entries by group; None if they are sorted."""
        self.ends = sizes.cumsum(0)
        within = torch.arange(int(sizes.max()) if len(sizes) else 0, device=entries.device)
        self.is_member = within < sizes.unsqueeze(-1)  # (g, largest group)
        members = (self.ends - sizes).unsqueeze(-1) + within * self.is_member
        self.members = members  # (g, largest group), numbers of the sorted entries; the first again if not a member

    @cached_property
    def pairs(self) -> tuple[Tensor, Tensor]:
        """Numbers of all pairs of entries of the same group."""
        members = self.members if self.order is None else self.order[self.members]
        both = self.is_member.unsqueeze(-1) & self.is_member.unsqueeze(-2)
        left, right = torch.broadcast_tensors(members.unsqueeze(-1), members.unsqueeze(-2))
        return left[both], right[both]

    def sort(self, values: Tensor) -> Tensor:
        """Sort the first axis (k, ...) by group."""
        return values if self.order is None else values[self.order]

    def chunks(self, entries_per_group: int) -> Iterator[tuple[slice, slice, int]]:
        """Iterate over some groups: those, their sorted entries, and the number of sorted entries up to the last."""
        size, begin = max(GROUP_CHUNK_ENTRIES // max(entries_per_group, 1), 1), 0
        for first in range(0, len(self.present), size):
            last = min(first + size, len(self.present))
            end = int(self.ends[last - 1])
            yield slice(first, last), slice(begin, end), end
            begin = end


def _make_axes(complete: KroneckerSolver, observed: Tensor) -> tuple[_Axis, _Axis]:
    """Return the axes of rows and outputs, with the missing entries in the order in which B is cheaper to compute."""
    by_row = (~observed).nonzero()
    by_output = by_row[torch.argsort(by_row[:, 1], stable=True)]
    inverse = complete.W @ complete.W.mT

    def make(entries: Tensor) -> tuple[_Axis, _Axis]:
        rows, outputs = entries.unbind(-1)
        return _Axis(complete.U, complete.s, rows, None), _Axis(complete.W, complete.t, outputs, inverse)

    rows, outputs = make(by_row)
    return (rows, outputs) if _cost(rows, outputs) <= _cost(outputs, rows) else make(by_output)


def _cost(axis: _Axis, other: _Axis) -> float:
    """Estimate the operations of `_sum_products`, of which those of matrix products are ten times faster."""
    g, k, (r, q) = len(axis.present), len(axis.entries), (len(axis.values), len(other.values))
    return g * g * (r + r * q / 10) + g * k * q + k * k * q / 10


def _sum_products(axis: _Axis, other: _Axis, fractions: Tensor) -> Tensor:
    """Compute Σ_rq A_ir A_i'r O_aq O_a'q e_rq (k, k) for sorted entries (i, a) and (i', a'); only its lower triangle."""
    k, factor = len(axis.entries), other.factor
    result = factor.new_zeros(k, k)
    vectors = axis.basis[axis.present]
    for groups, entries, end in axis.chunks(k * factor.shape[1] + vectors.numel()):
        products = vectors[groups].unsqueeze(1) * vectors[: groups.stop]  # (c, g, r)
        scalars = products @ fractions  # (c, g, q)
        expanded = scalars[:, axis.groups[:end]].mul_(factor[:end])  # (c, k, q)
        blocks = factor[axis.members[groups]] @ expanded.mT  # (c, largest group, k)
        result[entries, :end] = blocks[axis.is_member[groups]]
    return result


class _Sums(NamedTuple):
    """Σ_q w_q J_q (b, g, g), Σ_q w_q J_q A e_q (b, g, r) and Σ_q w_q e_q (Aᵀ J_q A + 1) e_q (b, r, r)."""

    total: Tensor
    half: Tensor
    inner: Tensor


def _sum_components(axis: _Axis, factor: Tensor, inverse: Tensor, fractions: Tensor, weights: Tensor) -> _Sums:
    """Compute the sums over components q for a factor (k, q) of the missing entries, e (r, q) and weights w (b, q)."""
    A, b = axis.basis[axis.present], len(weights)
    g, r = A.shape
    sums = _Sums(A.new_zeros(b, g, g), A.new_zeros(b, g, r), torch.diag_embed(weights @ fractions.mT))
    for columns, J in _contract(axis, factor, inverse):
        e, w = fractions[:, columns].mT, weights[:, columns]
        half = (J.flatten(0, 1) @ A).view(len(J), g, r).mul_(e.unsqueeze(1))  # (c, g, r)
        inner = (A.mT @ half).mul_(e.unsqueeze(-1))  # (c, r, r)
        for total, part in zip(sums, (J, half, inner), strict=True):
            total.flatten(1).addmm_(w, part.flatten(1))
    return sums


def _contract(axis: _Axis, factor: Tensor, inverse: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Iterate over chunks of J_q[i, i'] = Σ_aa' f_q B⁻¹ f_q (c, g, g), for columns q of `factor` (k, q) and B⁻¹ (k, k)."""
    factor, labels, g = axis.sort(factor), axis.sort(axis.groups), len(axis.present)
    inverse = inverse if axis.order is None else inverse[axis.order][:, axis.order]
    size = max(max(GROUP_CHUNK_ENTRIES, inverse.numel() // 3) // max(g * g, 1), 1)
    for first in range(0, factor.shape[1], size):
        columns = slice(first, min(first + size, factor.shape[1]))
        part = factor[:, columns].contiguous()
        J = part.new_zeros(g, g, part.shape[1])
        for groups, _, end in axis.chunks(len(factor) * (part.shape[1] + axis.members.shape[1])):
            members, is_member = axis.members[groups], axis.is_member[groups]
            left = part[members] * is_member.unsqueeze(-1)  # (c, largest group, q)
            products = (inverse[members, :end].mT @ left).mul_(part[:end])  # (c, k, q)
            J[groups].index_add_(1, labels[:end], products)
            J[: groups.start, groups] = J[groups, : groups.start].transpose(0, 1)
        yield columns, J.permute(2, 0, 1).contiguous()


def _expand(axis: _Axis, total: Tensor, half: Tensor, inner: Tensor, weight: Tensor | float) -> Tensor:
    """Compute Σ_q w_q (N_q J_q N_q − N_q) (n, n) from `_Sums` and the sum of all weights."""
    result, cross = axis.basis @ inner @ axis.basis.mT, half @ axis.basis.mT  # (g, n)
    if axis.inverse is None:
        result[axis.present] -= cross
        result[:, axis.present] -= cross.mT
        result[axis.present.unsqueeze(-1), axis.present] += total
        result.diagonal().sub_(weight)
        return result
    S = axis.inverse[:, axis.present]
    cross = S @ cross
    return result - cross - cross.mT + S @ total @ S.mT - weight * axis.inverse


@torch.no_grad()
def missing_inverse_root(K: Tensor, output_matrix: Tensor, noise: Tensor, residuals: Tensor) -> Tensor:
    """Compute C^(−½) r (n, p), NaN if missing, by one factorization per node of a quadrature (15 to 50)."""
    eye, observed = torch.eye(len(noise)).to(noise), ~torch.isnan(residuals)
    values = [torch.linalg.eigvalsh(matrix) for matrix in (K, output_matrix, noise)]
    largest = values[0][-1] * values[1][-1] + values[2][-1]
    total = torch.zeros_like(residuals)
    for shift, weight in quadrature_nodes(values[2][0].item(), largest.item()):
        total.add_(MissingSolver(K, output_matrix, noise + shift * eye, residuals).alpha, alpha=weight)
    return torch.where(observed, total, torch.nan)
