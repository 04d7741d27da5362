"""Tests of `ovkgp.datasets.csv_tables`."""

import re
from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ovkgp.datasets import DataWarning, csv_tables, stream
from ovkgp.datasets.columns import BadRowLog, Columns
from ovkgp.datasets.csv_tables import CsvRows, byte_range, count_newlines, read_blocks, read_header
from ovkgp.exceptions import InputError
from ovkgp.files import Snapshot

LINES = st.lists(st.binary(max_size=12).map(lambda line: line.replace(b"\n", b".")), min_size=1, max_size=30)


def snapshot(folder, content):
    path = folder / "table.csv"
    path.write_bytes(content)
    return Snapshot.of(path)


@pytest.mark.parametrize(
    "header",
    [
        b"a,b c,d\n",
        b"a,b c,d\r\n",
        b"\xef\xbb\xbfa,b c,d\n",
        b'"a","b c","d"\n',
        b" a , b c ,d\n",
        b"\n\r\n  \na,b c,d\n",
        b"\xef\xbb\xbf\na,b c,d\n",
    ],
)
def test_header_returns_names_and_first_data_byte(tmp_path, header):
    names, start = read_header(snapshot(tmp_path, header + b"1,2,3"), ",")
    assert names == ("a", "b c", "d")
    assert start == len(header)


def test_header_accepts_quoted_separators_and_quotes(tmp_path):
    names, _ = read_header(snapshot(tmp_path, b'"a,1","say ""b""",\xc3\xa9\n1,2,3\n'), ",")
    assert names == ("a,1", 'say "b"', "é")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"\n \r\n", "is empty"),
        (b"\xef\xbb\xbf", "is empty"),
        (b"a,b", "a header and no rows"),
        (b"a,b\n", "a header and no rows"),
        (b"a,b\n\n\r\n  \n", "a header and no rows"),
        (b"a,b\r1,2\r3,4\r", "end in CR alone"),
        ("a,b\n1,2\n".encode("utf-16-le"), "in UTF-8"),
        ("a,b\n1,2\n".encode("utf-16"), "UTF-8"),
        (b"caf\xe9,b\n1,2\n", "cannot be read .*utf-8"),
        (b'a,"b\nc"\n1,2\n', "over several lines"),
    ],
)
def test_header_rejects_invalid_content(tmp_path, content, message):
    with pytest.raises(InputError, match=message):
        read_header(snapshot(tmp_path, content), ",")


def test_header_rejects_an_endless_line(tmp_path, monkeypatch):
    monkeypatch.setattr(csv_tables, "BLOCK_BYTES", 64)
    with pytest.raises(InputError, match="does not begin with a header"):
        read_header(snapshot(tmp_path, b"a," * 100), ",")


def read_all(table, start, parts):
    with open(table.path, "rb") as file:
        ranges = [byte_range(file, start, table.size, (rank, parts)) for rank in range(parts)]
        return ranges, [list(read_blocks(file, *span, table)) for span in ranges]


@given(lines=LINES, ends=st.booleans(), parts=st.integers(1, 40), block=st.integers(14, 60))
def test_byte_ranges_are_disjoint_and_cover_whole_lines(tmp_path_factory, lines, ends, parts, block):
    content = b"\n".join(lines) + b"\n" * ends
    table = snapshot(tmp_path_factory.mktemp("shares"), b"h\n" + content)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(csv_tables, "BLOCK_BYTES", block)
        ranges, blocks = read_all(table, 2, parts)
    assert ranges[0][0] == 2 and ranges[-1][1] == table.size
    assert all(before[1] == after[0] for before, after in pairwise(ranges))
    everything = [part for each in blocks for part in each]
    assert b"".join(everything) == content
    assert all(part.endswith(b"\n") for part in everything[:-1])


def test_count_newlines_before_a_byte(tmp_path, monkeypatch):
    monkeypatch.setattr(csv_tables, "BLOCK_BYTES", 7)
    content = b"a,b\n1,2\n\n3,4\r\n" * 5
    table = snapshot(tmp_path, content)
    with open(table.path, "rb") as file:
        for stop in range(len(content) + 1):
            assert count_newlines(file, stop) == content[:stop].count(b"\n")


