"""Tests of `ovkgp.inference.tasks.mode_posterior`: problems of single entries, the scale of the evidence, and covariances."""

import math

import numpy as np
import pytest
import torch
from gpytorch.kernels import RBFKernel

from ovkgp.exceptions import OptionError
from ovkgp.features import ORFF
from ovkgp.inference import OperatorValuedGP
from ovkgp.inference.likelihoods.factory import likelihood_of_loss
from ovkgp.inference.model.observations import Observations
from ovkgp.inference.posteriors.posterior import KernelProcess
from ovkgp.inference.tasks.mode_posterior import (
    ModePosterior,
    find_evidence_scale,
    make_entry_problem,
    solve_mode,
)
from ovkgp.kernels import CurlFreeKernel, DecomposableKernel
from ovkgp.losses import EpsilonInsensitive, Huber, LogCosh, Pinball, SmoothedPinball, Square

NOISE, LEVELS = 0.1, torch.tensor([0.3, 0.8], dtype=torch.float64)
MATRIX = torch.tensor([[1.0, 0.4], [0.4, 0.7]], dtype=torch.float64)


def data(n=25, missing=True):
    generator = torch.Generator().manual_seed(0)
    X = 4 * torch.rand(n, 2, generator=generator, dtype=torch.float64) - 2
    Y = torch.stack([X[:, 0].sin(), X[:, 1].cos()], -1)
    Y = Y + 0.2 * torch.randn(n, 2, generator=generator, dtype=torch.float64)
    Y[3, 0] = Y[7, 1] = torch.nan if missing else 0.0
    return Observations(X, Y)


def fit(kernel, loss, observations, features=None):
    problem = make_entry_problem(kernel, features, observations, loss, LEVELS, NOISE)
    return solve_mode(problem, observations.observed, NOISE, tolerance=1e-12)


def posterior(kernel, loss, observations, features=None):
    gp = OperatorValuedGP(kernel, mean="zero", noise=NOISE, features=features)
    model, mode = gp.frozen().model, fit(gp.kernel, loss, observations, gp.features)
    parts = observations, mode.coefficients, likelihood_of_loss(loss, NOISE, LEVELS)
    return ModePosterior(KernelProcess(model.kernel, 2), model.mean, *parts, features=model.features), gp


@pytest.mark.parametrize("loss", [Huber(0.2), EpsilonInsensitive(0.1), LogCosh(5.0), Pinball(), SmoothedPinball(0.2)])
def test_separable_problem_equals_that_of_single_entries(loss):
    """The same kernel, written as a sum of two that are not recognized as separable."""
    base = RBFKernel().double()
    whole = DecomposableKernel(base, output_matrix=MATRIX).double()
    halves = DecomposableKernel(base, output_matrix=MATRIX / 2).double()
    first, second = fit(whole, loss, data()), fit(halves + halves, loss, data())
    torch.testing.assert_close(first.coefficients, second.coefficients, rtol=0.0, atol=2e-4)
    assert first.objective == pytest.approx(second.objective, rel=1e-9)
    assert bool((first.coefficients[~data().observed] == 0).all())


def test_features_problem_has_the_same_solution_with_more_columns_than_rows():
    kernel = CurlFreeKernel(RBFKernel(ard_num_dims=2)).double()
    features = ORFF(kernel, 40, random_state=0).double()  # 80 columns, 48 entries
    found, _ = posterior(kernel, Huber(0.2), data(), features)
    Phi, u = features(data().X).to_dense(), found.coefficients.flatten()
    torch.testing.assert_close(found.weights, Phi.mT @ u)
    residual = (data().Y - found.predict(data().X, "none").mean).nan_to_num()
    torch.testing.assert_close(found.coefficients, residual.clamp(-0.2, 0.2) / NOISE, rtol=0.0, atol=1e-7)


@pytest.mark.parametrize("loss", [Huber(0.15), EpsilonInsensitive(0.2), LogCosh(8.0), SmoothedPinball(0.1), Pinball()])
def test_evidence_scale_maximizes_its_criterion(loss):
    """Against a grid, with log Z by numerical integration (LT §6.1, BO §6.3)."""
    mode = fit(DecomposableKernel(RBFKernel(), output_matrix=MATRIX).double(), loss, data())
    counts = data().observed.sum(0).double()
    found = find_evidence_scale(mode, loss, LEVELS, NOISE, counts)
    r = torch.linspace(-60, 60, 480_001, dtype=torch.float64).unsqueeze(-1)

    def criterion(scale):
        density = torch.exp(-loss.value(torch.zeros_like(r).expand(-1, 2), r, LEVELS) / (scale * NOISE))
        return -mode.objective / scale - (counts * torch.trapezoid(density, r, dim=0).log()).sum().item()

    best = criterion(found)
    assert all(best > criterion(found * factor) for factor in (0.9, 0.99, 1.01, 1.1))


