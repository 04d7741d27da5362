"""Alternating directions: the loss and the norm take turns, each by its own closed form (ADMM, over-relaxed).

    W ← argmin (1/2n) Σ g (ΦWΨᵀ − U + T)² + (κλ/2) ‖W‖²,     H ← ρ ΦWΨᵀ + (1 − ρ) U,
    U ← prox of the loss at H + T, step κ ω/g,               T ← H + T − U,      slopes S = T g / (κ ω).

The first is a ridge in eigen-coordinates (`ridge_steps`), the second is entry by entry; neither minds a small λ or a kink. S is a
slope of the loss at U, so that each look has both sides of the duality gap.
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

DIAGONAL = 1e-13
"""A Gram matrix is diagonal where nothing off its diagonal exceeds this part of the largest entry."""


class KroneckerStep:
    """The step for g_ij = a_i b_j, in the coordinates in which the normal matrix is diagonal.

    Args:
        problem: Φ, Ψ (m, q).
        rows: a (n,).
        columns: b (m,).

    `problem` is the same problem in those coordinates, `back` returns from them.

    Cost: O(n r² + r³ + q³) once, O(n q (r + m)) a step.

    Example:
        >>> import torch
        >>> from ovkgp.inference.tasks.problem import TaskProblem
        >>> from ovkgp.inference.tasks.solvers.admm import KroneckerStep
        >>> from ovkgp.losses import IntegralLoss, Square, gauss_legendre
        >>> one, loss = torch.ones(1, 1).double(), IntegralLoss(Square(), gauss_legendre(1))
        >>> step = KroneckerStep(TaskProblem(one, one, one, loss, lam=1.0), one[0], one[0])
        >>> step(one, 1.0).item()  # argmin ½ (w − 1)² + ½ w²
        0.5
    """

    def __init__(self, problem: TaskProblem, rows: Tensor, columns: Tensor):
        row_values, self.row_vectors = _eigen(problem.inputs, rows)
        column_values, self.column_vectors = _eigen(problem.tasks, columns)
        self.metric = rows[:, None] * columns
        self.values = row_values[:, None] * column_values / problem.num_rows
        inputs = problem.inputs if self.row_vectors is None else problem.inputs @ self.row_vectors
        tasks = problem.tasks if self.column_vectors is None else problem.tasks @ self.column_vectors
        self.problem = replace(problem, inputs=inputs, tasks=tasks)

    def __call__(self, V: Tensor, mu: float) -> Tensor:
        """W (r, q), in the diagonal coordinates."""
        return self.problem.adjoint(self.metric * V) / (self.problem.num_rows * (self.values + mu))

    def back(self, weights: Tensor) -> Tensor:
        """W in the coordinates of the first problem."""
        weights = weights if self.row_vectors is None else self.row_vectors @ weights
        return weights if self.column_vectors is None else weights @ self.column_vectors.T

    def into(self, weights: Tensor) -> Tensor:
        """W in the diagonal coordinates."""
        weights = weights if self.row_vectors is None else self.row_vectors.T @ weights
        return weights if self.column_vectors is None else weights @ self.column_vectors


class DenseStep:
    """The step for any metric g (n, m), by a Cholesky factor for each μ.

    Cost: O(n r² q²) once, O((r q)³) for each new μ, O(n q (r + m) + (r q)²) a step; (r q)² memory.

    Example:
        >>> import torch
        >>> from ovkgp.inference.tasks.problem import TaskProblem
        >>> from ovkgp.inference.tasks.solvers.admm import DenseStep
        >>> from ovkgp.losses import IntegralLoss, Square, gauss_legendre
        >>> one, loss = torch.ones(1, 1).double(), IntegralLoss(Square(), gauss_legendre(1))
        >>> round(DenseStep(TaskProblem(one, one, one, loss, lam=1.0), one)(one, 1.0).item(), 9)
        0.5
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

    def back(self, weights: Tensor) -> Tensor:
        """W: the coordinates are those of the problem."""
        return weights

    into = back


def row_curvatures(problem: TaskProblem, entries: Tensor) -> Tensor:
    """B_i = Σ_j c_ij ψ_ij ψ_ijᵀ, (n, q, q), for entries c (n, m). Cost: O(n m q²)."""
    tasks = problem.tasks
    if not problem.is_shared:
        return tasks.mT @ (entries.unsqueeze(-1) * tasks)
    squares = (tasks.unsqueeze(-1) * tasks.unsqueeze(-2)).flatten(1)
    return (entries @ squares).view(-1, tasks.shape[1], tasks.shape[1])


def normal_matrix(problem: TaskProblem, curvatures: Tensor) -> Tensor:
    """Σ_i φ_iφ_iᵀ ⊗ B_i, (rq, rq), for symmetric B (n, q, q). Cost: O(n r² q²) time, (r q)² memory."""
    r, q = problem.shape
    matrix = problem.inputs.new_empty(r, q, r, q)
    for c in range(q):
        for d in range(c, q):
            matrix[:, c, :, d] = (problem.inputs * curvatures[:, c, d, None]).T @ problem.inputs
            matrix[:, d, :, c] = matrix[:, c, :, d]
    return matrix.view(r * q, r * q)


def _eigen(rows: Tensor, weights: Tensor) -> tuple[Tensor, Tensor | None]:
    """Eigenvalues and vectors of RᵀdR; no vectors where it is diagonal already, as that of a `KernelFactor` is."""
    matrix = gram(rows * weights.sqrt()[:, None])
    diagonal = matrix.diagonal().clone()
    if bool(matrix.abs().fill_diagonal_(0.0).max() <= DIAGONAL * diagonal.max()):
        return diagonal, None
    return eigh(matrix)


