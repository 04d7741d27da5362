"""Tests of `ovkgp.inference.likelihoods.quadrature`."""

import numpy as np
import pytest
import torch
from likelihood_cases import column, latent_average, normal, one
from scipy.special import erfcx, log_ndtr, ndtr
from torch.autograd import gradcheck

from ovkgp.inference.likelihoods.quadrature import (
    BLOCK_ENTRIES,
    by_blocks,
    expected_by_hermite,
    expected_log1p_square,
    expected_positive_part,
    expected_sigmoid,
    expected_softplus,
    tilted_cdf,
)

MEANS = (-8.0, -1.0, 0.1, 3.0, 20.0)
STDS = (0.0, 0.1, 0.7, 1.0, 1.49, 1.51, 2.0, 5.0, 30.0)


def worst(rule, function, means=MEANS, stds=STDS, around=(0.0,)):
    """The largest relative error over a grid of normal laws."""
    errors = []
    for std in stds:
        for mean in means:
            exact = latent_average(function, mean, std, kinks=(*around, mean))
            errors.append(abs(rule(one(mean), one(std**2)).item() - exact) / abs(exact))
    return max(errors)


def test_log1p_square_is_exact_to_1e_9_at_every_variance():
    assert worst(expected_log1p_square, lambda u: np.log1p(u * u), around=(-2, -0.5, 0.0, 0.5, 2)) < 1e-9


def test_log1p_square_of_gross_errors_keeps_its_accuracy():
    means = (1e3, 1e6)
    assert worst(expected_log1p_square, lambda u: np.log1p(u * u), means, (0.0, 1.0, 30.0)) < 1e-9
    batch = expected_log1p_square(column([1e6, 0.1]), column([0.0, 0.01]))  # an outlier does not spoil its neighbours
    alone = expected_log1p_square(one(0.1), one(0.01))
    torch.testing.assert_close(batch[1:], alone, rtol=1e-9, atol=0.0)


@pytest.mark.parametrize(
    "rule, function",
    [(expected_softplus, lambda f: np.logaddexp(0, f)), (expected_sigmoid, lambda f: np.exp(-np.logaddexp(0, -f)))],
)
def test_logistic_rules_are_exact_to_1e_8_at_every_variance(rule, function):
    assert worst(rule, function, around=(-3.0, 0.0, 3.0)) < 1e-8


def test_gauss_hermite_alone_would_fail_at_broad_variances():
    """Why the two functions have rules of their own."""

    def plain(mean, variance):
        return expected_by_hermite(lambda u: torch.log1p(u.square()), mean, variance)

    assert worst(plain, lambda u: np.log1p(u * u), (0.1, 3.0), (0.5,)) < 1e-8
    assert worst(plain, lambda u: np.log1p(u * u), (0.1, 3.0), (10.0,)) > 1e-2


def test_hermite_nodes_integrate_polynomials_exactly():
    value = expected_by_hermite(lambda f: f**6, one(0.0), one(4.0))
    assert value.item() == pytest.approx(15 * 4.0**3, rel=1e-12)


@pytest.mark.parametrize("rule", [expected_log1p_square, expected_softplus, expected_sigmoid])
def test_rules_have_the_derivatives_of_their_values(rule):
    mean = column([-2.0, 0.3, 1.0, 4.0]).requires_grad_()
    variance = column([0.5, 1.0, 4.0, 20.0]).requires_grad_()
    assert gradcheck(rule, (mean, variance))


@pytest.mark.parametrize(
    "rule, second",  # Price: ∂/∂v = ½ E g″, which at v = 0 is ½ g″(m)
    [
        (expected_log1p_square, lambda u: 2 * (1 - u * u) / (1 + u * u) ** 2),
        (expected_softplus, lambda f: np.exp(-f) / (1 + np.exp(-f)) ** 2),
    ],
)
def test_the_derivative_by_a_vanishing_variance_is_half_the_curvature(rule, second):
    mean = torch.tensor([-2.0, 0.0, 0.7], dtype=torch.float64)
    variance = torch.zeros_like(mean).requires_grad_()
    (slope,) = torch.autograd.grad(rule(mean, variance).sum(), variance)
    np.testing.assert_allclose(slope.numpy(), second(mean.numpy()) / 2, rtol=1e-6)


def test_positive_part_is_the_mean_of_a_rectified_normal():
    for mean in (-3.0, 0.0, 2.0):
        exact = latent_average(lambda u: max(u, 0.0), mean, 0.8, kinks=(0.0,))
        assert expected_positive_part(one(mean), one(0.8)).item() == pytest.approx(exact, rel=1e-11)


def test_tilted_tails_neither_overflow_nor_lose_digits():
    rate, z = np.meshgrid([1e-8, 0.3, 2.0, 10.0], [-3.0, -0.1, 0.0, 1.0, 9.0])
    found = tilted_cdf(torch.from_numpy(rate), torch.from_numpy(z)).numpy()
    np.testing.assert_allclose(found, np.exp(rate**2 / 2 - rate * z + log_ndtr(z - rate)), rtol=1e-12)
    far = tilted_cdf(one(1e6), one(0.5)).item()  # e^{rate²/2} alone would overflow
    assert far == pytest.approx(np.exp(-0.125) * erfcx((1e6 - 0.5) / np.sqrt(2)) / 2, rel=1e-12)
    assert tilted_cdf(one(0.0), one(0.5)).item() == pytest.approx(ndtr(0.5), rel=1e-14)


def test_what_is_not_a_number_stays_where_it_is():
    value = expected_log1p_square(column([1e200, np.nan, 1.0]), column([1.0, 1.0, 0.0]))
    assert value[0] == torch.inf and bool(torch.isnan(value[1]))
    assert value[2].item() == pytest.approx(np.log(2), rel=1e-9)


def row_function(x, M):
    """One number a row of x (n,) and M (n, 2, 2)."""
    return (x[:, None, None] * M.sin()).sum((-2, -1))


@pytest.mark.parametrize("rows_at_once", [1, 3, 100])
def test_values_and_gradients_do_not_depend_on_the_blocks(rows_at_once):
    x, M = normal(7).requires_grad_(), normal(7, 2, 2, seed=1).requires_grad_()
    nodes = BLOCK_ENTRIES // rows_at_once
    torch.testing.assert_close(by_blocks(row_function, nodes, x, M), row_function(x, M), rtol=1e-14, atol=0.0)
    assert gradcheck(lambda *parts: by_blocks(row_function, nodes, *parts), (x, M))


def test_no_graph_is_made_where_none_is_wanted():
    x, M = normal(4).requires_grad_(), normal(4, 2, 2)
    with torch.no_grad():
        assert not by_blocks(row_function, 1, x, M).requires_grad
    assert not by_blocks(row_function, 1, x.detach(), M).requires_grad
    assert by_blocks(row_function, 1, x, M).requires_grad


def test_no_rows_are_no_values():
    x, M = torch.zeros(0, requires_grad=True), torch.zeros(0, 2, 2)
    value = by_blocks(row_function, 10, x, M)
    value.sum().backward()
    assert value.shape == (0,) and x.grad.shape == (0,)
