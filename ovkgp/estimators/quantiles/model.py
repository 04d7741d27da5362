"""The model of quantile regression: coordinates of inputs and levels, solution, selection of λ and uncertainty.

Coordinates of the kernel are computed once from all rows. Those of a subset of the rows span a subspace, and a fit in
the larger space is the same function (LT-83), so that folds and replicates use them too.
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
from ovkgp.estimators.common.bootstrap import refitted_weights, replicate_fits, replicate_weights
from ovkgp.estimators.common.task_options import InterceptFactor, input_factor, make_measure, task_factor, task_kernel
from ovkgp.estimators.quantiles.kernel import (
    GaussianQuantiles,
    GaussianScales,
    LearnedKernel,
    TrendFactor,
    estimate_gaussian_scales,
    learn_kernel,
    learn_trend,
)
from ovkgp.estimators.quantiles.rows import LOSS_CLIP_IQRS, NUM_FOLDS, QuantileRows
from ovkgp.estimators.storage.values import storable_record
from ovkgp.exceptions import FitWarning, InputError, OptionError
from ovkgp.functional.factors import DerivativeTaskFactor, Factor, KernelFactor, LevelFactor
from ovkgp.inference.tasks.noncrossing import METHODS, NonCrossing, solve_noncrossing
from ovkgp.inference.tasks.problem import TaskFunction, TaskProblem, TaskSolution, zero_offset
from ovkgp.inference.tasks.quantile_distribution import Rearranged
from ovkgp.inference.tasks.sandwich import Sandwich, sandwich
from ovkgp.inference.tasks.solvers.primal import solve_primal
from ovkgp.inference.tasks.solvers.streamed import StreamedProblem, StreamedSolution
from ovkgp.inference.tasks.solvers.streamed_lbfgs import solve_streamed
from ovkgp.losses import IntegralLoss, Loss, Pinball, SmoothedPinball, TaskMeasure, grid

DEFAULT_LEVELS = (0.1, 0.3, 0.5, 0.7, 0.9)  # default levels of the finite couplings and of a score
MAX_STORED_ENTRIES = 1 << 24  # maximum number of entries of Φ in memory, 134 MB
STREAMING_THRESHOLD_ENTRIES = 1 << 21
"""Number of entries of random features Φ beyond which it is faster to recompute its rows in chunks."""
MAX_EXACT_ROWS = 2000  # maximum number of distinct rows for which num_frequencies="auto" is the exact kernel
NUM_LANDMARKS, LANDMARK_CUTOFF = 1000, 1e-7
"""Number of rows on which the kernel of more rows is projected; eigenvalues below this fraction of the largest are dropped."""
MAX_SELECTION_ROWS = 4000  # maximum number of rows used to select scales and λ
MAX_ANCHORS = 200  # maximum number of rows at which a non-crossing penalty applies
NUM_SELECTION_TASKS = 9  # maximum number of nodes used to select λ
OFFSET_STREAM = 1  # spawn key of the random numbers of the errors of the prior mean; the draws of weights use others
LAM_EXPONENTS = np.arange(2.0, -3.25, -0.5)  # exponents of ten by which the path multiplies the initial λ
PATIENCE = 2
"""Number of steps without a new minimum that end the path below the initial λ; far above it, losses hardly differ."""
REARRANGEMENT_LEVELS = torch.arange(1, 200, dtype=torch.float64) / 200
"""Levels at which curves are sorted; they include the percentiles."""
CHUNK_POINTS = 1 << 14
PATH_TOLERANCE, PATH_MAX_ITER = 3e-3, 220
"""Relative duality gap and maximum number of iterations of the fits of a path; held-out losses differ by more."""


@dataclass(frozen=True)
class TaskSide:
    """Nodes and weights of the levels, and the factor of their kernel."""

    measure: TaskMeasure
    factor: Factor

    @property
    def rows(self) -> Tensor:
        """Ψ (m, q)."""
        return self.factor(self.measure.nodes.unsqueeze(-1))


def make_task_side(options, num_tasks: int, seed: int) -> TaskSide:
    """Make the task side from `coupling`, `levels`, `measure`, `task_kernel` and `task_lengthscale`."""
    if options.coupling == "infinite":
        measure = make_measure(options.measure, num_tasks, random_state=seed)
        if options.noncrossing in METHODS:
            nodes = measure.nodes.unsqueeze(-1)
            kernel = task_kernel(options.task_kernel, options.task_lengthscale, nodes, "task_kernel")
            return TaskSide(measure, DerivativeTaskFactor(kernel, measure.nodes))
        return TaskSide(
            measure, task_factor(measure.nodes, kernel=options.task_kernel, lengthscale=options.task_lengthscale)
        )
    levels = torch.tensor(finite_levels(options), dtype=torch.float64)
    if options.coupling == "independent":
        return TaskSide(grid(levels), LevelFactor(levels))
    kernel = task_kernel(options.task_kernel, options.task_lengthscale, levels.unsqueeze(-1), "task_kernel")
    return TaskSide(grid(levels), LevelFactor(levels, to_dense(kernel(levels.unsqueeze(-1))).detach()))


def select_num_tasks(options, count: float) -> int:
    """Return `num_tasks`; if "auto", the square root of the number of rows, between 10 and 50."""
    return int(np.clip(np.sqrt(count), 10, 50)) if options.num_tasks == "auto" else options.num_tasks


def finite_levels(options) -> np.ndarray:
    """Return the sorted levels of a finite coupling."""
    return np.unique(np.asarray(DEFAULT_LEVELS if options.levels is None else options.levels, dtype=np.float64))


@dataclass(frozen=True)
class QuantileModel:
    """Model before it is solved, for scaled rows and the input factor φ.

    `Phi` (n, r) is φ at the rows, None if it is computed in chunks. `scales` is None if y is constant. `offset` is the
    prior mean b. `lengthscale` is a number or (d,), None for a kernel object.
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
        """Residual scale s of the scaled target; zero if it is constant."""
        return 0.0 if self.scales is None else self.scales.residual_scale

    def problem(self, side: TaskSide, lam: float) -> TaskProblem:
        """Return the objective J at λ with Φ in memory."""
        targets, loss, weights = self._objective_parts(side)
        return TaskProblem(self.Phi, side.rows, targets - self.offset(side.measure.nodes), loss, lam, weights)

    def streamed_problem(self, side: TaskSide, lam: float, seed: int = 0) -> StreamedProblem:
        """Return the objective J at λ with rows of Φ that are read, or computed if they are not stored, in chunks."""
        targets, loss, weights = self._objective_parts(side)
        X, offset = torch.from_numpy(self.rows.X), self.offset(side.measure.nodes)
        options = {"row_weights": weights, "offset": offset, "random_state": seed}
        if self.Phi is None:
            return StreamedProblem.from_factor(self.inputs, X, side.rows, targets, loss, lam, **options)
        return StreamedProblem(self.Phi.__getitem__, side.rows, targets, loss, lam, **options)

    def _objective_parts(self, side: TaskSide) -> tuple[Tensor, IntegralLoss, Tensor]:
        """Return targets (n, 1), loss and weights of the rows (n,)."""
        y, weights = self.rows.clip_outliers(LOSS_CLIP_IQRS).y, self.rows.relative_weights
        return torch.from_numpy(y)[:, None], IntegralLoss(self.loss, side.measure), torch.from_numpy(weights)

    def sample(self) -> QuantileModel:
        """Return the model of at most 4000 of the rows, with Φ in memory."""
        model = self
        if len(self.rows) > MAX_SELECTION_ROWS or self.Phi is None:
            model = self.select(self.rows.spaced_indices(MAX_SELECTION_ROWS))
        return model if model.Phi is not None else replace(model, Phi=self.inputs(torch.from_numpy(model.rows.X)))

    def select(self, index: np.ndarray) -> QuantileModel:
        """Return the model of the rows with the indices (k,), in the same coordinates."""
        return replace(
            self, rows=self.rows.select(index), Phi=None if self.Phi is None else self.Phi[torch.from_numpy(index)]
        )

    def curves(self, side: TaskSide, weights: Tensor, levels: Tensor) -> Tensor:
        """Return the curves (n, q) of the rows, for W (r, q') and levels (q,)."""
        if self.Phi is None:
            h, X = self.function(side, weights), torch.from_numpy(self.rows.X)
            return torch.cat([h(part, levels) for part in X.split(CHUNK_POINTS)])
        return self.offset(levels) + self.Phi @ (weights @ side.factor(levels.unsqueeze(-1)).T)

    def penalty(self, side: TaskSide, lam_nc: float) -> NonCrossing:
        """Return the non-crossing penalty Ω on at most 200 rows and all nodes."""
        index, nodes = self.rows.spaced_indices(MAX_ANCHORS), side.measure.nodes
        slopes = self.offset.slopes(nodes) if isinstance(self.offset, GaussianQuantiles) else None
        return NonCrossing(self.Phi[index], side.factor.slopes(nodes.unsqueeze(-1)), slopes, lam_nc)

    def function(self, side: TaskSide, weights: Tensor) -> TaskFunction:
        """Return the function h with the given weights."""
        return TaskFunction(self.inputs, side.factor, weights, self.offset)


