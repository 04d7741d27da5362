"""The primal solver: alternating directions until the gap is small, then Newton steps for the last digits (LT-84).

`splitting` needs one proximal step of the loss and one ridge in eigen-coordinates a round, and comes to about 1e-4 of the objective in
a hundred rounds at any λ. `multipliers` continues with semismooth Newton steps on Moreau envelopes of the loss. Either gives slopes that
are feasible in the dual, so that the gap between the two, which ends the search, is a certificate.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor
from tqdm import tqdm

from ovkgp.inference.algebra.dense import safe_cholesky
from ovkgp.inference.tasks.problem import TaskProblem, TaskSolution
from ovkgp.inference.tasks.solvers.admm import (
    ADMM,
    DENSE_COORDINATES,
    is_entrywise,
    normal_matrix,
    ridge_step,
    row_curvatures,
)
from ovkgp.inference.tasks.solvers.certificates import Certificate, check_initial_point
from ovkgp.inference.tasks.solvers.dual import descend

CG_STEPS, CG_TOLERANCE = 200, 0.02
"""The most steps of conjugate gradients, and the part of the residual that is left: a Newton step need not be exact."""
USUAL_STEPS, MEMORY = 60, 6000
"""What conjugate gradients are expected to take; and the largest matrix that is formed."""


class Curvature:
    """The curvature of all rows: entries c (n, m), or blocks B (n, q, q) where a loss couples the entries of a row.

    Args:
        problem: Φ, Ψ.
        entries: c ≥ 0, or None.
        blocks: B, or None to make them from c.
        damping: what is added to λ, so that a step stays short where little bends.

    Example:
        >>> import torch
        >>> from ovkgp.inference.tasks.solvers.primal import Curvature
        >>> from ovkgp.inference.tasks.problem import TaskProblem
        >>> from ovkgp.losses import IntegralLoss, Square, gauss_legendre
        >>> eye, loss = torch.eye(2).double(), IntegralLoss(Square(), gauss_legendre(2))
        >>> problem = TaskProblem(eye, eye, torch.ones(2, 1).double(), loss, lam=1.0)
        >>> Curvature(problem, torch.tensor([[1.0, 0.0], [3.0, 0.0]]).double()).solve(torch.ones(2, 2).double())
        tensor([[0.5000, 1.0000],
                [0.2500, 1.0000]], dtype=torch.float64)
    """

    def __init__(
        self, problem: TaskProblem, entries: Tensor | None, blocks: Tensor | None = None, damping: float = 0.0
    ):
        self.problem, self.entries, self.lam = problem, entries, problem.lam + damping
        self._blocks = blocks

    @property
    def blocks(self) -> Tensor:
        """B (n, q, q)."""
        if self._blocks is None:
            self._blocks = row_curvatures(self.problem, self.entries)
        return self._blocks

    def solve(self, right: Tensor, gram: Tensor | None = None) -> Tensor:
        """D (r, q).

        Args:
            right: R (r, q).
            gram: the diagonal (r, q) of the normal matrix of c = ω/n, where that is diagonal: what conjugate gradients start from.
        """
        costs = self._costs()
        return min(costs, key=costs.get)(right, gram)

    @property
    def cost(self) -> float:
        """Operations of the cheapest road."""
        return min(self._costs().values())

    def _costs(self) -> dict:
        n, m, (r, q) = *self.problem.entry_weights.shape, self.problem.shape
        active = math.inf if self.entries is None else int((self.entries > 0).sum())
        products = USUAL_STEPS * 4 * n * r * q + n * q * q * m
        return {
            self._by_active: active**3 / 3 + 2 * active**2 * (r + q) if active <= MEMORY else math.inf,
            self._by_matrix: n * (r * q) ** 2 + (r * q) ** 3 / 3 if r * q <= MEMORY else math.inf,
            # conjugate gradients are not exact: they must be much cheaper
            self._by_gradients: max(20 * products, 1e8),
        }

    def _by_active(self, right: Tensor, gram: Tensor | None) -> Tensor:
        problem = self.problem
        i, j = self.entries.nonzero(as_tuple=True)
        if not len(i):
            return right / self.lam
        roots, tasks = self.entries[i, j].sqrt(), problem.tasks[j] if problem.is_shared else problem.tasks[i, j]
        inputs = problem.inputs[i] * roots[:, None]
        matrix = (inputs @ inputs.T).mul_(tasks @ tasks.T)
        matrix.diagonal().add_(self.lam)
        observed = ((inputs @ right) * tasks).sum(-1, keepdim=True)
        solved = torch.cholesky_solve(observed, safe_cholesky(matrix))
        return (right - inputs.T @ (solved * tasks)) / self.lam

    def _by_matrix(self, right: Tensor, gram: Tensor | None) -> Tensor:
        matrix = normal_matrix(self.problem, self.blocks)
        matrix.diagonal().add_(self.lam)
        return torch.cholesky_solve(right.reshape(-1, 1), safe_cholesky(matrix)).view(right.shape)

    def apply(self, D: Tensor) -> Tensor:
        """The product with D (r, q). Cost: O(n q (r + q))."""
        rows = (self.blocks @ (self.problem.inputs @ D).unsqueeze(-1)).squeeze(-1)
        return self.problem.inputs.T @ rows + self.lam * D

    def _by_gradients(self, right: Tensor, gram: Tensor | None) -> Tensor:
        """Conjugate gradients, after dividing by the matrix of a mean curvature."""
        scale = self.lam + (0.0 if gram is None else self._mean() * gram)
        solution, residual = torch.zeros_like(right), right
        direction = scaled = residual / scale
        product = (residual * scaled).sum()
        for _ in range(CG_STEPS):
            moved = self.apply(direction)
            pace = product / (direction * moved).sum()
            solution, residual = solution + pace * direction, residual - pace * moved
            if residual.norm() <= CG_TOLERANCE * right.norm():
                break
            scaled = residual / scale
            before, product = product, (residual * scaled).sum()
            direction = scaled + product / before * direction
        return solution

    def _mean(self) -> Tensor:
        """The curvature, as a multiple of ω/n, that has the same trace."""
        tasks, weights = self.problem.tasks, self.problem.entry_weights
        whole = (weights * tasks.square().sum(-1)).sum() / self.problem.num_rows
        return self.blocks.diagonal(dim1=-2, dim2=-1).sum() / whole


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

    def __init__(self, splitting: ADMM, certificate: Certificate):
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
        weighted = problem.entry_weights * slopes / problem.num_rows
        value = problem.risk(nearest) + kappa / 2 * (weighted * slopes).sum() + problem.lam / 2 * weights.square().sum()
        return Place(weights, value.item(), problem.adjoint(weighted) + problem.lam * weights, H, at, nearest, slopes)

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


FEW_ROUNDS, MANY_ROUNDS, MAX_NEWTON_COST_RATIO = 80, 2500, 30.0
"""Rounds of splitting before Newton steps where those are cheap, and where they are dear: a step costs more than so many rounds."""


def solve_primal(
    problem: TaskProblem,
    *,
    start: Tensor | None = None,
    start_dual: Tensor | None = None,
    tolerance: float = 1e-6,
    max_iter: int = 5000,
    verbose: int = 0,
) -> TaskSolution:
    """Minimise J, for any loss that has a proximal operator.

    Args:
        problem: J.
        start: W (r, q) to begin with, such as the solution of a problem near by.
        start_dual: A (n, m) to begin with, likewise.
        tolerance: it stops where the gap is at most tolerance · |J|; 1e-3 is enough for most predictions.
        max_iter: the most rounds and Newton steps.
        verbose: 1 shows progress.

    Ctrl-C keeps the best solution so far, sets `report.interrupted` and warns; so does an end without convergence.

    Cost: O(n q (r + m)) a round after O(r³ + q³) once; a Newton step is a system of the size of the active entries, or of rq.
    Memory: O(n (r + m)), and the square of that size, at most 6000.

    Example:
        >>> import torch
        >>> from ovkgp.inference.tasks.solvers.primal import solve_primal
        >>> from ovkgp.inference.tasks.problem import TaskProblem
        >>> from ovkgp.losses import IntegralLoss, Pinball, grid
        >>> loss = IntegralLoss(Pinball(), grid([0.5]))
        >>> y = torch.tensor([[0.0], [1.0], [5.0]]).double()
        >>> one = torch.ones(3, 1).double()
        >>> solution = solve_primal(TaskProblem(one, one[:1], y, loss, lam=1e-6))
        >>> round(solution.weights.item(), 3), solution.gap <= 1e-6 * solution.objective  # the median
        (1.0, True)
    """
    check_initial_point("start", start, problem.shape)
    check_initial_point("start_dual", start_dual, problem.entry_weights.shape)
    certificate = Certificate(problem, tolerance, max_iter, verbose)
    return certificate.run(lambda bar: search(certificate, start, start_dual, bar))


def search(certificate: Certificate, start: Tensor | None, start_dual: Tensor | None, bar: tqdm) -> None:
    """What `solve_primal` does with a certificate, whatever that takes for an end."""
    problem = certificate.problem
    slopes = certificate.look_at(certificate.weights)
    if start is not None:
        slopes = certificate.look_at(start.double())
    if start_dual is not None:
        slopes = problem.loss.nearest_slope(-start_dual.double(), problem.targets)
        certificate.look(certificate.weights, slopes)
    if certificate.over:
        return
    step = ridge_step(problem)
    if step is None:
        return descend(certificate, -slopes, bar)
    splitting = ADMM(step, certificate, slopes, problem.values(certificate.weights))
    splitting.run(FEW_ROUNDS, bar)
    many = math.prod(problem.shape) > DENSE_COORDINATES
    if many and not certificate.over and Multipliers(splitting, certificate).price() > MAX_NEWTON_COST_RATIO:
        splitting.run(MANY_ROUNDS - FEW_ROUNDS, bar)
    if not certificate.over:
        Multipliers(splitting, certificate).run(bar)
