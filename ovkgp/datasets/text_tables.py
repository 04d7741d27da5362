"""Rows of numbers with text columns beside them: labels of classes and tasks, and columns copied to predictions.

`ovkgp.datasets.stream` reads numbers only. Here the same rules (`CsvRows.parse_line`) are applied line by line, so that
the numbers and texts of a row stay together; this is about ten times slower.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ovkgp.datasets.columns import BadRowLog, Columns
from ovkgp.datasets.csv_tables import (
    MISSING,
    UNCLOSED,
    CsvRows,
    count_newlines,
    read_blocks,
    read_header,
    unclosed_field,
)
from ovkgp.datasets.streams import PARQUET_SUFFIXES, TableStream
from ovkgp.exceptions import InputError
from ovkgp.files import Snapshot

CHUNK_ROWS = 8192  # number of rows per chunk


class TextChunk(NamedTuple):
    """X (k, d), Y (k, p) and, by name, pyarrow arrays of k texts."""

    X: np.ndarray
    Y: np.ndarray
    texts: dict


@dataclass(frozen=True)
class TextTable:
    """Table with numeric columns `inputs`, `outputs` and other columns `texts`; every pass reads the file again.

    If `strict`, the first row that cannot be used raises an error, else such rows are skipped with a warning. If
    `required`, a row with an empty text is a bad row.
    """

    path: Path
    inputs: str | Sequence[str]
    outputs: str | Sequence[str] | None
    texts: Sequence[str]
    strict: bool = True
    separator: str = ","
    required: bool = True

    def check_columns(self) -> tuple[Snapshot, Columns]:
        """Check that the file exists and has the columns, without reading its rows."""
        columns = Columns.from_names(self.inputs, self.outputs)
        table = TableStream(self.path, columns.inputs, columns.outputs or None, separator=self.separator)
        snapshot = Snapshot.of(table.path)
        if _is_parquet(snapshot):
            from pyarrow import parquet

            header = parquet.read_schema(snapshot.path).names
        else:
            header, _ = read_header(snapshot, self._separator(snapshot))
        Columns.from_names(self.texts, None).find_in(header, f"'{snapshot.path}'")
        return snapshot, columns

    def __iter__(self) -> Iterator[TextChunk]:
        snapshot, columns = self.check_columns()
        unit, read = ("row", self._read_parquet) if _is_parquet(snapshot) else ("line", self._read_csv)
        log = BadRowLog(f"'{snapshot.path}'", columns, unit, self.strict)
        for rows, texts in read(snapshot, columns, log):
            yield TextChunk(*log.accept(rows), texts)
        if log.num_rows == 0:
            raise InputError(f"{log.source} has no usable rows{log.report().first_reasons()}.")
        log.warn(stacklevel=2)

    def _read_csv(self, snapshot: Snapshot, columns: Columns, log: BadRowLog) -> Iterator[tuple[np.ndarray, dict]]:
        separator = self._separator(snapshot)
        header, start = read_header(snapshot, separator)
        rows = CsvRows(columns, columns.find_in(header, log.source), len(header), separator)
        indices = Columns.from_names(self.texts, None).find_in(header, log.source)
        held: list[tuple[list[float], list[str]]] = []
        for number, line in _read_lines(snapshot, start):
            if rows.is_blank(line):
                continue
            parsed = self._parse_line(rows, indices, line)
            if parsed == UNCLOSED:
                raise unclosed_field(log.source, number)
            if isinstance(parsed, str):
                log.reject(lambda number=number: number, parsed)
            else:
                held.append(parsed)
            if len(held) == CHUNK_ROWS:
                yield self._make_chunk(held, columns)
                held = []
        if held:
            yield self._make_chunk(held, columns)

    def _parse_line(self, rows: CsvRows, indices: Sequence[int], line: str) -> tuple[list[float], list[str]] | str:
        """Return the numbers and texts of a line, or a description of its fault."""
        numbers = rows.parse_line(line)
        if isinstance(numbers, str):
            return numbers
        fields = next(csv.reader([line], delimiter=rows.separator)) if '"' in line else line.split(rows.separator)
        texts = [fields[index].strip() for index in indices]
        for name, cell in zip(self.texts, texts, strict=True):
            if "\ufffd" in cell:
                return f"'{name}' is not text in UTF-8"
            if self.required and cell in MISSING:
                return f"'{name}' is missing"
        return numbers, texts

    def _make_chunk(self, held: list, columns: Columns) -> tuple[np.ndarray, dict]:
        import pyarrow as pa

        numbers, texts = zip(*held, strict=True)
        rows = np.array(numbers, dtype=np.float64).reshape(len(held), len(columns.names))
        named = zip(self.texts, zip(*texts, strict=True), strict=True)
        return rows, {name: pa.array(cells, pa.string()) for name, cells in named}

    def _separator(self, snapshot: Snapshot) -> str:
        return "\t" if snapshot.path.suffix.lower() == ".tsv" and self.separator == "," else self.separator

    def _read_parquet(self, snapshot: Snapshot, columns: Columns, log: BadRowLog) -> Iterator[tuple[np.ndarray, dict]]:
        from pyarrow import parquet

        with parquet.ParquetFile(snapshot.path) as table:
            first = 1  # rows are counted from 1
            for batch in table.iter_batches(CHUNK_ROWS, columns=[*columns.names, *self.texts]):
                rows, texts = self._filter_batch(batch, columns, log, first)
                if len(rows):  # estimators reject a table without rows
                    yield rows, texts
                first += len(batch)

    def _filter_batch(self, batch, columns: Columns, log: BadRowLog, first: int) -> tuple[np.ndarray, dict]:
        import pyarrow as pa

        numbers = [batch.column(name).cast(pa.float64(), safe=False) for name in columns.names]
        rows = np.stack([column.to_numpy(zero_copy_only=False) for column in numbers], axis=1)
        is_good = ~columns.is_bad(rows)
        log.filter_rows(rows, lambda index: first + index)
        for name in self.texts if self.required else ():
            is_empty = is_good & batch.column(name).is_null(nan_is_null=True).to_numpy(zero_copy_only=False)
            for index in np.flatnonzero(is_empty).tolist():
                log.reject(lambda index=index: first + index, f"'{name}' is missing")
            is_good &= ~is_empty
        return rows[is_good], {name: batch.column(name).filter(pa.array(is_good)) for name in self.texts}


def _is_parquet(snapshot: Snapshot) -> bool:
    return snapshot.path.suffix.lower() in PARQUET_SUFFIXES


def _read_lines(snapshot: Snapshot, start: int) -> Iterator[tuple[int, str]]:
    """Yield the lines after the header with their numbers, as an editor shows them."""
    with open(snapshot.path, "rb") as file:
        snapshot.check(file)
        number = 1 + count_newlines(file, start)
        for block in read_blocks(file, start, snapshot.size, snapshot):
            for line in block.removesuffix(b"\n").split(b"\n"):
                yield number, line.removesuffix(b"\r").decode("utf-8", errors="replace")
                number += 1
