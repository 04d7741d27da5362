"""Over-relaxed ADMM, which alternates between the proximal operator of the loss and a ridge regression.

    W ← argmin (1/2n) Σ g (ΦWΨᵀ − U + T)² + (κλ/2) ‖W‖²,     H ← ρ ΦWΨᵀ + (1 − ρ) U,
    U ← prox of the loss at H + T, step κ ω/g,               T ← H + T − U,      slopes S = T g / (κ ω).

The first step is a ridge in eigen-coordinates, the second acts entry by entry; both are robust to a small λ and to
kinks. S is a slope of the loss at U, so each evaluation has both sides of the duality gap.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor
from tqdm import tqdm

from ovkgp.inference.algebra.dense import gram, safe_cholesky
from ovkgp.inference.algebra.kronecker import eigh
from ovkgp.inference.tasks.problem import TaskProblem
from ovkgp.inference.tasks.solvers.certificates import Certificate
from ovkgp.losses import CurveEnvelope, CurveLoss, IntegralLoss

DIAGONAL_TOLERANCE = 1e-13
"""A Gram matrix is diagonal if no off-diagonal entry exceeds this fraction of the largest entry."""
RELAXATION, CHECK_INTERVAL_STEPS, MAX_ADAPTIVE_STEPS = 1.8, 10, 150
"""ρ; steps between two evaluations of the gap; and the number of steps in which κ may change."""
INITIAL_KAPPA, TARGET_RATIO, RATIO_BAND = 0.15, 0.5, 3.0
"""Initial κ, in units of target over slope; target ratio of the two residuals, and its allowed factor."""
DENSE_COORDINATES = 1500  # maximum number of coordinates rq whose normal matrix is formed


class ADMM:
    """The iteration from feasible slopes and values H (n, m); `weights` are in the coordinates of `step.problem`."""

    def __init__(self, step: KroneckerStep | DenseStep, certificate: Certificate, slopes: Tensor, H: Tensor):
        self.step, self.certificate, self.problem = step, certificate, step.problem
        weights, metric = self.problem.entry_weights, torch.where(step.metric > 0, step.metric, 1.0)
        self.weight_ratio = torch.where(weights > 0, weights, 0.0) / metric
        self.kappa = INITIAL_KAPPA * self._unit(slopes)
        self.U, self.T = H, self.kappa * self.weight_ratio * slopes
        self.weights, self.slopes = self.problem.inputs.new_zeros(self.problem.shape), slopes

    def run(self, budget: int, bar: tqdm) -> None:
        """Run at most `budget` steps; stop earlier if the last third of them did not reduce the gap."""
        gaps, certificate = [], self.certificate
        for count in range(1, budget + 1):
            H, moved = self._advance()
            certificate.count_step(bar)
            if count % CHECK_INTERVAL_STEPS == 0 or certificate.is_over or count == budget:
                gaps.append(certificate.evaluate(self.step.from_coordinates(self.weights), self.slopes, H))
                if certificate.is_over or _is_stalled(gaps, budget):
                    return
                if count <= MAX_ADAPTIVE_STEPS:
                    self._balance(H, moved)

    def _advance(self) -> tuple[Tensor, Tensor]:
        """Run one round, and return the values of the new W and the change of U."""
        problem = self.problem
        self.weights = self.step(self.U - self.T, self.kappa * problem.lam)
        H = problem.values(self.weights)
        before, at = self.U, RELAXATION * H + (1 - RELAXATION) * self.U + self.T
        self.U = problem.loss.prox(at, problem.targets, self._prox_step())
        self.T = torch.where(self.weight_ratio > 0, at - self.U, 0.0)
        self.slopes = torch.where(self.weight_ratio > 0, self.T / (self.kappa * self.weight_ratio), 0.0)
        return H, self.U - before

    def _prox_step(self) -> float | Tensor:
        if is_entrywise(self.problem.loss) and self.problem.loss.weights.dim() == 2:
            return self.kappa * torch.where(self.weight_ratio > 0, self.weight_ratio, 1.0)
        return self.kappa

    def _balance(self, H: Tensor, moved: Tensor) -> None:
        """Change κ if one of the two relative residuals is much larger."""
        primal = self._size(H - self.U) / max(self._size(H), self._size(self.U), 1e-300)
        dual = self._size(moved) / max(self.kappa * self._size(self.slopes), 1e-300)
        if min(primal, dual) <= 0 or 1 / RATIO_BAND < (ratio := primal / dual / TARGET_RATIO) < RATIO_BAND:
            return
        change = min(max(ratio**-0.5, 0.2), 5.0)
        self.kappa, self.T = self.kappa * change, self.T * change

    def _size(self, entries: Tensor) -> float:
        return (self.problem.entry_weights * entries.square()).sum().sqrt().item()

    def _unit(self, slopes: Tensor) -> float:
        """Return the norm of the targets over that of the slopes."""
        unit = self._size(self.problem.targets.expand_as(slopes)) / max(self._size(slopes), 1e-300)
        return unit if 1e-12 < unit < 1e12 else 1.0


def _is_stalled(gaps: list[float], budget: int) -> bool:
    window = max(budget // (3 * CHECK_INTERVAL_STEPS), 10)
    return len(gaps) > window and gaps[-1] > 0.9 * gaps[-1 - window]


def make_ridge_step(problem: TaskProblem) -> KroneckerStep | DenseStep | None:
    """Return the fastest ridge step for a problem, or None if none fits in memory."""
    weights = problem.loss.weights
    if problem.is_shared and weights.dim() == 1:
        return KroneckerStep(problem, problem.row_weights, weights)
    if problem.is_shared and is_entrywise(problem.loss):
        # entries of any weight, including missing ones: entrywise proximal steps compensate for the common metric
        columns = problem.entry_weights.sum(0) / (problem.entry_weights > 0).sum(0).clamp(min=1)
        columns = torch.where(columns > 0, columns, columns.mean())
        return KroneckerStep(problem, torch.ones_like(problem.row_weights), columns)
    if math.prod(problem.shape) <= DENSE_COORDINATES:
        return DenseStep(problem, problem.entry_weights)
    return None


def is_entrywise(loss: CurveLoss) -> bool:
    """Return whether a loss is a sum over entries, so that its proximal operator takes a separate step for each."""
    return isinstance(loss, IntegralLoss) or (isinstance(loss, CurveEnvelope) and is_entrywise(loss.loss))


class KroneckerStep:
    """The ridge step for g_ij = a_i b_j, in coordinates with a diagonal normal matrix, those of `problem`.

    Complexity: O(n r² + r³ + q³) once, O(n q (r + m)) per step.
    """

    def __init__(self, problem: TaskProblem, rows: Tensor, columns: Tensor):
        row_values, self.row_vectors = _decompose_gram(problem.inputs, rows)
        column_values, self.column_vectors = _decompose_gram(problem.tasks, columns)
        self.metric = rows[:, None] * columns
        self.values = row_values[:, None] * column_values / problem.num_rows
        inputs = problem.inputs if self.row_vectors is None else problem.inputs @ self.row_vectors
        tasks = problem.tasks if self.column_vectors is None else problem.tasks @ self.column_vectors
        self.problem = replace(problem, inputs=inputs, tasks=tasks)

    def __call__(self, V: Tensor, mu: float) -> Tensor:
        """Return W (r, q) in the diagonal coordinates."""
        return self.problem.adjoint(self.metric * V) / (self.problem.num_rows * (self.values + mu))

    def from_coordinates(self, weights: Tensor) -> Tensor:
        """Return W in the original coordinates."""
        weights = weights if self.row_vectors is None else self.row_vectors @ weights
        return weights if self.column_vectors is None else weights @ self.column_vectors.T

    def to_coordinates(self, weights: Tensor) -> Tensor:
        """Return W in the diagonal coordinates."""
        weights = weights if self.row_vectors is None else self.row_vectors.T @ weights
        return weights if self.column_vectors is None else weights @ self.column_vectors


class DenseStep:
    """The ridge step for any metric g (n, m), with one Cholesky factor per μ.

    Complexity: O(n r² q²) once, O((r q)³) per new μ, O(n q (r + m) + (r q)²) per step; (r q)² memory.
    """

    def __init__(self, problem: TaskProblem, metric: Tensor):
        self.problem, self.metric, self.values = problem, metric, None
        self._normal, self._factor = normal_matrix(problem, row_curvatures(problem, metric / problem.num_rows)), None

    def __call__(self, V: Tensor, mu: float) -> Tensor:
        if self._factor is None or self._factor[0] != mu:
            matrix = self._normal.clone()
            matrix.diagonal().add_(mu)
            self._factor = mu, safe_cholesky(matrix)
        moment = self.problem.adjoint(self.metric * V) / self.problem.num_rows
        return torch.cholesky_solve(moment.reshape(-1, 1), self._factor[1]).view(moment.shape)

    def from_coordinates(self, weights: Tensor) -> Tensor:
        """Return W, as the coordinates are those of the problem."""
        return weights

    to_coordinates = from_coordinates


def row_curvatures(problem: TaskProblem, entries: Tensor) -> Tensor:
    """Return B_i = Σ_j c_ij ψ_ij ψ_ijᵀ, (n, q, q), for entries c (n, m). O(n m q²)."""
    tasks = problem.tasks
    if not problem.is_shared:
        return tasks.mT @ (entries.unsqueeze(-1) * tasks)
    squares = (tasks.unsqueeze(-1) * tasks.unsqueeze(-2)).flatten(1)
    return (entries @ squares).view(-1, tasks.shape[1], tasks.shape[1])


def normal_matrix(problem: TaskProblem, curvatures: Tensor) -> Tensor:
    """Return Σ_i φ_iφ_iᵀ ⊗ B_i, (rq, rq), for symmetric B (n, q, q). O(n r² q²) time, (r q)² memory."""
    r, q = problem.shape
    matrix = problem.inputs.new_empty(r, q, r, q)
    for c in range(q):
        for d in range(c, q):
            matrix[:, c, :, d] = (problem.inputs * curvatures[:, c, d, None]).T @ problem.inputs
            matrix[:, d, :, c] = matrix[:, c, :, d]
    return matrix.view(r * q, r * q)


def _decompose_gram(rows: Tensor, weights: Tensor) -> tuple[Tensor, Tensor | None]:
    """Return eigenvalues and vectors of RᵀdR; no vectors if it is diagonal already, as for a `KernelFactor`."""
    matrix = gram(rows * weights.sqrt()[:, None])
    diagonal = matrix.diagonal().clone()
    if bool(matrix.abs().fill_diagonal_(0.0).max() <= DIAGONAL_TOLERANCE * diagonal.max()):
        return diagonal, None
    return eigh(matrix)
