"""Figure of the demo: six panels with common scales, and the parts of the right model."""

import numpy as np
import pytest
from matplotlib.quiver import Quiver

from ovkgp.cli import demo_figure, demo_models
from ovkgp.cli.demo_figure import currents_figure
from ovkgp.cli.demo_models import OceanData, evaluate_model


@pytest.fixture(scope="module")
def ocean():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(demo_models, "NUM_ROWS", 40)
        return OceanData.generate(0)


@pytest.fixture(scope="module")
def helmholtz(ocean):
    return evaluate_model("Helmholtz", ocean, 0).model


@pytest.fixture
def panels(ocean, helmholtz, monkeypatch):
    monkeypatch.setattr(demo_figure, "NUM_SHADES", 11)
    return currents_figure(ocean, "Helmholtz", helmholtz, helmholtz).axes


def arrows(axes):
    (quiver,) = (artist for artist in axes.get_children() if isinstance(artist, Quiver))
    return quiver.XY, np.column_stack([quiver.U, quiver.V])


def test_figure_shows_ground_truth_on_top(ocean, panels):
    for axes, part in zip(panels[:3], (ocean.truth, ocean.truth.upwelling, ocean.truth.eddies), strict=True):
        points, vectors = arrows(axes)
        np.testing.assert_allclose(vectors, part(points))


def test_figure_parts_sum_to_mean_up_to_constant(panels):
    _, mean = arrows(panels[3])
    difference = mean - arrows(panels[4])[1] - arrows(panels[5])[1]
    np.testing.assert_allclose(difference, np.tile(difference[0], (len(difference), 1)), atol=1e-9)
    assert np.std(mean) > 0.1


def test_figure_panels_share_region_and_scale(ocean, panels):
    for axes in panels[:6]:
        assert axes.get_xlim() + axes.get_ylim() == ocean.truth.extent
    scales = {artist.scale for axes in panels[:6] for artist in axes.get_children() if isinstance(artist, Quiver)}
    assert len(scales) == 1


def test_figure_dots_are_drifters(ocean, panels):
    both, one = panels[0].get_lines()
    observed = np.isfinite(ocean.Y.to_numpy()).sum(1)
    np.testing.assert_array_equal(both.get_xydata(), ocean.X[observed == 2])
    np.testing.assert_array_equal(one.get_xydata(), ocean.X[observed == 1])
    assert len(panels[0].figure.legends[0].get_texts()) == 2


def test_figure_of_other_model_shows_helmholtz_parts(ocean, helmholtz, panels, monkeypatch):
    monkeypatch.setattr(demo_figure, "NUM_SHADES", 11)
    other = evaluate_model("independent", ocean, 0).model
    shown = currents_figure(ocean, "independent", other, helmholtz).axes
    assert not np.allclose(arrows(shown[3])[1], arrows(panels[3])[1], atol=1e-3)
    np.testing.assert_array_equal(arrows(shown[5])[1], arrows(panels[5])[1])
    assert panels[7].get_xlabel() == "potential (10³ m²/s)"
    assert shown[7].get_xlabel() == "potential of the Helmholtz model (10³ m²/s)"
