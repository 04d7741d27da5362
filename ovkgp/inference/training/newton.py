"""Maximization with a known metric: BFGS with a dense matrix, whose first value is the Hessian of a similar density.

That of the log prior sets the scale of the first steps. That of the log posterior on a subset of the rows, scaled to all rows, makes
the first step nearly that of Newton's method, so that few evaluations on all rows are needed.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.linalg import lapack

from ovkgp.inference.training.lbfgs import ObjectiveEvaluator, Point

MAX_STEP = 1.0  # largest change of a variable in one step
STEP_FACTORS = (1.0, 0.3, 0.05)  # factors tried on a step, in this order, until the objective rises
MAX_CONDITION = 1e12  # of the metric, beyond which its inverse has few correct digits
MIN_RELATIVE_CURVATURE = 1e-3  # smallest sᵀy / sᵀBs of an update; for less, y is moved towards Bs
MAX_DISTANCE = 0.3  # from a known mode within which a search ends: the loss if the objective were a quadratic function


class Refinement(NamedTuple):
    """Best point of a search, the metric (k, k) there, the remaining gain, and the number of steps."""

    best: Point
    metric: np.ndarray
    gain: float
    steps: int


def refine_mode(
    evaluator: ObjectiveEvaluator,
    point: Point,
    metric: np.ndarray,
    max_evaluations: int,
    tolerance: float,
    known: Refinement | None = None,
) -> Refinement:
    """Maximize from `point` inside the bounds.

    `metric` (k, k) is a positive definite approximation of the negative Hessian of the objective; where its updates become
    numerically singular, as near a singular covariance matrix, they begin again with it. The gain is that of the next step
    if the objective were a quadratic function; the search ends if it is at most `tolerance`, or close to the mode of a `known` search.
    Complexity: O(k³) per evaluation.
    """
    low, high = evaluator.vector.bounds.T
    evaluated, steps, initial = evaluator.evaluations, 0, metric
    while True:
        if known is not None and _distance(point, known) < MAX_DISTANCE:
            return Refinement(point, metric, known.gain, steps)
        gradient = point.gradient
        is_free = ~(((point.x <= low) & (gradient < 0)) | ((point.x >= high) & (gradient > 0)))
        if metric is not initial and not _is_well_conditioned(metric):
            metric = initial
        step = _solve_free(metric, gradient, is_free)
        gain = 0.5 * float(gradient @ step)
        if gain <= tolerance:
            return Refinement(point, metric, gain, steps)
        step *= min(1.0, MAX_STEP / np.abs(step).max())
        for factor in STEP_FACTORS:
            if evaluator.evaluations - evaluated >= max_evaluations:
                return Refinement(point, metric, gain, steps)
            following = evaluator.evaluate(np.clip(point.x + factor * step, low, high))
            if following is not None and following.value > point.value:
                break
        else:
            return Refinement(point, metric, gain, steps)
        metric = _update(metric, following.x - point.x, gradient - following.gradient)
        point, steps = following, steps + 1


def _is_well_conditioned(metric: np.ndarray) -> bool:
    """Whether a metric (k, k) is numerically positive definite, with a condition number in the 1-norm below `MAX_CONDITION`."""
    size = np.abs(metric).sum(0).max(initial=0.0)
    if not np.isfinite(size):
        return False
    chol, info = lapack.dpotrf(metric, lower=1)
    return info == 0 and lapack.dpocon(chol, size, uplo="L")[0] > 1 / MAX_CONDITION


def _solve_free(metric: np.ndarray, gradient: np.ndarray, is_free: np.ndarray) -> np.ndarray:
    """Return the step (k,) of Newton's method in the free variables, 0 in the others."""
    if is_free.all():
        _, step, info = lapack.dposv(metric, gradient, lower=1)
        if info == 0:
            return step.ravel()
    step = np.zeros_like(gradient)
    step[is_free] = np.linalg.solve(metric[np.ix_(is_free, is_free)], gradient[is_free])
    return step


def _distance(point: Point, known: Refinement) -> float:
    """Return ½ dᵀBd of the difference d from the best point of a search, with its metric B."""
    difference = point.x - known.best.x
    return 0.5 * float(difference @ known.metric @ difference)


def _update(B: np.ndarray, s: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the BFGS update of B for a step s that lowers the gradient by y, damped to remain positive definite."""
    Bs = B @ s
    size, curvature = s @ Bs, s @ y
    if size <= 0:
        return B
    if curvature < MIN_RELATIVE_CURVATURE * size:
        weight = (1 - MIN_RELATIVE_CURVATURE) * size / (size - curvature)
        y = weight * y + (1 - weight) * Bs
        curvature = s @ y
    return B - np.outer(Bs, Bs) / size + np.outer(y, y) / curvature
