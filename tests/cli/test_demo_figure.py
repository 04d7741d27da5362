"""The picture of the demo: six panels, the same levels above and below, and the parts of the right model."""

import numpy as np
import pytest
from matplotlib.quiver import Quiver

from ovkgp.cli import demo_figure, demo_models
from ovkgp.cli.demo_figure import currents_figure
from ovkgp.cli.demo_models import Sea, try_model


@pytest.fixture(scope="module")
def sea():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(demo_models, "NUM_ROWS", 40)
        return Sea.of(0)


@pytest.fixture(scope="module")
def helmholtz(sea):
    return try_model("Helmholtz", sea, 0).model


@pytest.fixture
def panels(sea, helmholtz, monkeypatch):
    monkeypatch.setattr(demo_figure, "NUM_SHADES", 11)
    return currents_figure(sea, "Helmholtz", helmholtz, helmholtz).axes


def arrows(axes):
    (quiver,) = (artist for artist in axes.get_children() if isinstance(artist, Quiver))
    return quiver.XY, np.column_stack([quiver.U, quiver.V])


def test_the_truth_is_above(sea, panels):
    for axes, part in zip(panels[:3], (sea.truth, sea.truth.upwelling, sea.truth.eddies), strict=True):
        points, vectors = arrows(axes)
        np.testing.assert_allclose(vectors, part(points))


def test_the_parts_below_add_up_to_the_mean_but_for_a_constant(panels):
    _, mean = arrows(panels[3])
    difference = mean - arrows(panels[4])[1] - arrows(panels[5])[1]
    np.testing.assert_allclose(difference, np.tile(difference[0], (len(difference), 1)), atol=1e-9)
    assert np.std(mean) > 0.1


def test_all_six_show_the_region_with_one_scale(sea, panels):
    for axes in panels[:6]:
        assert axes.get_xlim() + axes.get_ylim() == sea.truth.extent
    scales = {artist.scale for axes in panels[:6] for artist in axes.get_children() if isinstance(artist, Quiver)}
    assert len(scales) == 1


def test_dots_are_the_drifters(sea, panels):
    both, one = panels[0].get_lines()
    observed = np.isfinite(sea.Y.to_numpy()).sum(1)
    np.testing.assert_array_equal(both.get_xydata(), sea.X[observed == 2])
    np.testing.assert_array_equal(one.get_xydata(), sea.X[observed == 1])
    assert len(panels[0].figure.legends[0].get_texts()) == 2


def test_another_model_is_shown_with_the_parts_of_the_helmholtz_model(sea, helmholtz, panels, monkeypatch):
    monkeypatch.setattr(demo_figure, "NUM_SHADES", 11)
    other = try_model("independent", sea, 0).model
    shown = currents_figure(sea, "independent", other, helmholtz).axes
    assert not np.allclose(arrows(shown[3])[1], arrows(panels[3])[1], atol=1e-3)
    np.testing.assert_array_equal(arrows(shown[5])[1], arrows(panels[5])[1])
    assert panels[7].get_xlabel() == "potential (10³ m²/s)"
    assert shown[7].get_xlabel() == "potential of the Helmholtz model (10³ m²/s)"
