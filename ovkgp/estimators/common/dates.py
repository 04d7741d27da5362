"""Dates and durations in tables, as numbers of days.

A column of dates is converted to days since its earliest date of the fit (its origin), a column of durations to days. The unit
in which the same instants are stored (ns, us, D) does not change the result. Origins are texts, one per column: an ISO date and
time, with "+00:00" if the dates have a time zone, `DURATION` for durations, None for numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from ovkgp.exceptions import InputError

Origins = list[str | None]

DURATION = "P0D"  # origin of durations, as ISO 8601 writes zero days
UTC = "+00:00"  # end of the origin of dates with a time zone
KINDS = {
    "number": "numbers",
    "date": "dates without a time zone",
    "zoned": "dates with a time zone",
    "duration": "durations",
}
DATES, DURATIONS = ("datetime64", "datetime", "date"), ("timedelta64", "timedelta")  # of pandas.api.types.infer_dtype
DAY_US = 86_400_000_000  # microseconds per day


class _Times(NamedTuple):
    """Column of datetime64 or timedelta64 values (n,), and whether they were given with a time zone."""

    values: np.ndarray
    is_zoned: bool = False


def to_days(table, origins: Origins | None = None, name: str = "X") -> tuple[object, Origins | None]:
    """Convert the columns of a frame, a series or an array that hold dates or durations to days, NaN where missing.

    `origins` are those of the fit; by default, and where they do not apply, the earliest date of the column is the origin.
    Return the table, unchanged if it has only numbers, and its origins, None if it has only numbers. Columns of text raise.
    """
    if isinstance(table, list | tuple):
        table = _as_array(table)
    if isinstance(table, pd.Series):
        columns = [table]
    elif isinstance(table, pd.DataFrame):
        columns = [table.iloc[:, j] if _may_hold_times(d) else None for j, d in enumerate(table.dtypes)]
    elif isinstance(table, np.ndarray) and table.dtype.kind in "MmOUST" and table.ndim in (1, 2):
        columns = list(table.T) if table.ndim == 2 else [table]
    else:
        return table, None
    labels = [repr(str(label)) for label in table.columns] if hasattr(table, "columns") else range(len(columns))
    times = [
        None if c is None else _read_times(c, f"Column {n} of {name}") for c, n in zip(columns, labels, strict=True)
    ]
    if all(time is None for time in times):
        return table, None
    known = origins if origins is not None and len(origins) == len(times) else [None] * len(times)
    found = [_origin(time, origin) for time, origin in zip(times, known, strict=True)]
    days = {j: _days(t.values, o) for j, (t, o) in enumerate(zip(times, found, strict=True)) if t is not None}
    return _replace_columns(table, days), found


def reject_times(table, name: str) -> None:
    """Raise if a table of curves, whose columns have one unit, holds dates or durations."""
    _, found = to_days(table, name=name)
    if found is not None:
        column = next(j for j, origin in enumerate(found) if origin is not None)
        label = repr(str(table.columns[column])) if hasattr(table, "columns") else column
        raise InputError(
            f"{name} must hold numbers, got {KINDS[_kind(found[column])]} in column {label}. Convert them, for example to days since a common date."
        )


def check_kinds(found: Origins | None, fitted: Origins | None, labels: Sequence, name: str) -> None:
    """Check that a table has dates and durations in the columns in which that of the fit had them."""
    for j, label in enumerate(labels):
        got, expected = (_kind(None if origins is None else origins[j]) for origins in (found, fitted))
        if got != expected:
            fix = {
                "number": "Fit the model to dates to predict at dates.",
                "date": "Convert it with pandas.to_datetime, and dates with a time zone with .dt.tz_localize(None).",
                "zoned": "Convert it with pandas.to_datetime(…, utc=True).",
                "duration": "Convert it with pandas.to_timedelta.",
            }[expected]
            raise InputError(
                f"Column {label} of {name} must hold {KINDS[expected]}, as in fit, got {KINDS[got]}. {fix}"
            )


def from_days(X: np.ndarray, origins: Origins) -> list[np.ndarray]:
    """Return the columns of X (m, d) with dates and durations instead of days, to the microsecond."""
    return [column if o is None else _from_days(column, o) for column, o in zip(X.T, origins, strict=True)]


def describe_origin(origin: str) -> str:
    """Describe the unit of a column: "days", or "days since 2024-01-01"."""
    return (
        "days"
        if origin == DURATION
        else f"days since {origin.removesuffix('T00:00:00' + UTC).removesuffix('T00:00:00')}"
    )


def _as_array(values):
    try:
        return np.asarray(values)
    except ValueError:  # rows of different lengths, which the validation reports
        return values


def _may_hold_times(dtype) -> bool:
    return not (isinstance(dtype, np.dtype) and dtype.kind in "biufc")


def _read_times(column: np.ndarray | pd.Series, label: str) -> _Times | None:
    """Return the times of a column; None if it holds numbers."""
    if isinstance(column, np.ndarray) and column.dtype.kind in "Mm":
        return _Times(column)
    column = pd.Series(column)
    dtype = column.dtype
    if isinstance(dtype, pd.PeriodDtype | pd.IntervalDtype):
        raise InputError(
            f"{label} must hold numbers or dates, got {dtype}. Convert it, for example with .dt.to_timestamp()."
        )
    if isinstance(dtype, pd.CategoricalDtype):
        column = column.astype(dtype.categories.dtype)
    if not (isinstance(dtype, pd.DatetimeTZDtype) or dtype.kind in "Mm"):
        if pd.api.types.is_numeric_dtype(column.dtype) or pd.api.types.is_bool_dtype(column.dtype):
            return None
        column = _parse_objects(column, label)
        if column is None:
            return None
    if is_zoned := getattr(column.dt, "tz", None) is not None:
        column = column.dt.tz_convert("UTC").dt.tz_localize(None)
    return _Times(column.to_numpy(), is_zoned)


def _parse_objects(column: pd.Series, label: str) -> pd.Series | None:
    """Return a column of date or duration objects as times; None if all its values are numbers."""
    kind = pd.api.types.infer_dtype(column, skipna=True)
    if kind in DATES + DURATIONS:
        try:
            return (pd.to_datetime if kind in DATES else pd.to_timedelta)(column)
        except (TypeError, ValueError) as error:
            raise InputError(
                f"{label} holds dates that do not agree ({error}). Convert it with pandas.to_datetime."
            ) from error
    try:
        pd.to_numeric(column)
        return None
    except (TypeError, ValueError):
        texts = [value for value in column if isinstance(value, str)]
    if kind == "string" and (text := next((t for t in texts if not _is_number(t)), None)) is not None:
        if _is_date(text):
            raise InputError(
                f"{label} must hold numbers or dates, got the text {text!r}. Convert it with pandas.to_datetime."
            )
        raise InputError(
            f"{label} must hold numbers, got the text {text!r}. Encode it, for example with sklearn.preprocessing.OneHotEncoder, or drop it."
        )
    if texts or any(pd.api.types.infer_dtype([v], skipna=False) in DATES + DURATIONS for v in column):
        raise InputError(
            f"{label} mixes values of different types. Convert all of them with pandas.to_datetime (dates) or pandas.to_numeric (numbers)."
        )
    return None  # objects that the validation rejects


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _is_date(text: str) -> bool:
    try:
        pd.Timestamp(text)
    except (ValueError, OverflowError):
        return False
    return True


def _kind(origin: str | None) -> str:
    if origin is None:
        return "number"
    return "duration" if origin == DURATION else "zoned" if origin.endswith(UTC) else "date"


def _origin(times: _Times | None, known: str | None) -> str | None:
    if times is None:
        return None
    kind = "duration" if times.values.dtype.kind == "m" else "zoned" if times.is_zoned else "date"
    if kind == _kind(known):
        return known
    if kind == "duration":
        return DURATION
    dates = times.values[~np.isnat(times.values)]
    first = dates.min() if len(dates) else np.datetime64(0, "s")
    first = first if np.datetime_data(first.dtype)[0] in ("ns", "ps", "fs", "as", "us", "ms") else first.astype("M8[s]")
    text = str(first)
    text = text.rstrip("0").rstrip(".") if "." in text else text
    return text + (UTC if times.is_zoned else "")


def _days(times: np.ndarray, origin: str) -> np.ndarray:
    """Return times (n,) as days since an origin, NaN where missing; the same for every unit of the times."""
    day, fraction = _split(times)
    if origin != DURATION:
        first, first_fraction = _split(np.array([np.datetime64(origin.removesuffix(UTC))]))
        day, fraction = day - first, fraction - first_fraction
    return np.where(np.isnat(times), np.nan, day + fraction)


def _split(times: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return whole days since 1970, or of a duration, and the rest as a fraction of a day: a quotient of integers."""
    try:
        day = times.astype(f"{times.dtype.kind}8[D]")
        rest = (times - day.astype(times.dtype)) / np.timedelta64(1, "D")
    except TypeError as error:  # months have no fixed length
        raise InputError(f"Durations of type {times.dtype} have no length in days. Convert them to days.") from error
    return day.astype(np.int64), rest


def _replace_columns(table, days: dict[int, np.ndarray]):
    if isinstance(table, pd.Series):
        return pd.Series(days[0], index=table.index, name=table.name)
    if isinstance(table, pd.DataFrame):
        table = table.copy(deep=False)
        for j, values in days.items():
            table.isetitem(j, values)
        return table
    if table.ndim == 1:
        return days[0]
    columns = [days.get(j, table[:, j]) for j in range(table.shape[1])]
    return np.stack(columns, axis=1)


def _from_days(days: np.ndarray, origin: str) -> np.ndarray:
    # through whole days, so that the product with the microseconds of a day does not round
    whole = np.floor(days)
    times = whole.astype("m8[D]").astype("m8[us]") + np.round((days - whole) * DAY_US).astype("m8[us]")
    if origin == DURATION:
        return times
    dates = np.datetime64(origin.removesuffix(UTC)).astype("M8[us]") + times
    return pd.DatetimeIndex(dates, tz="UTC") if origin.endswith(UTC) else dates
