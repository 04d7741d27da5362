"""The method of multipliers with semismooth Newton steps: what makes the last digits of the gap cheap.

With slopes S of the loss at hand, the next W minimises the Moreau envelope of the loss, moved by κS (LT-11),

    F(W) = (1/n) Σ_i s_i e_κ(φ_iᵀWΨᵀ + κS_i) + (λ/2) ‖W‖²,      S ← ∇e_κ(φ_iᵀWΨᵀ + κS_i),

which is a proximal step of the dual: κ need not be tiny for the gap to be so. F is smooth, its curvature lives on the entries whose
proximal point is a kink, and Newton's method finds those in a few steps.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from tqdm import tqdm

from ovkgp.inference.task_learning.certificates import Certificate
from ovkgp.inference.task_learning.newton_systems import Curvature
from ovkgp.inference.task_learning.splitting import Splitting, is_entrywise

SHRINK, NEWTON_STEPS, PATIENCE = 0.2, 25, 6
"""κ falls by this factor a stage; the most Newton steps of a stage; stages that may fail to make the gap smaller."""
DAMPING, LARGEST_DAMPING = 10.0, 1e3
"""What is added to λ where a Newton step fails, as a multiple of what was there; and the most of it."""
DIFFERENCE, SMALLEST_STEP = 1e-4, 1e-5
"""The step of a finite difference, in units of κ · slope; and the shortest step of a line search."""


class Place(NamedTuple):
    """F and its gradient at W, the values H, the point at = H + κS, its proximal point and the slopes there."""

    weights: Tensor
    value: float
    gradient: Tensor
    H: Tensor
    at: Tensor
    nearest: Tensor
    slopes: Tensor


class Multipliers:
    """The iteration.

    Args:
        splitting: where it begins: weights, slopes, κ and the coordinates.
        certificate: of the first problem.
    """

    def __init__(self, splitting: Splitting, certificate: Certificate):
        self.problem, self.step, self.certificate = splitting.problem, splitting.step, certificate
        self.weights = self.step.into(certificate.weights)
        self.slopes, self.kappa = -certificate.dual, 0.05 * splitting.kappa
        self.gram = self.step.values

    def price(self) -> float:
        """What a Newton step costs here, in rounds of the splitting."""
        n, m, (r, q) = *self.problem.entry_weights.shape, self.problem.shape
        return self._curvature(self._look(self.weights)).cost / (4 * n * q * (r + m))

    def run(self, bar: tqdm) -> None:
        """Stages until it is over, or until rounding ends it."""
        certificate, failures = self.certificate, 0
        while not certificate.over and failures < PATIENCE:
            before = certificate.gap
            place, finished = self._stage(bar)
            gap = certificate.look(self.step.back(place.weights), place.slopes, place.H)
            failures = failures + 1 if gap > 0.9 * before else 0
            self.weights = place.weights
            if finished:
                self.slopes = self.problem.loss.nearest_slope(place.slopes, self.problem.targets)
            self.kappa *= SHRINK if finished else 2.0
        certificate.stuck = failures >= PATIENCE

    def _stage(self, bar: tqdm) -> tuple[Place, bool]:
        """Newton's method for F, and whether it came to an end."""
        place, certificate, damping = self._look(self.weights), self.certificate, 0.0
        for _ in range(NEWTON_STEPS):
            enough = 0.1 * max(certificate.limit, 0.1 * certificate.gap)
            if place.gradient.square().sum().item() / (2 * self.problem.lam) <= enough:
                return place, True
            if certificate.steps >= certificate.max_iter:
                return place, False
            direction = -self._curvature(place, damping).solve(place.gradient, self.gram)
            certificate.tick(bar)
            found = self._search(place, direction)
            if found is not None:
                place, damping = found, DAMPING**-2 * damping if damping > self.problem.lam else 0.0
            elif damping > LARGEST_DAMPING:
                return place, True  # F falls no more: rounding
            else:
                # too few entries bend where it stands: λ alone would send it too far
                damping = DAMPING * max(damping, self.problem.lam)
        return place, False

    def _look(self, weights: Tensor) -> Place:
        problem, kappa = self.problem, self.kappa
        H = problem.values(weights)
        at = H + kappa * self.slopes
        # by the conjugate: away from a kink a slope is then the exact end of its range, of which (at − nearest)/κ is a rounding
        slopes = problem.loss.conjugate_prox(at / kappa, problem.targets, 1 / kappa)
        nearest = at - kappa * slopes
        weighed = problem.entry_weights * slopes / problem.num_rows
        value = problem.risk(nearest) + kappa / 2 * (weighed * slopes).sum() + problem.lam / 2 * weights.square().sum()
        return Place(weights, value.item(), problem.adjoint(weighed) + problem.lam * weights, H, at, nearest, slopes)

    def _search(self, place: Place, direction: Tensor) -> Place | None:
        """The first of the steps 1, ½, ¼, … that makes F smaller, or its gradient where rounding hides F; None where none does."""
        pace, slope = 1.0, (place.gradient * direction).sum().item()
        rounding = 1e-14 * abs(place.value)
        while pace > SMALLEST_STEP:
            found = self._look(place.weights + pace * direction)
            if found.value <= place.value + 1e-4 * pace * slope:
                return found
            if found.value <= place.value + rounding and found.gradient.norm() < 0.9 * place.gradient.norm():
                return found
            pace /= 2
        return None

    def _curvature(self, place: Place, damping: float = 0.0) -> Curvature:
        """The generalised Hessian of F, from differences of the proximal operator, with `damping` on its diagonal."""
        problem, size = self.problem, place.slopes.abs().amax().clamp(min=1e-300).item()
        delta = DIFFERENCE * self.kappa * size
        noise = 1e-15 * max(place.at.abs().amax().item(), delta) / delta
        weights = problem.entry_weights / (problem.num_rows * self.kappa)
        if is_entrywise(problem.loss):
            ahead = problem.loss.conjugate_prox((place.at + delta) / self.kappa, problem.targets, 1 / self.kappa)
            share = (ahead - place.slopes) * (self.kappa / delta)
            share = torch.where(share > 10 * noise, share.clamp(max=1.0), 0.0)
            return Curvature(problem, weights * share, damping=damping)
        return Curvature(problem, None, self._blocks(place, weights, delta), damping)

    def _blocks(self, place: Place, weights: Tensor, delta: float) -> Tensor:
        """B (n, q, q) of a loss that couples the entries of a row: its derivative along each task coordinate."""
        problem, columns = self.problem, []
        tasks = problem.tasks if not problem.is_shared else problem.tasks.expand(problem.num_rows, -1, -1)
        for c in range(tasks.shape[-1]):
            along = tasks[..., c]
            step = delta / along.abs().amax().clamp(min=1e-300)
            moved = problem.loss.prox(place.at + step * along, problem.targets, self.kappa)
            change = weights * (along - (moved - place.nearest) / step)
            columns.append((change.unsqueeze(-2) @ tasks).squeeze(-2))
        blocks = torch.stack(columns, -1)
        # a difference across a kink need be neither symmetric nor positive, which a curvature is
        values, vectors = torch.linalg.eigh((blocks + blocks.mT) / 2)
        return (vectors * values.clamp(min=0.0).unsqueeze(-2)) @ vectors.mT
