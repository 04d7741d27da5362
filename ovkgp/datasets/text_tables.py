"""Rows of numbers with texts beside them: labels of classes and tasks, and columns that a prediction carries along.

`ovkgp.datasets.stream` reads numbers only. Here the same rules decide line by line what a number is and which rows are bad
(`CsvRows.judge`), so that numbers and texts of a row stay together; it is some ten times slower.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ovkgp.datasets.columns import BadRowLog, Columns
from ovkgp.datasets.csv_tables import MISSING, UNCLOSED, CsvRows, count_newlines, read_blocks, read_header
from ovkgp.datasets.streams import PARQUET, TableStream
from ovkgp.exceptions import InputError
from ovkgp.files import Snapshot

CHUNK = 8192
"""Rows of a chunk."""


class TextChunk(NamedTuple):
    """X (k, d), Y (k, p) and, by name, columns of k texts (arrays of pyarrow)."""

    X: np.ndarray
    Y: np.ndarray
    texts: dict


@dataclass(frozen=True)
class TextTable:
    """A table of which some columns are numbers and some are texts; every pass over it reads the file again.

    Args:
        path: a text table or a Parquet file.
        inputs, outputs: the columns of X and Y, as for `ovkgp.datasets.stream`; None for no outputs.
        texts: other columns, of any kind.
        strict: stop at the first row that cannot be used; else such rows are left out, with a warning.
        separator: of a text table.
        required: whether an empty text makes a row a bad one.

    Cost: some 10 µs a row; memory for a chunk and a block of 8 MB.

    Example:
        >>> import pathlib, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = pathlib.Path(folder, "wind.csv")
        ...     _ = path.write_text("place,x,kind\\nBern,1.5,wind\\nThun,2,rain\\n")
        ...     [(chunk.X.tolist(), chunk.texts["kind"].to_pylist()) for chunk in TextTable(path, "x", None, ["kind"])]
        [([[1.5], [2.0]], ['wind', 'rain'])]
    """

    path: Path
    inputs: str | Sequence[str]
    outputs: str | Sequence[str] | None
    texts: Sequence[str]
    strict: bool = True
    separator: str = ","
    required: bool = True

    def look(self) -> tuple[Snapshot, Columns]:
        """See that the file is there and has the columns, without reading its rows."""
        columns = Columns.named(self.inputs, self.outputs)
        snapshot = Snapshot.of(
            TableStream(self.path, columns.inputs, columns.outputs or None, separator=self.separator).path
        )
        header = (
            self._schema(snapshot) if _is_parquet(snapshot) else read_header(snapshot, self._separator(snapshot))[0]
        )
        Columns.named(self.texts, None).places(header, f"'{snapshot.path}'")
        return snapshot, columns

    def __iter__(self) -> Iterator[TextChunk]:
        snapshot, columns = self.look()
        unit, read = ("row", self._parquet) if _is_parquet(snapshot) else ("line", self._csv)
        tally = BadRowLog(f"'{snapshot.path}'", columns, unit, self.strict)
        for rows, texts in read(snapshot, columns, tally):
            yield TextChunk(*tally.accept(rows), texts)
        if tally.num_rows == 0:
            raise InputError(f"{tally.source}: none of its rows can be used{tally.report().first_reasons()}.")
        tally.warn(stacklevel=2)

    # --- text tables ------------------------------------------------------------------------------------------------

    def _csv(self, snapshot: Snapshot, columns: Columns, tally: BadRowLog) -> Iterator[tuple[np.ndarray, dict]]:
        separator = self._separator(snapshot)
        header, start = read_header(snapshot, separator)
        rows = CsvRows(columns, columns.places(header, tally.source), len(header), separator)
        places = Columns.named(self.texts, None).places(header, tally.source)
        held: list[tuple[list[float], list[str]]] = []
        for line, text in _lines(snapshot, start):
            found = self._judged(rows, places, text)
            if found == UNCLOSED:
                raise InputError(f"{tally.source}, line {line}: {UNCLOSED}. Write the table without such fields.")
            if isinstance(found, str):
                tally.reject(lambda line=line: line, found)
            elif found is not None:
                held.append(found)
            if len(held) == CHUNK:
                yield self._chunk(held, columns)
                held = []
        if held:
            yield self._chunk(held, columns)

    def _judged(self, rows: CsvRows, places: Sequence[int], text: str) -> tuple[list[float], list[str]] | str | None:
        """The numbers and the texts of a line, what is wrong with it, or None where it is blank."""
        if not text.strip(" \t".replace(rows.separator, "")):
            return None
        numbers = rows.judge(text)
        if isinstance(numbers, str):
            return numbers
        fields = next(csv.reader([text], delimiter=rows.separator)) if '"' in text else text.split(rows.separator)
        texts = [fields[place].strip() for place in places]
        for name, cell in zip(self.texts, texts, strict=True):
            if "\ufffd" in cell:
                return f"'{name}' is not text in UTF-8"
            if self.required and cell in MISSING:
                return f"'{name}' is missing"
        return numbers, texts

    def _chunk(self, held: list, columns: Columns) -> tuple[np.ndarray, dict]:
        import pyarrow as pa

        numbers, texts = zip(*held, strict=True)
        rows = np.array(numbers, dtype=np.float64).reshape(len(held), len(columns.names))
        named = zip(self.texts, zip(*texts, strict=True), strict=True)
        return rows, {name: pa.array(cells, pa.string()) for name, cells in named}

    def _separator(self, snapshot: Snapshot) -> str:
        return "\t" if snapshot.path.suffix.lower() == ".tsv" and self.separator == "," else self.separator

    # --- Parquet ----------------------------------------------------------------------------------------------------

    @staticmethod
    def _schema(snapshot: Snapshot) -> list[str]:
        from pyarrow import parquet

        return parquet.read_schema(snapshot.path).names

    def _parquet(self, snapshot: Snapshot, columns: Columns, tally: BadRowLog) -> Iterator[tuple[np.ndarray, dict]]:
        from pyarrow import parquet

        with parquet.ParquetFile(snapshot.path) as table:
            first = 1  # rows are counted from 1
            for batch in table.iter_batches(CHUNK, columns=[*columns.names, *self.texts]):
                rows, texts = self._sifted(batch, columns, tally, first)
                if len(rows):  # estimators refuse a table without rows
                    yield rows, texts
                first += len(batch)

    def _sifted(self, batch, columns: Columns, tally: BadRowLog, first: int) -> tuple[np.ndarray, dict]:
        import pyarrow as pa

        numbers = [batch.column(name).cast(pa.float64(), safe=False) for name in columns.names]
        rows = np.stack([column.to_numpy(zero_copy_only=False) for column in numbers], axis=1)
        is_good = ~columns.is_bad(rows)
        tally.sift(rows, lambda place: first + place)
        for name in self.texts if self.required else ():
            lacks = is_good & batch.column(name).is_null(nan_is_null=True).to_numpy(zero_copy_only=False)
            for place in np.flatnonzero(lacks).tolist():
                tally.reject(lambda place=place: first + place, f"'{name}' is missing")
            is_good &= ~lacks
        return rows[is_good], {name: batch.column(name).filter(pa.array(is_good)) for name in self.texts}


def _is_parquet(snapshot: Snapshot) -> bool:
    return snapshot.path.suffix.lower() in PARQUET


def _lines(snapshot: Snapshot, start: int) -> Iterator[tuple[int, str]]:
    """The lines after the header with their numbers, as an editor shows them."""
    with open(snapshot.path, "rb") as file:
        snapshot.check(file)
        number = 1 + count_newlines(file, start)
        for block in read_blocks(file, start, snapshot.size, snapshot):
            lines = block.removesuffix(b"\n").split(b"\n")
            for line in lines:
                yield number, line.removesuffix(b"\r").decode("utf-8", errors="replace")
                number += 1
