"""Rows that cannot be used: counted, named and told, never dropped in silence.

A pass over a table keeps a `BadRowLog`. It leaves bad rows out and warns once at the end (`bad="warn"`) or stops at the first
of them (`bad="error"`), and ends in a `StreamReport`. Only the first `KEPT` bad rows are remembered, so that memory does
not grow with the file.
"""

from __future__ import annotations

import difflib
import math
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from ovkgp.exceptions import InputError

LISTED = 20
"""How many columns of a wide table a message names."""


@dataclass(frozen=True)
class Columns:
    """The names of the inputs (d of them) and of the outputs (p), in the order in which they are read.

    Example:
        >>> Columns.named("east, north", ["height"])
        Columns(inputs=('east', 'north'), outputs=('height',))
    """

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]

    @classmethod
    def named(cls, inputs: str | Iterable[str], outputs: str | Iterable[str] | None) -> Columns:
        """From lists of names, or strings with commas between them; outputs=None for none."""
        columns = cls(_names(inputs, "inputs"), () if outputs is None else _names(outputs, "outputs"))
        shared = [name for name in columns.inputs if name in columns.outputs]
        if shared:
            raise InputError(f"{_listed(shared)} named both as input and as output: name each column once.")
        return columns

    @property
    def names(self) -> tuple[str, ...]:
        """Inputs, then outputs."""
        return self.inputs + self.outputs

    def places(self, header: Sequence[str], source: str) -> tuple[int, ...]:
        """Where each column stands in a header."""
        unknown = [name for name in self.names if name not in header]
        if unknown:
            raise InputError(
                f"{source} has no column {_listed(unknown)}{_suggestion(unknown[0], header)}; its columns are "
                f"{_listed(header)}."
            )
        twice = [name for name in self.names if header.count(name) > 1]
        if twice:
            raise InputError(f"{source} has more than one column {_listed(twice)}: rename them in the file.")
        return tuple(header.index(name) for name in self.names)

    def is_bad(self, rows: np.ndarray) -> np.ndarray:
        """Which rows (k, d + p) have an input that is not finite or an output that is infinite: (k,)."""
        d = len(self.inputs)
        return ~np.isfinite(rows[:, :d]).all(1) | np.isinf(rows[:, d:]).any(1)

    def fault(self, row: Sequence[float]) -> str | None:
        """What is wrong with a row of d + p numbers; None where it is good."""
        for place, value in enumerate(row):
            if math.isinf(value):
                return f"{self.label(place)} is infinite"
            if place < len(self.inputs) and math.isnan(value):
                return f"{self.label(place)} is missing"
        return None

    def label(self, place: int) -> str:
        """A column in words."""
        kind = "input" if place < len(self.inputs) else "output"
        return f"{kind} '{self.names[place]}'"


def _names(names: str | Iterable[str], role: str) -> tuple[str, ...]:
    names = names.split(",") if isinstance(names, str) else list(names)
    if not names or not all(isinstance(name, str) and name.strip() for name in names):
        raise InputError(f'{role} must be one or more names of columns, as in ["a", "b"] or "a,b"; got {names!r}.')
    names = tuple(name.strip() for name in names)
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InputError(f"{role} names {_listed(twice)} more than once: name each column once.")
    return names


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
    return ", ".join(f"'{name}'" for name in names[:LISTED]) + more


def _suggestion(name: str, header: Sequence[str]) -> str:
    if len(header) == 1:
        return " (only one column was found: is the separator right?)"
    lowered = {known.lower(): known for known in header}
    close = difflib.get_close_matches(name.lower(), lowered, n=1)
    return f" (did you mean '{lowered[close[0]]}'?)" if close else ""


KEPT = 100
"""How many bad rows a report names."""

MAX_LISTED_BAD_ROWS = 5
"""How many of them a message names."""


class DataWarning(UserWarning):
    """Some rows of a table could not be used and were left out; the message says which and why."""


