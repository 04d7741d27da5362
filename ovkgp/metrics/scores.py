"""Scores of predictions whose observations may be missing (NaN), as functions of arrays and as scikit-learn scorers.

    scores  r2_score, log_density (larger is better)        losses  rmse, pinball, crps, energy_score (smaller is better)

Each function averages over the observed entries of an output and then over the outputs; the energy score averages over rows.
`scorers` holds ready `scoring=` arguments, all of which are larger for better models; `make_scorer` sets their options.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from inspect import signature

import numpy as np
from scipy.spatial.distance import pdist
from scipy.special import ndtr
from sklearn.metrics import r2_score as complete_r2_score
from sklearn.utils import _safe_indexing

from ovkgp.checks import as_numbers, check_integer
from ovkgp.exceptions import InputError, OptionError
from ovkgp.scales import unit_of

DEFAULT_LEVELS = (0.1, 0.3, 0.5, 0.7, 0.9)  # levels of the pinball loss
NUM_NODES = 200  # number of Gauss–Legendre nodes on each side of y, for the CRPS of a distribution function
MAX_JOINT_ENTRIES = 500  # number of entries that are drawn jointly at once


def r2_score(Y, mean, *, sample_weight=None, multioutput="uniform_average"):
    """Compute R² over the observed entries of each output.

    Parameters
    ----------
    Y : array-like of shape (m, p) or (m,)
        Observations, NaN where missing.
    mean : array-like of the shape of Y
        Predictions.
    sample_weight : array-like of shape (m,) or None, default=None
        Weights of the rows.
    multioutput : {"uniform_average", "raw_values"}, default="uniform_average"
        Whether to average over the outputs or to return one value per output. R² needs two observed entries: other outputs are
        NaN among the raw values and are omitted from the average.

    Returns
    -------
    float, or ndarray of shape (p,)
        R².

    Raises
    ------
    InputError
        If no output has two observed entries.

    Examples
    --------
    >>> from ovkgp.metrics import r2_score
    >>> r2_score([[1.0, 5.0], [2.0, float("nan")], [3.0, 7.0]], [[1.0, 5.5], [2.5, 0.0], [3.0, 7.0]])
    0.875
    """
    Y, mean = check_tables(Y, mean)
    weight, observed = _weights(Y, sample_weight), ~np.isnan(Y)
    Y, mean = (values / unit_of(np.nanmax(np.abs(Y), 0, initial=0.0)) for values in (Y, mean))
    found, known = np.full(Y.shape[1], np.nan), observed.sum(0) > 1
    for a in np.flatnonzero(known):
        s = observed[:, a]
        found[a] = complete_r2_score(Y[s, a], mean[s, a], sample_weight=weight[s])
    return combine_outputs(found, known, multioutput, "two observed values")


def root_mean_squared_error(Y, mean, *, sample_weight=None, multioutput="uniform_average"):
    """Compute the root mean squared error over the observed entries of each output.

    Parameters
    ----------
    Y, mean, sample_weight
        As for `r2_score`.
    multioutput : {"uniform_average", "raw_values"}, default="uniform_average"
        Whether to average over the outputs or to return one value per output, NaN for outputs without observed entries.

    Returns
    -------
    float, or ndarray of shape (p,)
        Root mean squared error.

    Examples
    --------
    >>> from ovkgp.metrics import root_mean_squared_error
    >>> round(root_mean_squared_error([1.0, 2.0, float("nan")], [1.0, 4.0, 0.0]) ** 2, 6)
    2.0
    """
    Y, mean = check_tables(Y, mean)
    errors = Y - mean
    unit = unit_of(np.nanmax(np.abs(errors), 0, initial=0.0))
    errors = unit * np.sqrt(average_observed(Y, (errors / unit) ** 2, sample_weight, "raw_values"))
    return combine_outputs(errors, ~np.isnan(errors), multioutput)


def log_density_gaussian(Y, mean, std, *, sample_weight=None, multioutput="uniform_average"):
    """Compute the mean log density of the observed entries under normal predictions.

    Parameters
    ----------
    Y, mean, sample_weight, multioutput
        As for `root_mean_squared_error`.
    std : array-like of the shape of Y
        Standard deviations of new observations, including the noise.

    Returns
    -------
    float, or ndarray of shape (p,)
        Mean log density.

    Examples
    --------
    >>> from ovkgp.metrics import log_density_gaussian
    >>> round(log_density_gaussian([0.0, float("nan")], [0.0, 0.0], [1.0, 1.0]), 4)
    -0.9189
    """
    Y, mean, std = check_tables(Y, mean, std)
    values = -(np.log(2 * np.pi) + 2 * np.log(_check_std(std)) + ((Y - mean) / std) ** 2) / 2
    return average_observed(Y, values, sample_weight, multioutput)


def crps_gaussian(Y, mean, std, *, sample_weight=None, multioutput="uniform_average"):
    """Compute the mean continuous ranked probability score of normal predictions, in closed form.

    Parameters
    ----------
    Y, mean, std, sample_weight, multioutput
        As for `log_density_gaussian`.

    Returns
    -------
    float, or ndarray of shape (p,)
        ∫ (F(z) − 1{y ≤ z})² dz in the units of the output; smaller is better.

    Examples
    --------
    >>> from ovkgp.metrics import crps_gaussian
    >>> round(crps_gaussian([0.0], [0.0], [1.0]), 4)
    0.2337
    """
    Y, mean, std = check_tables(Y, mean, std)
    z = (Y - mean) / _check_std(std)
    density = np.exp(-(z**2) / 2) / np.sqrt(2 * np.pi)
    values = std * (z * (2 * ndtr(z) - 1) + 2 * density - 1 / np.sqrt(np.pi))
    return average_observed(Y, values, sample_weight, multioutput)


def crps_from_cdf(Y, cdf, scale, *, sample_weight=None, multioutput="uniform_average"):
    """Compute the mean continuous ranked probability score of continuous distributions by quadrature.

    Parameters
    ----------
    Y, sample_weight, multioutput
        As for `root_mean_squared_error`.
    cdf : callable
        Distribution functions: maps z (m, p) to P(y′ ≤ z) (m, p).
    scale : array-like of the shape of Y
        Positive widths over which the distributions vary around y, such as std + |y − mean|. They affect the accuracy only.

    Returns
    -------
    float, or ndarray of shape (p,)
        ∫_{z<y} F(z)² dz + ∫_{z≥y} (1 − F(z))² dz.

    Notes
    -----
    Complexity: 400 evaluations of `cdf`. With z = y ± scale t/(1 − t) both integrals are over (0, 1).

    Examples
    --------
    >>> import numpy as np
    >>> from scipy.stats import norm
    >>> from ovkgp.metrics import crps_from_cdf
    >>> round(crps_from_cdf([0.0], norm.cdf, [1.0]), 4)
    0.2337
    """
    Y, scale = check_tables(Y, scale)
    nodes, weights = np.polynomial.legendre.leggauss(NUM_NODES)
    at, total = np.nan_to_num(Y), np.zeros(Y.shape)
    for t, weight in zip((nodes + 1) / 2, weights / 2, strict=True):
        gap, slope = scale * t / (1 - t), weight * scale / (1 - t) ** 2
        total += slope * (cdf(at - gap) ** 2 + (1 - cdf(at + gap)) ** 2)
    return average_observed(Y, total, sample_weight, multioutput)


def crps_from_draws(Y, draws, *, sample_weight=None, multioutput="uniform_average"):
    """Estimate the mean continuous ranked probability score from draws, without bias.

    Parameters
    ----------
    Y, sample_weight, multioutput
        As for `root_mean_squared_error`.
    draws : array-like of shape (m, p, k), or (m, k) for Y (m,)
        At least two draws of new observations, such as `model.sample_y(X, 500)`.

    Returns
    -------
    float, or ndarray of shape (p,)
        mean_i |y_i − y| − ½ mean_{i≠j} |y_i − y_j|.

    Notes
    -----
    Complexity: O(m p k log k).

    Examples
    --------
    >>> from ovkgp.metrics import crps_from_draws
    >>> crps_from_draws([1.0], [[0.0, 2.0]])
    0.0
    """
    Y, draws = _tables_and_draws(Y, draws)
    k, ordered = draws.shape[-1], np.sort(draws, -1)
    rank = 2 * np.arange(1, k + 1) - k - 1
    distance = 2 * (ordered @ rank) / (k * (k - 1))  # mean |y_i − y_j| over the pairs
    return average_observed(Y, np.abs(draws - Y[..., None]).mean(-1) - distance / 2, sample_weight, multioutput)


def energy_score(Y, draws, *, sample_weight=None):
    """Estimate the mean energy score of joint predictions of all outputs from draws, without bias.

    It generalizes the CRPS to vectors and assesses the dependence between outputs. Outputs enter in their units: divide `Y` and
    `draws` by the scales of the outputs if these differ.

    Parameters
    ----------
    Y : array-like of shape (m, p) or (m,)
        Observations, NaN where missing. A row is scored on its observed outputs; rows without any are omitted.
    draws : array-like of shape (m, p, k), or (m, k) for Y (m,)
        At least two joint draws of new observations, such as `model.sample_y(X, 500)`.
    sample_weight : array-like of shape (m,) or None, default=None
        Weights of the rows.

    Returns
    -------
    float
        mean_i ‖y_i − y‖ − ½ mean_{i≠j} ‖y_i − y_j‖, averaged over the rows.

    Notes
    -----
    Complexity: O(m p k²).

    Examples
    --------
    >>> from ovkgp.metrics import energy_score
    >>> energy_score([[3.0, 4.0]], [[[0.0, 0.0], [0.0, 0.0]]])
    5.0
    """
    Y, draws = _tables_and_draws(Y, draws)
    found = np.full((len(Y), 1), np.nan)
    for row in np.flatnonzero(~np.isnan(Y).all(1)):
        observed = ~np.isnan(Y[row])
        sample = draws[row, observed].T
        found[row] = np.linalg.norm(sample - Y[row, observed], axis=1).mean() - pdist(sample).mean() / 2
    return average_observed(found, found, sample_weight)


def coverage(Y, lower, upper, *, sample_weight=None, multioutput="uniform_average"):
    """Compute the fraction of the observed entries that lie in their intervals, ends included.

    Parameters
    ----------
    Y, sample_weight, multioutput
        As for `root_mean_squared_error`.
    lower, upper : array-like of the shape of Y
        Ends of the intervals, such as `model.predict_interval(X, level)`.

    Returns
    -------
    float, or ndarray of shape (p,)
        Fraction, to be compared with the level of the intervals.

    Examples
    --------
    >>> from ovkgp.metrics import coverage
    >>> coverage([0.0, 2.0, float("nan")], [-1.0, -1.0, -1.0], [1.0, 1.0, 1.0])
    0.5
    """
    Y, lower, upper = check_tables(Y, lower, upper)
    return average_observed(Y, (lower <= Y) & (upper >= Y), sample_weight, multioutput)


def pinball_loss(Y, quantiles, levels, *, sample_weight=None, multioutput="uniform_average"):
    """Compute the mean pinball loss of predicted quantiles over the observed entries and the levels.

    Parameters
    ----------
    Y, sample_weight, multioutput
        As for `root_mean_squared_error`.
    quantiles : array-like of shape (m, p, q), or (m, q) for Y (m,)
        Predicted quantiles, such as `model.predict_quantiles(X, levels)`.
    levels : array-like of shape (q,)
        Levels strictly between 0 and 1.

    Returns
    -------
    float, or ndarray of shape (p,)
        Mean of max(τ (y − q), (τ − 1) (y − q)); smaller is better.

    Examples
    --------
    >>> from ovkgp.metrics import pinball_loss
    >>> round(pinball_loss([1.0], [[0.0, 2.0]], [0.1, 0.9]), 6)
    0.1
    """
    levels = np.atleast_1d(np.asarray(levels, dtype=float))
    if levels.ndim != 1 or not ((levels > 0) & (levels < 1)).all():
        raise OptionError(f"levels must be numbers strictly between 0 and 1, got {levels.tolist()!r}.")
    Y, quantiles = _tables_and_draws(Y, quantiles, "quantiles", len(levels))
    gaps = Y[..., None] - quantiles
    return average_observed(Y, np.maximum(levels * gaps, (levels - 1) * gaps).mean(-1), sample_weight, multioutput)


def check_tables(Y, *predictions) -> list[np.ndarray]:
    """Return Y (m, p) and predictions of the same shape."""
    Y = as_numbers(Y, "Y")
    if Y.ndim not in (1, 2) or not Y.size:
        raise InputError(f"Y has shape {Y.shape}, expected (m, p) or (m,) with at least one entry.")
    if np.isinf(Y).any():
        raise InputError("Y must be finite, or NaN where missing, got infinity.")
    table = Y.reshape(len(Y), -1)
    found = [as_numbers(array, "A prediction") for array in predictions]
    for array in found:
        if array.shape not in (Y.shape, table.shape):
            raise InputError(f"Predictions must have the shape {Y.shape} of Y, got {array.shape}.")
    return [table, *(_check_predicted(table, array.reshape(table.shape)) for array in found)]


def _tables_and_draws(Y, draws, name: str = "draws", number: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Return Y (m, p) and draws or quantiles (m, p, k)."""
    (table,), draws = check_tables(Y), as_numbers(draws, name)
    if draws.ndim == 2 and table.shape[1] == 1:
        draws = draws[:, None]
    if draws.ndim != 3 or draws.shape[:2] != table.shape or number not in (None, draws.shape[2]):
        expected = f"({len(table)}, {table.shape[1]}, {'k' if number is None else number})"
        raise InputError(f"{name} has shape {draws.shape}, expected {expected}.")
    if number is None and draws.shape[2] < 2:
        raise InputError(f"{name} must hold at least 2 draws of each entry, got {draws.shape[2]}.")
    return table, _check_predicted(table, draws)


