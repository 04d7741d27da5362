"""Tests of `ovkgp.inference.sampling.prior_predictive`."""

import math

import numpy as np
import pytest
import torch
from gpytorch.constraints import GreaterThan, Interval
from gpytorch.kernels import MaternKernel, RBFKernel, RQKernel, ScaleKernel
from gpytorch.priors import (
    GammaPrior,
    HalfCauchyPrior,
    HalfNormalPrior,
    HorseshoePrior,
    LogNormalPrior,
    MultivariateNormalPrior,
    NormalPrior,
    SmoothedBoxPrior,
    UniformPrior,
)
from linear_operator import to_dense
from oracles import operator_valued
from scipy import stats
from scipy.special import digamma

from ovkgp.exceptions import OptionError
from ovkgp.features import ORFF
from ovkgp.inference import OperatorValuedGP
from ovkgp.inference.likelihoods import register_likelihood_priors
from ovkgp.inference.sampling import prior_predictive as prior_predictive_module
from ovkgp.inference.sampling.prior_predictive import draw_prior, prior_predictive, set_parameters
from ovkgp.inference.training.initialization import register_data_priors, register_default_priors
from ovkgp.inference.training.priors import LogPrior
from ovkgp.inference.variational.gp import VariationalGP
from ovkgp.kernels import CurlFreeKernel, DecomposableKernel, FullMatrix

DRAWS = 2000


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def lengthscales(kernel, draws=DRAWS, random_state=0):
    kernel = kernel.double()
    found = draw_prior(kernel, draws, random_state)["raw_lengthscale"]
    return kernel.raw_lengthscale_constraint.transform(found).squeeze(-2)


def full_model(noise="full", mean="linear"):
    kernel = ScaleKernel(DecomposableKernel(RQKernel(), num_outputs=2)) + DecomposableKernel(
        MaternKernel(ard_num_dims=2), output_matrix=FullMatrix(2)
    )
    gp = OperatorValuedGP(kernel, mean=mean, noise=noise)
    register_data_priors(gp, normal(20, 2), normal(20, 2, seed=1))
    return gp


# --- distributions --------------------------------------------------------------------------------------------------

DISTRIBUTIONS = {
    "log-normal": (LogNormalPrior(0.5, 1.2), stats.lognorm(s=1.2, scale=math.exp(0.5))),
    "gamma": (GammaPrior(2.0, 3.0), stats.gamma(2.0, scale=1 / 3.0)),
    "half-normal": (HalfNormalPrior(2.0), stats.halfnorm(scale=2.0)),
    "half-Cauchy": (HalfCauchyPrior(0.7), stats.halfcauchy(scale=0.7)),
    "uniform": (UniformPrior(0.5, 2.0), stats.uniform(0.5, 1.5)),
    "normal, cut off at zero": (NormalPrior(0.3, 1.0), stats.truncnorm(-0.3, np.inf, loc=0.3)),
}


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_prior_draws_follow_distribution(name):
    prior, distribution = DISTRIBUTIONS[name]
    drawn = lengthscales(RBFKernel(ard_num_dims=2, lengthscale_prior=prior))
    assert drawn.shape == (DRAWS, 2)
    for column in drawn.numpy().T:
        assert stats.kstest(column, distribution.cdf).pvalue > 0.01
    assert abs(stats.spearmanr(*drawn.numpy().T).statistic) < 4 / math.sqrt(DRAWS)


@pytest.mark.parametrize("constraint", [GreaterThan(2.0), Interval(0.2, 0.9)])
def test_prior_draws_are_truncated_at_constraint(constraint):
    distribution, (low, high) = stats.lognorm(s=1.0), (end.double().item() for end in constraint)
    prior = LogNormalPrior(0.0, 1.0)
    drawn = lengthscales(RBFKernel(lengthscale_prior=prior, lengthscale_constraint=constraint)).numpy().ravel()
    weight = distribution.cdf(high) - distribution.cdf(low)
    assert stats.kstest(drawn, lambda x: (distribution.cdf(x) - distribution.cdf(low)) / weight).pvalue > 0.01


