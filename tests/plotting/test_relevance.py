"""Tests of `ovkgp.plotting.relevance`."""

import numpy as np
import plot_cases
import pytest
from gpytorch.kernels import RBFKernel
from matplotlib.figure import Figure
from sklearn.exceptions import NotFittedError

import ovkgp
from ovkgp.exceptions import OptionError
from ovkgp.kernels import DecomposableKernel
from ovkgp.plotting import plot_relevance, plot_series_relevance
from ovkgp.plotting.relevance import compute_relevance

pytestmark = pytest.mark.filterwarnings("error")


def inputs(num_rows: int = 25):
    X = np.random.default_rng(0).normal(size=(num_rows, 3)) * [1.0, 100.0, 0.01] + [0.0, 50.0, 7.0]
    return plot_cases.pd.DataFrame(X, columns=["a", "b", "c"])


def kernel(lengthscale):
    base = RBFKernel(ard_num_dims=3)
    base.lengthscale = lengthscale
    return DecomposableKernel(base, num_outputs=2)


def test_plot_relevance_shows_std_over_lengthscale_of_kernel_object():
    X = inputs()
    model = ovkgp.OVKRidge(kernel([2.0, 50.0, 0.1])).fit(X, X[["a", "b"]])
    (found,) = compute_relevance(model).values()
    np.testing.assert_allclose(found, X.to_numpy().std(0)[None] / [2.0, 50.0, 0.1], rtol=1e-6)
    axes = plot_relevance(model)
    np.testing.assert_allclose(axes.get_lines()[0].get_xdata(), found[0])
    assert [text.get_text() for text in axes.get_yticklabels()] == ["a", "b", "c"]
    assert axes.get_ylim() == (2.5, -0.5) and axes.get_xlim()[0] == 0  # the first on top
    assert axes.get_xlabel() == "relevance: standard deviation / lengthscale"
    axes.figure.canvas.draw()


def test_compute_relevance_is_invariant_to_input_units():
    X, found = inputs(), []
    features = {"approximation": "orff", "num_frequencies": 10, "random_state": 0}
    for change, options in ((1.0, {}), (1000.0, {}), (1000.0, features)):  # the last model stores no data
        model = ovkgp.GPRegressor("decomposable", hyperparameters="fixed", **options).fit(change * X, X[["a", "b"]])
        found.append(compute_relevance(model)["lengthscale"])
        lengthscales = model.to_arviz()["posterior"]["lengthscale"].values.reshape(1, -1)  # in original units
        np.testing.assert_allclose(found[-1], change * X.to_numpy().std(0) / lengthscales)
    np.testing.assert_allclose(found, [found[0]] * 3)


def test_plot_relevance_names_parts_of_kernel():
    X = inputs()
    independent = ovkgp.GPRegressor("independent", hyperparameters="fixed").fit(X, X[["a", "b"]])
    assert list(compute_relevance(independent)) == ["a", "b"]
    lmc = ovkgp.GPRegressor("lmc", hyperparameters="fixed").fit(X, X[["a", "b"]])
    assert list(compute_relevance(lmc)) == ["component 1", "component 2"]
    axes = plot_relevance(lmc, ax=Figure().subplots())
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["component 1", "component 2"]
    assert len({line.get_marker() for line in axes.get_lines()}) == 2


def test_plot_relevance_of_draws_shows_medians_and_intervals():
    model = plot_cases.drawn()
    axes = plot_relevance(model)
    lengthscales = model.to_arviz()["posterior"]["lengthscale"].values.ravel()
    values = plot_cases.table()[0].to_numpy().std() / lengthscales
    np.testing.assert_allclose(axes.get_lines()[0].get_xdata(), [np.median(values)])
    (interval,) = axes.collections[0].get_segments()
    np.testing.assert_allclose(interval[:, 0], np.quantile(values, [0.05, 0.95]))


def test_compute_relevance_supports_quantile_regressor():
    np.testing.assert_allclose(compute_relevance(plot_cases.quantile_model())["lengthscale"], [[2.0]], rtol=1e-6)


def test_plot_relevance_rejects_kernels_without_ard():
    with pytest.raises(NotFittedError):
        plot_relevance(ovkgp.GPRegressor())
    with pytest.raises(OptionError, match="ARD"):
        plot_relevance(plot_cases.field())  # a field has one for all directions
    X = inputs()
    featured = ovkgp.GPRegressor(
        kernel([20.0, 2000.0, 0.2]), approximation="orff", num_frequencies=5, hyperparameters="fixed", random_state=0
    )
    with pytest.raises(OptionError, match="standard deviations of the inputs"):
        plot_relevance(featured.fit(X, X[["a", "b"]]))


def test_plot_series_relevance_shows_which_series_drives_which():
    rng, x = np.random.default_rng(0), np.zeros((200, 3))
    for t in range(1, 200):
        x[t] = x[t - 1, 0] * np.array([0.5, 0.9, 0.0]) + rng.normal(size=3)
    series = plot_cases.pd.DataFrame(x, columns=["rain", "flow", "wind"])
    model = ovkgp.VectorAutoregressor(kernel="linear", lam=1e-6).fit(series)
    axes = plot_series_relevance(model)
    np.testing.assert_array_equal(axes.get_images()[0].get_array(), model.relevance_)
    assert [text.get_text() for text in axes.get_xticklabels()] == ["rain", "flow", "wind"]
    texts = np.array([float(text.get_text()) for text in axes.texts]).reshape(3, 3)
    np.testing.assert_allclose(texts, model.relevance_, atol=0.005)
    assert texts[1, 0] > 0.5 and texts[1, 1:].max() < 0.2
    axes.figure.canvas.draw()
    with pytest.raises(NotFittedError):
        plot_series_relevance(ovkgp.VectorAutoregressor())
