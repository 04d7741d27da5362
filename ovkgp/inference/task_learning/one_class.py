"""The problem of all one-class SVMs at once (LT-55, LT-64, LT-99; BT-104), and its dual.

    P(w, t) = Σ_j η_j [ (1/(N θ_j)) Σ_i s_i |t_j − φ_iᵀ w_j|_+ − t_j + ½ ‖w_j‖² ] + (λ/2) ‖t‖²,      h(x)(θ_j) = φ(x)ᵀ w_j
    D(a) = −½ Σ_j η_j ‖Φᵀ a_j‖² − ‖Ψᵀ r‖² / (2λ),      r_j = η_j (1 − Σ_i a_ij),      0 ≤ a_ij ≤ s_i / (N θ_j)

with t = Ψ z in coordinates of the threshold kernel, ‖t‖ = ‖z‖. The task kernel does not occur: it joins the nodes afterwards, and the
levels are coupled by t alone. With λ = 0 they are separate SVMs, t is free and D needs Σ_i a_ij = 1. The Bayesian reading is a mode only:
the loss has no normalised likelihood (ID-17), h(·)(θ_j) ~ GP(0, k/η_j) and t ~ GP(0, k_b/λ).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ovkgp.exceptions import InputError, OptionError
from ovkgp.inference.fit_report import FitReport
from ovkgp.losses import TaskMeasure


@dataclass
class OneClassProblem:
    """P and D.

    Args:
        inputs: Φ (n, r).
        measure: levels θ_j in (0, 1] with weights η_j > 0, shared by all rows.
        thresholds: Ψ (m, q), rows of the threshold kernel at the levels; of no use where λ = 0.
        lam: λ ≥ 0.
        row_weights: s (n,) > 0, ones where None; N = Σ s.

    Example:
        >>> import torch
        >>> from ovkgp.inference.task_learning.one_class import OneClassProblem
        >>> from ovkgp.losses import grid
        >>> problem = OneClassProblem(torch.tensor([[1.0], [2.0]]).double(), grid([0.75]))
        >>> problem.objective(torch.tensor([[8 / 3]]).double() / 2, torch.tensor([8 / 3]).double()).item() < 0
        True
    """

    inputs: Tensor
    measure: TaskMeasure
    thresholds: Tensor | None = None
    lam: float = 0.0
    row_weights: Tensor | None = None

    def __post_init__(self):
        self.row_weights = self.inputs.new_ones(len(self.inputs)) if self.row_weights is None else self.row_weights
        self.total_weight = self.row_weights.sum()
        self.levels, self.weights = self.measure.nodes, self.measure.weights
        if self.levels.dim() != 1 or not bool(((self.levels > 0) & (self.levels <= 1)).all()):
            raise InputError(f"levels are masses in (0, 1], one set for all rows; got {self.levels.tolist()}.")
        if not bool((self.weights > 0).all()):
            raise InputError("every level needs a positive weight: a level without one is not learned.")
        if not self.lam >= 0 or (self.lam > 0 and self.thresholds is None):
            raise OptionError(f"lam must be 0, or positive beside rows of a threshold kernel; got {self.lam!r}.")

    @property
    def bounds(self) -> Tensor:
        """s_i / (N θ_j), (n, m): what a_ij may reach."""
        return self.row_weights[:, None] / (self.total_weight * self.levels)

    def values(self, weights: Tensor) -> Tensor:
        """h(x_i)(θ_j), (n, m), of w (r, m)."""
        return self.inputs @ weights

    def objective(self, weights: Tensor, t: Tensor) -> Tensor:
        """P, of w (r, m) and t (m,). Cost O(n r m)."""
        short = (self.bounds * (t - self.values(weights)).clamp(min=0)).sum(0)
        return (self.weights * (short - t + weights.square().sum(0) / 2)).sum() + self.lam / 2 * self.threshold_norm(t)

    def threshold_norm(self, t: Tensor) -> Tensor:
        """‖t‖², 0 where λ = 0 and t is free."""
        if self.lam == 0:
            return t.new_zeros(())
        return torch.linalg.lstsq(self.thresholds, t[:, None], driver="gelsd").solution.square().sum()

    def dual_objective(self, dual: Tensor) -> Tensor:
        """D, of a (n, m) within its bounds (and of sums 1 where λ = 0)."""
        energy = (self.weights * (self.inputs.T @ dual).square().sum(0)).sum() / 2
        if self.lam == 0:
            return -energy
        rest = self.thresholds.T @ (self.weights * (1 - dual.sum(0)))
        return -energy - rest.square().sum() / (2 * self.lam)


@dataclass
class OneClassSolution:
    """What the solver found.

    Args:
        weights: w (r, m), one column a level.
        thresholds: t (m,).
        positions: C (m,), where on the path of one-class SVMs each level lies.
        dual: a (n, m), feasible.
        objective: P.
        gap: P − D ≥ 0: P is at most this far above the least value.
        report: how it was found.
    """

    weights: Tensor
    thresholds: Tensor
    positions: Tensor
    dual: Tensor
    objective: float
    gap: float
    report: FitReport


def strong_convexity(weights: Tensor, task_gram: Tensor, lam: float) -> float:
    """min(λ, min_j η_j · λ_min(K_Θ)): how strongly convex ½ Σ_j η_j ‖h(·)(θ_j)‖² + (λ/2) ‖t‖² is in (h, t) (LT-118, LT-E-36).

    Args:
        weights: η (m,).
        task_gram: K_Θ (m, m) at the levels.
        lam: λ.

    Cost: O(m³).

    Example:
        >>> import torch
        >>> from ovkgp.inference.task_learning.one_class import strong_convexity
        >>> strong_convexity(torch.tensor([0.25, 0.75]), torch.eye(2), lam=1.0)
        0.25
    """
    least = float(weights.min() * torch.linalg.eigvalsh(task_gram)[0].clamp(min=0))
    return min(lam, least)