def test_multivariate_prior_keeps_correlation():
    covariance = torch.tensor([[0.04, 0.03], [0.03, 0.09]])
    prior = MultivariateNormalPrior(torch.tensor([5.0, 7.0]), covariance)
    drawn = lengthscales(RBFKernel(ard_num_dims=2, lengthscale_prior=prior)).numpy()
    np.testing.assert_allclose(np.cov(drawn.T), covariance, atol=0.01)


def test_prior_without_quantiles_is_sampled():
    kernel = RBFKernel(lengthscale_prior=HorseshoePrior(0.5))
    drawn = lengthscales(kernel).numpy().ravel()
    # symmetric: the positive ones are its absolute values; without `expand` all would share one shrinkage
    with torch.random.fork_rng():
        torch.manual_seed(1)
        expected = HorseshoePrior(0.5).expand([4 * DRAWS]).sample().abs().numpy()
    assert drawn.min() > 0 and stats.ks_2samp(drawn, expected).pvalue > 0.01


def test_prior_draws_are_float64():
    drawn = lengthscales(RBFKernel(lengthscale_prior=LogNormalPrior(0.0, 1.0)), draws=50)
    assert drawn.dtype == torch.float64 and bool((drawn.float().double() != drawn).all())


@pytest.mark.parametrize("noise", ["per_output", "full"])
def test_prior_draws_match_raw_density(noise, draws=800):
    """E[∇ log q] = 0 under q, in every raw parameter: the means of the scores are within 4.5 standard errors of zero."""
    gp = full_model(noise)
    density, drawn = LogPrior(gp, jacobian=True), draw_prior(gp, draws, random_state=0)
    parameters, scores = dict(gp.named_parameters()), []
    for index in range(draws):
        set_parameters(gp, drawn, index)
        gradients = torch.autograd.grad(density(), [parameters[name] for name in drawn])
        scores.append(torch.cat([gradient.reshape(-1) for gradient in gradients]))
    scores = torch.stack(scores)
    read = scores.std(0) > 0
    errors = scores.mean(0)[read] / (scores.std(0)[read] / math.sqrt(draws))
    unread = 3 if noise == "full" else 0  # of a square matrix of which the triangle below the diagonal is read
    assert errors.abs().max() < 4.5 and int((~read).sum()) == unread


# --- the draws as a whole -------------------------------------------------------------------------------------------


def test_prior_draws_are_reproducible_and_keep_state():
    gp = full_model()
    before, state = {name: one.detach().clone() for name, one in gp.named_parameters()}, torch.get_rng_state()
    numpy_state = np.random.get_state()[1].copy()  # noqa: NPY002
    first, again, other = (draw_prior(gp, 4, random_state=seed) for seed in (0, 0, 1))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not any(torch.equal(first[name], other[name]) for name in first)
    assert set(first) == set(before) and all(torch.equal(one, before[name]) for name, one in gp.named_parameters())
    assert torch.equal(torch.get_rng_state(), state)
    assert np.array_equal(np.random.get_state()[1], numpy_state)  # noqa: NPY002


def test_sampled_prior_keeps_global_generator():
    kernel = RBFKernel(lengthscale_prior=HorseshoePrior(0.5)).double()
    state = torch.get_rng_state()
    first, again = (draw_prior(kernel, 5, random_state=0)["raw_lengthscale"] for _ in range(2))
    assert torch.equal(first, again) and torch.equal(torch.get_rng_state(), state)


def test_set_parameters_writes_draw():
    gp = full_model()
    drawn = draw_prior(gp, 3, random_state=0)
    set_parameters(gp, drawn, 2)
    assert all(torch.equal(one, drawn[name][2]) for name, one in gp.named_parameters())
    set_parameters(gp, {name: value[1] for name, value in drawn.items()})
    assert all(torch.equal(one, drawn[name][1]) for name, one in gp.named_parameters())


def test_fixed_parameters_are_not_drawn():
    gp = full_model()
    gp.mean.constant.requires_grad_(False)
    assert "mean.constant" not in draw_prior(gp, 1, random_state=0)


def test_draw_without_parameters_is_empty():
    assert draw_prior(RBFKernel().requires_grad_(False), 3, random_state=0) == {}


