"""Backtests: forecasts from many origins of a series, each from the rows before it only, and their scores.

`backtest` returns one row per fold, horizon and output, `score_backtest` averages these by any columns, and `compare_backtests` is
the test of Diebold and Mariano.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pandas as pd
from joblib import Parallel, delayed, effective_n_jobs, parallel_config
from scipy.stats import t as student
from sklearn.base import clone

from ovkgp.checks import as_seed, check_integer, check_one_of, check_probability
from ovkgp.estimators.series.forecast import Forecast
from ovkgp.estimators.series.series_data import SeriesFormat, read_series
from ovkgp.exceptions import InputError, OptionError
from ovkgp.metrics import crps_from_draws, crps_gaussian, energy_score, pinball_loss
from ovkgp.metrics.scores import DEFAULT_LEVELS

STRATEGIES = ("update", "refit", "no-update")
ENTRY_COLUMNS = {  # column of each score in the table of `backtest`
    "rmse": "squared_error",
    "mase": "scaled_error",
    "crps": "crps",
    "pinball": "pinball",
    "energy_score": "energy_score",
    "coverage": "covered",
}
DEFAULT_SCORING = tuple(ENTRY_COLUMNS)


def backtest(
    forecaster,
    series,
    cv,
    *,
    strategy="update",
    scoring=DEFAULT_SCORING,
    season=1,
    n_samples=1000,
    level=0.9,
    random_state=0,
    n_jobs=None,
    backend=None,
) -> pd.DataFrame:
    """Forecast a series from many origins and score each forecast with the rows that follow.

    The forecast of a fold is computed from its training rows only, and from future values of exogenous columns if there are any.

    Parameters
    ----------
    forecaster : forecaster
        Object with `fit(series)`, `forecast(steps, history=None, ...)` that returns a `Forecast`, for `strategy="update"` also
        `update(series, drop)`, and scikit-learn's `get_params`, such as `PersistenceForecaster`. It is cloned.
    series : array-like of shape (T, p) or (T,)
        One series with equally spaced stamps, up to gaps, which become rows of missing values. If the forecaster has an option `exog`,
        the columns that it names are not scored, and their values at the forecast steps are passed as known.
    cv : splitter
        Object with `split(series)`, such as `rolling_splits(...)` or splitters of scikit-learn (`TimeSeriesSplit`) and sktime. Training
        rows are contiguous, test rows follow them, with any gaps.
    strategy : {"update", "refit", "no-update"}, default="update"
        "refit" fits to the training rows of each fold. "update" fits once, to those of the first fold, and then appends and forgets rows
        at the same hyperparameters. "no-update" fits once and forecasts from the rows of later folds with the fitted model.
    scoring : sequence of str, default=all
        Scores to compute, among "rmse", "mase", "crps", "pinball", "energy_score" and "coverage".
    season : int, default=1
        Number of steps per season in the scale of "mase".
    n_samples : int, default=1000
        Number of paths of each forecast.
    level : float, default=0.9
        Probability of the intervals.
    random_state : int, RandomState instance or None, default=0
        Seed of the paths. Those of a fold do not depend on the other folds.
    n_jobs : int or None, default=None
        Number of processes, as in joblib: None is 1 or that of `joblib.parallel_config`, −1 all cores.
    backend : str or None, default=None
        Backend of joblib: "loky", "threading", or a registered one, such as "dask", "ray" or "spark".

    Returns
    -------
    DataFrame
        One row per fold, horizon and output with the columns fold, origin (position of the row that follows the
        last training row), horizon, stamp (if there are stamps), output, observed, mean, lower,
        upper, the scores of the entry (squared_error; scaled_error, the absolute error over the mean absolute seasonal difference of
        the training rows; crps; pinball, averaged over the levels .1, .3, .5, .7 and .9; energy_score, joint for the outputs of the
        step; covered), NaN where nothing was observed, and seconds, the elapsed time of the fold for fit or update and forecast.

    Raises
    ------
    OptionError
        If test rows do not follow the training rows, or folds are not suitable for the strategy.

    See Also
    --------
    score_backtest : Averages of the scores by horizon, output or other columns.
    compare_backtests : Test whether two forecasters are equally accurate.

    Notes
    -----
    With `n_jobs` > 1 and "update", each process appends the rows up to its first fold at once: results do not depend on `n_jobs`
    if updates are exact.

    Examples
    --------
    >>> import numpy as np
    >>> import ovkgp
    >>> from ovkgp.estimators.series import backtest, rolling_splits, score_backtest
    >>> walk = np.random.default_rng(0).normal(size=200).cumsum()
    >>> found = backtest(ovkgp.PersistenceForecaster(), walk, rolling_splits(200, 100, horizon=3))
    >>> score_backtest(found)[["horizon", "rmse", "coverage"]].round(2)
       horizon  rmse  coverage
    0        1  0.96      0.87
    1        2  1.35      0.93
    2        3  1.70      0.90
    """
    check_one_of("strategy", strategy, STRATEGIES)
    for method in ("fit", "forecast", *(["update"] if strategy == "update" else [])):
        if not hasattr(forecaster, method):
            raise OptionError(
                f"forecaster must have the method {method} for strategy={strategy!r}, got {type(forecaster).__name__}. Use PersistenceForecaster or another forecaster of ovkgp."
            )
    scoring = _check_scoring(scoring)
    options = {
        "n_samples": check_integer("n_samples", n_samples, minimum=2),
        "level": check_probability("level", level),
    }
    data = read_series(series, regular=True)
    table = data.format.table(data.only().values, data.only().stamps)
    outputs, exog = _split_exog(forecaster, table)
    folds = _list_folds(cv, table, strategy)
    seeds = np.random.SeedSequence(as_seed(random_state)).generate_state(len(folds)).tolist()
    jobs = []
    for fold, seed in zip(folds, seeds, strict=True):
        known = {} if exog is None else {"exog": _rows(exog, fold.stop, fold.stop + int(fold.steps[-1]))}
        jobs.append((fold, {**options, **known, "random_state": seed}))
    with nullcontext() if backend is None else parallel_config(backend=backend):
        parallel = Parallel(n_jobs=n_jobs)
        if strategy == "refit":
            found = parallel(delayed(_refit)(clone(forecaster), table, *job) for job in jobs)
        else:
            start = time.perf_counter()
            fitted = clone(forecaster).fit(_rows(table, folds[0].start, folds[0].stop))
            first = time.perf_counter() - start
            run = _update_folds if strategy == "update" else _forecast_folds
            parts = _split_jobs(jobs, effective_n_jobs(n_jobs))
            results = parallel(delayed(run)(fitted, folds[0], table, part) for part in parts)
            found = [pair for pairs in results for pair in pairs]
            found[0] = found[0][0], found[0][1] + first
    scored = read_series(outputs, regular=True)
    scorer = _EntryScorer(scored.only().values, scored.format, check_integer("season", season), scoring)
    frames = [scorer.score(k, fold, *pair) for k, (fold, pair) in enumerate(zip(folds, found, strict=True))]
    return pd.concat(frames, ignore_index=True)


@dataclass(frozen=True)
class _Fold:
    """Training rows start, …, stop − 1, and the steps after them that are tested, from 1."""

    start: int
    stop: int
    steps: np.ndarray


def _check_scoring(scoring) -> tuple[str, ...]:
    names = (scoring,) if isinstance(scoring, str) else tuple(scoring)
    for name in names:
        check_one_of("scoring", name, ENTRY_COLUMNS)
    return names


def _split_exog(forecaster, table):
    """Return the columns that are forecast, and the exogenous columns that the option `exog` of the forecaster names, or None."""
    names = forecaster.get_params(deep=False).get("exog")
    if names is None:
        return table, None
    names = [str(name) for name in names]
    if not isinstance(table, pd.DataFrame) or not set(names) < set(table.columns):
        raise InputError(f"series must be a frame with the exogenous columns {names} and at least one more.")
    return table.drop(columns=names), table[names]


def _list_folds(cv, table, strategy: str) -> list[_Fold]:
    """Return the folds of a splitter; raise unless training rows are contiguous and before the test rows."""
    if not hasattr(cv, "split"):
        raise OptionError(
            f"cv must be a splitter with the method split, got {type(cv).__name__}. Use rolling_splits(n, initial, horizon)."
        )
    folds = []
    for train, test in cv.split(table):
        train, test = np.sort(np.asarray(train)), np.sort(np.asarray(test))
        if not len(train) or not len(test) or train[-1] - train[0] + 1 != len(train):
            raise OptionError(f"Training rows of fold {len(folds)} must be contiguous, and there must be test rows.")
        if test[0] <= train[-1]:
            raise OptionError(
                f"Test rows of fold {len(folds)} must follow the training rows, got row {test[0]} after {train[-1]}. Use rolling_splits or TimeSeriesSplit."
            )
        folds.append(_Fold(int(train[0]), int(train[-1]) + 1, test - train[-1]))
    if not folds:
        raise OptionError("cv must have at least one fold, got none. Use a smaller initial window.")
    if strategy == "update" and any(
        a.start > b.start or a.stop > b.stop or (a.stop == b.stop and a.start < b.start) for a, b in pairwise(folds)
    ):
        raise OptionError('Folds must be in the order of time with strategy="update". Use strategy="refit".')
    return folds


def _rows(table, start: int, stop: int):
    return getattr(table, "iloc", table)[start:stop]


def _split_jobs(jobs: Sequence, number: int) -> list[Sequence]:
    """Split jobs into at most `number` parts of consecutive folds."""
    ends = np.linspace(0, len(jobs), min(number, len(jobs)) + 1).astype(int)
    return [jobs[a:b] for a, b in pairwise(ends)]


def _refit(forecaster, table, fold: _Fold, options: dict) -> tuple[Forecast, float]:
    start = time.perf_counter()
    forecast = forecaster.fit(_rows(table, fold.start, fold.stop)).forecast(int(fold.steps[-1]), **options)
    return forecast, time.perf_counter() - start


def _update_folds(fitted, first: _Fold, table, jobs: Sequence) -> list[tuple[Forecast, float]]:
    """Update a copy of a fitted forecaster from fold to fold."""
    forecaster, known, found = copy.deepcopy(fitted), first, []
    for fold, options in jobs:
        start = time.perf_counter()
        if fold.stop > known.stop:
            forecaster.update(_rows(table, known.stop, fold.stop), drop=fold.start - known.start)
        forecast = forecaster.forecast(int(fold.steps[-1]), **options)
        found.append((forecast, time.perf_counter() - start))
        known = fold
    return found


def _forecast_folds(fitted, first: _Fold, table, jobs: Sequence) -> list[tuple[Forecast, float]]:
    """Forecast with the model of the first fold from the rows of each fold."""
    found = []
    for fold, options in jobs:
        start = time.perf_counter()
        history = None if (fold.start, fold.stop) == (first.start, first.stop) else _rows(table, fold.start, fold.stop)
        forecast = fitted.forecast(int(fold.steps[-1]), history, **options)
        found.append((forecast, time.perf_counter() - start))
    return found


@dataclass(frozen=True)
class _EntryScorer:
    """Scores of the entries of forecasts of one series with values (T, p)."""

    values: np.ndarray
    form: SeriesFormat
    season: int
    scoring: tuple[str, ...]

    def score(self, number: int, fold: _Fold, forecast: Forecast, seconds: float) -> pd.DataFrame:
        """Return one row per tested step and output of a fold."""
        rows, p = fold.steps - 1, self.form.num_outputs
        if list(forecast.output_names) != self.form.labels:
            raise InputError(
                f"The forecast must have the outputs {self.form.labels} of series, got {list(forecast.output_names)}."
            )
        observed = self.values[fold.stop + rows]
        mean, lower, upper = (_array(part, p)[rows] for part in (forecast.mean, forecast.lower, forecast.upper))
        columns = {
            "fold": np.full(observed.size, number),
            "origin": np.full(observed.size, fold.stop),
            "horizon": np.repeat(fold.steps, p),
        }
        if forecast.stamps is not None:
            columns["stamp"] = forecast.stamps[rows].repeat(p)
        columns |= {
            "output": np.tile(self.form.labels, len(rows)),
            "observed": observed.ravel(),
            "mean": mean.ravel(),
            "lower": lower.ravel(),
            "upper": upper.ravel(),
        }
        for name in self.scoring:
            entries = getattr(self, f"_{name}")(fold, forecast, observed, mean, lower, upper)
            columns[ENTRY_COLUMNS[name]] = np.where(np.isnan(observed), np.nan, entries).ravel()
        return pd.DataFrame(columns | {"seconds": np.full(observed.size, seconds)})

    def _rmse(self, fold, forecast, observed, mean, lower, upper) -> np.ndarray:
        return (observed - mean) ** 2

    def _mase(self, fold, forecast, observed, mean, lower, upper) -> np.ndarray:
        train = self.values[fold.start : fold.stop]
        changes = np.abs(train[self.season :] - train[: -self.season])
        counts = (~np.isnan(changes)).sum(0)
        scale = np.where(counts > 0, np.nansum(changes, 0), np.nan) / np.maximum(counts, 1)
        return np.abs(observed - mean) / np.where(scale > 0, scale, np.nan)

    def _crps(self, fold, forecast, observed, mean, lower, upper) -> np.ndarray:
        if forecast.paths is None:
            std = _array(forecast.std, observed.shape[1])[fold.steps - 1]
            return _each(crps_gaussian, observed, mean, std)
        return _each(crps_from_draws, observed, self._draws(fold, forecast))

    def _pinball(self, fold, forecast, observed, mean, lower, upper) -> np.ndarray:
        p, rows = observed.shape[1], fold.steps - 1
        quantiles = np.stack([_array(forecast.quantile(q), p)[rows] for q in DEFAULT_LEVELS], -1)
        return _each(pinball_loss, observed, quantiles, levels=DEFAULT_LEVELS)

    def _energy_score(self, fold, forecast, observed, mean, lower, upper) -> np.ndarray:
        found = np.full(observed.shape, np.nan)
        if forecast.paths is not None:
            draws = self._draws(fold, forecast)
            if observed.shape[1] == 1:  # the energy score of one output is the CRPS, which is faster
                return _each(crps_from_draws, observed, draws)
            for i in np.flatnonzero(~np.isnan(observed).all(1)):
                found[i] = energy_score(observed[i : i + 1], draws[i : i + 1])
        return found

    def _coverage(self, fold, forecast, observed, mean, lower, upper) -> np.ndarray:
        return ((lower <= observed) & (observed <= upper)).astype(np.float64)

    def _draws(self, fold: _Fold, forecast: Forecast) -> np.ndarray:
        """Return draws (steps, p, n_samples) of the tested steps."""
        return np.moveaxis(forecast.paths[:, fold.steps - 1], 0, -1)


def _array(values, p: int) -> np.ndarray:
    return np.asarray(values, dtype=np.float64).reshape(-1, p)


def _each(score, observed: np.ndarray, *predictions, **options) -> np.ndarray:
    """Return the score of each entry (steps, p), NaN where nothing was observed."""
    if np.isnan(observed).all():
        return np.full(observed.shape, np.nan)
    flat = [values.reshape(1, observed.size, *values.shape[2:]) for values in predictions]
    return score(observed.reshape(1, -1), *flat, multioutput="raw_values", **options).reshape(observed.shape)


def score_backtest(table, by="horizon") -> pd.DataFrame:
    """Average the scores of a backtest.

    Parameters
    ----------
    table : DataFrame
        Result of `backtest`, or several with a further column, such as the name of the model.
    by : str or sequence of str, default="horizon"
        Columns whose values have separate averages, such as ["horizon", "output"] or ["model"].

    Returns
    -------
    DataFrame
        Columns `by`; rmse, mase, crps, pinball, energy_score and coverage, as far as they were computed, each averaged over the folds
        and then over horizons and outputs (rmse: the root over the folds first); entries, the number of observed entries; and seconds, the mean
        elapsed time of a fold.

    Examples
    --------
    >>> import numpy as np
    >>> import pandas as pd
    >>> import ovkgp
    >>> from ovkgp.estimators.series import backtest, rolling_splits, score_backtest
    >>> month = np.arange(96)
    >>> series = np.cos(month * np.pi / 6) + 0.1 * np.random.default_rng(0).normal(size=96)
    >>> models = {season: ovkgp.PersistenceForecaster(season) for season in (1, 12)}
    >>> cv = rolling_splits(96, 60, horizon=12, step=6)
    >>> found = pd.concat([backtest(model, series, cv).assign(season=key) for key, model in models.items()])
    >>> score_backtest(found, by="season")[["season", "rmse", "mase"]].round(1)
       season  rmse  mase
    0       1   0.9   2.6
    1      12   0.1   0.4
    """
    keys = _check_columns(table, by, "by")
    inner = list(dict.fromkeys([*keys, "horizon", "output"]))
    names = {column: name for name, column in ENTRY_COLUMNS.items() if column in table}
    cells = table.groupby(inner, sort=False, dropna=False)
    scores = cells[[*names]].mean().rename(columns=names)
    if "rmse" in scores:
        scores["rmse"] = np.sqrt(scores["rmse"])
    scores["entries"] = cells["observed"].count()
    outer = scores.groupby(level=keys, sort=True)
    found = outer.mean()
    found["entries"] = outer["entries"].sum()
    folds = list(dict.fromkeys([*keys, "fold"]))
    seconds = table.groupby(folds, dropna=False)["seconds"].mean()
    found["seconds"] = seconds.groupby(level=keys).mean()
    return found.reset_index()


def compare_backtests(first, second, score="crps", by="horizon") -> pd.DataFrame:
    """Test whether two forecasters are equally accurate (Diebold and Mariano, 1995).

    Parameters
    ----------
    first, second : DataFrame
        Results of `backtest` for the same series and splits.
    score : {"rmse", "mase", "crps", "pinball", "energy_score"}, default="crps"
        Score whose mean difference is tested; "rmse" is the squared error.
    by : {"horizon"} or None, default="horizon"
        Whether to test each horizon separately, or their average.

    Returns
    -------
    DataFrame
        Columns horizon (for `by="horizon"`), first and second (mean scores; smaller is better), difference, standard_error,
        statistic, pvalue (two-sided) and num_folds.

    Notes
    -----
    The differences d_t of the folds, averaged over outputs, are serially correlated up to lag q = ⌈h/s⌉ − 1 for horizon h and
    distance s of the origins. The variance of their mean is (γ_0 + 2 Σ_{k≤q} γ_k)/n, and (γ_0 + 2 Σ_k (1 − k/(q+1)) γ_k)/n if the first is
    not positive. The statistic has the small-sample correction of Harvey, Leybourne and Newbold (1997) and is compared with a
    t distribution of n − 1 degrees of freedom. Folds in which a score is missing are omitted.

    Examples
    --------
    >>> import numpy as np
    >>> import ovkgp
    >>> from ovkgp.estimators.series import backtest, compare_backtests, rolling_splits
    >>> month = np.arange(120)
    >>> series = np.cos(month * np.pi / 6) + 0.3 * np.random.default_rng(0).normal(size=120)
    >>> cv = rolling_splits(120, 60, horizon=2)
    >>> naive, seasonal = (backtest(ovkgp.PersistenceForecaster(season), series, cv) for season in (1, 12))
    >>> found = compare_backtests(naive, seasonal)
    >>> bool((found["difference"] > 0).all()), bool(found["pvalue"][1] < 0.01)
    (True, True)
    """
    column = ENTRY_COLUMNS[check_one_of("score", score, [name for name in ENTRY_COLUMNS if name != "coverage"])]
    if by not in ("horizon", None):
        raise OptionError(f'by must be "horizon" or None, got {by!r}.')
    keys = ["fold", "origin", "horizon", "output"]
    for name, table in (("first", first), ("second", second)):
        _check_columns(table, [*keys, column], name)
        if table.duplicated(keys).any():
            raise InputError(
                f"{name} must be the result of one backtest, got several rows of one fold, horizon and output."
            )
    joined = first[[*keys, column]].merge(second[[*keys, column]], on=keys, suffixes=("_first", "_second"))
    if not len(joined) == len(first) == len(second):
        raise InputError(
            f"first and second must have the same folds, horizons and outputs, got {len(first)} and {len(second)} rows of which {len(joined)} agree."
        )
    step = np.diff(np.unique(joined["origin"]))
    step = int(step.min()) if len(step) else 1
    columns = [f"{column}_first", f"{column}_second"]
    # outputs and horizons have different scales: a fold counts only if the same ones were observed as in all others
    joined["horizons"] = joined["horizon"] if by else joined["horizon"].max()
    rows = []
    for horizon, cells in joined.groupby("horizons"):
        wide = cells.pivot(index="fold", columns=["horizon", "output"], values=columns).dropna()
        losses = {role: wide[name].to_numpy().mean(1) for role, name in zip(("first", "second"), columns, strict=True)}
        lags = math.ceil(int(horizon) / step) - 1
        means = {role: float(values.mean()) for role, values in losses.items() if len(values)}
        rows.append({"horizon": int(horizon), **means, **_test_mean(losses["first"] - losses["second"], lags)})
    found = pd.DataFrame(rows)
    return found if by else found.drop(columns="horizon")


def _test_mean(differences: np.ndarray, lags: int) -> dict[str, float]:
    """Test whether the mean of differences (n,) with correlations up to a lag is zero."""
    n = len(differences)
    if n < lags + 2:
        raise InputError(
            f"first and second must have at least {lags + 2} folds with all scores for this horizon, got {n}. Use more origins."
        )
    mean, centered = differences.mean(), differences - differences.mean()
    covariances = np.array([centered[k:] @ centered[: n - k] for k in range(lags + 1)]) / n
    variance = (covariances[0] + 2 * covariances[1:].sum()) / n
    if variance <= 0:  # the triangular weights are those of a nonnegative estimate
        weights = 1 - np.arange(1, lags + 1) / (lags + 1)
        variance = (covariances[0] + 2 * weights @ covariances[1:]) / n
    h = lags + 1
    correction = (n + 1 - 2 * h + h * (h - 1) / n) / n
    error = float(np.sqrt(variance / correction))
    statistic = float(mean / error) if error > 0 else 0.0 if mean == 0 else math.copysign(math.inf, mean)
    return {
        "difference": float(mean),
        "standard_error": error,
        "statistic": statistic,
        "pvalue": float(2 * student.sf(abs(statistic), n - 1)),
        "num_folds": n,
    }


def _check_columns(table, names, argument: str) -> list[str]:
    """Return column names as a list; raise unless they are columns of a result of `backtest`."""
    names = [names] if isinstance(names, str) else list(names)
    if not isinstance(table, pd.DataFrame):
        raise InputError(f"{argument} must belong to a result of backtest, a DataFrame, got {type(table).__name__}.")
    if not names:
        raise InputError(f"{argument} must name at least one column.")
    if unknown := [name for name in names if name not in table]:
        raise InputError(f"{argument} must be columns of the result of backtest, {list(table)}; got {unknown}.")
    return names
