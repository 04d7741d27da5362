"""Tests of `ovkgp.plotting.relevance`."""

import numpy as np
import plot_cases
import pytest
from gpytorch.kernels import RBFKernel
from matplotlib.figure import Figure
from sklearn.exceptions import NotFittedError

import ovkgp
from ovkgp.exceptions import InputError, OptionError
from ovkgp.inference.model.parameter_vector import hyperparameters
from ovkgp.kernels import DecomposableKernel
from ovkgp.plotting import plot_output_correlations, plot_relevance
from ovkgp.plotting.relevance import compute_output_correlations, compute_relevance

pytestmark = [pytest.mark.filterwarnings("error"), pytest.mark.filterwarnings(plot_cases.JIT)]


def inputs(num_rows: int = 25):
    X = np.random.default_rng(0).normal(size=(num_rows, 3)) * [1.0, 100.0, 0.01] + [0.0, 50.0, 7.0]
    return plot_cases.pd.DataFrame(X, columns=["a", "b", "c"])


def kernel(lengthscale):
    base = RBFKernel(ard_num_dims=3)
    base.lengthscale = lengthscale
    return DecomposableKernel(base, num_outputs=2)


def test_plot_relevance_of_kernel_object():
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


def test_compute_relevance_of_quantile_regressor():
    np.testing.assert_allclose(compute_relevance(plot_cases.quantile_model())["lengthscale"], [[2.0]], rtol=1e-6)


def test_plot_relevance_rejects_kernels_without_ard():
    with pytest.raises(NotFittedError):
        plot_relevance(ovkgp.GPRegressor())
    with pytest.raises(OptionError, match="ARD"):
        plot_relevance(plot_cases.field())  # a field has one for all directions
    X = inputs()
    featured = ovkgp.GPRegressor(
        kernel([1.0, 1.0, 1.0]), approximation="orff", num_frequencies=5, hyperparameters="fixed", random_state=0
    )
    with pytest.raises(OptionError, match="standard deviations of the inputs"):
        plot_relevance(featured.fit(X, X[["a", "b"]]))


def correlations(matrix) -> np.ndarray:
    return matrix / np.sqrt(np.outer(np.diag(matrix), np.diag(matrix)))


def test_output_correlations_of_decomposable_kernel():
    model = plot_cases.two_outputs()
    matrix = correlations(hyperparameters(model.gp_.kernel)["output_matrix"].numpy())
    np.testing.assert_allclose(compute_output_correlations(model), matrix)
    axes = plot_output_correlations(model)
    np.testing.assert_allclose(axes.images[0].get_array(), matrix)
    assert [text.get_text() for text in axes.get_yticklabels()] == [r"price in \$", "_load"]
    assert axes.texts[1].get_text() == f"{matrix[0, 1]:.2f}".replace("-", "−")
    assert axes.child_axes[0].get_ylabel() == "correlation of the outputs"
    axes.figure.canvas.draw()


def test_output_correlations_of_sum():
    model = ovkgp.GPRegressor("lmc", hyperparameters="fixed").fit(*plot_cases.table())
    found = hyperparameters(model.gp_.kernel)
    matrix = (found["component_1.output_matrix"] + found["component_2.output_matrix"]).numpy()
    np.testing.assert_allclose(compute_output_correlations(model), correlations(matrix), atol=1e-12)


def test_output_correlations_of_independent_outputs_are_zero():
    model = ovkgp.GPRegressor("independent", hyperparameters="fixed").fit(*plot_cases.table())
    np.testing.assert_array_equal(compute_output_correlations(model), np.eye(2))
    np.testing.assert_allclose(compute_output_correlations(plot_cases.field()), np.eye(2), atol=1e-12)


def test_output_correlations_are_averaged_over_draws():
    model = plot_cases.drawn()
    drawn = [hyperparameters(model.posterior_.parts.set_draw(i).kernel)["output_matrix"].numpy() for i in range(10)]
    np.testing.assert_allclose(
        compute_output_correlations(model), np.mean([correlations(matrix) for matrix in drawn], axis=0)
    )


def test_plot_output_correlations_of_matrix():
    axes = Figure().subplots()
    assert plot_output_correlations([[4.0, -1.0], [-1.0, 1.0]], names=["u", "v"], ax=axes) is axes
    np.testing.assert_allclose(axes.images[0].get_array(), [[1, -0.5], [-0.5, 1]])
    assert [text.get_text() for text in axes.texts] == ["1", "−0.50", "−0.50", "1"]
    assert [text.get_color() for text in axes.texts] == ["black", "white", "white", "black"]
    assert [text.get_text() for text in plot_output_correlations(np.eye(2)).get_xticklabels()] == [
        "output 0",
        "output 1",
    ]


def test_plot_output_correlations_of_many_outputs_has_no_numbers():
    assert not plot_output_correlations(np.eye(21)).texts


def test_plot_output_correlations_rejects_invalid_input():
    with pytest.raises(NotFittedError):
        plot_output_correlations(ovkgp.GPRegressor())
    with pytest.raises(OptionError, match="kernel between outputs"):
        plot_output_correlations(plot_cases.quantile_model())
    with pytest.raises(OptionError, match="names"):
        plot_output_correlations(plot_cases.two_outputs(), names=["u", "v"])
    for matrix in (np.ones((2, 3)), [[1.0, 2.0], [0.0, 1.0]], [[0.0]], [[np.nan]], "matrix", np.zeros((0, 0))):
        with pytest.raises(InputError, match="matri"):
            plot_output_correlations(matrix)
    with pytest.raises(InputError, match="names"):
        plot_output_correlations(np.eye(2), names=["u"])
