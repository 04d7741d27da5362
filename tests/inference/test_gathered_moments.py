"""Means and covariances of outputs from statistics, against those of the data."""

import numpy as np
import pytest
import torch
from gpytorch.kernels import RBFKernel

from ovkgp.features import ORFF
from ovkgp.inference import OperatorValuedGP
from ovkgp.inference.statistics.statistics import output_moments, stand_in
from ovkgp.kernels import DecomposableKernel, IndependentKernel


def data(n=200, p=3, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, 2)) + np.array([5.0, 0.0])
    Y = rng.standard_normal((n, p)) @ rng.standard_normal((p, p)) * [1.0, 10.0, 0.1] + [3.0, 0.0, -1.0]
    return torch.from_numpy(X), torch.from_numpy(Y)


def model(mean="constant", noise="per_output", kernel=None):
    kernel = DecomposableKernel(RBFKernel(ard_num_dims=2), num_outputs=3) if kernel is None else kernel
    return OperatorValuedGP(kernel, mean, noise, features=ORFF(kernel, 5, random_state=0))


@pytest.mark.parametrize("mean", ("constant", "linear"))
def test_complete_outputs_have_exact_moments(mean):
    gp, (X, Y) = model(mean), data()
    centre, covariance = output_moments(gp.statistics(X, Y), gp.noise_model.matrix())
    np.testing.assert_allclose(centre, Y.mean(0), rtol=1e-10)
    np.testing.assert_allclose(covariance, np.cov(Y.numpy().T, bias=True), rtol=1e-8, atol=1e-10)


def test_without_a_constant_the_level_is_zero():
    gp, (X, Y) = model("zero"), data()
    centre, covariance = output_moments(gp.statistics(X, Y), gp.noise_model.matrix())
    assert not centre.any()
    np.testing.assert_allclose(covariance, Y.mT @ Y / len(Y), rtol=1e-8)


@pytest.mark.parametrize("kernel", (None, "independent"))
def test_missing_outputs_have_their_own_moments(kernel):
    kernel = kernel and IndependentKernel([RBFKernel(ard_num_dims=2) for _ in range(3)])
    gp, (X, Y) = model(kernel=kernel), data()
    Y[::3, 1] = torch.nan
    centre, covariance = output_moments(gp.statistics(X, Y), gp.noise_model.matrix())
    np.testing.assert_allclose(centre, Y.nanmean(0), rtol=1e-10)
    np.testing.assert_allclose(covariance.diagonal(), np.nanvar(Y.numpy(), 0), rtol=1e-8)
    assert torch.equal(covariance, torch.diag(covariance.diagonal()))


@pytest.mark.parametrize("mean", ("zero", "constant"))
@pytest.mark.parametrize("kind", ("known", "full"))
def test_divided_by_the_noise_the_scale_is_right(kind, mean):
    gp, (X, Y) = model(mean, "full"), data()
    gp.noise_model.set(0.1 * Y.var(0))
    Y = Y - Y.mean(0)
    Y[::3, 1] = torch.nan
    known = (0.1 * Y.nan_to_num().square().mean(0)).expand(len(Y), 3).clone() if kind == "known" else None
    centre, covariance = output_moments(gp.statistics(X, Y, known), gp.noise_model.matrix())
    deviations = np.nanstd(Y.numpy(), 0)
    np.testing.assert_allclose(covariance.diagonal().sqrt(), deviations, rtol=0.5)
    assert bool((centre.abs() < 0.3 * torch.from_numpy(deviations)).all())


def test_stand_in_has_the_scales_of_the_data():
    gp, (X, Y) = model(), data()
    Z, W = stand_in(gp.statistics(X, Y), gp.noise_model.matrix())
    assert len(Z) == len(W)
    np.testing.assert_allclose(W.mean(0), Y.mean(0), rtol=1e-8)
    np.testing.assert_allclose(np.cov(W.numpy().T, bias=True), np.cov(Y.numpy().T, bias=True), rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(Z.mean(0), X.mean(0), atol=0.4)
    np.testing.assert_allclose(Z.std(0), X.std(0), rtol=0.3)
