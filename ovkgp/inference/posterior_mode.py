"""The mode of a density and its curvature there, from values and gradients alone.

The climb is that of training (`ascent`): L-BFGS-B, which steps back where the density cannot be evaluated. Second derivatives
are central differences of the gradient, with a step in each variable that suits the width of the density; where there is no
density on one side, such as at the end of a uniform prior, they are one-sided.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from ovkgp.exceptions import FactorisationError
from ovkgp.inference.ascent import Climb, Landscape, Point
from ovkgp.inference.parameters import ParameterVector

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


class _DensityLandscape(Landscape):
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
        FactorisationError: the density could not be evaluated at any start.

    Example:
        >>> import numpy as np
        >>> from gpytorch.kernels import RBFKernel
        >>> from ovkgp.inference.parameters import ParameterVector
        >>> from ovkgp.inference.posterior_mode import find_mode
        >>> vector = ParameterVector(RBFKernel().double())
        >>> mode = find_mode(vector, lambda u: (-0.5 * (u - 2) @ (u - 2), 2 - u), [np.zeros(1)], max_iter=50)
        >>> mode.u.round(6).tolist(), mode.converged
        ([2.0], True)
    """
    landscape = _DensityLandscape(vector, density)
    points = [point for u in starts if (point := landscape.look(u)) is not None]
    if not points:
        raise FactorisationError(
            "the posterior density of the hyperparameters cannot be evaluated at any start: set the hyperparameters "
            "(gp.start(X, Y) takes them from the data), or check the data for extreme scales."
        )
    climb = Climb(landscape, max(points, key=lambda point: point.value), max_iter, TOLERANCE).run()
    return Mode(climb.best.x, climb.best.value, climb.converged or climb.gradient_norm <= NEARLY_FLAT)


def second_derivatives(density: Density, u: np.ndarray) -> np.ndarray:
    """The Hessian (k, k) of log π at u (k,), symmetrised.

    Cost: 2k to 4k gradients.

    Raises:
        FactorisationError: the density cannot be evaluated at u, or on neither side of it in some variable.

    Example:
        >>> import numpy as np
        >>> from ovkgp.inference.posterior_mode import second_derivatives
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
    raise FactorisationError(
        f"the posterior density cannot be evaluated at {u.tolist()}, or not beside it in variable {index}: its curvature there "
        "is not known. Take a point further inside, such as the mode."
    )
