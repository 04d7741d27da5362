"""L-BFGS on Moreau envelopes for many rows, one chunk of Φ at a time, until the gap is small (LT-84, LT-86, BT-102).

In the coordinates of `StreamedCoordinates`, 5 to 30 passes over the rows suffice. The first stages use a random part of
the rows, and later ones more; κ falls with the error, and further if the smoothed kinks dominate the gap.
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
    estimate_target_unit,
)

INITIAL_STAGES = ((1 / 64, 0.06), (1 / 16, 0.03), (1 / 4, 0.012))
"""Fractions of the rows, and κ in units of target over slope, of the first stages."""
MIN_ROWS_PER_COORDINATE = 3  # minimum number of rows per coordinate r in these stages, against overfitting
FULL_DATA_KAPPA, KAPPA_FACTOR, MIN_KAPPA = 0.006, 0.25, 1e-8
"""Initial κ with all rows, the factor by which it is reduced, and its minimum."""
ROUGH_TOLERANCE = 3e-4  # relative error at which the first stages end
LBFGS_MEMORY = 20


def solve_streamed(
    problem: StreamedProblem,
    *,
    init: Tensor | None = None,
    tolerance: float = 1e-4,
    max_iter: int = 500,
    verbose: int = 0,
) -> StreamedSolution:
    """Minimize J on streamed rows until the duality gap is at most tolerance · |J|.

    With an `init` W (r, q) near the solution, all rows are used from the first step. A small λ needs more passes, since
    the gap contains the squared gradient over 2λ. `max_iter` limits the steps of L-BFGS. Ctrl-C keeps the best solution
    so far; a gap above the tolerance is a `FitWarning`.

    Complexity: 5 to 30 passes, each O(n q (r + m)) and the evaluation of Φ; memory O(r² + 40 r q) and a chunk of Φ, for
    any n.
    """
    check_initial_point("init", init, problem.shape)
    run = StreamedRun(problem, tolerance, max_iter, verbose)
    descent = _Descent(run)
    return run.run(descent.run_from_zero if init is None else lambda bar: descent.run_from(init.double(), bar))


class _Point(NamedTuple):
    """W, the evaluation of a pass, and the gradient in preconditioned coordinates."""

    weights: Tensor
    evaluation: Evaluation
    slope: Tensor


class _Descent:
    def __init__(self, run: StreamedRun):
        self.run, self.problem, self.weights = run, run.problem, run.weights

    def run_from_zero(self, bar: tqdm) -> None:
        """Run stages with small parts of the rows and a large κ first."""
        self._prepare()
        for part, kappa in INITIAL_STAGES:
            count = max(math.ceil(part * self.problem.num_rows), MIN_ROWS_PER_COORDINATE * self.problem.shape[0])
            self._stage(kappa, count if count < self.problem.num_rows else None, self._is_roughly_fitted, bar)
            self.coordinates.adapt(self.weights)
        self._reduce_smoothing(bar)

    def run_from(self, init: Tensor, bar: tqdm) -> None:
        """Run with all rows from the beginning."""
        self.run.weights = self.weights = init
        self._prepare()
        self.coordinates.adapt(self.weights)
        self._reduce_smoothing(bar)

    def _prepare(self) -> None:
        self.unit = estimate_target_unit(self.problem)
        self.coordinates = StreamedCoordinates(self.problem, self.unit)

    def _reduce_smoothing(self, bar: tqdm) -> None:
        """Run stages with all rows and decreasing κ until the gap is closed."""
        kappa = FULL_DATA_KAPPA
        while not self.run.is_over and kappa > MIN_KAPPA:
            self._stage(kappa, None, self._is_gap_due_to_smoothing, bar)
            kappa = KAPPA_FACTOR * kappa if self.problem.smoothing(kappa * self.unit) else 0.0
        self.run.stuck = not self.run.is_over

    def _stage(self, kappa: float, num_rows: int | None, is_enough, bar: tqdm) -> None:
        """Run L-BFGS on J_κ until `is_enough` returns True, so that another κ or more rows help more."""
        if self.run.is_over:
            return
        point = first = self._evaluate(self.weights, kappa, num_rows)
        # the first step of L-BFGS-B has length one, which in these units is the gradient, close to Newton's step
        size = float(first.slope.norm()) or 1.0

        def value_and_gradient(x: np.ndarray) -> tuple[float, np.ndarray]:
            nonlocal point
            if not np.array_equal(x, init):
                weights = self.coordinates.from_coordinates(size * torch.from_numpy(x).view(first.slope.shape))
                point = self._evaluate(weights, kappa, num_rows)
            return point.evaluation.smoothed, size * point.slope.flatten().numpy()

        def callback(intermediate_result: OptimizeResult) -> None:
            self._store(point.weights)
            self.run.count_step(bar)
            if self.run.is_over or is_enough(point):
                raise StopIteration

        init = self.coordinates.to_coordinates(self.weights).flatten().numpy() / size
        limits = {"maxiter": self.run.max_iter, "maxfun": 10**9, "maxcor": LBFGS_MEMORY, "ftol": 0.0, "gtol": 0.0}
        minimize(value_and_gradient, init, jac=True, method="L-BFGS-B", callback=callback, options=limits)

    def _evaluate(self, weights: Tensor, kappa: float, num_rows: int | None) -> _Point:
        evaluation = self.run.evaluate_at(weights, self.problem.smoothing(kappa * self.unit), num_rows)
        return _Point(weights, evaluation, self.coordinates.gradient(evaluation.gradient))

    def _store(self, weights: Tensor) -> None:
        self.weights = weights
        if not self.run.history:
            self.run.weights = weights

    def _is_roughly_fitted(self, point: _Point) -> bool:
        """Return whether the error of J_κ, about half the squared gradient at unit curvature, is small."""
        return float(point.slope.square().sum()) / 2 <= ROUGH_TOLERANCE * abs(point.evaluation.objective)

    def _is_gap_due_to_smoothing(self, point: _Point) -> bool:
        """Return whether the kinks that κ smooths dominate the gap."""
        return float(point.evaluation.gradient.square().sum()) / (2 * self.problem.lam) <= 0.1 * point.evaluation.gap
