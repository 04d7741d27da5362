"""Lightness tells apart what a black-and-white printer would mix up."""

import pytest
from matplotlib.colors import to_rgb

from ovkgp.plotting import axes as style


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
