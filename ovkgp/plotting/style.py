"""How everything looks: dark lines on light bands, told apart by lightness, dash and marker, so that a black-and-white printer keeps them."""

from __future__ import annotations

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
        >>> from ovkgp.plotting.style import line_style
        >>> line_style(1)
        {'color': '#d94801', 'linestyle': '--', 'marker': 's'}
    """
    colour, dash, marker = LINES[index % len(LINES)]
    return {"color": colour, "linestyle": dash, "marker": marker}
