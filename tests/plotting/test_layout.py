"""Nothing is cut off at the edge of a figure, and no panel reaches into another, however long the names are."""

from itertools import combinations

import numpy as np
import pandas as pd
import plot_cases
import pytest

import ovkgp
from ovkgp import plotting

pytestmark = [pytest.mark.filterwarnings("error"), pytest.mark.filterwarnings(plot_cases.JIT)]

PIXELS = 2
"""Letters are measured to about a pixel."""
LONG = "the price of energy in $ per MWh, as it was reported by the market of region number"


def long_names(num_outputs: int):
    rng = np.random.default_rng(0)
    X = pd.DataFrame(rng.uniform(size=(12, 2)), columns=[f"{LONG} {i} the day before" for i in range(2)])
    Y = pd.DataFrame(rng.normal(size=(12, num_outputs)), columns=[f"{LONG} {i}" for i in range(num_outputs)])
    return ovkgp.GPRegressor("decomposable", hyperparameters="fixed").fit(X, Y)


def require_room(axes) -> None:
    figure = axes[0].figure
    figure.canvas.draw()
    bounds = [one.get_tightbbox().padded(-PIXELS) for one in axes]
    width, height = figure.canvas.get_width_height()
    for box in bounds:
        assert box.x0 >= -PIXELS and box.y0 >= -PIXELS and box.x1 <= width + PIXELS and box.y1 <= height + PIXELS
    assert not any(first.overlaps(second) for first, second in combinations(bounds, 2))
    for legend in figure.legends:
        box = legend.get_window_extent()
        assert box.x0 >= -PIXELS and box.x1 <= width + PIXELS and box.y1 <= height + PIXELS
        assert not any(box.padded(-PIXELS).overlaps(other) for other in bounds)


@pytest.mark.parametrize("num_outputs", [1, 4])
@pytest.mark.parametrize(
    "name",
    ["plot_prediction", "plot_quantiles", "plot_pit", "plot_coverage", "plot_residuals", "plot_leave_one_out"],
)
def test_panels_of_several_outputs_leave_room_for_one_another(name, num_outputs):
    require_room([*np.ravel(getattr(plotting, name)(long_names(num_outputs)))])


@pytest.mark.parametrize("name", ["plot_field", "plot_output_correlations", "plot_relevance"])
def test_single_panels_stay_inside_the_figure(name):
    require_room([getattr(plotting, name)(long_names(2))])


@pytest.mark.parametrize("num_outputs", [1, 6, 25])
def test_maps_of_any_size_stay_inside_the_figure(num_outputs):
    require_room([plotting.plot_output_correlations(np.eye(num_outputs))])


@pytest.mark.parametrize("extent", [(0, 1, 0, 1), (0, 10, 0, 1), (0, 1, 0, 10)])
def test_fields_of_any_shape_stay_inside_the_figure(extent):
    require_room([plotting.plot_field(long_names(2), extent=extent, num_arrows=5)])


def test_traces_leave_room_for_one_another():
    require_room([*plotting.plot_traces(plot_cases.drawn()).ravel()])
