"""Costs of the two kinds of mistakes, and what they do to a classifier: sensitivity and specificity by cost (LT-53, LT-139).

A cost θ prices a *missed positive* by c(θ) and a false alarm by 1 − c(θ) (LT-E-29): θ ∈ [−1, 1] with c = (θ + 1)/2 ("signed"), or θ = c ∈ [0, 1]
("unit"). Inside, costs are signed.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ovkgp.estimators.tables import as_array
from ovkgp.exceptions import InputError

ENDS = {"signed": (-1.0, 1.0), "unit": (0.0, 1.0)}


def signed_costs(costs, scale: str, name: str = "cost") -> np.ndarray:
    """Costs of either scale as signed ones, (q,).

    Example:
        >>> from ovkgp.estimators.infinite_cost_sensitive_classifier_costs import signed_costs
        >>> signed_costs([0.5, 0.95], "unit")
        array([0. , 0.9])
    """
    values = costs_in_scale(costs, scale, name)
    return values if scale == "signed" else 2 * values - 1


def costs_in_scale(costs, scale: str, name: str = "cost") -> np.ndarray:
    """One cost or several as numbers (q,), refused where they are not in the range of their scale.

    Example:
        >>> from ovkgp.estimators.infinite_cost_sensitive_classifier_costs import costs_in_scale
        >>> costs_in_scale(0.5, "unit")
        array([0.5])
    """
    low, high = ENDS[scale]
    try:
        values = np.asarray(as_array(costs), dtype=np.float64)
    except (TypeError, ValueError):
        values = np.empty((0, 0))
    if values.ndim > 1 or values.size == 0:
        raise InputError(f"{name} must be a cost or a list of costs, got {costs!r}.")
    if not bool(((values >= low) & (values <= high)).all()):  # NaN neither
        other = next(one for one in ENDS if one != scale)
        raise InputError(
            f'{name} must lie in [{low:g}, {high:g}] for costs="{scale}", got {costs!r}; or do you mean "{other}"?'
        )
    return values.reshape(-1)


class ROCCurve(NamedTuple):
    """What a classifier does at each of q costs.

    Attributes:
        cost: in the estimator's scale, increasing (q,).
        sensitivity: the share of positives (`classes_[1]`) that are found, (q,).
        specificity: the share of negatives that are left alone, (q,).
    """

    cost: np.ndarray
    sensitivity: np.ndarray
    specificity: np.ndarray

    @property
    def area(self) -> float:
        """The area under (1 − specificity, sensitivity), with the corners (0, 0) and (1, 1), by trapezia."""
        x, y = np.r_[0.0, 1 - self.specificity, 1.0], np.r_[0.0, self.sensitivity, 1.0]
        order = np.lexsort((y, x))
        return float(np.trapezoid(y[order], x[order]))


def rates(positive: np.ndarray, decided: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Sensitivity and specificity (q,) of decisions (n, q) for rows of which some are positive (n,).

    Example:
        >>> import numpy as np
        >>> from ovkgp.estimators.infinite_cost_sensitive_classifier_costs import rates
        >>> rates(np.array([True, True, False]), np.array([[True], [False], [False]]))
        (array([0.5]), array([1.]))
    """
    return decided[positive].mean(0), 1 - decided[~positive].mean(0)
