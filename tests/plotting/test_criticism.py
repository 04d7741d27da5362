"""Tests of `ovkgp.plotting.criticism`: what is drawn is what the table, the residuals and the ranks hold."""

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from scipy.special import ndtri

import ovkgp
from ovkgp.criticism import Check, Criticism, SimulationCalibration, criticize
from ovkgp.criticism.residuals import Residuals
from ovkgp.criticism.results import correct_for_number
from ovkgp.exceptions import InputError
from ovkgp.plotting import plot_criticism, plot_gaussianity, plot_simulation_calibration

pytestmark = pytest.mark.filterwarnings("error")


def make_table(pvalues, residuals=None):
    checks = [Check(f"test {i}", 1.0, p, conclusion="fine", if_rejected="wrong") for i, p in enumerate(pvalues)]
    checks.append(Check("score", 2.0))
    if residuals is None:
        residuals = Residuals(np.zeros((2, 1)), np.zeros((2, 1)), np.arange(2), "", False, True, True)
    return Criticism(correct_for_number(checks, 0.05), 0.05, (), residuals)


def lines(axes):
    return {line.get_label(): line for line in axes.get_lines()}


def test_plot_criticism_shows_adjusted_pvalues_of_tests():
    axes = plot_criticism(make_table([0.001, 0.3, 0.0]))
    drawn = lines(axes)
    np.testing.assert_allclose(drawn["rejected"].get_xdata(), [0.002, 1e-6])  # 0 is drawn at the edge
    np.testing.assert_allclose(drawn["not rejected"].get_xdata(), [0.3])
    assert [label.get_text() for label in axes.get_yticklabels()] == ["test 0", "test 1", "test 2"]
    np.testing.assert_allclose(drawn["rejected"].get_ydata(), [2, 0])  # from top to bottom
    assert drawn["level 0.05"].get_xdata()[0] == 0.05
    axes.figure.canvas.draw()


def test_plot_criticism_rejects_other_objects():
    with pytest.raises(InputError, match="table must be a table"):
        plot_criticism(pd.DataFrame())
    with pytest.raises(InputError, match="no tests"):
        plot_criticism(make_table([]))


def test_plot_gaussianity_shows_sorted_residuals_and_marks_those_outside_of_the_band():
    z = np.random.default_rng(0).normal(size=80)
    z[5] = 7.0
    axes = plot_gaussianity(np.append(z, np.nan))
    drawn = lines(axes)
    np.testing.assert_allclose(drawn["outside of the band"].get_ydata(), [7.0])
    np.testing.assert_allclose(drawn["residual"].get_ydata(), np.sort(z)[:-1])
    np.testing.assert_allclose(drawn["residual"].get_xdata(), ndtri((np.arange(79) + 0.5) / 80))


def test_band_of_quantiles_contains_normal_samples_with_its_probability():
    rng, inside = np.random.default_rng(1), 0
    for _ in range(100):
        axes = plot_gaussianity(rng.normal(size=30), ax=Figure().subplots())
        inside += "outside of the band" not in lines(axes)
    assert 88 <= inside <= 100  # of 100 at .95: below 89 with probability .004


def test_plot_gaussianity_standardizes_residuals_of_trained_models():
    values = 3 + 2 * np.random.default_rng(2).normal(size=(50, 2))
    residuals = Residuals(np.zeros((50, 1)), values, np.arange(50), "", False, False, True)
    for given in (residuals, make_table([0.5], residuals)):
        panels = plot_gaussianity(given, names=["u", "v"])
        drawn = np.concatenate([line.get_ydata() for line in panels[0].get_lines() if "_" not in line.get_label()[:1]])
        np.testing.assert_allclose([drawn.mean(), drawn.std()], [0, 1], atol=1e-8)
        assert [axes.get_title() for axes in panels] == ["u", "v"]


def test_plot_gaussianity_rejects_invalid_residuals():
    with pytest.raises(InputError, match="at least 2 finite values"):
        plot_gaussianity([[1.0, np.nan], [2.0, np.nan]])
    with pytest.raises(InputError, match="numbers"):
        plot_gaussianity(["a", "b"])


def test_plot_simulation_calibration_shows_ecdfs_and_marks_miscalibrated_names():
    rng = np.random.default_rng(3)
    ranks = np.column_stack([rng.integers(0, 20, (200, 8)), rng.integers(0, 8, 200)])
    result = SimulationCalibration((*"abcdefgh", "bad"), ranks, 19, 0.05)
    axes = plot_simulation_calibration(result)
    drawn = {name: line for name, line in lines(axes).items() if not name.startswith("_")}
    assert [*drawn] == [*"abcdef", "bad"]
    np.testing.assert_allclose(drawn["bad"].get_ydata(), result.ecdf()[:, 8] - result.points())
    assert drawn["bad"].get_linewidth() > drawn["a"].get_linewidth()
    with pytest.raises(InputError, match="result must be"):
        plot_simulation_calibration(ranks)
    axes.figure.canvas.draw()


def test_plots_of_a_fitted_model():
    rng = np.random.default_rng(4)
    X = rng.uniform(0, 6, (40, 1))
    y = np.sin(X[:, 0]) + 0.2 * rng.normal(size=40)
    table = criticize(ovkgp.OVKRidge(lam=0.05).fit(X, y), random_state=0)
    for axes in (plot_criticism(table), plot_gaussianity(table)):
        axes.figure.canvas.draw()