def build_quantile_model(options, rows: QuantileRows, learned: LearnedKernel, seed: int) -> QuantileModel:
    """Build the model of scaled rows with a selected kernel. O(n³) exact, O(n D²) with D frequencies."""
    X = torch.from_numpy(rows.X)
    kernel = task_kernel(options.kernel, learned.lengthscale, X)
    inputs = _make_input_factor(options, kernel, X, seed)
    if learned.proportions.stationary < 1:
        inputs = TrendFactor(inputs, learned.proportions)
    inputs = InterceptFactor(inputs, learned.intercept) if options.intercept else inputs
    lengthscale = None if isinstance(options.kernel, Kernel) else _read_lengthscale(kernel)
    return complete_model(options, rows, inputs, compute_training_features(options, inputs, X), lengthscale)


def is_projected(options, num_rows: int) -> bool:
    """Return whether the kernel is projected on landmarks: if `num_frequencies` is "auto" and there are many rows."""
    return is_auto(options.num_frequencies) and num_rows > MAX_EXACT_ROWS


def is_exact(options, num_rows: int) -> bool:
    """Return whether the coordinates are those of the exact kernel."""
    return options.num_frequencies is None or (is_auto(options.num_frequencies) and num_rows <= MAX_EXACT_ROWS)


def _make_input_factor(options, kernel: Kernel, X: Tensor, seed: int) -> Factor:
    if is_projected(options, len(X)):
        landmarks = np.random.default_rng(seed).permutation(len(X))[:NUM_LANDMARKS]
        return KernelFactor(kernel, X[torch.from_numpy(landmarks)], LANDMARK_CUTOFF)
    number = None if is_exact(options, len(X)) else options.num_frequencies
    return input_factor(X, kernel=kernel, num_frequencies=number, random_state=seed)


