"""Layout tests: nothing is cut off at the edge of a figure and no panels overlap, even if names are long."""

from itertools import combinations

import numpy as np
import pandas as pd
import plot_cases
import pytest

import ovkgp
from ovkgp import plotting

pytestmark = pytest.mark.filterwarnings("error")

PIXELS = 2
"""Tolerance; text is measured to about a pixel."""
LONG_NAME = "the price of energy in $ per MWh, as it was reported by the market of region number"


def long_names(num_outputs: int):
    rng = np.random.default_rng(0)
    X = pd.DataFrame(rng.uniform(size=(12, 2)), columns=[f"{LONG_NAME} {i} the day before" for i in range(2)])
    Y = pd.DataFrame(rng.normal(size=(12, num_outputs)), columns=[f"{LONG_NAME} {i}" for i in range(num_outputs)])
    return ovkgp.GPRegressor("decomposable", hyperparameters="fixed").fit(X, Y)


def check_layout(axes) -> None:
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
@pytest.mark.slow
def test_panels_of_several_outputs_do_not_overlap(name, num_outputs):
    check_layout([*np.ravel(getattr(plotting, name)(long_names(num_outputs)))])


@pytest.mark.parametrize("name", ["plot_field", "plot_output_correlations", "plot_relevance"])
def test_single_panels_fit_into_figure(name):
    check_layout([getattr(plotting, name)(long_names(2))])


@pytest.mark.parametrize("num_outputs", [1, 6, 25])
def test_correlation_matrices_fit_into_figure(num_outputs):
    check_layout([plotting.plot_output_correlations(np.eye(num_outputs))])


@pytest.mark.parametrize("extent", [(0, 1, 0, 1), (0, 10, 0, 1), (0, 1, 0, 10)])
def test_fields_of_any_extent_fit_into_figure(extent):
    check_layout([plotting.plot_field(long_names(2), extent=extent, num_arrows=5)])


def test_traces_do_not_overlap():
    check_layout([*plotting.plot_traces(plot_cases.drawn()).ravel()])
