"""One-class SVMs at all levels at once (LT-55, LT-99), solved by one path and Newton steps for the thresholds.

    P(w, t) = Σ_j η_j [(1/(N θ_j)) Σ_i s_i max(0, t_j − φ_iᵀw_j) − t_j + ½ ‖w_j‖²] + (λ/2) ‖t‖²

On the path (`one_class_path`) the minimum of the data term for a threshold t is g_j(t) = t² G(c_j / t), c_j = 1/(N
θ_j), which is convex and piecewise quadratic with g_j' = t Σb(c_j / t). It remains to minimize Σ_j η_j [g_j(t_j) − t_j]
+ (λ/2) ‖z‖², t = Ψ z, over z, with as many entries as levels; Newton's method gives the exact solution. With λ = 0 each
level is read off the path.

In the decision function d(x)(θ) = h(x)(θ) − t(θ) (LT-107) kernels interpolate between the levels. Its thresholds may be
calibrated by leave-one-out values, since the fraction of rows outside a set is too small for new rows.
"""

from __future__ import annotations

import time
import warnings
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ovkgp.exceptions import FitWarning, InputError, OptionError
from ovkgp.functional.factors import Factor, KernelFactor
from ovkgp.inference.model.fit_report import FitReport
from ovkgp.inference.tasks.one_class_path import OneClassPath, leave_one_out
from ovkgp.inference.tasks.problem import TaskFunction
from ovkgp.losses import TaskMeasure

MIN_THRESHOLD_FRACTION = 1e-6
"""Minimum calibrated threshold, as a fraction of the largest value, so that h = 0 far from all data is outside."""


def solve_one_class(
    problem: OneClassProblem, *, path: OneClassPath | None = None, tolerance: float = 1e-6, max_iter: int = 100
) -> OneClassSolution:
    """Minimize P, and warn if the duality gap is above tolerance · max(|P|, …).

    `path` is that of the same rows and weights, computed if None. Complexity: that of the path, O(n (r + |M|)) per
    break with |M| points on the margin, and O(m³) per Newton step.
    """
    began = time.perf_counter()
    path = path or OneClassPath(problem.inputs.numpy(), problem.row_weights.numpy())
    levels = problem.levels.numpy()
    positions = np.array([path.position(level) for level in levels])
    t = 1 / (path.total_weight * levels * positions)  # of C = 1/(N θ t)
    steps = 0
    if problem.lam > 0:
        t, steps = _minimize_thresholds(problem, path, t, max_iter)
        positions = _positions_of(problem, t)
    return _make_solution(problem, path, t, positions, steps, tolerance, began)


@dataclass
class OneClassProblem:
    """The objective P and its dual D.

    inputs is Φ (n, r), measure has levels θ_j in (0, 1] with weights η_j > 0, shared by all rows, and thresholds is Ψ
    (m, q), the rows of the threshold kernel at the levels, ignored if λ = 0. row_weights are s > 0 (n,), ones if None;
    N = Σ s.
    """

    inputs: Tensor
    measure: TaskMeasure
    thresholds: Tensor | None = None
    lam: float = 0.0
    row_weights: Tensor | None = None

    def __post_init__(self):
        self.row_weights = self.inputs.new_ones(len(self.inputs)) if self.row_weights is None else self.row_weights
        self.total_weight = self.row_weights.sum()
        self.levels, self.weights = self.measure.nodes, self.measure.weights
        if self.levels.dim() != 1 or not bool(((self.levels > 0) & (self.levels <= 1)).all()):
            raise InputError(
                f"levels must be numbers in (0, 1], of shape (m,) and shared by all rows, got {self.levels.tolist()}."
            )
        if not bool((self.weights > 0).all()):
            raise InputError("weights of the measure must be positive. Drop levels without weight.")
        if not self.lam >= 0 or (self.lam > 0 and self.thresholds is None):
            raise OptionError(f"lam must be 0, or positive together with thresholds, got {self.lam!r}.")

    @property
    def bounds(self) -> Tensor:
        """Upper bounds s_i / (N θ_j) of the dual variables, (n, m)."""
        return self.row_weights[:, None] / (self.total_weight * self.levels)

    def values(self, weights: Tensor) -> Tensor:
        """Return h(x_i)(θ_j), (n, m), for w (r, m)."""
        return self.inputs @ weights

    def objective(self, weights: Tensor, t: Tensor) -> Tensor:
        """Return P for w (r, m) and t (m,). O(n r m)."""
        loss = (self.bounds * (t - self.values(weights)).clamp(min=0)).sum(0)
        return (self.weights * (loss - t + weights.square().sum(0) / 2)).sum() + self.lam / 2 * self.threshold_norm(t)

    def threshold_norm(self, t: Tensor) -> Tensor:
        """Return ‖t‖², or 0 if λ = 0."""
        if self.lam == 0:
            return t.new_zeros(())
        return torch.linalg.lstsq(self.thresholds, t[:, None], driver="gelsd").solution.square().sum()

    def dual_objective(self, dual: Tensor) -> Tensor:
        """Return D for a (n, m) within its bounds (and with sums 1 if λ = 0)."""
        energy = (self.weights * (self.inputs.T @ dual).square().sum(0)).sum() / 2
        if self.lam == 0:
            return -energy
        residual = self.thresholds.T @ (self.weights * (1 - dual.sum(0)))
        return -energy - residual.square().sum() / (2 * self.lam)


