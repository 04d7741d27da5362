"""Tests of `ovkgp.plotting.output_correlations`."""

import numpy as np
import plot_cases
import pytest
from matplotlib.figure import Figure
from sklearn.exceptions import NotFittedError

import ovkgp
from ovkgp.exceptions import InputError, OptionError
from ovkgp.inference.model.parameter_vector import hyperparameters
from ovkgp.plotting import plot_output_correlations
from ovkgp.plotting.output_correlations import compute_output_correlations

pytestmark = pytest.mark.filterwarnings("error")


def correlations(matrix) -> np.ndarray:
    return matrix / np.sqrt(np.outer(np.diag(matrix), np.diag(matrix)))


def test_output_correlations_of_decomposable_kernel_match_output_matrix():
    model = plot_cases.two_outputs()
    matrix = correlations(hyperparameters(model.gp_.kernel)["output_matrix"].numpy())
    np.testing.assert_allclose(compute_output_correlations(model), matrix)
    axes = plot_output_correlations(model)
    np.testing.assert_allclose(axes.images[0].get_array(), matrix)
    assert [text.get_text() for text in axes.get_yticklabels()] == [r"price in \$", "_load"]
    assert axes.texts[1].get_text() == f"{matrix[0, 1]:.2f}".replace("-", "−")
    assert axes.child_axes[0].get_ylabel() == "correlation of the outputs"
    axes.figure.canvas.draw()


def test_output_correlations_of_lmc_match_sum_of_output_matrices():
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


def test_plot_output_correlations_shows_given_matrix():
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
    for matrix in (np.ones((2, 3)), [[1.0, 2.0], [0.0, 1.0]], [[0.0]], [[np.nan]], [["a"]], np.zeros((0, 0))):
        with pytest.raises(InputError, match="matri"):
            plot_output_correlations(matrix)
    with pytest.raises(InputError, match=r"estimator must be .* got str"):
        plot_output_correlations("matrix")
    with pytest.raises(InputError, match="names"):
        plot_output_correlations(np.eye(2), names=["u"])
