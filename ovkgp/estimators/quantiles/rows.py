"""How good are quantile curves? Pinball losses, the part of them that inputs explain, and crossings."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from sklearn.metrics import mean_pinball_loss

from ovkgp.estimators.common.scaling import Moments, Scaling
from ovkgp.estimators.common.validation import as_array, numbers
from ovkgp.exceptions import InputError
from ovkgp.inference.model.row_sample import RowSample
from ovkgp.inference.tasks.noncrossing import crossing_loss

NUM_FOLDS = 5
"""Parts of the rows that are left out in turn, to choose λ and to calibrate intervals."""
FENCE, FAR = 10.0, 1000.0
"""How many interquartile ranges from the quartiles y may count for means and variances; and for the loss, whose slopes are the same beyond."""


@dataclass(frozen=True)
class QuantileRows:
    """Distinct rows.

    Args:
        X, y: (n, d) and (n,), float64.
        weights: (n,), positive.

    Example:
        >>> import numpy as np
        >>> from ovkgp.estimators.quantiles.rows import QuantileRows
        >>> rows = QuantileRows.of(np.array([[2.0], [1.0], [2.0]]), np.array([5.0, 6.0, 5.0]))
        >>> rows.y, rows.weights, rows.shares
        (array([6., 5.]), array([1., 2.]), array([0.66666667, 1.33333333]))
    """

    X: np.ndarray
    y: np.ndarray
    weights: np.ndarray

    @classmethod
    def of(cls, X: np.ndarray, y: np.ndarray, weights=None) -> QuantileRows:
        """From X (n, d), y (n,) and weights (n,), of which some may be zero. O(n log n) time."""
        weights = _weights(weights, len(y))
        table = np.column_stack([X, y]).astype(np.float64)[weights > 0]
        distinct, place = np.unique(table, axis=0, return_inverse=True)
        total = np.bincount(place.reshape(-1), weights[weights > 0], minlength=len(distinct))
        return cls(distinct[:, :-1], distinct[:, -1], total)

    def __len__(self) -> int:
        return len(self.y)

    @property
    def count(self) -> float:
        """How many rows there were, copies included: the sum of the weights."""
        return float(self.weights.sum())

    @property
    def shares(self) -> np.ndarray:
        """The weights, with mean one, (n,)."""
        return self.weights * (len(self) / self.weights.sum())

    def fenced(self, ranges: float = FENCE) -> QuantileRows:
        """The same with y at most so many interquartile ranges from its quartiles.

        Quantiles do not feel how far away an outlier is; means and variances do, and a solver that compares with a whole objective.
        """
        low, high = weighted_quantiles(self.y, self.weights, np.array([0.25, 0.75]))
        reach = ranges * (high - low)
        return self if reach == 0 else replace(self, y=np.clip(self.y, low - reach, high + reach))

    def scaling(self, *, scale_inputs: bool) -> Scaling:
        """Mean and standard deviation of the columns of X, if asked, and of y within its fence, weighted."""
        inputs, outputs = self._moments(self.X), self._moments(self.fenced().y[:, None])
        return Scaling.of_moments(inputs, outputs, scale_inputs=scale_inputs, shared=False)

    def _moments(self, columns: np.ndarray) -> Moments:
        largest = np.abs(columns).max(0)
        relative, weights = columns / np.where(largest > 0, largest, 1.0), self.shares[:, None]
        mean = (weights * relative).sum(0) / len(columns)
        squares = (weights * (relative - mean) ** 2).sum(0)
        return Moments(
            np.full(len(largest), len(columns)), np.where(largest > 0, largest, 1.0) * mean, squares, largest
        )

    def scaled(self, scaling: Scaling) -> QuantileRows:
        """The same rows in the units of a model."""
        X, y = scaling.inputs(self.X).numpy(), scaling.outputs(self.y[:, None]).numpy()[:, 0]
        return QuantileRows(X, y, self.weights)

    def sample(self, limit: int) -> RowSample:
        """At most about `limit` rows, copies included where all weights are whole numbers."""
        copies = self.weights.astype(np.int64)
        places = np.arange(len(self)) if (copies != self.weights).any() else np.repeat(np.arange(len(self)), copies)
        return RowSample.of(self.X[places], self.y[places, None], limit)

    def at(self, places: np.ndarray) -> QuantileRows:
        """The rows at some places (k,)."""
        return QuantileRows(self.X[places], self.y[places], self.weights[places])

    def places(self, limit: int) -> np.ndarray:
        """The places (k,) of at most `limit` rows, spread evenly over the order of the inputs."""
        return np.unique(np.linspace(0, len(self) - 1, min(limit, len(self))).round().astype(np.int64))

    def folds(self, num_folds: int, seed: int) -> list[np.ndarray]:
        """The places (k,) of the rows of each fold, dealt at random; copies of a row stay together."""
        order = np.random.default_rng(seed).permutation(len(self))
        return [np.sort(part) for part in np.array_split(order, min(num_folds, len(self)))]


def weighted_quantiles(y: np.ndarray, weights: np.ndarray, levels: np.ndarray) -> np.ndarray:
    """Values of y that minimise the weighted pinball loss, (q,): the first whose share of rows below or at it reaches the level.

    Example:
        >>> import numpy as np
        >>> from ovkgp.estimators.quantiles.rows import weighted_quantiles
        >>> weighted_quantiles(np.array([5.0, 1.0, 3.0]), np.ones(3), np.array([0.5, 0.9]))
        array([3., 5.])
    """
    order = np.argsort(y, kind="stable")
    share = np.cumsum(weights[order]) / weights.sum()
    return y[order][np.minimum(np.searchsorted(share, levels - 1e-12), len(y) - 1)]


def _weights(weights, num_rows: int) -> np.ndarray:
    if weights is None:
        return np.ones(num_rows)
    weights = numbers(as_array(weights), "sample_weight")
    weights = np.full(num_rows, float(weights)) if weights.ndim == 0 else weights
    if weights.shape != (num_rows,):
        raise InputError(f"sample_weight.shape == {weights.shape}, expected {(num_rows,)}: one number a row.")
    if not bool((np.isfinite(weights) & (weights >= 0)).all()) or not weights.any():
        raise InputError("sample_weight must be finite and not negative, and not all zero.")
    return weights


PERCENTILES = np.arange(1, 100) / 100


def pinball_losses(y: np.ndarray, predicted: np.ndarray, levels: np.ndarray, sample_weight=None) -> np.ndarray:
    """The mean pinball loss (q,) of predicted quantiles (n, q) for y (n,) (LT-51).

    Example:
        >>> import numpy as np
        >>> from ovkgp.estimators.quantiles.rows import pinball_losses
        >>> pinball_losses(np.array([2.0]), np.array([[1.0, 3.0]]), np.array([0.8, 0.8]))
        array([0.8, 0.2])
    """
    columns = zip(predicted.T, levels, strict=True)
    return np.array([mean_pinball_loss(y, q, alpha=level, sample_weight=sample_weight) for q, level in columns])


def d2_pinball(y: np.ndarray, predicted: np.ndarray, levels: np.ndarray, sample_weight=None) -> float:
    """D² = 1 − Σ_θ loss / Σ_θ loss of the quantiles of y itself: 1 is perfect, 0 is no better than knowing no inputs.

    Where y is constant, 1 for predictions that hit it and 0 for all others.

    Example:
        >>> import numpy as np
        >>> from ovkgp.estimators.quantiles.rows import d2_pinball
        >>> y = np.array([1.0, 2.0, 3.0])
        >>> d2_pinball(y, np.full((3, 1), 2.0), np.array([0.5])), d2_pinball(y, y[:, None], np.array([0.5]))
        (0.0, 1.0)
    """
    weights = np.ones(len(y)) if sample_weight is None else np.asarray(sample_weight, dtype=np.float64)
    marginal = np.broadcast_to(weighted_quantiles(y, weights, levels), predicted.shape)
    ours, theirs = (pinball_losses(y, q, levels, sample_weight).sum() for q in (predicted, marginal))
    if theirs == 0:
        return float(ours == 0)
    return float(1 - ours / theirs)


@dataclass(frozen=True)
class Crossing:
    """How far curves fall where they should rise, between neighbouring levels.

    Attributes:
        share: the part of the pairs (point, two neighbouring levels) that cross.
        total: Σ_j max(0, q_j − q_{j+1}), averaged over the points, in the user's units.
        largest: the largest fall.
    """

    share: float
    total: float
    largest: float


def crossing_of(predicted: np.ndarray) -> Crossing:
    """The crossings of curves (n, q) whose levels increase.

    Example:
        >>> import numpy as np
        >>> from ovkgp.estimators.quantiles.rows import crossing_of
        >>> crossing_of(np.array([[0.0, 2.0, 1.5], [0.0, 1.0, 2.0]]))
        Crossing(share=0.25, total=0.25, largest=0.5)
    """
    falls = -np.diff(predicted, axis=1)
    if not falls.size:
        return Crossing(0.0, 0.0, 0.0)
    return Crossing(float((falls > 0).mean()), crossing_loss(torch.from_numpy(predicted)), float(max(falls.max(), 0.0)))
