"""How far is a solver from the solution? The best W and the best A so far bracket the least value: D(A) ≤ min J ≤ J(W) (LT-16)."""

from __future__ import annotations

import torch
from torch import Tensor

from ovkgp.inference.fit_report import FitReport
from ovkgp.inference.task_learning.brackets import Bracket
from ovkgp.inference.task_learning.problem import TaskProblem, TaskSolution


class Certificate(Bracket):
    """The best of both sides, and the end of a run, for a problem in memory.

    Args:
        problem: J and D.
        tolerance: it is `done` where gap ≤ tolerance · |J|.
        max_iter: the most steps.
        verbose: 1 shows the gap as it falls.

    Cost: O(n q (r + m)) a look.

    Example:
        >>> import torch
        >>> from ovkgp.inference.task_learning.certificates import Certificate
        >>> from ovkgp.inference.task_learning.problem import TaskProblem
        >>> from ovkgp.losses import IntegralLoss, Square, gauss_legendre
        >>> one, loss = torch.ones(1, 1).double(), IntegralLoss(Square(), gauss_legendre(1))
        >>> certificate = Certificate(TaskProblem(one, one, one, loss, lam=1.0))
        >>> certificate.look(one / 2, -one / 2), certificate.done  # the slope at W = ½ is ½ − 1
        (0.0, True)
    """

    def __init__(self, problem: TaskProblem, tolerance: float = 1e-6, max_iter: int = 5000, verbose: int = 0):
        super().__init__(problem.inputs.new_zeros(problem.shape), tolerance, max_iter, verbose)
        self.problem, self.dual = problem, torch.zeros_like(problem.entry_weights)

    def look(self, weights: Tensor, slopes: Tensor, H: Tensor | None = None) -> float:
        """The gap, once W and the slopes S = −A (n, m), made feasible, were held against the best so far."""
        problem = self.problem
        self.above(weights, problem.objective(weights, H).item())
        dual = -problem.loss.nearest_slope(slopes, problem.targets)
        if self.below(problem.dual_objective(dual).item()):
            self.dual = dual
        return self.gap

    def look_at(self, weights: Tensor) -> Tensor:
        """Hold W and the slopes of the loss there against the best so far; the slopes (n, m)."""
        H = self.problem.values(weights)
        slopes = self.problem.loss.derivative(H, self.problem.targets)
        self.look(weights, slopes, H)
        return slopes

    def solution(self, report: FitReport) -> TaskSolution:
        return TaskSolution(self.weights, self.dual, self.objective, self.gap, report)

    def counts(self) -> dict[str, int]:
        seen = int((self.problem.entry_weights > 0).sum())
        return {"evaluations": len(self.history), "num_rows": self.problem.num_rows, "num_seen": seen}
