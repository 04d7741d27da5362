"""The rows that a model keeps are those that it was fitted to, in the user's units."""

import numpy as np
import pandas as pd
import plot_cases
import pytest
from sklearn.exceptions import NotFittedError

import ovkgp
from ovkgp.criticism import kept_rows
from ovkgp.criticism.predictive_distributions import as_inputs, given_rows
from ovkgp.exceptions import InputError

pytestmark = [pytest.mark.filterwarnings("error"), pytest.mark.filterwarnings(plot_cases.JIT)]

ROUNDING = 1e-12
"""Rows are scaled and scaled back."""


@pytest.mark.parametrize("make", [plot_cases.two_outputs, plot_cases.drawn])
def test_exact_models_keep_their_rows_with_what_is_missing(make):
    X, Y = kept_rows(make())
    frame, outputs = plot_cases.table()
    np.testing.assert_allclose(X, frame.to_numpy(), rtol=ROUNDING)
    np.testing.assert_allclose(Y, outputs.to_numpy(), rtol=ROUNDING)


def test_a_model_that_was_saved_and_loaded_keeps_them_too(tmp_path):
    plot_cases.two_outputs().save(tmp_path / "model.ovkgp")
    X, Y = kept_rows(ovkgp.load(tmp_path / "model.ovkgp"))
    np.testing.assert_array_equal(X, kept_rows(plot_cases.two_outputs())[0])
    np.testing.assert_array_equal(Y, kept_rows(plot_cases.two_outputs())[1])


def test_rows_of_independent_outputs_are_put_together_again():
    X = np.array([[0.0], [1.0], [1.0], [2.0], [3.0], [4.0]])  # one input comes twice
    Y = np.array([[1.0, np.nan], [2.0, 20.0], [3.0, 30.0], [np.nan, 40.0], [5.0, 50.0], [6.0, np.nan]])
    found = np.column_stack(kept_rows(ovkgp.GPRegressor("independent", hyperparameters="fixed").fit(X, Y)))
    wanted = np.column_stack([X, Y])
    order = [np.lexsort(np.nan_to_num(rows, nan=-1.0).round(6).T) for rows in (found, wanted)]
    np.testing.assert_allclose(found[order[0]], wanted[order[1]], rtol=ROUNDING, atol=ROUNDING)


def test_known_noise_of_independent_outputs_comes_along():
    from ovkgp.criticism.predictive_distributions import kept_observations

    X, Y = np.arange(6.0)[:, None], np.column_stack([np.sin(np.arange(6.0)), np.cos(np.arange(6.0))])
    Y[1, 0] = np.nan
    noise = 0.01 * (1 + np.arange(12.0).reshape(6, 2))
    model = ovkgp.GPRegressor("independent", hyperparameters="fixed").fit(X, Y, noise)
    data = kept_observations(model)
    order = np.argsort(data.X[:, 0].numpy())
    found, seen = (data.noise.numpy() * model.scaling_.output_scale**2)[order], np.isfinite(Y)
    np.testing.assert_allclose(found[seen], noise[seen], rtol=1e-9)


def test_quantile_regressors_keep_their_distinct_rows():
    X, Y = kept_rows(plot_cases.quantile_model())
    found = plot_cases.make_sine_quantiles(60, random_state=0)
    order = np.argsort(found.X[:, 0])
    np.testing.assert_allclose(X, found.X[order], rtol=1e-9)
    np.testing.assert_allclose(Y[:, 0], found.y[order], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("make", [plot_cases.featured, plot_cases.mixed])
def test_features_and_inducing_points_keep_none(make):
    assert kept_rows(make()) is None


def test_ridges_keep_rows_with_the_exact_kernel_only():
    X = np.linspace(0, 1, 12)[:, None]
    X_kept, Y_kept = kept_rows(ovkgp.OVKRidge(fit_intercept=True).fit(X, 3 + X))
    np.testing.assert_allclose(X_kept, X)
    np.testing.assert_allclose(Y_kept, 3 + X, rtol=ROUNDING)
    assert kept_rows(ovkgp.ORFFRidge(num_frequencies=5).fit(X, X)) is None


def test_what_is_no_posterior_keeps_none_that_are_known():
    assert kept_rows(ovkgp.InfiniteOneClassSVM(nu=0.2).fit(np.linspace(0, 1, 20)[:, None])) is None


def test_an_unfitted_model_says_so():
    with pytest.raises(NotFittedError):
        kept_rows(ovkgp.GPRegressor())


def test_given_rows_are_checked_against_the_fit():
    model, (X, Y) = plot_cases.two_outputs(), plot_cases.table()
    assert given_rows(model, X, Y)[1].shape == (30, 2)
    with pytest.raises(InputError, match="X and Y together"):
        given_rows(model, X, None)
    with pytest.raises(InputError, match="fitted with 2"):
        given_rows(model, X, Y.iloc[:, 0])
    with pytest.raises(InputError, match="one output"):
        given_rows(plot_cases.quantile_model(), pd.DataFrame(np.ones((3, 1)), columns=["age"]), np.ones((3, 2)))


def test_points_get_the_names_of_the_fit():
    assert list(as_inputs(plot_cases.two_outputs(), np.ones((3, 1))).columns) == ["hour of the day"]
    assert isinstance(as_inputs(plot_cases.one_output(), np.ones((3, 1))), np.ndarray)
