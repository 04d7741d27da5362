"""Which columns of a table are inputs and which are outputs, by name.

A row of numbers is (x, y) with x finite and y finite or missing (NaN): whatever else a row may be is a fault, and has words.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Sequence
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
