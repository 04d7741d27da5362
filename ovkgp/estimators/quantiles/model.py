"""λ by cross-validation: the loss of rows left out, along a path of λ from large to small, each fit started at the last one.

Coordinates of the kernel are made once, of all rows: those of a part of the rows are a subspace of them, and a fit in the larger one
is the same function (LT-83). The path ends when the loss has risen for a while.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import numpy as np
import torch
from gpytorch.kernels import Kernel
from linear_operator import to_dense
from torch import Tensor
from tqdm import tqdm

from ovkgp.checks import as_seed
from ovkgp.estimators.common.bootstrap import check_replicates, replicate_fits, replicate_weights
from ovkgp.estimators.common.task_options import InterceptFactor, input_factor, make_measure, task_factor, task_kernel
from ovkgp.estimators.quantiles.kernel import (
    GaussianQuantiles,
    GaussianScales,
    LearnedKernel,
    TrendFactor,
    gaussian_scales,
    learned_kernel,
    learned_trend,
)
from ovkgp.estimators.quantiles.rows import FAR, QuantileRows
from ovkgp.exceptions import FitWarning, OptionError
from ovkgp.inference.tasks.factors import Factor, LevelFactor, derivative_task_factor
from ovkgp.inference.tasks.noncrossing import METHODS, NonCrossing, solve_noncrossing
from ovkgp.inference.tasks.problem import TaskFunction, TaskProblem, TaskSolution, zero_offset
from ovkgp.inference.tasks.sandwich import Sandwich, sandwich
from ovkgp.inference.tasks.solvers.primal import solve_primal
from ovkgp.inference.tasks.solvers.streamed import StreamedProblem, StreamedSolution
from ovkgp.inference.tasks.solvers.streamed_lbfgs import solve_streamed
from ovkgp.losses import IntegralLoss, Loss, Pinball, SmoothedPinball, TaskMeasure, grid

LEVELS = (0.1, 0.3, 0.5, 0.7, 0.9)
"""The levels of the finite couplings where none are named, and those of a score."""
MAX_ENTRIES, FASTER_APART = 1 << 24, 1 << 21
"""Entries of Φ that are kept at most, 134 MB, and from which on it is faster to make its rows a few at a time, and again."""
SAMPLE = 4000
"""Rows by which scales and λ are chosen where Φ is not kept."""
MAX_ANCHORS = 200
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
        chosen = self.rows.places(MAX_ANCHORS)
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
    limit = MAX_ENTRIES if options.noncrossing in METHODS else FASTER_APART  # a penalty needs it
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


OFFSET = 1
"""The stream of random numbers of a seed that errors of the prior mean are drawn from: no weights use it."""


def solve_quantiles(
    options, model: QuantileModel, side: TaskSide, lam: float, start: Tensor | None = None, verbose: int = 0
) -> TaskSolution | StreamedSolution:
    """The minimiser of J at λ.

    Args:
        options: for `noncrossing`, `lam_nc`, `tol` and `max_iter`.
        start: W (r, q) to begin with.

    Cost: that of the solver.
    """
    how = {"start": start, "tolerance": options.tol, "max_iter": options.max_iter, "verbose": verbose}
    if model.Phi is None:
        if options.noncrossing in METHODS:
            raise OptionError(
                f"noncrossing={options.noncrossing!r} needs all rows in memory, and {len(model.rows)} rows of features are too many: use "
                '"rearrange", or fewer num_frequencies.'
            )
        return solve_streamed(model.streamed(side, lam), **how)
    if options.noncrossing in METHODS:
        return solve_noncrossing(
            model.problem(side, lam), model.penalty(side, options.lam_nc), method=options.noncrossing, **how
        )
    return solve_primal(model.problem(side, lam), **how)


def fitted_model(estimator) -> tuple[QuantileModel, TaskSide]:
    """The model and the task side of a fitted `InfiniteQuantileRegressor`, made again from what it keeps. O(n r) time and memory."""
    h, rows = estimator.function_, estimator._data
    X = torch.from_numpy(rows.X)
    Phi = h.inputs(X) if estimator.num_frequencies is None else kept_rows(estimator, h.inputs, X)
    model = QuantileModel(rows, h.inputs, Phi, None, h.offset, quantile_loss(estimator))
    return model, TaskSide(estimator.measure_, h.tasks)


def fitted_parts(estimator) -> Callable[[], Iterable[TaskProblem]]:
    """J of a fitted `InfiniteQuantileRegressor`, in one piece or a few rows at a time."""
    model, side = fitted_model(estimator)
    if model.Phi is None:
        return model.streamed(side, estimator.lam_).chunks
    problem = model.problem(side, estimator.lam_)
    return lambda: [problem]


def quantile_sandwich(estimator) -> Sandwich:
    """Cov[W] of a fitted `InfiniteQuantileRegressor`, in the units of the model. O(n r² + r³) time."""
    h = estimator.function_
    return sandwich(fitted_parts(estimator), h.weights, h.offset(estimator.measure_.nodes), estimator._data.count)


def sandwich_std(estimator, X: Tensor, levels: Tensor) -> Tensor:
    """The standard deviation (m, q) of the curves at scaled X (m, d), in the units of the model; far from the data, that of the prior."""
    h, cov = estimator.function_, estimator.sandwich_
    variance = cov.variance(h.inputs(X), h.tasks(levels[:, None])) + cov.temperature * h.left_out(X, levels)
    return (variance + offset_variance(estimator, levels)).sqrt()


def offset_variance(estimator, levels: Tensor) -> Tensor:
    """How unsure the prior mean b itself is, (q,), in the units of the model: it too was learned from the rows."""
    offset = estimator.function_.offset
    if isinstance(offset, GaussianQuantiles):
        return offset.variance(levels, estimator._data.count)
    return torch.zeros_like(levels)


def offset_draws(estimator, levels: Tensor, num_samples: int, random_state) -> Tensor:
    """Draws (num_samples, q) of the error of b, in the units of the model, with the variance above."""
    offset = estimator.function_.offset
    if not isinstance(offset, GaussianQuantiles):
        return levels.new_zeros(num_samples, len(levels))
    rng = np.random.default_rng(np.random.SeedSequence(as_seed(random_state), spawn_key=(OFFSET,)))
    return offset.errors(levels, estimator._data.count, torch.from_numpy(rng.standard_normal((num_samples, 2))))


def quantile_replicates(estimator, seed: int) -> np.ndarray:
    """W (B, r, q) of `num_replicates` fits to the same rows with random weights (the Bayesian bootstrap). B solutions."""
    model, side = fitted_model(estimator)

    def fit(weights: np.ndarray) -> np.ndarray:
        weighted = replace(model, rows=replace(model.rows, weights=weights))
        found = solve_quantiles(estimator, weighted, side, estimator.lam_, estimator.function_.weights)
        if found.report.interrupted:
            raise KeyboardInterrupt  # ends all replicates, and not this one alone
        return found.weights.numpy()

    weights = replicate_weights(model.rows.weights, check_replicates(estimator), seed)
    return np.stack(replicate_fits(fit, weights, estimator.verbose))


EXPONENTS = np.arange(2.0, -3.25, -0.5)
"""The path: a first guess of λ, times ten to these."""
PATIENCE = 2
"""How often the loss may rise in a row, once λ is below the first guess; far above it, all losses are alike."""
TOLERANCE, MAX_ITER = 3e-3, 220
"""The relative duality gap of the fits of a path, and their most iterations: losses of rows left out differ by more than that."""


@dataclass(frozen=True)
class QuantilePath:
    """The loss of rows left out at each λ tried.

    Attributes:
        lams: λ (k,), canonical, decreasing.
        losses: the mean loss (k,) of rows left out, in the units of the standardised target.
    """

    lams: np.ndarray
    losses: np.ndarray

    @property
    def best(self) -> float:
        """The λ of least loss."""
        return float(self.lams[self.losses.argmin()])


def quantile_path(problem: TaskProblem, folds: list[np.ndarray], *, verbose: int = 0) -> QuantilePath:
    """The loss of rows left out, for λ around that of the problem.

    Args:
        problem: of all rows, with a first guess of λ.
        folds: the places of the rows that are left out together.
        verbose: whether there is a progress bar.

    A fit to n' of n rows has the penalty λ n/n': what the whole weighs against the prior, λ n, stays the same.

    Cost: a loose solution for each fold and λ.
    """
    lams, losses, starts = problem.lam * 10**EXPONENTS, [], [None] * len(folds)
    for lam in tqdm(lams, disable=not verbose, desc="λ", unit="λ"):
        found = [_left_out(problem, fold, lam, start, verbose) for fold, start in zip(folds, starts, strict=True)]
        losses.append(sum(loss for loss, _, _ in found) / float(problem.row_weights.sum()))
        starts = [start for _, start, _ in found]
        rises = lam <= problem.lam and len(losses) - 1 - int(np.argmin(losses)) >= PATIENCE
        if rises or any(interrupted for _, _, interrupted in found):
            break
    return QuantilePath(lams[: len(losses)], np.array(losses))


def _left_out(problem: TaskProblem, fold: np.ndarray, lam: float, start: Tensor | None, verbose: int):
    """The summed loss of a fold, the weights of the fit to the others, and whether Ctrl-C ended it."""
    kept = np.setdiff1d(np.arange(problem.num_rows), fold)
    training = rows_of(problem, kept, lam * problem.num_rows / len(kept))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FitWarning)  # loose on purpose; the fit at the λ chosen warns for itself
        solution = solve_primal(training, start=start, tolerance=TOLERANCE, max_iter=MAX_ITER, verbose=0)
    held = rows_of(problem, fold, lam)
    loss = held.risk(held.values(solution.weights)) * len(fold)
    return loss.item(), solution.weights, solution.report.interrupted


def rows_of(problem: TaskProblem, places: np.ndarray, lam: float) -> TaskProblem:
    """The same problem on some of the rows."""
    index = torch.from_numpy(places)
    return replace(
        problem,
        inputs=problem.inputs[index],
        targets=problem.targets[index],
        row_weights=problem.row_weights[index],
        lam=lam,
    )
