"""Tests of `ovkgp.datasets.parquet_tables`: types, nulls, row groups and invalid files."""

import decimal

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyarrow import parquet

from ovkgp.datasets import DataWarning, parquet_tables, stream
from ovkgp.datasets.parquet_tables import _find_row_groups
from ovkgp.exceptions import InputError


def write(folder, columns, name="table.parquet", **options):
    parquet.write_table(pa.table(columns), folder / name, **options)
    return folder / name


def read(path, inputs, outputs, chunk_rows=1000, **options):
    chunks = list(stream(path, inputs, outputs, chunk_rows, **options))
    return np.concatenate([X for X, _ in chunks]), np.concatenate([Y for _, Y in chunks])


@pytest.mark.parametrize(
    "kind", [pa.float64(), pa.float32(), pa.int64(), pa.int8(), pa.uint16(), pa.decimal128(9, 2)], ids=str
)
def test_parquet_reads_every_numeric_type_with_nulls(tmp_path, kind):
    numbers = [decimal.Decimal(3), None, decimal.Decimal(7)] if pa.types.is_decimal(kind) else [3, None, 7]
    path = write(tmp_path, {"x": [1.0, 2.0, 4.0], "y": pa.array(numbers, kind), "text": ["a", "b", "c"]})
    X, Y = read(path, "x", "y")
    assert X.dtype == Y.dtype == np.float64
    np.testing.assert_array_equal(X, [[1.0], [2.0], [4.0]])
    np.testing.assert_array_equal(Y, [[3.0], [np.nan], [7.0]])


def test_null_column_is_an_unobserved_output(tmp_path):
    path = write(tmp_path, {"x": [1.0, 2.0], "y": pa.nulls(2)})
    assert np.isnan(read(path, "x", "y")[1]).all()


def test_nan_and_null_are_both_missing(tmp_path):
    path = write(tmp_path, {"x": [1.0, 2.0, 3.0], "y": [np.nan, None, 0.5]})
    np.testing.assert_array_equal(read(path, "x", "y")[1], [[np.nan], [np.nan], [0.5]])


@pytest.mark.parametrize("values", [["a", "b"], [True, False], [[1.0], [2.0]]])
def test_parquet_rejects_columns_that_are_not_numeric(tmp_path, values):
    path = write(tmp_path, {"x": [1.0, 2.0], "y": values})
    with pytest.raises(InputError, match=r"output 'y' of .* must hold numbers or dates"):
        stream(path, "x", "y")


def test_parquet_column_names_may_contain_dots(tmp_path):
    path = write(tmp_path, {"x.1": [1.0], "y": [2.0]})
    np.testing.assert_array_equal(read(path, ["x.1"], "y")[0], [[1.0]])
    with pytest.raises(InputError, match=r"no column 'x1' \(did you mean 'x.1'\?\)"):
        stream(path, "x1", "y")


def test_bad_rows_are_numbered_from_one_in_every_shard(tmp_path, monkeypatch):
    monkeypatch.setattr(parquet_tables, "BATCH_ROWS", 7)
    x, y = np.arange(50.0), np.ones(50)
    x[[0, 23]], y[[31, 49]] = [np.nan, np.inf], [np.inf, -np.inf]
    path = write(tmp_path, {"x": x, "y": y}, row_group_size=9)
    table = stream(path, "x", "y", 4)
    with pytest.warns(DataWarning, match=r"4 of 50 .*row 1 \(.*missing.*row 24 \(.*inf"):
        whole = np.concatenate([X for X, _ in table])
    assert [row.line for row in table.report.bad_rows] == [1, 24, 32, 50]
    assert table.report.unit == "row"
    for world in (2, 3, 8, 60):
        parts = [table.shard(rank, world) for rank in range(world)]
        with pytest.warns(DataWarning):
            rows = [X for part in parts for X, _ in part]
        np.testing.assert_array_equal(np.concatenate(rows), whole)
        assert [row.line for part in parts for row in part.report.bad_rows] == [1, 24, 32, 50]
    with pytest.raises(InputError, match="row 1: input 'x' is missing"):
        list(stream(path, "x", "y", on_bad_rows="error"))


def test_row_groups_outside_the_shard_are_not_read(tmp_path):
    path = write(tmp_path, {"x": np.arange(50.0), "y": np.ones(50)}, row_group_size=10)
    metadata = parquet.ParquetFile(path).metadata
    assert _find_row_groups(metadata, 0, 50) == ([0, 1, 2, 3, 4], 0)
    assert _find_row_groups(metadata, 10, 20) == ([1], 10)
    assert _find_row_groups(metadata, 19, 31) == ([1, 2, 3], 10)
    assert _find_row_groups(metadata, 20, 20)[0] == []


def test_invalid_parquet_files_raise(tmp_path):
    path = tmp_path / "table.pq"
    for content in (b"", b"x,y\n1,2\n", b"PAR1" * 10):
        path.write_bytes(content)
        with pytest.raises(InputError, match="cannot be read as Parquet"):
            stream(path, "x", "y")


def test_damaged_page_raises(tmp_path):
    path = write(tmp_path, {"x": np.random.default_rng(0).random(5000), "y": np.ones(5000)}, compression="gzip")
    content = bytearray(path.read_bytes())
    content[100:20000] = bytes(19900)
    path.write_bytes(content)
    with pytest.raises(InputError, match="cannot be read as Parquet"):
        list(stream(path, "x", "y"))


def test_parquet_without_rows_raises(tmp_path):
    path = write(tmp_path, {"x": pa.array([], pa.float64()), "y": pa.array([], pa.float64())})
    with pytest.raises(InputError, match="has columns and no rows"):
        stream(path, "x", "y")


@pytest.mark.parametrize("size", [1000, 100_000])
def test_parquet_changed_during_a_pass_raises(tmp_path, monkeypatch, size):
    monkeypatch.setattr(parquet_tables, "BATCH_ROWS", 10)
    path = write(tmp_path, {"x": np.arange(500.0), "y": np.ones(500)}, row_group_size=50)
    chunks = iter(stream(path, "x", "y", 10))
    next(chunks)
    with open(path, "r+b") as file:
        file.truncate(size)  # shorter, which pyarrow may notice, or longer, which it does not
    with pytest.raises(InputError, match="was changed after the stream was made"):
        list(chunks)


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_parquet_dates_and_durations_are_read_as_such(tmp_path, unit):
    dates = pd.Series(pd.to_datetime(["2024-01-05 03:00:00", None, "2024-01-07 00:00:00"]).as_unit(unit))
    path = tmp_path / "table.parquet"
    frame = pd.DataFrame(
        {"when": dates, "zoned": dates.dt.tz_localize("UTC"), "lag": dates - dates[0], "x": [1.0, 2.0, 3.0]}
    )
    frame["day"] = dates.dt.date
    frame.to_parquet(path)
    ((X, Y),) = stream(path, "x", "when,zoned,lag,day")
    assert isinstance(X, np.ndarray)
    for name in ("when", "zoned", "lag"):
        assert Y[name].dropna().tolist() == frame[name].dropna().tolist() and Y[name].isna().tolist() == [
            False,
            True,
            False,
        ]
    assert Y.day[0] == pd.Timestamp("2024-01-05")
