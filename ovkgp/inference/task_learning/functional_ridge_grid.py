"""Vectors at every task of a grid: C = K_X ⊗ K_Θ ⊗ A + σ² I by three small eigendecompositions (LT-82).

With K_X = U s Uᵀ, K_Θ = V t Vᵀ and A = W a Wᵀ,

    C⁻¹ = (U ⊗ V ⊗ W) diag(1/(s_i t_j a_u + σ²)) (U ⊗ V ⊗ W)ᵀ,     O(n³ + m³ + p³ + n m p (n + m + p)).

Neither K_X ⊗ K_Θ nor K_Θ ⊗ A is formed. Rows (i, j) are data-major, as pairs (x_i, θ_j) are listed.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ovkgp.exceptions import OptionError
from ovkgp.inference.dense import gaussian_log_density
from ovkgp.inference.kronecker import SeparableSolver, eigh


def rotate(tensor: Tensor, first: Tensor, second: Tensor, third: Tensor) -> Tensor:
    """(F ⊗ S ⊗ T) applied to a tensor (n, m, p), one axis after another. O(n m p (n + m + p))."""
    n, m, p = tensor.shape
    tensor = (first @ tensor.reshape(n, m * p)).reshape(-1, m, p)
    return second @ (tensor @ third.mT)


def grid_log_density(
    input_gram: Tensor, task_gram: Tensor, output_matrix: Tensor, noise: Tensor, targets: Tensor
) -> Tensor:
    """log N(vec Y | 0, K_X ⊗ K_Θ ⊗ A + σ² I), differentiable once in K_X, K_Θ, A and σ².

    Args:
        input_gram: K_X (n, n).
        task_gram: K_Θ (m, m).
        output_matrix: A (p, p), positive semi-definite.
        noise: σ², a scalar.
        targets: Y (n, m, p), complete.

    Cost: O(n³ + m³ + p³ + n m p (n + m + p)), value and gradient.

    Example:
        >>> import torch
        >>> from ovkgp.inference.task_learning.functional_ridge_grid import grid_log_density
        >>> I, one = torch.eye(3).double(), torch.ones(()).double()
        >>> grid_log_density(I, I[:2, :2], I[:1, :1], one, torch.ones(3, 2, 1).double())
        tensor(-9.0931, dtype=torch.float64)
    """
    return _GridDensity.apply(input_gram, task_gram, output_matrix, noise, targets)


class _GridDensity(torch.autograd.Function):
    """∂K_X = ½ (Σ α (K_Θ ⊗ A) αᵀ − U diag(Σ_jk t_j a_k / c_ijk) Uᵀ) with α = C⁻¹ Y, and so for the other two; ∂σ² = ½ (‖α‖² − Σ 1/c)."""

    @staticmethod
    def forward(
        ctx, input_gram: Tensor, task_gram: Tensor, output_matrix: Tensor, noise: Tensor, targets: Tensor
    ) -> Tensor:
        sides = [eigh(matrix) for matrix in (input_gram, task_gram, output_matrix)]
        (s, U), (t, V), (a, W) = sides
        values = torch.einsum("i,j,k->ijk", s, t, a) + noise.detach()
        rotated = rotate(targets.detach(), U.mT, V.mT, W.mT)
        weights = rotated / values
        ctx.save_for_backward(s, U, t, V, a, W, values, weights)
        return gaussian_log_density((rotated * weights).sum(), values.log().sum(), values.numel())

    @staticmethod
    def backward(ctx, gradient: Tensor):
        if torch.is_grad_enabled():
            raise OptionError(
                "the evidence on a grid has first derivatives only: create_graph=True asks for the second."
            )
        s, U, t, V, a, W, values, weights = ctx.saved_tensors
        half, needed = gradient / 2, ctx.needs_input_grad

        def by(axis: int, first: Tensor, second: Tensor, vectors: Tensor) -> Tensor | None:
            if not needed[axis]:
                return None
            scale = torch.outer(first, second).flatten()
            rows, eigenvalues = (tensor.movedim(axis, 0).flatten(1) for tensor in (weights, values))
            inner = (rows * scale) @ rows.mT - torch.diag((scale / eigenvalues).sum(1))
            return vectors @ inner @ vectors.mT * half

        by_noise = (weights.square().sum() - (1 / values).sum()) * half if needed[3] else None
        by_targets = -gradient * rotate(weights, U, V, W) if needed[4] else None
        return by(0, t, a, U), by(1, s, a, V), by(2, s, t, W), by_noise, by_targets


class GridSolver(SeparableSolver):
    """C⁻¹ for C = K_X ⊗ K_Θ ⊗ A + σ² I, for predictions.

    Args:
        input_gram: K_X (n, n).
        task_gram: K_Θ (m, m).
        output_matrix: A (p, p), positive semi-definite.
        noise: σ² > 0.
        targets: Y (n, m, p), complete.

    Attributes:
        alpha: C⁻¹ Y, (n·m, p): a row for each pair (x_i, θ_j), the representer coefficients of LT-83.
        log_density: log N(vec Y | 0, C).

    Cost: O(n³ + m³ + p³ + n m p (n + m + p)); a solve with k columns O(n m p (n + m + p) k).

    Example:
        >>> import torch
        >>> from ovkgp.inference.task_learning.functional_ridge_grid import GridSolver
        >>> I, one = torch.eye(3).double(), torch.ones(()).double()
        >>> GridSolver(I, I[:2, :2], I[:1, :1], one, torch.ones(3, 2, 1).double()).alpha.flatten()
        tensor([0.5000, 0.5000, 0.5000, 0.5000, 0.5000, 0.5000], dtype=torch.float64)
    """

    KEPT = ("s", "U", "t", "V", "a", "W", "noise", "alpha", "log_density")

    @torch.no_grad()
    def __init__(self, input_gram: Tensor, task_gram: Tensor, output_matrix: Tensor, noise: Tensor, targets: Tensor):
        (self.s, self.U), (self.t, self.V), (self.a, self.W) = map(eigh, (input_gram, task_gram, output_matrix))
        self.noise = torch.as_tensor(noise, dtype=torch.float64).detach().clone()
        rotated = rotate(targets, self.U.mT, self.V.mT, self.W.mT)
        weights = rotated / self.values
        self.alpha = rotate(weights, self.U, self.V, self.W).flatten(0, 1).contiguous()
        size, logdet = targets.numel(), self.values.log().sum()
        self.log_density = gaussian_log_density((rotated * weights).sum(), logdet, size)

    @property
    def shape(self) -> tuple[int, int, int]:
        """(n, m, p)."""
        return len(self.s), len(self.t), len(self.a)

    @property
    def values(self) -> Tensor:
        """s_i t_j a_u + σ², (n, m, p), the eigenvalues of C."""
        return torch.einsum("i,j,u->iju", self.s, self.t, self.a) + self.noise

    @torch.no_grad()
    def solve(self, rhs: Tensor) -> Tensor:
        """C⁻¹ rhs, (n·m·p, k) → (n·m·p, k)."""
        columns = (self._solve_one(column.reshape(self.shape)).flatten() for column in rhs.mT)
        return torch.stack(list(columns), -1)

    def _solve_one(self, tensor: Tensor) -> Tensor:
        return rotate(rotate(tensor, self.U.mT, self.V.mT, self.W.mT) / self.values, self.U, self.V, self.W)

    @torch.no_grad()
    def inverse_diagonal(self) -> Tensor:
        """The diagonal of C⁻¹ (n·m, p)."""
        squares = (vectors.square() for vectors in (self.U, self.V, self.W))
        return rotate(1 / self.values, *squares).flatten(0, 1)

    def levels(self) -> tuple[Tensor, Tensor]:
        """The distinct eigenvalues of A, to 1e-12 of the largest, and which of them each is: one for A = I, two for a projection."""
        unit = 1e-12 * self.a.max().clamp_min(torch.finfo(self.a.dtype).tiny)
        rounded, place = torch.unique((self.a / unit).round(), return_inverse=True)
        return rounded * unit, place

    def shares(self, inputs: Tensor, tasks: Tensor, paired: bool) -> Tensor:
        """What the data explain of the variance along each eigenvector of A, as a part of its eigenvalue.

            Σ_ij (k_X U)_i² (k_Θ V)_j² a_u / (s_i t_j a_u + σ²)

        Args:
            inputs: k_X (k, n), covariances with the training inputs.
            tasks: k_Θ (l, m), with the tasks of the grid.
            paired: rows of the two go together, (k, p); else all combinations, (k, l, p).
        """
        left, right = (inputs @ self.U).square(), (tasks @ self.V).square()
        levels, place = self.levels()
        found = []
        for level in levels:
            inner = left @ (level / (torch.outer(self.s, self.t) * level + self.noise))  # (k, m)
            found.append((inner * right).sum(-1) if paired else inner @ right.mT)
        return torch.stack(found, -1)[..., place]

    def joint_shares(self, inputs: Tensor, tasks: Tensor, level: Tensor) -> Tensor:
        """The same between all pairs (k, k), of one eigenvalue `level` of A. O(k² n m)."""
        features = torch.einsum("ki,kj->kij", inputs @ self.U, tasks @ self.V).flatten(1)
        return (features * (level / (torch.outer(self.s, self.t) * level + self.noise)).flatten()) @ features.mT
