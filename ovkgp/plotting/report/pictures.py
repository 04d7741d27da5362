"""Figures of matplotlib as parts of a page: PNG in a data URI, closed once they are drawn."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Iterable

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure
from PIL import Image  # on which matplotlib itself depends

from ovkgp.exceptions import InputError
from ovkgp.plotting.report.sections import Picture

DOTS, SHOWN = 110, 80
"""Dots an inch in the file, and CSS pixels an inch on the page: sharp, and still small."""
COLOURS = 256


def picture_of(figure: Figure, alt: str, caption: str) -> Picture:
    """A figure as a picture; it stays open.

    Example:
        >>> from matplotlib.figure import Figure
        >>> from ovkgp.plotting.report.pictures import picture_of
        >>> picture_of(Figure(figsize=(4, 3)), "nothing", "An empty figure.").source[:30]
        'data:image/png;base64,iVBORw0K'
    """
    full, small = io.BytesIO(), io.BytesIO()
    figure.savefig(full, format="png", dpi=DOTS, facecolor="white", pil_kwargs={"compress_level": 1})
    # 256 colours are enough for lines and shades, and a third of the size
    Image.open(full).convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE).save(small, "png", optimize=True)
    source = f"data:image/png;base64,{base64.b64encode(small.getvalue()).decode('ascii')}"
    width, height = (round(inches * SHOWN) for inches in figure.get_size_inches())
    return Picture(source, alt, caption, width, height)


def drawn(plot: Callable, alt: str, caption: str) -> Picture:
    """The picture of what `plot()` draws, an Axes or an array of them on a figure of its own, which is closed.

    Where drawing fails or is interrupted, what it has opened is closed too.
    """
    before = set(plt.get_fignums())
    try:
        return picture_of(np.ravel(plot())[0].figure, alt, caption)
    finally:
        for number in set(plt.get_fignums()) - before:
            plt.close(number)


def extra_pictures(pairs: Iterable) -> tuple[Picture, ...]:
    """Pictures of the pairs (caption, Figure) that a user adds.

    Raises:
        InputError: an entry is no such pair.
    """
    found = []
    for pair in pairs:
        if not (isinstance(pair, tuple | list) and len(pair) == 2 and isinstance(pair[1], Figure)):
            raise InputError(f"extra_figures holds pairs (caption, matplotlib Figure), got {type(pair).__name__}.")
        found.append(picture_of(pair[1], str(pair[0]), str(pair[0])))
    return tuple(found)
