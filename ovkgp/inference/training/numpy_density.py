"""log π(u) = evidence + priors + log |dθ/du| in NumPy with hand-written gradients, for models whose parts have NumPy nodes.

A gradient through GPyTorch's modules takes one or two milliseconds before any linear algebra. NumPy functions of θ
compute the same numbers faster; everything that does not depend on θ is computed once. Each evidence and each prior is
called with θ and a vector: it returns its value and adds its derivatives to the vector.
"""

from __future__ import annotations

import math
from functools import cached_property

import numpy as np
import torch
from gpytorch.kernels import Kernel
from scipy import sparse
from scipy.linalg import blas, lapack

from ovkgp.exceptions import FactorizationError
from ovkgp.features import ORFF
from ovkgp.inference.algebra.kronecker_missing import MissingSolver
from ovkgp.inference.model.mean_noise import PolynomialMean
from ovkgp.inference.model.observations import Observations
from ovkgp.inference.model.parameter_vector import ParameterVector
from ovkgp.inference.statistics.statistics import OutputStatistics, Statistics
from ovkgp.inference.strategies.selection import select_strategy
from ovkgp.inference.training.numpy_outputs import (
    BasisMean,
    CholeskyOutputs,
    KnownMean,
    Variances,
    make_mean_node,
    make_noise_node,
    make_output_factor_node,
    make_separable_nodes,
    mean_references,
)
from ovkgp.inference.training.numpy_values import NoAnalyticForm, NumpyVector, make_kernel_node
from ovkgp.inference.training.priors import make_prior_terms
from ovkgp.kernels import IndependentKernel, is_operator_valued

EXACT_STRATEGIES = ("kronecker", "kronecker_missing", "dense", "independent")  # strategies that use the exact kernel
MAX_SCIPY_ROWS = 400
"""Up to this many rows, or with one thread, SciPy's LAPACK is called; torch's is faster with several threads."""

LOG_2_PI = math.log(2 * math.pi)
MAX_CHOLESKY_OUTPUTS = 5
"""Up to this many outputs, one n × n Cholesky factor per output is cheaper than one eigendecomposition."""

MAX_ONE_HOT_OUTPUTS = 20  # with more outputs, their indicators are sparse

Noise = Variances | CholeskyOutputs
Mean = BasisMean | KnownMean


class NumpyDensity:
    """log π(u) and its gradient; log |dθ/du| is added only with `jacobian`, and if `priors` is None, neither of the two."""

    def __init__(self, vector: NumpyVector, evidence, priors: list | None, jacobian: bool = True):
        self.vector, self.evidence, self.priors, self.jacobian = vector, evidence, priors, jacobian

    def __call__(self, u: np.ndarray) -> tuple[float, np.ndarray]:
        """Return the density and its gradient (k,), NaN if θ is not finite.

        Raises `numpy.linalg.LinAlgError` if a covariance is not positive definite to working precision.
        """
        with np.errstate(all="ignore"):  # overflow is detected by the checks for finite values
            theta, slope, log_slope, by_slope = self.vector.values(u)
            if not math.isfinite(theta.sum()):
                return np.nan, u
            out = np.zeros(len(theta))
            value = self.evidence(theta, out)
            for prior in self.priors or ():
                value += prior(theta, out)
            gradient = out * slope
            if self.jacobian and self.priors is not None:
                value, gradient = value + log_slope, gradient + by_slope
            return float(value), gradient[self.vector.kept]

    def value(self, u: np.ndarray, out: np.ndarray | None = None) -> float:
        """Return the density of one output without its gradient; −∞ if it cannot be evaluated.

        The Cholesky factor of the covariance is written to `out` (n, n), if given.
        """
        with np.errstate(all="ignore"):
            theta, _, log_slope, _ = self.vector.values(u)
            if not np.isfinite(theta).all():
                return -np.inf
            try:
                value = self.evidence.value(theta, out)
            except np.linalg.LinAlgError:
                return -np.inf
            value += sum(prior(theta, np.zeros_like(theta)) for prior in self.priors)
            return float(value + log_slope) if np.isfinite(value) else -np.inf


