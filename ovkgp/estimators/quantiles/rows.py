"""Data and metrics of quantile regression: distinct rows with weights, pinball losses and crossings."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from sklearn.metrics import mean_pinball_loss

from ovkgp.checks import as_numbers
from ovkgp.estimators.common.fit_checks import list_copied_rows
from ovkgp.estimators.common.loss_options import weighted_quantiles
from ovkgp.estimators.common.scaling import Moments, Scaling
from ovkgp.estimators.common.validation import as_array
from ovkgp.estimators.storage.values import storable_record
from ovkgp.exceptions import InputError
from ovkgp.inference.model.row_sample import RowSample
from ovkgp.inference.tasks.noncrossing import crossing_loss

NUM_FOLDS = 5  # number of folds of the cross-validation that selects λ and calibrates intervals
PERCENTILES = np.arange(1, 100) / 100
MOMENT_CLIP_IQRS, LOSS_CLIP_IQRS = 10.0, 1000.0
"""Distance from the quartiles, in interquartile ranges, at which y is clipped for moments, and for the loss."""


@storable_record
@dataclass(frozen=True)
class QuantileRows:
    """Distinct rows X (n, d), y (n,) in float64 with positive weights (n,), and the number of rows before copies were merged, if known."""

    X: np.ndarray
    y: np.ndarray
    weights: np.ndarray
    num_given: int | None = None

    @classmethod
    def of(cls, X: np.ndarray, y: np.ndarray, weights=None) -> QuantileRows:
        """Merge equal rows and drop those of weight zero, in O(n log n)."""
        weights = _check_weights(weights, len(y))
        table = np.column_stack([X, y]).astype(np.float64)[weights > 0]
        distinct, index = np.unique(table, axis=0, return_inverse=True)
        total = np.bincount(index.reshape(-1), weights[weights > 0], minlength=len(distinct))
        return cls(distinct[:, :-1], distinct[:, -1], total, len(table))

    def __len__(self) -> int:
        return len(self.y)

    @property
    def count(self) -> float:
        """Number of rows including copies: the sum of the weights."""
        return float(self.weights.sum())

    @property
    def relative_weights(self) -> np.ndarray:
        """Weights (n,) with mean one."""
        return self.weights * (len(self) / self.weights.sum())

    def clip_outliers(self, ranges: float = MOMENT_CLIP_IQRS) -> QuantileRows:
        """Clip y at `ranges` interquartile ranges from its quartiles.

        Quantiles do not depend on the distance of an outlier; moments do, and so does a solver with a relative
        tolerance.
        """
        low, high = weighted_quantiles(self.y, self.weights, np.array([0.25, 0.75]))
        reach = ranges * (high - low)
        return self if reach == 0 else replace(self, y=np.clip(self.y, low - reach, high + reach))

    def scaling(self, *, scale_inputs: bool) -> Scaling:
        """Compute weighted means and standard deviations of X, if `scale_inputs`, and of the clipped y."""
        inputs, outputs = self._moments(self.X), self._moments(self.clip_outliers().y[:, None])
        return Scaling.of_moments(inputs, outputs, scale_inputs=scale_inputs, shared=False)

    def _moments(self, columns: np.ndarray) -> Moments:
        largest = np.abs(columns).max(0)
        relative, weights = columns / np.where(largest > 0, largest, 1.0), self.relative_weights[:, None]
        mean = (weights * relative).sum(0) / len(columns)
        squares = (weights * (relative - mean) ** 2).sum(0)
        return Moments(
            np.full(len(largest), len(columns)), np.where(largest > 0, largest, 1.0) * mean, squares, largest
        )

    def scaled(self, scaling: Scaling) -> QuantileRows:
        """Return the rows in standardized units."""
        X, y = scaling.inputs(self.X).numpy(), scaling.outputs(self.y[:, None]).numpy()[:, 0]
        return replace(self, X=X, y=y)

    def list_problems(self) -> list[str]:
        """List problems of the rows, as sentences."""
        return list_copied_rows(self.X, self.y[:, None], self.num_given)

    def sample(self, limit: int) -> RowSample:
        """Sample about `limit` rows at most, copies included if all weights are integers."""
        copies = self.weights.astype(np.int64)
        index = np.arange(len(self)) if (copies != self.weights).any() else np.repeat(np.arange(len(self)), copies)
        return RowSample.from_table(self.X[index], self.y[index, None], limit)

    def select(self, index: np.ndarray) -> QuantileRows:
        """Return the rows with the indices (k,)."""
        return QuantileRows(self.X[index], self.y[index], self.weights[index])

    def spaced_indices(self, limit: int) -> np.ndarray:
        """Return indices (k,) of at most `limit` rows, evenly spaced in the order of the inputs."""
        return np.unique(np.linspace(0, len(self) - 1, min(limit, len(self))).round().astype(np.int64))

    def folds(self, num_folds: int, seed: int) -> list[np.ndarray]:
        """Return the indices (k,) of the rows of each random fold; copies of a row stay together."""
        order = np.random.default_rng(seed).permutation(len(self))
        return [np.sort(part) for part in np.array_split(order, min(num_folds, len(self)))]


def _check_weights(weights, num_rows: int) -> np.ndarray:
    if weights is None:
        return np.ones(num_rows)
    weights = as_numbers(as_array(weights), "sample_weight")
    weights = np.full(num_rows, float(weights)) if weights.ndim == 0 else weights
    if weights.shape != (num_rows,):
        raise InputError(f"sample_weight.shape == {weights.shape}, expected {(num_rows,)} (one weight per row).")
    if not bool((np.isfinite(weights) & (weights >= 0)).all()) or not weights.any():
        raise InputError("sample_weight must be finite, nonnegative and not all zero.")
    return weights


def pinball_losses(y: np.ndarray, predicted: np.ndarray, levels: np.ndarray, sample_weight=None) -> np.ndarray:
    """Compute the mean pinball loss (q,) of predicted quantiles (n, q) for y (n,) (LT-51)."""
    columns = zip(predicted.T, levels, strict=True)
    return np.array([mean_pinball_loss(y, q, alpha=level, sample_weight=sample_weight) for q, level in columns])


def d2_pinball(y: np.ndarray, predicted: np.ndarray, levels: np.ndarray, sample_weight=None) -> float:
    """Compute D² = 1 − Σ_θ loss / Σ_θ loss of the marginal quantiles of y.

    1 is perfect, 0 is no better than without inputs. If y is constant, D² is 1 for exact predictions and 0 for all
    others.
    """
    weights = np.ones(len(y)) if sample_weight is None else np.asarray(sample_weight, dtype=np.float64)
    marginal = np.broadcast_to(weighted_quantiles(y, weights, levels), predicted.shape)
    model_loss, marginal_loss = (pinball_losses(y, q, levels, sample_weight).sum() for q in (predicted, marginal))
    if marginal_loss == 0:
        return float(model_loss == 0)
    return float(1 - model_loss / marginal_loss)


@dataclass(frozen=True)
class Crossing:
    """Amount by which quantile curves decrease between neighboring levels.

    Attributes
    ----------
    share : float
        Fraction of the pairs (point, two neighboring levels) that cross.
    total : float
        Σ_j max(0, q_j − q_{j+1}), averaged over the points, in original units.
    largest : float
        Largest decrease.
    """

    share: float
    total: float
    largest: float


def measure_crossing(predicted: np.ndarray) -> Crossing:
    """Measure the crossings of curves (n, q) at increasing levels."""
    falls = -np.diff(predicted, axis=1)
    if not falls.size:
        return Crossing(0.0, 0.0, 0.0)
    return Crossing(float((falls > 0).mean()), crossing_loss(torch.from_numpy(predicted)), float(max(falls.max(), 0.0)))
