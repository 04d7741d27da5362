"""Quantile curves with a non-crossing penalty or constraint (LT-63, LT-98), and measures of crossing (LT-135).

Ω(h) = (λ_nc / ñm̃) Σ_ij max(0, −∂_θ h(x̃_i)(θ̃_j))      at anchor inputs x̃ and levels θ̃

J + Ω is one joint problem: the slopes at the anchors are values of additional tasks, in a unit in which they have the
size of the values, which preconditions the two blocks.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from ovkgp.checks import check_nonnegative, check_one_of
from ovkgp.exceptions import FitWarning, InputError, OptionError
from ovkgp.inference.tasks.problem import TaskProblem, TaskSolution
from ovkgp.inference.tasks.solvers.certificates import Certificate, check_initial_point
from ovkgp.inference.tasks.solvers.primal import search
from ovkgp.inference.tasks.solvers.square import ObservedTasks
from ovkgp.losses import IntegralLoss, Loss, TaskMeasure
from ovkgp.losses.piecewise import TwoSided

METHODS = ("penalty", "exact")
MAX_VIOLATION = 1e-10  # largest violation at an anchor, relative to max(1, largest target), that counts as none
PENALTY_FACTOR, MAX_PENALTY_GROWTH = 10.0, 1e6
"""If multipliers reach their bound, λ_nc grows by this factor, up to this multiple of its initial value."""


@dataclass(kw_only=True)
class NonCrossingSolution(TaskSolution):
    """A `TaskSolution` of J + Ω, whose objective and gap are those of the sum.

    multipliers (ñ, m̃) are in [0, λ_nc/(ñ m̃)]: at the upper bound where a curve falls, 0 where it rises. lam_nc is
    λ_nc of Ω, with method="exact" the one that sufficed. violation is the largest max(0, −∂_θ h) at an anchor.
    """

    multipliers: Tensor
    lam_nc: float
    violation: float


def solve_noncrossing(
    problem: TaskProblem,
    penalty: NonCrossing,
    *,
    method: str = "penalty",
    init: Tensor | None = None,
    tolerance: float = 1e-6,
    max_iter: int = 5000,
    verbose: int = 0,
) -> NonCrossingSolution:
    """Minimize J(W) + Ω(W) to a duality gap of tolerance · (J + Ω), for an `IntegralLoss` with shared nodes.

    method="penalty" uses λ_nc as given. "exact" multiplies it by 10 until no multiplier is at its bound and continues
    until no curve falls at an anchor by more than 1e-10 · max(1, largest |y|): the solution under the constraint ∂_θ h
    ≥ 0 there. `init` is W (r, q), and `max_iter` limits rounds plus Newton steps for each λ_nc. A FitWarning reports an
    interrupted or unconverged run, which returns the best weights found. Complexity: that of `solve_primal` with n + ñ
    rows and m + m̃ tasks.
    """
    check_one_of("method", method, METHODS)
    if (penalty.inputs.shape[1], penalty.slopes.shape[1]) != (problem.inputs.shape[1], problem.tasks.shape[-1]):
        raise InputError(
            f"penalty has {penalty.inputs.shape[1]} x {penalty.slopes.shape[1]} coordinates, expected {problem.inputs.shape[1]} x {problem.tasks.shape[-1]} as in problem. Build both with the same factors."
        )
    check_initial_point("init", init, problem.shape)
    options = {"tolerance": tolerance, "max_iter": max_iter, "verbose": verbose}
    if method == "exact":
        joint, solution = solve_exactly(problem, penalty, init, options)
    else:
        joint = JointSearch(problem, penalty)
        solution = joint.run(init, None, Certificate(joint.joint, **options))
    if not solution.report.converged:
        warnings.warn(f"The non-crossing solver {solution.report.message}.", FitWarning, stacklevel=2)
    multipliers, violation = joint.multipliers(solution.dual), penalty.violations(solution.weights).max().item()
    solution = replace(solution, dual=joint.problem_dual(solution.dual))
    own = {"multipliers": multipliers, "lam_nc": joint.penalty.lam_nc, "violation": violation}
    return NonCrossingSolution(**vars(solution), **own)


@dataclass(frozen=True)
class NonCrossing:
    """The penalty Ω on anchors.

    inputs is Φ̃ (ñ, r), the rows φ(x̃) of the problem's input factor; a kernel factor must have the x̃ among its
    anchors, otherwise its coordinates cannot represent the solution (Thm 5.27). slopes is Ψ̇ (m̃, q), the rows ψ'(θ̃)
    of its task factor, from `DerivativeTaskFactor` with slope nodes θ̃. offset_slopes is b'(θ̃) (m̃,) of the
    prior mean, 0 if None. lam_nc is λ_nc ≥ 0, the initial value with method="exact".
    """

    inputs: Tensor
    slopes: Tensor
    offset_slopes: Tensor | None = None
    lam_nc: float = 1.0

    def __post_init__(self):
        for name in ("inputs", "slopes"):
            rows = getattr(self, name)
            if rows.dim() != 2 or rows.numel() == 0 or not bool(torch.isfinite(rows).all()):
                raise InputError(f"{name} must be a non-empty finite matrix, got shape {tuple(rows.shape)}.")
        offset = self.slopes.new_zeros(len(self.slopes)) if self.offset_slopes is None else self.offset_slopes
        if offset.shape != self.slopes.shape[:1] or not bool(torch.isfinite(offset).all()):
            raise InputError(
                f"offset_slopes must be {len(self.slopes)} finite numbers, one per anchor level, got shape {tuple(offset.shape)}. Keep anchor levels away from 0 and 1, where the slope of a normal quantile is infinite."
            )
        object.__setattr__(self, "offset_slopes", offset)
        check_nonnegative("lam_nc", self.lam_nc)

    def problem(self, lam: float, unit: float = 1.0) -> TaskProblem:
        """Return Ω as a problem in W: values Φ̃ W Ψ̇ᵀ (ñ, m̃) and targets −b', both divided by `unit`."""
        targets = -self.offset_slopes.expand(len(self.inputs), -1) / unit
        loss = IntegralLoss(Shortfall(unit * self.lam_nc), TaskMeasure(torch.arange(len(self.slopes))))
        return TaskProblem(self.inputs, self.slopes / unit, targets, loss, lam)

    def violations(self, weights: Tensor) -> Tensor:
        """Return max(0, −∂_θ h) at the anchors, (ñ, m̃), for weights W (r, q)."""
        return (-self.offset_slopes - self.inputs @ weights @ self.slopes.T).clamp_min(0.0)

    def value(self, weights: Tensor) -> Tensor:
        """Return Ω(W)."""
        return self.lam_nc * self.violations(weights).mean()


