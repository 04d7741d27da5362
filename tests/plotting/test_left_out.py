"""Observed against predicted from all others: bars are 90 % intervals, and what they do not hold is counted."""

import numpy as np
import plot_cases
import pytest
from matplotlib.figure import Figure
from scipy.special import ndtri
from sklearn.exceptions import NotFittedError

import ovkgp
from ovkgp.criticism.predictive_distributions import leave_one_out_entries
from ovkgp.exceptions import InputError, OptionError
from ovkgp.plotting import plot_leave_one_out

pytestmark = [pytest.mark.filterwarnings("error"), pytest.mark.filterwarnings(plot_cases.JIT)]


@pytest.mark.parametrize("make", [plot_cases.two_outputs, plot_cases.drawn])
def test_points_bars_and_their_count(make):
    panels, found = plot_leave_one_out(make()), leave_one_out_entries(make())
    for a, axes in enumerate(panels):
        seen = np.isfinite(found.Y[:, a])
        mean, std, y = (part[seen, a] for part in (found.mean, found.std, found.Y))
        inside, outside = (
            next(line for line in axes.get_lines() if line.get_label() == name) for name in ("inside", "outside")
        )
        is_outside = np.abs(y - mean) > ndtri(0.95) * std
        np.testing.assert_allclose(inside.get_xydata(), np.column_stack([mean, y])[~is_outside])
        np.testing.assert_allclose(outside.get_xydata(), np.column_stack([mean, y])[is_outside])
        bars = np.array(axes.collections[0].get_segments())
        np.testing.assert_allclose(bars[:, :, 0], np.column_stack([mean - ndtri(0.95) * std, mean + ndtri(0.95) * std]))
        assert f"({is_outside.sum()} of {seen.sum()} outside)" in axes.get_title().replace("\n", " ")
        assert (axes.get_xlabel(), axes.get_ylabel()) == ("predicted from all others", "observed")
    panels[0].figure.canvas.draw()


def test_a_model_with_features_is_given_its_rows():
    X, Y = plot_cases.table()
    axes = Figure().subplots()
    assert plot_leave_one_out(plot_cases.featured(), X, Y, output=1, ax=axes) is axes
    with pytest.raises(OptionError, match="keeps no rows"):
        plot_leave_one_out(plot_cases.featured())


def test_bad_input_says_what_to_do():
    with pytest.raises(NotFittedError):
        plot_leave_one_out(ovkgp.OVKRidge())
    with pytest.raises(OptionError, match="closed form"):
        plot_leave_one_out(plot_cases.mixed())
    with pytest.raises(InputError, match="2 are needed"):
        plot_leave_one_out(plot_cases.two_outputs(), ax=Figure().subplots())
