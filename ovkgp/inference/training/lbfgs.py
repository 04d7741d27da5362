"""L-BFGS-B maximization of an objective or log density that may fail at some points, and the Hessian at a mode.

The optimizer steps back where the objective cannot be evaluated. Second derivatives are central differences of the
gradient, with a step per variable that suits the width of the density; they are one-sided at the edge of the support.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from linear_operator.utils.errors import NanError, NotPSDError
from scipy.optimize import OptimizeResult, minimize
from torch import Tensor

from ovkgp.exceptions import FactorizationError, OptionError
from ovkgp.inference.model.parameter_vector import ParameterVector

FAILURES = (FactorizationError, torch.linalg.LinAlgError, np.linalg.LinAlgError, NotPSDError, NanError)
"""Errors that mean that the objective cannot be evaluated at these hyperparameters."""
CONVERGENCE_WINDOW = 5  # number of iterations over which the change of the objective is assessed
MAX_LBFGS_ROUNDS = 3  # maximum number of restarts with a fresh memory after a failed line search
MODE_TOLERANCE = 1e-9  # default tolerance of the search for a mode, relative to |log π| over five iterations
MAX_MODE_GRADIENT = 1e-3
"""Gradient of log π, in variables of order one, below which a stuck search counts as converged."""
INITIAL_STEP, RELATIVE_STEP = 3e-4, 1e-3
"""First step of a difference, and its best length relative to the width 1/√|∂² log π| of the density."""
STEP_FACTORS = (1.0, 0.1, 0.01)
"""Factors tried on a step, in this order, if the density cannot be evaluated on one side."""

Density = Callable[[np.ndarray], tuple[float, np.ndarray]]
"""u (k,) ↦ log π(u) and its gradient (k,); −∞ if it cannot be evaluated."""


@dataclass
class Point:
    """A vector, the objective there and the gradient of objective / scale."""

    x: np.ndarray
    value: float
    gradient: np.ndarray


class TorchObjective:
    """A differentiable scalar, computed from the parameters of a module at every call, as a function of their vector."""

    def __init__(self, vector: ParameterVector, objective: Callable[[], Tensor]):
        self.vector, self.objective = vector, objective

    def __call__(self, x: np.ndarray) -> tuple[float, np.ndarray]:
        """Return the objective and its gradient at x."""
        self.vector.set(x)
        self.vector.clear_gradient()
        with torch.enable_grad():
            value = self.objective()
        if len(self.vector) and bool(torch.isfinite(value.detach()).all()):
            if not value.requires_grad:
                raise OptionError(
                    f"The objective does not depend on the parameters {', '.join(self.vector.names)}. Compute it from them at every call, without torch.no_grad."
                )
            value.backward()
        return float(value.detach()), self.vector.gradient()


class ObjectiveEvaluator:
    """A density divided by `scale` as a function of the vector; stores the best point and counts failures."""

    def __init__(self, vector: ParameterVector, density: Density, scale: float = 1.0):
        self.vector, self.density, self.scale = vector, density, scale
        self.evaluations = self.failures = 0
        self.best: Point | None = None
        self.last_failure: BaseException | str | None = None

    def evaluate(self, x: np.ndarray) -> Point | None:
        """Return the objective and its gradient at x, or None if the evaluation fails."""
        self.evaluations += 1
        try:
            value, gradient = self.density(x)
        except FAILURES as error:
            self.failures, self.last_failure = self.failures + 1, error
            return None
        if not (np.isfinite(value) and np.isfinite(gradient).all()):
            self.failures, self.last_failure = self.failures + 1, "the objective or its gradient is not finite"
            return None
        point = Point(np.array(x, dtype=np.float64), value, gradient / self.scale)
        if self.best is None or point.value > self.best.value:
            self.best = point
        return point

    def slope(self, point: Point) -> float:
        """Return the largest entry of the gradient that does not push against a bound."""
        low, high = self.vector.bounds.T
        blocked = ((point.x <= low) & (point.gradient < 0)) | ((point.x >= high) & (point.gradient > 0))
        return float(np.abs(np.where(blocked, 0.0, point.gradient)).max(initial=0.0))


class LBFGSRun:
    """L-BFGS-B from a point where the objective could be evaluated, to convergence or to `max_iter` iterations.

    It stops if `CONVERGENCE_WINDOW` iterations change objective / scale by less than `tolerance` · `size`, or if no entry of the
    projected gradient is larger than `tolerance`. If None, `size` is |objective / scale|, at least 1, which depends on the
    units of the data. `after` is called after every iteration; `done` iterations of an earlier run count towards `max_iter`.
    """

    def __init__(
        self,
        evaluator: ObjectiveEvaluator,
        start: Point,
        max_iter: int,
        tolerance: float,
        after: Callable[[LBFGSRun], None] | None = None,
        done: int = 0,
        size: float | None = None,
    ):
        self.evaluator, self.max_iter, self.tolerance, self.after = evaluator, max_iter, tolerance, after
        self.size = size
        self.iterate = self.last = self.best = start
        self.iterations, self.converged, self.messages = done, False, ()
        self.gradient_norm = evaluator.slope(start)
        self.values = [start.value / evaluator.scale]

    def run(self) -> LBFGSRun:
        """Optimize; the outcome is in `best`, `converged` and `messages`."""
        for _ in range(MAX_LBFGS_ROUNDS):
            before = self.best.value
            reason = self._round()
            gained = (self.best.value - before) / self.evaluator.scale
            if reason != "stuck" or gained <= self.tolerance or self.iterations >= self.max_iter:
                break
            self.iterate = self.last = self.best
        self._conclude(reason)
        return self

    def _round(self) -> str:
        self.is_converged = False
        result = minimize(
            self._descend,
            self.iterate.x,
            jac=True,
            method="L-BFGS-B",
            bounds=self.evaluator.vector.bounds,
            callback=self._after_iteration,
            options={
                "maxiter": max(1, self.max_iter - self.iterations),
                "maxfun": 10**9,
                "maxcor": 20,
                "gtol": self.tolerance,
                "ftol": 0.0,
            },
        )
        if self.is_converged:
            return "small change"
        return {0: "flat", 1: "limit"}.get(result.status, "stuck")

    def _descend(self, x: np.ndarray) -> tuple[float, np.ndarray]:
        point = self.evaluator.evaluate(x)
        if point is None:
            value = -self.iterate.value / self.evaluator.scale
            rise = abs(self.iterate.gradient @ (x - self.iterate.x))
            return value + 0.1 * rise + 1e-10 * (1 + abs(value)), np.zeros_like(x)
        self.last = point
        self.best = point if point.value > self.best.value else self.best
        return -point.value / self.evaluator.scale, -point.gradient

    def _after_iteration(self, intermediate_result: OptimizeResult) -> None:
        self.iterate = self.last
        self.iterations += 1
        self.values.append(self.iterate.value / self.evaluator.scale)
        if self.after is not None:
            self.after(self)
        recent = self.values[-CONVERGENCE_WINDOW - 1 :]
        change = abs(recent[-1] - recent[0])
        size = max(1.0, abs(recent[-1])) if self.size is None else self.size
        if len(recent) > CONVERGENCE_WINDOW and change <= self.tolerance * size:
            self.is_converged = True
            raise StopIteration

    def _conclude(self, reason: str) -> None:
        self.gradient_norm = self.evaluator.slope(self.best)
        # the line search fails if rounding hides any further gain, although the gradient is small
        nearly_flat = reason == "stuck" and self.gradient_norm <= self.tolerance**0.5
        self.converged = reason in ("small change", "flat") or nearly_flat
        if self.converged:
            self.messages = ("converged",)
        elif reason == "limit":
            self.messages = (
                f"stopped after {self.iterations} iterations without converging",
                "the best parameters so far are kept. Use fewer hyperparameters (a smaller rank, one lengthscale), or max_iter of OperatorValuedGP.fit",
            )
        else:
            self.messages = (
                f"stopped after {self.iterations} iterations: no step improves the objective, although its gradient is "
                f"{self.gradient_norm:.2g}. Check the data for duplicates and extreme scales, or change the initial values",
            )


class Mode(NamedTuple):
    """Maximum of a density: u (k,), log π there, and whether the search converged."""

    u: np.ndarray
    value: float
    converged: bool


def find_mode(
    vector: ParameterVector,
    density: Density,
    initial_points: Sequence[np.ndarray],
    max_iter: int,
    tolerance: float = MODE_TOLERANCE,
    restarts: int = 1,
) -> Mode:
    """Maximize a density from the best of several initial points u (k,), or of groups of points (g, k).

    The runs after the first begin at the best points of other groups, in the order of their values. Raises `FactorizationError` if the density cannot be evaluated at any of them.
    """
    evaluator = ObjectiveEvaluator(vector, density)
    best_of_groups = []
    for group in map(np.atleast_2d, initial_points):
        if points := [point for u in group if (point := evaluator.evaluate(u)) is not None]:
            best_of_groups.append(max(points, key=lambda point: point.value))
    if not best_of_groups:
        raise FactorizationError(
            "The posterior density of the hyperparameters cannot be evaluated at any initial point. Set the "
            "hyperparameters (gp.initialize(X, Y) takes them from the data), or check the data for extreme scales."
        )
    ordered = sorted(best_of_groups, key=lambda point: -point.value)
    runs = [LBFGSRun(evaluator, point, max_iter, tolerance).run() for point in ordered[:restarts]]
    run = max(runs, key=lambda run: run.best.value)
    return Mode(run.best.x, run.best.value, run.converged or run.gradient_norm <= MAX_MODE_GRADIENT)


def compute_hessian(density: Density, u: np.ndarray) -> np.ndarray:
    """Return the symmetrized Hessian (k, k) of log π at u (k,), from 2k to 4k gradients.

    Raises `FactorizationError` if the density cannot be evaluated at u, or on neither side of it in some variable.
    """
    u = np.asarray(u, dtype=np.float64)
    columns = np.stack([_hessian_column(density, u, i) for i in range(len(u))])
    return (columns + columns.T) / 2


def _hessian_column(density: Density, u: np.ndarray, index: int) -> np.ndarray:
    column = _difference_gradient(density, u, index, INITIAL_STEP)
    better = RELATIVE_STEP / np.sqrt(max(abs(column[index]), 1.0))
    return column if INITIAL_STEP / 4 < better < 4 * INITIAL_STEP else _difference_gradient(density, u, index, better)


def _difference_gradient(density: Density, u: np.ndarray, index: int, step: float) -> np.ndarray:
    one_sided = None
    for shorter in STEP_FACTORS:
        sides = [u + sign * shorter * step * (np.arange(len(u)) == index) for sign in (1, -1)]
        found = [(side[index], by_side) for side in sides for value, by_side in [density(side)] if np.isfinite(value)]
        if len(found) == 2:
            (ahead, by_ahead), (behind, by_behind) = found
            return (by_ahead - by_behind) / (ahead - behind)
        one_sided = found[0] if found else one_sided
    value, here = density(u)
    if one_sided is not None and np.isfinite(value):  # u is at the edge of the support
        side, by_side = one_sided
        return (by_side - here) / (side - u[index])
    raise FactorizationError(
        f"The curvature of the posterior density at {u.tolist()} is unknown: it cannot be evaluated there, or on neither side in variable {index}. Use a point further inside, such as the mode."
    )
