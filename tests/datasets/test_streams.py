"""Tests of `ovkgp.datasets.streams`: chunks of any size and shards of any number cover the file."""

import csv
import math
import os
import pickle
import subprocess
import sys
import textwrap
import warnings
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pairwise import pairwise
from pyarrow import parquet

import ovkgp.datasets
from ovkgp.datasets import BadRow, DataWarning, StreamReport, TableStream, csv_tables, stream
from ovkgp.datasets.streams import regroup
from ovkgp.exceptions import InputError, OptionError

TEXT = "t,east,north,u,v\n10:00,0,1,2.5,\n10:01,1,1,NA,0.5\n10:02,2,1,,\n10:03,3,2,1.5,0.25\n"
X = np.array([[0.0, 1.0], [1.0, 1.0], [2.0, 1.0], [3.0, 2.0]])
Y = np.array([[2.5, np.nan], [np.nan, 0.5], [np.nan, np.nan], [1.5, 0.25]])


def write(folder, text, name="table.csv"):
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def join_chunks(chunks, d=2, p=2):
    chunks = list(chunks)
    inputs = np.concatenate([np.empty((0, d)), *(inputs for inputs, _ in chunks)])
    return inputs, np.concatenate([np.empty((0, p)), *(outputs for _, outputs in chunks)])


def check(table, X=X, Y=Y):
    for found, expected in zip(join_chunks(table), (X, Y), strict=True):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("chunk", [1, 2, 3, 4, 100])
def test_chunks_have_the_requested_rows(tmp_path, chunk):
    table = stream(write(tmp_path, TEXT), "east,north", ["u", "v"], chunk)
    sizes = [len(inputs) for inputs, _ in table]
    assert sizes[:-1] == [chunk] * (len(sizes) - 1) and sum(sizes) == 4
    check(table)
    for inputs, outputs in table:
        assert inputs.dtype == outputs.dtype == np.float64
        assert inputs.flags.c_contiguous and outputs.flags.c_contiguous and inputs.flags.owndata


def test_stream_can_be_read_repeatedly_and_concurrently(tmp_path):
    table = stream(write(tmp_path, TEXT), "east,north", "u,v", 1)
    for inputs, outputs in table:
        inputs[:], outputs[:] = -1.0, -1.0  # the chunks are the caller's
    check(table)
    for (first, _), (second, _) in zip(table, table, strict=True):
        np.testing.assert_array_equal(first, second)


def test_stream_has_documented_attributes(tmp_path):
    path = write(tmp_path, TEXT)
    table = stream(str(path), "north,east", "v", 3)
    assert (table.inputs, table.outputs, table.num_inputs, table.num_outputs) == (("north", "east"), ("v",), 2, 1)
    assert table.path == path and table.report is None and isinstance(table, TableStream)
    inputs, outputs = join_chunks(table, p=1)
    np.testing.assert_array_equal(inputs, X[:, ::-1])
    np.testing.assert_array_equal(outputs, Y[:, 1:])
    assert table.report == StreamReport(4, 0, (), (2,), True)
    assert "north" in repr(table) and "shard=(1, 2)" in repr(table.shard(1, 2))


VARIANTS = {
    "as it is": TEXT,
    "crlf": TEXT.replace("\n", "\r\n"),
    "byte order mark": "\ufeff" + TEXT,
    "no final newline": TEXT[:-1],
    "crlf, no final newline": TEXT.replace("\n", "\r\n")[:-2],
    "blank lines": "\n" + TEXT.replace("\n", "\n\n \r\n"),
    "quotes": "\n".join(",".join(f'"{cell}"' for cell in line.split(",")) for line in TEXT.splitlines()),
    "spaces": TEXT.replace(",", " , "),
}


@pytest.mark.parametrize(
    ("name", "world", "block"), pairwise(name=VARIANTS, world=[1, 2, 3, 20], block=[64, csv_tables.BLOCK_BYTES])
)
def test_stream_reads_csv_dialects(tmp_path, monkeypatch, name, world, block):
    monkeypatch.setattr(csv_tables, "BLOCK_BYTES", block)
    table = stream(write(tmp_path, VARIANTS[name]), "east,north", "u,v", 3, on_bad_rows="error")
    check(chunk for rank in range(world) for chunk in table.shard(rank, world))


