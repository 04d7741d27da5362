"""Quantile curves that do not cross: a penalty on what falls in the level, soft or exact (LT-63, LT-98, BT-101).

    Ω(h) = λ_nc/(ñ m̃) Σ_i Σ_j max(0, −∂_θ h(x̃_i)(θ̃_j)),        h = b + φᵀ W ψ

on anchors (x̃_i, θ̃_j). It is a second problem with the same weights, whose values are slopes, targets −b', and loss a price on what
falls short. Its multipliers lie in [0, λ_nc/(ñ m̃)]; where none is at its upper bound, no curve falls at an anchor: the penalty is exact.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from ovkgp.exceptions import FitWarning, InputError, OptionError
from ovkgp.inference.fit_report import FitReport
from ovkgp.inference.task_learning.noncrossing_newton import JointPoint, solve_joint
from ovkgp.inference.task_learning.problem import TaskProblem, TaskSolution
from ovkgp.losses import IntegralLoss, TaskMeasure
from ovkgp.losses.two_sided import TwoSided

METHODS = ("penalty", "exact")
VIOLATION = 1e-10
"""The largest fall at an anchor, relative to max(1, the largest target), that counts as none."""
GROWTH, LARGEST = 10.0, 1e6
"""Where multipliers reach their bound, λ_nc is multiplied by this, up to that many times its first value."""


@dataclass(frozen=True)
class Shortfall(TwoSided):
    """c · max(0, y − u): only too little costs (LT-63).

    Args:
        price: c ≥ 0.

    Example:
        >>> import torch
        >>> from ovkgp.inference.task_learning.noncrossing import Shortfall
        >>> Shortfall(2.0).value(torch.tensor([[-1.0, 3.0]]), torch.tensor([[0.0]]), torch.tensor([0.0]))
        tensor([[2., 0.]])
    """

    price: float
    name = "shortfall"

    @property
    def slope_scale(self) -> float:
        return self.price or 1.0

    def prices(self, y: Tensor, tasks: Tensor) -> tuple[Tensor, Tensor]:
        return torch.full_like(tasks, self.price), torch.zeros_like(tasks)


@dataclass(frozen=True)
class NonCrossing:
    """Ω on anchors.

    Args:
        inputs: Φ̃ (ñ, r), the rows φ(x̃) of the problem's input factor. A kernel factor must have the x̃ among its anchors, or its
            coordinates cannot hold the solution (Thm 5.27).
        slopes: Ψ̇ (m̃, q), the rows ψ'(θ̃) of its task factor, which `derivative_task_factor` makes with θ̃ as slope nodes.
        offset_slopes: b'(θ̃) (m̃,), of the prior mean; None is 0.
        lam_nc: λ_nc ≥ 0, and where method="exact" begins to look.

    Example:
        >>> import torch
        >>> from gpytorch.kernels import RBFKernel
        >>> from ovkgp.inference.task_learning.factors import KernelFactor
        >>> from ovkgp.inference.task_learning.noncrossing import NonCrossing, solve_noncrossing
        >>> from ovkgp.inference.task_learning.noncrossing_tasks import derivative_task_factor
        >>> from ovkgp.inference.task_learning.problem import TaskProblem
        >>> from ovkgp.losses import IntegralLoss, Pinball, gauss_legendre
        >>> X = torch.linspace(0, 1, 20, dtype=torch.float64).unsqueeze(-1)
        >>> y, measure = (9 * X).sin() + X * (50 * X).cos(), gauss_legendre(10)
        >>> rows, psi = KernelFactor(RBFKernel().double(), X).anchor_rows, derivative_task_factor(RBFKernel(), measure.nodes)
        >>> problem = TaskProblem(rows, psi(measure.nodes), y, IntegralLoss(Pinball(), measure), lam=1e-4)
        >>> penalty = NonCrossing(rows, psi.slopes(measure.nodes))
        >>> solution = solve_noncrossing(problem, penalty, method="exact")
        >>> solution.violation <= 1e-9, solution.report.converged
        (True, True)
    """

    inputs: Tensor
    slopes: Tensor
    offset_slopes: Tensor | None = None
    lam_nc: float = 1.0

    def __post_init__(self):
        for name in ("inputs", "slopes"):
            rows = getattr(self, name)
            if rows.dim() != 2 or rows.numel() == 0 or not bool(torch.isfinite(rows).all()):
                raise InputError(f"{name} of a non-crossing penalty must be finite rows, got {tuple(rows.shape)}.")
        offset = self.slopes.new_zeros(len(self.slopes)) if self.offset_slopes is None else self.offset_slopes
        if offset.shape != self.slopes.shape[:1] or not bool(torch.isfinite(offset).all()):
            raise InputError(
                f"offset_slopes must be {len(self.slopes)} finite numbers, one an anchor level; got {tuple(offset.shape)}. "
                "Keep anchor levels away from 0 and 1, where the slope of a normal quantile is infinite."
            )
        object.__setattr__(self, "offset_slopes", offset)
        if not (math.isfinite(self.lam_nc) and self.lam_nc >= 0):
            raise OptionError(f"lam_nc must be a number ≥ 0, got {self.lam_nc}.")

    def problem(self, lam: float) -> TaskProblem:
        """Ω as a problem in the same weights: values Φ̃ W Ψ̇ᵀ (ñ, m̃), targets −b'."""
        targets = -self.offset_slopes.expand(len(self.inputs), -1)
        loss = IntegralLoss(Shortfall(self.lam_nc), TaskMeasure(torch.arange(len(self.slopes))))
        return TaskProblem(self.inputs, self.slopes, targets, loss, lam)

    def falls(self, weights: Tensor) -> Tensor:
        """max(0, −∂_θ h) at the anchors, (ñ, m̃), for weights W (r, q)."""
        return (-self.offset_slopes - self.inputs @ weights @ self.slopes.T).clamp_min(0.0)

    def value(self, weights: Tensor) -> Tensor:
        """Ω(W)."""
        return self.lam_nc * self.falls(weights).mean()


