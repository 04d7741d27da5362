"""Any covariance, by Cholesky factorization: C = L Lᵀ of the observed entries including noise, and

    log N(r | 0, C) = −½ rᵀα − Σ log L_ii − ½ N log 2π,   α = C⁻¹ r,   ∂C = ½ (α αᵀ − C⁻¹).

The gradient is this closed form, at a third of the cost of a product of N × N matrices; it can be differentiated again.
"""

from __future__ import annotations

import math
import warnings
from copy import copy
from functools import cached_property

import numpy as np
import torch
from linear_operator.utils.warnings import NumericalWarning
from scipy.linalg import lapack
from torch import Tensor

from ovkgp.exceptions import FactorizationError, InputError, OptionError

MATRIX_CHUNK_ENTRIES = 1 << 22  # entries of matrices that are formed together: 32 MB
JITTERS = (1e-10, 1e-9, 1e-8, 1e-7, 1e-6)
"""Fractions of the mean diagonal added, one after another, to a matrix without Cholesky factor."""


def safe_cholesky(matrix: Tensor) -> Tensor:
    """Factorize a covariance (N, N) that rounding may have made indefinite, with `JITTERS` if needed."""
    return _factorize(matrix)[0]


def _factorize(matrix: Tensor) -> tuple[Tensor, float]:
    """Compute the Cholesky factor and the jitter that was added."""
    chol, info = torch.linalg.cholesky_ex(matrix)
    if info.item() == 0 and math.isfinite(chol.diagonal().sum().item()):
        return chol, 0.0
    check_finite(matrix, "The covariance matrix")
    scale = matrix.detach().diagonal().mean().item()
    eye = torch.eye(len(matrix), dtype=matrix.dtype, device=matrix.device)
    for jitter in JITTERS:
        chol, info = torch.linalg.cholesky_ex(matrix + jitter * scale * eye)
        if info.item() == 0:
            message = f"The covariance matrix was not positive definite; {jitter:.0e} of its mean diagonal was added."
            warnings.warn(message, NumericalWarning, stacklevel=3)
            return chol, jitter * scale
    raise FactorizationError(
        f"The {len(matrix)} × {len(matrix)} covariance matrix (mean diagonal {scale:.3g}) is not positive definite, "
        f"even with {JITTERS[-1]:.0e} of its mean diagonal added. Use more noise, shorter lengthscales or smaller "
        "outputscales."
    )


def check_finite(matrix: Tensor, name: str) -> None:
    """Check that a matrix is finite, in one pass without a copy: its sum is not finite otherwise."""
    if not math.isfinite(matrix.detach().sum().item()):
        raise FactorizationError(
            f"{name} contains NaN or infinity because of the hyperparameters (a lengthscale near zero, an outputscale or noise that overflowed). Bound them or scale the data."
        )


def dense_log_density(covariance: Tensor, residuals: Tensor) -> Tensor:
    """Compute log N(r | 0, C) of r (N,), twice differentiable. N³/3 for the value, 2N³/3 for the gradient."""
    return _DenseDensity.apply(covariance, residuals)


class _DenseDensity(torch.autograd.Function):
    @staticmethod
    def forward(ctx, covariance: Tensor, residuals: Tensor) -> Tensor:
        chol, ctx.jitter = _factorize(covariance)
        alpha = torch.cholesky_solve(residuals.unsqueeze(-1), chol).squeeze(-1)
        ctx.save_for_backward(covariance, residuals, chol, alpha)
        return gaussian_log_density(residuals @ alpha, 2 * chol.diagonal().log().sum(), len(residuals))

    @staticmethod
    def backward(ctx, gradient: Tensor):
        covariance, residuals, chol, alpha = ctx.saved_tensors
        if torch.is_grad_enabled():  # second derivatives: the factor above is a constant, so compute it again
            eye = torch.eye(len(covariance), dtype=covariance.dtype, device=covariance.device)
            inverse = torch.linalg.inv(covariance + ctx.jitter * eye)
            alpha = inverse @ residuals
            return gradient * (alpha.outer(alpha) - inverse) / 2, -gradient * alpha
        by_covariance = None
        if ctx.needs_input_grad[0]:
            by_covariance = inverse_from_cholesky(chol).addr_(alpha, alpha, beta=-0.5, alpha=0.5).mul_(gradient)
        return by_covariance, -gradient * alpha