@pytest.mark.parametrize(
    ("kernel", "message"),
    [
        (RBFKernel(), r"raw_lengthscale.*register_data_priors"),
        (RBFKernel(lengthscale_prior=SmoothedBoxPrior(0.1, 1.0)), "lengthscale_prior .* cannot be sampled"),
        (
            RBFKernel(lengthscale_prior=UniformPrior(0.1, 0.2), lengthscale_constraint=GreaterThan(0.5)),
            "no mass",
        ),
        (
            RBFKernel(ard_num_dims=1, lengthscale_prior=MultivariateNormalPrior(torch.tensor([-9.0]), torch.eye(1))),
            "outside the constraint",
        ),
    ],
)
def test_draw_prior_rejects_unsupported_priors(kernel, message):
    with pytest.raises(OptionError, match=message):
        draw_prior(kernel.double(), 3, random_state=0)


def test_draw_prior_rejects_prior_without_setter():
    kernel = RBFKernel().double()
    kernel.register_prior("log_prior", NormalPrior(0.0, 1.0), lambda k: k.lengthscale.log())
    with pytest.raises(OptionError, match=r"log_prior .*setting_closure"):
        draw_prior(kernel, 1)


def test_draw_prior_uses_setting_closure():
    kernel = RBFKernel().double()
    kernel.register_prior(
        "log_prior",
        NormalPrior(1.0, 0.5),
        lambda k: k.lengthscale.log(),
        lambda k, value: setattr(k, "lengthscale", value.exp()),
    )
    assert stats.kstest(lengthscales(kernel).log().numpy().ravel(), stats.norm(1.0, 0.5).cdf).pvalue > 0.01


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        ({"kernel.raw": torch.zeros(1)}, "got 'kernel.raw'"),
        ({"mean.constant": torch.zeros(3)}, r"expected \(2,\)"),
    ],
)
def test_set_parameters_rejects_draw_of_another_model(draw, message):
    with pytest.raises(OptionError, match=message):
        set_parameters(full_model(), draw)


@pytest.mark.parametrize("draws", [0, -1, 2.5])
def test_draw_prior_rejects_invalid_number_of_draws(draws):
    with pytest.raises(OptionError, match="number of draws"):
        draw_prior(full_model(), draws)


# --- prior predictive -----------------------------------------------------------------------------------------------

X = torch.linspace(0, 2, 5, dtype=torch.float64).unsqueeze(-1).expand(-1, 2).contiguous()


def level_only(kernel, noise="full", features=None):
    """A model of which only the mean and the noise are unknown: the covariance of its draws is known."""
    gp = OperatorValuedGP(kernel, mean="constant", noise=noise, features=features)
    gp.kernel.requires_grad_(False)
    gp.mean.register_prior("level", NormalPrior(torch.tensor([1.0, -2.0]), torch.tensor([0.5, 1.5])), "constant")
    register_data_priors(gp, normal(20, 2), 0.3 * normal(20, 2, seed=1))
    return gp


def assert_moments(gp, drawn, covariance, standard_errors=5):
    """Check mean and covariance of the draws of all values within some standard errors."""
    flat, mean = drawn.flatten(1), torch.tensor([1.0, -2.0]).double().repeat(len(X))
    k = len(flat)
    assert ((flat.mean(0) - mean).abs() < standard_errors * covariance.diagonal().sqrt() / math.sqrt(k)).all()
    variances = covariance.diagonal()
    errors = ((torch.outer(variances, variances) + covariance.square()) / k).sqrt()
    assert ((torch.cov(flat.mT) - covariance).abs() < standard_errors * errors).all()


def with_level(gp, covariance):
    return covariance + torch.diag(torch.tensor([0.25, 2.25]).double()).repeat(len(X), len(X))


@pytest.mark.parametrize(
    "kernel",
    [operator_valued("decomposable"), CurlFreeKernel(RBFKernel(), num_dims=2)],
    ids=["separable", "dense"],
)
def test_prior_functions_have_covariance_of_kernel_and_mean(kernel):
    if isinstance(kernel, DecomposableKernel):
        kernel = DecomposableKernel(RBFKernel(), num_outputs=2)
    gp = level_only(kernel)
    covariance = with_level(gp, to_dense(gp.kernel(X)).detach())
    assert_moments(gp, prior_predictive(gp, X, draws=800, noise=False, random_state=0), covariance)


