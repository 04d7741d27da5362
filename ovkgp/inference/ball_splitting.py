"""A start for projected gradients: operator splitting (ADMM), which does not mind that A is nearly singular.

    θ ← (A + ρI)⁻¹ (v + ρ(z − u)),      z ← project(θ + u),      u ← u + θ − z,

with θ over-relaxed towards z. The eigenvectors of A make every ρ cost the same, so that it follows the two residuals. The features of
smooth kernels make A nearly singular, and gradients slow.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ovkgp.inference.ball_quadratics import BallQuadratic
from ovkgp.inference.balls import Balls

RELAXATION, CHECKED_EVERY, MOST_STEPS, ADAPTED_UNTIL = 1.6, 10, 3000, 1000
"""Over-relaxation; steps between tests; the most of them; and after how many ρ stays as it is, so that they converge."""


def gap_of(quadratic: BallQuadratic, balls: Balls, weights: Tensor, product: Tensor) -> float:
    """⟨∇F, θ⟩ + R Σ_j ‖∇F_j‖ ≥ F(θ) − min F, for θ in the balls and Aθ."""
    gradient = product - quadratic.moment
    return float(gradient @ weights) + balls.support(gradient)


def split_start(
    quadratic: BallQuadratic, balls: Balls, *, tolerance: float = 1e-8, max_iter: int = MOST_STEPS
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
        >>> from ovkgp.inference.ball_quadratics import BallQuadratic
        >>> from ovkgp.inference.balls import Balls
        >>> from ovkgp.inference.ball_splitting import split_start
        >>> quadratic = BallQuadratic.of(torch.eye(2).double(), torch.tensor([3.0, 0.1]).double(), square=9.01)
        >>> weights, steps = split_start(quadratic, Balls(torch.tensor([[0], [1]]), 1.0))
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
