"""A CSV file, or a share of it, as tables of numbers in constant memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

import numpy as np
from tqdm import tqdm

from ovkgp.datasets.bad_rows import Tally
from ovkgp.datasets.columns import Columns
from ovkgp.datasets.csv_blocks import count_newlines, read_blocks, read_header, share
from ovkgp.datasets.csv_rows import CsvRows
from ovkgp.datasets.snapshots import Snapshot


@dataclass(frozen=True)
class CsvTable:
    """A text table whose header was read.

    Args:
        snapshot: the file.
        columns: what is read.
        rows: how lines become numbers.
        start: the byte at which the line after the header begins.
    """

    snapshot: Snapshot
    columns: Columns
    rows: CsvRows
    start: int
    unit = "line"

    @classmethod
    def look(cls, snapshot: Snapshot, columns: Columns, separator: str) -> CsvTable:
        """Read the header and find the columns in it."""
        header, start = read_header(snapshot, separator)
        places = columns.places(header, f"'{snapshot.path}'")
        return cls(snapshot, columns, CsvRows(columns, places, len(header), separator), start)

    def tables(self, part: tuple[int, int], tally: Tally, verbose: int) -> Iterator[np.ndarray]:
        """The good rows (k, d + p) of share `part` = (rank, world), in the order of the file.

        Cost: O(bytes of the share) time, memory for a block of 8 MB and its numbers.
        """
        with open(self.snapshot.path, "rb") as file:
            self.snapshot.check(file)
            first, last = share(file, self.start, self.snapshot.size, part)
            lines = _LineNumbers(file, first)
            with tqdm(total=last - first, unit="B", unit_scale=True, disable=not verbose) as bar:
                for block in read_blocks(file, first, last, self.snapshot):
                    yield from self.rows.tables(block, tally, lines.number)
                    lines.seen += block.count(b"\n")
                    bar.update(len(block))


@dataclass
class _LineNumbers:
    """The numbers of lines in a share of a file; the lines before it are counted when the first is asked for."""

    file: BinaryIO
    start: int
    seen: int = 0
    before: int | None = None

    def number(self, place: int) -> int:
        """Of line `place` of the present block, as an editor shows it."""
        if self.before is None:
            self.before = count_newlines(self.file, self.start)
        return 1 + self.before + self.seen + place
