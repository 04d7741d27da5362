"""Tests of `ovkgp.inference.likelihoods.quadrature`."""

import numpy as np
import pytest
import torch
from likelihood_cases import column, latent_average, normal, one
from scipy.special import erfcx, log_ndtr, ndtr
from torch.autograd import gradcheck

from ovkgp.inference.likelihoods.quadrature import (
    BLOCK_ENTRIES,
    HERMITE_NODES,
    apply_by_blocks,
    expected_log1p_square,
    expected_positive_part,
    expected_sigmoid,
    expected_softplus,
    hermite_rule,
    log_expected,
    tilted_cdf,
)

MEANS = (-8.0, -1.0, 0.1, 3.0, 20.0)
STDS = (0.0, 0.1, 0.7, 1.0, 1.49, 1.51, 2.0, 5.0, 30.0)


def worst(rule, function, means=MEANS, stds=STDS, around=(0.0,)):
    """The largest relative error over a grid of normal distributions."""
    errors = []
    for std in stds:
        for mean in means:
            exact = latent_average(function, mean, std, kinks=(*around, mean))
            errors.append(abs(rule(one(mean), one(std**2)).item() - exact) / abs(exact))
    return max(errors)


def test_expected_log1p_square_is_exact_to_1e_9_at_every_variance():
    assert worst(expected_log1p_square, lambda u: np.log1p(u * u), around=(-2, -0.5, 0.0, 0.5, 2)) < 1e-9


def test_expected_log1p_square_is_accurate_at_gross_errors():
    means = (1e3, 1e6)
    assert worst(expected_log1p_square, lambda u: np.log1p(u * u), means, (0.0, 1.0, 30.0)) < 1e-9
    batch = expected_log1p_square(column([1e6, 0.1]), column([0.0, 0.01]))  # an outlier does not spoil its neighbors
    alone = expected_log1p_square(one(0.1), one(0.01))
    torch.testing.assert_close(batch[1:], alone, rtol=1e-9, atol=0.0)


@pytest.mark.parametrize(
    "rule, function",
    [(expected_softplus, lambda f: np.logaddexp(0, f)), (expected_sigmoid, lambda f: np.exp(-np.logaddexp(0, -f)))],
)
def test_logistic_rules_are_exact_to_1e_8_at_every_variance(rule, function):
    assert worst(rule, function, around=(-3.0, 0.0, 3.0)) < 1e-8


def test_hermite_rule_fails_at_broad_variances():
    """Why log(1 + u²) and the softplus have special rules."""
    nodes, weights = hermite_rule(HERMITE_NODES)

    def hermite(mean, variance):
        return torch.log1p((mean + variance.sqrt() * nodes).square()) @ weights

    assert worst(hermite, lambda u: np.log1p(u * u), (0.1, 3.0), (0.5,)) < 1e-8
    assert worst(hermite, lambda u: np.log1p(u * u), (0.1, 3.0), (10.0,)) > 1e-2


def test_hermite_rule_integrates_polynomials_exactly():
    nodes, weights = hermite_rule(HERMITE_NODES)
    assert ((2.0 * nodes) ** 6 @ weights).item() == pytest.approx(15 * 4.0**3, rel=1e-12)


@pytest.mark.parametrize("rule", [expected_log1p_square, expected_softplus, expected_sigmoid])
def test_rules_have_correct_gradients(rule):
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
def test_rules_have_half_the_curvature_as_derivative_at_zero_variance(rule, second):
    mean = torch.tensor([-2.0, 0.0, 0.7], dtype=torch.float64)
    variance = torch.zeros_like(mean).requires_grad_()
    (slope,) = torch.autograd.grad(rule(mean, variance).sum(), variance)
    np.testing.assert_allclose(slope.numpy(), second(mean.numpy()) / 2, rtol=1e-6)


def test_expected_positive_part_equals_numerical_integral():
    for mean in (-3.0, 0.0, 2.0):
        exact = latent_average(lambda u: max(u, 0.0), mean, 0.8, kinks=(0.0,))
        assert expected_positive_part(one(mean), one(0.8)).item() == pytest.approx(exact, rel=1e-11)


def test_tilted_cdf_is_accurate_and_does_not_overflow():
    rate, z = np.meshgrid([1e-8, 0.3, 2.0, 10.0], [-3.0, -0.1, 0.0, 1.0, 9.0])
    found = tilted_cdf(torch.from_numpy(rate), torch.from_numpy(z)).numpy()
    np.testing.assert_allclose(found, np.exp(rate**2 / 2 - rate * z + log_ndtr(z - rate)), rtol=1e-12)
    far = tilted_cdf(one(1e6), one(0.5)).item()  # e^{rate²/2} alone would overflow
    assert far == pytest.approx(np.exp(-0.125) * erfcx((1e6 - 0.5) / np.sqrt(2)) / 2, rel=1e-12)
    assert tilted_cdf(one(0.0), one(0.5)).item() == pytest.approx(ndtr(0.5), rel=1e-14)


def test_expected_log1p_square_keeps_infinity_and_nan_to_their_entries():
    value = expected_log1p_square(column([1e200, np.nan, 1.0]), column([1.0, 1.0, 0.0]))
    assert value[0] == torch.inf and bool(torch.isnan(value[1]))
    assert value[2].item() == pytest.approx(np.log(2), rel=1e-9)


def test_log_expected_equals_closed_form_for_a_quadratic():
    mean, std = column([0.0, 2.0, -3.0]), column([1e-3, 1.0, 30.0])
    found = log_expected(lambda f: -(f.square()) / 2, mean, std)  # √(2π) N(0; m, 1 + σ²)
    total = 1 + std.square()
    assert torch.allclose(found, -total.log() / 2 - mean.square() / (2 * total), rtol=1e-11, atol=1e-12)


def row_function(x, M):
    """One number per row of x (n,) and M (n, 2, 2)."""
    return (x[:, None, None] * M.sin()).sum((-2, -1))


@pytest.mark.parametrize("max_chunk_rows", [1, 3, 100])
def test_apply_by_blocks_does_not_depend_on_the_block_size(max_chunk_rows):
    x, M = normal(7).requires_grad_(), normal(7, 2, 2, seed=1).requires_grad_()
    nodes = BLOCK_ENTRIES // max_chunk_rows
    torch.testing.assert_close(apply_by_blocks(row_function, nodes, x, M), row_function(x, M), rtol=1e-14, atol=0.0)
    assert gradcheck(lambda *parts: apply_by_blocks(row_function, nodes, *parts), (x, M))


def test_apply_by_blocks_makes_a_graph_only_if_needed():
    x, M = normal(4).requires_grad_(), normal(4, 2, 2)
    with torch.no_grad():
        assert not apply_by_blocks(row_function, 1, x, M).requires_grad
    assert not apply_by_blocks(row_function, 1, x.detach(), M).requires_grad
    assert apply_by_blocks(row_function, 1, x, M).requires_grad


def test_apply_by_blocks_accepts_zero_rows():
    x, M = torch.zeros(0, requires_grad=True), torch.zeros(0, 2, 2)
    value = apply_by_blocks(row_function, 10, x, M)
    value.sum().backward()
    assert value.shape == (0,) and x.grad.shape == (0,)
