"""Laplace approximation of latent functions with labels, given the matrix K of their covariance (Rasmussen & Williams, ch. 3 and 5).

The posterior of latent values f is approximated by a Gaussian around its mode f̂ = K a, a = ∇ log p(y | f̂), with the
covariance (K⁻¹ + W)⁻¹, W = −∇² log p(y | f̂), and the evidence by

    log q = log p(y | f̂) − ½ aᵀ K a − ½ log |I + W K|.

`BinaryLabels` has one latent function, the log odds of the second class; `ClassLabels` has one per class, independent a priori
with the same K, and the softmax link. Both return the derivatives of log q by K, so that any kernel can be trained: those at a
fixed mode, and those through the mode, for which df̂ = (I + K W)⁻¹ dK a. Inverses of K do not occur.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.linalg import blas, lapack
from scipy.special import expit

MAX_STEPS = 100  # maximum number of Newton steps
MAX_HALVINGS = 30  # of one step, until the density rises
MIN_CURVATURE = 1e-10
"""Smallest probability of a class in W; smaller ones have no effect on the mode, and digits of 1 − B⁻¹ are kept."""


@dataclass
class LatentMode:
    """Gaussian approximation around the mode: `coefficients` a and values f, both (n,) or (C, n), and log q.

    Subclasses have `by_covariance(K)`, the derivatives G (n, n) of log q by K, of which the symmetric part counts, `marginals()`, the
    posterior covariances at the rows, and `predict(cross, prior)`: mean and covariance at points with the covariances `cross` (m, n)
    with the rows and the prior variances `prior` (m,).
    """

    coefficients: np.ndarray
    values: np.ndarray
    log_evidence: float
    steps: int


class BinaryLabels:
    """Labels y (n,) in {0, 1} with log p(y | f) = y f − log(1 + e^f)."""

    def __init__(self, labels: np.ndarray):
        self.y = labels.astype(np.float64)

    def log_density(self, f: np.ndarray) -> float:
        """Return log p(y | f)."""
        return -float(np.logaddexp(0.0, np.where(self.y > 0, -f, f)).sum())

    def find_mode(self, K: np.ndarray, init: np.ndarray | None = None, tolerance: float = 1e-9) -> BinaryMode:
        """Find the mode by Newton's method from the values `init` (n,), or from zero, until a step gains at most `tolerance`."""
        return _find_mode(self, BinaryFactor, BinaryMode, K, np.zeros(len(self.y)) if init is None else init, tolerance)

    def approximate(self, K: np.ndarray, coefficients: np.ndarray) -> BinaryMode:
        """Return the approximation around values with the coefficients (n,) of a known mode."""
        return _approximate(self, BinaryFactor, BinaryMode, K, coefficients)


class ClassLabels:
    """Labels (n,) in 0, …, C − 1 with log p(y | f) = Σ_i f_{y_i, i} − log Σ_c e^{f_ci} of latent values f (C, n)."""

    def __init__(self, labels: np.ndarray, num_classes: int):
        self.y = (labels == np.arange(num_classes)[:, None]).astype(np.float64)

    def log_density(self, f: np.ndarray) -> float:
        """Return log p(y | f)."""
        return float((self.y * _log_softmax(f)).sum())

    def find_mode(self, K: np.ndarray, init: np.ndarray | None = None, tolerance: float = 1e-9) -> ClassMode:
        """Find the mode by Newton's method from the values `init` (C, n), or from zero, until a step gains at most `tolerance`."""
        return _find_mode(self, ClassFactor, ClassMode, K, np.zeros_like(self.y) if init is None else init, tolerance)

    def approximate(self, K: np.ndarray, coefficients: np.ndarray) -> ClassMode:
        """Return the approximation around values with the coefficients (C, n) of a known mode."""
        return _approximate(self, ClassFactor, ClassMode, K, coefficients)