def test_stream_reads_suffixes_and_separators(tmp_path):
    tabs = TEXT.replace(",", "\t")
    check(stream(write(tmp_path, tabs, "a.tsv"), "east,north", "u,v"))
    check(stream(write(tmp_path, tabs, "a.TXT"), "east,north", "u,v", separator="\t"))
    check(stream(write(tmp_path, TEXT.replace(",", ";"), "a.CSV"), "east,north", "u,v", separator=";"))
    check(stream(write(tmp_path, TEXT.replace(",", ";"), "b.tsv"), "east,north", "u,v", separator=";"))
    with pytest.raises(InputError, match="separator"):
        stream(write(tmp_path, TEXT.replace(",", ";")), "east,north", "u,v")
    for name in ("a.xlsx", "a.csv.gz", "a"):
        with pytest.raises(OptionError, match=r"must be a text table \(.*\) or Parquet"):
            stream(write(tmp_path, TEXT, name), "east,north", "u,v")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(chunk_rows=0), "chunk_rows"),
        (dict(chunk_rows=-5), "chunk_rows"),
        (dict(chunk_rows=True), "chunk_rows"),
        (dict(chunk_rows=2.5), "chunk_rows"),
        (dict(on_bad_rows="skip"), "on_bad_rows"),
        (dict(separator=""), "separator"),
        (dict(separator=", "), "separator"),
        (dict(separator='"'), "separator"),
        (dict(separator="\n"), "separator"),
        (dict(separator="·"), "separator"),
        (dict(separator=None), "separator"),
        (dict(shard=3), "shard must be"),
        (dict(shard=(1, 2, 3)), "shard must be"),
        (dict(shard=(2, 2)), "0 ≤ rank < world"),
        (dict(shard=(-1, 2)), "0 ≤ rank < world"),
        (dict(shard=(0, 0)), "0 ≤ rank < world"),
        (dict(shard=(0.5, 2)), "rank must be"),
    ],
)
def test_stream_rejects_invalid_options(tmp_path, options, message):
    with pytest.raises(OptionError, match=message):
        stream(write(tmp_path, TEXT), "east,north", "u,v", **options)


def test_shard_cannot_be_divided(tmp_path):
    table = stream(write(tmp_path, TEXT), "east", "u", shard=(0, 2))
    with pytest.raises(OptionError, match="shard"):
        table.shard(0, 2)


def test_stream_checks_columns_on_creation(tmp_path):
    path = write(tmp_path, TEXT)
    with pytest.raises(InputError, match=r"'esat' .*'east'\?.*'t', 'east', 'north'"):
        stream(path, "esat,north", "u")
    with pytest.raises(InputError, match="both an input and an output"):
        stream(path, "east,u", "u")


BAD = "x,y\n1,2\n,3\n4,inf\n5\n6,red\n\n7,\n8,9,10\n"
BAD_ROWS = (
    BadRow(3, "input 'x' is missing"),
    BadRow(4, "output 'y' is infinite"),
    BadRow(5, "1 field where the header has 2"),
    BadRow(6, "output 'y' is not a number: 'red'"),
    BadRow(9, "3 fields where the header has 2"),
)


def test_bad_rows_are_skipped_with_one_warning(tmp_path):
    table = stream(write(tmp_path, BAD), "x", "y", 1)
    with pytest.warns(DataWarning, match=r"5 of 7 rows .*line 3 \(.*missing\), line 4") as caught:
        found, _ = join_chunks(table, 1, 1)
    assert len(caught) == 1 and caught[0].filename == __file__
    again, _ = join_chunks(table, 1, 1)  # a second pass does not repeat the warning: it would be an error here
    for rows in (found, again):
        np.testing.assert_array_equal(rows, [[1.0], [7.0]])
    assert table.report == StreamReport(2, 5, BAD_ROWS, (1,), True)


