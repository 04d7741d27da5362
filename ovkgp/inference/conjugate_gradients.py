"""Preconditioned conjugate gradients for many right-hand sides at once, and the Lanczos matrices that they carry.

The coefficients of the iterations for C x = z are those of Lanczos' method for M = P̂^{-½} C P̂^{-½} started at u = P̂^{-½} z: its
tridiagonal T gives uᵀ f(M) u ≈ ‖u‖² e₁ᵀ f(T) e₁, so that log det M costs no product beyond those of the solves.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from linear_operator.utils.warnings import NumericalWarning
from torch import Tensor

from ovkgp.exceptions import FactorisationError

Operator = Callable[[Tensor], Tensor]


@dataclass
class Iterations:
    """The solutions X (n, k, p) and, for each of J iterations and k columns, the coefficients of the method.

    `steps` and `ratios` are (J, k), zero once a column has converged.
    """

    solution: Tensor
    steps: Tensor
    ratios: Tensor

    def spectra(self) -> tuple[Tensor, Tensor]:
        """Eigenvalues λ (k, J) of the Lanczos matrices, and weights with e₁ᵀ f(T) e₁ = Σ weight f(λ). O(k J³)."""
        values, vectors = torch.linalg.eigh(self._lanczos_matrices())
        return values, vectors[:, 0].square()

    def _lanczos_matrices(self) -> Tensor:
        """T (k, J, J): 1/a_j + b_{j−1}/a_{j−1} on the diagonal, √b_j / a_j beside it; the identity after convergence."""
        steps, ratios = self.steps.mT, self.ratios.mT  # (k, J)
        active = steps > 0
        inverse = torch.where(active, 1 / torch.where(active, steps, 1.0), 0.0)
        carried = torch.nn.functional.pad((ratios * inverse)[:, :-1], (1, 0))
        diagonal = torch.where(active, inverse + carried, 1.0)
        beside = torch.where(active[:, 1:], ratios[:, :-1].sqrt() * inverse[:, :-1], 0.0)
        return torch.diag_embed(diagonal) + torch.diag_embed(beside, 1) + torch.diag_embed(beside, -1)


def conjugate_gradients(
    apply: Operator, precondition: Operator, rhs: Tensor, tolerance: float, max_iterations: int
) -> Iterations:
    """X with C X = B for each of the k columns of B (n, k, p), until every residual is below `tolerance` ‖b‖.

    Args:
        apply: V ↦ C V.
        precondition: V ↦ P̂⁻¹ V.
        rhs: B (n, k, p).
        tolerance: relative size of the residuals.
        max_iterations: after which it stops in any case.

    Cost: two products an iteration, one of each operator.
    """
    solution, residual = torch.zeros_like(rhs), rhs.clone()
    goal = tolerance * _norms(rhs)
    direction = precondition(residual)
    energy = _dots(residual, direction)
    active, steps, ratios = _norms(rhs) > goal, [], []
    while bool(active.any()) and len(steps) < max_iterations:
        image = apply(direction)
        steps.append(_quotient(energy, _dots(direction, image), active))
        solution.addcmul_(steps[-1].unsqueeze(-1), direction)
        residual.addcmul_(steps[-1].unsqueeze(-1), image, value=-1)
        nearer = precondition(residual)
        before, energy = energy, _dots(residual, nearer)
        ratios.append(_quotient(energy, before, active))
        direction = nearer.addcmul_(ratios[-1].unsqueeze(-1), direction)
        active = active & (_norms(residual) > goal)
    none = goal.new_zeros(0, len(goal))
    return Iterations(solution, torch.stack(steps) if steps else none, torch.stack(ratios) if steps else none)


class Refined(NamedTuple):
    """A solution, and the number of iterations that it took."""

    solution: Tensor
    num_iterations: int


def refined_solve(
    apply: Operator, precondition: Operator, rhs: Tensor, tolerance: float, max_iterations: int, norm: float
) -> Refined:
    """X (n, k, p) with C X = B, whose true residual was looked at: where rounding spoilt it, its own solution is added.

    `norm` bounds the eigenvalues of C. No solution in floating point has a residual below about ε ‖C‖ ‖x‖: that is enough.
    """
    solution, residual, count = torch.zeros_like(rhs), rhs, 0
    for _ in range(3):
        run = conjugate_gradients(apply, precondition, residual, tolerance, max_iterations)
        solution, count = solution + run.solution, count + len(run.steps)
        residual = rhs - apply(solution)
        floor = 16 * torch.finfo(rhs.dtype).eps * norm * _norms(solution)
        if bool((_norms(residual) <= 2 * tolerance * _norms(rhs) + floor).all()):
            return Refined(solution, count)
    warn_of_residual(relative_norms(residual, rhs).max().item(), tolerance)
    return Refined(solution, count)


def warn_of_residual(residual: float, tolerance: float) -> None:
    """Say that the iterations did not reach their goal."""
    if residual != residual:
        raise FactorisationError(
            "conjugate gradients met NaN: the hyperparameters made the covariance overflow or indefinite. Bound them, or "
            "take more noise."
        )
    warnings.warn(
        f"conjugate gradients stopped at a relative residual of {residual:.1e}, above the {tolerance:.0e} asked for: allow "
        "more iterations or a larger max_rank, take more noise, or a feature map (ORFF).",
        NumericalWarning,
        stacklevel=3,
    )


def _dots(left: Tensor, right: Tensor) -> Tensor:
    """The inner product of each column, (k,)."""
    return torch.einsum("ika,ika->k", left, right)


def _norms(V: Tensor) -> Tensor:
    return torch.linalg.vector_norm(V, dim=(0, 2))


def relative_norms(V: Tensor, rhs: Tensor) -> Tensor:
    """‖v‖ / ‖b‖ of each column, (k,); 0 for 0 / 0."""
    return _norms(V) / _norms(rhs).clamp_min(torch.finfo(rhs.dtype).tiny)


def _quotient(numerator: Tensor, denominator: Tensor, active: Tensor) -> Tensor:
    """The quotient where a column is active, else 0."""
    return torch.where(active, numerator / torch.where(active, denominator, 1.0), 0.0)