@dataclass
class OneClassSolution:
    """Result of the solver: w (r, m), t (m,), positions C (m,), a feasible dual (n, m), P, P − D and a report."""

    weights: Tensor
    thresholds: Tensor
    positions: Tensor
    dual: Tensor
    objective: float
    gap: float
    report: FitReport


def strong_convexity(weights: Tensor, task_gram: Tensor, lam: float) -> float:
    """Return min(λ, min_j η_j · λ_min(K_Θ)), the strong convexity of the penalty in (h, t) (LT-118, LT-E-36). O(m³)."""
    curvature = float(weights.min() * torch.linalg.eigvalsh(task_gram)[0].clamp(min=0))
    return min(lam, curvature)


def _positions_of(problem: OneClassProblem, t: np.ndarray) -> np.ndarray:
    """Return C of t; ∞ if t ≤ 0, where no point is below."""
    with np.errstate(divide="ignore"):
        C = 1 / (problem.total_weight.item() * problem.levels.numpy() * np.clip(t, 0.0, None))
    return C


def _minimize_thresholds(
    problem: OneClassProblem, path: OneClassPath, t: np.ndarray, max_iter: int
) -> tuple[np.ndarray, int]:
    """Return the minimizing t and the number of Newton steps."""
    rows, eta, lam = problem.thresholds.numpy(), problem.weights.numpy(), problem.lam
    z = np.linalg.solve(rows.T @ (eta[:, None] * rows) + lam * np.eye(rows.shape[1]), rows.T @ (eta * t))
    best = np.inf
    for step in range(max_iter):  # noqa: B007
        value, first, second = _data_term(problem, path, rows @ z)
        value += lam / 2 * z @ z
        slope = rows.T @ (eta * first) + lam * z
        direction = -np.linalg.solve((rows * (eta * second)[:, None]).T @ rows + lam * np.eye(len(z)), slope)
        if value >= best - 1e-15 * abs(best) or -slope @ direction <= 1e-20:
            break
        z, best = _line_search(problem, path, z, direction, value, slope @ direction), value
    return rows @ z, step


def _line_search(problem, path, z, direction, value: float, descent: float) -> np.ndarray:
    rows, lam, size = problem.thresholds.numpy(), problem.lam, 1.0
    while size > 1e-10:
        trial = z + size * direction
        now = _data_term(problem, path, rows @ trial)[0] + lam / 2 * trial @ trial
        if now <= value + 1e-4 * size * descent:
            return trial
        size /= 2
    return z


