"""Decision function of the one-class SVMs of all levels, d(x)(θ) = h(x)(θ) − t(θ) (LT-99, LT-107).

Kernels interpolate between the levels: h(x)(θ) = Σ_j k_Θ(θ, θ_j) [K_Θ⁻¹ w]_j φ(x), and likewise t with a separate
kernel. Thresholds may be calibrated first, since the fraction of rows outside a set is right for the training rows and
too small for new ones; the leave-one-out values of the path estimate those of new rows.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ovkgp.inference.tasks.factors import Factor, KernelFactor
from ovkgp.inference.tasks.one_class_path import OneClassPath, leave_one_out
from ovkgp.inference.tasks.problem import TaskFunction

MIN_THRESHOLD_FRACTION = 1e-6
"""Minimum calibrated threshold, as a fraction of the largest value, so that h = 0 far from all data is outside."""


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
    return np.array([max(minimum, weighted_quantile(c, weights, q)) for c, q in zip(curves.T, levels, strict=True)])


def sort_curves(curves: np.ndarray) -> np.ndarray:
    """Sort curves (n, k) over equally spaced levels in decreasing order."""
    return -np.sort(-curves, axis=1)


def find_fraction_levels(curves: np.ndarray, levels: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return g(θ) (k,), increasing, such that a fraction θ of the sorted curves is negative at g(θ), for each level θ.

    curves (n, k) are over the `levels` (k,), ordered and equally spaced, with weights (n,).
    """
    scores = compute_level_scores(sort_curves(curves), levels)
    return np.clip([weighted_quantile(scores, weights, level) for level in levels], levels[0], levels[-1])


def weighted_quantile(values: np.ndarray, weights: np.ndarray, level: float) -> float:
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
