"""The user's names reach the axes, whatever they are made of, and unknown ones are refused with a list of those there are."""

import numpy as np
import plot_cases
import pytest

from ovkgp.exceptions import OptionError
from ovkgp.plotting.axes import chosen_input, chosen_outputs, input_names, label, legend_label, output_names


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
