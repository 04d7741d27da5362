"""Hyperparameters of a Gaussian process with one output: mode of their log posterior, and weighted draws around it.

With u the logarithms of the hyperparameters, u* the mode of log π(u) and H its negative Hessian in units of the prior, draws are

    u_s = u* + R z_s,   R Rᵀ = H⁻¹ with curvatures of at least ¼,   z_s normal scores of Sobol points,

with weights π(u_s) / q(u_s), truncated at S^(−½) times their sum. If log π is far from quadratic, so that the draws lie much below
the mode, the mode is used alone. The Pareto shape k̂ of the weights is reported but does not decide this: of 32 draws it is fitted to
the largest 6 and shrunk to ½ like 10 more, so that it says little about one fit. Everything is computed by the closed forms of
`numpy_density`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING

import numpy as np
import torch
from gpytorch.kernels import Kernel
from scipy.special import logsumexp, ndtri
from scipy.stats import qmc

from ovkgp.exceptions import FactorizationError
from ovkgp.inference.algebra.pareto import pareto_shape
from ovkgp.inference.model.observations import Observations
from ovkgp.inference.model.parameter_vector import hyperparameters
from ovkgp.inference.model.row_sample import NUM_FOLDS, draw_folds
from ovkgp.inference.stacking.output_kernel import OutputDensity, OutputParameters
from ovkgp.inference.training.lbfgs import ObjectiveEvaluator
from ovkgp.inference.training.newton import Refinement, refine_mode
from ovkgp.inference.training.numpy_density import SingleOutputEvidence
from ovkgp.inference.training.numpy_outputs import KnownMean

if TYPE_CHECKING:
    from ovkgp.inference.stacking.candidates import IndependentCandidate

MAX_ITERATIONS = 150  # maximum number of evaluations of a search
SEARCH_GAIN, FINAL_GAIN = 1e-3, 0.02
"""Gain of log π, in nats, below which a search ends, and one on all rows that began at the mode for a subset."""
MAX_GAIN_PER_ROW = 5e-3  # remaining gain per row of a search that counts as converged
FINAL_EVALUATIONS = 10  # maximum number of evaluations of that search
MAX_SEARCH_ROWS = 300  # with more rows, the mode for a subset is the initial point
MIN_SEARCH_ROWS = 200  # smallest number of rows of a subset
MAX_RUNS, MAX_RUNS_ROWS = 2, 150  # up to this number of rows, searches begin at this number of lengthscales
MANY_HYPERPARAMETERS = 10  # with more, one search is added
MAX_RUN_GAP = 30.0  # unless they are that much worse than the best
HESSIAN_STEP = 5e-3  # step of the differences of the gradient
MIN_CURVATURE = 0.25  # smallest curvature of log π, in units of the prior
MAX_DROP_FACTOR = 4.0  # median of log π(u*) − log π(u_s) over its expected value beyond which the mode is used alone
MAX_DRAWS, MAX_DRAWS_ROWS = 32, 150  # number of draws up to this number of rows; half of it beyond
MIN_DRAWS = 8  # with fewer draws the mode is used alone
MAX_LAPLACE_SIZE = 12_000  # rows times hyperparameters up to which draws are made
MAX_FACTOR_BYTES = 32e6  # memory for the Cholesky factors of the draws of one output


@dataclass(frozen=True)
class Draws:
    """S draws of the hyperparameters of one output: θ (S, k), their weights (S,), and the mode u* (k,) with its search.

    `is_rough` says that the mode replaces draws that lie far below it, and `khat` is the Pareto shape of the weights before truncation,
    None with fewer than 25 draws. `factors` (S, n, n) are the Cholesky factors of K + noise, if they were computed on the way, and `metric`
    (k, k) is the approximation of the negative Hessian at the end of the search.
    """

    thetas: np.ndarray
    weights: np.ndarray
    mode: np.ndarray
    log_posterior: float = math.nan
    converged: bool = True
    interrupted: bool = False
    iterations: int = 0
    evaluations: int = 0
    gradient_norm: float = 0.0
    active_bounds: tuple[tuple[str, int, str], ...] = ()
    is_rough: bool = False
    khat: float | None = None
    factors: np.ndarray | None = field(default=None, repr=False, compare=False)
    metric: np.ndarray | None = field(default=None, repr=False, compare=False)


@dataclass(frozen=True)
class SubsetMode:
    """Mode for one output on a subset of the rows (m,): the problem, values and known noise (m,) of these rows."""

    rows: np.ndarray
    problem: OutputProblem
    y: np.ndarray
    known: np.ndarray | None
    draws: Draws


class OutputProblem:
    """Outputs that are observed at the same rows X (n, d), each an independent Gaussian process with the same kind of kernel.

    `known` says that the noise variances of all entries are given.
    """

    def __init__(self, candidate: IndependentCandidate, X: torch.Tensor, is_noise_known: bool = False):
        self.candidate, self.X, self.subset = candidate, X.numpy(), None
        self.parameters = OutputParameters(candidate, self.X, is_noise_known)
        self.kernel, self.noise = self.parameters.kernel, self.parameters.noise
        if len(X) > MAX_SEARCH_ROWS:
            rows = np.random.default_rng(0).permutation(len(X))[: max(MIN_SEARCH_ROWS, len(X) // 4)]
            self.subset = rows, OutputProblem(candidate, X[rows], is_noise_known)

    @cached_property
    def points(self) -> np.ndarray:
        """Initial points (L, S, k), S for each of L lengthscales."""
        return self.parameters.initial_points(self.X)

    @cached_property
    def folds(self) -> list[tuple[tuple[np.ndarray, np.ndarray], OutputProblem]]:
        """Indicators of the rows in the other folds and in each fold, and the problem on the former; the same for all outputs."""
        fold, found = draw_folds(len(self.X)), []
        for index in range(NUM_FOLDS):
            kept = fold != index
            part = OutputProblem(self.candidate, torch.from_numpy(self.X[kept]), self.noise is None)
            found.append(((kept, ~kept), part))
        return found

    def density(self, y: np.ndarray, known: np.ndarray | None) -> OutputDensity:
        """Return log π(u) of one output y (n,), with known noise variances (n,) or None."""
        data = Observations(torch.from_numpy(self.X), _column(y), None if known is None else _column(known))
        evidence = SingleOutputEvidence(self.kernel, self.noise, KnownMean(np.zeros((len(y), 1))), data)
        return OutputDensity(self.parameters, evidence)

    def draw(
        self,
        y: np.ndarray,
        known: np.ndarray | None = None,
        *,
        average: bool = True,
        restarts: int = 1,
        first: SubsetMode | None = None,
    ) -> Draws:
        """Find the mode for one output and, unless the problem is large or `average` is False, draw around it.

        At least `restarts` optimization runs begin at the best lengthscales of the grid. `first` is the result of `search_subset`,
        which is computed if it is None. Ctrl-C keeps the best point so far.
        """
        density = self.density(y, known)
        evaluator = ObjectiveEvaluator(self.parameters, density)
        try:
            found = self._maximize(density, evaluator, restarts, first)
            return self._result(density, evaluator, self.num_draws() if average else 0, **found)
        except KeyboardInterrupt:
            if evaluator.best is None:
                raise
            return self._result(density, evaluator, 0, converged=False, interrupted=True)

    def search_subset(self, y: np.ndarray, known: np.ndarray | None = None, restarts: int = 1) -> SubsetMode:
        """Find the mode for the subset of the rows; only for problems that have one."""
        rows, part = self.subset
        own_y, own_known = y[rows], None if known is None else known[rows]
        draws = part.draw(own_y, own_known, average=False, restarts=restarts)
        return SubsetMode(rows, part, own_y, own_known, draws)

    def draw_from(
        self, mode: np.ndarray, metric: np.ndarray, y: np.ndarray, known: np.ndarray | None, max_evaluations: int
    ) -> Draws:
        """Find the mode for one output by at most `max_evaluations` from a point close to it, without draws.

        `metric` (k, k) approximates the negative Hessian of log π.
        """
        density = self.density(y, known)
        evaluator = ObjectiveEvaluator(self.parameters, density)
        point = evaluator.evaluate(np.clip(mode, *self.parameters.bounds.T))
        if point is None:
            return self.draw(y, known, average=False)
        found = refine_mode(evaluator, point, metric, max_evaluations, FINAL_GAIN)
        return self._result(density, evaluator, 0, **self._outcome([found]))

    def _result(self, density: OutputDensity, evaluator: ObjectiveEvaluator, num_draws: int, **found) -> Draws:
        mode, value = evaluator.best.x, evaluator.best.value
        points, weights, factors = mode[None], np.ones(1), None
        if num_draws:
            points, weights, factors, khat = self._laplace_draws(density, mode, num_draws)
            found |= {"is_rough": len(points) == 1, "khat": khat}
        return Draws(
            *(self.parameters.theta(points), weights, mode, value),
            evaluations=evaluator.evaluations,
            gradient_norm=evaluator.slope(evaluator.best) / len(self.X),
            active_bounds=self.parameters.active_bounds(mode),
            factors=factors,
            **found,
        )

    def kernel_at(self, theta: np.ndarray) -> Kernel:
        """Return the kernel at θ (k,)."""
        kernel = self.candidate.make_kernel(self.X.shape[1])
        self.set_kernel(kernel, theta)
        return kernel

    @torch.no_grad()
    def set_kernel(self, kernel: Kernel, theta: np.ndarray) -> None:
        """Set a kernel of the candidate to θ (k,)."""
        for name, raw, constraint in kernel.named_parameters_and_constraints():
            if raw.requires_grad:
                values = torch.from_numpy(theta[self.parameters.spans[f"kernel.{name}"]])
                raw.copy_(constraint.inverse_transform(values.reshape(raw.shape)))

    def num_draws(self) -> int:
        """Return the number of draws; 0 if the mode is used alone."""
        n = len(self.X)
        if n * len(self.parameters) > MAX_LAPLACE_SIZE:
            return 0
        wanted = MAX_DRAWS if n <= MAX_DRAWS_ROWS else MAX_DRAWS // 2
        affordable = 2 ** int(math.log2(max(MAX_FACTOR_BYTES / (8 * n * n), 1)))
        return min(wanted, affordable) if affordable >= MIN_DRAWS else 0

    def _maximize(
        self, density: OutputDensity, evaluator: ObjectiveEvaluator, restarts: int, first: SubsetMode | None = None
    ) -> dict:
        """Refine the mode for a subset of the rows; for few rows, search from the best initial points."""
        if self.subset is None:
            return self._search(density, evaluator, restarts)
        if first is None:
            y, known = density.evidence.y[:, 0], density.evidence.known
            first = self.search_subset(y, known, restarts)
        mode = first.draws.mode
        point = evaluator.evaluate(np.clip(mode, *self.parameters.bounds.T))
        if point is None:
            return self._search(density, evaluator, restarts)
        hessian = difference_hessian(first.problem.density(first.y, first.known), mode)
        metric = self._scale_hessian(hessian, len(self.X) / len(first.rows))
        found = refine_mode(evaluator, point, metric, FINAL_EVALUATIONS, FINAL_GAIN)
        return self._outcome([found]) | ({} if first.draws.converged else {"converged": False})

    def _search(self, density: OutputDensity, evaluator: ObjectiveEvaluator, restarts: int) -> dict:
        """Search from the best initial points with different lengthscales: `restarts`, and more for few rows."""
        values = density.values(self.points.reshape(-1, len(self.parameters))).reshape(self.points.shape[:2])
        best = values.max(1)
        padded = np.pad(best, 1, constant_values=-np.inf)
        is_peak = (best >= padded[:-2]) & (best >= padded[2:])  # each may be in the basin of another mode
        order = np.lexsort((-best, ~is_peak))
        num_runs = MAX_RUNS + (len(self.parameters) > MANY_HYPERPARAMETERS)
        few = [i for i in order[:num_runs] if best[i] > best[order[0]] - MAX_RUN_GAP]
        runs, metric = [], self._prior_metric()
        for i in order[: max(restarts, len(few) if len(self.X) <= MAX_RUNS_ROWS else 1)]:
            if (point := evaluator.evaluate(self.points[i, values[i].argmax()])) is not None:
                known = max(runs, key=lambda run: run.best.value, default=None)
                runs.append(refine_mode(evaluator, point, metric, MAX_ITERATIONS, SEARCH_GAIN, known))
        if not runs:
            theta = self.parameters.theta(self.points[order[0], values[order[0]].argmax()])
            found = hyperparameters(self.kernel_at(theta))
            if self.noise is not None:
                found["noise"] = torch.from_numpy(self.noise.variances(theta)[0])
            raise FactorizationError(
                "The covariance matrix is not positive definite at any initial value of the hyperparameters. Check the data for duplicates and extreme scales.",
                found,
            )
        return self._outcome(runs)

    def _outcome(self, runs: list[Refinement]) -> dict:
        """Say whether the best of some searches converged, count their steps, and return its metric."""
        best = max(runs, key=lambda run: run.best.value)
        is_converged = best.gain <= MAX_GAIN_PER_ROW * len(self.X)
        return {"converged": is_converged, "iterations": sum(run.steps for run in runs), "metric": best.metric}

    def _prior_metric(self) -> np.ndarray:
        """Return the negative Hessian (k, k) of the log prior."""
        return np.diag(self.parameters.scale**-2)

    def _scale_hessian(self, hessian: np.ndarray, ratio: float) -> np.ndarray:
        """Return the negative Hessian (k, k) for `ratio` times as many rows, with curvatures of at least ¼ in units of the prior."""
        scales = self.parameters.scale
        values, vectors = np.linalg.eigh(ratio * hessian * scales * scales[:, None] + (1 - ratio) * np.eye(len(scales)))
        return (vectors * np.maximum(values, MIN_CURVATURE)) @ vectors.T / (scales * scales[:, None])

    def _laplace_draws(
        self, density: OutputDensity, mode: np.ndarray, num_draws: int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray | None, float | None]:
        """Return draws around the mode, their weights, the Cholesky factors of their covariances, and k̂."""
        hessian = difference_hessian(density, mode)
        bounds, scales = self.parameters.bounds, self.parameters.scale
        points, scores = draw_around_mode(mode, hessian, scales, bounds, num_draws)
        factors = np.empty((num_draws, len(self.X), len(self.X)))
        values = density.values(points, factors)
        khat = pareto_shape(values + 0.5 * np.square(scores).sum(1))
        khat = None if np.isnan(khat) else khat
        weights = importance_weights(values, scores, density.value(mode))
        if weights is None:
            return mode[None], np.ones(1), None, khat
        is_finite = np.isfinite(values)
        if not is_finite.all():
            points, weights, factors = points[is_finite], weights[is_finite], factors[is_finite]
        return points, weights, factors, khat


def draw_around_mode(
    mode: np.ndarray, hessian: np.ndarray, scales: np.ndarray, bounds: np.ndarray, num_draws: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return draws (S, k) around the mode u* (k,) and their normal scores (S, k), from the negative Hessian (k, k) of log π.

    Curvatures are at least `MIN_CURVATURE` in units of `scales` (k,), the prior standard deviations, and draws within `bounds` (k, 2).
    """
    values, vectors = np.linalg.eigh(hessian * scales * scales[:, None])
    root = scales[:, None] * vectors / np.sqrt(np.maximum(values, MIN_CURVATURE))
    scores = _normal_scores(len(mode), num_draws)
    return np.clip(mode + scores @ root.T, *bounds.T), scores


