"""Tests of classical tests of multivariate normality."""

import numpy as np
import pytest
from scipy.special import hyp1f1
from scipy.stats import ks_1samp, norm

from ovkgp.criticism import (
    energy_normality_test,
    henze_zirkler,
    random_projection_test,
)
from ovkgp.criticism.sample_tests.gaussianity import compute_statistic, fit_gaussian
from ovkgp.criticism.sample_tests.normality_baselines import (
    _energy_statistic,
    expected_distance,
    henze_zirkler_scale,
    whiten,
)
from ovkgp.exceptions import InputError, OptionError

SYMPTOMS = (
    np.array(  # fever, pressure and aches: the data set "multivariate" of pingouin, whose documentation has the result
        [
            [
                38.4,
                36.8,
                40,
                39.8,
                38.6,
                39.1,
                38.9,
                36.8,
                40.4,
                39.4,
                38,
                38.6,
                40.1,
                38.1,
                37.2,
                39.5,
                37.3,
                39.1,
                40.9,
                39.5,
                39.4,
                38.2,
                39.7,
                38.9,
                38.6,
                39.9,
                41.3,
                38.1,
                39.6,
                37.1,
                39.5,
                40.3,
                41.5,
                39.3,
                37.6,
                40.6,
            ],
            [
                73,
                85,
                58,
                80,
                68,
                52,
                79,
                100,
                64,
                53,
                70,
                75,
                48,
                57,
                78,
                65,
                77,
                67,
                54,
                75,
                57,
                71,
                65,
                49,
                58,
                52,
                62,
                57,
                78,
                92,
                63,
                52,
                46,
                56,
                86,
                48,
            ],
            [
                18,
                14,
                20,
                20,
                25,
                27,
                26,
                8,
                21,
                22,
                15,
                14,
                28,
                22,
                16,
                18,
                13,
                16,
                14,
                18,
                24,
                24,
                22,
                30,
                25,
                17,
                18,
                20,
                19,
                15,
                13,
                25,
                27,
                14,
                16,
                21,
            ],
        ]
    ).T
)


def test_henze_zirkler_gives_published_value():
    found = henze_zirkler(SYMPTOMS)
    assert found.statistic == pytest.approx(0.540086101851, abs=1e-12)
    assert found.pvalue == pytest.approx(0.717368650963, abs=1e-12)


@pytest.mark.parametrize(("n", "d"), [(40, 1), (60, 3), (200, 8)])
def test_henze_zirkler_is_the_kernel_test_of_whitened_rows(n, d):
    rng = np.random.default_rng(0)
    rows = rng.exponential(size=(n, d)) @ rng.normal(size=(d, d)) + 5
    scale = henze_zirkler_scale(n, d) ** 2 / 2
    model = fit_gaussian(whiten(rows), None, "full").scaled(scale)
    assert henze_zirkler(rows).statistic == pytest.approx(compute_statistic(model, "gaussian"), abs=1e-10)


def test_kt_e_08_weight_is_a_density_of_variance_beta_squared():
    # the kernel exp(−σ‖x − y‖²) is the Fourier transform of N(0, 2σ I); 2σ = β², not β
    rows = np.random.default_rng(1).exponential(size=(60, 2))
    beta, white = henze_zirkler_scale(60, 2), whiten(rows)
    frequencies = np.random.default_rng(2).normal(size=(2, 20_000))

    def integrate(variance):
        w = np.sqrt(variance) * frequencies
        difference = np.exp(1j * white @ w).mean(0) - np.exp(-(w**2).sum(0) / 2)
        return 60 * np.mean(np.abs(difference) ** 2)

    statistic = henze_zirkler(rows).statistic
    assert integrate(beta**2) == pytest.approx(statistic, rel=0.05)
    assert abs(integrate(beta) / statistic - 1) > 0.1


def test_henze_zirkler_rejects_singular_covariances():
    rows = np.random.default_rng(3).normal(size=(30, 2))
    found = henze_zirkler(np.column_stack([rows, rows.sum(1)]))
    assert found.statistic == 120
    assert found.rejected


