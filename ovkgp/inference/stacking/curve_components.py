"""Curves in the basis of their principal components: one Gaussian process per score, and the truncation error in the variance.

    y_i(θ) = ȳ(θ) + Σ_l φ_l(θ) s_l(x_i) + r_i(θ) + ε,

where ȳ is the mean of the curves at each point of the grid, s_l has its own mixture of Gaussian processes with noise (`fit_stack`), and the residual r_i of the truncated components has the
covariance of the training residuals, scaled at each point to the error of curves that were held out of the components.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ovkgp.inference.algebra.dense import gaussian_log_density
from ovkgp.inference.model.fit_report import FitReport
from ovkgp.inference.model.observations import Observations
from ovkgp.inference.model.row_sample import draw_folds
from ovkgp.inference.stacking.candidates import default_candidates
from ovkgp.inference.stacking.curve_candidates import CurveData
from ovkgp.inference.stacking.domain_kriging import InterpolatedCurves
from ovkgp.inference.stacking.stack import StackPosterior, fit_stack

EXPLAINED_VARIANCE, MAX_COMPONENTS = 0.995, 12
MAX_COMPONENTS_MANY, MANY_CURVES = 4, 1000  # fewer components of many curves, whose processes take long to train
MAX_FILL_ITERATIONS = 50  # of components and missing values
MIN_RELATIVE_WHITE = 1e-8  # white variance relative to the variance of the curves


@dataclass(frozen=True)
class ComponentState:
    """All that a file needs of a `ComponentPosterior`, besides the curves."""

    center: np.ndarray
    components: np.ndarray
    targets: np.ndarray
    scale: np.ndarray
    residual: np.ndarray
    white: float
    candidates: list
    states: list
    weights: np.ndarray
    correlation: np.ndarray


class ComponentPosterior(InterpolatedCurves):
    """Posterior of curves in the basis of principal components (d, g·q); a component of a `CurveMixture`.

    Between the points of the grid, f and the deviations of curves have the error variances of their interpolation by kriging.
    """

    def __init__(self, state: ComponentState, data: CurveData, stack: StackPosterior | None = None):
        self.state, self.tasks, self.num_channels = state, data.tasks, data.num_channels
        self.X, missing = data.X, torch.isnan(data.Y).numpy()
        expanded = state.center + (state.targets * state.scale) @ state.components
        self.curves = np.where(missing, expanded, data.Y.numpy())
        if stack is None:
            scores = Observations(data.X, torch.as_tensor(state.targets))
            stack = StackPosterior.of_states(state.candidates, state.states, state.weights, scores, state.correlation)
        self.stack = stack

    @property
    def log_evidence(self) -> float:
        """Mean log evidence of the scores."""
        return self.stack.log_evidence

    def fitted_curves(self) -> np.ndarray:
        """Return the means of f (n, g·q) at the training inputs."""
        mean = self.stack.predict(self.X, "diag", noise=False).mean.numpy()
        return self.state.center + (mean * self.state.scale) @ self.state.components

    def _center_at(self, tasks: Tensor) -> Tensor:
        return self.at(self.state.center[None], tasks)[:, 0]

    @torch.no_grad()
    def moments(self, X: Tensor, tasks: Tensor, form: str) -> tuple[Tensor, Tensor | None]:
        """Compute mean (m, M·q) and covariance of ȳ + Σ_l φ_l s_l: "none", "diag" or "output"."""
        basis, scale = self.at(self.state.components, tasks), torch.from_numpy(self.state.scale)
        found = self.stack.predict(X, "diag", noise=False)
        mean = self._center_at(tasks) + (found.mean * scale) @ basis.mT
        if form == "none":
            return mean, None
        variances = (found.std * scale).square()
        if form == "diag":
            variances = variances @ basis.square().mT
            return mean, variances + self.error(tasks, 0, "variances")
        covariance = (basis * variances.unsqueeze(1)) @ basis.mT
        return mean, covariance + self.error(tasks, 0, "covariance")

    def _deviation_root(self, tasks: Tensor) -> Tensor:
        noise = self.stack.noise.diagonal().sqrt() * torch.from_numpy(self.state.scale)
        basis = self.at(self.state.components, tasks) * noise
        return torch.cat([basis, self.at(self.state.residual, tasks)], 1)

    def deviation_at(self, tasks: Tensor) -> Tensor:
        """Return the covariance (M·q, M·q) of the deviations of a new curve: noise of the scores and truncation error."""
        root = self._deviation_root(tasks)
        covariance = root @ root.mT
        return covariance + self.error(tasks, 1, "covariance")

    def deviation_variances_at(self, tasks: Tensor) -> Tensor:
        """Return the diagonal (M·q,) of `deviation_at`."""
        variances = self._deviation_root(tasks).square().sum(1)
        return variances + self.error(tasks, 1, "variances")

    def white_at(self, tasks: Tensor) -> Tensor:
        """Return the white variances (M·q,) of a new curve."""
        return torch.full((len(tasks) * self.num_channels,), self.state.white, dtype=torch.float64)

    def sample(self, X: Tensor, tasks: Tensor, k: int, *, random_state=None) -> Tensor:
        """Draw k joint samples (k, m, M·q) of ȳ + Σ_l φ_l s_l."""
        scores = self.stack.sample(X, k, noise=False, random_state=random_state)
        found = (scores * torch.from_numpy(self.state.scale)) @ self.at(self.state.components, tasks).mT
        return self._center_at(tasks) + found + self.draw_errors(X, tasks, k, random_state)

    def sample_functions(self, k: int, *, random_state=None):
        """Draw k random functions, as `CurvePosterior.sample_functions` does, without the error of interpolation."""
        draws, scale = self.stack.sample_functions(k, random_state=random_state), torch.from_numpy(self.state.scale)

        def evaluate(X: Tensor, tasks: Tensor, index: Tensor) -> Tensor:
            scores = draws._evaluate(X, index)
            return self._center_at(tasks) + (scores * scale) @ self.at(self.state.components, tasks).mT

        return evaluate


@dataclass(frozen=True)
class FittedComponents:
    """A trained `ComponentPosterior`, log densities (n, g·q) of held-out curves with their residuals, and the report."""

    posterior: ComponentPosterior
    log_density: np.ndarray
    scores: np.ndarray
    report: FitReport


def fit_components(
    data: CurveData, num_components: int | None = None, *, average: bool = True, verbose: int = 0
) -> FittedComponents:
    """Compute principal components of complete standardized curves and train a mixture of processes for each score."""
    center = data.Y.mean(0).numpy()
    Y = data.Y.numpy() - center
    _, s, Vt = np.linalg.svd(Y, full_matrices=False)
    d = _count_components(s, num_components, MAX_COMPONENTS if len(Y) <= MANY_CURVES else MAX_COMPONENTS_MANY)
    components = Vt[:d]
    scores = Y @ components.T
    scale = np.maximum(np.sqrt(np.square(scores).mean(0)), 1e-12 * max(s[0], 1e-300))
    residual, white = _truncation_error(Y, s, Vt, d)
    standard = Observations(data.X, torch.from_numpy(scores / scale))
    fitted = fit_stack(default_candidates(), standard, average=average, verbose=verbose)
    stack = fitted.posterior
    state = ComponentState(
        center,
        components,
        scores / scale,
        scale,
        residual,
        white,
        stack.candidates,
        stack.states,
        stack.weights,
        stack.correlation,
    )
    posterior = ComponentPosterior(state, data, stack)
    mean, std, _ = stack.leave_groups_out(torch.arange(len(Y)))
    predicted = (mean.numpy() * scale) @ components
    variance = np.square(std.numpy() * scale) @ components**2 + np.square(residual).sum(0) + white
    standardized = (Y - predicted) / np.sqrt(variance)
    log_density = gaussian_log_density(standardized**2, np.log(variance))
    return FittedComponents(posterior, log_density, standardized, fitted.gp.fit_report_)


def _count_components(s: np.ndarray, num_components: int | None, largest: int) -> int:
    """Return the given number of components, or the smallest that explains 99.5 % of the variance, up to a largest one."""
    rank = max(_count_rank(s), 1)
    if num_components is not None:
        return min(num_components, rank)
    fraction = np.cumsum(s**2) / max((s**2).sum(), 1e-300)
    return min(int(np.searchsorted(fraction, EXPLAINED_VARIANCE)) + 1, largest, rank)


def _count_rank(s: np.ndarray) -> int:
    return int((s > 1e-10 * s[0]).sum())


def fill_gaps(Y: np.ndarray) -> np.ndarray:
    """Fill in missing values (n, p) by a probabilistic principal-component model of the curves, with its mean.

    Components are those of the filled curves, and scores their expectations given the observed values of a curve; both are iterated. O(n² p)
    per iteration.
    """
    missing = np.isnan(Y)
    center = np.nan_to_num(np.nanmean(np.where(missing.all(0), 0.0, Y), 0))
    filled = np.where(missing, 0.0, Y - center)
    rows = np.flatnonzero(missing.any(1))
    for _ in range(MAX_FILL_ITERATIONS):
        _, s, Vt = np.linalg.svd(filled, full_matrices=False)
        d = _count_components(s, None, MAX_COMPONENTS)
        white = max(np.square(s[d:]).sum() / filled.size, 1e-10 * np.square(s).sum() / filled.size, 1e-300)
        prior, change = white * len(Y) / np.maximum(np.square(s[:d]), 1e-300), 0.0
        for i in rows:
            basis = Vt[:d, ~missing[i]]
            scores = np.linalg.solve(basis @ basis.T + np.diag(prior), basis @ filled[i, ~missing[i]])
            found = scores @ Vt[:d, missing[i]]
            change = max(change, float(np.abs(found - filled[i, missing[i]]).max()))
            filled[i, missing[i]] = found
        if change <= 1e-4 * max(s[0] / math.sqrt(filled.size), 1e-300):
            break
    return np.where(missing, filled + center, Y)


def _truncation_error(Y: np.ndarray, s: np.ndarray, Vt: np.ndarray, d: int) -> tuple[np.ndarray, float]:
    """Return the rows (r, g·q) of a root of the covariance of the residuals of d components, and a white variance.

    Residuals of the training curves are too small, since the components were fitted to them: at each point the covariance is scaled
    to the mean square of the residuals of curves that were held out of the components. What is outside of the span of all other
    curves is white.
    """
    n = len(Y)
    folds = draw_folds(n)
    truncated, outside = np.zeros_like(Y), np.zeros_like(Y)
    for fold in np.unique(folds) if n > 2 else ():
        held = folds == fold
        center = Y[~held].mean(0)
        _, own, basis = np.linalg.svd(Y[~held] - center, full_matrices=False)
        basis, new = basis[own > 1e-10 * max(own[0], 1e-300)], Y[held] - center
        truncated[held] = new - (new @ basis[:d].T) @ basis[:d]
        outside[held] = new - (new @ basis.T) @ basis
    white = max(float(np.square(outside).mean()), MIN_RELATIVE_WHITE * float(np.square(Y).mean()), 1e-300)
    target = np.maximum(np.square(truncated).mean(0) - white, 0.0)
    if n <= 2 or d >= _count_rank(s):
        return np.zeros((0, Y.shape[1])), white + float(target.mean())
    rows = (s[d:, None] / math.sqrt(n)) * Vt[d:]
    size = np.square(rows).sum(0)
    ratio = np.sqrt(target / np.where(size > 0, size, 1.0))
    limit = 10 * np.median(ratio)  # where training residuals vanish
    return rows * np.minimum(ratio, limit), white
