"""A text table as bytes: its header, blocks of whole lines, shares of a file, and the numbers of lines.

A share of a file is a range of bytes moved to the next beginning of a line at both ends: a line belongs to the share that
holds its first byte, so that shares are disjoint and together the whole. Nothing outside the share is read, unless the
number of a bad line is asked for, which needs the newlines before it.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from typing import BinaryIO

from ovkgp.datasets.snapshots import Snapshot
from ovkgp.exceptions import InputError

BLOCK = 8 * 2**20
"""Bytes that are read at a time, and the longest line there may be."""

BOM = b"\xef\xbb\xbf"


def read_header(snapshot: Snapshot, separator: str) -> tuple[tuple[str, ...], int]:
    """The names of the columns, and the byte at which the line after them begins."""
    with open(snapshot.path, "rb") as file:
        line = file.readline(BLOCK).removeprefix(BOM)
        while line and not line.strip():
            line = file.readline(BLOCK)
        start = file.tell()
        if not line:
            raise InputError(f"'{snapshot.path}' is empty: a header with the names of the columns was expected.")
        header = _names(line, separator, snapshot)
        while block := file.read(BLOCK):
            if block.strip():
                return header, start
    raise InputError(f"'{snapshot.path}' has a header and no rows.")


def _names(line: bytes, separator: str, snapshot: Snapshot) -> tuple[str, ...]:
    content = line.rstrip(b"\r\n")
    if b"\r" in content:
        raise InputError(f"the lines of '{snapshot.path}' end in CR alone: save it with the line ends LF or CRLF.")
    if b"\0" in content or len(line) == BLOCK:
        raise InputError(f"'{snapshot.path}' does not begin with a header in UTF-8 text: save it as CSV in UTF-8.")
    try:
        (names,) = csv.reader([content.decode("utf-8")], delimiter=separator, strict=True)
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError(
            f"the header of '{snapshot.path}' cannot be read ({error}): it must be one line of UTF-8 text, with names that "
            "do not go over several lines."
        ) from error
    return tuple(name.strip() for name in names)


def share(file: BinaryIO, start: int, stop: int, part: tuple[int, int]) -> tuple[int, int]:
    """The bytes of share `rank` of `world` of the lines between two bytes, for `part` = (rank, world)."""
    rank, world = part
    cuts = [start + (stop - start) * number // world for number in (rank, rank + 1)]
    first, last = (cut if cut in (start, stop) else _next_line(file, cut) for cut in cuts)
    return first, last


def _next_line(file: BinaryIO, position: int) -> int:
    """The first byte, at or after `position`, with which a line begins."""
    file.seek(position - 1)  # the newline itself, where a line begins at `position`
    return position - 1 + len(_rest_of_line(file))


def _rest_of_line(file: BinaryIO) -> bytes:
    line = file.readline(BLOCK)
    if len(line) == BLOCK and not line.endswith(b"\n"):
        raise InputError(
            f"'{file.name}' has a line of more than {BLOCK >> 20} MB near byte {file.tell()}: is it a text table with line "
            "ends LF or CRLF?"
        )
    return line


def read_blocks(file: BinaryIO, start: int, stop: int, snapshot: Snapshot) -> Iterator[bytes]:
    """Blocks of whole lines, of about `BLOCK` bytes, from one beginning of a line to another."""
    position = start
    while position < stop:
        file.seek(position)  # between two blocks the newlines before them may have been counted
        block = file.read(min(BLOCK, stop - position))
        if position + len(block) < stop and not block.endswith(b"\n"):
            block += _rest_of_line(file)
        snapshot.check(file)
        position += len(block)
        yield block


def pieces(block: bytes, size: int) -> Iterator[bytes]:
    """A block in pieces of whole lines of about `size` bytes."""
    start = 0
    while start < len(block):
        stop = block.find(b"\n", start + size - 1) + 1 or len(block)
        yield block[start:stop]
        start = stop


def count_newlines(file: BinaryIO, stop: int) -> int:
    """How many there are before a byte. Cost: O(stop) time, memory for a block."""
    file.seek(0)
    total = 0
    while (left := stop - file.tell()) > 0 and (block := file.read(min(BLOCK, left))):
        total += block.count(b"\n")
    return total
