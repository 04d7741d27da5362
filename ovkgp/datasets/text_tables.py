"""Rows of numbers with text columns beside them: labels of classes and tasks, and columns copied to predictions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ovkgp.datasets.columns import BadRowLog, Columns
from ovkgp.datasets.csv_tables import CsvTable
from ovkgp.datasets.parquet_tables import ParquetTable
from ovkgp.datasets.streams import open_table
from ovkgp.exceptions import InputError

CHUNK_ROWS = 8192  # maximum number of rows per chunk


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

    def open(self) -> CsvTable | ParquetTable:
        """Check that the file exists and has the columns, without reading its rows."""
        columns, texts = Columns.from_names(self.inputs, self.outputs), Columns.from_names(self.texts, None).names
        return open_table(self.path, columns, self.separator, texts, self.required)

    def __iter__(self) -> Iterator[TextChunk]:
        table = self.open()
        log = BadRowLog(f"'{table.snapshot.path}'", table.columns, table.unit, self.strict)
        for rows, texts in table.read_tables((0, 1), log, 0):
            for start in range(0, len(rows), CHUNK_ROWS):  # estimators reject a table without rows
                chunk = {name: cells.slice(start, CHUNK_ROWS) for name, cells in zip(self.texts, texts, strict=True)}
                yield TextChunk(*log.accept(rows[start : start + CHUNK_ROWS]), chunk)
        if log.num_rows == 0:
            raise InputError(f"{log.source} has no usable rows{log.report().first_reasons()}.")
        log.warn(stacklevel=2)
