"""Tests of `ovkgp.cli.tables`."""

import csv

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from cli_cases import make_table, write_table

from ovkgp.cli.tables import WRITABLE_SUFFIXES, TableFile, parse_labels, sort_labels, write_tables
from ovkgp.exceptions import InputError, OptionError


@pytest.mark.parametrize("name", ["table.csv", "table.tsv", "table.parquet"])
def test_table_file_reads_many_outputs(tmp_path, name):
    X, Y = TableFile(write_table(tmp_path, name), ("b", "a"), ("v", "u")).read("table")
    pd.testing.assert_frame_equal(X, make_table()[["b", "a"]])
    pd.testing.assert_frame_equal(Y, make_table()[["v", "u"]])


def test_table_file_skips_rows_with_missing_single_output(tmp_path, capsys):
    X, y = TableFile(write_table(tmp_path), ("a",), ("v",)).read("target")
    expected = make_table().dropna()
    assert y.name == "v" and y.tolist() == expected["v"].tolist() and X["a"].tolist() == expected["a"].tolist()
    assert capsys.readouterr().err == "Note: 5 of 30 rows were skipped because 'v' is missing.\n"


def test_table_file_rejects_output_without_values(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text("x,y\n1,\n2,NA\n")
    with pytest.raises(InputError, match="'y' has no observed values"):
        TableFile(path, ("x",), ("y",)).read("target")


@pytest.mark.parametrize("name", ["table.csv", "table.parquet"])
def test_table_file_reads_labels(tmp_path, name):
    X, y = TableFile(write_table(tmp_path, name), ("a", "b"), ("label",)).read("labels")
    assert y.name == "label" and y.tolist() == make_table()["label"].tolist()
    assert list(X.columns) == ["a", "b"]


def test_table_file_reads_integer_labels_only(tmp_path):
    y = TableFile(write_table(tmp_path), ("a",), ("n",)).read("labels")[1]
    assert y.dtype.kind == "i"
    with pytest.raises(InputError, match="'u' must hold class labels"):
        TableFile(write_table(tmp_path), ("a",), ("u",)).read("labels")


def test_table_file_reads_inputs_alone(tmp_path):
    X, y = TableFile(write_table(tmp_path), ("a", "b"), None).read("none")
    assert y is None and X.shape == (30, 2)


@pytest.mark.parametrize("name", ["long.csv", "long.parquet"])
def test_table_file_reads_long_table(tmp_path, name):
    wide = make_table()[["a", "b", "u", "v"]]
    long = wide.melt(["a", "b"], var_name="quantity", value_name="value").sample(frac=1, random_state=0)
    path = tmp_path / name
    long.to_csv(path, index=False) if name.endswith("csv") else long.to_parquet(path)
    X, Y = TableFile(path, ("a", "b"), ("value",), "quantity").read("table")
    assert list(X.columns) == ["a", "b"] and list(Y.columns) == ["u", "v"]
    back = pd.concat([X, Y], axis=1).sort_values("a", ignore_index=True)
    pd.testing.assert_frame_equal(back, wide.sort_values("a", ignore_index=True))


def test_table_file_sorts_numeric_tasks(tmp_path):
    path = tmp_path / "long.csv"
    path.write_text("x,day,y\n0,10,1\n0,9,2\n1,9,\n")
    X, Y = TableFile(path, ("x",), ("y",), "day").read("table")
    assert list(Y.columns) == ["9", "10"] and X.to_numpy().tolist() == [[0.0]] and Y.to_numpy().tolist() == [[2.0, 1.0]]


def test_table_file_rejects_long_table_without_values(tmp_path):
    path = tmp_path / "long.csv"
    path.write_text("x,day,y\n0,10,\n0,9,NA\n")
    with pytest.raises(InputError, match="'y'"):
        TableFile(path, ("x",), ("y",), "day").read("table")


def test_check_target_rejects_unsupported_outputs(tmp_path):
    path = write_table(tmp_path)
    for outputs, task, target, message in [
        (("u",), None, "none", "learns from inputs alone"),
        (None, "label", "none", "learns from inputs alone"),
        (None, None, "table", "needs outputs"),
        (("u", "v"), None, "target", "takes one output column"),
        (("u",), "label", "labels", "takes one output column"),
        (("u", "v"), "label", "table", "--task needs one column"),
    ]:
        with pytest.raises(OptionError, match=message):
            TableFile(path, ("a",), outputs, task).check_target(target, "Recipe x")
    TableFile(path, ("a",), ("u", "v")).check_target("table", "Recipe x")


def test_check_columns_rejects_missing_columns(tmp_path):
    path = write_table(tmp_path)
    for table, target in [
        (TableFile(path, ("aa",), ("u",)), "table"),
        (TableFile(path, ("a",), ("uu",)), "target"),
        (TableFile(path, ("a",), ("labels",)), "labels"),
        (TableFile(path, ("a",), ("u",), "tasks"), "table"),
        (TableFile(path, ("aa",), None), "none"),
    ]:
        with pytest.raises(InputError, match="column"):
            table.check_columns(target)


def test_table_file_shows_progress_for_large_files(tmp_path, monkeypatch):
    from ovkgp.cli import tables

    table = TableFile(write_table(tmp_path), ("a",), ("u",), verbose=1)
    assert table.stream().verbose == 0
    monkeypatch.setattr(tables, "MIN_PROGRESS_BYTES", 100)
    assert table.stream().verbose == 1
    assert np.concatenate([X for X, _ in table.stream()]).shape == (30, 1)


@pytest.mark.parametrize(
    ("texts", "kind", "values"),
    [
        (["1", "-2"], "i", [1, -2]),
        (["0.5", "1.0"], "f", [0.5, 1.0]),
        (["1", "1.0"], "U", ["1", "1.0"]),
        (["007", "1"], "U", ["007", "1"]),
        (["1_000"], "U", ["1_000"]),
        (["yes", "no"], "U", ["yes", "no"]),
        ([True, False], "b", [True, False]),
        ([3, 4], "i", [3, 4]),
    ],
)
def test_parse_labels_converts_only_without_loss(texts, kind, values):
    found = parse_labels(texts)
    assert found.dtype.kind == kind and found.tolist() == values


def test_sort_labels_is_numeric_only_for_numbers():
    assert sort_labels(["10", "2", "-1", "2"]) == ["-1", "2", "10"]
    assert sort_labels(["b", "a", "10", "9"]) == ["10", "9", "a", "b"]
    assert sort_labels(np.array(["b", "a"]).tolist()) == ["a", "b"]


NUMBERS = np.array([1.0, -0.1, 1 / 3, 1e300, 5e-324, 2003.0])
TEXTS = ["a", "b c", "", "ü", "x", "y"]


def write(path, *tables):
    assert write_tables(path, iter(tables)) == sum(map(len, tables))


def read(path):
    if path.suffix in (".parquet", ".pq"):
        return pd.read_parquet(path)
    return pd.read_csv(path, sep="\t" if path.suffix == ".tsv" else ",", keep_default_na=False)


@pytest.mark.parametrize("suffix", WRITABLE_SUFFIXES)
def test_table_writer_is_exact(tmp_path, suffix):
    table = pa.table({"x": NUMBERS, "name": TEXTS, "is_in": [True, False] * 3})
    write(tmp_path / f"table{suffix}", table.slice(0, 2), table.slice(2, 4))
    found = read(tmp_path / f"table{suffix}")
    assert found["x"].tolist() == NUMBERS.tolist()
    assert found["name"].tolist() == TEXTS and found["is_in"].tolist() == [True, False] * 3
    assert [file.name for file in tmp_path.iterdir()] == [f"table{suffix}"]


def test_csv_writer_quotes_whole_chunks(tmp_path):
    chunks = [["a", "b"], ["c", "d, e"]]
    write(tmp_path / "table.csv", *(pa.table({"x": [1, 2], "name": names}) for names in chunks))
    assert (tmp_path / "table.csv").read_text() == 'x,name\n1,a\n2,b\n1,"c"\n2,"d, e"\n'


def test_csv_writer_quotes_only_if_needed(tmp_path):
    path, names = tmp_path / "table.csv", ["x, y", 'the "z"']
    write(path, pa.table(dict(zip(names, [["a"], ["b"]], strict=True))))
    assert path.read_text() == '"x, y","the ""z"""\na,b\n'
    texts = ['say "no"', "a,b", "two\nlines"]
    write(path, pa.table({"x": ["plain"]}), pa.table({"x": texts}))
    with open(path, newline="") as file:
        assert list(csv.reader(file)) == [["x"], ["plain"], *([text] for text in texts)]


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_table_writer_keeps_old_file_on_failure(tmp_path, suffix):
    path = tmp_path / f"table{suffix}"
    path.write_text("old")

    def interrupted():
        yield pa.table({"x": [1.0]})
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_tables(path, interrupted())
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [(f"table{suffix}", "old")]


def test_table_writer_follows_links(tmp_path):
    (tmp_path / "real").write_text("old")
    (tmp_path / "link.csv").symlink_to(tmp_path / "real")
    write(tmp_path / "link.csv", pa.table({"x": [1.5]}))
    assert (tmp_path / "link.csv").is_symlink() and (tmp_path / "real").read_text() == "x\n1.5\n"
