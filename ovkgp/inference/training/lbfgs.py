"""The mode of a density and its curvature there, from values and gradients alone.

The climb is that of training (`ascent`): L-BFGS-B, which steps back where the density cannot be evaluated. Second derivatives
are central differences of the gradient, with a step in each variable that suits the width of the density; where there is no
density on one side, such as at the end of a uniform prior, they are one-sided.
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
"""The errors that mean: not at these hyperparameters."""
WINDOW = 5
"""Iterations over which the change of the objective is judged."""
ROUNDS = 3
"""How often a climb whose line search gave up begins again with a fresh memory."""


@dataclass
class Point:
    """A place, the objective there and the gradient of objective / scale."""

    x: np.ndarray
    value: float
    gradient: np.ndarray


class ObjectiveEvaluator:
    """The objective as a function of the vector, with a memory of the best point and of every failure.

    Args:
        vector: the parameters.
        objective: gives the scalar to be maximised, differentiable in them.
        scale: what the objective is divided by for the optimiser.
    """

    def __init__(self, vector: ParameterVector, objective: Callable[[], Tensor], scale: float = 1.0):
        self.vector, self.objective, self.scale = vector, objective, scale
        self.evaluations = self.failures = 0
        self.best: Point | None = None
        self.last_failure: BaseException | str | None = None

    def look(self, x: np.ndarray) -> Point | None:
        """Evaluate at x; None is a failure."""
        self.evaluations += 1
        self.vector.set(x)
        self.vector.clear_gradient()
        try:
            point = self._evaluate(np.array(x, dtype=np.float64))
        except FAILURES as error:
            self.failures, self.last_failure = self.failures + 1, error
            return None
        if not (np.isfinite(point.value) and np.isfinite(point.gradient).all()):
            self.failures, self.last_failure = self.failures + 1, "the objective or its gradient is not finite"
            return None
        if self.best is None or point.value > self.best.value:
            self.best = point
        return point

    def _evaluate(self, x: np.ndarray) -> Point:
        with torch.enable_grad():
            value = self.objective()
        if bool(torch.isfinite(value.detach()).all()):
            self._require_dependence(value)
            value.backward()
        return Point(x, float(value.detach()), self.vector.gradient() / self.scale)

    def _require_dependence(self, value: Tensor) -> None:
        if not value.requires_grad:
            raise OptionError(
                f"the objective does not depend on the parameters {', '.join(self.vector.names)}: it must be computed "
                "from them anew at every call, without torch.no_grad."
            )

    def slope(self, point: Point) -> float:
        """The largest entry of the gradient that does not push against a bound."""
        low, high = self.vector.bounds.T
        blocked = ((point.x <= low) & (point.gradient < 0)) | ((point.x >= high) & (point.gradient > 0))
        return float(np.abs(np.where(blocked, 0.0, point.gradient)).max(initial=0.0))


class LBFGSRun:
    """L-BFGS-B from a start, to convergence or to `max_iter` iterations.

    Args:
        landscape: what is climbed.
        start: a point at which the objective could be evaluated.
        max_iter: the most iterations.
        tolerance: stop where `WINDOW` iterations together change objective / scale by less than this (relative to its
            size, at least 1), or no entry of the projected gradient of it is larger.
        after: called with the climb after every iteration.
        done: iterations that an earlier run has spent, of the `max_iter`.
    """

    def __init__(
        self,
        landscape: ObjectiveEvaluator,
        start: Point,
        max_iter: int,
        tolerance: float,
        after: Callable[[LBFGSRun], None] | None = None,
        done: int = 0,
    ):
        self.landscape, self.max_iter, self.tolerance, self.after = landscape, max_iter, tolerance, after
        self.iterate = self.last = self.best = start
        self.iterations, self.converged, self.message = done, False, ""
        self.gradient_norm = landscape.slope(start)
        self.levels = [start.value / landscape.scale]

    def run(self) -> LBFGSRun:
        """Climb; the outcome is in `best`, `converged` and `message`."""
        for _ in range(ROUNDS):
            before = self.best.value
            reason = self._round()
            gained = (self.best.value - before) / self.landscape.scale
            if reason != "stuck" or gained <= self.tolerance or self.iterations >= self.max_iter:
                break
            self.iterate = self.last = self.best
        self._conclude(reason)
        return self

    def _round(self) -> str:
        self.settled = False
        result = minimize(
            self._descend,
            self.iterate.x,
            jac=True,
            method="L-BFGS-B",
            bounds=self.landscape.vector.bounds,
            callback=self._new_iterate,
            options={
                "maxiter": max(1, self.max_iter - self.iterations),
                "maxfun": 10**9,
                "maxcor": 20,
                "gtol": self.tolerance,
                "ftol": 0.0,
            },
        )
        if self.settled:
            return "settled"
        return {0: "flat", 1: "limit"}.get(result.status, "stuck")

    def _descend(self, x: np.ndarray) -> tuple[float, np.ndarray]:
        point = self.landscape.look(x)
        if point is None:
            level = -self.iterate.value / self.landscape.scale
            rise = abs(self.iterate.gradient @ (x - self.iterate.x))
            return level + 0.1 * rise + 1e-10 * (1 + abs(level)), np.zeros_like(x)
        self.last = point
        self.best = point if point.value > self.best.value else self.best
        return -point.value / self.landscape.scale, -point.gradient

    def _new_iterate(self, intermediate_result: OptimizeResult) -> None:
        self.iterate = self.last
        self.iterations += 1
        self.levels.append(self.iterate.value / self.landscape.scale)
        if self.after is not None:
            self.after(self)
        recent = self.levels[-WINDOW - 1 :]
        change = abs(recent[-1] - recent[0])
        if len(recent) > WINDOW and change <= self.tolerance * max(1.0, abs(recent[-1])):
            self.settled = True
            raise StopIteration

    def _conclude(self, reason: str) -> None:
        self.gradient_norm = self.landscape.slope(self.best)
        # where rounding hides any further gain the line search gives up, though the gradient is small
        nearly_flat = reason == "stuck" and self.gradient_norm <= self.tolerance**0.5
        self.converged = reason in ("settled", "flat") or nearly_flat
        if self.converged:
            self.message = "converged"
        elif reason == "limit":
            self.message = f"stopped after {self.iterations} iterations without converging; the best parameters so far are kept, and `fit` of the model takes a larger max_iter"
        else:
            self.message = (
                f"stopped after {self.iterations} iterations: no step improves the objective, though its gradient is "
                f"{self.gradient_norm:.2g}. Check the data for duplicates and extreme scales, or try other starts"
            )


Density = Callable[[np.ndarray], tuple[float, np.ndarray]]
"""u (k,) ↦ log π(u) and its gradient (k,); −∞ where it cannot be evaluated."""

TOLERANCE = 1e-9
"""Of the climb, relative to |log π| over five iterations."""
NEARLY_FLAT = 1e-3
"""A gradient of log π, in variables of order one, at which a climb that cannot go on has arrived."""
FIRST_STEP, STEP = 3e-4, 1e-3
"""The first step of a difference, and its best length in units of the width 1/√|∂² log π| of the density."""
SHORTER = (1.0, 0.1, 0.01)
"""What a step is multiplied by, one after another, where a side of it cannot be evaluated."""


class Mode(NamedTuple):
    """Where a density is largest: u (k,), log π there, and whether the climb converged."""

    u: np.ndarray
    value: float
    converged: bool


class _DensityEvaluator(ObjectiveEvaluator):
    """A density for a climb: value and gradient come from itself."""

    def __init__(self, vector: ParameterVector, density: Density):
        super().__init__(vector, lambda: None)
        self.density = density

    def _evaluate(self, x: np.ndarray) -> Point:
        return Point(x, *self.density(x))


def find_mode(vector: ParameterVector, density: Density, starts: Sequence[np.ndarray], max_iter: int) -> Mode:
    """Climb from the best of the starts.

    Args:
        vector: of the variables, for their bounds.
        density: what is climbed.
        starts: each u (k,).
        max_iter: the most iterations.

    Cost: one or two gradients an iteration.

    Raises:
        FactorizationError: the density could not be evaluated at any start.

    Example:
        >>> import numpy as np
        >>> from gpytorch.kernels import RBFKernel
        >>> from ovkgp.inference.model.parameter_vector import ParameterVector
        >>> from ovkgp.inference.training.lbfgs import find_mode
        >>> vector = ParameterVector(RBFKernel().double())
        >>> mode = find_mode(vector, lambda u: (-0.5 * (u - 2) @ (u - 2), 2 - u), [np.zeros(1)], max_iter=50)
        >>> mode.u.round(6).tolist(), mode.converged
        ([2.0], True)
    """
    landscape = _DensityEvaluator(vector, density)
    points = [point for u in starts if (point := landscape.look(u)) is not None]
    if not points:
        raise FactorizationError(
            "the posterior density of the hyperparameters cannot be evaluated at any start: set the hyperparameters "
            "(gp.start(X, Y) takes them from the data), or check the data for extreme scales."
        )
    climb = LBFGSRun(landscape, max(points, key=lambda point: point.value), max_iter, TOLERANCE).run()
    return Mode(climb.best.x, climb.best.value, climb.converged or climb.gradient_norm <= NEARLY_FLAT)


def second_derivatives(density: Density, u: np.ndarray) -> np.ndarray:
    """The Hessian (k, k) of log π at u (k,), symmetrised.

    Cost: 2k to 4k gradients.

    Raises:
        FactorizationError: the density cannot be evaluated at u, or on neither side of it in some variable.

    Example:
        >>> import numpy as np
        >>> from ovkgp.inference.training.lbfgs import second_derivatives
        >>> H = np.array([[-4.0, 1.0], [1.0, -9.0]])
        >>> second_derivatives(lambda u: (0.5 * u @ H @ u, H @ u), np.zeros(2)).round(6).tolist()
        [[-4.0, 1.0], [1.0, -9.0]]
    """
    u = np.asarray(u, dtype=np.float64)
    columns = np.stack([_column(density, u, i) for i in range(len(u))])
    return (columns + columns.T) / 2


def _column(density: Density, u: np.ndarray, index: int) -> np.ndarray:
    column = _difference(density, u, index, FIRST_STEP)
    better = STEP / np.sqrt(max(abs(column[index]), 1.0))
    return column if FIRST_STEP / 4 < better < 4 * FIRST_STEP else _difference(density, u, index, better)


def _difference(density: Density, u: np.ndarray, index: int, step: float) -> np.ndarray:
    one_sided = None
    for shorter in SHORTER:
        sides = [u + sign * shorter * step * (np.arange(len(u)) == index) for sign in (1, -1)]
        found = [(side[index], by_side) for side in sides for value, by_side in [density(side)] if np.isfinite(value)]
        if len(found) == 2:
            (ahead, by_ahead), (behind, by_behind) = found
            return (by_ahead - by_behind) / (ahead - behind)
        one_sided = found[0] if found else one_sided
    value, here = density(u)
    if one_sided is not None and np.isfinite(value):  # u is at the edge of where there is a density
        side, by_side = one_sided
        return (by_side - here) / (side - u[index])
    raise FactorizationError(
        f"the posterior density cannot be evaluated at {u.tolist()}, or not beside it in variable {index}: its curvature there "
        "is not known. Take a point further inside, such as the mode."
    )
