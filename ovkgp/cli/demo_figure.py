"""The picture of ``ovkgp demo``: two fields and a convergence plot.

Drawn through matplotlib's object interface on the Agg canvas: no global state, no window. The fields are told
apart by their backgrounds and the curves by markers and dashes, so the picture survives a black-and-white printer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

if TYPE_CHECKING:
    from ovkgp.cli.demo import FieldPicture

ARROW_STEP = 4
CURVES = (("o", "-", "black"), ("s", "--", "tab:blue"), ("^", "-.", "tab:red"))


def save_figure(
    path: Path,
    curl_free: FieldPicture,
    divergence_free: FieldPicture,
    sizes: Sequence[int],
    errors: Mapping[str, np.ndarray],
) -> None:
    """Write the three panels to `path` as a PNG: the whole picture, or none where the work is interrupted."""
    figure = Figure(figsize=(13.6, 4.3), layout="constrained")
    FigureCanvasAgg(figure)
    figure.get_layout_engine().set(wspace=0.06)  # the label of a colour bar is no neighbour of the next panel's
    left, middle, right = figure.subplots(1, 3)
    draw_field(left, curl_free, "Curl-free field over its potential", "potential")
    draw_field(middle, divergence_free, "Divergence-free field over its stream function", "stream function")
    draw_errors(right, sizes, errors)
    unfinished = path.with_name(f"{path.name}.part")
    try:
        figure.savefig(unfinished, dpi=100, format="png")
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def draw_field(axes: Axes, field: FieldPicture, title: str, scalar: str) -> None:
    """Arrows over the contours of the scalar they come from, which is called `scalar` at the colour bar."""
    levels = MaxNLocator(nbins=12).tick_values(field.potential.min(), field.potential.max())
    # the dark half of the colours is left out so that black arrows stay visible
    shades = axes.contourf(
        field.axis, field.axis, field.potential, levels, cmap="Blues", vmin=levels[0], vmax=2 * levels[-1] - levels[0]
    )
    axes.contour(field.axis, field.axis, field.potential, levels, colors="0.45", linewidths=0.5, linestyles="solid")
    step = slice(ARROW_STEP // 2, None, ARROW_STEP)
    arrows = field.vectors[step, step]
    axes.quiver(field.axis[step], field.axis[step], arrows[..., 0], arrows[..., 1], width=0.006, color="black")
    axes.set_title(title, fontsize="medium")
    axes.set(xlabel="$x_1$", ylabel="$x_2$", aspect="equal")
    axes.figure.colorbar(shades, ax=axes, shrink=0.76, format="%g", label=scalar)


def draw_errors(axes: Axes, sizes: Sequence[int], errors: Mapping[str, np.ndarray]) -> None:
    """Relative sup error against the number of frequencies, with the D^(−1/2) guide."""
    for (name, values), (marker, dashes, colour) in zip(errors.items(), CURVES, strict=True):
        axes.loglog(sizes, values, marker=marker, linestyle=dashes, color=colour, markersize=5, label=name)
    top = 1.6 * max(values[0] for values in errors.values())
    guide = top * np.sqrt(sizes[0] / np.asarray(sizes, dtype=float))
    axes.loglog(sizes, guide, color="0.5", linestyle=":", label=r"slope $D^{-1/2}$")
    axes.set_title("Error of the random features", fontsize="medium")
    axes.set(xlabel="number of frequencies $D$", ylabel="relative sup error")
    axes.set_box_aspect(1)
    axes.grid(True, which="major", color="0.88")
    axes.legend(frameon=False)
