"""Problems that share their weights, solved together by the method of multipliers with semismooth Newton steps.

    J(W) = Σ_p risk_p(Φ_p W Ψ_pᵀ) + (λ/2) ‖W‖²,        D(A) = −Σ_p (1/n_p) Σ_i s_i L_p*(−A_i) − (λ/2) ‖Σ_p W_p(A_p)‖²

A step maximises D(A) − (κ/2) ‖A − A_old‖². Its primal is smooth: Moreau envelopes of the losses at values shifted by κ A_old, whose
slopes are feasible in the dual, so that every point has a gap. A Newton step solves for the entries on a kink alone, and κ halves.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from tqdm import tqdm

from ovkgp.exceptions import OptionError
from ovkgp.inference.fit_report import FitReport
from ovkgp.inference.task_learning.noncrossing_systems import NewtonSystems
from ovkgp.inference.task_learning.problem import TaskProblem
from ovkgp.losses import CurveEnvelope, IntegralLoss

COLD, WARM, LEAST, SHRINK = 1.0, 0.03, 1e-10, 0.5
"""κ in units of a typical target: without a start, with one, where to give up, and by how much it falls in a step."""
SLACK = 5e-3
"""A step ends where its own error is below this part of the gap."""
ROUNDING = 1e-13
LOOK = 1e-6
"""How far, in slopes, the derivative of a proximal operator looks to both sides."""


@dataclass
class JointPoint:
    """Weights W (r, q), feasible duals A of each part, and what they are worth; `values` are Φ_p W Ψ_pᵀ."""

    weights: Tensor
    duals: list[Tensor]
    values: list[Tensor]
    objective: float
    gap: float
    gradient: Tensor
    rounding: float

    def error(self, lam: float) -> float:
        """How far the smoothed objective can be above its minimum, by strong convexity; 0 where the gradient is rounding."""
        norm = self.gradient.norm().item()
        return 0.0 if norm <= self.rounding else norm**2 / (2 * lam)


def solve_joint(
    parts: Sequence[TaskProblem],
    *,
    start: Tensor | None = None,
    duals: Sequence[Tensor] | None = None,
    accept: Callable[[JointPoint], bool] = lambda point: True,
    tolerance: float = 1e-6,
    max_iter: int = 1000,
    verbose: int = 0,
) -> tuple[JointPoint, FitReport]:
    """Minimise J. It stops where the gap is at most tolerance · J and `accept` agrees.

    Args:
        parts: problems with the same λ and coordinates; losses are `IntegralLoss`, tasks (m, q) shared by all rows.
        start: W (r, q) to begin with.
        duals: A (n, m) of each part to begin with, beside `start`.
        accept: a condition of one's own on the point to be returned.
        max_iter: the most Newton steps and changes of κ in all.

    Cost: 30 to 100 Newton steps, each O(k³ + Σ n q (r + m)) for k entries on a kink; k is about the degrees of freedom of the fit.

    Example:
        >>> import torch
        >>> from ovkgp.inference.task_learning.noncrossing_newton import solve_joint
        >>> from ovkgp.inference.task_learning.problem import TaskProblem
        >>> from ovkgp.losses import IntegralLoss, Pinball, gauss_legendre
        >>> y = torch.arange(9, dtype=torch.float64).unsqueeze(-1)
        >>> one = torch.ones(9, 1, dtype=torch.float64)
        >>> problem = TaskProblem(one, one[:1], y, IntegralLoss(Pinball(), gauss_legendre(1)), lam=1e-6)
        >>> point, report = solve_joint([problem])
        >>> round(point.weights.item(), 3), report.converged  # the median
        (4.0, True)
    """
    _require(parts, tolerance)
    search = _Search(parts, start, duals)
    with torch.no_grad(), tqdm(total=max_iter, disable=not verbose, unit="step", desc="Newton") as bar:
        return search.run(accept, tolerance, max_iter, bar)


class _Search:
    """The iteration: points, multipliers A_old and κ."""

    def __init__(self, parts: Sequence[TaskProblem], start: Tensor | None, duals: Sequence[Tensor] | None):
        self.parts, self.lam, self.systems = parts, parts[0].lam, NewtonSystems(parts)
        # in these units of κ the diagonal of each part's Gram block counts alike (the preconditioner of §2.9)
        sizes = [part.tasks.square().sum(-1).mean().item() for part in parts]
        self.units = [size / (sizes[0] or 1.0) or 1.0 for size in sizes]
        self.scale = _typical(parts[0])
        self.kappa = self.scale * (COLD if start is None else WARM)
        self.multipliers = [torch.zeros_like(part.entry_weights) for part in parts] if duals is None else list(duals)
        self.point = self.at(start if start is not None else parts[0].inputs.new_zeros(self.systems.shape))

    def run(self, accept, tolerance: float, max_iter: int, bar: tqdm) -> tuple[JointPoint, FitReport]:
        began, steps, best, converged, interrupted = time.perf_counter(), 0, self.point, False, False
        try:
            while not (converged := self.is_done(tolerance) and accept(self.point)):
                best = min(best, self.point, key=lambda point: point.gap)
                if steps == max_iter or self.kappa < LEAST * self.scale:
                    break
                self.step()
                steps += 1
                bar.update()
        except KeyboardInterrupt:
            interrupted = True
        best = self.point if converged else best
        message = "converged" if converged else _why_not(interrupted, steps == max_iter, best.gap)
        seconds = time.perf_counter() - began
        report = FitReport(
            best.objective, converged, message, iterations=steps, interrupted=interrupted, seconds=seconds
        )
        report.gradient_norm = best.gradient.norm().item()
        return best, report

    def is_done(self, tolerance: float) -> bool:
        return self.point.gap <= tolerance * max(abs(self.point.objective), ROUNDING * self.scale)

    def step(self) -> None:
        """A Newton step; where it can do no more at this κ, new multipliers and a smaller κ."""
        if self.point.error(self.lam) <= SLACK * self.point.gap or not self.descend():
            self.multipliers = self.point.duals
            self.kappa *= SHRINK
            self.point = self.at(self.point.weights)

    def descend(self) -> bool:
        """W + t δ for the first t = 1, ½, … that lowers the smoothed objective enough; False where none does."""
        delta = -self.systems.solve(self.point.gradient, self.curvatures())
        moves = [part.values(delta) for part in self.parts]
        now, slope = self.smoothed(self.point.weights, self.point.values), (self.point.gradient * delta).sum().item()
        for t in 0.5 ** torch.arange(30.0):
            values = [value + t * move for value, move in zip(self.point.values, moves, strict=True)]
            weights = self.point.weights + t * delta
            if self.smoothed(weights, values) < now + 1e-4 * t.item() * slope:
                self.point = self.at(weights)
                return True
        return False

    def at(self, weights: Tensor) -> JointPoint:
        values = [part.values(weights) for part in self.parts]
        duals = [-a for a in self.each(values)]
        pulled = [part.dual_weights(a) for part, a in zip(self.parts, duals, strict=True)]
        whole = torch.stack(pulled).sum(0)
        objective = sum(part.risk(value).item() for part, value in zip(self.parts, values, strict=True))
        objective += self.lam / 2 * weights.square().sum().item()
        zero = torch.zeros_like(weights)
        dual = sum(part.dual_objective(a, zero).item() for part, a in zip(self.parts, duals, strict=True))
        dual -= self.lam / 2 * whole.square().sum().item()
        rounding = ROUNDING * self.lam * sum(w.norm().item() for w in [weights, *pulled])
        return JointPoint(weights, duals, values, objective, objective - dual, self.lam * (weights - whole), rounding)

    def each(self, values: Sequence[Tensor], shift: float = 0.0) -> list[Tensor]:
        """Slopes of the envelopes at values − κ A_old, and `shift` beside: prox_{L*/κ}(values/κ − A_old) (LT-13)."""
        slopes = []
        for part, unit, value, old in zip(self.parts, self.units, values, self.multipliers, strict=True):
            kappa = unit * self.kappa
            slopes.append(part.loss.conjugate_prox(value / kappa - old + shift, part.targets, 1 / kappa))
        return slopes

    def curvatures(self) -> list[Tensor]:
        """d of each entry; the losses act entry by entry, so that a difference of slopes is the whole derivative."""
        ahead, behind = (self.each(self.point.values, shift) for shift in (LOOK, -LOOK))
        found = []
        for part, unit, a, b in zip(self.parts, self.units, ahead, behind, strict=True):
            bend = (a - b) / (2 * LOOK)
            weight = part.entry_weights / (part.num_rows * unit * self.kappa)
            found.append(weight * torch.where(bend > 1e-3, bend, 0.0))
        return found

    def smoothed(self, weights: Tensor, values: Sequence[Tensor]) -> float:
        total = self.lam / 2 * weights.square().sum().item()
        for part, unit, value, old in zip(self.parts, self.units, values, self.multipliers, strict=True):
            kappa = unit * self.kappa
            total += part.risk(value - kappa * old, CurveEnvelope(part.loss, kappa)).item()
        return total


def _typical(part: TaskProblem) -> float:
    """The mean size of a target, 1 where all are 0."""
    sizes = torch.where(part.entry_weights > 0, part.entry_weights * part.targets.abs(), 0.0)
    return (sizes.sum() / part.entry_weights.sum()).item() or 1.0


def _why_not(interrupted: bool, spent: bool, gap: float) -> str:
    if interrupted:
        return "was interrupted: the weights are the best so far"
    reason = "after max_iter steps: raise it" if spent else "at the limit of rounding: raise the tolerance"
    return f"stopped {reason}; the gap is {gap:.1e}"


def _require(parts: Sequence[TaskProblem], tolerance: float) -> None:
    if not (math.isfinite(tolerance) and tolerance > 0):
        raise OptionError(f"tolerance must be a positive number, got {tolerance}.")
    if not all(isinstance(part.loss, IntegralLoss) for part in parts):
        raise OptionError("this solver needs losses that act entry by entry: IntegralLoss(Pinball(), measure), say.")
    if any(part.tasks.dim() != 2 for part in parts):
        raise OptionError("this solver needs nodes that all rows share: a task measure with nodes (m,).")
