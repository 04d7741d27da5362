"""Counts: closed expectations, overflow, the Poisson limit, and quantiles of counts in the millions."""

import numpy as np
import pytest
import torch
from likelihood_cases import column, normal, one
from scipy.stats import nbinom, poisson

from ovkgp.exceptions import FactorizationError, OptionError
from ovkgp.inference.likelihoods import NegativeBinomial, Poisson
from ovkgp.inference.likelihoods.counts import count_cdf


def test_poisson_expected_equals_closed_form():
    y, m, v = column([0.0, 3.0, 900.0]), normal(3, 1), normal(3, 1, seed=1).square()
    wanted = y * m - torch.exp(m + v / 2) - torch.lgamma(y + 1)
    torch.testing.assert_close(Poisson(1).expected(y, m, v), wanted, rtol=1e-14, atol=0.0)


def test_count_terms_are_infinite_and_not_nan_if_the_mean_overflows():
    value, first, curvature = Poisson(1).terms(one(3.0), one(800.0), one(1.0))
    assert (value.item(), first.item(), curvature.item()) == (-np.inf, -np.inf, np.inf)
    assert Poisson(1).moments(one(800.0), one(0.0))[0].item() == np.inf
    value, *slopes = NegativeBinomial(1, dispersion=0.5).terms(one(3.0), one(800.0), one(1.0))
    assert np.isfinite(value.item()) and all(bool(torch.isfinite(slope).all()) for slope in slopes)


def test_negative_binomial_equals_poisson_at_small_dispersion():
    y, mean, variance = column([0.0, 2.0, 40.0]), column([0.5, 1.0, 3.5]), column([0.1, 1.0, 0.3])
    for dispersion in (1e-9, 1e-14):
        likelihood = NegativeBinomial(1, dispersion=dispersion)
        torch.testing.assert_close(
            likelihood.log_density(y, mean), Poisson(1).log_density(y, mean), rtol=1e-6, atol=1e-6
        )
        torch.testing.assert_close(
            likelihood.expected(y, mean, variance), Poisson(1).expected(y, mean, variance), rtol=1e-5, atol=1e-5
        )


def test_negative_binomial_constant_is_continuous_at_the_series():
    y, f = column([0.0, 7.0, 5000.0]), torch.zeros(3, 1)
    for shape in (999.9, 1000.1, 3e4):
        found = NegativeBinomial(1, dispersion=1 / shape).log_density(y, f)
        wanted = nbinom.logpmf(y.numpy(), shape, shape / (shape + 1))
        np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-9)


@pytest.mark.parametrize("k", [0, 3, 50, 10_000, 1_000_000])
@pytest.mark.parametrize("ratio", [0.01, 0.9, 1.1, 30.0])
def test_count_cdf_of_poisson_equals_fine_grid(k, ratio):
    """`ratio` is the latent standard deviation over the width of the step, so that both rules are tried on either
    side."""
    std = ratio / np.sqrt(k + 1)
    for mean in (np.log(k + 1) - std, np.log(k + 1) + 0.5 * std):
        z = np.linspace(-9, 9, 40_001)
        weights = np.exp(-z * z / 2)
        exact = (weights * poisson.cdf(k, np.exp(mean + std * z))).sum() / weights.sum()
        found = count_cdf(np.array(float(k)), np.array(mean), np.array(std**2))
        assert float(found) == pytest.approx(exact, abs=1e-8)


@pytest.mark.parametrize("dispersion", [1e-3, 0.5, 3.0, 20.0])
@pytest.mark.parametrize("std", [0.05, 0.9, 1.1, 5.0])
def test_count_cdf_of_negative_binomial_equals_fine_grid(dispersion, std):
    for k, mean in ((0, -1.0), (4, 1.0), (300, 5.0)):
        z = np.linspace(-9, 9, 20_001)
        weights = np.exp(-z * z / 2)
        given = nbinom.cdf(k, 1 / dispersion, 1 / (1 + dispersion * np.exp(mean + std * z)))
        found = count_cdf(*(np.array(part) for part in (float(k), mean, std**2, dispersion)))
        assert float(found) == pytest.approx((weights * given).sum() / weights.sum(), abs=1e-8)


def test_count_cdf_handles_infinity_and_nan():
    y = np.array([-np.inf, -0.5, 0.0, 0.7, np.inf, np.nan])
    found = count_cdf(y, np.zeros(6), np.ones(6))
    assert found[[0, 1, 4]].tolist() == [0.0, 0.0, 1.0] and found[2] == found[3] > 0 and np.isnan(found[5])


def test_poisson_quantile_is_exact_for_large_counts():
    k = Poisson(1).quantile(0.975, one(np.log(1e6)), one(0.0)).item()
    assert k == poisson.ppf(0.975, 1e6)
    with pytest.raises(FactorizationError, match="log-mean"):
        Poisson(1).quantile(0.9, one(60.0), one(1.0))


def test_count_initial_values_are_finite_if_all_counts_are_zero():
    Y = torch.zeros(20, 2)
    Y[:, 1] = torch.poisson(torch.full((20,), 9.0), generator=torch.Generator().manual_seed(0))
    assert bool(torch.isfinite(Poisson(2).initial_latent(Y)).all())
    assert Poisson(2).initial_latent(Y)[1].item() == pytest.approx(np.log(9), abs=0.2)
    likelihood = NegativeBinomial(2)
    likelihood.start(Y)
    assert bool((likelihood.dispersion > 0).all() and (likelihood.dispersion <= 1).all())


def test_negative_binomial_rejects_invalid_dispersions():
    with pytest.raises(OptionError, match="dispersion"):
        NegativeBinomial(1, dispersion=0.0)
    with pytest.raises(OptionError, match="dispersion"):
        NegativeBinomial(2, dispersion=[1.0, 2.0, 3.0])


@pytest.mark.parametrize("dispersion", [1e-2, 1e-4, 1e-6])
@pytest.mark.parametrize("variance", [2.0, 4.0, 9.0])
def test_negative_binomial_expected_is_accurate_at_broad_variances_and_small_dispersions(dispersion, variance):
    """An error of the softplus is multiplied by 1/α."""
    likelihood, z = NegativeBinomial(1, dispersion=dispersion), np.linspace(-20, 20, 40_001)
    weights = np.exp(-z * z / 2)
    F = torch.from_numpy(0.5 + np.sqrt(variance) * z).reshape(-1, 1, 1)
    exact = (weights * likelihood.log_density(one(3.0), F).numpy().ravel()).sum() / weights.sum()
    assert likelihood.expected(one(3.0), one(0.5), one(variance)).item() == pytest.approx(exact, rel=1e-8, abs=1e-8)


@pytest.mark.parametrize("likelihood", [Poisson(1), NegativeBinomial(1, dispersion=1e-12)])
def test_count_draws_do_not_overflow(likelihood):
    """torch.poisson is −2⁶³ where a count is no 64-bit integer."""
    F = column([0.0, 40.0, 50.0, 800.0]).expand(4, 200).reshape(-1, 1)
    y = likelihood.draw(F, torch.Generator().manual_seed(0)).reshape(4, 200)
    likelihood.check(y[:3].reshape(-1, 1))
    np.testing.assert_allclose(y[1:3].mean(1).log().numpy(), [40.0, 50.0], atol=1e-6)
    assert bool((y[3] == torch.inf).all()) and y[0].mean().item() == pytest.approx(1.0, abs=0.3)
