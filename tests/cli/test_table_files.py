"""Tables written in chunks: what was written is read again, and a file is whole or not there."""

import csv

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from ovkgp.cli.tables import SUFFIXES, table_file

NUMBERS = np.array([1.0, -0.1, 1 / 3, 1e300, 5e-324, 2003.0])
TEXTS = ["a", "b c", "", "ü", "x", "y"]


def write(path, *tables):
    with table_file(path, tables[0].schema) as writer:
        for table in tables:
            writer.write_table(table)


def read(path):
    if path.suffix in (".parquet", ".pq"):
        return pd.read_parquet(path)
    return pd.read_csv(path, sep="\t" if path.suffix == ".tsv" else ",", keep_default_na=False)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_chunks_are_one_table_equal_to_the_bit(tmp_path, suffix):
    table = pa.table({"x": NUMBERS, "name": TEXTS, "is_in": [True, False] * 3})
    write(tmp_path / f"table{suffix}", table.slice(0, 2), table.slice(2, 4))
    found = read(tmp_path / f"table{suffix}")
    assert found["x"].tolist() == NUMBERS.tolist()
    assert found["name"].tolist() == TEXTS and found["is_in"].tolist() == [True, False] * 3
    assert [file.name for file in tmp_path.iterdir()] == [f"table{suffix}"]


def test_all_texts_of_a_chunk_have_quotes_where_one_needs_them(tmp_path):
    chunks = [["a", "b"], ["c", "d, e"]]
    write(tmp_path / "table.csv", *(pa.table({"x": [1, 2], "name": names}) for names in chunks))
    assert (tmp_path / "table.csv").read_text() == 'x,name\n1,a\n2,b\n1,"c"\n2,"d, e"\n'


def test_quotes_only_where_they_are_needed(tmp_path):
    path, names = tmp_path / "table.csv", ["x, y", 'the "z"']
    write(path, pa.table(dict(zip(names, [["a"], ["b"]], strict=True))))
    assert path.read_text() == '"x, y","the ""z"""\na,b\n'
    texts = ['say "no"', "a,b", "two\nlines"]
    write(path, pa.table({"x": ["plain"]}), pa.table({"x": texts}))
    with open(path, newline="") as file:
        assert list(csv.reader(file)) == [["x"], ["plain"], *([text] for text in texts)]


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_a_failure_keeps_the_old_file_and_leaves_no_other(tmp_path, suffix):
    path = tmp_path / f"table{suffix}"
    path.write_text("old")
    table = pa.table({"x": [1.0]})
    with pytest.raises(KeyboardInterrupt), table_file(path, table.schema) as writer:
        writer.write_table(table)
        raise KeyboardInterrupt
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [(f"table{suffix}", "old")]


def test_the_file_behind_a_link_is_replaced(tmp_path):
    (tmp_path / "real").write_text("old")
    (tmp_path / "link.csv").symlink_to(tmp_path / "real")
    write(tmp_path / "link.csv", pa.table({"x": [1.5]}))
    assert (tmp_path / "link.csv").is_symlink() and (tmp_path / "real").read_text() == "x\n1.5\n"
