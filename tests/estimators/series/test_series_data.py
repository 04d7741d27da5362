"""Reading series: stamps, gaps, groups, and the stamps of future steps."""

import numpy as np
import pandas as pd
import pytest
import torch

from ovkgp.estimators.series.series_data import SeriesFormat, read_series
from ovkgp.exceptions import InputError

VALUES = np.arange(20.0).reshape(10, 2)
FREQUENCIES = ["h", "5min", "D", "B", "W-MON", "MS", "ME", "QS-OCT", "QE-DEC", "YS-JAN", "2D", "90s", "2MS"]


def read(series, groups=None, **options):
    return read_series(series, groups, **{"regular": True} | options)


def frame(index, columns=("a", "b")):
    rng = np.random.default_rng(0)
    return pd.DataFrame(rng.normal(size=(len(index), len(columns))), index=index, columns=list(columns))


@pytest.mark.parametrize("series", [VALUES, torch.from_numpy(VALUES), VALUES.tolist(), np.ma.array(VALUES)])
def test_read_series_accepts_arrays(series):
    data = read(series)
    part = data.only()
    np.testing.assert_array_equal(part.values, VALUES)
    np.testing.assert_array_equal(part.times, np.arange(10))
    assert part.stamps is None and data.format == SeriesFormat(2) and data.format.labels == ["y0", "y1"]
    assert isinstance(data.format.table(VALUES), np.ndarray)


def test_read_series_keeps_the_form_of_one_output():
    data = read(VALUES[:, 0])
    assert data.format.is_flat and data.format.table(data.values).shape == (10,)
    data = read(pd.Series(VALUES[:, 0], name="load", index=pd.RangeIndex(5, 15)))
    back = data.format.table(data.values, data.only().stamps)
    assert isinstance(back, pd.Series) and back.name == "load" and list(back.index) == list(range(5, 15))
    assert list(data.format.future_stamps(14, 2)) == [15, 16]


@pytest.mark.parametrize("freq", FREQUENCIES)
@pytest.mark.parametrize("has_gaps", [False, True])
def test_read_series_fills_gaps_of_dates(freq, has_gaps):
    index = pd.date_range("2023-01-02", periods=40, freq=freq, name="when")
    full = frame(index)
    kept = full.drop(index[[4, 5, 17]]) if has_gaps else full
    kept = kept.set_axis(pd.DatetimeIndex(kept.index.to_numpy(), name="when"))  # without its frequency
    data = read(kept)
    part = data.only()
    assert part.stamps.equals(index) and part.num_gaps == data.num_gaps == 3 * has_gaps
    pd.testing.assert_frame_equal(
        data.format.table(part.values, part.stamps), full if not has_gaps else kept.reindex(index), check_freq=False
    )
    expected = pd.date_range(index[-1], periods=4, freq=freq)[1:]
    assert data.format.future_stamps(index[-1], 3).equals(expected)


@pytest.mark.parametrize("freq", ["h", "D", "MS"])
def test_read_series_keeps_time_zones(freq):
    index = pd.date_range("2024-03-25", periods=400, freq=freq, tz="Europe/Paris")  # over daylight saving time
    kept = frame(index).drop(index[[30, 31, 100]])
    data = read(kept)
    part = data.only()
    assert part.stamps.equals(index) and part.num_gaps == 3
    assert data.format.stamps(part.times).equals(index)
    assert data.format.future_stamps(index[-1], 2).equals(pd.date_range(index[-1], periods=3, freq=freq)[1:])


@pytest.mark.parametrize(("freq", "step"), [("M", 1), ("Q-DEC", 1), ("Y", 1), ("W", 1), ("D", 1), ("M", 3)])
def test_read_series_fills_gaps_of_periods(freq, step):
    index = pd.period_range("2001-01", periods=90, freq=freq)[::step]
    data = read(frame(index).drop(index[[3, 9]]))
    part = data.only()
    assert part.stamps.equals(index) and part.num_gaps == 2
    assert data.format.stamps(part.times).equals(index)
    assert list(data.format.future_stamps(index[-1], 2)) == [index[-1] + step, index[-1] + 2 * step]


@pytest.mark.parametrize("index", [pd.RangeIndex(3, 33), np.arange(0, 60, 2), 1959 + np.arange(30) / 4])
def test_read_series_fills_gaps_of_numbers(index):
    index = pd.Index(index)
    data = read(frame(index).drop(index[[3, 4, 9]]))
    part = data.only()
    np.testing.assert_allclose(part.stamps, index, rtol=1e-14)
    assert part.num_gaps == 3 and part.stamps.dtype == index.dtype
    assert data.format.stamps(part.times).equals(part.stamps)
    future = data.format.future_stamps(index[-1], 2)
    np.testing.assert_allclose(future, index[-1] + (index[1] - index[0]) * np.arange(1, 3))
    assert future.dtype == index.dtype


def test_read_series_sorts_stamps():
    index = pd.date_range("2023-01-01", periods=20, freq="D")
    full = frame(index)
    shuffled = full.iloc[np.random.default_rng(1).permutation(20)]
    np.testing.assert_array_equal(read(shuffled).values, full.to_numpy())
    periods = full.set_axis(index.to_period())
    np.testing.assert_array_equal(read(periods.iloc[::-1]).values, full.to_numpy())


def test_read_series_rejects_duplicate_stamps_if_regular():
    index = pd.date_range("2023-01-01", periods=5, freq="D").append(pd.DatetimeIndex(["2023-01-03"]))
    with pytest.raises(InputError, match=r"distinct stamps, got 2023-01-03 .* more than once.*groupby"):
        read(frame(index))
    part = read(frame(index), regular=False).only()
    np.testing.assert_array_equal(part.times, [0, 1, 2, 2, 3, 4])
    with pytest.raises(InputError, match="more than once"):
        read(frame(pd.Index([0, 1, 1, 2])))


