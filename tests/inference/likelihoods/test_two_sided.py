"""Laplace and asymmetric Laplace noise: the link to the pinball loss, extreme variances, and GPyTorch's expectation."""

import gpytorch
import numpy as np
import pytest
import torch
from likelihood_cases import column, normal, one

from ovkgp.exceptions import OptionError
from ovkgp.inference.likelihoods import AsymmetricLaplace, Laplace


def test_laplace_expected_is_near_gpytorch_whose_nodes_miss_the_kink():
    theirs = gpytorch.likelihoods.LaplaceLikelihood().double()
    theirs.initialize(noise=0.5)  # GPyTorch's scale is √noise
    ours = Laplace(1, scale=0.5**0.5)
    mean, variance, y = normal(6, 1), 0.3 * torch.ones(6, 1).double(), 3 + normal(6, 1, seed=2)
    latent = gpytorch.distributions.MultivariateNormal(mean[:, 0], torch.diag(variance[:, 0]))
    wanted = theirs.expected_log_prob(y[:, 0], latent).detach()
    torch.testing.assert_close(ours.expected(y, mean, variance)[:, 0], wanted, rtol=1e-2, atol=1e-2)


def test_id_15_log_density_is_the_pinball_loss():
    tau, s = 0.8, 0.3
    likelihood, y, f = AsymmetricLaplace(1, scale=s, tau=tau), normal(9, 1), normal(9, 1, seed=1)
    r = (y - f).numpy()
    wanted = np.log(tau * (1 - tau) / s) - np.maximum(tau * r, (tau - 1) * r) / s
    np.testing.assert_allclose(likelihood.log_density(y, f).numpy(), wanted, rtol=1e-12)


def test_id_15_latent_value_is_the_quantile():
    for tau in (0.05, 0.5, 0.9):
        likelihood = AsymmetricLaplace(1, scale=0.3, tau=tau)
        assert likelihood.cdf(one(1.2), one(1.2), one(0.0)).item() == pytest.approx(tau, abs=1e-7)
        assert likelihood.quantile(tau, one(1.2), one(0.0)).item() == pytest.approx(1.2, abs=1e-6)


def test_asymmetric_laplace_at_one_half_equals_laplace_of_twice_the_scale():
    y, mean, variance = normal(5, 1), normal(5, 1, seed=1), normal(5, 1, seed=2).square()
    half, whole = AsymmetricLaplace(1, scale=0.35), Laplace(1, scale=0.7)
    for found, wanted in zip(half.terms(y, mean, variance), whole.terms(y, mean, variance), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(half.cdf(y, mean, variance), whole.cdf(y, mean, variance), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("variance", [0.0, 1e-20, 1e-6, 1e6, 1e12])
def test_laplace_is_finite_and_in_range_at_extreme_variances(variance):
    likelihood, y = Laplace(1, scale=0.01), column([-50.0, 0.0, 1e-3, 50.0])
    zero, variances = torch.zeros_like(y), torch.full_like(y, variance)
    assert all(bool(torch.isfinite(term).all()) for term in likelihood.terms(y, zero, variances))
    levels = likelihood.cdf(y, zero, variances)
    assert bool(((levels >= 0) & (levels <= 1)).all() and (levels.diff(dim=0) >= 0).all())
    assert levels[1].item() == pytest.approx(0.5, abs=1e-9)


def test_asymmetric_laplace_initial_latent_is_the_quantile():
    Y = torch.cat([normal(301, 1), 5 * normal(301, 1, seed=1)], -1)
    Y[:50, 1] = torch.nan
    found = AsymmetricLaplace(2, tau=0.9).initial_latent(Y)
    np.testing.assert_allclose(found.numpy(), np.nanquantile(Y.numpy(), 0.9, axis=0), rtol=1e-12)
    np.testing.assert_allclose(Laplace(2).initial_latent(Y).numpy(), np.nanmedian(Y.numpy(), axis=0), atol=0.05)
    assert AsymmetricLaplace(1).initial_latent(column([np.nan])).item() == 0.0


@pytest.mark.parametrize("tau", [0.0, 1.0, -0.5])
def test_asymmetric_laplace_rejects_levels_outside_the_unit_interval(tau):
    with pytest.raises(OptionError, match="strictly between 0 and 1"):
        AsymmetricLaplace(1, tau=tau)
