"""Duality gap of a solver: its best W and its best A bound the minimum, D(A) ≤ min J ≤ J(W) (LT-16)."""

from __future__ import annotations

import math
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor
from tqdm import tqdm

from ovkgp.checks import check_integer, check_positive
from ovkgp.exceptions import FitWarning, InputError
from ovkgp.inference.model.fit_report import FitReport
from ovkgp.inference.tasks.problem import TaskProblem, TaskSolution


class GapTracker(ABC):
    """The best J(W) and the best D(A) of a run of at most `max_iter` steps; `is_done` means gap ≤ tolerance · |J|."""

    def __init__(self, weights: Tensor, tolerance: float, max_iter: int, verbose: int = 0):
        self.weights, self.tolerance = weights, check_positive("tolerance", tolerance)
        self.max_iter, self.verbose = check_integer("max_iter", max_iter), verbose
        self.objective, self.lower = math.inf, -math.inf
        self.steps, self.stuck, self.interrupted, self.history = 0, False, False, []
        self._began = time.monotonic()

    @abstractmethod
    def evaluate_at(self, weights: Tensor):
        """Evaluate W and the slopes of the loss there, and update the best values."""

    @abstractmethod
    def solution(self, report: FitReport):
        """Return the best solution so far, with this report."""

    @abstractmethod
    def counts(self) -> dict[str, int]:
        """Return `evaluations`, `num_rows` and `num_observed` of the report."""

    def update_upper(self, weights: Tensor, objective: float) -> None:
        """Record J at some W."""
        if objective < self.objective:
            self.objective, self.weights = objective, weights
        self.history.append(self.objective)

    def update_lower(self, lower: float) -> bool:
        """Record D at some A, and return whether it is the best."""
        if is_best := lower > self.lower:
            self.lower = lower
        return is_best

    @property
    def gap(self) -> float:
        """J(W) − D(A), clipped at 0 against rounding."""
        return max(self.objective - self.lower, 0.0)

    @property
    def relative_gap(self) -> float:
        """The gap divided by |J|."""
        return self.gap / (abs(self.objective) or 1.0)

    @property
    def limit(self) -> float:
        """The gap at which a run ends."""
        return self.tolerance * abs(self.objective)

    @property
    def is_done(self) -> bool:
        return math.isfinite(self.objective) and self.gap <= self.limit

    @property
    def is_over(self) -> bool:
        """Whether the run ends here, converged or not."""
        return self.is_done or self.steps >= self.max_iter

    def run(self, search: Callable[[tqdm], None]):
        """Run a search, keep the best solution on Ctrl-C, and warn if the gap is above the tolerance."""
        with torch.no_grad(), tqdm(disable=not self.verbose, unit="step") as bar:
            try:
                search(bar)
            except KeyboardInterrupt:
                self.interrupted = True
            if not self.history:  # interrupted before the first evaluation
                self.evaluate_at(self.weights)
        if not self.is_done:
            warnings.warn(f"The solver {self._message()}.", FitWarning, stacklevel=3)
        return self.solution(self._report())

    def count_step(self, bar: tqdm) -> None:
        """Count one more step and update the progress bar."""
        self.steps += 1
        bar.update()
        if self.verbose and self.history:
            bar.set_postfix(objective=f"{self.objective:.6g}", gap=f"{self.relative_gap:.1e}")

    def _message(self) -> str:
        if self.is_done:
            return "converged"
        part = f"at a relative duality gap of {self.relative_gap:.1e} (tolerance {self.tolerance:.1e})"
        if self.interrupted:
            return f"was interrupted {part}: the best solution so far is kept"
        if self.stuck:
            return f"stopped by rounding {part}: raise the tolerance or lam"
        return f"stopped after {self.steps} steps {part}: raise max_iter, the tolerance or lam"

    def _report(self) -> FitReport:
        counts = {**self.counts(), "iterations": self.steps, "interrupted": self.interrupted}
        counts |= {"seconds": time.monotonic() - self._began, "history": tuple(self.history)}
        return FitReport(self.objective, self.is_done, self._message(), **counts)


def check_initial_point(name: str, init: Tensor | None, shape: tuple[int, ...]) -> None:
    """Raise InputError unless the initial point is None or a finite tensor of this shape."""
    if init is not None and (init.shape != shape or not bool(torch.isfinite(init).all())):
        raise InputError(f"{name} must be a finite tensor of shape {tuple(shape)}, got {tuple(init.shape)}.")


class Certificate(GapTracker):
    """The gap of a `TaskProblem` in memory. Complexity: O(n q (r + m)) per evaluation."""

    def __init__(self, problem: TaskProblem, tolerance: float = 1e-6, max_iter: int = 5000, verbose: int = 0):
        super().__init__(problem.inputs.new_zeros(problem.shape), tolerance, max_iter, verbose)
        self.problem, self.dual = problem, torch.zeros_like(problem.entry_weights)

    def evaluate(self, weights: Tensor, slopes: Tensor, H: Tensor | None = None) -> float:
        """Return the gap after updating it with W and the slopes S = −A (n, m), which are made feasible."""
        problem = self.problem
        self.update_upper(weights, problem.objective(weights, H).item())
        dual = -problem.loss.nearest_slope(slopes, problem.targets)
        if self.update_lower(problem.dual_objective(dual).item()):
            self.dual = dual
        return self.gap

    def evaluate_at(self, weights: Tensor) -> Tensor:
        """Evaluate W and the slopes of the loss there, update the best values, and return the slopes (n, m)."""
        H = self.problem.values(weights)
        slopes = self.problem.loss.derivative(H, self.problem.targets)
        self.evaluate(weights, slopes, H)
        return slopes

    def solution(self, report: FitReport) -> TaskSolution:
        return TaskSolution(self.weights, self.dual, self.objective, self.gap, report)

    def counts(self) -> dict[str, int]:
        observed = int((self.problem.entry_weights > 0).sum())
        return {"evaluations": len(self.history), "num_rows": self.problem.num_rows, "num_observed": observed}
