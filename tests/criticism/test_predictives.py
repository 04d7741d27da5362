"""Jumps of labels and counts, and the scores of each kind of prediction."""

import numpy as np
import plot_cases
import pytest
from scipy.stats import kstest, poisson

from ovkgp.criticism import pit_values
from ovkgp.criticism.predictive_distributions import Predictive, predictive

pytestmark = [pytest.mark.filterwarnings("error"), pytest.mark.filterwarnings(plot_cases.JIT)]


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
