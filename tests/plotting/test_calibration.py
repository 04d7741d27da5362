"""Tests of `ovkgp.plotting.calibration`."""

import numpy as np
import plot_cases
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy.special import ndtri
from sklearn.exceptions import NotFittedError

import ovkgp
from ovkgp.criticism import coverage, pit_values
from ovkgp.exceptions import InputError, OptionError
from ovkgp.plotting import plot_coverage, plot_leave_one_out, plot_pit, plot_residuals

pytestmark = pytest.mark.filterwarnings("error")


def lines(axes) -> dict:
    return {line.get_label(): line for line in axes.get_lines()}


@pytest.mark.parametrize("make", [plot_cases.two_outputs, plot_cases.drawn])
def test_plot_pit_shows_leave_one_out_histogram(make):
    panels, values = plot_pit(make(), bins=5), pit_values(make())
    assert panels.shape == (2,)
    for a, axes in enumerate(panels):
        observed = values[np.isfinite(values[:, a]), a]
        drawn = axes.patches[0].get_data()
        np.testing.assert_array_equal(drawn.values, np.histogram(observed, 5, range=(0, 1))[0])
        np.testing.assert_allclose(lines(axes)["uniform"].get_ydata(), len(observed) / 5)
        assert f"({len(observed)} entries)" in axes.get_title()
        assert axes.get_xlim() == (0, 1)
    panels[0].figure.canvas.draw()


def test_plot_pit_band_is_binomial_interval():
    """For Binomial(100, 1/10), P(X ≤ 5) = 0.058 and P(X ≤ 15) = 0.960 are the first to pass 5 % and 95 %."""
    rng = np.random.default_rng(0)
    X = rng.uniform(size=(100, 1))
    axes = plot_pit(ovkgp.OVKRidge(lam=1.0).fit(X[:50], X[:50]), X, rng.normal(size=(100, 1)))
    dashed = [line.get_ydata()[0] for line in axes.get_lines() if line.get_linestyle() == "--"]
    assert dashed == [5, 15]


@pytest.mark.parametrize("make", [plot_cases.two_outputs, plot_cases.drawn])
def test_plot_coverage_shows_coverage_and_band(make):
    panels, found = plot_coverage(make()), coverage(make())
    lower, upper = found.band(0.9, simultaneous=True)
    for a, axes in enumerate(panels):
        np.testing.assert_allclose(
            lines(axes)["model"].get_xydata(), np.column_stack([found.levels, found.observed[:, a]])
        )
        path = axes.collections[0].get_paths()[0].vertices
        assert (path[:, 1].min(), path[:, 1].max()) == (lower[:, a].min(), upper[:, a].max())
        assert (axes.get_xlabel(), axes.get_ylabel()) == (
            "nominal level of the interval",
            "fraction of observations inside",
        )
    panels[0].figure.canvas.draw()


def test_plot_coverage_overconfident_model_is_below_band():
    rng = np.random.default_rng(0)
    X = np.linspace(0, 6, 100)[:, None]
    y = np.sin(X[:, 0]) + 0.6 * rng.normal(size=100)
    for noise, is_below in ((0.36, False), (0.02, True)):
        axes = plot_coverage(ovkgp.OVKRidge(lam=noise, lengthscale=1.0).fit(X, y))
        observed = lines(axes)["model"].get_ydata()
        lower = coverage(ovkgp.OVKRidge(lam=noise, lengthscale=1.0).fit(X, y)).band(0.99)[0][:, 0]
        assert (observed[5:] < lower[5:]).all() == is_below


def test_plot_pit_supports_labels_counts_and_quantiles_on_held_out_rows():
    X, Y = plot_cases.mixed_table(20, seed=4)
    assert plot_pit(plot_cases.mixed(), X, Y).shape == plot_coverage(plot_cases.mixed(), X, Y).shape == (3,)
    fresh = plot_cases.make_sine_quantiles(30, random_state=3)
    X = plot_cases.pd.DataFrame(fresh.X, columns=["age"])
    axes = plot_pit(plot_cases.quantile_model(), X, fresh.y)
    assert isinstance(axes, Axes) and axes.get_title() == "wage (30 entries)"


def test_calibration_plots_use_given_axes():
    axes = Figure().subplots()
    assert plot_pit(plot_cases.two_outputs(), output=0, ax=axes) is axes
    assert plot_coverage(plot_cases.two_outputs(), output="_load", ax=axes) is axes


@pytest.mark.parametrize("plot", [plot_pit, plot_coverage])
def test_calibration_plots_reject_invalid_input(plot):
    with pytest.raises(NotFittedError):
        plot(ovkgp.GPRegressor())
    with pytest.raises(OptionError, match="X and Y"):
        plot(plot_cases.featured())
    with pytest.raises(OptionError, match="output"):
        plot(plot_cases.two_outputs(), output="w")
    with pytest.raises(InputError, match="ax has"):
        plot(plot_cases.two_outputs(), ax=Figure().subplots())
    with pytest.raises(OptionError, match="bins"):
        plot_pit(plot_cases.two_outputs(), bins=1)