def make_numpy_density(
    gp, data: Observations | Statistics | OutputStatistics, vector: ParameterVector, jacobian: bool = True
) -> NumpyDensity:
    """Return the NumPy density of an `OperatorValuedGP`; raise `NoAnalyticForm` if a part has no NumPy node.

    Complexity: O(n²d) time and memory once, then that of the evidence and its gradient.
    """
    if vector.entries and vector.entries[0].parameter.device.type != "cpu":
        raise NoAnalyticForm("another device")
    values = NumpyVector(vector)
    from_statistics = isinstance(data, (Statistics, OutputStatistics))
    evidence = _evidence_from_statistics(gp, data, values) if from_statistics else _evidence_from_data(gp, data, values)
    try:
        return NumpyDensity(values, evidence, make_prior_terms(gp, values, jacobian), jacobian)
    except NoAnalyticForm:
        return NumpyDensity(values, evidence, None, jacobian)


def _evidence_from_data(gp, data: Observations, vector: NumpyVector):
    strategy = select_strategy(gp.model, data, gp.strategy)
    if strategy.name not in EXACT_STRATEGIES or gp.features is not None:
        raise NoAnalyticForm(f"the strategy {strategy.name}")
    if strategy.name == "independent":
        if type(gp.kernel) is not IndependentKernel:
            raise NoAnalyticForm(f"the kernel {type(gp.kernel).__name__}")
        return SumOfEvidences([_single_output_evidence(gp, data, vector, index) for index in range(data.num_outputs)])
    terms = make_separable_nodes(gp.kernel, data.X.cpu().numpy(), vector)
    noise, mean = make_noise_node(gp.noise_model, vector), make_mean_node(gp.mean, data, vector)
    is_even = data.is_complete and data.noise is None
    has_variances = data.noise is not None or isinstance(noise, Variances)
    if len(terms) == 1 and not is_operator_valued(gp.kernel) and has_variances:
        return SingleOutputEvidence(terms[0][0], noise, mean, data)
    if len(terms) == 1 and is_even:
        return SeparableEvidence(*terms[0], noise, mean, data)
    if len(terms) == 1 and strategy.name == "kronecker_missing":
        return MissingEvidence(*terms[0], noise, mean, data)
    return DenseEvidence(terms, noise, mean, data)


def _single_output_evidence(gp, data: Observations, vector: NumpyVector, index: int) -> SingleOutputEvidence:
    alone = data.output(index)
    kernel = make_kernel_node(gp.kernel.kernels[index], alone.X.cpu().numpy(), vector)
    noise, mean = make_noise_node(gp.noise_model, vector, index), make_mean_node(gp.mean, alone, vector, index)
    return SingleOutputEvidence(kernel, noise, mean, alone)


def _evidence_from_statistics(gp, data: Statistics | OutputStatistics, vector: NumpyVector):
    if type(gp.features) is not ORFF or type(gp.mean) is not PolynomialMean:
        raise NoAnalyticForm("features or a mean of another kind")
    if isinstance(data, OutputStatistics):
        pairs = zip(gp.kernel.kernels, data.parts, strict=True)
        return SumOfEvidences(
            [_shared_statistics_evidence(gp, kernel, part, vector, index) for index, (kernel, part) in enumerate(pairs)]
        )
    return _shared_statistics_evidence(gp, gp.kernel, data, vector)


def _shared_statistics_evidence(
    gp, kernel: Kernel, data: Statistics, vector: NumpyVector, index: int | None = None
) -> StatisticsEvidence:
    if data.layout != "shared":
        raise NoAnalyticForm(f"statistics of layout {data.layout}")
    outputs = make_output_factor_node(kernel, vector)
    mean = BasisMean(np.zeros((0, data.num_basis)), mean_references(gp.mean, vector, index))
    noise = make_noise_node(gp.noise_model, vector, index)
    return StatisticsEvidence(data, outputs, gp.features.num_frequencies, noise, mean)


