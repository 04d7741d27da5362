"""Tests of `ovkgp.inference.likelihoods.classification`."""

import gpytorch
import numpy as np
import pytest
import torch
from likelihood_cases import column, fine_average, normal, one
from scipy.special import log_ndtr, ndtr, ndtri
from scipy.stats import multinomial, qmc
from torch.autograd import gradcheck

from ovkgp.exceptions import FactorizationError, InputError, OptionError
from ovkgp.inference.likelihoods import Bernoulli, Softmax


def test_probit_equals_gpytorch():
    theirs, ours = gpytorch.likelihoods.BernoulliLikelihood().double(), Bernoulli(1, link="probit")
    mean, variance = normal(8, 1), 0.05 + 0.1 * normal(8, 1, seed=1).square()
    y = (torch.arange(8) % 2).double().unsqueeze(-1)
    latent = gpytorch.distributions.MultivariateNormal(mean[:, 0], torch.diag(variance[:, 0]))
    wanted = theirs.expected_log_prob(y[:, 0], latent)  # its log Φ is an approximation, good to 2e-4
    torch.testing.assert_close(ours.expected(y, mean, variance)[:, 0], wanted, rtol=5e-4, atol=0.0)
    torch.testing.assert_close(ours.moments(mean, variance)[0][:, 0], theirs(latent).mean, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("std", [0.0, 1.0, 1.6, 2.0, 3.0, 10.0, 100.0])
def test_probit_expected_is_exact_at_every_variance(std):
    likelihood = Bernoulli(1, link="probit")
    for mean in (-20.0, -3.0, 0.0, 1.0, 4.0, 6.0):
        found = likelihood.expected(one(1.0), one(mean), one(std**2)).item()
        assert found == pytest.approx(fine_average(log_ndtr, mean, max(std, 1e-9)), rel=1e-9, abs=1e-10)


def test_probit_probability_is_accurate_when_small():
    found = Bernoulli(1, link="probit").probability(one(-12.0), one(0.0)).item()
    assert found == pytest.approx(ndtr(-12.0), rel=1e-12, abs=0.0)


@pytest.mark.parametrize("link", ["logit", "probit"])
def test_bernoulli_probability_is_symmetric_and_shrinks_to_one_half(link):
    likelihood, mean = Bernoulli(1, link=link), column([-2.0, -0.5, 0.5, 2.0])
    for variance in (0.0, 1.0, 50.0):
        probability = likelihood.probability(mean, torch.full_like(mean, variance))
        torch.testing.assert_close(probability + probability.flip(0), torch.ones_like(mean), rtol=0.0, atol=1e-9)
    assert likelihood.probability(one(2.0), one(1e6)).item() == pytest.approx(0.5, abs=1e-3)


@pytest.mark.parametrize("link", ["logit", "probit"])
def test_bernoulli_initial_latent_gives_the_frequency(link):
    likelihood, Y = Bernoulli(2, link=link), torch.zeros(40, 2)
    Y[:10, 0], Y[5:20, 1] = 1.0, torch.nan
    initial = likelihood.initial_latent(Y)
    frequency = likelihood.probability(initial.unsqueeze(0), torch.zeros(1, 2))[0]
    torch.testing.assert_close(frequency, torch.tensor([10.5 / 41, 0.5 / 26], dtype=torch.float64), rtol=1e-9, atol=0.0)


@pytest.mark.parametrize("link", ["logit", "probit"])
def test_bernoulli_terms_are_finite_at_improbable_labels(link):
    mean = one(60.0)
    value, first, curvature = Bernoulli(1, link=link).terms(one(0.0), mean, one(0.5))
    assert all(bool(torch.isfinite(part).all()) for part in (value, first, curvature))
    assert value.item() < -50 and first.item() < 0


def test_bernoulli_rejects_unknown_links():
    with pytest.raises(OptionError, match="'logit', 'probit'"):
        Bernoulli(1, link="cloglog")


def latent(n, p, std=1.0, seed=0):
    root = normal(n, p, p, seed=seed)
    return normal(n, p, seed=seed + 1), std**2 * root @ root.mT / p


def one_hot(n, p):
    return torch.eye(p, dtype=torch.float64)[torch.arange(n) % p]


def test_softmax_of_two_classes_equals_bernoulli():
    mean, V = latent(6, 2, std=2.0)
    Y = one_hot(6, 2)
    contrast, variance = mean[:, :1] - mean[:, 1:], V[:, :1, 0] + V[:, 1:, 1] - 2 * V[:, :1, 1]
    bernoulli = Bernoulli(1)
    found, wanted = Softmax(2).terms(Y, mean, V), bernoulli.terms(Y[:, :1], contrast, variance)
    torch.testing.assert_close(found[0], wanted[0][:, 0])
    torch.testing.assert_close(found[1], torch.cat([wanted[1], -wanted[1]], -1))
    sign = torch.tensor([[1.0, -1.0], [-1.0, 1.0]], dtype=torch.float64)
    torch.testing.assert_close(found[2], wanted[2].unsqueeze(-1) * sign)
    torch.testing.assert_close(Softmax(2).moments(mean, V)[0][:, :1], bernoulli.probability(contrast, variance))


def fine_expectation(mean, V, label):
    """On 2¹⁷ scrambled Sobol points."""
    points = qmc.Sobol(mean.shape[1], rng=np.random.default_rng(1)).random_base2(17)
    scores = torch.from_numpy(ndtri(np.clip(points, 1e-12, 1 - 1e-12)))
    rows = zip(mean, torch.linalg.cholesky(V), label, strict=True)
    return torch.stack([((m + scores @ root.mT).log_softmax(-1)[:, c]).mean() for m, root, c in rows])


@pytest.mark.parametrize(
    "p, std, tolerance",
    [(3, 1.0, 1e-4), (3, 2.0, 1e-4), (3, 5.0, 4e-3), (4, 0.5, 5e-4), (4, 2.0, 5e-3), (8, 1.0, 5e-3), (8, 5.0, 1e-2)],
)
def test_softmax_expected_is_as_accurate_as_documented(p, std, tolerance):
    n = 6
    mean, V = latent(n, p, std)
    V = V + 1e-3 * torch.eye(p)
    found, exact = Softmax(p).expected(one_hot(n, p), mean, V), fine_expectation(mean, V, torch.arange(n) % p)
    torch.testing.assert_close(found, exact, rtol=tolerance, atol=0.0)


@pytest.mark.parametrize("p", [2, 3, 5])
def test_softmax_terms_are_derivatives_by_mean_and_symmetric_covariance(p):
    likelihood, Y = Softmax(p), one_hot(4, p)
    mean, V = (part.requires_grad_() for part in latent(4, p))
    assert gradcheck(lambda m, v: likelihood.expected(Y, m, (v + v.mT) / 2), (mean, V))
    value = likelihood.expected(Y, mean, V)
    first, second = torch.autograd.grad(value.sum(), (mean, V))
    found = likelihood.terms(Y, mean, V)
    for term, wanted in zip(found, (value.detach(), first, -(second + second.mT)), strict=True):
        torch.testing.assert_close(term, wanted)
    assert torch.equal(found[2], found[2].mT)
    np.testing.assert_allclose(found[1].sum(-1).numpy(), 0.0, atol=1e-12)  # a common shift changes nothing
    assert torch.linalg.eigvalsh(found[2]).min().item() > -1e-3  # log p is concave; the rule's error is what is left


@pytest.mark.parametrize("p", [3, 5])
def test_softmax_accepts_singular_and_zero_covariances(p):
    likelihood, Y, mean = Softmax(p), one_hot(4, p), normal(4, p)
    for V in (torch.zeros(4, p, p), torch.ones(4, p, p)):  # the second moves all classes together
        value, first, curvature = likelihood.terms(Y, mean, V)
        torch.testing.assert_close(value, likelihood.log_density(Y, mean), rtol=1e-6, atol=1e-6)
        probability = mean.softmax(-1)
        torch.testing.assert_close(first, Y - probability, rtol=1e-6, atol=1e-6)
        hessian = torch.diag_embed(probability) - probability.unsqueeze(-1) * probability.unsqueeze(-2)
        torch.testing.assert_close(curvature, hessian, rtol=1e-3, atol=1e-3)


def test_softmax_counts_are_multinomial():
    Y, F = torch.tensor([[3.0, 0.0, 2.0], [1.0, 1.0, 9.0]]).double(), normal(2, 3)
    wanted = [multinomial.logpmf(y, int(y.sum()), q) for y, q in zip(Y.numpy(), F.softmax(-1).numpy(), strict=True)]
    np.testing.assert_allclose(Softmax(3).log_density(Y, F).numpy(), wanted, rtol=1e-10)
    assert Softmax(3).log_density(Y, normal(7, 2, 3)).shape == (7, 2)


def test_softmax_row_with_any_missing_entry_is_missing():
    likelihood, Y, (mean, V) = Softmax(3), one_hot(4, 3), latent(4, 3)
    Y[1, 2] = torch.nan
    likelihood.check(Y)
    value, first, curvature = likelihood.terms(Y, mean, V)
    assert value[1] == 0 and bool((first[1] == 0).all()) and bool((curvature[1] == 0).all())
    kept = [0, 2, 3]
    torch.testing.assert_close(value[kept], likelihood.expected(Y[kept], mean[kept], V[kept]))
    assert likelihood.log_density(Y, mean)[1] == 0
    torch.testing.assert_close(likelihood.initial_latent(Y), likelihood.initial_latent(Y[kept]))


@pytest.mark.parametrize("p", [2, 3, 6])
def test_softmax_probabilities_equal_those_of_draws(p):
    likelihood, (mean, V) = Softmax(p), latent(1, p, std=1.5)
    probability, variance = likelihood.moments(mean, V)
    assert probability.sum().item() == pytest.approx(1.0, abs=1e-12)
    generator = torch.Generator().manual_seed(0)
    root = torch.linalg.cholesky(V[0] + 1e-12 * torch.eye(p))
    F = mean + torch.randn(100_000, p, generator=generator, dtype=torch.float64) @ root.mT
    y = likelihood.draw(F, generator)
    assert bool((y.sum(-1) == 1).all())
    torch.testing.assert_close(y.mean(0, keepdim=True), probability, rtol=0.0, atol=0.01)
    torch.testing.assert_close(variance, probability * (1 - probability))


def test_softmax_has_a_cdf_but_no_quantile():
    likelihood, (mean, V) = Softmax(3), latent(2, 3)
    probability = likelihood.moments(mean, V)[0]
    torch.testing.assert_close(likelihood.cdf(torch.zeros(2, 3), mean, V), 1 - probability)
    with pytest.raises(OptionError, match="class probabilities"):
        likelihood.quantile(0.5, mean, V)


def test_softmax_rejects_bad_rows_shapes_and_numbers_of_classes():
    likelihood = Softmax(3)
    with pytest.raises(InputError, match=r"Y\[1, 2\] = -1"):
        likelihood.check(torch.tensor([[1.0, 0, 0], [0, 1, -1]]))
    with pytest.raises(InputError, match="Row 1"):
        likelihood.check(torch.tensor([[1.0, 0, 0], [0, 0, 0]]))
    with pytest.raises(InputError, match="cov='output'"):
        likelihood.moments(torch.zeros(2, 3), torch.ones(2, 3))
    with pytest.raises(OptionError, match="softmax"):
        Softmax(1)


def test_softmax_expected_is_as_accurate_as_documented_at_a_nearly_certain_label():
    """E log p is −0.0045 here: a relative error of 5 %, but an absolute one of 2e-4, within the documented accuracy."""
    mean, V = torch.tensor([[8.0, 0, 0, 0, 0, 0]]).double(), torch.eye(6).double().unsqueeze(0)
    exact = fine_expectation(mean, V, torch.zeros(1, dtype=torch.long))
    torch.testing.assert_close(Softmax(6).expected(one_hot(1, 6), mean, V), exact, rtol=0.0, atol=5e-4)


@pytest.mark.parametrize("p, std", [(4, 1.0), (8, 3.0), (20, 1.0)])
def test_softmax_curvature_is_the_expected_one_in_directions_in_which_f_varies(p, std):
    """A natural-gradient step depends on Lᵀ W L only; E[diag π − π πᵀ] is averaged on 2¹³ points."""
    mean, V = latent(6, p, std)
    curvature = Softmax(p).terms(one_hot(6, p), std * mean, V)[2]
    points = qmc.Sobol(p, rng=np.random.default_rng(1)).random_base2(13)
    scores = torch.from_numpy(ndtri(np.clip(points, 1e-12, 1 - 1e-12)))
    root = torch.linalg.cholesky(V + 1e-10 * torch.eye(p))
    probability = (std * mean.unsqueeze(1) + scores @ root.mT).softmax(-1)
    exact = torch.diag_embed(probability.mean(1)) - probability.mT @ probability / len(scores)
    found, wanted = (root.mT @ part @ root for part in (curvature, exact))
    assert (found - wanted).abs().max().item() < 0.05 * wanted.abs().max().item()


def test_softmax_adds_jitter_to_nearly_semidefinite_covariances_and_rejects_others():
    mean, (_, V), Y = normal(3, 4), latent(3, 4), one_hot(3, 4)
    low = V[:, :, :1] @ V[:, :1] / V[:, :1, :1]  # of rank one
    off = low - 1e-8 * torch.eye(4)
    torch.testing.assert_close(
        Softmax(4).expected(Y, mean, off), Softmax(4).expected(Y, mean, low), rtol=1e-4, atol=1e-4
    )
    with pytest.raises(FactorizationError, match="row 0"):
        Softmax(4).expected(Y, mean, -V)


def test_softmax_of_many_classes_has_more_nodes_than_dimensions():
    probability, _ = Softmax(600).moments(torch.zeros(1, 600), torch.eye(600).unsqueeze(0))
    torch.testing.assert_close(probability, torch.full((1, 600), 1 / 600).double(), rtol=0.2, atol=0.0)