def _check_predicted(Y: np.ndarray, predicted: np.ndarray) -> np.ndarray:
    """Return predictions, which may be NaN only where Y is."""
    if np.isnan(predicted[~np.isnan(Y)]).any():
        raise InputError("Predictions must be numbers wherever Y is observed, got NaN.")
    return predicted


def _check_std(std: np.ndarray) -> np.ndarray:
    if (std <= 0).any():
        raise InputError(f"std must be positive, got {std.min()}.")
    return std


def _weights(Y: np.ndarray, sample_weight) -> np.ndarray:
    weight = np.ones(len(Y)) if sample_weight is None else np.asarray(sample_weight, dtype=float)
    if weight.shape != Y.shape[:1] or not (weight >= 0).all():
        raise InputError(f"sample_weight must be {len(Y)} nonnegative numbers, got shape {weight.shape}.")
    return weight


def average_observed(Y: np.ndarray, values: np.ndarray, sample_weight, multioutput: str = "uniform_average"):
    """Average values (m, p) over the rows in which Y (m, p) is observed, and then over outputs."""
    weight = np.where(np.isnan(Y), 0.0, _weights(Y, sample_weight)[:, None])
    total = weight.sum(0)
    sums = (weight * np.where(weight > 0, values, 0.0)).sum(0)
    return combine_outputs(sums / np.where(total > 0, total, 1.0), total > 0, multioutput)


