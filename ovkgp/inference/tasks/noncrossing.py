"""Quantile curves with a non-crossing penalty or constraint (LT-63, LT-98), and measures of crossing (LT-135).

Ω(h) = (λ_nc / ñm̃) Σ_ij max(0, −∂_θ h(x̃_i)(θ̃_j))      at anchor inputs x̃ and levels θ̃
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass

import torch
from torch import Tensor

from ovkgp.exceptions import FitWarning, InputError, OptionError
from ovkgp.inference.tasks.noncrossing_search import JointSearch, solve_exactly
from ovkgp.inference.tasks.problem import TaskProblem, TaskSolution
from ovkgp.inference.tasks.solvers.certificates import Certificate, check_initial_point
from ovkgp.losses import IntegralLoss, TaskMeasure
from ovkgp.losses.piecewise import TwoSided

METHODS = ("penalty", "exact")


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
    if method not in METHODS:
        raise OptionError(f"method must be one of {', '.join(map(repr, METHODS))}, got {method!r}.")
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
    return NonCrossingSolution(
        weights=solution.weights,
        dual=joint.problem_dual(solution.dual),
        objective=solution.objective,
        gap=solution.gap,
        report=solution.report,
        multipliers=joint.multipliers(solution.dual),
        lam_nc=joint.penalty.lam_nc,
        violation=penalty.violations(solution.weights).max().item(),
    )


@dataclass(frozen=True)
class NonCrossing:
    """The penalty Ω on anchors.

    inputs is Φ̃ (ñ, r), the rows φ(x̃) of the problem's input factor; a kernel factor must have the x̃ among its
    anchors, otherwise its coordinates cannot represent the solution (Thm 5.27). slopes is Ψ̇ (m̃, q), the rows ψ'(θ̃)
    of its task factor, from `make_derivative_task_factor` with slope nodes θ̃. offset_slopes is b'(θ̃) (m̃,) of the
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
        if not (math.isfinite(self.lam_nc) and self.lam_nc >= 0):
            raise OptionError(f"lam_nc must be a number ≥ 0, got {self.lam_nc}.")

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
