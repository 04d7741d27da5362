"""Tests of `ovkgp.plotting.slices`."""

import numpy as np
import pandas as pd
import plot_cases
import pytest
from sklearn.exceptions import NotFittedError

import ovkgp
from ovkgp.exceptions import InputError, OptionError
from ovkgp.plotting.slices import Bands, Data, InputSlice, check_posterior, input_range, output_kinds, responses

pytestmark = [pytest.mark.filterwarnings("error"), pytest.mark.filterwarnings(plot_cases.JIT)]


def test_outputs_that_were_one_dimensional_have_one_column():
    bands = Bands.of(plot_cases.one_output(), np.linspace(10, 16, 5)[:, None], 0.9, True, 2)
    assert bands.mean.shape == bands.lower.shape == bands.upper.shape == (5, 1)
    assert bands.draws.shape == (2, 5, 1) and bands.kinds == ["real"]
    assert (bands.lower < bands.mean).all() and (bands.mean < bands.upper).all()


def test_of_several_kinds_each_has_its_own_band():
    points = np.linspace(0, 6, 5)[:, None]
    bands = Bands.of(plot_cases.mixed(), points, 0.9, True, 0)
    lower, _ = plot_cases.mixed().predict_interval(points, 0.9)
    np.testing.assert_array_equal(bands.lower[:, 1:], lower[:, 1:])
    assert ((bands.lower[:, 0] > lower[:, 0]) & (bands.upper[:, 0] < 1)).all()
    latent = Bands.of(plot_cases.mixed(), points, 0.9, False, 0)
    np.testing.assert_array_equal(latent.upper, plot_cases.mixed().predict_interval(points, 0.9, noise=False)[1])


def test_only_posteriors_have_bands():
    for model in (plot_cases.two_outputs(), ovkgp.OVKRidge(), ovkgp.ORFFRidge()):
        check_posterior(model, "plot_prediction")
    with pytest.raises(OptionError, match=r"plot_prediction draws the posterior .* got InfiniteQuantileRegressor"):
        check_posterior(plot_cases.quantile_model(), "plot_prediction")


def three_inputs():
    X = pd.DataFrame(np.random.default_rng(0).normal(size=(20, 3)), columns=["a", "b", "c"])
    return ovkgp.OVKRidge().fit(X, X["a"]), X


def test_data_are_given_or_kept_or_only_a_range():
    model, (X, Y) = plot_cases.two_outputs(), plot_cases.table(9, seed=3)
    given, kept, only = Data.of(model, X, Y), Data.of(model), Data.of(model, X)
    np.testing.assert_array_equal(given.Y, Y.to_numpy())
    assert kept.Y.shape == (30, 2) and only.Y is None and len(only.X) == 9
    assert Data.of(plot_cases.featured()) == Data(None, None)
    with pytest.raises(InputError, match="together"):
        Data.of(model, None, Y)
    with pytest.raises(NotFittedError):
        Data.of(ovkgp.GPRegressor(), X, Y)


def test_a_cut_keeps_the_other_inputs_at_their_medians():
    model, X = three_inputs()
    cut = InputSlice.of(model, Data.of(model), along="b", num_points=7)
    np.testing.assert_allclose(cut.axis, np.linspace(X["b"].min(), X["b"].max(), 7))
    np.testing.assert_allclose(cut.points[:, [0, 2]], np.tile(np.median(X[["a", "c"]], axis=0), (7, 1)))
    assert cut.name.startswith("b\n(a = ") and "c = " in cut.name


def test_many_other_inputs_are_counted_and_not_listed():
    X = np.random.default_rng(0).normal(size=(20, 6))
    cut = InputSlice.of(model := ovkgp.OVKRidge().fit(X, X), Data.of(model), along=5)
    assert cut.name == "input 5\n(the other 5 inputs at their medians)"


def test_an_input_without_spread_has_a_range_all_the_same():
    low, _, high = input_range(three_inputs()[0], np.array([[0.0, 5.0, 1.0], [0.0, 5.0, 2.0]]))
    assert (low < high).all()
    np.testing.assert_allclose([low[:2], high[:2]], [[-0.5, 4.5], [0.5, 5.5]])


def test_a_model_that_keeps_no_rows_knows_its_range_from_its_scaling_or_asks():
    featured = plot_cases.featured()
    offset, scale = featured.scaling_.input_offset, featured.scaling_.input_scale
    np.testing.assert_allclose(input_range(featured, None)[2], offset + 2 * scale)
    ridge = ovkgp.ORFFRidge(num_frequencies=5).fit(np.eye(3), np.eye(3))
    with pytest.raises(InputError, match="give X"):
        input_range(ridge, None)


def test_options_are_checked():
    model, _ = three_inputs()
    with pytest.raises(OptionError, match="along must be one of 'a', 'b', 'c'"):
        InputSlice.of(model, Data.of(model), along="d")
    with pytest.raises(OptionError, match="num_points must be at least 2"):
        InputSlice.of(model, Data.of(model), num_points=1)


def test_kinds_of_outputs():
    assert output_kinds(plot_cases.mixed(), 3) == ["label", "count", "real"]
    assert output_kinds(plot_cases.two_outputs(), 2) == ["real", "real"]
    X, Y = np.linspace(0, 1, 12)[:, None], np.eye(2)[np.arange(12) % 2]
    options = {"num_frequencies": 4, "hyperparameters": "fixed", "random_state": 0}
    classes = ovkgp.GPRegressor("independent", likelihood="softmax", **options).fit(X, Y)
    assert output_kinds(classes, 2) == ["class", "class"]
    np.testing.assert_allclose(responses(classes, np.array([[1.0, 3.0]])), [[1 / (1 + np.e**2), 1 / (1 + np.e**-2)]])
    heavy = ovkgp.GPRegressor("independent", likelihood="student_t", **options).fit(X, X)
    assert output_kinds(heavy, 1) == ["real"]
    np.testing.assert_array_equal(responses(heavy, np.ones((2, 1))), np.ones((2, 1)))


def test_latent_functions_become_probabilities_expected_counts_and_themselves():
    latent = np.array([[[-2.0, 0.5, 7.0], [0.0, 1.0, -7.0]]])
    wanted = np.stack([1 / (1 + np.exp(-latent[..., 0])), np.exp(latent[..., 1]), latent[..., 2]], -1)
    np.testing.assert_allclose(responses(plot_cases.mixed(), latent), wanted, rtol=1e-6)
    np.testing.assert_array_equal(responses(plot_cases.two_outputs(), latent), latent)
