"""How far is a solver from the solution? The best W and the best A so far bracket the least value: D(A) ≤ min J ≤ J(W) (LT-16)."""

from __future__ import annotations

import math
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor
from tqdm import tqdm

from ovkgp.checks import check_integer
from ovkgp.exceptions import FitWarning, InputError, OptionError
from ovkgp.inference.model.fit_report import FitReport
from ovkgp.inference.tasks.problem import TaskProblem, TaskSolution


class GapTracker(ABC):
    """The best J(W) and the best D(A) so far.

    Args:
        weights: W (r, q) to begin with.
        tolerance: it is `done` where gap ≤ tolerance · |J|.
        max_iter: the most steps.
        verbose: 1 shows the gap as it falls.
    """

    def __init__(self, weights: Tensor, tolerance: float, max_iter: int, verbose: int = 0):
        if not (math.isfinite(tolerance) and tolerance > 0):
            raise OptionError(f"tolerance must be a positive number, got {tolerance}.")
        self.weights, self.tolerance = weights, tolerance
        self.max_iter, self.verbose = check_integer("max_iter", max_iter), verbose
        self.objective, self.lower = math.inf, -math.inf
        self.steps, self.stuck, self.interrupted, self.history = 0, False, False, []
        self._began = time.monotonic()

    @abstractmethod
    def look_at(self, weights: Tensor):
        """Hold W and the slopes of the loss there against the best so far."""

    @abstractmethod
    def solution(self, report: FitReport):
        """The best so far, with this report."""

    @abstractmethod
    def counts(self) -> dict[str, int]:
        """`evaluations`, `num_rows` and `num_observed` of the report."""

    def above(self, weights: Tensor, objective: float) -> None:
        """J at some W."""
        if objective < self.objective:
            self.objective, self.weights = objective, weights
        self.history.append(self.objective)

    def below(self, lower: float) -> bool:
        """D at some A, and whether it is the best."""
        if is_best := lower > self.lower:
            self.lower = lower
        return is_best

    @property
    def gap(self) -> float:
        """J(W) − D(A); never negative but for rounding, which is taken off."""
        return max(self.objective - self.lower, 0.0)

    @property
    def relative_gap(self) -> float:
        """The gap as a part of J."""
        return self.gap / (abs(self.objective) or 1.0)

    @property
    def limit(self) -> float:
        """The gap that is small enough."""
        return self.tolerance * abs(self.objective)

    @property
    def done(self) -> bool:
        return math.isfinite(self.objective) and self.gap <= self.limit

    @property
    def over(self) -> bool:
        """Whether the run ends here, done or not."""
        return self.done or self.steps >= self.max_iter

    def run(self, search: Callable[[tqdm], None]):
        """Search until it is over; Ctrl-C keeps the best so far. Warns where the gap is not small enough."""
        with torch.no_grad(), tqdm(disable=not self.verbose, unit="step") as bar:
            try:
                search(bar)
            except KeyboardInterrupt:
                self.interrupted = True
            if not self.history:  # it came before the first look
                self.look_at(self.weights)
        if not self.done:
            warnings.warn(self._message() + ".", FitWarning, stacklevel=3)
        return self.solution(self._report())

    def tick(self, bar: tqdm) -> None:
        """One more step."""
        self.steps += 1
        bar.update()
        if self.verbose and self.history:
            bar.set_postfix(objective=f"{self.objective:.6g}", gap=f"{self.relative_gap:.1e}")

    def _message(self) -> str:
        if self.done:
            return "converged"
        part = f"at a duality gap of {self.relative_gap:.1e} of the objective, with {self.tolerance:.1e} wanted"
        if self.interrupted:
            return f"was interrupted {part}: the best solution so far is kept"
        if self.stuck:
            return f"stopped by rounding {part}: raise the tolerance or lam"
        return f"stopped after {self.steps} steps {part}: raise max_iter, the tolerance or lam"

    def _report(self) -> FitReport:
        return FitReport(
            self.objective,
            self.done,
            self._message(),
            iterations=self.steps,
            interrupted=self.interrupted,
            seconds=time.monotonic() - self._began,
            history=tuple(self.history),
            **self.counts(),
        )


def check_initial_point(name: str, start: Tensor | None, shape: tuple[int, ...]) -> None:
    """Raise InputError unless a start is None or a finite tensor of this shape."""
    if start is not None and (start.shape != shape or not bool(torch.isfinite(start).all())):
        raise InputError(f"{name} must be a finite tensor of shape {tuple(shape)}, got {tuple(start.shape)}.")


class Certificate(GapTracker):
    """The best of both sides, and the end of a run, for a problem in memory.

    Args:
        problem: J and D.
        tolerance: it is `done` where gap ≤ tolerance · |J|.
        max_iter: the most steps.
        verbose: 1 shows the gap as it falls.

    Cost: O(n q (r + m)) a look.

    Example:
        >>> import torch
        >>> from ovkgp.inference.tasks.solvers.certificates import Certificate
        >>> from ovkgp.inference.tasks.problem import TaskProblem
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
        observed = int((self.problem.entry_weights > 0).sum())
        return {"evaluations": len(self.history), "num_rows": self.problem.num_rows, "num_observed": observed}