def combine_outputs(found: np.ndarray, known: np.ndarray, multioutput: str, needed: str = "observed values"):
    """Return values of outputs (p,), NaN where unknown, or the average of the known ones."""
    if multioutput not in ("uniform_average", "raw_values"):
        raise OptionError(f'multioutput must be "uniform_average" or "raw_values", got {multioutput!r}.')
    if not known.any():
        raise InputError(f"Y has no output with {needed}. Pass more observations.")
    return np.where(known, found, np.nan) if multioutput == "raw_values" else float(found[known].mean())


class Scorer:
    """A `scoring=` argument of scikit-learn: `scorer(estimator, X, y)` is a number that is larger for better models.

    Instances come from `make_scorer` and `scorers`; they can be pickled.
    """

    def __init__(self, name: str, **options):
        self.name, self.options = name, options

    def __call__(self, estimator, X, y, sample_weight=None) -> float:
        """Score a fitted estimator, or a pipeline that ends in one, on rows X (m, d) and y (m, p), NaN where missing."""
        estimator, X = _last_step(estimator, X)
        sign, score = SCORES[self.name]
        return sign * float(
            score(estimator, X, _read_outputs(estimator, y), sample_weight=sample_weight, **self.options)
        )

    def __repr__(self) -> str:
        options = "".join(f", {name}={value!r}" for name, value in self.options.items())
        return f"make_scorer({self.name!r}{options})"


