"""Residuals are in units of the predicted standard deviation, and those far out are marked."""

import numpy as np
import plot_cases
import pytest
from matplotlib.figure import Figure
from scipy.special import ndtri
from sklearn.exceptions import NotFittedError

import ovkgp
from ovkgp.criticism import pit_values
from ovkgp.criticism.predictive_distributions import leave_one_out_entries
from ovkgp.exceptions import OptionError
from ovkgp.plotting import plot_residuals

pytestmark = [pytest.mark.filterwarnings("error"), pytest.mark.filterwarnings(plot_cases.JIT)]


def drawn(axes) -> np.ndarray:
    """All residuals (k, 2) with their predicted means, sorted by these."""
    points = np.concatenate([line.get_xydata() for line in axes.get_lines() if line.get_linestyle() == "None"])
    return points[np.argsort(points[:, 0])]


def test_entries_left_out_by_default():
    found, panels = leave_one_out_entries(plot_cases.two_outputs()), plot_residuals(plot_cases.two_outputs())
    for a, axes in enumerate(panels):
        seen = np.isfinite(found.Y[:, a])
        mean, score = found.mean[seen, a], ((found.Y - found.mean) / found.std)[seen, a]
        np.testing.assert_allclose(drawn(axes), np.column_stack([mean, score])[np.argsort(mean)])
        assert axes.get_ylabel() == "standardised residual"
    panels[0].figure.canvas.draw()


def test_rows_held_out_with_their_marks():
    X, Y = plot_cases.table(20, seed=9)
    Y = Y.assign(**{"_load": Y["_load"] + 10 * (np.arange(20) == 5)})
    axes = plot_residuals(plot_cases.two_outputs(), X, Y, output="_load", ax=Figure().subplots())
    mean, std = plot_cases.two_outputs().predict(X, return_std=True)
    scores = (Y.to_numpy() - mean)[:, 1] / std[:, 1]
    marked = next(line for line in axes.get_lines() if line.get_label() == "beyond 3")
    np.testing.assert_allclose(np.sort(marked.get_ydata()), np.sort(scores[np.abs(scores) > 3]))
    assert axes.get_ylim()[1] > scores[5]


def test_what_is_not_gaussian_has_quantile_residuals():
    X, Y = plot_cases.mixed_table(20, seed=4)
    panels = plot_residuals(plot_cases.mixed(), X, Y)
    mean, scores = plot_cases.mixed().predict(X), ndtri(pit_values(plot_cases.mixed(), X, Y))
    for a, axes in enumerate(panels):
        order = np.argsort(mean[:, a])
        np.testing.assert_allclose(drawn(axes), np.column_stack([mean[order, a], scores[order, a]]))
        assert axes.get_ylabel() == "quantile residual"


def test_bad_input_says_what_to_do():
    with pytest.raises(NotFittedError):
        plot_residuals(ovkgp.OVKRidge())
    with pytest.raises(OptionError, match="held out"):
        plot_residuals(plot_cases.mixed())
    with pytest.raises(OptionError, match="output must be"):
        plot_residuals(plot_cases.two_outputs(), output=7)
