"""Scores of predicted curves and summaries of repeated experiments (BO-106). Curves are rows, with NaN where a point is missing."""

from __future__ import annotations

import numpy as np

from ovkgp.checks import as_numbers, check_nonnegative, check_positive
from ovkgp.exceptions import InputError
from ovkgp.metrics.scores import average_observed, check_tables, combine_outputs


def curve_squared_error(Y, predicted, *, normalize: bool = False) -> float:
    """Compute the mean over curves of the squared error, summed over the observed points of a curve.

    Parameters
    ----------
    Y : array-like of shape (n, m)
        Observed curves, NaN where missing.
    predicted : array-like of shape (n, m)
        Predicted curves.
    normalize : bool, default=False
        Whether to average over the observed points of a curve instead of summing (NMSE); curves without observed points are omitted.

    Returns
    -------
    float
        (1/n) Σ_i Σ_s (ŷ_i(t_s) − y_is)², divided by the number of points of each curve if normalized.

    References
    ----------
    BO-106

    Examples
    --------
    >>> from ovkgp.metrics import curve_squared_error
    >>> Y, predicted = [[0.0, 0.0, float("nan")], [1.0, 1.0, 1.0]], [[1.0, 1.0, 5.0], [1.0, 1.0, 4.0]]
    >>> curve_squared_error(Y, predicted), curve_squared_error(Y, predicted, normalize=True)
    (5.5, 2.0)
    """
    Y, predicted = check_tables(Y, predicted)
    observed = ~np.isnan(Y)
    sums, counts = np.where(observed, (predicted - Y) ** 2, 0.0).sum(1), observed.sum(1)
    if not counts.any():
        raise InputError("Y has no observed values. Pass more observations.")
    return float((sums[counts > 0] / counts[counts > 0]).mean() if normalize else sums.mean())


def normalized_rmse(Y, predicted, *, multioutput="uniform_average"):
    """Compute the root mean squared error of each column divided by the mean of its observed values.

    Parameters
    ----------
    Y, predicted : array-like of shape (n, m) or (n,)
        Observations, NaN where missing, and predictions.
    multioutput : {"uniform_average", "raw_values"}, default="uniform_average"
        Whether to average over the columns or to return one value per column.

    Returns
    -------
    float, or ndarray of shape (m,)
        NRMSE; meaningful for positive quantities such as speeds.

    References
    ----------
    BO-106

    Examples
    --------
    >>> from ovkgp.metrics import normalized_rmse
    >>> normalized_rmse([1.0, 3.0], [2.0, 2.0])
    0.5
    """
    Y, predicted = check_tables(Y, predicted)
    errors = np.sqrt(average_observed(Y, (Y - predicted) ** 2, None, "raw_values"))
    return combine_outputs(errors / average_observed(Y, Y, None, "raw_values"), ~np.isnan(errors), multioutput)


def rmse_degradation(errors) -> np.ndarray:
    """Compute the mean difference of the errors of each predictor from those of the best one, per split and horizon.

    Parameters
    ----------
    errors : array-like of shape (f, s, m) or (f, m)
        Errors, such as normalized RMSE, of f predictors on s splits at m horizons.

    Returns
    -------
    ndarray of shape (f,)
        Average degradation; 0 for a predictor that is the best everywhere.

    References
    ----------
    BO-106

    Examples
    --------
    >>> from ovkgp.metrics import rmse_degradation
    >>> rmse_degradation([[0.5, 1.0], [1.0, 0.5]]).tolist()
    [0.25, 0.25]
    """
    errors = np.asarray(errors, dtype=float)
    if errors.ndim < 2 or not np.isfinite(errors).all():
        raise InputError(f"errors must be finite and have shape (f, s, m) or (f, m), got shape {errors.shape}.")
    return (errors - errors.min(0)).reshape(len(errors), -1).mean(1)


def signal_to_noise(Y, noise_std: float) -> float:
    """Compute the mean absolute value of curves, over their observed points, divided by the standard deviation of the noise.

    Parameters
    ----------
    Y : array-like of shape (n, m)
        Curves, NaN where missing.
    noise_std : float
        Standard deviation σ of the noise.

    Returns
    -------
    float
        (1/(σn)) Σ_i mean_s |y_is|.

    References
    ----------
    BO-106

    Examples
    --------
    >>> from ovkgp.metrics import signal_to_noise
    >>> signal_to_noise([[1.0, -3.0], [2.0, float("nan")]], 0.5)
    4.0
    """
    (Y,) = check_tables(Y)
    kept = Y[~np.isnan(Y).all(1)]
    return float(np.nanmean(np.abs(kept), 1).mean() / check_positive("noise_std", noise_std))


def median_and_mad(values) -> tuple[float, float]:
    """Compute the median and the median absolute deviation from it, a summary of repetitions with outlying results.

    Parameters
    ----------
    values : array-like of shape (r,)
        Results of r repetitions.

    Returns
    -------
    median, deviation : float
        Median and median of |value − median|.

    References
    ----------
    BO-106

    Examples
    --------
    >>> from ovkgp.metrics import median_and_mad
    >>> median_and_mad([1.0, 2.0, 3.0, 100.0])
    (2.5, 1.0)
    """
    values = as_numbers(values, "values")
    if not values.size or not np.isfinite(values).all():
        raise InputError("values must be finite numbers, at least one.")
    middle = np.median(values)
    return float(middle), float(np.median(np.abs(values - middle)))


def sparsity(coefficients, tolerance: float = 0.0) -> float:
    """Compute the fraction of coefficients that are zero.

    Parameters
    ----------
    coefficients : array-like
        Coefficients, such as the dual ones of a sparse regression.
    tolerance : float, default=0.0
        Largest absolute value that counts as zero.

    Returns
    -------
    float
        Fraction in [0, 1].

    References
    ----------
    BO-106

    Examples
    --------
    >>> from ovkgp.metrics import sparsity
    >>> sparsity([[0.0, 1.0], [0.0, 0.0]])
    0.75
    """
    coefficients = np.asarray(coefficients, dtype=float)
    if not coefficients.size:
        raise InputError("coefficients must not be empty.")
    return float(np.mean(np.abs(coefficients) <= check_nonnegative("tolerance", tolerance)))


def simultaneous_coverage(Y, lower, upper) -> float:
    """Compute the fraction of curves that lie in their bands at all observed points.

    Parameters
    ----------
    Y : array-like of shape (n, m)
        Curves, NaN where missing.
    lower, upper : array-like of shape (n, m)
        Ends of simultaneous bands.

    Returns
    -------
    float
        Fraction of the curves with observed points, to be compared with the level of the bands.

    Examples
    --------
    >>> from ovkgp.metrics import simultaneous_coverage
    >>> simultaneous_coverage([[0.0, 0.0], [0.0, 2.0]], [[-1.0, -1.0]] * 2, [[1.0, 1.0]] * 2)
    0.5
    """
    Y, lower, upper = check_tables(Y, lower, upper)
    observed = ~np.isnan(Y)
    if not observed.any():
        raise InputError("Y has no observed values. Pass more observations.")
    inside = (lower <= Y) & (upper >= Y)
    return float((inside | ~observed).all(1)[observed.any(1)].mean())
