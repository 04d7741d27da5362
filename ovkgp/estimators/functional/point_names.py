"""Column names that contain the points of a grid: "depth_10", "depth_20", …, read as points and written for other grids."""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np

NUMBER = re.compile(r"(?:(?<![A-Za-z0-9)\]])[+-])?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?")
"""A number in a name. A sign after a letter or digit is a hyphen: "y-1" holds 1, "y_-1" holds −1."""
DEFAULT_PREFIX = "y_"


class NumberedNames(NamedTuple):
    """Points (m,) of column names and the text before and after each."""

    points: np.ndarray
    prefix: str
    suffix: str


def parse_numbered_names(names: list[str]) -> NumberedNames | None:
    """Parse column names that differ in one number only; None if they do not.

    Parameters
    ----------
    names : list of str
        Names such as "y_0.1", "y_0.2" or "T2 at 10 m", "T2 at 20 m".

    Returns
    -------
    NumberedNames or None
        Points in the order of the names, which need not be increasing.
    """
    values = _read_numbers(names)
    if values is None:
        return None
    varying = np.flatnonzero((values != values[0]).any(0)) if len(names) > 1 else np.array([values.shape[1] - 1])
    if len(varying) != 1:
        return None
    match = list(NUMBER.finditer(names[0]))[int(varying[0])]
    return NumberedNames(values[:, varying[0]], names[0][: match.start()], names[0][match.end() :])


def parse_plane_names(names: list[str]) -> np.ndarray | None:
    """Parse column names that differ in two numbers, such as "u_0_1", as distinct points (m, 2); None if they do not."""
    values = _read_numbers(names)
    if values is None:
        return None
    points = values[:, (values != values[0]).any(0)]
    return points if points.shape[1] == 2 and len(np.unique(points, axis=0)) == len(points) else None


def _read_numbers(names: list[str]) -> np.ndarray | None:
    """Return the numbers (m, k) in names with the same texts between them; None if texts differ or there are no numbers."""
    found = [NUMBER.findall(name) for name in names]
    texts = [NUMBER.split(name) for name in names]
    if not found or not found[0] or any(one != texts[0] for one in texts):
        return None
    values = np.array([[float(number) for number in one] for one in found])
    return values if np.isfinite(values).all() else None


def name_points(names: list[str] | None, points: np.ndarray) -> list[str]:
    """Name points of a grid in the style of the columns of the fit.

    Parameters
    ----------
    names : list of str or None
        Columns of the fit. If None, or if they do not contain one number each, names begin with "y_".
    points : ndarray of shape (m, b)
        Points of the grid.

    Returns
    -------
    list of str
        One name per point: "y_0.5", or "y_0.5_0.25" in two dimensions.
    """
    known = None if names is None else parse_numbered_names(names)
    prefix, suffix = (DEFAULT_PREFIX, "") if known is None else known[1:]
    for digits in (6, 10, 17):
        found = [prefix + "_".join(f"{value:.{digits}g}" for value in point) + suffix for point in points]
        if len(set(found)) == len(found):
            break
    return found
