"""A Parquet file, or a range of its rows, as tables of numbers in constant memory.

Row groups outside the range are not read. Nulls and NaN are both missing values.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
from tqdm import tqdm

from ovkgp.datasets.columns import BadRowLog, Columns
from ovkgp.exceptions import InputError
from ovkgp.files import Snapshot

BATCH = 65536
"""Rows that are read at a time."""

BUFFER = 2**20
"""Bytes of each column that are read at a time, so that a huge row group does not come whole."""


@dataclass(frozen=True)
class ParquetTable:
    """A Parquet file whose schema was read.

    Args:
        snapshot: the file.
        columns: what is read.
        num_rows: in the whole file.
    """

    snapshot: Snapshot
    columns: Columns
    num_rows: int
    unit = "row"

    @classmethod
    def look(cls, snapshot: Snapshot, columns: Columns) -> ParquetTable:
        """Read the schema, find the columns in it and see that they hold numbers."""
        with _opened(snapshot) as (_, table):
            schema, num_rows = table.schema_arrow, table.metadata.num_rows
        places = columns.places(schema.names, f"'{snapshot.path}'")
        for label, place in zip(map(columns.label, range(len(places))), places, strict=True):
            if not _is_numeric(schema.field(place).type):
                raise InputError(
                    f"{label} of '{snapshot.path}' is of type {schema.field(place).type}, where numbers were expected: "
                    "convert the column, or name another."
                )
        if num_rows == 0:
            raise InputError(f"'{snapshot.path}' has columns and no rows.")
        return cls(snapshot, columns, num_rows)

    def tables(self, part: tuple[int, int], tally: BadRowLog, verbose: int) -> Iterator[np.ndarray]:
        """The good rows (k, d + p) of share `part` = (rank, world), in the order of the file.

        Cost: O(rows of the share, and of the row groups it begins and ends in) time, memory for a batch.
        """
        rank, world = part
        first, last = self.num_rows * rank // world, self.num_rows * (rank + 1) // world
        with (
            _opened(self.snapshot) as (file, table),
            tqdm(total=last - first, unit="row", unit_scale=True, disable=not verbose) as bar,
        ):
            groups, position = _groups(table.metadata, first, last)
            batches = table.iter_batches(BATCH, groups, list(self.columns.names), use_threads=False)
            for batch in batches:
                self.snapshot.check(file)
                skipped = max(first - position, 0)
                inside = batch.slice(skipped, max(min(last - position, len(batch)) - skipped, 0))
                begin = position + skipped + 1  # rows are counted from 1
                position += len(batch)
                yield tally.sift(self._numbers(inside), lambda place, begin=begin: begin + place)
                bar.update(len(inside))

    def _numbers(self, batch) -> np.ndarray:
        from pyarrow import float64

        rows = np.empty((len(batch), len(self.columns.names)))
        for place, name in enumerate(self.columns.names):  # integers beyond 2⁵³ are rounded, as those of a CSV are
            rows[:, place] = batch.column(name).cast(float64(), safe=False).to_numpy(zero_copy_only=False)
        return rows


@contextmanager
def _opened(snapshot: Snapshot) -> Iterator[tuple]:
    """The file and what pyarrow makes of it, with its complaints as ours."""
    import pyarrow as pa
    from pyarrow import parquet

    with open(snapshot.path, "rb") as file:
        snapshot.check(file)
        try:
            with parquet.ParquetFile(file, buffer_size=BUFFER, pre_buffer=False) as table:
                yield file, table
        except (pa.ArrowException, OSError) as error:
            snapshot.check(file)  # a file that changes is the likelier reason
            raise InputError(
                f"'{snapshot.path}' cannot be read as Parquet ({_first_line(error)}): is it whole, and is it Parquet?"
            ) from error


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _groups(metadata, first: int, last: int) -> tuple[list[int], int]:
    """The row groups that hold some of the rows first..last − 1, and the row with which they begin."""
    groups, begin, position = [], first, 0
    for group in range(metadata.num_row_groups):
        after = position + metadata.row_group(group).num_rows
        if max(position, first) < min(after, last):
            begin = begin if groups else position
            groups.append(group)
        position = after
    return groups, begin


def _is_numeric(kind) -> bool:
    from pyarrow import types

    return types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind) or types.is_null(kind)
