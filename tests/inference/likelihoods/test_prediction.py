"""Tests of `ovkgp.inference.likelihoods.prediction`."""

import numpy as np
import pytest
import torch
from likelihood_cases import column, normal, one
from scipy import stats

from ovkgp.exceptions import FactorizationError, OptionError
from ovkgp.inference import Prediction
from ovkgp.inference.likelihoods import (
    AsymmetricLaplace,
    Gaussian,
    LikelihoodPrediction,
    Poisson,
    Softmax,
    StudentT,
    make_likelihood,
)
from ovkgp.inference.likelihoods.prediction import continuous_quantile, count_quantile

DISTRIBUTIONS = {
    "normal": stats.norm(3.0, 0.2),
    "laplace": stats.laplace(-4.0, 1e-3),
    "cauchy": stats.cauchy(1.0, 50.0),
    "bimodal": None,
}


class Bimodal:
    def cdf(self, y):
        return 0.5 * stats.norm.cdf(y, -10, 0.1) + 0.5 * stats.norm.cdf(y, 10, 0.1)


@pytest.mark.parametrize("name", list(DISTRIBUTIONS))
@pytest.mark.parametrize("q", [1e-6, 0.1, 0.499, 0.9, 1 - 1e-6])
def test_continuous_quantile_has_its_level(name, q):
    distribution, calls = DISTRIBUTIONS[name] or Bimodal(), []

    def cdf(y):
        calls.append(1)
        return torch.from_numpy(distribution.cdf(y.numpy()))

    y = continuous_quantile(cdf, q, column([0.0, 0.5]), column([1.0, 2.0]))
    np.testing.assert_allclose(distribution.cdf(y.numpy()), q, rtol=1e-7)
    assert len(calls) < 160


def test_continuous_quantile_takes_few_evaluations_for_a_smooth_distribution():
    calls = []

    def cdf(y):
        calls.append(1)
        return torch.special.ndtr(y - 0.3)

    assert continuous_quantile(cdf, 0.95, one(0.0), one(1.0)).item() == pytest.approx(
        0.3 + stats.norm.ppf(0.95), rel=1e-12
    )
    assert len(calls) <= 16


def test_continuous_quantile_rejects_distributions_without_a_quantile():
    with pytest.raises(FactorizationError, match="interval"):
        continuous_quantile(lambda y: torch.full_like(y, torch.nan), 0.5, one(0.0), one(1.0))


@pytest.mark.parametrize("q", [0.0, 1.0, -0.1])
def test_quantiles_reject_levels_outside_the_unit_interval(q):
    for find in (
        lambda q: continuous_quantile(torch.special.ndtr, q, one(0.0), one(1.0)),
        lambda q: count_quantile(None, q, one(1.0)),
    ):
        with pytest.raises(OptionError, match="strictly between 0 and 1"):
            find(q)


@pytest.mark.parametrize("guess", [0.0, 7.0, 1e9, np.inf])
def test_count_quantile_does_not_depend_on_the_guess(guess):
    distribution = stats.poisson(np.array([[0.01], [40.0]]))
    for q in (0.01, 0.5, 0.999):
        found = count_quantile(lambda k: torch.from_numpy(distribution.cdf(k.numpy())), q, column([guess, guess]))
        np.testing.assert_array_equal(found.numpy(), distribution.ppf(q))


SIGMA = torch.tensor([[1.0, 0.4], [0.4, 0.8]], dtype=torch.float64)


def latents(m=4, p=2):
    """One latent distribution in all its forms."""
    mean, root = normal(m, p), normal(m * p, m * p, seed=1)
    full = root @ root.mT / (m * p)
    blocks = torch.stack([full[i * p : (i + 1) * p, i * p : (i + 1) * p] for i in range(m)])
    given = {"none": None, "diag": full.diagonal().reshape(m, p), "output": blocks, "full": full}
    return {form: Prediction(mean, covariance, form) for form, covariance in given.items()}


@pytest.mark.parametrize("form", ["diag", "output", "full"])
def test_gaussian_prediction_is_the_latent_one_plus_noise(form):
    latent, likelihood = latents()[form], Gaussian(2, noise=SIGMA)
    found = LikelihoodPrediction(latent, likelihood)
    noise = {"diag": SIGMA.diagonal(), "output": SIGMA, "full": torch.block_diag(*[SIGMA] * 4)}[form]
    expected = Prediction(latent.mean, latent._covariance + noise, form)
    torch.testing.assert_close(found.std, expected.std)
    torch.testing.assert_close(found.quantile([0.1, 0.8]), expected.quantile([0.1, 0.8]))
    torch.testing.assert_close(found.cdf(0.3), expected.cdf(0.3))
    if form != "diag":
        torch.testing.assert_close(found.cov, expected.cov)


