"""The picture of ``ovkgp demo``: the truth above, below it what the drifters tell; the current, and the two parts it is made of.

Every part lies over the scalar it comes from: its arrows climb the potential, and go round the hills of the stream function.
Drawn through matplotlib's object interface on the Agg canvas: no global state, no window.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ovkgp import GPRegressor
from ovkgp.cli.demo_models import Sea
from ovkgp.plotting.axes import INK, LINE, OTHER
from ovkgp.plotting.fields import GREYS, field_values, grid, opacity, scalar_behind

NUM_ARROWS, NUM_SHADES = 18, 81
"""Points of arrows and of shades along the longer side."""
METRES_A_SECOND_A_KM = 0.11
"""The scale of all arrows: so long is 1 m/s that neighbours hardly meet."""
SIGNED = ListedColormap(colormaps["RdBu_r"](np.linspace(0.2, 0.8, 256)), "light red and blue")
"""Of numbers of either sign, without the darkest shades, on which arrows would be lost; contours below zero are dashed too."""
BAR = {"location": "bottom", "shrink": 0.75, "aspect": 40}


class Part(NamedTuple):
    """A Helmholtz part: its title, the scalar behind it, its place in a posterior, and where the truth has both."""

    title: str
    scalar: str
    component: str
    true_scalar: Callable
    true_part: Callable


def currents_figure(sea: Sea, name: str, model: GPRegressor, helmholtz: GPRegressor) -> Figure:
    """Six panels: truth and posterior of the current, of its curl-free and of its divergence-free part.

    Args:
        sea: data and truth.
        name: of the model, in words.
        model: the one to show.
        helmholtz: a Helmholtz model, of which the parts are shown; `model` itself where it is one.

    Cost: a prediction at 4000 points.
    """
    figure = Figure(figsize=(12.0, 5.9), layout="constrained")
    FigureCanvasAgg(figure)
    above, below = figure.subplots(2, 3, sharex=True, sharey=True)
    _draw_truth(above[0], sea)
    _draw_posterior(below[0], sea, model)
    whose = "" if helmholtz is model else " of the Helmholtz model"
    for column, part in enumerate(_parts(sea), start=1):
        _draw_part(above[column], below[column], sea, part, helmholtz, whose)
    for axes in (*above, *below):
        axes.set(xlim=sea.truth.extent[:2], ylim=sea.truth.extent[2:], aspect="equal")
    for axes in below:
        axes.set_xlabel("east (km)")
    _name_row(above[0], "truth")
    _name_row(below[0], name)
    handles, labels = above[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=2, frameon=False, fontsize="small")
    return figure


def _name_row(axes: Axes, name: str) -> None:
    axes.set_ylabel("north (km)")
    place = {"xy": (-0.16, 0.5), "xycoords": "axes fraction", "ha": "right", "va": "center"}
    axes.annotate(name, **place, rotation=90, fontweight="bold")


def _parts(sea: Sea) -> tuple[Part, Part]:
    truth = sea.truth
    return (
        Part("curl-free part over its potential", "potential", "curl", truth.potential, truth.upwelling),
        Part(
            "divergence-free part over its stream function",
            "stream_function",
            "div",
            truth.stream_function,
            truth.eddies,
        ),
    )


def _draw_truth(axes: Axes, sea: Sea) -> None:
    points = _arrow_points(sea)
    _draw_arrows(axes, points, sea.truth(points), INK)
    _draw_drifters(axes, sea)
    axes.set_title("current", fontsize="medium")


def _draw_posterior(axes: Axes, sea: Sea, model: GPRegressor) -> None:
    shaded, shape = _shaded_points(sea)
    std = field_values(model, shaded).std.reshape(shape)
    drawn = axes.imshow(
        std, GREYS, extent=sea.truth.extent, origin="lower", interpolation="bilinear", vmin=0.0, vmax=std.max()
    )
    points = _arrow_points(sea)
    values = field_values(model, points)
    _draw_arrows(axes, points, values.mean, LINE, opacity(values))
    _draw_drifters(axes, sea)
    axes.figure.colorbar(drawn, ax=axes, label="standard deviation of the current (m/s)", **BAR)


def _draw_part(above: Axes, below: Axes, sea: Sea, part: Part, model: GPRegressor, whose: str) -> None:
    """Both with the same levels; a scalar is known up to a constant, and is shown about its mean."""
    (shaded, shape), points = _shaded_points(sea), _arrow_points(sea)
    true, found = part.true_scalar(shaded), scalar_behind(model, shaded, part.scalar, sea.points.mean(0))
    true, found = true - true.mean(), found - found.mean()
    largest = max(abs(true).max(), abs(found).max())
    levels = MaxNLocator(nbins=14, symmetric=True).tick_values(-largest, largest)
    posterior = model.posterior_.components()[part.component]
    inferred = posterior.predict(model.scaling_.inputs(points), "none").mean.numpy() * model.scaling_.output_scale
    where = shaded.reshape(*shape, 2)
    _draw_contours(above, where, true, levels)
    drawn = _draw_contours(below, where, found, levels)
    _draw_arrows(above, points, part.true_part(points), INK)
    _draw_arrows(below, points, inferred, LINE)
    above.set_title(part.title, fontsize="medium")
    label = f"{part.scalar.replace('_', ' ')}{whose} (10³ m²/s)"
    below.figure.colorbar(drawn, ax=below, label=label, ticks=MaxNLocator(6), **BAR)


def _draw_contours(axes: Axes, where: np.ndarray, values: np.ndarray, levels: np.ndarray):
    points, values = (where[..., 0], where[..., 1]), values.reshape(where.shape[:2])
    drawn = axes.contourf(*points, values, levels, cmap=SIGNED)
    axes.contour(*points, values, levels, colors="0.4", linewidths=0.5)  # those below zero are dashed
    return drawn


def _draw_arrows(axes: Axes, points: np.ndarray, vectors: np.ndarray, colour: str, sure=None) -> None:
    """Arrows of one scale; those that the model is not sure of, `sure` (m,) below 1, are faint."""
    head = {"headwidth": 3.5, "headlength": 4.0, "headaxislength": 3.6}
    scale = {"angles": "xy", "scale_units": "xy", "scale": METRES_A_SECOND_A_KM}
    axes.quiver(*points.T, *vectors.T, width=0.0045, color=colour, alpha=sure, zorder=3, **head, **scale)


def _draw_drifters(axes: Axes, sea: Sea) -> None:
    """A dot where both components were measured, a white square where one was."""
    X, observed = sea.X.to_numpy(), np.isfinite(sea.Y.to_numpy()).sum(1)
    shared = {"linestyle": "none", "color": OTHER, "zorder": 2.5}
    axes.plot(*X[observed == 2].T, marker="o", markersize=3.2, label="a drifter measured both components", **shared)
    axes.plot(
        *X[observed == 1].T,
        marker="s",
        markersize=3.0,
        markerfacecolor="white",
        markeredgewidth=0.8,
        label="one component",
        **shared,
    )


def _arrow_points(sea: Sea) -> np.ndarray:
    return grid(sea.truth.extent, NUM_ARROWS, inside=True)[0]


def _shaded_points(sea: Sea) -> tuple[np.ndarray, tuple[int, int]]:
    return grid(sea.truth.extent, NUM_SHADES, inside=False)
