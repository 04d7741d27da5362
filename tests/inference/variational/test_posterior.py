"""The posterior under q, against exact posteriors and draws."""

import pytest
import torch
from gpytorch.kernels import MaternKernel, RBFKernel

from ovkgp.features import ORFF
from ovkgp.inference import OperatorValuedGP, Prediction
from ovkgp.inference.likelihoods import Gaussian, LikelihoodPrediction
from ovkgp.inference.variational.gp import VariationalGP
from ovkgp.kernels import CurlFreeKernel, DecomposableKernel

FORMS = ("none", "diag", "output", "full")


def normal(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def kernel_of(name):
    icm = DecomposableKernel(RBFKernel(ard_num_dims=2), 2, rank=2)
    return {
        "icm": icm,
        "lmc": icm + DecomposableKernel(MaternKernel(ard_num_dims=2), 2),
        "curl-free": CurlFreeKernel(RBFKernel(ard_num_dims=2)),
    }[name].double()


def data(n=25):
    X = normal(n, 2)
    Y = X.sin() + 0.1 * normal(n, 2, seed=1)
    Y[::4, 0] = torch.nan
    return X, Y, normal(6, 2, seed=2)


def same(found: Prediction, wanted: Prediction, **tolerance):
    torch.testing.assert_close(found.mean, wanted.mean, **tolerance)
    if found.form == "diag":
        torch.testing.assert_close(found.variance, wanted.variance, **tolerance)
    elif found.form != "none":
        torch.testing.assert_close(found.cov, wanted.cov, **tolerance)


@pytest.mark.parametrize("name", ["icm", "lmc", "curl-free"])
@pytest.mark.parametrize("noise", [False, True])
def test_id_4_posterior_of_a_feature_map_equals_the_weight_posterior(name, noise):
    kernel, (X, Y, test) = kernel_of(name), data()
    features = ORFF(kernel, 6, random_state=0)
    exact = OperatorValuedGP(kernel, noise=0.1, features=features).condition(X, Y)
    found = VariationalGP(kernel, Gaussian(2, 0.1), features=features, family="full").condition(X, Y)
    torch.testing.assert_close(found.weights, exact.weights)
    assert abs(found.log_evidence - exact.log_evidence) < 1e-8
    for form in FORMS:
        same(found.predict(test, form, noise), exact.predict(test, form, noise))


@pytest.mark.parametrize("name", ["icm", "lmc", "curl-free"])
def test_posterior_equals_exact_posterior_with_inducing_points_at_the_data(name):
    kernel, (X, Y, test) = kernel_of(name), data()
    exact = OperatorValuedGP(kernel, noise=0.1).condition(X, Y)
    found = VariationalGP(kernel, Gaussian(2, 0.1), inducing=X, family="full").condition(X, Y)
    for form in FORMS:
        same(
            found.predict(test, form), exact.predict(test, form), rtol=1e-4, atol=1e-4
        )  # the nugget, 1e-8, through K⁻¹


def test_posterior_variance_returns_to_the_prior_far_from_the_data_if_inducing_or_guarded():
    kernel, (X, Y, _) = kernel_of("icm"), data(200)
    far = torch.full((1, 2), 30.0).double()
    prior = kernel(far, diag=True).detach()
    points = VariationalGP(kernel, Gaussian(2, 0.1), inducing=20).condition(X, Y)
    torch.testing.assert_close(points.predict(far).variance, prior.view(1, 2), rtol=1e-6, atol=0)
    gp = VariationalGP(kernel, Gaussian(2, 0.1), features=ORFF(kernel, 10, random_state=0))
    bare, guarded = (gp.condition(X, Y, variance=kind).predict(far).variance for kind in ("features", "guarded"))
    assert (bare < 0.7 * prior).all()
    assert (guarded >= 0.999 * prior).all()


def test_condition_uses_the_given_number_of_landmarks():
    kernel, X = kernel_of("icm"), normal(1200, 2)
    gp = VariationalGP(kernel, Gaussian(2, 0.1), features=ORFF(kernel, 4, random_state=0))
    found = gp.condition(X, X.sin(), variance="guarded", num_landmarks=1100)
    assert len(found.variance_floor.landmarks) == 1100


@pytest.mark.parametrize("options", ["features", "inducing", "lmc", "curl-free", "mean_field", "low_rank"])
def test_sample_functions_have_the_moments_of_the_posterior(options):
    kernel, (X, Y, test) = kernel_of(options if options in ("lmc", "curl-free") else "icm"), data()
    family = options if options in ("mean_field", "low_rank") else "full"
    basis = (
        {"features": ORFF(kernel, 20, random_state=0)} if options in ("features", "mean_field") else {"inducing": X[:6]}
    )
    basis |= {"rank": 3} if family == "low_rank" else {}
    posterior = VariationalGP(kernel, Gaussian(2, 0.1), family=family, **basis).condition(X, Y)
    draws = posterior.sample_functions(2000, random_state=0, num_frequencies=1000)
    values, wanted = draws(test), posterior.predict(test, "full")
    scale = wanted.std.max()
    assert ((values.mean(0) - wanted.mean) / wanted.std).abs().max() < 5 * 2000**-0.5
    # five standard errors of the draws, and of the random features of the prior: the residual is theirs
    assert (torch.cov(values.flatten(1).mT) - wanted.cov).abs().max() < 5 * (2000**-0.5 + 1000**-0.5) * scale**2
    torch.testing.assert_close(draws[7](test), values[7], rtol=1e-10, atol=1e-10)  # products of other sizes
    joint = posterior.sample(test, 2000, random_state=1)
    assert (torch.cov(joint.flatten(1).mT) - wanted.cov).abs().max() < 5 * 2000**-0.5 * 2**0.5 * scale**2


@pytest.mark.parametrize("family", ["full", "mean_field"])
def test_posterior_of_a_curl_free_field_has_a_potential(family):
    kernel, (X, Y, test) = kernel_of("curl-free"), data()
    exact = OperatorValuedGP(kernel, noise=0.1).condition(X, Y).potential(reference=[0.0, 0.0])
    gp = VariationalGP(kernel, Gaussian(2, 0.1), inducing=X, family=family)
    found = gp.condition(X, Y).potential(reference=[0.0, 0.0])
    same(found.predict(test), exact.predict(test), rtol=1e-3, atol=1e-3)
    assert found.sample_functions(3, random_state=0)(test).shape == (3, 6, 1)


def test_predict_of_new_observations_averages_the_likelihood():
    X, _, test = data()
    counts = (X + 2).clamp_min(0).round()
    gp = VariationalGP(kernel_of("icm"), ["poisson", "student_t"], inducing=8)
    posterior = gp.condition(X, counts)
    latent, new = posterior.predict(test, "diag"), posterior.predict(test, "none", noise=True)
    assert isinstance(new, LikelihoodPrediction)
    torch.testing.assert_close(new.mean[:, 0], (latent.mean + latent.variance / 2).exp()[:, 0])  # of a log-normal rate
    torch.testing.assert_close(new.mean[:, 1], latent.mean[:, 1])
    y = posterior.sample(test, 20_000, noise=True, random_state=0)
    assert torch.equal(y[..., 0], y[..., 0].round())
    assert ((y.mean(0) - new.mean) / new.std).abs().max() < 6 * 20_000**-0.5 + 0.05
    below = (y <= new.quantile(0.9)).double().mean(0)
    assert (below[:, 0] > 0.89).all() and (below[:, 1] - 0.9).abs().max() < 0.02


def test_predict_averages_known_noise_for_new_observations():
    X, Y, test = data()
    known = 0.1 + normal(*Y.shape, seed=5).square()
    posterior = VariationalGP(kernel_of("icm"), inducing=8).condition(X, Y, noise=known)
    observed = ~torch.isnan(Y)
    wanted = torch.stack([known[observed[:, a], a].mean() for a in range(2)])
    added = posterior.predict(test, noise=True).variance - posterior.predict(test).variance
    torch.testing.assert_close(added, wanted.expand(6, 2))


@pytest.mark.parametrize("basis", ["features", "inducing"])
def test_predict_is_differentiable_in_the_inputs(basis):
    kernel, (X, Y, test) = kernel_of("icm"), data()
    options = {"features": ORFF(kernel, 6, random_state=0)} if basis == "features" else {"inducing": X[:6]}
    posterior = VariationalGP(kernel, Gaussian(2, 0.1), family="mean_field", **options).condition(X, Y)
    total = lambda points: (lambda p: p.mean.sum() + p.variance.sum())(posterior.predict(points))  # noqa: E731
    leaf = test.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(total(leaf), leaf)
    direction = normal(6, 2, seed=9)
    slope = (total(test + 1e-6 * direction) - total(test - 1e-6 * direction)) / 2e-6
    assert abs(slope - (gradient * direction).sum()) < 1e-6 * abs(slope).clamp_min(1)