def test_prior_functions_use_features_of_model():
    kernel = DecomposableKernel(RBFKernel(ard_num_dims=2), num_outputs=2)
    gp = level_only(kernel, features=ORFF(kernel, 3, random_state=0))
    Phi = gp.features(X)
    covariance = with_level(gp, (Phi @ Phi.mT).to_dense().detach())
    assert_moments(gp, prior_predictive(gp, X, draws=800, noise=False, random_state=0), covariance)


def test_prior_functions_use_random_features_at_many_points(monkeypatch):
    monkeypatch.setattr(prior_predictive_module, "MAX_EXACT_POINTS", 4)
    gp = level_only(DecomposableKernel(RBFKernel(), num_outputs=2))
    covariance = with_level(gp, to_dense(gp.kernel(X)).detach())
    assert_moments(gp, prior_predictive(gp, X, draws=300, noise=False, random_state=0), covariance)


def test_prior_predictive_noise_follows_prior():
    """The logarithm of a squared noise is that of its variance plus that of a χ²(1), whose mean is ψ(½) + log 2."""
    gp = level_only(DecomposableKernel(RBFKernel(), num_outputs=2))
    latent, noisy = (prior_predictive(gp, X, draws=800, noise=noise, random_state=0) for noise in (False, True))
    noise = (noisy - latent)[:, 0]
    expected = gp.noise_model.covariance_prior.loc + digamma(0.5) + math.log(2)
    std = math.sqrt((1.5**2 + math.pi**2 / 2) / 800)
    assert ((noise.square().log().mean(0) - expected).abs() < 5 * std).all()
    assert abs(stats.spearmanr(*noise.numpy().T).statistic) < 5 / math.sqrt(800)  # correlations have mean zero


def test_prior_predictive_is_reproducible_and_keeps_model():
    gp = full_model()
    before = {name: one.detach().clone() for name, one in gp.named_parameters()}
    state = torch.get_rng_state()
    first, again = (prior_predictive(gp, X, draws=3, random_state=5) for _ in range(2))
    assert first.shape == (3, 5, 2) and torch.equal(first, again) and torch.isfinite(first).all()
    assert all(torch.equal(one, before[name]) for name, one in gp.named_parameters())
    assert torch.equal(torch.get_rng_state(), state)


def test_prior_predictive_supports_singular_kernel():
    gp = level_only(DecomposableKernel(RBFKernel(), output_matrix=torch.ones(2, 2)))
    twice = torch.cat([X, X])
    drawn = prior_predictive(gp, twice, draws=20, noise=False, random_state=0) - gp.mean(twice[:1]).detach()
    torch.testing.assert_close(drawn[:, :5], drawn[:, 5:], atol=1e-4, rtol=0)


def test_prior_predictive_draws_from_likelihood():
    gp = VariationalGP(DecomposableKernel(RBFKernel(), num_outputs=2), "poisson")
    register_data_priors(gp, normal(20, 2), torch.ones(20, 2))
    drawn = prior_predictive(gp, X, draws=4, random_state=0)
    assert bool((drawn == drawn.round()).all() and (drawn >= 0).all())


def test_default_priors_on_full_matrix_can_be_drawn():
    kernel = DecomposableKernel(RBFKernel(), output_matrix=FullMatrix(3)).double()
    register_default_priors(kernel, num_dims=2)
    found = draw_prior(kernel, 4, random_state=0)
    assert found["output_module.log_scale"].shape == (4, 3) and found["output_module.lower"].shape == (4, 3)


def test_missing_likelihood_prior_error_names_function():
    X = torch.linspace(0, 1, 8, dtype=torch.float64).unsqueeze(-1)
    gp = VariationalGP(DecomposableKernel(RBFKernel(), num_outputs=1), likelihood="student_t", inducing=X)
    register_data_priors(gp, X, X.sin())
    with pytest.raises(OptionError, match=r"raw_scale.*register_likelihood_priors"):
        prior_predictive(gp, X, draws=2)
    register_likelihood_priors(gp.likelihood, X.sin())
    assert prior_predictive(gp, X, draws=2, random_state=0).shape == (2, 8, 1)
