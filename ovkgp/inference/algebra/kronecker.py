"""Outputs that are all alike: where Γ = γ Σ, C = K ⊗ Γ + I ⊗ Σ is one product, and one Cholesky factor does.

With M = γ K + I = L Lᵀ,

    C = M ⊗ Σ,     C⁻¹ = M⁻¹ ⊗ Σ⁻¹,     log det C = p log det M + n log det Σ,

in n³/3 operations, a small part of what the eigendecomposition of K takes. It is so for one output, and for Γ = I with the same
noise on all outputs.
"""

from __future__ import annotations

from functools import cached_property
from typing import Self

import numpy as np
import torch
from torch import Tensor

from ovkgp.exceptions import FactorizationError, InputError, OptionError
from ovkgp.inference.algebra.dense import (
    check_finite,
    check_form,
    gaussian_log_density,
    gram,
    inverse_of,
    safe_cholesky,
)


def kronecker_log_density(K: Tensor, output_matrix: Tensor, noise: Tensor, residuals: Tensor) -> Tensor:
    """log N(vec R | 0, K ⊗ Γ + I ⊗ Σ), differentiable once in all four.

    Args:
        K: scalar Gram matrix (n, n).
        output_matrix: Γ (p, p), positive semi-definite.
        noise: Σ (p, p), positive definite.
        residuals: R (n, p), complete.

    Cost: one eigendecomposition of K and n²p for the value, half an n × n × n product and n²p more for the gradient.

    Example:
        >>> import torch
        >>> from ovkgp.inference.algebra.kronecker import kronecker_log_density
        >>> I = torch.eye(3).double()
        >>> kronecker_log_density(I, I[:2, :2], I[:2, :2], torch.ones(3, 2).double())
        tensor(-9.0931, dtype=torch.float64)
    """
    check_shapes(K, output_matrix, noise, residuals)
    chol = safe_cholesky(noise)
    whitened = torch.linalg.solve_triangular(chol, residuals.mT, upper=False).mT
    density = _WhiteDensity.apply(K, whiten(output_matrix, chol), whitened)
    return density - len(residuals) * chol.diagonal().log().sum()


def check_shapes(K: Tensor, output_matrix: Tensor, noise: Tensor, residuals: Tensor) -> None:
    """Refuse matrices that do not fit the residuals (n, p)."""
    n, p = residuals.shape
    for name, matrix, size in (("K", K, n), ("output_matrix", output_matrix, p), ("noise", noise, p)):
        if matrix.shape != (size, size):
            raise InputError(f"residuals {(n, p)} need {name} of shape {(size, size)}; got {tuple(matrix.shape)}.")


def whiten(output_matrix: Tensor, chol: Tensor) -> Tensor:
    """L⁻¹ Γ L⁻ᵀ."""
    half = torch.linalg.solve_triangular(chol, output_matrix, upper=False)
    return torch.linalg.solve_triangular(chol, half.mT, upper=False)