def test_read_blocks_rejects_an_endless_line(tmp_path, monkeypatch):
    monkeypatch.setattr(csv_tables, "BLOCK_BYTES", 32)
    table = snapshot(tmp_path, b"a,b\n1,2\n" + b"3" * 200 + b"\n5,6\n")
    with open(table.path, "rb") as file, pytest.raises(InputError, match="line of more than"):
        list(read_blocks(file, 4, table.size, table))
    with open(table.path, "rb") as file, pytest.raises(InputError, match="line of more than"):
        byte_range(file, 4, table.size, (1, 4))


COLUMNS = Columns(("x",), ("y",))
ROWS = CsvRows(COLUMNS, (1, 0), 3, ",")  # y, x, and a column that is not read


def number(line):
    return line + 2


def read_with_texts(block, rows=ROWS):
    """Return the good rows, their texts and the bad rows as the package parses them."""
    log = BadRowLog("file", COLUMNS, "line", False)
    numbers, texts = rows.parse_block(block, log, number)
    return numbers, [cells.to_pylist() for cells in texts], log.bad_rows


def read(block, rows=ROWS):
    numbers, _, bad = read_with_texts(block, rows)
    return numbers, bad


def read_by_line(block, rows=ROWS):
    """Return the rows parsed line by line, which is the definition."""
    log = BadRowLog("file", COLUMNS, "line", False)
    lines = block.decode(errors="replace").split("\n")
    found = rows._parse_by_line(lines, range(len(lines)), log, number)
    texts = [[texts[column] for _, _, texts in found] for column in range(len(rows.texts))]
    return np.array([row for _, row, _ in found]).reshape(-1, 2), texts, log.bad_rows


@pytest.mark.parametrize(
    ("cell", "value"),
    [
        ("1", 1.0),
        ("-2.5e-3", -2.5e-3),
        (" +4. ", 4.0),
        (".5", 0.5),
        ("1E5", 1e5),
        ('"7"', 7.0),
        ("\t8", 8.0),
        ("4.9e-324", 5e-324),
        ("0.1000000000000000055511151231257827", 0.1),
        ("1e-400", 0.0),
    ],
)
def test_numeric_cells_are_parsed_exactly(cell, value):
    assert ROWS.parse_line(f"{cell},3,t") == ([3.0, value], [])
    good, bad = read(f"{cell},3,t\n".encode())
    np.testing.assert_array_equal(good, [[3.0, value]])
    assert not bad


MISSING = ["", "NaN", "nan", "NA", "N/A", "null", "None", '""', '"NA"', " ", " NA ", "NAN", "-nan", "-nan(ind)"]


@pytest.mark.parametrize("cell", MISSING)
def test_missing_cells_are_nan_outputs_and_bad_inputs(cell):
    good, bad = read(f"{cell},3,t\n3,{cell},t\n".encode())
    np.testing.assert_array_equal(good, [[3.0, np.nan]])
    assert [(row.line, row.reason) for row in bad] == [(3, "input 'x' is missing")]


@pytest.mark.parametrize("cell", ["inf", "-Infinity", "1e400", '"inf"'])
def test_infinite_cells_are_bad(cell):
    good, bad = read(f"{cell},3,t\n3,{cell},t\n".encode())
    assert len(good) == 0
    assert [row.reason for row in bad] == ["output 'y' is infinite", "input 'x' is infinite"]


@pytest.mark.parametrize(
    "cell", ["red", "1_000", "١٢", "0x10", "1 2", "true", "--1", "1e", ".", "1\0", "\u00a01", "1d3"]
)
def test_text_cells_are_bad(cell):
    good, bad = read(f"{cell},3,t\n3,{cell},t\n1,1,1\n".encode())
    assert len(good) == 1
    assert [row.line for row in bad] == [2, 3]
    assert bad[0].reason == f"output 'y' is not a number: {cell!r}"
    assert bad[1].reason == f"input 'x' is not a number: {cell!r}"


