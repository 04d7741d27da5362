"""The data and thresholds of GPyTorch's own multitask, LMC and SVGP examples, applied to our kernels.

Errors are mean absolute ones, and the thresholds theirs: 0.05 for two tasks, 0.1 for the mixing of latent functions and
for sparse regression (halved errors there), a fifth of the labels for sparse classification. The numbers we get are
smaller.
"""

import math

import pytest
import torch
from gpytorch.kernels import RBFKernel, ScaleKernel

from ovkgp.features import ORFF
from ovkgp.inference.likelihoods import Gaussian
from ovkgp.inference.variational.gp import VariationalGP
from ovkgp.kernels import DecomposableKernel

TEST = torch.linspace(0, 1, 51, dtype=torch.float64).unsqueeze(-1)


def line(n):
    return torch.linspace(0, 1, n, dtype=torch.float64).unsqueeze(-1)


def normal(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def sine_and_cosine(X):
    return torch.cat([(2 * math.pi * X).sin(), (2 * math.pi * X).cos()], -1)


@pytest.mark.parametrize("basis", ["inducing", "features"])
@pytest.mark.parametrize("noise", ["per_output", "full"])
def test_multitask_regression_learns_a_sine_and_a_cosine_with_noise(basis, noise):
    """100 points, noise 0.1 in both tasks, 50 inducing points; a task error below 0.05."""
    X, kernel = line(100), DecomposableKernel(RBFKernel(ard_num_dims=1), 2, rank=2)
    Y = sine_and_cosine(X) + 0.1 * normal(100, 2)
    options = {"inducing": 50} if basis == "inducing" else {"features": ORFF(kernel, 50, random_state=0)}
    gp = VariationalGP(kernel, Gaussian(2, noise), **options).fit(X, Y, max_iter=40, random_state=0)
    assert ((gp.predict(TEST).mean - sine_and_cosine(TEST)).abs().mean(0) < 0.05).all()


def test_multitask_regression_learns_from_one_task_per_input():
    """The Hadamard model: 200 rows, each with the other task missing; a task error below 0.05."""
    X = torch.cat([line(100), line(100)])
    Y = sine_and_cosine(X)
    Y[:100, 1], Y[100:, 0] = torch.nan, torch.nan
    gp = VariationalGP(DecomposableKernel(RBFKernel(ard_num_dims=1), 2), inducing=20).fit(
        X, Y, max_iter=40, random_state=0
    )
    assert ((gp.predict(TEST).mean - sine_and_cosine(TEST)).abs().mean(0) < 0.05).all()


@pytest.mark.slow
@pytest.mark.parametrize("batch_size", [None, 10])
def test_variational_gp_learns_four_tasks_of_three_latent_functions(batch_size):
    """The LMC example: 20 points, noise 0.01, 10 trained inducing points; a task error below 0.1."""
    X = line(20)
    sine, cosine = sine_and_cosine(X).T
    Y = torch.stack([sine, cosine, sine + 2 * cosine, -cosine], -1) + 0.01 * normal(20, 4)
    first, second, third = (DecomposableKernel(RBFKernel(ard_num_dims=1), 4) for _ in range(3))
    gp = VariationalGP(first + second + third, inducing=10, learn_inducing=True)
    gp.fit(X, Y, max_iter=40, batch_size=batch_size, epochs=60, random_state=0)
    prediction = gp.predict(X, noise=True)
    assert ((prediction.mean - Y).abs().mean(0) < 0.1).all()
    lower, upper = prediction.interval(0.95)
    assert lower.shape == upper.shape == Y.shape


@pytest.mark.parametrize("batch_size", [None, 65])
def test_sparse_regression_learns_a_cosine(batch_size):
    """260 points without noise, 25 inducing points; half the error below 0.1."""
    X = line(260)
    Y = (2 * math.pi * X).cos()
    gp = VariationalGP(ScaleKernel(RBFKernel()), inducing=line(25), learn_inducing=True)
    gp.fit(X, Y, max_iter=40, batch_size=batch_size, epochs=20, random_state=0)
    assert (gp.predict(X, noise=True).mean - Y).abs().mean() / 2 < 0.1


@pytest.mark.parametrize("batch_size", [None, 65])
def test_sparse_classification_learns_the_sign_of_a_cosine(batch_size):
    """260 labels, 25 inducing points; fewer than a fifth of them wrong."""
    X = line(260)
    labels = ((2 * math.pi * X).cos() > 0).double()
    gp = VariationalGP(ScaleKernel(RBFKernel()), "bernoulli", inducing=line(25))
    gp.fit(X, labels, max_iter=8, batch_size=batch_size, epochs=10, random_state=0)
    assert (gp.predict(X, noise=True).mean.round() != labels).double().mean() < 0.2


pytestmark = pytest.mark.filterwarnings("ignore:training stopped")  # the examples stop after a few steps too
