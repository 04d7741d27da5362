"""Coordinates in which J has nearly the same curvature in all directions, so that gradients need few steps.

Near its minimum ∇²J ≈ λ + (ΦᵀSΦ/n) ⊗ (Ψᵀ diag(η f) Ψ), f_j the mean curvature of the loss in task j: for quantiles, the density of the
residuals at their quantile. With the eigenpairs (s, P) and (t, Q) of the two factors, W = P [U_kl / √(λ + s_k t_l)] Qᵀ.
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
from ovkgp.inference.algebra.dense import gram
from ovkgp.inference.algebra.kronecker import eigh
from ovkgp.inference.model.fit_report import FitReport
from ovkgp.inference.tasks.factors import Factor
from ovkgp.inference.tasks.problem import TaskProblem, checked_row_weights
from ovkgp.inference.tasks.solvers.certificates import GapTracker
from ovkgp.losses import CurveEnvelope, CurveLoss

ENTRIES = 1 << 19
"""Entries of Φ that are held at once: 4 MB, about what a processor's cache holds."""


class Evaluation(NamedTuple):
    """What a pass finds at W.

    Attributes:
        smoothed: J_κ(W).
        gradient: its gradient (r, q).
        objective: J(W).
        gap: J(W) − D(A) for the slopes −A at W.
    """

    smoothed: float
    gradient: Tensor
    objective: float
    gap: float


class TaskBatch(NamedTuple):
    """Nodes on which a chunk is looked at, in place of all nodes of the problem.

    Attributes:
        loss: L with these k nodes and their weights.
        tasks: Ψ (k, q).
        offset: b (k,); zero where None.
        columns: the columns (k,) of targets (n, m) that are theirs; of no use where all tasks share a target.
    """

    loss: CurveLoss
    tasks: Tensor
    offset: Tensor | None = None
    columns: Tensor | None = None