def test_bad_rows_in_shards_have_line_numbers_of_the_file(tmp_path):
    table = stream(write(tmp_path, "\ufeff\n" + BAD.replace("\n", "\r\n")), "x", "y", 1)
    for world in range(1, 12):
        parts = [table.shard(rank, world) for rank in range(world)]
        with pytest.warns(DataWarning):
            found = [join_chunks(part, 1, 1)[0] for part in parts]
        np.testing.assert_array_equal(np.concatenate(found), [[1.0], [7.0]])
        bad = tuple(row for part in parts for row in part.report.bad_rows)
        assert bad == tuple(BadRow(row.line + 1, row.reason) for row in BAD_ROWS)


def test_stream_raises_at_the_first_bad_row(tmp_path):
    table = stream(write(tmp_path, BAD), "x", "y", on_bad_rows="error")
    with pytest.raises(InputError, match=r"table\.csv', line 3: input 'x' is missing"):
        list(table)
    assert table.report.num_bad_rows == 1 and not table.report.finished
    with pytest.raises(InputError, match=r"line 9: 3 fields"):
        list(table.shard(1, 2))


def test_interrupted_pass_warns_of_skipped_rows(tmp_path):
    table = stream(write(tmp_path, BAD), "x", "y", 1)
    one_pass = iter(table)
    next(one_pass)
    with pytest.warns(DataWarning, match="rows skipped"):
        one_pass.close()
    assert not table.report.finished and table.report.num_rows == 1


def test_stream_of_bad_rows_only_raises(tmp_path):
    table = stream(write(tmp_path, "x,y\n,1\ninf,2\n"), "x", "y")
    with pytest.raises(InputError, match=r"no usable rows: line 2 .*missing\), line 3"):
        list(table)
    with pytest.warns(DataWarning, match="1 of 1 rows skipped"):  # the others may have good ones
        assert list(table.shard(1, 3)) == []


def test_empty_shards_are_allowed(tmp_path, recwarn):
    path = write(tmp_path, "x,y\n1,2\n3,4\n")
    parts = [stream(path, "x", "y", shard=(rank, 50)) for rank in range(50)]
    sizes = [sum(len(inputs) for inputs, _ in part) for part in parts]
    assert sum(sizes) == 2 and sizes.count(0) == 48 and not recwarn
    assert parts[sizes.index(0)].report == StreamReport(0, 0, (), (0,), True)


def test_shard_reads_only_its_bytes(tmp_path, monkeypatch):
    monkeypatch.setattr(csv_tables, "count_newlines", lambda *_: pytest.fail("no number of a line was needed"))
    path = write(tmp_path, "x,y\n" + "nonsense\n" * 100 + "1,2.5\n" * 150)
    found, _ = join_chunks(stream(path, "x", "y", on_bad_rows="error", shard=(1, 2)), 1, 1)
    assert len(found) == 150


def test_lines_before_a_shard_are_counted_at_most_once(tmp_path, monkeypatch):
    count, calls = csv_tables.count_newlines, []
    monkeypatch.setattr(csv_tables, "count_newlines", lambda *args: calls.append(args) or count(*args))
    monkeypatch.setattr(csv_tables, "BLOCK_BYTES", 64)
    lines = ["x,y", *(["1,2"] * 100), *(["1,2", "red,3"] * 50)]
    table = stream(write(tmp_path, "\n".join(lines)), "x", "y", shard=(1, 2))
    with pytest.warns(DataWarning):
        found, _ = join_chunks(table, 1, 1)
    expected = [number for number, line in enumerate(lines, 1) if line.startswith("red")]
    assert [row.line for row in table.report.bad_rows] == expected[-table.report.num_bad_rows :]
    assert len(calls) == 1 and len(found) > 0  # and reading continued at the right byte


@pytest.mark.parametrize("change", ["append", "truncate", "rewrite"])
def test_file_changed_during_a_pass_raises(tmp_path, monkeypatch, change):
    monkeypatch.setattr(csv_tables, "BLOCK_BYTES", 64)
    path = write(tmp_path, "x,y\n" + "1,2\n" * 200)
    table = stream(path, "x", "y", 10)
    chunks = iter(table)
    next(chunks)
    if change == "append":
        with open(path, "ab") as file:
            file.write(b"3,4\n")
    elif change == "truncate":
        os.truncate(path, 402)
    else:
        path.write_bytes(b"x,y\n" + b"3,4\n" * 200)
        os.utime(path, ns=(0, table._table.snapshot.modified_ns + 10**6))  # clocks of file systems are coarse
    with pytest.raises(InputError, match="was changed after the stream was made"):
        list(chunks)
    with pytest.raises(InputError, match="make a new stream"):
        list(table)


