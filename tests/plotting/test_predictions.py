"""Tests of `ovkgp.plotting.predictions`."""

import matplotlib.pyplot as plt
import numpy as np
import plot_cases
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from sklearn.exceptions import NotFittedError

import ovkgp
from ovkgp.exceptions import InputError, OptionError
from ovkgp.plotting import plot_prediction, plot_quantiles

pytestmark = pytest.mark.filterwarnings("error")


def lines(axes) -> dict:
    return {line.get_label(): line for line in axes.get_lines()}


def band(axes) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """x, lower and upper of the first band of an Axes."""
    path = axes.collections[0].get_paths()[0].vertices
    x = np.unique(path[:, 0])
    ends = [np.array([f(path[path[:, 0] == value, 1]) for value in x]) for f in (np.min, np.max)]
    return x, *ends


@pytest.mark.parametrize("make", [plot_cases.two_outputs, plot_cases.drawn, plot_cases.featured])
def test_plot_prediction_shows_mean_interval_and_data_per_output(make):
    model, (X, Y) = make(), plot_cases.table()
    panels = plot_prediction(model, X, Y, level=0.8, num_points=25)
    assert panels.shape == (2,) and len(panels[0].figure.axes) == 2
    for a, axes in enumerate(panels):
        x = lines(axes)["mean"].get_xdata()
        points = plot_cases.pd.DataFrame({"hour of the day": x})
        np.testing.assert_allclose(lines(axes)["mean"].get_ydata(), model.predict(points)[:, a])
        lower, upper = model.predict_interval(points, 0.8)
        np.testing.assert_allclose(band(axes), (x, lower[:, a], upper[:, a]))
        observed = np.isfinite(Y.to_numpy()[:, a])
        np.testing.assert_allclose(lines(axes)["data"].get_ydata(), Y.to_numpy()[observed, a])
        assert axes.get_xlabel() == "hour of the day"
    assert [axes.get_ylabel() for axes in panels] == [r"price in \$", "_load"]
    names = [text.get_text() for text in panels[0].figure.legends[0].get_texts()]
    assert names == ["80 % interval", "mean", "data"]
    panels[0].figure.canvas.draw()


def test_plot_prediction_of_one_output_uses_given_axes():
    axes = Figure().subplots()
    assert plot_prediction(plot_cases.two_outputs(), output="_load", num_points=9, ax=axes) is axes
    assert axes.get_ylabel() == "_load" and axes.get_legend() is not None and not plt.get_fignums()
    assert isinstance(plot_prediction(plot_cases.one_output(), num_points=9), Axes)


def test_plot_prediction_shows_stored_training_data():
    axes = plot_prediction(plot_cases.one_output(), num_points=9)
    assert len(lines(axes)["data"].get_xdata()) == np.isfinite(plot_cases.table()[1].iloc[8:, 0]).sum()
    X = np.array([[0.0], [1.0]])
    assert set(lines(plot_prediction(plot_cases.one_output(), X, num_points=9))) == {"mean"}


def test_plot_prediction_latent_band_is_narrower():
    options = {"output": 0, "num_points": 9}
    wide, narrow = (band(plot_prediction(plot_cases.two_outputs(), noise=noise, **options)) for noise in (True, False))
    assert ((narrow[1] > wide[1]) & (narrow[2] < wide[2])).all()


def test_plot_prediction_function_draws_are_reproducible():
    options = {"output": 0, "num_draws": 3, "num_points": 9}
    first, second = (plot_prediction(plot_cases.two_outputs(), **options).get_lines() for _ in range(2))
    assert len(first) == 3 + 2
    wanted = plot_cases.two_outputs().sample_functions(3, random_state=0)(first[0].get_xdata()[:, None])
    for i in range(3):
        np.testing.assert_allclose(first[i].get_ydata(), wanted[i, :, 0])
        np.testing.assert_array_equal(first[i].get_ydata(), second[i].get_ydata())


