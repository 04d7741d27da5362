"""Tests of `ovkgp.criticism.predictive_distributions`."""

import numpy as np
import pandas as pd
import plot_cases
import pytest
import torch
from scipy.stats import kstest, poisson
from sklearn.exceptions import NotFittedError

import ovkgp
from ovkgp.criticism import pit_values, training_data
from ovkgp.criticism.predictive_distributions import (
    EntryPredictions,
    combine_leave_one_out,
    predictive,
)
from ovkgp.estimators.common.validation import as_inputs
from ovkgp.exceptions import InputError, OptionError
from ovkgp.inference.posteriors.leave_one_out import LeaveOneOut
from ovkgp.inference.posteriors.prediction import normal_cdf

pytestmark = pytest.mark.filterwarnings("error")

FACTORIZATION_TOLERANCE = 1e-8
"""Relative difference between two factorizations of a well-conditioned matrix."""


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


def test_leave_one_out_entries_equal_refits_without_the_row():
    Y, found = outputs(), ridge(outputs()).leave_one_out_entries()
    for i in range(len(Y)):
        without = Y.copy()
        without[i] = np.nan
        mean, std = ridge(without).predict(rows()[[i]], return_std=True)
        observed = np.isfinite(Y[i])
        wanted = mean[0, observed], std[0, observed]
        np.testing.assert_allclose((found.mean[i, observed], found.std[i, observed]), wanted, FACTORIZATION_TOLERANCE)


def test_leave_one_out_entries_equal_refits_without_the_group():
    Y, tracks = outputs(), np.array([*"aabbccaabbcc"])
    found = ridge(Y).leave_one_out_entries(rows(), Y, tracks)
    for label in "abc":
        own = tracks == label
        without = np.where(own[:, None], np.nan, Y)
        mean, std = ridge(without).predict(rows()[own], return_std=True)
        observed = np.isfinite(Y[own])
        wanted = mean[observed], std[observed]
        found_here = found.mean[own][observed], found.std[own][observed]
        np.testing.assert_allclose(found_here, wanted, rtol=FACTORIZATION_TOLERANCE)
    with pytest.raises(InputError, match="passed with X and Y"):
        ridge(Y).leave_one_out_entries(groups=tracks)


def test_leave_one_out_entries_use_known_noise_of_training_rows():
    X, Y = rows(), outputs()
    noise = np.linspace(0.01, 1.0, Y.size).reshape(Y.shape)
    model = ovkgp.GPRegressor("decomposable", hyperparameters="fixed").fit(X, Y, noise=noise)
    stored, given = model.leave_one_out_entries(), model.leave_one_out_entries(X, Y)
    np.testing.assert_array_equal(stored.std, given.std)
    with pytest.raises(OptionError, match="known noise"):
        model.leave_one_out_entries(X[:6], Y[:6])


def test_coupled_outputs_are_not_predicted_from_their_own_row():
    """Two outputs with the same noise-free value in each row say nothing of a new row: the inputs are irrelevant."""
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(40, 1)), rng.normal(size=(40, 1))
    model = ovkgp.OVKRidge("decomposable", lam=1e-3, lengthscale=1e-3, output_matrix=[[1.0, 0.999], [0.999, 1.0]])
    model.fit(X, np.hstack([y, y]))
    entries, whole = model.leave_one_out_entries(groups="entries"), model.leave_one_out_entries()
    assert np.nanmean((entries.Y - entries.mean) ** 2) < 0.01 < 0.5 < np.nanmean((whole.Y - whole.mean) ** 2)
    explained = 1 - np.sum((whole.Y - whole.mean) ** 2) / np.sum((whole.Y - whole.Y.mean(0)) ** 2)
    assert explained < 0.1


def test_leave_one_out_entries_equal_refits_without_the_entry():
    Y, found = outputs(), ridge(outputs()).leave_one_out_entries(groups="entries")
    for i, a in [(0, 0), (3, 1), (4, 0), (11, 1)]:
        without = Y.copy()
        without[i, a] = np.nan
        mean, std = ridge(without).predict(rows()[[i]], return_std=True)
        np.testing.assert_allclose(
            [found.mean[i, a], found.std[i, a]], [mean[0, a], std[0, a]], rtol=FACTORIZATION_TOLERANCE
        )
    assert np.isnan(found.mean[4, 1]) and np.isnan(found.upto[4, 1])
    assert found.is_gaussian


def test_leave_one_out_cdf_equals_the_normal_cdf():
    found = plot_cases.two_outputs().leave_one_out_entries()
    observed = np.isfinite(found.Y)
    wanted = normal_cdf(*(torch.from_numpy(part[observed]) for part in (found.Y, found.mean, found.std)))
    np.testing.assert_allclose(found.upto[observed], wanted.numpy(), rtol=1e-9, atol=1e-12)


