"""Kernels of time: integrated Brownian motion against its integral, the Fourier series against the periodic kernel."""

import math

import numpy as np
import pytest
import torch
from gpytorch.kernels import AdditiveKernel, LinearKernel, MaternKernel, PeriodicKernel, ScaleKernel
from linear_operator import to_dense
from oracles import difference_gradient, difference_hessian
from scipy.special import ive

from ovkgp.exceptions import InputError, OvkgpError
from ovkgp.features import ORFF
from ovkgp.kernels import IntegratedBrownianKernel, SeasonalKernel, lag_jet
from ovkgp.kernels.evaluation import evaluate_kernel

TIMES = torch.tensor([[-1.0], [0.2], [0.7], [1.9], [4.0]], dtype=torch.float64)


def test_integrated_brownian_kernel_is_the_double_integral_of_the_minimum():
    nodes, weights = (torch.from_numpy(part) for part in np.polynomial.legendre.leggauss(400))
    origin, span = 0.2, 2.0
    found = IntegratedBrownianKernel(origin, span)(TIMES).to_dense()
    for i, s in enumerate((TIMES[:, 0] - origin).clamp_min(0)):
        for j, t in enumerate((TIMES[:, 0] - origin).clamp_min(0)):
            u, v = s * (nodes + 1) / 2, t * (nodes + 1) / 2
            expected = 3 / span**3 * s * t / 4 * (weights @ torch.minimum(u[:, None], v) @ weights)
            torch.testing.assert_close(found[i, j], expected, rtol=1e-4, atol=1e-12)
    assert IntegratedBrownianKernel(origin, span)(torch.tensor([[origin + span]])).to_dense().item() == pytest.approx(1)


@pytest.mark.parametrize("lengthscale", [0.05, 0.7, 5.0])
def test_seasonal_kernel_is_the_periodic_kernel_without_its_constant(lengthscale):
    seasonal, periodic = SeasonalKernel(1.7, num_harmonics=60).double(), PeriodicKernel().double()
    seasonal.lengthscale = periodic.lengthscale = lengthscale
    periodic.period_length = 1.7
    constant = ive(0, 1 / lengthscale)
    expected = (periodic(TIMES).to_dense() - constant) / (1 - constant)
    torch.testing.assert_close(
        seasonal(TIMES).to_dense(), expected, rtol=1e-5, atol=1e-6
    )  # GPyTorch's parameters are float32


def test_few_harmonics_have_the_variance_one_and_the_proportions_of_the_series():
    kernel = SeasonalKernel(1.7, num_harmonics=3).double()
    kernel.lengthscale = 0.4
    bessel = ive(np.arange(1, 4), 2.5)
    np.testing.assert_allclose(kernel.weights.detach(), bessel / bessel.sum(), rtol=1e-6)
    torch.testing.assert_close(kernel(TIMES, diag=True), torch.ones(5, dtype=torch.float64))


def test_seasonal_kernel_of_a_batch_is_that_of_each_entry():
    batch = SeasonalKernel(1.7, num_harmonics=3, batch_shape=torch.Size([2])).double()
    batch.period_length, batch.lengthscale = torch.tensor([[[1.7]], [[0.9]]]), torch.tensor([[[0.4]], [[2.0]]])
    whole, diagonal = batch(TIMES).to_dense(), batch(TIMES, diag=True)
    for index in range(2):
        single = SeasonalKernel(num_harmonics=3).double()
        single.period_length = batch.period_length[index].detach()
        single.lengthscale = batch.lengthscale[index].detach()
        torch.testing.assert_close(whole[index], single(TIMES).to_dense())
        torch.testing.assert_close(diagonal[index], single(TIMES, diag=True))


@pytest.mark.parametrize("lag", [0.0, 0.4, -1.1])
def test_jet_of_the_seasonal_kernel(lag):
    kernel, at = SeasonalKernel(1.7, num_harmonics=3).double(), np.array([lag])

    def value(lags):
        return kernel(torch.tensor(lags), torch.zeros(1, 1).double()).to_dense()[:, 0].detach().numpy()

    jet = [part[0, 0].detach().numpy() for part in lag_jet(kernel, torch.tensor(at).reshape(1, 1, -1))]
    np.testing.assert_allclose(jet[0], value(at[None])[0], rtol=1e-9)
    np.testing.assert_allclose(jet[1], difference_gradient(value, at), atol=2e-6)
    np.testing.assert_allclose(jet[2], difference_hessian(value, at), atol=1e-5)


def test_random_features_of_a_seasonal_kernel_reproduce_it():
    kernel = SeasonalKernel(1.7, num_harmonics=3).double()
    Phi = ORFF(kernel, 40_000, num_dims=1, random_state=0)(TIMES).to_dense()
    assert float((Phi @ Phi.mT - kernel(TIMES).to_dense()).detach().abs().max()) < 0.02


def test_quasi_periodic_product_forgets_the_season():
    kernel = (SeasonalKernel(1.0, 2) * MaternKernel(nu=1.5)).double()
    lags = torch.tensor([[1.0], [20.0]], dtype=torch.float64)
    found = kernel(torch.zeros(1, 1).double(), lags).to_dense()
    torch.testing.assert_close(
        found, kernel.kernels[1](torch.zeros(1, 1).double(), lags).to_dense()
    )  # multiples of the period
    assert 0.2 < found[0, 0] < 0.5 and abs(found[0, 1]) < 1e-6


@pytest.mark.parametrize("kernel", [IntegratedBrownianKernel(), SeasonalKernel()])
def test_several_columns_are_rejected(kernel):
    with pytest.raises(InputError, match="active_dims"):
        kernel(torch.zeros(3, 2)).to_dense()
    kernel.active_dims = torch.tensor([1])
    assert kernel(torch.rand(3, 2)).shape == (3, 3)


@pytest.mark.parametrize("value", [0.0, -1.0, math.inf])
def test_invalid_options_are_rejected(value):
    with pytest.raises(OvkgpError, match="span"):
        IntegratedBrownianKernel(span=value)
    with pytest.raises(OvkgpError, match="period_length"):
        SeasonalKernel(period_length=value)
    with pytest.raises(OvkgpError, match="num_harmonics"):
        SeasonalKernel(num_harmonics=0)


def test_sum_with_a_linear_kernel_is_exact_and_needs_no_factorization(recwarn):
    """linear_operator adds a low-rank term to a matrix by its Cholesky factor with jitter."""
    parts = IntegratedBrownianKernel(), LinearKernel().double(), ScaleKernel(SeasonalKernel()).double()
    found = to_dense(evaluate_kernel(AdditiveKernel(*parts), TIMES))
    torch.testing.assert_close(found, sum(to_dense(part(TIMES)) for part in parts), rtol=1e-14, atol=1e-15)
    assert not recwarn
