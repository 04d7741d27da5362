"""Probability integral transforms of mixtures and quantile curves, and what is refused."""

import numpy as np
import plot_cases
import pytest
from sklearn.exceptions import NotFittedError

import ovkgp
from ovkgp.criticism import pit_values
from ovkgp.exceptions import InputError, OptionError

pytestmark = [pytest.mark.filterwarnings("error"), pytest.mark.filterwarnings(plot_cases.JIT)]


def test_missing_entries_are_missing():
    X, Y = plot_cases.table()
    for values in (pit_values(plot_cases.two_outputs()), pit_values(plot_cases.two_outputs(), X, Y)):
        np.testing.assert_array_equal(np.isnan(values), np.isnan(Y.to_numpy()))


def test_draws_answer_with_their_mixture():
    X, Y = plot_cases.table(20, seed=9)
    model = plot_cases.drawn()
    values = pit_values(model, X, Y)
    lower, upper = model.predict_interval(X, 0.8)
    seen = np.isfinite(Y.to_numpy())
    inside = (lower <= Y.to_numpy()) & (Y.to_numpy() <= upper)
    np.testing.assert_array_equal(inside[seen], (np.abs(values - 0.5) <= 0.4)[seen])


def test_quantile_curves_answer_with_their_level():
    model = plot_cases.quantile_model()
    X = plot_cases.pd.DataFrame({"age": np.linspace(0.1, 1.4, 7)})
    curve = model.predict(X, 0.3)
    y = plot_cases.pd.Series(np.where(np.arange(7) == 2, np.nan, curve), name="wage")
    values = pit_values(model, X, y)
    assert np.isnan(values[2, 0])
    np.testing.assert_allclose(np.delete(values[:, 0], 2), 0.3, atol=1e-3)


def test_what_cannot_be_judged_says_what_to_do():
    X, Y = plot_cases.table()
    with pytest.raises(OptionError, match="give X and Y"):
        pit_values(plot_cases.featured())
    with pytest.raises(OptionError, match="held out"):
        pit_values(plot_cases.mixed())
    with pytest.raises(InputError, match="together"):
        pit_values(plot_cases.two_outputs(), X)
    with pytest.raises(NotFittedError):
        pit_values(ovkgp.GPRegressor(), X, Y)
    level_set = ovkgp.InfiniteOneClassSVM(nu=0.2).fit(np.linspace(0, 1, 20)[:, None])
    for rows in ((), (np.ones((3, 1)), np.ones(3))):
        with pytest.raises(OptionError, match="InfiniteOneClassSVM has none: use GPRegressor"):
            pit_values(level_set, *rows)
