"""How far is a solver from the solution? The best W and the best A so far bracket the least value: D(A) ≤ min J ≤ J(W) (LT-16)."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable

import torch
from torch import Tensor
from tqdm import tqdm

from ovkgp.exceptions import FitWarning, InputError, OptionError
from ovkgp.inference.fit_report import FitReport
from ovkgp.inference.task_learning.problem import TaskProblem, TaskSolution
from ovkgp.kernels.checks import whole_number


class Certificate:
    """The best of both sides, and the end of a run.

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
        if not (math.isfinite(tolerance) and tolerance > 0):
            raise OptionError(f"tolerance must be a positive number, got {tolerance}.")
        self.problem, self.tolerance = problem, tolerance
        self.max_iter, self.verbose = whole_number("max_iter", max_iter), verbose
        self.weights = problem.inputs.new_zeros(problem.shape)
        self.dual = torch.zeros_like(problem.entry_weights)
        self.objective, self.lower = math.inf, -math.inf
        self.steps, self.stuck, self.interrupted, self.history = 0, False, False, []
        self._began = time.monotonic()

    def look(self, weights: Tensor, slopes: Tensor, H: Tensor | None = None) -> float:
        """The gap, once W and the slopes S = −A (n, m), made feasible, were held against the best so far."""
        problem = self.problem
        if (value := problem.objective(weights, H).item()) < self.objective:
            self.objective, self.weights = value, weights
        dual = -problem.loss.nearest_slope(slopes, problem.targets)
        if (value := problem.dual_objective(dual).item()) > self.lower:
            self.lower, self.dual = value, dual
        self.history.append(self.objective)
        return self.gap

    def look_at(self, weights: Tensor) -> Tensor:
        """Hold W and the slopes of the loss there against the best so far; the slopes (n, m)."""
        H = self.problem.values(weights)
        slopes = self.problem.loss.derivative(H, self.problem.targets)
        self.look(weights, slopes, H)
        return slopes

    @property
    def gap(self) -> float:
        """J(W) − D(A); never negative but for rounding, which is taken off."""
        return max(self.objective - self.lower, 0.0)

    @property
    def limit(self) -> float:
        """The gap that is small enough."""
        return self.tolerance * abs(self.objective)

    @property
    def done(self) -> bool:
        return self.gap <= self.limit

    @property
    def over(self) -> bool:
        """Whether the run ends here, done or not."""
        return self.done or self.steps >= self.max_iter

    def run(self, search: Callable[[tqdm], None]) -> TaskSolution:
        """Search until it is over; Ctrl-C keeps the best so far. Warns where the gap is not small enough."""
        with torch.no_grad(), tqdm(disable=not self.verbose, unit="step") as bar:
            try:
                search(bar)
            except KeyboardInterrupt:
                self.interrupted = True
        if not self.done:
            warnings.warn(self._message() + ".", FitWarning, stacklevel=3)
        return TaskSolution(self.weights, self.dual, self.objective, self.gap, self._report())

    def tick(self, bar: tqdm) -> None:
        """One more step."""
        self.steps += 1
        bar.update()
        if self.verbose:
            bar.set_postfix(objective=f"{self.objective:.6g}", gap=f"{self.gap / (abs(self.objective) or 1.0):.1e}")

    def _message(self) -> str:
        if self.done:
            return "converged"
        part = f"at a duality gap of {self.gap / (abs(self.objective) or 1.0):.1e} of the objective, with {self.tolerance:.1e} wanted"
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
            evaluations=len(self.history),
            interrupted=self.interrupted,
            seconds=time.monotonic() - self._began,
            history=tuple(self.history),
            num_rows=self.problem.num_rows,
            num_seen=int((self.problem.entry_weights > 0).sum()),
        )


def require_start(name: str, start: Tensor | None, shape: tuple[int, ...]) -> None:
    """Raise InputError unless a start is None or a finite tensor of this shape."""
    if start is not None and (start.shape != shape or not bool(torch.isfinite(start).all())):
        raise InputError(f"{name} must be a finite tensor of shape {tuple(shape)}, got {tuple(start.shape)}.")
