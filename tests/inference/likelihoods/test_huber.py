"""Huber's density: its limits, its bounded pull, and the bivariate normal rectangle that its distribution function needs."""

import numpy as np
import pytest
import torch
from likelihood_cases import column, normal
from scipy.stats import multivariate_normal

from ovkgp.exceptions import OptionError
from ovkgp.inference.likelihoods import Gaussian, Huber, Laplace
from ovkgp.inference.likelihoods.location import bivariate_cdf


def test_a_large_kappa_is_gaussian_noise():
    huber, gaussian = Huber(1, scale=0.8, kappa=30.0), Gaussian(1, noise=0.64)
    y, mean, variance = normal(5, 1), normal(5, 1, seed=1), normal(5, 1, seed=2).square()
    for found, wanted in zip(huber.terms(y, mean, variance), gaussian.terms(y, mean, variance), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(huber.cdf(y, mean, variance), gaussian.cdf(y, mean, variance), rtol=0.0, atol=1e-10)


def test_a_small_kappa_is_laplace_noise():
    kappa = 1e-4
    huber, laplace = Huber(1, scale=kappa, kappa=kappa), Laplace(1, scale=1.0)
    y, mean, variance = normal(5, 1), normal(5, 1, seed=1), normal(5, 1, seed=2).square()
    torch.testing.assert_close(
        huber.expected(y, mean, variance), laplace.expected(y, mean, variance), rtol=1e-5, atol=1e-5
    )


def test_the_pull_is_bounded_by_kappa_and_the_curvature_by_the_gaussian_one():
    likelihood, y = Huber(1, scale=0.5, kappa=1.345), column(np.linspace(-100, 100, 401))
    _, first, curvature = likelihood.terms(y, torch.zeros_like(y), torch.ones_like(y))
    assert first.abs().max().item() <= 1.345 / 0.5 * (1 + 1e-12)
    assert bool((curvature >= 0).all()) and curvature.max().item() <= 1 / 0.25


def test_bivariate_probabilities_are_those_of_scipy():
    k, rho = np.array([-2.0, -0.3, 0.0, 0.4, 3.0]), np.array([0.05, 0.5, 0.9, 0.99, 0.3])
    for h in (-1.345, 0.2, 1.345):
        found = bivariate_cdf(h, *(torch.from_numpy(part) for part in (k, rho, np.sqrt(1 - rho**2))))
        wanted = [multivariate_normal.cdf([h, one], cov=[[1, r], [r, 1]]) for one, r in zip(k, rho, strict=True)]
        np.testing.assert_allclose(found.numpy(), wanted, atol=1e-7)  # SciPy's own rule is good to that


@pytest.mark.parametrize("variance", [0.0, 1e-20, 1e-6, 1e8])
def test_extreme_variances_stay_finite_and_in_range(variance):
    likelihood, y = Huber(1, scale=0.1), column([-50.0, 0.0, 1e-3, 50.0])
    zero, variances = torch.zeros_like(y), torch.full_like(y, variance)
    assert all(bool(torch.isfinite(term).all()) for term in likelihood.terms(y, zero, variances))
    levels = likelihood.cdf(y, zero, variances)
    assert bool(((levels >= 0) & (levels <= 1)).all() and (levels.diff(dim=0) >= -1e-12).all())
    assert levels[1].item() == pytest.approx(0.5, abs=1e-9)


@pytest.mark.parametrize("kappa", [0.0, -1.0, np.inf])
def test_thresholds_that_are_none_are_refused(kappa):
    with pytest.raises(OptionError, match="kappa"):
        Huber(1, kappa=kappa)


@pytest.mark.parametrize("size", [1e6, 1e10, 1e17])
def test_gross_errors_keep_their_digits(size):
    """½u² − ½(u − κ)² would have none left."""
    likelihood, y = Huber(1, scale=1.0, kappa=1.345), column([size, -size])
    value, first, curvature = likelihood.terms(y, torch.zeros_like(y), torch.ones_like(y))
    torch.testing.assert_close(value, likelihood.log_density(y, torch.zeros_like(y)), rtol=1e-12, atol=0.0)
    assert first.flatten().tolist() == [1.345, -1.345] and curvature.abs().max().item() == 0.0
