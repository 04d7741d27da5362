"""Grids of inputs: ``--grid "east=0:100:50,north=0:60:30"`` instead of a table with one row per point."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ovkgp.cli import tables
from ovkgp.cli.arguments import parse_names
from ovkgp.cli.tables import TextChunk
from ovkgp.exceptions import OptionError

if TYPE_CHECKING:
    import pandas as pd

MAX_GRID_ROWS = 100_000_000
DATE = re.compile(r"\d{4}-\d{2}-\d{2}")
AXIS_HELP = "NAME=first:last:number or NAME=value, such as east=0:100:50,north=20"


@dataclass(frozen=True)
class InputGrid:
    """All combinations of the points of each input, in the order of a table whose last input varies fastest."""

    names: tuple[str, ...]
    axes: tuple[pd.Index, ...]

    @classmethod
    def parse(cls, text: str, names: Sequence[str]) -> InputGrid:
        """Parse the points of each of the inputs `names`."""
        axes = {}
        for part in parse_names(text):
            name, equals, points = part.rpartition("=")
            name = name.strip()
            if not equals or name not in names:
                raise OptionError(
                    f"--grid must be {AXIS_HELP} for each of the inputs {', '.join(names)}, got {part!r}."
                )
            if name in axes:
                raise OptionError(f"--grid has two ranges of the input {name!r}. Give one.")
            axes[name] = _parse_axis(name, points.strip())
        if missing := [name for name in names if name not in axes]:
            raise OptionError(f"--grid has no points of the input {missing[0]!r}. Add {missing[0]}=value.")
        count = math.prod(map(len, axes.values()))
        if count > MAX_GRID_ROWS:
            raise OptionError(f"--grid has {count} points, at most {MAX_GRID_ROWS} are supported. Use fewer.")
        return cls(tuple(names), tuple(axes[name] for name in names))

    def chunks(self) -> Iterator[TextChunk]:
        """Yield the points in chunks of at most `CHUNK_ROWS` rows."""
        import pandas as pd

        sizes = tuple(map(len, self.axes))
        count = math.prod(sizes)
        for start in range(0, count, tables.CHUNK_ROWS):
            rows = np.unravel_index(np.arange(start, min(start + tables.CHUNK_ROWS, count)), sizes)
            columns = {name: axis[row] for name, axis, row in zip(self.names, self.axes, rows, strict=True)}
            yield TextChunk(pd.DataFrame(columns), np.empty((len(rows[0]), 0)), {})


def _parse_axis(name: str, text: str) -> pd.Index:
    """Parse one value, or equidistant values first:last:number."""
    import pandas as pd

    if (value := _parse_value(text)) is not None:
        return pd.Index([value])
    ends, _, count = text.rpartition(":")
    for colon in (i for i, sign in enumerate(ends) if sign == ":"):  # times of the day have colons too
        first, last = _parse_value(ends[:colon]), _parse_value(ends[colon + 1 :])
        if first is None or type(first) is not type(last) or not count.isdecimal() or int(count) < 1:
            continue
        if isinstance(first, float):
            return pd.Index(np.linspace(first, last, int(count)))
        return pd.date_range(first, last, periods=int(count))
    raise OptionError(f"--grid must be {AXIS_HELP}, got {name}={text}.")


def _parse_value(text: str) -> float | pd.Timestamp | None:
    """Parse a finite number or an ISO date; return None for any other text."""
    import pandas as pd

    try:
        if DATE.match(text):
            return pd.Timestamp(text)
        return float(text) if math.isfinite(float(text)) else None
    except ValueError:
        return None
