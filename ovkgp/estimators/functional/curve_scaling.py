"""Units of curves: a smooth mean curve, one scale per channel, and standardized inputs and points of the domain.

Where curves have gaps, the average of the few curves observed at a point depends on which curves these are. The mean curve is that of

    y_i(θ) = μ(θ) + b_i(θ) + ε,   b_i ~ GP(0, s² exp(−|θ − θ'|²/2ℓ²)) independently for each curve,

with a Gaussian-process prior on μ; its lengthscale, ℓ and the noise are chosen by the evidence from a few values.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import numpy as np
import torch
from scipy.linalg import cho_solve

from ovkgp.estimators.storage.values import storable_record
from ovkgp.scales import mean_and_std, root_mean_square, unit_of

MAX_NODES = 40  # points that represent the mean curve
MAX_MEAN_CURVES, MAX_MEAN_POINTS = 500, 200  # curves, and points of complete curves, from which it is estimated
MEAN_LENGTHSCALES = (0.25, 0.5, 1.0, 2.0)  # in standard deviations of the points of the domain
DEVIATION_LENGTHSCALES = (0.2, 0.7, 2.0)
RELATIVE_NOISES = (0.02, 0.5)  # of the variance of b_i
RELATIVE_MEAN_VARIANCE = 30.0  # prior variance of μ, likewise
JITTER = 1e-8


@storable_record
@dataclass(frozen=True)
class MeanFunction:
    """μ(θ) = level + Σ_k w_k exp(−|θ − node_k|²/2ℓ²) at standardized points, with weights (K, q), one ℓ (q,) per channel."""

    nodes: np.ndarray
    weights: np.ndarray
    lengthscale: np.ndarray
    level: np.ndarray

    def __call__(self, points: np.ndarray, derivative: int = 0) -> np.ndarray:
        """Return values (k, q) at standardized points (k, t), or first derivatives for t = 1."""
        columns = []
        for weights, ell, level in zip(self.weights.T, self.lengthscale, self.level, strict=True):
            features = _gaussian(points, self.nodes, ell)
            if derivative:
                features = features * -(points - self.nodes.T) / ell**2
            columns.append(features @ weights + (0.0 if derivative else level))
        return np.stack(columns, -1)


@storable_record
@dataclass(frozen=True)
class CurveScaling:
    """Offsets and scales of inputs (d,), points (t,) and channels (q,), and the mean curve in original units of the values."""

    input_offset: np.ndarray
    input_scale: np.ndarray
    point_offset: np.ndarray
    point_scale: np.ndarray
    output_scale: np.ndarray
    mean: MeanFunction

    @classmethod
    def of(cls, X: np.ndarray, points: np.ndarray, values: np.ndarray) -> CurveScaling:
        """Compute the units of inputs (n, d) and values (n, g, q), NaN if missing, at points (g, t)."""
        offsets, scales = zip(*(_standardize(array) for array in (X, points)), strict=True)
        standard = (points - offsets[1]) / scales[1]
        mean = fit_mean_function(standard, values)
        residuals = values - mean(standard)
        std = root_mean_square(residuals, (0, 1))
        size = np.nanmax(np.abs(values), (0, 1), initial=0.0)
        scale = np.where(std > 1e-12 * size, std, np.where(size > 0, size, 1.0))
        return cls(offsets[0], scales[0], offsets[1], scales[1], scale, mean)

    @classmethod
    def identity(cls, X: np.ndarray, points: np.ndarray, values: np.ndarray) -> CurveScaling:
        """Return original units, without a mean curve."""
        (d, t), q = (X.shape[1], points.shape[1]), values.shape[2]
        mean = MeanFunction(points[:1], np.zeros((1, q)), np.ones(q), np.zeros(q))
        return cls(np.zeros(d), np.ones(d), np.zeros(t), np.ones(t), np.ones(q), mean)

    def inputs(self, X: np.ndarray) -> torch.Tensor:
        """Return standardized inputs."""
        return torch.from_numpy(np.ascontiguousarray((X - self.input_offset) / self.input_scale, dtype=np.float64))

    def points(self, points: np.ndarray) -> torch.Tensor:
        """Return standardized points (g, t)."""
        return torch.from_numpy(np.ascontiguousarray((points - self.point_offset) / self.point_scale))

    def standardize(self, values: np.ndarray, points: np.ndarray) -> torch.Tensor:
        """Return standardized values (n, g·q) of values (n, g, q) at points (g, t) in original units."""
        centered = (values - self.mean(self.points(points).numpy())) / self.output_scale
        return torch.from_numpy(centered.reshape(len(values), -1))

    def values(self, standard, points: np.ndarray, derivative: int = 0) -> np.ndarray:
        """Return values (..., g, q) in original units from standardized ones (..., g·q)."""
        return self.std(standard, derivative) + self.mean_values(points, derivative)

    def mean_values(self, points: np.ndarray, derivative: int = 0) -> np.ndarray:
        """Return the mean curve (g, q) at points (g, t), or its derivative."""
        return self.mean(self.points(points).numpy(), derivative) / self.point_scale[0] ** derivative

    def std(self, standard, derivative: int = 0) -> np.ndarray:
        """Return differences or standard deviations (..., g, q) in original units from standardized ones (..., g·q)."""
        standard = np.asarray(standard)
        shaped = standard.reshape(*standard.shape[:-1], -1, len(self.output_scale))
        return shaped * self.output_scale / self.point_scale[0] ** derivative


def _standardize(array: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return means and standard deviations of columns; 1 for a constant column."""
    offset, std = mean_and_std(array)
    return offset, np.where(std > 1e-12 * np.abs(array).max(0, initial=0.0), std, 1.0)