def _read_outputs(estimator, y) -> np.ndarray:
    """Return y as numbers; an estimator that was fitted to dates or durations converts them as in its fit."""
    if getattr(estimator, "output_times_", None) is None:
        return as_numbers(y, "y")
    table = estimator._outputs(y, None)
    return table[:, 0] if np.ndim(y) == 1 else table


def _last_step(estimator, X):
    """Return the last step of a pipeline or search, and the inputs that reach it."""
    estimator = getattr(estimator, "best_estimator_", estimator)
    if hasattr(estimator, "steps"):
        X = estimator[:-1].transform(X) if len(estimator.steps) > 1 else X
        return _last_step(estimator.steps[-1][1], X)
    return estimator, X


def _of_means(function: Callable, estimator, X, Y, **options) -> float:
    return function(Y, estimator.predict(X), **options)


def _log_density(estimator, X, Y, **options) -> float:
    found, (table,) = _predictive(estimator, X), check_tables(Y)
    if found.log_density is None:
        raise OptionError(
            f'{type(estimator).__name__} has no predictive density. Use the scorer "neg_crps" or "neg_pinball_loss".'
        )
    return average_observed(table, _check_predicted(table, found.log_density(table)), **options)


def _crps(estimator, X, Y, n_samples: int = 1000, **options) -> float:
    found, (table,) = _predictive(estimator, X), check_tables(Y)
    if found.is_gaussian:
        return crps_gaussian(table, found.mean, found.std, **options)
    if found.cdf_below is found.cdf:
        scale = found.std + np.abs(np.where(np.isnan(table), 0.0, table - found.mean))
        return crps_from_cdf(table, found.cdf, scale, **options)
    return crps_from_draws(table, np.concatenate([*_draws(estimator, X, table, n_samples)]), **options)


