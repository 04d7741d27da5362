"""Primal solver: ADMM until the gap is small, then Newton steps of an augmented Lagrangian method (LT-84).

A round of ADMM takes one proximal step of the loss and one ridge regression in eigen-coordinates, and reaches about
1e-4 of the objective in a hundred rounds at any λ. `AugmentedLagrangian` continues with semismooth Newton steps on
Moreau envelopes of the loss. Both give slopes that are feasible in the dual, so the duality gap, which ends the search,
is a certificate.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor
from tqdm import tqdm

from ovkgp.inference.algebra.dense import safe_cholesky
from ovkgp.inference.algebra.krylov import conjugate_gradients
from ovkgp.inference.tasks.problem import TaskProblem, TaskSolution
from ovkgp.inference.tasks.solvers.admm import (
    ADMM,
    DENSE_COORDINATES,
    is_entrywise,
    make_ridge_step,
    normal_matrix,
    row_curvatures,
)
from ovkgp.inference.tasks.solvers.certificates import Certificate, check_initial_point
from ovkgp.inference.tasks.solvers.dual import descend

NUM_ADMM_ROUNDS, MAX_ADMM_ROUNDS, MAX_NEWTON_COST_RATIO = 80, 2500, 30.0
"""Rounds of ADMM before Newton steps; and if a Newton step costs more than this many rounds."""
SHRINK, MAX_NEWTON_STEPS, PATIENCE_STAGES = 0.2, 25, 6
"""Factor of κ per stage; maximum number of Newton steps per stage; stages that may fail to reduce the gap."""
DAMPING_FACTOR, MAX_DAMPING = 10.0, 1e3
"""Factor by which the term added to λ grows if a Newton step fails, and its maximum."""
DIFFERENCE, MIN_STEP = 1e-4, 1e-5
"""Step of finite differences, in units of κ · slope; and the shortest step of a line search."""
MAX_CG_STEPS, CG_TOLERANCE = 200, 0.02
"""Maximum number of conjugate gradient steps, and their relative residual: a Newton step need not be exact."""
TYPICAL_CG_STEPS, MAX_MATRIX_SIZE = 60, 6000
"""Expected number of conjugate gradient steps; and the largest matrix that is formed."""


def solve_primal(
    problem: TaskProblem,
    *,
    init: Tensor | None = None,
    init_dual: Tensor | None = None,
    tolerance: float = 1e-6,
    max_iter: int = 5000,
    verbose: int = 0,
) -> TaskSolution:
    """Minimize J, for any loss with a proximal operator, until the gap is at most tolerance · |J|.

    `init` W (r, q) and `init_dual` A (n, m) may come from a similar problem. A tolerance of 1e-3 is sufficient for most
    predictions. `max_iter` limits rounds plus Newton steps. Ctrl-C keeps the best solution so far, sets
    `report.interrupted` and warns, as does a run that does not converge.

    Complexity: O(n q (r + m)) per round after O(r³ + q³) once; a Newton step solves a system in the active entries or
    in rq unknowns. Memory: O(n (r + m)) plus the square of that size, which is at most 6000.
    """
    check_initial_point("init", init, problem.shape)
    check_initial_point("init_dual", init_dual, problem.entry_weights.shape)
    certificate = Certificate(problem, tolerance, max_iter, verbose)
    return certificate.run(lambda bar: search(certificate, init, init_dual, bar))


def search(certificate: Certificate, init: Tensor | None, init_dual: Tensor | None, bar: tqdm) -> None:
    """Run `solve_primal` with a given certificate."""
    problem = certificate.problem
    slopes = certificate.evaluate_at(certificate.weights)
    if init is not None:
        slopes = certificate.evaluate_at(init.double())
    if init_dual is not None:
        slopes = problem.loss.nearest_slope(-init_dual.double(), problem.targets)
        certificate.evaluate(certificate.weights, slopes)
    if certificate.is_over:
        return
    step = make_ridge_step(problem)
    if step is None:
        return descend(certificate, -slopes, bar)
    admm = ADMM(step, certificate, slopes, problem.values(certificate.weights))
    admm.run(NUM_ADMM_ROUNDS, bar)
    is_large = math.prod(problem.shape) > DENSE_COORDINATES and not certificate.is_over
    if is_large and AugmentedLagrangian(admm, certificate).newton_cost() > MAX_NEWTON_COST_RATIO:
        admm.run(MAX_ADMM_ROUNDS - NUM_ADMM_ROUNDS, bar)
    if not certificate.is_over:
        AugmentedLagrangian(admm, certificate).run(bar)


class AugmentedLagrangian:
    """Stages of Newton's method on Moreau envelopes, starting from an `ADMM` run."""

    def __init__(self, admm: ADMM, certificate: Certificate):
        self.problem, self.step, self.certificate = admm.problem, admm.step, certificate
        self.weights = self.step.to_coordinates(certificate.weights)
        self.slopes, self.kappa = -certificate.dual, 0.05 * admm.kappa
        self.gram = self.step.values

    def newton_cost(self) -> float:
        """Return the cost of a Newton step at the current point, in rounds of ADMM."""
        n, m, (r, q) = *self.problem.entry_weights.shape, self.problem.shape
        return self._curvature(self._evaluate(self.weights)).cost / (4 * n * q * (r + m))

    def run(self, bar: tqdm) -> None:
        """Run stages until the certificate is over or rounding prevents progress."""
        certificate, failures = self.certificate, 0
        while not certificate.is_over and failures < PATIENCE_STAGES:
            before = certificate.gap
            point, finished = self._stage(bar)
            gap = certificate.evaluate(self.step.from_coordinates(point.weights), point.slopes, point.H)
            failures = failures + 1 if gap > 0.9 * before else 0
            self.weights = point.weights
            if finished:
                self.slopes = self.problem.loss.nearest_slope(point.slopes, self.problem.targets)
            self.kappa *= SHRINK if finished else 2.0
        certificate.stuck = failures >= PATIENCE_STAGES

    def _stage(self, bar: tqdm) -> tuple[Point, bool]:
        """Run Newton's method for F, and return the last point and whether it converged."""
        point, certificate, damping = self._evaluate(self.weights), self.certificate, 0.0
        for _ in range(MAX_NEWTON_STEPS):
            enough = 0.1 * max(certificate.limit, 0.1 * certificate.gap)
            if point.gradient.square().sum().item() / (2 * self.problem.lam) <= enough:
                return point, True
            if certificate.steps >= certificate.max_iter:
                return point, False
            direction = -self._curvature(point, damping).solve(point.gradient, self.gram)
            certificate.count_step(bar)
            trial = self._line_search(point, direction)
            if trial is not None:
                point, damping = trial, DAMPING_FACTOR**-2 * damping if damping > self.problem.lam else 0.0
            elif damping > MAX_DAMPING:
                return point, True  # F does not fall any more, because of rounding
            else:
                # few entries have curvature here, so λ alone gives too long a step
                damping = DAMPING_FACTOR * max(damping, self.problem.lam)
        return point, False

    def _evaluate(self, weights: Tensor) -> Point:
        problem, kappa = self.problem, self.kappa
        H = problem.values(weights)
        at = H + kappa * self.slopes
        # via the conjugate: away from kinks slopes are the exact ends of their range, without rounding
        slopes = problem.loss.conjugate_prox(at / kappa, problem.targets, 1 / kappa)
        nearest = at - kappa * slopes
        weighted = problem.entry_weights * slopes / problem.num_rows
        value = problem.risk(nearest) + kappa / 2 * (weighted * slopes).sum() + problem.lam / 2 * weights.square().sum()
        return Point(weights, value.item(), problem.adjoint(weighted) + problem.lam * weights, H, at, nearest, slopes)

    def _line_search(self, point: Point, direction: Tensor) -> Point | None:
        """Return the first of the steps 1, ½, ¼, … that reduces F, or its gradient within rounding; otherwise None."""
        pace, slope = 1.0, (point.gradient * direction).sum().item()
        rounding = 1e-14 * abs(point.value)
        while pace > MIN_STEP:
            trial = self._evaluate(point.weights + pace * direction)
            if trial.value <= point.value + 1e-4 * pace * slope:
                return trial
            if trial.value <= point.value + rounding and trial.gradient.norm() < 0.9 * point.gradient.norm():
                return trial
            pace /= 2
        return None

    def _curvature(self, point: Point, damping: float = 0.0) -> Curvature:
        """Return the generalized Hessian of F, from differences of the proximal operator, plus `damping`."""
        problem, size = self.problem, point.slopes.abs().amax().clamp(min=1e-300).item()
        delta = DIFFERENCE * self.kappa * size
        noise = 1e-15 * max(point.at.abs().amax().item(), delta) / delta
        weights = problem.entry_weights / (problem.num_rows * self.kappa)
        if is_entrywise(problem.loss):
            ahead = problem.loss.conjugate_prox((point.at + delta) / self.kappa, problem.targets, 1 / self.kappa)
            fraction = (ahead - point.slopes) * (self.kappa / delta)
            fraction = torch.where(fraction > 10 * noise, fraction.clamp(max=1.0), 0.0)
            return Curvature(problem, weights * fraction, damping=damping)
        return Curvature(problem, None, self._blocks(point, weights, delta), damping)

    def _blocks(self, point: Point, weights: Tensor, delta: float) -> Tensor:
        """Return B (n, q, q) of a loss that couples the entries of a row: its derivative along each task coordinate."""
        problem, columns = self.problem, []
        tasks = problem.tasks if not problem.is_shared else problem.tasks.expand(problem.num_rows, -1, -1)
        for c in range(tasks.shape[-1]):
            direction = tasks[..., c]
            step = delta / direction.abs().amax().clamp(min=1e-300)
            moved = problem.loss.prox(point.at + step * direction, problem.targets, self.kappa)
            change = weights * (direction - (moved - point.nearest) / step)
            columns.append((change.unsqueeze(-2) @ tasks).squeeze(-2))
        blocks = torch.stack(columns, -1)
        # a difference across a kink need not be symmetric or positive semi-definite
        values, vectors = torch.linalg.eigh((blocks + blocks.mT) / 2)
        return (vectors * values.clamp(min=0.0).unsqueeze(-2)) @ vectors.mT


