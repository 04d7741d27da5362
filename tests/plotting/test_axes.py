"""Tests of `ovkgp.plotting.axes`."""

import matplotlib.pyplot as plt
import numpy as np
import plot_cases
import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from ovkgp.exceptions import InputError, OptionError
from ovkgp.plotting import axes as style
from ovkgp.plotting.axes import (
    Panels,
    format_label,
    format_legend_label,
    select_input,
    select_outputs,
)


def test_column_names_come_from_frames_or_are_numbered():
    assert plot_cases.two_outputs().input_labels() == ["hour of the day"]
    assert plot_cases.two_outputs().output_labels() == ["price in $", "_load"]
    assert (plot_cases.mixed().input_labels(), plot_cases.mixed().output_labels()[2]) == (["input 0"], "output 2")
    assert plot_cases.quantile_model().output_labels() == ["wage"]


@pytest.mark.parametrize(
    ("output", "indices"),
    [(None, [0, 1]), ("_load", [1]), (1, [1]), (-2, [0]), (np.int64(0), [0]), (["_load", 0], [1, 0]), (range(1), [0])],
)
def test_select_outputs_accepts_names_and_numbers(output, indices):
    assert select_outputs(plot_cases.two_outputs(), output) == indices


@pytest.mark.parametrize("output", ["load", 2, -3, 0.5, True, ["load"], []])
def test_select_outputs_rejects_unknown_output(output):
    with pytest.raises(OptionError, match=r"'price in \$', '_load'"):
        select_outputs(plot_cases.two_outputs(), output)


def test_select_input_accepts_names_and_rejects_unknown():
    assert (
        select_input(plot_cases.two_outputs(), "hour of the day") == select_input(plot_cases.two_outputs(), None) == 0
    )
    with pytest.raises(OptionError, match="along"):
        select_input(plot_cases.two_outputs(), "minute")


def test_format_label_wraps_and_escapes_text():
    assert format_label("$x$") == r"\$x\$"
    assert format_label("a" * 100, 20).count("\n") == 2
    first, second = (format_label(f"{'a word ' * 30} {number}", 20) for number in (1, 2))
    assert first != second and " … " in first.replace("\n", " ") and first.count("\n") == 2
    assert format_legend_label("_load") != "_load" and format_legend_label("_load").endswith("_load")
    assert format_legend_label("load") == "load"


pytestmark = pytest.mark.filterwarnings("error")


def test_panels_keep_given_axes_without_opening_figure():
    given = Figure().subplots(2, 2)
    panels = Panels.create(given, 4)
    assert panels.axes == [*given.ravel()] and not panels.is_new and not plt.get_fignums()
    assert Panels.create([*given.ravel()], 4).axes == panels.axes
    assert Panels.create(given[0, 0], 1).result is given[0, 0]


@pytest.mark.parametrize("count", [1, 2, 4, 5])
def test_panels_create_requested_number(count):
    panels = Panels.create(None, count)
    figure = panels.axes[0].figure
    assert len(figure.axes) == len(panels.axes) == count and panels.is_new
    assert figure.get_layout_engine() is not None
    result = panels.result
    assert isinstance(result, Axes) if count == 1 else result.shape == (count,)


def test_panels_reject_wrong_axes():
    with pytest.raises(InputError, match="1 Axes, expected 3"):
        Panels.create(Figure().subplots(), 3)
    with pytest.raises(InputError, match=r"ax must be .*str"):
        Panels.create("left", 1)


def test_panels_legend_has_no_repetitions():
    panels = Panels.create(Figure().subplots(1, 2), 2)
    for i, axes in enumerate(panels.axes):
        axes.plot([0, 1], label="mean")
        axes.plot([0, 1], label=f"own {i}")
    panels.legend()
    texts = [text.get_text() for text in panels.axes[0].get_legend().get_texts()]
    assert texts == ["mean", "own 0", "own 1"] and panels.axes[1].get_legend() is None


def test_panels_legend_is_outside_of_new_figure():
    panels = Panels.create(None, 2)
    panels.legend()  # nothing to name
    assert not panels.axes[0].figure.legends
    panels.axes[1].plot(np.arange(2), label="mean")
    panels.legend()
    assert len(panels.axes[0].figure.legends) == 1 and panels.axes[1].get_legend() is None
    panels.axes[0].figure.canvas.draw()


def lightness(color) -> float:
    red, green, blue = to_rgb(color)
    return 0.299 * red + 0.587 * green + 0.114 * blue


def test_colors_are_ordered_by_lightness():
    assert (
        lightness(style.LINE_COLOR)
        < 0.25
        < lightness(style.ACCENT_COLOR)
        < 0.5
        < lightness(style.MIDTONE_COLOR)
        < 0.7
        < lightness(style.BAND_COLOR)
    )


def test_line_styles_differ_in_dash_and_marker():
    styles = [style.get_line_style(i) for i in range(len(style.LINE_STYLES))]
    for key in ("linestyle", "marker"):
        assert len({str(one[key]) for one in styles}) == len(styles)
    assert style.get_line_style(len(styles)) == styles[0]


@pytest.mark.parametrize("name", ["BAND_COLOR", "MIDTONE_COLOR"])
def test_ink_is_visible_on_bands(name):
    assert lightness(getattr(style, name)) - lightness(style.INK_COLOR) > 0.4