@lru_cache(maxsize=64)
def _normal_scores(num_dims: int, num_draws: int) -> np.ndarray:
    """Return the normal scores (S, k) of scrambled Sobol points, always the same ones."""
    scores = ndtri(np.clip(qmc.Sobol(num_dims, seed=0).random(num_draws), 1e-6, 1 - 1e-6))
    scores.flags.writeable = False
    return scores


def importance_weights(values: np.ndarray, scores: np.ndarray, at_mode: float) -> np.ndarray | None:
    """Return the truncated weights (S,) of draws with log π `values` and normal scores (S, k), 0 where log π is −∞.

    None if the draws are far below the mode.
    """
    is_finite = np.isfinite(values)
    # log π falls by half a χ² variable with k degrees of freedom if it is quadratic
    drop = at_mode - np.median(values)
    if drop > MAX_DROP_FACTOR * max(scores.shape[1] / 2, 1.0) or not is_finite.any():
        return None
    log_weights = values + 0.5 * np.square(scores).sum(1)
    log_weights = np.minimum(log_weights - logsumexp(log_weights), -0.5 * np.log(is_finite.sum()))
    return np.exp(log_weights - logsumexp(log_weights))


def _column(values: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(values)).unsqueeze(-1)


def difference_hessian(density: Callable[[np.ndarray], tuple[float, np.ndarray]], u: np.ndarray) -> np.ndarray:
    """Return the negative Hessian (k, k) of a log density by one-sided differences of its gradient."""
    _, here = density(u)
    steps = HESSIAN_STEP * np.eye(len(u))
    columns = np.stack([here - density(u + step)[1] for step in steps]) / HESSIAN_STEP
    return (columns + columns.T) / 2