@dataclass
class StreamedProblem:
    """J on rows that are made when they are needed.

    Args:
        rows: from places (k,), a tensor of whole numbers, to the rows (k, r) of Φ there; `of` makes it from a factor and X.
        tasks: Ψ (m, q), shared by all rows.
        targets: (n, m) or (n, 1), finite.
        loss: L, with the same nodes and weights for all rows.
        lam: λ > 0.
        row_weights: s (n,); ones where None.
        offset: b at the nodes (m,), taken off the targets chunk by chunk: (n, 1) targets then stay (n, 1).
        random_state: of the order of the rows: any first part of them is a random sample.

    Cost: a pass is O(n q (r + m)) time and the making of Φ; memory O(r q) and `ENTRIES` beside the data.

    Example:
        >>> import torch
        >>> from ovkgp.inference.tasks.solvers.streamed import StreamedProblem
        >>> from ovkgp.losses import IntegralLoss, Pinball, gauss_legendre
        >>> X = torch.linspace(-1, 1, 50).double()[:, None]
        >>> loss = IntegralLoss(Pinball(), gauss_legendre(3))
        >>> problem = StreamedProblem.of(lambda X: torch.cat([X, X**2], -1), X, torch.eye(3).double(), X, loss, lam=0.1)
        >>> found = problem.evaluate(torch.zeros(2, 3).double(), kappa=0.1)
        >>> found.gradient.shape, found.smoothed <= found.objective, found.gap >= 0
        (torch.Size([2, 3]), True, True)
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
            raise InputError(f"targets must be (n, m) or (n, 1) with n ≥ 1, got {tuple(self.targets.shape)}.")
        if self.loss.nodes.dim() != 1 or self.loss.weights.dim() != 1 or self.tasks.dim() != 2:
            raise InputError(
                "a streamed problem has one set of nodes for all rows: tasks must be (m, q), weights (m,)."
            )
        if not bool(torch.isfinite(self.targets).all()):
            raise InputError("a target is NaN or infinite: leave its row out.")
        if self.row_weights is None:
            self.row_weights = torch.ones(self.num_rows, dtype=torch.float64)
        self.row_weights = checked_row_weights(self.row_weights, self.num_rows)
        if self.offset is not None and self.offset.shape != self.loss.nodes.shape:
            raise InputError(
                f"offset must be {len(self.loss.nodes)} numbers, one a node; got {tuple(self.offset.shape)}."
            )
        generator = torch.Generator().manual_seed(as_seed(self.random_state))
        self.order = torch.randperm(self.num_rows, generator=generator)
        self.shape = self.chunk(self.order[:1]).shape
        """(r, q), that of W."""
        self.rows_at_once = max(1, ENTRIES // self.shape[0])

    @classmethod
    def of(cls, factor: Factor, X: Tensor, tasks: Tensor, targets: Tensor, loss: CurveLoss, lam: float, **options):
        """The problem with the rows φ(x_i) of a factor, for X (n, d)."""
        if X.dim() != 2 or len(X) != len(targets):
            raise InputError(
                f"X must be (n, d) with a row for each target, got {tuple(X.shape)}, {len(targets)} targets."
            )
        return cls(lambda places: factor(X[places]), tasks, targets, loss, lam, **options)

    @property
    def num_rows(self) -> int:
        """n."""
        return len(self.targets)

    def chunk(self, places: Tensor, batch: TaskBatch | None = None) -> TaskProblem:
        """The same problem on the rows at some places (k,), in memory; with other nodes where a batch of them is given."""
        batch, targets = batch or TaskBatch(self.loss, self.tasks, self.offset), self.targets[places]
        if batch.columns is not None and targets.shape[1] > 1:
            targets = targets[:, batch.columns]
        targets = targets if batch.offset is None else targets - batch.offset
        return TaskProblem(self.rows(places), batch.tasks, targets, batch.loss, self.lam, self.row_weights[places])

    def chunks(self, num_rows: int | None = None) -> Iterator[TaskProblem]:
        """All rows, or the first of the random order, a chunk at a time."""
        return map(self.chunk, self.order[:num_rows].split(self.rows_at_once))

    def smoothing(self, kappa: float) -> float:
        """κ, or 0 where the loss is that smooth by itself."""
        return kappa if kappa * self.loss.lipschitz() > 0.1 else 0.0

    def smoothed_loss(self, kappa: float) -> CurveLoss:
        """The Moreau envelope of L; for κ = 0, L itself."""
        return CurveEnvelope(self.loss, kappa) if kappa else self.loss

    def evaluate(self, weights: Tensor, kappa: float, num_rows: int | None = None) -> Evaluation:
        """J, J_κ, ∇J_κ and the gap at W (r, q), of all rows or of the first `num_rows` in the random order. One pass."""
        smooth, count = self.smoothed_loss(kappa), min(num_rows or self.num_rows, self.num_rows)
        sums, gradient = torch.zeros(3, dtype=torch.float64), torch.zeros(self.shape, dtype=torch.float64)
        for part in self.chunks(count):
            H = part.values(weights)
            value, slope = smooth.value_and_derivative(H, part.targets)
            conjugate = (part.loss.weights * slope * (H - kappa / 2 * slope)).sum(-1) - value
            rows = [value, part.loss.value(H, part.targets) if kappa else value, conjugate]
            sums += torch.stack(rows) @ part.row_weights
            gradient += part.adjoint(part.entry_weights * slope)
        (smoothed, risk, conjugate), gradient = (sums / count).tolist(), gradient / count
        prior, dual_prior = (
            size / 2 * float(x.square().sum()) for size, x in ((self.lam, weights), (1 / self.lam, gradient))
        )
        gap = risk + prior + conjugate + dual_prior
        return Evaluation(smoothed + prior, gradient + self.lam * weights, risk + prior, gap)


@dataclass
class StreamedSolution:
    """What was found. The dual A, n × m numbers, is not kept: A = −e_κ'(h), made again a chunk at a time where it is wanted.

    Args:
        weights: W (r, q).
        objective: J(W), over all rows.
        gap: J(W) − D(A) ≥ 0 for the best A that was seen: J(W) is at most this far above the least value.
        report: how it was found; its `evaluations` are passes over the rows, parts of them as such, rounded up.
    """

    weights: Tensor
    objective: float
    gap: float
    report: FitReport


class StreamedRun(GapTracker):
    """What a solver of streamed rows remembers.

    Args:
        problem: J.
        tolerance: it is `done` where gap ≤ tolerance · |J|.
        max_iter: the most steps.
        verbose: 1 shows the gap as it falls.

    Cost: a pass each look.

    Example:
        >>> import torch
        >>> from ovkgp.inference.tasks.solvers.streamed import StreamedProblem
        >>> from ovkgp.inference.tasks.solvers.streamed import StreamedRun
        >>> from ovkgp.losses import IntegralLoss, Square, gauss_legendre
        >>> one, loss = torch.ones(1, 1).double(), IntegralLoss(Square(), gauss_legendre(1))
        >>> run = StreamedRun(StreamedProblem.of(torch.ones_like, one, one, one, loss, lam=1.0), tolerance=1e-6, max_iter=1)
        >>> run.look_at(one / 2).objective, run.done
        (0.25, True)
    """

    def __init__(self, problem: StreamedProblem, tolerance: float, max_iter: int, verbose: int = 0):
        super().__init__(torch.zeros(problem.shape, dtype=torch.float64), tolerance, max_iter, verbose)
        self.problem, self.passes = problem, 0.0

    def look_at(self, weights: Tensor, kappa: float = 0.0, num_rows: int | None = None) -> Evaluation:
        """A pass with the slopes of e_κ; where it sees all rows it is held against the best so far."""
        found = self.problem.evaluate(weights, kappa, num_rows)
        self.passes += (num_rows or self.problem.num_rows) / self.problem.num_rows
        if num_rows is None:
            self.above(weights, found.objective)
            self.below(found.objective - found.gap)
        return found

    def solution(self, report: FitReport) -> StreamedSolution:
        return StreamedSolution(self.weights, self.objective, self.gap, report)

    def counts(self) -> dict[str, int]:
        problem = self.problem
        observed = int((problem.row_weights > 0).sum()) * int((problem.loss.weights > 0).sum())
        return {"evaluations": math.ceil(self.passes), "num_rows": problem.num_rows, "num_observed": observed}


ROWS_EACH, MIN_ROWS = 10, 4000
"""Rows for each coordinate, and the least rows, by which curvatures are estimated: they need not be exact."""
FIRST_WIDTH, WIDTH, FLAT = 0.5, 0.06, 0.02
"""How far, in `unit`, slopes are taken to either side for a curvature, before anything is known and at a fit; and the least curvature,
as a part of the largest."""


class StreamedCoordinates:
    """W = P [U / √(λ + s tᵀ)] Qᵀ.

    Args:
        problem: J.
        unit: of h, about the size of a target (`unit`).

    Cost: O(r³ + q³) once, for some 10 r rows, O(r² q) a change of coordinates; memory O(r²).

    Example:
        >>> import torch
        >>> from ovkgp.inference.tasks.solvers.streamed import StreamedProblem
        >>> from ovkgp.inference.tasks.solvers.streamed import StreamedCoordinates
        >>> from ovkgp.losses import IntegralLoss, Square, gauss_legendre
        >>> X, loss = torch.linspace(1, 2, 9).double()[:, None], IntegralLoss(Square(), gauss_legendre(2))
        >>> problem = StreamedProblem.of(lambda X: torch.cat([X, 1e3 * X**2], -1), X, torch.eye(2).double(), X, loss, lam=1e-3)
        >>> coordinates = StreamedCoordinates(problem, unit=1.0)
        >>> W = torch.randn(2, 2, generator=torch.Generator().manual_seed(0)).double()
        >>> torch.allclose(coordinates.back(coordinates.into(W)), W)
        True
        >>> def slope(W):
        ...     return coordinates.gradient(problem.evaluate(W, 0.0).gradient)
        >>> torch.allclose(slope(W) - slope(0 * W), coordinates.into(W))  # the curvature is one in all directions
        True
    """

    def __init__(self, problem: StreamedProblem, unit: float):
        self.problem, self.unit = problem, unit
        self.num_rows = min(max(ROWS_EACH * problem.shape[0], MIN_ROWS), problem.num_rows)
        total = sum(gram(part.row_weights.sqrt()[:, None] * part.inputs) for part in problem.chunks(self.num_rows))
        self.input_values, self.input_vectors = eigh(total / self.num_rows)
        self.adapt(torch.zeros(problem.shape, dtype=torch.float64), FIRST_WIDTH)

    def adapt(self, weights: Tensor, width: float = WIDTH, flat: float = FLAT) -> None:
        """Measure the curvature of the tasks again, at W and on the first rows of the random order."""
        problem = self.problem
        curvature = task_curvatures(problem, weights, width * self.unit, self.num_rows)
        largest = float(curvature.max())
        curvature = curvature.clamp_min(flat * largest) if largest > 0 else torch.full_like(curvature, 1 / self.unit)
        tasks = (problem.loss.weights * curvature).sqrt()[:, None] * problem.tasks
        self.task_values, self.task_vectors = eigh(gram(tasks))
        self.scale = (problem.lam + self.input_values[:, None] * self.task_values).rsqrt()

    @property
    def dimensions(self) -> tuple[float, float]:
        """Effective numbers of coordinates, Σ_kl s_k t_l/(λ + s_k t_l), and of tasks, Σ_l max_k of the same."""
        parts = 1 - self.problem.lam * self.scale.square()
        return float(parts.sum()), float(parts.amax(0).sum())

    def back(self, coordinates: Tensor) -> Tensor:
        """W of U."""
        return self.input_vectors @ (self.scale * coordinates) @ self.task_vectors.T

    def into(self, weights: Tensor) -> Tensor:
        """U of W."""
        return (self.input_vectors.T @ weights @ self.task_vectors) / self.scale

    def gradient(self, gradient: Tensor) -> Tensor:
        """The gradient in U of one in W."""
        return self.scale * (self.input_vectors.T @ gradient @ self.task_vectors)


def task_curvatures(problem: StreamedProblem, weights: Tensor, width: float, num_rows: int | None = None) -> Tensor:
    """f (m,), the mean over the rows of (L'(h + width) − L'(h − width)) / (2 width)."""
    total, mass = torch.zeros(len(problem.tasks), dtype=torch.float64), 0.0
    for part in problem.chunks(num_rows):
        H = part.values(weights)
        rise = part.loss.derivative(H + width, part.targets) - part.loss.derivative(H - width, part.targets)
        total, mass = total + part.row_weights @ rise, mass + float(part.row_weights.sum())
    return total / (2 * width * mass) if mass > 0 else total


def target_unit(problem: StreamedProblem, num_rows: int = 10_000) -> float:
    """The size of a target over that of a slope at h = 0: what κ is measured in.

    Example:
        >>> import torch
        >>> from ovkgp.inference.tasks.solvers.streamed import StreamedProblem
        >>> from ovkgp.inference.tasks.solvers.streamed import target_unit
        >>> from ovkgp.losses import IntegralLoss, Square, gauss_legendre
        >>> X, loss = torch.linspace(1, 2, 9).double()[:, None], IntegralLoss(Square(), gauss_legendre(2))
        >>> target_unit(StreamedProblem.of(lambda X: X, X, torch.eye(2).double(), X, loss, lam=1.0))
        1.0
    """
    squares = torch.zeros(2, dtype=torch.float64)
    for part in problem.chunks(num_rows):
        slopes = part.loss.derivative(torch.zeros_like(part.entry_weights), part.targets)
        sizes = [(part.entry_weights * values.square()).sum() for values in (part.targets.expand_as(slopes), slopes)]
        squares += torch.stack(sizes)
    if not bool(torch.isfinite(squares).all()):
        raise InputError("the squares of the targets overflow: scale them.")
    target, slope = squares.sqrt().tolist()
    return target / slope if min(target, slope) > 0 else 1.0
