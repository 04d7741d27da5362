"""Tests of the two-sample test and the independence test."""

import time

import gpytorch
import numpy as np
import pytest

from ovkgp.criticism import hsic, mmd
from ovkgp.criticism.sample_tests.gaussian_embeddings import gaussian_inner_product
from ovkgp.criticism.sample_tests.samples import center_gram
from ovkgp.criticism.sample_tests.two_sample import _factorize, _permuted_traces
from ovkgp.exceptions import InputError, OptionError


def gaussian(x, y, scale):
    return np.exp(-scale * ((x[:, None] - y[None]) ** 2).sum(-1))


def naive_mmd(x, y, scale):
    return gaussian(x, x, scale).mean() + gaussian(y, y, scale).mean() - 2 * gaussian(x, y, scale).mean()


def test_mmd_statistic_and_permutations_match_the_definition():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(12, 2)), rng.normal(size=(9, 2)) + 1
    found = mmd(x, y, scale=0.4, num_permutations=50, random_state=1)
    assert found.statistic == pytest.approx(naive_mmd(x, y, 0.4), rel=1e-10)
    draws, pooled = np.random.default_rng(1), np.concatenate([x, y])
    labels = draws.permuted(np.broadcast_to(np.repeat([1.0, 0.0], [12, 9])[:, None], (21, 50)), axis=0)
    expected = [naive_mmd(pooled[one == 1], pooled[one == 0], 0.4) for one in labels.T]
    np.testing.assert_allclose(found.replicates, expected, rtol=1e-9, atol=1e-12)


def test_mmd_approaches_the_distance_of_gaussian_distributions():
    rng = np.random.default_rng(1)
    (m1, S1), (m2, S2) = (np.zeros(2), np.eye(2)), (np.array([0.5, 0.0]), np.diag([0.3, 2.0]))
    x, y = rng.multivariate_normal(m1, S1, 1500), rng.multivariate_normal(m2, S2, 1500)
    exact = (
        gaussian_inner_product(m1, S1, m1, S1, "gaussian")
        + gaussian_inner_product(m2, S2, m2, S2, "gaussian")
        - 2 * gaussian_inner_product(m1, S1, m2, S2, "gaussian")
    )
    assert mmd(x, y, scale=1.0, num_permutations=19).statistic == pytest.approx(exact, rel=0.15)


def test_mmd_with_features_approaches_the_exact_statistic():
    rng = np.random.default_rng(2)
    x, y = rng.normal(size=(100, 2)), rng.normal(size=(120, 2)) * 2
    exact = mmd(x, y, scale=0.5, random_state=0)
    approximate = mmd(x, y, scale=0.5, num_features=4000, random_state=0)
    assert approximate.statistic == pytest.approx(exact.statistic, rel=0.1)
    assert approximate.critical_value == pytest.approx(exact.critical_value, rel=0.1)


def test_custom_kernels_give_the_result_of_the_gaussian_kernel():
    rng = np.random.default_rng(3)
    x, y = rng.normal(size=(20, 2)), rng.normal(size=(25, 2))
    module = gpytorch.kernels.RBFKernel().double()
    module.lengthscale = 1.0
    reference = mmd(x, y, scale=0.5, random_state=0, num_permutations=99)
    for kernel in (module, lambda a, b: gaussian(a, b, 0.5)):
        found = mmd(x, y, kernel=kernel, random_state=0, num_permutations=99)
        assert found.statistic == pytest.approx(reference.statistic, rel=1e-9)
        assert found.pvalue == reference.pvalue


def naive_hsic(K, L):
    H = np.eye(len(K)) - 1 / len(K)
    return np.trace(K @ H @ L @ H) / len(K) ** 2


def test_hsic_statistic_matches_both_definitions():
    rng = np.random.default_rng(4)
    x, y = rng.normal(size=(30, 2)), rng.normal(size=(30, 1))
    K, L = gaussian(x, x, 0.5), gaussian(y, y, 2.0)
    found = hsic(gram_x=K, gram_y=L, num_permutations=19)
    assert found.statistic == pytest.approx(naive_hsic(K, L), rel=1e-5)
    means = (K * L).mean() + K.mean() * L.mean() - 2 * (K.mean(0) * L.mean(0)).mean()
    assert found.statistic == pytest.approx(means, rel=1e-5)
    rows = hsic(x, y, kernel=(lambda a, b: gaussian(a, b, 0.5), lambda a, b: gaussian(a, b, 2.0)), num_permutations=19)
    assert rows.statistic == pytest.approx(found.statistic, rel=1e-12)