def test_plot_prediction_shows_probabilities_of_labels():
    X, Y = plot_cases.mixed_table()
    panels = plot_prediction(plot_cases.mixed(), X, Y, num_draws=2, num_points=15)
    assert [axes.get_ylabel() for axes in panels] == ["probability of output 0", "output 1", "output 2"]
    x, lower, upper = band(panels[0])
    latent = plot_cases.mixed().predict_interval(x[:, None], 0.9, noise=False)
    np.testing.assert_allclose([lower, upper], [1 / (1 + np.exp(-end[:, 0])) for end in latent], rtol=1e-6)
    counts = plot_cases.mixed().predict_interval(x[:, None], 0.9)
    np.testing.assert_allclose(band(panels[1])[1:], [end[:, 1] for end in counts])
    for line in panels[0].get_lines()[:2]:
        assert ((line.get_ydata() > 0) & (line.get_ydata() < 1)).all()


def test_plot_prediction_labels_latent_functions():
    panels = plot_prediction(plot_cases.mixed(), *plot_cases.mixed_table(), noise=False, num_points=9)
    assert [axes.get_ylabel() for axes in panels] == ["log-odds of output 0", "log of expected output 1", "output 2"]
    assert ["data" in lines(axes) for axes in panels] == [False, False, True]


def test_plot_prediction_shows_intervals_of_class_probabilities():
    X = np.linspace(0, 1, 30)[:, None]
    Y = np.eye(3)[np.digitize(X[:, 0], [0.3, 0.7])]
    options = {"likelihood": "softmax", "num_frequencies": 6, "hyperparameters": "fixed", "random_state": 0}
    model = ovkgp.GPRegressor("independent", **options).fit(X, Y)
    for a, axes in enumerate(plot_prediction(model, X, Y, num_points=15)):
        x, lower, upper = band(axes)
        mean = model.predict(x[:, None])[:, a]
        assert ((lower > 0) & (lower < mean) & (mean < upper) & (upper < 1)).all()


def test_plot_prediction_axis_label_lists_other_inputs():
    X = plot_cases.pd.DataFrame(np.random.default_rng(0).normal(size=(20, 2)), columns=["a", "b"])
    axes = plot_prediction(ovkgp.OVKRidge().fit(X, X["a"]), along="b", num_points=9)
    assert axes.get_xlabel() == f"b\n(a = {X['a'].median():.3g})"
    assert lines(axes)["partial residuals"].get_alpha() < 1


def test_plot_prediction_of_a_slice_shows_partial_residuals():
    """The other input moves the observations by four units, and yet the dots of a good model lie in the band."""
    rng = np.random.default_rng(0)
    X = rng.uniform(0, 6, (80, 2))
    y = np.sin(X[:, 0]) + 2 * np.cos(X[:, 1]) + 0.1 * rng.normal(size=80)
    model = ovkgp.OVKRidge(lam=0.01, lengthscale=2.0).fit(X, y)
    axes = plot_prediction(model)
    dots = lines(axes)["partial residuals"]
    moved = np.column_stack([X[:, 0], np.full(80, np.median(X[:, 1]))])
    np.testing.assert_array_equal(dots.get_xdata(), X[:, 0])
    np.testing.assert_allclose(dots.get_ydata(), y - model.predict(X) + model.predict(moved))
    x, lower, upper = band(axes)
    ends = (np.interp(dots.get_xdata(), x, part) for part in (lower, upper))
    assert ((next(ends) < dots.get_ydata()) & (dots.get_ydata() < next(ends))).mean() > 0.9
    fan = plot_quantiles(model, levels=[0.1, 0.5, 0.9])
    np.testing.assert_allclose(lines(fan)["partial residuals"].get_ydata(), dots.get_ydata())


def test_plot_prediction_of_a_slice_shows_labels_near_it():
    rng = np.random.default_rng(0)
    X = rng.uniform(0, 6, (60, 2))
    labels = (np.sin(X[:, 0]) + X[:, 1] > 3).astype(float)
    options = {"likelihood": "bernoulli", "num_frequencies": 6, "hyperparameters": "fixed", "random_state": 0}
    axes = plot_prediction(ovkgp.GPRegressor("independent", **options).fit(X, labels), X, labels, num_points=9)
    dots = lines(axes)["data near the slice"]
    distances = np.abs(X[:, 1] - np.median(X[:, 1]))
    nearest = np.sort(np.argsort(distances)[:20])
    np.testing.assert_array_equal(dots.get_xdata(), X[nearest, 0])
    np.testing.assert_array_equal(dots.get_ydata(), labels[nearest])