def test_combine_leave_one_out_weights_draws_by_inverse_densities():
    """Two values of θ, equally likely without the entry, give it densities 0.2 and 0.4: the posterior weights are 1 : 2."""
    mean, std = torch.tensor([0.0, 1.0, 1.0]).reshape(3, 1, 1), torch.tensor([1.0, 2.0, 2.0]).reshape(3, 1, 1)
    log_density = torch.tensor([0.2, 0.4, 0.4]).log().reshape(3, 1, 1)
    draws = [LeaveOneOut(*parts) for parts in zip(mean, std, log_density, strict=True)]
    y = torch.tensor([[0.3]])
    center, deviation, cdf, _ = combine_leave_one_out(draws, y)
    assert center.item() == pytest.approx(0.5)
    assert deviation.item() ** 2 == pytest.approx(0.5 * (1 + 4) + 0.25)
    assert cdf.item() == pytest.approx(normal_cdf(y, mean, std)[:2].mean().item())


def test_combine_leave_one_out_truncates_large_weights():
    one = torch.zeros(1, 1)
    draws = [LeaveOneOut(one + s, one + 1, one - (2 if s == 0 else 0)) for s in range(4)]
    weights = np.exp([2.0, 0, 0, 0]) / np.exp([2.0, 0, 0, 0]).sum()  # 0.71, 0.10, 0.10, 0.10
    truncated = np.minimum(weights, 0.5)
    assert combine_leave_one_out(draws, one)[0].item() == pytest.approx((truncated / truncated.sum()) @ np.arange(4))


def test_leave_one_out_entries_average_over_draws():
    model, (X, Y) = plot_cases.drawn(), plot_cases.table()
    found, scaling = model.leave_one_out_entries(), model.scaling_
    assert not found.is_gaussian
    drawn = (model.posterior_.parts.set_draw(index) for index in range(len(model.posterior_)))
    means = [scaling.mean(gp.leave_one_out(scaling.inputs(X), scaling.outputs(Y)).mean) for gp in drawn]
    low, high, observed = np.min(means, axis=0), np.max(means, axis=0), np.isfinite(found.Y)
    assert (found.mean[observed] >= low[observed]).all() and (found.mean[observed] <= high[observed]).all()
    assert (high[observed] > low[observed]).all()


def test_leave_one_out_entries_require_data_with_features():
    X, Y = plot_cases.table()
    found = plot_cases.featured().leave_one_out_entries(X, Y)
    observed = np.isfinite(Y.to_numpy()[:, 0])
    assert np.corrcoef(found.mean[observed, 0], found.Y[observed, 0])[0, 1] > 0.9
    with pytest.raises(OptionError, match="training rows"):
        plot_cases.featured().leave_one_out_entries()


@pytest.mark.parametrize("make", [plot_cases.mixed, plot_cases.quantile_model])
def test_leave_one_out_entries_reject_models_without_a_closed_form(make):
    with pytest.raises(OptionError, match="held"):
        make().leave_one_out_entries()


def test_leave_one_out_entries_reject_x_without_y():
    with pytest.raises(InputError, match="together"):
        plot_cases.two_outputs().leave_one_out_entries(plot_cases.table()[0])


def test_pit_values_of_discrete_outputs_are_randomized_reproducibly():
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


def test_randomized_pit_values_of_counts_are_uniform():
    rates, rng = np.full((4000, 1), 1.7), np.random.default_rng(0)
    y = rng.poisson(rates).astype(float)
    found = EntryPredictions(y, rates, np.sqrt(rates), poisson.cdf(y - 1, rates), poisson.cdf(y, rates), False)
    assert kstest(found.pit().ravel(), "uniform").pvalue > 1e-3
    assert abs(found.scores().std() - 1) < 0.05


def test_scores_of_gaussian_predictions_are_standardized_residuals():
    X, Y = plot_cases.table(20, seed=9)
    mean, std = plot_cases.two_outputs().predict(X, return_std=True)
    found = predictive(plot_cases.two_outputs(), X, Y)
    np.testing.assert_allclose(found.scores(), (Y.to_numpy() - mean) / std, rtol=1e-10)


def test_predictive_is_gaussian_for_single_gaussian_models_only():
    X, Y = plot_cases.table(20, seed=9)
    assert predictive(plot_cases.two_outputs(), X, Y).is_gaussian
    assert predictive(plot_cases.two_outputs()).is_gaussian
    assert not predictive(plot_cases.drawn(), X, Y).is_gaussian
    assert not predictive(plot_cases.mixed(), *plot_cases.mixed_table(9)).is_gaussian


ROUNDING_TOLERANCE = 1e-12
"""Relative error of scaling rows and converting them back."""