def test_bad_cell_reason_is_abbreviated():
    (row,) = read(b"1," + b"a" * 1000 + b",t\n")[1]
    assert len(row.reason) < 80


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("1,2", "2 fields where the header has 3"),
        ("1", "1 field where the header has 3"),
        ("1,2,3,4", "4 fields where the header has 3"),
        ('"1"2,3,t', "quotes that cannot be read"),
        ('""1,3,t', "quotes that cannot be read"),
        ('4,""1,t', "quotes that cannot be read"),
        ("1,2,a\rb", "a carriage return inside the line"),
        ("1,2,t\r3,4,t", "a carriage return inside the line"),  # two rows, says pyarrow
    ],
)
def test_malformed_lines_are_bad(line, reason):
    for block in (f"{line}\n5,6,7\n", f"5,6,7\n{line}\n", f"5,6,7\n{line}"):
        good, bad = read(block.encode())
        np.testing.assert_array_equal(good, [[6.0, 5.0]])
        assert [row.line for row in bad] == [2 + block.index(line) // 6]
        assert bad[0].reason.startswith(reason)


@pytest.mark.parametrize("block", [b'1,2,"a\nb"\n3,4,"c"\n', b'1,"2\n', b'1,2,"see\n9,999,note"\n'])
def test_unclosed_quote_raises(block):
    """Also in a column that is not read: the next line might be text that looks like a row."""
    with pytest.raises(InputError, match=r"line 2: .*several lines are not supported"):
        read(block)


def test_quotes_inside_text_are_kept():
    good, bad = read(b'1,2,5" pipe\n3,4,"say ""hi"", you"\n')
    np.testing.assert_array_equal(good, [[2.0, 1.0], [4.0, 3.0]])
    assert not bad


def test_blank_lines_are_counted_but_are_not_rows():
    good, bad = read(b"\n1,2,t\r\n\r\n  \n,,t\n\n3,x,t\n\n")
    np.testing.assert_array_equal(good, [[2.0, 1.0]])
    assert [row.line for row in bad] == [6, 8]


def test_parser_accepts_other_separators():
    for separator in ("\t", " ", ";", "|", "^", "]"):
        rows = CsvRows(COLUMNS, (1, 0), 3, separator)
        text = "\n".join(separator.join(cells) for cells in (["1", "2", "t"], ["", "3", ""], ['"4"', "", ""]))
        good, bad = read(text.encode(), rows)
        np.testing.assert_array_equal(good, [[2.0, 1.0], [3.0, np.nan]])
        assert [row.line for row in bad] == [4]


def test_only_lines_that_pyarrow_cannot_use_are_parsed_by_line(monkeypatch):
    parsed, parse = [], CsvRows.parse_line
    monkeypatch.setattr(CsvRows, "parse_line", lambda self, line: parsed.append(line) or parse(self, line))
    good, _ = read(b'1,2,"t"\r\n,"3",t\r\n\r\n1,2,"say ""hi"""\r\n' * 1000)
    assert len(good) == 3000 and parsed == []
    lines = [b"1, 2,t", b"NA,2,5"] * 2500
    lines[3000], lines[4000] = b"1,red,t", b"+1,2"
    good, bad = read(b"\n".join(lines))
    assert len(good) == 4998 and [row.line for row in bad] == [3002, 4002] and parsed == ["1,red,t", "+1,2"]


def test_bad_rows_are_logged_in_order():
    good, bad = read(b'1,red,t\n1,2\n1,2,"t"x\n1,inf,t\n1,2,t\nblue,1,t\n1,,t\n')
    assert len(good) == 1 and [row.line for row in bad] == [2, 3, 4, 5, 7, 8]


ODD = ["+4", " ", "-nan(ind)", "NAN", "inf", "1e999", "red", "1_0", "9\r", "\r9", "\ufeff1", "\t2", "\0", " 3 "]
QUOTED = ['"5"', '""', '"NA"', '"6"7', '""8', '"a,b"', '"open', 'close"', 'x"y', '"', '"""', '"1""2"']
CELLS = st.sampled_from(["1", "-2.5", "1e5", "", "NA", "nan", *ODD, *QUOTED])
USUAL = st.sampled_from(["1", "-2.5", "3e2", "", "NA", '"5"'])
LINE = st.one_of(
    st.lists(USUAL, min_size=3, max_size=3).map(",".join),
    st.lists(CELLS, min_size=3, max_size=3).map(",".join),
    st.lists(CELLS, min_size=0, max_size=4).map(",".join),
)


TEXT_ROWS = CsvRows(COLUMNS, (1, 0), 3, ",", ("t", "x"), (2, 1), True)  # x is read as number and as text


def check_against_lines(block):
    """Check that both parsers give the same rows, good and bad, or the same error."""
    for rows in (ROWS, TEXT_ROWS):
        try:
            expected, expected_texts, expected_bad = read_by_line(block, rows)
        except InputError as error:
            with pytest.raises(InputError, match=re.escape(str(error))):
                read(block, rows)
            continue
        good, texts, bad = read_with_texts(block, rows)
        np.testing.assert_array_equal(good, expected)
        assert (texts, bad) == (expected_texts, expected_bad)


@settings(max_examples=400, deadline=None)
@given(lines=st.lists(LINE, max_size=8), end=st.sampled_from(["\n", "\r\n"]), ends=st.booleans())
@example(lines=["1,2,3", '4,5,"open'], end="\n", ends=True)
@example(lines=['4,5,"open', '6,7,close"', "1,2,3"], end="\n", ends=True)
@example(lines=["\ufeff1,2,3"], end="\n", ends=True)
@example(lines=['1,2,"a"""b'], end="\n", ends=True)
@example(lines=['1,1,"open,"open'], end="\n", ends=False)
def test_block_parser_matches_line_parser(lines, end, ends):
    check_against_lines((end.join(lines) + end * ends).encode())


@settings(max_examples=300, deadline=None)
@given(text=st.text('01.-+eE,," \n\r\tnaifNAx', max_size=40))
def test_block_parser_matches_line_parser_on_any_text(text):
    check_against_lines(text.encode())


@settings(max_examples=200, deadline=None)
@given(block=st.lists(st.sampled_from([b"1", b",", b"\n", b'"', b"\r", b" ", b"\xff", b"\xc3", b"\xa9"])).map(b"".join))
def test_block_parser_matches_line_parser_on_any_bytes(block):
    check_against_lines(block)


@settings(max_examples=300, deadline=None)
@given(values=st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=2, max_size=20))
def test_all_parsers_round_as_python(values):
    block = "".join(f"1,{value!r},\n" for value in values)
    for good, *_, bad in (read(block.encode()), read(f"red,1,\n{block}".encode()), read_by_line(block.encode())):
        np.testing.assert_array_equal(good[:, 0], values)
        assert len(bad) <= 1


