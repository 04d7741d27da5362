"""The axes of a plot: those that the caller gives, or a new figure with a panel for each output."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.transforms import ScaledTranslation, blended_transform_factory

from ovkgp.exceptions import InputError

PANEL = (4.4, 3.0)
"""Inches of a panel among several."""
ALONE = (5.6, 3.8)
"""Inches of the only panel."""
GAP, BAR = 0.1, 0.16
"""Inches between axes and their colour bar, and of its width."""
NAME = 1.85
"""Inches of an entry of a legend."""


@dataclass(frozen=True)
class Panels:
    """Some axes, and whether the figure is ours: then a legend has room outside."""

    axes: list[Axes]
    is_ours: bool

    @classmethod
    def of(cls, ax, count: int, what: str = "one for each output", columns: int | None = None, size=None) -> Panels:
        """The `count` axes given, or those of a new figure.

        Args:
            ax: None, an Axes, or an array or list of them.
            count: how many are needed.
            what: what they are for, in words.
            columns: of a new figure; up to three where None.
            size: of one panel, in inches.

        Raises:
            InputError: they are not so many, or not Axes at all.
        """
        if ax is None:
            return cls(_new_axes(count, columns or _columns(count), size or (ALONE if count == 1 else PANEL)), True)
        given = list(np.array(ax, dtype=object).ravel())
        if not all(isinstance(one, Axes) for one in given):
            raise InputError(f"ax must be matplotlib Axes, or an array of them, got {type(ax).__name__}.")
        if len(given) != count:
            raise InputError(
                f"ax has {len(given)} Axes, and {count} are needed, {what}: make them with plt.subplots, or leave ax out."
            )
        return cls(given, False)

    @property
    def answer(self) -> Axes | np.ndarray:
        """What a plot gives back: the Axes itself where there is one, else an array (count,) of them."""
        if len(self.axes) == 1:
            return self.axes[0]
        array = np.empty(len(self.axes), dtype=object)
        array[:] = self.axes
        return array

    def legend(self) -> None:
        """Name what the panels show, each thing once: above a figure of ours, inside the first of panels that were given."""
        named = {}
        for one in self.axes:
            named |= {
                text: handle for handle, text in zip(*one.get_legend_handles_labels(), strict=True) if text not in named
            }
        if not named:
            return
        if self.is_ours:
            figure = self.axes[0].figure
            columns = min(len(named), max(1, int(figure.get_figwidth() / NAME)))
            options = {"loc": "outside upper center", "ncols": columns, "frameon": False}
            figure.legend([*named.values()], [*named], **options)
        else:
            self.axes[0].legend([*named.values()], [*named], fontsize="small", framealpha=0.8)


def colour_bar(axes: Axes, drawn, text: str) -> None:
    """A scale beside the axes, as high as they are whatever their aspect, with its meaning in words."""
    beside = axes.figure.dpi_scale_trans + ScaledTranslation(1.0, 0.0, axes.transAxes)  # inches from the right edge
    inset = axes.inset_axes((GAP, 0.0, BAR, 1.0), transform=blended_transform_factory(beside, axes.transAxes))
    axes.figure.colorbar(drawn, cax=inset, label=text)


def _columns(count: int) -> int:
    """Of a grid that is wider than high; two by two for four."""
    return min(count, 3) if count != 4 else 2


def _new_axes(count: int, columns: int, size: tuple[float, float]) -> list[Axes]:
    import matplotlib.pyplot as plt  # here: axes that are given need no window and no pyplot

    rows = -(-count // columns)
    figure, axes = plt.subplots(
        rows, columns, figsize=(columns * size[0], rows * size[1]), layout="constrained", squeeze=False
    )
    figure.get_layout_engine().set(w_pad=0.08, h_pad=0.08)
    for surplus in axes.ravel()[count:]:
        surplus.remove()
    return list(axes.ravel()[:count])