@pytest.mark.parametrize("make", [plot_cases.two_outputs, plot_cases.drawn])
def test_training_data_of_exact_models_has_all_rows(make):
    X, Y = training_data(make())
    frame, outputs = plot_cases.table()
    np.testing.assert_allclose(X, frame.to_numpy(), rtol=ROUNDING_TOLERANCE)
    np.testing.assert_allclose(Y, outputs.to_numpy(), rtol=ROUNDING_TOLERANCE)


def test_training_data_survives_save_and_load(tmp_path):
    plot_cases.two_outputs().save(tmp_path / "model.ovkgp")
    X, Y = training_data(ovkgp.load(tmp_path / "model.ovkgp"))
    np.testing.assert_array_equal(X, training_data(plot_cases.two_outputs())[0])
    np.testing.assert_array_equal(Y, training_data(plot_cases.two_outputs())[1])


def test_training_data_joins_rows_of_independent_outputs():
    X = np.array([[0.0], [1.0], [1.0], [2.0], [3.0], [4.0]])  # one input comes twice
    Y = np.array([[1.0, np.nan], [2.0, 20.0], [3.0, 30.0], [np.nan, 40.0], [5.0, 50.0], [6.0, np.nan]])
    found = np.column_stack(training_data(ovkgp.GPRegressor("independent", hyperparameters="fixed").fit(X, Y)))
    wanted = np.column_stack([X, Y])
    order = [np.lexsort(np.nan_to_num(rows, nan=-1.0).round(6).T) for rows in (found, wanted)]
    np.testing.assert_allclose(found[order[0]], wanted[order[1]], rtol=ROUNDING_TOLERANCE, atol=ROUNDING_TOLERANCE)


def test_training_observations_keep_known_noise_of_independent_outputs():
    X, Y = np.arange(6.0)[:, None], np.column_stack([np.sin(np.arange(6.0)), np.cos(np.arange(6.0))])
    Y[1, 0] = np.nan
    noise = 0.01 * (1 + np.arange(12.0).reshape(6, 2))
    model = ovkgp.GPRegressor("independent", hyperparameters="fixed").fit(X, Y, noise)
    data = model.training_observations()
    order = np.argsort(data.X[:, 0].numpy())
    found, observed = (data.noise.numpy() * model.scaling_.output_scale**2)[order], np.isfinite(Y)
    np.testing.assert_allclose(found[observed], noise[observed], rtol=1e-9)


def test_training_data_of_quantile_regressors_has_distinct_rows():
    X, Y = training_data(plot_cases.quantile_model())
    found = plot_cases.make_sine_quantiles(60, random_state=0)
    order = np.argsort(found.X[:, 0])
    np.testing.assert_allclose(X, found.X[order], rtol=1e-9)
    np.testing.assert_allclose(Y[:, 0], found.y[order], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("make", [plot_cases.featured, plot_cases.mixed])
def test_training_data_is_none_with_features_or_inducing_points(make):
    assert training_data(make()) is None


def test_training_data_of_ridges_requires_the_exact_kernel():
    X = np.linspace(0, 1, 12)[:, None]
    X_kept, Y_kept = training_data(ovkgp.OVKRidge(fit_intercept=True).fit(X, 3 + X))
    np.testing.assert_allclose(X_kept, X)
    np.testing.assert_allclose(Y_kept, 3 + X, rtol=ROUNDING_TOLERANCE)
    assert training_data(ovkgp.ORFFRidge(num_frequencies=5).fit(X, X)) is None


def test_training_data_of_level_sets_has_no_outputs():
    X = np.linspace(0, 1, 20)[:, None]
    found, Y = training_data(ovkgp.InfiniteOneClassSVM(nu=0.2).fit(X))
    np.testing.assert_allclose(found, X, atol=1e-12)
    assert Y is None


def test_training_data_rejects_an_unfitted_model():
    with pytest.raises(NotFittedError):
        training_data(ovkgp.GPRegressor())


def test_check_rows_rejects_columns_that_differ_from_fit():
    model, (X, Y) = plot_cases.two_outputs(), plot_cases.table()
    assert model.check_rows(X, Y)[1].shape == (30, 2)
    with pytest.raises(InputError, match="together"):
        model.check_rows(X, None)
    with pytest.raises(InputError, match="columns"):
        model.check_rows(X, Y.iloc[:, 0])
    with pytest.raises(InputError, match="1 column"):
        plot_cases.quantile_model().check_rows(pd.DataFrame(np.ones((3, 1)), columns=["age"]), np.ones((3, 2)))


def test_as_inputs_adds_column_names_of_the_fit():
    assert list(as_inputs(plot_cases.two_outputs(), np.ones((3, 1))).columns) == ["hour of the day"]
    assert isinstance(as_inputs(plot_cases.one_output(), np.ones((3, 1))), np.ndarray)
