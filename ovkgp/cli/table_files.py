"""Tables that are written a chunk at a time, to CSV, TSV or Parquet, whole or not at all.

The rows go to a file beside the one that was asked for, which takes its name when all of them are there.
"""

from __future__ import annotations

import csv
import io
import os
import secrets
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Protocol

if TYPE_CHECKING:
    import pyarrow as pa

DELIMITERS = {".csv": ",", ".tsv": "\t"}
PARQUET = (".parquet", ".pq")
SUFFIXES = (*DELIMITERS, *PARQUET)
"""Endings of files that can be written."""


class TableWriter(Protocol):
    """What takes the chunks of a table."""

    def write_table(self, table: pa.Table) -> None:
        """Add the rows of a table."""


@contextmanager
def table_file(path: Path, schema: pa.Schema) -> Iterator[TableWriter]:
    """A writer of tables of one schema; the file is there when the context ends well.

    Args:
        path: with one of the endings `SUFFIXES`; a file of this name is replaced.
        schema: names and types of the columns.

    Cost: memory for the chunk that is written.

    Example:
        >>> import tempfile
        >>> import pyarrow as pa
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder) / "table.csv"
        ...     table = pa.table({"x": [1.0, 0.5], "name": ["a", "b"]})
        ...     with table_file(path, table.schema) as writer:
        ...         writer.write_table(table)
        ...     print(path.read_text())
        x,name
        1,a
        0.5,b
        <BLANKLINE>
    """
    target = Path(os.path.realpath(path))  # of a link, the file behind it
    unfinished = target.with_name(f".{target.name}.{secrets.token_hex(8)}.part")
    try:
        with open(unfinished, "xb") as file, _writer(file, path.suffix.lower(), schema) as writer:
            yield writer
        os.replace(unfinished, target)
    finally:
        unfinished.unlink(missing_ok=True)


class _CsvWriter:
    """Rows as text; the texts of a chunk have quotes, all of them, only where one of them needs them."""

    def __init__(self, file: BinaryIO, names: list[str], delimiter: str):
        self.file, self.delimiter = file, delimiter
        line = io.StringIO()
        csv.writer(line, delimiter=delimiter, lineterminator="\n").writerow(names)
        file.write(line.getvalue().encode("utf-8"))

    def write_table(self, table: pa.Table) -> None:
        import pyarrow as pa

        try:
            self.file.write(self._text(table, "none"))
        except pa.ArrowInvalid:  # a text holds a quote, a line end or the delimiter
            self.file.write(self._text(table, "needed"))

    def _text(self, table: pa.Table, quoting: str) -> pa.Buffer:
        import pyarrow as pa
        from pyarrow.csv import WriteOptions, write_csv

        sink = pa.BufferOutputStream()
        options = WriteOptions(include_header=False, delimiter=self.delimiter, quoting_style=quoting)
        write_csv(table, sink, options)
        return sink.getvalue()


def _writer(file: BinaryIO, suffix: str, schema: pa.Schema) -> AbstractContextManager[TableWriter]:
    if suffix in PARQUET:
        from pyarrow import parquet

        return parquet.ParquetWriter(file, schema)
    return nullcontext(_CsvWriter(file, schema.names, DELIMITERS[suffix]))
