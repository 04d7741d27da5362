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

pytestmark = pytest.mark.filterwarnings("error")

NOISE = 0.1
REJECTION_PROBABILITY = 1e-3
"""Probability of rejecting the true model, at a fixed seed."""


def kernel():
    return ovkgp.kernels.DecomposableKernel(
        RBFKernel(), output_matrix=torch.tensor([[1.0, 0.6], [0.6, 1.0]]).double()
    ).double()


def prior_data(num_rows: int = 200, seed: int = 0):
    """Draw X (n, 1), and Y (n, 2) from the prior of `kernel` with noise."""
    rng = np.random.default_rng(seed)
    X = np.sort(rng.uniform(0, 30, (num_rows, 1)), axis=0)
    with torch.no_grad():
        covariance = kernel()(torch.from_numpy(X)).to_dense().numpy()
    root = np.linalg.cholesky(covariance + NOISE * np.eye(len(covariance)))
    return X, (root @ rng.normal(size=len(root))).reshape(num_rows, 2)


def true_model(X, Y):
    return ovkgp.OVKRidge(kernel(), lam=NOISE).fit(X, Y)


def test_pit_values_of_leave_one_out_are_uniform_under_the_true_model():
    X, Y = prior_data()
    values = pit_values(true_model(X, Y))
    assert values.shape == Y.shape
    assert kstest(values.ravel(), "uniform").pvalue > REJECTION_PROBABILITY
    found = coverage(true_model(X, Y))
    lower, upper = found.band(1 - REJECTION_PROBABILITY)
    assert (lower <= found.observed).all() and (found.observed <= upper).all()


def test_pit_values_of_held_out_rows_are_uniform_under_the_true_model():
    X, Y = prior_data(300, seed=1)
    model = true_model(X[::2], Y[::2])
    assert kstest(pit_values(model, X[1::2], Y[1::2]).ravel(), "uniform").pvalue > REJECTION_PROBABILITY


def test_coverage_detects_half_the_standard_deviation():
    """The mean is linear in Y and the std does not depend on it: for 2 Y all scores double, and P(|2z| ≤ 1.645) = 0.589."""
    X, Y = prior_data()
    overconfident = true_model(X, 2 * Y)
    assert kstest(pit_values(overconfident).ravel(), "uniform").pvalue < 1e-6
    found = coverage(overconfident, levels=[0.9])
    assert found.overall[0] == pytest.approx(0.589, abs=0.06)
    assert (found.observed < found.band(1 - REJECTION_PROBABILITY)[0]).all()


def test_pit_values_shift_with_a_biased_mean():
    X, Y = prior_data()
    model = true_model(X[::2], Y[::2])
    assert np.median(pit_values(model, X[1::2], Y[1::2] + 2.0)) > 0.9


def test_coverage_equals_counts_by_hand():
    pit = np.array([[0.5, np.nan], [0.04, 0.3], [0.96, 0.7], [0.99, np.nan]])
    found = Coverage.of(pit, levels=[0.9, 0.5])
    np.testing.assert_array_equal(found.levels, [0.5, 0.9])
    np.testing.assert_allclose(found.observed, [[0.25, 1.0], [0.25, 1.0]])
    np.testing.assert_array_equal(found.held, np.rint(found.observed * found.counts))
    np.testing.assert_array_equal(found.counts, [4, 2])
    np.testing.assert_allclose(found.overall, [0.5, 0.5])


def test_coverage_includes_the_ends_of_intervals():
    assert Coverage.of(np.array([[0.05], [0.95]]), levels=[0.9]).observed.item() == 1.0


def test_coverage_of_an_unobserved_output_is_nan():
    found = Coverage.of(np.array([[0.5, np.nan]]), levels=[0.5])
    assert np.isnan(found.observed[0, 1]) and found.overall[0] == 1.0
    with pytest.raises(InputError, match="missing"):
        Coverage.of(np.full((3, 2), np.nan))


def test_coverage_band_is_binomial():
    found = Coverage.of(np.full((10, 1), 0.5), levels=[0.5])
    lower, upper = found.band(0.9)
    assert (lower.item(), upper.item()) == (0.2, 0.8)  # P(X < 2) = 0.011 and P(X < 3) = 0.055 of Binomial(10, 1/2)
    with pytest.raises(OptionError, match="confidence"):
        found.band(1.0)


