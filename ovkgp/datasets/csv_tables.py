"""CSV files, or byte ranges of them, as tables of numbers and texts in constant memory.

A block of lines is parsed by pyarrow. `CsvRows.parse_line` defines what a number and a bad row are: lines in which
pyarrow finds no usable row, or could disagree, are parsed again by it.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import BinaryIO

import numpy as np
from tqdm import tqdm

from ovkgp.datasets.columns import BadRowLog, Columns
from ovkgp.exceptions import InputError
from ovkgp.files import Snapshot

BLOCK_BYTES = 8 * 2**20  # size of the blocks that are read, and the maximum length of a line

FIRST_BYTES = 2**20  # bytes in which the first value of a column determines whether it holds dates

BOM = b"\xef\xbb\xbf"

MISSING = ("", "NaN", "nan", "NA", "N/A", "n/a", "#N/A", "<NA>", "null", "NULL", "None")
"""Cells that mark a missing value; so does any NaN as C prints it, such as -nan(ind)."""

UNCLOSED = "a quoted field is not closed on its line (fields over several lines are not supported)"

_NUMBER = re.compile(
    r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?"
)  # float() alone would accept 1_000 and ١٢ too
_DATE = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}([T ][0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]{1,9})?)?(?P<zone>Z|[+-][0-9]{2}:?[0-9]{2})?)?"
)
_INFINITE = re.compile(r"[+-]?inf(inity)?", re.ASCII | re.IGNORECASE)
_SECONDS = r"[0-9]{4}-[0-9]{2}-[0-9]{2}([T ][0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,6})?)?"  # dates that pyarrow reads
_SURPLUS_DIGITS = re.compile(r"(\.[0-9]{6})[0-9]+")  # of a second
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
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
    def open(
        cls, snapshot: Snapshot, columns: Columns, separator: str, texts: Sequence[str] = (), required: bool = False
    ) -> CsvTable:
        """Read the header and find the columns in it; `texts` are columns of texts, not empty if `required`."""
        header, start = read_header(snapshot, separator)
        indices, text_indices = (c.find_in(header, f"'{snapshot.path}'") for c in (columns, Columns(tuple(texts), ())))
        rows = CsvRows(columns, indices, len(header), separator, tuple(texts), text_indices, required)
        columns = replace(
            columns, times=_find_dates(_first_lines(snapshot, start), columns, rows, f"'{snapshot.path}'")
        )
        return cls(snapshot, columns, replace(rows, columns=columns), start)

    def skip_first_row(self) -> tuple[list[float], CsvTable]:
        """Return the numbers of the first row, NaN where missing, and the table that begins after it."""
        with open(self.snapshot.path, "rb") as file:
            file.seek(self.start)
            line = ""
            while self.rows.is_blank(line) and (content := file.readline(BLOCK_BYTES)):
                line = content.rstrip(b"\r\n").decode("utf-8", errors="replace")
            start = file.tell()
        fields = self.rows.split_fields(line)
        if isinstance(fields, str) or len(fields) != self.rows.width:
            reason = fields if isinstance(fields, str) else f"{len(fields)} fields, expected {self.rows.width}"
            raise InputError(f"The first row of '{self.snapshot.path}' cannot be read: {reason}.")
        numbers = [_parse_number(fields[index]) for index in self.rows.indices]
        if None in numbers:
            index = numbers.index(None)
            cell = shorten(fields[self.rows.indices[index]])
            raise InputError(
                f"{self.columns.label(index)} in the first row of '{self.snapshot.path}' is not a number: {cell!r}."
            )
        return numbers, replace(self, start=start)

    def read_tables(self, part: tuple[int, int], log: BadRowLog, verbose: int) -> Iterator[tuple[np.ndarray, list]]:
        """Yield the good rows (k, d + p) of `part` = (rank, world) and their texts, in the order of the file."""
        with open(self.snapshot.path, "rb") as file:
            self.snapshot.check(file)
            first, last = byte_range(file, self.start, self.snapshot.size, part)
            count_before = cache(lambda: count_newlines(file, first))  # only if a line number is requested
            num_read = 0
            with tqdm(total=last - first, unit="B", unit_scale=True, disable=not verbose) as bar:
                for block in read_blocks(file, first, last, self.snapshot):
                    yield self.rows.parse_block(block, log, lambda index, n=num_read: 1 + count_before() + n + index)
                    num_read += block.count(b"\n")
                    bar.update(len(block))


def _first_lines(snapshot: Snapshot, start: int) -> Iterator[str]:
    with open(snapshot.path, "rb") as file:
        file.seek(start)
        while file.tell() < start + FIRST_BYTES and (line := file.readline(FIRST_BYTES)):
            yield line.rstrip(b"\r\n").decode("utf-8", errors="replace")


def _find_dates(lines: Iterable[str], columns: Columns, rows: CsvRows, source: str) -> tuple[tuple[int, str], ...]:
    """Return the columns whose first value in some lines is a date, with its type; raise if one has neither numbers nor dates."""
    found, unknown, texts = [], dict(enumerate(rows.indices)), {}
    for line in lines:
        fields = rows.split_fields(line)
        if isinstance(fields, str) or len(fields) != rows.width:  # a bad row
            continue
        for number, index in list(unknown.items()):
            value, cell = _parse_number(fields[index]), fields[index].strip(" \t")
            if value is not None and np.isnan(value):
                continue
            match = _DATE.fullmatch(cell) if value is None else None
            if value is None and match is None:
                texts.setdefault(number, cell)
                continue
            if match is not None:
                found.append((number, "zoned" if match["zone"] else "date"))
            del unknown[number]
        if not unknown:
            break
    for number in unknown.keys() & texts.keys():
        raise InputError(
            f"{columns.label(number)} of {source} must hold numbers or dates, got texts such as {shorten(texts[number])!r}. Write dates as 2024-03-01 or 2024-03-01T12:30:00, encode texts as numbers, or name another column."
        )
    return tuple(found)


def shorten(cell: str) -> str:
    """Return the first 30 characters of a cell."""
    return cell if len(cell) <= 30 else cell[:30] + "…"


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
    for k, cut in enumerate(cuts):
        if cut not in (start, stop):  # move to the next beginning of a line
            file.seek(cut - 1)  # the newline itself, if a line begins there
            cuts[k] = cut - 1 + len(_rest_of_line(file))
    return cuts[0], cuts[1]


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


def count_newlines(file: BinaryIO, stop: int) -> int:
    """Count the newlines before a byte. Complexity: O(stop) time, memory for a block."""
    file.seek(0)
    total = 0
    while (left := stop - file.tell()) > 0 and (block := file.read(min(BLOCK_BYTES, left))):
        total += block.count(b"\n")
    return total


@dataclass(frozen=True)
class CsvRows:
    """Parser of lines with `width` fields, of which `indices` hold the numbers and `text_indices` the columns `texts`.

    If `required`, a line with an empty text is bad.
    """

    columns: Columns
    indices: tuple[int, ...]
    width: int
    separator: str
    texts: tuple[str, ...] = ()
    text_indices: tuple[int, ...] = ()
    required: bool = False

    def parse_block(self, block: bytes, log: BadRowLog, line_of: Callable[[int], int]) -> tuple[np.ndarray, list]:
        """Return the good rows (k, d + p) of a block and a list of arrays of k texts; `line_of(i)` numbers its line i."""
        if not block.isascii():  # bytes that are not UTF-8 are in columns that are not read, or make the row bad
            block = block.decode("utf-8", errors="replace").encode()
        num_lines = block.count(b"\n") + (not block.endswith(b"\n"))
        index, rows, texts = self._parse_with_pyarrow(block, num_lines)
        if len(index) == num_lines:
            return rows, texts
        is_left = np.ones(num_lines, dtype=bool)
        is_left[index] = False
        found = self._parse_by_line(block.decode().split("\n"), np.flatnonzero(is_left).tolist(), log, line_of)
        return self._merge(index, rows, texts, found) if found else (rows, texts)

    def _parse_by_line(
        self, lines: list[str], indices: list[int], log: BadRowLog, line_of: Callable[[int], int]
    ) -> list[tuple[int, list[float], list[str]]]:
        """Return index, numbers and texts of the good ones among some lines, and log the others."""
        found = []
        for index in indices:
            line = lines[index].removesuffix("\r")
            if self.is_blank(line):
                continue
            parsed = self.parse_line(line)
            if parsed == UNCLOSED:  # the lines after it may be text, so reading stops
                raise InputError(
                    f"{log.source}, line {line_of(index)}: {UNCLOSED}. Write the table without such fields."
                )
            if isinstance(parsed, str):
                log.reject(lambda index=index: line_of(index), parsed)
            else:
                found.append((index, *parsed))
        return found

    def _merge(self, index: np.ndarray, rows: np.ndarray, texts: list, found: list) -> tuple[np.ndarray, list]:
        """Insert the rows that were found line by line, in the order of the file."""
        import pyarrow as pa

        more, numbers, cells = zip(*found, strict=True)
        order = np.argsort(np.concatenate([index, more]))
        columns = zip(texts, zip(*cells, strict=True), strict=True)
        texts = [pa.concat_arrays([old, pa.array(new, pa.string())]).take(pa.array(order)) for old, new in columns]
        return np.concatenate([rows, np.array(numbers)])[order], texts

    def _parse_with_pyarrow(self, block: bytes, num_lines: int) -> tuple[np.ndarray, np.ndarray, list]:
        """Return the indices of the lines that pyarrow reads as `parse_line` does, and their numbers and texts."""
        has_return = b"\r" in block and block.count(b"\r") != block.count(b"\r\n")
        is_ambiguous = has_return or (b'"' in block and self._has_loose_quote(block))
        table, index = (None, None) if is_ambiguous else self._read_table(block, num_lines)
        if table is None:  # only lines without quotes and carriage returns are unambiguous
            lines = (line.removesuffix(b"\r") for line in block.split(b"\n")[:num_lines])
            block = b"\n".join(b"" if b'"' in line or b"\r" in line else line for line in lines)
            table, index = self._read_table(block + b"\n", num_lines)
        rows, is_good = np.empty((len(index), len(self.indices))), (index >= 0) & (index < num_lines)
        times = dict(self.columns.times)
        for number, name in enumerate(self.indices):
            column = table[str(name)]
            rows[:, number], is_number = _to_dates(column, times[number]) if number in times else _to_numbers(column)
            is_good &= is_number
        is_good &= ~self.columns.is_bad(rows)
        texts = []
        for name in self.text_indices:
            cells, is_text = _to_texts(table[str(name)], self.required)
            texts.append(cells)
            is_good &= is_text
        return index[is_good], rows[is_good], [cells.filter(is_good) for cells in texts]

    def _read_table(self, block: bytes, num_lines: int):
        """Return a table and the index of the line of each row; None, None if a quote is not closed on its line.

        The first row is an empty line before the block, against a byte order mark. The last one is an empty line after
        it, which belongs to a field whose quote is not closed.
        """
        import pyarrow as pa
        from pyarrow import csv as arrow_csv

        data = b"\n" + block + b"\n" * (1 if block.endswith(b"\n") else 2)
        dates = [self.indices[number] for number, _ in self.columns.times]
        numbers = [str(index) for index in self.indices if index not in dates]
        texts = [str(index) for index in (*dates, *self.text_indices)]
        for kind in (pa.float64(), pa.string()):  # numbers at once; as text if a cell is not a number
            invalid = []
            read = arrow_csv.ReadOptions(
                use_threads=False, block_size=len(data) + 1, column_names=[str(index) for index in range(self.width)]
            )
            parse = arrow_csv.ParseOptions(
                delimiter=self.separator,
                ignore_empty_lines=False,
                invalid_row_handler=lambda row, invalid=invalid: invalid.append(row.number) or "skip",
            )
            convert = arrow_csv.ConvertOptions(
                include_columns=list(dict.fromkeys(numbers + texts)),
                column_types=dict.fromkeys(numbers, kind) | dict.fromkeys(texts, pa.string()),
                null_values=[*MISSING, *(f" {mark}" for mark in MISSING)],  # as after a comma and a space
            )
            try:
                table = arrow_csv.read_csv(pa.BufferReader(data), read, parse, convert)
                break
            except pa.ArrowInvalid:
                continue
        index = np.delete(np.arange(-1, num_lines + 1), np.array(invalid, dtype=int) - 1)
        return (table, index) if len(index) == table.num_rows else (None, None)

    def _has_loose_quote(self, block: bytes) -> bool:
        """Return whether text may follow a closing quote, which pyarrow accepts: before text, an even number of quotes
        at the beginning of a field, or an odd number inside it or after an odd number of quotes."""
        text = np.frombuffer(b"\n" + block + b"\n", dtype=np.uint8)
        is_limit = np.isin(np.arange(256), [ord(self.separator), 10, 13])
        quotes = np.flatnonzero(text == ord('"'))
        first, last = (quotes[np.diff(quotes, **end) > 1] for end in ({"prepend": -1}, {"append": len(text) + 1}))
        is_even, is_open = (last - first) % 2 == 1, np.searchsorted(quotes, first) % 2 == 1
        is_loose = (is_limit[text[first - 1]] == is_even) | (~is_even & is_open)
        return bool((~is_limit[text[last + 1]] & is_loose).any())

    def is_blank(self, line: str) -> bool:
        """Return whether a line holds only spaces and tabs that are not separators."""
        return not line.strip(" \t".replace(self.separator, ""))

    def parse_line(self, line: str) -> tuple[list[float], list[str]] | str:
        """Return the numbers of one line, NaN where missing, and its texts, or a description of its fault."""
        fields = self.split_fields(line)
        if isinstance(fields, str):
            return fields
        if len(fields) != self.width:
            return f"{len(fields)} field{'s' * (len(fields) != 1)} where the header has {self.width}"
        row, times = [], dict(self.columns.times)
        for column, index in enumerate(self.indices):
            kind, cell = times.get(column), fields[index]
            value = _parse_date(cell, kind) if kind else _parse_number(cell)
            if value is None:
                expected = {None: "a number", "date": "a date", "zoned": "a date with a time zone"}[kind]
                return f"{self.columns.label(column)} is not {expected}: {shorten(cell)!r}"
            row.append(value)
        if fault := self.columns.describe_fault(row):
            return fault
        texts = [fields[index].strip() for index in self.text_indices]
        for name, cell in zip(self.texts, texts, strict=True):
            if "\ufffd" in cell:
                return f"'{name}' is not text in UTF-8"
            if self.required and cell in MISSING:
                return f"'{name}' is missing"
        return row, texts

    def split_fields(self, line: str) -> Sequence[str] | str:
        """Return the fields of a line, or a description of its fault."""
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


def _to_numbers(column) -> tuple[np.ndarray, np.ndarray]:
    """Return the values of a column, NaN where missing, and which cells are numbers or missing."""
    import pyarrow as pa
    from pyarrow import compute

    if pa.types.is_floating(column.type):
        return column.to_numpy(), np.ones(len(column), dtype=bool)
    cells = compute.utf8_trim(column, " \t")
    is_number = compute.match_substring_regex(cells, f"^(?:{_NUMBER.pattern})$")
    values = compute.if_else(is_number, cells, pa.scalar(None, pa.string())).cast(pa.float64())
    is_known = compute.or_(is_number, compute.is_in(cells, pa.array(MISSING)))
    return values.to_numpy(), is_known.to_numpy()


def _to_dates(column, kind: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the dates of a column of texts in microseconds, NaN where missing, and which cells are dates or missing."""
    import pyarrow as pa
    from pyarrow import compute

    cells = compute.utf8_trim(column, " \t")
    is_missing = compute.is_in(cells, pa.array([*MISSING, None], pa.string()))
    zone = "(Z|[+-][0-9]{2}:[0-9]{2})" if kind == "zoned" else ""
    known = compute.or_(is_missing, compute.match_substring_regex(cells, f"^{_SECONDS}{zone}$"))
    if compute.all(known).as_py():
        try:  # faster by far, but only for whole columns of valid dates
            dates = compute.if_else(is_missing, pa.scalar(None, pa.string()), cells)
            dates = dates.cast(pa.timestamp("us", "UTC" if zone else None)).cast(pa.int64()).cast(pa.float64())
            return dates.to_numpy(), np.ones(len(column), dtype=bool)
        except pa.ArrowInvalid:  # such as 2024-02-30
            pass
    values = [_parse_date(cell or "", kind) for cell in column.to_pylist()]
    return np.array(values, dtype=np.float64), np.array([value is not None for value in values])


