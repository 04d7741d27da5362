"""What lies behind the arrows of a field: how sure the model is, or the scalar that the field comes from."""

from __future__ import annotations

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.ticker import MaxNLocator

from ovkgp.plotting.field_values import SCALARS, field_values, scalar_behind
from ovkgp.plotting.panels import colour_bar

SHADES = ("std", *SCALARS)
SHADED_POINTS = 50
"""Points of the background along the longer side."""
GREYS = ListedColormap([(level, level, level) for level in np.linspace(1.0, 0.55, 256)], "light greys")
"""From white, where the model is sure, to a grey on which black is still seen."""
LIGHT_CIVIDIS = ListedColormap(colormaps["cividis"](np.linspace(0.5, 1.0, 128)), "light cividis")
"""The lighter half of a perceptually uniform map, so that dark arrows stay visible."""
WORDS = {
    "std": "standard deviation of the field",
    "potential": "potential",
    "stream_function": "stream function",
}


def grid(box: tuple[float, float, float, float], number: int, *, inside: bool) -> tuple[np.ndarray, tuple[int, int]]:
    """Points (m, 2) of a grid with square cells, row by row from the bottom, and its shape (rows, columns).

    Args:
        box: left, right, bottom, top.
        number: of points along the longer side.
        inside: whether points are the middles of cells, or reach the edge.
    """
    width, height = box[1] - box[0], box[3] - box[2]
    counts = [max(2, round(number * side / max(width, height))) for side in (width, height)]
    axes = [_places(*ends, count, inside) for ends, count in zip((box[:2], box[2:]), counts, strict=True)]
    first, second = np.meshgrid(*axes)
    return np.column_stack([first.ravel(), second.ravel()]), first.shape


def _places(low: float, high: float, count: int, inside: bool) -> np.ndarray:
    half = (high - low) / count / 2 if inside else 0.0
    return np.linspace(low + half, high - half, count)


def shade_values(estimator, box: tuple[float, float, float, float], shade: str) -> np.ndarray:
    """The background (rows, columns) of a field on the grid of a box (left, right, bottom, top), from the bottom."""
    points, shape = grid(box, SHADED_POINTS, inside=False)
    if shade == "std":
        return field_values(estimator, points).std.reshape(shape)
    middle = np.array([(box[0] + box[1]) / 2, (box[2] + box[3]) / 2])
    return scalar_behind(estimator, points, shade, middle).reshape(shape)


def draw_shade(axes: Axes, values: np.ndarray, box: tuple[float, float, float, float], shade: str) -> None:
    """These values within their box, with their scale in words: greys for "std", contours for the others."""
    if shade == "std":
        highest = values.max() or 1.0
        options = {"extent": box, "origin": "lower", "interpolation": "bilinear"}
        drawn = axes.imshow(values, GREYS, vmin=0.0, vmax=highest, **options)
    else:
        levels = MaxNLocator(nbins=12).tick_values(values.min(), values.max())
        where = [np.linspace(*ends, count) for ends, count in zip((box[:2], box[2:]), values.shape[::-1], strict=True)]
        drawn = axes.contourf(*where, values, levels, cmap=LIGHT_CIVIDIS)
        axes.contour(*where, values, levels, colors="0.35", linewidths=0.5, linestyles="solid")
    colour_bar(axes, drawn, WORDS[shade])
