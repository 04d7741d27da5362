"""Column names that contain the points of a grid: "depth_10", "depth_20", …, read as points and written for other grids."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ovkgp.exceptions import InputError
from ovkgp.functional.quadrature import as_array

NUMBER = re.compile(r"(?:(?<![A-Za-z0-9)\]])[+-])?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?")
"""A number in a name. A sign after a letter or digit is a hyphen: "y-1" holds 1, "y_-1" holds −1."""
DATE = re.compile(
    r"(?<![A-Za-z0-9])\d{4}(?:([-/])\d{2}\1\d{2}(?:[T ]\d{2}:\d{2}(?::\d{2}(?:\.\d+)?)?)?|-(?:0[1-9]|1[0-2]))(?![\d.])"
)
"""A date in a name, with or without the time of the day, or a month: 2024-01-31, 2024/01/31 06:00, 2024-01."""
DEFAULT_PREFIX = "y_"


class NameGrid(NamedTuple):
    """Points (m,) or (m, b) of the columns of a table, and where they are from: "names", "plane" or "none" (equidistant)."""

    points: np.ndarray
    source: str


def grid_of_names(names: Sequence | None, count: int) -> NameGrid:
    """Return the points of the m columns of a table of curves; equidistant on [0, 1] if names hold no numbers, or the same ones.

    Names are numbers, dates, or texts that contain one number or date each, such as "depth_10", "depth_20"; two numbers, such as
    "u_0_1", are points of a plane if they are all pairs of at least 2 × 2 numbers. Dates are days since 1970-01-01. Numbers in another
    pattern, and points that are not increasing, raise an error.
    """
    labels = [] if names is None else [str(name) for name in names]
    numbers = [NUMBER.findall(label) for label in labels]
    if not any(numbers) or (len(labels) > 1 and all(found == numbers[0] for found in numbers)):
        return NameGrid(np.linspace(0.0, 1.0, count), "none")
    known = parse_numbered_names(labels)
    if known is not None:
        falls = np.flatnonzero(np.diff(known.points) <= 0)
        if len(falls):
            a, b = labels[falls[0]], labels[falls[0] + 1]
            raise InputError(
                f"The points in the column names of a table of curves must be increasing, got {a!r} before {b!r}.",
                advice="Sort the columns or pass `grid`.",
                cli_advice="Order the columns in --outputs, or name their points with --grid.",
            )
        return NameGrid(known.points, "names")
    if (plane := parse_plane_names(labels)) is not None:
        return NameGrid(plane, "plane")
    raise InputError(
        f"The column names of a table of curves hold numbers but no grid, got {labels[:3]}.",
        advice="Pass `grid`.",
        cli_advice="Set the points with --grid.",
    )


class NumberedNames(NamedTuple):
    """Points (m,) of column names and the text before and after each."""

    points: np.ndarray
    prefix: str
    suffix: str


def parse_numbered_names(names: list[str]) -> NumberedNames | None:
    """Parse column names that differ in one number only, such as "T2 at 10 m", "T2 at 20 m", in their order; None if they do not."""
    names = [DATE.sub(_to_days, name) for name in names]
    values = _read_numbers(names)
    if values is None:
        return None
    varying = np.flatnonzero((values != values[0]).any(0)) if len(names) > 1 else np.array([values.shape[1] - 1])
    if len(varying) != 1:
        return None
    match = list(NUMBER.finditer(names[0]))[int(varying[0])]
    return NumberedNames(values[:, varying[0]], names[0][: match.start()], names[0][match.end() :])


def parse_plane_names(names: list[str]) -> np.ndarray | None:
    """Parse column names that differ in two numbers, such as "u_0_1", as points (m, 2).

    None if they do not, or if the points are not all pairs of at least 2 × 2 numbers.
    """
    values = _read_numbers([DATE.sub(_to_days, name) for name in names])
    if values is None:
        return None
    points = values[:, (values != values[0]).any(0)]
    if points.shape[1] != 2 or len(np.unique(points, axis=0)) < len(points):
        return None
    sizes = [len(np.unique(column)) for column in points.T]
    return points if min(sizes) > 1 and sizes[0] * sizes[1] == len(points) else None


def _read_numbers(names: list[str]) -> np.ndarray | None:
    """Return the numbers (m, k) in names with the same texts between them; None if texts differ or there are no numbers."""
    found = [NUMBER.findall(name) for name in names]
    texts = [NUMBER.split(name) for name in names]
    if not found or not found[0] or any(one != texts[0] for one in texts):
        return None
    values = np.array([[float(number) for number in one] for one in found])
    return values if np.isfinite(values).all() else None


def _to_days(match: re.Match) -> str:
    """Return a date as a number of days, unchanged if there is no such date."""
    try:
        return repr(float(as_array(np.datetime64(match[0].replace(" ", "T").replace("/", "-")), "date")))
    except ValueError:
        return match[0]


def name_points(names: list[str] | None, points: np.ndarray) -> list[str]:
    """Name points (m, b) of a grid in the style of the columns of the fit: "y_0.5", or "y_0.5_0.25" in two dimensions.

    The prefix is "y_" if there are no names, or if they do not contain one number each.
    """
    known = None if names is None else parse_numbered_names(names)
    prefix, suffix = (DEFAULT_PREFIX, "") if known is None else known[1:]
    for digits in (6, 10, 17):
        found = [prefix + "_".join(f"{value:.{digits}g}" for value in point) + suffix for point in points]
        if len(set(found)) == len(found):
            break
    return found
