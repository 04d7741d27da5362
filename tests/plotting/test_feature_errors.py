"""Tests of `ovkgp.plotting.feature_errors`."""

import numpy as np
import pytest
from matplotlib.figure import Figure

from ovkgp.exceptions import InputError
from ovkgp.plotting import plot_feature_error

pytestmark = pytest.mark.filterwarnings("error")


def test_plot_feature_error_shows_curves_and_reference_slope():
    sizes, errors = [50, 100, 400], {"iid": [0.2, 0.15, 0.08], "_qmc": [0.1, np.nan, 0.01]}
    axes = plot_feature_error(sizes, errors)
    first, second, guide = axes.get_lines()
    np.testing.assert_allclose(first.get_xydata(), np.column_stack([sizes, errors["iid"]]))
    np.testing.assert_allclose(second.get_ydata(), errors["_qmc"])
    slopes = np.diff(np.log(guide.get_ydata())) / np.diff(np.log(sizes))
    np.testing.assert_allclose(slopes, -0.5)
    assert (guide.get_ydata() > errors["iid"]).all()
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    assert [text.get_text() for text in axes.get_xticklabels()] == ["50", "100", "400"]
    assert len(axes.figure.legends[0].get_texts()) == 3
    axes.figure.canvas.draw()


def test_plot_feature_error_uses_given_axes():
    axes = Figure().subplots()
    assert plot_feature_error(np.arange(1, 12), {"iid": np.ones(11)}, ax=axes) is axes


@pytest.mark.parametrize(
    ("sizes", "errors"),
    [
        ([], {"iid": []}),
        ([100, 50], {"iid": [1.0, 1.0]}),
        ([0, 50], {"iid": [1.0, 1.0]}),
        ([50, 100], {}),
        ([50, 100], {"iid": [1.0]}),
        ([50, 100], {"iid": [1.0, 0.0]}),
        ([50, 100], {"iid": [np.nan, np.nan]}),
        ([50, 100], {"iid": [1.0, np.inf]}),
        ([50, 100], [1.0, 2.0]),
        ("many", {"iid": [1.0]}),
    ],
)
def test_plot_feature_error_rejects_invalid_input(sizes, errors):
    with pytest.raises(InputError, match=r"sizes|errors"):
        plot_feature_error(sizes, errors)
