"""Axes that are given are used, and no others; new ones come in a figure whose layout leaves room for labels."""

import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ovkgp.exceptions import InputError
from ovkgp.plotting.axes import Panels

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