def test_plot_prediction_rejects_invalid_input():
    model, (X, Y) = plot_cases.two_outputs(), plot_cases.table()
    with pytest.raises(NotFittedError):
        plot_prediction(ovkgp.GPRegressor())
    with pytest.raises(OptionError, match="plot_quantiles"):
        plot_prediction(plot_cases.quantile_model())
    with pytest.raises(OptionError, match="output"):
        plot_prediction(model, output="u")
    with pytest.raises(InputError, match="ax has"):
        plot_prediction(model, ax=Figure().subplots())
    with pytest.raises(InputError, match="2 columns"):
        plot_prediction(model, X, Y.iloc[:, 0])
    for level in (0, 1, 90, "high", True):
        with pytest.raises(OptionError, match="level"):
            plot_prediction(model, level=level)
    with pytest.raises(OptionError, match="num_draws"):
        plot_prediction(model, num_draws=-1)
    assert not plt.get_fignums()  # errors leave no empty figure


def curves(axes) -> np.ndarray:
    """The quantiles (m, q), sorted at each point, without the data."""
    return np.sort([line.get_ydata() for line in axes.get_lines() if line.get_label() != "data"], axis=0).T


def test_plot_quantiles_shows_curves_of_quantile_regressor():
    model, levels = plot_cases.quantile_model(), [0.9, 0.5, 0.1]
    axes = plot_quantiles(model, levels=levels, num_points=15)
    x = axes.get_lines()[0].get_xdata()
    wanted = model.predict(plot_cases.pd.DataFrame({"age": x}), sorted(levels))
    np.testing.assert_allclose(curves(axes), wanted)
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("age", "wage")
    names = [text.get_text() for text in axes.figure.legends[0].get_texts()]
    assert names == ["10 %, 90 %", "50 %", "data"]


@pytest.mark.parametrize("make", [plot_cases.two_outputs, plot_cases.drawn])
def test_plot_quantiles_shows_panel_per_output(make):
    panels = plot_quantiles(make(), num_points=15)
    x = panels[0].get_lines()[0].get_xdata()
    wanted = make().predict_quantiles(plot_cases.pd.DataFrame({"hour of the day": x}), [0.05, 0.25, 0.5, 0.75, 0.95])
    for a, axes in enumerate(panels):
        np.testing.assert_allclose(curves(axes), wanted[:, a])


def test_plot_quantiles_highlights_median():
    axes = plot_quantiles(plot_cases.one_output(), num_points=9)
    styles = {line.get_label(): line.get_linestyle() for line in axes.get_lines()}
    assert [name for name, dash in styles.items() if dash == "-"] == ["50 %"]
    outer, inner = (band.get_facecolor()[0, :3].mean() for band in axes.collections)
    assert inner < outer


def test_plot_quantiles_uses_given_axes():
    axes = Figure().subplots()
    assert plot_quantiles(plot_cases.two_outputs(), output=1, num_points=9, ax=axes) is axes


def test_plot_quantiles_rejects_invalid_input():
    with pytest.raises(NotFittedError):
        plot_quantiles(ovkgp.InfiniteQuantileRegressor())
    for levels in ([0.0, 0.5], [1.5], []):
        with pytest.raises(OptionError, match="levels"):
            plot_quantiles(plot_cases.quantile_model(), levels=levels)
    with pytest.raises(OptionError, match="plot_quantiles"):
        plot_quantiles(ovkgp.InfiniteOneClassSVM(nu=0.2).fit(np.linspace(0, 1, 9)[:, None]))
    X = np.linspace(0, 1, 20)[:, None]
    finite = ovkgp.InfiniteQuantileRegressor(coupling="joint", lengthscale=0.5, lam=0.1, tol=1e-2).fit(X, X[:, 0])
    with pytest.raises(InputError, match="levels"):
        plot_quantiles(finite, levels=[0.2])