def reject_second_derivatives(name: str) -> None:
    """Raise an error if the graph of a gradient is requested from an evidence with first derivatives only."""
    if torch.is_grad_enabled():
        raise OptionError(
            f"create_graph=True is not supported with the {name} evidence, which has first derivatives only. Use "
            "differences of gradients, or dense_log_density, which can be differentiated twice."
        )


def gaussian_log_density(quadratic, logdet, size=1):
    """Compute −½ (rᵀC⁻¹r + log det C + N log 2π), elementwise for arrays or tensors; by default of single entries, N = 1."""
    return -(quadratic + logdet + size * math.log(2 * math.pi)) / 2


def inverse_from_cholesky(chol: Tensor) -> Tensor:
    """Compute C⁻¹ from its Cholesky factor, without gradient: LAPACK's potri is faster than `torch.cholesky_inverse`."""
    if chol.device.type != "cpu" or chol.dtype != torch.float64:
        return torch.cholesky_inverse(chol)
    lower = torch.from_numpy(lapack.dpotri(chol.detach().numpy(), lower=1)[0])  # its upper triangle stays L's zeros
    return lower + lower.tril(-1).mT


def psd_root(matrix: Tensor) -> Tensor:
    """Return R with R Rᵀ equal to a positive semidefinite matrix (..., m, m); negative eigenvalues count as zero."""
    values, vectors = torch.linalg.eigh(matrix)
    return vectors * values.clamp_min(0).sqrt().unsqueeze(-2)


def participation_ratio(rows: np.ndarray) -> float:
    """Return (Σ λ)² / Σ λ² of the eigenvalues λ of AᵀA for rows A (n, p), their effective number, between 1 and p."""
    gram = rows @ rows.T if len(rows) < rows.shape[1] else rows.T @ rows
    total = np.square(gram).sum()
    return float(np.clip(np.trace(gram) ** 2 / total, 1.0, rows.shape[1])) if total > 0 else 1.0


def gram(matrix: Tensor) -> Tensor:
    """Compute AᵀA (m, m) of A (r, m); on the CPU without gradient by NumPy's SYRK, at half the cost of a product."""
    if matrix.device.type != "cpu" or (torch.is_grad_enabled() and matrix.requires_grad):
        return matrix.mT @ matrix
    array = matrix.detach().numpy()
    return torch.from_numpy(array.T @ array)


