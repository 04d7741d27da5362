"""Problems with many rows, evaluated one chunk at a time, and coordinates in which they have unit curvature.

Near the minimum ∇²J ≈ λ + (ΦᵀSΦ/n) ⊗ (Ψᵀ diag(η f) Ψ), f_j the mean curvature of the loss in task j: for quantiles, the
density of the residuals at their quantile. With the eigenpairs (s, P) and (t, Q) of the two factors, W = P [U_kl / √(λ
+ s_k t_l)] Qᵀ.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from ovkgp.checks import as_seed
from ovkgp.exceptions import InputError
from ovkgp.functional.factors import Factor
from ovkgp.inference.algebra.dense import gram
from ovkgp.inference.algebra.kronecker import eigh
from ovkgp.inference.model.fit_report import FitReport
from ovkgp.inference.tasks.problem import TaskProblem, check_row_weights
from ovkgp.inference.tasks.solvers.certificates import GapTracker
from ovkgp.losses import CurveEnvelope, CurveLoss

CACHE_CHUNK_ENTRIES = 1 << 19  # number of entries of Φ in a chunk: 4 MB, about the size of a processor cache
ROWS_PER_COORDINATE, MIN_ROWS = 10, 4000
"""Number of rows per coordinate, and minimum number of rows, from which curvatures are estimated."""
INITIAL_WIDTH, DEFAULT_WIDTH, MIN_CURVATURE_FRACTION = 0.5, 0.06, 0.02
"""Half width, in `unit`, of the difference of slopes, initially and near a fit; minimum curvature over the largest."""


@dataclass
class StreamedProblem:
    """J with rows of Φ that are evaluated when they are needed.

    rows maps indices (k,) to rows (k, r) of Φ; `from_factor` builds it from a factor and X. tasks is Ψ (m, q), shared
    by all rows, and targets (n, m) or (n, 1) are finite. row_weights s (n,) are ones if None. offset b (m,) is
    subtracted from the targets in each chunk. random_state seeds the order of the rows, of which any first part is a
    random sample.

    Complexity: a pass takes O(n q (r + m)) time and the evaluation of Φ; memory O(r q) and `CACHE_CHUNK_ENTRIES` in addition
    to the data.
    """

    rows: Callable[[Tensor], Tensor]
    tasks: Tensor
    targets: Tensor
    loss: CurveLoss
    lam: float
    row_weights: Tensor | None = None
    offset: Tensor | None = None
    random_state: int | None = None

    def __post_init__(self):
        if self.targets.dim() != 2 or not len(self.targets):
            raise InputError(f"targets must have shape (n, m) or (n, 1) with n ≥ 1, got {tuple(self.targets.shape)}.")
        if not self.loss.has_shared_nodes or self.loss.weights.dim() != 1 or self.tasks.dim() != 2:
            raise InputError(
                f"tasks must have shape (m, q) and weights (m,), shared by all rows, got {tuple(self.tasks.shape)} and {tuple(self.loss.weights.shape)}."
            )
        if not bool(torch.isfinite(self.targets).all()):
            raise InputError("targets must be finite, got NaN or infinity. Drop these rows.")
        if self.row_weights is None:
            self.row_weights = torch.ones(self.num_rows, dtype=torch.float64)
        self.row_weights = check_row_weights(self.row_weights, self.num_rows)
        if self.offset is not None and self.offset.shape != (self.loss.num_nodes,):
            raise InputError(
                f"offset must have shape ({self.loss.num_nodes},), one number per node, got {tuple(self.offset.shape)}."
            )
        generator = torch.Generator().manual_seed(as_seed(self.random_state))
        self.order = torch.randperm(self.num_rows, generator=generator)
        self.shape = self.chunk(self.order[:1]).shape
        self.max_chunk_rows = max(1, CACHE_CHUNK_ENTRIES // self.shape[0])

    @classmethod
    def from_factor(
        cls, factor: Factor, X: Tensor, tasks: Tensor, targets: Tensor, loss: CurveLoss, lam: float, **options
    ):
        """Build the problem with the rows φ(x_i) of a factor, for X (n, d)."""
        if X.dim() != 2 or len(X) != len(targets):
            raise InputError(
                f"X must have shape (n, d) with one row per target, got {tuple(X.shape)} and {len(targets)} targets."
            )
        return cls(lambda indices: factor(X[indices]), tasks, targets, loss, lam, **options)

    @property
    def num_rows(self) -> int:
        return len(self.targets)

    def chunk(self, indices: Tensor, batch: TaskBatch | None = None) -> TaskProblem:
        """Return the problem on the rows with some indices (k,), in memory; with other nodes if a batch is given."""
        batch, targets = batch or TaskBatch(self.loss, self.tasks, self.offset), self.targets[indices]
        if batch.columns is not None and targets.shape[1] > 1:
            targets = targets[:, batch.columns]
        targets = targets if batch.offset is None else targets - batch.offset
        return TaskProblem(self.rows(indices), batch.tasks, targets, batch.loss, self.lam, self.row_weights[indices])

    def chunks(self, num_rows: int | None = None) -> Iterator[TaskProblem]:
        """Iterate over chunks of all rows, or of the first `num_rows` in the random order."""
        return map(self.chunk, self.order[:num_rows].split(self.max_chunk_rows))

    def smoothing(self, kappa: float) -> float:
        """Return κ, or 0 if the loss is smooth enough without it."""
        return kappa if kappa * self.loss.lipschitz() > 0.1 else 0.0

    def evaluate(self, weights: Tensor, kappa: float, num_rows: int | None = None) -> Evaluation:
        """Return J, J_κ, ∇J_κ and the gap at W (r, q), on all rows or the first `num_rows` in random order."""
        smooth = CurveEnvelope(self.loss, kappa) if kappa else self.loss
        count = min(num_rows or self.num_rows, self.num_rows)
        sums, gradient = torch.zeros(3, dtype=torch.float64), torch.zeros(self.shape, dtype=torch.float64)
        for part in self.chunks(count):
            H = part.values(weights)
            value, slope = smooth.value_and_derivative(H, part.targets)
            conjugate = (part.loss.weights * slope * (H - kappa / 2 * slope)).sum(-1) - value
            rows = [value, part.loss.value(H, part.targets) if kappa else value, conjugate]
            sums += torch.stack(rows) @ part.row_weights
            gradient += part.adjoint(part.entry_weights * slope)
        (smoothed, risk, conjugate), gradient = (sums / count).tolist(), gradient / count
        prior = self.lam / 2 * float(weights.square().sum())
        gap = risk + prior + conjugate + float(gradient.square().sum()) / (2 * self.lam)
        return Evaluation(smoothed + prior, gradient + self.lam * weights, risk + prior, gap)


@dataclass
class StreamedSolution:
    """Result of a solver of streamed rows: W (r, q), J(W) over all rows, the gap to the best D(A), and a report.

    The dual A (n, m) is not stored: A = −e_κ'(h) can be computed again in chunks. `report.evaluations` counts passes
    over the rows, rounded up.
    """

    weights: Tensor
    objective: float
    gap: float
    report: FitReport


class StreamedRun(GapTracker):
    """Best J(W) and D(A) of a solver of streamed rows. Each evaluation takes a pass."""

    def __init__(self, problem: StreamedProblem, tolerance: float, max_iter: int, verbose: int = 0):
        super().__init__(torch.zeros(problem.shape, dtype=torch.float64), tolerance, max_iter, verbose)
        self.problem, self.passes = problem, 0.0

    def evaluate_at(self, weights: Tensor, kappa: float = 0.0, num_rows: int | None = None) -> Evaluation:
        """Evaluate W with the slopes of e_κ; if all rows are used, update the best values."""
        evaluation = self.problem.evaluate(weights, kappa, num_rows)
        self.passes += (num_rows or self.problem.num_rows) / self.problem.num_rows
        if num_rows is None:
            self.update_upper(weights, evaluation.objective)
            self.update_lower(evaluation.objective - evaluation.gap)
        return evaluation

    def solution(self, report: FitReport) -> StreamedSolution:
        return StreamedSolution(self.weights, self.objective, self.gap, report)

    def counts(self) -> dict[str, int]:
        problem = self.problem
        observed = int((problem.row_weights > 0).sum()) * int((problem.loss.weights > 0).sum())
        return {"evaluations": math.ceil(self.passes), "num_rows": problem.num_rows, "num_observed": observed}


class Evaluation(NamedTuple):
    """Result of a pass at W: J_κ(W), its gradient (r, q), J(W), and J(W) − D(A) for the slopes −A at W."""

    smoothed: float
    gradient: Tensor
    objective: float
    gap: float


class TaskBatch(NamedTuple):
    """Nodes that replace those of the problem in a chunk: L, Ψ (k, q), b (k,) and the columns (k,) of targets.

    If `offset` is None, b is zero. `columns` are ignored if all tasks share a target.
    """

    loss: CurveLoss
    tasks: Tensor
    offset: Tensor | None = None
    columns: Tensor | None = None


class StreamedCoordinates:
    """Coordinates W = P [U / √(λ + s tᵀ)] Qᵀ; `unit` of h is about the size of a target.

    Complexity: O(r³ + q³) once, for about 10 r rows, O(r² q) per change of coordinates; memory O(r²).
    """

    def __init__(self, problem: StreamedProblem, unit: float):
        self.problem, self.unit = problem, unit
        self.num_rows = min(max(ROWS_PER_COORDINATE * problem.shape[0], MIN_ROWS), problem.num_rows)
        total = sum(gram(part.row_weights.sqrt()[:, None] * part.inputs) for part in problem.chunks(self.num_rows))
        self.input_values, self.input_vectors = eigh(total / self.num_rows)
        self.adapt(torch.zeros(problem.shape, dtype=torch.float64), INITIAL_WIDTH)

    def adapt(
        self, weights: Tensor, width: float = DEFAULT_WIDTH, min_fraction: float = MIN_CURVATURE_FRACTION
    ) -> None:
        """Estimate the curvature of the tasks again, at W and on the first rows of the random order."""
        problem = self.problem
        curvature = task_curvatures(problem, weights, width * self.unit, self.num_rows)
        largest = float(curvature.max())
        typical = torch.full_like(curvature, 1 / self.unit)
        curvature = curvature.clamp_min(min_fraction * largest) if largest > 0 else typical
        tasks = (problem.loss.weights * curvature).sqrt()[:, None] * problem.tasks
        self.task_values, self.task_vectors = eigh(gram(tasks))
        self.scale = (problem.lam + self.input_values[:, None] * self.task_values).rsqrt()

    @property
    def dimensions(self) -> tuple[float, float]:
        """Effective number of coordinates, Σ_kl s_k t_l/(λ + s_k t_l), and of tasks, Σ_l max_k of the same."""
        parts = 1 - self.problem.lam * self.scale.square()
        return float(parts.sum()), float(parts.amax(0).sum())

    def from_coordinates(self, coordinates: Tensor) -> Tensor:
        """Return W for U."""
        return self.input_vectors @ (self.scale * coordinates) @ self.task_vectors.T

    def to_coordinates(self, weights: Tensor) -> Tensor:
        """Return U for W."""
        return (self.input_vectors.T @ weights @ self.task_vectors) / self.scale

    def gradient(self, gradient: Tensor) -> Tensor:
        """Convert a gradient in W to one in U."""
        return self.scale * (self.input_vectors.T @ gradient @ self.task_vectors)


def task_curvatures(problem: StreamedProblem, weights: Tensor, width: float, num_rows: int | None = None) -> Tensor:
    """Return f (m,), the mean over the rows of (L'(h + width) − L'(h − width)) / (2 width)."""
    total, mass = torch.zeros(len(problem.tasks), dtype=torch.float64), 0.0
    for part in problem.chunks(num_rows):
        H = part.values(weights)
        rise = part.loss.derivative(H + width, part.targets) - part.loss.derivative(H - width, part.targets)
        total, mass = total + part.row_weights @ rise, mass + float(part.row_weights.sum())
    return total / (2 * width * mass) if mass > 0 else total


def estimate_target_unit(problem: StreamedProblem, num_rows: int = 10_000) -> float:
    """Return the size of a target over that of a slope at h = 0, the unit of κ."""
    squares = torch.zeros(2, dtype=torch.float64)
    for part in problem.chunks(num_rows):
        slopes = part.loss.derivative(torch.zeros_like(part.entry_weights), part.targets)
        sizes = [(part.entry_weights * values.square()).sum() for values in (part.targets.expand_as(slopes), slopes)]
        squares += torch.stack(sizes)
    if not bool(torch.isfinite(squares).all()):
        raise InputError("The squares of the targets overflow. Scale the targets.")
    target, slope = squares.sqrt().tolist()
    return target / slope if min(target, slope) > 0 else 1.0