def fit_mean_function(points: np.ndarray, values: np.ndarray) -> MeanFunction:
    """Estimate the mean curve of values (n, g, q), NaN if missing, at standardized points (g, t).

    Complexity: O(K² Σ g_i + Σ g_i³) over distinct sets of observed points, for each of 24 settings.
    """
    generator, q = np.random.default_rng(0), values.shape[2]
    rows = np.sort(generator.permutation(len(values))[:MAX_MEAN_CURVES])
    if len(points) > MAX_MEAN_POINTS and not np.isnan(values).any():
        kept = _thin(points, MAX_MEAN_POINTS, generator)
        points, values = points[kept], values[:, kept]
    nodes = points[_thin(points, MAX_NODES, generator)]
    weights, lengthscales, levels = np.zeros((len(nodes), q)), np.ones(q), np.zeros(q)
    for channel in range(q):
        unit = unit_of(np.nanmax(np.abs(values[rows, :, channel]), initial=0.0))
        Y = values[rows, :, channel] / unit
        level = np.nanmean(Y)
        levels[channel] = unit * level
        if len(points) > 1:
            found, lengthscales[channel] = _fit_channel(points, Y - level, nodes)
            weights[:, channel] = unit * found
    return MeanFunction(nodes, weights, lengthscales, levels)


def _thin(points: np.ndarray, count: int, generator: np.random.Generator) -> np.ndarray:
    """Return the indices of at most `count` points: evenly in one dimension, at random in several."""
    if points.shape[1] == 1:
        return np.unique(np.linspace(0, len(points) - 1, min(count, len(points))).round().astype(int))
    return np.sort(generator.permutation(len(points))[:count])


def _fit_channel(points: np.ndarray, Y: np.ndarray, nodes: np.ndarray) -> tuple[np.ndarray, float]:
    """Return weights (K,) and lengthscale of the mean of one channel with the largest evidence."""
    if not np.nanmax(np.abs(Y)) > 0:
        return np.zeros(len(nodes)), 1.0
    patterns = _patterns(Y)
    best = None
    for ell, noise in product(DEVIATION_LENGTHSCALES, RELATIVE_NOISES):
        S = _gaussian(points, points, ell)
        S.flat[:: len(S) + 1] += noise
        factors = [np.linalg.cholesky(S[np.ix_(mask, mask)]) for mask, _ in patterns]
        for mean_ell in MEAN_LENGTHSCALES:
            roots = np.linalg.cholesky(_gaussian(nodes, nodes, mean_ell) + JITTER * np.eye(len(nodes)))
            features = np.linalg.solve(roots, _gaussian(nodes, points, mean_ell)).T  # (g, K)
            value, v = _evidence(patterns, factors, features)
            if best is None or value > best[0]:
                best = value, np.linalg.solve(roots.T, v), mean_ell
    return best[1:]


def _patterns(Y: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    """Group curves by their observed points: pairs of points (k,) and values (r, k)."""
    observed = ~np.isnan(Y)
    kept = observed.any(1)
    masks, index = np.unique(observed[kept], axis=0, return_inverse=True)
    index = index.reshape(-1)
    return [(np.flatnonzero(mask), Y[kept][index == i][:, mask]) for i, mask in enumerate(masks)]


def _evidence(patterns, factors, features: np.ndarray) -> tuple[float, np.ndarray]:
    """Return the log evidence, up to a constant and maximized over the scale, and the weights of the mean."""
    K = features.shape[1]
    precision, target, quadratic, logdet, count = np.eye(K) / RELATIVE_MEAN_VARIANCE, np.zeros(K), 0.0, 0.0, 0
    for (points, values), chol in zip(patterns, factors, strict=True):
        Phi = cho_solve((chol, True), features[points])
        precision += len(values) * features[points].T @ Phi
        target += Phi.T @ values.sum(0)
        half = np.linalg.solve(chol, values.T)
        quadratic += float(np.vdot(half, half))
        logdet += 2 * len(values) * float(np.log(chol.diagonal()).sum())
        count += values.size
    root = np.linalg.cholesky(precision)
    v = cho_solve((root, True), target)
    logdet += 2 * float(np.log(root.diagonal()).sum()) + K * np.log(RELATIVE_MEAN_VARIANCE)
    rest = max(quadratic - float(target @ v), 1e-300)
    return -0.5 * (logdet + count * np.log(rest / count)), v


def _gaussian(a: np.ndarray, b: np.ndarray, ell: float) -> np.ndarray:
    squares = sum(np.square(x[:, None] - z) for x, z in zip(a.T, b.T, strict=True))
    return np.exp(-0.5 * squares / ell**2)
