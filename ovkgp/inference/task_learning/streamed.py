"""The problem of `problem` with more rows than memory: Φ is made a few rows at a time and forgotten (LT-86, BT-102).

One pass over the rows gives J, its smoothed twin J_κ, ∇J_κ and the duality gap at once. With the slopes a = e_κ'(h) of the envelope,
L*(a) = ⟨a, h⟩ − e_κ(h) − κ/2 ‖a‖² at no further cost, and A = −a is feasible in the dual of the loss itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from ovkgp.exceptions import InputError
from ovkgp.features.noise import as_seed
from ovkgp.inference.task_learning.factors import Factor
from ovkgp.inference.task_learning.problem import TaskProblem, checked_row_weights
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
        >>> from ovkgp.inference.task_learning.streamed import StreamedProblem
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
