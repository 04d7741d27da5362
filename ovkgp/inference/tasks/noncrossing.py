"""How much quantile curves cross: by their slopes, and by what each level falls below the one before it (LT-135)."""

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


@dataclass(frozen=True)
class Shortfall(TwoSided):
    """c · max(0, y − u): only too little costs (LT-63).

    Args:
        price: c ≥ 0.

    Example:
        >>> import torch
        >>> from ovkgp.inference.tasks.noncrossing import Shortfall
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
        >>> from ovkgp.inference.tasks.factors import KernelFactor
        >>> from ovkgp.inference.tasks.noncrossing import NonCrossing, solve_noncrossing
        >>> from ovkgp.inference.tasks.factors import derivative_task_factor
        >>> from ovkgp.inference.tasks.problem import TaskProblem
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

    def problem(self, lam: float, unit: float = 1.0) -> TaskProblem:
        """Ω as a problem in the same weights: values Φ̃ W Ψ̇ᵀ (ñ, m̃) and targets −b', both divided by a unit of slopes."""
        targets = -self.offset_slopes.expand(len(self.inputs), -1) / unit
        loss = IntegralLoss(Shortfall(unit * self.lam_nc), TaskMeasure(torch.arange(len(self.slopes))))
        return TaskProblem(self.inputs, self.slopes / unit, targets, loss, lam)

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
    max_iter: int = 5000,
    verbose: int = 0,
) -> NonCrossingSolution:
    """Minimise J(W) + Ω(W) to a duality gap of tolerance · (J + Ω).

    Args:
        problem: J, with an `IntegralLoss` and shared nodes.
        penalty: Ω, in the same coordinates.
        method: "penalty" takes λ_nc as it is; "exact" multiplies it by 10 until no multiplier is at its bound and goes on until no
            curve falls at an anchor by more than 1e-10 · max(1, largest |y|): the solution under the constraint ∂_θ h ≥ 0 there.
        start: W (r, q) to begin with.
        max_iter: the most rounds and Newton steps, for each λ_nc.

    Cost: that of `solve_primal` with n + ñ rows and m + m̃ tasks; n = 200 rows, m = 20 nodes, and as many anchors, take a few tenths of a
    second.

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
    check_initial_point("start", start, problem.shape)
    options = {"tolerance": tolerance, "max_iter": max_iter, "verbose": verbose}
    if method == "exact":
        joint, found = solve_exactly(problem, penalty, start, options)
    else:
        joint = JointSearch(problem, penalty)
        found = joint.run(start, None, Certificate(joint.joint, **options))
    if not found.report.converged:
        warnings.warn(f"Non-crossing {found.report.message}.", FitWarning, stacklevel=2)
    return NonCrossingSolution(
        weights=found.weights,
        dual=joint.dual_of(found.dual),
        objective=found.objective,
        gap=found.gap,
        report=found.report,
        multipliers=joint.multipliers_of(found.dual),
        lam_nc=joint.penalty.lam_nc,
        violation=penalty.falls(found.weights).max().item(),
    )


def falling_slope(slopes: Tensor) -> float:
    """mean_ij max(0, −∂_θ h(x_i)(θ_j)): 0 where no curve falls.

    Args:
        slopes: ∂_θ h (n, m) on a grid of levels, `TaskFunction.slopes`.

    Example:
        >>> import torch
        >>> from ovkgp.inference.tasks.noncrossing import falling_slope
        >>> falling_slope(torch.tensor([[1.0, -0.5], [2.0, 1.0]]))
        0.125
    """
    return (-_table("slopes", slopes, 1)).clamp_min(0.0).mean().item()


def crossing_loss(quantiles: Tensor) -> float:
    """mean_i Σ_j max(0, q_ij − q_i,j+1), in the units of y: how far each level falls below the one before it.

    Args:
        quantiles: q (n, m) at increasing levels; m ≥ 2.

    Example:
        >>> import torch
        >>> from ovkgp.inference.tasks.noncrossing import crossing_loss
        >>> crossing_loss(torch.tensor([[0.0, 1.0, 0.5], [0.0, 1.0, 2.0]]))
        0.25
    """
    return (-_table("quantiles", quantiles, 2).diff(dim=-1)).clamp_min(0.0).sum(-1).mean().item()


def _table(name: str, values: Tensor, columns: int) -> Tensor:
    values = torch.as_tensor(values, dtype=torch.float64)
    if values.dim() != 2 or len(values) == 0 or values.shape[1] < columns or not bool(torch.isfinite(values).all()):
        raise InputError(
            f"{name} must be finite, one row an input and at least {columns} columns; got {tuple(values.shape)}."
        )
    return values
