"""Backgrounds that keep their order and their arrows in black and white, on a grid of square cells."""

import numpy as np
import pytest

from ovkgp.plotting.fields import GREYS, LIGHT_CIVIDIS, grid


def test_cells_of_a_grid_are_square():
    points, shape = grid((0.0, 4.0, 0.0, 2.0), 4, inside=True)
    assert shape == (2, 4)
    np.testing.assert_allclose(points[:2], [[0.5, 0.5], [1.5, 0.5]])
    np.testing.assert_allclose(grid((0.0, 4.0, 0.0, 2.0), 5, inside=False)[0].max(0), [4.0, 2.0])


@pytest.mark.parametrize("colours", [GREYS, LIGHT_CIVIDIS])
def test_backgrounds_are_ordered_by_lightness_and_stay_light(colours):
    red, green, blue = colours(np.linspace(0, 1, 50))[:, :3].T
    lightness = 0.299 * red + 0.587 * green + 0.114 * blue
    assert (np.diff(lightness) > 0).all() or (np.diff(lightness) < 0).all()
    assert lightness.min() > 0.45
