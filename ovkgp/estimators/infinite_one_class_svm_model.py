"""What `InfiniteOneClassSVM` fits, once to the rows as they are and again to rows with random weights."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ovkgp.estimators.bayesian_bootstrap import replicate_fits
from ovkgp.estimators.task_state import storable_part
from ovkgp.inference.task_learning.factors import Factor, KernelFactor
from ovkgp.inference.task_learning.function import TaskFunction
from ovkgp.inference.task_learning.one_class import OneClassProblem, OneClassSolution
from ovkgp.inference.task_learning.one_class_curves import share_levels
from ovkgp.inference.task_learning.one_class_function import (
    ThresholdOffset,
    calibrated_thresholds,
    held_out_values,
    joined,
    joined_values,
    thresholds_at,
)
from ovkgp.inference.task_learning.one_class_path import OneClassPath
from ovkgp.inference.task_learning.one_class_solver import solve_one_class
from ovkgp.losses import TaskMeasure

storable_part(ThresholdOffset)
SLACK = 1e-8
"""Rows on the margin are inside: thresholds that are not calibrated are lower by this part."""


class OneClassFit(NamedTuple):
    """The decision function d, the levels g(θ) (k,) of `share_levels`, and the solution behind them."""

    function: TaskFunction
    shares: np.ndarray
    solution: OneClassSolution


class Replicates(NamedTuple):
    """Of B fits: W (B, r, q), the coefficients of the thresholds (B, k), and the levels of `share_levels` (B, k)."""

    weights: np.ndarray
    thresholds: np.ndarray
    shares: np.ndarray


class OneClassModel:
    """The problem of given rows, to be solved for any weights of these.

    Args:
        inputs: φ.
        rows: X (n, d), distinct.
        measure: levels in order, and weights.
        tasks, thresholds: the factors of the task and the threshold kernel at the levels.
        lam: λ ≥ 0.
        levels: (k,), equally spaced, on which curves are looked at.
        calibrated: the factor of the threshold kernel at these, for thresholds that are calibrated; None does not calibrate.
    """

    def __init__(
        self,
        inputs: Factor,
        rows: Tensor,
        measure: TaskMeasure,
        tasks: KernelFactor,
        thresholds: KernelFactor,
        lam: float,
        levels: np.ndarray,
        calibrated: KernelFactor | None,
    ):
        self.inputs, self.measure, self.tasks, self.lam = inputs, measure, tasks, lam
        self.thresholds, self.levels, self.calibrated = thresholds, levels, calibrated
        self.coordinates = inputs.anchor_rows if hasattr(inputs, "anchor_rows") else inputs(rows)

    def fit(self, weights: np.ndarray, counts: np.ndarray) -> OneClassFit:
        """Fit to rows of which `counts` (n,) observations weigh `weights` (n,) in all."""
        path = OneClassPath(self.coordinates.numpy(), weights)
        psi, s = self.thresholds.anchor_rows, torch.from_numpy(weights)
        solution = solve_one_class(OneClassProblem(self.coordinates, self.measure, psi, self.lam, s), path=path)
        values = self._values(path, solution, weights / counts)
        factor, t = self._thresholds(solution, values, weights)
        function = joined(self.inputs, self.tasks, factor, solution.weights, torch.from_numpy(t))
        shares = share_levels(values - thresholds_at(function, self.levels), self.levels, weights)
        return OneClassFit(function, shares, solution)

    def _values(self, path: OneClassPath, solution: OneClassSolution, units: np.ndarray) -> np.ndarray:
        """h(x_i)(θ) at the levels (n, k), with the row i left out where it is for calibration."""
        if self.calibrated is None:
            values = (self.coordinates @ solution.weights).numpy()
        else:
            values = held_out_values(path, solution.positions.numpy(), solution.thresholds.numpy(), units)
        return joined_values(values, self.tasks, self.levels)

    def _thresholds(self, solution: OneClassSolution, values: np.ndarray, weights: np.ndarray):
        """A factor of the threshold kernel, and t at its anchors."""
        if self.calibrated is None:
            t = solution.thresholds.numpy()
            return self.thresholds, t - SLACK * np.abs(t)
        return self.calibrated, calibrated_thresholds(values, weights, self.levels)

    def replicates(self, weights: np.ndarray, counts: np.ndarray, verbose: int = 0) -> Replicates:
        """A fit for each row of `weights` (B, n)."""

        def fit(row: np.ndarray) -> tuple[np.ndarray, ...]:
            made = self.fit(row, counts)
            return made.function.weights.numpy(), made.function.offset.coefficients.numpy(), made.shares

        return Replicates(*(np.stack(part) for part in zip(*replicate_fits(fit, weights, verbose), strict=True)))