@pytest.mark.parametrize("name", ["student_t", "laplace", "huber", "poisson", "negative_binomial", "bernoulli"])
def test_interval_has_its_nominal_coverage(name):
    latent, likelihood = latents()["diag"], make_likelihood(name, 2)
    prediction = LikelihoodPrediction(latent, likelihood)
    generator = torch.Generator().manual_seed(0)
    F = latent.mean + latent.std * torch.randn(40_000, 4, 2, generator=generator, dtype=torch.float64)
    y = likelihood.draw(F, generator)
    lower, upper = prediction.interval(0.8)
    above, below = (y <= upper).double().mean(0), (y < lower).double().mean(0)
    if bool(likelihood.is_real.all()):
        torch.testing.assert_close(above - below, torch.full((4, 2), 0.8).double(), rtol=0.0, atol=0.02)
    assert bool((above >= 0.9 - 0.01).all() and (below <= 0.1 + 0.01).all())
    level = (y <= 1.0).double().mean(0)
    torch.testing.assert_close(prediction.cdf(1.0), level, rtol=0.0, atol=0.015)


def test_prediction_has_the_shapes_of_every_prediction():
    prediction = LikelihoodPrediction(latents()["diag"], make_likelihood(["student_t", "poisson"], 2))
    assert prediction.mean.shape == prediction.std.shape == prediction.quantile(0.3).shape == (4, 2)
    assert prediction.quantile([0.1, 0.5, 0.9]).shape == (3, 4, 2)
    assert prediction.cdf(torch.zeros(7, 4, 2)).shape == (7, 4, 2) and prediction.cdf(2.0).shape == (4, 2)
    assert prediction.form == "diag" and "per_output" in repr(prediction)


def test_prediction_with_additive_noise_keeps_the_form_of_the_covariance():
    likelihood = StudentT(2, scale=0.5, df=4.0)
    for form in ("output", "full"):
        latent = latents()[form]
        found = LikelihoodPrediction(latent, likelihood)
        extra = torch.full((4, 2), 0.25 * 2.0, dtype=torch.float64)
        torch.testing.assert_close(found.variance, latent.variance + extra)
        assert found.cov.shape == latent.cov.shape and found.form == form


def test_prediction_without_variance_has_the_mean_of_real_outputs_only():
    latent = latents()["none"]
    found = LikelihoodPrediction(latent, AsymmetricLaplace(2, scale=0.5, tau=0.8))
    torch.testing.assert_close(found.mean, latent.mean + 0.5 * (1 / 0.8 - 1 / 0.2))
    with pytest.raises(OptionError, match='cov="diag"'):
        LikelihoodPrediction(latent, Poisson(2))
    with pytest.raises(OptionError, match='cov="output"'):
        LikelihoodPrediction(latent, Softmax(2))


@pytest.mark.parametrize("form", ["output", "full"])
def test_prediction_of_classes_needs_the_covariance_between_outputs(form):
    prediction = LikelihoodPrediction(latents()[form], Softmax(2))
    np.testing.assert_allclose(prediction.mean.sum(-1).numpy(), 1.0)
    torch.testing.assert_close(prediction.mean, LikelihoodPrediction(latents()["output"], Softmax(2)).mean)
    with pytest.raises(OptionError, match="class probabilities"):
        prediction.quantile(0.5)
    with pytest.raises(OptionError):
        LikelihoodPrediction(latents()["diag"], Softmax(2))


def test_prediction_of_counts_rejects_cov_and_distribution():
    prediction = LikelihoodPrediction(latents()["output"], Poisson(2))
    with pytest.raises(OptionError, match="cov"):
        prediction.cov  # noqa: B018
    with pytest.raises(OptionError, match="distribution"):
        prediction.distribution  # noqa: B018
    with pytest.raises(OptionError, match="strictly between 0 and 1"):
        prediction.quantile([0.5, 1.0])


def test_prediction_has_no_graph():
    prediction = LikelihoodPrediction(latents()["diag"], StudentT(2))
    assert not prediction.mean.requires_grad and not prediction.variance.requires_grad
