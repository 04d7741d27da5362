"""Separable covariance C = K ⊗ Γ + I ⊗ Σ with complete outputs: eigendecompositions, or a Cholesky factor if Γ = γ Σ.

With Σ = L Lᵀ, K = U diag(s) Uᵀ and L⁻¹ Γ L⁻ᵀ = V diag(t) Vᵀ, the whitened C has the eigenvalues 1 + s_i t_j. If Γ = γ Σ
(one output, or Γ = I with the same noise on all outputs), M = γ K + I gives

    C = M ⊗ Σ,     C⁻¹ = M⁻¹ ⊗ Σ⁻¹,     log det C = p log det M + n log det Σ,

in n³/3 operations, a fraction of the cost of an eigendecomposition of K.
"""

from __future__ import annotations

import copy
import math
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from ovkgp.exceptions import FactorizationError, InputError
from ovkgp.inference.algebra.dense import (
    check_finite,
    gaussian_log_density,
    gram,
    inverse_from_cholesky,
    reject_second_derivatives,
    safe_cholesky,
    spectral_in_form,
)

PROPORTIONALITY_TOLERANCE = 1e-12
"""Maximum distance of L⁻¹ Γ L⁻ᵀ, with Σ = L Lᵀ, to γ I, relative to γ, for Γ to be treated as γ Σ."""
EIGENVECTOR_CHUNK_ENTRIES = 1 << 23  # numbers of eigenvectors that are copied together


def kronecker_log_density(K: Tensor, output_matrix: Tensor, noise: Tensor, residuals: Tensor) -> Tensor:
    """Compute log N(vec R | 0, K ⊗ Γ + I ⊗ Σ) of complete residuals R (n, p), differentiable once in all four."""
    check_shapes(K, output_matrix, noise, residuals)
    chol = safe_cholesky(noise)
    whitened = torch.linalg.solve_triangular(chol, residuals.mT, upper=False).mT
    density = _WhiteDensity.apply(K, whiten(output_matrix, chol), whitened)
    return density - len(residuals) * chol.diagonal().log().sum()


def check_shapes(K: Tensor, output_matrix: Tensor, noise: Tensor, residuals: Tensor) -> None:
    """Check that K (n, n), Γ and Σ (p, p) match the residuals (n, p)."""
    n, p = residuals.shape
    for name, matrix, size in (("K", K, n), ("output_matrix", output_matrix, p), ("noise", noise, p)):
        if matrix.shape != (size, size):
            raise InputError(f"{name} has shape {tuple(matrix.shape)}, expected {(size, size)} for residuals {(n, p)}.")


def whiten(output_matrix: Tensor, chol: Tensor) -> Tensor:
    """Compute L⁻¹ Γ L⁻ᵀ."""
    half = torch.linalg.solve_triangular(chol, output_matrix, upper=False)
    return torch.linalg.solve_triangular(chol, half.mT, upper=False)


