import base64
import io

import matplotlib.pyplot as plt
import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from ovkgp.exceptions import InputError
from ovkgp.plotting.report.figures import DOTS, drawn, extra_pictures, picture_of


def image_of(picture):
    """The picture behind a data URI."""
    head, _, data = picture.source.partition(",")
    assert head == "data:image/png;base64"
    return Image.open(io.BytesIO(base64.b64decode(data)))


def test_a_figure_becomes_a_png_of_its_size():
    picture = picture_of(Figure(figsize=(4, 3)), "what is seen", "what it means")
    assert image_of(picture).size == (4 * DOTS, 3 * DOTS)
    assert (picture.alt, picture.caption, picture.width, picture.height) == ("what is seen", "what it means", 320, 240)


def test_few_colours_keep_the_picture():
    figure = Figure(figsize=(2, 2))
    figure.add_axes((0, 0, 1, 1)).imshow(np.linspace(0, 1, 100).reshape(10, 10), cmap="viridis")
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=DOTS)
    full, small = (
        np.asarray(one.convert("RGB"), dtype=int) for one in (Image.open(buffer), image_of(picture_of(figure, "", "")))
    )
    assert np.abs(full - small).max() <= 8


@pytest.mark.parametrize("several", [False, True])
def test_what_is_drawn_is_closed(several):
    before = plt.get_fignums()
    drawn(lambda: plt.subplots(1, 2)[1] if several else plt.subplots()[1], "", "")
    assert plt.get_fignums() == before


@pytest.mark.parametrize("failure", [KeyboardInterrupt, ValueError])
def test_what_was_opened_is_closed_where_drawing_fails(failure):
    mine = plt.figure()
    before = plt.get_fignums()

    def draw():
        plt.subplots()
        raise failure

    with pytest.raises(failure):
        drawn(draw, "", "")
    assert plt.get_fignums() == before
    plt.close(mine)


def test_figures_of_the_user_stay_open():
    figure = plt.figure()
    (picture,) = extra_pictures([("Mine", figure)])
    assert plt.fignum_exists(figure.number) and picture.caption == picture.alt == "Mine"
    plt.close(figure)


@pytest.mark.parametrize("wrong", [["caption"], [(Figure(), "caption")], [("one", Figure(), 3)], [Figure()]])
def test_what_is_no_pair_is_refused(wrong):
    with pytest.raises(InputError, match="pairs"):
        extra_pictures(wrong)
