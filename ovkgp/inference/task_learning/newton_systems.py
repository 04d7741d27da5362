"""One linear system of a Newton step, (λI + Σ_i φ_iφ_iᵀ ⊗ B_i) D = R, by the cheapest road.

B_i (q, q) is the curvature of row i in task coordinates. A loss of few active entries has B_i = Σ_j c_ij ψ_ijψ_ijᵀ with almost all c = 0:
Woodbury's identity then solves a system of the size of the active set; else the matrix is factorised, or, where it is too large for that,
conjugate gradients multiply with it.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ovkgp.inference.dense import safe_cholesky
from ovkgp.inference.task_learning.problem import TaskProblem
from ovkgp.inference.task_learning.ridge_steps import normal_matrix, row_curvatures

CG_STEPS, CG_TOLERANCE = 200, 0.02
"""The most steps of conjugate gradients, and the part of the residual that is left: a Newton step need not be exact."""
USUAL_STEPS, MEMORY = 60, 6000
"""What conjugate gradients are expected to take; and the largest matrix that is formed."""


class Curvature:
    """The curvature of all rows: entries c (n, m), or blocks B (n, q, q) where a loss couples the entries of a row.

    Args:
        problem: Φ, Ψ.
        entries: c ≥ 0, or None.
        blocks: B, or None to make them from c.
        damping: what is added to λ, so that a step stays short where little bends.

    Example:
        >>> import torch
        >>> from ovkgp.inference.task_learning.newton_systems import Curvature
        >>> from ovkgp.inference.task_learning.problem import TaskProblem
        >>> from ovkgp.losses import IntegralLoss, Square, gauss_legendre
        >>> eye, loss = torch.eye(2).double(), IntegralLoss(Square(), gauss_legendre(2))
        >>> problem = TaskProblem(eye, eye, torch.ones(2, 1).double(), loss, lam=1.0)
        >>> Curvature(problem, torch.tensor([[1.0, 0.0], [3.0, 0.0]]).double()).solve(torch.ones(2, 2).double())
        tensor([[0.5000, 1.0000],
                [0.2500, 1.0000]], dtype=torch.float64)
    """

    def __init__(
        self, problem: TaskProblem, entries: Tensor | None, blocks: Tensor | None = None, damping: float = 0.0
    ):
        self.problem, self.entries, self.lam = problem, entries, problem.lam + damping
        self._blocks = blocks

    @property
    def blocks(self) -> Tensor:
        """B (n, q, q)."""
        if self._blocks is None:
            self._blocks = row_curvatures(self.problem, self.entries)
        return self._blocks

    def solve(self, right: Tensor, gram: Tensor | None = None) -> Tensor:
        """D (r, q).

        Args:
            right: R (r, q).
            gram: the diagonal (r, q) of the normal matrix of c = ω/n, where that is diagonal: what conjugate gradients start from.
        """
        costs = self._costs()
        return min(costs, key=costs.get)(right, gram)

    @property
    def cost(self) -> float:
        """Operations of the cheapest road."""
        return min(self._costs().values())

    def _costs(self) -> dict:
        n, m, (r, q) = *self.problem.entry_weights.shape, self.problem.shape
        active = math.inf if self.entries is None else int((self.entries > 0).sum())
        products = USUAL_STEPS * 4 * n * r * q + n * q * q * m
        return {
            self._by_active: active**3 / 3 + 2 * active**2 * (r + q) if active <= MEMORY else math.inf,
            self._by_matrix: n * (r * q) ** 2 + (r * q) ** 3 / 3 if r * q <= MEMORY else math.inf,
            # conjugate gradients are not exact: they must be much cheaper
            self._by_gradients: max(20 * products, 1e8),
        }

    def _by_active(self, right: Tensor, gram: Tensor | None) -> Tensor:
        problem = self.problem
        i, j = self.entries.nonzero(as_tuple=True)
        if not len(i):
            return right / self.lam
        roots, tasks = self.entries[i, j].sqrt(), problem.tasks[j] if problem.is_shared else problem.tasks[i, j]
        inputs = problem.inputs[i] * roots[:, None]
        matrix = (inputs @ inputs.T).mul_(tasks @ tasks.T)
        matrix.diagonal().add_(self.lam)
        seen = ((inputs @ right) * tasks).sum(-1, keepdim=True)
        solved = torch.cholesky_solve(seen, safe_cholesky(matrix))
        return (right - inputs.T @ (solved * tasks)) / self.lam

    def _by_matrix(self, right: Tensor, gram: Tensor | None) -> Tensor:
        matrix = normal_matrix(self.problem, self.blocks)
        matrix.diagonal().add_(self.lam)
        return torch.cholesky_solve(right.reshape(-1, 1), safe_cholesky(matrix)).view(right.shape)

    def apply(self, D: Tensor) -> Tensor:
        """The product with D (r, q). Cost: O(n q (r + q))."""
        rows = (self.blocks @ (self.problem.inputs @ D).unsqueeze(-1)).squeeze(-1)
        return self.problem.inputs.T @ rows + self.lam * D

    def _by_gradients(self, right: Tensor, gram: Tensor | None) -> Tensor:
        """Conjugate gradients, after dividing by the matrix of a mean curvature."""
        scale = self.lam + (0.0 if gram is None else self._mean() * gram)
        solution, residual = torch.zeros_like(right), right
        direction = scaled = residual / scale
        product = (residual * scaled).sum()
        for _ in range(CG_STEPS):
            moved = self.apply(direction)
            pace = product / (direction * moved).sum()
            solution, residual = solution + pace * direction, residual - pace * moved
            if residual.norm() <= CG_TOLERANCE * right.norm():
                break
            scaled = residual / scale
            before, product = product, (residual * scaled).sum()
            direction = scaled + product / before * direction
        return solution

    def _mean(self) -> Tensor:
        """The curvature, as a multiple of ω/n, that has the same trace."""
        tasks, weights = self.problem.tasks, self.problem.entry_weights
        whole = (weights * tasks.square().sum(-1)).sum() / self.problem.num_rows
        return self.blocks.diagonal(dim1=-2, dim2=-1).sum() / whole