def test_truncated_last_line_is_a_bad_row(tmp_path):
    table = stream(write(tmp_path, "x,y,z\n1,2,3\n4,5,6\n7,8"), "x,y", "z")
    with pytest.warns(DataWarning, match=r"line 4 \(2 fields where the header has 3\)"):
        assert len(join_chunks(table, 2, 1)[0]) == 2


def test_progress_bar_is_shown_only_if_verbose(tmp_path, capsys):
    path = write(tmp_path, TEXT)
    list(stream(path, "east", "u"))
    assert capsys.readouterr().err == ""
    list(stream(path, "east", "u", verbose=1))
    assert "100%" in capsys.readouterr().err
    parquet.write_table(pa.table({"x": [1.0, 2.0], "y": [1.0, 2.0]}), tmp_path / "a.parquet")
    list(stream(tmp_path / "a.parquet", "x", "y", verbose=1))
    assert "2.00/2.00" in capsys.readouterr().err


def test_stream_can_be_pickled(tmp_path):
    table = stream(write(tmp_path, TEXT), "east,north", "u,v")
    list(table)
    check(pickle.loads(pickle.dumps(table)))
    check(chunk for rank in range(3) for chunk in pickle.loads(pickle.dumps(table.shard(rank, 3))))


def test_stream_imports_neither_torch_nor_pyarrow(tmp_path):
    path = write(tmp_path, TEXT)
    code = f"import sys; from ovkgp.datasets import stream; stream({str(path)!r}, 'east', 'u')\n"
    code += "print([name for name in ('torch', 'pyarrow', 'scipy', 'sklearn') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


def test_dataset_names_exist_and_are_sorted():
    assert ovkgp.datasets.__all__ == sorted(ovkgp.datasets.__all__)
    assert all(hasattr(ovkgp.datasets, name) for name in ovkgp.datasets.__all__)
    with pytest.raises(AttributeError, match="nonsense"):
        _ = ovkgp.datasets.nonsense


@given(sizes=st.lists(st.integers(0, 9), max_size=12), size=st.integers(1, 20))
def test_regroup_keeps_every_row(sizes, size):
    rows = np.arange(float(sum(sizes)))[:, None]
    groups = list(regroup(np.split(rows, np.cumsum(sizes)[:-1]) if sizes else [], size))
    assert [len(group) for group in groups[:-1]] == [size] * max(len(groups) - 1, 0)
    np.testing.assert_array_equal(np.concatenate([rows[:0], *groups]), rows)


CELL = st.one_of(st.none(), st.floats(allow_nan=False, allow_infinity=False), st.integers(-99, 99).map(float))
TABLES = st.integers(1, 3).flatmap(
    lambda p: st.lists(
        st.tuples(st.floats(-1e9, 1e9), st.floats(-1, 1), *[CELL] * p),
        min_size=1,
        max_size=40,
    )
)
ROUND_TRIP = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def numbers(rows):
    values = np.array([[math.nan if cell is None else cell for cell in row] for row in rows])
    return values[:, :2], values[:, 2:]


def check_round_trip(path, rows, chunk, world):
    outputs = [f"y{k}" for k in range(len(rows[0]) - 2)]
    table = stream(path, ["a", "b"], outputs, chunk)
    expected = numbers(rows)
    parts = [table.shard(rank, world) for rank in range(world)]
    for chunks in (table, [chunk for part in parts for chunk in part]):
        for found, wanted in zip(join_chunks(chunks, p=len(outputs)), expected, strict=True):
            np.testing.assert_array_equal(found, wanted)
    observed = np.isfinite(expected[1]).sum(0)
    assert table.report.num_rows == len(rows) and table.report.num_observed == tuple(observed)
    np.testing.assert_array_equal(np.sum([part.report.num_observed for part in parts], 0), observed)


