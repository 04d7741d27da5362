"""Closed forms of Gaussian distributions embedded in the reproducing kernel Hilbert space of a kernel on the sample space.

The embedding of N(m, S) is N(y) = E k(y, Z), Z ~ N(m, S), for k(x, y) = exp(−‖x − y‖²) or exp⟨x, y⟩; other scales s follow from
the sample √s Y. All forms are written in the eigenbasis of S about m, where a sample of a Hilbert space has finitely many
coordinates, so that data and Gram matrices lead to the same numbers (KT-69..74).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ovkgp.criticism.sample_tests.samples import squared_distances


@dataclass(frozen=True)
class GaussianModel:
    """Gaussian distribution of a sample, and the parameters that were estimated from it.

    `coordinates` (n, q) are those of the observations about the mean m in the eigenbasis of S; `eigenvalues` (q,) are those of S.
    `null` is "full", "known", "known_mean" or "known_covariance". If `rank` is not None, S is the best approximation of rank r of the empirical covariance, whose eigenvalues are `empirical`.
    `derivative_at`: point at which this truncation is differentiated, "projected" (the truncated covariance) or "empirical".
    """

    coordinates: np.ndarray
    eigenvalues: np.ndarray
    null: str = "full"
    rank: int | None = None
    empirical: np.ndarray | None = None
    derivative_at: str = "projected"

    @property
    def estimates_mean(self) -> bool:
        """Whether m is the mean of the sample."""
        return self.null in ("full", "known_covariance")

    @property
    def estimates_covariance(self) -> bool:
        """Whether S is the covariance of the sample."""
        return self.null in ("full", "known_mean")

    def truncated(self, rank: int, derivative_at: str = "projected") -> GaussianModel:
        """Return the model of rank r; the same model if it has no more than r dimensions."""
        if rank >= len(self.eigenvalues):
            return self
        kept = np.where(np.arange(len(self.eigenvalues)) < rank, self.eigenvalues, 0.0)
        return replace(self, eigenvalues=kept, rank=rank, empirical=self.eigenvalues, derivative_at=derivative_at)

    def scaled(self, scale: float) -> GaussianModel:
        """Return the model of the sample √scale · Y."""
        empirical = None if self.empirical is None else scale * self.empirical
        coordinates, eigenvalues = np.sqrt(scale) * self.coordinates, scale * self.eigenvalues
        return replace(self, coordinates=coordinates, eigenvalues=eigenvalues, empirical=empirical)

    def products(self, weights: np.ndarray) -> np.ndarray:
        """Compute Σ_a w_a C_ia C_ja (n, n)."""
        return (self.coordinates * weights) @ self.coordinates.T

    def covariance_products(self, weights: np.ndarray, products: np.ndarray, power: int) -> np.ndarray:
        """Compute Σ_ab f_ab^power w_a w_b C_ia C_ib C_ja C_jb (n, n), the products of covariance directions y_i ⊗ y_i.

        f are the factors of the derivative of the truncation in the eigenbasis: 1 for a, b ≤ r, 0 for a, b > r, and between both 1
        ("projected") or λ_a/(λ_a − λ_b) ("empirical"). Without truncation f = 1.
        """
        if self.rank is None:
            return products**2
        C, r = self.coordinates, self.rank
        if self.derivative_at == "projected":
            return products**2 - ((C[:, r:] * weights[r:]) @ C[:, r:].T) ** 2
        result = ((C[:, :r] * weights[:r]) @ C[:, :r].T) ** 2
        for a in range(r):
            factors = self.empirical[a] / (self.empirical[a] - self.empirical[r:])
            mixed = (C[:, r:] * (factors**power * weights[r:])) @ C[:, r:].T
            result += 2 * weights[a] * np.outer(C[:, a], C[:, a]) * mixed
        return result

    def traces(self, weights: np.ndarray) -> np.ndarray:
        """Compute tr(W U_i) (n,) of covariance directions U_i, for W with eigenvalues `weights`."""
        kept = slice(self.rank)  # all if None
        return self.coordinates[:, kept] ** 2 @ weights[kept]


class GaussianKernel:
    """Embeddings for the kernel exp(−‖x − y‖²), characteristic on separable Hilbert spaces (KT-10, 69)."""

    @staticmethod
    def gram(model: GaussianModel) -> np.ndarray:
        """Compute the kernel (n, n) between observations."""
        squares = squared_distances(model.coordinates, model.coordinates)
        np.negative(squares, out=squares)
        return np.exp(squares, out=squares)

    @staticmethod
    def embedding(model: GaussianModel) -> np.ndarray:
        """Compute N(Y_i) (n,) = |A|^{−½} exp(−⟨A⁻¹y_i, y_i⟩), A = I + 2S."""
        a = 1 + 2 * model.eigenvalues
        return np.exp(-0.5 * np.log(a).sum() - model.coordinates**2 @ (1 / a))

    @staticmethod
    def squared_norm(model: GaussianModel) -> float:
        """Compute ‖N‖² = |B|^{−½}, B = I + 4S."""
        return float(np.exp(-0.5 * np.log1p(4 * model.eigenvalues).sum()))

    @staticmethod
    def derivatives(model: GaussianModel) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Compute the derivatives DN_j of the embedding in the directions of the observations, up to constants in j.

        Returns DN_j(Y_i) (n, n), ⟨DN_i, DN_j⟩ (n, n) and ⟨N, DN_i⟩ (n,).
        """
        number = len(model.coordinates)
        a, b = 1 + 2 * model.eigenvalues, 1 + 4 * model.eigenvalues
        at_rows, inner, along = np.zeros((number, number)), np.zeros((number, number)), np.zeros(number)
        P, Q = model.products(1 / a), model.products(1 / b)
        if model.estimates_mean:
            at_rows += 2 * P
            inner += 2 * Q
        if model.estimates_covariance:
            q = model.traces(1 / b)
            at_rows += 2 * model.covariance_products(1 / a, P, 1) - model.traces(1 / a)
            inner += 2 * model.covariance_products(1 / b, Q, 2) + np.outer(q, q)
            along -= q
        norm = GaussianKernel.squared_norm(model)
        return GaussianKernel.embedding(model)[:, None] * at_rows, norm * inner, norm * along