@dataclass(frozen=True)
class BadRow:
    """A row that was left out.

    Args:
        line: its number as an editor shows it (the header of a CSV is line 1); of a Parquet file, the row from 1.
        reason: what is wrong with it.

    Example:
        >>> BadRow(7, "input 'depth' is missing").reason
        "input 'depth' is missing"
    """

    line: int
    reason: str


@dataclass(frozen=True)
class StreamReport:
    """What a pass over a table saw.

    Args:
        num_rows: good rows given out.
        num_bad: rows left out.
        bad_rows: the first 100 of them.
        num_observed: how many values of each output were observed.
        finished: whether the pass came to the end of its part of the file.
        unit: what `BadRow.line` counts: "line" or "row".

    Example:
        >>> print(StreamReport(9, 1, (BadRow(4, "input 'x' is missing"),), (9, 7), True))
        9 rows, 1 left out: line 4 (input 'x' is missing)
    """

    num_rows: int
    num_bad: int
    bad_rows: tuple[BadRow, ...]
    num_observed: tuple[int, ...]
    finished: bool
    unit: str = "line"

    def __str__(self) -> str:
        rest = "" if self.finished else " (the pass was broken off)"
        return f"{self.num_rows} rows, {self.num_bad} left out{self.first_reasons()}{rest}"

    def first_reasons(self) -> str:
        """The first bad rows in words, after a colon; empty where there are none."""
        named = [f"{self.unit} {row.line} ({row.reason})" for row in self.bad_rows[:MAX_LISTED_BAD_ROWS]]
        more = [f"and {self.num_bad - len(named)} more"] if self.num_bad > len(named) else []
        return ": " + ", ".join(named + more) if named else ""


class BadRowLog:
    """The running account of one pass.

    Args:
        source: the file's name, for messages.
        columns: the columns that are read.
        unit: "line" or "row".
        strict: stop at the first bad row.
    """

    def __init__(self, source: str, columns: Columns, unit: str, strict: bool):
        self.source, self.columns, self.unit, self.strict = source, columns, unit, strict
        self.num_rows, self.num_bad, self.finished = 0, 0, False
        self.bad_rows: list[BadRow] = []
        self.num_observed = np.zeros(len(columns.outputs), dtype=np.int64)

    def reject(self, line: Callable[[], int], reason: str) -> None:
        """Count a bad row; `line` is asked for its number only where that is remembered."""
        self.num_bad += 1
        if len(self.bad_rows) < KEPT:
            self.bad_rows.append(BadRow(line(), reason))
        if self.strict:
            raise InputError(
                f"{self.source}, {self.unit} {self.bad_rows[-1].line}: {reason}. Correct it, or leave such rows out with "
                'bad="warn".'
            )

    def sift(self, rows: np.ndarray, line_of: Callable[[int], int]) -> np.ndarray:
        """The good ones among rows (k, d + p) of numbers, NaN where missing; `line_of(i)` is the number of row i."""
        is_bad = self.columns.is_bad(rows)
        if not is_bad.any():
            return rows
        places = np.flatnonzero(is_bad)
        named = places[: max(KEPT - len(self.bad_rows), 1)]
        for place in named.tolist():
            self.reject(lambda place=place: line_of(place), self.columns.fault(rows[place].tolist()))
        self.num_bad += len(places) - len(named)
        return rows[~is_bad]

    def accept(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Count good rows (k, d + p) and split them into X (k, d) and Y (k, p), each with memory of its own."""
        d = len(self.columns.inputs)
        X, Y = rows[:, :d].copy(), rows[:, d:].copy()
        self.num_rows += len(rows)
        self.num_observed += len(rows) - np.isnan(Y).sum(0)
        return X, Y

    def report(self) -> StreamReport:
        """The account so far."""
        observed = tuple(self.num_observed.tolist())
        return StreamReport(self.num_rows, self.num_bad, tuple(self.bad_rows), observed, self.finished, self.unit)

    def warn(self, stacklevel: int) -> None:
        """One warning if rows were left out."""
        if self.num_bad:
            total = self.num_rows + self.num_bad
            message = f"{self.source}: {self.num_bad} of {total} rows left out{self.report().first_reasons()}."
            warnings.warn(message, DataWarning, stacklevel=stacklevel + 1)
