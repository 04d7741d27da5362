import pickle
import unittest

import numpy as np
import pytest
import torch
from gpytorch.constraints import GreaterThan
from gpytorch.priors import GammaPrior
from gpytorch.test.base_kernel_test_case import BaseKernelTestCase
from hypothesis import given, settings
from hypothesis import strategies as st

from ovkgp.kernels.stationary import LaplaceKernel


class TestLaplaceKernelProtocol(BaseKernelTestCase, unittest.TestCase):
    def create_kernel_no_ard(self, **kwargs):
        return LaplaceKernel(**kwargs)

    def create_kernel_ard(self, num_dims, **kwargs):
        return LaplaceKernel(ard_num_dims=num_dims, **kwargs)


def oracle(x, z, lengthscale):
    return np.exp(-sum(np.abs(x[:, None, k] - z[None, :, k]) / lengthscale[k] for k in range(x.shape[1])))


@pytest.fixture
def kernel():
    kernel = LaplaceKernel(ard_num_dims=3).double()
    kernel.lengthscale = torch.tensor([0.5, 1.0, 2.5], dtype=torch.float64)
    return kernel


def test_equals_the_dense_oracle(kernel):
    rng = np.random.default_rng(0)
    x, z = rng.normal(size=(7, 3)), rng.normal(size=(5, 3))
    ours = kernel(torch.tensor(x), torch.tensor(z)).to_dense().detach().numpy()
    np.testing.assert_allclose(ours, oracle(x, z, [0.5, 1.0, 2.5]), rtol=1e-13)


def test_diagonal_between_different_points(kernel):
    x, z = torch.randn(6, 3).double(), torch.randn(6, 3).double()
    torch.testing.assert_close(kernel(x, z, diag=True), kernel(x, z).to_dense().diagonal())


def test_last_dim_is_batch_gives_one_matrix_a_coordinate(kernel):
    x = torch.randn(4, 3).double()
    with pytest.warns(DeprecationWarning):
        parts = kernel(x, last_dim_is_batch=True).to_dense()
    assert parts.shape == (3, 4, 4)
    torch.testing.assert_close(parts.prod(0), kernel(x).to_dense())


def test_gradient_in_inputs_and_lengthscale():
    x = torch.randn(3, 2, dtype=torch.float64, requires_grad=True)
    z = torch.randn(4, 2, dtype=torch.float64, requires_grad=True)
    kernel = LaplaceKernel(ard_num_dims=2).double()

    def value(x, z, raw):
        return torch.func.functional_call(kernel, {"raw_lengthscale": raw}, (x, z)).to_dense()

    assert torch.autograd.gradcheck(value, (x, z, kernel.raw_lengthscale))


def test_gradient_at_coincident_points_is_zero_in_x_and_right_in_lengthscale(kernel):
    x = torch.ones(3, 3, dtype=torch.float64, requires_grad=True)
    kernel(x, x.detach().clone()).to_dense().sum().backward()
    assert torch.equal(x.grad, torch.zeros_like(x))
    assert torch.equal(kernel.raw_lengthscale.grad, torch.zeros_like(kernel.raw_lengthscale))


@settings(max_examples=20, deadline=None)
@given(st.lists(st.floats(0.05, 20), min_size=2, max_size=2), st.integers(0, 1000))
def test_positive_semidefinite(lengthscale, seed):
    kernel = LaplaceKernel(ard_num_dims=2).double()
    kernel.lengthscale = torch.tensor(lengthscale, dtype=torch.float64)
    x = torch.randn(20, 2, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    assert torch.linalg.eigvalsh(kernel(x).to_dense()).min() > -1e-10


def test_prior_constraint_pickle_and_batch_indexing():
    kernel = LaplaceKernel(
        batch_shape=torch.Size([2]),
        active_dims=[0, 2],
        lengthscale_prior=GammaPrior(2.0, 1.0),
        lengthscale_constraint=GreaterThan(1e-3),
    )
    kernel.lengthscale = torch.tensor([0.5, 2.0])[:, None, None]
    kernel = pickle.loads(pickle.dumps(kernel))
    assert len(list(kernel.named_priors())) == 1
    x = torch.randn(4, 3)
    assert torch.equal(kernel[1].active_dims, torch.tensor([0, 2]))
    torch.testing.assert_close(kernel[1](x).to_dense(), kernel(x).to_dense()[1])
    assert kernel.expand_batch(3, 2).batch_shape == (3, 2)
