"""Tests of the kernel test of Gaussianity."""

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.stats import binom, chi2, ks_2samp

from ovkgp.criticism import gaussianity_power, gaussianity_test
from ovkgp.criticism.sample_tests.gaussian_embeddings import KERNELS, gaussian_inner_product
from ovkgp.criticism.sample_tests.gaussianity import (
    compute_statistic,
    fit_gaussian,
    influence_gram,
    multiplier_replicates,
)
from ovkgp.criticism.sample_tests.samples import center_gram
from ovkgp.exceptions import InputError, OptionError


def draw_mixture(rng, n, d, weight):
    """Draw the alternatives HA1 (weight .5) and HA2 (.2) of the paper's experiment; the null hypothesis has weight 0."""
    j = np.arange(1, d + 1)
    return rng.normal(size=(n, d)) * np.sqrt(0.5) / j + np.where(rng.random((n, 1)) < weight, 1.5 / j, 0.0)


def naive_statistic(rows, s):
    n, d = rows.shape
    y, S = rows - rows.mean(0), np.cov(rows.T, bias=True)
    A, B = np.eye(d) + 2 * s * S, np.eye(d) + 4 * s * S
    Kb = np.exp(-s * ((rows[:, None] - rows[None]) ** 2).sum(-1))
    N = np.linalg.det(A) ** -0.5 * np.exp(-s * np.einsum("ij,jk,ik->i", y, np.linalg.inv(A), y))
    return n * (Kb.mean() - 2 * N.mean() + np.linalg.det(B) ** -0.5)


@pytest.mark.parametrize("d", [1, 3, 60])
def test_statistic_matches_dense_formula(d):
    rows = draw_mixture(np.random.default_rng(0), 40, d, 0.5) + 2
    found = gaussianity_test(rows, scale=0.6, random_state=0)
    assert found.statistic == pytest.approx(naive_statistic(rows, 0.6), abs=1e-10)


@pytest.mark.parametrize("null", ["full", "known_mean", 2])
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("d", [4, 50])
def test_gram_matrix_gives_the_result_of_the_data(null, kernel, d):
    rows = draw_mixture(np.random.default_rng(1), 30, d, 0.5)
    options = {"null": null, "kernel": kernel, "method": "exact", "scale": 0.15}
    first, second = gaussianity_test(rows, **options), gaussianity_test(gram=rows @ rows.T, **options)
    assert first.statistic == pytest.approx(second.statistic, abs=1e-10)
    assert first.pvalue == pytest.approx(second.pvalue, abs=1e-8)
    assert first.critical_value == pytest.approx(second.critical_value, rel=1e-8)


def test_kt_e_02_quadratic_forms_are_those_of_the_centered_gram():
    rows = draw_mixture(np.random.default_rng(2), 15, 3, 0.5) + 1
    model, n, c = fit_gaussian(rows, None, "full"), 15, 1.4
    K = center_gram(rows @ rows.T)
    resolvent = np.linalg.inv(np.eye(n) + c / n * K)
    products = model.products(1 / (1 + c * model.eigenvalues))
    np.testing.assert_allclose(products, K @ resolvent, atol=1e-12)
    np.testing.assert_allclose(np.diag(products), n / c * (1 - np.diag(resolvent)), atol=1e-12)
    assert np.abs(np.diag(products) - np.diag(resolvent)).max() > 0.1  # printed
    determinant = np.log1p(c * model.eigenvalues).sum()
    assert determinant == pytest.approx(np.linalg.slogdet(np.eye(n) + c / n * K)[1], rel=1e-12)


def test_results_do_not_depend_on_position_orientation_and_unit():
    rng = np.random.default_rng(3)
    rows = draw_mixture(rng, 50, 3, 0.5)
    rotation = np.linalg.qr(rng.normal(size=(3, 3)))[0]
    reference = gaussianity_test(rows, scale=0.8, method="exact")
    for changed, scale in ((rows @ rotation, 0.8), (rows + 100, 0.8), (7 * rows, 0.8 / 49), (1e-3 * rows, 0.8e6)):
        found = gaussianity_test(changed, scale=scale, method="exact")
        assert found.statistic == pytest.approx(reference.statistic, abs=1e-10)
        assert found.pvalue == pytest.approx(reference.pvalue, abs=1e-8)


