"""Outputs that are all alike: where Γ = γ Σ, C = K ⊗ Γ + I ⊗ Σ is one product, and one Cholesky factor does.

With M = γ K + I = L Lᵀ,

    C = M ⊗ Σ,     C⁻¹ = M⁻¹ ⊗ Σ⁻¹,     log det C = p log det M + n log det Σ,

in n³/3 operations, a small part of what the eigendecomposition of K takes. It is so for one output, and for Γ = I with the same
noise on all outputs.
"""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor

from ovkgp.exceptions import InputError
from ovkgp.inference.dense import check_form, gaussian_log_density, gram, inverse_of, safe_cholesky
from ovkgp.inference.kronecker import KroneckerSolver, SeparableSolver, check_shapes, eigh, whiten

ALIKE = 1e-12
"""How far L⁻¹ Γ L⁻ᵀ, with Σ = L Lᵀ, may be from γ I, as a part of γ, to be taken for it."""


def kronecker_solver(
    K: Tensor, output_matrix: Tensor, noise: Tensor, residuals: Tensor
) -> CommonSolver | KroneckerSolver:
    """The cheapest exact solver for C = K ⊗ Γ + I ⊗ Σ: one Cholesky factor where Γ = γ Σ, else two eigendecompositions.

    Args:
        K: scalar Gram matrix (n, n).
        output_matrix: Γ (p, p), positive semi-definite.
        noise: Σ (p, p), positive definite.
        residuals: R (n, p), complete.

    Cost: that of the solver, and O(p³) to choose it.

    Example:
        >>> import torch
        >>> from ovkgp.inference.common_solver import kronecker_solver
        >>> I, R = torch.eye(2).double(), torch.ones(2, 2).double()
        >>> [type(kronecker_solver(I, I, noise, R)).__name__ for noise in (3 * I, torch.diag(R[0].cumsum(0)))]
        ['CommonSolver', 'KroneckerSolver']
    """
    check_shapes(K, output_matrix, noise, residuals)
    solver = KroneckerSolver if common_scale(output_matrix, noise) is None else CommonSolver
    return solver(K, output_matrix, noise, residuals)


@torch.no_grad()
def common_scale(output_matrix: Tensor, noise: Tensor) -> float | None:
    """The γ ≥ 0 of Γ = γ Σ, or None where there is none: ‖L⁻¹ Γ L⁻ᵀ − γ I‖ ≤ 1e-12 γ with Σ = L Lᵀ. O(p³).

    Example:
        >>> import torch
        >>> from ovkgp.inference.common_solver import common_scale
        >>> I = torch.eye(2).double()
        >>> common_scale(I, I / 4), common_scale(I, I / 4 + 1)
        (4.0, None)
    """
    whitened = whiten(output_matrix, safe_cholesky(noise))
    scale = whitened.diagonal().mean().item()
    whitened.diagonal().sub_(scale)
    return scale if torch.linalg.matrix_norm(whitened).item() <= ALIKE * scale else None


