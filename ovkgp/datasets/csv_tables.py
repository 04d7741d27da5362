"""CSV files, or byte ranges of them, as tables of numbers in constant memory.

A block of lines is parsed by pyarrow. Where it could disagree with the rules of `CsvRows.parse_line`, which define what
a number and a bad row are, the block is parsed line by line.
"""

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

BLOCK_BYTES = 8 * 2**20  # size of the blocks that are read, and the maximum length of a line

CHUNK_BYTES = 64 * 1024
"""Size of the chunks into which a block with a bad row is split; only chunks with a bad row are parsed line by line."""

BOM = b"\xef\xbb\xbf"

MISSING = ("", "NaN", "nan", "NA", "N/A", "n/a", "#N/A", "<NA>", "null", "NULL", "None")
"""Cells that mark a missing value; so does any NaN as C prints it, such as -nan(ind)."""

UNCLOSED = "a quoted field is not closed on its line (fields over several lines are not supported)"

_QUOTE = ord('"')
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)  # float() alone would accept 1_000 and ١٢ too
_INFINITE = re.compile(r"[+-]?inf(inity)?", re.ASCII | re.IGNORECASE)
_NAN = re.compile(r"[+-]?nan(\(\w*\))?", re.ASCII | re.IGNORECASE)


@dataclass(frozen=True)
class CsvTable:
    """Text table whose header was read; rows begin at byte `start`."""

    snapshot: Snapshot
    columns: Columns
    rows: CsvRows
    start: int
    unit = "line"

    @classmethod
    def open(cls, snapshot: Snapshot, columns: Columns, separator: str) -> CsvTable:
        """Read the header and find the columns in it."""
        header, start = read_header(snapshot, separator)
        indices = columns.find_in(header, f"'{snapshot.path}'")
        return cls(snapshot, columns, CsvRows(columns, indices, len(header), separator), start)

    def read_tables(self, part: tuple[int, int], log: BadRowLog, verbose: int) -> Iterator[np.ndarray]:
        """Yield the good rows (k, d + p) of `part` = (rank, world), in the order of the file.

        Complexity: O(bytes of the part) time, memory for a block of 8 MB and its numbers.
        """
        with open(self.snapshot.path, "rb") as file:
            self.snapshot.check(file)
            first, last = byte_range(file, self.start, self.snapshot.size, part)
            lines = _LineNumbers(file, first)
            with tqdm(total=last - first, unit="B", unit_scale=True, disable=not verbose) as bar:
                for block in read_blocks(file, first, last, self.snapshot):
                    yield from self.rows.parse_block(block, log, lines.number)
                    lines.num_read += block.count(b"\n")
                    bar.update(len(block))


@dataclass
class _LineNumbers:
    """Line numbers within a byte range; the lines before it are counted when the first number is requested."""

    file: BinaryIO
    start: int
    num_read: int = 0
    before: int | None = None

    def number(self, index: int) -> int:
        """Return the number, as an editor shows it, of line `index` of the current block."""
        if self.before is None:
            self.before = count_newlines(self.file, self.start)
        return 1 + self.before + self.num_read + index


def read_header(snapshot: Snapshot, separator: str) -> tuple[tuple[str, ...], int]:
    """Return the column names and the byte at which the line after them begins."""
    with open(snapshot.path, "rb") as file:
        line = file.readline(BLOCK_BYTES).removeprefix(BOM)
        while line and not line.strip():
            line = file.readline(BLOCK_BYTES)
        start = file.tell()
        if not line:
            raise InputError(f"'{snapshot.path}' is empty, expected a header with the column names.")
        header = _parse_header(line, separator, snapshot)
        while block := file.read(BLOCK_BYTES):
            if block.strip():
                return header, start
    raise InputError(f"'{snapshot.path}' has a header and no rows.")


def _parse_header(line: bytes, separator: str, snapshot: Snapshot) -> tuple[str, ...]:
    content = line.rstrip(b"\r\n")
    if b"\r" in content:
        raise InputError(f"The lines of '{snapshot.path}' end in CR alone. Save it with line ends LF or CRLF.")
    if b"\0" in content or len(line) == BLOCK_BYTES:
        raise InputError(f"'{snapshot.path}' does not begin with a header in UTF-8 text. Save it as CSV in UTF-8.")
    try:
        (names,) = csv.reader([content.decode("utf-8")], delimiter=separator, strict=True)
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError(
            f"The header of '{snapshot.path}' cannot be read ({error}). Write it as one line of UTF-8 text, without names over several lines."
        ) from error
    return tuple(name.strip() for name in names)