@pytest.mark.parametrize("d", [1, 30])
def test_permuted_traces_match_permuted_matrices(d):
    # d = 30: factors have full rank, and entries are gathered instead
    rng = np.random.default_rng(5)
    x, y = rng.normal(size=(120, d)), rng.normal(size=(120, d))
    K, L = (center_gram(gaussian(rows, rows, 1 / (2 * d))) for rows in (x, y))
    assert (_factorize(K).shape[1] * _factorize(L).shape[1] > 60 * 120) == (d == 30)
    orders = rng.permuted(np.broadcast_to(np.arange(120), (20, 120)), axis=1)
    expected = [np.trace(K @ L[np.ix_(order, order)]) for order in orders]
    np.testing.assert_allclose(_permuted_traces(K, L, orders), expected, rtol=1e-4)


def test_kt_e_30_hsic_tends_to_zero_only_for_independent_tables():
    rng, means = np.random.default_rng(6), []
    for dependence in (0.0, 1.0):
        values = []
        for n in (50, 400):
            x = rng.normal(size=n)
            y = dependence * x**2 + rng.normal(size=n)
            values.append(hsic(x, y, scale=1.0, num_permutations=19).statistic)
        means.append(values)
    assert means[0][1] < means[0][0] / 3
    assert means[1][1] > means[1][0] / 2


@pytest.mark.parametrize("test", [mmd, hsic])
def test_p_values_of_true_hypotheses_are_uniform(test):
    rng = np.random.default_rng(7)
    pvalues = [
        test(rng.normal(size=(20, 2)), rng.normal(size=(20, 2)), num_permutations=19, random_state=rng).pvalue
        for _ in range(200)
    ]
    counts = np.bincount(np.rint(20 * np.array(pvalues)).astype(int), minlength=21)[1:]
    assert ((counts - 10) ** 2 / 10).sum() < 45  # χ²_19, p < .001


def test_several_scales_find_differences_of_any_scale():
    rng = np.random.default_rng(8)
    x = rng.normal(size=(200, 1))
    fine = rng.normal(size=(200, 1))
    fine = np.round(fine / 0.5) * 0.5 + 0.02 * rng.normal(
        size=(200, 1)
    )  # the same distribution, except at a scale of .5
    assert mmd(x, fine, random_state=0, scale=[1.0, 100.0]).rejected
    assert not mmd(x, fine, random_state=0, scale=0.5).rejected


def test_samples_with_many_ties_give_valid_p_values():
    x, y = np.repeat([0.0, 1.0], 20), np.tile([0.0, 1.0], 20)
    assert mmd(x, y, scale=1.0, random_state=0).pvalue == 1.0
    assert hsic(x, y, scale=1.0, random_state=0).pvalue > 0.5


def test_permutations_take_less_than_half_a_second():
    rng = np.random.default_rng(9)
    x, y = rng.normal(size=(300, 5)), rng.normal(size=(300, 5))
    times = []
    for _ in range(3):
        start = time.process_time()
        mmd(x, y, num_permutations=1000, random_state=0)
        times.append(time.process_time() - start)
    assert min(times) < 0.5


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: mmd(x, x[:, :1]), "same columns"),
        (lambda x: mmd(x, x, kernel="laplace"), "kernel"),
        (lambda x: mmd(x, x, scale=[1.0, -1.0]), "scale"),
        (lambda x: mmd(x, x, scale="mean"), "scale"),
        (lambda x: mmd(x, x, num_permutations=10), "at least 19"),
        (lambda x: mmd(x, x, kernel=lambda a, b: a, num_features=10), "num_features"),
        (lambda x: mmd(x, 0 * x + np.inf), "finite"),
        (lambda x: mmd(0 * x, 0 * x), "equal"),
        (lambda x: hsic(x, x[:-1]), "same number of rows"),
        (lambda x: hsic(x), "gram_y"),
        (lambda x: hsic(x, x, gram_x=np.eye(20)), "gram_x"),
        (lambda x: hsic(x, x, kernel=lambda a, b: np.ones((20, 3))), "shape"),
    ],
)
def test_invalid_input_is_an_error(call, message):
    with pytest.raises((InputError, OptionError), match=message):
        call(np.random.default_rng(10).normal(size=(20, 2)))
