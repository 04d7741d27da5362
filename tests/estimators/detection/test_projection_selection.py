"""Tests of `ovkgp.estimators.detection.projection_selection`."""

import numpy as np
import pytest
from scipy.stats import chi2

from ovkgp.datasets import make_spiral
from ovkgp.estimators.detection.projection_selection import (
    chi_square_values,
    choose_projection,
    ks_distance,
    smooth_rows,
)

rng = np.random.default_rng(0)
LOG_S, LOG_VAR = np.log(rng.chisquare(3, 40)), rng.normal(scale=0.3, size=25)


def test_kt_e_14_values_are_the_lower_distribution_function():
    found = chi_square_values(LOG_S, LOG_VAR, 3)
    np.testing.assert_allclose(found, chi2(3).cdf(np.exp(LOG_S[:, None] - LOG_VAR)), rtol=1e-12)
    assert (chi_square_values(np.array([-50.0]), LOG_VAR, 3) < 1e-20).all()  # small S is an outlier


def test_chi_square_values_of_infinite_logarithms():
    logs = np.array([-np.inf, 0.0])
    np.testing.assert_array_equal(chi_square_values(logs, np.array([-np.inf]), 2)[:, 0], [1, 1])
    assert chi_square_values(logs[:1], np.array([0.0]), 2) == 0
    assert chi_square_values(np.array([800.0]), np.array([-800.0]), 2) == 1


def test_ks_distance_is_the_supremum():
    points = np.linspace(0, 40, 20_001)
    expected = chi2(3).cdf(points[:, None] / np.exp(LOG_VAR)).mean(1)
    empirical = np.searchsorted(np.sort(np.exp(LOG_S)), points, side="right") / len(LOG_S)
    assert ks_distance(LOG_S, LOG_VAR, 3) == pytest.approx(np.abs(empirical - expected).max(), abs=2e-3)


def test_kt_e_23_averages_are_divided_by_the_number_of_neighbors():
    """By 2T + 1, not 2T."""
    smooth, errors = smooth_rows(np.array([np.full(9, 0.3), np.arange(9.0)]), 2)
    np.testing.assert_allclose(smooth, [np.full(5, 0.3), np.arange(2.0, 7.0)])
    np.testing.assert_allclose(errors, [np.zeros(5), np.full(5, np.arange(5.0).std(ddof=1) / np.sqrt(5))], atol=1e-12)


def test_choose_projection_corrects_for_the_number_of_rows():
    """With γ ∝ n^(1/d) and half of the rows as reference, ℓ is multiplied by 2^(−1/(2d))."""
    rows = np.random.default_rng(0).normal(size=(60, 2))
    options = {"half_window": 0, "rng": np.random.default_rng(1)}
    choice = choose_projection(rows, np.array([0.5]), [4], **options)
    assert choice.lengthscale == pytest.approx(0.5 * 2 ** (-1 / 4))
    assert choice.num_projections == 4 and choice.ks.shape == (1, 1)


@pytest.mark.slow
def test_kt_62_and_kt_66_curves_have_a_minimum_with_the_own_term_only():
    """On average over six spirals: with all rows in s_i² KS falls and rises with γ, without row i it does not rise again.

    The minimum is at p* = 2 and near γ = 68, and so near 68 √2 = 96 for all rows.
    """
    gammas = np.geomspace(1, 3000, 61)
    curves = {}
    for leave_one_out in (True, False):
        options = {"leave_one_out": leave_one_out, "half_window": 5}
        curves[leave_one_out] = np.mean(
            [
                choose_projection(
                    make_spiral(500, random_state=seed),
                    (2 * gammas) ** -0.5,
                    [2, 50],
                    rng=np.random.default_rng(1),
                    **options,
                ).ks
                for seed in range(6)
            ],
            axis=0,
        )
    own, loo = curves[False], curves[True]
    assert own[0].min() < own[1].min()
    assert own[0, 0] > 2 * own[0].min() and own[0, -1] > 2 * own[0].min()
    assert loo[0, -1] < 1.1 * loo[0].min()
    assert 34 < gammas[5:-5][own[0].argmin()] < 136
