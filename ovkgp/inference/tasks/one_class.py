"""The solver of all one-class SVMs at once: one path, and Newton steps for the thresholds.

On the path (`one_class_path`) the least of the data term for a threshold t is g_j(t) = t² G(c_j / t), c_j = 1/(N θ_j): convex, piecewise
quadratic, with g_j' = t Σb(c_j / t). What is left is min over z of Σ_j η_j [g_j(t_j) − t_j] + (λ/2) ‖z‖², t = Ψ z, in as many numbers as
there are levels; Newton's steps end at the exact solution. With λ = 0 each level is read off the path.
"""

from __future__ import annotations

import time
import warnings
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ovkgp.exceptions import FitWarning, InputError, OptionError
from ovkgp.inference.model.fit_report import FitReport
from ovkgp.inference.tasks.one_class_path import OneClassPath
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
        >>> from ovkgp.inference.tasks.one_class import OneClassProblem
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
        >>> from ovkgp.inference.tasks.one_class import strong_convexity
        >>> strong_convexity(torch.tensor([0.25, 0.75]), torch.eye(2), lam=1.0)
        0.25
    """
    least = float(weights.min() * torch.linalg.eigvalsh(task_gram)[0].clamp(min=0))
    return min(lam, least)


def solve_one_class(
    problem: OneClassProblem, *, path: OneClassPath | None = None, tolerance: float = 1e-6, max_iter: int = 100
) -> OneClassSolution:
    """Minimise P, with a certificate. A gap above tolerance · max(|P|, …) warns.

    Args:
        path: that of the same rows and weights, where it is at hand.
        max_iter: Newton steps; few are needed.

    Cost: that of the path, O(n (r + |M|)) a break with |M| points on the margin, and O(m³) a step.

    Example:
        >>> import torch
        >>> from ovkgp.inference.tasks.one_class import OneClassProblem
        >>> from ovkgp.inference.tasks.one_class import solve_one_class
        >>> from ovkgp.losses import gauss_legendre
        >>> X = torch.linspace(-1, 1, 30).double()[:, None]
        >>> rows = torch.linalg.cholesky(torch.exp(-((X - X.T) ** 2)) + 1e-8 * torch.eye(30))
        >>> solution = solve_one_class(OneClassProblem(rows, gauss_legendre(5)))
        >>> solution.weights.shape, solution.gap < 1e-6, bool((solution.thresholds.diff() > 0).all())
        (torch.Size([30, 5]), True, True)
    """
    began = time.perf_counter()
    path = path or OneClassPath(problem.inputs.numpy(), problem.row_weights.numpy())
    levels = problem.levels.numpy()
    positions = np.array([path.position(level) for level in levels])
    t = np.array([_threshold(path, C, level) for C, level in zip(positions, levels, strict=True)])
    steps = 0
    if problem.lam > 0:
        t, steps = _newton(problem, path, t, max_iter)
        positions = _positions(problem, t)
    return _solution(problem, path, t, positions, steps, tolerance, began)


def _threshold(path: OneClassPath, C: float, level: float) -> float:
    """t of C = 1/(N θ t)."""
    return 1 / (path.total_weight * level * C)


def _positions(problem: OneClassProblem, t: np.ndarray) -> np.ndarray:
    """C of t; ∞ where t ≤ 0, and no point is below."""
    with np.errstate(divide="ignore"):
        C = 1 / (problem.total_weight.item() * problem.levels.numpy() * np.clip(t, 0.0, None))
    return C


def _newton(problem: OneClassProblem, path: OneClassPath, t: np.ndarray, max_iter: int) -> tuple[np.ndarray, int]:
    """t that minimises what is left, and the number of steps."""
    rows, eta, lam = problem.thresholds.numpy(), problem.weights.numpy(), problem.lam
    z = np.linalg.solve(rows.T @ (eta[:, None] * rows) + lam * np.eye(rows.shape[1]), rows.T @ (eta * t))
    best = np.inf
    for step in range(max_iter):  # noqa: B007
        value, first, second = _data_term(problem, path, rows @ z)
        value += lam / 2 * z @ z
        slope = rows.T @ (eta * first) + lam * z
        direction = -np.linalg.solve((rows * (eta * second)[:, None]).T @ rows + lam * np.eye(len(z)), slope)
        if value >= best - 1e-15 * abs(best) or -slope @ direction <= 1e-20:
            break
        z, best = _line_search(problem, path, z, direction, value, slope @ direction), value
    return rows @ z, step


def _line_search(problem, path, z, direction, value: float, descent: float) -> np.ndarray:
    rows, lam, size = problem.thresholds.numpy(), problem.lam, 1.0
    while size > 1e-10:
        trial = z + size * direction
        now = _data_term(problem, path, rows @ trial)[0] + lam / 2 * trial @ trial
        if now <= value + 1e-4 * size * descent:
            return trial
        size /= 2
    return z


def _data_term(problem: OneClassProblem, path: OneClassPath, t: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
    """Σ_j η_j [g_j(t_j) − t_j], and the first and second derivatives of the brackets (m,)."""
    value, first, second = -float(problem.weights.numpy() @ t), -np.ones_like(t), np.zeros_like(t)
    for j, C in enumerate(_positions(problem, t)):
        if np.isfinite(C):
            start, rate = path.segment(C).total
            value += problem.weights[j].item() * t[j] ** 2 * path.value(C)
            first[j] += t[j] * (start + rate * C)
            second[j] = start
    return value, first, second


def _solution(problem, path, t, positions, steps: int, tolerance: float, began: float) -> OneClassSolution:
    dual = np.zeros((len(path.rows), len(t)))
    for j in np.flatnonzero(np.isfinite(positions)):
        dual[:, j] = t[j] * path.at(positions[j]).coefficients
    dual, t = torch.from_numpy(dual), torch.from_numpy(t)
    if problem.lam == 0:
        dual = dual / dual.sum(0)  # by rounding only
    weights = problem.inputs.T @ dual
    objective = problem.objective(weights, t).item()
    gap = objective - problem.dual_objective(dual).item()
    converged = gap <= tolerance * max(abs(objective), 1e-3 * float(problem.weights @ t.abs()))
    if not converged:
        warnings.warn(
            f"the one-class problem was solved to a gap of {gap:.2g} at the objective {objective:.4g} only: take a larger lam, or levels "
            "that are less close to 0.",
            FitWarning,
            stacklevel=3,
        )
    report = FitReport(
        objective,
        converged,
        "converged" if converged else "the gap stayed large",
        iterations=len(path.segments) + steps,
        seconds=time.perf_counter() - began,
        num_rows=len(path.rows),
    )
    return OneClassSolution(weights, t, torch.from_numpy(positions), dual, objective, gap, report)
