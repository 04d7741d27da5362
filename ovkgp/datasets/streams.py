"""Tables larger than memory as chunks (X, Y), which can be read again and divided among processes.

A pass reads the file once in blocks, skips and counts the rows it cannot use, and yields chunks of equal size. The
shards (rank, world) of a stream are disjoint and cover the file, so additive statistics can be accumulated on several
machines.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from ovkgp.checks import check_integer, check_one_of
from ovkgp.datasets.columns import BadRowLog, Columns, StreamReport
from ovkgp.datasets.csv_tables import CsvTable, read_header
from ovkgp.datasets.parquet_tables import ParquetTable, read_schema_names
from ovkgp.exceptions import InputError, OptionError
from ovkgp.files import Snapshot

CSV_SUFFIXES, PARQUET_SUFFIXES = (".csv", ".tsv", ".txt"), (".parquet", ".pq")
ON_BAD_ROWS = ("warn", "error")


def stream(
    path: str | os.PathLike,
    inputs: str | Iterable[str],
    outputs: str | Iterable[str] | None,
    chunk_rows: int = 65536,
    *,
    shard: tuple[int, int] | None = None,
    on_bad_rows: str = "warn",
    verbose: int = 0,
    separator: str = ",",
) -> TableStream:
    """Read a CSV or Parquet file as chunks (X, Y) of float64 arrays.

    If columns are dates, X or Y is a data frame, with dates to the microsecond. A column of a text table is one of dates if its
    first value is written as in ISO 8601 (2024-03-01, 2024-03-01T12:30:00, with Z or +01:00 for a time zone).

    Parameters
    ----------
    path : str or path-like
        Text table with a header (.csv, .tsv, .txt; UTF-8) or Parquet file (.parquet, .pq).
    inputs : str or iterable of str
        Columns of X, as a list of names or one comma-separated string.
    outputs : str, iterable of str or None
        Columns of Y. A cell that is empty or NaN, nan, NA, N/A, null or None is missing (NaN in Y). If None, only
        inputs are read and Y has shape (k, 0).
    chunk_rows : int, default=65536
        Number of rows per chunk; the last chunk may have fewer.
    shard : tuple (rank, world) or None, default=None
        Read only part `rank` of `world` parts, counted from 0. A part may be empty.
    on_bad_rows : {"warn", "error"}, default="warn"
        "warn" skips rows that cannot be used and issues one `DataWarning` at the end of a pass; "error" raises an
        `InputError` at the first. A row is bad if an input is missing, infinite or not a number, if an output is
        infinite or not a number, if the line has too few or too many fields, or if text follows a closing quote.
    verbose : int, default=0
        If 1, show a progress bar.
    separator : str, default=","
        Separator of a text table. A .tsv file uses a tab unless another separator than "," is given.

    Returns
    -------
    TableStream
        Iterable over chunks X of shape (k, d) and Y of shape (k, p) with k at most `chunk_rows`.

    Notes
    -----
    Complexity: O(bytes) time per pass; memory for a few blocks of 8 MB and one chunk, O(chunk_rows (d + p)),
    independent of the size of the file.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> from ovkgp.datasets import stream
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "wind.csv")
    ...     _ = path.write_text("east,north,u,v\\n0,0,1.5,\\n0,1,1.0,0.5\\n1,1,NA,0.25\\n")
    ...     for X, Y in stream(path, "east,north", "u,v", chunk_rows=2):
    ...         print(X.shape, Y.tolist())
    (2, 2) [[1.5, nan], [1.0, 0.5]]
    (1, 2) [[nan, 0.25]]
    """
    whole = TableStream(
        path, inputs, outputs, chunk_rows, on_bad_rows=on_bad_rows, verbose=verbose, separator=separator
    )
    if shard is None:
        return whole
    if not isinstance(shard, (tuple, list)) or len(shard) != 2:
        raise OptionError(f"shard must be (rank, world), got {shard!r}.")
    return whole.shard(*shard)


class TableStream:
    """Table file that yields chunks (X, Y); each `for X, Y in table_stream` is one pass over the file.

    A stream holds no open file between passes; it can be pickled and
    sent to other processes.

    Parameters
    ----------
    path, inputs, outputs, chunk_rows, on_bad_rows, verbose, separator
        As in `stream`.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> from ovkgp.datasets import TableStream
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "depth.csv")
    ...     _ = path.write_text("x,y\\n" + "".join(f"{i},{i * i}\\n" for i in range(10)))
    ...     whole = TableStream(path, "x", "y")
    ...     halves = [sum(len(X) for X, _ in whole.shard(rank, 2)) for rank in (0, 1)]
    ...     sum(halves), sum(Y.sum() for _, Y in whole), whole.report.num_rows
    (10, np.float64(285.0), 10)
    """

    def __init__(
        self,
        path: str | os.PathLike,
        inputs: str | Iterable[str],
        outputs: str | Iterable[str] | None,
        chunk_rows: int = 65536,
        *,
        on_bad_rows: str = "warn",
        verbose: int = 0,
        separator: str = ",",
    ):
        if isinstance(chunk_rows, bool):
            raise OptionError(f"chunk_rows must be an integer, got {chunk_rows!r}.")
        self.chunk_rows = check_integer("chunk_rows", chunk_rows)
        self.on_bad_rows = check_one_of("on_bad_rows", on_bad_rows, ON_BAD_ROWS)
        self.verbose = verbose
        self._columns = Columns.from_names(inputs, outputs)
        self._table = open_table(path, self._columns, separator)
        self._columns = self._table.columns  # with the types of dates
        self._part: tuple[int, int] = (0, 1)
        self._report: StreamReport | None = None

    @property
    def path(self) -> Path:
        """Path of the file."""
        return self._table.snapshot.path

    @property
    def inputs(self) -> tuple[str, ...]:
        """Columns of X."""
        return self._columns.inputs

    @property
    def outputs(self) -> tuple[str, ...]:
        """Columns of Y."""
        return self._columns.outputs

    @property
    def num_inputs(self) -> int:
        """Number d of inputs."""
        return len(self.inputs)

    @property
    def num_outputs(self) -> int:
        """Number p of outputs."""
        return len(self.outputs)

    @property
    def report(self) -> StreamReport | None:
        """Report of the pass that ended last; None before the first."""
        return self._report

    def skip_first_row(self) -> TableStream:
        """Return a stream over all rows but the first, of a text table.

        Returns
        -------
        TableStream
            Stream without the first row.
        """
        rest = copy.copy(self)
        rest._table, rest._report = skip_first_row(self._table)[1], None
        return rest

    def shard(self, rank: int, world: int) -> TableStream:
        """Return a stream over one part of the rows.

        The parts are disjoint, cover the file, and in the order of their ranks yield the rows in the order of the file.
        Of a text table, each part reads only its own bytes.

        Parameters
        ----------
        rank : int
            Index of the part, from 0 to `world` - 1.
        world : int
            Number of parts.

        Returns
        -------
        TableStream
            Stream over the part, which may be empty.
        """
        rank, world = check_integer("rank", rank, minimum=None), check_integer("world", world, minimum=None)
        if not 0 <= rank < world:
            raise OptionError(f"shard must be (rank, world) with 0 ≤ rank < world, got ({rank}, {world}).")
        if self._part != (0, 1):
            raise OptionError("A shard cannot be divided again. Call shard on the whole stream.")
        part = copy.copy(self)
        part._part, part._report = (rank, world), None
        return part

    def __iter__(self) -> Iterator[tuple]:
        """Iterate over chunks X (k, d) and Y (k, p) in a new pass; they belong to the caller."""
        log = BadRowLog(f"'{self.path}'", self._columns, self._table.unit, self.on_bad_rows == "error")
        try:
            tables = (rows for rows, _ in self._table.read_tables(self._part, log, self.verbose))
            for rows in regroup(tables, self.chunk_rows):
                yield log.accept(rows)
            log.finished = True
        except GeneratorExit:  # the caller stopped early: the rows skipped until now are reported all the same
            log.warn(stacklevel=2)
            raise
        finally:
            before, self._report = self._report, log.report()
        if self._part[1] == 1 and log.num_rows == 0:
            raise InputError(f"{log.source} has no usable rows{self._report.first_reasons()}.")
        if self._report != before:  # a second pass does not repeat the warning
            log.warn(stacklevel=2)

    def __repr__(self) -> str:
        rank, world = self._part
        part = "" if world == 1 else f", shard=({rank}, {world})"
        return f"TableStream('{self.path}', {list(self.inputs)}, {list(self.outputs)}, {self.chunk_rows}{part})"


def regroup(tables: Iterable[np.ndarray], size: int) -> Iterator[np.ndarray]:
    """Regroup tables of any numbers of rows into tables of `size` rows; the last may have fewer."""
    held, count = [], 0
    for table in tables:
        held.append(table)
        count += len(table)
        if count < size:
            continue
        rows = np.concatenate(held)
        full = count - count % size
        for start in range(0, full, size):
            yield rows[start : start + size]
        held, count = [rows[full:]], count - full
    if count:
        yield np.concatenate(held)


def open_table(
    path: str | os.PathLike, columns: Columns, separator: str, texts: Sequence[str] = (), required: bool = False
) -> CsvTable | ParquetTable:
    """Read the header or schema of a file of a known suffix; `texts` are columns of texts, not missing if `required`."""
    snapshot, is_parquet, separator = _check_format(path, separator)
    if is_parquet:
        return ParquetTable.open(snapshot, columns, texts, required)
    return CsvTable.open(snapshot, columns, separator, texts, required)


def skip_first_row(table: CsvTable | ParquetTable) -> tuple[Sequence[float], CsvTable]:
    """Return the numbers of the first row of a text table, NaN where missing, and the table without it."""
    if not isinstance(table, CsvTable):
        raise OptionError(f"'{table.snapshot.path}' must be a text table if its first row is not data.")
    return table.skip_first_row()


def read_column_names(path: str | os.PathLike, separator: str = ",") -> tuple[str, ...]:
    """Read the names of all columns of a file of a known suffix."""
    snapshot, is_parquet, separator = _check_format(path, separator)
    return read_schema_names(snapshot) if is_parquet else read_header(snapshot, separator)[0]


def _check_format(path: str | os.PathLike, separator: str) -> tuple[Snapshot, bool, str]:
    """Return the file, whether it is a Parquet file, and the separator of a text table."""
    snapshot, separator = Snapshot.of(path), _check_separator(separator)
    suffix = snapshot.path.suffix.lower()
    if suffix not in (*CSV_SUFFIXES, *PARQUET_SUFFIXES):
        raise OptionError(
            f"'{snapshot.path}' must be a text table ({', '.join(CSV_SUFFIXES)}) or Parquet ({', '.join(PARQUET_SUFFIXES)}), got the suffix {suffix!r}. Rename, unpack or convert it."
        )
    separator = "\t" if suffix == ".tsv" and separator == "," else separator
    return snapshot, suffix in PARQUET_SUFFIXES, separator


def _check_separator(separator: str) -> str:
    """Check that `separator` is one ASCII character other than a quote or a line end."""
    if not isinstance(separator, str) or len(separator) != 1 or not separator.isascii() or separator in '"\r\n\0':
        raise OptionError(f"separator must be one ASCII character other than a quote or a line end, got {separator!r}.")
    return separator
