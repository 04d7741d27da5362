"""Our kernels in GPyTorch's own exact models equal our posteriors; and where GPyTorch is wrong, ours is not.

GPyTorch runs with its fast approximations off: it then solves by Cholesky, with 1e-6 the agreement that its jitter allows.
"""

from copy import deepcopy

import gpytorch
import numpy as np
import pytest
import torch
from gp_cases import close, normal
from gpytorch.kernels import MultitaskKernel, RBFKernel
from oracles import OUTPUTS, dense, operator_valued, randomize
from posterior_oracle import DensePosterior, diagonal_parts, noise_matrix

from ovkgp.inference import OperatorValuedGP
from ovkgp.inference.model.observations import validate_observations
from ovkgp.inference.strategies.selection import select_strategy
from ovkgp.kernels import DecomposableKernel

EXACT = gpytorch.settings.fast_computations(covar_root_decomposition=False, log_prob=False, solves=False)


class Multitask(gpytorch.models.ExactGP):
    """A plain multitask model with a constant mean for each task."""

    def __init__(self, X, Y, likelihood, kernel, constants):
        super().__init__(X, Y, likelihood)
        self.mean_module = gpytorch.means.MultitaskMean(gpytorch.means.ConstantMean(), num_tasks=len(constants))
        for mean, constant in zip(self.mean_module.base_means, constants, strict=True):
            mean.constant.data.fill_(constant)
        self.covar_module = kernel
        self.double()

    def forward(self, x):
        return gpytorch.distributions.MultitaskMultivariateNormal(self.mean_module(x), self.covar_module(x))


class Single(gpytorch.models.ExactGP):
    """Equivalent model with one output, which is not multitask in GPyTorch."""

    def __init__(self, X, Y, likelihood, kernel, constants):
        super().__init__(X, Y.squeeze(-1), likelihood)
        self.mean_module = gpytorch.means.ConstantMean()
        self.mean_module.constant.data.fill_(constants[0])
        self.covar_module = kernel
        self.double()

    def forward(self, x):
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))


def data(p, n=10, m=4, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return normal(generator, n, 2), normal(generator, n, p), normal(generator, m, 2), normal(generator, p)


def likelihood_of(p, rank=0):
    """A likelihood with some noise; Σ = F Fᵀ + σ² I for rank > 0, σ² I otherwise."""
    if p == 1:
        likelihood = gpytorch.likelihoods.GaussianLikelihood()
    else:
        likelihood = gpytorch.likelihoods.MultitaskGaussianLikelihood(num_tasks=p, rank=rank, has_task_noise=rank > 0)
        if rank:
            factor = normal(torch.Generator().manual_seed(5), p, rank)
            likelihood.task_noise_covar_factor.data = 0.3 * factor
    likelihood.noise = 0.07
    return likelihood.double()


def sigma_of(likelihood, p):
    sigma = likelihood.noise.item() * torch.eye(p, dtype=torch.float64)
    factor = getattr(likelihood, "task_noise_covar_factor", None)
    return sigma if factor is None else sigma + (factor @ factor.mT).detach()


def gpytorch_posterior(model, test):
    """Mean (m, p), covariance (m·p, m·p) and the evidence of a GPyTorch model."""
    with EXACT, torch.no_grad():
        model.train()
        objective = gpytorch.mlls.ExactMarginalLogLikelihood(model.likelihood, model)
        targets = model.train_targets
        evidence = objective(model(*model.train_inputs), targets).item() * targets.numel()
        model.eval()
        latent = model(test)
        return latent.mean.reshape(len(test), -1), latent.covariance_matrix, evidence


def compare(kernel, p, rank=0):
    X, Y, test, constants = data(p)
    likelihood = likelihood_of(p, rank)
    model = (Single if p == 1 else Multitask)(X, Y, likelihood, deepcopy(kernel), constants)
    mean, covariance, evidence = gpytorch_posterior(model, test)
    gp = OperatorValuedGP(kernel, "constant", sigma_of(likelihood, p))
    gp.mean.constant.data.copy_(constants)
    posterior = gp.condition(X, Y)
    prediction = posterior.predict(test, "full")
    close(prediction.mean, mean, 1e-6)
    close(prediction.cov, covariance, 1e-6)
    assert posterior.log_evidence == pytest.approx(evidence, rel=1e-6)


@pytest.mark.parametrize("name", OUTPUTS)
def test_kernel_works_in_gpytorch_exact_gp(name):
    compare(randomize(operator_valued(name).double(), 1), OUTPUTS[name])


@pytest.mark.parametrize("name, rank", [("decomposable", 1), ("lmc", 2), ("curl_free", 2)])
def test_id_8_correlated_noise_equals_task_noise_of_multitask_likelihood(name, rank):
    compare(randomize(operator_valued(name).double(), 1), OUTPUTS[name], rank)


# --- missing outputs: GPyTorch 1.15 masks them in the mean, but not in the variance --------------------------------------


def kernels():
    ours = randomize(DecomposableKernel(RBFKernel(), num_outputs=3, rank=2).double(), 1)
    theirs = randomize(MultitaskKernel(RBFKernel(), num_tasks=3, rank=2).double(), 1)
    return {"our kernel": ours, "MultitaskKernel": theirs}


@pytest.mark.parametrize("name", ["our kernel", "MultitaskKernel"])
def test_variance_is_correct_with_missing_outputs_unlike_gpytorch(name):
    X, Y, test, constants = data(3)
    Y[torch.rand(Y.shape, generator=torch.Generator().manual_seed(2)) < 0.3] = torch.nan
    kernel = kernels()[name]
    likelihood = likelihood_of(3)
    noise = likelihood.noise.item()
    oracle = DensePosterior(dense(kernel, X), noise_matrix(noise, 10, 3), np.tile(constants, (10, 1)), Y.numpy())
    mean = oracle.mean(dense(kernel, test, X), np.tile(constants, (4, 1)))
    covariance = oracle.covariance(dense(kernel, test, X), dense(kernel, test))
    variance, _ = diagonal_parts(covariance, 3)

    gp = OperatorValuedGP(kernel, "constant", noise)
    gp.mean.constant.data.copy_(constants)
    assert select_strategy(gp.model, validate_observations(X, Y, 3)).name == "dense"
    prediction = gp.condition(X, Y).predict(test, "full")
    close(prediction.mean, mean)
    close(prediction.cov, covariance)

    model = Multitask(X, Y, likelihood, deepcopy(kernel), constants).eval()
    with EXACT, torch.no_grad(), gpytorch.settings.observation_nan_policy("mask"):
        latent = model(test)
        close(latent.mean, mean, 1e-6)
        theirs = latent.variance.numpy()
    off = np.abs(theirs / variance - 1).max()
    assert off > 0.01
    assert np.abs(prediction.variance.numpy() / variance - 1).max() < 1e-8