def eigh(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues, rounded up to zero, and eigenvectors of a covariance, as constants.

    On the processor they are NumPy's: OpenBLAS is the faster of the two at this.
    """
    check_finite(matrix, "a Gram or output matrix")
    try:
        if matrix.device.type == "cpu":
            values, vectors = (torch.from_numpy(a) for a in np.linalg.eigh(matrix.detach().numpy()))
        else:
            values, vectors = torch.linalg.eigh(matrix.detach())
    except (np.linalg.LinAlgError, torch.linalg.LinAlgError) as error:
        raise FactorizationError(f"the eigendecomposition of a Gram matrix failed: {error}") from error
    return values.clamp_min_(0), vectors.contiguous()


class _WhiteDensity(torch.autograd.Function):
    """log N(vec R | 0, K ⊗ G + I). With A = Uᵀ α V, α = C⁻¹ R:

    ∂K = ½ (α G αᵀ − U diag(Σ_j t_j / (1 + s_i t_j)) Uᵀ),   ∂G = ½ (αᵀ K α − V diag(Σ_i s_i / (1 + s_i t_j)) Vᵀ),   ∂R = −α.
    """

    @staticmethod
    def forward(ctx, K: Tensor, G: Tensor, residuals: Tensor) -> Tensor:
        (s, U), (t, V) = eigh(K), eigh(G)
        values = 1 + s.unsqueeze(-1) * t
        rotated = U.mT @ residuals @ V
        weights = rotated / values
        ctx.save_for_backward(s, U, t, V, values, weights)
        return gaussian_log_density((rotated * weights).sum(), values.log().sum(), values.numel())

    @staticmethod
    def backward(ctx, gradient: Tensor):
        if torch.is_grad_enabled():
            raise OptionError(
                "the Kronecker evidence has first derivatives only: create_graph=True asks for the second. Take differences of "
                "gradients, or dense_log_density, which can be differentiated twice."
            )
        s, U, t, V, values, weights = ctx.saved_tensors
        alpha, by_K, by_G = U @ weights, None, None  # alpha without its Vᵀ
        if ctx.needs_input_grad[0]:
            by_K = gram((U * (t / values).sum(1).sqrt()).mT)
            by_K.addmm_(alpha * t, alpha.mT, beta=-0.5, alpha=0.5).mul_(gradient)
        if ctx.needs_input_grad[1]:
            inner = weights.mT @ (s.unsqueeze(-1) * weights) - torch.diag((s.unsqueeze(-1) / values).sum(0))
            by_G = V @ inner @ V.mT * (gradient / 2)
        return by_K, by_G, -gradient * (alpha @ V.mT)


class SeparableSolver:
    """What solvers for C = K ⊗ Γ + I ⊗ Σ have in common: how they are stored, and what they can predict.

    Attributes:
        alpha: C⁻¹ r (n, p).
        log_density: log N(r | 0, C).
        standard_error: 0.0, since it is exact.
    """

    standard_error = 0.0
    KEPT: tuple[str, ...]
    """The tensors that a solver consists of."""

    def check_own_outputs(self, num_outputs: int | None) -> None:
        """Refuse to predict another process: only the scalar covariance with it is known."""
        if num_outputs not in (None, self.alpha.shape[1]):
            raise InputError(
                f"a separable covariance predicts its own {self.alpha.shape[1]} outputs, not {num_outputs}."
            )

    def tensors(self) -> dict[str, Tensor]:
        """Everything the solver holds, to be stored."""
        return {name: getattr(self, name) for name in self.KEPT}

    @classmethod
    def from_tensors(cls, tensors: dict[str, Tensor]) -> Self:
        """The solver that `tensors` came from."""
        solver = cls.__new__(cls)
        for name in cls.KEPT:
            setattr(solver, name, tensors[name])
        return solver


class KroneckerSolver(SeparableSolver):
    """C⁻¹ for C = K ⊗ Γ + I ⊗ Σ, for predictions.

    Args:
        K: scalar Gram matrix (n, n).
        output_matrix: Γ (p, p), positive semi-definite.
        noise: Σ (p, p), positive definite.
        residuals: R (n, p), complete.

    Cost: O(n³ + p³ + n²p) once; a solve with k columns O(n p (n + p) k).

    Example:
        >>> import torch
        >>> from ovkgp.inference.algebra.kronecker import KroneckerSolver
        >>> I = torch.eye(3).double()
        >>> solver = KroneckerSolver(I, I[:2, :2], I[:2, :2], torch.ones(3, 2).double())
        >>> solver.alpha[0], solver.explained(I[:1], "diag")
        (tensor([0.5000, 0.5000], dtype=torch.float64), tensor([[0.5000, 0.5000]], dtype=torch.float64))
    """

    KEPT = ("s", "U", "t", "W", "mixing", "noise_logdet", "rotated", "alpha", "log_density")

    @torch.no_grad()
    def __init__(self, K: Tensor, output_matrix: Tensor, noise: Tensor, residuals: Tensor):
        check_shapes(K, output_matrix, noise, residuals)
        chol = safe_cholesky(noise)
        self.s, self.U = eigh(K)
        self.t, V = eigh(whiten(output_matrix, chol))
        self.W = torch.linalg.solve_triangular(chol.mT, V, upper=True).contiguous()
        self.mixing = output_matrix @ self.W
        self.noise_logdet = 2 * len(residuals) * chol.diagonal().log().sum()
        self.rotated = self.U.mT @ residuals @ self.W
        self.alpha = self.U @ (self.rotated / self.values) @ self.W.mT
        self.log_density = self.path([1.0])[0]

    @property
    def values(self) -> Tensor:
        """1 + s_i t_j (n, p), the eigenvalues of the whitened C."""
        return 1 + self.s.unsqueeze(-1) * self.t

    @torch.no_grad()
    def path(self, multipliers) -> Tensor:
        """The log density (k,) for noise c Σ, for each c of `multipliers` (k,). O(n p) each, from the same eigenvalues."""
        n, p = self.rotated.shape

        def density(c: float) -> Tensor:
            values = self.s.unsqueeze(-1) * self.t + c
            return gaussian_log_density((self.rotated.square() / values).sum(), values.log().sum(), n * p)

        return torch.stack([density(float(c)) for c in multipliers]) - self.noise_logdet / 2

    @torch.no_grad()
    def solve(self, rhs: Tensor) -> Tensor:
        """C⁻¹ rhs, (n·p, k) → (n·p, k)."""
        n, p = self.rotated.shape
        rotated = (self.U.mT @ rhs.reshape(n, -1)).view(n, p, -1)  # (n, p, k)
        inner = self.W @ ((self.W.mT @ rotated) / self.values.unsqueeze(-1))
        return (self.U @ inner.view(n, -1)).view(n * p, -1)

    @torch.no_grad()
    def inverse_diagonal(self) -> Tensor:
        """The diagonal of C⁻¹ (n, p). O(n²p + n p²)."""
        return self.U.square() @ (1 / self.values) @ self.W.square().mT

    def explained(self, cross: Tensor, form: str, num_outputs: int | None = None) -> Tensor:
        """K_* C⁻¹ K_*ᵀ for K_* = k ⊗ Γ with the *scalar* covariance `cross` = k (m, n); `num_outputs` can only be p.

        `form` is "diag" → (m, p) in O(m n² + m n p + m p²), "output" → (m, p, p) or "full" → (m·p, m·p) in O(m² n p + m² p³).
        Differentiable in k.
        """
        check_form(form)
        self.check_own_outputs(num_outputs)
        rotated = cross @ self.U  # (m, n)
        if form == "full":
            inner = torch.stack([(rotated / column) @ rotated.mT for column in self.values.mT])  # (p, m, m)
            return torch.einsum("jik,aj,bj->iakb", inner, self.mixing, self.mixing).flatten(2).flatten(0, 1)
        variances = rotated.square() @ (1 / self.values)  # (m, p), along the columns of `mixing`
        if form == "diag":
            return variances @ self.mixing.square().mT
        return (self.mixing * variances.unsqueeze(1)) @ self.mixing.mT


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
        >>> from ovkgp.inference.algebra.kronecker import kronecker_solver
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
        >>> from ovkgp.inference.algebra.kronecker import common_scale
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
        >>> from ovkgp.inference.algebra.kronecker import CommonSolver
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
        self.check_own_outputs(num_outputs)
        root = torch.linalg.solve_triangular(self.chol, cross.mT, upper=False)  # (n, m)
        if form == "full":
            return torch.kron(gram(root), gram(self.mixing.mT))
        variances = root.square().sum(0).unsqueeze(-1)  # (m, 1)
        if form == "diag":
            return variances * self.mixing.square().sum(1)
        return variances.unsqueeze(-1) * gram(self.mixing.mT)