def test_read_series_rejects_irregular_stamps_if_regular():
    dates = pd.DatetimeIndex(["2023-01-01", "2023-01-03", "2023-01-06", "2023-01-07 05:00"])
    for index in (dates, pd.Index([0.0, 1.0, 2.5, 3.6]), dates[:3]):
        with pytest.raises(InputError, match="equally spaced stamps, up to gaps"):
            read(frame(index))
        data = read(frame(index), regular=False)
        assert data.only().stamps.equals(index)
        assert data.format.stamps(data.only().times).equals(index)
        with pytest.raises(InputError, match="Pass the future stamps"):
            data.format.future_stamps(index[-1], 2)


def test_read_series_rejects_distant_stamps():
    index = pd.date_range("2023-01-01", periods=50, freq="s").insert(0, pd.Timestamp("1970-01-01"))
    with pytest.raises(InputError, match=r"51 rows from 1970.*Check these stamps"):
        read(frame(index))
    with pytest.raises(InputError, match="steps"):
        read(frame(pd.Index([0, 1, 2, 10**9])))


def test_read_series_separates_lists_and_groups():
    index = pd.date_range("2023-01-01", periods=10, freq="D")
    first, second = frame(index), frame(index[2:7])
    data = read([first, second[["b", "a"]]])
    assert [len(part) for part in data.parts] == [10, 5]
    np.testing.assert_array_equal(data.parts[1].values, second.to_numpy())
    labels = ["x"] * 10 + ["y"] * 5
    order = np.random.default_rng(0).permutation(15)
    grouped = read(pd.concat([first, second]).iloc[order], np.array(labels)[order])
    by_label = {part.group: part.values for part in grouped.parts}
    np.testing.assert_array_equal(by_label["x"], first.to_numpy())
    np.testing.assert_array_equal(by_label["y"], second.to_numpy())
    with pytest.raises(InputError, match="series must be one series, got 2"):
        grouped.only()


def test_read_series_reads_short_series_with_the_frequency_of_the_longest():
    index = pd.date_range("2023-01-01", periods=10, freq="MS")
    data = read([frame(index[[0, 2]]), frame(index)])
    assert [part.num_gaps for part in data.parts] == [1, 0]


def test_read_series_uses_the_format_of_the_fit():
    index = pd.date_range("2023-01-01", periods=10, freq="D")
    form = read(frame(index)).format
    data = read(frame(index[[0, 2]], ("b", "a")), fitted=form)
    assert data.only().num_gaps == 1 and data.format == form
    with pytest.raises(InputError, match="must have the columns"):
        read(frame(index, ("a", "c")), fitted=form)
    with pytest.raises(InputError, match="must have 2 columns, as in fit, got 3"):
        read(np.zeros((4, 3)), fitted=form)
    with pytest.raises(InputError, match="index of dates, as in fit, got numbers"):
        read(frame(pd.RangeIndex(4)), fitted=form)
    with pytest.raises(InputError, match="without a time zone"):
        read(frame(index.tz_localize("UTC")), fitted=form)
    with pytest.raises(InputError, match="equally spaced"):
        read(frame(pd.date_range("2023-01-01", periods=5, freq="h")), fitted=form)
    assert read(VALUES, fitted=form).format.names == ["a", "b"]  # an array has no stamps


def test_read_series_keeps_missing_values():
    values = VALUES.copy()
    values[3], values[5, 1] = np.nan, np.nan
    np.testing.assert_array_equal(read(values).values, values)
    nullable = pd.DataFrame(values, columns=["a", "b"]).convert_dtypes()
    np.testing.assert_array_equal(read(nullable).values, values)


@pytest.mark.parametrize(
    ("series", "message"),
    [
        (np.zeros((0, 2)), "minimum of 1 is required"),
        (np.full((3, 2), np.inf), "infinity"),
        (np.zeros((2, 3, 4)), "dim"),
        (pd.DataFrame({"day": pd.date_range("2023", periods=3), "y": 1.0}), r"set_index\('day'\)"),
        (pd.DataFrame({"y": ["a", "b"]}), "series is invalid|could not convert"),
        (frame(["2023-01-01", "2023-01-02"]), "pandas.to_datetime"),
        (frame(pd.MultiIndex.from_product([["x"], [1, 2]])), "groups"),
        (frame(pd.DatetimeIndex(["2023-01-01", None])), "no stamp in row 1"),
        (frame(pd.to_timedelta([0, 1], "D")), "dates, periods or numbers"),
        ([VALUES, frame(pd.RangeIndex(3))], "one kind of index"),
        ([VALUES, VALUES[:, :1]], "2 columns, as in the first series, got 1"),
    ],
)
def test_read_series_rejects_invalid_series(series, message):
    with pytest.raises(InputError, match=message):
        read(series)


def test_read_series_rejects_invalid_groups():
    with pytest.raises(InputError, match="one label per row"):
        read(VALUES, [0, 1])
    with pytest.raises(InputError, match="missing one in row 1"):
        read(VALUES, [0.0, np.nan] + [1.0] * 8)
    with pytest.raises(InputError, match="groups must be None"):
        read([VALUES], np.zeros(10))


def test_read_series_does_not_change_its_argument():
    table = frame(pd.date_range("2023-01-01", periods=5, freq="D")[::-1])
    before = table.copy()
    values = read(table).values
    values[:] = 0
    pd.testing.assert_frame_equal(table, before)
    array = VALUES.copy()
    read(array).values[:] = 0
    np.testing.assert_array_equal(array, VALUES)
