"""Weights W (a, b) of n curves l_iᵀ W φ(θ) that were each observed at their own points, with the posterior precision

    S = I + Σ_i l_i l_iᵀ ⊗ D_i,     D_i = Φ_iᵀ N_i⁻¹ Φ_i,

for the rows l_i of L (n, a), the functions φ at the points of curve i, Φ_i, and the covariance N_i of its noise. The information D_i of
curves on a common grid follows from the functions on the grid, so that no matrix per curve is stored. Entries of W with a small prior
influence λ_a mean(D)_bb, λ_a = Σ_i l_ia², keep their prior variance.
"""

from __future__ import annotations

from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor

from ovkgp.inference.algebra.dense import inverse_from_cholesky, safe_cholesky
from ovkgp.inference.algebra.krylov import solve_with_refinement

CG_TOLERANCE, MAX_CG_ITERATIONS = 1e-11, 2000


class Information(Protocol):
    """Matrices D_i (b, b) of n curves."""

    def multiply(self, V: Tensor) -> Tensor:
        """Compute D_i v for V (n, k, b)."""

    def column(self, index: int) -> Tensor:
        """Return the column `index` of each matrix, (n, b)."""

    def diagonal(self) -> Tensor:
        """Return the diagonals (n, b)."""


class MatrixInformation:
    """Matrices D (n, b, b) that are stored."""

    def __init__(self, matrices: Tensor):
        self.matrices = matrices

    def multiply(self, V: Tensor) -> Tensor:
        """Compute D_i v for V (n, k, b)."""
        return V @ self.matrices

    def column(self, index: int) -> Tensor:
        """Return the column `index` of each matrix, (n, b)."""
        return self.matrices[:, index]

    def diagonal(self) -> Tensor:
        """Return the diagonals (n, b)."""
        return self.matrices.diagonal(dim1=1, dim2=2)


class TableInformation:
    """D_i = Φ_iᵀ diag(p_i) Φ_i of values with independent noise, for precisions P (n, m), zero where there is no value.

    `functions` are Φ (m, b) on a common grid, or Φ_i (n, m, b) with any rows where the precision is zero.
    """

    def __init__(self, functions: Tensor, precisions: Tensor):
        self.functions, self.precisions = functions, precisions

    def multiply(self, V: Tensor) -> Tensor:
        """Compute D_i v for V (n, k, b). O(n m b k)."""
        return ((V @ self.functions.mT) * self.precisions.unsqueeze(1)) @ self.functions

    def column(self, index: int) -> Tensor:
        """Return the column `index` of each matrix, (n, b)."""
        weighted = self.precisions * self.functions[..., index]
        return (weighted.unsqueeze(1) @ self.functions).squeeze(1)

    def diagonal(self) -> Tensor:
        """Return the diagonals (n, b)."""
        return (self.precisions.unsqueeze(1) @ self.functions.square()).squeeze(1)