def _read_lengthscale(kernel: Kernel) -> float | np.ndarray:
    values = kernel.lengthscale.detach().reshape(-1).numpy().copy()
    return values if kernel.ard_num_dims is not None else float(values[0])


def compute_training_features(options, inputs: Factor, X: Tensor) -> Tensor | None:
    """Compute Φ (n, r); None for features that are better computed in chunks."""
    if is_exact(options, len(X)):
        return inputs.anchor_rows
    # a penalty needs Φ in memory, and products with a kernel matrix are slow
    is_stored = options.noncrossing in METHODS or is_projected(options, len(X))
    limit = MAX_STORED_ENTRIES if is_stored else STREAMING_THRESHOLD_ENTRIES
    return inputs(X) if len(X) * inputs(X[:1]).shape[1] <= limit else None


def complete_model(options, rows: QuantileRows, inputs: Factor, Phi: Tensor | None, lengthscale=None) -> QuantileModel:
    """Add scales, prior mean and loss to given coordinates."""
    model = QuantileModel(rows, inputs, Phi, None, zero_offset, make_quantile_loss(options), lengthscale)
    if (rows.y == rows.y[0]).all():
        return model
    sample = model.sample()
    y, weights = sample.rows.clip_outliers().y, sample.rows.weights
    scales = estimate_gaussian_scales(sample.Phi, torch.from_numpy(y), torch.from_numpy(weights))
    offset = GaussianQuantiles(scales.residual_scale) if options.prior_mean == "gaussian" else zero_offset
    return replace(model, scales=scales, offset=offset)


