"""Tables that are larger than memory, as chunks (X, Y) that can be read again and shared among processes.

A pass reads the file once in blocks, leaves out what cannot be used and says so, and gives out chunks of the same number
of rows. The parts (rank, world) of a stream are disjoint and together the whole, so that statistics which add up may be
gathered on many machines.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Iterable, Iterator
from operator import index
from pathlib import Path

import numpy as np

from ovkgp.datasets.columns import BadRowLog, Columns, StreamReport
from ovkgp.datasets.csv_tables import CsvTable
from ovkgp.datasets.parquet_tables import ParquetTable
from ovkgp.exceptions import InputError, OptionError
from ovkgp.files import Snapshot

CSV, PARQUET = (".csv", ".tsv", ".txt"), (".parquet", ".pq")
BAD = ("warn", "error")


def stream(
    path: str | os.PathLike,
    inputs: str | Iterable[str],
    outputs: str | Iterable[str] | None,
    chunk: int = 65536,
    *,
    shard: tuple[int, int] | None = None,
    bad: str = "warn",
    verbose: int = 0,
    separator: str = ",",
) -> TableStream:
    """A CSV or Parquet file as chunks X (k, d) and Y (k, p), k ≤ chunk, of float64; NaN in Y is a missing output.

    Args:
        path: a text table with a header (.csv, .tsv, .txt; UTF-8) or a Parquet file (.parquet, .pq).
        inputs: the columns of X: a list of names, or one string with commas between them.
        outputs: the columns of Y. A cell that is empty or NaN, nan, NA, N/A, null or None is missing. None reads inputs
            alone, with Y (k, 0).
        chunk: rows in a chunk; the last has fewer.
        shard: (rank, world): read only part `rank` of `world`, counted from 0. A part may be empty.
        bad: "warn" leaves out rows that cannot be used, with one `DataWarning` at the end of a pass; "error" raises an
            `InputError` at the first. Bad are an input that is missing, infinite or no number, an output that is infinite
            or no number, and a line with too few or too many fields or with a quoted field that goes on after its end.
        verbose: 1 shows a progress bar.
        separator: between the fields of a text table; of a .tsv, a tab unless another than "," is given.

    Cost: O(bytes) time a pass; memory for some blocks of 8 MB and one chunk, O(chunk (d + p)), whatever the size of the
    file.

    Example:
        >>> import pathlib, tempfile
        >>> from ovkgp.datasets import stream
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = pathlib.Path(folder, "wind.csv")
        ...     _ = path.write_text("east,north,u,v\\n0,0,1.5,\\n0,1,1.0,0.5\\n1,1,NA,0.25\\n")
        ...     for X, Y in stream(path, "east,north", "u,v", chunk=2):
        ...         print(X.shape, Y.tolist())
        (2, 2) [[1.5, nan], [1.0, 0.5]]
        (1, 2) [[nan, 0.25]]
    """
    whole = TableStream(path, inputs, outputs, chunk, bad=bad, verbose=verbose, separator=separator)
    return whole if shard is None else whole.shard(*_pair(shard))


class TableStream:
    """What `stream` returns: `for X, Y in table_stream` is a pass over the file, and may be done again.

    Cost: see `stream`. A stream holds no open file between passes, and can be pickled and sent to other processes.

    Example:
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
        chunk: int = 65536,
        *,
        bad: str = "warn",
        verbose: int = 0,
        separator: str = ",",
    ):
        if isinstance(chunk, bool) or _whole(chunk, "chunk") < 1:
            raise OptionError(f"chunk must be a whole number of rows, at least 1; got {chunk!r}.")
        if bad not in BAD:
            raise OptionError(f'bad must be "warn" or "error", got {bad!r}.')
        self.chunk, self.bad, self.verbose = index(chunk), bad, verbose
        self._columns = Columns.named(inputs, outputs)
        self._table = _look(Snapshot.of(path), self._columns, _separator(separator))
        self._part: tuple[int, int] = (0, 1)
        self._report: StreamReport | None = None

    @property
    def path(self) -> Path:
        """The file."""
        return self._table.snapshot.path

    @property
    def inputs(self) -> tuple[str, ...]:
        """The columns of X."""
        return self._columns.inputs

    @property
    def outputs(self) -> tuple[str, ...]:
        """The columns of Y."""
        return self._columns.outputs

    @property
    def num_inputs(self) -> int:
        """d."""
        return len(self.inputs)

    @property
    def num_outputs(self) -> int:
        """p."""
        return len(self.outputs)

    @property
    def report(self) -> StreamReport | None:
        """What the pass that ended last saw; None before there was one."""
        return self._report

    def shard(self, rank: int, world: int) -> TableStream:
        """Part `rank` of `world`, counted from 0: a stream over that part of the rows only.

        The parts are disjoint and together the whole, and in their order they give the rows in the order of the file. Of a
        text table each reads its own bytes only; a part may be empty.
        """
        rank, world = _whole(rank, "rank"), _whole(world, "world")
        if not 0 <= rank < world:
            raise OptionError(f"shard must be (rank, world) with 0 ≤ rank < world, got ({rank}, {world}).")
        if self._part != (0, 1):
            raise OptionError("this stream is a part already: take the parts of the whole stream.")
        part = copy.copy(self)
        part._part, part._report = (rank, world), None
        return part

    def __iter__(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """A new pass over the file: X (k, d) and Y (k, p), which are the caller's to change."""
        tally = BadRowLog(f"'{self.path}'", self._columns, self._table.unit, self.bad == "error")
        try:
            for rows in regroup(self._table.tables(self._part, tally, self.verbose), self.chunk):
                yield tally.accept(rows)
            tally.finished = True
        except GeneratorExit:  # the loop was left early: what was left out until now is told all the same
            tally.warn(stacklevel=2)
            raise
        finally:
            before, self._report = self._report, tally.report()
        if self._part[1] == 1 and tally.num_rows == 0:
            raise InputError(f"{tally.source}: none of its rows can be used{self._report.first_reasons()}.")
        if self._report != before:  # a second pass has nothing new to tell
            tally.warn(stacklevel=2)

    def __repr__(self) -> str:
        rank, world = self._part
        part = "" if world == 1 else f", shard=({rank}, {world})"
        return f"TableStream('{self.path}', {list(self.inputs)}, {list(self.outputs)}, {self.chunk}{part})"


def regroup(tables: Iterable[np.ndarray], size: int) -> Iterator[np.ndarray]:
    """Tables of any numbers of rows as tables of `size` rows; the last may have fewer.

    Cost: each row is copied a bounded number of times; memory for one table more than is given out.

    Example:
        >>> [len(rows) for rows in regroup([np.ones((3, 1)), np.ones((0, 1)), np.ones((4, 1))], 2)]
        [2, 2, 2, 1]
    """
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


def _look(snapshot: Snapshot, columns: Columns, separator: str) -> CsvTable | ParquetTable:
    suffix = snapshot.path.suffix.lower()
    if suffix in PARQUET:
        return ParquetTable.look(snapshot, columns)
    if suffix not in CSV:
        raise OptionError(
            f"'{snapshot.path}' must be a text table ({', '.join(CSV)}) or Parquet ({', '.join(PARQUET)}), got the suffix "
            f"{suffix!r}: rename, unpack or convert it."
        )
    return CsvTable.look(snapshot, columns, "\t" if suffix == ".tsv" and separator == "," else separator)


def _separator(separator: str) -> str:
    if not isinstance(separator, str) or len(separator) != 1 or not separator.isascii() or separator in '"\r\n\0':
        raise OptionError(f"separator must be one ASCII character other than a quote or a line end, got {separator!r}.")
    return separator


def _pair(shard: tuple[int, int]) -> tuple[int, int]:
    if not isinstance(shard, (tuple, list)) or len(shard) != 2:
        raise OptionError(f"shard must be (rank, world), got {shard!r}.")
    return tuple(shard)


def _whole(number: int, name: str) -> int:
    try:
        return index(number)
    except TypeError:
        raise OptionError(f"{name} must be a whole number, got {number!r}.") from None
