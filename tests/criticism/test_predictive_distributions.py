"""Tests of `ovkgp.criticism.predictive_distributions`."""

import numpy as np
import pandas as pd
import plot_cases
import pytest
import torch
from scipy.stats import kstest, poisson
from sklearn.exceptions import NotFittedError

import ovkgp
from ovkgp.criticism import kept_rows, pit_values
from ovkgp.criticism.predictive_distributions import (
    Predictive,
    _mixed,
    as_inputs,
    given_rows,
    leave_one_out_entries,
    predictive,
)
from ovkgp.exceptions import InputError, OptionError
from ovkgp.inference.posteriors.leave_one_out import LeaveOneOut
from ovkgp.inference.posteriors.prediction import normal_cdf

pytestmark = [pytest.mark.filterwarnings("error"), pytest.mark.filterwarnings(plot_cases.JIT)]

FACTORISED = 1e-8
"""Two factorisations of a well-conditioned matrix."""


def ridge(Y):
    return ovkgp.OVKRidge("decomposable", lam=0.05, lengthscale=1.0, output_matrix=[[1.0, 0.7], [0.7, 1.0]]).fit(
        rows(), Y
    )


def rows():
    return np.linspace(0, 6, 12)[:, None]


def outputs():
    Y = np.column_stack([np.sin(rows()[:, 0]), np.cos(rows()[:, 0])])
    Y[4, 1] = np.nan
    return Y


def test_an_entry_left_out_is_an_entry_never_seen():
    Y, found = outputs(), leave_one_out_entries(ridge(outputs()))
    for i, a in [(0, 0), (3, 1), (4, 0), (11, 1)]:
        without = Y.copy()
        without[i, a] = np.nan
        mean, std = ridge(without).predict(rows()[[i]], return_std=True)
        np.testing.assert_allclose([found.mean[i, a], found.std[i, a]], [mean[0, a], std[0, a]], rtol=FACTORISED)
    assert np.isnan(found.mean[4, 1]) and np.isnan(found.cdf[4, 1])
    assert found.is_gaussian


def test_the_distribution_function_is_that_of_the_prediction():
    found = leave_one_out_entries(plot_cases.two_outputs())
    observed = np.isfinite(found.Y)
    wanted = normal_cdf(*(torch.from_numpy(part[observed]) for part in (found.Y, found.mean, found.std)))
    np.testing.assert_allclose(found.cdf[observed], wanted.numpy(), rtol=1e-9, atol=1e-12)


def test_weights_of_draws_take_back_what_the_entry_told_them():
    """Two values of θ, equally likely without the entry, with densities 0.2 and 0.4 of it: its posterior has them as 1 : 2."""
    mean, std = torch.tensor([0.0, 1.0, 1.0]).reshape(3, 1, 1), torch.tensor([1.0, 2.0, 2.0]).reshape(3, 1, 1)
    log_density = torch.tensor([0.2, 0.4, 0.4]).log().reshape(3, 1, 1)
    draws = [LeaveOneOut(*parts) for parts in zip(mean, std, log_density, strict=True)]
    y = torch.tensor([[0.3]])
    centre, spread, cdf = _mixed(draws, y)
    assert centre.item() == pytest.approx(0.5)
    assert spread.item() ** 2 == pytest.approx(0.5 * (1 + 4) + 0.25)
    assert cdf.item() == pytest.approx(normal_cdf(y, mean, std)[:2].mean().item())


def test_a_weight_that_outweighs_all_others_is_cut():
    one = torch.zeros(1, 1)
    draws = [LeaveOneOut(one + s, one + 1, one - (2 if s == 0 else 0)) for s in range(4)]
    weights = np.exp([2.0, 0, 0, 0]) / np.exp([2.0, 0, 0, 0]).sum()  # 0.71, 0.10, 0.10, 0.10
    cut = np.minimum(weights, 0.5)
    assert _mixed(draws, one)[0].item() == pytest.approx((cut / cut.sum()) @ np.arange(4))