def make_quantile_loss(options) -> Loss:
    """Make the loss ℓ from `loss` and `kappa`."""
    return Pinball() if options.loss == "pinball" else SmoothedPinball(float(options.kappa))


def select_kernel(options, rows: QuantileRows) -> LearnedKernel:
    """Select lengthscale and proportions of the input kernel: as given, or learned if "auto" and y varies."""
    if isinstance(options.kernel, Kernel):
        return LearnedKernel(None)
    if isinstance(options.lengthscale, LearnedKernel):
        return options.lengthscale
    is_constant = (rows.y == rows.y[0]).all()
    known = None if is_auto(options.lengthscale) else options.lengthscale
    if known is None and is_auto(options.trend) and not is_constant:
        return learn_trend(rows, options.kernel, options.restarts)
    trend = None if is_auto(options.trend) else options.trend
    if is_constant or (known is not None and trend is None):
        return LearnedKernel("median" if known is None else known)
    if isinstance(known, str):
        known = task_kernel(options.kernel, known, torch.from_numpy(rows.X)).lengthscale.item()
    return learn_kernel(rows, options.kernel, trend, known, options.restarts)


def is_auto(value) -> bool:
    """Return whether an option is "auto"."""
    return isinstance(value, str) and value == "auto"


def solve_quantiles(
    options,
    model: QuantileModel,
    side: TaskSide,
    lam: float,
    init: Tensor | None = None,
    verbose: int = 0,
    tolerance: float | None = None,
) -> TaskSolution | StreamedSolution:
    """Minimize J at λ, from initial weights W (r, q), with the solver that `noncrossing` and the size of Φ require.

    The tolerance is `tol` unless another is given.
    """
    tolerance = options.tol if tolerance is None else tolerance
    solver_options = {"init": init, "tolerance": tolerance, "max_iter": options.max_iter, "verbose": verbose}
    if model.Phi is None and options.noncrossing in METHODS:
        raise OptionError(
            f'noncrossing={options.noncrossing!r} is not supported with {len(model.rows)} rows, whose features do not fit in memory. Use noncrossing="rearrange" or fewer num_frequencies.'
        )
    if options.noncrossing in METHODS:
        return solve_noncrossing(
            model.problem(side, lam), model.penalty(side, options.lam_nc), method=options.noncrossing, **solver_options
        )
    if model.Phi is None or is_projected(options, len(model.rows)):
        return solve_streamed(model.streamed_problem(side, lam), **solver_options)
    return solve_primal(model.problem(side, lam), **solver_options)


def rebuild_model(estimator) -> tuple[QuantileModel, TaskSide]:
    """Rebuild the model and the task side of a fitted `InfiniteQuantileRegressor`. O(n r) time and memory."""
    h, rows = estimator.function_, estimator._data
    X = torch.from_numpy(rows.X)
    Phi = h.inputs(X) if is_exact(estimator, len(X)) else compute_training_features(estimator, h.inputs, X)
    model = QuantileModel(rows, h.inputs, Phi, None, h.offset, make_quantile_loss(estimator))
    return model, TaskSide(estimator.measure_, h.tasks)


@storable_record
@dataclass(frozen=True)
class QuantilePath:
    """Held-out loss at each λ of a path.

    Attributes
    ----------
    lams : ndarray of shape (k,)
        Canonical λ, decreasing.
    losses : ndarray of shape (k,)
        Mean held-out loss, in units of the standardized target.
    """

    lams: np.ndarray
    losses: np.ndarray

    @property
    def best(self) -> float:
        """λ of minimal loss."""
        return float(self.lams[self.losses.argmin()])