def test_kt_e_03_replicates_do_not_depend_on_a_shift():
    rows = np.random.default_rng(4).normal(size=(100, 2))
    here = gaussianity_test(gram=rows @ rows.T, random_state=0)
    there = gaussianity_test(gram=(rows + 3) @ (rows + 3).T, random_state=0)
    np.testing.assert_allclose(here.replicates, there.replicates, atol=1e-8)
    # printed: directions are centered at the weighted mean of a replicate, so that a shift of 3 inflates it
    assert 0.05 < there.replicates.mean() < 1


def test_replicates_follow_the_exact_distribution():
    rows = np.random.default_rng(5).normal(size=(60, 2))
    exact = gaussianity_test(rows, method="exact")
    drawn = gaussianity_test(rows, num_replicates=20_000, random_state=0)
    assert drawn.critical_value == pytest.approx(exact.critical_value, rel=0.03)
    assert drawn.pvalue == pytest.approx(exact.pvalue, abs=0.02)
    model = fit_gaussian(rows, None, "full")
    G = influence_gram(model, "gaussian")
    replicates = multiplier_replicates(G, 20_000, np.random.default_rng(0))
    assert replicates.mean() == pytest.approx(np.trace(center_gram(G)) / 60, rel=0.02)


@pytest.mark.parametrize("null", ["full", "known", "known_mean", "known_covariance", 2])
def test_parametric_and_multiplier_bootstrap_have_the_same_distribution(null):
    rows = np.random.default_rng(6).normal(size=(150, 3)) * [1, 0.7, 0.02]
    options = {"null": null, "covariance": None if null in ("full", 2) else np.diag([1, 0.49, 4e-4]), "random_state": 0}
    classical = gaussianity_test(rows, method="parametric", num_replicates=400, **options)
    fast = gaussianity_test(rows, num_replicates=4000, **options)
    assert classical.statistic == fast.statistic
    assert fast.replicates.mean() == pytest.approx(classical.replicates.mean(), rel=0.15)
    assert fast.critical_value == pytest.approx(classical.critical_value, rel=0.25)


def test_bootstrap_without_derivative_never_rejects():
    rng, rejected = np.random.default_rng(7), []
    for _ in range(100):
        model = fit_gaussian(rng.normal(size=(100, 2)), None, "full").scaled(0.5)
        replicates = multiplier_replicates(KERNELS["gaussian"].gram(model), 250, rng)
        rejected.append(compute_statistic(model, "gaussian") > np.quantile(replicates, 0.95))
    assert np.mean(rejected) < 0.01


def test_features_approach_the_exact_kernel():
    rows = draw_mixture(np.random.default_rng(8), 80, 3, 0.5)
    for null in ("full", "known", "known_mean", "known_covariance", 2):
        options = {"null": null, "scale": 0.5, "random_state": 0}
        exact = gaussianity_test(rows, num_replicates=2000, **options)
        approximate = gaussianity_test(rows, method="features", num_features=4000, num_replicates=2000, **options)
        assert approximate.statistic == pytest.approx(exact.statistic, rel=0.15)
        assert approximate.replicates.mean() == pytest.approx(exact.replicates.mean(), rel=0.1)
        assert approximate.critical_value == pytest.approx(exact.critical_value, rel=0.15)


def test_mean_influence_is_the_difference_of_embeddings():
    # of features: mean of exp(iw'Y_i) − N(w){1 + iw'y_i − [(w'y_i)² − w'Sw]/2} is the mean of exp(iw'Y_i) − N(w)
    rows = draw_mixture(np.random.default_rng(9), 50, 2, 0.5)
    model = fit_gaussian(rows, None, "full").scaled(0.7)
    at_rows, _, _ = KERNELS["gaussian"].derivatives(model)
    # the derivative at the fitted distribution in the mean direction, U_i − S, vanishes
    values = KERNELS["gaussian"].embedding(model)
    a = 1 + 2 * model.eigenvalues
    in_covariance = 2 * (model.coordinates**2 / a**2) @ model.eigenvalues - (model.eigenvalues / a).sum()
    np.testing.assert_allclose(at_rows.mean(1), values * in_covariance, atol=1e-12)


