"""How quantile curves that do not cross are found: J and its penalty Ω are one problem, which `primal.search` solves (LT-98).

The slopes at the anchors are values of more tasks. They are measured in a unit in which they are as large as the values themselves: it is
the preconditioner that the two blocks need. An exact solution takes a λ_nc that suffices, and ends not at a gap but where no curve falls.
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


class JoinedLoss(Loss):
    """One loss for the first tasks, another for the next, and so on.

    Args:
        losses: of each group of tasks.
        sizes: how many tasks each has.

    Example:
        >>> import torch
        >>> from ovkgp.inference.tasks.noncrossing_search import JoinedLoss
        >>> from ovkgp.losses import Pinball, Square
        >>> loss = JoinedLoss([Square(), Pinball()], [1, 1])
        >>> loss.value(torch.zeros(1, 2), torch.full((1, 2), 2.0), torch.tensor([0.0, 0.9]))
        tensor([[2.0000, 1.8000]])
    """

    name = "joined"

    def __init__(self, losses: Sequence[Loss], sizes: Sequence[int]):
        self.losses = list(losses)
        self.groups = [slice(low, high) for low, high in pairwise([0, *np.cumsum(sizes).tolist()])]

    def _each(self, method: str, u: Tensor, y: Tensor, tasks: Tensor, *step: float | Tensor) -> Tensor:
        parts = []
        for loss, group in zip(self.losses, self.groups, strict=True):
            steps = [each[..., group] if torch.is_tensor(each) else each for each in step]
            parts.append(getattr(loss, method)(u[..., group], y[..., group], tasks[..., group], *steps))
        return torch.cat(parts, -1)

    def value(self, u: Tensor, y: Tensor, tasks: Tensor) -> Tensor:
        return self._each("value", u, y, tasks)

    def derivative(self, u: Tensor, y: Tensor, tasks: Tensor) -> Tensor:
        return self._each("derivative", u, y, tasks)

    def curvature(self, u: Tensor, y: Tensor, tasks: Tensor) -> Tensor:
        return self._each("curvature", u, y, tasks)

    def finite_conjugate(self, a: Tensor, y: Tensor, tasks: Tensor) -> Tensor:
        return self._each("finite_conjugate", a, y, tasks)

    def conjugate(self, a: Tensor, y: Tensor, tasks: Tensor) -> Tensor:
        return self._each("conjugate", a, y, tasks)

    def prox(self, u: Tensor, y: Tensor, tasks: Tensor, step: float | Tensor) -> Tensor:
        return self._each("prox", u, y, tasks, step)

    def nearest_slope(self, a: Tensor, y: Tensor, tasks: Tensor) -> Tensor:
        return self._each("nearest_slope", a, y, tasks)

    def conjugate_prox(self, a: Tensor, y: Tensor, tasks: Tensor, step: float | Tensor) -> Tensor:
        return self._each("conjugate_prox", a, y, tasks, step)


def joined(parts: Sequence[TaskProblem]) -> TaskProblem:
    """The sum of problems in the same weights.

    Args:
        parts: with the same λ and coordinates; losses are `IntegralLoss`, tasks (m, q) shared by all rows.

    Cost: O(N M) memory for N rows and M tasks in all.

    Example:
        >>> import torch
        >>> from ovkgp.inference.tasks.noncrossing_search import joined
        >>> from ovkgp.inference.tasks.problem import TaskProblem
        >>> from ovkgp.losses import IntegralLoss, Square, gauss_legendre
        >>> one, loss = torch.ones(1, 1).double(), IntegralLoss(Square(), gauss_legendre(1))
        >>> parts = [TaskProblem(one, one, y * one, loss, lam=1.0) for y in (1.0, 3.0)]
        >>> joined(parts).objective(one).item()  # ½ 0² + ½ 2² + ½
        2.5
    """
    if not all(isinstance(part.loss, IntegralLoss) and part.is_shared for part in parts):
        raise OptionError(
            "problems are joined whose losses act entry by entry, IntegralLoss(Pinball(), measure), and whose nodes (m,) all rows share."
        )
    rows = sum(part.num_rows for part in parts)
    weights = torch.block_diag(*(rows / part.num_rows * part.entry_weights for part in parts))
    targets = torch.block_diag(*(part.targets.expand(part.entry_weights.shape) for part in parts))
    loss = JoinedLoss([part.loss.loss for part in parts], [len(part.tasks) for part in parts])
    measure = ObservedTasks(torch.cat([part.loss.nodes for part in parts]), weights)
    inputs, tasks = (torch.cat([getattr(part, name) for part in parts]) for name in ("inputs", "tasks"))
    return TaskProblem(inputs, tasks, targets, IntegralLoss(loss, measure), parts[0].lam)


if TYPE_CHECKING:
    from ovkgp.inference.tasks.noncrossing import NonCrossing

VIOLATION = 1e-10
"""The largest fall at an anchor, relative to max(1, the largest target), that counts as none."""
GROWTH, LARGEST = 10.0, 1e6
"""Where multipliers reach their bound, λ_nc is multiplied by this, up to that many times its first value."""


class JointSearch:
    """J + Ω as one problem, and what of its dual variable belongs to which.

    Args:
        problem: J.
        penalty: Ω, in the same coordinates.
    """

    def __init__(self, problem: TaskProblem, penalty: NonCrossing):
        self.penalty, self.shape = penalty, problem.entry_weights.shape
        sizes = [rows.square().sum(-1).mean().item() for rows in (penalty.slopes, problem.tasks)]
        self.unit = math.sqrt(sizes[0] / sizes[1]) if min(sizes) > 0 else 1.0
        self.joint = joined([problem, penalty.problem(problem.lam, self.unit)])

    def run(self, start: Tensor | None, dual: Tensor | None, certificate: Certificate) -> TaskSolution:
        """Search from W and a dual variable of the joint problem; it is the caller who warns."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FitWarning)
            return certificate.run(lambda bar: search(certificate, start, dual, bar))

    def dual_of(self, joint: Tensor) -> Tensor:
        """A (n, m)."""
        n, m = self.shape
        return joint[:n, :m]

    def multipliers_of(self, joint: Tensor) -> Tensor:
        """b (ñ, m̃)."""
        n, m = self.shape
        pulls = joint[n:, m:] / self.unit
        return pulls / pulls.numel()

    def falls(self, weights: Tensor, limit: float) -> bool:
        """Whether a curve falls by more than the limit at an anchor."""
        return self.penalty.falls(weights).max().item() > limit

    def is_bounded(self, joint: Tensor) -> bool:
        """Whether a multiplier is at its upper bound: λ_nc is too small."""
        multipliers = self.multipliers_of(joint)
        return bool((multipliers >= (1 - 1e-6) * self.penalty.lam_nc / multipliers.numel()).any())