def _find_mode(labels, factorize, mode, K: np.ndarray, init: np.ndarray, tolerance: float):
    """Maximize log p(y | f) − ½ aᵀ f over f = K a; steps are halved until the value rises."""
    a, f, value = np.zeros_like(init), np.zeros_like(init), labels.log_density(np.zeros_like(init))
    if init.any():
        first = factorize(labels, K, init).step(K, init)
        by_first = first @ K
        first_value = labels.log_density(by_first) - 0.5 * float(np.vdot(first, by_first))
        if first_value > value:
            a, f, value = first, by_first, first_value
    steps = 0
    while steps < MAX_STEPS:
        steps += 1
        factor = factorize(labels, K, f)
        change = factor.step(K, f) - a
        by_step, gain = change @ K, -np.inf
        for _ in range(MAX_HALVINGS):
            new_a, new_f = a + change, f + by_step
            new_value = labels.log_density(new_f) - 0.5 * float(np.vdot(new_a, new_f))
            gain = new_value - value
            if gain >= 0:
                break
            change, by_step = change / 2, by_step / 2
        if not gain >= 0:  # rounding hides any further gain
            break
        a, f, value = new_a, new_f, new_value
        if gain <= tolerance:
            factor = factorize(labels, K, f)
            break
    return mode(a, f, value - 0.5 * factor.log_determinant, steps, factor)


def _approximate(labels, factorize, mode, K: np.ndarray, a: np.ndarray):
    f = a @ K
    factor = factorize(labels, K, f)
    value = labels.log_density(f) - 0.5 * float(np.vdot(a, f)) - 0.5 * factor.log_determinant
    return mode(a, f, value, 0, factor)


class BinaryFactor:
    """Cholesky factor of B = I + W^½ K W^½ at f (n,)."""

    def __init__(self, labels: BinaryLabels, K: np.ndarray, f: np.ndarray):
        self.probability = expit(f)
        self.gradient = labels.y - self.probability
        self.curvature = np.maximum(self.probability * expit(-f), MIN_CURVATURE)
        self.root = np.sqrt(self.curvature)
        self.chol = _factorize(_shift(K, self.root))
        self.log_determinant = 2 * float(np.log(self.chol.diagonal()).sum())

    def step(self, K: np.ndarray, f: np.ndarray) -> np.ndarray:
        """Return the coefficients a (n,) of the mode of the quadratic approximation at f."""
        b = self.curvature * f + self.gradient
        return b - self.root * lapack.dpotrs(self.chol, self.root * (K @ b), lower=1)[0]

    @cached_property
    def inverse(self) -> np.ndarray:
        """B⁻¹ (n, n)."""
        return _invert(self.chol)