class ExponentialKernel:
    """Embeddings for the kernel exp⟨x − m, y − m⟩ about the mean m of the model (KT-09, 70).

    The kernel is not translation invariant, so it is centered at m. E k(Y, Y) is finite if the largest eigenvalue of S is below ½.
    """

    @staticmethod
    def gram(model: GaussianModel) -> np.ndarray:
        """Compute the kernel (n, n) between observations."""
        return np.exp(model.products(np.ones(len(model.eigenvalues))))

    @staticmethod
    def embedding(model: GaussianModel) -> np.ndarray:
        """Compute N(Y_i) (n,) = exp(⟨S y_i, y_i⟩/2)."""
        return np.exp(model.coordinates**2 @ model.eigenvalues / 2)

    @staticmethod
    def squared_norm(model: GaussianModel) -> float:
        """Compute ‖N‖² = |I − S²|^{−½}."""
        return float(np.exp(-0.5 * np.log1p(-(model.eigenvalues**2)).sum()))

    @staticmethod
    def derivatives(model: GaussianModel) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Compute the derivatives of the embedding as `GaussianKernel.derivatives`."""
        number = len(model.coordinates)
        ones, e = np.ones(len(model.eigenvalues)), 1 / (1 - model.eigenvalues**2)
        at_rows, inner, along = np.zeros((number, number)), np.zeros((number, number)), np.zeros(number)
        K, E = model.products(ones), model.products(e)
        if model.estimates_mean:
            at_rows += K
            inner += E
        if model.estimates_covariance:
            t = model.traces(e * model.eigenvalues)
            at_rows += model.covariance_products(ones, K, 1) / 2
            inner += model.covariance_products(e, E, 2) / 2 + np.outer(t, t) / 4
            along += t / 2
        norm = ExponentialKernel.squared_norm(model)
        return ExponentialKernel.embedding(model)[:, None] * at_rows, norm * inner, norm * along


KERNELS = {"gaussian": GaussianKernel, "exponential": ExponentialKernel}


def gaussian_inner_product(mean1, covariance1, mean2, covariance2, kernel: str) -> float:
    """Compute ⟨N₁, N₂⟩ = E k(Z₁, Z₂) of two Gaussian distributions of R^d, Z_i ~ N(m_i, S_i), for a kernel of scale 1."""
    identity = np.eye(len(mean1))
    if kernel == "gaussian":
        A = identity + 2 * (covariance1 + covariance2)
        difference = mean1 - mean2
        return float(np.exp(-0.5 * np.linalg.slogdet(A)[1] - difference @ np.linalg.solve(A, difference)))
    D = identity - covariance1 @ covariance2
    # the transpose of I − S₁S₂ is I − S₂S₁
    exponent = mean1 @ np.linalg.solve(D.T, mean2) + mean2 @ np.linalg.solve(D, covariance1 @ mean2) / 2
    exponent += mean1 @ covariance2 @ np.linalg.solve(D, mean1) / 2
    return float(np.exp(exponent - 0.5 * np.linalg.slogdet(D)[1]))
