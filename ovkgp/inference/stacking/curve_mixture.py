"""Weighted mixture of models of curves, in standardized units: predictions, joint draws, bands and continued curves.

A component has `moments(X, tasks, form)` of f, `deviation_at(tasks)`, the covariance of the smooth deviations of a new curve from f,
`white_at(tasks)`, the variances of its white noise, and `sample(X, tasks, k, random_state)` of f. Those with a kernel of the domain
(`has_derivatives`) take an argument `derivative`; derivatives are predicted by them alone.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from ovkgp.checks import as_seed
from ovkgp.exceptions import OptionError
from ovkgp.inference.algebra.dense import gaussian_log_density, psd_root, safe_cholesky
from ovkgp.inference.posteriors.mixture import DrawAllocation
from ovkgp.inference.posteriors.posterior import draw_normal, spawn_seeds
from ovkgp.inference.posteriors.prediction import MixturePrediction, Prediction

NUM_BAND_DRAWS = 1000  # draws of a curve from which the width of a simultaneous band is computed
COVARIANCE_CHUNK_ENTRIES = 8_000_000  # entries of the covariances of one chunk of curves


class CurveMixture:
    """Mixture Σ_k w_k p_k of models of curves with weights (K,) that sum to one.

    Components with weight 0 predict derivatives, if no other component can.
    """

    def __init__(self, components: Sequence, weights: np.ndarray):
        weights = np.asarray(weights, dtype=np.float64)
        self._smooth = [(one, w) for one, w in zip(components, weights, strict=True) if one.has_derivatives]
        self.components = [one for one, weight in zip(components, weights, strict=True) if weight > 0]
        self.weights = weights[weights > 0]

    def _for(self, derivative: int) -> CurveMixture:
        """Return the mixture of the components that can predict derivatives of an order."""
        if derivative == 0 or all(one.has_derivatives for one in self.components):
            return self
        if not self._smooth:
            raise OptionError(
                'derivative=1 is not supported by models that know curves on their grid only. Use output_basis="kernel".'
            )
        components, weights = zip(*self._smooth, strict=True)
        weights = np.array(weights) if sum(weights) > 0 else np.ones(len(weights))
        return CurveMixture(components, weights / weights.sum())

    @torch.no_grad()
    def predict(self, X: Tensor, tasks: Tensor, *, noise: bool, derivative: int = 0) -> MixturePrediction:
        """Predict each value (m, M·q) of a new curve, or of f, at inputs X (m, d) and points (M, t)."""
        mixture = self._for(derivative)
        return MixturePrediction(
            (self._marginal(one, X, tasks, noise, derivative) for one in mixture.components), mixture.weights
        )

    def mean(self, X: Tensor, tasks: Tensor, derivative: int = 0) -> Tensor:
        """Return the mean (m, M·q)."""
        mixture, order = self._for(derivative), _order(derivative)
        means = torch.stack([one.moments(X, tasks, "none", **order)[0] for one in mixture.components])
        return torch.tensordot(torch.from_numpy(mixture.weights), means, 1)

    @staticmethod
    def _marginal(component, X: Tensor, tasks: Tensor, noise: bool, derivative: int) -> Prediction:
        mean, variance = component.moments(X, tasks, "diag", **_order(derivative))
        if noise:
            variance = variance + component.deviation_variances_at(tasks, **_order(derivative))
            variance = variance if derivative else variance + component.white_at(tasks)
        return Prediction(mean, variance, "diag")

    def _joint(self, component, X: Tensor, tasks: Tensor, noise: bool, derivative: int) -> tuple[Tensor, Tensor]:
        """Return mean (m, M·q) and covariance (m, M·q, M·q) of each curve."""
        mean, covariance = component.moments(X, tasks, "output", **_order(derivative))
        if noise:
            smooth = component.deviation_at(tasks, **_order(derivative))
            covariance = covariance if smooth is None else covariance + smooth
            covariance = covariance if derivative else covariance + torch.diag_embed(component.white_at(tasks))
        return mean, covariance

    @torch.no_grad()
    def sample(
        self, X: Tensor, tasks: Tensor, k: int, *, noise: bool, derivative: int = 0, random_state=None
    ) -> Tensor:
        """Draw k joint samples (k, m, M·q) of new curves, or of f, at all inputs together."""
        mixture = self._for(derivative)
        allocation = DrawAllocation(k, len(mixture.components), random_state, mixture.weights)
        found = None
        for index, rows in allocation.rows.items():
            component, seeds = mixture.components[index], spawn_seeds(allocation.seeds[index], 3)
            draws = component.sample(X, tasks, len(rows), random_state=seeds[0], **_order(derivative))
            if noise:
                smooth = component.deviation_at(tasks, **_order(derivative))
                if smooth is not None:
                    draws = draws + draw_normal(tuple(draws.shape), seeds[1], X) @ psd_root(smooth).mT
                if not derivative:
                    draws = draws + draw_normal(tuple(draws.shape), seeds[2], X) * component.white_at(tasks).sqrt()
            found = draws.new_empty(k, *draws.shape[1:]) if found is None else found
            found[torch.from_numpy(rows)] = draws
        return found

    def sample_functions(self, k: int, *, random_state=None):
        """Draw k random functions f: a function of inputs (m, d), points (M, t) and an index with values (len(index), m, M·q)."""
        allocation = DrawAllocation(k, len(self.components), random_state, self.weights)
        functions = {
            part: self.components[part].sample_functions(len(rows), random_state=allocation.seeds[part])
            for part, rows in allocation.rows.items()
        }

        @torch.no_grad()
        def evaluate(X: Tensor, tasks: Tensor, index: Tensor) -> Tensor:
            parts, ranks = allocation.parts[index.numpy()], allocation.ranks[index.numpy()]
            found = {}
            for part in np.unique(parts).tolist():
                rows = np.flatnonzero(parts == part)
                values = functions[part](X, tasks, torch.from_numpy(ranks[rows]))
                found |= dict(zip(rows.tolist(), values, strict=True))
            return torch.stack([found[i] for i in range(len(index))])

        return evaluate

    @torch.no_grad()
    def band_factors(
        self, X: Tensor, tasks: Tensor, level: float, *, noise: bool, derivative: int = 0, random_state=None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return mean and standard deviation (m, M·q) and the factor (m, 1) of simultaneous bands.

        The factor is the quantile of max_θ |y(θ) − mean(θ)| / std(θ) over draws of the curve of each input.
        """
        seed = as_seed(random_state)
        mixture = self._for(derivative)
        allocation = DrawAllocation(NUM_BAND_DRAWS, len(mixture.components), seed, mixture.weights)
        total = self.predict(X, tasks, noise=noise, derivative=derivative)
        mean, std, factors = total.mean, total.std, []
        size = max(COVARIANCE_CHUNK_ENTRIES // mean.shape[1] ** 2, 1)
        for part in torch.arange(len(X)).split(size):
            largest = mean.new_empty(NUM_BAND_DRAWS, len(part))
            for index, rows in allocation.rows.items():
                center, covariance = self._joint(mixture.components[index], X[part], tasks, noise, derivative)
                scores = draw_normal((len(rows), mean.shape[1]), allocation.seeds[index], X)
                roots = _batch_root(covariance)
                for i, row in enumerate(part.tolist()):
                    draws = center[i] + scores @ roots[i].mT
                    largest[torch.from_numpy(rows), i] = ((draws - mean[row]) / std[row]).abs().amax(1)
            factors.append(largest.quantile(level, dim=0))
        return mean, std, torch.cat(factors).unsqueeze(-1)

    @torch.no_grad()
    def complete(
        self, X: Tensor, tasks: Tensor, Y: Tensor, observed_tasks: Tensor, *, noise: bool
    ) -> MixturePrediction:
        """Predict values (m, M·q) at points (M, t) of curves with observed values Y (m, G·q), NaN if missing, at points (G, t).

        Each curve is conditioned on its own values, as if they were added to the data; a component is weighted by their density.
        """
        q, count = Y.shape[1] // len(observed_tasks), len(tasks)
        log_weights = torch.from_numpy(np.log(self.weights)).repeat(len(X), 1)  # (m, K)
        means, variances = [], []
        for k, component in enumerate(self.components):
            parts = [
                self._complete_curve(component, X[[i]], tasks, Y[i], observed_tasks, q, noise) for i in range(len(X))
            ]
            mean, variance, log_density = map(torch.stack, zip(*parts, strict=True))
            means.append(mean)
            variances.append(variance)
            log_weights[:, k] += log_density
        weights = torch.softmax(log_weights, 1).mT.unsqueeze(-1)  # (K, m, 1)
        return RowMixturePrediction(torch.stack(means), torch.stack(variances), weights.expand(-1, -1, count * q))

    @staticmethod
    def _complete_curve(component, x: Tensor, tasks: Tensor, y: Tensor, observed_tasks: Tensor, q: int, noise: bool):
        """Return mean and variance (M·q,) of one curve given its observed values, and their log density."""
        observed = ~torch.isnan(y)
        used = observed.unflatten(0, (-1, q)).any(1)
        points = torch.cat([tasks, observed_tasks[used]])
        mean, covariance = component.moments(x, points, "output")
        mean, covariance = mean[0], covariance[0]
        smooth = component.deviation_at(points)
        covariance = covariance if smooth is None else covariance + smooth
        white, size = component.white_at(points), len(tasks) * q
        at = size + observed.unflatten(0, (-1, q))[used].flatten().nonzero().flatten()
        variance = covariance.diagonal()[:size] + (white[:size] if noise else 0.0)
        if len(at) == 0:
            return mean[:size], variance, mean.new_zeros(())
        chol = safe_cholesky(covariance[at][:, at] + torch.diag_embed(white[at]))
        residuals = y[observed] - mean[at]
        root = torch.linalg.solve_triangular(chol, covariance[at][:, :size], upper=False)
        half = torch.linalg.solve_triangular(chol, residuals.unsqueeze(-1), upper=False).squeeze(-1)
        log_density = gaussian_log_density(half @ half, 2 * chol.diagonal().log().sum(), len(at))
        lowest = white[:size] if noise else torch.zeros_like(variance)
        return mean[:size] + root.mT @ half, torch.maximum(variance - root.square().sum(0), lowest), log_density


class RowMixturePrediction:
    """Mixture whose weights (K, m, p) differ between rows, of Gaussian components with means and variances (K, m, p)."""

    def __init__(self, means: Tensor, variances: Tensor, weights: Tensor):
        self.means, self.variances, self.weights = means, variances, weights

    @property
    def mean(self) -> Tensor:
        """Mean (m, p)."""
        return (self.weights * self.means).sum(0)

    @property
    def std(self) -> Tensor:
        """Standard deviation (m, p)."""
        return (self.weights * (self.variances + (self.means - self.mean).square())).sum(0).sqrt()


def _order(derivative: int) -> dict[str, int]:
    """Return the argument of components for the order of a derivative, which some do not take."""
    return {"derivative": derivative} if derivative else {}


def _batch_root(matrices: Tensor) -> Tensor:
    """Return roots R with R Rᵀ equal to positive semidefinite matrices (k, p, p): Cholesky factors where these exist."""
    chol, info = torch.linalg.cholesky_ex(matrices)
    for i in info.nonzero().flatten().tolist():
        chol[i] = psd_root(matrices[i])
    return chol
