"""The log evidence of exact models and its gradient as plain functions of the values θ of the hyperparameters.

One output is a Cholesky factor of K + σ²I; several with one component and complete outputs are p such factors, one for each
eigenvector of the outputs (or one eigendecomposition of K where p is large); all else is one factor between the observed
entries. With α = C⁻¹ r the derivatives are ∂C = ½ (α αᵀ − C⁻¹) and ∂r = −α, carried back piece by piece.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.linalg import solve_triangular

from ovkgp.inference.data import Observations
from ovkgp.inference.plain_algebra import solved
from ovkgp.inference.plain_outputs import BasisMean, CholeskyOutputs, KnownMean, Variances

LOG_2_PI = math.log(2 * math.pi)
FEW_OUTPUTS = 5
"""Up to so many outputs as many Cholesky factors of n × n are cheaper than one eigendecomposition."""

Noise = Variances | CholeskyOutputs
Mean = BasisMean | KnownMean


class OneOutput:
    """log N(y | m, K + noise) of one output.

    Args:
        kernel: a piece of `plain_kernels`.
        noise: its variance; not looked at where the data know theirs.
        mean: of one output.
        data: complete, of one output.

    Calling it with θ and a vector gives the evidence, and adds its derivatives to the vector.

    Cost: n³ operations.
    """

    def __init__(self, kernel, noise: Variances, mean: Mean, data: Observations):
        self.kernel, self.noise, self.mean = kernel, noise, mean
        self.y = data.Y.cpu().numpy()
        self.known = None if data.noise is None else data.noise.cpu().numpy().ravel()

    def __call__(self, theta: np.ndarray, out: np.ndarray) -> float:
        K, back = self.kernel.matrix(theta)
        C, n = np.array(K, order="C"), len(K)
        if self.known is None:
            variances, noise_back = self.noise.variances(theta)
        C.flat[:: n + 1] += variances if self.known is None else self.known
        residuals = self.y - self.mean.values(theta)
        alpha, G, logdet = solved(C, residuals)
        value = -0.5 * (float(np.vdot(residuals, alpha)) + logdet + n * LOG_2_PI)
        G *= -0.5
        G += 0.5 * alpha * alpha.T
        back(G, out)
        if self.known is None:
            noise_back(np.trace(G)[None], out)
        self.mean.back(alpha, out)
        return value


class Separable:
    """log N(vec Y | m, K ⊗ Γ + I ⊗ Σ) with complete outputs.

    In whitened outputs, Σ = L Lᵀ, L⁻¹ Γ L⁻ᵀ = V t Vᵀ, column j of R L⁻ᵀ V has covariance t_j K + I.

    Args:
        kernel: of K.
        outputs: of Γ.
        noise: of Σ.
        mean, data: of all outputs.

    Cost: p n³ operations for few outputs, about 15 n³ + n²p for many.
    """

    def __init__(self, kernel, outputs, noise: Noise, mean: Mean, data: Observations):
        self.kernel, self.outputs, self.noise, self.mean = kernel, outputs, noise, mean
        self.Y = data.Y.cpu().numpy()

    def __call__(self, theta: np.ndarray, out: np.ndarray) -> float:
        K, back = self.kernel.matrix(theta)
        whitener = Whitener(*self.outputs.matrix(theta), *self.noise.matrix(theta))
        residuals = self.Y - self.mean.values(theta)
        rotated = residuals @ whitener.rotation  # (n, p)
        solve = _by_factors if len(whitener.t) <= FEW_OUTPUTS else _by_eigenvectors
        logdet, alpha, by_K, traces = solve(K, whitener.t, rotated)
        back(by_K, out)
        inner = 0.5 * (alpha.T @ K @ alpha - np.diag(traces))
        whitener.back(inner, -alpha.T @ rotated, len(K), out)
        self.mean.back(alpha @ whitener.rotation.T, out)
        logdet += len(K) * whitener.logdet
        return -0.5 * (float(np.vdot(rotated, alpha)) + logdet + rotated.size * LOG_2_PI)


class Whitener:
    """Γ and Σ made diagonal together: rotation = L⁻ᵀ V has rotationᵀ Σ rotation = I and rotationᵀ Γ rotation = diag t.

    Args:
        matrix, matrix_back: Γ and its way back.
        noise, noise_back: Σ likewise.
    """

    def __init__(self, matrix: np.ndarray, matrix_back, noise: np.ndarray, noise_back):
        self.matrix_back, self.noise_back = matrix_back, noise_back
        L = np.linalg.cholesky(noise)
        half = solve_triangular(L, matrix, lower=True, check_finite=False)
        t, V = np.linalg.eigh(solve_triangular(L, half.T, lower=True, check_finite=False))
        self.t = np.maximum(t, 0.0)
        self.rotation = solve_triangular(L, V, trans="T", lower=True, check_finite=False)
        self.logdet = 2 * float(np.log(L.diagonal()).sum())

    def back(self, by_matrix: np.ndarray, by_residuals: np.ndarray, num_rows: int, out: np.ndarray) -> None:
        """Take derivatives back, all in the rotated outputs: A by Γ, and Bᵀ Z for B by the residuals Z.

        Moving Σ by dΣ is moving Γ, Z and the scale by −½ dΣ from each side, so ∂Σ = −½ (A t + t A) − ½ BᵀZ − ½ n I.
        """
        A = by_matrix
        by_noise = -0.5 * (A * self.t + self.t[:, None] * A + by_residuals)
        by_noise.flat[:: len(A) + 1] -= 0.5 * num_rows
        self.matrix_back(self.rotation @ A @ self.rotation.T, out)
        self.noise_back(self.rotation @ by_noise @ self.rotation.T, out)


def _by_factors(K: np.ndarray, t: np.ndarray, rotated: np.ndarray):
    """log det, α (n, p), the derivatives by K, and tr(K (t_j K + I)⁻¹): a Cholesky factor for each output."""
    n, logdet, traces = len(K), 0.0, np.empty(len(t))
    alpha, by_K = np.empty_like(rotated), np.zeros_like(K)
    for j, level in enumerate(t):
        C = level * K
        C.flat[:: n + 1] += 1.0
        column, inverse, one = solved(C, rotated[:, j : j + 1])
        alpha[:, j : j + 1], logdet, traces[j] = column, logdet + one, np.vdot(inverse, K)
        inverse *= -0.5 * level
        by_K += inverse
    by_K += (0.5 * alpha * t) @ alpha.T
    return logdet, alpha, by_K, traces


def _by_eigenvectors(K: np.ndarray, t: np.ndarray, rotated: np.ndarray):
    """The same by one eigendecomposition of K."""
    s, U = np.linalg.eigh(K)
    s = np.maximum(s, 0.0)
    values = 1 + s[:, None] * t
    alpha = U @ ((U.T @ rotated) / values)
    half = U * np.sqrt((t / values).sum(1))
    by_K = (0.5 * alpha * t) @ alpha.T - 0.5 * (half @ half.T)
    return float(np.log(values).sum()), alpha, by_K, (s[:, None] / values).sum(0)


class Entries:
    """log N of the observed entries, for any sum of separable terms.

    Args:
        terms: pairs of a kernel's and an output matrix's piece.
        noise: of Σ; not looked at where the data know theirs.
        mean, data: of all outputs.

    Cost: N³ operations and O(N²) memory for N observed entries.
    """

    def __init__(self, terms: list[tuple], noise: Noise, mean: Mean, data: Observations):
        self.terms, self.noise, self.mean = terms, noise, mean
        self.seen = data.seen.cpu().numpy()
        self.rows, self.outputs = self.seen.nonzero()
        self.y = data.Y.cpu().numpy()[self.seen]
        self.known = None if data.noise is None else data.noise.cpu().numpy()[self.seen]
        self.firsts = np.flatnonzero(np.diff(self.rows, prepend=-1))  # every row has an entry
        self.one_hot = np.eye(self.seen.shape[1])[self.outputs]  # (N, p)
        self.together = self.rows[:, None] == self.rows

    def __call__(self, theta: np.ndarray, out: np.ndarray) -> float:
        found = [(kernel.matrix(theta), outputs.matrix(theta)) for kernel, outputs in self.terms]
        between = [(self._of_rows(K), self._of_outputs(matrix)) for (K, _), (matrix, _) in found]
        C = sum(k * g for k, g in between)
        noise_back = self._add_noise(C, theta)
        mean = self.mean.values(theta)
        residuals = self.y - (mean if np.ndim(mean) == 0 else mean[self.seen])
        alpha, G, logdet = solved(C, residuals[:, None])
        value = -0.5 * (float(residuals @ alpha[:, 0]) + logdet + len(residuals) * LOG_2_PI)
        G *= -0.5
        G += 0.5 * alpha * alpha.T
        for ((_, kernel_back), (_, matrix_back)), (k, g) in zip(found, between, strict=True):
            kernel_back(self._to_rows(G * g), out)
            matrix_back(self._to_outputs(G * k), out)
        noise_back(G, out)
        spread = np.zeros(self.seen.shape)
        spread[self.seen] = alpha[:, 0]
        self.mean.back(spread, out)
        return value

    def _add_noise(self, C: np.ndarray, theta: np.ndarray):
        """Add the noise to C; gives the way back of the derivatives by C."""
        diagonal = slice(None, None, len(C) + 1)
        if self.known is not None:
            C.flat[diagonal] += self.known
            return lambda G, out: None
        if isinstance(self.noise, Variances):
            variances, back = self.noise.variances(theta)
            C.flat[diagonal] += variances[self.outputs]
            return lambda G, out: back(G.diagonal() @ self.one_hot, out)
        matrix, back = self.noise.matrix(theta)
        C += self._of_outputs(matrix) * self.together
        return lambda G, out: back(self._to_outputs(G * self.together), out)

    def _of_rows(self, K: np.ndarray) -> np.ndarray:
        return K.take(self.rows, 0).take(self.rows, 1)

    def _of_outputs(self, matrix: np.ndarray) -> np.ndarray:
        return matrix.take(self.outputs, 0).take(self.outputs, 1)

    def _to_rows(self, G: np.ndarray) -> np.ndarray:
        return np.add.reduceat(np.add.reduceat(G, self.firsts, 0), self.firsts, 1)

    def _to_outputs(self, G: np.ndarray) -> np.ndarray:
        return self.one_hot.T @ G @ self.one_hot


class Several:
    """Outputs that share nothing but, perhaps, a parameter: the sum of their evidences.

    Args:
        parts: one for each.
    """

    def __init__(self, parts: list):
        self.parts = parts

    def __call__(self, theta: np.ndarray, out: np.ndarray) -> float:
        return sum(part(theta, out) for part in self.parts)
