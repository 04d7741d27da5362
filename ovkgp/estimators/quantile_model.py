"""What the options of `InfiniteQuantileRegressor` mean for the rows at hand: coordinates, prior mean, loss, and the problem to solve.

The three couplings differ in the task side alone (LT-03, BT-106): a kernel on all levels with the nodes of a measure, the same kernel
on finitely many levels, or none between them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from gpytorch.kernels import Kernel
from linear_operator import to_dense
from torch import Tensor

from ovkgp.estimators.quantile_kernel import LearnedKernel, learned_kernel, learned_trend
from ovkgp.estimators.quantile_prior import GaussianQuantiles, GaussianScales, gaussian_scales
from ovkgp.estimators.quantile_rows import FAR, QuantileRows
from ovkgp.estimators.quantile_trend import TrendFactor
from ovkgp.estimators.task_options import InterceptFactor, input_factor, make_measure, task_factor, task_kernel
from ovkgp.inference.task_learning.factors import Factor, LevelFactor
from ovkgp.inference.task_learning.function import TaskFunction, zero_offset
from ovkgp.inference.task_learning.noncrossing import METHODS, NonCrossing
from ovkgp.inference.task_learning.noncrossing_tasks import derivative_task_factor
from ovkgp.inference.task_learning.problem import TaskProblem
from ovkgp.inference.task_learning.streamed import StreamedProblem
from ovkgp.losses import IntegralLoss, Loss, Pinball, SmoothedPinball, TaskMeasure, grid

LEVELS = (0.1, 0.3, 0.5, 0.7, 0.9)
"""The levels of the finite couplings where none are named, and those of a score."""
MOST_ENTRIES, FASTER_APART = 1 << 24, 1 << 21
"""Entries of Φ that are kept at most, 134 MB, and from which on it is faster to make its rows a few at a time, and again."""
SAMPLE = 4000
"""Rows by which scales and λ are chosen where Φ is not kept."""
MOST_ANCHORS = 200
"""Rows at which a penalty keeps curves from crossing."""
FEW_TASKS = 9
"""Nodes by which λ is chosen."""


@dataclass(frozen=True)
class TaskSide:
    """Nodes and weights of the levels, and coordinates of their kernel."""

    measure: TaskMeasure
    factor: Factor

    @property
    def rows(self) -> Tensor:
        """Ψ (m, q)."""
        return self.factor(self.measure.nodes.unsqueeze(-1))


def task_side(options, num_tasks: int, seed: int) -> TaskSide:
    """The task side of an estimator with `coupling`, `levels`, `measure`, `task_kernel` and `task_lengthscale`."""
    if options.coupling == "infinite":
        measure = make_measure(options.measure, num_tasks, random_state=seed)
        if options.noncrossing in METHODS:
            nodes = measure.nodes.unsqueeze(-1)
            kernel = task_kernel(options.task_kernel, options.task_lengthscale, nodes, "task_kernel")
            return TaskSide(measure, derivative_task_factor(kernel, measure.nodes))
        return TaskSide(
            measure, task_factor(measure.nodes, kernel=options.task_kernel, lengthscale=options.task_lengthscale)
        )
    levels = torch.tensor(finite_levels(options), dtype=torch.float64)
    if options.coupling == "independent":
        return TaskSide(grid(levels), LevelFactor(levels))
    kernel = task_kernel(options.task_kernel, options.task_lengthscale, levels.unsqueeze(-1), "task_kernel")
    return TaskSide(grid(levels), LevelFactor(levels, to_dense(kernel(levels.unsqueeze(-1))).detach()))


def finite_levels(options) -> np.ndarray:
    """The levels that the finite couplings learn, in order."""
    return np.unique(np.asarray(LEVELS if options.levels is None else options.levels, dtype=np.float64))


def quantile_loss(options) -> Loss:
    """ℓ by name."""
    return Pinball() if options.loss == "pinball" else SmoothedPinball(float(options.kappa))


@dataclass(frozen=True)
class QuantileModel:
    """A model before it is solved.

    Args:
        rows: scaled.
        inputs: φ.
        Phi: its rows at the data (n, r); None where they are made a few at a time.
        scales: signal and noise of a Gaussian process with this kernel; None where y is constant.
        offset: b.
        loss: ℓ.
        lengthscale: of the inputs, a number or (d,); None where the kernel is not by name.
    """

    rows: QuantileRows
    inputs: Factor
    Phi: Tensor | None
    scales: GaussianScales | None
    offset: Callable[[Tensor], Tensor]
    loss: Loss
    lengthscale: float | np.ndarray | None = None

    @property
    def residual_scale(self) -> float:
        """s, of the scaled target; zero where it is constant."""
        return 0.0 if self.scales is None else self.scales.residual_scale

    def problem(self, side: TaskSide, lam: float) -> TaskProblem:
        """J at λ, with the nodes of a task side, in memory."""
        targets = self._targets() - self.offset(side.measure.nodes)
        return TaskProblem(self.Phi, side.rows, targets, *self._how(side, lam))

    def streamed(self, side: TaskSide, lam: float, seed: int = 0) -> StreamedProblem:
        """The same with rows of Φ that are made when they are needed."""
        X, y, b = torch.from_numpy(self.rows.X), self._targets(), self.offset(side.measure.nodes)
        loss, lam, shares = self._how(side, lam)
        return StreamedProblem.of(
            self.inputs, X, side.rows, y, loss, lam, row_weights=shares, offset=b, random_state=seed
        )

    def _targets(self) -> Tensor:
        return torch.from_numpy(self.rows.fenced(FAR).y)[:, None]

    def _how(self, side: TaskSide, lam: float) -> tuple[IntegralLoss, float, Tensor]:
        return IntegralLoss(self.loss, side.measure), lam, torch.from_numpy(self.rows.shares)

    def in_memory(self) -> QuantileModel:
        """This model, or where Φ is not kept the same on at most 4000 of its rows."""
        if self.Phi is not None:
            return self
        rows = self.rows.at(self.rows.places(SAMPLE))
        return replace(self, rows=rows, Phi=self.inputs(torch.from_numpy(rows.X)))

    def penalty(self, side: TaskSide, lam_nc: float) -> NonCrossing:
        """Ω on at most 200 of the rows and all nodes."""
        chosen = self.rows.places(MOST_ANCHORS)
        nodes = side.measure.nodes
        return NonCrossing(
            self.Phi[chosen], side.factor.slopes(nodes.unsqueeze(-1)), self._offset_slopes(nodes), lam_nc
        )

    def _offset_slopes(self, nodes: Tensor) -> Tensor:
        return self.offset.slopes(nodes) if isinstance(self.offset, GaussianQuantiles) else torch.zeros_like(nodes)

    def function(self, side: TaskSide, weights: Tensor) -> TaskFunction:
        """h."""
        return TaskFunction(self.inputs, side.factor, weights, self.offset)


def quantile_model(options, rows: QuantileRows, chosen: LearnedKernel, seed: int) -> QuantileModel:
    """The model of an estimator for scaled rows.

    Args:
        options: for `kernel`, `num_frequencies`, `intercept`, `prior_mean`, `loss` and `kappa`.
        chosen: lengthscale and shares of the kernel.

    Cost: O(n³) exact, O(n D²) with D frequencies.
    """
    X = torch.from_numpy(rows.X)
    kernel = task_kernel(options.kernel, chosen.lengthscale, X)
    inputs = input_factor(X, kernel=kernel, num_frequencies=options.num_frequencies, random_state=seed)
    if chosen.shares.stationary < 1:
        inputs = TrendFactor(inputs, chosen.shares)
    inputs = InterceptFactor(inputs, chosen.intercept) if options.intercept else inputs
    lengthscale = None if isinstance(options.kernel, Kernel) else _lengthscale_of(kernel)
    return completed(options, rows, inputs, kept_rows(options, inputs, X), lengthscale)


def kept_rows(options, inputs: Factor, X: Tensor) -> Tensor | None:
    """Φ (n, r); None where it is better made a few rows at a time, which only random features can be."""
    if options.num_frequencies is None:
        return inputs.anchor_rows
    limit = MOST_ENTRIES if options.noncrossing in METHODS else FASTER_APART  # a penalty needs it
    return inputs(X) if len(X) * inputs(X[:1]).shape[1] <= limit else None


def _lengthscale_of(kernel: Kernel) -> float | np.ndarray:
    values = kernel.lengthscale.detach().reshape(-1).numpy().copy()
    return values if kernel.ard_num_dims is not None else float(values[0])


def completed(options, rows: QuantileRows, inputs: Factor, Phi: Tensor | None, lengthscale=None) -> QuantileModel:
    """The model with given coordinates: scales, prior mean and loss."""
    plain = QuantileModel(rows, inputs, Phi, None, zero_offset, quantile_loss(options), lengthscale)
    if (rows.y == rows.y[0]).all():
        return plain
    some = plain.in_memory()
    y, weights = some.rows.fenced().y, some.rows.weights
    scales = gaussian_scales(some.Phi, torch.from_numpy(y), torch.from_numpy(weights))
    offset = GaussianQuantiles(scales.residual_scale) if options.prior_mean == "gaussian" else zero_offset
    return replace(plain, scales=scales, offset=offset)


def chosen_kernel(options, rows: QuantileRows) -> LearnedKernel:
    """Lengthscale and shares of the input kernel: what the options name, and what is "auto" from the rows, where y varies at all."""
    if isinstance(options.kernel, Kernel):
        return LearnedKernel(None)
    if isinstance(options.lengthscale, LearnedKernel):
        return options.lengthscale
    known = None if is_auto(options.lengthscale) else options.lengthscale
    if known is None and is_auto(options.trend) and not (rows.y == rows.y[0]).all():
        return learned_trend(rows, options.kernel)
    trend = None if is_auto(options.trend) else options.trend
    if (rows.y == rows.y[0]).all() or (known is not None and trend is None):
        return LearnedKernel("median" if known is None else known)
    if isinstance(known, str):
        known = task_kernel(options.kernel, known, torch.from_numpy(rows.X)).lengthscale.item()
    return learned_kernel(rows, options.kernel, trend, known)


def is_auto(value) -> bool:
    """Whether an option is left to the data."""
    return isinstance(value, str) and value == "auto"