@ROUND_TRIP
@given(
    rows=TABLES,
    chunk=st.integers(1, 50),
    world=st.integers(1, 60),
    block=st.integers(200, 500),
    quoting=st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]),
    end=st.sampled_from(["\n", "\r\n", "\n\n"]),
    missing=st.sampled_from(csv_tables.MISSING),
)
def test_csv_round_trip_is_exact(tmp_path_factory, rows, chunk, world, block, quoting, end, missing):
    path = tmp_path_factory.mktemp("csv") / "table.csv"
    with open(path, "w", newline="") as file:
        writer = csv.writer(file, quoting=quoting, lineterminator=end)
        writer.writerow(["a", "note", "b", *(f"y{k}" for k in range(len(rows[0]) - 2))])
        for a, b, *rest in rows:
            writer.writerow(
                [repr(a), 'say "so", é', repr(b), *(missing if cell is None else repr(cell) for cell in rest)]
            )
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("error")
        patch.setattr(csv_tables, "BLOCK_BYTES", block)
        check_round_trip(path, rows, chunk, world)


@ROUND_TRIP
@given(
    rows=TABLES, chunk=st.integers(1, 50), world=st.integers(1, 60), group=st.integers(1, 50), batch=st.integers(1, 50)
)
def test_parquet_round_trip_is_exact(tmp_path_factory, rows, chunk, world, group, batch):
    path = tmp_path_factory.mktemp("parquet") / "table.parquet"
    names = ["a", "b", *(f"y{k}" for k in range(len(rows[0]) - 2))]
    columns = {name: pa.array(cells, pa.float64()) for name, cells in zip(names, zip(*rows, strict=True), strict=True)}
    parquet.write_table(pa.table(columns), path, row_group_size=group)
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("error")
        patch.setattr("ovkgp.datasets.parquet_tables.BATCH_ROWS", batch)
        check_round_trip(path, rows, chunk, world)


PASS = """
import sys
import numpy as np
from ovkgp.datasets import stream

total, rows = np.zeros(6), 0
for X, Y in stream(sys.argv[1], "a,b,c", "u,v,w"):
    total += np.concatenate([X.sum(0), np.nansum(Y, 0)])
    rows += len(X)
status = open("/proc/self/status").read()  # `ru_maxrss` would include the memory of the process that started this one
print(rows, *total, int(status.split("VmHWM:")[1].split()[0]) * 1024)
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from /proc")
def test_stream_of_two_gigabytes_needs_less_than_one_of_memory(tmp_path):
    rng = np.random.default_rng(0)
    values = rng.integers(-(2**20), 2**20, (100_000, 6)) / 2**10  # their sums are exact
    missing = rng.random((100_000, 6)) < [0, 0, 0, 0.1, 0.1, 0.1]
    lines = [
        ",".join("" if gone else repr(value) for value, gone in zip(*row, strict=True)) + "\n"
        for row in zip(values.tolist(), missing.tolist(), strict=True)
    ]
    block = "".join(lines).encode()
    repeats = -(-2 * 10**9 // len(block))
    path = tmp_path / "large.csv"
    try:
        with open(path, "wb") as file:
            file.write(b"a,b,c,u,v,w\n")
            for _ in range(repeats):
                file.write(block)
        assert path.stat().st_size >= 2 * 10**9
        command = [sys.executable, "-c", textwrap.dedent(PASS), str(path)]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=900, check=True, cwd=Path(__file__).parents[2]
        )
    finally:
        path.unlink(missing_ok=True)
    rows, *sums, peak = map(float, done.stdout.split())
    assert rows == repeats * len(values)
    np.testing.assert_array_equal(sums, repeats * np.where(missing, 0.0, values).sum(0))
    assert peak < 2**30


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_stream_reads_inputs_alone(tmp_path, kind):
    path = write(tmp_path, TEXT)
    if kind == "parquet":
        path = tmp_path / "table.parquet"
        parquet.write_table(pa.table({"east": X[:, 0], "north": X[:, 1], "u": ["text"] * 4}), path)
    table = stream(path, "east,north", None, 3)
    inputs, outputs = join_chunks(table, p=0)
    np.testing.assert_array_equal(inputs, X)
    assert outputs.shape == (4, 0) and table.outputs == () and table.report.num_observed == ()