@dataclass(frozen=True)
class Shortfall(TwoSided):
    """c · max(0, y − u), which penalizes values below the target only (LT-63), for a cost c ≥ 0."""

    cost: float
    name = "shortfall"

    @property
    def slope_scale(self) -> float:
        return self.cost or 1.0

    def side_weights(self, y: Tensor, tasks: Tensor) -> tuple[Tensor, Tensor]:
        return torch.full_like(tasks, self.cost), torch.zeros_like(tasks)


def crossing_slope(slopes: Tensor) -> float:
    """Return mean_ij max(0, −∂_θ h(x_i)(θ_j)) of slopes (n, m) on a grid of levels: 0 if no curve falls."""
    return (-_check_matrix("slopes", slopes, 1)).clamp_min(0.0).mean().item()


def crossing_loss(quantiles: Tensor) -> float:
    """Return mean_i Σ_j max(0, q_ij − q_i,j+1) of quantiles (n, m) at increasing levels, m ≥ 2, in the units of y."""
    return (-_check_matrix("quantiles", quantiles, 2).diff(dim=-1)).clamp_min(0.0).sum(-1).mean().item()


def _check_matrix(name: str, values: Tensor, columns: int) -> Tensor:
    values = torch.as_tensor(values, dtype=torch.float64)
    if values.dim() != 2 or len(values) == 0 or values.shape[1] < columns or not bool(torch.isfinite(values).all()):
        raise InputError(
            f"{name} must be finite with shape (n, m), n ≥ 1 and m ≥ {columns}, got {tuple(values.shape)}."
        )
    return values


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
        is_largest = penalty.lam_nc * PENALTY_FACTOR > first * MAX_PENALTY_GROWTH
        if not is_penalty_too_small or report.interrupted or is_largest:
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
        is_near = value - self.lower <= self.tolerance * abs(value)
        if is_near and not self.search.has_violation(weights, self.max_violation):
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
    if any(part.loss.num_dims != 1 for part in parts):
        raise InputError("Curves can be monotone in tasks in one dimension only, got tasks in R^b with b > 1.")
    rows = sum(part.num_rows for part in parts)
    weights = torch.block_diag(*(rows / part.num_rows * part.entry_weights for part in parts))
    targets = torch.block_diag(*(part.targets.expand(part.entry_weights.shape) for part in parts))
    loss = JoinedLoss([part.loss.loss for part in parts], [len(part.tasks) for part in parts])
    measure = ObservedTasks(torch.cat([part.loss.nodes for part in parts]), weights)
    inputs, tasks = (torch.cat([getattr(part, name) for part in parts]) for name in ("inputs", "tasks"))
    return TaskProblem(inputs, tasks, targets, IntegralLoss(loss, measure), parts[0].lam)


def _concatenate(method: str):
    """Make a method that calls this method of each loss on its group of tasks."""

    def apply(self, u: Tensor, y: Tensor, tasks: Tensor, *step: float | Tensor) -> Tensor:
        parts = []
        for loss, group in zip(self.losses, self.groups, strict=True):
            steps = [each[..., group] if torch.is_tensor(each) else each for each in step]
            parts.append(getattr(loss, method)(u[..., group], y[..., group], tasks[..., group], *steps))
        return torch.cat(parts, -1)

    return apply


class JoinedLoss(Loss):
    """Different losses for consecutive groups of tasks, with `sizes` tasks each."""

    name = "joined"

    def __init__(self, losses: Sequence[Loss], sizes: Sequence[int]):
        self.losses = list(losses)
        self.groups = [slice(low, high) for low, high in pairwise([0, *np.cumsum(sizes).tolist()])]

    value = _concatenate("value")
    derivative = _concatenate("derivative")
    curvature = _concatenate("curvature")
    finite_conjugate = _concatenate("finite_conjugate")
    conjugate = _concatenate("conjugate")
    prox = _concatenate("prox")
    nearest_slope = _concatenate("nearest_slope")
    conjugate_prox = _concatenate("conjugate_prox")