class Point(NamedTuple):
    """F and its gradient at W, the values H, the point at = H + κS, its proximal point and the slopes there."""

    weights: Tensor
    value: float
    gradient: Tensor
    H: Tensor
    at: Tensor
    nearest: Tensor
    slopes: Tensor


class Curvature:
    """The matrix λ I + Σ_i φ_iφ_iᵀ ⊗ B_i of a Newton step, with B (n, q, q) given or from entries c (n, m).

    `damping` is added to λ to shorten steps where the curvature is small.
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
        """Return D (r, q) for the right-hand side (r, q), by the cheapest of three methods.

        `gram` is the diagonal (r, q) of the normal matrix of c = ω/n, if that is diagonal, and preconditions conjugate
        gradients.
        """
        costs = self._costs()
        return min(costs, key=costs.get)(right, gram)

    @property
    def cost(self) -> float:
        """Number of operations of the cheapest method."""
        return min(self._costs().values())

    def _costs(self) -> dict:
        n, m, (r, q) = *self.problem.entry_weights.shape, self.problem.shape
        active = math.inf if self.entries is None else int((self.entries > 0).sum())
        products = TYPICAL_CG_STEPS * 4 * n * r * q + n * q * q * m
        return {
            self._solve_active: active**3 / 3 + 2 * active**2 * (r + q) if active <= MAX_MATRIX_SIZE else math.inf,
            self._solve_matrix: n * (r * q) ** 2 + (r * q) ** 3 / 3 if r * q <= MAX_MATRIX_SIZE else math.inf,
            # conjugate gradients are inexact, so they must be much cheaper
            self._solve_cg: max(20 * products, 1e8),
        }

    def _solve_active(self, right: Tensor, gram: Tensor | None) -> Tensor:
        problem = self.problem
        i, j = self.entries.nonzero(as_tuple=True)
        if not len(i):
            return right / self.lam
        roots, tasks = self.entries[i, j].sqrt(), problem.tasks[j] if problem.is_shared else problem.tasks[i, j]
        inputs = problem.inputs[i] * roots[:, None]
        matrix = (inputs @ inputs.T).mul_(tasks @ tasks.T)
        matrix.diagonal().add_(self.lam)
        projected = ((inputs @ right) * tasks).sum(-1, keepdim=True)
        solved = torch.cholesky_solve(projected, safe_cholesky(matrix))
        return (right - inputs.T @ (solved * tasks)) / self.lam

    def _solve_matrix(self, right: Tensor, gram: Tensor | None) -> Tensor:
        matrix = normal_matrix(self.problem, self.blocks)
        matrix.diagonal().add_(self.lam)
        return torch.cholesky_solve(right.reshape(-1, 1), safe_cholesky(matrix)).view(right.shape)

    def apply(self, D: Tensor) -> Tensor:
        """Return the product with D (r, q). O(n q (r + q))."""
        rows = (self.blocks @ (self.problem.inputs @ D).unsqueeze(-1)).squeeze(-1)
        return self.problem.inputs.T @ rows + self.lam * D

    def _solve_cg(self, right: Tensor, gram: Tensor | None) -> Tensor:
        """Run conjugate gradients, preconditioned by the matrix of a mean curvature."""
        scale = self.lam if gram is None else (self.lam + self._mean_curvature() * gram).unsqueeze(1)
        operators = lambda V: self.apply(V.squeeze(1)).unsqueeze(1), lambda V: V / scale
        return conjugate_gradients(*operators, right.unsqueeze(1), CG_TOLERANCE, MAX_CG_STEPS).solution.squeeze(1)

    def _mean_curvature(self) -> Tensor:
        """Return the multiple of ω/n with the same trace."""
        tasks, weights = self.problem.tasks, self.problem.entry_weights
        total = (weights * tasks.square().sum(-1)).sum() / self.problem.num_rows
        return self.blocks.diagonal(dim1=-2, dim2=-1).sum() / total
