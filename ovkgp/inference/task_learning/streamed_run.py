"""The best W of passes over streamed rows, and the best lower bound that they gave (LT-16)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ovkgp.inference.fit_report import FitReport
from ovkgp.inference.task_learning.brackets import Bracket
from ovkgp.inference.task_learning.streamed import Evaluation, StreamedProblem


@dataclass
class StreamedSolution:
    """What was found. The dual A, n × m numbers, is not kept: A = −e_κ'(h), made again a chunk at a time where it is wanted.

    Args:
        weights: W (r, q).
        objective: J(W), over all rows.
        gap: J(W) − D(A) ≥ 0 for the best A that was seen: J(W) is at most this far above the least value.
        report: how it was found; its `evaluations` are passes over the rows, parts of them as such, rounded up.
    """

    weights: Tensor
    objective: float
    gap: float
    report: FitReport


class StreamedRun(Bracket):
    """What a solver of streamed rows remembers.

    Args:
        problem: J.
        tolerance: it is `done` where gap ≤ tolerance · |J|.
        max_iter: the most steps.
        verbose: 1 shows the gap as it falls.

    Cost: a pass each look.

    Example:
        >>> import torch
        >>> from ovkgp.inference.task_learning.streamed import StreamedProblem
        >>> from ovkgp.inference.task_learning.streamed_run import StreamedRun
        >>> from ovkgp.losses import IntegralLoss, Square, gauss_legendre
        >>> one, loss = torch.ones(1, 1).double(), IntegralLoss(Square(), gauss_legendre(1))
        >>> run = StreamedRun(StreamedProblem.of(torch.ones_like, one, one, one, loss, lam=1.0), tolerance=1e-6, max_iter=1)
        >>> run.look_at(one / 2).objective, run.done
        (0.25, True)
    """

    def __init__(self, problem: StreamedProblem, tolerance: float, max_iter: int, verbose: int = 0):
        super().__init__(torch.zeros(problem.shape, dtype=torch.float64), tolerance, max_iter, verbose)
        self.problem, self.passes = problem, 0.0

    def look_at(self, weights: Tensor, kappa: float = 0.0, num_rows: int | None = None) -> Evaluation:
        """A pass with the slopes of e_κ; where it sees all rows it is held against the best so far."""
        found = self.problem.evaluate(weights, kappa, num_rows)
        self.passes += (num_rows or self.problem.num_rows) / self.problem.num_rows
        if num_rows is None:
            self.above(weights, found.objective)
            self.below(found.objective - found.gap)
        return found

    def solution(self, report: FitReport) -> StreamedSolution:
        return StreamedSolution(self.weights, self.objective, self.gap, report)

    def counts(self) -> dict[str, int]:
        problem = self.problem
        seen = int((problem.row_weights > 0).sum()) * int((problem.loss.weights > 0).sum())
        return {"evaluations": math.ceil(self.passes), "num_rows": problem.num_rows, "num_seen": seen}
