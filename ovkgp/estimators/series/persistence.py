"""Persistence: the last observed value is the forecast of all later ones. Baselines for series and for tables of windows."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from sklearn.utils.validation import check_is_fitted

from ovkgp.checks import as_seed, check_integer
from ovkgp.estimators.common.base import TableRegressor
from ovkgp.estimators.common.descriptions import Description
from ovkgp.estimators.common.estimator import Estimator
from ovkgp.estimators.common.options import integer, restore_on_error
from ovkgp.estimators.common.validation import input_table
from ovkgp.estimators.series.forecast import Forecast
from ovkgp.estimators.series.series_data import (
    Series,
    SeriesData,
    StampedTableMixin,
    read_continuation,
    read_series,
)
from ovkgp.estimators.storage.storage import storable
from ovkgp.exceptions import InputError, OptionError


@storable("series_format_", "output_names_", "_values", "_last_time")
class PersistenceForecaster(StampedTableMixin, Estimator):
    """Persistence forecast, or with `season` > 1 the seasonal naive forecast, with bootstrap intervals.

    The mean of step h is the last observed value at the same position in the season. Paths continue the series as a random walk,

        y_t = y_{t−season} + e_t,

    whose increments e_t are drawn from the centered differences y_t − y_{t−season} of the fitted series, jointly for all outputs.

    Parameters
    ----------
    season : int, default=1
        Number of steps per season; 12 for monthly data with a yearly season.

    Attributes
    ----------
    series_format_ : SeriesFormat
        Columns and index of the series.
    output_names_ : list of str
        Names of the columns.

    See Also
    --------
    backtest : Scores of forecasts from many origins.
    PersistenceRegressor : The same baseline for tables of windows.

    Notes
    -----
    Complexity: O(n) for the fit, O(n + n_samples · steps · p) for a forecast. Differences with a missing output are completed by
    observed differences of that output.

    Examples
    --------
    >>> import numpy as np
    >>> import ovkgp
    >>> months = np.arange(60)
    >>> forecast = ovkgp.PersistenceForecaster(season=12).fit(np.cos(months * np.pi / 6)).forecast(6, random_state=0)
    >>> bool(np.allclose(forecast.mean, np.cos((months[-1] + 1 + np.arange(6)) * np.pi / 6)))
    True
    """

    description = Description(
        "persistence forecast",
        "The forecast of a step is the last observed value at the same position in the season. Paths are random walks with the differences of the series as increments.",
        "y_t = y_{t − s} + e_t",
    )
    reported = (("season", "season"),)
    _parameter_constraints: ClassVar[dict[str, list]] = {"season": [integer()]}

    def __init__(self, season=1):
        self.season = season

    def fit(self, series, groups=None) -> PersistenceForecaster:
        """Fit the distribution of the differences.

        Parameters
        ----------
        series : array-like of shape (T, p) or (T,), or list of these
            Series with equally spaced stamps, NaN where missing.
        groups : array-like of shape (T,) or None, default=None
            Labels of rows that belong to different series.

        Returns
        -------
        self : PersistenceForecaster
            Fitted forecaster.
        """
        self.check_options()
        with restore_on_error(self):
            self._store(read_series(series, groups, regular=True))
        return self

    def update(self, series, drop=0) -> PersistenceForecaster:
        """Append rows that continue the fitted series.

        Parameters
        ----------
        series : array-like of shape (k, p) or (k,)
            Rows after those of the fitted series; steps between them are missing.
        drop : int, default=0
            Number of oldest rows to forget.

        Returns
        -------
        self : PersistenceForecaster
            The forecaster, as if fitted to all rows that are kept.
        """
        check_is_fitted(self)
        drop, form = check_integer("drop", drop, minimum=0), self.series_format_
        if len(self._values) != 1:
            raise OptionError(f"update requires a fit to one series, got {len(self._values)}. Fit again.")
        last = np.array([self._last_time])
        part = read_continuation(series, Series(self._values[0][-1:], form.stamps(last), last), form)
        values = np.concatenate([self._values[0], part.values])[drop:]
        with restore_on_error(self):
            self._values, self._last_time = [values], float(part.times[-1])
            self._check_differences()
        return self

    def forecast(self, steps, history=None, *, n_samples=1000, level=0.9, random_state=None) -> Forecast:
        """Forecast the next steps of the fitted series, or of `history`.

        Parameters
        ----------
        steps : int
            Number of steps.
        history : array-like of shape (T, p) or (T,), or None, default=None
            Series whose continuation is forecast. If None, the fitted one.
        n_samples : int, default=1000
            Number of paths.
        level : float, default=0.9
            Probability of the intervals.
        random_state : int, RandomState instance or None, default=None
            Seed of the paths.

        Returns
        -------
        Forecast
            Mean, intervals and paths.
        """
        check_is_fitted(self)
        steps, n_samples = check_integer("steps", steps), check_integer("n_samples", n_samples)
        form, season = self.series_format_, self.season
        if history is None:
            if len(self._values) != 1:
                raise InputError(f"history must be passed, since the fit has {len(self._values)} series.")
            values, last = self._values[0], form.stamps(np.array([self._last_time]))
        else:
            part = read_series(history, regular=True, fitted=form, name="history").only("history")
            values, last = part.values, part.stamps
        base = _last_of_season(values, season)
        if np.isnan(base).any():
            raise InputError(
                f"{'series' if history is None else 'history'} has no observed value of output {form.labels[int(np.argmax(np.isnan(base).any(0)))]!r} at some position in the season of {season} steps. Pass more rows."
            )
        rng = np.random.default_rng(as_seed(random_state))
        increments = _complete(self._differences(), rng)
        paths = increments[rng.integers(len(increments), size=(n_samples, steps))]
        for h in range(steps):
            paths[:, h] += paths[:, h - season] if h >= season else base[h]
        mean = base[np.arange(steps) % season]
        return Forecast.from_paths(paths, form, None if last is None else last[-1], level=level, mean=mean)

    @property
    def input_names(self) -> list[str]:
        """Inputs of the forecast, for the summary."""
        return ["last values"]

    def _store(self, data: SeriesData) -> None:
        self.series_format_, self.output_names_ = data.format, data.format.labels
        self._values, self._last_time = [part.values for part in data.parts], float(data.parts[-1].times[-1])
        self._check_differences()

    def _check_differences(self) -> None:
        counts = (~np.isnan(self._differences())).sum(0)
        if (counts < 1).any():
            raise InputError(
                f"series must have two values of each output at a distance of {self.season} steps, got none of output {self.series_format_.labels[int(np.argmin(counts))]!r}. Pass more rows or a smaller season."
            )

    def _differences(self) -> np.ndarray:
        """Return the centered differences (m, p) of all series, NaN where missing."""
        found = np.concatenate([values[self.season :] - values[: -self.season] for values in self._values])
        counts = np.maximum((~np.isnan(found)).sum(0), 1)
        return found[~np.isnan(found).all(1)] - np.nansum(found, 0) / counts


def _last_of_season(values: np.ndarray, season: int) -> np.ndarray:
    """Return the last observed values (season, p) at the positions in the season, in the order of the next steps."""
    missing = -len(values) % season
    padded = np.concatenate([np.full((missing, values.shape[1]), np.nan), values]).reshape(-1, season, values.shape[1])
    observed = ~np.isnan(padded)
    last = len(padded) - 1 - observed[::-1].argmax(0)
    return np.take_along_axis(padded, last[None], 0)[0]


def _complete(rows: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Replace missing entries of rows (m, p) by random observed ones of the same column."""
    rows = rows.copy()
    for column in rows.T:
        missing = np.isnan(column)
        column[missing] = rng.choice(column[~missing], missing.sum())
    return rows


