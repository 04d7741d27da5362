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
from ovkgp.plotting.axes import Panels, chosen_input, chosen_outputs, input_names, label, legend_label, output_names


def test_names_are_those_of_the_frames_or_numbers():
    assert input_names(plot_cases.two_outputs()) == ["hour of the day"]
    assert output_names(plot_cases.two_outputs()) == ["price in $", "_load"]
    assert (input_names(plot_cases.mixed()), output_names(plot_cases.mixed())[2]) == (["input 0"], "output 2")
    assert output_names(plot_cases.quantile_model()) == ["wage"]


@pytest.mark.parametrize(
    ("wanted", "place"),
    [(None, [0, 1]), ("_load", [1]), (1, [1]), (-2, [0]), (np.int64(0), [0]), (["_load", 0], [1, 0]), (range(1), [0])],
)
def test_outputs_are_chosen_by_name_or_number(wanted, place):
    assert chosen_outputs(plot_cases.two_outputs(), wanted) == place


@pytest.mark.parametrize("wanted", ["load", 2, -3, 0.5, True, ["load"], []])
def test_unknown_outputs_are_named_with_those_there_are(wanted):
    with pytest.raises(OptionError, match=r"output must be one of 'price in \$', '_load' or a number from 0 to 1, got"):
        chosen_outputs(plot_cases.two_outputs(), wanted)


def test_inputs_are_chosen_likewise():
    assert (
        chosen_input(plot_cases.two_outputs(), "hour of the day") == chosen_input(plot_cases.two_outputs(), None) == 0
    )
    with pytest.raises(OptionError, match="along must be one of 'hour of the day'"):
        chosen_input(plot_cases.two_outputs(), "minute")


def test_a_label_is_text_in_few_lines_and_no_formula():
    assert label("$x$") == r"\$x\$"
    assert label("a" * 100, 20).count("\n") == 2
    first, second = (label(f"{'a word ' * 30} {number}", 20) for number in (1, 2))
    assert first != second and " … " in first.replace("\n", " ") and first.count("\n") == 2
    assert legend_label("_load") != "_load" and legend_label("_load").endswith("_load")
    assert legend_label("load") == "load"


pytestmark = pytest.mark.filterwarnings("error")


def test_given_axes_are_taken_in_their_order_and_no_figure_is_opened():
    given = Figure().subplots(2, 2)
    panels = Panels.of(given, 4)
    assert panels.axes == [*given.ravel()] and not panels.is_ours and not plt.get_fignums()
    assert Panels.of([*given.ravel()], 4).axes == panels.axes
    assert Panels.of(given[0, 0], 1).answer is given[0, 0]


@pytest.mark.parametrize("count", [1, 2, 4, 5])
def test_new_panels_are_as_many_as_asked_for(count):
    panels = Panels.of(None, count)
    figure = panels.axes[0].figure
    assert len(figure.axes) == len(panels.axes) == count and panels.is_ours
    assert figure.get_layout_engine() is not None
    answer = panels.answer
    assert isinstance(answer, Axes) if count == 1 else answer.shape == (count,)


def test_too_few_axes_say_how_many_are_needed():
    with pytest.raises(InputError, match="has 1 Axes, and 3 are needed, one for each output"):
        Panels.of(Figure().subplots(), 3)
    with pytest.raises(InputError, match=r"must be matplotlib Axes.*got str"):
        Panels.of("left", 1)


def test_a_legend_names_everything_once():
    panels = Panels.of(Figure().subplots(1, 2), 2)
    for i, axes in enumerate(panels.axes):
        axes.plot([0, 1], label="mean")
        axes.plot([0, 1], label=f"own {i}")
    panels.legend()
    texts = [text.get_text() for text in panels.axes[0].get_legend().get_texts()]
    assert texts == ["mean", "own 0", "own 1"] and panels.axes[1].get_legend() is None


def test_a_legend_of_a_figure_of_ours_stays_out_of_the_panels():
    panels = Panels.of(None, 2)
    panels.legend()  # nothing to name
    assert not panels.axes[0].figure.legends
    panels.axes[1].plot(np.arange(2), label="mean")
    panels.legend()
    assert len(panels.axes[0].figure.legends) == 1 and panels.axes[1].get_legend() is None
    panels.axes[0].figure.canvas.draw()


def lightness(colour) -> float:
    red, green, blue = to_rgb(colour)
    return 0.299 * red + 0.587 * green + 0.114 * blue


def test_bands_are_light_lines_are_dark_and_what_is_other_lies_between():
    assert (
        lightness(style.LINE)
        < 0.25
        < lightness(style.OTHER)
        < 0.5
        < lightness(style.MIDDLE)
        < 0.7
        < lightness(style.BAND)
    )


def test_curves_differ_in_dash_and_marker_not_in_colour_alone():
    styles = [style.line_style(i) for i in range(len(style.LINES))]
    for key in ("linestyle", "marker"):
        assert len({str(one[key]) for one in styles}) == len(styles)
    assert style.line_style(len(styles)) == styles[0]


@pytest.mark.parametrize("name", ["BAND", "MIDDLE"])
def test_dots_are_seen_on_bands(name):
    assert lightness(getattr(style, name)) - lightness(style.INK) > 0.4