def _energy_score(estimator, X, Y, n_samples: int = 500, **options) -> float:
    (table,) = check_tables(Y)
    return energy_score(table, np.concatenate([*_draws(estimator, X, table, n_samples)]), **options)


def _coverage_error(estimator, X, Y, level: float = 0.9, **options) -> float:
    if not 0 < level < 1:
        raise OptionError(f"level must lie strictly between 0 and 1, got {level!r}.")
    found = coverage(Y, *_method(estimator, "predict_interval")(X, level), multioutput="raw_values", **options)
    return float(np.nanmean(np.abs(found - level)))


def _pinball(estimator, X, Y, levels=DEFAULT_LEVELS, **options) -> float:
    if hasattr(estimator, "predict_quantiles"):
        quantiles = estimator.predict_quantiles(X, list(levels))
    elif "quantiles" in signature(estimator.predict).parameters:
        quantiles = estimator.predict(X, quantiles=list(levels))
    else:
        found = _predictive(estimator, X)
        quantiles = np.stack([found.quantile(level) for level in levels], -1)
        Y = check_tables(Y)[0]
    return pinball_loss(Y, quantiles, levels, **options)


def _predictive(estimator, X):
    return _method(estimator, "predictive")(X)


def _method(estimator, name: str) -> Callable:
    if not hasattr(estimator, name):
        raise OptionError(
            f'This scorer needs an estimator with predictive distributions, got {type(estimator).__name__}. Use "r2" or "neg_rmse", or a GPRegressor.'
        )
    return getattr(estimator, name)


