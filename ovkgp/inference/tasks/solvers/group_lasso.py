"""Selection of dictionary functions by a group lasso over their weights, with a working set (BO-85, BO-86).

    min_C (1/n) Σ_i ‖y_i − Σ_l φ_l c_lᵀx_i‖²_{L²} + μ Tr(C G Cᵀ) + λ Σ_l ‖c_l‖,      C = (c_1, …, c_d) (q, d),

for features x_i ∈ R^q. The problem depends on the data through S = Σ x_i x_iᵀ/n, R = Σ x_i ⟨y_i, φ⟩ᵀ/n, the Gram matrix G and
Σ ‖y_i‖²/n. The functions that violate their optimality conditions most are added to the working set until none does. Within it the
alternating direction method of multipliers splits the smooth part, which is minimized in closed form in the eigenvectors of S and G, and the
penalty, whose proximal operator has exact zeros.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ovkgp.exceptions import InputError

MAX_STEPS = 20_000
CHECK_INTERVAL_STEPS = 20
STEP_FRACTION = 1e-2  # initial parameter ρ of the splitting, relative to the largest curvature
RELAXATION = 1.6
MIN_IMBALANCE, MAX_STEP_CHANGE = (
    1.5,
    5.0,
)  # of relative primal and dual residuals at which ρ changes, and its largest change


@dataclass(frozen=True)
class GroupLassoProblem:
    """S (q, q), R (q, d), G (d, d) and Σ ‖y_i‖²/n; differences of two problems are those of held-out rows."""

    second_moments: np.ndarray
    cross_moments: np.ndarray
    gram: np.ndarray
    total: float
    ridge: float = 0.0

    @classmethod
    def from_rows(
        cls, X: np.ndarray, V: np.ndarray, gram: np.ndarray, total: float, ridge: float = 0.0
    ) -> GroupLassoProblem:
        """Make the problem of features X (n, q), inner products V (n, d) and Σ ‖y_i‖²."""
        n = len(X)
        return cls(X.T @ X / n, X.T @ V / n, gram, total / n, ridge)

    @property
    def lam_max(self) -> float:
        """Smallest λ at which all weights are 0, 2 max_l ‖R_l‖."""
        return float(2 * np.linalg.norm(self.cross_moments, axis=0).max())

    def risk(self, C: np.ndarray) -> float:
        """Return (1/n) Σ ‖y_i − Φ Cᵀx_i‖²."""
        return float(
            self.total - 2 * np.sum(C * self.cross_moments) + np.sum((self.second_moments @ C) * (C @ self.gram))
        )

    def objective(self, C: np.ndarray, lam: float) -> float:
        """Return the objective at C (q, d)."""
        return self.risk(C) + self.ridge * np.sum(C * (C @ self.gram)) + lam * np.linalg.norm(C, axis=0).sum()

    def gradient(self, C: np.ndarray) -> np.ndarray:
        """Return the gradient of the smooth part, (q, d)."""
        product = C @ self.gram
        return 2 * (self.second_moments @ product - self.cross_moments + self.ridge * product)

    def gap(self, C: np.ndarray, lam: float) -> float:
        """Return the duality gap, from the residual scaled such that it is feasible."""
        largest = np.linalg.norm(self.gradient(C), axis=0).max()
        scale = min(1.0, lam / largest) if largest > 0 else 1.0
        along = self.total - np.sum(C * self.cross_moments)  # ⟨residual, y⟩
        smooth = self.risk(C) + self.ridge * np.sum(
            C * (C @ self.gram)
        )  # squared norm of the residual, augmented by the ridge
        return max(self.objective(C, lam) - (2 * scale * along - scale**2 * smooth), 0.0)


@dataclass(frozen=True)
class GroupLassoSolution:
    """Weights C (q, d), the objective, its relative duality gap, the selected functions and the number of steps."""

    weights: np.ndarray
    objective: float
    gap: float
    selected: np.ndarray
    iterations: int


def solve_group_lasso(
    problem: GroupLassoProblem,
    lam: float,
    *,
    init: np.ndarray | None = None,
    tolerance: float = 1e-6,
    max_iter: int = MAX_STEPS,
    working_set: bool = True,
) -> GroupLassoSolution:
    """Minimize the objective until the duality gap is at most tolerance · objective, in at most `max_iter` steps.

    `init` C (q, d) may come from a similar λ. Complexity: O(q³ + q² d) once, O(|J|³) per working set J, and O(q |J|²) per step.
    """
    if not lam > 0:
        raise InputError(f"lam must be positive, got {lam}.")
    values, vectors = np.linalg.eigh(problem.second_moments)
    rotated = replace(  # norms of columns do not depend on the basis of the features
        problem, second_moments=np.diag(values.clip(0)), cross_moments=vectors.T @ problem.cross_moments
    )
    C = np.zeros_like(problem.cross_moments) if init is None else vectors.T @ init
    size = problem.cross_moments.shape[1]
    active = np.linalg.norm(C, axis=0) > 0 if working_set else np.ones(size, dtype=bool)
    steps = 0
    while True:
        if active.any():
            part, count = _minimize(_restrict(rotated, active), lam, C[:, active], tolerance / 2, max_iter - steps)
            C = np.zeros_like(C)
            C[:, active] = part
            steps += count
        gap = rotated.gap(C, lam)
        norms = np.linalg.norm(rotated.gradient(C), axis=0)
        norms[active] = 0.0
        if gap <= tolerance * rotated.objective(C, lam) or norms.max() <= lam or steps >= max_iter:
            break
        added = np.argsort(norms)[::-1][: max(1, int(active.sum()))]  # working sets at most double
        active = active.copy()
        active[added[norms[added] > lam]] = True
    objective = rotated.objective(C, lam)
    selected = np.flatnonzero(np.linalg.norm(C, axis=0) > 0)
    return GroupLassoSolution(vectors @ C, objective, gap / max(abs(objective), 1e-300), selected, steps)


def group_lasso_path(
    problem: GroupLassoProblem, lams: np.ndarray, *, tolerance: float = 1e-6, max_iter: int = MAX_STEPS
) -> list[GroupLassoSolution]:
    """Solve for several λ, each from the solution of the next larger one; in the order of `lams`."""
    solutions, last = {}, None
    for index in np.argsort(lams)[::-1]:
        init = None if last is None else last.weights
        last = solve_group_lasso(problem, float(lams[index]), init=init, tolerance=tolerance, max_iter=max_iter)
        solutions[int(index)] = last
    return [solutions[i] for i in range(len(lams))]


def _restrict(problem: GroupLassoProblem, active: np.ndarray) -> GroupLassoProblem:
    return replace(problem, cross_moments=problem.cross_moments[:, active], gram=problem.gram[np.ix_(active, active)])


def _minimize(
    problem: GroupLassoProblem, lam: float, C: np.ndarray, tolerance: float, max_iter: int
) -> tuple[np.ndarray, int]:
    """Split the smooth part and the penalty with over-relaxation and an adaptive ρ, with a diagonal S."""
    values, vectors = np.linalg.eigh(problem.gram)
    curvature = 2 * (problem.second_moments.diagonal()[:, None] + problem.ridge) * values.clip(0)
    targets = 2 * problem.cross_moments @ vectors
    rho = max(STEP_FRACTION * curvature.max(), 1e-300)
    slopes = problem.gradient(C)
    dual = -slopes * np.minimum(1, lam / np.maximum(np.linalg.norm(slopes, axis=0), 1e-300)) / rho
    for count in range(1, max_iter + 1):
        smooth = ((targets + rho * ((C - dual) @ vectors)) / (curvature + rho)) @ vectors.T
        moved = RELAXATION * smooth + (1 - RELAXATION) * C + dual
        norms = np.linalg.norm(moved, axis=0)
        before, C = C, moved * np.clip(1 - lam / rho / np.maximum(norms, 1e-300), 0, None)
        dual = moved - C
        if count % CHECK_INTERVAL_STEPS == 0:
            if problem.gap(C, lam) <= tolerance * problem.objective(C, lam):
                break
            primal_size = max(np.linalg.norm(smooth), np.linalg.norm(C), 1e-300)
            primal = np.linalg.norm(smooth - C) / primal_size
            change = np.linalg.norm(C - before) / max(np.linalg.norm(dual), 1e-300)
            factor = np.sqrt(primal / change) if change > 0 and primal > 0 else 1.0
            factor = float(np.clip(factor, 1 / MAX_STEP_CHANGE, MAX_STEP_CHANGE))
            if not 1 / MIN_IMBALANCE < factor < MIN_IMBALANCE:
                rho, dual = rho * factor, dual / factor
    return C, count
