"""The least-squares step of a splitting: argmin_W (1/2n) Σ_ij g_ij (φ_iᵀWψ_ij − v_ij)² + (μ/2) ‖W‖², for many V and μ.

Where the metric g_ij = a_i b_j and the tasks are shared, the normal matrix is a Kronecker product: two eigendecompositions once, then
every μ costs the same (LT-82). Otherwise it is formed and factorised, which few coordinates allow.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from ovkgp.inference.dense import gram, safe_cholesky
from ovkgp.inference.kronecker import eigh
from ovkgp.inference.task_learning.problem import TaskProblem

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
        >>> from ovkgp.inference.task_learning.problem import TaskProblem
        >>> from ovkgp.inference.task_learning.ridge_steps import KroneckerStep
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
        >>> from ovkgp.inference.task_learning.problem import TaskProblem
        >>> from ovkgp.inference.task_learning.ridge_steps import DenseStep
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
