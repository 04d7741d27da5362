"""The Gaussian likelihood with every kind of noise, against dense normal distributions and GPyTorch."""

import gpytorch
import numpy as np
import pytest
import torch
from gpytorch.distributions import MultitaskMultivariateNormal
from likelihood_cases import column, normal
from linear_operator.operators import DiagLinearOperator
from scipy.stats import multivariate_normal

from ovkgp.exceptions import InputError
from ovkgp.inference.likelihoods import Gaussian

SIGMA = torch.tensor([[1.0, 0.4, -0.2], [0.4, 0.8, 0.1], [-0.2, 0.1, 0.5]], dtype=torch.float64)


def blocks(n=4, p=3, seed=3):
    root = normal(n, p, p, seed=seed)
    return root @ root.mT + 0.1 * torch.eye(p)


def with_holes(n=4, p=3):
    Y = normal(n, p, seed=5)
    Y[1, 0] = Y[1, 2] = Y[2, 1] = torch.nan
    Y[3] = torch.nan
    return Y


def dense_expectation(y, mean, covariance, sigma):
    """log N(y; m, Σ) − ½ tr(Σ⁻¹ V) on the observed entries."""
    observed = ~np.isnan(y)
    if not observed.any():
        return 0.0
    sigma, covariance = sigma[np.ix_(observed, observed)], covariance[np.ix_(observed, observed)]
    density = multivariate_normal.logpdf(y[observed], mean[observed], sigma)
    return density - np.trace(np.linalg.solve(sigma, covariance)) / 2


def test_gaussian_full_noise_equals_dense_formula_on_observed_entries():
    likelihood, Y, mean, V = Gaussian(3, noise=SIGMA), with_holes(), normal(4, 3), blocks()
    assert likelihood.couples_outputs
    rows = zip(Y.numpy(), mean.numpy(), V.numpy(), strict=True)
    wanted = [dense_expectation(*row, SIGMA.numpy()) for row in rows]
    np.testing.assert_allclose(likelihood.expected(Y, mean, V).numpy(), wanted, rtol=1e-12)
    without = [
        dense_expectation(y, m, 0 * SIGMA.numpy(), SIGMA.numpy()) for y, m in zip(Y.numpy(), mean.numpy(), strict=True)
    ]
    np.testing.assert_allclose(likelihood.log_density(Y, mean).numpy(), without, rtol=1e-12)


def test_gaussian_terms_with_full_noise_are_derivatives_by_mean_and_symmetric_covariance():
    likelihood, Y = Gaussian(3, noise="full"), with_holes()
    with torch.no_grad():
        likelihood.noise_model.set(SIGMA)
    mean, V = normal(4, 3).requires_grad_(), blocks().requires_grad_()
    value = likelihood.expected(Y, mean, V)
    first, second = torch.autograd.grad(value.sum(), (mean, V))
    found = likelihood.terms(Y, mean, V)
    assert not any(term.requires_grad for term in found)
    for term, wanted in zip(found, (value.detach(), first, -(second + second.mT)), strict=True):
        torch.testing.assert_close(term, wanted, rtol=1e-12, atol=1e-14)
    missing = torch.isnan(Y)
    assert bool((found[1][missing] == 0).all()) and bool((found[2][missing] == 0).all())
    assert bool((found[2].mT[missing] == 0).all())


def test_gaussian_log_density_with_full_noise_accepts_latent_draws():
    likelihood, Y, F = Gaussian(3, noise=SIGMA), with_holes(), normal(5, 4, 3)
    found = likelihood.log_density(Y, F)
    assert found.shape == (5, 4)
    torch.testing.assert_close(found[2], likelihood.log_density(Y, F[2]))


@pytest.mark.parametrize("noise", ["shared", "per_output"])
def test_gaussian_diagonal_noise_equals_full_noise(noise):
    likelihood, Y, mean, V = Gaussian(3, noise=noise), with_holes(), normal(4, 3), blocks()
    assert not likelihood.couples_outputs
    full = Gaussian(3, noise=likelihood.noise_model.matrix().detach())
    diagonal = likelihood.expected(Y, mean, V.diagonal(dim1=-2, dim2=-1))
    torch.testing.assert_close(diagonal.sum(-1), full.expected(Y, mean, V))


