"""Least squares with weights held in balls, by accelerated projected gradients (BT-88, thesis (7.7)).

    min F(θ) = ½ θᵀAθ − vᵀθ + ½ s      subject to ‖θ_j‖ ≤ R for each group j of the weights.

A step goes along −∇F from an extrapolated point and back into the balls; where F would grow or the momentum points the wrong way
it is thrown away (restarted), so that F never grows. At any θ in the balls the gap ⟨∇F, θ⟩ + R Σ_j ‖∇F_j‖ bounds F(θ) − min F: it is the test for
stopping, and a certificate.
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

from ovkgp.checks import check_integer
from ovkgp.exceptions import InputError, OptionError
from ovkgp.inference.model.fit_report import FitReport

CURVATURE_MARGIN = 1.01
"""By how much the largest eigenvalue that Lanczos finds, from below, is raised."""


@dataclass(frozen=True, eq=False)
class Spectrum:
    """A = Q diag(values) Qᵀ with Q = Q_1 ⊗ Q_2.

    Args:
        values: (r,), not negative.
        left, right: Q_1 (M, M) and Q_2 (q, q), M q = r.
    """

    values: Tensor
    left: Tensor
    right: Tensor

    @classmethod
    def of(cls, left: Tensor, right: Tensor) -> Spectrum:
        """That of A_1 ⊗ A_2. O(M³ + q³)."""
        (values, vectors), (others, other_vectors) = (torch.linalg.eigh(matrix) for matrix in (left, right))
        return cls(torch.outer(values.clamp_min(0), others.clamp_min(0)).flatten(), vectors, other_vectors)

    def into(self, weights: Tensor) -> Tensor:
        """Qᵀθ."""
        return (self.left.mT @ weights.view(len(self.left), -1) @ self.right).flatten()

    def back(self, coordinates: Tensor) -> Tensor:
        """Q c."""
        return (self.left @ coordinates.view(len(self.left), -1) @ self.right.mT).flatten()


@dataclass(frozen=True, eq=False)
class BallQuadratic:
    """F(θ) = ½ θᵀAθ − vᵀθ + ½ s.

    Args:
        apply: θ ↦ Aθ, for A symmetric and positive semi-definite.
        moment: v (r,).
        square: s.
        spectrum: of A, where it is known.

    Example:
        >>> import torch
        >>> from ovkgp.inference.ridge.ball_constraints import BallQuadratic
        >>> quadratic = BallQuadratic.of(2 * torch.eye(3).double(), torch.ones(3).double(), square=3.0)
        >>> weights = torch.ones(3).double() / 2
        >>> quadratic.value(weights, quadratic.apply(weights)), quadratic.curvature()
        (0.75, 2.0)
    """

    apply: Callable[[Tensor], Tensor]
    moment: Tensor
    square: float
    spectrum: Spectrum | None = None

    @classmethod
    def of(
        cls, matrix: Tensor | tuple[Tensor, Tensor], moment: Tensor, square: float, *, factorise: bool = True
    ) -> BallQuadratic:
        """From A (r, r), or S (M, M) and T (q, q) with A = S ⊗ T; with its spectrum unless `factorise` is False."""
        left, right = matrix if isinstance(matrix, tuple) else (matrix, matrix.new_ones(1, 1))
        if len(left) * len(right) != len(moment):
            raise InputError(f"A has {len(left) * len(right)} rows and v has {len(moment)} entries; they must agree.")

        def apply(weights: Tensor) -> Tensor:
            return (left @ weights.view(len(left), -1) @ right).flatten()

        return cls(apply, moment, float(square), Spectrum.of(left, right) if factorise else None)

    def value(self, weights: Tensor, product: Tensor) -> float:
        """F(θ), given Aθ."""
        return float(weights @ (product / 2 - self.moment)) + self.square / 2

    def least_norm(self) -> Tensor:
        """A⁺v: of the weights with the least F, the shortest; for a quadratic with its spectrum."""
        values = self.spectrum.values
        kept = values > len(values) * torch.finfo(values.dtype).eps * values.max()
        return self.spectrum.back(torch.where(kept, self.spectrum.into(self.moment) / values, 0.0))

    def curvature(self) -> float:
        """The largest eigenvalue of A; where Lanczos has to find it, a little raised."""
        if self.spectrum is not None:
            return float(self.spectrum.values.max())
        r = len(self.moment)
        if r < 3:  # too small for Lanczos
            return float(torch.stack([self.apply(e) for e in torch.eye(r, dtype=torch.float64)]).norm())
        products = Products(
            (r, r), matvec=lambda x: self.apply(torch.from_numpy(x.reshape(-1))).numpy(), dtype=np.float64
        )
        start = np.random.default_rng(0).standard_normal(r)
        return CURVATURE_MARGIN * float(eigsh(products, k=1, tol=1e-3, v0=start, return_eigenvectors=False)[0])


@dataclass(frozen=True, eq=False)
class Balls:
    """{θ : ‖θ_j‖ ≤ R for each j}, for weights θ (r,) in groups.

    Args:
        groups: (D, k) int64; row j lists the entries of θ_j. Each entry is in one group.
        radius: R > 0.

    Example:
        >>> import torch
        >>> from ovkgp.inference.ridge.ball_constraints import Balls
        >>> balls = Balls(torch.tensor([[0, 2], [1, 3]]), radius=1.0)
        >>> balls.project(torch.tensor([3.0, 0.1, 4.0, 0.2]))
        tensor([0.6000, 0.1000, 0.8000, 0.2000])
    """

    groups: Tensor
    radius: float

    def norms(self, weights: Tensor) -> Tensor:
        """‖θ_j‖ (D,)."""
        return weights[self.groups].norm(dim=1)

    def project(self, weights: Tensor) -> Tensor:
        """The nearest point of the balls. O(r)."""
        scale = (self.radius / self.norms(weights)).clamp_max(1.0)
        projected = torch.empty_like(weights)
        projected[self.groups] = weights[self.groups] * scale.unsqueeze(1)
        return projected

    def support(self, direction: Tensor) -> float:
        """max ⟨direction, θ⟩ over the balls: R Σ_j ‖direction_j‖."""
        return self.radius * float(self.norms(direction).sum())


def frequency_groups(features: LinearOperator) -> Tensor:
    """Which columns of Φ belong to each of the D frequencies, (D, k): cosines and sines, and all terms of a sum.

    Args:
        features: Φ at any points, from `ORFF`: its columns are (cos or sin, frequency, column of the factor), term after term.

    The j-th frequencies of the terms of a sum are one draw from the product of their laws, with B = [B_1, …, B_c].

    Example:
        >>> import torch
        >>> from gpytorch.kernels import RBFKernel
        >>> from ovkgp.features import ORFF
        >>> from ovkgp.inference.ridge.ball_constraints import frequency_groups
        >>> frequency_groups(ORFF(RBFKernel(ard_num_dims=1), 3, random_state=0)(torch.zeros(1, 1))).tolist()
        [[0, 3], [1, 4], [2, 5]]
    """
    parts, first, groups = getattr(features, "parts", (features,)), 0, []
    for part in parts:
        D = part.features.shape[-1] // 2
        columns = torch.arange(first, first + part.num_columns).view(2, D, -1)
        groups.append(columns.transpose(0, 1).flatten(1))
        first += part.num_columns
    if len({len(group) for group in groups}) > 1:
        raise InputError("the terms of these features have different numbers of frequencies: draw as many for each.")
    return torch.cat(groups, 1)


RELAXATION, CHECKED_EVERY, MAX_STEPS, ADAPTED_UNTIL = 1.6, 10, 3000, 1000
"""Over-relaxation; steps between tests; the most of them; and after how many ρ stays as it is, so that they converge."""


def gap_of(quadratic: BallQuadratic, balls: Balls, weights: Tensor, product: Tensor) -> float:
    """⟨∇F, θ⟩ + R Σ_j ‖∇F_j‖ ≥ F(θ) − min F, for θ in the balls and Aθ."""
    gradient = product - quadratic.moment
    return float(gradient @ weights) + balls.support(gradient)


def admm_initial_point(
    quadratic: BallQuadratic, balls: Balls, *, tolerance: float = 1e-8, max_iter: int = MAX_STEPS
) -> tuple[Tensor, int]:
    """Weights (r,) in the balls whose gap is at most tolerance · F(0), or the best found (F is at most F(0) there), and the steps.

    Where the shortest of all θ with Aθ = v lies in the balls, it is the answer.

    Args:
        quadratic: F, with its spectrum.
        balls: the constraint.
        tolerance: of the gap.
        max_iter: the most steps; each is two products with the eigenvectors.

    Cost: O(r²) a step, O(M² q + M q²) for A = S ⊗ T.

    Example:
        >>> import torch
        >>> from ovkgp.inference.ridge.ball_constraints import BallQuadratic
        >>> from ovkgp.inference.ridge.ball_constraints import Balls
        >>> from ovkgp.inference.ridge.ball_constraints import admm_initial_point
        >>> quadratic = BallQuadratic.of(torch.eye(2).double(), torch.tensor([3.0, 0.1]).double(), square=9.01)
        >>> weights, steps = admm_initial_point(quadratic, Balls(torch.tensor([[0], [1]]), 1.0))
        >>> [round(w, 4) for w in weights.tolist()], steps < 100
        ([1.0, 0.1], True)
    """
    if bool((balls.norms(shortest := quadratic.least_norm()) <= balls.radius).all()):
        return shortest, 1  # no ball is in the way
    best, value = torch.zeros_like(quadratic.moment), quadratic.square / 2
    values, moment = quadratic.spectrum.values, quadratic.spectrum.into(quadratic.moment)
    z, u, rho, step = best, best.clone(), float(values.mean()), 0
    for step in range(1, max_iter + 1):
        pulled = quadratic.spectrum.into(z - u)
        theta = quadratic.spectrum.back((moment + rho * pulled) / (values + rho))
        relaxed, before = RELAXATION * theta + (1 - RELAXATION) * z, z
        z = balls.project(relaxed + u)
        u = u + relaxed - z
        if step % CHECKED_EVERY and step < max_iter:
            continue
        product = quadratic.apply(z)
        if (found := quadratic.value(z, product)) < value:
            best, value = z, found
        if gap_of(quadratic, balls, z, product) <= tolerance * quadratic.square / 2:
            return z, step  # whose gap it is: values that differ by rounding alone say nothing
        if step <= ADAPTED_UNTIL:
            change = _change(float((theta - z).norm()), float((z - before).norm()), float(z.norm()), float(u.norm()))
            rho, u = rho * change, u / change
    return best, step


def _change(primal: float, dual: float, weights: float, multipliers: float) -> float:
    """By how much ρ changes: nothing, while the two relative residuals are within a factor of ten."""
    if min(primal, dual, weights, multipliers) <= 0:
        return 1.0
    ratio = (primal / weights) / (dual / multipliers)
    return min(max(ratio**0.5, 0.2), 5.0) if not 0.1 <= ratio <= 10 else 1.0


ROUNDING = 1e-15
"""Growth of F by less than this part of 2 F(0) is none."""


def minimise_in_balls(
    quadratic: BallQuadratic,
    balls: Balls,
    *,
    start: Tensor | None = None,
    tolerance: float = 1e-8,
    max_iter: int = 10_000,
    verbose: int = 0,
) -> tuple[Tensor, FitReport]:
    """The weights (r,) in the balls with the least F, and how they were found.

    Args:
        quadratic: F.
        balls: the constraint.
        start: weights in the balls to begin with, such as those of `admm_initial_point`; zero where it is None.
        tolerance: it stops where the gap is at most tolerance · F(0), or where the projected gradient is at most tolerance · ‖v‖.
        max_iter: the most steps, one product with A each.
        verbose: 1 shows progress.

    The report's `objective` is F, `history` is F after each step (it never grows, but for rounding), `gradient_norm` the norm of the projected
    gradient over ‖v‖. Ctrl-C keeps the weights so far and sets `interrupted`.

    Cost: a product with A a step, and one or (without a spectrum) about 20 before the first. The error falls at least as 1 / steps².

    Example:
        >>> import torch
        >>> from ovkgp.inference.ridge.ball_constraints import BallQuadratic
        >>> from ovkgp.inference.ridge.ball_constraints import Balls
        >>> from ovkgp.inference.ridge.ball_constraints import minimise_in_balls
        >>> quadratic = BallQuadratic.of(2 * torch.eye(3).double(), torch.tensor([2.0, 0.2, 0.0]).double(), square=3.0)
        >>> weights, report = minimise_in_balls(quadratic, Balls(torch.tensor([[0], [1], [2]]), radius=0.5))
        >>> [round(w, 6) for w in weights.tolist()], report.converged
        ([0.5, 0.1, 0.0], True)
    """
    if not (math.isfinite(tolerance) and tolerance > 0):
        raise OptionError(f"tolerance must be a positive number, got {tolerance}.")
    start = torch.zeros_like(quadratic.moment) if start is None else start
    if bool((balls.norms(start) > balls.radius * (1 + 1e-9)).any()):
        raise InputError("the start must lie in the balls: project it first.")
    descent = _Descent(quadratic, balls, start, tolerance, check_integer("max_iter", max_iter))
    with torch.no_grad(), tqdm(total=max_iter, disable=not verbose, unit="step", desc="descending") as bar:
        return descent.run(bar)


class _Descent:
    """FISTA with restarts. Products with A are linear: the extrapolated point needs none of its own."""

    def __init__(self, quadratic: BallQuadratic, balls: Balls, start: Tensor, tolerance: float, max_iter: int):
        self.quadratic, self.balls, self.tolerance, self.max_iter = quadratic, balls, tolerance, max_iter
        self.weights, self.product = start, quadratic.apply(start)
        self.before, self.momentum = (self.weights, self.product), 1.0
        self.value, self.history = quadratic.value(self.weights, self.product), []
        self.failures, self.slope, self.rounding = 0, math.nan, ROUNDING * quadratic.square

    def run(self, bar: tqdm) -> tuple[Tensor, FitReport]:
        began, converged, interrupted = time.monotonic(), False, False
        try:
            self.curvature = self.quadratic.curvature()
            while not (converged := self.is_done()) and len(self.history) < self.max_iter:
                self.step()
                bar.update()
        except KeyboardInterrupt:
            interrupted = True
        report = FitReport(
            self.value,
            converged,
            "converged" if converged else self.why_not(interrupted),
            iterations=len(self.history),
            evaluations=len(self.history) + self.failures,
            failures=self.failures,
            gradient_norm=self.slope,
            interrupted=interrupted,
            seconds=time.monotonic() - began,
            history=tuple(self.history),
        )
        return self.weights, report

    def why_not(self, interrupted: bool) -> str:
        if interrupted:
            return "was interrupted: the weights are the best so far"
        return f"stopped after {self.max_iter} steps: raise max_iter, or the tolerance"

    def is_done(self) -> bool:
        """Whether the gap or the projected gradient is small."""
        limit = self.tolerance * self.quadratic.square / 2
        if self.curvature <= 0 or gap_of(self.quadratic, self.balls, self.weights, self.product) <= limit:
            self.slope = self.projected_slope() if self.curvature > 0 else 0.0
            return True
        self.slope = self.projected_slope()
        return self.slope <= self.tolerance

    def projected_slope(self) -> float:
        """The norm of the projected gradient over that of v."""
        gradient, scale = self.product - self.quadratic.moment, float(self.quadratic.moment.norm())
        moved = self.weights - self.balls.project(self.weights - gradient / self.curvature)
        return self.curvature * float(moved.norm()) / scale if scale > 0 else 0.0

    def step(self) -> None:
        """One accelerated step, or, where F would grow, a plain one."""
        momentum = (1 + math.sqrt(1 + 4 * self.momentum**2)) / 2
        weights, product, change, rotated = self.candidate((self.momentum - 1) / momentum)
        if change > self.rounding:
            weights, product, change, rotated = self.plain_step()
        self.before, self.momentum = (self.weights, self.product), 1.0 if rotated else momentum
        self.weights, self.product, self.value = weights, product, self.value + change
        self.history.append(self.value)

    def plain_step(self) -> tuple[Tensor, Tensor, float, bool]:
        """A step without momentum, shorter where the curvature was taken too small."""
        self.failures += 1
        while (found := self.candidate(0.0))[2] > self.rounding:
            self.failures, self.curvature = self.failures + 1, 2 * self.curvature
        return *found[:3], True

    def candidate(self, pace: float) -> tuple[Tensor, Tensor, float, bool]:
        """Where a step from the point extrapolated by `pace` arrives, its product, the change of F, and whether the momentum
        points against the step."""
        at = self.weights + pace * (self.weights - self.before[0])
        product = self.product + pace * (self.product - self.before[1])
        weights = self.balls.project(at - (product - self.quadratic.moment) / self.curvature)
        product, moved = self.quadratic.apply(weights), weights - self.weights
        # Not the difference of two values of F, which rounds at a part of F that steps near the end do not reach.
        change = moved @ ((product + self.product) / 2 - self.quadratic.moment)
        return weights, product, float(change), bool((at - weights) @ moved > 0)
