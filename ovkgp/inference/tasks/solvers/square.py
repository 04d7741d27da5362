"""Exact solution for the square loss, with complete or missing entries.

`mask_measure` gives missing entries weight 0. There are three normalizations of the others (LT-75), here for η_j = 1/m:

| normalization | η_ij of an observed entry | its noise λn/η_ij |
|---|---|---|
| fixed | η_j, as without missing entries | λ n m |
| pooled | η_j · n / Σ (η of the observed) | λ N, with N observed entries |
| per_sample | η_j / Σ (η of the observed in row i) | λ n m_i, with m_i observed entries in the row |
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from ovkgp.checks import check_one_of
from ovkgp.exceptions import InputError, OptionError
from ovkgp.inference.algebra.dense import gram, safe_cholesky
from ovkgp.inference.algebra.kronecker import eigh
from ovkgp.inference.algebra.krylov import solve_with_refinement
from ovkgp.inference.model.fit_report import FitReport
from ovkgp.inference.strategies.selection import MAX_DENSE_ENTRIES
from ovkgp.inference.tasks.problem import TaskProblem, TaskSolution
from ovkgp.losses import TaskMeasure

CG_TOLERANCE, MAX_CG_ITERATIONS, MAX_RELATIVE_GAP = 1e-11, 2000, 1e-6
"""Relative residual and iteration limit of conjugate gradients, and the relative gap at convergence."""
NORMALIZATIONS = ("fixed", "pooled", "per_sample")


def solve_square(problem: TaskProblem) -> TaskSolution:
    """Minimize J for `IntegralLoss(Square(), measure)` exactly; the dual is A = Y − H, zero where missing.

    Complexity: O(n r min(n, r) + m q min(m, q)) and two small eigendecompositions for shared nodes without masks;
    otherwise O(N³) for N ≤ 5000 observed entries, and O(n q (r + m)) per iteration of conjugate gradients beyond.
    """
    began = time.perf_counter()
    if getattr(getattr(problem.loss, "loss", None), "name", None) != "square":
        raise OptionError(
            f"solve_square requires IntegralLoss(Square(), measure), got {problem.loss!r}. Use solve_primal or solve_dual."
        )
    problem = replace(problem, targets=problem.targets.expand(problem.entry_weights.shape))
    weights, iterations = _solve_weights(problem)
    H = problem.values(weights)
    dual = torch.where(problem.entry_weights > 0, problem.targets - H, 0.0)
    objective = problem.objective(weights, H).item()
    gap = objective - problem.dual_objective(dual).item()
    seconds = time.perf_counter() - began
    converged = gap <= MAX_RELATIVE_GAP * abs(objective)
    message = "closed form" if iterations == 0 else "converged" if converged else "the gap stayed large"
    report = FitReport(objective, converged, message, iterations=iterations, seconds=seconds)
    return TaskSolution(weights, dual, objective, gap, report)


def _solve_weights(problem: TaskProblem) -> tuple[Tensor, int]:
    ridge = problem.lam * problem.num_rows
    if problem.is_shared and problem.loss.weights.dim() == 1:
        rows, tasks = problem.row_weights.sqrt().unsqueeze(-1), problem.loss.weights.sqrt().unsqueeze(-1)
        return ridge_weights(rows * problem.inputs, tasks * problem.tasks, rows * problem.targets * tasks.T, ridge), 0
    if int((problem.entry_weights > 0).sum()) <= MAX_DENSE_ENTRIES:
        return _solve_entries(problem, ridge), 0
    return _solve_cg(problem, ridge)


def ridge_weights(inputs: Tensor, tasks: Tensor, targets: Tensor, ridge: float) -> Tensor:
    """Return argmin_W ½ ‖Y − Φ W Ψᵀ‖² + (ridge/2) ‖W‖², (r, q), for Φ (n, r), Ψ (m, q) and complete Y (n, m).

    Complexity: O(n r min(n, r) + m q min(m, q) + n m (r + q)).
    """
    left, right = _decompose(inputs), _decompose(tasks)
    inner = left.analysis.mT @ targets @ right.analysis / (left.values.unsqueeze(-1) * right.values + ridge)
    return left.synthesis @ inner @ right.synthesis.mT


class _Spectrum(NamedTuple):
    """Φ = P Q⁺ with singular values √σ: analysis (n, k) and synthesis (r, k), whose product carries one √σ."""

    values: Tensor
    analysis: Tensor
    synthesis: Tensor


def _decompose(rows: Tensor) -> _Spectrum:
    """Decompose the smaller of ΦᵀΦ and ΦΦᵀ."""
    if rows.shape[1] <= rows.shape[0]:
        values, vectors = eigh(gram(rows))
        return _Spectrum(values, rows @ vectors, vectors)
    values, vectors = eigh(gram(rows.mT))
    return _Spectrum(values, vectors, rows.mT @ vectors)


def _solve_entries(problem: TaskProblem, ridge: float) -> Tensor:
    """Solve a = (K + λn/ω)⁻¹ y between the observed entries, W = Σ a_ij φ_i ψ_ijᵀ."""
    weights = problem.entry_weights
    rows, nodes = (weights > 0).nonzero(as_tuple=True)
    Psi = problem.tasks[nodes] if problem.is_shared else problem.tasks[rows, nodes]  # (N, q)
    covariance = gram(problem.inputs.mT)[rows][:, rows] * gram(Psi.mT)
    covariance.diagonal().add_(ridge / weights[rows, nodes])
    alpha = torch.cholesky_solve(problem.targets[rows, nodes].unsqueeze(-1), safe_cholesky(covariance))
    return problem.inputs[rows].mT @ (alpha * Psi)


def _solve_cg(problem: TaskProblem, ridge: float) -> tuple[Tensor, int]:
    """Solve Φᵀ(ω ∘ ΦWΨᵀ)Ψ + λn W = Φᵀ(ω ∘ Y)Ψ, preconditioned by the equation with mean weights."""
    weights, shape = problem.entry_weights, problem.shape

    def apply(W: Tensor) -> Tensor:
        W = W.reshape(shape)
        return (problem.adjoint(weights * problem.values(W)) + ridge * W).unsqueeze(1)

    average = weights.mean(0) if problem.is_shared else weights / len(weights)
    scaled = (average.sqrt().unsqueeze(-1) * problem.tasks).reshape(-1, shape[1])
    (s, U), (t, V) = eigh(gram(problem.inputs)), eigh(gram(scaled))
    values = s.unsqueeze(-1) * t + ridge

    def precondition(W: Tensor) -> Tensor:
        return (U @ ((U.mT @ W.reshape(shape) @ V) / values) @ V.mT).unsqueeze(1)

    rhs = problem.adjoint(weights * problem.targets).unsqueeze(1)
    norm = values.max().item() * torch.nan_to_num(weights / average).max().item()
    refined = solve_with_refinement(apply, precondition, rhs, CG_TOLERANCE, MAX_CG_ITERATIONS, norm)
    return refined.solution.reshape(shape), refined.num_iterations


def mask_measure(measure: TaskMeasure, observed: Tensor, normalization: str = "fixed") -> ObservedTasks:
    """Restrict a measure to the observed entries (n, m). Rows without entries count in n. O(n m)."""
    check_one_of("normalization", normalization, NORMALIZATIONS)
    num_rows = len(observed) if measure.is_shared else len(measure.nodes)
    if observed.shape != (num_rows, len(measure)):
        raise InputError(
            f"observed must have shape ({'n' if measure.is_shared else num_rows}, {len(measure)}) with one column per node, got {tuple(observed.shape)}."
        )
    weights = torch.where(observed, measure.weights, 0.0)
    if not bool(weights.any()):
        raise InputError("observed must have at least one entry at a node with positive weight, got none.")
    if normalization == "pooled":
        weights = weights * (len(observed) / weights.sum())
    elif normalization == "per_sample":
        total = weights.sum(1, keepdim=True)
        weights = weights / torch.where(total > 0, total, 1.0)
    return ObservedTasks(measure.nodes, weights, measure.num_dims)


@dataclass(frozen=True)
class ObservedTasks:
    """A measure with nodes (m,) or (n, m), or (m, b) or (n, m, b), and weights (n, m), zero where missing.

    It is used as a `TaskMeasure`; `num_dims` is b.
    """

    nodes: Tensor
    weights: Tensor
    num_dims: int = 1

    def __len__(self) -> int:
        return self.weights.shape[-1]

    @property
    def is_shared(self) -> bool:
        """Whether all rows have the same nodes."""
        return self.nodes.dim() == (1 if self.num_dims == 1 else 2)
