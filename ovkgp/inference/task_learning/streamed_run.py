"""The best W of passes over streamed rows, the best lower bound, and the end of a run: D(A) ≤ min J ≤ J(W) (LT-16)."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

import torch
from torch import Tensor

from ovkgp.exceptions import OptionError
from ovkgp.inference.fit_report import FitReport
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


class StreamedRun:
    """What a solver of streamed rows remembers.

    Args:
        problem: J.
        tolerance: it is `done` where gap ≤ tolerance · |J|.
    """

    def __init__(self, problem: StreamedProblem, tolerance: float):
        if not (math.isfinite(tolerance) and tolerance > 0):
            raise OptionError(f"tolerance must be a positive number, got {tolerance}.")
        self.problem, self.tolerance = problem, tolerance
        self.weights = torch.zeros(problem.shape, dtype=torch.float64)
        self.objective, self.lower = math.inf, -math.inf
        self.steps, self.passes, self.interrupted, self.history = 0, 0.0, False, []
        self._began = time.monotonic()

    def evaluate(self, weights: Tensor, kappa: float, num_rows: int | None = None) -> Evaluation:
        """A pass; where it sees all rows it is held against the best so far."""
        found = self.problem.evaluate(weights, kappa, num_rows)
        self.passes += (num_rows or self.problem.num_rows) / self.problem.num_rows
        if num_rows is None:
            if found.objective < self.objective:
                self.objective, self.weights = found.objective, weights
            self.lower = max(self.lower, found.objective - found.gap)
            self.history.append(self.objective)
        return found

    @property
    def gap(self) -> float:
        """J(W) − D(A); never negative but for rounding, which is taken off."""
        return max(self.objective - self.lower, 0.0)

    @property
    def done(self) -> bool:
        return self.gap <= self.tolerance * abs(self.objective)

    @property
    def relative_gap(self) -> float:
        """The gap as a part of J."""
        return self.gap / (abs(self.objective) or 1.0)

    def solution(self, converged: bool, message: str) -> StreamedSolution:
        """The best so far, with a report."""
        report = FitReport(
            self.objective,
            converged,
            message,
            iterations=self.steps,
            evaluations=math.ceil(self.passes),
            interrupted=self.interrupted,
            seconds=time.monotonic() - self._began,
            history=tuple(self.history),
            num_rows=self.problem.num_rows,
            num_seen=self.problem.num_rows * len(self.problem.tasks),
        )
        return StreamedSolution(self.weights, self.objective, self.gap, report)