def test_power_matches_simulation():
    # type II errors of 200 simulated samples of HA1
    rng = np.random.default_rng(10)
    pilots = [draw_mixture(rng, 400, 2, 0.5) for _ in range(10)]
    for n, simulated in ((50, 0.59), (100, 0.273)):
        power = np.mean([gaussianity_power(pilot, num_rows=n, scale=1.0) for pilot in pilots])
        assert 1 - power == pytest.approx(simulated, abs=0.06)


def test_power_is_the_level_for_a_gaussian_sample():
    rows = np.random.default_rng(11).normal(size=(200, 2))
    assert 0.05 <= gaussianity_power(rows) < 0.25
    assert gaussianity_power(np.random.default_rng(11).exponential(size=(200, 2))) > 0.99


def test_arrays_frames_and_tensors_give_the_same_result():
    rows = np.random.default_rng(12).normal(size=(40, 2))
    found = [
        gaussianity_test(data, random_state=0)
        for data in (
            rows,
            pd.DataFrame(rows, columns=["a", "b"]),
            torch.tensor(rows, requires_grad=True),
            rows.tolist(),
        )
    ]
    for other in found[1:]:
        assert other.statistic == pytest.approx(found[0].statistic, rel=1e-10)
        np.testing.assert_allclose(other.replicates, found[0].replicates, rtol=1e-8)
    assert gaussianity_test(rows[:, 0], random_state=0) == gaussianity_test(rows[:, :1], random_state=0)


def test_many_columns_and_constant_columns_are_allowed():
    rows = np.random.default_rng(13).normal(size=(30, 200)) / np.arange(1, 201)
    assert not gaussianity_test(rows, method="exact").rejected
    padded = np.column_stack([rows[:, :3], np.full(30, 5.0)])
    plain = gaussianity_test(rows[:, :3], method="exact")
    assert gaussianity_test(padded, method="exact").statistic == pytest.approx(plain.statistic, abs=1e-12)


def test_kt_e_06_large_eigenvalues_of_the_exponential_kernel_are_an_error():
    rows = np.random.default_rng(14).normal(size=(200, 2))
    # λ_max is 1 and ⟨x, x⟩ has infinite variance under the kernel from ½ on, not from 1 on
    with pytest.raises(OptionError, match=r"scale must be below .*0\.5/λ_max"):
        gaussianity_test(rows, kernel="exponential", scale=0.7)
    assert not gaussianity_test(rows, kernel="exponential", random_state=0).rejected
    skewed = np.random.default_rng(14).exponential(size=(200, 2))
    assert gaussianity_test(skewed, kernel="exponential", scale=0.05, random_state=0).rejected


@pytest.mark.parametrize(
    ("scale", "message"), [(1e3, "too large"), (1e-7, "too small"), (0.0, "scale"), ("mean", "scale")]
)
def test_scales_without_power_are_an_error(scale, message):
    with pytest.raises(OptionError, match=message):
        gaussianity_test(np.random.default_rng(15).normal(size=(50, 2)), scale=scale)


def test_small_scale_is_an_error_where_most_observations_are_equal():
    """The median distance is 0, and the mean distance is the one that the message advises."""
    rows = np.concatenate([np.zeros(60), np.random.default_rng(0).normal(size=20)])[:, None]
    with pytest.raises(OptionError, match="too small"):
        gaussianity_test(rows, scale=1e-7)


