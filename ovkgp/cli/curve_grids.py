"""Columns of wide tables: patterns such as 'y_*', and the grid of points that the columns of a curve belong to."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path

import numpy as np

from ovkgp.cli.errors import print_note
from ovkgp.datasets.streams import read_column_names
from ovkgp.exceptions import InputError, OptionError

WILDCARDS = frozenset("*?[")
GRID_ROW = "row"  # value of --grid for a table whose first row holds the grid
MAX_LISTED_COLUMNS = 10
MAX_GRID_POINTS = 100_000

Names = tuple[str, ...]


def expand_columns(
    path: Path, separator: str, inputs: Names | None, outputs: Names | None, others: Sequence[str | None] = ()
) -> tuple[Names | None, Names | None]:
    """Replace patterns among input and output columns by the columns of a file that match them.

    A column is matched once: patterns of outputs skip inputs that are named, patterns of inputs skip all outputs, and both
    skip `others`, such as the column of tasks. Matches are in the order of the file. A name that is a column is not a pattern.
    """
    if not any(_has_wildcard(name) for name in (*(inputs or ()), *(outputs or ()))):
        return inputs, outputs
    header = read_column_names(path, separator)
    named = {name for name in inputs or () if name in header or not _has_wildcard(name)}
    skipped = named | {name for name in others if name is not None}
    outputs = _expand(outputs, header, skipped, "--outputs", path)
    return _expand(inputs, header, skipped - named | set(outputs or ()), "--inputs", path), outputs


def _has_wildcard(name: str) -> bool:
    return bool(WILDCARDS & set(name))


def _expand(names: Names | None, header: Names, skipped: set[str], option: str, path: Path) -> Names | None:
    if names is None:
        return None
    found = []
    for name in names:
        if name in header or not _has_wildcard(name):
            found.append(name)
            continue
        matches = [column for column in header if fnmatchcase(column, name) and column not in skipped]
        if not matches:
            listed = ", ".join(header[:MAX_LISTED_COLUMNS]) + (", …" if len(header) > MAX_LISTED_COLUMNS else "")
            raise OptionError(f"{option}: no column of '{path}' matches {name!r}. Its columns are {listed}.")
        found += [column for column in matches if column not in found]
    return tuple(found)


def parse_grid(text: str) -> np.ndarray:
    """Parse --grid: "first:last:number" (equidistant), comma-separated increasing numbers, or a file of such numbers."""
    path = Path(text).expanduser()
    if path.is_file():
        return check_increasing(_read_numbers(path), f"The grid of '{path}'")
    parts = text.split(":")
    try:
        if len(parts) == 3:
            first, last, count = float(parts[0]), float(parts[1]), int(parts[2])
        else:
            points = np.array([float(part) for part in text.split(",")])
    except ValueError:
        raise OptionError(
            f"--grid must be first:last:number such as 0:1:50, comma-separated numbers or an existing file, got {text!r}."
        ) from None
    if len(parts) == 3:
        if not 1 <= count <= MAX_GRID_POINTS:
            raise OptionError(f"--grid must have 1 to {MAX_GRID_POINTS} points, got {count}.")
        points = np.linspace(first, last, count)
    return check_increasing(points, "--grid")


def _read_numbers(path: Path) -> np.ndarray:
    """Read numbers that are separated by commas, spaces or line ends."""
    try:
        return np.array([float(cell) for cell in path.read_text(encoding="utf-8").replace(",", " ").split()])
    except (UnicodeDecodeError, ValueError):
        raise InputError(f"'{path}' must hold numbers separated by commas, spaces or line ends.") from None


def check_increasing(points: np.ndarray, source: str) -> np.ndarray:
    """Check that points (m,) are finite and strictly increasing, and return them."""
    if not len(points) or not np.isfinite(points).all():
        raise InputError(f"{source} must hold finite numbers, got {_list_points(points)}.")
    if (wrong := np.flatnonzero(np.diff(points) <= 0)).size:
        at = int(wrong[0])
        raise InputError(f"{source} must be increasing, got {points[at + 1]:g} after {points[at]:g}.")
    return points


def _list_points(points: np.ndarray) -> str:
    return ", ".join(f"{value:g}" for value in points[:5]) or "none"


def find_grid(
    text: str | None, columns: Sequence[str], grid_row: np.ndarray | None = None, quiet: bool = False
) -> np.ndarray:
    """Return the points (m,), or (m, 2) if column names hold two numbers, of the output columns of a curve.

    They are those of --grid or of the first row if given, else the numbers or dates in the column names, else equidistant on [0, 1],
    with a note unless `quiet`.
    """
    names = [str(name) for name in columns]
    if text == GRID_ROW:
        return check_increasing(grid_row, "The grid in the first row")
    if text is not None:
        points = parse_grid(text)
        if len(points) != len(names):
            raise OptionError(f"--grid has {len(points)} points, expected {len(names)}, one per output column.")
        return points
    from ovkgp.functional.point_names import grid_of_names

    points, source = grid_of_names(names, len(names))
    if source == "none" and len(names) > 1 and not quiet:
        print_note("The names of the outputs hold no grid, so points are equidistant on [0, 1]. Set them with --grid.")
    if source == "plane" and not quiet:
        print_note(
            "The names of the outputs hold two numbers, which are points of a plane. Set other points with --grid."
        )
    return points
