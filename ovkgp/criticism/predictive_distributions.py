"""Predictive distributions of single entries of Y, of held-out rows or by leave-one-out, and their probability integral transforms.

    u = P(y′ < y) + v P(y′ = y),    v uniform,

is uniform if the model is right; for continuous outputs P(y′ = y) = 0. This module knows arrays and predictions; an estimator
provides `training_data()`, `predictive(X)` and `leave_one_out_entries(X, Y, groups)`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import torch
from scipy.special import ndtri
from torch import Tensor

from ovkgp.checks import check_estimator
from ovkgp.inference.posteriors.leave_one_out import LeaveGroupOut, LeaveOneOut
from ovkgp.inference.posteriors.prediction import normal_cdf

QUANTILE_TOLERANCE = 1e-12  # error of quantiles in standard deviations
MAX_SCORE = 8.2  # largest normal score that a double-precision u can represent


def training_data(estimator) -> tuple[np.ndarray, np.ndarray] | None:
    """Return the training rows that a fitted estimator stores.

    Parameters
    ----------
    estimator : estimator
        Fitted estimator.

    Returns
    -------
    X, Y : ndarray of shape (n, d) and (n, p), or None
        Training rows in original units, NaN where an output is missing; Y (n,) are the labels of a classifier, None without
        outputs. None if the estimator stores no rows. Rows of
        independent outputs are stored per output and joined where their inputs are equal; they are then ordered as in
        the first output that has them.

    Raises
    ------
    NotFittedError
        If the estimator is not fitted.

    Examples
    --------
    >>> import numpy as np
    >>> import ovkgp
    >>> from ovkgp.criticism import training_data
    >>> X = np.linspace(0, 6, 30)[:, None]
    >>> rows = training_data(ovkgp.OVKRidge(lam=0.1).fit(X, np.sin(X)))
    >>> [part.shape for part in rows], training_data(ovkgp.ORFFRidge(lam=0.1).fit(X, np.sin(X)))
    ([(30, 1), (30, 1)], None)
    """
    check_estimator(estimator)
    return estimator.training_data()


@dataclass(frozen=True)
class EntryPredictions:
    """Predictions of entries, arrays of shape (m, p) in original units, NaN where Y is missing.

    `below` and `upto` are P(y′ < y) and P(y′ ≤ y); mean and standard deviation include the noise. If `is_gaussian`, they
    determine the distribution.
    """

    Y: np.ndarray
    mean: np.ndarray
    std: np.ndarray
    below: np.ndarray
    upto: np.ndarray
    is_gaussian: bool

    def rows(self, index: np.ndarray) -> EntryPredictions:
        """Select rows by their index (k,), where −1 is a row without predictions."""
        parts = (self.Y, self.mean, self.std, self.below, self.upto)
        parts = (np.where(index[:, None] >= 0, part[index], np.nan) for part in parts)
        return EntryPredictions(*parts, self.is_gaussian)

    def pit(self, seed: int = 0) -> np.ndarray:
        """Compute u (m, p); jumps of labels and counts are filled with uniform numbers of a seed."""
        fill = np.random.default_rng(seed).random(self.Y.shape)
        return self.below + fill * (self.upto - self.below)

    def scores(self, seed: int = 0) -> np.ndarray:
        """Compute Φ⁻¹(u) (m, p), standard normal if the model is right: (y − mean)/std of Gaussian predictions."""
        if self.is_gaussian:
            return (self.Y - self.mean) / self.std
        return np.clip(ndtri(self.pit(seed)), -MAX_SCORE, MAX_SCORE)


@dataclass(frozen=True)
class PredictiveDistribution:
    """Marginal distributions of new observations at m points, in original units.

    `cdf` and `cdf_below` map Y (m, p) to P(y′ ≤ y) and P(y′ < y); they are equal for continuous outputs. `log_density` maps Y
    (m, p) to log p(y), log P(y′ = y) for labels and counts, NaN where missing; None if the model has no density.
    """

    mean: np.ndarray
    std: np.ndarray
    cdf: Callable[[np.ndarray], np.ndarray]
    cdf_below: Callable[[np.ndarray], np.ndarray]
    is_gaussian: bool
    log_density: Callable[[np.ndarray], np.ndarray] | None = None

    def quantile(self, level: float) -> np.ndarray:
        """Return the quantiles (m, p) of a level; the inverse of `cdf` is computed by bisection to 1e-12 standard deviations."""
        if self.is_gaussian:
            return self.mean + ndtri(level) * self.std
        reach = MAX_SCORE * np.sqrt(1 / min(level, 1 - level))  # Chebyshev's inequality
        low, high = self.mean - reach * self.std, self.mean + reach * self.std
        for _ in range(math.ceil(math.log2(2 * reach / QUANTILE_TOLERANCE))):
            middle = low / 2 + high / 2
            is_below = self.cdf(middle) < level
            low, high = np.where(is_below, middle, low), np.where(is_below, high, middle)
        return high

    def at(self, Y: np.ndarray) -> EntryPredictions:
        """Evaluate the distributions at the observations Y (m, p)."""
        upto = self.cdf(Y)
        below = upto if self.cdf_below is self.cdf else self.cdf_below(Y)
        parts = (np.where(np.isfinite(Y), part, np.nan) for part in (self.mean, self.std, below, upto))
        return EntryPredictions(Y, *parts, self.is_gaussian)


def are_labels(groups) -> bool:
    """Whether groups are labels of rows, not the name "rows" or "entries"."""
    return not isinstance(groups, str)


def predictive(estimator, X=None, Y=None, groups="rows") -> EntryPredictions:
    """Evaluate the predictive distributions of an estimator at held-out rows or by leave-one-out.

    Without X and Y, stored rows ("rows") or their entries ("entries") are held out one at a time; with labels `groups` (n,)
    of training rows X and Y, all rows of a label.
    """
    check_estimator(estimator)
    if (X is None and Y is None) or are_labels(groups):
        return estimator.leave_one_out_entries(X, Y, groups)
    return estimator.predictive(X).at(estimator.check_rows(X, Y)[1])


def combine_leave_one_out(
    found: Iterable[LeaveOneOut | LeaveGroupOut],
    Y: Tensor,
    groups: Tensor | None = None,
    weights: np.ndarray | None = None,
) -> tuple[Tensor, Tensor, Tensor, bool]:
    """Combine leave-one-out predictions of hyperparameter draws: mean, standard deviation, P(y′ ≤ y), and is_gaussian.

    Draws are weighted by w_s / p(y_i | y_−i, θ_s), with equal `weights` w (S,) if None, truncated at S^(−½) of their sum, with y_i
    the entries held out together: single ones, or those of the group with index `groups` (n,) of the row.
    """
    found = [*found]
    if len(found) == 1:
        (only,) = found
        return only.mean, only.std, normal_cdf(Y, only.mean, only.std), True
    mean, std, log_density = (torch.stack(parts) for parts in list(zip(*found, strict=True))[:3])
    if groups is not None:
        log_density = log_density[:, groups].unsqueeze(-1)
    if weights is not None:
        log_density = log_density - torch.as_tensor(weights).to(log_density).log()[:, None, None]
    weights = (-log_density).softmax(0)  # (S, n, p) or (S, n, 1)
    weights = weights.clamp_max(len(found) ** -0.5)
    weights = weights / weights.sum(0)
    center = (weights * mean).sum(0)
    variance = (weights * (std.square() + (mean - center).square())).sum(0)
    return center, variance.sqrt(), (weights * normal_cdf(Y, mean, std)).sum(0), False
