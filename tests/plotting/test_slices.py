"""Tests of `ovkgp.plotting.slices`."""

import numpy as np
import pandas as pd
import plot_cases
import pytest
from sklearn.exceptions import NotFittedError

import ovkgp
from ovkgp.exceptions import InputError, OptionError
from ovkgp.plotting.slices import (
    Bands,
    InputSlice,
    PlotData,
    check_posterior_regressor,
    compute_mean_response,
    get_input_range,
    get_output_kinds,
)

pytestmark = pytest.mark.filterwarnings("error")


def test_bands_of_one_dimensional_output_have_one_column():
    bands = Bands.predict(plot_cases.one_output(), np.linspace(10, 16, 5)[:, None], 0.9, True, 2)
    assert bands.mean.shape == bands.lower.shape == bands.upper.shape == (5, 1)
    assert bands.draws.shape == (2, 5, 1) and bands.kinds == ["real"]
    assert (bands.lower < bands.mean).all() and (bands.mean < bands.upper).all()


def test_bands_depend_on_kind_of_output():
    points = np.linspace(0, 6, 5)[:, None]
    bands = Bands.predict(plot_cases.mixed(), points, 0.9, True, 0)
    lower, _ = plot_cases.mixed().predict_interval(points, 0.9)
    np.testing.assert_array_equal(bands.lower[:, 1:], lower[:, 1:])
    assert ((bands.lower[:, 0] > lower[:, 0]) & (bands.upper[:, 0] < 1)).all()
    latent = Bands.predict(plot_cases.mixed(), points, 0.9, False, 0)
    np.testing.assert_array_equal(latent.upper, plot_cases.mixed().predict_interval(points, 0.9, noise=False)[1])


def test_check_posterior_regressor_rejects_other_estimators():
    for model in (plot_cases.two_outputs(), ovkgp.OVKRidge(), ovkgp.ORFFRidge()):
        check_posterior_regressor(model, "plot_prediction")
    with pytest.raises(OptionError, match=r"plot_prediction.*InfiniteQuantileRegressor"):
        check_posterior_regressor(plot_cases.quantile_model(), "plot_prediction")


def three_inputs():
    X = pd.DataFrame(np.random.default_rng(0).normal(size=(20, 3)), columns=["a", "b", "c"])
    return ovkgp.OVKRidge().fit(X, X["a"]), X


def test_plot_data_are_given_or_stored_or_only_inputs():
    model, (X, Y) = plot_cases.two_outputs(), plot_cases.table(9, seed=3)
    given, kept, only = PlotData.resolve(model, X, Y), PlotData.resolve(model), PlotData.resolve(model, X)
    np.testing.assert_array_equal(given.Y, Y.to_numpy())
    assert kept.Y.shape == (30, 2) and only.Y is None and len(only.X) == 9
    assert PlotData.resolve(plot_cases.featured()) == PlotData(None, None)
    with pytest.raises(InputError, match="together"):
        PlotData.resolve(model, None, Y)
    with pytest.raises(NotFittedError):
        PlotData.resolve(ovkgp.GPRegressor(), X, Y)


def test_input_slice_fixes_other_inputs_at_medians():
    model, X = three_inputs()
    input_slice = InputSlice.create(model, PlotData.resolve(model), along="b", num_points=7)
    np.testing.assert_allclose(input_slice.axis, np.linspace(X["b"].min(), X["b"].max(), 7))
    np.testing.assert_allclose(input_slice.points[:, [0, 2]], np.tile(np.median(X[["a", "c"]], axis=0), (7, 1)))
    assert input_slice.name.startswith("b\n(a = ") and "c = " in input_slice.name


def test_input_slice_name_counts_many_other_inputs():
    X = np.random.default_rng(0).normal(size=(20, 6))
    input_slice = InputSlice.create(model := ovkgp.OVKRidge().fit(X, X), PlotData.resolve(model), along=5)
    assert input_slice.name == "input 5\n(the other 5 inputs at their medians)"


def test_input_range_of_constant_input_has_positive_width():
    low, _, high = get_input_range(three_inputs()[0], np.array([[0.0, 5.0, 1.0], [0.0, 5.0, 2.0]]))
    assert (low < high).all()
    np.testing.assert_allclose([low[:2], high[:2]], [[-0.5, 4.5], [0.5, 5.5]])


def test_input_range_without_data_comes_from_scaling():
    featured = plot_cases.featured()
    offset, scale = featured.scaling_.input_offset, featured.scaling_.input_scale
    np.testing.assert_allclose(get_input_range(featured, None)[2], offset + 2 * scale)
    ridge = ovkgp.ORFFRidge(num_frequencies=5).fit(np.eye(3), np.eye(3))
    with pytest.raises(InputError, match="X is required"):
        get_input_range(ridge, None)


def test_input_slice_rejects_invalid_options():
    model, _ = three_inputs()
    with pytest.raises(OptionError, match="along"):
        InputSlice.create(model, PlotData.resolve(model), along="d")
    with pytest.raises(OptionError, match="num_points"):
        InputSlice.create(model, PlotData.resolve(model), num_points=1)


def test_output_kinds_follow_likelihood():
    assert get_output_kinds(plot_cases.mixed(), 3) == ["label", "count", "real"]
    assert get_output_kinds(plot_cases.two_outputs(), 2) == ["real", "real"]
    X, Y = np.linspace(0, 1, 12)[:, None], np.eye(2)[np.arange(12) % 2]
    options = {"num_frequencies": 4, "hyperparameters": "fixed", "random_state": 0}
    classes = ovkgp.GPRegressor("independent", likelihood="softmax", **options).fit(X, Y)
    assert get_output_kinds(classes, 2) == ["class", "class"]
    np.testing.assert_allclose(
        compute_mean_response(classes, np.array([[1.0, 3.0]])), [[1 / (1 + np.e**2), 1 / (1 + np.e**-2)]]
    )
    heavy = ovkgp.GPRegressor("independent", likelihood="student_t", **options).fit(X, X)
    assert get_output_kinds(heavy, 1) == ["real"]
    np.testing.assert_array_equal(compute_mean_response(heavy, np.ones((2, 1))), np.ones((2, 1)))


def test_mean_response_applies_inverse_link_per_output():
    latent = np.array([[[-2.0, 0.5, 7.0], [0.0, 1.0, -7.0]]])
    wanted = np.stack([1 / (1 + np.exp(-latent[..., 0])), np.exp(latent[..., 1]), latent[..., 2]], -1)
    np.testing.assert_allclose(compute_mean_response(plot_cases.mixed(), latent), wanted, rtol=1e-6)
    np.testing.assert_array_equal(compute_mean_response(plot_cases.two_outputs(), latent), latent)
