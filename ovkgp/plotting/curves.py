"""Figures of curves, with means and bands, of the functions of a dictionary, and of losses of curves."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from matplotlib.axes import Axes

from ovkgp.checks import check_integer, check_one_of, check_positive, check_type
from ovkgp.exceptions import InputError, OptionError
from ovkgp.functional.conversion import as_functional_data
from ovkgp.functional.data import FunctionalData
from ovkgp.functional.dictionary import Dictionary
from ovkgp.functional.quadrature import as_array
from ovkgp.losses import CurveHuber, CurveInsensitive, TaskMeasure
from ovkgp.plotting.axes import (
    BAND_COLOR,
    INK_COLOR,
    LINE_COLOR,
    PANEL_INCHES,
    Panels,
    add_colorbar,
    format_label,
    get_line_style,
)

MAX_PANELS = 9  # number of curves or surfaces with a panel each
MAX_LABELED_FUNCTIONS = 6  # up to this number, functions of a dictionary have their own style and a legend
NUM_POINTS = 400  # number of points of a plotted function
NUM_POINTS_PER_DIMENSION = 60  # of a plotted surface


def plot_curves(
    data,
    mean="estimate",
    lower=None,
    upper=None,
    *,
    grid=None,
    level: float | None = None,
    max_curves: int = 100,
    ax: Axes | None = None,
) -> Axes | np.ndarray:
    """Plot curves with their mean and a band, or each curve with its prediction.

    Parameters
    ----------
    data : FunctionalData or array-like of shape (n, m)
        Curves in one dimension, which may have gaps, different points and channels.
    mean : {"estimate", None} or array-like of shape (k,), (k, q) or (n, k), default="estimate"
        "estimate": the mean curve of the data. None: no mean. A vector, or one column per channel, is drawn over all curves; one row per curve
        gives a panel for each curve, up to 9.
    lower, upper : array-like of the shape of `mean` or None, default=None
        Ends of a band. Both or none.
    grid : array-like of shape (k,) or None, default=None
        Points of mean and band. If None, those of the data.
    level : float or None, default=None
        Level of the band, such as 0.9, for the legend.
    max_curves : int, default=100
        Maximum number of curves to draw, evenly spaced among all.
    ax : Axes or array of Axes or None, default=None
        Axes to draw on, one per channel or curve. If None, a new figure is made.

    Returns
    -------
    Axes or ndarray of Axes
        The Axes, one per channel or curve.

    Examples
    --------
    >>> import numpy as np
    >>> from matplotlib.figure import Figure
    >>> from ovkgp.plotting import plot_curves
    >>> t = np.linspace(0, 1, 30)
    >>> ax = plot_curves(np.sin(6 * t) + np.zeros((3, 1)), ax=Figure().subplots())
    >>> len(ax.get_lines())
    4
    """
    data = as_functional_data(data)
    if data.num_dims > 1:
        raise InputError(f"data must be in one dimension, got {data.num_dims}.")
    if (lower is None) != (upper is None):
        raise InputError("lower and upper must be given together.")
    points = data.union_grid.ravel() if grid is None else as_array(grid, "grid").ravel()
    if mean is not None and np.ndim(mean) == 0:
        if mean != "estimate":
            raise OptionError(f'mean must be "estimate", None or an array, got {mean!r}.')
        mean = data.fit_mean()(points)
    tables = [None if a is None else as_array(a, n) for a, n in ((mean, "mean"), (lower, "lower"), (upper, "upper"))]
    shapes = {table.shape for table in tables if table is not None}
    if len(shapes) > 1:
        raise InputError(f"mean, lower and upper must have the same shape, got {sorted(shapes)}.")
    shape = shapes.pop() if shapes else ()
    if shape == (len(data), len(points)) and shape != (len(points), data.num_channels):
        return _plot_predictions(data, points, tables, level, ax)
    if shape and shape not in ((len(points),), (len(points), data.num_channels)):
        raise InputError(
            f"mean has shape {shape}, expected ({len(points)},), ({len(points)}, {data.num_channels}) or ({len(data)}, {len(points)})."
        )
    panels = Panels.create(ax, data.num_channels, "one for each channel")
    tables = [None if table is None else table.reshape(len(points), -1) for table in tables]
    for c, axes in enumerate(panels.axes):
        _draw_data(axes, data, c, check_integer("max_curves", max_curves))
        _draw_band(axes, points, *(None if t is None else t[:, min(c, t.shape[1] - 1)] for t in tables), level)
        axes.set(xlabel="t", ylabel="y" if data.channel_names is None else format_label(data.channel_names[c]))
    add_opaque_legend(panels)
    return panels.result


def add_opaque_legend(panels: Panels) -> None:
    """Add a legend in which lines of faint curves are opaque."""
    panels.legend()
    first = panels.axes[0]
    legend = first.figure.legends[-1] if panels.is_new else first.get_legend()
    for line in legend.get_lines():
        line.set_alpha(1.0)


def _plot_predictions(data: FunctionalData, points: np.ndarray, tables: list, level, ax) -> Axes | np.ndarray:
    """Draw one panel per curve: its observations, its predicted curve and its band."""
    if data.num_channels > 1:
        raise InputError("data must have one channel if each curve has its prediction. Select a channel.")
    count = min(len(data), MAX_PANELS)
    panels = Panels.create(ax, count, "one for each curve", size=PANEL_INCHES)
    for i, (axes, (at, values)) in enumerate(zip(panels.axes, data[:count].curves(), strict=True)):
        _draw_band(axes, points, *(None if t is None else t[i] for t in tables), level, "prediction")
        axes.plot(at[:, 0], values[:, 0], ".", color=INK_COLOR, markersize=4, label="observations")
        axes.set(xlabel="t", ylabel="y", title=f"curve {i}")
    panels.legend()
    return panels.result


def _draw_data(axes: Axes, data: FunctionalData, channel: int, max_curves: int) -> None:
    """Draw curves as thin lines, with markers where they have few points; gaps of a common grid interrupt a line."""
    rows = np.unique(np.linspace(0, len(data) - 1, min(len(data), max_curves)).astype(int))
    marker = "." if np.median(data.counts) <= 12 else ""
    opacity = max(0.15, min(1.0, 8 / len(rows)))
    for i in rows:
        values, points = data.values[i], data.grid[i] if data.is_ragged else data.grid
        values = values if values.ndim == 1 else values[:, channel]
        label = "curves" if i == rows[0] else None
        axes.plot(points.ravel(), values, color=INK_COLOR, alpha=opacity, linewidth=0.8, marker=marker, label=label)


def _draw_band(axes: Axes, points, mean, lower, upper, level: float | None, name: str = "mean") -> None:
    """Draw a band below and a mean line above the curves."""
    if lower is not None:
        text = "band" if level is None else f"{100 * level:g} % band"
        axes.fill_between(points, lower, upper, color=BAND_COLOR, linewidth=0, zorder=1, label=text, alpha=0.9)
    if mean is not None:
        axes.plot(points, mean, color=LINE_COLOR, linewidth=2, zorder=5, label=name)


def plot_basis(dictionary: Dictionary, indices=None, *, order: int = 0, ax: Axes | None = None) -> Axes | np.ndarray:
    """Plot the functions of a dictionary, or their derivatives.

    Parameters
    ----------
    dictionary : Dictionary
        Functions on a domain in one or two dimensions.
    indices : array-like of int or None, default=None
        Functions to draw. If None, all in one dimension and the first 9 in two.
    order : int, default=0
        Order of the derivative, in one dimension.
    ax : Axes or array of Axes or None, default=None
        Axes to draw on: one in one dimension, one per function in two. If None, a new figure is made.

    Returns
    -------
    Axes or ndarray of Axes
        The Axes.

    Examples
    --------
    >>> from matplotlib.figure import Figure
    >>> from ovkgp.functional import Fourier
    >>> from ovkgp.plotting import plot_basis
    >>> len(plot_basis(Fourier(3), ax=Figure().subplots()).get_lines())
    5
    """
    if check_type("dictionary", dictionary, Dictionary, "a Dictionary").num_dims > 2:
        raise InputError(f"dictionary must be in one or two dimensions, got {dictionary.num_dims}.")
    limit = dictionary.num_functions if dictionary.num_dims == 1 else MAX_PANELS
    chosen = np.arange(dictionary.num_functions)[:limit] if indices is None else np.atleast_1d(np.asarray(indices))
    dictionary.subset(chosen)  # raises for invalid indices
    return (
        _plot_functions(dictionary, chosen, order, ax)
        if dictionary.num_dims == 1
        else _plot_surfaces(dictionary, chosen, ax)
    )


def draw_functions(points: np.ndarray, values: np.ndarray, names=None, ax=None) -> Axes | np.ndarray:
    """Draw functions with values (m, k) at points (m, b), b ≤ 2: lines in one Axes, or maps in up to 9 panels."""
    names = range(values.shape[1]) if names is None else names
    if points.shape[1] == 1:
        panels = Panels.create(ax, 1, "one for all functions")
        _draw_lines(panels.axes[0], points[:, 0], values, names)
        panels.axes[0].set(xlabel="t", ylabel="φ(t)")
        panels.legend()
        return panels.result
    count = min(values.shape[1], MAX_PANELS)
    panels = Panels.create(ax, count, "one for each function", size=PANEL_INCHES)
    limit = np.abs(values).max()
    options = {"cmap": "RdBu_r", "vmin": -limit, "vmax": limit}
    x, y = (np.unique(points[:, k]) for k in (0, 1))
    for i, axes in enumerate(panels.axes):
        if len(x) * len(y) == len(points):
            table = np.empty((len(y), len(x)))
            table[np.searchsorted(y, points[:, 1]), np.searchsorted(x, points[:, 0])] = values[:, i]
            image = axes.pcolormesh(x, y, table, shading="nearest", **options)
        else:
            image = axes.scatter(*points.T, c=values[:, i], s=8, **options)
        axes.set(xlabel="$t_1$", ylabel="$t_2$", title=f"$\\phi_{{{names[i]}}}$")
        add_colorbar(axes, image, "φ(t)" if i == count - 1 else "")
    return panels.result


def _draw_lines(axes: Axes, t: np.ndarray, rows: np.ndarray, names) -> None:
    """Draw functions with values (m, k) along t (m,), with a legend if they are few, else in shades."""
    few = rows.shape[1] <= MAX_LABELED_FUNCTIONS
    shades = np.linspace(0.15, 0.85, rows.shape[1])
    for i, index in enumerate(names):
        style = get_line_style(i) | {"marker": ""} if few else {"color": (0.03, shades[i] * 0.8, 0.9 - shades[i] * 0.5)}
        axes.plot(t, rows[:, i], linewidth=1.4 if few else 0.9, label=f"$\\phi_{{{index}}}$" if few else None, **style)


def _plot_functions(dictionary: Dictionary, chosen: np.ndarray, order: int, ax) -> Axes:
    panels = Panels.create(ax, 1, "one for all functions")
    (axes,) = panels.axes
    t = np.linspace(*dictionary.domain[0], NUM_POINTS)
    rows = (dictionary(t) if order == 0 else dictionary.derivative(t, order))[:, chosen]
    _draw_lines(axes, t, rows, chosen)
    axes.set(xlabel="t", ylabel="φ(t)" if order == 0 else f"derivative of order {order} of φ(t)")
    panels.legend()
    return axes


def _plot_surfaces(dictionary: Dictionary, chosen: np.ndarray, ax) -> Axes | np.ndarray:
    panels = Panels.create(ax, len(chosen), "one for each function", size=PANEL_INCHES)
    x, y = (np.linspace(*ends, NUM_POINTS_PER_DIMENSION) for ends in dictionary.domain)
    points = np.stack(np.meshgrid(x, y, indexing="ij"), -1).reshape(-1, 2)
    values = dictionary(points)[:, chosen].reshape(len(x), len(y), -1)
    limit = np.abs(values).max()
    for i, axes in enumerate(panels.axes):
        image = axes.pcolormesh(x, y, values[..., i].T, cmap="RdBu_r", vmin=-limit, vmax=limit, shading="gouraud")
        axes.set(xlabel="$t_1$", ylabel="$t_2$", title=f"$\\phi_{{{chosen[i]}}}$")
    add_colorbar(panels.axes[-1], image, "φ(t)")
    return panels.result


def plot_loss_shapes(
    loss: str = "huber",
    orders: Sequence[float] = (1, 1.5, 2, 4, math.inf),
    parameter: float = 1.0,
    *,
    limit: float = 3.0,
    ax=None,
) -> Axes | np.ndarray:
    """Plot level sets of a robust or sparse loss of curves with two points, for norms of several orders.

    Parameters
    ----------
    loss : {"huber", "insensitive"}, default="huber"
        `CurveHuber` or `CurveInsensitive`.
    orders : sequence of float, default=(1, 1.5, 2, 4, math.inf)
        Orders p of the norm, one panel each.
    parameter : float, default=1.0
        Bound κ of "huber", or radius ε of "insensitive".
    limit : float, default=3.0
        Largest error shown.
    ax : Axes or array of Axes or None, default=None
        Axes to draw on, one per order. If None, a new figure is made.

    Returns
    -------
    Axes or ndarray of Axes
        The Axes.

    References
    ----------
    BO-121

    Examples
    --------
    >>> from matplotlib.figure import Figure
    >>> from ovkgp.plotting import plot_loss_shapes
    >>> plot_loss_shapes("insensitive", [2], ax=Figure().subplots()).get_title()
    'p = 2'
    """
    check_one_of("loss", loss, ("huber", "insensitive"))
    limit, orders = check_positive("limit", limit), list(orders)
    if not orders:
        raise OptionError("orders must have at least one number, got none.")
    make = CurveHuber if loss == "huber" else CurveInsensitive
    side = np.linspace(-limit, limit, NUM_POINTS_PER_DIMENSION)
    errors = torch.from_numpy(np.stack(np.meshgrid(side, side), -1).reshape(-1, 2))
    zero, measure = errors.new_zeros(len(errors), 1), TaskMeasure([0.0, 1.0])
    values = [make(parameter, p, measure).value(errors, zero).reshape(len(side), -1).numpy() for p in orders]
    levels = np.linspace(0, max(map(np.max, values)), 13)[1:]
    panels = Panels.create(ax, len(orders), size=(PANEL_INCHES[1], PANEL_INCHES[1]))
    for axes, p, table in zip(panels.axes, orders, values, strict=True):
        drawn = axes.contour(side, side, table, levels=levels, colors=LINE_COLOR, linewidths=0.8)
        drawn.set_alpha(0.9)
        axes.set(
            title=f"p = {'∞' if p == math.inf else format(p, 'g')}",
            xlabel="error at point 1",
            ylabel="error at point 2",
            aspect="equal",
        )
    return panels.result
