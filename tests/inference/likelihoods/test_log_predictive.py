"""log ∫ p(y | f) N(f; m, v) df of every likelihood against numerical integration, far into the tails."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from scipy import stats
from scipy.integrate import quad
from scipy.special import logsumexp

from ovkgp.exceptions import InputError
from ovkgp.inference import Prediction
from ovkgp.inference.likelihoods import (
    AsymmetricHuber,
    AsymmetricLaplace,
    Bernoulli,
    EpsilonInsensitive,
    Gaussian,
    Huber,
    Laplace,
    LikelihoodPrediction,
    LogCosh,
    NegativeBinomial,
    PerOutput,
    Poisson,
    Softmax,
    StudentT,
)
from ovkgp.inference.posteriors.prediction import MixturePrediction

LATENT = [(0.3, 0.04), (-1.0, 1.0), (0.5, 25.0)]
REAL, COUNTS = [0.1, -2.0, 7.0, 60.0], [0.0, 1.0, 4.0, 300.0]


def column(*values):
    return torch.tensor(values, dtype=torch.float64).reshape(-1, 1)


def integrated(likelihood, y, mean, variance):
    """By adaptive quadrature over f, where the integrand is not negligible, split at the peak and at kinks."""

    def log_joint(f):
        density = likelihood.log_density(column(y), torch.as_tensor(f).reshape(-1, 1, 1)).flatten().numpy()
        return density + stats.norm.logpdf(f, mean, np.sqrt(variance))

    grid = np.linspace(mean - 40 * np.sqrt(variance) - 5, max(mean + 40 * np.sqrt(variance), y) + 5, 40_001)
    level, peak = log_joint(grid).max(), grid[log_joint(grid).argmax()]
    inside = grid[log_joint(grid) > level - 45]
    ends = inside[0] - 2 * (grid[1] - grid[0]), inside[-1] + 2 * (grid[1] - grid[0])
    cuts = np.unique(np.clip([*ends, peak, y, y - 1.0, y + 1.0], *ends))
    parts = [
        quad(lambda f: np.exp(log_joint(np.array([f]))[0] - level), a, b, epsabs=0, epsrel=1e-10, limit=400)[0]
        for a, b in pairwise(cuts)
    ]
    return level + np.log(sum(parts))


@pytest.mark.parametrize(
    ("likelihood", "values"),
    [
        (Gaussian(1, noise=0.3), REAL),
        (StudentT(1, scale=0.4, df=3.0), REAL),
        (StudentT(1, scale=1.0, df=40.0), REAL),
        (StudentT(1, scale=0.5, df=0.8), REAL),
        (Laplace(1, scale=0.7), REAL),
        (AsymmetricLaplace(1, scale=0.3, tau=0.9), REAL),
        (Huber(1, scale=0.5), REAL),
        (AsymmetricHuber(1, scale=0.5, tau=0.8, kappa=2.0), REAL),
        (EpsilonInsensitive(1, scale=0.5, epsilon=2.0), REAL),
        (LogCosh(1, scale=0.7), REAL),
        pytest.param(LogCosh(1, scale=0.5, nu=5.0), REAL, marks=pytest.mark.slow),
        (Bernoulli(1), [0.0, 1.0]),
        (Bernoulli(1, link="probit"), [0.0, 1.0]),
        (Poisson(1), COUNTS),
        (NegativeBinomial(1, dispersion=0.5), COUNTS),
        (NegativeBinomial(1, dispersion=1e-4), COUNTS),
    ],
    ids=lambda value: value.name if hasattr(value, "name") else "",
)
def test_log_predictive_equals_numerical_integral(likelihood, values):
    for mean, variance in LATENT:
        for y in values:
            found = likelihood.log_predictive(column(y), column(mean), column(variance)).item()
            assert found == pytest.approx(integrated(likelihood, y, mean, variance), rel=1e-7, abs=1e-7), (
                mean,
                variance,
                y,
            )


@pytest.mark.parametrize(
    "likelihood",
    [
        *(StudentT(1), Laplace(1), Huber(1), AsymmetricHuber(1), EpsilonInsensitive(1), LogCosh(1)),
        *(Bernoulli(1), Poisson(1), NegativeBinomial(1)),
    ],
)
def test_log_predictive_equals_log_density_without_latent_variance(likelihood):
    y, mean = column(0.0, 1.0), column(0.4, -0.7)
    found = likelihood.log_predictive(y, mean, torch.zeros_like(mean))
    assert torch.allclose(found, likelihood.log_density(y, mean), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("likelihood", [Poisson(1), NegativeBinomial(1, dispersion=0.7)])
def test_log_predictive_of_counts_sums_to_one(likelihood):
    y = torch.arange(4000.0, dtype=torch.float64).reshape(-1, 1, 1)
    found = likelihood.log_predictive(y, column(1.0), column(0.5))
    assert found.logsumexp(0).item() == pytest.approx(0.0, abs=1e-9)
    below = likelihood.cdf(column(3.0), column(1.0), column(0.5))
    assert found[:4].exp().sum().item() == pytest.approx(below.item(), abs=1e-9)


@pytest.mark.parametrize(
    "likelihood",
    [kind(1, scale=1.0) for kind in (Laplace, Huber, AsymmetricHuber, LogCosh)] + [StudentT(1, scale=1.0, df=5.0)],
)
def test_log_predictive_equals_noise_density_at_gross_errors(likelihood):
    y = column(1e3, -1e4)
    found = likelihood.log_predictive(y, column(0.0, 0.0), column(1e-6, 1e-6))
    assert torch.allclose(found, likelihood.log_density(y, torch.zeros_like(y)), rtol=1e-4)


def test_log_predictive_is_minus_infinity_outside_of_the_support_and_keeps_nan():
    zero, one = torch.zeros(4, 1).double(), torch.ones(4, 1).double()
    y = column(-1.0, 0.5, torch.nan, 1.0)
    for likelihood in (Bernoulli(1), Bernoulli(1, link="probit"), Poisson(1), NegativeBinomial(1)):
        found = likelihood.log_predictive(y, zero, one).flatten()
        assert found[0] == found[1] == -torch.inf and found[2].isnan() and found[3] < 0
    for likelihood in (Gaussian(1), StudentT(1), Laplace(1), Huber(1), AsymmetricHuber(1), LogCosh(1)):
        assert likelihood.log_predictive(y, zero, one).isnan().flatten().tolist() == [False, False, True, False]


def test_log_predictive_is_minus_infinity_if_the_mean_overflows():
    assert Poisson(1).log_predictive(column(2.0), column(800.0), column(1.0)).item() == -torch.inf


def test_log_predictive_per_output_equals_that_of_its_members():
    members = [Gaussian(1, noise=0.2), Poisson(1), Bernoulli(1)]
    Y = torch.tensor([[0.3, 2.0, 1.0], [-1.0, 0.0, torch.nan]]).double()
    mean, variance = torch.randn(2, 3).double(), torch.rand(2, 3).double()
    found = PerOutput(members).log_predictive(Y, mean, variance)
    for j, member in enumerate(members):
        alone = member.log_predictive(Y[:, [j]], mean[:, [j]], variance[:, [j]])
        assert torch.equal(found[:, [j]].nan_to_num(7.0), alone.nan_to_num(7.0))


def test_log_predictive_of_a_one_hot_row_sums_to_the_log_probability_of_its_class():
    likelihood = Softmax(3)
    latent = Prediction(torch.randn(2, 3).double(), torch.eye(3).double().expand(2, 3, 3), "output")
    prediction = LikelihoodPrediction(latent, likelihood)
    Y = torch.tensor([[0.0, 1.0, 0.0], [torch.nan, 0.0, 0.0]]).double()
    found = prediction.log_density(Y)
    assert found[0].sum().item() == pytest.approx(prediction.mean[0, 1].log().item(), abs=1e-12)
    assert found[1].isnan().all()
    with pytest.raises(InputError, match="one-hot"):
        prediction.log_density(torch.ones(2, 3))


def test_prediction_log_density_equals_scipy():
    mean, variance = torch.randn(4, 2).double(), torch.rand(4, 2).double() + 0.1
    Y = torch.randn(4, 2).double()
    Y[1, 0] = torch.nan
    found = Prediction(mean, variance, "diag").log_density(Y).numpy()
    expected = stats.norm.logpdf(Y.numpy(), mean.numpy(), variance.sqrt().numpy())
    assert np.allclose(found, expected, rtol=1e-13, equal_nan=True)
    assert Prediction(mean, variance, "diag").log_density(torch.zeros(5, 1, 2)).shape == (5, 4, 2)


def test_mixture_log_density_is_the_mean_density():
    Y = torch.tensor([[2.0], [0.0]]).double()
    latents = [
        Prediction(torch.full((2, 1), m).double(), torch.full((2, 1), 0.3).double(), "diag") for m in (-1.0, 2.0)
    ]
    for parts in (latents, [LikelihoodPrediction(latent, Poisson(1)) for latent in latents]):
        found = MixturePrediction(parts).log_density(Y)
        expected = logsumexp([part.log_density(Y).numpy() for part in parts], axis=0) - np.log(2)
        assert np.allclose(found.numpy(), expected, rtol=1e-13)