def test_large_scale_is_a_warning():
    with pytest.warns(UserWarning, match="scale is large"):
        gaussianity_test(np.random.default_rng(15).normal(size=(50, 2)), scale=20.0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "data and gram"),
        ({"data": np.ones((20, 2)), "gram": np.eye(20)}, "both"),
        ({"data": np.ones((20, 2))}, "variance"),
        ({"data": np.zeros((5, 2))}, "10 rows"),
        ({"data": np.zeros((20, 2, 2))}, "shape"),
        ({"data": np.r_[np.nan, np.arange(20.0)]}, "finite"),
        ({"gram": np.arange(400.0).reshape(20, 20)}, "symmetric"),
        ({"gram": np.diag(np.r_[-1.0, np.ones(19)])}, "positive semi-definite"),
        ({"gram": np.ones((20, 19))}, "shape"),
        ({"data": np.arange(20.0), "null": "half"}, "null"),
        ({"data": np.arange(20.0), "null": 0}, "rank"),
        ({"data": np.arange(20.0), "null": "known", "covariance": [[-1.0]]}, "covariance"),
        ({"data": np.arange(20.0), "null": "known", "mean": [1.0, 2.0]}, "mean"),
        ({"data": np.arange(20.0), "null": "known", "covariance": np.eye(2)}, "covariance"),
        ({"gram": np.eye(20), "null": "known"}, "need data"),
        ({"data": np.arange(20.0), "num_replicates": 18}, "at least 19"),
        ({"data": np.arange(20.0), "method": "wild"}, "method"),
        ({"data": np.arange(20.0), "kernel": "laplace"}, "kernel"),
        ({"data": np.arange(20.0), "kernel": "exponential", "method": "features"}, "features"),
        ({"data": np.arange(20.0), "alpha": 1.0}, "alpha"),
        ({"data": np.r_[np.zeros(40), 1.0]}, "equal"),
    ],
)
def test_invalid_input_is_an_error(options, message):
    with pytest.raises((InputError, OptionError), match=message):
        gaussianity_test(**options)


def test_derivative_at_the_empirical_covariance_needs_distinct_eigenvalues():
    signs = np.array(np.meshgrid(*[[-1.0, 1.0]] * 4)).reshape(4, -1).T
    with pytest.raises(OptionError, match="distinct eigenvalues 2 and 3"):
        gaussianity_test(signs, null=2, derivative_at="empirical")


def test_bimodal_draws_are_rejected_and_gaussian_draws_pass_in_function_space():
    rng, grid = np.random.default_rng(16), np.linspace(0, 1, 100)
    waves = np.sin(np.pi * np.outer(np.arange(1, 6), grid)) / np.arange(1, 6)[:, None]
    gaussian = rng.normal(size=(150, 5)) @ waves
    bimodal = gaussian + np.where(rng.random((150, 1)) < 0.5, 1.5, -1.5) * waves[0]
    assert not gaussianity_test(gram=gaussian @ gaussian.T / 100, method="exact").rejected
    assert gaussianity_test(gram=bimodal @ bimodal.T / 100, method="exact").rejected


@pytest.mark.slow
@pytest.mark.parametrize(
    ("null", "d", "n"),
    [("full", 2, 200), ("full", 100, 200), ("known", 3, 150), ("known_mean", 3, 150), ("known_covariance", 3, 150)],
)
@pytest.mark.parametrize("method", ["multiplier", "exact"])
def test_size_is_close_to_the_level(null, d, n, method):
    rng = np.random.default_rng(17)
    deviations = np.sqrt(0.5) / np.arange(1, d + 1)
    rejected = [
        gaussianity_test(
            rng.normal(size=(n, d)) * deviations,
            null=null,
            covariance=np.diag(deviations**2) if "known" in null else None,
            scale=1.0 if null == "full" else 0.6,
            method=method,
            num_replicates=250,
            random_state=rng,
        ).rejected
        for _ in range(500)
    ]
    assert 0.02 <= np.mean(rejected) <= 0.09


@pytest.mark.slow
@pytest.mark.parametrize(("weight", "printed"), [(0.5, 0.935), (0.2, 0.99)])
def test_power_is_that_of_the_paper(weight, printed):
    rng = np.random.default_rng(18)
    rejected = [
        gaussianity_test(draw_mixture(rng, 200, 2, weight), scale=1.0, num_replicates=250, random_state=rng).rejected
        for _ in range(300)
    ]
    assert np.mean(rejected) == pytest.approx(printed, abs=0.05)


@pytest.mark.slow
def test_bootstrap_distribution_is_that_of_the_statistic():
    # Fig. 6.1: 250 statistics of samples of 1000 rows and 250 replicates of one of them
    rng = np.random.default_rng(19)
    tests = [
        gaussianity_test(draw_mixture(rng, 1000, 2, 0.0), scale=1.0, num_replicates=250, random_state=rng)
        for _ in range(250)
    ]
    pvalues = [ks_2samp([test.statistic for test in tests], test.replicates).pvalue for test in tests[:5]]
    assert np.median(pvalues) > 0.005