def test_henze_zirkler_keeps_its_level_for_many_columns_by_simulation():
    rng = np.random.default_rng(4)
    found = henze_zirkler(rng.normal(size=(150, 100)), num_replicates=99, random_state=0)
    assert found.replicates is not None
    assert 0.01 < found.pvalue < 1
    assert henze_zirkler(rng.normal(size=(150, 10))).replicates is None


def test_henze_zirkler_simulation_agrees_with_the_lognormal_distribution():
    rows = np.random.default_rng(5).normal(size=(100, 2))
    simulated = henze_zirkler(rows, pvalue="simulation", num_replicates=1999, random_state=0)
    approximate = henze_zirkler(rows)
    assert simulated.pvalue == pytest.approx(approximate.pvalue, abs=0.05)
    assert simulated.critical_value == pytest.approx(approximate.critical_value, rel=0.05)


@pytest.mark.parametrize("d", [1, 2, 7, 100])
def test_expected_distance_matches_simulation_and_closed_form(d):
    a = np.zeros((3, d))
    a[1, 0], a[2] = 2.0, 1.0
    squares = (a**2).sum(1)
    found = expected_distance(squares, d)
    draws = np.linalg.norm(a[:, None] - np.random.default_rng(6).normal(size=(20_000, d)), axis=2)
    assert (np.abs(draws.mean(1) - found) < 4 * draws.std(1) / np.sqrt(20_000)).all()
    if d < 20:
        np.testing.assert_allclose(found, found[0] * hyp1f1(-0.5, d / 2, -squares / 2), rtol=1e-12)


def test_kt_e_09_energy_statistic_has_the_factor_n():
    # under the null hypothesis n times the distance converges in distribution: its mean does not depend on n
    rng = np.random.default_rng(7)
    means = [np.mean([_energy_statistic(whiten(rng.normal(size=(n, 2)))) for _ in range(150)]) for n in (50, 400)]
    assert means[1] == pytest.approx(means[0], rel=0.15)


@pytest.mark.parametrize("test", [henze_zirkler, energy_normality_test, random_projection_test])
def test_tests_accept_normal_and_reject_skewed_rows(test):
    rng, options = np.random.default_rng(8), {"num_replicates": 199, "random_state": 0}
    mixing = rng.normal(size=(3, 3))
    assert test(rng.normal(size=(150, 3)) @ mixing, **options).pvalue > 0.01
    assert test(rng.exponential(size=(150, 3)) @ mixing, **options).rejected


def test_random_projection_with_known_parameters_is_the_kolmogorov_smirnov_test():
    values = np.random.default_rng(9).normal(size=50)
    found = random_projection_test(values, null="known", num_projections=1, num_replicates=3999, random_state=0)
    reference = ks_1samp(values, norm.cdf)
    assert found.statistic == pytest.approx(np.sqrt(50) * reference.statistic, rel=1e-12)
    assert found.pvalue == pytest.approx(reference.pvalue, abs=0.04)


def test_random_projection_accepts_gram_matrices():
    rows = np.random.default_rng(10).exponential(size=(100, 2))
    assert random_projection_test(gram=rows @ rows.T, random_state=0, num_replicates=199).rejected


def test_invalid_input_is_an_error():
    with pytest.raises(OptionError, match="singular"):
        energy_normality_test(np.ones((20, 2)))
    with pytest.raises(InputError, match="10 rows"):
        henze_zirkler(np.ones((3, 2)))
    with pytest.raises(OptionError, match="pvalue"):
        henze_zirkler(np.random.default_rng(0).normal(size=(20, 2)), pvalue="exact")
    with pytest.raises(OptionError, match="null"):
        random_projection_test(np.random.default_rng(0).normal(size=(20, 2)), null=2)


@pytest.mark.slow
@pytest.mark.parametrize("test", [henze_zirkler, energy_normality_test, random_projection_test])
def test_sizes_are_close_to_the_level(test):
    rng = np.random.default_rng(11)
    rejected = [test(rng.normal(size=(100, 2)), num_replicates=199, random_state=rng).rejected for _ in range(500)]
    assert 0.02 <= np.mean(rejected) <= 0.09
