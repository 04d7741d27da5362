"""The decision function of all one-class SVMs, d(x)(θ) = h(x)(θ) − t(θ), between the levels that were learned (LT-99, LT-107).

Kernels join what is known at the levels: h(x)(θ) = Σ_j k_Θ(θ, θ_j) [K_Θ⁻¹ w]_j φ(x), and t likewise with a kernel of its own. Thresholds may be
calibrated first: the share of the rows that lie outside is right for the rows learned from, and too small for fresh ones, since the set
was drawn around the former; the leave-one-out values of the path show where the fresh ones fall.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ovkgp.inference.task_learning.factors import Factor, KernelFactor
from ovkgp.inference.task_learning.function import TaskFunction
from ovkgp.inference.task_learning.one_class_curves import weighted_quantile
from ovkgp.inference.task_learning.one_class_path import OneClassPath
from ovkgp.inference.task_learning.one_class_removal import leave_one_out

LEAST = 1e-6
"""The least calibrated threshold, as a part of the largest value: far from all data h = 0, which is outside at every level."""


class ThresholdOffset:
    """b(θ) = −t(θ), t(θ) = ψ(θ)ᵀ z.

    Args:
        factor: ψ, of the threshold kernel.
        coefficients: z (q,).
    """

    def __init__(self, factor: KernelFactor, coefficients: Tensor):
        self.factor, self.coefficients = factor, coefficients

    def __call__(self, tasks: Tensor) -> Tensor:
        return -self.factor(tasks.reshape(-1, 1)) @ self.coefficients

    def slopes(self, tasks: Tensor) -> Tensor:
        """−t'(θ)."""
        return -self.factor.slopes(tasks.reshape(-1, 1)) @ self.coefficients


def joined(inputs: Factor, tasks: KernelFactor, thresholds: KernelFactor, weights: Tensor, t: Tensor) -> TaskFunction:
    """d, from h and t at the levels that are the anchors of the two factors.

    Args:
        inputs: φ.
        tasks, thresholds: factors of the task and the threshold kernel; where one is numerically singular at its anchors, d is the
            nearest function that it allows.
        weights: w (r, m), at the anchors of `tasks`.
        t: (k,), at those of `thresholds`.

    Cost: O(r m q).

    Example:
        >>> import torch
        >>> from gpytorch.kernels import RBFKernel
        >>> from ovkgp.inference.task_learning.factors import KernelFactor
        >>> from ovkgp.inference.task_learning.one_class_function import joined
        >>> levels = torch.tensor([[0.1], [0.5]]).double()
        >>> tasks = KernelFactor(RBFKernel().double(), levels)
        >>> d = joined(lambda X: X, tasks, tasks, torch.tensor([[1.0, 2.0]]).double(), torch.tensor([0.0, 1.0]).double())
        >>> d(torch.ones(1, 1).double(), levels.flatten()).detach().numpy().round(6)
        array([[1., 1.]])
    """
    offset = ThresholdOffset(thresholds, thresholds.projection.T @ t)
    return TaskFunction(inputs, tasks, weights @ tasks.projection, offset)


def held_out_values(
    path: OneClassPath, positions: np.ndarray, t: np.ndarray, units: np.ndarray | None = None
) -> np.ndarray:
    """h(x_i)(θ_j) when the row i is left out, t_j times the leave-one-out value of f at C_j: (n, m).

    Args:
        positions: C (m,); ∞ where t ≤ 0, and h = 0.
        t: thresholds (m,).
        units: the weight of one observation at each point (n,).

    Cost: about ten steps of O(n |M| + |M|³) for each level and each row on or below its margin.
    """
    held = np.zeros((len(path.rows), len(t)))
    for j in np.flatnonzero(np.isfinite(positions)):
        held[:, j] = t[j] * leave_one_out(path, positions[j], units)
    return held


def joined_values(values: np.ndarray, tasks: KernelFactor, levels: np.ndarray) -> np.ndarray:
    """Values (n, m) at the anchors of `tasks`, joined as `joined` does w: at each of some levels, (n, k).

    Cost: O(k n m).
    """
    rows = tasks(torch.from_numpy(levels).reshape(-1, 1)).numpy()
    return values @ tasks.projection.numpy() @ rows.T


def calibrated_thresholds(curves: np.ndarray, weights: np.ndarray, levels: np.ndarray) -> np.ndarray:
    """The θ-quantile of the held-out h(x_i)(θ) at each of some levels θ (k,): fresh points are below with probability θ.

    Args:
        curves: those of `held_out_values`, joined: (n, k).
        weights: of the rows (n,).

    Cost: O(k n log n).
    """
    least = LEAST * np.abs(curves).max()
    return np.array([max(least, weighted_quantile(c, weights, q)) for c, q in zip(curves.T, levels, strict=True)])


def thresholds_at(function: TaskFunction, levels) -> np.ndarray:
    """t(θ) of a function that `joined` made, (k,)."""
    return -function.offset(torch.as_tensor(levels, dtype=torch.float64).reshape(-1)).numpy()