@pytest.mark.slow
@pytest.mark.parametrize("digits", [(2, 3, 6), (3, 5, 8)])
def test_classes_of_digits_are_found(digits):
    from sklearn.datasets import load_digits

    rows, labels = load_digits(return_X_y=True)
    rows = rows[np.isin(labels, digits)]
    assert len(rows) == {2: 541, 3: 539}[digits[0]]
    rng, rejected = np.random.default_rng(20), []
    for _ in range(50):
        chosen = rows[rng.choice(len(rows), 50, replace=False)]
        gram = np.exp(-1e-4 * ((chosen[:, None] - chosen[None]) ** 2).sum(-1))
        rejected.append(gaussianity_test(gram=gram, scale=1.0, num_replicates=250, random_state=rng).rejected)
    assert np.mean(rejected) >= 0.95


def test_kt_e_22_digits_are_those_of_uci():
    """1797 images of 8 × 8 pixels with 17 levels, the test set of UCI's optdigits; those of USPS have 16 × 16."""
    from sklearn.datasets import load_digits

    rows, _ = load_digits(return_X_y=True)
    assert rows.shape == (1797, 64)
    assert set(np.unique(rows)) == set(range(17))


def test_kt_e_31_printed_bound_of_the_type_ii_error_is_below_the_error():
    """Theorem 6.5.1 loses the factor 2 of 2nS_n: rows are a or b, the null hypothesis is the constant a, so that the error is binomial.

    With twice the influence the bound exp(−n s²/(8v + 4cs/3)), s = Δ² − q/n, holds.
    """
    a, b, scale, u = 0.0, 0.1, 1.0, 0.1
    square = 2 - 2 * np.exp(-scale * (b - a) ** 2)  # ‖φ(b) − φ(a)‖²
    rows = np.repeat([a, b], [180, 20])[:, None]
    known = {"null": "known", "mean": [a], "covariance": [[1e-12]], "scale": scale}
    assert gaussianity_test(rows, **known, random_state=0).statistic == pytest.approx(200 * u**2 * square, rel=1e-6)
    delta, variance = u * np.sqrt(square), u * (1 - u) * square  # Δ and m_P²
    quantile = variance * chi2(1).isf(0.05)
    for n in (200, 400):
        error = binom(n, u).cdf(np.sqrt(quantile * n / square))
        s = delta**2 - quantile / n
        C = 2 / 3 * (4 + np.sqrt(2))
        printed = np.exp(-n * (s / delta) ** 2 / (2 * variance + C * np.sqrt(variance) * s))
        v, c = u**2 * square * variance, u * (1 - u) * square  # variance and largest value of f
        assert printed < error < np.exp(-n * s**2 / (8 * v + 4 / 3 * c * s))


def test_kt_e_31_influences_are_not_bounded():
    """Lemma 6.B.2 bounds |f| by (4 + √2) Δ √M, but the derivative grows with the square of an observation."""
    points = np.array([-30.0, -1.0, 1.0, 30.0])
    weights = np.array([0.0005, 0.4995, 0.4995, 0.0005])
    S, none = weights @ points**2, np.zeros((1, 1))

    def embed(mean, variance):
        """Inner products of N(mean, variance) with μ_P − N."""
        moments = np.array([mean]), np.array([[variance]])
        inner = [gaussian_inner_product(np.array([x]), none, *moments, "gaussian") for x in points]
        return weights @ inner - gaussian_inner_product(np.zeros(1), np.array([[S]]), *moments, "gaussian")

    at_points = np.array([embed(x, 0.0) for x in points])
    distance = np.sqrt(weights @ at_points - embed(0.0, S))
    step, y = 1e-5, points[-1]
    derivative = (embed(step * y, S + step * (y**2 - S)) - embed(-step * y, S - step * (y**2 - S))) / (2 * step)
    influence = at_points[-1] - weights @ at_points - derivative
    assert abs(influence) > 2 * (4 + np.sqrt(2)) * distance
