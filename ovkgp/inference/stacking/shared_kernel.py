"""One kernel of the inputs for all grid points of curves, each with its own variance (parallel partial emulation).

With M = K_X + g I the curves Y (n, p) are matrix-normal, Cov(y_ij, y_kl) = M_ik Σ_jl, with Σ = Yᵀ M⁻¹ Y / n. The hyperparameters of
K_X and g maximize the sum over points of their evidences, with the variance of each point at its maximum,

    −½ p log det M − ½ n Σ_j log(y_jᵀ M⁻¹ y_j),

times the ratio of the effective number of independent points to p. Nothing is truncated, and one factorization serves all points:
O(n³ + n²p). See Gu and Berger (2016).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from scipy.linalg import cholesky, solve_triangular
from torch import Tensor

from ovkgp.inference.algebra.dense import gaussian_log_density, participation_ratio, psd_root
from ovkgp.inference.model.fit_report import FitReport
from ovkgp.inference.posteriors.curves import ScalarFeatures
from ovkgp.inference.posteriors.posterior import draw_normal, spawn_seeds
from ovkgp.inference.stacking.candidates import IndependentCandidate
from ovkgp.inference.stacking.curve_candidates import CurveData
from ovkgp.inference.stacking.curve_components import MIN_RELATIVE_WHITE
from ovkgp.inference.stacking.domain_kriging import InterpolatedCurves
from ovkgp.inference.stacking.output_draws import Draws, OutputProblem
from ovkgp.inference.stacking.output_kernel import OutputDensity
from ovkgp.inference.training.numpy_density import solve_and_invert

MAX_TRAINING_CURVES, MAX_TRAINING_POINTS = 400, 300  # hyperparameters are trained on random ones


class SharedEvidence:
    """τ times the profiled evidence of outputs Y (n, p) with one covariance K + g I, and its gradient. O(n³ + n²p)."""

    def __init__(self, kernel, noise, Y: np.ndarray, weight: float):
        self.kernel, self.noise, self.Y, self.weight = kernel, noise, Y, weight

    def covariance(self, theta: np.ndarray):
        """Return K + g I (n, n), and how to propagate derivatives to K and g."""
        K, backward = self.kernel.matrix(theta)
        C, noise = np.array(K, order="C"), self.noise.variances(theta)
        C.reshape(-1)[:: len(C) + 1] += noise[0][0]
        return C, backward, noise[1]

    def __call__(self, theta: np.ndarray, out: np.ndarray) -> float:
        C, backward, noise_backward = self.covariance(theta)
        n, p = self.Y.shape
        alpha, G, logdet = solve_and_invert(C, self.Y)
        quadratic = np.einsum("ij,ij->j", self.Y, alpha)
        value = -0.5 * (p * logdet + n * np.log(quadratic / n).sum())
        G *= -0.5 * p * self.weight
        G += (0.5 * n * self.weight * alpha / quadratic) @ alpha.T
        backward(G, out)
        noise_backward(G.reshape(-1)[:: n + 1].sum(keepdims=True), out)
        return self.weight * value

    def value(self, theta: np.ndarray, out: np.ndarray | None = None) -> float:
        """Return the value without its gradient; the Cholesky factor of K + g I is written to `out` (n, n), if given."""
        chol = cholesky(self.covariance(theta)[0], lower=True)
        if out is not None:
            out[...] = chol
        quadratic = np.square(solve_triangular(chol, self.Y, lower=True)).sum(0)
        n, p = self.Y.shape
        logdet = 2 * np.log(chol.diagonal()).sum()
        return -0.5 * self.weight * float(p * logdet + n * np.log(quadratic / n).sum())


class SharedProblem(OutputProblem):
    """Search for the mode of the hyperparameters of one kernel for all outputs Y (n, p)."""

    def __init__(self, candidate: IndependentCandidate, X: Tensor):
        super().__init__(candidate, X)
        self.subset = None

    def density(self, y: np.ndarray, known: np.ndarray | None) -> OutputDensity:
        """Return log π(u) of all outputs y (n, p)."""
        evidence = SharedEvidence(
            self.kernel, self.noise, y, effective_outputs(y) / max(y.shape[1], 1)
        )  # 0 if all curves are equal
        return OutputDensity(self.parameters, evidence)


def effective_outputs(Y: np.ndarray) -> float:
    """Return (Σ λ)² / Σ λ² of the eigenvalues λ of YᵀY for columns of unit size, between 1 and p."""
    return participation_ratio(Y / np.maximum(np.linalg.norm(Y, axis=0), 1e-300))


@dataclass(frozen=True)
class SharedState:
    """Candidate, raw draws (its mode) and imputed values (k,) from which a `SharedPosterior` is computed again."""

    candidate: IndependentCandidate
    draws: Draws
    imputed: np.ndarray | None = None


class SharedPosterior(InterpolatedCurves):
    """Posterior of curves with one kernel of the inputs for all points; a component of a `CurveMixture`.

    Between the points of the grid, f and the deviations of curves have the error variances of their interpolation by kriging.
    """

    def __init__(self, state: SharedState, data: CurveData):
        self.state, self.tasks, self.num_channels = state, data.tasks, data.num_channels
        problem = SharedProblem(state.candidate, data.X)
        self.problem, self.kernel, self.theta = problem, problem.kernel, np.asarray(state.draws.thetas[0])
        self.nugget = float(problem.noise.variances(self.theta)[0][0])
        self.curves = Y = data.Y.numpy().copy()
        if data.is_complete is False:
            Y[np.isnan(Y)] = state.imputed
        C = np.array(self.kernel.matrix(self.theta)[0])
        C.flat[:: len(C) + 1] += self.nugget
        self.chol = cholesky(C, lower=True)
        half = solve_triangular(self.chol, Y, lower=True)
        self.alpha = solve_triangular(self.chol.T, half)  # (n, p)
        self.root = half / math.sqrt(len(Y))  # rows of a root of Σ, (n, p)
        quadratic = np.maximum(np.square(self.root).sum(0), 1e-300)
        logdet = 2 * np.log(self.chol.diagonal()).sum()
        n, p = Y.shape
        self.log_evidence = float(gaussian_log_density(n * p, p * logdet + n * np.log(quadratic).sum(), n * p))
        self.white = MIN_RELATIVE_WHITE * float(quadratic.mean())

    def held_out(self, Y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return log densities (n, p) of the entries given all other curves, and their standardized residuals."""
        inverse = solve_triangular(self.chol, np.eye(len(self.chol)), lower=True)
        diagonal = np.square(inverse).sum(0)[:, None]
        variance = np.square(self.root).sum(0) / diagonal
        scores = self.alpha / diagonal / np.sqrt(np.maximum(variance, 1e-300))
        return gaussian_log_density(scores**2, np.log(np.maximum(variance, 1e-300))), scores

    def _inputs(self, X: Tensor) -> tuple[np.ndarray, np.ndarray]:
        """Return k(X, X_train) (m, n) and the latent variance (m,) relative to Σ."""
        points, theta = X.numpy(), self.theta[None]
        cross = self.kernel.cross(theta, points)
        cross = cross[0]
        prior = np.broadcast_to(self.kernel.variances(theta, points), (1, len(points)))[0]
        explained = np.square(solve_triangular(self.chol, cross.T, lower=True)).sum(0)
        return cross, np.maximum(prior - explained, 0.0)

    def fitted_curves(self) -> np.ndarray:
        """Return the means of f (n, g·q) at the training inputs."""
        return self.curves - self.nugget * self.alpha

    @torch.no_grad()
    def moments(self, X: Tensor, tasks: Tensor, form: str) -> tuple[Tensor, Tensor | None]:
        """Compute mean (m, M·q) and covariance of f: "none", "diag" or "output"."""
        cross, variance = self._inputs(X)
        mean = torch.from_numpy(cross) @ self.at(self.alpha, tasks).mT
        if form == "none":
            return mean, None
        root, variance = self.at(self.root, tasks), torch.from_numpy(variance)
        if form == "diag":
            variances = variance.unsqueeze(-1) * root.square().sum(1)
            return mean, variances + self.error(tasks, 0, "variances")
        covariance = variance[:, None, None] * (root @ root.mT)
        return mean, covariance + self.error(tasks, 0, "covariance")

    def deviation_at(self, tasks: Tensor) -> Tensor:
        """Return the covariance g Σ (M·q, M·q) of the deviations of a new curve."""
        root = self.at(self.root, tasks)
        covariance = self.nugget * (root @ root.mT)
        return covariance + self.error(tasks, 1, "covariance")

    def deviation_variances_at(self, tasks: Tensor) -> Tensor:
        """Return the diagonal (M·q,) of `deviation_at`."""
        variances = self.nugget * self.at(self.root, tasks).square().sum(1)
        return variances + self.error(tasks, 1, "variances")

    def white_at(self, tasks: Tensor) -> Tensor:
        """Return the white variances (M·q,) of a new curve, of the order of rounding errors."""
        return torch.full((len(tasks) * self.num_channels,), self.white, dtype=torch.float64)

    def sample(self, X: Tensor, tasks: Tensor, k: int, *, random_state=None) -> Tensor:
        """Draw k joint samples (k, m, M·q) of f. O(m³ + k m n (m + M))."""
        points, theta = X.numpy(), self.theta[None]
        cross = self._inputs(X)[0]
        half = solve_triangular(self.chol, cross.T, lower=True)
        covariance = torch.from_numpy(self.kernel.cross(theta, points, points)[0] - half.T @ half)
        over_inputs = psd_root(covariance)
        generator = np.random.default_rng(random_state)
        scores = torch.from_numpy(generator.standard_normal((k, len(points), len(self.root))))
        mean = torch.from_numpy(cross) @ self.at(self.alpha, tasks).mT
        found = mean + over_inputs @ scores @ self.at(self.root, tasks).mT
        return found + self.draw_errors(X, tasks, k, random_state)

    @torch.no_grad()
    def sample_functions(self, k: int, *, random_state=None):
        """Draw k random functions, as `CurvePosterior.sample_functions` does: one process for each row of a root of Σ.

        They are without the error of interpolation between the points of the grid.
        """
        seeds, n = spawn_seeds(random_state, 3), len(self.root)
        kernel = self.problem.kernel_at(self.theta)
        features = ScalarFeatures(kernel, self.problem.X.shape[1], seeds[0])
        X_train = torch.from_numpy(self.problem.X)
        at_data = features(X_train)
        weights = draw_normal((k, at_data.shape[1], n), seeds[1], X_train)
        noise = self.nugget**0.5 * draw_normal((k, len(X_train), n), seeds[2], X_train)
        chol = torch.from_numpy(self.chol)
        coefficients = torch.cholesky_solve(at_data @ weights + noise, chol)  # (k, n, n)

        def evaluate(X: Tensor, tasks: Tensor, index: Tensor) -> Tensor:
            cross = torch.from_numpy(self._inputs(X)[0])
            paths = features(X) @ weights[index] - cross @ coefficients[index]
            mean = cross @ self.at(self.alpha, tasks).mT
            return mean + paths @ self.at(self.root, tasks).mT

        return evaluate