class CommonSolver(SeparableSolver):
    """C⁻¹ for C = K ⊗ Γ + I ⊗ Σ with Γ = γ Σ, for predictions.

    Args:
        K: scalar Gram matrix (n, n).
        output_matrix: Γ (p, p), γ times the noise.
        noise: Σ (p, p), positive definite.
        residuals: R (n, p), complete.

    Raises:
        InputError: Γ is not a multiple of Σ.

    Cost: n³/3 + O(n²p + n p² + p³) once, in memory for n² numbers; a solve with k columns O(n p (n + p) k).

    Example:
        >>> import torch
        >>> from ovkgp.inference.common_solver import CommonSolver
        >>> I = torch.eye(3).double()
        >>> solver = CommonSolver(I, I[:2, :2], I[:2, :2], torch.ones(3, 2).double())
        >>> solver.alpha[0], solver.explained(I[:1], "diag")
        (tensor([0.5000, 0.5000], dtype=torch.float64), tensor([[0.5000, 0.5000]], dtype=torch.float64))
    """

    KEPT = ("upper", "W", "mixing", "noise_logdet", "whitened", "alpha", "log_density")

    @torch.no_grad()
    def __init__(self, K: Tensor, output_matrix: Tensor, noise: Tensor, residuals: Tensor):
        check_shapes(K, output_matrix, noise, residuals)
        scale = common_scale(output_matrix, noise)
        if scale is None:
            raise InputError("the output matrix must be a multiple of the noise covariance; use kronecker_solver.")
        n, p = residuals.shape
        M = scale * K
        M.diagonal().add_(1)
        self.upper = safe_cholesky(M).mT.contiguous()  # LAPACK's order: a view of the factor as it is, and no copy
        noise_chol = safe_cholesky(noise)
        self.noise_logdet = 2 * n * noise_chol.diagonal().log().sum()
        eye = torch.eye(p, dtype=noise.dtype, device=noise.device)
        self.W = torch.linalg.solve_triangular(noise_chol.mT, eye, upper=True).contiguous()  # Σ⁻¹ = W Wᵀ
        self.mixing, self.whitened = output_matrix @ self.W, residuals @ self.W
        half = torch.linalg.solve_triangular(self.chol, self.whitened, upper=False)
        self.alpha = (torch.linalg.solve_triangular(self.upper, half, upper=True) @ self.W.mT).contiguous()
        logdet = 2 * p * self.chol.diagonal().log().sum() + self.noise_logdet
        self.log_density = gaussian_log_density(half.square().sum(), logdet, n * p)

    @property
    def chol(self) -> Tensor:
        """L (n, n), lower."""
        return self.upper.mT

    @cached_property
    def _spectrum(self) -> tuple[Tensor, Tensor]:
        """The eigenvalues γ s (n,) of γ K, and the squared residuals along its eigenvectors, summed over the outputs."""
        values, U = eigh(gram(self.upper))
        return (values - 1).clamp_min_(0), (U.mT @ self.whitened).square().sum(1)

    @torch.no_grad()
    def path(self, multipliers) -> Tensor:
        """The log density (k,) for noise c Σ, for each c of `multipliers` (k,). O(n) each, after an eigendecomposition of M.

        It is made when it is first asked for. The eigenvalues are known to some 1e-16 (1 + γ s₁), s₁ the largest of K, and c must
        be well above that.
        """
        values, energies = self._spectrum
        n, p = self.whitened.shape

        def density(c: float) -> Tensor:
            return gaussian_log_density((energies / (values + c)).sum(), p * (values + c).log().sum(), n * p)

        return torch.stack([density(float(c)) for c in multipliers]) - self.noise_logdet / 2

    @torch.no_grad()
    def solve(self, rhs: Tensor) -> Tensor:
        """C⁻¹ rhs, (n·p, k) → (n·p, k)."""
        n, p = self.whitened.shape
        inner = torch.cholesky_solve(rhs.reshape(n, -1), self.chol).reshape(n, p, -1)  # (n, p, k)
        return (self.W @ (self.W.mT @ inner)).view(n * p, -1)

    @torch.no_grad()
    def inverse_diagonal(self) -> Tensor:
        """The diagonal of C⁻¹ (n, p). 2n³/3."""
        return inverse_of(self.chol).diagonal().unsqueeze(-1) * self.W.square().sum(1)

    def explained(self, cross: Tensor, form: str, num_outputs: int | None = None) -> Tensor:
        """K_* C⁻¹ K_*ᵀ for K_* = k ⊗ Γ with the *scalar* covariance `cross` = k (m, n); `num_outputs` can only be p.

        It is (k M⁻¹ kᵀ) ⊗ (Γ Σ⁻¹ Γ). `form` is "diag" → (m, p) in O(m n² + m p), "output" → (m, p, p) in O(m n² + m p² + p³) or
        "full" → (m·p, m·p) in O(m n² + m² n + m² p² + p³). Differentiable in k.
        """
        check_form(form)
        self.require_own_outputs(num_outputs)
        root = torch.linalg.solve_triangular(self.chol, cross.mT, upper=False)  # (n, m)
        if form == "full":
            return torch.kron(gram(root), gram(self.mixing.mT))
        variances = root.square().sum(0).unsqueeze(-1)  # (m, 1)
        if form == "diag":
            return variances * self.mixing.square().sum(1)
        return variances.unsqueeze(-1) * gram(self.mixing.mT)
