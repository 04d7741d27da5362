"""Intervals of a fitted model corrected on held-out rows.

"conformal": the interval is [mean + a std, mean + b std] with order statistics a, b of the standardized errors of the held-out
rows. "pit": the quantile of level τ is that of level F⁻¹(τ) of the model, for the empirical distribution F of the probability integral
transforms. If held-out and new rows are exchangeable, intervals contain a new observation with at least their level, apart from
ties, whatever the model.
"""

from __future__ import annotations

import math

import numpy as np

from ovkgp.checks import check_estimator, check_one_of, check_probability
from ovkgp.exceptions import InputError

METHODS = ("conformal", "pit")
MIN_TAIL = 1e-12  # quantile levels of the model are kept this far from 0 and 1


class RecalibratedModel:
    """Fitted model with corrected intervals, as `recalibrate` makes it.

    Attributes
    ----------
    estimator : estimator
        The model, unchanged.
    method : {"conformal", "pit"}
        How intervals are corrected.
    values : tuple of ndarray
        For each output, the sorted standardized errors or transforms of its held-out entries.
    """

    def __init__(self, estimator, method: str, values: tuple[np.ndarray, ...]):
        self.estimator, self.method, self.values = estimator, method, values

    def predict(self, X, **options):
        """Predict as the model does, whose mean is not changed.

        Parameters
        ----------
        X : array-like of shape (m, d)
            Inputs.
        **options
            Options of the model's `predict`.

        Returns
        -------
        ndarray
            Predictions.
        """
        return self.estimator.predict(X, **options)

    def predict_interval(self, X, level=0.95) -> tuple[np.ndarray, np.ndarray]:
        """Predict intervals of new observations with equal tails.

        Parameters
        ----------
        X : array-like of shape (m, d)
            Inputs.
        level : float, default=0.95
            Probability that an interval contains the observation.

        Returns
        -------
        lower, upper : ndarray of shape (m, p), or (m,) if predictions are one-dimensional
            Ends.

        Raises
        ------
        InputError
            If an output has too few held-out entries for the level: fewer than 2/(1 − level) − 1.
        """
        tail = (1 - check_probability("level", level)) / 2
        positions = [self._positions(a, tail, level) for a in range(len(self.values))]
        found = self.estimator.predictive(X)
        ends = []
        for side in range(2):
            column = [self._value(found, a, self.values[a][position[side]]) for a, position in enumerate(positions)]
            ends.append(np.column_stack(column))
        flat = np.ndim(self.estimator.predict(X)) == 1
        return tuple(end[:, 0] if flat else end for end in ends)

    def _positions(self, output: int, tail: float, level: float) -> tuple[int, int]:
        """Return the indices of the order statistics of both ends."""
        count = len(self.values[output])
        low = math.floor((count + 1) * tail * (1 + 1e-12)) - 1
        if low < 0:
            raise InputError(
                f"level must be at most {max(1 - 2 / (count + 1), 0):.3g} for an output with {count} held-out entries, got {level:g}. Recalibrate on more rows."
            )
        return low, count - 1 - low

    def _value(self, found, output: int, value: float) -> np.ndarray:
        if self.method == "conformal":
            return found.mean[:, output] + value * found.std[:, output]
        return found.quantile(float(np.clip(value, MIN_TAIL, 1 - MIN_TAIL)))[:, output]


def recalibrate(estimator, X, Y, *, method="conformal") -> RecalibratedModel:
    """Correct the intervals of a fitted model on rows that were held out of its fit.

    Parameters
    ----------
    estimator : estimator
        Fitted estimator with predictive distributions.
    X, Y : array-like of shape (m, d) and (m, p) or (m,)
        Held-out rows, NaN in Y where missing. They must not be training rows.
    method : {"conformal", "pit"}, default="conformal"
        "conformal" scales intervals by quantiles of the standardized errors; "pit" maps quantile levels by the distribution of
        probability integral transforms, and keeps the shape of the predictive distribution.

    Returns
    -------
    RecalibratedModel
        Model with `predict` and `predict_interval`. It can be pickled.

    Raises
    ------
    InputError
        If an output has no observations.
    OptionError
        If the model has no predictive distributions.

    References
    ----------
    Kuleshov, Fenner & Ermon (2018), "Accurate uncertainties for deep learning using calibrated regression"; Lei et al. (2018),
    "Distribution-free predictive inference for regression".

    Examples
    --------
    >>> import numpy as np
    >>> import ovkgp
    >>> from ovkgp.criticism import recalibrate
    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(0, 6, (400, 1))
    >>> y = np.sin(X[:, 0]) + 0.3 * rng.normal(size=400)
    >>> model = ovkgp.OVKRidge(lam=0.01).fit(X[:100], y[:100])  # the noise is 0.09
    >>> lower, upper = recalibrate(model, X[100:200], y[100:200]).predict_interval(X[200:], 0.9)
    >>> inside = (lower <= y[200:]) & (y[200:] <= upper)
    >>> bool(0.85 < inside.mean() < 0.96)
    True
    """
    check_one_of("method", method, METHODS)
    check_estimator(estimator)
    entries = estimator.predictive(X).at(estimator.check_rows(X, Y)[1])
    found = (entries.Y - entries.mean) / entries.std if method == "conformal" else entries.pit()
    values = tuple(np.sort(column[np.isfinite(column)]) for column in found.T)
    for a, column in enumerate(values):
        if not len(column):
            raise InputError(f"Y has no observed values of output {a}. Pass rows in which it is observed.")
    return RecalibratedModel(estimator, method, values)