@pytest.mark.parametrize("levels", [[0.0], [1.0], [], "half", [np.nan]])
def test_coverage_rejects_invalid_levels(levels):
    with pytest.raises(OptionError, match="level"):
        coverage(plot_cases.two_outputs(), levels=levels)


def test_pit_values_are_nan_for_missing_entries():
    X, Y = plot_cases.table()
    for values in (pit_values(plot_cases.two_outputs()), pit_values(plot_cases.two_outputs(), X, Y)):
        np.testing.assert_array_equal(np.isnan(values), np.isnan(Y.to_numpy()))


def test_pit_values_of_a_sampled_model_use_the_mixture():
    X, Y = plot_cases.table(20, seed=9)
    model = plot_cases.drawn()
    values = pit_values(model, X, Y)
    lower, upper = model.predict_interval(X, 0.8)
    observed = np.isfinite(Y.to_numpy())
    inside = (lower <= Y.to_numpy()) & (Y.to_numpy() <= upper)
    np.testing.assert_array_equal(inside[observed], (np.abs(values - 0.5) <= 0.4)[observed])


def test_pit_values_of_a_quantile_regressor_are_levels():
    model = plot_cases.quantile_model()
    X = plot_cases.pd.DataFrame({"age": np.linspace(0.1, 1.4, 7)})
    curve = model.predict(X, 0.3)
    y = plot_cases.pd.Series(np.where(np.arange(7) == 2, np.nan, curve), name="wage")
    values = pit_values(model, X, y)
    assert np.isnan(values[2, 0])
    np.testing.assert_allclose(np.delete(values[:, 0], 2), 0.3, atol=1e-3)


def test_pit_values_reject_unsupported_models_and_data():
    X, Y = plot_cases.table()
    with pytest.raises(OptionError, match="X and Y"):
        pit_values(plot_cases.featured())
    with pytest.raises(OptionError, match="held"):
        pit_values(plot_cases.mixed())
    with pytest.raises(InputError, match="together"):
        pit_values(plot_cases.two_outputs(), X)
    with pytest.raises(NotFittedError):
        pit_values(ovkgp.GPRegressor(), X, Y)
    level_set = ovkgp.InfiniteOneClassSVM(nu=0.2).fit(np.linspace(0, 1, 20)[:, None])
    for rows in ((), (np.ones((3, 1)), np.ones(3))):
        with pytest.raises(OptionError, match="InfiniteOneClassSVM"):
            pit_values(level_set, *rows)


def test_simultaneous_band_contains_whole_curves_with_its_confidence():
    rng = np.random.default_rng(1)
    for number in (30, 300):
        inside = 0
        for _ in range(400):
            found = Coverage.of(rng.uniform(size=(number, 1)))
            lower, upper = found.band(0.9, simultaneous=True)
            inside += bool(((lower <= found.observed) & (found.observed <= upper)).all())
        assert 0.85 < inside / 400 < 0.97  # counts are discrete, so that the probability exceeds 90 % by a little
        pointwise = found.band(0.9)
        assert (lower <= pointwise[0]).all() and (upper >= pointwise[1]).all()


def test_effective_counts_of_dependent_entries():
    """Ten copies of an output, or of a row, are no new information."""
    u = np.random.default_rng(0).uniform(size=(100, 1))
    copies = Coverage.of(np.tile(u, (1, 10)))
    assert copies.effective_total == pytest.approx(100) and copies.effective_counts == pytest.approx(np.full(10, 100))
    repeated = Coverage.of(np.repeat(u, 10, 0), groups=np.repeat(np.arange(100), 10))
    assert repeated.effective_total == pytest.approx(100) and repeated.counts[0] == 1000
    independent = Coverage.of(np.random.default_rng(1).uniform(size=(500, 4)))
    assert 1700 < independent.effective_total <= 2000
    np.testing.assert_array_equal(
        copies.overall_band(0.9, simultaneous=True), np.array(Coverage.of(u).overall_band(0.9, simultaneous=True))
    )
