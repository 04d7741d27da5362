"""Missing entries: which weight do those that are left have? Three answers (LT-75).

| normalisation | η_ij of an observed entry | its noise λn/η_ij |
|---|---|---|
| fixed | η_j, as if nothing were missing | λ n m |
| pooled | η_j · n / Σ (η of the observed) | λ N, with N observed entries |
| per_sample | η_j / Σ (η of the observed in row i) | λ n m_i, with m_i observed entries in the row |

for η_j = 1/m. The first is what a mask means in a sum, the second a mean over what there is, the third a mean of the rows' means.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from ovkgp.exceptions import InputError, OptionError
from ovkgp.inference.algebra.dense import gram, safe_cholesky
from ovkgp.inference.algebra.kronecker import eigh
from ovkgp.inference.algebra.krylov import refined_solve
from ovkgp.inference.model.fit_report import FitReport
from ovkgp.inference.strategies.selection import DENSE_LIMIT
from ovkgp.inference.tasks.problem import TaskProblem, TaskSolution
from ovkgp.losses import TaskMeasure

TOLERANCE, MAX_ITERATIONS, GAP = 1e-11, 2000, 1e-6
"""The relative residual of conjugate gradients, after how many iterations they stop, and the relative gap that is allowed."""


def solve_square(problem: TaskProblem) -> TaskSolution:
    """Minimise J for the square loss, exactly.

    Args:
        problem: with `IntegralLoss(Square(), measure)`; a missing entry has weight zero (`mask_measure`).

    Returns:
        W, the dual A = Y − H (zero where nothing was observed), J and the duality gap, zero to rounding.

    Cost: O(n r min(n, r) + m q min(m, q)) and two small eigendecompositions for shared nodes without masks; else O(N³) for N ≤ 5000
    observed entries, and O(n q (r + m)) an iteration of conjugate gradients beyond.

    Example:
        >>> import torch
        >>> from ovkgp.inference.tasks.problem import TaskProblem
        >>> from ovkgp.inference.tasks.solvers.square import solve_square
        >>> from ovkgp.losses import IntegralLoss, Square, TaskMeasure
        >>> loss = IntegralLoss(Square(), TaskMeasure([0.2, 0.8]))
        >>> problem = TaskProblem(torch.eye(3).double(), torch.eye(2).double(), torch.ones(3, 2).double(), loss, lam=0.5)
        >>> solve_square(problem).weights  # 1 / (1 + λnm)
        tensor([[0.2500, 0.2500],
                [0.2500, 0.2500],
                [0.2500, 0.2500]], dtype=torch.float64)
    """
    began = time.perf_counter()
    _require_square(problem)
    problem = replace(problem, targets=problem.targets.expand(problem.entry_weights.shape))
    weights, iterations = _solve(problem)
    H = problem.values(weights)
    dual = torch.where(problem.entry_weights > 0, problem.targets - H, 0.0)
    objective = problem.objective(weights, H).item()
    gap = objective - problem.dual_objective(dual).item()
    seconds = time.perf_counter() - began
    converged = gap <= GAP * abs(objective)
    message = "closed form" if iterations == 0 else "converged" if converged else "the gap stayed large"
    report = FitReport(objective, converged, message, iterations=iterations, seconds=seconds)
    return TaskSolution(weights, dual, objective, gap, report)


def _require_square(problem: TaskProblem) -> None:
    if getattr(getattr(problem.loss, "loss", None), "name", None) != "square":
        raise OptionError(
            "solve_square is for IntegralLoss(Square(), measure); other losses have solve_primal and solve_dual."
        )


def _solve(problem: TaskProblem) -> tuple[Tensor, int]:
    ridge = problem.lam * problem.num_rows
    if problem.is_shared and problem.loss.weights.dim() == 1:
        rows, tasks = problem.row_weights.sqrt().unsqueeze(-1), problem.loss.weights.sqrt().unsqueeze(-1)
        return ridge_weights(rows * problem.inputs, tasks * problem.tasks, rows * problem.targets * tasks.T, ridge), 0
    if int((problem.entry_weights > 0).sum()) <= DENSE_LIMIT:
        return _by_entries(problem, ridge), 0
    return _by_products(problem, ridge)


# --- all entries ----------------------------------------------------------------------------------------------------


def ridge_weights(inputs: Tensor, tasks: Tensor, targets: Tensor, ridge: float) -> Tensor:
    """argmin_W ½ ‖Y − Φ W Ψᵀ‖² + (ridge/2) ‖W‖², (r, q).

    Args:
        inputs: Φ (n, r).
        tasks: Ψ (m, q).
        targets: Y (n, m), complete.
        ridge: > 0.

    Cost: O(n r min(n, r) + m q min(m, q) + n m (r + q)).

    Example:
        >>> import torch
        >>> from ovkgp.inference.tasks.solvers.square import ridge_weights
        >>> I = torch.eye(2).double()
        >>> ridge_weights(I, 2 * I, torch.ones(2, 2).double(), 1.0)
        tensor([[0.4000, 0.4000],
                [0.4000, 0.4000]], dtype=torch.float64)
    """
    left, right = _side(inputs), _side(tasks)
    inner = left.analysis.mT @ targets @ right.analysis / (left.values.unsqueeze(-1) * right.values + ridge)
    return left.synthesis @ inner @ right.synthesis.mT


class _Side(NamedTuple):
    """Φ = P Q⁺ with singular values √σ: analysis (n, k) and synthesis (r, k), whose product carries one √σ."""

    values: Tensor
    analysis: Tensor
    synthesis: Tensor


def _side(rows: Tensor) -> _Side:
    """By the smaller of ΦᵀΦ and ΦΦᵀ."""
    if rows.shape[1] <= rows.shape[0]:
        values, vectors = eigh(gram(rows))
        return _Side(values, rows @ vectors, vectors)
    values, vectors = eigh(gram(rows.mT))
    return _Side(values, vectors, rows.mT @ vectors)


# --- some entries ---------------------------------------------------------------------------------------------------


def _by_entries(problem: TaskProblem, ridge: float) -> Tensor:
    """a = (K + λn/ω)⁻¹ y between the observed entries, W = Σ a_ij φ_i ψ_ijᵀ."""
    weights = problem.entry_weights
    rows, nodes = (weights > 0).nonzero(as_tuple=True)
    Psi = problem.tasks[nodes] if problem.is_shared else problem.tasks[rows, nodes]  # (N, q)
    covariance = gram(problem.inputs.mT)[rows][:, rows] * gram(Psi.mT)
    covariance.diagonal().add_(ridge / weights[rows, nodes])
    alpha = torch.cholesky_solve(problem.targets[rows, nodes].unsqueeze(-1), safe_cholesky(covariance))
    return problem.inputs[rows].mT @ (alpha * Psi)


def _by_products(problem: TaskProblem, ridge: float) -> tuple[Tensor, int]:
    """Φᵀ(ω ∘ ΦWΨᵀ)Ψ + λn W = Φᵀ(ω ∘ Y)Ψ, preconditioned by what it would be with the mean weight of each node."""
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
    found = refined_solve(apply, precondition, rhs, TOLERANCE, MAX_ITERATIONS, norm)
    return found.solution.reshape(shape), found.num_iterations


NORMALISATIONS = ("fixed", "pooled", "per_sample")


@dataclass(frozen=True)
class ObservedTasks:
    """A measure with a weight for each entry, zero where nothing was observed: in place of a `TaskMeasure` in a loss.

    Args:
        nodes: θ, (m,) or (n, m).
        weights: η (n, m); a row need not sum to 1.

    Example:
        See `mask_measure`.
    """

    nodes: Tensor
    weights: Tensor

    def __len__(self) -> int:
        return self.nodes.shape[-1]

    @property
    def is_shared(self) -> bool:
        """Whether all rows have the same nodes."""
        return self.nodes.dim() == 1


def mask_measure(measure: TaskMeasure, observed: Tensor, normalisation: str = "fixed") -> ObservedTasks:
    """The part of a measure that was observed.

    Args:
        measure: with nodes (m,) or (n, m).
        observed: (n, m), which entries of the targets there are.
        normalisation: "fixed", "pooled" or "per_sample"; see above. Rows without any entry count in n.

    Cost: O(n m).

    Example:
        >>> import torch
        >>> from ovkgp.inference.tasks.solvers.square import mask_measure
        >>> from ovkgp.losses import TaskMeasure
        >>> observed = torch.tensor([[True, False], [True, True]])
        >>> [mask_measure(TaskMeasure([0.0, 1.0]), observed, how).weights.tolist() for how in ("fixed", "per_sample")]
        [[[0.5, 0.0], [0.5, 0.5]], [[1.0, 0.0], [0.5, 0.5]]]
    """
    if normalisation not in NORMALISATIONS:
        raise OptionError(
            f"normalisation must be one of {', '.join(map(repr, NORMALISATIONS))}, got {normalisation!r}."
        )
    if (
        observed.dim() != 2
        or observed.shape[1] != len(measure)
        or not (measure.nodes.dim() == 1 or len(measure.nodes) == len(observed))
    ):
        raise InputError(f"observed must be (n, {len(measure)}), one column a node; got {tuple(observed.shape)}.")
    weights = torch.where(observed, measure.weights, 0.0)
    if not bool(weights.any()):
        raise InputError("nothing was observed at a node with a weight: give at least one entry.")
    if normalisation == "pooled":
        weights = weights * (len(observed) / weights.sum())
    elif normalisation == "per_sample":
        total = weights.sum(1, keepdim=True)
        weights = weights / torch.where(total > 0, total, 1.0)
    return ObservedTasks(measure.nodes, weights)
