"""Tests of `ovkgp.criticism.calibration`."""

import numpy as np
import plot_cases
import pytest
import torch
from gpytorch.kernels import RBFKernel
from scipy.stats import kstest
from sklearn.exceptions import NotFittedError

import ovkgp
from ovkgp.criticism import Coverage, coverage, pit_values
from ovkgp.exceptions import InputError, OptionError

pytestmark = [pytest.mark.filterwarnings("error"), pytest.mark.filterwarnings(plot_cases.JIT)]

NOISE = 0.1
CHANCE = 1e-3
"""A right model is refused with this probability, at a fixed seed."""


def kernel():
    return ovkgp.kernels.DecomposableKernel(
        RBFKernel(), output_matrix=torch.tensor([[1.0, 0.6], [0.6, 1.0]]).double()
    ).double()


def prior_data(num_rows: int = 200, seed: int = 0):
    """X (n, 1) and Y (n, 2) drawn from the prior of `kernel`, noise included."""
    rng = np.random.default_rng(seed)
    X = np.sort(rng.uniform(0, 30, (num_rows, 1)), axis=0)
    with torch.no_grad():
        covariance = kernel()(torch.from_numpy(X)).to_dense().numpy()
    root = np.linalg.cholesky(covariance + NOISE * np.eye(len(covariance)))
    return X, (root @ rng.normal(size=len(root))).reshape(num_rows, 2)


def right_model(X, Y):
    return ovkgp.OVKRidge(kernel(), lam=NOISE).fit(X, Y)


def test_entries_left_out_are_uniform_under_the_model_that_made_them():
    X, Y = prior_data()
    values = pit_values(right_model(X, Y))
    assert values.shape == Y.shape
    assert kstest(values.ravel(), "uniform").pvalue > CHANCE
    found = coverage(right_model(X, Y))
    lower, upper = found.band(1 - CHANCE)
    assert (lower <= found.observed).all() and (found.observed <= upper).all()


def test_rows_held_out_are_uniform_too():
    X, Y = prior_data(300, seed=1)
    model = right_model(X[::2], Y[::2])
    assert kstest(pit_values(model, X[1::2], Y[1::2]).ravel(), "uniform").pvalue > CHANCE


def test_a_model_with_half_the_standard_deviation_is_visibly_not():
    """The mean is linear in Y and the std does not know of it: for 2 Y all scores double, and P(|2z| ≤ 1.645) = 0.589."""
    X, Y = prior_data()
    too_sure = right_model(X, 2 * Y)
    assert kstest(pit_values(too_sure).ravel(), "uniform").pvalue < 1e-6
    found = coverage(too_sure, levels=[0.9])
    assert found.overall[0] == pytest.approx(0.589, abs=0.06)
    assert (found.observed < found.band(1 - CHANCE)[0]).all()


def test_a_mean_that_is_off_moves_all_values_to_one_side():
    X, Y = prior_data()
    model = right_model(X[::2], Y[::2])
    assert np.median(pit_values(model, X[1::2], Y[1::2] + 2.0)) > 0.9


def test_coverage_counts_entries_by_hand():
    pit = np.array([[0.5, np.nan], [0.04, 0.3], [0.96, 0.7], [0.99, np.nan]])
    found = Coverage.of(pit, levels=[0.9, 0.5])
    np.testing.assert_array_equal(found.levels, [0.5, 0.9])
    np.testing.assert_allclose(found.observed, [[0.25, 1.0], [0.25, 1.0]])
    np.testing.assert_array_equal(found.held, np.rint(found.observed * found.counts))
    np.testing.assert_array_equal(found.counts, [4, 2])
    np.testing.assert_allclose(found.overall, [0.5, 0.5])


def test_an_observation_on_the_edge_of_an_interval_is_inside():
    assert Coverage.of(np.array([[0.05], [0.95]]), levels=[0.9]).observed.item() == 1.0


def test_an_output_that_nobody_observed_has_no_coverage():
    found = Coverage.of(np.array([[0.5, np.nan]]), levels=[0.5])
    assert np.isnan(found.observed[0, 1]) and found.overall[0] == 1.0
    with pytest.raises(InputError, match="missing"):
        Coverage.of(np.full((3, 2), np.nan))


def test_the_band_is_that_of_the_binomial_distribution():
    found = Coverage.of(np.full((10, 1), 0.5), levels=[0.5])
    lower, upper = found.band(0.9)
    assert (lower.item(), upper.item()) == (0.2, 0.8)  # P(X < 2) = 0.011 and P(X < 3) = 0.055 of Binomial(10, 1/2)
    with pytest.raises(OptionError, match="confidence"):
        found.band(1.0)


@pytest.mark.parametrize("levels", [[0.0], [1.0], [], "half", [np.nan]])
def test_levels_lie_between_zero_and_one(levels):
    with pytest.raises(OptionError, match="between 0 and 1"):
        coverage(plot_cases.two_outputs(), levels=levels)


def test_missing_entries_are_missing():
    X, Y = plot_cases.table()
    for values in (pit_values(plot_cases.two_outputs()), pit_values(plot_cases.two_outputs(), X, Y)):
        np.testing.assert_array_equal(np.isnan(values), np.isnan(Y.to_numpy()))


def test_draws_answer_with_their_mixture():
    X, Y = plot_cases.table(20, seed=9)
    model = plot_cases.drawn()
    values = pit_values(model, X, Y)
    lower, upper = model.predict_interval(X, 0.8)
    observed = np.isfinite(Y.to_numpy())
    inside = (lower <= Y.to_numpy()) & (Y.to_numpy() <= upper)
    np.testing.assert_array_equal(inside[observed], (np.abs(values - 0.5) <= 0.4)[observed])


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
