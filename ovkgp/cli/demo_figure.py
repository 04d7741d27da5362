"""Figure of ``ovkgp demo``: ground truth (top) and posterior (bottom) of the current and of its two Helmholtz parts.

Each part is drawn over its scalar: arrows follow the gradient of the potential and the contours of the stream function.
Uses matplotlib's object interface on the Agg canvas: no global state, no window.
"""

from __future__ import annotations

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ovkgp import GPRegressor
from ovkgp.cli.demo_models import OceanData
from ovkgp.estimators.common.validation import as_inputs
from ovkgp.plotting.axes import ACCENT_COLOR, INK_COLOR, LINE_COLOR
from ovkgp.plotting.fields import LIGHT_GRAYS, compute_opacity, make_grid, predict_field, predict_scalar

NUM_ARROWS, NUM_SHADES = 18, 81  # number of arrows and of shaded points along the longer side
ARROW_SCALE = 0.11  # scale of all arrows, in m/s per km: neighbors hardly overlap
SIGNED_COLORS = ListedColormap(colormaps["RdBu_r"](np.linspace(0.2, 0.8, 256)), "light red and blue")
"""Diverging colors without the darkest shades, which would hide the arrows; contours below zero are also dashed."""
COLORBAR_OPTIONS = {"location": "bottom", "shrink": 0.75, "aspect": 40}
PARTS = (  # titles and scalars of the Helmholtz parts
    ("curl-free part over its potential", "potential"),
    ("divergence-free part over its stream function", "stream_function"),
)


def currents_figure(ocean: OceanData, name: str, model: GPRegressor, helmholtz: GPRegressor) -> Figure:
    """Draw six panels: ground truth and posterior of the current, of its curl-free and of its divergence-free part.

    `name` describes `model`; the parts are those of the model `helmholtz`, which may be `model`. Cost: predictions at 4000
    points.
    """
    figure = Figure(figsize=(12.0, 5.9), layout="constrained")
    FigureCanvasAgg(figure)
    above, below = figure.subplots(2, 3, sharex=True, sharey=True)
    _draw_truth(above[0], ocean)
    _draw_posterior(below[0], ocean, model)
    owner = "" if helmholtz is model else " of the Helmholtz model"
    for column, (title, scalar) in enumerate(PARTS, start=1):
        _draw_part(above[column], below[column], ocean, scalar, helmholtz, owner)
        above[column].set_title(title, fontsize="medium")
    for axes in (*above, *below):
        axes.set(xlim=ocean.truth.extent[:2], ylim=ocean.truth.extent[2:], aspect="equal")
    for axes in below:
        axes.set_xlabel("east (km)")
    _label_row(above[0], "ground truth")
    _label_row(below[0], name)
    handles, labels = above[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=2, frameon=False, fontsize="small")
    return figure


def _label_row(axes: Axes, name: str) -> None:
    axes.set_ylabel("north (km)")
    position = {"xy": (-0.16, 0.5), "xycoords": "axes fraction", "ha": "right", "va": "center"}
    axes.annotate(name, **position, rotation=90, fontweight="bold")


def _draw_truth(axes: Axes, ocean: OceanData) -> None:
    points = _arrow_points(ocean)
    _draw_arrows(axes, points, ocean.truth(points), INK_COLOR)
    _draw_drifters(axes, ocean)
    axes.set_title("current", fontsize="medium")


def _draw_posterior(axes: Axes, ocean: OceanData, model: GPRegressor) -> None:
    shaded, shape = _shaded_points(ocean)
    std = predict_field(model, shaded).std.reshape(shape)
    drawn = axes.imshow(
        std, LIGHT_GRAYS, extent=ocean.truth.extent, origin="lower", interpolation="bilinear", vmin=0.0, vmax=std.max()
    )
    points = _arrow_points(ocean)
    values = predict_field(model, points)
    _draw_arrows(axes, points, values.mean, LINE_COLOR, compute_opacity(values))
    _draw_drifters(axes, ocean)
    axes.figure.colorbar(drawn, ax=axes, label="standard deviation of the current (m/s)", **COLORBAR_OPTIONS)


def _draw_part(above: Axes, below: Axes, ocean: OceanData, scalar: str, model: GPRegressor, owner: str) -> None:
    """Draw both with the same levels; a scalar is determined up to a constant, and its mean is subtracted."""
    truth, key = (
        (ocean.truth.upwelling, "curl_free") if scalar == "potential" else (ocean.truth.eddies, "divergence_free")
    )
    (shaded, shape), points = _shaded_points(ocean), _arrow_points(ocean)
    true, found = truth.potential(shaded), predict_scalar(model, shaded, scalar, ocean.points.mean(0))
    true, found = true - true.mean(), found - found.mean()
    largest = max(abs(true).max(), abs(found).max())
    levels = MaxNLocator(nbins=14, symmetric=True).tick_values(-largest, largest)
    inferred = model.components(as_inputs(model, points))[key]
    where = shaded.reshape(*shape, 2)
    _draw_contours(above, where, true, levels)
    drawn = _draw_contours(below, where, found, levels)
    _draw_arrows(above, points, truth(points), INK_COLOR)
    _draw_arrows(below, points, inferred, LINE_COLOR)
    label = f"{scalar.replace('_', ' ')}{owner} (10³ m²/s)"
    below.figure.colorbar(drawn, ax=below, label=label, ticks=MaxNLocator(6), **COLORBAR_OPTIONS)


def _draw_contours(axes: Axes, where: np.ndarray, values: np.ndarray, levels: np.ndarray):
    points, values = (where[..., 0], where[..., 1]), values.reshape(where.shape[:2])
    drawn = axes.contourf(*points, values, levels, cmap=SIGNED_COLORS)
    axes.contour(*points, values, levels, colors="0.4", linewidths=0.5)  # negative ones are dashed
    return drawn


def _draw_arrows(axes: Axes, points: np.ndarray, vectors: np.ndarray, color: str, alpha=None) -> None:
    """Draw arrows of one scale; uncertain ones have an opacity `alpha` (m,) below 1."""
    head = {"headwidth": 3.5, "headlength": 4.0, "headaxislength": 3.6}
    scale = {"angles": "xy", "scale_units": "xy", "scale": ARROW_SCALE}
    axes.quiver(*points.T, *vectors.T, width=0.0045, color=color, alpha=alpha, zorder=3, **head, **scale)


def _draw_drifters(axes: Axes, ocean: OceanData) -> None:
    """Draw a dot where both components were measured, a white square where one was."""
    X, observed = ocean.X.to_numpy(), np.isfinite(ocean.Y.to_numpy()).sum(1)
    shared = {"linestyle": "none", "color": ACCENT_COLOR, "zorder": 2.5}
    axes.plot(*X[observed == 2].T, marker="o", markersize=3.2, label="both components measured", **shared)
    axes.plot(
        *X[observed == 1].T,
        marker="s",
        markersize=3.0,
        markerfacecolor="white",
        markeredgewidth=0.8,
        label="one component measured",
        **shared,
    )


def _arrow_points(ocean: OceanData) -> np.ndarray:
    return make_grid(ocean.truth.extent, NUM_ARROWS, inside=True)[0]


def _shaded_points(ocean: OceanData) -> tuple[np.ndarray, tuple[int, int]]:
    return make_grid(ocean.truth.extent, NUM_SHADES, inside=False)
