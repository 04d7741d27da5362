"""Cuts run over the range of the data, and data are what was given, what is kept, or nothing."""

import numpy as np
import pandas as pd
import plot_cases
import pytest
from sklearn.exceptions import NotFittedError

import ovkgp
from ovkgp.exceptions import InputError, OptionError
from ovkgp.plotting.slices import Cut, Data, input_range

pytestmark = [pytest.mark.filterwarnings("error"), pytest.mark.filterwarnings(plot_cases.JIT)]


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
    cut = Cut.of(model, Data.of(model), along="b", num_points=7)
    np.testing.assert_allclose(cut.axis, np.linspace(X["b"].min(), X["b"].max(), 7))
    np.testing.assert_allclose(cut.points[:, [0, 2]], np.tile(np.median(X[["a", "c"]], axis=0), (7, 1)))
    assert cut.name.startswith("b\n(a = ") and "c = " in cut.name


def test_many_other_inputs_are_counted_and_not_listed():
    X = np.random.default_rng(0).normal(size=(20, 6))
    cut = Cut.of(model := ovkgp.OVKRidge().fit(X, X), Data.of(model), along=5)
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
        Cut.of(model, Data.of(model), along="d")
    with pytest.raises(OptionError, match="num_points must be at least 2"):
        Cut.of(model, Data.of(model), num_points=1)
