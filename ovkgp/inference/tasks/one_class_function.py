"""The decision function of all one-class SVMs, d(x)(θ) = h(x)(θ) − t(θ), between the levels that were learned (LT-99, LT-107).

Kernels join what is known at the levels: h(x)(θ) = Σ_j k_Θ(θ, θ_j) [K_Θ⁻¹ w]_j φ(x), and t likewise with a kernel of its own. Thresholds may be
calibrated first: the share of the rows that lie outside is right for the rows learned from, and too small for fresh ones, since the set
was drawn around the former; the leave-one-out values of the path show where the fresh ones fall.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ovkgp.inference.tasks.factors import Factor, KernelFactor
from ovkgp.inference.tasks.one_class_path import OneClassPath, leave_one_out
from ovkgp.inference.tasks.problem import TaskFunction


def rearranged(curves: np.ndarray) -> np.ndarray:
    """Curves (n, k) over equally spaced levels, sorted from large to small.

    Example:
        >>> import numpy as np
        >>> from ovkgp.inference.tasks.one_class_function import rearranged
        >>> rearranged(np.array([[2.0, -1.0, 1.0]]))
        array([[ 2.,  1., -1.]])
    """
    return -np.sort(-curves, axis=1)


def share_levels(curves: np.ndarray, levels: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """g(θ) at each of the levels θ: of curves like these (n, k), a share θ is negative at g(θ) once they are rearranged, (k,) increasing.

    Args:
        curves: over the `levels` (k,), in order and equally spaced.
        weights: of the curves (n,).

    Example:
        >>> import numpy as np
        >>> from ovkgp.inference.tasks.one_class_function import share_levels
        >>> levels = np.linspace(0, 1, 5)
        >>> share_levels(0.5 * np.linspace(0, 1, 999)[:, None] - levels, levels, np.ones(999)).round(2)  # none is inside above ½
        array([0.  , 0.12, 0.25, 0.38, 0.5 ])
    """
    scores = level_scores(rearranged(curves), levels)
    return np.clip([weighted_quantile(scores, weights, level) for level in levels], levels[0], levels[-1])


def weighted_quantile(values: np.ndarray, weights: np.ndarray, level: float) -> float:
    """The level-quantile of values (n,) of which `weights` copies were seen: a fresh one is below it with probability `level`.

    The k-th smallest of n has the level k/(n + 1); between these it is linear.

    Example:
        >>> import numpy as np
        >>> from ovkgp.inference.tasks.one_class_function import weighted_quantile
        >>> weighted_quantile(np.array([3.0, 1.0, 2.0]), np.ones(3), 0.5)
        2.0
    """
    order = np.argsort(values)
    shares = np.cumsum(weights[order]) / (weights.sum() + 1)
    return float(np.interp(level, shares, values[order]))


def at_levels(curves: np.ndarray, levels: np.ndarray, asked: np.ndarray) -> np.ndarray:
    """The curves (n, k) at levels `asked` (q,), linear between the `levels` (k,) in order: (n, q).

    Example:
        >>> import numpy as np
        >>> from ovkgp.inference.tasks.one_class_function import at_levels
        >>> at_levels(np.array([[2.0, 0.0, -1.0]]), np.array([0.0, 0.5, 1.0]), np.array([0.25, 1.0]))
        array([[ 1., -1.]])
    """
    right = np.clip(np.searchsorted(levels, asked), 1, len(levels) - 1)
    share = (asked - levels[right - 1]) / (levels[right] - levels[right - 1])
    return (1 - share) * curves[:, right - 1] + share * curves[:, right]


def level_scores(curves: np.ndarray, levels: np.ndarray) -> np.ndarray:
    """s(x) = sup{θ: d(x)(θ) ≥ 0}, (n,), linear between the `levels` (k,): near 1 for typical points, 0 for those outside everywhere.

    Example:
        >>> import numpy as np
        >>> from ovkgp.inference.tasks.one_class_function import level_scores
        >>> level_scores(np.array([[3.0, 1.0, -1.0], [-1.0, -2.0, -3.0], [1.0, 1.0, 1.0]]), np.array([0.0, 0.5, 1.0]))
        array([0.75, 0.  , 1.  ])
    """
    inside = curves >= 0
    last = curves.shape[1] - 1 - inside[:, ::-1].argmax(1)  # where there is none it is not used
    rows, after = np.arange(len(curves)), np.minimum(last + 1, curves.shape[1] - 1)
    here, there = curves[rows, last], curves[rows, after]
    drop = np.where(here > there, here - there, 1.0)
    share = np.where(after > last, here / drop, 0.0)
    return np.where(inside.any(1), levels[last] + share * (levels[after] - levels[last]), 0.0)


def are_nested(curves: np.ndarray) -> np.ndarray:
    """Whether the sign of each curve (n, k) never goes from minus to plus, (n,): level sets are nested where it does for no point.

    Example:
        >>> import numpy as np
        >>> from ovkgp.inference.tasks.one_class_function import are_nested
        >>> are_nested(np.array([[1.0, -1.0, -2.0], [1.0, -1.0, 1.0]]))
        array([ True, False])
    """
    inside = curves >= 0
    return ~(inside[:, 1:] & ~inside[:, :-1]).any(1)


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
        >>> from ovkgp.inference.tasks.factors import KernelFactor
        >>> from ovkgp.inference.tasks.one_class_function import joined
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