@pytest.mark.parametrize("noise", ["per_output", "full"])
def test_gaussian_known_noise_replaces_trained_noise(noise):
    likelihood, Y, mean, V = Gaussian(3, noise=noise), with_holes(), normal(4, 3), blocks()
    known = 0.1 + normal(4, 3, seed=9).square()
    known[torch.isnan(Y)] = torch.nan
    variance = V if likelihood.couples_outputs else V.diagonal(dim1=-2, dim2=-1)
    value, first, curvature = likelihood.terms(Y, mean, variance, known)
    wanted = [
        dense_expectation(y, m, v, np.diag(k))
        for y, m, v, k in zip(Y.numpy(), mean.numpy(), V.numpy(), known.numpy(), strict=True)
    ]
    np.testing.assert_allclose((value if likelihood.couples_outputs else value.sum(-1)).numpy(), wanted, rtol=1e-12)
    torch.testing.assert_close(first, ((Y - mean) / known).nan_to_num(0.0))
    diagonal = curvature.diagonal(dim1=-2, dim2=-1) if likelihood.couples_outputs else curvature
    torch.testing.assert_close(diagonal, (1 / known).nan_to_num(0.0))
    density = likelihood.log_density(Y, mean, known)
    assert density.shape == ((4,) if likelihood.couples_outputs else (4, 3))


def test_gaussian_rejects_invalid_known_noise():
    likelihood, zero = Gaussian(2), torch.zeros(3, 2)
    with pytest.raises(InputError, match="noise"):
        likelihood.expected(zero, zero, zero + 1, zero)
    with pytest.raises(InputError, match="shape"):
        likelihood.expected(zero, zero, zero + 1, torch.ones(3, 1))
    with pytest.raises(InputError, match="covariance"):
        Gaussian(2, noise="full").expected(zero, zero, zero + 1)


def test_gaussian_expected_with_diagonal_noise_equals_gpytorch():
    theirs = gpytorch.likelihoods.MultitaskGaussianLikelihood(num_tasks=3, rank=0).double()
    theirs.noise = 0.3
    ours = Gaussian(3, noise=theirs.task_noises.detach() + 0.3)
    Y, mean, variance = normal(4, 3, seed=5), normal(4, 3), normal(4, 3, seed=6).square()
    latent = MultitaskMultivariateNormal(mean, DiagLinearOperator(variance.flatten()))
    wanted = theirs.expected_log_prob(Y, latent).sum().detach()
    torch.testing.assert_close(ours.expected(Y, mean, variance).sum(), wanted, rtol=1e-10, atol=1e-10)


def test_gaussian_log_density_with_full_noise_equals_gpytorch():
    theirs = gpytorch.likelihoods.MultitaskGaussianLikelihood(num_tasks=3, rank=3).double()
    with torch.no_grad():
        theirs.task_noise_covar_factor.copy_(torch.linalg.cholesky(SIGMA))
    theirs.noise = 0.3
    ours, Y, F = Gaussian(3, noise=SIGMA + 0.3 * torch.eye(3).double()), normal(4, 3, seed=5), normal(4, 3)
    certain = MultitaskMultivariateNormal(F, DiagLinearOperator(torch.zeros(12, dtype=torch.float64)))
    torch.testing.assert_close(ours.log_density(Y, F).sum(), theirs(certain).log_prob(Y).detach(), rtol=1e-8, atol=1e-8)


def test_gaussian_draws_with_full_noise_have_its_covariance():
    y = Gaussian(3, noise=SIGMA).draw(torch.zeros(200_000, 3), torch.Generator().manual_seed(0))
    torch.testing.assert_close(torch.cov(y.T), SIGMA, rtol=0.0, atol=0.01)


def test_gaussian_moments_accept_variances_or_covariances():
    likelihood, mean, V = Gaussian(3, noise=SIGMA), normal(4, 3), blocks()
    for variance in (V, V.diagonal(dim1=-2, dim2=-1)):
        torch.testing.assert_close(
            likelihood.moments(mean, variance)[1], V.diagonal(dim1=-2, dim2=-1) + SIGMA.diagonal()
        )


@pytest.mark.parametrize("noise", ["shared", "per_output", "full"])
def test_gaussian_initial_noise_is_a_tenth_of_the_variance(noise):
    likelihood, Y = Gaussian(2, noise=noise), normal(500, 2) * torch.tensor([1.0, 3.0])
    Y[7, 1] = torch.nan
    likelihood.start(Y)
    wanted = 0.1 * torch.tensor([1.0, 9.0], dtype=torch.float64)
    found = likelihood.noise_model.matrix().diagonal().detach()
    torch.testing.assert_close(found, wanted.mean().expand(2) if noise == "shared" else wanted, rtol=0.15, atol=0.0)
    torch.testing.assert_close(likelihood.initial_latent(Y), Y.nanmean(0))


def test_gaussian_initial_noise_is_positive_for_constant_outputs():
    likelihood = Gaussian(1)
    for Y in (column([4.0]), column([4.0, 4.0]), column([np.nan, 4.0])):
        likelihood.start(Y)
        assert likelihood.noise.item() == pytest.approx(0.1)


def test_gaussian_variables_hold_trained_noise():
    assert Gaussian(2, noise="full").variables()["noise"].shape == (2, 2)
    assert Gaussian(2, noise=0.1).variables() == {}
