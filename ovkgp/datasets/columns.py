"""Columns of a table, and the log of its rows that cannot be used.

While a table is read, dates are numbers of microseconds since 1970; durations are microseconds.

A pass over a table keeps a `BadRowLog`. It skips bad rows and warns once at the end (`on_bad_rows="warn"`) or stops at
the first (`on_bad_rows="error"`), and ends in a `StreamReport`. Memory does not grow with the number of bad rows.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ovkgp.checks import suggest_name
from ovkgp.exceptions import InputError

if TYPE_CHECKING:
    import pandas as pd

TIME_TYPES = ("date", "zoned", "duration")  # dates without and with a time zone, and durations
MAX_LISTED_COLUMNS = 20  # number of columns of a wide table that a message lists
MAX_STORED_BAD_ROWS = 100  # number of bad rows that a report stores
MAX_LISTED_BAD_ROWS = 5  # number of bad rows that a message lists


class DataWarning(UserWarning):
    """Warning that some rows of a table could not be used and were skipped."""


@dataclass(frozen=True)
class BadRow:
    """Row that was skipped.

    Parameters
    ----------
    line : int
        Line number as an editor shows it (the header of a CSV is line 1); of a Parquet file, the row counted from 1.
    reason : str
        Description of the fault.

    Examples
    --------
    >>> from ovkgp.datasets import BadRow
    >>> BadRow(7, "input 'depth' is missing").reason
    "input 'depth' is missing"
    """

    line: int
    reason: str


@dataclass(frozen=True)
class StreamReport:
    """Summary of one pass over a table.

    Parameters
    ----------
    num_rows : int
        Number of good rows.
    num_bad_rows : int
        Number of skipped rows.
    bad_rows : tuple of BadRow
        First 100 of the skipped rows.
    num_observed : tuple of int
        Number of observed values per output.
    finished : bool
        Whether the pass reached the end of its part of the file.
    unit : {"line", "row"}, default="line"
        Unit of `BadRow.line`.

    Examples
    --------
    >>> from ovkgp.datasets import BadRow, StreamReport
    >>> print(StreamReport(9, 1, (BadRow(4, "input 'x' is missing"),), (9, 7), True))
    9 rows, 1 skipped: line 4 (input 'x' is missing)
    """

    num_rows: int
    num_bad_rows: int
    bad_rows: tuple[BadRow, ...]
    num_observed: tuple[int, ...]
    finished: bool
    unit: str = "line"

    def __str__(self) -> str:
        rest = "" if self.finished else " (the pass was interrupted)"
        return f"{self.num_rows} rows, {self.num_bad_rows} skipped{self.first_reasons()}{rest}"

    def first_reasons(self) -> str:
        """Describe the first bad rows, after a colon; return an empty string if there are none.

        Returns
        -------
        str
            Lines and reasons.
        """
        named = [f"{self.unit} {row.line} ({row.reason})" for row in self.bad_rows[:MAX_LISTED_BAD_ROWS]]
        more = [f"and {self.num_bad_rows - len(named)} more"] if self.num_bad_rows > len(named) else []
        return ": " + ", ".join(named + more) if named else ""


@dataclass(frozen=True)
class Columns:
    """Names of the d inputs and the p outputs, in the order in which they are read.

    `times` are pairs of an index of `names` and the type of a column of dates or durations, one of `TIME_TYPES`.
    """

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    times: tuple[tuple[int, str], ...] = ()

    @classmethod
    def from_names(cls, inputs: str | Iterable[str], outputs: str | Iterable[str] | None) -> Columns:
        """Build from lists of names or comma-separated strings; outputs=None for no outputs."""
        columns = cls(_parse_names(inputs, "inputs"), () if outputs is None else _parse_names(outputs, "outputs"))
        shared = [name for name in columns.inputs if name in columns.outputs]
        if shared:
            raise InputError(f"{_list_names(shared)} is both an input and an output. Name each column once.")
        return columns

    @property
    def names(self) -> tuple[str, ...]:
        """Inputs, then outputs."""
        return self.inputs + self.outputs

    def find_in(self, header: Sequence[str], source: str) -> tuple[int, ...]:
        """Return the index of each column in a header."""
        unknown = [name for name in self.names if name not in header]
        if unknown:
            message = (
                f"{source} has no column {_list_names(unknown)}{suggest_name(unknown[0], header)}; its columns are "
            )
            advice = {}
            if len(header) == 1:
                question = "Only one column was found: is {} right?"
                advice = dict(advice=question.format("the separator"), cli_advice=question.format("--separator"))
            raise InputError(f"{message}{_list_names(header)}.", **advice)
        repeated = [name for name in self.names if header.count(name) > 1]
        if repeated:
            raise InputError(f"{source} has more than one column {_list_names(repeated)}. Rename them in the file.")
        return tuple(header.index(name) for name in self.names)

    def is_bad(self, rows: np.ndarray) -> np.ndarray:
        """Return which rows (k, d + p) have an input that is not finite or an infinite output: (k,)."""
        d = len(self.inputs)
        return ~np.isfinite(rows[:, :d]).all(1) | np.isinf(rows[:, d:]).any(1)

    def describe_fault(self, row: Sequence[float]) -> str | None:
        """Describe the first fault in a row of d + p numbers; return None for a good row."""
        for index, value in enumerate(row):
            if math.isinf(value):
                return f"{self.label(index)} is infinite"
            if index < len(self.inputs) and math.isnan(value):
                return f"{self.label(index)} is missing"
        return None

    def split(self, rows: np.ndarray) -> tuple[np.ndarray | pd.DataFrame, np.ndarray | pd.DataFrame]:
        """Copy rows (k, d + p) into X (k, d) and Y (k, p), each a data frame if it has dates or durations."""
        d = len(self.inputs)
        return self._make_table(rows[:, :d], self.inputs, 0), self._make_table(rows[:, d:], self.outputs, d)

    def _make_table(self, rows: np.ndarray, names: tuple[str, ...], first: int) -> np.ndarray | pd.DataFrame:
        times = [(index - first, kind) for index, kind in self.times if 0 <= index - first < len(names)]
        if not times:
            return rows.copy()
        import pandas as pd

        table = pd.DataFrame(rows, columns=list(names), copy=True)
        for index, kind in times:
            us = np.where(np.isnan(rows[:, index]), np.iinfo(np.int64).min, rows[:, index]).astype(np.int64)  # NaT
            column = pd.Series(us.view("m8[us]" if kind == "duration" else "M8[us]"))
            table.isetitem(index, column.dt.tz_localize("UTC") if kind == "zoned" else column)
        return table

    def label(self, index: int) -> str:
        """Describe a column in a message."""
        kind = "input" if index < len(self.inputs) else "output"
        return f"{kind} '{self.names[index]}'"


class BadRowLog:
    """Running count of the good and bad rows of one pass; if `strict`, the first bad row raises an error."""

    def __init__(self, source: str, columns: Columns, unit: str, strict: bool):
        self.source, self.columns, self.unit, self.strict = source, columns, unit, strict
        self.num_rows, self.num_bad_rows, self.finished = 0, 0, False
        self.bad_rows: list[BadRow] = []
        self.num_observed = np.zeros(len(columns.outputs), dtype=np.int64)

    def reject(self, line: Callable[[], int], reason: str) -> None:
        """Count a bad row; `line` is called for its number only if the row is stored."""
        self.num_bad_rows += 1
        if len(self.bad_rows) < MAX_STORED_BAD_ROWS:
            self.bad_rows.append(BadRow(line(), reason))
        if self.strict:
            raise InputError(
                f"{self.source}, {self.unit} {self.bad_rows[-1].line}: {reason}.",
                advice='Correct the row, or skip bad rows with on_bad_rows="warn".',
                cli_advice="Correct the row, or skip bad rows with --skip-bad-rows.",
            )

    def find_good_rows(self, rows: np.ndarray, line_of: Callable[[int], int]) -> np.ndarray:
        """Return which rows of (k, d + p), NaN where missing, are good, and log the others; `line_of(i)` numbers row i."""
        is_bad = self.columns.is_bad(rows)
        bad = np.flatnonzero(is_bad)
        stored = bad[: max(MAX_STORED_BAD_ROWS - len(self.bad_rows), 1)]
        for index in stored.tolist():
            self.reject(lambda index=index: line_of(index), self.columns.describe_fault(rows[index].tolist()))
        self.num_bad_rows += len(bad) - len(stored)
        return ~is_bad

    def accept(self, rows: np.ndarray) -> tuple[np.ndarray | pd.DataFrame, np.ndarray | pd.DataFrame]:
        """Count good rows (k, d + p) and copy them into X (k, d) and Y (k, p)."""
        self.num_rows += len(rows)
        self.num_observed += len(rows) - np.isnan(rows[:, len(self.columns.inputs) :]).sum(0)
        return self.columns.split(rows)

    def report(self) -> StreamReport:
        """Return the counts so far."""
        observed = tuple(self.num_observed.tolist())
        return StreamReport(self.num_rows, self.num_bad_rows, tuple(self.bad_rows), observed, self.finished, self.unit)

    def warn(self, stacklevel: int) -> None:
        """Issue one warning if rows were skipped."""
        if self.num_bad_rows:
            total = self.num_rows + self.num_bad_rows
            message = f"{self.source}: {self.num_bad_rows} of {total} rows skipped{self.report().first_reasons()}."
            warnings.warn(message, DataWarning, stacklevel=stacklevel + 1)


def _parse_names(names: str | Iterable[str], role: str) -> tuple[str, ...]:
    """Return distinct column names from a list or a comma-separated string."""
    names = names.split(",") if isinstance(names, str) else list(names)
    if not names or not all(isinstance(name, str) and name.strip() for name in names):
        raise InputError(f'{role} must be one or more column names, such as ["a", "b"] or "a,b", got {names!r}.')
    names = tuple(name.strip() for name in names)
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise InputError(f"{role} must not repeat a column, got {_list_names(repeated)} more than once.")
    return names


def _list_names(names: Sequence[str]) -> str:
    """Quote the first names and count the rest."""
    more = f" and {len(names) - MAX_LISTED_COLUMNS} more" if len(names) > MAX_LISTED_COLUMNS else ""
    return ", ".join(f"'{name}'" for name in names[:MAX_LISTED_COLUMNS]) + more
