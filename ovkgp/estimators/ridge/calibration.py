"""Calibration of class probabilities from class scores on held-out rows.

    log p(k | x) = u log π_k + (β s_k + (1 − u) b_k) / √(1 + (π/8) β² u) + constant,     u = tr Cov f(x) / tr K(x, x),

with scores s (1 for a perfectly fitted class), class frequencies π_k and the unexplained fraction u(x) in [0, 1] of the prior
variance. Far from the data u = 1 and s = 0, which gives the frequencies; near the data u is close to 0 and this is Platt's softmax.
The root is MacKay's, for logits of variance β² u. β > 0 and c, with b_k = c log π_k, are fitted to held-out scores. Classes of
equal frequency have no bias; the class with the largest score is then the most probable.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np
import torch
from scipy.optimize import minimize
from scipy.special import log_softmax

from ovkgp.estimators.storage.values import storable_record
from ovkgp.exceptions import FitWarning, InputError
from ovkgp.inference.model.observations import Observations
from ovkgp.inference.model.row_sample import hash_rows

LOG_BETA_STD = 1.5  # prior standard deviation of log β about log(K − 1)
BIAS_STD = 1.0  # prior standard deviation of c about 0
GRADIENT_TOLERANCE = 1e-12  # gradient of the mean loss at which the optimization stops
MAX_FINAL_GRADIENT = 1e-5  # gradient of the mean loss above which the optimization has not converged


@storable_record
@dataclass(frozen=True, eq=False)
class Calibration:
    """Class probabilities as a function of scores.

    `beta` is the slope β, `bias` b (K,) a multiple of log π, `frequencies` π (K,); `log_loss` is the mean of −log p(true class) over the
    `num_rows` rows held out in `num_folds` folds, to which β and c were fitted.
    """

    beta: float
    bias: np.ndarray
    frequencies: np.ndarray
    log_loss: float
    num_rows: int
    num_folds: int

    def logits(self, scores: np.ndarray, unknown: np.ndarray) -> np.ndarray:
        """Return log p + constant, (m, K), from scores (m, K) and the unexplained fraction u (m,) of the variance."""
        return _logits(scores, unknown, self.beta, self.bias, np.log(self.frequencies))


def calibrate(
    scores: np.ndarray,
    unknown: np.ndarray,
    labels: np.ndarray,
    frequencies: np.ndarray,
    weight: np.ndarray | None = None,
    num_folds: int = 1,
) -> Calibration:
    """Fit β and b = c log π by penalized maximum likelihood on held-out rows.

    The priors are log β ~ N(log(K − 1), 1.5²) and c ~ N(0, 1), so that neither few nor perfectly separated rows give certainty.
    At β = K − 1 the softmax has the slope of the least-squares estimate of a probability, p_k = (1 + (K − 1) s_k) / K, at equal
    scores. `scores` (m, K) are 1 for a perfectly fitted class, `unknown` is u (m,), `labels` (m,) are 0 … K − 1.
    """
    if not len(labels):
        raise InputError("cv must hold out at least one row. Pass an integer of at least 2.")
    weight = np.ones(len(labels)) if weight is None else weight
    data = scores, unknown, labels, np.log(frequencies), weight
    options = {"ftol": 0.0, "gtol": GRADIENT_TOLERANCE, "maxiter": 1000}
    found = minimize(_loss_and_gradient, np.zeros(2), data, jac=True, method="L-BFGS-B", options=options)
    if not (gradient := np.abs(found.jac).max()) < MAX_FINAL_GRADIENT:
        warnings.warn(
            f"The calibration of probabilities did not converge (gradient {gradient:.1g}). Check the scores for extreme values, or use sklearn.calibration.CalibratedClassifierCV.",
            FitWarning,
            stacklevel=2,
        )
    beta, bias = _parameters(found.x, np.log(frequencies))
    log_p = log_softmax(_logits(scores, unknown, beta, bias, np.log(frequencies)), axis=1)
    log_loss = -np.average(log_p[np.arange(len(labels)), labels], weights=weight)
    return Calibration(float(beta), bias, frequencies, float(log_loss), len(labels), num_folds)


def _parameters(values: np.ndarray, log_frequencies: np.ndarray) -> tuple[float, np.ndarray]:
    """Return β = (K − 1) eᵗ and b = c log π from t and c."""
    return (len(log_frequencies) - 1) * np.exp(values[0]), values[1] * log_frequencies


def _loss_and_gradient(values, scores, unknown, labels, log_frequencies, weight) -> tuple[float, np.ndarray]:
    """Compute the penalized log loss, a mean over rows, and its gradient in t and c."""
    beta, bias = _parameters(values, log_frequencies)
    logits = _logits(scores, unknown, beta, bias, log_frequencies)
    log_p, rows, total = log_softmax(logits, axis=1), np.arange(len(logits)), weight.sum()
    slope = np.exp(log_p)
    slope[rows, labels] -= 1
    slope *= weight[:, None]
    known, root = (1 - unknown)[:, None], _root(beta, unknown)[:, None]
    # d logits / dt: β s / root from β s, and the derivative of the root
    shrinkage = np.pi / 8 * beta**2 * unknown[:, None] / root**3
    by_log_beta = beta * scores / root - (beta * scores + known * bias) * shrinkage
    by_c = known * log_frequencies / root
    gradient = np.array([(slope * by_log_beta).sum(), (slope * by_c).sum()])
    precision = np.array([LOG_BETA_STD, BIAS_STD]) ** -2.0
    loss = -(weight * log_p[rows, labels]).sum() + 0.5 * (precision * values**2).sum()
    return loss / total, (gradient + precision * values) / total


def _logits(
    scores: np.ndarray, unknown: np.ndarray, beta: float, bias: np.ndarray, log_frequencies: np.ndarray
) -> np.ndarray:
    unknown, root = unknown[:, None], _root(beta, unknown)[:, None]
    return unknown * log_frequencies + (beta * scores + (1 - unknown) * bias) / root


def _root(beta: float, unknown: np.ndarray) -> np.ndarray:
    return np.sqrt(1 + np.pi / 8 * beta**2 * unknown)


def deal_folds(X: np.ndarray, labels: np.ndarray, num_folds: int) -> np.ndarray:
    """Assign a fold 0 … k − 1 to each row, each class distributed over all folds as evenly as possible.

    Copies of a row share a fold. Rows of a class are ordered by a hash of the ranks of their values, so that neither the order of
    the data, nor units, nor a random state change the folds. A class with fewer distinct rows than `num_folds` reduces the number of folds, unless it
    has a single one. Complexity: O(d n log n).
    """
    group = _groups(X)
    if group.max() == 0:  # all rows are copies of one
        group = np.arange(len(X))
    sizes = _distinct_rows(group, labels)
    several = sizes[sizes > 1]
    num_folds = min(num_folds, group.max() + 1, several.min() if len(several) else num_folds)
    classes = np.full(group.max() + 1, labels.max())
    np.minimum.at(classes, group, labels)  # of a row with several labels, the first class
    fold = np.empty(len(classes), dtype=np.int64)
    fold[np.argsort(classes, kind="stable")] = np.arange(len(classes)) % num_folds
    return fold[group]


def lone_classes(X: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return the classes (0 … K − 1) with only one distinct row of X (n, d)."""
    return np.flatnonzero(_distinct_rows(_groups(X), labels) == 1)


def _groups(X: np.ndarray) -> np.ndarray:
    """Return a number (n,) for each row, equal for copies, in the order of a hash of the ranks of their values."""
    ranks = np.column_stack([np.unique(column, return_inverse=True)[1] for column in np.transpose(X)])
    rows = Observations(torch.as_tensor(ranks, dtype=torch.float64), torch.zeros(len(X), 1))
    return np.unique(hash_rows(rows).numpy(), return_inverse=True)[1]


def _distinct_rows(group: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return the number (K,) of distinct rows of each class."""
    return np.bincount(np.unique(np.c_[group, labels], axis=0)[:, 1])
