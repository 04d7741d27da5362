"""`ForecastWindows`, tables of past values and known future values as inputs, and of values at several horizons as outputs (BO-130)."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import pandas as pd
from numpy.lib.stride_tricks import sliding_window_view
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from ovkgp.estimators.common.options import Rule, check_constraints, integer
from ovkgp.estimators.series.series_data import Series, SeriesFormat, read_series
from ovkgp.exceptions import InputError, OptionError

COLUMN_NAMES = Rule(
    "a list of column names", lambda names: not isinstance(names, str) and all(isinstance(name, str) for name in names)
)


class ForecastWindows(TransformerMixin, BaseEstimator):
    """Windows of a series as rows of a table, for any regressor that forecasts several horizons at once or separately (BO-130).

    The row of origin t holds, for each column of the series, the values at t, t − 1, …, t − lags + 1, and for each exogenous
    column, whose future is known, the values from t + 1 − before to t + m + after, where m is the largest horizon. Its
    outputs are the target at t + 1, …, t + m. The first input is the last value of the target.

    Parameters
    ----------
    horizons : int or list of int, default=24
        Number of horizons 1, …, m, or the horizons themselves, in steps.
    lags : int, default=18
        Number of past values of each column of the series.
    target : int or str, default=0
        Index or name of the column of the series that is forecast.
    before, after : int, default=9
        Number of exogenous values before and after the steps that are forecast.
    directions : list of str or None, default=None
        Columns of angles in degrees, such as wind directions. They are replaced by their cosine and sine.

    Attributes
    ----------
    groups_ : ndarray of shape (d,)
        Variable of each input, the groups of a `HSICSelector`: the name of the column, exogenous ones with "forecast " before it
        if the series has a column of the same name.
    target_ : str
        Name of the target.
    horizons_ : ndarray of shape (m,)
        Horizons.

    Notes
    -----
    Exogenous values must have been known at the origin: a numerical weather prediction that was issued later than t would leak the
    future. Rows are equally spaced; exogenous rows at coarser stamps are interpolated linearly. Complexity: O(n d).

    See Also
    --------
    HSICSelector : Selection of variables.
    PersistenceRegressor : Baseline.

    References
    ----------
    BO-130, BO-E-41

    Examples
    --------
    >>> import numpy as np
    >>> import pandas as pd
    >>> from ovkgp.estimators.series import ForecastWindows
    >>> series = pd.DataFrame({"speed": np.arange(6.0)})
    >>> X, Y = ForecastWindows(horizons=2, lags=3).fit(series).make_pairs(series)
    >>> X
       speed[t]  speed[t-1]  speed[t-2]
    2       2.0         1.0         0.0
    3       3.0         2.0         1.0
    >>> Y
       speed[t+1]  speed[t+2]
    2         3.0         4.0
    3         4.0         5.0
    """

    _parameter_constraints: ClassVar[dict[str, list]] = {
        "horizons": [
            integer(),
            Rule("a list of integers", lambda values: len(values) > 0 and all(int(v) == v and v >= 1 for v in values)),
        ],
        "lags": [integer()],
        "target": [integer(0), str],
        "before": [integer(0)],
        "after": [integer(0)],
        "directions": [COLUMN_NAMES, None],
    }

    def __init__(self, horizons=24, lags=18, target=0, before=9, after=9, directions=None):
        self.horizons = horizons
        self.lags = lags
        self.target = target
        self.before = before
        self.after = after
        self.directions = directions

    def fit(self, series, exogenous=None) -> ForecastWindows:
        """Store the columns.

        Parameters
        ----------
        series : array-like of shape (T, q) or (T,)
            Series with equally spaced stamps, up to gaps, NaN where missing.
        exogenous : array-like of shape (S, r) or None, default=None
            Columns whose future is known. The rows of a frame are matched by their stamps, and those of an array are the steps of the
            series and of its future.

        Returns
        -------
        self : ForecastWindows
            Fitted transformer.
        """
        check_constraints(self.get_params(deep=False), self._parameter_constraints)
        form = read_series(series, regular=True).format
        known = None if exogenous is None else read_series(exogenous, regular=False, name="exogenous").format
        labels, exogenous_labels = form.labels, _exogenous_labels(known, form)
        names = [name for name in self.directions or () if name not in {*labels, *exogenous_labels}]
        if names:
            raise OptionError(f"directions must be columns of series or exogenous, got {names}.")
        if isinstance(self.target, str) and self.target not in labels:
            raise OptionError(f"target must be one of the columns of series, {labels}, got {self.target!r}.")
        if not isinstance(self.target, str) and self.target >= len(labels):
            raise OptionError(
                f"target must be less than {len(labels)}, the number of columns of series, got {self.target}."
            )
        self.series_format_, self.exogenous_format_ = form, known
        self.target_ = self.target if isinstance(self.target, str) else labels[self.target]
        self.horizons_ = (
            np.arange(1, self.horizons + 1) if np.ndim(self.horizons) == 0 else np.array(self.horizons, int)
        )
        if self.target_ in (self.directions or ()):
            raise OptionError(f"target must not be a direction, got {self.target_!r}. Forecast its cosine and sine.")
        columns = self._list_columns()
        self.feature_names_out_ = np.array([name for name, _ in columns], dtype=object)
        self.groups_ = np.array([group for _, group in columns], dtype=object)
        return self

    def transform(self, series, exogenous=None) -> pd.DataFrame:
        """Return the inputs of all origins, the last of which is the last row of the series.

        Parameters
        ----------
        series, exogenous
            As for `fit`, with the same columns.

        Returns
        -------
        DataFrame of shape (T − lags + 1, d)
            One row per origin, whose stamp is the index, and one column per input, NaN where a value is missing.
        """
        return self._inputs(*self._read(series, exogenous))

    def make_pairs(self, series, exogenous=None) -> tuple[pd.DataFrame, pd.DataFrame]:
        """Return the inputs and outputs of all origins with complete inputs, and outputs that are part of the series.

        Parameters
        ----------
        series, exogenous
            As for `fit`, with the same columns.

        Returns
        -------
        X : DataFrame of shape (n, d)
            Inputs.
        Y : DataFrame of shape (n, m)
            Target at each horizon, NaN where missing; at least one is observed.
        """
        part, known = self._read(series, exogenous)
        X, largest = self._inputs(part, known), int(self.horizons_.max())
        target = part.values[:, self.series_format_.labels.index(self.target_)]
        origins = np.arange(self.lags - 1, len(part) - largest)
        if not len(origins):
            raise InputError(
                f"series must have at least {self.lags + largest} rows, lags and largest horizon, got {len(part)}. Pass more rows."
            )
        names = [f"{self.target_}[t+{h}]" for h in self.horizons_]
        Y = pd.DataFrame(target[origins[:, None] + self.horizons_], index=X.index[: len(origins)], columns=names)
        X = X.iloc[: len(origins)]
        kept = ~(np.isnan(X.to_numpy()).any(1) | np.isnan(Y.to_numpy()).all(1))
        if not kept.any():
            raise InputError(
                "No origin has complete windows. Fill gaps of the series, or pass exogenous rows at all stamps of the windows."
            )
        return X[kept], Y[kept]

    def get_feature_names_out(self, input_features=None) -> np.ndarray:
        """Return the names of the inputs, such as "speed[t-1]".

        Parameters
        ----------
        input_features : None, default=None
            Ignored.

        Returns
        -------
        ndarray of shape (d,)
            Names.
        """
        check_is_fitted(self)
        return self.feature_names_out_

    def _read(self, series, exogenous) -> tuple[Series, Series | None]:
        """Read further tables with the columns of the fit."""
        check_is_fitted(self)
        if (exogenous is None) != (self.exogenous_format_ is None):
            raise InputError(f"exogenous must {'' if exogenous is None else 'not '}be passed, as in fit.")
        part = read_series(series, regular=True, fitted=self.series_format_).only()
        if len(part) < self.lags:
            raise InputError(f"series must have at least {self.lags} rows, the lags, got {len(part)}. Pass more rows.")
        if exogenous is None:
            return part, None
        known = read_series(exogenous, regular=False, fitted=self.exogenous_format_, name="exogenous").only("exogenous")
        if (part.stamps is None) != (known.stamps is None):
            raise InputError("series and exogenous must both have an index of stamps, or neither.")
        return part, known

    def _list_columns(self) -> list[tuple[str, str]]:
        """List the name and the variable of each input."""
        last = int(self.horizons_.max()) + self.after
        windows = [(name, name, 0, -self.lags) for name in self._past_labels()]
        labels = _exogenous_labels(self.exogenous_format_, self.series_format_)
        windows += [(name, name, 1 - self.before, last + 1) for name in labels]
        return [
            (f"{part}[t{f'{k:+d}' if k else ''}]", group)
            for name, group, first, end in windows
            for part in self._parts(name)
            for k in range(first, end, 1 if end > 0 else -1)
        ]

    def _past_labels(self) -> list[str]:
        """Return the columns of the series, the target first."""
        return [self.target_, *(name for name in self.series_format_.labels if name != self.target_)]

    def _parts(self, name: str) -> list[str]:
        return [f"cos {name}", f"sin {name}"] if name in (self.directions or ()) else [name]

    def _inputs(self, part: Series, known: Series | None) -> pd.DataFrame:
        """Return the inputs of all origins."""
        form, origins = self.series_format_, len(part) - self.lags + 1
        past = self._split_directions(
            part.values[:, [form.labels.index(n) for n in self._past_labels()]], self._past_labels()
        )
        blocks = [sliding_window_view(column, self.lags)[:, ::-1] for column in past.T]
        if known is not None:
            last = int(self.horizons_.max()) + self.after
            labels = _exogenous_labels(self.exogenous_format_, form)
            values = self._split_directions(known.values, labels)
            future = self._interpolate(part, known, values, last)
            first = self.lags - self.before  # of the window of the first origin, t + 1 − before for t = lags − 1
            steps = np.arange(origins)[:, None] + np.arange(first, self.lags + last)
            blocks += [np.where(steps >= 0, column[np.maximum(steps, 0)], np.nan) for column in future.T]
        index = pd.RangeIndex(self.lags - 1, len(part)) if part.stamps is None else part.stamps[self.lags - 1 :]
        return pd.DataFrame(np.hstack(blocks), index=index, columns=self.feature_names_out_)

    def _split_directions(self, values: np.ndarray, labels: list[str]) -> np.ndarray:
        """Replace columns of angles by their cosines and sines."""
        columns = []
        for name, column in zip(labels, values.T, strict=True):
            is_angle = name in (self.directions or ())
            columns += [np.cos(np.deg2rad(column)), np.sin(np.deg2rad(column))] if is_angle else [column]
        return np.stack(columns, 1)

    def _interpolate(self, part: Series, known: Series, values: np.ndarray, last: int) -> np.ndarray:
        """Return exogenous values (T + last, r) at the stamps of the series and of the next steps, NaN where unknown."""
        form, steps = self.series_format_, len(part) + last
        if part.stamps is None:
            return np.concatenate([values[:steps], np.full((max(steps - len(values), 0), values.shape[1]), np.nan)])
        future = form.future_stamps(part.stamps[-1], last) if last else part.stamps[:0]
        times = np.concatenate([part.times, form.times(future)])
        given = form.times(known.stamps)
        if (np.diff(given) == 0).any():
            raise InputError("exogenous must have distinct stamps. Average rows of equal stamps.")
        columns = [np.interp(times, given, column, left=np.nan, right=np.nan) for column in values.T]
        return np.stack(columns, 1)


def _exogenous_labels(known: SeriesFormat | None, form: SeriesFormat) -> list[str]:
    """Return names of the exogenous columns that differ from those of the series."""
    if known is None:
        return []
    names = known.names or [f"u{j}" for j in range(known.num_outputs)]
    return [f"forecast {name}" if name in form.labels else name for name in names]
