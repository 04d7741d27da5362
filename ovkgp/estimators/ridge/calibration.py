"""From class scores to class probabilities that may be believed: calibration on rows that were held out.

    log p(k | x) = u log π_k + (β s_k + (1 − u) b_k) / √(1 + (π/8) β² u) + constant,     u = tr Cov f(x) / tr K(x, x),

with scores s (one for a class that is fitted perfectly), class frequencies π_k and the share u(x) in [0, 1] of the prior
variance that the data leave. Far from the data u = 1 and s = 0, and the frequencies remain; amid them u is near 0, and this
is Platt's softmax. The root is MacKay's, for logits of variance β² u. β > 0 and c, with b_k = c log π_k, are
fitted to scores of rows that had no part in the fit. Classes of equal frequency have no bias, and the class of the largest
score is the most probable one.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np
import torch
from scipy.optimize import minimize
from scipy.special import log_softmax

from ovkgp.exceptions import FitWarning, InputError
from ovkgp.inference.model.observations import Observations
from ovkgp.inference.model.row_sample import row_priorities

BETA_SPREAD = 1.5
"""Prior standard deviation of log β about log(K − 1)."""
BIAS_SPREAD = 1.0
"""Prior standard deviation of c about 0."""
CERTAIN = 1e-12
"""Gradient of the mean loss at which the search stops."""
TOO_STEEP = 1e-5
"""Gradient of the mean loss above which it was not found."""


@dataclass(frozen=True, eq=False)
class Calibration:
    """Class probabilities as a function of scores.

    Attributes:
        beta: β > 0, how fast a score turns into certainty.
        bias: b (K,), a multiple of log π.
        frequencies: π (K,), of the classes in the data.
        log_loss: the mean of −log p(true class) over the held-out rows, to which β and c were fitted.
        num_rows: how many rows were held out.
        num_folds: in how many folds.
    """

    beta: float
    bias: np.ndarray
    frequencies: np.ndarray
    log_loss: float
    num_rows: int
    num_folds: int

    def logits(self, scores: np.ndarray, unknown: np.ndarray) -> np.ndarray:
        """log p + constant, (m, K), from scores (m, K) and the unknown share u (m,) of the variance. O(m K)."""
        return _logits(scores, unknown, self.beta, self.bias, np.log(self.frequencies))


def calibrate(
    scores: np.ndarray,
    unknown: np.ndarray,
    labels: np.ndarray,
    frequencies: np.ndarray,
    weight: np.ndarray | None = None,
    num_folds: int = 1,
) -> Calibration:
    """Fit β and b = c log π by penalised maximum likelihood on held-out rows.

    The priors are log β ~ N(log(K − 1), 1.5²) and c ~ N(0, 1), so that neither few rows nor perfectly separated ones lead to
    certainty. β = K − 1 is where the softmax has the slope of the least-squares estimate of a probability,
    p_k = (1 + (K − 1) s_k) / K, at equal scores.

    Args:
        scores: s (m, K) of rows that the scores were not fitted to, in units where a class that is fitted perfectly has 1.
        unknown: u (m,) in [0, 1].
        labels: the true classes (m,), 0 … K − 1.
        frequencies: π (K,), positive.
        weight: of the rows (m,); all one where it is None.
        num_folds: kept in the result.

    Cost: O(m K) for each of some tens of evaluations.

    Example:
        >>> import numpy as np
        >>> from ovkgp.estimators.ridge.calibration import calibrate
        >>> scores = np.array([[0.9, -0.9], [0.8, -0.8], [0.1, -0.1], [-0.7, 0.7]])
        >>> calibration = calibrate(scores, np.full(4, 0.1), np.array([0, 0, 1, 1]), np.array([0.5, 0.5]))
        >>> calibration.beta > 0, np.diff(calibration.logits(np.zeros((1, 2)), np.ones(1))).tolist()  # nothing is known here
        (True, [[0.0]])
    """
    if not len(labels):
        raise InputError("there are no held-out rows to calibrate probabilities on: give an integer cv of at least 2.")
    weight = np.ones(len(labels)) if weight is None else weight
    problem = _Problem(scores, unknown, labels, np.log(frequencies), weight)
    options = {"ftol": 0.0, "gtol": CERTAIN, "maxiter": 1000}
    found = minimize(problem.loss_and_gradient, np.zeros(2), jac=True, method="L-BFGS-B", options=options)
    _warn_unless_found(found.jac)
    beta, bias = problem.parameters(found.x)
    log_p = log_softmax(_logits(scores, unknown, beta, bias, np.log(frequencies)), axis=1)
    log_loss = -np.average(log_p[np.arange(len(labels)), labels], weights=weight)
    return Calibration(float(beta), bias, frequencies, float(log_loss), len(labels), num_folds)


@dataclass(frozen=True, eq=False)
class _Problem:
    """The penalised log loss, a mean over rows, as a function of t and c, with β = (K − 1) eᵗ and b = c log π."""

    scores: np.ndarray
    unknown: np.ndarray
    labels: np.ndarray
    log_frequencies: np.ndarray
    weight: np.ndarray

    def parameters(self, values: np.ndarray) -> tuple[float, np.ndarray]:
        return (self.scores.shape[1] - 1) * np.exp(values[0]), values[1] * self.log_frequencies

    def loss_and_gradient(self, values: np.ndarray) -> tuple[float, np.ndarray]:
        beta, bias = self.parameters(values)
        logits = _logits(self.scores, self.unknown, beta, bias, self.log_frequencies)
        log_p, rows, total = log_softmax(logits, axis=1), np.arange(len(logits)), self.weight.sum()
        slope = np.exp(log_p)
        slope[rows, self.labels] -= 1
        slope *= self.weight[:, None]
        known, root = (1 - self.unknown)[:, None], _root(beta, self.unknown)[:, None]
        # d logits / dt: β s / root from β s, and the root's own
        shrinkage = np.pi / 8 * beta**2 * self.unknown[:, None] / root**3
        by_log_beta = beta * self.scores / root - (beta * self.scores + known * bias) * shrinkage
        by_c = known * self.log_frequencies / root
        gradient = np.array([(slope * by_log_beta).sum(), (slope * by_c).sum()])
        precision = np.array([BETA_SPREAD, BIAS_SPREAD]) ** -2.0
        loss = -(self.weight * log_p[rows, self.labels]).sum() + 0.5 * (precision * values**2).sum()
        return loss / total, (gradient + precision * values) / total


def _warn_unless_found(gradient: np.ndarray) -> None:
    """Rounding ends every search; one that ends on a slope has not found the least loss."""
    if not np.abs(gradient).max() < TOO_STEEP:
        warnings.warn(
            f"the calibration of probabilities did not converge (its gradient is {np.abs(gradient).max():.1g}): check the "
            "scores for extreme values, or calibrate with sklearn.calibration.CalibratedClassifierCV.",
            FitWarning,
            stacklevel=3,
        )


def _logits(
    scores: np.ndarray, unknown: np.ndarray, beta: float, bias: np.ndarray, log_frequencies: np.ndarray
) -> np.ndarray:
    unknown, root = unknown[:, None], _root(beta, unknown)[:, None]
    return unknown * log_frequencies + (beta * scores + (1 - unknown) * bias) / root


def _root(beta: float, unknown: np.ndarray) -> np.ndarray:
    return np.sqrt(1 + np.pi / 8 * beta**2 * unknown)


def deal_folds(X: np.ndarray, labels: np.ndarray, num_folds: int) -> np.ndarray:
    """A fold (n,) for each row, 0 … k − 1, each class spread over all folds as evenly as may be.

    Copies of a row share a fold: held out, it must not be found again among the others. The order of the rows within a class is
    that of a hash of their values, so that neither the order of the data nor a random state changes the folds. A class with
    fewer distinct rows than `num_folds` makes the folds fewer, unless it has a single one, which no number of folds would
    spread: such a row is dealt like any other, and the fit that leaves it out knows nothing of its class.

    Args:
        X: the inputs (n, d), of at least two rows.
        labels: the classes (n,), 0 … K − 1.
        num_folds: the most folds, at least 2.

    Cost: O(n (d + log n)).

    Example:
        >>> import numpy as np
        >>> from ovkgp.estimators.ridge.calibration import deal_folds
        >>> folds = deal_folds(np.arange(12.0)[:, None], np.repeat([0, 1], 6), num_folds=3)
        >>> [np.bincount(folds[:6]).tolist(), np.bincount(folds[6:]).tolist()]
        [[2, 2, 2], [2, 2, 2]]
    """
    group = _groups(X)
    if group.max() == 0:  # copies of one row are all there is
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
    """The classes (0 … K − 1) that have only one distinct row of X (n, d). O(n (d + log n)).

    Example:
        >>> import numpy as np
        >>> from ovkgp.estimators.ridge.calibration import lone_classes
        >>> lone_classes(np.array([[0.0], [1.0], [5.0], [5.0]]), np.array([0, 0, 1, 1])).tolist()
        [1]
    """
    return np.flatnonzero(_distinct_rows(_groups(X), labels) == 1)


def _groups(X: np.ndarray) -> np.ndarray:
    """A number (n,) for each row, the same for copies, in the order of a hash of their values."""
    rows = Observations(torch.as_tensor(X, dtype=torch.float64), torch.zeros(len(X), 1))
    return np.unique(row_priorities(rows).numpy(), return_inverse=True)[1]


def _distinct_rows(group: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """How many distinct rows each class has, (K,)."""
    return np.bincount(np.unique(np.c_[group, labels], axis=0)[:, 1])
