"""The posterior of an online expansion: its mean, and a variance that is an upper bound."""

import numpy as np
import pytest
import torch
from gpytorch.kernels import RBFKernel

from ovkgp.inference import OperatorValuedGP
from ovkgp.inference.ridge import online as online_posterior
from ovkgp.inference.ridge.online import OnlineGradient, OnlinePosterior
from ovkgp.kernels import CurlFreeKernel, DecomposableKernel

KERNELS = {
    "decomposable": lambda: DecomposableKernel(RBFKernel(), output_matrix=torch.eye(2) + 0.5),
    "curl-free": lambda: CurlFreeKernel(RBFKernel(), num_dims=2),
}


def posterior(kernel, budget=1000, missing=0.0, n=50, average=False):
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, (n, 2))
    Y = np.sin(X)
    Y[(rng.random(Y.shape) < missing) & (np.arange(2) > 0)] = np.nan
    gp = OperatorValuedGP(KERNELS[kernel](), mean="zero", noise=0.3)
    learner = OnlineGradient(gp.kernel, 2, 0.01, budget=budget, average=True)
    return gp, X, Y, OnlinePosterior(gp, learner.learn(learner.start(2), X, Y), average)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("missing", [0.0, 0.3])
def test_with_all_points_kept_the_covariance_is_that_of_the_process(kernel, missing):
    gp, X, Y, found = posterior(kernel, missing=missing)
    exact, X_new = gp.condition(X, Y), np.random.default_rng(1).uniform(-3, 3, (9, 2))
    for form in ("diag", "output", "full"):
        one, other = found.predict(X_new, form, noise=True), exact.predict(X_new, form, noise=True)
        covariance = (one.std, other.std) if form == "diag" else (one.cov, other.cov)
        torch.testing.assert_close(*covariance, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("missing", [0.0, 0.3])
def test_fewer_points_never_lower_the_variance(kernel, missing, monkeypatch):
    gp, X, Y, few = posterior(kernel, budget=12, missing=missing)
    X_new = np.random.default_rng(1).uniform(-3, 3, (40, 2))
    exact = gp.condition(X, Y).predict(X_new).std
    std = few.predict(X_new).std
    assert (std >= exact - 1e-9).all() and (std > exact + 1e-3).any()
    monkeypatch.setattr(online_posterior, "DENSE_LIMIT", 6)
    fewer = OnlinePosterior(gp, few.expansion)
    assert fewer.given_points.data.num_seen <= 12 and (fewer.predict(X_new).std >= std - 1e-9).all()


@pytest.mark.parametrize("average", [False, True])
def test_the_mean_is_the_expansion(average):
    _, X, _, found = posterior("curl-free", budget=20, average=average)
    coefficients = found.expansion.average if average else found.expansion.coefficients
    K = found.process.cross(torch.from_numpy(X), torch.from_numpy(found.expansion.X)).to_dense().numpy()
    np.testing.assert_allclose(found.predict(X).mean.numpy(), (K @ coefficients.ravel()).reshape(-1, 2), atol=1e-12)


def test_draws_have_the_mean_and_the_spread():
    _, X, _, found = posterior("decomposable", budget=20)
    draws = found.sample_functions(3000, random_state=0)(X[:4])
    prediction = found.predict(X[:4])
    assert ((draws.mean(0) - prediction.mean).abs() < 5 * prediction.std / 3000**0.5 + 0.02).all()
    torch.testing.assert_close(draws.std(0), prediction.std, rtol=0.15, atol=0.01)
    assert torch.equal(found.sample_functions(2, random_state=3)(X), found.sample_functions(2, random_state=3)(X))


def test_an_output_that_no_kept_point_has_seen_keeps_its_prior():
    gp = OperatorValuedGP(DecomposableKernel(RBFKernel(), output_matrix=torch.eye(2)), mean="zero", noise=0.3)
    learner = OnlineGradient(gp.kernel, 2, 0.01)
    expansion = learner.learn(learner.start(1), np.zeros((1, 1)), np.array([[1.0, np.nan]]))
    prediction = OnlinePosterior(gp, expansion).predict([[0.0]])
    np.testing.assert_allclose(prediction.std.numpy() ** 2, [[1 - 1 / 1.3, 1.0]], rtol=1e-9)
    assert prediction.mean[0, 1] == 0