def _draws(estimator, X, Y: np.ndarray, n_samples: int) -> Iterator[np.ndarray]:
    """Yield draws (rows, p, k) of chunks of rows, since all rows together have a large joint covariance."""
    sample, p = _method(estimator, "sample_y"), Y.shape[1]
    step = max(MAX_JOINT_ENTRIES // p, 1)
    for start in range(0, len(Y), step):
        rows = np.arange(start, min(start + step, len(Y)))
        found = sample(_safe_indexing(X, rows), check_integer("n_samples", n_samples, minimum=2))
        yield np.reshape(found, (len(rows), p, n_samples))


SCORES: dict[str, tuple[int, Callable]] = {
    "r2": (1, partial(_of_means, r2_score)),
    "neg_rmse": (-1, partial(_of_means, root_mean_squared_error)),
    "log_density": (1, _log_density),
    "neg_crps": (-1, _crps),
    "neg_energy_score": (-1, _energy_score),
    "neg_coverage_error": (-1, _coverage_error),
    "neg_pinball_loss": (-1, _pinball),
}
"""Sign and function (estimator, X, Y, sample_weight, options) of each scorer."""
OPTIONS = {
    "neg_crps": "n_samples",
    "neg_energy_score": "n_samples",
    "neg_coverage_error": "level",
    "neg_pinball_loss": "levels",
}
"""Option of each scorer that has one."""


def make_scorer(name: str, **options) -> Scorer:
    """Make a `scoring=` argument for `cross_val_score`, `GridSearchCV` and the like that skips missing observations.

    Parameters
    ----------
    name : str
        "r2" and "neg_rmse" score means, of any regressor. "log_density", "neg_crps" and "neg_coverage_error" (−|coverage − level|)
        score the distribution of each entry, "neg_energy_score" the joint distribution of the outputs of a row, and
        "neg_pinball_loss" quantiles. Larger is better for all.
    **options
        `level=0.9` of "neg_coverage_error", `levels=(0.1, 0.3, 0.5, 0.7, 0.9)` of "neg_pinball_loss", `n_samples=500` of
        "neg_energy_score", and `n_samples=1000` of "neg_crps", which draws for labels and counts only. Draws use the seed 0.

    Returns
    -------
    Scorer
        Callable (estimator, X, y) → float.

    Raises
    ------
    OptionError
        If the name or an option is unknown.

    See Also
    --------
    scorers : Scorers with their default options, by name.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.model_selection import cross_val_score
    >>> import ovkgp
    >>> X = np.linspace(0, 6, 60)[:, None]
    >>> Y = np.hstack([np.sin(X), np.cos(X)])
    >>> Y[::7, 0] = np.nan
    >>> scoring = ovkgp.metrics.make_scorer("neg_crps")
    >>> cross_val_score(ovkgp.OVKRidge(lam=1e-3), X, Y, scoring=scoring, cv=3).shape
    (3,)
    """
    if name not in SCORES:
        raise OptionError(f"name must be one of {', '.join(map(repr, SCORES))}, got {name!r}.")
    known = OPTIONS.get(name, "none")
    if unknown := sorted(set(options) - {known}):
        raise OptionError(f"options of {name!r} must be among: {known}; got {', '.join(unknown)}.")
    return Scorer(name, **options)


scorers: dict[str, Scorer] = {name: Scorer(name) for name in SCORES}
"""Scorers with their default options, by name: `cross_validate(model, X, Y, scoring=ovkgp.metrics.scorers)`."""
