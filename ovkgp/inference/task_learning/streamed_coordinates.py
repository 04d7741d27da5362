"""Coordinates in which J has nearly the same curvature in all directions, so that gradients need few steps.

Near its minimum ∇²J ≈ λ + (ΦᵀSΦ/n) ⊗ (Ψᵀ diag(η f) Ψ), f_j the mean curvature of the loss in task j: for quantiles, the density of the
residuals at their quantile. With the eigenpairs (s, P) and (t, Q) of the two factors, W = P [U_kl / √(λ + s_k t_l)] Qᵀ.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ovkgp.exceptions import InputError
from ovkgp.inference.dense import gram
from ovkgp.inference.kronecker import eigh
from ovkgp.inference.task_learning.streamed import StreamedProblem

ROWS_EACH, LEAST_ROWS = 10, 4000
"""Rows for each coordinate, and the least rows, by which curvatures are estimated: they need not be exact."""
FIRST_WIDTH, WIDTH, FLAT = 0.5, 0.06, 0.02
"""How far, in `unit`, slopes are taken to either side for a curvature, before anything is known and at a fit; and the least curvature,
as a part of the largest."""


class StreamedCoordinates:
    """W = P [U / √(λ + s tᵀ)] Qᵀ.

    Args:
        problem: J.
        unit: of h, about the size of a target (`unit`).

    Cost: O(r³ + q³) once, for some 10 r rows, O(r² q) a change of coordinates; memory O(r²).

    Example:
        >>> import torch
        >>> from ovkgp.inference.task_learning.streamed import StreamedProblem
        >>> from ovkgp.inference.task_learning.streamed_coordinates import StreamedCoordinates
        >>> from ovkgp.losses import IntegralLoss, Square, gauss_legendre
        >>> X, loss = torch.linspace(1, 2, 9).double()[:, None], IntegralLoss(Square(), gauss_legendre(2))
        >>> problem = StreamedProblem.of(lambda X: torch.cat([X, 1e3 * X**2], -1), X, torch.eye(2).double(), X, loss, lam=1e-3)
        >>> coordinates = StreamedCoordinates(problem, unit=1.0)
        >>> W = torch.randn(2, 2, generator=torch.Generator().manual_seed(0)).double()
        >>> torch.allclose(coordinates.back(coordinates.into(W)), W)
        True
        >>> def slope(W):
        ...     return coordinates.gradient(problem.evaluate(W, 0.0).gradient)
        >>> torch.allclose(slope(W) - slope(0 * W), coordinates.into(W))  # the curvature is one in all directions
        True
    """

    def __init__(self, problem: StreamedProblem, unit: float):
        self.problem, self.unit = problem, unit
        self.num_rows = min(max(ROWS_EACH * problem.shape[0], LEAST_ROWS), problem.num_rows)
        total = sum(gram(part.row_weights.sqrt()[:, None] * part.inputs) for part in problem.chunks(self.num_rows))
        self.input_values, self.input_vectors = eigh(total / self.num_rows)
        self.adapt(torch.zeros(problem.shape, dtype=torch.float64), FIRST_WIDTH)

    def adapt(self, weights: Tensor, width: float = WIDTH, flat: float = FLAT) -> None:
        """Measure the curvature of the tasks again, at W and on the first rows of the random order."""
        problem = self.problem
        curvature = task_curvatures(problem, weights, width * self.unit, self.num_rows)
        largest = float(curvature.max())
        curvature = curvature.clamp_min(flat * largest) if largest > 0 else torch.full_like(curvature, 1 / self.unit)
        tasks = (problem.loss.weights * curvature).sqrt()[:, None] * problem.tasks
        self.task_values, self.task_vectors = eigh(gram(tasks))
        self.scale = (problem.lam + self.input_values[:, None] * self.task_values).rsqrt()

    @property
    def dimensions(self) -> tuple[float, float]:
        """Effective numbers of coordinates, Σ_kl s_k t_l/(λ + s_k t_l), and of tasks, Σ_l max_k of the same."""
        parts = 1 - self.problem.lam * self.scale.square()
        return float(parts.sum()), float(parts.amax(0).sum())

    def back(self, coordinates: Tensor) -> Tensor:
        """W of U."""
        return self.input_vectors @ (self.scale * coordinates) @ self.task_vectors.T

    def into(self, weights: Tensor) -> Tensor:
        """U of W."""
        return (self.input_vectors.T @ weights @ self.task_vectors) / self.scale

    def gradient(self, gradient: Tensor) -> Tensor:
        """The gradient in U of one in W."""
        return self.scale * (self.input_vectors.T @ gradient @ self.task_vectors)


def task_curvatures(problem: StreamedProblem, weights: Tensor, width: float, num_rows: int | None = None) -> Tensor:
    """f (m,), the mean over the rows of (L'(h + width) − L'(h − width)) / (2 width)."""
    total, mass = torch.zeros(len(problem.tasks), dtype=torch.float64), 0.0
    for part in problem.chunks(num_rows):
        H = part.values(weights)
        rise = part.loss.derivative(H + width, part.targets) - part.loss.derivative(H - width, part.targets)
        total, mass = total + part.row_weights @ rise, mass + float(part.row_weights.sum())
    return total / (2 * width * mass) if mass > 0 else total


def target_unit(problem: StreamedProblem, num_rows: int = 10_000) -> float:
    """The size of a target over that of a slope at h = 0: what κ is measured in.

    Example:
        >>> import torch
        >>> from ovkgp.inference.task_learning.streamed import StreamedProblem
        >>> from ovkgp.inference.task_learning.streamed_coordinates import target_unit
        >>> from ovkgp.losses import IntegralLoss, Square, gauss_legendre
        >>> X, loss = torch.linspace(1, 2, 9).double()[:, None], IntegralLoss(Square(), gauss_legendre(2))
        >>> target_unit(StreamedProblem.of(lambda X: X, X, torch.eye(2).double(), X, loss, lam=1.0))
        1.0
    """
    squares = torch.zeros(2, dtype=torch.float64)
    for part in problem.chunks(num_rows):
        slopes = part.loss.derivative(torch.zeros_like(part.entry_weights), part.targets)
        sizes = [(part.entry_weights * values.square()).sum() for values in (part.targets.expand_as(slopes), slopes)]
        squares += torch.stack(sizes)
    if not bool(torch.isfinite(squares).all()):
        raise InputError("the squares of the targets overflow: scale them.")
    target, slope = squares.sqrt().tolist()
    return target / slope if min(target, slope) > 0 else 1.0