class SingleOutputEvidence:
    """log N(y | m, K + noise) of one output with complete data; the data's noise replaces the model's if given.

    Complexity: O(n³).
    """

    def __init__(self, kernel, noise: Variances, mean: Mean, data: Observations):
        self.kernel, self.noise, self.mean = kernel, noise, mean
        self.y = data.Y.cpu().numpy()
        self.known = None if data.noise is None else data.noise.cpu().numpy().ravel()

    @cached_property
    def workspace(self) -> np.ndarray:
        """Memory for one matrix (n, n); fresh memory for each evaluation would take a large part of the time."""
        return np.empty((len(self.y), len(self.y)))

    def covariance(self, theta: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        """Return K + noise (n, n), a new matrix or written to `out`."""
        C = self.kernel.matrix(theta, out)[0]
        C.flat[:: len(C) + 1] += self.noise.variances(theta)[0] if self.known is None else self.known
        return C

    def value(self, theta: np.ndarray, out: np.ndarray | None = None) -> float:
        """Return the log density without its gradient; the Cholesky factor L, C = L Lᵀ, is written to `out` (n, n), if given."""
        C = self.covariance(theta, self.workspace if out is None else out)
        value = self._factorize(C, theta, clean=out is not None)
        if value is None:
            raise np.linalg.LinAlgError("a covariance matrix is not positive definite")
        return value

    def values(self, thetas: np.ndarray, out: np.ndarray) -> np.ndarray:
        """Return the log densities (S,) at S values of θ (S, k), −∞ where C is not positive definite.

        The Cholesky factors are written to `out` (S, n, n). For few rows, this is faster than `value` for each θ.
        """
        self.kernel.matrices(thetas, out)
        noise = self.known if self.known is not None else self.noise.single(thetas)
        out.reshape(len(out), -1)[:, :: out.shape[1] + 1] += noise
        found = [self._factorize(C, theta, clean=True) for C, theta in zip(out, thetas, strict=True)]
        return np.array([-np.inf if value is None else value for value in found])

    def _factorize(self, C: np.ndarray, theta: np.ndarray, clean: bool) -> float | None:
        """Replace C (n, n) by its Cholesky factor and return the log density; None if C is not positive definite."""
        residuals = self.y - self.mean.values(theta)
        # C.T is C in the order of Fortran: its upper factor Lᵀ is L in the order of C
        chol, info = lapack.dpotrf(C.T, lower=0, clean=clean, overwrite_a=1)
        if info:
            return None
        half = lapack.dtrtrs(chol, residuals, lower=0, trans=1)[0]
        return -0.5 * (float(np.vdot(half, half)) + len(C) * LOG_2_PI) - float(np.log(chol.diagonal()).sum())

    def __call__(self, theta: np.ndarray, out: np.ndarray) -> float:
        C, backward = self.kernel.matrix(theta, self.workspace)
        n = len(C)
        if self.known is None:
            variances, noise_backward = self.noise.variances(theta)
        C.reshape(-1)[:: n + 1] += variances if self.known is None else self.known
        residuals = self.y - self.mean.values(theta)
        alpha, G, logdet = solve_and_invert(C, residuals)
        value = -0.5 * (float(np.vdot(residuals, alpha)) + logdet + n * LOG_2_PI)
        G *= -0.5
        G = blas.dger(0.5, alpha[:, 0], alpha[:, 0], a=G.T, overwrite_a=1).T
        backward(G, out)
        if self.known is None:
            noise_backward(G.reshape(-1)[:: n + 1].sum(keepdims=True), out)
        self.mean.backward(alpha, out)
        return value


class SeparableEvidence:
    """log N(vec Y | m, K ⊗ Γ + I ⊗ Σ) with complete outputs.

    In whitened outputs, Σ = L Lᵀ, L⁻¹ Γ L⁻ᵀ = V t Vᵀ, column j of R L⁻ᵀ V has covariance t_j K + I.
    Complexity: p n³ operations for few outputs, about 15 n³ + n²p for many.
    """

    def __init__(self, kernel, outputs, noise: Noise, mean: Mean, data: Observations):
        self.kernel, self.outputs, self.noise, self.mean = kernel, outputs, noise, mean
        self.Y = data.Y.cpu().numpy()

    def __call__(self, theta: np.ndarray, out: np.ndarray) -> float:
        K, backward = self.kernel.matrix(theta)
        whitener = Whitener(*self.outputs.matrix(theta), *self.noise.matrix(theta))
        residuals = self.Y - self.mean.values(theta)
        rotated = residuals @ whitener.rotation  # (n, p)
        solve = _solve_with_cholesky if len(whitener.t) <= MAX_CHOLESKY_OUTPUTS else _solve_with_eigh
        logdet, alpha, by_K, traces = solve(K, whitener.t, rotated)
        backward(by_K, out)
        inner = 0.5 * (alpha.T @ K @ alpha - np.diag(traces))
        whitener.backward(inner, -alpha.T @ rotated, len(K), out)
        self.mean.backward(alpha @ whitener.rotation.T, out)
        logdet += len(K) * whitener.logdet
        return -0.5 * (float(np.vdot(rotated, alpha)) + logdet + rotated.size * LOG_2_PI)


class Whitener:
    """Γ and Σ diagonalized jointly: rotation = L⁻ᵀ V has rotationᵀ Σ rotation = I and rotationᵀ Γ rotation = diag t."""

    def __init__(self, matrix: np.ndarray, matrix_backward, noise: np.ndarray, noise_backward):
        self.matrix_backward, self.noise_backward = matrix_backward, noise_backward
        L = np.linalg.cholesky(noise)
        half = lapack.dtrtrs(L, matrix, lower=1)[0]
        t, V = np.linalg.eigh(lapack.dtrtrs(L, half.T, lower=1)[0])
        self.t = np.maximum(t, 0.0)
        self.rotation = lapack.dtrtrs(L, V, lower=1, trans=1)[0]
        self.logdet = 2 * float(np.log(L.diagonal()).sum())

    def backward(self, by_matrix: np.ndarray, by_residuals: np.ndarray, num_rows: int, out: np.ndarray) -> None:
        """Propagate derivatives in the rotated outputs: A by Γ, and Bᵀ Z for B by the residuals Z.

        Changing Σ by dΣ changes Γ, Z and the scale by −½ dΣ from each side, so ∂Σ = −½ (A t + t A) − ½ BᵀZ − ½ n I.
        """
        A = by_matrix
        by_noise = -0.5 * (A * self.t + self.t[:, None] * A + by_residuals)
        by_noise.flat[:: len(A) + 1] -= 0.5 * num_rows
        self.matrix_backward(self.rotation @ A @ self.rotation.T, out)
        self.noise_backward(self.rotation @ by_noise @ self.rotation.T, out)


def _solve_with_cholesky(K: np.ndarray, t: np.ndarray, rotated: np.ndarray):
    """Return log det, α (n, p), the derivatives by K, and tr(K (t_j K + I)⁻¹), with one Cholesky factor per output."""
    n, logdet, traces = len(K), 0.0, np.empty(len(t))
    alpha, by_K = np.empty_like(rotated), np.zeros_like(K)
    for j, scale in enumerate(t):
        C = scale * K
        C.reshape(-1)[:: n + 1] += 1.0
        column, inverse, one = solve_and_invert(C, rotated[:, j : j + 1])
        alpha[:, j : j + 1], logdet, traces[j] = column, logdet + one, np.vdot(inverse, K)
        inverse *= -0.5 * scale
        by_K += inverse
    by_K += (0.5 * alpha * t) @ alpha.T
    return logdet, alpha, by_K, traces


def _solve_with_eigh(K: np.ndarray, t: np.ndarray, rotated: np.ndarray):
    """Return the same as `_solve_with_cholesky` from one eigendecomposition of K."""
    s, U = np.linalg.eigh(K)
    s = np.maximum(s, 0.0)
    values = 1 + s[:, None] * t
    alpha = U @ ((U.T @ rotated) / values)
    half = U * np.sqrt((t / values).sum(1))
    by_K = (0.5 * alpha * t) @ alpha.T - 0.5 * (half @ half.T)
    return float(np.log(values).sum()), alpha, by_K, (s[:, None] / values).sum(0)


class MissingEvidence:
    """log N of the observed entries for a separable kernel with missing outputs; complexity as in `MissingSolver`."""

    def __init__(self, kernel, outputs, noise: Noise, mean: Mean, data: Observations):
        self.kernel, self.outputs, self.noise, self.mean = kernel, outputs, noise, mean
        self.Y = data.Y.cpu().numpy()

    def __call__(self, theta: np.ndarray, out: np.ndarray) -> float:
        K, kernel_backward = self.kernel.matrix(theta)
        matrix, matrix_backward = self.outputs.matrix(theta)
        noise, noise_backward = self.noise.matrix(theta)
        parts = (np.array(part, order="C") for part in (K, matrix, noise, self.Y - self.mean.values(theta)))
        try:
            solver = MissingSolver(*map(torch.from_numpy, parts))
        except FactorizationError as error:
            raise np.linalg.LinAlgError("a covariance matrix is not positive definite") from error
        derivatives = solver.derivatives()
        kernel_backward(derivatives.gram.numpy(), out)
        matrix_backward(derivatives.output_matrix.numpy(), out)
        noise_backward(derivatives.noise.numpy(), out)
        self.mean.backward(solver.alpha.numpy(), out)
        return float(solver.log_density)


class DenseEvidence:
    """log N of the observed entries, for any sum of separable terms (pairs of a kernel and an output node).

    The data's noise replaces the model's if given. Complexity: O(N³) time and O(N²) memory for N observed entries.
    """

    def __init__(self, terms: list[tuple], noise: Noise, mean: Mean, data: Observations):
        self.terms, self.noise, self.mean = terms, noise, mean
        self.observed = data.observed.cpu().numpy()
        self.rows, self.outputs = self.observed.nonzero()
        self.y = data.Y.cpu().numpy()[self.observed]
        self.known = None if data.noise is None else data.noise.cpu().numpy()[self.observed]
        self.first_entries = np.flatnonzero(np.diff(self.rows, prepend=-1))  # every row has an entry
        p = self.observed.shape[1]
        self.one_hot = (
            np.eye(p)[self.outputs] if p <= MAX_ONE_HOT_OUTPUTS else _sparse_one_hot(self.outputs, p)
        )  # (N, p)
        self.same_row = self.rows[:, None] == self.rows

    def __call__(self, theta: np.ndarray, out: np.ndarray) -> float:
        found = [(kernel.matrix(theta), outputs.matrix(theta)) for kernel, outputs in self.terms]
        between = [(self._expand_rows(K), self._expand_outputs(matrix)) for (K, _), (matrix, _) in found]
        C = sum(k * g for k, g in between)
        noise_backward = self._add_noise(C, theta)
        mean = self.mean.values(theta)
        residuals = self.y - (mean if np.ndim(mean) == 0 else mean[self.observed])
        alpha, G, logdet = solve_and_invert(C, residuals[:, None])
        value = -0.5 * (float(residuals @ alpha[:, 0]) + logdet + len(residuals) * LOG_2_PI)
        G *= -0.5
        G += 0.5 * alpha * alpha.T
        for ((_, kernel_backward), (_, matrix_backward)), (k, g) in zip(found, between, strict=True):
            kernel_backward(self._reduce_rows(G * g), out)
            matrix_backward(self._reduce_outputs(G * k), out)
        noise_backward(G, out)
        by_mean = np.zeros(self.observed.shape)
        by_mean[self.observed] = alpha[:, 0]
        self.mean.backward(by_mean, out)
        return value

    def _add_noise(self, C: np.ndarray, theta: np.ndarray):
        """Add the noise to C and return the backward function of the derivatives by C."""
        diagonal = slice(None, None, len(C) + 1)
        if self.known is not None:
            C.flat[diagonal] += self.known
            return lambda G, out: None
        if isinstance(self.noise, Variances):
            variances, backward = self.noise.variances(theta)
            C.flat[diagonal] += variances[self.outputs]
            return lambda G, out: backward(self.one_hot.T @ G.diagonal(), out)
        matrix, backward = self.noise.matrix(theta)
        C += self._expand_outputs(matrix) * self.same_row
        return lambda G, out: backward(self._reduce_outputs(G * self.same_row), out)

    def _expand_rows(self, K: np.ndarray) -> np.ndarray:
        return K.take(self.rows, 0).take(self.rows, 1)

    def _expand_outputs(self, matrix: np.ndarray) -> np.ndarray:
        return matrix.take(self.outputs, 0).take(self.outputs, 1)

    def _reduce_rows(self, G: np.ndarray) -> np.ndarray:
        return np.add.reduceat(np.add.reduceat(G, self.first_entries, 0), self.first_entries, 1)

    def _reduce_outputs(self, G: np.ndarray) -> np.ndarray:
        return (self.one_hot.T @ (self.one_hot.T @ G).T).T


def _sparse_one_hot(outputs: np.ndarray, num_outputs: int) -> sparse.csr_array:
    """Return the indicators (N, p) of the outputs (N,), with which a product costs O(N) per column."""
    shape = len(outputs), num_outputs
    return sparse.csr_array((np.ones(len(outputs)), (np.arange(len(outputs)), outputs)), shape=shape)


class SumOfEvidences:
    """The sum of the evidences of independent outputs, which may share parameters."""

    def __init__(self, parts: list):
        self.parts = parts

    def __call__(self, theta: np.ndarray, out: np.ndarray) -> float:
        return sum(part(theta, out) for part in self.parts)


class StatisticsEvidence:
    """log p(Y) of separable features from statistics of layout "shared", without data or a feature matrix.

    With φᵀφ = U s Uᵀ, Γ and Σ diagonalized together (t, rotation), P = Uᵀ φᵀ(Y − hβ) rotation, D frequencies such that
    K ≈ φφᵀ/D, τ = t/D, and E the scatter (p, p) of Y − hβ,

        log p(Y) = ½ [Σ_ij τ_j P_ij² / (1 + s_i τ_j) − Σ_ij log(1 + s_i τ_j) − tr Σ⁻¹E − n log det Σ − n p log 2π].

    Complexity: O(M³) once and O(M p (b + p) + p³) per call for M scalar features, independent of the number of rows.
    """

    def __init__(self, statistics: Statistics, outputs, num_frequencies: int, noise: Noise, mean: BasisMean):
        self.outputs, self.num_frequencies, self.noise, self.mean = outputs, num_frequencies, noise, mean
        self.num_rows, self.num_basis, M = statistics.num_rows, statistics.num_basis, statistics.num_scalar_features
        gram = statistics.gram.cpu().numpy()
        s, U = np.linalg.eigh(gram[:M, :M])
        self.s = np.maximum(s, 0.0)[:, None]
        self.targets, self.scatter = U.T @ gram[:M, M:], gram[M:, M:]

    def __call__(self, theta: np.ndarray, out: np.ndarray) -> float:
        whitener = Whitener(*self.outputs.matrix(theta), *self.noise.matrix(theta))
        residual = self._residual(theta, len(whitener.t)) @ whitener.rotation
        P, moved = self.targets @ residual, self.scatter @ residual
        E = residual.T @ moved  # in the rotated outputs
        tau = whitener.t / self.num_frequencies
        values = 1 + self.s * tau
        weights = P / values
        logdet = float(np.log(values).sum()) + self.num_rows * whitener.logdet
        gain = float(np.vdot(weights * tau, P))
        self._back(whitener, weights, values, tau, P, E, moved, out)
        return 0.5 * (gain - logdet - np.trace(E) - self.num_rows * len(tau) * LOG_2_PI)

    def _residual(self, theta: np.ndarray, num_outputs: int) -> np.ndarray:
        """Return [−β; I] (b + p, p), which maps [h, Y] to Y − hβ."""
        eye = np.eye(num_outputs)
        return np.concatenate([-self.mean.coefficients(theta), eye]) if self.num_basis else eye

    def _back(self, whitener: Whitener, weights, values, tau, P, E, moved, out: np.ndarray) -> None:
        inner = weights.T @ weights
        inner.flat[:: len(tau) + 1] -= (self.s / values).sum(0)
        by_P = weights * tau
        whitener.backward(0.5 * inner / self.num_frequencies, by_P.T @ P - E, self.num_rows, out)
        if self.num_basis:
            by_residual = (self.targets.T @ by_P - moved)[: self.num_basis]
            self.mean.backward_coefficients(-by_residual @ whitener.rotation.T, out)


def solve_and_invert(C: np.ndarray, columns: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
    """Return C⁻¹ columns, C⁻¹ and log det C for a positive definite C (N, N), which may be overwritten, and columns (N, k).

    Only the symmetric part of C⁻¹ is right: contract it with symmetric matrices. Complexity: N³ + 2N²k operations.
    Raises `numpy.linalg.LinAlgError` if C is not positive definite to working precision.
    """
    uses_scipy = len(C) <= MAX_SCIPY_ROWS or torch.get_num_threads() == 1
    return _solve_with_scipy(C, columns) if uses_scipy else _solve_with_torch(C, columns)


def _solve_with_scipy(C: np.ndarray, columns: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
    chol, info = lapack.dpotrf(C.T, lower=1, clean=1, overwrite_a=1)  # C.T is C in the order of Fortran
    logdet = 2 * float(np.log(chol.diagonal()).sum()) if info == 0 else np.nan
    if not np.isfinite(logdet):
        raise np.linalg.LinAlgError("a covariance matrix is not positive definite")
    x = lapack.dpotrs(chol, columns, lower=1)[0]
    inverse = lapack.dpotri(chol, lower=1, overwrite_c=1)[0]
    inverse = inverse.T  # in the order of C; one of its triangles is zero
    inverse *= 2
    inverse.reshape(-1)[:: len(C) + 1] *= 0.5
    return x, inverse, logdet


def _solve_with_torch(C: np.ndarray, columns: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
    chol, info = torch.linalg.cholesky_ex(torch.from_numpy(C))
    logdet = 2 * float(chol.diagonal().log().sum()) if info.item() == 0 else np.nan
    if not np.isfinite(logdet):
        raise np.linalg.LinAlgError("a covariance matrix is not positive definite")
    x = torch.cholesky_solve(torch.from_numpy(np.ascontiguousarray(columns)), chol).numpy()
    return x, torch.cholesky_inverse(chol).mT.numpy(), logdet  # symmetric, and thus in the order of C