@dataclass
class BinaryMode(LatentMode):
    """Mode of one latent function with binary labels."""

    factor: BinaryFactor

    def by_covariance(self, K: np.ndarray) -> np.ndarray:
        root, inverse, a = self.factor.root, self.factor.inverse, self.coefficients
        through_mode = (
            0.5 * (1 - inverse.diagonal()) * (2 * self.factor.probability - 1)
        )  # Σ_ii ∂W_i = (1 − B⁻¹_ii)(1 − 2π_i)
        u = through_mode - root * (inverse @ (root * (K @ through_mode)))
        G = inverse * (-0.5 * root[:, None] * root)
        G += np.outer(0.5 * a + u, a)
        return G

    def marginals(self) -> np.ndarray:
        """Return the posterior variances (n,) of f."""
        return (1 - self.factor.inverse.diagonal()) / self.factor.curvature

    def leave_one_out(self) -> tuple[np.ndarray, np.ndarray]:
        """Return mean and variance (n,) of f at each row without its label: the approximate posterior divided by its site."""
        variance = self.marginals()
        variance = variance / np.maximum(1 - self.factor.curvature * variance, 1e-12)
        return self.values - variance * self.factor.gradient, variance

    def predict(self, cross: np.ndarray, prior: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return mean and variance (m,)."""
        half = blas.dtrsm(1.0, self.factor.chol, (cross * self.factor.root).T, lower=1, overwrite_b=1)
        return cross @ self.coefficients, np.maximum(prior - np.square(half).sum(0), 0.0)


class ClassFactor:
    """Factors of I + W K at f (C, n), with W = D − Π Πᵀ, of B_c = I + D_c^½ K D_c^½ and of S = Σ_c E_c, E_c = D_c^½ B_c⁻¹ D_c^½."""

    def __init__(self, labels: ClassLabels, K: np.ndarray, f: np.ndarray):
        probability = np.exp(_log_softmax(f))
        self.gradient = labels.y - probability
        probability = np.maximum(probability, MIN_CURVATURE)
        self.probability = probability / probability.sum(0)
        self.root, self.inverses, self.log_determinant = np.sqrt(self.probability), [], 0.0
        S = np.zeros(K.shape, order="F")
        for root in self.root:
            chol = _factorize(_shift(K, root))
            self.log_determinant += 2 * float(np.log(chol.diagonal()).sum())
            self.inverses.append(lapack.dpotri(chol, lower=1, overwrite_c=1)[0])  # only its lower triangle
            S += root[:, None] * self.inverses[-1] * root
        self.chol = _factorize(S)
        self.log_determinant += 2 * float(np.log(self.chol.diagonal()).sum())

    def solve(self, vectors: np.ndarray) -> np.ndarray:
        """Return (W − W (K⁻¹ + W)⁻¹ W) v for v (C, n): E v − E R S⁻¹ Rᵀ E v."""
        first = np.stack([self._multiply(c, vector) for c, vector in enumerate(vectors)])
        shared = lapack.dpotrs(self.chol, first.sum(0), lower=1)[0]
        return first - np.stack([self._multiply(c, shared) for c in range(len(vectors))])

    def step(self, K: np.ndarray, f: np.ndarray) -> np.ndarray:
        """Return the coefficients a (C, n) of the mode of the quadratic approximation at f."""
        b = self.probability * (f - (self.probability * f).sum(0)) + self.gradient
        return b - self.solve(b @ K)

    def _multiply(self, c: int, vector: np.ndarray) -> np.ndarray:
        return self.root[c] * blas.dsymv(1.0, self.inverses[c], self.root[c] * vector, lower=1)


@dataclass
class ClassMode(LatentMode):
    """Mode of one latent function per class."""

    factor: ClassFactor

    def by_covariance(self, K: np.ndarray) -> np.ndarray:
        factor, a = self.factor, self.coefficients
        G, blocks = self._blocks(with_gradient=True)
        # −½ tr(Σ ∂W) at each row, with ∂W_kl = W_kc δ_kl − W_kc π_l − π_k W_lc; blocks are √π_k √π_l Σ_kl
        root, probability = factor.root, factor.probability
        weighted = np.diagonal(blocks, axis1=0, axis2=1).T - 2 * np.einsum("kln,ln,kn->kn", blocks, root, root)
        through_mode = -0.5 * (weighted - probability * weighted.sum(0))
        u = through_mode - factor.solve(through_mode @ K)
        G += (0.5 * a + u).T @ a
        return G

    def marginals(self) -> np.ndarray:
        """Return the posterior covariances (n, C, C) of f at each row."""
        blocks = self._blocks(with_gradient=False)[1] / (self.factor.root[:, None] * self.factor.root)
        return np.moveaxis(blocks, -1, 0)

    def leave_one_out(self) -> tuple[np.ndarray, np.ndarray]:
        """Return mean (n, C) and covariance (n, C, C) of f at each row without its label: the approximate posterior divided by its site."""
        covariance, probability = self.marginals(), self.factor.probability.T
        W = probability[:, :, None] * (np.eye(probability.shape[1]) - probability[:, None])
        covariance = np.linalg.solve(np.eye(len(W[0])) - covariance @ W, covariance)
        covariance = (covariance + covariance.mT) / 2
        return self.values.T - np.einsum("nkl,ln->nk", covariance, self.factor.gradient), covariance

    def predict(self, cross: np.ndarray, prior: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return mean (m, C) and covariance (m, C, C)."""
        factor, halves, variances = self.factor, [], []
        for root, inverse in zip(factor.root, factor.inverses, strict=True):
            scaled = (cross * root).T
            product = blas.dsymm(1.0, inverse, scaled, lower=1)
            variances.append(prior - (scaled * product).sum(0))
            halves.append(blas.dtrsm(1.0, factor.chol, root[:, None] * product, lower=1))
        halves = np.stack(halves)
        covariance = np.einsum("knm,lnm->mkl", halves, halves, optimize=True)
        index = np.arange(len(halves))
        covariance[:, index, index] += np.maximum(np.stack(variances, 1), 0.0)
        return cross @ self.coefficients.T, covariance

    def _blocks(self, with_gradient: bool) -> tuple[np.ndarray | None, np.ndarray]:
        """Return −½ Σ_c of the diagonal blocks of W − W Σ W (n, n), and √π_k √π_l Σ_kl (C, C, n) at the rows.

        With S = M Mᵀ and T_c = M⁻¹ D_c^½ B_c⁻¹, they are −½ (S − Σ_c D_c^½ T_cᵀ T_c D_c^½) and, with P_c = M⁻¹ D_c^½ − T_c,
        the inner products of the columns of P_k and P_l, plus 1 − diag B_k⁻¹ for k = l.
        """
        factor, (C, n) = self.factor, self.values.shape
        G = np.zeros((n, n), order="F") if with_gradient else None
        root_inverse = lapack.dtrtri(factor.chol, lower=1)[0]
        columns, diagonal = np.empty((C, n, n)), np.empty((C, n))
        for c, (root, lower) in enumerate(zip(factor.root, factor.inverses, strict=True)):
            inverse = _symmetrize(lower)
            diagonal[c] = 1 - inverse.diagonal()
            T = blas.dtrmm(1.0, root_inverse, root[:, None] * inverse, lower=1)
            columns[c] = root_inverse * root - T
            if with_gradient:
                T *= root
                G = blas.dsyrk(0.5, T, beta=1.0, c=G, trans=1, lower=1, overwrite_c=1)
                G -= (0.5 * root)[:, None] * lower * root
        blocks = np.empty((C, C, n))
        for k in range(C):
            for l in range(k + 1):
                blocks[k, l] = blocks[l, k] = (columns[k] * columns[l]).sum(0)
        index = np.arange(C)
        blocks[index, index] += diagonal
        return _symmetrize(G) if with_gradient else None, blocks


def _shift(K: np.ndarray, root: np.ndarray) -> np.ndarray:
    """Return I + D K D for a diagonal D (n,)."""
    B = K * root[:, None]
    B *= root
    B.flat[:: len(B) + 1] += 1.0
    return B.T


def _factorize(matrix: np.ndarray) -> np.ndarray:
    """Return the lower Cholesky factor of a symmetric matrix, which is overwritten."""
    chol, info = lapack.dpotrf(matrix, lower=1, clean=1, overwrite_a=1)
    if info:
        raise np.linalg.LinAlgError("The matrix of the Laplace approximation is not positive definite.")
    return chol


def _invert(chol: np.ndarray) -> np.ndarray:
    return _symmetrize(lapack.dpotri(chol, lower=1)[0])


def _symmetrize(lower: np.ndarray) -> np.ndarray:
    """Return the symmetric matrix with a given lower triangle."""
    full = lower + lower.T
    full[np.diag_indices_from(full)] /= 2
    return full


def _log_softmax(f: np.ndarray) -> np.ndarray:
    """Return log π (C, n); SciPy's function takes longer than the rest of a step for few rows."""
    shifted = f - f.max(0)
    return shifted - np.log(np.exp(shifted).sum(0))
