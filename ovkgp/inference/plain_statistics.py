"""The log evidence of separable features from statistics, as a plain function: neither data nor a matrix of features.

With φᵀφ = U s Uᵀ decomposed once, Γ and Σ made diagonal together (t, rotation), P = Uᵀ φᵀ(Y − hβ) rotation and D such that
K ≈ φφᵀ/D,

    log p(Y) = ½ [Σ_ij τ_j P_ij² / (1 + s_i τ_j) − Σ_ij log(1 + s_i τ_j) − tr Σ⁻¹E − n log det Σ − n p log 2π],   τ = t/D,

for E the scatter (p, p) of Y − hβ. A gradient costs O(M p (b + p) + p³) for M waves, whatever the number of rows.
"""

from __future__ import annotations

import numpy as np

from ovkgp.inference.plain_evidence import LOG_2_PI, Noise, Whitener
from ovkgp.inference.plain_outputs import BasisMean
from ovkgp.inference.statistics import Statistics


class SharedStatistics:
    """log p(Y) from statistics of layout "shared" of one separable part.

    Args:
        statistics: of complete outputs.
        outputs: of Γ, with K ≈ φφᵀ/D ⊗ Γ.
        num_frequencies: D.
        noise: of Σ.
        mean: with the basis that the statistics keep.

    Cost: O(M³) once; see above for a call.
    """

    def __init__(self, statistics: Statistics, outputs, num_frequencies: int, noise: Noise, mean: BasisMean):
        self.outputs, self.num_frequencies, self.noise, self.mean = outputs, num_frequencies, noise, mean
        self.num_rows, self.num_basis, M = statistics.num_rows, statistics.num_basis, statistics.num_waves
        gram = statistics.gram.cpu().numpy()
        s, U = np.linalg.eigh(gram[:M, :M])
        self.s = np.maximum(s, 0.0)[:, None]
        self.targets, self.scatter = U.T @ gram[:M, M:], gram[M:, M:]

    def __call__(self, theta: np.ndarray, out: np.ndarray) -> float:
        whitener = Whitener(*self.outputs.matrix(theta), *self.noise.matrix(theta))
        residual = self._residual(theta, len(whitener.t)) @ whitener.rotation
        P, moved = self.targets @ residual, self.scatter @ residual
        E = residual.T @ moved  # of the rotated outputs
        tau = whitener.t / self.num_frequencies
        values = 1 + self.s * tau
        weights = P / values
        logdet = float(np.log(values).sum()) + self.num_rows * whitener.logdet
        gain = float(np.vdot(weights * tau, P))
        self._back(whitener, weights, values, tau, P, E, moved, out)
        return 0.5 * (gain - logdet - np.trace(E) - self.num_rows * len(tau) * LOG_2_PI)

    def _residual(self, theta: np.ndarray, num_outputs: int) -> np.ndarray:
        """[−β; I] (b + p, p), which makes Y − hβ of [h, Y]."""
        eye = np.eye(num_outputs)
        return np.concatenate([-self.mean.coefficients(theta), eye]) if self.num_basis else eye

    def _back(self, whitener: Whitener, weights, values, tau, P, E, moved, out: np.ndarray) -> None:
        inner = weights.T @ weights
        inner.flat[:: len(tau) + 1] -= (self.s / values).sum(0)
        by_P = weights * tau
        whitener.back(0.5 * inner / self.num_frequencies, by_P.T @ P - E, self.num_rows, out)
        if self.num_basis:
            by_residual = (self.targets.T @ by_P - moved)[: self.num_basis]
            self.mean.back_coefficients(-by_residual @ whitener.rotation.T, out)
