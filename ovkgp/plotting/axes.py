"""The user's names of inputs and outputs, as they stand at an axis, and the columns that they mean."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.transforms import ScaledTranslation, blended_transform_factory

from ovkgp.exceptions import InputError, OptionError

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


INK = "#1a1a1a"
"""Data."""
LINE = "#08306b"
"""What the model says: the darkest blue."""
BAND = "#c6dbef"
"""Where the model expects observations: the lightest."""
MIDDLE = "#6baed6"
"""Between the two."""
OTHER = "#d94801"
"""What is to be noticed, or is not the model's: half as light as a band, and never told by colour alone."""
GUIDE = "0.55"
"""Lines to read a picture by."""

LINES = (
    (LINE, "-", "o"),
    (OTHER, "--", "s"),
    ("#238b45", "-.", "^"),
    ("#6a51a3", ":", "D"),
    (INK, (0, (6, 1, 1, 1, 1, 1)), "v"),
    ("0.5", (0, (3, 1)), "P"),
)
"""Colour, dash and marker of several curves in one panel."""

FADED = 0.35
"""The opacity of what stands in the background."""


def line_style(index: int) -> dict:
    """Colour, dash and marker of curve number `index`, as keywords of `Axes.plot`; they come again after six.

    Example:
        >>> from ovkgp.plotting.axes import line_style
        >>> line_style(1)
        {'color': '#d94801', 'linestyle': '--', 'marker': 's'}
    """
    colour, dash, marker = LINES[index % len(LINES)]
    return {"color": colour, "linestyle": dash, "marker": marker}


WIDTH, NAMES_LINES = 30, 3
"""Characters in a line of a label, and how many lines it may have."""


def input_names(estimator) -> list[str]:
    """The names of the input columns of a fitted estimator; "input 0", … where it was fitted to an array.

    Example:
        >>> import numpy as np
        >>> import ovkgp
        >>> from ovkgp.plotting.axes import input_names, output_names
        >>> model = ovkgp.OVKRidge().fit(np.eye(3), np.eye(3)[:, :2])
        >>> input_names(model)[2], output_names(model)
        ('input 2', ['output 0', 'output 1'])
    """
    numbered = [f"input {i}" for i in range(estimator.n_features_in_)]
    return [str(name) for name in getattr(estimator, "feature_names_in_", numbered)]


def output_names(estimator) -> list[str]:
    """The names of the outputs of a fitted estimator; "output 0", … where it was fitted to an array."""
    if getattr(estimator, "_has_names", hasattr(estimator, "output_names_")):
        return list(estimator.output_names_)
    return [f"output {a}" for a in range(num_outputs(estimator))]


def num_outputs(estimator) -> int:
    """p; one for an estimator that does not count its outputs."""
    return getattr(estimator, "n_outputs_", 1)


def chosen_outputs(estimator, output) -> list[int]:
    """The columns to draw: all for None, else those of that name or number, or of a list of them."""
    names = output_names(estimator)
    if output is None:
        return list(range(len(names)))
    is_list = isinstance(output, list | tuple | range) and len(output) > 0
    wanted = output if is_list else [output]
    return [column(one, names, "output") for one in wanted]


def chosen_input(estimator, along) -> int:
    """The input column to draw along: the first for None, else the one of that name or number."""
    return 0 if along is None else column(along, input_names(estimator), "along")


def column(wanted, names: list[str], option: str) -> int:
    """The place of a name, or of a number that may count from the end.

    Raises:
        OptionError: there is none.

    Example:
        >>> from ovkgp.plotting.axes import column
        >>> column("v", ["u", "v"], "output"), column(-1, ["u", "v"], "output")
        (1, 1)
    """
    if isinstance(wanted, str):
        if wanted in names:
            return names.index(wanted)
    elif hasattr(wanted, "__index__") and not isinstance(wanted, bool) and -len(names) <= wanted < len(names):
        return int(wanted) % len(names)
    raise OptionError(
        f"{option} must be one of {', '.join(map(repr, names))} or a number from 0 to {len(names) - 1}, got {wanted!r}."
    )


def label(name: str, width: int = WIDTH) -> str:
    """A name as text at an axis: long ones in at most three lines, and a dollar sign is a dollar sign and no formula.

    Example:
        >>> from ovkgp.plotting.axes import label
        >>> print(label("price in $ of a very long column name"))
        price in \\$ of a very long
        column name
    """
    text = str(name)
    if len(textwrap.wrap(text, width)) > NAMES_LINES:
        half = (
            NAMES_LINES * width // 2 - width // 4
        )  # names that begin alike often differ at their ends: the middle goes
        text = f"{text[:half].rstrip()} … {text[-half:].lstrip()}"
    lines = textwrap.wrap(text, width, max_lines=NAMES_LINES, placeholder=" …") or [""]
    return "\n".join(lines).replace("$", r"\$")


def legend_label(name: str) -> str:
    """The same in a legend, where matplotlib hides names that begin with an underscore."""
    text = label(name)
    return f"\N{ZERO WIDTH SPACE}{text}" if text.startswith("_") else text
