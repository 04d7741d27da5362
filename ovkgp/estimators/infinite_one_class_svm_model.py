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
from ovkgp.inference.task_learning.one_class_function import (
    ThresholdOffset,
    calibrated_thresholds,
    held_out_values,
    joined,
)
from ovkgp.inference.task_learning.one_class_path import OneClassPath
from ovkgp.inference.task_learning.one_class_solver import solve_one_class
from ovkgp.losses import TaskMeasure

storable_part(ThresholdOffset)
SLACK = 1e-8
"""Rows on the margin are inside: thresholds that are not calibrated are lower by this part."""


class OneClassFit(NamedTuple):
    """The decision function, and the solution behind it."""

    function: TaskFunction
    solution: OneClassSolution


class OneClassModel:
    """The problem of given rows, to be solved for any weights of these.

    Args:
        inputs: φ.
        rows: X (n, d), distinct.
        measure: levels in order, and weights.
        tasks, thresholds: the factors of the task and the threshold kernel at the levels.
        lam: λ ≥ 0.
        calibrated: the factor of the threshold kernel at levels at which thresholds are calibrated; None does not calibrate.
    """

    def __init__(
        self,
        inputs: Factor,
        rows: Tensor,
        measure: TaskMeasure,
        tasks: KernelFactor,
        thresholds: KernelFactor,
        lam: float,
        calibrated: KernelFactor | None,
    ):
        self.inputs, self.measure, self.tasks, self.lam = inputs, measure, tasks, lam
        self.thresholds, self.calibrated = thresholds, calibrated
        self.coordinates = inputs.anchor_rows if hasattr(inputs, "anchor_rows") else inputs(rows)

    def fit(self, weights: np.ndarray, counts: np.ndarray) -> OneClassFit:
        """Fit to rows of which `counts` (n,) observations weigh `weights` (n,) in all."""
        path = OneClassPath(self.coordinates.numpy(), weights)
        psi, s = self.thresholds.anchor_rows, torch.from_numpy(weights)
        solution = solve_one_class(OneClassProblem(self.coordinates, self.measure, psi, self.lam, s), path=path)
        factor, t = self._thresholds(path, solution, weights / counts)
        return OneClassFit(joined(self.inputs, self.tasks, factor, solution.weights, torch.from_numpy(t)), solution)

    def _thresholds(self, path: OneClassPath, solution: OneClassSolution, units: np.ndarray):
        """t at the anchors of a factor of the threshold kernel."""
        t = solution.thresholds.numpy()
        if self.calibrated is None:
            return self.thresholds, t - SLACK * np.abs(t)
        held = held_out_values(path, solution.positions.numpy(), t, units)
        levels = self.calibrated.anchors.flatten().numpy()
        return self.calibrated, calibrated_thresholds(held, path.weights, self.tasks, levels)

    def replicates(self, weights: np.ndarray, counts: np.ndarray, verbose: int = 0) -> tuple[np.ndarray, np.ndarray]:
        """W (B, r, q) and z (B, k) of a fit for each row of `weights` (B, n)."""
        functions = replicate_fits(lambda row: self.fit(row, counts).function, weights, verbose)
        made = [(function.weights.numpy(), function.offset.coefficients.numpy()) for function in functions]
        return tuple(np.stack(part) for part in zip(*made, strict=True))