@pytest.mark.parametrize("make", [plot_cases.two_outputs, plot_cases.drawn])
def test_plot_leave_one_out_shows_entries_intervals_and_count(make):
    panels, found = plot_leave_one_out(make()), make().leave_one_out_entries()
    for a, axes in enumerate(panels):
        observed = np.isfinite(found.Y[:, a])
        mean, std, y = (part[observed, a] for part in (found.mean, found.std, found.Y))
        inside, outside = (
            next(line for line in axes.get_lines() if line.get_label() == name) for name in ("inside", "outside")
        )
        is_outside = np.abs(y - mean) > ndtri(0.95) * std
        np.testing.assert_allclose(inside.get_xydata(), np.column_stack([mean, y])[~is_outside])
        np.testing.assert_allclose(outside.get_xydata(), np.column_stack([mean, y])[is_outside])
        bars = np.array(axes.collections[0].get_segments())
        np.testing.assert_allclose(bars[:, :, 0], np.column_stack([mean - ndtri(0.95) * std, mean + ndtri(0.95) * std]))
        assert f"({is_outside.sum()} of {observed.sum()} outside)" in axes.get_title().replace("\n", " ")
        assert (axes.get_xlabel(), axes.get_ylabel()) == ("leave-one-out prediction", "observed")
    panels[0].figure.canvas.draw()


def test_plot_leave_one_out_takes_rows_of_feature_model():
    X, Y = plot_cases.table()
    axes = Figure().subplots()
    assert plot_leave_one_out(plot_cases.featured(), X, Y, output=1, ax=axes) is axes
    with pytest.raises(OptionError, match="Pass X and Y"):
        plot_leave_one_out(plot_cases.featured())


def test_plot_leave_one_out_rejects_invalid_input():
    with pytest.raises(NotFittedError):
        plot_leave_one_out(ovkgp.OVKRidge())
    with pytest.raises(OptionError, match="closed-form"):
        plot_leave_one_out(plot_cases.mixed())
    with pytest.raises(InputError, match="ax has"):
        plot_leave_one_out(plot_cases.two_outputs(), ax=Figure().subplots())


def drawn(axes) -> np.ndarray:
    """All residuals (k, 2) with their predicted means, sorted by these."""
    points = np.concatenate([line.get_xydata() for line in axes.get_lines() if line.get_linestyle() == "None"])
    return points[np.argsort(points[:, 0])]


def test_plot_residuals_defaults_to_leave_one_out():
    found, panels = plot_cases.two_outputs().leave_one_out_entries(), plot_residuals(plot_cases.two_outputs())
    for a, axes in enumerate(panels):
        observed = np.isfinite(found.Y[:, a])
        mean, score = found.mean[observed, a], ((found.Y - found.mean) / found.std)[observed, a]
        np.testing.assert_allclose(drawn(axes), np.column_stack([mean, score])[np.argsort(mean)])
        assert axes.get_ylabel() == "standardized residual"
    panels[0].figure.canvas.draw()


def test_plot_residuals_marks_outliers_of_held_out_rows():
    X, Y = plot_cases.table(20, seed=9)
    Y = Y.assign(**{"_load": Y["_load"] + 10 * (np.arange(20) == 5)})
    axes = plot_residuals(plot_cases.two_outputs(), X, Y, output="_load", ax=Figure().subplots())
    mean, std = plot_cases.two_outputs().predict(X, return_std=True)
    scores = (Y.to_numpy() - mean)[:, 1] / std[:, 1]
    marked = next(line for line in axes.get_lines() if line.get_label() == "beyond 3")
    np.testing.assert_allclose(np.sort(marked.get_ydata()), np.sort(scores[np.abs(scores) > 3]))
    assert axes.get_ylim()[1] > scores[5]


def test_plot_residuals_of_other_distributions_are_quantile_residuals():
    X, Y = plot_cases.mixed_table(20, seed=4)
    panels = plot_residuals(plot_cases.mixed(), X, Y)
    mean, scores = plot_cases.mixed().predict(X), ndtri(pit_values(plot_cases.mixed(), X, Y))
    for a, axes in enumerate(panels):
        order = np.argsort(mean[:, a])
        np.testing.assert_allclose(drawn(axes), np.column_stack([mean[order, a], scores[order, a]]))
        assert axes.get_ylabel() == "quantile residual"


def test_plot_residuals_rejects_invalid_input():
    with pytest.raises(NotFittedError):
        plot_residuals(ovkgp.OVKRidge())
    with pytest.raises(OptionError, match="held out"):
        plot_residuals(plot_cases.mixed())
    with pytest.raises(OptionError, match="output"):
        plot_residuals(plot_cases.two_outputs(), output=7)
