"""Conjugate gradients for systems C X = B, and minimization of ½ xᵀCx − bᵀx by conjugate gradients or L-BFGS (BT-78).

C is known by its products only. Both ridge problems have this form: the primal with C = I + Φᵀ N⁻¹ Φ and b = Φᵀ N⁻¹ y,
the dual with C = K + N and b = y. L-BFGS works in the coordinates z of x = R z with R Rᵀ = P̂⁻¹ ≈ C⁻¹, and restarts
from the residual when differences of the objective are lost to rounding, so that it reaches the residuals of conjugate
gradients.

For C = I + A, P̂ is made of Nyström's Â = Y (ΩᵀY)⁻¹ Yᵀ = U diag(λ) Uᵀ with a random Ω (r, R), orthonormal, and Y = A Ω,

    P̂ = U diag(1 + λ) Uᵀ + τ (I − U Uᵀ),     P̂^{-a} = τ^{-a} (I + U diag((τ/(1 + λ))^a − 1) Uᵀ),

with τ = 1 + λ_R for the other directions, or 1 if the sketch exhausts A. Features of a smooth kernel have few large
eigenvalues, which it removes; the diagonal of C, nearly constant for Fourier features, would not help.
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

METHODS = ("cg", "lbfgs")
LBFGS_MEMORY = 30  # steps that L-BFGS stores; for a quadratic more than the usual ten are useful
MAX_LBFGS_ROUNDS = 6  # maximum number of times that L-BFGS begins again from the residual
MAX_SKETCH_COLUMNS = 200
MAX_SKETCH_ENTRIES = 4_000_000  # maximum number of entries of the sketch (32 MB), that of one chunk of rows


@dataclass
class Iterations:
    """Solutions X (n, k, p) of conjugate gradients and their coefficients for J iterations and k columns."""

    solution: Tensor
    steps: Tensor  # (J, k), zero once a column has converged, as are the ratios
    ratios: Tensor

    def spectra(self) -> tuple[Tensor, Tensor]:
        """Compute eigenvalues λ (k, J) of the Lanczos matrices, and weights with e₁ᵀ f(T) e₁ = Σ weight f(λ). O(k J³)."""
        values, vectors = torch.linalg.eigh(self._lanczos_matrices())
        return values, vectors[:, 0].square()

    def _lanczos_matrices(self) -> Tensor:
        """Compute T (k, J, J): 1/a_j + b_{j−1}/a_{j−1} beside √b_j / a_j; the identity after convergence."""
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
    """Solve C X = B for each of the k columns of B (n, k, p), until every residual is below `tolerance` ‖b‖."""
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


class RefinedSolution(NamedTuple):
    """Solution and number of iterations."""

    solution: Tensor
    num_iterations: int


def solve_with_refinement(
    apply: Operator, precondition: Operator, rhs: Tensor, tolerance: float, max_iterations: int, norm: float
) -> RefinedSolution:
    """Solve C X = B (n, k, p), again for the true residual if rounding spoiled it; `norm` bounds the eigenvalues of C."""
    solution, residual, count = torch.zeros_like(rhs), rhs, 0
    for _ in range(3):
        run = conjugate_gradients(apply, precondition, residual, tolerance, max_iterations)
        solution, count = solution + run.solution, count + len(run.steps)
        residual = rhs - apply(solution)
        floor = 16 * torch.finfo(rhs.dtype).eps * norm * _norms(solution)
        if bool((_norms(residual) <= 2 * tolerance * _norms(rhs) + floor).all()):
            return RefinedSolution(solution, count)
    warn_residual(relative_norms(residual, rhs).max().item(), tolerance)
    return RefinedSolution(solution, count)


def warn_residual(residual: float, tolerance: float) -> None:
    """Warn that conjugate gradients did not reach the tolerance."""
    if residual != residual:
        raise FactorizationError(
            "Conjugate gradients failed with NaN: the covariance overflowed or is indefinite. Bound the hyperparameters or use more noise."
        )
    warnings.warn(
        f"Conjugate gradients stopped at a relative residual of {residual:.1e}, above the tolerance of "
        f"{tolerance:.0e}. Increase the noise or use a feature map (ORFF).",
        NumericalWarning,
        stacklevel=3,
    )


def _dots(left: Tensor, right: Tensor) -> Tensor:
    """Compute the inner product of each column, (k,)."""
    return torch.einsum("ika,ika->k", left, right)


def _norms(V: Tensor) -> Tensor:
    return torch.linalg.vector_norm(V, dim=(0, 2))


def relative_norms(V: Tensor, rhs: Tensor) -> Tensor:
    """Compute ‖v‖ / ‖b‖ of each column, (k,); 0 for 0 / 0."""
    return _norms(V) / _norms(rhs).clamp_min(torch.finfo(rhs.dtype).tiny)


def _quotient(numerator: Tensor, denominator: Tensor, active: Tensor) -> Tensor:
    """Compute the quotient if a column is active, else 0."""
    return torch.where(active, numerator / torch.where(active, denominator, 1.0), 0.0)


@dataclass(frozen=True)
class Quadratic:
    """C V for V (n, k, p), P̂⁻¹ ≈ C⁻¹, its root R with R Rᵀ = P̂⁻¹, and a bound of the eigenvalues of C."""

    apply: Operator
    precondition: Operator
    half: Operator
    half_transposed: Operator
    norm: float


def minimize_quadratic(
    quadratic: Quadratic, rhs: Tensor, method: str, tolerance: float, max_iter: int, verbose: int = 0
) -> RefinedSolution:
    """Solve C x = b for b (n, 1, p) by "cg" or "lbfgs"; a relative residual above `tolerance` is a `FitWarning`."""
    with tqdm(disable=not verbose, unit="product") as bar:

        def apply(V: Tensor) -> Tensor:
            bar.update()
            return quadratic.apply(V)

        if method == "cg":
            with suppress_residual_warnings():
                found = solve_with_refinement(apply, quadratic.precondition, rhs, tolerance, max_iter, quadratic.norm)
        else:
            found = _lbfgs(apply, quadratic, rhs, tolerance, max_iter)
        x = found.solution
        check_residual(rhs - apply(x), rhs, x, method, tolerance, quadratic.norm)
    return found


@contextmanager
def suppress_residual_warnings() -> Iterator[None]:
    """Suppress the warning of conjugate gradients, since `check_residual` follows."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "conjugate gradients stopped", NumericalWarning)
        yield