class DenseSolver:
    """C⁻¹ on the observed entries of R (n, p), NaN if missing, `alpha` = C⁻¹ r, and `log_density` = log N(r | 0, C)."""

    standard_error = 0.0

    @torch.no_grad()
    def __init__(self, covariance: Tensor, residuals: Tensor):
        self.observed = ~torch.isnan(residuals)
        size = int(self.observed.sum())
        if covariance.shape != (size, size):
            raise InputError(
                f"covariance has shape {tuple(covariance.shape)}, expected ({size}, {size}) for the observed entries."
            )
        self.chol = safe_cholesky(covariance)
        self._solve_residuals(residuals)

    @torch.no_grad()
    def extended(self, cross: Tensor, covariance: Tensor, residuals: Tensor) -> DenseSolver:
        """Return the solver of all entries after new rows.

        The factor is extended by a block: O(N² K) for K new observed entries, with their covariances `cross` (K, N) with the
        earlier ones and `covariance` (K, K), and the residuals (n + m, p) of all rows.
        """
        below = torch.linalg.solve_triangular(self.chol, cross.mT, upper=False).mT
        last = safe_cholesky(covariance - below @ below.mT)
        size, solver = len(self.chol), copy(self)
        solver.__dict__.pop("inverse", None)
        solver.chol = self.chol.new_zeros(size + len(last), size + len(last))
        solver.chol[:size, :size], solver.chol[size:, :size], solver.chol[size:, size:] = self.chol, below, last
        solver.observed = ~torch.isnan(residuals)
        solver._solve_residuals(residuals)
        return solver

    def _solve_residuals(self, residuals: Tensor) -> None:
        """Compute `alpha` and `log_density`."""
        observed = residuals[self.observed]
        alpha = torch.cholesky_solve(observed.unsqueeze(-1), self.chol).squeeze(-1)
        self.log_density = gaussian_log_density(observed @ alpha, 2 * self.chol.diagonal().log().sum(), len(observed))
        self.alpha = self._scatter(alpha).view(residuals.shape)

    def _scatter(self, observed: Tensor) -> Tensor:
        """Expand (N, ...) to (n·p, ...), zero if missing."""
        padded = observed.new_zeros(self.observed.numel(), *observed.shape[1:])
        padded[self.observed.flatten()] = observed
        return padded

    @torch.no_grad()
    def solve(self, rhs: Tensor) -> Tensor:
        """Compute C⁻¹ rhs, (n·p, k) → (n·p, k); missing entries are ignored on input and zero on output."""
        return self._scatter(torch.cholesky_solve(rhs[self.observed.flatten()], self.chol))

    @torch.no_grad()
    def inverse_diagonal(self) -> Tensor:
        """Compute the diagonal of C⁻¹ (n, p), zero if missing. 2N³/3."""
        return self._scatter(self.inverse.diagonal()).view(self.observed.shape)

    @cached_property
    def inverse(self) -> Tensor:
        """C⁻¹ (N, N). 2N³/3."""
        return inverse_from_cholesky(self.chol)

    @torch.no_grad()
    def inverse_blocks(self, rows: Tensor) -> Tensor:
        """Compute the blocks (k, m·p, m·p) of C⁻¹ between the entries of `rows` (k, m), zero if missing."""
        observed = self.observed[rows].flatten(1)
        entries = (self.observed.flatten().cumsum(0) - 1).view(self.observed.shape)[rows].flatten(1).clamp_min(0)
        blocks = self.inverse[entries.unsqueeze(-1), entries.unsqueeze(-2)]
        return blocks * (observed.unsqueeze(-1) & observed.unsqueeze(-2))

    def explained(self, cross: Tensor, form: str, num_outputs: int | None = None) -> Tensor:
        """Compute K_* C⁻¹ K_*ᵀ, in the form of `gram_in_form`, for K_* (m·q, n·p); q is p by default. O(m q N²)."""
        root = torch.linalg.solve_triangular(self.chol, cross[:, self.observed.flatten()].mT, upper=False)  # (N, m·q)
        return gram_in_form(root.mT, form, num_outputs or self.observed.shape[1])


def gram_in_form(rows: Tensor, form: str, num_outputs: int) -> Tensor:
    """Compute R Rᵀ of R (m·q, N) as "diag" (m, q), "output" (m, q, q) or "full" (m·q, m·q)."""
    if form == "diag":
        return rows.square().sum(-1).unflatten(-1, (-1, num_outputs))
    if form == "full":
        return gram(rows.mT)
    blocks = rows.unflatten(0, (-1, num_outputs))
    return blocks @ blocks.mT


def kronecker_in_form(scalar: Tensor, matrix: Tensor, form: str) -> Tensor:
    """Compute A ⊗ Γ from A (m, m) for "full", or from its diagonal (m, 1) for "diag" (m, p) and "output" (m, p, p)."""
    if form == "full":
        return torch.kron(scalar.contiguous(), matrix.contiguous())  # which rejects other layouts
    return scalar * matrix.diagonal() if form == "diag" else scalar.unsqueeze(-1) * matrix


def spectral_in_form(scores: Tensor, values: Tensor, mixing: Tensor, form: str) -> Tensor:
    """Compute R diag(1 / values) Rᵀ for R = scores (m, n) ⊗ mixing (p, q) and values (n, q), in the given form."""
    if form == "full":
        inner = torch.stack([gram((scores / column.sqrt()).mT) for column in values.mT])  # (q, m, m)
        return torch.einsum("jik,aj,bj->iakb", inner, mixing, mixing).flatten(2).flatten(0, 1)
    variances = scores.square() @ (1 / values)  # (m, q), along the columns of `mixing`
    if form == "diag":
        return variances @ mixing.square().mT
    return (mixing * variances.unsqueeze(1)) @ mixing.mT
