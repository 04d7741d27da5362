"""A CSV file, or a share of it, as tables of numbers in constant memory."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import BinaryIO

import numpy as np
from tqdm import tqdm

from ovkgp.datasets.columns import BadRowLog, Columns
from ovkgp.exceptions import InputError
from ovkgp.files import Snapshot

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


MISSING = ("", "NaN", "nan", "NA", "N/A", "n/a", "#N/A", "<NA>", "null", "NULL", "None")
"""Cells that stand for a missing value; so does whatever C prints for one, such as -nan(ind)."""

UNCLOSED = "a quoted field is not closed on its line (fields over several lines are not supported)"

PIECE = 64 * 1024
"""Bytes in the pieces of a block that holds a bad row: only the pieces that hold one are read line by line."""

_QUOTE = ord('"')
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)  # float() alone would take 1_000 and ١٢ too
_INFINITE = re.compile(r"[+-]?inf(inity)?", re.ASCII | re.IGNORECASE)
_NAN = re.compile(r"[+-]?nan(\(\w*\))?", re.ASCII | re.IGNORECASE)


@dataclass(frozen=True)
class CsvRows:
    """The rows of numbers in blocks of lines.

    Args:
        columns: what is read.
        places: where each column stands in a line.
        width: how many fields a line has.
        separator: between fields.
    """

    columns: Columns
    places: tuple[int, ...]
    width: int
    separator: str

    def tables(self, block: bytes, tally: BadRowLog, line_of: Callable[[int], int]) -> Iterator[np.ndarray]:
        """The good rows (k, d + p) of a block; `line_of(i)` is the number of its line i.

        Cost: O(bytes) time and memory; a piece with a bad row takes some ten times as long as one without.
        """
        rows = self._fast(block, tally, line_of)
        if rows is not None:
            yield rows
            return
        first = 0
        for piece in pieces(block, PIECE):
            place = _shifted(line_of, first)
            rows = self._fast(piece, tally, place)
            yield self._slow(piece, tally, place) if rows is None else rows
            first += piece.count(b"\n")

    def _fast(self, block: bytes, tally: BadRowLog, line_of: Callable[[int], int]) -> np.ndarray | None:
        """The good rows by pyarrow, or None where it might see other rows than `judge` does."""
        if block.startswith(BOM) or (b"\r" in block and block.count(b"\r") != block.count(b"\r\n")):
            return None
        rows = self._numbers(block)
        if rows is None:
            return None
        is_row_a_line = len(rows) == block.count(b"\n") + (not block.endswith(b"\n"))
        if b'"' in block and not (is_row_a_line and self._is_well_quoted(block)):
            return None
        if not is_row_a_line and self.columns.is_bad(rows).any():  # blank lines: which one is bad?
            return None
        return tally.sift(rows, line_of)

    def _is_well_quoted(self, block: bytes) -> bool:
        """No text after a closing quote, and the last line closes its quotes: pyarrow lets both pass."""
        last = block[block.rfind(b"\n", 0, -1) + 1 :]
        return not self._has_loose_quote(block) and not isinstance(self._fields(_text(last)), str)

    def _has_loose_quote(self, block: bytes) -> bool:
        """Whether a quote with text after it has text, or an opening quote, before it."""
        text = np.frombuffer(b"\n\n" + block + b"\n", dtype=np.uint8)
        is_limit = np.isin(np.arange(256), [ord(self.separator), 10, 13])
        is_text = ~is_limit
        is_text[_QUOTE] = False
        quotes = np.flatnonzero(text == _QUOTE)
        quotes = quotes[is_text[text[quotes + 1]]]
        before = text[quotes - 1]
        return bool((is_text[before] | ((before == _QUOTE) & is_limit[text[quotes - 2]])).any())

    def _numbers(self, block: bytes) -> np.ndarray | None:
        """All rows (k, d + p), NaN where missing, or None where something is not a number or a field too few or many."""
        import pyarrow as pa
        from pyarrow import csv as arrow_csv

        read, parse, convert = self._options(len(block))
        try:
            table = arrow_csv.read_csv(pa.BufferReader(block), read, parse, convert)
        except pa.ArrowInvalid:
            return None
        rows = np.empty((table.num_rows, len(self.places)))
        for place, column in enumerate(table.columns):
            rows[:, place] = column.to_numpy()
        return rows

    def _options(self, size: int):
        from pyarrow import csv as arrow_csv
        from pyarrow import float64

        wanted = [str(place) for place in self.places]
        return (
            arrow_csv.ReadOptions(
                use_threads=False, block_size=size + 1, column_names=[str(place) for place in range(self.width)]
            ),
            arrow_csv.ParseOptions(delimiter=self.separator),
            arrow_csv.ConvertOptions(
                include_columns=wanted,
                column_types=dict.fromkeys(wanted, float64()),
                null_values=[*MISSING, *(f" {mark}" for mark in MISSING)],  # as after a comma and a space
            ),
        )

    def _slow(self, block: bytes, tally: BadRowLog, line_of: Callable[[int], int]) -> np.ndarray:
        """The good rows, line by line."""
        rows = []
        for number, line in enumerate(block.split(b"\n")):
            text = _text(line)
            if not text.strip(" \t".replace(self.separator, "")):
                continue  # a blank line
            row = self.judge(text)
            if row == UNCLOSED:  # what follows might be text: no line after it can be trusted
                raise InputError(
                    f"{tally.source}, line {line_of(number)}: {UNCLOSED}. Write the table without such fields."
                )
            if isinstance(row, str):
                tally.reject(lambda number=number: line_of(number), row)
            else:
                rows.append(row)
        return np.array(rows, dtype=np.float64).reshape(len(rows), len(self.places))

    def judge(self, line: str) -> list[float] | str:
        """The numbers of one line, NaN where missing, or what is wrong with it.

        Example:
            >>> rows = CsvRows(Columns(("x",), ("y", "z")), (0, 1, 2), 3, ",")
            >>> rows.judge('1.5,NA,"2"')
            [1.5, nan, 2.0]
            >>> rows.judge("1.5,2,red")
            "output 'z' is not a number: 'red'"
        """
        fields = self._fields(line)
        if isinstance(fields, str):
            return fields
        if len(fields) != self.width:
            return f"{len(fields)} field{'s' * (len(fields) != 1)} where the header has {self.width}"
        row = []
        for place, field in enumerate(self.places):
            value = _number(fields[field])
            if value is None:
                return f"{self.columns.label(place)} is not a number: {_short(fields[field])}"
            row.append(value)
        return self.columns.fault(row) or row

    def _fields(self, line: str) -> Sequence[str] | str:
        if "\r" in line:
            return "a carriage return inside the line"
        if '"' not in line:
            return line.split(self.separator)
        try:
            (fields,) = csv.reader([line], delimiter=self.separator, strict=True)
        except csv.Error as error:
            if "unexpected end" in str(error):
                return UNCLOSED
            return f"quotes that cannot be read ({error})"
        return fields


def _shifted(line_of: Callable[[int], int], first: int) -> Callable[[int], int]:
    return lambda number: line_of(first + number)


def _text(line: bytes) -> str:
    """A line without its end; bytes that are not UTF-8 can only be in columns that are not read, or be bad."""
    return line.removesuffix(b"\n").removesuffix(b"\r").decode("utf-8", errors="replace")


def _number(cell: str) -> float | None:
    """The value of a cell, NaN where missing, None where it is neither."""
    cell = cell.strip(" \t")
    if cell in MISSING or _NAN.fullmatch(cell):
        return np.nan
    return float(cell) if _NUMBER.fullmatch(cell) or _INFINITE.fullmatch(cell) else None


def _short(text: str) -> str:
    return repr(text if len(text) <= 30 else text[:30] + "…")


@dataclass(frozen=True)
class CsvTable:
    """A text table whose header was read.

    Args:
        snapshot: the file.
        columns: what is read.
        rows: how lines become numbers.
        start: the byte at which the line after the header begins.
    """

    snapshot: Snapshot
    columns: Columns
    rows: CsvRows
    start: int
    unit = "line"

    @classmethod
    def look(cls, snapshot: Snapshot, columns: Columns, separator: str) -> CsvTable:
        """Read the header and find the columns in it."""
        header, start = read_header(snapshot, separator)
        places = columns.places(header, f"'{snapshot.path}'")
        return cls(snapshot, columns, CsvRows(columns, places, len(header), separator), start)

    def tables(self, part: tuple[int, int], tally: BadRowLog, verbose: int) -> Iterator[np.ndarray]:
        """The good rows (k, d + p) of share `part` = (rank, world), in the order of the file.

        Cost: O(bytes of the share) time, memory for a block of 8 MB and its numbers.
        """
        with open(self.snapshot.path, "rb") as file:
            self.snapshot.check(file)
            first, last = share(file, self.start, self.snapshot.size, part)
            lines = _LineNumbers(file, first)
            with tqdm(total=last - first, unit="B", unit_scale=True, disable=not verbose) as bar:
                for block in read_blocks(file, first, last, self.snapshot):
                    yield from self.rows.tables(block, tally, lines.number)
                    lines.observed += block.count(b"\n")
                    bar.update(len(block))


@dataclass
class _LineNumbers:
    """The numbers of lines in a share of a file; the lines before it are counted when the first is asked for."""

    file: BinaryIO
    start: int
    observed: int = 0
    before: int | None = None

    def number(self, place: int) -> int:
        """Of line `place` of the present block, as an editor shows it."""
        if self.before is None:
            self.before = count_newlines(self.file, self.start)
        return 1 + self.before + self.observed + place
