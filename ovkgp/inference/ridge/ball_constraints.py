"""Least squares with groups of weights constrained to balls (BT-88, thesis (7.7)).

    min F(θ) = ½ θᵀAθ − vᵀθ + ½ s      subject to ‖θ_j‖ ≤ R for each group j of the weights.

`minimize_in_balls` is an accelerated projected gradient method with restarts, so that F never grows;
`admm_initial_point` computes an initial point for it. For any θ in the balls, the gap ⟨∇F, θ⟩ + R Σ_j ‖∇F_j‖ bounds
F(θ) − min F and serves as stopping rule.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from linear_operator import LinearOperator
from scipy.sparse.linalg import LinearOperator as Products
from scipy.sparse.linalg import eigsh
from torch import Tensor
from tqdm import tqdm

from ovkgp.exceptions import InputError
from ovkgp.inference.model.fit_report import FitReport

CURVATURE_MARGIN = 1.01  # factor by which the largest eigenvalue is raised, as Lanczos finds a lower bound

RELAXATION, CHECK_INTERVAL_STEPS, MAX_STEPS, MAX_ADAPTIVE_STEPS = 1.6, 10, 3000, 1000
"""ADMM: over-relaxation, steps between convergence tests, step limit, and the number of steps in which ρ may change."""

ROUNDING = 1e-15  # growth of F below this fraction of 2 F(0) is treated as rounding

Point = tuple[Tensor, Tensor]  # θ and Aθ


def minimize_in_balls(
    quadratic: BallQuadratic,
    balls: Balls,
    *,
    init: Tensor | None = None,
    tolerance: float = 1e-8,
    max_iter: int = 10_000,
    verbose: int = 0,
) -> tuple[Tensor, FitReport]:
    """Return the weights (r,) in the balls that minimize F, and a report.

    The iterations stop if the gap is at most tolerance · F(0) or the projected gradient at most tolerance · ‖v‖. In the
    report, `gradient_norm` is that of the projected gradient over ‖v‖. Complexity: one product with A per step, and one or
    (without a spectrum) about 20 before the first. The error falls at least as 1 / steps².
    """
    init = torch.zeros_like(quadratic.moment) if init is None else init
    if bool((balls.norms(init) > balls.radius * (1 + 1e-9)).any()):
        raise InputError("init must lie in the balls. Project it first.")
    began, interrupted, converged, history, failures = time.monotonic(), False, False, [], 0
    with torch.no_grad(), tqdm(total=max_iter, disable=not verbose, unit="step", desc="descending") as bar:
        here = before = init, quadratic.apply(init)
        value, momentum, gradient_norm = quadratic.value(*here), 1.0, math.nan
        try:
            curvature = quadratic.curvature()
            while True:
                gradient_norm = _projected_gradient_norm(quadratic, balls, *here, curvature)
                gap = duality_gap(quadratic, balls, *here)
                converged = gap <= tolerance * quadratic.square / 2 or gradient_norm <= tolerance
                if converged or len(history) == max_iter:
                    break
                following, has_grown = (1 + math.sqrt(1 + 4 * momentum**2)) / 2, False
                step = _try_step(quadratic, balls, here, before, curvature, (momentum - 1) / following)
                while step[1] > ROUNDING * quadratic.square:  # without momentum, with twice the curvature while F grows
                    failures, curvature = failures + 1, (1 + has_grown) * curvature
                    step, has_grown = _try_step(quadratic, balls, here, before, curvature, 0.0), True
                there, change, restart = step
                before, here, value, momentum = here, there, value + change, 1.0 if restart or has_grown else following
                history.append(value)
                bar.update()
        except KeyboardInterrupt:
            interrupted = True
    message = f"stopped after {max_iter} steps: raise max_iter, or the tolerance"
    message = "was interrupted: the weights are the best so far" if interrupted else message
    counts = {"iterations": len(history), "evaluations": len(history) + failures, "failures": failures}
    counts |= {"gradient_norm": gradient_norm, "interrupted": interrupted, "seconds": time.monotonic() - began}
    message = "converged" if converged else message
    return here[0], FitReport(value, converged, message, history=tuple(history), **counts)


def _projected_gradient_norm(
    quadratic: BallQuadratic, balls: Balls, weights: Tensor, product: Tensor, curvature: float
) -> float:
    """Return the norm of the projected gradient over that of v."""
    scale = float(quadratic.moment.norm())
    if not (curvature > 0 and scale > 0):
        return 0.0
    moved = weights - balls.project(weights - (product - quadratic.moment) / curvature)
    return curvature * float(moved.norm()) / scale


def _try_step(
    quadratic: BallQuadratic, balls: Balls, here: Point, before: Point, curvature: float, pace: float
) -> tuple[Point, float, bool]:
    """Return the end of a step extrapolated by `pace`, the change of F, and whether to restart."""
    at, product = (new + pace * (new - old) for new, old in zip(here, before, strict=True))  # A is linear: no product
    weights = balls.project(at - (product - quadratic.moment) / curvature)
    product, moved = quadratic.apply(weights), weights - here[0]
    # The difference of two values of F would lose small changes near the end to rounding.
    change = moved @ ((product + here[1]) / 2 - quadratic.moment)
    return (weights, product), float(change), bool((at - weights) @ moved > 0)


def admm_initial_point(
    quadratic: BallQuadratic, balls: Balls, *, tolerance: float = 1e-8, max_iter: int = MAX_STEPS
) -> tuple[Tensor, int]:
    """Return weights (r,) in the balls with gap at most tolerance · F(0), or the best found, and the step count.

    If the shortest θ with Aθ = v lies in the balls, it is returned. Otherwise F is at most F(0) at the result. The
    quadratic needs its spectrum. Complexity: O(r²) per step, O(M² q + M q²) for A = S ⊗ T.
    """
    if bool((balls.norms(shortest := quadratic.least_norm()) <= balls.radius).all()):
        return shortest, 1  # no constraint is active
    best, value = torch.zeros_like(quadratic.moment), quadratic.square / 2
    values, moment = quadratic.spectrum.values, quadratic.spectrum.to_eigenbasis(quadratic.moment)
    z, u, rho, step = best, best.clone(), float(values.mean()), 0
    for step in range(1, max_iter + 1):
        pulled = quadratic.spectrum.to_eigenbasis(z - u)
        theta = quadratic.spectrum.from_eigenbasis((moment + rho * pulled) / (values + rho))
        relaxed, before = RELAXATION * theta + (1 - RELAXATION) * z, z
        z = balls.project(relaxed + u)
        u = u + relaxed - z
        if step % CHECK_INTERVAL_STEPS and step < max_iter:
            continue
        product = quadratic.apply(z)
        if (found := quadratic.value(z, product)) < value:
            best, value = z, found
        if duality_gap(quadratic, balls, z, product) <= tolerance * quadratic.square / 2:
            return z, step  # not `best`, whose value may differ by rounding only
        if step <= MAX_ADAPTIVE_STEPS:
            change = _rho_factor(*(float(part.norm()) for part in (theta - z, z - before, z, u)))
            rho, u = rho * change, u / change
    return best, step


def _rho_factor(primal: float, dual: float, weights: float, multipliers: float) -> float:
    """Return the factor by which ρ changes: 1 while the two relative residuals are within a factor of ten."""
    if min(primal, dual, weights, multipliers) <= 0:
        return 1.0
    ratio = (primal / weights) / (dual / multipliers)
    return min(max(ratio**0.5, 0.2), 5.0) if not 0.1 <= ratio <= 10 else 1.0


def duality_gap(quadratic: BallQuadratic, balls: Balls, weights: Tensor, product: Tensor) -> float:
    """Return ⟨∇F, θ⟩ + R Σ_j ‖∇F_j‖ ≥ F(θ) − min F, for θ in the balls and Aθ."""
    gradient = product - quadratic.moment
    return float(gradient @ weights) + balls.support(gradient)


@dataclass(frozen=True, eq=False)
class BallQuadratic:
    """F(θ) = ½ θᵀAθ − vᵀθ + ½ s, for a positive semi-definite A given by θ ↦ Aθ and perhaps its spectrum."""

    apply: Callable[[Tensor], Tensor]
    moment: Tensor
    square: float
    spectrum: Spectrum | None = None

    @classmethod
    def from_matrix(
        cls, matrix: Tensor | tuple[Tensor, Tensor], moment: Tensor, square: float, *, factorize: bool = True
    ) -> BallQuadratic:
        """Build F from A (r, r), or from S (M, M) and T (q, q) with A = S ⊗ T; with the spectrum if `factorize`."""
        left, right = matrix if isinstance(matrix, tuple) else (matrix, matrix.new_ones(1, 1))
        if len(left) * len(right) != len(moment):
            raise InputError(
                f"moment has {len(moment)} entries, expected {len(left) * len(right)}, the number of rows of the matrix."
            )

        def apply(weights: Tensor) -> Tensor:
            return (left @ weights.view(len(left), -1) @ right).flatten()

        return cls(apply, moment, float(square), Spectrum.from_factors(left, right) if factorize else None)

    def value(self, weights: Tensor, product: Tensor) -> float:
        """Return F(θ), given Aθ."""
        return float(weights @ (product / 2 - self.moment)) + self.square / 2

    def least_norm(self) -> Tensor:
        """Return A⁺v, the shortest minimizer of F; requires the spectrum."""
        values = self.spectrum.values
        kept = values > len(values) * torch.finfo(values.dtype).eps * values.max()
        return self.spectrum.from_eigenbasis(torch.where(kept, self.spectrum.to_eigenbasis(self.moment) / values, 0.0))

    def curvature(self) -> float:
        """Return the largest eigenvalue of A; the estimate by Lanczos is raised by `CURVATURE_MARGIN`."""
        if self.spectrum is not None:
            return float(self.spectrum.values.max())
        r = len(self.moment)
        if r < 3:  # too small for Lanczos
            return float(torch.stack([self.apply(e) for e in torch.eye(r, dtype=torch.float64)]).norm())
        matvec = lambda x: self.apply(torch.from_numpy(x.reshape(-1))).numpy()  # noqa: E731
        products = Products((r, r), matvec=matvec, dtype=np.float64)
        start = np.random.default_rng(0).standard_normal(r)
        return CURVATURE_MARGIN * float(eigsh(products, k=1, tol=1e-3, v0=start, return_eigenvectors=False)[0])


@dataclass(frozen=True, eq=False)
class Spectrum:
    """A = Q diag(values) Qᵀ with values ≥ 0 (r,) and Q = Q_1 ⊗ Q_2, for Q_1 (M, M), Q_2 (q, q) and M q = r."""

    values: Tensor
    left: Tensor
    right: Tensor

    @classmethod
    def from_factors(cls, left: Tensor, right: Tensor) -> Spectrum:
        """Decompose A_1 ⊗ A_2. O(M³ + q³)."""
        (values, vectors), (others, other_vectors) = (torch.linalg.eigh(matrix) for matrix in (left, right))
        return cls(torch.outer(values.clamp_min(0), others.clamp_min(0)).flatten(), vectors, other_vectors)

    def to_eigenbasis(self, weights: Tensor) -> Tensor:
        """Return Qᵀθ."""
        return (self.left.mT @ weights.view(len(self.left), -1) @ self.right).flatten()

    def from_eigenbasis(self, coordinates: Tensor) -> Tensor:
        """Return Q c."""
        return (self.left @ coordinates.view(len(self.left), -1) @ self.right.mT).flatten()


@dataclass(frozen=True, eq=False)
class Balls:
    """{θ : ‖θ_j‖ ≤ radius for each j}; row j of `groups` (D, k) lists the entries of θ_j, which do not overlap."""

    groups: Tensor
    radius: float

    def norms(self, weights: Tensor) -> Tensor:
        """Return ‖θ_j‖ (D,)."""
        return weights[self.groups].norm(dim=1)

    def project(self, weights: Tensor) -> Tensor:
        """Return the nearest point of the balls. O(r)."""
        scale = (self.radius / self.norms(weights)).clamp_max(1.0)
        projected = torch.empty_like(weights)
        projected[self.groups] = weights[self.groups] * scale.unsqueeze(1)
        return projected

    def support(self, direction: Tensor) -> float:
        """Return max ⟨direction, θ⟩ over the balls: R Σ_j ‖direction_j‖."""
        return self.radius * float(self.norms(direction).sum())


def frequency_groups(features: LinearOperator) -> Tensor:
    """Return the columns of Φ of each of the D frequencies, (D, k): cosines and sines, and all terms of a sum.

    `features` is Φ at any points, from `ORFF`: its columns are (cos or sin, frequency, column of the factor), term
    after term. The j-th frequencies of the terms of a sum are one draw from the product of their distributions, with B
    = [B_1, …, B_c].
    """
    parts, first, groups = getattr(features, "parts", (features,)), 0, []
    for part in parts:
        D = part.features.shape[-1] // 2
        columns = torch.arange(first, first + part.num_columns).view(2, D, -1)
        groups.append(columns.transpose(0, 1).flatten(1))
        first += part.num_columns
    if len({len(group) for group in groups}) > 1:
        raise InputError("The terms of the features must have the same number of frequencies, got different numbers.")
    return torch.cat(groups, 1)