def _parse_date(cell: str, kind: str) -> float | None:
    """Return the microseconds of a date since 1970, NaN where missing, or None if it is not a date of this type."""
    cell = cell.strip(" \t")
    if cell in MISSING:
        return np.nan
    match = _DATE.fullmatch(cell)
    if match is None or bool(match["zone"]) != (kind == "zoned"):
        return None
    try:
        date = datetime.fromisoformat(_SURPLUS_DIGITS.sub(r"\1", cell))
    except ValueError:  # such as 2024-02-30
        return None
    date = date if date.tzinfo else date.replace(tzinfo=UTC)
    return float((date - EPOCH) // timedelta(microseconds=1))


def _to_texts(column, required: bool):
    """Return the texts of a column without spaces around them, and which are valid."""
    import pyarrow as pa
    from pyarrow import compute

    cells = compute.utf8_trim_whitespace(column).combine_chunks()
    is_bad = compute.match_substring(cells, "\ufffd")
    if required:
        is_bad = compute.or_(is_bad, compute.is_in(cells, pa.array(MISSING)))
    return cells, ~is_bad.to_numpy(zero_copy_only=False)


def _parse_number(cell: str) -> float | None:
    """Return the value of a cell, NaN where missing, or None if it is neither."""
    cell = cell.strip(" \t")
    if cell in MISSING or _NAN.fullmatch(cell):
        return np.nan
    return float(cell) if _NUMBER.fullmatch(cell) or _INFINITE.fullmatch(cell) else None
