"""Many rows by L-BFGS on Moreau envelopes, a chunk of Φ at a time, until the duality gap is small (LT-84, LT-86, BT-102).

In the coordinates of `streamed_coordinates` 5 to 30 passes over the rows are enough. The first steps see a random part of the
rows only, and more of them as the fit gets better; κ falls with the error of the part, and further where the kinks keep the gap open.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from scipy.optimize import OptimizeResult, minimize
from torch import Tensor
from tqdm import tqdm

from ovkgp.inference.tasks.solvers.certificates import check_initial_point
from ovkgp.inference.tasks.solvers.streamed import (
    Evaluation,
    StreamedCoordinates,
    StreamedProblem,
    StreamedRun,
    StreamedSolution,
    target_unit,
)

PARTS = ((1 / 64, 0.06), (1 / 16, 0.03), (1 / 4, 0.012))
"""Parts of the rows, and κ in units of target over slope, with which it begins."""
ROWS_EACH = 3
"""The least rows for each coordinate r of a part: fewer would be fitted too well."""
KAPPA, SHARPER, SHARPEST = 0.006, 0.25, 1e-8
"""κ with all rows at first, by what it is multiplied where the gap asks for it, and its end."""
ROUGH = 3e-4
"""The relative error at which a part of the rows has said what it can."""
MEMORY = 20


def solve_streamed(
    problem: StreamedProblem,
    *,
    start: Tensor | None = None,
    tolerance: float = 1e-4,
    max_iter: int = 500,
    verbose: int = 0,
) -> StreamedSolution:
    """Minimise J on streamed rows. It stops where the duality gap is at most tolerance · |J|.

    Args:
        problem: J.
        start: W (r, q) to begin with, near the solution: all rows are then used at once.
        tolerance: of the relative gap. A small λ asks for more passes: the gap holds the gradient's square over 2λ.
        max_iter: the most steps of L-BFGS, a pass over the rows or a part of them each.
        verbose: 1 shows the gap as it falls.

    Ctrl-C keeps the best so far. A gap above the tolerance is a `FitWarning`.

    Cost: 5 to 30 passes, each O(n q (r + m)) and the making of Φ; memory O(r² + 40 r q) and a chunk of Φ, whatever n.

    Example:
        >>> import torch
        >>> from ovkgp.inference.tasks.solvers.streamed import StreamedProblem
        >>> from ovkgp.inference.tasks.solvers.streamed_lbfgs import solve_streamed
        >>> from ovkgp.losses import IntegralLoss, Pinball, gauss_legendre
        >>> y = torch.linspace(0, 1, 101).double()[:, None]  # quantiles of U[0, 1], without any input
        >>> loss = IntegralLoss(Pinball(), gauss_legendre(3))
        >>> problem = StreamedProblem.of(torch.ones_like, y, torch.eye(3).double(), y, loss, lam=1e-6)
        >>> bool((solve_streamed(problem).weights - loss.nodes).abs().max() < 0.01)
        True
    """
    check_initial_point("start", start, problem.shape)
    run = StreamedRun(problem, tolerance, max_iter, verbose)
    descent = _Descent(run)
    return run.run(descent.from_nothing if start is None else lambda bar: descent.near(start.double(), bar))


class _Place(NamedTuple):
    """W, what a pass finds there, and the gradient in preconditioned coordinates."""

    weights: Tensor
    found: Evaluation
    slope: Tensor


class _Descent:
    def __init__(self, run: StreamedRun):
        self.run, self.problem, self.weights = run, run.problem, run.weights

    def from_nothing(self, bar: tqdm) -> None:
        """Small parts of the rows and a large κ first."""
        self._prepare()
        for part, kappa in PARTS:
            count = max(math.ceil(part * self.problem.num_rows), ROWS_EACH * self.problem.shape[0])
            self._stage(kappa, count if count < self.problem.num_rows else None, self._is_roughly_fitted, bar)
            self.coordinates.adapt(self.weights)
        self._sharpen(bar)

    def near(self, start: Tensor, bar: tqdm) -> None:
        """All rows at once."""
        self.run.weights = self.weights = start
        self._prepare()
        self.coordinates.adapt(self.weights)
        self._sharpen(bar)

    def _prepare(self) -> None:
        self.unit = target_unit(self.problem)
        self.coordinates = StreamedCoordinates(self.problem, self.unit)

    def _sharpen(self, bar: tqdm) -> None:
        """All rows, and a κ that falls until the gap is closed."""
        kappa = KAPPA
        while not self.run.over and kappa > SHARPEST:
            self._stage(kappa, None, self._is_kinks, bar)
            kappa = SHARPER * kappa if self.problem.smoothing(kappa * self.unit) else 0.0
        self.run.stuck = not self.run.over

    def _stage(self, kappa: float, num_rows: int | None, is_enough, bar: tqdm) -> None:
        """L-BFGS on J_κ, until `is_enough` says that another κ, or more rows, are of more use."""
        if self.run.over:
            return
        place = first = self._look(self.weights, kappa, num_rows)
        # the first step of L-BFGS-B has length one: in these units that is the gradient, nearly Newton's step
        size = float(first.slope.norm()) or 1.0

        def both(x: np.ndarray) -> tuple[float, np.ndarray]:
            nonlocal place
            if not np.array_equal(x, start):
                place = self._look(
                    self.coordinates.back(size * torch.from_numpy(x).view(first.slope.shape)), kappa, num_rows
                )
            return place.found.smoothed, size * place.slope.flatten().numpy()

        def after(intermediate_result: OptimizeResult) -> None:
            self._keep(place.weights)
            self.run.tick(bar)
            if self.run.over or is_enough(place):
                raise StopIteration

        start = self.coordinates.into(self.weights).flatten().numpy() / size
        limits = {"maxiter": self.run.max_iter, "maxfun": 10**9, "maxcor": MEMORY, "ftol": 0.0, "gtol": 0.0}
        minimize(both, start, jac=True, method="L-BFGS-B", callback=after, options=limits)

    def _look(self, weights: Tensor, kappa: float, num_rows: int | None) -> _Place:
        found = self.run.look_at(weights, self.problem.smoothing(kappa * self.unit), num_rows)
        return _Place(weights, found, self.coordinates.gradient(found.gradient))

    def _keep(self, weights: Tensor) -> None:
        self.weights = weights
        if not self.run.history:
            self.run.weights = weights

    def _is_roughly_fitted(self, place: _Place) -> bool:
        """The rest of J_κ is about half the squared gradient, where the curvature is about one."""
        return float(place.slope.square().sum()) / 2 <= ROUGH * abs(place.found.objective)

    def _is_kinks(self, place: _Place) -> bool:
        """Whether the kinks that κ rounds off are most of what is left of the gap."""
        return float(place.found.gradient.square().sum()) / (2 * self.problem.lam) <= 0.1 * place.found.gap
