"""Tables that are written a chunk at a time, to CSV, TSV or Parquet, whole or not at all.

The rows go to a file beside the one that was asked for, which takes its name when all of them are there.
"""

from __future__ import annotations

import csv
import io
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import pyarrow as pa

DELIMITERS = {".csv": ",", ".tsv": "\t"}
PARQUET = (".parquet", ".pq")
SUFFIXES = (*DELIMITERS, *PARQUET)
"""Endings of files that can be written."""


class TableWriter(Protocol):
    """What takes the chunks of a table."""

    def write_table(self, table: pa.Table) -> None: ...


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
        1,"a"
        0.5,"b"
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


def _writer(file, suffix: str, schema: pa.Schema):
    if suffix in PARQUET:
        from pyarrow import parquet

        return parquet.ParquetWriter(file, schema)
    from pyarrow import csv as arrow_csv

    delimiter = DELIMITERS[suffix]
    file.write(_header(schema.names, delimiter).encode("utf-8"))  # pyarrow would put quotes around every name
    return arrow_csv.CSVWriter(
        file, schema, write_options=arrow_csv.WriteOptions(include_header=False, delimiter=delimiter)
    )


def _header(names: list[str], delimiter: str) -> str:
    line = io.StringIO()
    csv.writer(line, delimiter=delimiter, lineterminator="\n").writerow(names)
    return line.getvalue()
