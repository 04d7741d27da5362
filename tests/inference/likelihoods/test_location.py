"""Tests of `ovkgp.inference.likelihoods.location`."""

import gpytorch
import numpy as np
import pytest
import torch
from likelihood_cases import column, normal, one
from scipy.stats import multivariate_normal
from scipy.stats import t as student

from ovkgp.exceptions import OptionError
from ovkgp.inference.likelihoods import Gaussian, Huber, Laplace, StudentT
from ovkgp.inference.likelihoods.location import bivariate_cdf


def test_huber_equals_gaussian_at_large_kappa():
    huber, gaussian = Huber(1, scale=0.8, kappa=30.0), Gaussian(1, noise=0.64)
    y, mean, variance = normal(5, 1), normal(5, 1, seed=1), normal(5, 1, seed=2).square()
    for found, wanted in zip(huber.terms(y, mean, variance), gaussian.terms(y, mean, variance), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(huber.cdf(y, mean, variance), gaussian.cdf(y, mean, variance), rtol=0.0, atol=1e-10)


def test_huber_equals_laplace_at_small_kappa():
    kappa = 1e-4
    huber, laplace = Huber(1, scale=kappa, kappa=kappa), Laplace(1, scale=1.0)
    y, mean, variance = normal(5, 1), normal(5, 1, seed=1), normal(5, 1, seed=2).square()
    torch.testing.assert_close(
        huber.expected(y, mean, variance), laplace.expected(y, mean, variance), rtol=1e-5, atol=1e-5
    )


def test_huber_gradient_is_bounded_by_kappa_and_curvature_by_the_gaussian_one():
    likelihood, y = Huber(1, scale=0.5, kappa=1.345), column(np.linspace(-100, 100, 401))
    _, first, curvature = likelihood.terms(y, torch.zeros_like(y), torch.ones_like(y))
    assert first.abs().max().item() <= 1.345 / 0.5 * (1 + 1e-12)
    assert bool((curvature >= 0).all()) and curvature.max().item() <= 1 / 0.25


def test_bivariate_cdf_equals_scipy():
    k, rho = np.array([-2.0, -0.3, 0.0, 0.4, 3.0]), np.array([0.05, 0.5, 0.9, 0.99, 0.3])
    for h in (-1.345, 0.2, 1.345):
        found = bivariate_cdf(h, *(torch.from_numpy(part) for part in (k, rho, np.sqrt(1 - rho**2))))
        wanted = [multivariate_normal.cdf([h, one], cov=[[1, r], [r, 1]]) for one, r in zip(k, rho, strict=True)]
        np.testing.assert_allclose(found.numpy(), wanted, atol=1e-7)  # SciPy's own rule is good to that


@pytest.mark.parametrize("variance", [0.0, 1e-20, 1e-6, 1e8])
def test_huber_is_finite_and_in_range_at_extreme_variances(variance):
    likelihood, y = Huber(1, scale=0.1), column([-50.0, 0.0, 1e-3, 50.0])
    zero, variances = torch.zeros_like(y), torch.full_like(y, variance)
    assert all(bool(torch.isfinite(term).all()) for term in likelihood.terms(y, zero, variances))
    levels = likelihood.cdf(y, zero, variances)
    assert bool(((levels >= 0) & (levels <= 1)).all() and (levels.diff(dim=0) >= -1e-12).all())
    assert levels[1].item() == pytest.approx(0.5, abs=1e-9)


@pytest.mark.parametrize("kappa", [0.0, -1.0, np.inf])
def test_huber_rejects_invalid_kappa(kappa):
    with pytest.raises(OptionError, match="kappa"):
        Huber(1, kappa=kappa)


@pytest.mark.parametrize("size", [1e6, 1e10, 1e17])
def test_huber_is_accurate_at_gross_errors(size):
    """½u² − ½(u − κ)² would have none left."""
    likelihood, y = Huber(1, scale=1.0, kappa=1.345), column([size, -size])
    value, first, curvature = likelihood.terms(y, torch.zeros_like(y), torch.ones_like(y))
    torch.testing.assert_close(value, likelihood.log_density(y, torch.zeros_like(y)), rtol=1e-12, atol=0.0)
    assert first.flatten().tolist() == [1.345, -1.345] and curvature.abs().max().item() == 0.0


def test_student_t_expected_equals_gpytorch_if_its_nodes_suffice():
    theirs = gpytorch.likelihoods.StudentTLikelihood().double()
    theirs.initialize(deg_free=4.0, noise=0.5)
    ours = StudentT(1, scale=0.5**0.5, df=4.0)
    mean, variance, y = normal(6, 1), 0.02 + 0.02 * normal(6, 1, seed=1).square(), normal(6, 1, seed=2)
    latent = gpytorch.distributions.MultivariateNormal(mean[:, 0], torch.diag(variance[:, 0]))
    wanted = theirs.expected_log_prob(y[:, 0], latent).detach()
    torch.testing.assert_close(ours.expected(y, mean, variance)[:, 0], wanted, rtol=1e-7, atol=1e-7)


def test_student_t_equals_gaussian_at_many_degrees_of_freedom():
    ours, gaussian = StudentT(1, scale=0.8, df=1e7), Gaussian(1, noise=0.64)
    y, mean, variance = normal(5, 1), normal(5, 1, seed=1), normal(5, 1, seed=2).square()
    for found, wanted in zip(ours.terms(y, mean, variance), gaussian.terms(y, mean, variance), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(ours.cdf(y, mean, variance), gaussian.cdf(y, mean, variance), rtol=0.0, atol=1e-6)


def test_student_t_gradient_decreases_with_the_size_of_a_gross_error():
    likelihood = StudentT(1, scale=1.0, df=4.0)
    y = column([5.0, 50.0, 500.0, 5e6])
    _, first, curvature = likelihood.terms(y, torch.zeros_like(y), torch.ones_like(y))
    assert bool((first > 0).all() and (first.diff(dim=0) < 0).all() and (curvature < 0).all())
    torch.testing.assert_close(first[1:], 5 / y[1:], rtol=2e-2, atol=0.0)  # (ν + 1) / r


def test_student_t_cdf_without_latent_variance_equals_scipy():
    for df in (0.8, 2.1, 30.0, 1e4):
        likelihood, y = StudentT(1, scale=0.7, df=df), column([-30.0, -1.0, 0.2, 4.0])
        found = likelihood.cdf(y, torch.zeros_like(y), torch.zeros_like(y)).numpy()
        np.testing.assert_allclose(found, student.cdf(y.numpy(), df, 0, 0.7), atol=1e-9)


def test_student_t_trained_df_stays_above_two():
    likelihood = StudentT(2)
    with torch.no_grad():
        likelihood.raw_df.fill_(-30.0)
    assert bool((likelihood.df > 2).all())
    assert bool(torch.isfinite(likelihood.moments(torch.zeros(1, 2), torch.ones(1, 2))[1]).all())
    with pytest.raises(OptionError, match="df"):
        likelihood.df = 1.5


def test_student_t_variance_is_infinite_at_few_fixed_degrees_of_freedom():
    likelihood = StudentT(1, df=1.0)
    assert likelihood.moments(one(0.0), one(1.0))[1].item() == np.inf
    width = likelihood.quantile(0.9, one(0.0), one(1.0)).item()
    assert likelihood.cdf(one(width), one(0.0), one(1.0)).item() == pytest.approx(0.9, abs=1e-10)
    likelihood.start(normal(50, 1))
    assert 0 < likelihood.scale.item() < 1


def test_student_t_initial_scale_is_robust_against_gross_errors():
    Y = normal(400, 1)
    clean, dirty = StudentT(1), StudentT(1)
    clean.start(Y)
    Y[:20] = 1e4
    dirty.start(Y)
    assert dirty.scale.item() == pytest.approx(clean.scale.item(), rel=0.2)
    assert abs(dirty.initial_latent(Y).item()) < 0.2


def test_student_t_variables_are_the_trained_parameters():
    assert set(StudentT(2).variables()) == {"scale", "df"}
    assert set(StudentT(2, df=4.0).variables()) == {"scale"}
    likelihood = StudentT(2)
    likelihood.scale, likelihood.df = [0.5, 2.0], 7.0
    torch.testing.assert_close(likelihood.variables()["scale"], torch.tensor([0.5, 2.0], dtype=torch.float64))
    torch.testing.assert_close(likelihood.variables()["df"], torch.tensor([7.0, 7.0], dtype=torch.float64))


@pytest.mark.parametrize("df", [999.0, 1001.0, 1e10, 1e15])
def test_student_t_constant_is_accurate_at_many_degrees_of_freedom(df):
    """A direct difference of log Γ is off by 6e-7 at ν = 1e10 and by 0.1 at 1e15."""
    found = StudentT(1, scale=1.0, df=df).log_density(one(0.5), one(0.0)).item()
    gaussian = Gaussian(1, noise=1.0).log_density(one(0.5), one(0.0)).item()
    assert found == pytest.approx(student.logpdf(0.5, df) if df < 1e4 else gaussian, rel=1e-9)


@pytest.mark.parametrize("df", [0.01, 0.05, 0.3, 0.99, 1.01])
def test_student_t_cdf_equals_scipy_at_few_degrees_of_freedom(df):
    likelihood = StudentT(1, scale=1.0, df=df)
    for y in (-0.5, 0.5, 1e6):
        assert likelihood.cdf(one(y), one(0.0), one(0.0)).item() == pytest.approx(student.cdf(y, df), abs=1e-8)


def test_student_t_expected_is_minus_infinity_if_the_residual_overflows():
    value = StudentT(1, scale=1.0, df=4.0).expected(column([1e200, 0.0]), torch.zeros(2, 1), torch.ones(2, 1))
    assert value[0].item() == -np.inf and np.isfinite(value[1].item())
