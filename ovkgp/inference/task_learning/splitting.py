"""Alternating directions: the loss and the norm take turns, each by its own closed form (ADMM, over-relaxed).

    W ← argmin (1/2n) Σ g (ΦWΨᵀ − U + T)² + (κλ/2) ‖W‖²,     H ← ρ ΦWΨᵀ + (1 − ρ) U,
    U ← prox of the loss at H + T, step κ ω/g,               T ← H + T − U,      slopes S = T g / (κ ω).

The first is a ridge in eigen-coordinates (`ridge_steps`), the second is entry by entry; neither minds a small λ or a kink. S is a
slope of the loss at U, so that each look has both sides of the duality gap.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from tqdm import tqdm

from ovkgp.inference.task_learning.certificates import Certificate
from ovkgp.inference.task_learning.problem import TaskProblem
from ovkgp.inference.task_learning.ridge_steps import DenseStep, KroneckerStep
from ovkgp.losses import CurveEnvelope, CurveLoss, IntegralLoss

RELAXATION, LOOK_EVERY, ADAPT_UNTIL = 1.8, 10, 150
"""ρ; steps between two looks at the gap; and after how many κ stays as it is, so that they converge."""
FIRST_KAPPA, BALANCE, BAND = 0.15, 0.5, 3.0
"""κ at first, in units of target over slope; the ratio of the two residuals that is aimed at, and how far it may be off."""
DENSE_COORDINATES = 1500
"""The most coordinates rq whose normal matrix is formed."""


def is_entrywise(loss: CurveLoss) -> bool:
    """Whether a loss is a sum over entries, so that its proximal operator takes a step of its own for each."""
    return isinstance(loss, IntegralLoss) or (isinstance(loss, CurveEnvelope) and is_entrywise(loss.loss))


def ridge_step(problem: TaskProblem) -> KroneckerStep | DenseStep | None:
    """The fastest least-squares step for a problem; None where there is none that fits into memory."""
    weights = problem.loss.weights
    if problem.is_shared and weights.dim() == 1:
        return KroneckerStep(problem, problem.row_weights, weights)
    if problem.is_shared and is_entrywise(problem.loss):
        # entries of any weight, missing ones too: their own steps of the proximal operator make up for the common metric
        columns = problem.entry_weights.sum(0) / (problem.entry_weights > 0).sum(0).clamp(min=1)
        columns = torch.where(columns > 0, columns, columns.mean())
        return KroneckerStep(problem, torch.ones_like(problem.row_weights), columns)
    if math.prod(problem.shape) <= DENSE_COORDINATES:
        return DenseStep(problem, problem.entry_weights)
    return None


class Splitting:
    """The iteration, which others continue: `weights` (in the coordinates of `step.problem`), `slopes` and `kappa`.

    Args:
        step: the ridge.
        certificate: of the first problem.
        slopes: S (n, m) to begin with, feasible.
        H: values (n, m) to begin with.
    """

    def __init__(self, step: KroneckerStep | DenseStep, certificate: Certificate, slopes: Tensor, H: Tensor):
        self.step, self.certificate, self.problem = step, certificate, step.problem
        weighed = self.problem.entry_weights > 0
        self.share = torch.where(weighed, self.problem.entry_weights, 0.0) / torch.where(
            step.metric > 0, step.metric, 1.0
        )
        self.kappa = FIRST_KAPPA * self._unit(slopes)
        self.U, self.T = H, self.kappa * self.share * slopes
        self.weights, self.slopes = problem_zeros(self.problem), slopes

    def run(self, budget: int, bar: tqdm) -> None:
        """At most `budget` steps; it also ends where the last third of them made the gap no smaller."""
        gaps, certificate = [], self.certificate
        for count in range(1, budget + 1):
            H, moved = self._advance()
            certificate.tick(bar)
            if count % LOOK_EVERY == 0 or certificate.over or count == budget:
                gaps.append(certificate.look(self.step.back(self.weights), self.slopes, H))
                if certificate.over or _stalls(gaps, budget):
                    return
                if count <= ADAPT_UNTIL:
                    self._balance(H, moved)

    def _advance(self) -> tuple[Tensor, Tensor]:
        """One round; the values of the new W, and by how much U moved."""
        problem = self.problem
        self.weights = self.step(self.U - self.T, self.kappa * problem.lam)
        H = problem.values(self.weights)
        before, at = self.U, RELAXATION * H + (1 - RELAXATION) * self.U + self.T
        self.U = problem.loss.prox(at, problem.targets, self._prox_step())
        self.T = torch.where(self.share > 0, at - self.U, 0.0)
        self.slopes = torch.where(self.share > 0, self.T / (self.kappa * self.share), 0.0)
        return H, self.U - before

    def _prox_step(self) -> float | Tensor:
        if is_entrywise(self.problem.loss) and self.problem.loss.weights.dim() == 2:
            return self.kappa * torch.where(self.share > 0, self.share, 1.0)
        return self.kappa

    def _balance(self, H: Tensor, moved: Tensor) -> None:
        """Change κ where one of the two relative residuals is much the larger."""
        primal = self._size(H - self.U) / max(self._size(H), self._size(self.U), 1e-300)
        dual = self._size(moved) / max(self.kappa * self._size(self.slopes), 1e-300)
        if min(primal, dual) <= 0 or 1 / BAND < (ratio := primal / dual / BALANCE) < BAND:
            return
        change = min(max(ratio**-0.5, 0.2), 5.0)
        self.kappa, self.T = self.kappa * change, self.T * change

    def _size(self, entries: Tensor) -> float:
        return (self.problem.entry_weights * entries.square()).sum().sqrt().item()

    def _unit(self, slopes: Tensor) -> float:
        """The size of a target over that of a slope."""
        unit = self._size(self.problem.targets.expand_as(slopes)) / max(self._size(slopes), 1e-300)
        return unit if 1e-12 < unit < 1e12 else 1.0


def problem_zeros(problem: TaskProblem) -> Tensor:
    """W = 0 (r, q)."""
    return problem.inputs.new_zeros(problem.shape)


def _stalls(gaps: list[float], budget: int) -> bool:
    window = max(budget // (3 * LOOK_EVERY), 10)
    return len(gaps) > window and gaps[-1] > 0.9 * gaps[-1 - window]
