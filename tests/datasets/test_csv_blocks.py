"""Bytes of a text table: headers, blocks of whole lines, disjoint shares, and numbers of lines."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ovkgp.datasets import csv_tables as csv_blocks
from ovkgp.datasets.csv_tables import count_newlines, pieces, read_blocks, read_header, share
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
def test_headers(tmp_path, header):
    names, start = read_header(snapshot(tmp_path, header + b"1,2,3"), ",")
    assert names == ("a", "b c", "d")
    assert start == len(header)


def test_quoted_names_may_hold_separators_and_quotes(tmp_path):
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
        (b'a,"b\nc"\n1,2\n', "do not go over several lines"),
    ],
)
def test_headers_that_are_none(tmp_path, content, message):
    with pytest.raises(InputError, match=message):
        read_header(snapshot(tmp_path, content), ",")


def test_a_header_without_end(tmp_path, monkeypatch):
    monkeypatch.setattr(csv_blocks, "BLOCK", 64)
    with pytest.raises(InputError, match="does not begin with a header"):
        read_header(snapshot(tmp_path, b"a," * 100), ",")


def read_all(table, start, parts):
    with open(table.path, "rb") as file:
        ranges = [share(file, start, table.size, (rank, parts)) for rank in range(parts)]
        return ranges, [list(read_blocks(file, *span, table)) for span in ranges]


@given(lines=LINES, ends=st.booleans(), parts=st.integers(1, 40), block=st.integers(14, 60))
def test_shares_are_disjoint_whole_and_cut_at_lines(tmp_path_factory, lines, ends, parts, block):
    content = b"\n".join(lines) + b"\n" * ends
    table = snapshot(tmp_path_factory.mktemp("shares"), b"h\n" + content)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(csv_blocks, "BLOCK", block)
        ranges, blocks = read_all(table, 2, parts)
    assert ranges[0][0] == 2 and ranges[-1][1] == table.size
    assert all(before[1] == after[0] for before, after in pairwise(ranges))
    everything = [part for each in blocks for part in each]
    assert b"".join(everything) == content
    assert all(part.endswith(b"\n") for part in everything[:-1])


@given(lines=LINES, size=st.integers(1, 40))
def test_pieces_are_whole_lines(lines, size):
    block = b"\n".join(lines)
    cut = list(pieces(block, size))
    assert b"".join(cut) == block
    assert all(piece.endswith(b"\n") for piece in cut[:-1])
    assert all(len(piece) >= size for piece in cut[:-1])


def test_newlines_before_a_byte(tmp_path, monkeypatch):
    monkeypatch.setattr(csv_blocks, "BLOCK", 7)
    content = b"a,b\n1,2\n\n3,4\r\n" * 5
    table = snapshot(tmp_path, content)
    with open(table.path, "rb") as file:
        for stop in range(len(content) + 1):
            assert count_newlines(file, stop) == content[:stop].count(b"\n")


def test_a_line_without_end_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(csv_blocks, "BLOCK", 32)
    table = snapshot(tmp_path, b"a,b\n1,2\n" + b"3" * 200 + b"\n5,6\n")
    with open(table.path, "rb") as file, pytest.raises(InputError, match="has a line of more than"):
        list(read_blocks(file, 4, table.size, table))
    with open(table.path, "rb") as file, pytest.raises(InputError, match="has a line of more than"):
        share(file, 4, table.size, (1, 4))
