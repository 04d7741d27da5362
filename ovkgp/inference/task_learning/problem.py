"""The problem that every solver solves, in coordinates: J(W) = (1/n) Σ_i s_i L(φ_iᵀ W Ψᵀ, y_i) + (λ/2) ‖W‖_F² (LT-08).

Its dual, with A = −(slope of L at row i) and the weights ω_ij = s_i η_j (LT-37, LT-E-03, LT-E-24):

    D(A) = −(1/n) Σ_i s_i L*(−A_i, y_i) − (λ/2) ‖W(A)‖²,      W(A) = (1/(λ n)) Φᵀ (ω ∘ A) Ψ

J(W) − D(A) ≥ 0 for all W and A, and 0 at the solution: the gap is a certificate.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ovkgp.inference.fit_report import FitReport
from ovkgp.losses import CurveLoss


@dataclass
class TaskProblem:
    """J and its dual.

    Args:
        inputs: Φ (n, r).
        tasks: Ψ (m, q).
        targets: y (n, m) or (n, 1), with the offset b taken off.
        loss: L, with nodes and weights.
        lam: λ > 0, of the canonical objective above; the estimators translate conventions.
        row_weights: s (n,), ones where None.
    """

    inputs: Tensor
    tasks: Tensor
    targets: Tensor
    loss: CurveLoss
    lam: float
    row_weights: Tensor | None = None

    def __post_init__(self):
        rows = len(self.inputs)
        self.row_weights = self.inputs.new_ones(rows) if self.row_weights is None else self.row_weights
        self.entry_weights = self.row_weights[:, None] * self.loss.weights
        """ω (n, m)."""

    @property
    def num_rows(self) -> int:
        return len(self.inputs)

    def values(self, weights: Tensor) -> Tensor:
        """H = Φ W Ψᵀ, (n, m). Cost O(n q (r + m))."""
        return self.inputs @ weights @ self.tasks.T

    def risk(self, H: Tensor, loss: CurveLoss | None = None) -> Tensor:
        """(1/n) Σ_i s_i L(H_i, y_i)."""
        return (self.row_weights * (loss or self.loss).value(H, self.targets)).sum() / self.num_rows

    def objective(self, weights: Tensor, H: Tensor | None = None) -> Tensor:
        """J(W)."""
        H = self.values(weights) if H is None else H
        return self.risk(H) + self.lam / 2 * weights.square().sum()

    def dual_weights(self, dual: Tensor) -> Tensor:
        """W(A), (r, q)."""
        return self.inputs.T @ (self.entry_weights * dual) @ self.tasks / (self.lam * self.num_rows)

    def dual_objective(self, dual: Tensor, weights: Tensor | None = None) -> Tensor:
        """D(A); −∞ where A is not feasible."""
        weights = self.dual_weights(dual) if weights is None else weights
        cost = (self.row_weights * self.loss.conjugate(-dual, self.targets)).sum() / self.num_rows
        return -cost - self.lam / 2 * weights.square().sum()


@dataclass
class TaskSolution:
    """What a solver found.

    Args:
        weights: W (r, q).
        dual: A (n, m), feasible.
        objective: J(W).
        gap: J(W) − D(A) ≥ 0: J(W) is at most this far above the least value.
        report: how it was found; `converged` says that gap ≤ tolerance · max(|J|, …).
    """

    weights: Tensor
    dual: Tensor
    objective: float
    gap: float
    report: FitReport