def eigh(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Compute eigenvalues, clamped to zero, and eigenvectors of a covariance, as constants (NumPy is faster)."""
    check_finite(matrix, "A Gram or output matrix")
    try:
        if matrix.device.type == "cpu":
            values, vectors = (torch.from_numpy(a) for a in np.linalg.eigh(matrix.detach().numpy()))
        else:
            values, vectors = torch.linalg.eigh(matrix.detach())
    except (np.linalg.LinAlgError, torch.linalg.LinAlgError) as error:
        raise FactorizationError(f"The eigendecomposition of a Gram matrix failed: {error}") from error
    return values.clamp_min_(0), vectors.contiguous()


class _WhiteDensity(torch.autograd.Function):
    """log N(vec R | 0, K ⊗ G + I); ∂R = −α = −C⁻¹R, ∂K = ½ (α G αᵀ − U diag(Σ_j t_j/(1 + s_i t_j)) Uᵀ), ∂G likewise."""

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
        reject_second_derivatives("Kronecker")
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
    """Base class of solvers for C = K ⊗ Γ + I ⊗ Σ; `alpha` is C⁻¹ r (n, p), `log_density` log N(r | 0, C), exact."""

    standard_error = 0.0
    noise_logdet: Tensor
    spectrum: tuple[Tensor, Tensor]
    """Eigenvalues (n, p) of the whitened K ⊗ Γ, and the squared residuals (n, p) along its eigenvectors."""

    @torch.no_grad()
    def path(self, multipliers) -> Tensor:
        """Compute the log density (k,) with noise c Σ for each c of `multipliers` (k,). O(n p) each."""
        values, energies = self.spectrum
        shifted = [values + float(c) for c in multipliers]
        parts = [gaussian_log_density((energies / one).sum(), one.log().sum(), energies.numel()) for one in shifted]
        return torch.stack(parts) - self.noise_logdet / 2


class KroneckerSolver(SeparableSolver):
    """C⁻¹ for C = K ⊗ Γ + I ⊗ Σ by two eigendecompositions. O(n³ + p³ + n²p) once, then O(n p (n + p) k) for k columns."""

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

    @torch.no_grad()
    def with_noise(self, multiplier: float) -> KroneckerSolver:
        """Return the solver with noise c Σ from the same eigendecompositions. O(n² p + n p²)."""
        root, other = math.sqrt(multiplier), copy.copy(self)
        other.t, other.W, other.mixing = self.t / multiplier, self.W / root, self.mixing / root
        other.rotated = self.rotated / root
        other.noise_logdet = self.noise_logdet + self.rotated.numel() * math.log(multiplier)
        other.alpha = other.U @ (other.rotated / other.values) @ other.W.mT
        other.log_density = other.path([1.0])[0]
        return other

    @property
    def values(self) -> Tensor:
        """Eigenvalues 1 + s_i t_j (n, p) of the whitened C."""
        return 1 + self.s.unsqueeze(-1) * self.t

    @property
    def spectrum(self) -> tuple[Tensor, Tensor]:
        return self.s.unsqueeze(-1) * self.t, self.rotated.square()

    @torch.no_grad()
    def solve(self, rhs: Tensor) -> Tensor:
        """Compute C⁻¹ rhs, (n·p, k) → (n·p, k)."""
        n, p = self.rotated.shape
        rotated = (self.U.mT @ rhs.reshape(n, -1)).view(n, p, -1)  # (n, p, k)
        inner = self.W @ ((self.W.mT @ rotated) / self.values.unsqueeze(-1))
        return (self.U @ inner.view(n, -1)).view(n * p, -1)

    @torch.no_grad()
    def inverse_diagonal(self) -> Tensor:
        """Compute the diagonal of C⁻¹ (n, p)."""
        return self.U.square() @ (1 / self.values) @ self.W.square().mT

    @torch.no_grad()
    def inverse_blocks(self, rows: Tensor) -> Tensor:
        """Compute the blocks (k, m·p, m·p) of C⁻¹ between the entries of `rows` (k, m). O(k m² n p) for large n."""
        inner, values = [], self.values
        for part in rows.split(max(EIGENVECTOR_CHUNK_ENTRIES // (rows.shape[1] * len(values)), 1)):
            U = self.U[part]  # (k, m, n)
            inner.append(torch.stack([(U / column) @ U.mT for column in values.mT]))  # (p, k, m, m)
        return torch.einsum("jkil,aj,bj->kialb", torch.cat(inner, 1), self.W, self.W).flatten(3).flatten(1, 2)

    def explained(self, cross: Tensor, form: str, outputs: Tensor | None = None) -> Tensor:
        """Compute K_* C⁻¹ K_*ᵀ for K_* = k ⊗ Γ with the *scalar* covariance `cross` = k (m, n), differentiable in k.

        `outputs` (q, p) replaces Γ for other outputs than the observed ones.
        """
        mixing = self.mixing if outputs is None else outputs @ self.W
        return spectral_in_form(cross @ self.U, self.values, mixing, form)


def make_kronecker_solver(
    K: Tensor, output_matrix: Tensor, noise: Tensor, residuals: Tensor
) -> ProportionalSolver | KroneckerSolver:
    """Make the cheapest exact solver for C = K ⊗ Γ + I ⊗ Σ: one Cholesky factor if Γ = γ Σ, else eigendecompositions."""
    check_shapes(K, output_matrix, noise, residuals)
    solver = KroneckerSolver if proportionality_factor(output_matrix, noise) is None else ProportionalSolver
    return solver(K, output_matrix, noise, residuals)


@torch.no_grad()
def proportionality_factor(output_matrix: Tensor, noise: Tensor) -> float | None:
    """Return the γ ≥ 0 with Γ = γ Σ, or None: ‖L⁻¹ Γ L⁻ᵀ − γ I‖ ≤ 1e-12 γ with Σ = L Lᵀ. O(p³)."""
    whitened = whiten(output_matrix, safe_cholesky(noise))
    scale = whitened.diagonal().mean().item()
    whitened.diagonal().sub_(scale)
    return scale if torch.linalg.matrix_norm(whitened).item() <= PROPORTIONALITY_TOLERANCE * scale else None


class ProportionalSolver(SeparableSolver):
    """C⁻¹ for Γ = γ Σ by one Cholesky factor. n³/3 + O(n²p + n p² + p³) once, then O(n p (n + p) k) for k columns."""

    @torch.no_grad()
    def __init__(self, K: Tensor, output_matrix: Tensor, noise: Tensor, residuals: Tensor):
        check_shapes(K, output_matrix, noise, residuals)
        scale = proportionality_factor(output_matrix, noise)
        if scale is None:
            raise InputError("output_matrix must be a multiple of the noise covariance. Use make_kronecker_solver.")
        n, p = residuals.shape
        M = scale * K
        M.diagonal().add_(1)
        self.upper = safe_cholesky(M).mT.contiguous()  # LAPACK's order: a view of the factor, without a copy
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
        """Lower factor L (n, n) of M."""
        return self.upper.mT

    @cached_property
    def spectrum(self) -> tuple[Tensor, Tensor]:
        # accurate to about 1e-16 (1 + γ s₁), with s₁ the largest eigenvalue of K: noise must be well above that
        values, U = eigh(gram(self.upper))
        energies = (U.mT @ self.whitened).square()
        return (values - 1).clamp_min_(0).unsqueeze(-1).expand_as(energies), energies

    @torch.no_grad()
    def solve(self, rhs: Tensor) -> Tensor:
        """Compute C⁻¹ rhs, (n·p, k) → (n·p, k)."""
        n, p = self.whitened.shape
        inner = torch.cholesky_solve(rhs.reshape(n, -1), self.chol).reshape(n, p, -1)  # (n, p, k)
        return (self.W @ (self.W.mT @ inner)).view(n * p, -1)

    @torch.no_grad()
    def inverse_diagonal(self) -> Tensor:
        """Compute the diagonal of C⁻¹ (n, p). 2n³/3."""
        return self.inverse.diagonal().unsqueeze(-1) * self.W.square().sum(1)

    @cached_property
    def inverse(self) -> Tensor:
        """M⁻¹ (n, n). 2n³/3."""
        return inverse_from_cholesky(self.chol)

    @torch.no_grad()
    def inverse_blocks(self, rows: Tensor) -> Tensor:
        """Compute the blocks (k, m·p, m·p) of C⁻¹ between the entries of `rows` (k, m)."""
        inner = self.inverse[rows.unsqueeze(-1), rows.unsqueeze(-2)]  # (k, m, m)
        return torch.einsum("kil,ab->kialb", inner, self.W @ self.W.mT).flatten(3).flatten(1, 2)

    def explained(self, cross: Tensor, form: str, outputs: Tensor | None = None) -> Tensor:
        """Compute K_* C⁻¹ K_*ᵀ = (k M⁻¹ kᵀ) ⊗ (Γ Σ⁻¹ Γ) for K_* = k ⊗ Γ with `cross` = k (m, n).

        `outputs` (q, p) replaces Γ for other outputs than the observed ones.
        """
        mixing = self.mixing if outputs is None else outputs @ self.W
        root = torch.linalg.solve_triangular(self.chol, cross.mT, upper=False)  # (n, m)
        if form == "full":
            return torch.kron(gram(root), gram(mixing.mT))
        variances = root.square().sum(0).unsqueeze(-1)  # (m, 1)
        if form == "diag":
            return variances * mixing.square().sum(1)
        return variances.unsqueeze(-1) * gram(mixing.mT)