def test_evidence_scale_of_the_square_loss_is_that_of_the_gaussian_evidence():
    """s² = yᵀ (K + σ²)⁻¹ y / N = 2J/N (LT §6.0)."""
    kernel, observations = DecomposableKernel(RBFKernel(), output_matrix=MATRIX).double(), data(missing=False)
    mode, counts = fit(kernel, Square(), observations), torch.full((2,), 25.0, dtype=torch.float64)
    K = kernel(observations.X).to_dense().detach()
    y = observations.Y.flatten()
    wanted = (y @ torch.linalg.solve(K + NOISE * torch.eye(50), y)).item() / 50
    assert 2 * mode.objective / 50 == pytest.approx(wanted, rel=1e-8)
    assert find_evidence_scale(mode, Square(), LEVELS, NOISE, counts) == pytest.approx(wanted, rel=1e-6)


@pytest.mark.parametrize("loss", [Huber(50.0), EpsilonInsensitive(0.0)])
def test_g_06_covariance_is_the_gaussian_one_in_the_limit_of_the_square_loss(loss):
    kernel = CurlFreeKernel(RBFKernel(ard_num_dims=2)).double()
    found, gp = posterior(kernel, loss, data())
    exact = gp.condition(data().X, data().Y)
    points = torch.tensor([[0.3, -0.4], [1.5, 1.0], [9.0, 9.0]], dtype=torch.float64)
    for form in ("diag", "output", "full"):
        mine, wanted = found.predict(points, form), exact.predict(points, form)
        torch.testing.assert_close(mine.mean, wanted.mean, rtol=0.0, atol=1e-6)
        torch.testing.assert_close(mine.variance, wanted.variance, rtol=1e-3, atol=1e-6)
    noisy = found.predict(points, "diag", noise=True)
    torch.testing.assert_close(noisy.variance, exact.predict(points, "diag", noise=True).variance, rtol=1e-3, atol=1e-5)
    potential = found.potential().predict(points, "diag"), exact.potential().predict(points, "diag")
    torch.testing.assert_close(potential[0].mean, potential[1].mean, rtol=0.0, atol=1e-5)
    torch.testing.assert_close(potential[0].variance, potential[1].variance, rtol=2e-3, atol=1e-5)


def test_predictions_of_observations_have_the_mode_as_mean_and_the_quantiles_of_the_likelihood():
    found, _ = posterior(DecomposableKernel(RBFKernel(), output_matrix=MATRIX).double(), Pinball(), data())
    X = data().X[:5]
    noisy, latent = found.predict(X, "diag", noise=True), found.predict(X, "diag")
    assert torch.equal(noisy.mean, latent.mean) and torch.equal(latent.mean, found.predict(X, "none", noise=True).mean)
    wanted = found.likelihood.quantile(0.9, latent.mean, latent.variance)
    torch.testing.assert_close(noisy.quantile(0.9), wanted)
    assert not torch.allclose(found.approximation.predict(X).mean, latent.mean, atol=1e-6)  # G-15: mean and mode differ
    draws = found.sample(X, 4000, noise=True, random_state=0)
    np.testing.assert_allclose(draws.std(0).numpy(), noisy.std.numpy(), rtol=0.15)


def test_posterior_without_likelihood_has_a_mode_only():
    kernel = DecomposableKernel(RBFKernel(), output_matrix=MATRIX).double()
    found, _ = posterior(kernel, Huber(0.2), data())
    bare = ModePosterior(found.process, found.mean, found.data, found.coefficients, None, "with this loss.")
    assert torch.equal(bare.predict(data().X, "none").mean, found.predict(data().X, "none").mean)
    for request in (bare.predict, bare.sample_functions, lambda X: bare.predict(X, noise=True)):
        with pytest.raises(OptionError, match="this loss"):
            request(data().X if request is not bare.sample_functions else 1)
    assert math.isnan(found.log_evidence)
    with pytest.raises(OptionError, match="square"):
        found.whitened_residuals()
