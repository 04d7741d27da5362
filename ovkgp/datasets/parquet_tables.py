"""Parquet files, or ranges of their rows, as tables of numbers in constant memory.

Row groups outside the range are not read. Nulls and NaN both mark missing values.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
from tqdm import tqdm

from ovkgp.datasets.columns import BadRowLog, Columns
from ovkgp.exceptions import InputError
from ovkgp.files import Snapshot

BATCH_ROWS = 65536  # number of rows read at a time
BUFFER_BYTES = 2**20  # number of bytes read at a time per column, so that a large row group is not loaded as a whole


@dataclass(frozen=True)
class ParquetTable:
    """Parquet file of `num_rows` rows whose schema was read."""

    snapshot: Snapshot
    columns: Columns
    num_rows: int
    texts: tuple[str, ...] = ()
    required: bool = False
    unit = "row"

    @classmethod
    def open(
        cls, snapshot: Snapshot, columns: Columns, texts: Sequence[str] = (), required: bool = False
    ) -> ParquetTable:
        """Read the schema and find the columns in it; all but `texts`, which are not null if `required`, are numeric."""
        with _open_parquet(snapshot) as (_, table):
            schema, num_rows = table.schema_arrow, table.metadata.num_rows
        indices, _ = (c.find_in(schema.names, f"'{snapshot.path}'") for c in (columns, Columns(tuple(texts), ())))
        times = []
        for number, kind in enumerate(schema.field(index).type for index in indices):
            if time_type := _time_type(kind):
                times.append((number, time_type))
            elif not _is_numeric(kind):
                raise InputError(
                    f"{columns.label(number)} of '{snapshot.path}' must hold numbers or dates, got type {kind}. Convert the column or name another."
                )
        if num_rows == 0:
            raise InputError(f"'{snapshot.path}' has columns and no rows.")
        return cls(snapshot, replace(columns, times=tuple(times)), num_rows, tuple(texts), required)

    def read_tables(self, part: tuple[int, int], log: BadRowLog, verbose: int) -> Iterator[tuple[np.ndarray, list]]:
        """Yield the good rows (k, d + p) of `part` = (rank, world) and their texts, in the order of the file."""
        rank, world = part
        first, last = self.num_rows * rank // world, self.num_rows * (rank + 1) // world
        with (
            _open_parquet(self.snapshot) as (file, table),
            tqdm(total=last - first, unit="row", unit_scale=True, disable=not verbose) as bar,
        ):
            groups, position = _find_row_groups(table.metadata, first, last)
            batches = table.iter_batches(BATCH_ROWS, groups, [*self.columns.names, *self.texts], use_threads=False)
            for batch in batches:
                self.snapshot.check(file)
                skipped = max(first - position, 0)
                inside = batch.slice(skipped, max(min(last - position, len(batch)) - skipped, 0))
                begin = position + skipped + 1  # rows are counted from 1
                position += len(batch)
                yield self._filter_batch(inside, log, begin)
                bar.update(len(inside))

    def _filter_batch(self, batch, log: BadRowLog, begin: int) -> tuple[np.ndarray, list]:
        """Return the numbers and texts of the good rows and log the others; `begin` numbers the first row."""
        rows, texts = self._to_numbers(batch), [batch.column(name) for name in self.texts]
        is_good = log.find_good_rows(rows, lambda index: begin + index)
        for name, cells in zip(self.texts, texts, strict=True) if self.required else ():
            is_empty = is_good & cells.is_null(nan_is_null=True).to_numpy(zero_copy_only=False)
            for index in np.flatnonzero(is_empty).tolist():
                log.reject(lambda index=index: begin + index, f"'{name}' is missing")
            is_good &= ~is_empty
        return rows[is_good], [cells.filter(is_good) for cells in texts]

    def _to_numbers(self, batch) -> np.ndarray:
        import pyarrow as pa

        rows, times = np.empty((len(batch), len(self.columns.names))), dict(self.columns.times)
        for index, name in enumerate(self.columns.names):  # integers beyond 2⁵³ are rounded, as those of a CSV are
            column = batch.column(name)
            if kind := times.get(index):
                unit = pa.duration("us") if kind == "duration" else pa.timestamp("us", getattr(column.type, "tz", None))
                column = column.cast(unit, safe=False).cast(pa.int64())
            rows[:, index] = column.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
        return rows


@contextmanager
def _open_parquet(snapshot: Snapshot) -> Iterator[tuple]:
    """Open the file and its pyarrow reader; errors of pyarrow become an InputError."""
    import pyarrow as pa
    from pyarrow import parquet

    with open(snapshot.path, "rb") as file:
        snapshot.check(file)
        try:
            with parquet.ParquetFile(file, buffer_size=BUFFER_BYTES, pre_buffer=False) as table:
                yield file, table
        except (pa.ArrowException, OSError) as error:
            snapshot.check(file)  # a file that changes is the likelier reason
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise InputError(
                f"'{snapshot.path}' cannot be read as Parquet ({reason}). Check that it is a complete Parquet file."
            ) from error


def read_schema_names(snapshot: Snapshot) -> tuple[str, ...]:
    """Return the names of all columns."""
    with _open_parquet(snapshot) as (_, table):
        return tuple(table.schema_arrow.names)


def _find_row_groups(metadata, first: int, last: int) -> tuple[list[int], int]:
    """Return the row groups with some of the rows first..last − 1, and the row at which they begin."""
    groups, begin, position = [], first, 0
    for group in range(metadata.num_row_groups):
        after = position + metadata.row_group(group).num_rows
        if max(position, first) < min(after, last):
            begin = begin if groups else position
            groups.append(group)
        position = after
    return groups, begin


def _time_type(kind) -> str | None:
    from pyarrow import types

    if types.is_timestamp(kind):
        return "date" if kind.tz is None else "zoned"
    return "date" if types.is_date(kind) else "duration" if types.is_duration(kind) else None


def _is_numeric(kind) -> bool:
    from pyarrow import types

    return types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind) or types.is_null(kind)
