"""The learning problem of a family of tasks, and the learned function h(x)(θ) = b(θ) + φ(x)ᵀ W ψ(θ) (LT-34).

primal  J(W) = (1/n) Σ_i s_i L(H_i, y_i) + (λ/2) ‖W‖²,  H = Φ W Ψᵀ
dual    D(A) = −(1/n) Σ_i s_i L*(−A_i, y_i) − (λ/2) ‖W(A)‖²,  W(A) = (1/λn) Σ_ij ω_ij a_ij φ_i ψ_ijᵀ
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ovkgp.checks import check_positive
from ovkgp.exceptions import InputError
from ovkgp.functional.factors import Factor
from ovkgp.inference.model.fit_report import FitReport
from ovkgp.losses import CurveLoss


@dataclass
class TaskProblem:
    """The objective J and its dual.

    inputs is Φ (n, r). tasks is Ψ (m, q), or (n, m, q) if each row has separate nodes. targets are y (n, m) or (n, 1)
    minus the offset b, with any value, including NaN, where the weight ω is 0. lam is λ > 0 of the canonical objective;
    the estimators convert their conventions. row_weights are s ≥ 0 (n,), ones if None.

    Complexity: O(n q (r + m)) for values and gradients, with nothing larger than (n, m) in memory.
    """

    inputs: Tensor
    tasks: Tensor
    targets: Tensor
    loss: CurveLoss
    lam: float
    row_weights: Tensor | None = None

    def __post_init__(self):
        check_positive("lam", self.lam)
        self.inputs, self.tasks = _check_finite("inputs", self.inputs), _check_finite("tasks", self.tasks)
        self._check_shapes()
        if self.row_weights is None:
            self.row_weights = self.inputs.new_ones(self.num_rows)
        self.row_weights = check_row_weights(self.row_weights, self.num_rows)
        self.entry_weights = self.row_weights[:, None] * self.loss.weights  # ω (n, m)
        self.targets = self._mask_targets()

    def _check_shapes(self) -> None:
        m = self.loss.num_nodes
        if self.inputs.dim() != 2 or not self.num_rows:
            raise InputError(f"inputs must have shape (n, r) with n ≥ 1, got {tuple(self.inputs.shape)}.")
        if self.tasks.shape[:-1] not in ((m,), (self.num_rows, m)):
            raise InputError(
                f"tasks must have shape (m, q) or (n, m, q) with m = {m} nodes of the loss and n = {self.num_rows} rows, got {tuple(self.tasks.shape)}."
            )
        if not self.loss.has_shared_nodes and len(self.loss.nodes) != self.num_rows:
            raise InputError(f"The loss must have nodes for {self.num_rows} rows, got {len(self.loss.nodes)}.")
        if self.targets.shape not in ((self.num_rows, 1), (self.num_rows, m)):
            raise InputError(
                f"targets must have shape ({self.num_rows}, {m}) or ({self.num_rows}, 1), got {tuple(self.targets.shape)}."
            )

    def _mask_targets(self) -> Tensor:
        """Return the targets with 0 where the weight is 0, so that NaN is never multiplied by 0."""
        targets = self.targets.double()
        counted = self.entry_weights > 0
        if targets.shape[1] == 1:
            counted = counted.any(-1, keepdim=True)
        if not bool(torch.isfinite(targets[counted]).all()):
            raise InputError(
                "targets must be finite where their weight is positive, got NaN or infinity. Give them weight 0 or drop them."
            )
        return torch.where(counted, targets, 0.0)

    @property
    def num_rows(self) -> int:
        return len(self.inputs)

    @property
    def shape(self) -> tuple[int, int]:
        """Shape (r, q) of W."""
        return self.inputs.shape[1], self.tasks.shape[-1]

    @property
    def is_shared(self) -> bool:
        """Whether all rows have the same nodes."""
        return self.tasks.dim() == 2

    def values(self, weights: Tensor) -> Tensor:
        """Return H = Φ W Ψᵀ, (n, m)."""
        rows = (weights.T @ self.inputs.T).T  # takes half the time of Φ W
        return rows @ self.tasks.T if self.is_shared else torch.einsum("iq,ijq->ij", rows, self.tasks)

    def adjoint(self, entries: Tensor) -> Tensor:
        """Return Σ_ij e_ij φ_i ψ_ijᵀ, (r, q), for entries (n, m)."""
        rows = entries @ self.tasks if self.is_shared else torch.einsum("ij,ijq->iq", entries, self.tasks)
        return (rows.T @ self.inputs).T.contiguous()

    def risk(self, H: Tensor, loss: CurveLoss | None = None) -> Tensor:
        """Return (1/n) Σ_i s_i L(H_i, y_i)."""
        return self._mean((loss or self.loss).value(H, self.targets))

    def objective(self, weights: Tensor, H: Tensor | None = None) -> Tensor:
        """Return J(W)."""
        H = self.values(weights) if H is None else H
        return self.risk(H) + self.lam / 2 * weights.square().sum()

    def dual_weights(self, dual: Tensor) -> Tensor:
        """Return W(A), (r, q)."""
        return self.adjoint(self.entry_weights * dual) / (self.lam * self.num_rows)

    def dual_objective(self, dual: Tensor, weights: Tensor | None = None) -> Tensor:
        """Return D(A); −∞ if A is infeasible."""
        weights = self.dual_weights(dual) if weights is None else weights
        return -self._mean(self.loss.conjugate(-dual, self.targets)) - self.lam / 2 * weights.square().sum()

    def _mean(self, rows: Tensor) -> Tensor:
        """Return (1/n) Σ_i s_i r_i; rows without weight do not count, even if they are infinite."""
        return torch.where(self.row_weights > 0, self.row_weights * rows, 0.0).sum() / self.num_rows


@dataclass
class TaskSolution:
    """Result of a solver: weights W (r, q), a feasible dual A (n, m), J(W), the gap J(W) − D(A) ≥ 0 and a report.

    J(W) exceeds the minimum by at most the gap; `report.converged` means gap ≤ tolerance · |J(W)|.
    """

    weights: Tensor
    dual: Tensor
    objective: float
    gap: float
    report: FitReport


def zero_offset(tasks: Tensor) -> Tensor:
    """Return b = 0."""
    return tasks.new_zeros(len(tasks))


@dataclass
class TaskFunction:
    """The learned function h, with φ, ψ, W (r, q) and the prior mean b, which maps tasks to (m,).

    Tasks have shape (m,) in one dimension and (m, b) in R^b, b > 1 (LT-34).

    Complexity: O(n r q + n m q) per call, plus the rows of φ and ψ.
    """

    inputs: Factor
    tasks: Factor
    weights: Tensor
    offset: Callable[[Tensor], Tensor] = zero_offset

    def __call__(self, X: Tensor, tasks: Tensor) -> Tensor:
        """Return h(x_i)(θ_j), (n, m), for X (n, d) and tasks (m,) or (m, b)."""
        tasks = _check_tasks(tasks)
        return self.offset(tasks) + self._evaluate(X, self.tasks(_as_columns(tasks)))

    def slopes(self, X: Tensor, tasks: Tensor) -> Tensor:
        """Return ∂_θ h(x_i)(θ_j), (n, m), at tasks (m,), including that of the offset; raise SmoothnessError if ψ has none."""
        tasks = _check_tasks(tasks)
        if tasks.dim() == 2:
            raise InputError(
                f"Slopes require tasks of shape (m,), in one dimension, got {tuple(tasks.shape)}. Use differences of predictions in R^b."
            )
        with torch.enable_grad():
            variable = tasks.detach().clone().requires_grad_()
            offset = self.offset(variable)
            slope = torch.autograd.grad(offset.sum(), variable)[0] if offset.requires_grad else torch.zeros_like(tasks)
        return slope + self._evaluate(X, self.tasks.slopes(tasks.unsqueeze(-1)))

    def residual_variance(self, X: Tensor, tasks: Tensor) -> Tensor:
        """Return k_X k_Θ − ‖φ‖² ‖ψ‖² (n, m), the prior variance outside the span of the coordinates."""
        tasks = _as_columns(_check_tasks(tasks))
        inputs, rows = (factor(points).square().sum(-1) for factor, points in ((self.inputs, X), (self.tasks, tasks)))
        total = (inputs + self.inputs.residual_variance(X))[:, None] * (rows + self.tasks.residual_variance(tasks))
        return total - inputs[:, None] * rows

    def norm(self) -> float:
        """Return ‖h − b‖ in the RKHS of k_X · k_Θ."""
        return torch.linalg.vector_norm(self.weights).item()

    def _evaluate(self, X: Tensor, rows: Tensor) -> Tensor:
        return self.inputs(X) @ (self.weights @ rows.T)


def check_row_weights(row_weights: Tensor, num_rows: int) -> Tensor:
    """Return s (n,) in float64, or raise an InputError."""
    row_weights = _check_finite("row_weights", row_weights)
    if row_weights.shape != (num_rows,) or bool((row_weights < 0).any()):
        raise InputError(
            f"row_weights must be {num_rows} numbers ≥ 0, one per row, got shape {tuple(row_weights.shape)}."
        )
    return row_weights


def _check_finite(name: str, values: Tensor) -> Tensor:
    # the sum is cheap and finite if all entries are, unless it overflows
    if not torch.is_tensor(values) or not (math.isfinite(values.sum()) or bool(torch.isfinite(values).all())):
        raise InputError(f"{name} must be a tensor of finite numbers.")
    return values.double()


def _check_tasks(tasks: Tensor) -> Tensor:
    """Return tasks in float64, (m,) also if they have one column, or (m, b)."""
    if not torch.is_tensor(tasks) or tasks.dim() not in (1, 2):
        given = tuple(tasks.shape) if torch.is_tensor(tasks) else type(tasks).__name__
        raise InputError(f"tasks must be a tensor of shape (m,), or (m, b) in R^b, got {given}.")
    return (tasks[:, 0] if tasks.dim() == 2 and tasks.shape[1] == 1 else tasks).double()


def _as_columns(tasks: Tensor) -> Tensor:
    """Return tasks as points (m, b) of a kernel."""
    return tasks.unsqueeze(-1) if tasks.dim() == 1 else tasks