def test_a_model_with_draws_averages_over_them():
    model, (X, Y) = plot_cases.drawn(), plot_cases.table()
    found, scaling = leave_one_out_entries(model), model.scaling_
    assert not found.is_gaussian
    drawn = (model.posterior_.parts.place(index) for index in range(len(model.posterior_)))
    means = [scaling.mean(gp.leave_one_out(scaling.inputs(X), scaling.outputs(Y)).mean) for gp in drawn]
    low, high, observed = np.min(means, axis=0), np.max(means, axis=0), np.isfinite(found.Y)
    assert (found.mean[observed] >= low[observed]).all() and (found.mean[observed] <= high[observed]).all()
    assert (high[observed] > low[observed]).all()


def test_a_model_with_features_takes_the_rows_it_was_fitted_to():
    X, Y = plot_cases.table()
    found = leave_one_out_entries(plot_cases.featured(), X, Y)
    observed = np.isfinite(Y.to_numpy()[:, 0])
    assert np.corrcoef(found.mean[observed, 0], found.Y[observed, 0])[0, 1] > 0.9
    with pytest.raises(OptionError, match="keeps no rows"):
        leave_one_out_entries(plot_cases.featured())


@pytest.mark.parametrize("make", [plot_cases.mixed, plot_cases.quantile_model])
def test_models_without_a_closed_form_ask_for_rows_held_out(make):
    with pytest.raises(OptionError, match="held out"):
        leave_one_out_entries(make())


def test_x_without_y_is_refused():
    with pytest.raises(InputError, match="together"):
        leave_one_out_entries(plot_cases.two_outputs(), plot_cases.table()[0])


def test_jumps_of_labels_and_counts_are_filled_with_the_same_numbers_every_time():
    X, Y = plot_cases.mixed_table(60, seed=5)
    found = predictive(plot_cases.mixed(), X, Y)
    probability = plot_cases.mixed().predict(X)[:, 0]
    np.testing.assert_allclose(found.below[:, 0], np.where(Y[:, 0] == 1, 1 - probability, 0), atol=1e-12)
    np.testing.assert_allclose(found.upto[:, 0], np.where(Y[:, 0] == 1, 1, 1 - probability), atol=1e-12)
    assert (found.upto[:, 1] > found.below[:, 1]).all()
    np.testing.assert_array_equal(found.upto[:, 2], found.below[:, 2])
    values = pit_values(plot_cases.mixed(), X, Y)
    assert ((found.below <= values) & (values <= found.upto)).all()
    np.testing.assert_array_equal(values, pit_values(plot_cases.mixed(), X, Y))


def test_randomised_values_of_counts_are_uniform():
    rates, rng = np.full((4000, 1), 1.7), np.random.default_rng(0)
    y = rng.poisson(rates).astype(float)
    found = Predictive(y, rates, np.sqrt(rates), poisson.cdf(y - 1, rates), poisson.cdf(y, rates), False)
    assert kstest(found.pit().ravel(), "uniform").pvalue > 1e-3
    assert abs(found.scores().std() - 1) < 0.05


def test_scores_of_gaussian_predictions_are_standardised_residuals():
    X, Y = plot_cases.table(20, seed=9)
    mean, std = plot_cases.two_outputs().predict(X, return_std=True)
    found = predictive(plot_cases.two_outputs(), X, Y)
    np.testing.assert_allclose(found.scores(), (Y.to_numpy() - mean) / std, rtol=1e-10)


def test_only_gaussian_predictions_are_said_by_mean_and_std():
    X, Y = plot_cases.table(20, seed=9)
    assert predictive(plot_cases.two_outputs(), X, Y).is_gaussian
    assert predictive(plot_cases.two_outputs()).is_gaussian
    assert not predictive(plot_cases.drawn(), X, Y).is_gaussian
    assert not predictive(plot_cases.mixed(), *plot_cases.mixed_table(9)).is_gaussian


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
    found, observed = (data.noise.numpy() * model.scaling_.output_scale**2)[order], np.isfinite(Y)
    np.testing.assert_allclose(found[observed], noise[observed], rtol=1e-9)


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
