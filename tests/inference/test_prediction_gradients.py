"""Predictions can be differentiated in the test inputs: mean and covariance, on every road, against differences."""

import pytest
import torch
from gpytorch.kernels import RBFKernel

from ovkgp.features import ORFF
from ovkgp.inference import OperatorValuedGP
from ovkgp.kernels import CurlFreeKernel, DecomposableKernel

STEP = 1e-5


def icm():
    return DecomposableKernel(RBFKernel(ard_num_dims=2), num_outputs=2, rank=2)


def posterior(road: str, variance: str):
    kernel = CurlFreeKernel(RBFKernel(ard_num_dims=2)) if road == "dense" else icm()
    features = ORFF(kernel, 20, random_state=0) if road == "features" else None
    gp = OperatorValuedGP(kernel, noise=0.1, features=features, road=road)
    generator = torch.Generator().manual_seed(0)
    X, Y = (torch.randn(30, 2, generator=generator, dtype=torch.float64) for _ in range(2))
    return gp.condition(X, Y, variance=variance)


@pytest.mark.parametrize("form", ["none", "diag", "output", "full"])
@pytest.mark.parametrize(
    ("road", "variance"),
    [
        ("kronecker", "features"),
        ("dense", "features"),
        ("iterative", "features"),
        ("features", "features"),
        ("features", "guarded"),
    ],
)
def test_gradients_in_the_test_inputs(road, variance, form):
    given = posterior(road, variance)

    def value(x):
        prediction = given.predict(x, form)
        total = (prediction.mean * torch.arange(1.0, 7.0).reshape(3, 2)).sum()
        parts = [] if form == "none" else [prediction.variance, *([prediction.cov] if form != "diag" else [])]
        return total + sum((part * torch.linspace(-1, 2, part.numel()).reshape(part.shape)).sum() for part in parts)

    x = torch.randn(3, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64).requires_grad_()
    (gradient,) = torch.autograd.grad(value(x), x)
    expected = torch.zeros_like(x)
    with torch.no_grad():
        for step in torch.eye(6, dtype=torch.float64).reshape(6, 3, 2) * STEP:
            expected += (value(x + step) - value(x - step)) / (2 * STEP**2) * step
    torch.testing.assert_close(gradient, expected, rtol=1e-6, atol=1e-7)  # central differences