class ExactCertificate(Certificate):
    """It is done where no curve falls, or where a multiplier is at its bound; a small gap alone shows neither.

    Args:
        search: the joint problem.
        fall: what counts as none.
        options: tolerance, max_iter and verbose of a `Certificate`.
    """

    def __init__(self, search: JointSearch, fall: float, **options):
        super().__init__(search.joint, **options)
        self.search, self.fall, self.accepted = search, fall, False

    def look(self, weights: Tensor, slopes: Tensor, H: Tensor | None = None) -> float:
        gap = super().look(weights, slopes, H)
        value = self.problem.objective(weights, H).item()
        if value - self.lower <= self.tolerance * abs(value) and not self.search.falls(weights, self.fall):
            # whatever W has the least objective by a rounding: this one is as good, and does not fall
            self.weights, self.objective, self.accepted = weights, value, True
        return gap

    @property
    def limit(self) -> float:
        """No gap is small enough: Newton steps go on to the limit of rounding."""
        return 0.0

    @property
    def done(self) -> bool:
        near = math.isfinite(self.objective) and self.gap <= self.tolerance * abs(self.objective)
        return self.accepted or (near and self.search.is_bounded(self.dual))


def solve_exactly(
    problem: TaskProblem, penalty: NonCrossing, start: Tensor | None, options: dict
) -> tuple[JointSearch, TaskSolution]:
    """Ω with a λ_nc that suffices, and its solution without a fall."""
    first = penalty.lam_nc or 1.0
    penalty, dual, seconds, steps = replace(penalty, lam_nc=first), None, 0.0, 0
    limit = VIOLATION * max(1.0, problem.targets.abs().max().item())
    while True:
        joint = JointSearch(problem, penalty)
        found = joint.run(start, dual, ExactCertificate(joint, limit, **options))
        report, start, dual = found.report, found.weights, found.dual
        seconds, steps = seconds + report.seconds, steps + report.iterations
        # a multiplier may come to its bound only in the last digits: λ_nc then has to grow after all
        too_cheap = joint.falls(start, limit) and joint.is_bounded(dual)
        if not too_cheap or report.interrupted or penalty.lam_nc * GROWTH > first * LARGEST:
            break
        penalty = replace(penalty, lam_nc=GROWTH * penalty.lam_nc)
    if too_cheap and not report.interrupted:
        report.converged = False
        report.message = f"found no λ_nc up to {penalty.lam_nc:.0e} that keeps the curves from falling: is b' negative?"
    report.seconds, report.iterations = seconds, steps
    return joint, found