class PersistenceRegressor(TableRegressor):
    """Persistence baseline for tables of windows: each output is predicted by one input, the last observed value.

    Parameters
    ----------
    column : int or str, default=0
        Index or name of the input that holds the last observed value. `ForecastWindows` puts it first.

    Attributes
    ----------
    column_ : int
        Index of the input.
    n_features_in_, feature_names_in_, n_outputs_, output_names_, num_rows_
        Numbers and names of columns, and number of rows.

    See Also
    --------
    PersistenceForecaster : The same baseline for series, with intervals.

    References
    ----------
    BO-132

    Examples
    --------
    >>> from ovkgp.estimators.series import PersistenceRegressor
    >>> model = PersistenceRegressor().fit([[1.0, 5.0], [2.0, 7.0]], [[1.5, 2.0], [2.5, 3.0]])
    >>> model.predict([[4.0, 0.0]])
    array([[4., 4.]])
    """

    description = Description(
        "persistence",
        "Each output is predicted by one input, the last observed value. It is a baseline for forecasts.",
        "f(x) = x_j",
    )
    _parameter_constraints: ClassVar[dict[str, list]] = {"column": [integer(0), str]}

    def __init__(self, column=0):
        self.column = column

    def fit(self, X, y) -> PersistenceRegressor:
        """Store the columns; nothing is trained.

        Parameters
        ----------
        X : array-like of shape (n, d)
            Inputs, one of which is the last observed value.
        y : array-like of shape (n, p) or (n,)
            Values at p horizons.

        Returns
        -------
        self : PersistenceRegressor
            Fitted estimator.
        """
        with restore_on_error(self):
            self.check_options()
            X, Y = self._enter(X, y)
            self.num_rows_ = len(Y)
            names = self.input_names or []
            if isinstance(self.column, str) and self.column not in names:
                raise OptionError(f"column must be one of the columns of X, {names}, got {self.column!r}.")
            self.column_ = names.index(self.column) if isinstance(self.column, str) else int(self.column)
            if self.column_ >= X.shape[1]:
                raise OptionError(
                    f"column must be less than {X.shape[1]}, the number of columns of X, got {self.column}."
                )
        return self

    def predict(self, X) -> np.ndarray:
        """Predict at X.

        Parameters
        ----------
        X : array-like of shape (m, d)
            Inputs.

        Returns
        -------
        ndarray of shape (m, p), or (m,) if y was one-dimensional
            Last observed values.
        """
        check_is_fitted(self)
        values = input_table(self, X, reset=False)[:, self.column_].astype(np.float64)
        return self._flat(np.tile(values[:, None], self.n_outputs_))

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.regressor_tags.poor_score = True  # nothing is learned
        return tags
