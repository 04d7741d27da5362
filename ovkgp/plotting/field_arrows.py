"""The arrows of a field: those of the model, of the truth, and of the data, of which one component may be missing."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgba
from matplotlib.lines import Line2D

from ovkgp.exceptions import InputError
from ovkgp.plotting.cuts import Data
from ovkgp.plotting.field_values import FieldValues
from ovkgp.plotting.style import INK, LINE, OTHER

FAINTEST = 0.12
"""The opacity of an arrow of which nothing is known."""


def opacity(values: FieldValues) -> np.ndarray:
    """1 / (1 + σ²/τ²) (m,), never less than 0.12, with τ the root mean square of the field: ½ where the model is as unsure as
    the field is strong.

    Example:
        >>> import numpy as np
        >>> from ovkgp.plotting.field_arrows import opacity
        >>> from ovkgp.plotting.field_values import FieldValues
        >>> opacity(FieldValues(np.array([[3.0, 4.0], [-3.0, 4.0]]), np.array([0.0, 5.0])))
        array([1. , 0.5])
    """
    typical = np.mean(np.sum(values.mean**2, axis=1))
    if typical == 0:
        return np.full(len(values.std), FAINTEST)
    return np.maximum(1 / (1 + values.std**2 / typical), FAINTEST)


def draw_arrows(axes: Axes, points: np.ndarray, values: FieldValues, scale: float) -> list[Line2D]:
    """The posterior mean (m, 2), each arrow as dark as it is sure; what stands for it in a legend."""
    colours = np.tile(to_rgba(LINE), (len(points), 1))
    colours[:, 3] = opacity(values)
    _quiver(axes, points, values.mean, scale, width=0.0045, headwidth=3.5, color=colours, zorder=3)
    longest = np.hypot(*values.mean.T).max()
    return [_sign(f"mean (longest: {longest:.3g})", color=LINE, linewidth=2.5)]


def true_vectors(points: np.ndarray, truth: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """The true field (m, 2) at points (m, 2), checked."""
    field = np.asarray(truth(points), dtype=np.float64)
    if field.shape != points.shape:
        raise InputError(f"truth must map points {points.shape} to vectors {points.shape}, got {field.shape}.")
    return field


def draw_truth(axes: Axes, points: np.ndarray, vectors: np.ndarray, scale: float) -> list[Line2D]:
    """The true field at the same points: thin outlines, which an arrow of the mean fills where the two agree."""
    _quiver(
        axes,
        points,
        vectors,
        scale,
        width=0.0065,
        headwidth=3.2,
        facecolor="none",
        edgecolor=INK,
        linewidth=0.5,
        zorder=4,
    )
    return [_sign("truth", color=INK, linewidth=0.5, marker=">", markerfacecolor="none", markeredgewidth=0.5)]


def draw_data(axes: Axes, data: Data, scale: float) -> list[Line2D]:
    """Observed vectors, with a dot at their foot; a square where only one component was observed."""
    seen = np.isfinite(data.Y)
    handles = []
    for rows, marker, name in ((seen.all(1), "o", "data"), (seen.sum(1) == 1, "s", "data, one component")):
        if rows.any():
            style = {"color": OTHER, "marker": marker, "markersize": 3.0, "markeredgewidth": 0.6}
            fill = {} if marker == "o" else {"markerfacecolor": "white"}
            axes.plot(*data.X[rows].T, linestyle="none", zorder=2.6, **style, **fill)
            arrows = np.nan_to_num(data.Y[rows])
            _quiver(axes, data.X[rows], arrows, scale, width=0.0028, color=OTHER, headwidth=4, zorder=2.5)
            handles.append(_sign(name, linewidth=1.2, **style, **fill))
    return handles


def _quiver(axes: Axes, points: np.ndarray, vectors: np.ndarray, scale: float, **style) -> None:
    axes.quiver(*points.T, *vectors.T, angles="xy", scale_units="xy", scale=scale, **style)


def _sign(name: str, **style) -> Line2D:
    return Line2D([], [], label=name, **style)