def byte_range(file: BinaryIO, start: int, stop: int, part: tuple[int, int]) -> tuple[int, int]:
    """Return the bytes of part `rank` of `world` of the lines between two bytes, for `part` = (rank, world)."""
    rank, world = part
    cuts = [start + (stop - start) * number // world for number in (rank, rank + 1)]
    first, last = (cut if cut in (start, stop) else _next_line(file, cut) for cut in cuts)
    return first, last


def _next_line(file: BinaryIO, position: int) -> int:
    """Return the first byte, at or after `position`, at which a line begins."""
    file.seek(position - 1)  # the newline itself, if a line begins at `position`
    return position - 1 + len(_rest_of_line(file))


def _rest_of_line(file: BinaryIO) -> bytes:
    line = file.readline(BLOCK_BYTES)
    if len(line) == BLOCK_BYTES and not line.endswith(b"\n"):
        raise InputError(
            f"'{file.name}' has a line of more than {BLOCK_BYTES >> 20} MB near byte {file.tell()}. Check that it is a text table with line ends LF or CRLF."
        )
    return line


def read_blocks(file: BinaryIO, start: int, stop: int, snapshot: Snapshot) -> Iterator[bytes]:
    """Yield blocks of whole lines, of about `BLOCK_BYTES` bytes, between two line beginnings."""
    position = start
    while position < stop:
        file.seek(position)  # between two blocks the newlines before them may have been counted
        block = file.read(min(BLOCK_BYTES, stop - position))
        if position + len(block) < stop and not block.endswith(b"\n"):
            block += _rest_of_line(file)
        snapshot.check(file)
        position += len(block)
        yield block


def split_block(block: bytes, size: int) -> Iterator[bytes]:
    """Split a block into chunks of whole lines of about `size` bytes."""
    start = 0
    while start < len(block):
        stop = block.find(b"\n", start + size - 1) + 1 or len(block)
        yield block[start:stop]
        start = stop


def count_newlines(file: BinaryIO, stop: int) -> int:
    """Count the newlines before a byte. Complexity: O(stop) time, memory for a block."""
    file.seek(0)
    total = 0
    while (left := stop - file.tell()) > 0 and (block := file.read(min(BLOCK_BYTES, left))):
        total += block.count(b"\n")
    return total


@dataclass(frozen=True)
class CsvRows:
    """Parser of lines with `width` fields, of which `indices` hold the columns."""

    columns: Columns
    indices: tuple[int, ...]
    width: int
    separator: str

    def parse_block(self, block: bytes, log: BadRowLog, line_of: Callable[[int], int]) -> Iterator[np.ndarray]:
        """Yield the good rows (k, d + p) of a block; `line_of(i)` is the number of its line i.

        Complexity: O(bytes) time and memory; a chunk with a bad row takes about ten times as long as one without.
        """
        rows = self._parse_with_pyarrow(block, log, line_of)
        if rows is not None:
            yield rows
            return
        first = 0
        for chunk in split_block(block, CHUNK_BYTES):
            number = _shifted(line_of, first)
            rows = self._parse_with_pyarrow(chunk, log, number)
            yield self._parse_by_line(chunk, log, number) if rows is None else rows
            first += chunk.count(b"\n")

    def _parse_with_pyarrow(self, block: bytes, log: BadRowLog, line_of: Callable[[int], int]) -> np.ndarray | None:
        """Return the good rows, or None if pyarrow could find other rows than `parse_line`."""
        if block.startswith(BOM) or (b"\r" in block and block.count(b"\r") != block.count(b"\r\n")):
            return None
        rows = self._read_numbers(block)
        if rows is None:
            return None
        is_row_a_line = len(rows) == block.count(b"\n") + (not block.endswith(b"\n"))
        if b'"' in block and not (is_row_a_line and self._is_well_quoted(block)):
            return None
        if not is_row_a_line and self.columns.is_bad(rows).any():  # blank lines hide which line is bad
            return None
        return log.filter_rows(rows, line_of)

    def _is_well_quoted(self, block: bytes) -> bool:
        """Return whether no text follows a closing quote and the last line closes its quotes; pyarrow accepts both."""
        last = block[block.rfind(b"\n", 0, -1) + 1 :]
        return not self._has_loose_quote(block) and not isinstance(self._split_fields(_decode(last)), str)

    def _has_loose_quote(self, block: bytes) -> bool:
        """Return whether a quote with text after it has text, or an opening quote, before it."""
        text = np.frombuffer(b"\n\n" + block + b"\n", dtype=np.uint8)
        is_limit = np.isin(np.arange(256), [ord(self.separator), 10, 13])
        is_text = ~is_limit
        is_text[_QUOTE] = False
        quotes = np.flatnonzero(text == _QUOTE)
        quotes = quotes[is_text[text[quotes + 1]]]
        before = text[quotes - 1]
        return bool((is_text[before] | ((before == _QUOTE) & is_limit[text[quotes - 2]])).any())

    def _read_numbers(self, block: bytes) -> np.ndarray | None:
        """Return all rows (k, d + p), NaN where missing, or None if a cell is not a number or a line is malformed."""
        import pyarrow as pa
        from pyarrow import csv as arrow_csv

        read, parse, convert = self._arrow_options(len(block))
        try:
            table = arrow_csv.read_csv(pa.BufferReader(block), read, parse, convert)
        except pa.ArrowInvalid:
            return None
        rows = np.empty((table.num_rows, len(self.indices)))
        for index, column in enumerate(table.columns):
            rows[:, index] = column.to_numpy()
        return rows

    def _arrow_options(self, size: int):
        from pyarrow import csv as arrow_csv
        from pyarrow import float64

        wanted = [str(index) for index in self.indices]
        return (
            arrow_csv.ReadOptions(
                use_threads=False, block_size=size + 1, column_names=[str(index) for index in range(self.width)]
            ),
            arrow_csv.ParseOptions(delimiter=self.separator),
            arrow_csv.ConvertOptions(
                include_columns=wanted,
                column_types=dict.fromkeys(wanted, float64()),
                null_values=[*MISSING, *(f" {mark}" for mark in MISSING)],  # as after a comma and a space
            ),
        )

    def _parse_by_line(self, block: bytes, log: BadRowLog, line_of: Callable[[int], int]) -> np.ndarray:
        """Return the good rows, parsed line by line."""
        rows = []
        for number, line in enumerate(block.split(b"\n")):
            text = _decode(line)
            if self.is_blank(text):
                continue
            row = self.parse_line(text)
            if row == UNCLOSED:
                raise unclosed_field(log.source, line_of(number))
            if isinstance(row, str):
                log.reject(lambda number=number: line_of(number), row)
            else:
                rows.append(row)
        return np.array(rows, dtype=np.float64).reshape(len(rows), len(self.indices))

    def is_blank(self, line: str) -> bool:
        """Return whether a line holds only spaces and tabs that are not separators."""
        return not line.strip(" \t".replace(self.separator, ""))

    def parse_line(self, line: str) -> list[float] | str:
        """Return the numbers of one line, NaN where missing, or a description of its fault."""
        fields = self._split_fields(line)
        if isinstance(fields, str):
            return fields
        if len(fields) != self.width:
            return f"{len(fields)} field{'s' * (len(fields) != 1)} where the header has {self.width}"
        row = []
        for column, index in enumerate(self.indices):
            value = _parse_number(fields[index])
            if value is None:
                return f"{self.columns.label(column)} is not a number: {_abbreviate(fields[index])}"
            row.append(value)
        return self.columns.describe_fault(row) or row

    def _split_fields(self, line: str) -> Sequence[str] | str:
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


def unclosed_field(source: str, line: int) -> InputError:
    """Make the error for a quote that is not closed: the lines after it may be text, so reading stops."""
    return InputError(f"{source}, line {line}: {UNCLOSED}. Write the table without such fields.")


def _shifted(line_of: Callable[[int], int], first: int) -> Callable[[int], int]:
    return lambda number: line_of(first + number)


def _decode(line: bytes) -> str:
    """Decode a line without its end; bytes that are not UTF-8 are in columns that are not read, or make the row bad."""
    return line.removesuffix(b"\n").removesuffix(b"\r").decode("utf-8", errors="replace")


def _parse_number(cell: str) -> float | None:
    """Return the value of a cell, NaN where missing, or None if it is neither."""
    cell = cell.strip(" \t")
    if cell in MISSING or _NAN.fullmatch(cell):
        return np.nan
    return float(cell) if _NUMBER.fullmatch(cell) or _INFINITE.fullmatch(cell) else None


def _abbreviate(text: str) -> str:
    return repr(text if len(text) <= 30 else text[:30] + "…")
