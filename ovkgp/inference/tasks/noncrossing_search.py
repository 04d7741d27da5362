"""Solution of J plus the non-crossing penalty Ω as one joint problem, by `primal.search` (LT-98).

The slopes at the anchors are values of additional tasks, measured in a unit in which they have the size of the values,
which preconditions the two blocks. An exact solution uses a λ_nc that is large enough, and ends when no curve falls
instead of at a gap.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from ovkgp.exceptions import FitWarning, OptionError
from ovkgp.inference.tasks.problem import TaskProblem, TaskSolution
from ovkgp.inference.tasks.solvers.certificates import Certificate
from ovkgp.inference.tasks.solvers.primal import search
from ovkgp.inference.tasks.solvers.square import ObservedTasks
from ovkgp.losses import IntegralLoss, Loss

if TYPE_CHECKING:
    from ovkgp.inference.tasks.noncrossing import NonCrossing

MAX_VIOLATION = 1e-10  # largest violation at an anchor, relative to max(1, largest target), that counts as none
PENALTY_FACTOR, MAX_PENALTY_GROWTH = 10.0, 1e6
"""If multipliers reach their bound, λ_nc grows by this factor, up to this multiple of its initial value."""


def solve_exactly(
    problem: TaskProblem, penalty: NonCrossing, init: Tensor | None, options: dict
) -> tuple[JointSearch, TaskSolution]:
    """Increase λ_nc until it suffices, and return the joint problem and its solution without violations."""
    first = penalty.lam_nc or 1.0
    penalty, dual, seconds, steps = replace(penalty, lam_nc=first), None, 0.0, 0
    limit = MAX_VIOLATION * max(1.0, problem.targets.abs().max().item())
    while True:
        joint = JointSearch(problem, penalty)
        solution = joint.run(init, dual, ExactCertificate(joint, limit, **options))
        report, init, dual = solution.report, solution.weights, solution.dual
        seconds, steps = seconds + report.seconds, steps + report.iterations
        # a multiplier may reach its bound only in the last digits; λ_nc then still has to grow
        is_penalty_too_small = joint.has_violation(init, limit) and joint.has_multiplier_at_bound(dual)
        if (
            not is_penalty_too_small
            or report.interrupted
            or penalty.lam_nc * PENALTY_FACTOR > first * MAX_PENALTY_GROWTH
        ):
            break
        penalty = replace(penalty, lam_nc=PENALTY_FACTOR * penalty.lam_nc)
    if is_penalty_too_small and not report.interrupted:
        report.converged = False
        report.messages = (
            f"found no λ_nc up to {penalty.lam_nc:.0e} that prevents the curves from falling: check whether b' is negative",
        )
    report.seconds, report.iterations = seconds, steps
    return joint, solution


class JointSearch:
    """J + Ω as one problem, and the parts of its dual variable."""

    def __init__(self, problem: TaskProblem, penalty: NonCrossing):
        self.penalty, self.shape = penalty, problem.entry_weights.shape
        squares = [rows.square().sum(-1).mean().item() for rows in (penalty.slopes, problem.tasks)]
        self.unit = math.sqrt(squares[0] / squares[1]) if min(squares) > 0 else 1.0
        self.joint = join_problems([problem, penalty.problem(problem.lam, self.unit)])

    def run(self, init: Tensor | None, dual: Tensor | None, certificate: Certificate) -> TaskSolution:
        """Search from W and a dual variable of the joint problem, without warnings."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FitWarning)
            return certificate.run(lambda bar: search(certificate, init, dual, bar))

    def problem_dual(self, joint: Tensor) -> Tensor:
        """Return A (n, m)."""
        n, m = self.shape
        return joint[:n, :m]

    def multipliers(self, joint: Tensor) -> Tensor:
        """Return b (ñ, m̃)."""
        n, m = self.shape
        pulls = joint[n:, m:] / self.unit
        return pulls / pulls.numel()

    def has_violation(self, weights: Tensor, limit: float) -> bool:
        """Return whether a curve falls by more than the limit at an anchor."""
        return self.penalty.violations(weights).max().item() > limit

    def has_multiplier_at_bound(self, joint: Tensor) -> bool:
        """Return whether a multiplier is at its upper bound, so that λ_nc is too small."""
        multipliers = self.multipliers(joint)
        return bool((multipliers >= (1 - 1e-6) * self.penalty.lam_nc / multipliers.numel()).any())


