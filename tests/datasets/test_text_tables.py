"""Tests of `ovkgp.datasets.text_tables`: the rows of a numeric stream, each with its texts."""

import warnings

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from cli_cases import make_table, write_table

from ovkgp.datasets import DataWarning, stream, text_tables
from ovkgp.datasets.text_tables import TextTable
from ovkgp.exceptions import InputError, OptionError

TEXT = 'site,x,y,kind\nBern,1,2.5,rain\n\n"Thun, Lake",2,,"a ""b"" c"\n'


def join_chunks(table):
    chunks = list(table)
    texts = {name: [t for chunk in chunks for t in chunk.texts[name].to_pylist()] for name in table.texts}
    return np.concatenate([chunk.X for chunk in chunks]), np.concatenate([chunk.Y for chunk in chunks]), texts


def write(folder, text, name="table.csv"):
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


@pytest.mark.parametrize("name", ["table.csv", "table.tsv", "table.parquet"])
@pytest.mark.parametrize("chunk", [7, 8192])
def test_text_table_matches_stream_and_keeps_texts(tmp_path, monkeypatch, name, chunk):
    monkeypatch.setattr(text_tables, "CHUNK_ROWS", chunk)
    path = write_table(tmp_path, name)
    table = TextTable(path, "a,b", "u,v", ["site", "label"])
    X, Y, texts = join_chunks(table)
    expected = [np.concatenate(part) for part in zip(*stream(path, "a,b", "u,v"), strict=True)]
    np.testing.assert_array_equal(X, expected[0])
    np.testing.assert_array_equal(Y, expected[1])
    assert texts == {name: make_table()[name].tolist() for name in ("site", "label")}
    assert [len(one.X) for one in table] == ([7, 7, 7, 7, 2] if chunk == 7 else [30])


def test_text_table_reads_quotes_and_blank_lines(tmp_path):
    X, Y, texts = join_chunks(TextTable(write(tmp_path, TEXT), "x", "y", ["site", "kind"]))
    assert X.ravel().tolist() == [1.0, 2.0] and np.isnan(Y[1, 0])
    assert texts == {"site": ["Bern", "Thun, Lake"], "kind": ["rain", 'a "b" c']}


def test_text_table_reads_other_separators_and_line_ends(tmp_path):
    path = write(tmp_path, "x;kind\r\n1;a,b\r\n2;c\r\n")
    assert join_chunks(TextTable(path, "x", None, ["kind"], separator=";"))[2] == {"kind": ["a,b", "c"]}


BAD = {
    "x,kind\n1,a\nred,b\n": "line 3: input 'x' is not a number: 'red'",
    "x,kind\n1,a\n\n,b\n": "line 4: input 'x' is missing",
    "x,kind\n1,a\n2,\n": "line 3: 'kind' is missing",
    "x,kind\n1,a\n2,NA\n": "line 3: 'kind' is missing",
    "x,kind\n1,a\n2\n": "line 3: 1 field where the header has 2",
}


@pytest.mark.parametrize("text", BAD)
def test_bad_rows_raise_or_are_skipped_and_counted(tmp_path, text):
    path = write(tmp_path, text)
    with pytest.raises(InputError, match=BAD[text]):
        join_chunks(TextTable(path, "x", None, ["kind"]))
    reason = BAD[text].partition(": ")[2]
    with pytest.warns(DataWarning, match=f"1 of 2 rows skipped: line . \\({reason}"):
        X, _, texts = join_chunks(TextTable(path, "x", None, ["kind"], strict=False))
    assert X.tolist() == [[1.0]] and texts["kind"] == ["a"]


def test_bad_parquet_rows_raise_or_are_skipped(tmp_path):
    path = tmp_path / "table.parquet"
    pd.DataFrame({"x": [1.0, np.nan, 3.0, 4.0], "kind": ["a", "b", None, "d"]}).to_parquet(path)
    with pytest.raises(InputError, match="row 2: input 'x' is missing"):
        join_chunks(TextTable(path, "x", None, ["kind"]))
    with pytest.warns(DataWarning, match=r"2 of 4 rows .* row 2 .* row 3 \('kind' is"):
        X, _, texts = join_chunks(TextTable(path, "x", None, ["kind"], strict=False))
    assert X.ravel().tolist() == [1.0, 4.0] and texts["kind"] == ["a", "d"]


def test_batch_of_bad_rows_yields_no_chunk(tmp_path, monkeypatch):
    monkeypatch.setattr(text_tables, "CHUNK_ROWS", 3)
    path = tmp_path / "table.parquet"
    x, kind = [*[np.nan] * 3, 1.0, np.nan, 2.0, 3.0, 4.0, 5.0], [*"abcdef", None, None, None]
    pd.DataFrame({"x": x, "kind": kind}).to_parquet(path)
    with pytest.warns(DataWarning, match="7 of 9 rows skipped"):
        (chunk,) = TextTable(path, "x", None, ["kind"], strict=False)
    assert chunk.X.ravel().tolist() == [1.0, 2.0] and chunk.texts["kind"].to_pylist() == ["d", "f"]


def test_texts_may_be_empty_unless_required(tmp_path):
    path = write(tmp_path, "x,kind\n1,\n2,b\n")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert join_chunks(TextTable(path, "x", None, ["kind"], required=False))[2] == {"kind": ["", "b"]}


def test_text_column_types_are_kept(tmp_path):
    path = tmp_path / "table.parquet"
    pd.DataFrame({"x": [1.0, 2.0], "id": [7, 8]}).to_parquet(path)
    (chunk,) = TextTable(path, "x", None, ["id"])
    assert chunk.texts["id"].type == pa.int64()


def test_text_must_be_utf8(tmp_path):
    path = write(tmp_path, "x,kind\n1,Zürich\n".encode("latin-1"))
    with pytest.raises(InputError, match="line 2: 'kind' is not text in UTF-8"):
        join_chunks(TextTable(path, "x", None, ["kind"]))


def test_fields_over_several_lines_raise(tmp_path):
    path = write(tmp_path, 'x,kind\n1,"a\nb"\n')
    with pytest.raises(InputError, match="line 2: a quoted field is not closed"):
        join_chunks(TextTable(path, "x", None, ["kind"], strict=False))


def test_table_without_usable_rows_raises(tmp_path):
    with pytest.raises(InputError, match="no usable rows: line 2"):
        join_chunks(TextTable(write(tmp_path, "x,kind\nred,a\n"), "x", None, ["kind"], strict=False))


@pytest.mark.parametrize("name", ["table.csv", "table.parquet"])
def test_unknown_columns_raise(tmp_path, name):
    path = write_table(tmp_path, name)
    with pytest.raises(InputError, match=r"'lable' \(did you mean 'label'\?\)"):
        TextTable(path, "a", None, ["lable"]).open()
    with pytest.raises(InputError, match="has no column 'aa'"):
        TextTable(path, "aa", None, ["label"]).open()


def test_unknown_file_types_raise(tmp_path):
    with pytest.raises(OptionError, match=r"\.xlsx"):
        TextTable(write(tmp_path, "x", "table.xlsx"), "x", None, ["kind"]).open()
    with pytest.raises(FileNotFoundError, match="there is no file"):
        TextTable(tmp_path / "none.csv", "x", None, ["kind"]).open()
