"""Tests of `ovkgp.inference.posteriors.curves`: dense algebra, other grids, derivatives and draws."""

import numpy as np
import pytest
import torch
from curve_cases import CurveOracle
from gpytorch.kernels import AdditiveKernel, LinearKernel, MaternKernel, RBFKernel, ScaleKernel

from ovkgp.exceptions import OptionError
from ovkgp.inference import OperatorValuedGP
from ovkgp.inference.model.curve_noise import CurveNoise
from ovkgp.inference.posteriors.curves import CurvePosterior, task_covariance
from ovkgp.kernels import DecomposableKernel, FullMatrix, FunctionValuedKernel

GRID = torch.linspace(-1.5, 1.5, 6, dtype=torch.float64).unsqueeze(-1)
POINTS = torch.tensor([[-1.5], [-0.2], [0.33], [1.1]], dtype=torch.float64)


def make_posterior(missing=0.0, num_channels=1, strategy="auto", noise_scale=None):
    rng = np.random.default_rng(0)
    X = torch.from_numpy(rng.standard_normal((8, 2)))
    Y = rng.standard_normal((8, len(GRID) * num_channels))
    Y[rng.random(Y.shape) < missing] = np.nan
    Y = torch.from_numpy(Y)
    inputs, channels = AdditiveKernel(LinearKernel(), ScaleKernel(MaternKernel(nu=2.5))).double(), None
    kernel = inputs
    if num_channels > 1:
        matrix = FullMatrix(num_channels).double()
        with torch.no_grad():
            matrix.lower.fill_(0.4)
        kernel, channels = DecomposableKernel(inputs, output_matrix=matrix), matrix().detach().numpy()
    noise = CurveNoise(GRID, ScaleKernel(RBFKernel()) if num_channels == 1 else RBFKernel(), num_channels)
    gp = OperatorValuedGP(
        FunctionValuedKernel(kernel, MaternKernel(nu=2.5), tasks=GRID), mean="zero", noise=noise, strategy=strategy
    )
    posterior = gp.condition(X, Y)
    oracle = CurveOracle(inputs, gp.kernel.task_kernel, gp.noise_model, X, Y, GRID, channels)
    return (
        CurvePosterior(posterior, posterior.conditioning.model.noise),
        oracle,
        torch.from_numpy(rng.standard_normal((3, 2))),
    )


@pytest.mark.parametrize("num_channels", [1, 2])
@pytest.mark.parametrize(
    ("missing", "strategy"), [(0.0, "kronecker"), (0.3, "dense"), (0.3, "kronecker_missing"), (0.3, "iterative")]
)
def test_moments_equal_dense_algebra_on_any_grid(missing, strategy, num_channels):
    posterior, oracle, X = make_posterior(missing, num_channels, strategy)
    mean, covariance = oracle.moments(X, POINTS)
    size = len(POINTS) * num_channels
    found, full = posterior.moments(X, POINTS, "full")
    np.testing.assert_allclose(found.numpy().ravel(), mean, atol=1e-8)
    np.testing.assert_allclose(full.numpy(), covariance, atol=1e-8)
    blocks = covariance.reshape(3, size, 3, size)[np.arange(3), :, np.arange(3)]
    np.testing.assert_allclose(posterior.moments(X, POINTS, "output")[1].numpy(), blocks, atol=1e-8)
    np.testing.assert_allclose(posterior.moments(X, POINTS, "diag")[1].numpy().ravel(), np.diag(covariance), atol=1e-8)
    assert posterior.moments(X, POINTS, "none")[1] is None
    if strategy != "iterative":  # whose log determinant is an estimate
        assert posterior.log_evidence == pytest.approx(oracle.log_evidence, abs=1e-8)


@pytest.mark.parametrize("missing", [0.0, 0.3])
def test_derivatives_are_limits_of_differences(missing):
    posterior, _, X = make_posterior(missing)
    h = 1e-5
    shifted = torch.cat([POINTS - h, POINTS + h])
    mean, covariance = posterior.moments(X, shifted, "output")
    D = np.hstack([-np.eye(4), np.eye(4)]) / (2 * h)
    slope, slope_covariance = posterior.moments(X, POINTS, "output", 1)
    np.testing.assert_allclose(slope.numpy(), mean.numpy() @ D.T, atol=1e-6)
    np.testing.assert_allclose(slope_covariance.numpy(), D @ covariance.numpy() @ D.T, atol=2e-4)
    deviation, expected = posterior.deviation_at(POINTS, 1), posterior.deviation_at(shifted)
    np.testing.assert_allclose(deviation.detach().numpy(), D @ expected.detach().numpy() @ D.T, atol=2e-4)
    np.testing.assert_allclose(posterior.deviation_variances_at(POINTS, 1).detach(), deviation.detach().diagonal())


@pytest.mark.parametrize("num_channels", [1, 2])
@pytest.mark.parametrize("missing", [0.0, 0.3])
def test_draws_have_the_moments_of_the_posterior(missing, num_channels):
    posterior, _, X = make_posterior(missing, num_channels)
    draws = posterior.sample(X, POINTS, 20_000, random_state=0).flatten(1)
    mean, covariance = posterior.moments(X, POINTS, "full")
    torch.testing.assert_close(draws.mean(0), mean.flatten(), atol=0.03, rtol=0)
    torch.testing.assert_close(draws.mT.cov(correction=0), covariance, atol=0.06, rtol=0)
    assert torch.equal(draws[:5], posterior.sample(X, POINTS, 20_000, random_state=0).flatten(1)[:5])


def test_derivative_draws_have_the_moments_of_derivatives():
    posterior, _, X = make_posterior()
    draws = posterior.sample(X, POINTS, 20_000, derivative=1, random_state=0)
    mean, variance = posterior.moments(X, POINTS, "diag", 1)
    torch.testing.assert_close(draws.mean(0), mean, atol=0.06, rtol=0)
    torch.testing.assert_close(draws.var(0), variance, atol=0.0, rtol=0.06)


def test_derivatives_that_do_not_exist_are_rejected():
    with pytest.raises(OptionError, match="no derivative"):
        task_covariance(MaternKernel(nu=0.5).double(), POINTS, POINTS, 1, 1)
    with pytest.raises(OptionError, match="derivative must be 0"):
        task_covariance(RBFKernel().double(), POINTS, POINTS, 2, 2)
    with pytest.raises(OptionError, match="derivative must be 0"):
        task_covariance(RBFKernel().double(), torch.zeros(2, 2).double(), torch.zeros(2, 2).double(), 1, 1)