def check_residual(residual: Tensor, rhs: Tensor, x: Tensor, method: str, tolerance: float, norm: float) -> None:
    """Warn about a residual above both the tolerance and the round-off of C x."""
    size = torch.linalg.vector_norm(rhs).item()
    relative = torch.linalg.vector_norm(residual).item() / max(size, torch.finfo(rhs.dtype).tiny)
    floor = 16 * torch.finfo(rhs.dtype).eps * norm * torch.linalg.vector_norm(x).item() / max(size, 1e-300)
    if relative != relative:
        raise FactorizationError(
            f'solver="{method}" failed with NaN: the covariance overflowed. Bound the hyperparameters or scale the '
            "data."
        )
    if relative > 2 * tolerance + floor:
        warn_solver_residual(method, relative, tolerance)


def warn_solver_residual(method: str, relative: float, tolerance: float) -> None:
    """Warn that a solver did not reach the tolerance."""
    warnings.warn(
        f'solver="{method}" stopped at a relative residual of {relative:.1e}, above the tolerance of {tolerance:.0e}. Increase max_iter (of OVKRidge and ORFFRidge) or lam, or use solver="closed_form".',
        FitWarning,
        stacklevel=4,
    )


def _lbfgs(apply: Operator, quadratic: Quadratic, rhs: Tensor, tolerance: float, max_iter: int) -> RefinedSolution:
    x, residual, goal = torch.zeros_like(rhs), rhs, tolerance * torch.linalg.vector_norm(rhs).item()
    left, limit = torch.linalg.vector_norm(rhs).item(), max_iter
    for _ in range(MAX_LBFGS_ROUNDS):
        if left <= goal or max_iter <= 0:
            break
        step, used = _lbfgs_round(apply, quadratic, residual / left, goal / left, max_iter)
        x, before = x + left * step, left  # the first step of L-BFGS is made for a problem of size one
        residual, max_iter = rhs - apply(x), max_iter - used
        left = torch.linalg.vector_norm(residual).item()
        if not left <= before / 2:
            break
    return RefinedSolution(x, limit - max_iter)


def _lbfgs_round(apply: Operator, quadratic: Quadratic, rhs: Tensor, goal: float, max_iter: int) -> tuple[Tensor, int]:
    """Run from zero until the residual is below `goal`; return the step and the number of iterations."""
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

    options = {"maxcor": LBFGS_MEMORY, "maxiter": max_iter, "maxfun": 2 * max_iter + 10, "ftol": 0.0, "gtol": 0.0}
    start = np.zeros(rhs.numel())
    found = minimize(objective, start, jac=True, method="L-BFGS-B", callback=stop, options=options)
    return quadratic.half(tensor(found.x)), max(found.nit, 1)


class SketchedPreconditioner:
    """P̂ for C = I + A of size r, with vectors (r, k, 1), from a sketch with `rank` columns (None: as many as allowed).

    `apply` is V ↦ C V for V (r, k); the sketch is on the device of `like`.
    """

    def __init__(self, apply: Operator, size: int, *, rank: int | None = None, seed: int = 0, like: Tensor):
        rank = min(size, MAX_SKETCH_COLUMNS, max(MAX_SKETCH_ENTRIES // size, 1)) if rank is None else rank
        scores = torch.randn(size, rank, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        sketch = torch.linalg.qr(scores.to(like.device)).Q
        self.vectors, self.values = _nystrom(sketch, apply(sketch) - sketch)
        is_exhaustive = self.vectors.shape[1] < rank
        self.tail = 1.0 if is_exhaustive else self.values[-1].item()

    def power(self, V: Tensor, power: float) -> Tensor:
        """Compute P̂^{-power} V."""
        weights = (self.tail / self.values) ** power - 1
        columns = V.squeeze(-1)
        reduced = columns + self.vectors @ (weights.unsqueeze(-1) * (self.vectors.mT @ columns))
        return (reduced * self.tail**-power).unsqueeze(-1)


def _nystrom(sketch: Tensor, image: Tensor) -> tuple[Tensor, Tensor]:
    """Compute U (r, R') and 1 + λ (R',), decreasing, without eigenvalues lost to rounding."""
    core = sketch.mT @ image
    weights, rotation = torch.linalg.eigh((core + core.mT) / 2)
    precision = torch.finfo(weights.dtype)
    kept = weights > len(weights) * precision.eps * weights[-1].clamp_min(precision.tiny)
    root = image @ (rotation[:, kept] / weights[kept].sqrt())
    vectors, singular, _ = torch.linalg.svd(root, full_matrices=False)
    return vectors, 1 + singular.square()