def test_columns_of_iso_dates_are_read_as_dates(tmp_path):
    lines = ["when,zoned,x", "2024-01-05,2024-01-05T01:00:00+01:00,1", "2024-01-05 12:30,2024-01-06T00:00:00.5Z,2"]
    path = tmp_path / "table.csv"
    path.write_text("\n".join([*lines, ",2024-01-06T00:00:00Z,3", "7,2024-01-06T00:00:00Z,4", "2024-02-30,,5", ""]))
    with pytest.warns(
        DataWarning, match="3 of 5 rows skipped.*'when' is missing.*not a date: '7'.*not a date: '2024-02-30'"
    ):
        ((X, Y),) = stream(path, "when,zoned", "x")
    assert X.when.tolist() == [pd.Timestamp("2024-01-05"), pd.Timestamp("2024-01-05 12:30")]
    assert X.zoned.tolist() == [pd.Timestamp("2024-01-05", tz="UTC"), pd.Timestamp("2024-01-06 00:00:00.5", tz="UTC")]
    with pytest.warns(DataWarning, match="2 of 5 rows skipped"):
        ((X, Y),) = stream(path, "x", "when")
    assert isinstance(X, np.ndarray) and Y.when.isna().tolist() == [False, False, True]


@pytest.mark.parametrize("fast", [True, False])
def test_dates_are_exact_to_the_microsecond(tmp_path, fast):
    dates = pd.date_range("1901-02-03 04:05:06.789012", periods=500, freq="1234567890us").as_unit("us")
    texts = [date.isoformat(sep=" " if i % 2 else "T") for i, date in enumerate(dates)]
    texts += [] if fast else ["2024-01-01T00:00:00.123456789"]  # more digits than pyarrow reads
    path = tmp_path / "table.csv"
    path.write_text("when,y\n" + "".join(f"{text},1\n" for text in texts))
    ((X, _),) = stream(path, "when", "y")
    assert X.when[:500].tolist() == dates.tolist()
    assert fast or X.when[500] == pd.Timestamp("2024-01-01T00:00:00.123456")


def test_columns_of_text_raise_with_a_remedy(tmp_path):
    path = tmp_path / "table.csv"
    path.write_text("when,y\n05.01.2024,1\n06.01.2024,2\n")
    with pytest.raises(
        InputError, match=r"input 'when' of .*table.csv' must hold numbers or dates, got texts such as '05.01.2024'"
    ):
        stream(path, "when", "y")