@dataclass(frozen=True)
class FittedShared:
    """A trained `SharedPosterior`, log densities (n, g·q) of held-out curves, and the report."""

    state: SharedState
    log_density: np.ndarray
    report: FitReport


def fit_shared(data: CurveData, candidate: IndependentCandidate, missing: Tensor | None = None) -> FittedShared:
    """Train one kernel for all points of complete standardized curves, on at most 400 curves and 300 points.

    Entries `missing` (n, g·q) were imputed, and are stored.
    """
    rows = torch.from_numpy(np.sort(np.random.default_rng(0).permutation(len(data.X))[:MAX_TRAINING_CURVES]))
    problem = SharedProblem(candidate, data.X[rows])
    Y = data.Y[rows].numpy()
    used = np.flatnonzero(np.square(Y).sum(0) > 1e-20 * max(np.square(Y).sum(0).max(), 1e-300))
    used = np.sort(np.random.default_rng(0).permutation(used)[:MAX_TRAINING_POINTS])
    draws = problem.draw(np.ascontiguousarray(Y[:, used]), average=False)
    imputed = None if missing is None or not bool(missing.any()) else data.Y[missing].numpy()
    state = SharedState(candidate, draws, imputed)
    log_density, _ = SharedPosterior(state, data).held_out(data.Y.numpy())
    messages = ("converged",) if draws.converged else ("stopped without converging",)
    report = FitReport(
        objective=draws.log_posterior,
        converged=draws.converged,
        messages=messages,
        iterations=draws.iterations,
        evaluations=draws.evaluations,
        interrupted=draws.interrupted,
    )
    return FittedShared(state, log_density, report)
