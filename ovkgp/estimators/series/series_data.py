"""Series of one or several outputs: values, stamps as numbers and back, gaps, and the stamps of future steps.

A series is an array (T, p) or (T,), or a frame or series of pandas whose index holds dates, periods or numbers. Several series
are a list, or one table with a label per row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
import torch
from pandas.tseries.frequencies import to_offset
from sklearn.utils import check_array

from ovkgp.estimators.common.dates import from_days, to_days
from ovkgp.estimators.common.validation import as_array, output_names, raise_input_errors
from ovkgp.estimators.storage.values import storable_record
from ovkgp.exceptions import InputError

STEP_TOLERANCE = 1e-3  # largest deviation of a regular numeric stamp from its position, in steps
MAX_STEPS_PER_ROW, MAX_STEPS = (
    100,
    10_000,
)  # largest number of steps that a series spans, per row, or in all if that is more
MONTHLY = ("MS", "ME", "BMS", "BME")  # aliases of the first and last days, and business days, of months
SATURDAY, MIN_BUSINESS_DAYS = (
    5,
    5,
)  # number of the weekday, and of days without a weekend from which these are taken for trading days
DAY_NS = 86_400_000_000_000  # nanoseconds per day


@storable_record
@dataclass(frozen=True)
class SeriesFormat:
    """Columns and index of series, to read further ones and to return predictions in the same form.

    `kind` is "position" (no index), "number", "date" or "period". `frequency` is the offset alias of dates and periods, `step` the
    distance of numbers, or the number of periods, between rows; both are None if the stamps are irregular or too few. `origin` is the
    date that corresponds to the number 0, in days, in the notation of `common.dates`.
    """

    num_outputs: int
    names: list[str] | None = None
    is_flat: bool = False
    kind: str = "position"
    frequency: str | None = None
    step: float | None = None
    origin: str | None = None
    timezone: str | None = None
    index_name: str | None = None

    @property
    def labels(self) -> list[str]:
        """Column names; "y", or "y0", … without names."""
        if self.names is not None:
            return list(self.names)
        return ["y"] if self.num_outputs == 1 else [f"y{j}" for j in range(self.num_outputs)]

    @property
    def is_regular(self) -> bool:
        """Whether the distance between rows is known."""
        return self.kind == "position" or self.step is not None or (self.kind == "date" and self.frequency is not None)

    def times(self, stamps: pd.Index | None, length: int = 0) -> np.ndarray:
        """Return stamps (T,) as numbers: dates and beginnings of periods in days since `origin`; positions without stamps."""
        if self.kind == "position":
            return np.arange(length if stamps is None else len(stamps), dtype=np.float64)
        if self.kind == "number":
            return np.asarray(stamps, dtype=np.float64)
        dates = stamps.to_timestamp() if self.kind == "period" else stamps
        return np.asarray(to_days(pd.Series(dates), [self.origin])[0], dtype=np.float64)

    def stamps(self, times: np.ndarray) -> pd.Index | None:
        """Return the stamps of numbers (T,), the inverse of `times`; None without an index."""
        if self.kind == "position":
            return None
        if self.kind == "number":
            return pd.Index(np.asarray(times), name=self.index_name)
        dates = pd.DatetimeIndex(from_days(np.asarray(times, dtype=np.float64)[:, None], [self.origin])[0])
        if self.kind == "period":
            return dates.to_period(self.frequency).rename(self.index_name)
        return (dates if self.timezone is None else dates.tz_convert(self.timezone)).rename(self.index_name)

    def future_stamps(self, last, steps: int) -> pd.Index | None:
        """Return the stamps of the steps that follow the stamp `last`; None without an index."""
        if self.kind == "position":
            return None
        if not self.is_regular:
            raise InputError(
                "The stamps of future steps are unknown, since those of the series are irregular or fewer than two. Pass the future stamps, or a series whose index has a frequency."
            )
        ahead = np.arange(1, steps + 1)
        if self.kind == "date":
            index = pd.date_range(last, periods=steps + 1, freq=self.frequency)[1:]
        elif self.kind == "period":
            index = pd.PeriodIndex([last + int(k) for k in ahead * int(self.step)], freq=self.frequency)
        else:
            index = pd.Index(last + ahead * (int(self.step) if float(self.step).is_integer() else self.step))
        return index.rename(self.index_name)

    def table(self, values: np.ndarray, stamps: pd.Index | None = None):
        """Return values (T, p) as a frame, or a series if the data were one-dimensional; as an array without index and names."""
        if stamps is None and self.names is None:
            return values[:, 0] if self.is_flat else values
        if self.is_flat:
            return pd.Series(values[:, 0], index=stamps, name=None if self.names is None else self.names[0])
        return pd.DataFrame(values, index=stamps, columns=self.names)


@dataclass(frozen=True)
class Series:
    """Values (T, p) of one series with NaN where missing, in the order of time, and the stamps (T,) of its rows.

    `times` are the stamps as numbers, `num_gaps` counts rows that were inserted at stamps which the data skip, and `group` is the
    label of the series.
    """

    values: np.ndarray
    stamps: pd.Index | None
    times: np.ndarray
    num_gaps: int = 0
    group: object = None

    def __len__(self) -> int:
        return len(self.values)


@dataclass(frozen=True)
class SeriesData:
    """Series with a common format."""

    parts: list[Series]
    format: SeriesFormat

    @property
    def values(self) -> np.ndarray:
        """Rows (n, p) of all series."""
        return np.concatenate([part.values for part in self.parts])

    @property
    def num_gaps(self) -> int:
        """Number of inserted rows."""
        return sum(part.num_gaps for part in self.parts)

    def only(self, name: str = "series") -> Series:
        """Return the series, of which there must be one."""
        if len(self.parts) != 1:
            raise InputError(f"{name} must be one series, got {len(self.parts)}. Call the method once per series.")
        return self.parts[0]


def read_series(
    series, groups=None, *, regular: bool, fitted: SeriesFormat | None = None, name: str = "series"
) -> SeriesData:
    """Read one series or several, sorted by their stamps.

    With `regular`, rows must be equally spaced up to gaps, which are filled with rows of NaN; duplicate and irregular stamps raise.
    Otherwise stamps may be irregular and equal. `fitted` is the format of earlier series, with which this one must agree.
    """
    if is_list := _is_list_of_series(series):
        if groups is not None:
            raise InputError(f"groups must be None if {name} is a list of series, since each of these is a group.")
        tables, labels = list(series), list(range(len(series)))
    else:
        tables, labels = [series], [None]
    parts = [_read_table(table, f"{name}[{i}]" if is_list else name) for i, table in enumerate(tables)]
    if groups is not None:
        parts, labels = _split(parts[0], groups)
    form = _common_columns([part[2] for part in parts], fitted, name)
    parts = [(_select_columns(values, own, form, name), index) for values, index, own in parts]
    kinds = {"position" if index is None else _kind(index, name) for _, index in parts}
    if len(kinds) > 1:
        raise InputError(
            f"{name} must have one kind of index, got {' and '.join(sorted(kinds))}. Use the same for all."
        )
    parts = [_sort(values, index, name) for values, index in parts]
    form = _index_format([index for _, index in parts], form, kinds.pop(), fitted, regular, name)
    read = [_make_part(values, index, form, regular, name) for values, index in parts]
    return SeriesData([replace(part, group=label) for part, label in zip(read, labels, strict=True)], form)


def index_by_stamps(X, Y) -> pd.DataFrame:
    """Return a series whose index is the first column of X (T, 1 + q), with the columns of Y (T, p) and the others of X."""
    X, Y = pd.DataFrame(X), pd.DataFrame(Y)
    table = pd.concat([Y.reset_index(drop=True), X.iloc[:, 1:].reset_index(drop=True)], axis=1)
    return table.set_axis(pd.Index(X.iloc[:, 0]), axis=0)


class StampedTableMixin:
    """Forecasters of series without exogenous columns, which are fitted to tables with a column of stamps by commands and recipes."""

    kind = "series"

    def fit_table(self, X, Y):
        """Fit to a table whose inputs are the stamps.

        Parameters
        ----------
        X : DataFrame of shape (T, 1)
            Dates or numbers.
        Y : DataFrame of shape (T, p)
            Outputs, NaN where missing.

        Returns
        -------
        self : estimator
            The estimator itself.
        """
        if np.shape(X)[1] > 1:
            raise InputError(
                f"{type(self).__name__} has no exogenous columns, got {np.shape(X)[1] - 1} besides the stamps. Pass the stamps only, or use GPForecaster."
            )
        return self.fit(index_by_stamps(X, Y))


def read_continuation(series, earlier: Series, form: SeriesFormat, name: str = "series") -> Series:
    """Read rows that continue a series, with rows of NaN at the steps between them; rows without stamps follow directly."""
    part = read_series(series, regular=True, fitted=form, name=name).only(name)
    if form.kind == "position":
        return Series(part.values, None, earlier.times[-1] + 1 + np.arange(len(part)))
    last = earlier.stamps[-1]
    if part.stamps is None:
        stamps = form.future_stamps(last, len(part))
        return Series(part.values, stamps, form.times(stamps))
    if not part.stamps[0] > last:
        raise InputError(
            f"{name} must continue the fitted series, whose last stamp is {last}, got rows from {part.stamps[0]}. Pass only later rows."
        )
    values = np.concatenate([np.full((1, form.num_outputs), np.nan), part.values])
    joined = _make_part(values, part.stamps.insert(0, last), form, regular=True, name=name)
    return Series(joined.values[1:], joined.stamps[1:], joined.times[1:], joined.num_gaps + part.num_gaps)


def _is_list_of_series(series) -> bool:
    """Return whether a list holds arrays or frames, unlike a nested list of numbers."""
    kinds = np.ndarray | torch.Tensor | pd.DataFrame | pd.Series
    return isinstance(series, list | tuple) and len(series) > 0 and all(isinstance(part, kinds) for part in series)


def _read_table(series, name: str) -> tuple[np.ndarray, pd.Index | None, SeriesFormat]:
    """Return the values (T, p) of a table, its index and the format of its columns."""
    if isinstance(series, pd.DataFrame | pd.Series):
        columns = [series] if isinstance(series, pd.Series) else [column for _, column in series.items()]
        for column in columns:
            if column.dtype.kind in "mM" or isinstance(column.dtype, pd.PeriodDtype):
                raise InputError(
                    f"{name} must hold numbers, got {column.dtype} in column {str(column.name)!r}. Use dates as the index: {name}.set_index({str(column.name)!r})."
                )
        index = series.index
    else:
        index = None
    values, names = as_array(series), output_names(series)
    with raise_input_errors(name):
        values = check_array(
            values, dtype=np.float64, order="C", ensure_2d=False, ensure_all_finite="allow-nan", input_name=name
        )
    if values.ndim not in (1, 2):
        raise InputError(f"{name} has shape {values.shape}, expected (T, p) or (T,).")
    is_flat = values.ndim == 1
    values = values[:, None] if is_flat else values
    return values, index, SeriesFormat(values.shape[1], names, is_flat)


def _split(part: tuple, groups) -> tuple[list[tuple], list]:
    """Split a table by the labels (T,) of its rows, in the order of their first rows."""
    values, index, columns = part
    labels = np.asarray(as_array(groups))
    if labels.shape != (len(values),):
        raise InputError(f"groups has shape {labels.shape}, expected ({len(values)},), one label per row.")
    codes, found = pd.factorize(labels)
    if (codes < 0).any():
        raise InputError(f"groups must have a label for each row, got a missing one in row {int(np.argmin(codes))}.")
    rows = [np.flatnonzero(codes == k) for k in range(len(found))]
    return [(values[r], None if index is None else index[r], columns) for r in rows], list(found)


def _common_columns(found: Sequence[SeriesFormat], fitted: SeriesFormat | None, name: str) -> SeriesFormat:
    """Return the columns of all series, or those of the fit, with which they must agree."""
    form = found[0] if fitted is None else fitted
    source = "the first series" if fitted is None else "fit"
    for own in found:
        if own.num_outputs != form.num_outputs:
            raise InputError(
                f"{name} must have {form.num_outputs} columns, as in {source}, got {own.num_outputs}. Pass the same columns."
            )
        if own.names is not None and form.names is not None and sorted(own.names) != sorted(form.names):
            raise InputError(f"{name} must have the columns {form.names}, as in {source}, got {own.names}.")
    return form


def _select_columns(values: np.ndarray, own: SeriesFormat, form: SeriesFormat, name: str) -> np.ndarray:
    """Return the columns in the order of the format."""
    if own.names is None or form.names is None or own.names == form.names:
        return values
    if len(set(own.names)) < len(own.names):
        raise InputError(f"{name} must have distinct column names, got {own.names}.")
    return values[:, [own.names.index(label) for label in form.names]]


def _kind(index: pd.Index, name: str) -> str:
    if isinstance(index, pd.MultiIndex):
        raise InputError(
            f"{name} must have one index level, got {index.nlevels}. Pass a list of series, or reset the other levels and pass them as groups."
        )
    if isinstance(index, pd.DatetimeIndex):
        return "date"
    if isinstance(index, pd.PeriodIndex):
        return "period"
    if pd.api.types.is_numeric_dtype(index.dtype) and not pd.api.types.is_bool_dtype(index.dtype):
        return "number"
    fix = "pandas.to_datetime" if pd.api.types.infer_dtype(index) in ("string", "date", "datetime") else "numbers"
    raise InputError(
        f"{name} must have an index of dates, periods or numbers, got {index.dtype}. Convert the index to {fix}, or pass {name}.to_numpy()."
    )


def _sort(values: np.ndarray, index: pd.Index | None, name: str) -> tuple[np.ndarray, pd.Index | None]:
    if index is None:
        return values, None
    if index.hasnans:
        raise InputError(
            f"{name} has no stamp in row {int(np.argmax(index.isna()))}. Drop the row or fill in the stamp."
        )
    if index.is_monotonic_increasing:
        return values, index
    order = np.argsort(index.to_numpy() if not isinstance(index, pd.PeriodIndex) else index.asi8, kind="stable")
    return values[order], index[order]


def _index_format(
    indexes: Sequence[pd.Index | None],
    form: SeriesFormat,
    kind: str,
    fitted: SeriesFormat | None,
    regular: bool,
    name: str,
) -> SeriesFormat:
    """Return the format with the index of the longest series, or of the fit."""
    if kind == "position":
        return replace(form, kind=kind, frequency=None, step=None, origin=None, timezone=None, index_name=None)
    if fitted is not None and fitted.kind != "position":
        if fitted.kind != kind:
            raise InputError(f"{name} must have an index of {fitted.kind}s, as in fit, got {kind}s.")
        if fitted.kind == "date" and any((i.tz is None) != (fitted.timezone is None) for i in indexes):
            raise InputError(
                f"{name} must have dates {'with' if fitted.timezone else 'without'} a time zone, as in fit."
            )
        return fitted
    longest = max(indexes, key=len)
    form = replace(form, kind=kind, index_name=None if longest.name is None else str(longest.name))
    if kind == "period":
        form = replace(form, frequency=longest.freqstr)
    if kind in ("date", "period"):
        first = min(index[0] for index in indexes)
        dates = pd.Series([first.to_timestamp() if kind == "period" else first])
        form = replace(form, origin=to_days(dates)[1][0])
    if kind == "date" and longest.tz is not None:
        form = replace(form, timezone=str(longest.tz))
    distinct = longest.unique()
    frequency, step = _infer_step(distinct, kind)
    if regular and len(distinct) > 1 and frequency is None and step is None:
        raise _irregular(distinct, name)
    return replace(form, frequency=form.frequency or frequency, step=step)


def _infer_step(index: pd.Index, kind: str) -> tuple[str | None, float | None]:
    """Return the frequency of sorted dates or the step of numbers and periods, of which all distances are multiples; None if irregular."""
    if kind == "date":
        return index.freqstr or _infer_frequency(index), None
    if len(index) < 2:
        return None, 1.0 if kind == "period" else None
    if kind == "period":
        step = _common_step(np.diff(index.asi8))
        return None, None if step is None else float(step)
    values = np.asarray(index, dtype=np.float64)
    steps = np.diff(values)
    common = _most_common(np.round(steps / steps.min() / STEP_TOLERANCE)) * STEP_TOLERANCE * steps.min()
    multiples = np.round(steps / common)
    if np.abs(steps / common - multiples).max() > STEP_TOLERANCE or multiples.min() < 1:
        return None, None
    return None, float(_round_step((values[-1] - values[0]) / multiples.sum(), steps.min()))


def _round_step(step: float, shortest: float) -> float:
    """Return the step without the rounding error of the stamps if the shortest distance is exact."""
    return shortest if np.isclose(step, shortest, rtol=1e-12, atol=0) else step


def _most_common(values: np.ndarray) -> float:
    found, counts = np.unique(values, return_counts=True)
    return found[counts.argmax()]


def _common_step(steps: np.ndarray) -> int | None:
    """Return the most frequent of integer steps if all are multiples of it."""
    step = int(_most_common(steps))
    return step if step > 0 and (steps % step == 0).all() else None


def _infer_frequency(index: pd.DatetimeIndex) -> str | None:
    """Return the frequency of sorted, distinct dates, which may have gaps; None if they are irregular."""
    if len(index) < 2:
        return None
    local = index.tz_localize(None)
    if (local == local.normalize()).all():
        for alias in MONTHLY:
            position = pd.date_range(local[0], local[-1], freq=alias).get_indexer(local)
            if (position >= 0).all() and (step := _common_step(np.diff(position))):
                return alias if step == 1 else f"{step}{alias}"
    # of equal durations, or of equal times of the day in spite of daylight saving time
    for dates in (index if index.tz is None else index.tz_convert(None), local):
        if step := _common_step(np.diff(dates.to_numpy().astype("M8[ns]")).astype(np.int64)):
            if step == DAY_NS and len(local) > MIN_BUSINESS_DAYS and (local.day_of_week < SATURDAY).all():
                return "B"
            return to_offset(pd.Timedelta(step, "ns")).freqstr if step % DAY_NS else f"{step // DAY_NS}D"
    return None


def _irregular(index: pd.Index, name: str) -> InputError:
    steps = pd.Series(index[1:]) - pd.Series(index[:-1])
    return InputError(
        f"{name} must have equally spaced stamps, up to gaps, got steps from {steps.min()} to {steps.max()}. Resample it, for example with {name}.resample('D').mean(), or use a model with time as its input."
    )


def _make_part(values: np.ndarray, index: pd.Index | None, form: SeriesFormat, regular: bool, name: str) -> Series:
    """Return a series sorted by its stamps, with rows of NaN in its gaps if it must be regular."""
    num_gaps = 0
    if index is not None and regular:
        if index.has_duplicates:
            stamp = index[index.duplicated()][0]
            raise InputError(
                f"{name} must have distinct stamps, got {stamp} more than once. Average them with {name}.groupby(level=0).mean(), or pass groups if the rows belong to several series."
            )
        full, position = _fill_index(index, form, name)
        filled = np.full((len(full), values.shape[1]), np.nan)
        filled[position] = values
        values, num_gaps, index = filled, len(full) - len(index), full
    if index is not None:
        index = index.rename(form.index_name)
    return Series(values, index, form.times(index, len(values)), num_gaps)


def _fill_index(index: pd.Index, form: SeriesFormat, name: str) -> tuple[pd.Index, np.ndarray]:
    """Return all stamps between the first and the last, and the positions of the given ones."""
    if len(index) == 1:
        return index, np.zeros(1, dtype=np.int64)
    if not form.is_regular:
        raise _irregular(index, name)
    limit = max(MAX_STEPS, MAX_STEPS_PER_ROW * len(index))
    if form.kind == "number":
        exact = np.asarray(index, dtype=np.float64)
        steps = np.diff(exact) / form.step
        position = np.r_[0, np.cumsum(np.round(steps).astype(np.int64))]
        if np.abs(steps - np.round(steps)).max() > STEP_TOLERANCE or (np.diff(position) < 1).any():
            raise _irregular(index, name)
        _check_length(int(position[-1]) + 1, index, limit, name)
        if position[-1] + 1 == len(index):
            return index, position
        full = exact[0] + form.step * np.arange(position[-1] + 1)
        full[position] = exact
        return pd.Index(full.astype(index.dtype) if index.dtype.kind in "iu" else full), position
    if form.kind == "period":
        step, ordinals = int(form.step), index.asi8
        position = (ordinals - ordinals[0]) // step
        _check_length(int(position[-1]) + 1, index, limit, name)
        full = pd.PeriodIndex.from_ordinals(ordinals[0] + step * np.arange(position[-1] + 1), freq=index.freq)
    else:
        two = pd.date_range(index[0], periods=2, freq=form.frequency)
        _check_length(int((index[-1] - index[0]) / (two[1] - two[0])), index, 2 * limit, name)
        full = pd.date_range(index[0], index[-1], freq=form.frequency)
        position = full.get_indexer(index)
    if (position < 0).any() or not index.equals(full[position]):
        raise _irregular(index, name)
    return full, position


def _check_length(length: int, index: pd.Index, limit: int, name: str) -> None:
    if length > limit:
        raise InputError(
            f"{name} has {len(index)} rows from {index[0]} to {index[-1]}, which are {length} steps. Check these stamps, or pass the parts as a list of series."
        )


# Columns of a frame that are inputs.


def split_exog(table, names: list[str], name: str) -> tuple[pd.DataFrame, np.ndarray]:
    """Return the other columns of a frame, and the columns `names` (T, q) in the order in which `read_series` sorts rows."""
    if not isinstance(table, pd.DataFrame):
        raise InputError(f"{name} must be a DataFrame with the exogenous columns {names}, got {type(table).__name__}.")
    exog, index = select_exog(table, names, name), table.index
    outputs = table[[column for column in table.columns if str(column) not in names]]
    if outputs.shape[1] == 0:
        raise InputError(f"{name} must have a column besides the exogenous ones, got {names} only.")
    if not index.is_monotonic_increasing:
        keys = index.asi8 if isinstance(index, pd.PeriodIndex) else index.to_numpy()
        exog = exog[np.argsort(keys, kind="stable")]
    return outputs, exog


def select_exog(table: pd.DataFrame, names: list[str], name: str) -> np.ndarray:
    """Return the columns `names` (T, q) of a frame as finite numbers."""
    labels = {str(column): column for column in table.columns}
    if missing := [one for one in names if one not in labels]:
        raise InputError(f"{name} must have the exogenous columns {names}, but {missing} are missing.")
    with raise_input_errors(name):
        values = np.column_stack([np.asarray(table[labels[one]], dtype=np.float64) for one in names])
    is_finite = np.isfinite(values).all(0)
    if not is_finite.all():
        raise InputError(
            f"{name} has missing values in the exogenous column {names[int(is_finite.argmin())]!r}. Fill them, or drop the rows."
        )
    return values
