"""Tests of `ovkgp.inference.likelihoods.piecewise`: identities with other likelihoods and with the losses, extreme values."""

import numpy as np
import pytest
import torch
from likelihood_cases import column, normal, one
from scipy.integrate import quad

from ovkgp import losses
from ovkgp.exceptions import OptionError
from ovkgp.inference.likelihoods import AsymmetricHuber, AsymmetricLaplace, EpsilonInsensitive, Gaussian, Huber


def latent():
    return normal(6, 1), normal(6, 1, seed=1), normal(6, 1, seed=2).square()


def check_equal(found, wanted, tolerance):
    """Terms, distribution function and predictive density of two likelihoods."""
    for one_term, other in zip(found.terms(*latent()), wanted.terms(*latent()), strict=True):
        torch.testing.assert_close(one_term, other, rtol=tolerance, atol=tolerance)
    for name in ("cdf", "log_predictive"):
        values = (getattr(likelihood, name)(*latent()) for likelihood in (found, wanted))
        torch.testing.assert_close(*values, rtol=tolerance, atol=tolerance)
    moments = (torch.stack(likelihood.moments(*latent()[1:])) for likelihood in (found, wanted))
    torch.testing.assert_close(*moments, rtol=tolerance, atol=tolerance)


def test_insensitive_equals_gaussian_without_core():
    check_equal(EpsilonInsensitive(1, scale=0.8, epsilon=0.0), Gaussian(1, noise=0.64), 1e-12)


def test_asymmetric_huber_at_one_half_equals_huber():
    """½ψ_κ(r/b) is h_k(r/s) with s = b√(2κ) and k = √(κ/2)."""
    kappa, b = 1.7, 0.6
    asymmetric = AsymmetricHuber(1, scale=b, tau=0.5, kappa=kappa)
    check_equal(asymmetric, Huber(1, scale=b * np.sqrt(2 * kappa), kappa=np.sqrt(kappa / 2)), 1e-11)


def test_asymmetric_huber_equals_asymmetric_laplace_at_small_kappa():
    smoothed, exact = AsymmetricHuber(1, scale=0.7, tau=0.8, kappa=1e-5), AsymmetricLaplace(1, scale=0.7, tau=0.8)
    torch.testing.assert_close(smoothed.expected(*latent()), exact.expected(*latent()), rtol=2e-5, atol=2e-5)
    torch.testing.assert_close(smoothed.cdf(*latent()), exact.cdf(*latent()), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("likelihood", "loss", "level"),
    [
        (EpsilonInsensitive(1, scale=0.5, epsilon=0.6), losses.EpsilonInsensitive(0.3), 0.5),
        (AsymmetricHuber(1, scale=0.5, tau=0.8, kappa=1.4), losses.SmoothedPinball(0.7), 0.8),
    ],
)
def test_log_density_is_the_loss(likelihood, loss, level):
    """Differences of log p are those of the loss, times 1/s² for a squared core and 1/s for a pinball (BO §6.3, LT §6.1)."""
    y, f = normal(9, 1), normal(9, 1, seed=1)
    value = loss.value(f, y, torch.tensor([level], dtype=torch.float64)) / (0.25 if level == 0.5 else 0.5)
    total = likelihood.log_density(y, f) + value
    torch.testing.assert_close(total, total[:1].expand_as(total), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("tau", [0.03, 0.5, 0.9])
@pytest.mark.parametrize("kappa", [0.01, 1.0, 40.0])
def test_asymmetric_huber_moments_equal_numerical_integrals(tau, kappa):
    likelihood = AsymmetricHuber(1, scale=1.0, tau=tau, kappa=kappa)

    def moment(power):
        parts = [(-1500, -kappa), (-kappa, 0), (0, kappa), (kappa, 1500)]

        def integrand(e):
            return e**power * likelihood.log_density(one(e), one(0.0)).exp().item()

        return sum(quad(integrand, *part, limit=400, epsabs=1e-11)[0] for part in parts)

    mean, variance = (part.item() for part in likelihood.unit_moments())
    assert moment(0) == pytest.approx(1.0, abs=1e-7)
    assert mean == pytest.approx(moment(1), abs=1e-6)
    assert variance == pytest.approx(moment(2) - mean**2, rel=1e-6)


@pytest.mark.parametrize("likelihood", [AsymmetricHuber(1, scale=0.1), EpsilonInsensitive(1, scale=0.1)])
@pytest.mark.parametrize("variance", [0.0, 1e-20, 1e-6, 1e8])
def test_piecewise_likelihoods_are_finite_and_in_range_at_extreme_variances(likelihood, variance):
    y = column([-50.0, 0.0, 1e-3, 50.0])
    zero, variances = torch.zeros_like(y), torch.full_like(y, variance)
    assert all(bool(torch.isfinite(term).all()) for term in likelihood.terms(y, zero, variances))
    levels = likelihood.cdf(y, zero, variances)
    assert bool(((levels >= 0) & (levels <= 1)).all() and (levels.diff(dim=0) >= -1e-12).all())
    assert levels[1].item() == pytest.approx(0.5, abs=1e-9)
    assert bool(torch.isfinite(likelihood.log_predictive(y, zero, variances)).all())


@pytest.mark.parametrize("size", [1e6, 1e10, 1e17])
def test_asymmetric_huber_is_accurate_at_gross_errors(size):
    likelihood, y = AsymmetricHuber(1, scale=1.0, tau=0.8, kappa=1.3), column([size, -size])
    value, first, curvature = likelihood.terms(y, torch.zeros_like(y), torch.ones_like(y))
    torch.testing.assert_close(value, likelihood.log_density(y, torch.zeros_like(y)), rtol=1e-12, atol=0.0)
    torch.testing.assert_close(first, column([0.8, -0.2]), rtol=1e-12, atol=0.0)
    assert curvature.abs().max().item() == 0.0


def test_insensitive_core_has_no_gradient_and_tails_have_that_of_a_gaussian():
    likelihood, y = EpsilonInsensitive(1, scale=0.5, epsilon=4.0), column([0.3, 5.0])
    _, first, curvature = likelihood.terms(y, torch.zeros_like(y), torch.full_like(y, 1e-4))
    assert first[0].abs().item() < 1e-12 and curvature[0].item() < 1e-12
    assert first[1].item() == pytest.approx((5.0 - 2.0) / 0.25, rel=1e-12)
    assert curvature[1].item() == pytest.approx(1 / 0.25, rel=1e-12)


def test_asymmetric_huber_initial_latent_is_the_quantile():
    Y = normal(301, 2)
    found = AsymmetricHuber(2, tau=0.9).initial_latent(Y)
    np.testing.assert_allclose(found.numpy(), np.quantile(Y.numpy(), 0.9, axis=0), rtol=1e-12)


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (EpsilonInsensitive, {"epsilon": -0.1}),
        (AsymmetricHuber, {"tau": 1.0}),
        (AsymmetricHuber, {"kappa": 0.0}),
    ],
)
def test_piecewise_likelihoods_reject_invalid_options(kind, options):
    with pytest.raises(OptionError, match=next(iter(options))):
        kind(1, **options)
