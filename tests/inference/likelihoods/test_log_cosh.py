"""Tests of `ovkgp.inference.likelihoods.log_cosh`: limits, the loss, extreme values and both quadrature rules."""

import numpy as np
import pytest
import torch
from likelihood_cases import LogCoshDistribution, column, fine_average, normal, one
from scipy import stats

from ovkgp import losses
from ovkgp.exceptions import OptionError
from ovkgp.inference.likelihoods import Gaussian, Laplace, LogCosh


def latent():
    return normal(6, 1), normal(6, 1, seed=1), normal(6, 1, seed=2).square()


def test_log_cosh_of_unit_width_is_the_hyperbolic_secant_distribution():
    y = column([-3.0, -0.2, 0.0, 1.5])
    found = LogCosh(1, scale=1.0).log_density(y, torch.zeros_like(y))
    np.testing.assert_allclose(found.numpy(), stats.hypsecant.logpdf(y.numpy()), rtol=1e-12)
    variance = LogCosh(1, scale=1.0).unit_moments()[1].item()
    assert variance == pytest.approx(stats.hypsecant.var(), rel=1e-12)


def test_log_cosh_equals_laplace_at_large_nu():
    found, wanted = LogCosh(1, scale=0.7, nu=1e4), Laplace(1, scale=0.7)
    torch.testing.assert_close(found.expected(*latent()), wanted.expected(*latent()), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(found.cdf(*latent()), wanted.cdf(*latent()), rtol=0.0, atol=1e-5)


def test_log_cosh_equals_gaussian_at_small_nu():
    nu = 1e-6
    found, wanted = LogCosh(1, scale=0.7 * nu**0.5, nu=nu), Gaussian(1, noise=0.49)
    torch.testing.assert_close(
        found.log_density(*latent()[:2]), wanted.log_density(*latent()[:2]), rtol=1e-4, atol=1e-4
    )
    torch.testing.assert_close(found.cdf(*latent()), wanted.cdf(*latent()), rtol=0.0, atol=1e-5)


def test_log_density_is_the_log_cosh_loss():
    """exp(−ℓ_ν(r)/s) has the scale s and ν s in units of the inverse scale (BO §6.3)."""
    nu, s, y, f = 3.0, 0.4, normal(9, 1), normal(9, 1, seed=1)
    value = losses.LogCosh(nu).value(f, y, torch.zeros(1, dtype=torch.float64)) / s
    total = LogCosh(1, scale=s, nu=nu * s).log_density(y, f) + value
    torch.testing.assert_close(total, total[:1].expand_as(total), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("nu", [0.02, 0.5, 5.0, 25.0])
def test_log_cosh_cdf_equals_numerical_integral_for_any_width(nu):
    """By nodes of e where f is wider than e, by nodes of f otherwise."""
    likelihood = LogCosh(1, scale=0.5, nu=nu)
    for mean, std in ((0.2, 0.01), (0.2, 0.3), (0.2, 4.0)):
        for y in (-0.7, 0.25, 3.0):
            exact = fine_average(lambda f, y=y: LogCoshDistribution(nu, f, 0.5).cdf(y), mean, std, (y,))
            assert likelihood.cdf(one(y), one(mean), one(std**2)).item() == pytest.approx(exact, abs=1e-8)


@pytest.mark.parametrize("variance", [0.0, 1e-20, 1e-6, 1e8])
def test_log_cosh_is_finite_and_in_range_at_extreme_variances(variance):
    likelihood, y = LogCosh(1, scale=0.1), column([-50.0, 0.0, 1e-3, 50.0])
    zero, variances = torch.zeros_like(y), torch.full_like(y, variance)
    assert all(bool(torch.isfinite(term).all()) for term in likelihood.terms(y, zero, variances))
    levels = likelihood.cdf(y, zero, variances)
    assert bool(((levels >= 0) & (levels <= 1)).all() and (levels.diff(dim=0) >= -1e-12).all())
    assert levels[1].item() == pytest.approx(0.5, abs=1e-9)
    assert bool(torch.isfinite(likelihood.log_predictive(y, zero, variances)).all())


def test_log_cosh_gradient_is_bounded_by_the_inverse_scale():
    likelihood, y = LogCosh(1, scale=0.5, nu=2.0), column(np.linspace(-100, 100, 401))
    _, first, curvature = likelihood.terms(y, torch.zeros_like(y), torch.ones_like(y))
    assert first.abs().max().item() <= 2.0 * (1 + 1e-12)
    assert bool((curvature >= -1e-12).all()) and curvature.max().item() <= 2.0 / 0.25


@pytest.mark.parametrize("nu", [0.0, -1.0, np.inf])
def test_log_cosh_rejects_invalid_nu(nu):
    with pytest.raises(OptionError, match="nu"):
        LogCosh(1, nu=nu)
