"""Binary outputs: both links, GPyTorch's probit likelihood, and tails."""

import gpytorch
import pytest
import torch
from likelihood_cases import column, fine_average, normal, one
from scipy.special import log_ndtr, ndtr

from ovkgp.exceptions import OptionError
from ovkgp.inference.likelihoods import Bernoulli


def test_probit_expectations_and_probabilities_are_those_of_gpytorch():
    theirs, ours = gpytorch.likelihoods.BernoulliLikelihood().double(), Bernoulli(1, link="probit")
    mean, variance = normal(8, 1), 0.05 + 0.1 * normal(8, 1, seed=1).square()
    y = (torch.arange(8) % 2).double().unsqueeze(-1)
    latent = gpytorch.distributions.MultivariateNormal(mean[:, 0], torch.diag(variance[:, 0]))
    wanted = theirs.expected_log_prob(y[:, 0], latent)  # its log Φ is an approximation, good to 2e-4
    torch.testing.assert_close(ours.expected(y, mean, variance)[:, 0], wanted, rtol=5e-4, atol=0.0)
    torch.testing.assert_close(ours.moments(mean, variance)[0][:, 0], theirs(latent).mean, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("std", [0.0, 1.0, 1.6, 2.0, 3.0, 10.0, 100.0])
def test_probit_expectations_are_exact_at_every_variance(std):
    likelihood = Bernoulli(1, link="probit")
    for mean in (-20.0, -3.0, 0.0, 1.0, 4.0, 6.0):
        found = likelihood.expected(one(1.0), one(mean), one(std**2)).item()
        assert found == pytest.approx(fine_average(log_ndtr, mean, max(std, 1e-9)), rel=1e-9, abs=1e-10)


def test_small_probit_probabilities_keep_their_digits():
    found = Bernoulli(1, link="probit").probability(one(-12.0), one(0.0)).item()
    assert found == pytest.approx(ndtr(-12.0), rel=1e-12, abs=0.0)


@pytest.mark.parametrize("link", ["logit", "probit"])
def test_probabilities_are_symmetric_and_shrink_to_one_half(link):
    likelihood, mean = Bernoulli(1, link=link), column([-2.0, -0.5, 0.5, 2.0])
    for variance in (0.0, 1.0, 50.0):
        probability = likelihood.probability(mean, torch.full_like(mean, variance))
        torch.testing.assert_close(probability + probability.flip(0), torch.ones_like(mean), rtol=0.0, atol=1e-9)
    assert likelihood.probability(one(2.0), one(1e6)).item() == pytest.approx(0.5, abs=1e-3)


@pytest.mark.parametrize("link", ["logit", "probit"])
def test_the_latent_level_starts_at_the_frequency(link):
    likelihood, Y = Bernoulli(2, link=link), torch.zeros(40, 2)
    Y[:10, 0], Y[5:20, 1] = 1.0, torch.nan
    start = likelihood.latent_start(Y)
    share = likelihood.probability(start.unsqueeze(0), torch.zeros(1, 2))[0]
    torch.testing.assert_close(share, torch.tensor([10.5 / 41, 0.5 / 26], dtype=torch.float64), rtol=1e-9, atol=0.0)


@pytest.mark.parametrize("link", ["logit", "probit"])
def test_hopeless_labels_stay_finite(link):
    mean = one(60.0)
    value, first, curvature = Bernoulli(1, link=link).terms(one(0.0), mean, one(0.5))
    assert all(bool(torch.isfinite(part).all()) for part in (value, first, curvature))
    assert value.item() < -50 and first.item() < 0


def test_unknown_links_are_refused():
    with pytest.raises(OptionError, match="'logit', 'probit'"):
        Bernoulli(1, link="cloglog")
