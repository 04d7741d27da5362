"""q against the true posterior of a few weights: by importance sampling, and by NUTS for a Student-t likelihood."""

import pytest
import torch
from gpytorch.kernels import RBFKernel

from ovkgp.features import ORFF
from ovkgp.inference.likelihoods import StudentT
from ovkgp.inference.variational.gp import VariationalGP
from ovkgp.kernels import DecomposableKernel


def normal(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


class Weights:
    """A model with 8 weights at fixed hyperparameters: `log_joint(w)` for weights (…, 8), and `Phi` at test points."""

    def __init__(self, likelihood, n=25):
        X = normal(n, 1)
        latent = torch.cat([(2 * X).sin(), X.cos()], 1)
        Y = {
            "bernoulli": (latent + 0.5 * normal(n, 2, seed=1) > 0).double(),
            "poisson": (latent + 0.5).exp().round(),
            "softmax": torch.nn.functional.one_hot(latent.argmax(1), 2).double(),
        }.get(likelihood, latent + 0.2 * normal(n, 2, seed=1))
        if likelihood == "student_t":
            Y[4, 0], Y[9, 1], likelihood = 6.0, -5.0, StudentT(2, scale=0.2, df=3.0)
        if likelihood != "softmax":
            Y[::6, 0] = torch.nan
        kernel = DecomposableKernel(RBFKernel(ard_num_dims=1), 2, rank=2).double()
        features = ORFF(kernel, 2, random_state=0)
        self.gp = VariationalGP(kernel, likelihood, features=features, mean="zero").requires_grad_(False)
        self.Phi, self.Y = self.gp.features(X).to_dense(), Y
        self.test = torch.linspace(-2, 2, 7).double().unsqueeze(-1)
        self.test_Phi = self.gp.features(self.test).to_dense()
        self.posterior = self.gp.condition(X, Y)

    def log_joint(self, weights):
        F = (weights @ self.Phi.mT).unflatten(-1, self.Y.shape)
        density = self.gp.likelihood.log_density(self.Y, F).flatten(weights.dim() - 1).sum(-1)
        return density - weights.square().sum(-1) / 2 - 4 * torch.log(torch.tensor(2 * torch.pi))

    def values(self, weights):
        """f at the test points for weights (k, 8): (k, 7, 2)."""
        return (weights @ self.test_Phi.mT).unflatten(-1, (7, 2))


def importance_sample(model, draws=200_000):
    """Mean and standard deviation of f at the test points, and log p(Y), by importance sampling from a wide q."""
    q = model.posterior.q
    proposal = torch.distributions.MultivariateNormal(q.mean, 2 * q.block)
    weights = q.mean + normal(draws, 8, seed=3) @ torch.linalg.cholesky(2 * q.block).mT
    log_ratio = model.log_joint(weights) - proposal.log_prob(weights)
    weight = torch.softmax(log_ratio, 0)
    assert 1 / weight.square().sum() > 0.02 * draws  # else the estimate would be worth nothing
    values = model.values(weights).flatten(1)
    mean = weight @ values
    std = (weight @ (values - mean).square()).sqrt()
    evidence = torch.logsumexp(log_ratio, 0) - torch.log(torch.tensor(float(draws)))
    return mean.view(7, 2), std.view(7, 2), evidence.item()


@pytest.mark.parametrize("likelihood", ["bernoulli", "poisson", "softmax", "student_t"])
def test_q_is_close_to_the_posterior_and_its_bound_to_the_evidence(likelihood):
    model = Weights(likelihood)
    mean, std, evidence = importance_sample(model)
    found = model.posterior.predict(model.test)
    assert model.posterior.log_evidence < evidence + 0.01  # a bound, up to the error of the estimate
    assert model.posterior.log_evidence > evidence - 0.1
    assert ((found.mean - mean) / std).abs().max() < 0.05
    assert (found.std / std - 1).abs().max() < 0.08


def nuts(model, warmup, draws, chains=1):
    """Draws (k, 8) of the weights by Pyro's NUTS; the global generator is left as it was."""
    from pyro.infer import MCMC, NUTS

    with torch.random.fork_rng():
        torch.manual_seed(0)
        kernel = NUTS(potential_fn=lambda sites: -model.log_joint(sites["w"]), jit_compile=False)
        found = []
        for _ in range(chains):
            chain = MCMC(
                kernel, draws, warmup, initial_params={"w": model.posterior.q.mean.clone()}, disable_progbar=True
            )
            chain.run()
            found.append(chain.get_samples()["w"])
            kernel = NUTS(potential_fn=kernel.potential_fn)
    return torch.cat(found)


def compare_with_nuts(warmup, draws, chains, of_mean, of_std):
    model = Weights("student_t")
    values = model.values(nuts(model, warmup, draws, chains))
    mean, std, found = values.mean(0), values.std(0), model.posterior.predict(model.test)
    assert ((found.mean - mean) / std).abs().max() < of_mean
    assert (found.std / std - 1).abs().max() < of_std


@pytest.mark.slow
def test_q_agrees_with_a_short_run_of_nuts():
    compare_with_nuts(60, 150, 1, of_mean=0.5, of_std=0.4)


@pytest.mark.slow
def test_q_agrees_with_a_long_run_of_nuts():
    compare_with_nuts(300, 1500, 2, of_mean=0.15, of_std=0.15)