def _data_term(problem: OneClassProblem, path: OneClassPath, t: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
    """Return Σ_j η_j [g_j(t_j) − t_j], and the first and second derivatives of the brackets (m,)."""
    value, first, second = -float(problem.weights.numpy() @ t), -np.ones_like(t), np.zeros_like(t)
    for j, C in enumerate(_positions_of(problem, t)):
        if np.isfinite(C):
            start, rate = path.segment(C).total
            value += problem.weights[j].item() * t[j] ** 2 * path.value(C)
            first[j] += t[j] * (start + rate * C)
            second[j] = start
    return value, first, second


def _make_solution(problem, path, t, positions, steps: int, tolerance: float, began: float) -> OneClassSolution:
    dual = np.zeros((len(path.rows), len(t)))
    for j in np.flatnonzero(np.isfinite(positions)):
        dual[:, j] = t[j] * path.at(positions[j]).coefficients
    dual, t = torch.from_numpy(dual), torch.from_numpy(t)
    if problem.lam == 0:
        dual = dual / dual.sum(0)  # against rounding
    weights = problem.inputs.T @ dual
    objective = problem.objective(weights, t).item()
    gap = objective - problem.dual_objective(dual).item()
    converged = gap <= tolerance * max(abs(objective), 1e-3 * float(problem.weights @ t.abs()))
    if not converged:
        warnings.warn(
            f"The one-class problem was solved to a duality gap of {gap:.2g} only, at the objective {objective:.4g}. Use a larger lam, or levels further from 0.",
            FitWarning,
            stacklevel=3,
        )
    message = "converged" if converged else "the gap stayed large"
    counts = {"iterations": len(path.segments) + steps, "num_rows": len(path.rows)}
    report = FitReport(objective, converged, message, seconds=time.perf_counter() - began, **counts)
    return OneClassSolution(weights, t, torch.from_numpy(positions), dual, objective, gap, report)


class ThresholdOffset:
    """b(θ) = −t(θ), t(θ) = ψ(θ)ᵀ z, with the factor ψ of the threshold kernel and coefficients z (q,)."""

    def __init__(self, factor: KernelFactor, coefficients: Tensor):
        self.factor, self.coefficients = factor, coefficients

    def __call__(self, tasks: Tensor) -> Tensor:
        return -self.factor(tasks.reshape(-1, 1)) @ self.coefficients

    def slopes(self, tasks: Tensor) -> Tensor:
        """Return −t'(θ)."""
        return -self.factor.slopes(tasks.reshape(-1, 1)) @ self.coefficients


def make_decision_function(
    inputs: Factor, tasks: KernelFactor, thresholds: KernelFactor, weights: Tensor, t: Tensor
) -> TaskFunction:
    """Build d from w (r, m) and t (k,) at the levels that are the anchors of the task and the threshold factor.

    If a factor is numerically singular at its anchors, d is the closest function that it allows. O(r m q).
    """
    offset = ThresholdOffset(thresholds, thresholds.projection.T @ t)
    return TaskFunction(inputs, tasks, weights @ tasks.projection, offset)


def evaluate_thresholds(function: TaskFunction, levels) -> np.ndarray:
    """Return t(θ) (k,) of a function built by `make_decision_function`."""
    return -function.offset(torch.as_tensor(levels, dtype=torch.float64).reshape(-1)).numpy()


def leave_one_out_values(
    path: OneClassPath, positions: np.ndarray, t: np.ndarray, units: np.ndarray | None = None
) -> np.ndarray:
    """Return h(x_i)(θ_j) without row i, t_j times the leave-one-out value of f at C_j: (n, m).

    positions are C (m,), ∞ if t ≤ 0 and h = 0, and units (n,) the weight of one observation at each point. Complexity:
    about ten steps of O(n |M| + |M|³) for each level and each row on or below its margin.
    """
    values = np.zeros((len(path.rows), len(t)))
    for j in np.flatnonzero(np.isfinite(positions)):
        values[:, j] = t[j] * leave_one_out(path, positions[j], units)
    return values


def interpolate_values(values: np.ndarray, tasks: KernelFactor, levels: np.ndarray) -> np.ndarray:
    """Interpolate values (n, m) at the anchors of `tasks` to other levels, as `make_decision_function` does: (n, k)."""
    rows = tasks(torch.from_numpy(levels).reshape(-1, 1)).numpy()
    return values @ tasks.projection.numpy() @ rows.T


def calibrate_thresholds(curves: np.ndarray, weights: np.ndarray, levels: np.ndarray) -> np.ndarray:
    """Return the θ-quantile of the leave-one-out values h(x_i)(θ) (n, k) at each level θ (k,), with weights (n,).

    New points are below these thresholds with probability θ.
    """
    minimum = MIN_THRESHOLD_FRACTION * np.abs(curves).max()
    return np.array([max(minimum, predictive_quantile(c, weights, q)) for c, q in zip(curves.T, levels, strict=True)])


def sort_curves(curves: np.ndarray) -> np.ndarray:
    """Sort curves (n, k) over equally spaced levels in decreasing order."""
    return -np.sort(-curves, axis=1)


def find_fraction_levels(curves: np.ndarray, levels: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return g(θ) (k,), increasing, such that a fraction θ of the sorted curves is negative at g(θ), for each level θ.

    curves (n, k) are over the `levels` (k,), ordered and equally spaced, with weights (n,).
    """
    scores = compute_level_scores(sort_curves(curves), levels)
    return np.clip([predictive_quantile(scores, weights, level) for level in levels], levels[0], levels[-1])


def predictive_quantile(values: np.ndarray, weights: np.ndarray, level: float) -> float:
    """Return the quantile of values (n,), observed `weights` times each, for a new value to be below it at `level`.

    The k-th smallest of n has the level k/(n + 1), with linear interpolation between these.
    """
    order = np.argsort(values)
    fractions = np.cumsum(weights[order]) / (weights.sum() + 1)
    return float(np.interp(level, fractions, values[order]))


def interpolate_levels(curves: np.ndarray, levels: np.ndarray, requested: np.ndarray) -> np.ndarray:
    """Interpolate curves (n, k) linearly between the ordered `levels` (k,) at the requested levels (q,): (n, q)."""
    right = np.clip(np.searchsorted(levels, requested), 1, len(levels) - 1)
    fraction = (requested - levels[right - 1]) / (levels[right] - levels[right - 1])
    return (1 - fraction) * curves[:, right - 1] + fraction * curves[:, right]


def compute_level_scores(curves: np.ndarray, levels: np.ndarray) -> np.ndarray:
    """Return s(x) = sup{θ: d(x)(θ) ≥ 0}, (n,), linear between levels (k,): 1 for typical points, 0 for outliers."""
    inside = curves >= 0
    last = curves.shape[1] - 1 - inside[:, ::-1].argmax(1)  # not used if there is none
    rows, after = np.arange(len(curves)), np.minimum(last + 1, curves.shape[1] - 1)
    here, there = curves[rows, last], curves[rows, after]
    drop = np.where(here > there, here - there, 1.0)
    fraction = np.where(after > last, here / drop, 0.0)
    return np.where(inside.any(1), levels[last] + fraction * (levels[after] - levels[last]), 0.0)


def are_nested(curves: np.ndarray) -> np.ndarray:
    """Return whether the sign of each curve (n, k) never changes from minus to plus, (n,): level sets are nested."""
    inside = curves >= 0
    return ~(inside[:, 1:] & ~inside[:, :-1]).any(1)