class ExactCertificate(Certificate):
    """A certificate that is done when no curve falls or a multiplier is at its bound; a small gap shows neither."""

    def __init__(self, search: JointSearch, max_violation: float, **options):
        super().__init__(search.joint, **options)
        self.search, self.max_violation, self.accepted = search, max_violation, False

    def evaluate(self, weights: Tensor, slopes: Tensor, H: Tensor | None = None) -> float:
        gap = super().evaluate(weights, slopes, H)
        value = self.problem.objective(weights, H).item()
        if value - self.lower <= self.tolerance * abs(value) and not self.search.has_violation(
            weights, self.max_violation
        ):
            # accept this W, even if another one has an objective smaller by rounding
            self.weights, self.objective, self.accepted = weights, value, True
        return gap

    @property
    def limit(self) -> float:
        """0: Newton steps continue to the limit of rounding."""
        return 0.0

    @property
    def is_done(self) -> bool:
        near = math.isfinite(self.objective) and self.gap <= self.tolerance * abs(self.objective)
        return self.accepted or (near and self.search.has_multiplier_at_bound(self.dual))


def join_problems(parts: Sequence[TaskProblem]) -> TaskProblem:
    """Return the sum of problems in the same weights, with the same λ, entrywise losses and shared tasks (m, q).

    Complexity: O(N M) memory for N rows and M tasks in all.
    """
    if not all(isinstance(part.loss, IntegralLoss) and part.is_shared for part in parts):
        raise OptionError(
            "Non-crossing problems require an entrywise loss, such as IntegralLoss(Pinball(), measure), and nodes shared by all rows."
        )
    rows = sum(part.num_rows for part in parts)
    weights = torch.block_diag(*(rows / part.num_rows * part.entry_weights for part in parts))
    targets = torch.block_diag(*(part.targets.expand(part.entry_weights.shape) for part in parts))
    loss = JoinedLoss([part.loss.loss for part in parts], [len(part.tasks) for part in parts])
    measure = ObservedTasks(torch.cat([part.loss.nodes for part in parts]), weights)
    inputs, tasks = (torch.cat([getattr(part, name) for part in parts]) for name in ("inputs", "tasks"))
    return TaskProblem(inputs, tasks, targets, IntegralLoss(loss, measure), parts[0].lam)


class JoinedLoss(Loss):
    """Different losses for consecutive groups of tasks, with `sizes` tasks each."""

    name = "joined"

    def __init__(self, losses: Sequence[Loss], sizes: Sequence[int]):
        self.losses = list(losses)
        self.groups = [slice(low, high) for low, high in pairwise([0, *np.cumsum(sizes).tolist()])]

    def _concatenate(self, method: str, u: Tensor, y: Tensor, tasks: Tensor, *step: float | Tensor) -> Tensor:
        parts = []
        for loss, group in zip(self.losses, self.groups, strict=True):
            steps = [each[..., group] if torch.is_tensor(each) else each for each in step]
            parts.append(getattr(loss, method)(u[..., group], y[..., group], tasks[..., group], *steps))
        return torch.cat(parts, -1)

    def value(self, u: Tensor, y: Tensor, tasks: Tensor) -> Tensor:
        return self._concatenate("value", u, y, tasks)

    def derivative(self, u: Tensor, y: Tensor, tasks: Tensor) -> Tensor:
        return self._concatenate("derivative", u, y, tasks)

    def curvature(self, u: Tensor, y: Tensor, tasks: Tensor) -> Tensor:
        return self._concatenate("curvature", u, y, tasks)

    def finite_conjugate(self, a: Tensor, y: Tensor, tasks: Tensor) -> Tensor:
        return self._concatenate("finite_conjugate", a, y, tasks)

    def conjugate(self, a: Tensor, y: Tensor, tasks: Tensor) -> Tensor:
        return self._concatenate("conjugate", a, y, tasks)

    def prox(self, u: Tensor, y: Tensor, tasks: Tensor, step: float | Tensor) -> Tensor:
        return self._concatenate("prox", u, y, tasks, step)

    def nearest_slope(self, a: Tensor, y: Tensor, tasks: Tensor) -> Tensor:
        return self._concatenate("nearest_slope", a, y, tasks)

    def conjugate_prox(self, a: Tensor, y: Tensor, tasks: Tensor, step: float | Tensor) -> Tensor:
        return self._concatenate("conjugate_prox", a, y, tasks, step)