@dataclass(kw_only=True)
class NonCrossingSolution(TaskSolution):
    """A `TaskSolution` of J + Ω; objective and gap are those of the sum.

    Args:
        multipliers: b (ñ, m̃) in [0, λ_nc/(ñ m̃)]: at its upper bound where the curve falls, 0 where it rises.
        lam_nc: λ_nc of Ω; with method="exact", the one that sufficed.
        violation: the largest fall max(0, −∂_θ h) at an anchor.
    """

    multipliers: Tensor
    lam_nc: float
    violation: float


def solve_noncrossing(
    problem: TaskProblem,
    penalty: NonCrossing,
    *,
    method: str = "penalty",
    start: Tensor | None = None,
    tolerance: float = 1e-6,
    max_iter: int = 1000,
    verbose: int = 0,
) -> NonCrossingSolution:
    """Minimise J(W) + Ω(W) to a duality gap of tolerance · (J + Ω).

    Args:
        problem: J, with an `IntegralLoss` and shared nodes.
        penalty: Ω, in the same coordinates.
        method: "penalty" takes λ_nc as it is; "exact" multiplies it by 10 until no multiplier is at its bound and goes on until no
            curve falls at an anchor by more than 1e-10 · max(1, largest |y|): the solution under the constraint ∂_θ h ≥ 0 there.
        start: W (r, q) to begin with.
        max_iter: the most Newton steps, for each λ_nc.

    Cost: that of `solve_joint`; n = 200 rows, m = 20 nodes, and as many anchors, take about a second.

    Warns:
        FitWarning: it was interrupted or did not converge, and holds the best weights found.
    """
    if method not in METHODS:
        raise OptionError(f"method must be one of {', '.join(METHODS)}; got {method!r}.")
    if (penalty.inputs.shape[1], penalty.slopes.shape[1]) != (problem.inputs.shape[1], problem.tasks.shape[-1]):
        raise InputError(
            f"the penalty has {penalty.inputs.shape[1]} x {penalty.slopes.shape[1]} coordinates and the problem "
            f"{problem.inputs.shape[1]} x {problem.tasks.shape[-1]}: make both with the same factors."
        )
    options = {"tolerance": tolerance, "max_iter": max_iter, "verbose": verbose}
    if method == "exact":
        penalty, point, report = _exact(problem, penalty, start, options)
    else:
        point, report = solve_joint([problem, penalty.problem(problem.lam)], start=start, **options)
    if not report.converged:
        warnings.warn(f"Non-crossing {report.message}.", FitWarning, stacklevel=2)
    return NonCrossingSolution(
        weights=point.weights,
        dual=point.duals[0],
        objective=point.objective,
        gap=point.gap,
        report=report,
        multipliers=point.duals[1] / point.duals[1].numel(),
        lam_nc=penalty.lam_nc,
        violation=penalty.falls(point.weights).max().item(),
    )


def _exact(
    problem: TaskProblem, penalty: NonCrossing, start: Tensor | None, options: dict
) -> tuple[NonCrossing, JointPoint, FitReport]:
    """Ω with a λ_nc that suffices, and its solution without a fall."""
    first = penalty.lam_nc or 1.0
    penalty, duals, seconds, steps = replace(penalty, lam_nc=first), None, 0.0, 0
    limit = VIOLATION * max(1.0, problem.targets.nan_to_num().abs().max().item())
    while True:
        ends = partial(_ends, penalty, limit)
        point, report = solve_joint(
            [problem, penalty.problem(problem.lam)], start=start, duals=duals, accept=ends, **options
        )
        seconds, steps = seconds + report.seconds, steps + report.iterations
        start, duals = point.weights, point.duals
        # a multiplier may come to its bound only in the last digits: λ_nc then has to grow after all
        too_cheap = _falls(penalty, limit, point) and _is_bounded(penalty, point)
        if not too_cheap or report.interrupted or penalty.lam_nc * GROWTH > first * LARGEST:
            break
        penalty = replace(penalty, lam_nc=GROWTH * penalty.lam_nc)
    if too_cheap and not report.interrupted:
        report.converged = False
        report.message = f"found no λ_nc up to {penalty.lam_nc:.0e} that keeps the curves from falling: is b' negative?"
    report.seconds, report.iterations = seconds, steps
    return penalty, point, report


def _ends(penalty: NonCrossing, limit: float, point: JointPoint) -> bool:
    """Whether nothing falls, or λ_nc is too small for that."""
    return not _falls(penalty, limit, point) or _is_bounded(penalty, point)


def _falls(penalty: NonCrossing, limit: float, point: JointPoint) -> bool:
    return penalty.falls(point.weights).max().item() > limit


def _is_bounded(penalty: NonCrossing, point: JointPoint) -> bool:
    return bool((point.duals[1] >= (1 - 1e-6) * penalty.lam_nc).any())