RELAXATION, LOOK_EVERY, ADAPT_UNTIL = 1.8, 10, 150
"""ρ; steps between two looks at the gap; and after how many κ stays as it is, so that they converge."""
FIRST_KAPPA, BALANCE, BAND = 0.15, 0.5, 3.0
"""κ at first, in units of target over slope; the ratio of the two residuals that is aimed at, and how far it may be off."""
DENSE_COORDINATES = 1500
"""The most coordinates rq whose normal matrix is formed."""


def is_entrywise(loss: CurveLoss) -> bool:
    """Whether a loss is a sum over entries, so that its proximal operator takes a step of its own for each."""
    return isinstance(loss, IntegralLoss) or (isinstance(loss, CurveEnvelope) and is_entrywise(loss.loss))


def ridge_step(problem: TaskProblem) -> KroneckerStep | DenseStep | None:
    """The fastest least-squares step for a problem; None where there is none that fits into memory."""
    weights = problem.loss.weights
    if problem.is_shared and weights.dim() == 1:
        return KroneckerStep(problem, problem.row_weights, weights)
    if problem.is_shared and is_entrywise(problem.loss):
        # entries of any weight, missing ones too: their own steps of the proximal operator make up for the common metric
        columns = problem.entry_weights.sum(0) / (problem.entry_weights > 0).sum(0).clamp(min=1)
        columns = torch.where(columns > 0, columns, columns.mean())
        return KroneckerStep(problem, torch.ones_like(problem.row_weights), columns)
    if math.prod(problem.shape) <= DENSE_COORDINATES:
        return DenseStep(problem, problem.entry_weights)
    return None


class ADMM:
    """The iteration, which others continue: `weights` (in the coordinates of `step.problem`), `slopes` and `kappa`.

    Args:
        step: the ridge.
        certificate: of the first problem.
        slopes: S (n, m) to begin with, feasible.
        H: values (n, m) to begin with.
    """

    def __init__(self, step: KroneckerStep | DenseStep, certificate: Certificate, slopes: Tensor, H: Tensor):
        self.step, self.certificate, self.problem = step, certificate, step.problem
        weighted = self.problem.entry_weights > 0
        self.share = torch.where(weighted, self.problem.entry_weights, 0.0) / torch.where(
            step.metric > 0, step.metric, 1.0
        )
        self.kappa = FIRST_KAPPA * self._unit(slopes)
        self.U, self.T = H, self.kappa * self.share * slopes
        self.weights, self.slopes = problem_zeros(self.problem), slopes

    def run(self, budget: int, bar: tqdm) -> None:
        """At most `budget` steps; it also ends where the last third of them made the gap no smaller."""
        gaps, certificate = [], self.certificate
        for count in range(1, budget + 1):
            H, moved = self._advance()
            certificate.tick(bar)
            if count % LOOK_EVERY == 0 or certificate.over or count == budget:
                gaps.append(certificate.look(self.step.back(self.weights), self.slopes, H))
                if certificate.over or _stalls(gaps, budget):
                    return
                if count <= ADAPT_UNTIL:
                    self._balance(H, moved)

    def _advance(self) -> tuple[Tensor, Tensor]:
        """One round; the values of the new W, and by how much U moved."""
        problem = self.problem
        self.weights = self.step(self.U - self.T, self.kappa * problem.lam)
        H = problem.values(self.weights)
        before, at = self.U, RELAXATION * H + (1 - RELAXATION) * self.U + self.T
        self.U = problem.loss.prox(at, problem.targets, self._prox_step())
        self.T = torch.where(self.share > 0, at - self.U, 0.0)
        self.slopes = torch.where(self.share > 0, self.T / (self.kappa * self.share), 0.0)
        return H, self.U - before

    def _prox_step(self) -> float | Tensor:
        if is_entrywise(self.problem.loss) and self.problem.loss.weights.dim() == 2:
            return self.kappa * torch.where(self.share > 0, self.share, 1.0)
        return self.kappa

    def _balance(self, H: Tensor, moved: Tensor) -> None:
        """Change κ where one of the two relative residuals is much the larger."""
        primal = self._size(H - self.U) / max(self._size(H), self._size(self.U), 1e-300)
        dual = self._size(moved) / max(self.kappa * self._size(self.slopes), 1e-300)
        if min(primal, dual) <= 0 or 1 / BAND < (ratio := primal / dual / BALANCE) < BAND:
            return
        change = min(max(ratio**-0.5, 0.2), 5.0)
        self.kappa, self.T = self.kappa * change, self.T * change

    def _size(self, entries: Tensor) -> float:
        return (self.problem.entry_weights * entries.square()).sum().sqrt().item()

    def _unit(self, slopes: Tensor) -> float:
        """The size of a target over that of a slope."""
        unit = self._size(self.problem.targets.expand_as(slopes)) / max(self._size(slopes), 1e-300)
        return unit if 1e-12 < unit < 1e12 else 1.0


def problem_zeros(problem: TaskProblem) -> Tensor:
    """W = 0 (r, q)."""
    return problem.inputs.new_zeros(problem.shape)


def _stalls(gaps: list[float], budget: int) -> bool:
    window = max(budget // (3 * LOOK_EVERY), 10)
    return len(gaps) > window and gaps[-1] > 0.9 * gaps[-1 - window]
