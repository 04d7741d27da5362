"""Tests of `ovkgp.cli.tables`."""

import csv
import warnings

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from cli_cases import make_table, write_table

from ovkgp.cli import tables
from ovkgp.cli.tables import WRITABLE_SUFFIXES, TableFile, parse_labels, sort_labels, write_tables
from ovkgp.datasets import DataWarning, stream
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


# --- columns of texts beside the numbers

TEXT = 'site,x,y,kind\nBern,1,2.5,rain\n\n"Thun, Lake",2,,"a ""b"" c"\n'


def read_chunks(path, inputs, outputs, texts, required=True, **options):
    return list(TableFile(path, inputs, outputs, **options).read_texts(texts, required, has_values=True))


def join_chunks(chunks):
    texts = {name: [t for chunk in chunks for t in chunk.texts[name].to_pylist()] for name in chunks[0].texts}
    return np.concatenate([chunk.X for chunk in chunks]), np.concatenate([chunk.Y for chunk in chunks]), texts


def write_text(folder, text, name="table.csv"):
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


@pytest.mark.parametrize("name", ["table.csv", "table.tsv", "table.parquet"])
@pytest.mark.parametrize("chunk", [7, 8192])
def test_read_texts_matches_stream_and_keeps_texts(tmp_path, monkeypatch, name, chunk):
    monkeypatch.setattr(tables, "CHUNK_ROWS", chunk)
    path = write_table(tmp_path, name)
    chunks = read_chunks(path, "a,b", "u,v", ["site", "label"])
    X, Y, texts = join_chunks(chunks)
    expected = [np.concatenate(part) for part in zip(*stream(path, "a,b", "u,v"), strict=True)]
    np.testing.assert_array_equal(X, expected[0])
    np.testing.assert_array_equal(Y, expected[1])
    assert texts == {name: make_table()[name].tolist() for name in ("site", "label")}
    assert [len(one.X) for one in chunks] == ([7, 7, 7, 7, 2] if chunk == 7 else [30])


def test_read_texts_reads_quotes_and_blank_lines(tmp_path):
    X, Y, texts = join_chunks(read_chunks(write_text(tmp_path, TEXT), "x", "y", ["site", "kind"]))
    assert X.ravel().tolist() == [1.0, 2.0] and np.isnan(Y[1, 0])
    assert texts == {"site": ["Bern", "Thun, Lake"], "kind": ["rain", 'a "b" c']}


def test_read_texts_reads_other_separators_and_line_ends(tmp_path):
    path = write_text(tmp_path, "x;kind\r\n1;a,b\r\n2;c\r\n")
    assert join_chunks(read_chunks(path, "x", None, ["kind"], separator=";"))[2] == {"kind": ["a,b", "c"]}


BAD = {
    "x,kind\n1,a\nred,b\n": "line 3: input 'x' is not a number: 'red'",
    "x,kind\n1,a\n\n,b\n": "line 4: input 'x' is missing",
    "x,kind\n1,a\n2,\n": "line 3: 'kind' is missing",
    "x,kind\n1,a\n2,NA\n": "line 3: 'kind' is missing",
    "x,kind\n1,a\n2\n": "line 3: 1 field where the header has 2",
}


@pytest.mark.parametrize("text", BAD)
def test_bad_rows_raise_or_are_skipped_and_counted(tmp_path, text):
    path = write_text(tmp_path, text)
    with pytest.raises(InputError, match=BAD[text]):
        join_chunks(read_chunks(path, "x", None, ["kind"]))
    reason = BAD[text].partition(": ")[2]
    with pytest.warns(DataWarning, match=f"1 of 2 rows skipped: line . \\({reason}"):
        X, _, texts = join_chunks(read_chunks(path, "x", None, ["kind"], strict=False))
    assert X.tolist() == [[1.0]] and texts["kind"] == ["a"]


def test_bad_parquet_rows_raise_or_are_skipped(tmp_path):
    path = tmp_path / "table.parquet"
    pd.DataFrame({"x": [1.0, np.nan, 3.0, 4.0], "kind": ["a", "b", None, "d"]}).to_parquet(path)
    with pytest.raises(InputError, match="row 2: input 'x' is missing"):
        join_chunks(read_chunks(path, "x", None, ["kind"]))
    with pytest.warns(DataWarning, match=r"2 of 4 rows .* row 2 .* row 3 \('kind' is"):
        X, _, texts = join_chunks(read_chunks(path, "x", None, ["kind"], strict=False))
    assert X.ravel().tolist() == [1.0, 4.0] and texts["kind"] == ["a", "d"]


def test_batch_of_bad_rows_yields_no_chunk(tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "CHUNK_ROWS", 3)
    path = tmp_path / "table.parquet"
    x, kind = [*[np.nan] * 3, 1.0, np.nan, 2.0, 3.0, 4.0, 5.0], [*"abcdef", None, None, None]
    pd.DataFrame({"x": x, "kind": kind}).to_parquet(path)
    with pytest.warns(DataWarning, match="7 of 9 rows skipped"):
        (chunk,) = read_chunks(path, "x", None, ["kind"], strict=False)
    assert chunk.X.ravel().tolist() == [1.0, 2.0] and chunk.texts["kind"].to_pylist() == ["d", "f"]


def test_texts_may_be_empty_unless_required(tmp_path):
    path = write_text(tmp_path, "x,kind\n1,\n2,b\n")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert join_chunks(read_chunks(path, "x", None, ["kind"], required=False))[2] == {"kind": ["", "b"]}


def test_text_column_types_are_kept(tmp_path):
    path = tmp_path / "table.parquet"
    pd.DataFrame({"x": [1.0, 2.0], "id": [7, 8]}).to_parquet(path)
    (chunk,) = read_chunks(path, "x", None, ["id"])
    assert chunk.texts["id"].type == pa.int64()


def test_text_must_be_utf8(tmp_path):
    path = write_text(tmp_path, "x,kind\n1,Zürich\n".encode("latin-1"))
    with pytest.raises(InputError, match="line 2: 'kind' is not text in UTF-8"):
        join_chunks(read_chunks(path, "x", None, ["kind"]))


def test_fields_over_several_lines_raise(tmp_path):
    path = write_text(tmp_path, 'x,kind\n1,"a\nb"\n')
    with pytest.raises(InputError, match="line 2: a quoted field is not closed"):
        join_chunks(read_chunks(path, "x", None, ["kind"], strict=False))


def test_table_without_usable_rows_raises(tmp_path):
    with pytest.raises(InputError, match="no usable rows: line 2"):
        join_chunks(read_chunks(write_text(tmp_path, "x,kind\ninf,a\n"), "x", None, ["kind"], strict=False))


@pytest.mark.parametrize("name", ["table.csv", "table.parquet"])
def test_unknown_columns_raise(tmp_path, name):
    path = write_table(tmp_path, name)
    with pytest.raises(InputError, match=r"'lable' \(did you mean 'label'\?\)"):
        TableFile(path, "a", None).open_texts(["lable"])
    with pytest.raises(InputError, match="has no column 'aa'"):
        TableFile(path, "aa", None).open_texts(["label"])


def test_unknown_file_types_raise(tmp_path):
    with pytest.raises(OptionError, match=r"\.xlsx"):
        TableFile(write_text(tmp_path, "x", "table.xlsx"), "x", None).open_texts(["kind"])
    with pytest.raises(FileNotFoundError, match="there is no file"):
        TableFile(tmp_path / "none.csv", "x", None).open_texts(["kind"])
