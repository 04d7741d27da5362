"""Newton systems (λ I + Σ_k d_k x_k x_kᵀ) δ = g over weights W, with rows x_k = φ_i ⊗ ψ_j of several problems that share W.

Only entries with curvature d_k > 0 count: near a solution of a piecewise linear loss these are the few that lie on a kink. Where
they are fewer than the weights, Woodbury's identity leaves a system of their number; else the system of the weights is solved,
or, where both are large, conjugate gradients that never build one.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ovkgp.exceptions import FactorisationError
from ovkgp.inference.task_learning.problem import TaskProblem

DENSE = 2000
"""The largest dense system; beyond it, conjugate gradients."""
STORED_ROWS = 4000
"""The most rows whose Gram matrix is kept."""
CG_TOLERANCE, CG_STEPS = 1e-3, 300


class NewtonSystems:
    """Solves the Newton systems of problems that share their weights.

    Args:
        parts: problems with the same λ and the same coordinates, whose tasks Ψ (m, q) are shared by all rows.

    Cost: O(N² r) once and O(N²) memory for N rows in all, where N ≤ 4000. A solve is O(k³) for k curved entries, O((r q)³), or
    O(n q (r + m)) an iteration of conjugate gradients, whichever road is open and short.

    Example:
        >>> import torch
        >>> from ovkgp.inference.task_learning.noncrossing_systems import NewtonSystems
        >>> from ovkgp.inference.task_learning.problem import TaskProblem
        >>> from ovkgp.losses import IntegralLoss, Pinball, gauss_legendre
        >>> eye, y = torch.eye(2, dtype=torch.float64), torch.ones(2, 1, dtype=torch.float64)
        >>> part = TaskProblem(eye, eye, y, IntegralLoss(Pinball(), gauss_legendre(2)), lam=0.5)
        >>> curvature = torch.tensor([[1.5, 0.0], [0.0, 0.0]], dtype=torch.float64)
        >>> NewtonSystems([part]).solve(torch.ones(2, 2, dtype=torch.float64), [curvature])
        tensor([[0.5000, 2.0000],
                [2.0000, 2.0000]], dtype=torch.float64)
    """

    def __init__(self, parts: Sequence[TaskProblem]):
        self.parts, self.lam = parts, parts[0].lam
        self.shape = parts[0].inputs.shape[1], parts[0].tasks.shape[1]
        rows, tasks = (torch.cat([getattr(part, name) for part in parts]) for name in ("inputs", "tasks"))
        self.task_gram = tasks @ tasks.T
        self.row_gram = rows @ rows.T if len(rows) <= STORED_ROWS else None

    def solve(self, gradient: Tensor, curvatures: Sequence[Tensor]) -> Tensor:
        """δ (r, q) for a gradient g (r, q) and curvatures d (n, m) of each part."""
        active = sum(int((d > 0).sum()) for d in curvatures)
        if active == 0:
            return gradient / self.lam
        if self.row_gram is not None and active <= min(DENSE, gradient.numel()):
            return self._by_entries(gradient, curvatures)
        if gradient.numel() <= DENSE:
            return self._by_weights(gradient, curvatures)
        return self._by_conjugate_gradients(gradient, curvatures)

    def _by_entries(self, gradient: Tensor, curvatures: Sequence[Tensor]) -> Tensor:
        """(1/λ) (g − Xᵀ (λ D⁻¹ + X Xᵀ)⁻¹ X g), with the rows X of the curved entries only."""
        masks = [d > 0 for d in curvatures]
        rows, tasks = self._places(masks)
        system = self.row_gram[rows[:, None], rows] * self.task_gram[tasks[:, None], tasks]
        system.diagonal().add_(self.lam / _picked(curvatures, masks))
        answer = _solved(system, _picked([part.values(gradient) for part in self.parts], masks))
        counts = [int(mask.sum()) for mask in masks]
        for part, mask, entries in zip(self.parts, masks, answer.split(counts), strict=True):
            spread = gradient.new_zeros(mask.shape).masked_scatter(mask, entries)
            gradient = gradient - part.inputs.T @ spread @ part.tasks
        return gradient / self.lam

    def _places(self, masks: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """The row and the task of each curved entry, counted over all parts."""
        rows, tasks, first_row, first_task = [], [], 0, 0
        for mask in masks:
            i, j = mask.nonzero(as_tuple=True)
            rows.append(i + first_row)
            tasks.append(j + first_task)
            first_row, first_task = first_row + mask.shape[0], first_task + mask.shape[1]
        return torch.cat(rows), torch.cat(tasks)

    def _by_weights(self, gradient: Tensor, curvatures: Sequence[Tensor]) -> Tensor:
        """The (r q, r q) system: Σ_j (Φᵀ D_j Φ) ⊗ ψ_j ψ_jᵀ costs O(m r² (n + q²))."""
        r, q = self.shape
        system = gradient.new_zeros(r * r, q * q)
        for part, d in zip(self.parts, curvatures, strict=True):
            inner = part.inputs.T @ (d.T[:, :, None] * part.inputs)
            outer = part.tasks[:, :, None] * part.tasks[:, None, :]
            system += inner.flatten(1).T @ outer.flatten(1)
        system = system.reshape(r, r, q, q).transpose(1, 2).reshape(r * q, r * q)
        system.diagonal().add_(self.lam)
        return _solved(system, gradient.flatten()).reshape(r, q)

    def _by_conjugate_gradients(self, gradient: Tensor, curvatures: Sequence[Tensor]) -> Tensor:
        """An inexact δ: still a direction of descent, and the gap is what says when to stop."""
        delta, residual = torch.zeros_like(gradient), gradient
        direction, square = residual, residual.square().sum()
        goal = CG_TOLERANCE**2 * square
        for _ in range(CG_STEPS):
            image = self.lam * direction
            for part, d in zip(self.parts, curvatures, strict=True):
                image = image + part.inputs.T @ (d * part.values(direction)) @ part.tasks
            step = square / (direction * image).sum()
            delta, residual = delta + step * direction, residual - step * image
            before, square = square, residual.square().sum()
            if square <= goal:
                break
            direction = residual + square / before * direction
        return delta


def _picked(values: Sequence[Tensor], masks: Sequence[Tensor]) -> Tensor:
    """The entries of all parts that their masks name, (k,)."""
    return torch.cat([value[mask] for value, mask in zip(values, masks, strict=True)])


def _solved(system: Tensor, right: Tensor) -> Tensor:
    """system⁻¹ right; on failure with jitter, which bends the direction a little and the solution not at all."""
    for jitter in (0.0, 1e-13, 1e-11, 1e-9):
        system.diagonal().add_(jitter * system.diagonal().max())
        chol, info = torch.linalg.cholesky_ex(system)
        if info.item() == 0:
            return torch.cholesky_solve(right[:, None], chol)[:, 0]
    raise FactorisationError(
        "a Newton system of task learning is not positive definite: are there NaN or huge numbers among the coordinates?"
    )