def cross_validate_lam(options, model: QuantileModel, seed: int) -> QuantilePath:
    """Compute held-out losses of a model with Φ in memory and varying y, along a path around its initial λ."""
    count, kappa = model.rows.count, 0.0 if options.kappa is None else options.kappa
    initial_lam = model.scales.lam(count) / (1 + kappa / model.scales.residual_scale)
    side = make_task_side(options, min(NUM_SELECTION_TASKS, select_num_tasks(options, count)), seed)
    return compute_lam_path(
        model.problem(side, initial_lam), model.rows.folds(NUM_FOLDS, seed), verbose=options.verbose
    )


def compute_lam_path(problem: TaskProblem, folds: list[np.ndarray], *, verbose: int = 0) -> QuantilePath:
    """Compute held-out losses along a path of decreasing λ, which ends when the loss keeps rising.

    `folds` are the indices of the rows held out together. A fit to n' of n rows has the penalty λ n/n', since the
    weight of data against prior is λ n. Each fit is initialized at that of the previous λ. Complexity: a loose solution
    per fold and λ.
    """
    lams, losses, inits = problem.lam * 10**LAM_EXPONENTS, [], [None] * len(folds)
    for lam in tqdm(lams, disable=not verbose, desc="λ", unit="λ"):
        found = [_fit_without_fold(problem, fold, lam, init) for fold, init in zip(folds, inits, strict=True)]
        losses.append(sum(loss for loss, _, _ in found) / float(problem.row_weights.sum()))
        inits = [init for _, init, _ in found]
        rises = lam <= problem.lam and len(losses) - 1 - int(np.argmin(losses)) >= PATIENCE
        if rises or any(interrupted for _, _, interrupted in found):
            break
    return QuantilePath(lams[: len(losses)], np.array(losses))


def _fit_without_fold(problem: TaskProblem, fold: np.ndarray, lam: float, init: Tensor | None):
    """Return the summed loss of a fold, the weights of the fit to the other rows, and whether it was interrupted."""
    kept = np.setdiff1d(np.arange(problem.num_rows), fold)
    training = select_rows(problem, kept, lam * problem.num_rows / len(kept))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FitWarning)  # loose on purpose; the final fit has its own warnings
        solution = solve_primal(training, init=init, tolerance=PATH_TOLERANCE, max_iter=PATH_MAX_ITER, verbose=0)
    heldout = select_rows(problem, fold, lam)
    loss = heldout.risk(heldout.values(solution.weights)) * len(fold)
    return loss.item(), solution.weights, solution.report.interrupted


def select_rows(problem: TaskProblem, index: np.ndarray, lam: float) -> TaskProblem:
    """Restrict a problem to some rows, with another λ."""
    index = torch.from_numpy(index)
    return replace(
        problem,
        inputs=problem.inputs[index],
        targets=problem.targets[index],
        row_weights=problem.row_weights[index],
        lam=lam,
    )


def compute_sandwich(estimator) -> Sandwich:
    """Compute Cov[W] of a fitted `InfiniteQuantileRegressor` in standardized units. O(n r² + r³) time."""
    h = estimator.function_
    offset = h.offset(estimator.measure_.nodes)
    return sandwich(make_problem_chunks(estimator), h.weights, offset, estimator._data.count)


def make_problem_chunks(estimator) -> Callable[[], Iterable[TaskProblem]]:
    """Return a function that iterates over J of a fitted `InfiniteQuantileRegressor`, whole or in chunks of rows."""
    model, side = rebuild_model(estimator)
    if model.Phi is None:
        return model.streamed_problem(side, estimator.lam_).chunks
    problem = model.problem(side, estimator.lam_)
    return lambda: [problem]