class CurveWeights:
    """Solutions with S, and the covariance of the weights with an influence above `min_influence`, at most `max_weights`.

    Complexity: O(n R² + R³) once for R weights with a covariance; a product with S costs O(n a b) and one with each D_i.

    Parameters
    ----------
    inputs : Tensor of shape (n, a)
        L.
    information : Information
        D_1, …, D_n.
    max_weights : int
        Largest number of weights whose covariance is computed.
    min_influence : float, default=0
        Influence up to which a weight keeps its prior variance.
    """

    def __init__(self, inputs: Tensor, information: Information, max_weights: int, min_influence: float = 0.0):
        self.inputs, self.information = inputs, information
        own = information.diagonal()
        self.diagonal = 1.0 + inputs.square().mT @ own  # of S, (a, b)
        influence = torch.outer(inputs.square().sum(0), own.mean(0))
        self.num_influential = int((influence > min_influence).sum())
        index = influence.flatten().topk(min(max_weights, self.num_influential)).indices
        kept = torch.zeros(influence.numel(), dtype=torch.bool)
        kept[index] = True
        self.kept = kept.view_as(influence)
        functions, rows = self.kept.mT.nonzero(as_tuple=True)
        self.pairs = rows, functions
        ends = self.kept.sum(0).cumsum(0).tolist()
        self.groups = [
            slice(begin, end) for begin, end in zip([0, *ends], ends, strict=False)
        ]  # kept weights of a function

    @property
    def has_all(self) -> bool:
        """Whether all weights with an influence above the limit are kept."""
        return len(self.pairs[0]) == self.num_influential

    @cached_property
    def chol(self) -> Tensor:
        """Cholesky factor of S between the kept weights, (R, R)."""
        rows, functions = self.pairs
        inputs, S = self.inputs[:, rows], self.inputs.new_zeros(len(rows), len(rows))  # only the lower triangle
        for function, own in enumerate(self.groups):
            if own.start < own.stop:
                columns = self.information.column(function)[:, functions[: own.stop]]
                S[own, : own.stop] = inputs[:, own].mT @ columns.mul_(inputs[:, : own.stop])
        S.diagonal().add_(1.0)
        return safe_cholesky(S)

    @cached_property
    def explained_weights(self) -> Tensor:
        """I − S⁻¹ between the kept weights, (R, R)."""
        return torch.eye(len(self.chol), dtype=torch.float64) - inverse_from_cholesky(self.chol)

    @property
    def log_determinant(self) -> Tensor:
        """log det S, with the diagonal of S for weights that keep their prior variance."""
        return 2 * self.chol.diagonal().log().sum() + self.diagonal[~self.kept].log().sum()

    def multiply(self, W: Tensor) -> Tensor:
        """Compute S W for W (a, k, b)."""
        n, k = len(self.inputs), W.shape[1]
        values = (self.inputs @ W.flatten(1)).view(n, k, -1)
        return W + (self.inputs.mT @ self.information.multiply(values).flatten(1)).view(W.shape)

    def precondition(self, W: Tensor) -> Tensor:
        """Solve with the block of the kept weights, and with the diagonal for the others, for W (a, k, b)."""
        result = W / self.diagonal.unsqueeze(1)
        own = W.transpose(1, 2)[self.pairs]  # (R, k)
        result.transpose(1, 2)[self.pairs] = torch.cholesky_solve(own, self.chol)
        return result

    def solve(self, rhs: Tensor, precondition=None) -> tuple[Tensor, int]:
        """Solve S W = rhs (a, k, b) by conjugate gradients with a preconditioner, and return the number of iterations."""
        norm = float(self.diagonal.sum())
        precondition = self.precondition if precondition is None else precondition
        found = solve_with_refinement(self.multiply, precondition, rhs, CG_TOLERANCE, MAX_CG_ITERATIONS, norm)
        return found.solution, found.num_iterations

    def explained(self, inputs: Tensor, functions: Tensor, form: str) -> Tensor:
        """Compute Z (I − S⁻¹) Zᵀ of the kept weights with the rows Z = ψ_i ⊗ φ_j for ψ (m, a) and φ (M, b).

        `form` is "diag" (m, M), "output" (m, M, M) or "full" (m·M, m·M). O(m (R² + M b²)), or O((m M)² R) for "full".
        """
        if form == "full":
            rows = inputs[:, None, self.pairs[0]] * functions[:, self.pairs[1]]
            rows = rows.flatten(0, 1)
            return rows @ self.explained_weights @ rows.mT
        b = functions.shape[1]
        inner = inputs.new_zeros(len(inputs), b, b)
        rows, columns = self.pairs
        for one, own in enumerate(self.groups):
            half = inputs[:, rows[own]] @ self.explained_weights[own]  # (m, R)
            inner[:, one].index_add_(1, columns, half * inputs[:, rows])
        products = functions @ inner  # (m, M, b)
        return (products * functions).sum(-1) if form == "diag" else products @ functions.mT
