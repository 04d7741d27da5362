"""Newton systems (λ I + Σ_k d_k x_k x_kᵀ) δ = g over the weights W, for rows x_k = φ_i ⊗ ψ_j of several problems that share W.

Only entries with curvature d_k > 0 count: near a solution of a piecewise linear loss these are the few that lie on a kink. Where
they are fewer than the weights, Woodbury's identity leaves a system of their number; else the system of the weights is solved,
or, where both are large, conjugate gradients that never build one.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ovkgp.inference.task_learning.problem import TaskProblem

DENSE = 2000
"""The largest dense system; beyond it, conjugate gradients."""
STORED_ROWS = 4000
"""The most rows whose Gram matrix is kept."""


class NewtonSystems:
    """Solves Newton systems of problems that share their weights.

    Args:
        parts: problems with the same λ and coordinates; their tasks (m, q) are shared by all rows.

    Cost: O(N² r) once and O(N²) memory for N rows in all, where N ≤ 4000; a solve is O(k³) for k curved entries, O((r q)³), or
    O(n q (r + m)) an iteration of conjugate gradients.
    """

    def __init__(self, parts: Sequence[TaskProblem]):
        self.parts, self.lam = parts, parts[0].lam
        self.shape = parts[0].inputs.shape[1], parts[0].tasks.shape[1]
        rows = torch.cat([part.inputs for part in parts])
        tasks = torch.cat([part.tasks for part in parts])
        self.task_gram = tasks @ tasks.T
        self.row_gram = rows @ rows.T if len(rows) <= STORED_ROWS else None

    def solve(self, gradient: Tensor, curvatures: Sequence[Tensor]) -> Tensor:
        """δ (r, q) for a gradient (r, q) and curvatures d (n, m) of each part."""
        active = sum(int((d > 0).sum()) for d in curvatures)
        size = self.shape[0] * self.shape[1]
        if active <= min(DENSE, size) and self.row_gram is not None:
            return self._by_entries(gradient, curvatures)
        if size <= DENSE:
            return self._by_weights(gradient, curvatures)
        return self._by_conjugate_gradients(gradient, curvatures)

    def _by_entries(self, gradient: Tensor, curvatures: Sequence[Tensor]) -> Tensor:
        """(1/λ) (g − X_Iᵀ (λ D⁻¹ + X_I X_Iᵀ)⁻¹ X_I g)."""
        masks = [d > 0 for d in curvatures]
        rows, tasks = self._places(masks)
        system = self.row_gram[rows[:, None], rows] * self.task_gram[tasks[:, None], tasks]
        system.diagonal().add_(self.lam / torch.cat([d[mask] for d, mask in zip(curvatures, masks, strict=True)]))
        seen = torch.cat([part.values(gradient)[mask] for part, mask in zip(self.parts, masks, strict=True)])
        answer = torch.cholesky_solve(seen[:, None], torch.linalg.cholesky(system))[:, 0]
        pulled, start = gradient.clone(), 0
        for part, mask in zip(self.parts, masks, strict=True):
            entries = torch.zeros(mask.shape, dtype=answer.dtype)
            count = int(mask.sum())
            entries[mask] = answer[start : start + count]
            pulled -= part.inputs.T @ entries @ part.tasks
            start += count
        return pulled / self.lam

    def _places(self, masks: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Which row and which task of all parts together each curved entry has."""
        rows, tasks, first_row, first_task = [], [], 0, 0
        for part, mask in zip(self.parts, masks, strict=True):
            i, j = mask.nonzero(as_tuple=True)
            rows.append(i + first_row)
            tasks.append(j + first_task)
            first_row, first_task = first_row + len(part.inputs), first_task + len(part.tasks)
        return torch.cat(rows), torch.cat(tasks)

    def _by_weights(self, gradient: Tensor, curvatures: Sequence[Tensor]) -> Tensor:
        r, q = self.shape
        system = torch.zeros(r * r, q * q, dtype=gradient.dtype)
        for part, d in zip(self.parts, curvatures, strict=True):
            inner = torch.einsum("ia,ij,ic->jac", part.inputs, d, part.inputs).flatten(1)
            outer = (part.tasks[:, :, None] * part.tasks[:, None, :]).flatten(1)
            system += inner.T @ outer
        system = system.reshape(r, r, q, q).transpose(1, 2).reshape(r * q, r * q)
        system.diagonal().add_(self.lam)
        return torch.cholesky_solve(gradient.reshape(-1, 1), torch.linalg.cholesky(system)).reshape(r, q)

    def _by_conjugate_gradients(self, gradient: Tensor, curvatures: Sequence[Tensor], tolerance: float = 1e-3) -> Tensor:
        delta, residual = torch.zeros_like(gradient), gradient.clone()
        direction, square = residual, residual.square().sum()
        goal = tolerance**2 * square
        for _ in range(200):
            if square <= goal:
                break
            image = self.lam * direction
            for part, d in zip(self.parts, curvatures, strict=True):
                image = image + part.inputs.T @ (d * part.values(direction)) @ part.tasks
            step = square / (direction * image).sum()
            delta, residual = delta + step * direction, residual - step * image
            before, square = square, residual.square().sum()
            direction = residual + square / before * direction
        return delta
