"""How good are quantile curves? Pinball losses, the part of them that inputs explain, and crossings."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from sklearn.metrics import mean_pinball_loss

from ovkgp.estimators.quantile_rows import weighted_quantiles
from ovkgp.inference.task_learning.noncrossing_metrics import crossing_loss

PERCENTILES = np.arange(1, 100) / 100


def pinball_losses(y: np.ndarray, predicted: np.ndarray, levels: np.ndarray, sample_weight=None) -> np.ndarray:
    """The mean pinball loss (q,) of predicted quantiles (n, q) for y (n,) (LT-51).

    Example:
        >>> import numpy as np
        >>> from ovkgp.estimators.quantile_metrics import pinball_losses
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
        >>> from ovkgp.estimators.quantile_metrics import d2_pinball
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
        >>> from ovkgp.estimators.quantile_metrics import crossing_of
        >>> crossing_of(np.array([[0.0, 2.0, 1.5], [0.0, 1.0, 2.0]]))
        Crossing(share=0.25, total=0.25, largest=0.5)
    """
    falls = -np.diff(predicted, axis=1)
    if not falls.size:
        return Crossing(0.0, 0.0, 0.0)
    return Crossing(float((falls > 0).mean()), crossing_loss(torch.from_numpy(predicted)), float(max(falls.max(), 0.0)))
