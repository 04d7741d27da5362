"""Tests of the distribution of weighted sums of chi-squares."""

import numpy as np
import pytest
from scipy.stats import chi2

from ovkgp.criticism.sample_tests.weighted_chi2 import weighted_chi2_isf, weighted_chi2_sf


@pytest.mark.parametrize("number", [1, 2, 3, 10, 500])
@pytest.mark.parametrize("probability", [1e-30, 1e-10, 1e-3, 0.05, 0.3, 0.5, 0.9, 0.999, 1 - 1e-9])
def test_equal_weights_give_chi_squares(number, probability):
    value = weighted_chi2_sf(3 * chi2.isf(probability, number), np.full(number, 3.0))
    assert value == pytest.approx(probability, rel=1e-9)


@pytest.mark.parametrize("x", [1e-6, 0.01, 1.0, 10.0, 100.0, 800.0])
def test_pairs_of_weights_give_hypoexponential_distribution(x):
    # 2 χ²_2 and χ²_2 are exponential with rates 1/4 and 1/2
    exact = (0.5 * np.exp(-x / 4) - 0.25 * np.exp(-x / 2)) / 0.25
    assert weighted_chi2_sf(x, np.array([1.0, 2.0, 0.0, 1.0, 2.0])) == pytest.approx(exact, rel=1e-10)


@pytest.mark.parametrize(
    "weights", [0.8 ** np.arange(60), 1 / np.arange(1.0, 301) ** 2, np.r_[1.0, np.full(400, 1e-2)]]
)
def test_probabilities_match_simulation_and_quantiles(weights):
    draws = np.random.default_rng(0).chisquare(1, (20_000, len(weights))) @ weights
    for probability in (0.5, 0.05, 0.01):
        x = weighted_chi2_isf(probability, weights)
        assert weighted_chi2_sf(x, weights) == pytest.approx(probability, rel=1e-8)
        assert np.mean(draws > x) == pytest.approx(probability, abs=4 * np.sqrt(probability / 20_000))


def test_probabilities_decrease_from_one():
    weights = np.array([1.0, 0.3, 0.01])
    values = [weighted_chi2_sf(x, weights) for x in (-1.0, 0.0, 1e-9, 1e-3, *np.linspace(0.1, 30, 200))]
    assert values[:2] == [1.0, 1.0]
    assert (np.diff(values[1:]) < 0).all()


def test_kt_97_balls_of_a_random_path_are_smaller_than_any_power_of_the_radius():
    """Brownian motion on [0, 1]: ‖B‖² = Σ χ²_j/((j − ½)π)², and P(‖B‖ ≤ ε) ~ (4/√π) ε exp(−1/(8ε²)).

    The exponent s = d log P/d log ε² of small balls grows without limit, as 1/(8ε²) + ½, so that projections of paths need a reduction of the
    dimension first.
    """
    weights = 1 / (np.pi * (np.arange(1, 400) - 0.5)) ** 2
    squares = np.array([0.2, 0.1, 0.05, 0.03])
    found = np.array([1 - weighted_chi2_sf(square, weights) for square in squares])
    ratios = found / (4 / np.sqrt(np.pi) * np.sqrt(squares) * np.exp(-1 / (8 * squares)))
    assert (np.diff(ratios) > 0).all() and 0.9 < ratios[-1] < 1
    exponents = np.diff(np.log(found)) / np.diff(np.log(squares))
    assert (np.diff(exponents) > 0.7).all() and exponents[-1] > 3
