"""Panels, colors, labels and column selection shared by all plots."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from operator import index

import numpy as np
from matplotlib.axes import Axes
from matplotlib.transforms import ScaledTranslation, blended_transform_factory

from ovkgp.checks import wrong_type
from ovkgp.exceptions import InputError, OptionError

PANEL_INCHES = (4.4, 3.0)  # size of each panel of a figure with several
SINGLE_PANEL_INCHES = (5.6, 3.8)  # size of a figure with one panel
COLORBAR_GAP_INCHES, COLORBAR_WIDTH_INCHES = 0.1, 0.16
LEGEND_ENTRY_INCHES = 1.85  # width of a legend entry
MAX_LABEL_CHARACTERS, MAX_LABEL_LINES = 30, 3  # characters per line of a label, and number of lines

INK_COLOR = "#1a1a1a"  # data
LINE_COLOR = "#08306b"  # model predictions (dark blue)
BAND_COLOR = "#c6dbef"  # predictive intervals (light blue)
MIDTONE_COLOR = "#6baed6"  # between lines and bands
ACCENT_COLOR = "#d94801"  # highlights (orange, half as light as a band), which always have another marker as well
GUIDE_COLOR = "0.55"  # reference lines
FADED_OPACITY = 0.35  # opacity of background elements
LINE_STYLES = (  # color, dash and marker of the curves of one panel
    (LINE_COLOR, "-", "o"),
    (ACCENT_COLOR, "--", "s"),
    ("#238b45", "-.", "^"),
    ("#6a51a3", ":", "D"),
    (INK_COLOR, (0, (6, 1, 1, 1, 1, 1)), "v"),
    ("0.5", (0, (3, 1)), "P"),
)


@dataclass(frozen=True)
class Panels:
    """Axes to draw on; `is_new` marks a figure made here, which has room for a legend outside of the axes."""

    axes: list[Axes]
    is_new: bool

    @classmethod
    def create(
        cls, ax, count: int, purpose: str = "one for each output", columns: int | None = None, size=None
    ) -> Panels:
        """Check that `ax` has `count` Axes, or make a figure with panels of `size` inches if it is None."""
        if ax is None:
            size = size or (SINGLE_PANEL_INCHES if count == 1 else PANEL_INCHES)
            return cls(_make_axes(count, columns, size), True)
        given = list(np.array(ax, dtype=object).ravel())
        if not all(isinstance(one, Axes) for one in given):
            raise wrong_type("ax", "matplotlib Axes or an array of Axes", ax)
        if len(given) != count:
            raise InputError(
                f"ax has {len(given)} Axes, expected {count} ({purpose}). Create them with plt.subplots or omit ax."
            )
        return cls(given, False)

    @property
    def result(self) -> Axes | np.ndarray:
        """Return value of a plot: the Axes if there is one, else an array (count,)."""
        if len(self.axes) == 1:
            return self.axes[0]
        array = np.empty(len(self.axes), dtype=object)
        array[:] = self.axes
        return array

    def legend(self) -> None:
        """Add one legend without repetitions: above a new figure, inside the first panel of given axes."""
        handles = {}
        for one in self.axes:
            for handle, text in zip(*one.get_legend_handles_labels(), strict=True):
                handles.setdefault(text, handle)
        if not handles:
            return
        if self.is_new:
            figure = self.axes[0].figure
            columns = min(len(handles), max(1, int(figure.get_figwidth() / LEGEND_ENTRY_INCHES)))
            options = {"loc": "outside upper center", "ncols": columns, "frameon": False}
            figure.legend([*handles.values()], [*handles], **options)
        else:
            self.axes[0].legend([*handles.values()], [*handles], fontsize="small", framealpha=0.8)


def plot_outputs(estimator, output, ax, draw: Callable[[Axes, int, str], object], size=None) -> Axes | np.ndarray:
    """Draw one panel per selected output by `draw(axes, index, name)`, with one legend, and return the Axes."""
    outputs, names = select_outputs(estimator, output), estimator.output_labels()
    panels = Panels.create(ax, len(outputs), size=size)
    for axes, a in zip(panels.axes, outputs, strict=True):
        draw(axes, a, names[a])
    panels.legend()
    return panels.result


def _make_axes(count: int, columns: int | None, size: tuple[float, float]) -> list[Axes]:
    """Make a grid that is wider than high unless its columns are given; four panels are two by two."""
    import matplotlib.pyplot as plt  # here: given axes need neither a window nor pyplot

    columns = columns or (2 if count == 4 else min(count, 3))
    rows = -(-count // columns)
    figure, axes = plt.subplots(
        rows, columns, figsize=(columns * size[0], rows * size[1]), layout="constrained", squeeze=False
    )
    figure.get_layout_engine().set(w_pad=0.08, h_pad=0.08)
    for surplus in axes.ravel()[count:]:
        surplus.remove()
    return list(axes.ravel()[:count])


def add_colorbar(axes: Axes, mappable, text: str) -> None:
    """Add a colorbar with a label, as high as the axes whatever their aspect."""
    beside = axes.figure.dpi_scale_trans + ScaledTranslation(1.0, 0.0, axes.transAxes)  # inches from the right edge
    bounds = (COLORBAR_GAP_INCHES, 0.0, COLORBAR_WIDTH_INCHES, 1.0)
    inset = axes.inset_axes(bounds, transform=blended_transform_factory(beside, axes.transAxes))
    axes.figure.colorbar(mappable, cax=inset, label=text)


def get_line_style(number: int) -> dict:
    """Return color, dash and marker of curve `number` as keywords of `Axes.plot`, with period six."""
    color, dash, marker = LINE_STYLES[number % len(LINE_STYLES)]
    return {"color": color, "linestyle": dash, "marker": marker}


def select_outputs(estimator, output) -> list[int]:
    """Return the indices of the outputs to draw: all if None, else those of one name or number or a list of them."""
    names = estimator.output_labels()
    if output is None:
        return list(range(len(names)))
    is_list = np.ndim(output) == 1 and len(output) > 0
    return [find_column(one, names, "output") for one in (output if is_list else [output])]


def select_input(estimator, along) -> int:
    """Return the index of the input to draw along: the first if None, else the one of that name or number."""
    return 0 if along is None else find_column(along, estimator.input_labels(), "along")


def find_column(wanted, names: list[str], option: str) -> int:
    """Return the index of a column given by name, or by a number that may count from the end."""
    if wanted in names:
        return names.index(wanted)
    if not isinstance(wanted, bool):
        with suppress(TypeError, IndexError):
            return range(len(names))[index(wanted)]
    raise OptionError(
        f"{option} must be one of {', '.join(map(repr, names))} or a number from 0 to {len(names) - 1}, got {wanted!r}."
    )


def format_label(name: str, width: int = MAX_LABEL_CHARACTERS) -> str:
    """Wrap a name to at most three lines, shorten it in the middle if longer, and escape dollar signs."""
    text = str(name)
    if len(textwrap.wrap(text, width)) > MAX_LABEL_LINES:
        half = MAX_LABEL_LINES * width // 2 - width // 4  # names that begin alike often differ at their ends
        text = f"{text[:half].rstrip()} … {text[-half:].lstrip()}"
    lines = textwrap.wrap(text, width, max_lines=MAX_LABEL_LINES, placeholder=" …") or [""]
    return "\n".join(lines).replace("$", r"\$")


def format_legend_label(name: str) -> str:
    """Format a name for a legend; matplotlib hides labels that begin with an underscore."""
    text = format_label(name)
    return f"\N{ZERO WIDTH SPACE}{text}" if text.startswith("_") else text
