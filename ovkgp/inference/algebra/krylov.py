"""The least point of ½ xᵀCx − bᵀx, with C known by its products alone: conjugate gradients or L-BFGS (BT-78).

Both ridge problems are of this form: the primal with C = I + Φᵀ N⁻¹ Φ and b = Φᵀ N⁻¹ y, the dual with C = K + N and b = y.
L-BFGS works in the coordinates z of x = R z with R Rᵀ = P̂⁻¹ ≈ C⁻¹, and starts anew from the residual when differences of
the objective are lost to rounding, so that it reaches the same residuals as conjugate gradients.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from linear_operator.utils.warnings import NumericalWarning
from scipy.optimize import minimize
from torch import Tensor
from tqdm import tqdm

from ovkgp.exceptions import FactorizationError, FitWarning

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
        raise FactorizationError(
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


METHODS = ("cg", "lbfgs")

MEMORY = 30
"""How many steps L-BFGS remembers; a quadratic rewards more than the usual ten."""

ROUNDS = 6
"""How often L-BFGS starts anew from the residual, at most."""


@dataclass(frozen=True)
class Quadratic:
    """C and what is known of it; vectors are tensors V (n, k, p), each of the k columns one of them.

    Args:
        apply: V ↦ C V.
        precondition: V ↦ P̂⁻¹ V, with P̂ ≈ C.
        half: V ↦ R V, with R Rᵀ = P̂⁻¹.
        half_transposed: V ↦ Rᵀ V.
        norm: a bound of the largest eigenvalue of C.
    """

    apply: Operator
    precondition: Operator
    half: Operator
    half_transposed: Operator
    norm: float


def least_point(
    quadratic: Quadratic, rhs: Tensor, method: str, tolerance: float, max_iter: int, verbose: int = 0
) -> Refined:
    """x (n, 1, p) with C x = b, and the number of iterations that it took.

    Args:
        quadratic: C.
        rhs: b (n, 1, p).
        method: "cg" or "lbfgs".
        tolerance: relative size of the residual b − C x.
        max_iter: iterations; conjugate gradients may take up to three times as many to mend what rounding spoilt.
        verbose: 1 shows how many products were made.

    A residual that stays larger is a `FitWarning`.

    Cost: one product with C an iteration, for L-BFGS sometimes two; memory for `MEMORY` pairs of vectors.

    Example:
        >>> import torch
        >>> from ovkgp.inference.algebra.krylov import Quadratic, least_point
        >>> C = Quadratic(lambda V: 4 * V, lambda V: V, lambda V: V, lambda V: V, norm=4.0)
        >>> least_point(C, torch.ones(3, 1, 1).double(), "lbfgs", tolerance=1e-9, max_iter=50).solution.flatten()
        tensor([0.2500, 0.2500, 0.2500], dtype=torch.float64)
    """
    with tqdm(disable=not verbose, unit="product") as bar:

        def apply(V: Tensor) -> Tensor:
            bar.update()
            return quadratic.apply(V)

        if method == "cg":
            with quiet_iterations():
                found = refined_solve(apply, quadratic.precondition, rhs, tolerance, max_iter, quadratic.norm)
        else:
            found = _lbfgs(apply, quadratic, rhs, tolerance, max_iter)
        x = found.solution
        check_residual(rhs - apply(x), rhs, x, method, tolerance, quadratic.norm)
    return found


@contextmanager
def quiet_iterations() -> Iterator[None]:
    """Conjugate gradients do not say that they stopped early: `check_residual` will."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "conjugate gradients stopped", NumericalWarning)
        yield


def check_residual(residual: Tensor, rhs: Tensor, x: Tensor, method: str, tolerance: float, norm: float) -> None:
    """Warn of a residual that is neither below the tolerance nor at the round-off of C x."""
    size = torch.linalg.vector_norm(rhs).item()
    relative = torch.linalg.vector_norm(residual).item() / max(size, torch.finfo(rhs.dtype).tiny)
    floor = 16 * torch.finfo(rhs.dtype).eps * norm * torch.linalg.vector_norm(x).item() / max(size, 1e-300)
    if relative != relative:
        raise FactorizationError(
            f'solver="{method}" met NaN: the hyperparameters made the covariance overflow. Bound them, or scale the data.'
        )
    if relative > 2 * tolerance + floor:
        warn_of_residual_quadratics(method, relative, tolerance)


def warn_of_residual_quadratics(method: str, relative: float, tolerance: float) -> None:
    """Say that a solver did not arrive."""
    warnings.warn(
        f'solver="{method}" stopped at a relative residual of {relative:.1e}, above the tolerance of {tolerance:.0e}: raise '
        'max_iter or the noise (a larger lam), or take solver="closed_form".',
        FitWarning,
        stacklevel=4,
    )


def _lbfgs(apply: Operator, quadratic: Quadratic, rhs: Tensor, tolerance: float, max_iter: int) -> Refined:
    x, residual, goal = torch.zeros_like(rhs), rhs, tolerance * torch.linalg.vector_norm(rhs).item()
    left, limit = torch.linalg.vector_norm(rhs).item(), max_iter
    for _ in range(ROUNDS):
        if left <= goal or max_iter <= 0:
            break
        step, used = _lbfgs_round(apply, quadratic, residual / left, goal / left, max_iter)
        x, before = x + left * step, left  # the first step of L-BFGS wants a problem of size one
        residual, max_iter = rhs - apply(x), max_iter - used
        left = torch.linalg.vector_norm(residual).item()
        if not left <= before / 2:
            break
    return Refined(x, limit - max_iter)


def _lbfgs_round(apply: Operator, quadratic: Quadratic, rhs: Tensor, goal: float, max_iter: int) -> tuple[Tensor, int]:
    """One run from zero until the residual is below `goal`; the step and the number of iterations."""
    left = [torch.linalg.vector_norm(rhs).item()]

    def tensor(z: np.ndarray) -> Tensor:
        return torch.from_numpy(z).to(rhs).view(rhs.shape)

    def objective(z: np.ndarray) -> tuple[float, np.ndarray]:
        x = quadratic.half(tensor(z))
        gradient = apply(x) - rhs
        left[0] = torch.linalg.vector_norm(gradient).item()
        value = (x * (gradient - rhs)).sum().item() / 2
        return value, quadratic.half_transposed(gradient).flatten().cpu().numpy()

    def stop(_) -> None:
        if left[0] <= goal:
            raise StopIteration

    options = {"maxcor": MEMORY, "maxiter": max_iter, "maxfun": 2 * max_iter + 10, "ftol": 0.0, "gtol": 0.0}
    start = np.zeros(rhs.numel())
    found = minimize(objective, start, jac=True, method="L-BFGS-B", callback=stop, options=options)
    return quadratic.half(tensor(found.x)), max(found.nit, 1)