def compute_curves(estimator, X: Tensor, levels: Tensor, shifts: Callable[[Tensor], Tensor] | None = None) -> Tensor:
    """Compute the curves (m, q) in standardized units, sorted if `noncrossing="rearrange"`.

    `shifts` maps levels (k,) to what a calibration adds to the curves, which are then sorted unless `noncrossing=None`.
    """
    h, is_sorted = estimator.function_, estimator.noncrossing == "rearrange"
    if estimator.coupling == "infinite":
        curves = Rearranged(h, REARRANGEMENT_LEVELS) if is_sorted else h
        if shifts is not None:
            shifted = lambda X, levels, curves=curves: curves(X, levels) + shifts(levels)  # noqa: E731
            curves = shifted if estimator.noncrossing is None else Rearranged(shifted, REARRANGEMENT_LEVELS)
        return torch.cat([curves(part, levels) for part in X.split(CHUNK_POINTS)])
    known = torch.from_numpy(finite_levels(estimator))
    values = h(X, known)
    values = values.sort(-1).values if is_sorted else values
    if shifts is not None:
        values = values + shifts(known)
        values = values.sort(-1).values if is_sorted else values
    return values[:, _find_levels(known, levels)]


def _find_levels(known: Tensor, levels: Tensor) -> list[int]:
    """Return the indices of levels among the learned ones."""
    distance, index = (levels[:, None] - known).abs().min(-1)
    if bool((distance > 1e-9).any()):
        raise InputError(
            f'quantiles must be among the learned levels {known.tolist()}, got {levels[distance > 1e-9].tolist()}. Add them to `levels` or use coupling="infinite".'
        )
    return index.tolist()


def compute_sandwich_std(estimator, X: Tensor, levels: Tensor) -> Tensor:
    """Compute the standard errors (m, q) of the curves in standardized units."""
    h, cov, rows = estimator.function_, estimator.sandwich_, estimator.function_.tasks(levels[:, None])
    variances = [
        cov.variance(h.inputs(part), rows) + cov.temperature * h.residual_variance(part, levels)
        for part in X.split(CHUNK_POINTS)
    ]
    return (torch.cat(variances) + compute_offset_variance(estimator, levels)).sqrt()


def compute_replicate_std(estimator, X: Tensor, levels: Tensor) -> Tensor:
    """Compute the standard deviation (m, q) of the curves over the replicates, in standardized units."""
    functions = [replace(estimator.function_, weights=torch.from_numpy(W)) for W in estimator._replicates]
    return torch.cat([torch.stack([h(part, levels) for h in functions]).std(0) for part in X.split(CHUNK_POINTS)])


def compute_offset_variance(estimator, levels: Tensor) -> Tensor:
    """Compute the variance (q,) of the prior mean b, which was estimated too, in standardized units."""
    offset = estimator.function_.offset
    if isinstance(offset, GaussianQuantiles):
        return offset.variance(levels, estimator._data.count)
    return torch.zeros_like(levels)


def draw_offset_errors(estimator, levels: Tensor, num_samples: int, random_state) -> Tensor:
    """Draw errors (num_samples, q) of b with this variance, in standardized units."""
    offset = estimator.function_.offset
    if not isinstance(offset, GaussianQuantiles):
        return levels.new_zeros(num_samples, len(levels))
    rng = np.random.default_rng(np.random.SeedSequence(as_seed(random_state), spawn_key=(OFFSET_STREAM,)))
    return offset.errors(levels, estimator._data.count, torch.from_numpy(rng.standard_normal((num_samples, 2))))


def fit_replicates(estimator, seed: int) -> np.ndarray:
    """Fit W (B, r, q) of `num_replicates` Bayesian bootstrap replicates. B solutions."""
    model, side = rebuild_model(estimator)

    def fit(weights: np.ndarray) -> np.ndarray:
        weighted = replace(model, rows=replace(model.rows, weights=weights))
        return refitted_weights(solve_quantiles(estimator, weighted, side, estimator.lam_, estimator.function_.weights))

    weights = replicate_weights(model.rows.weights, estimator.num_replicates, seed)
    return np.stack(replicate_fits(fit, weights, estimator.verbose))
