"""Least squares with weights held in balls, by accelerated projected gradients (BT-88, thesis (7.7)).

    min F(θ) = ½ θᵀAθ − vᵀθ + ½ s      subject to ‖θ_j‖ ≤ R for each group j of the weights.

A step goes along −∇F from an extrapolated point and back into the balls; where F would grow or the momentum points the wrong way
it is thrown away (restarted), so that F never grows. At any θ in the balls the gap ⟨∇F, θ⟩ + R Σ_j ‖∇F_j‖ bounds F(θ) − min F: it is the test for
stopping, and a certificate.
"""

from __future__ import annotations

import math
import time

import torch
from torch import Tensor
from tqdm import tqdm

from ovkgp.exceptions import InputError, OptionError
from ovkgp.inference.ball_quadratics import BallQuadratic
from ovkgp.inference.ball_splitting import gap_of
from ovkgp.inference.balls import Balls
from ovkgp.inference.fit_report import FitReport
from ovkgp.kernels.checks import whole_number

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
        start: weights in the balls to begin with, such as those of `split_start`; zero where it is None.
        tolerance: it stops where the gap is at most tolerance · F(0), or where the projected gradient is at most tolerance · ‖v‖.
        max_iter: the most steps, one product with A each.
        verbose: 1 shows progress.

    The report's `objective` is F, `history` is F after each step (it never grows, but for rounding), `gradient_norm` the norm of the projected
    gradient over ‖v‖. Ctrl-C keeps the weights so far and sets `interrupted`.

    Cost: a product with A a step, and one or (without a spectrum) about 20 before the first. The error falls at least as 1 / steps².

    Example:
        >>> import torch
        >>> from ovkgp.inference.ball_quadratics import BallQuadratic
        >>> from ovkgp.inference.balls import Balls
        >>> from ovkgp.inference.projected_gradient import minimise_in_balls
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
    descent = _Descent(quadratic, balls, start, tolerance, whole_number("max_iter", max_iter))
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
        weights, product, change, turned = self.candidate((self.momentum - 1) / momentum)
        if change > self.rounding:
            weights, product, change, turned = self.plain_step()
        self.before, self.momentum = (self.weights, self.product), 1.0 if turned else momentum
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
