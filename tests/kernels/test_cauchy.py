import unittest

import numpy as np
import torch
from gpytorch.test.base_kernel_test_case import BaseKernelTestCase
from hypothesis import given, settings
from hypothesis import strategies as st

from ovkgp.kernels.stationary import CauchyKernel


class TestCauchyKernelProtocol(BaseKernelTestCase, unittest.TestCase):
    def create_kernel_no_ard(self, **kwargs):
        return CauchyKernel(**kwargs)

    def create_kernel_ard(self, num_dims, **kwargs):
        return CauchyKernel(ard_num_dims=num_dims, **kwargs)


def test_equals_the_dense_oracle():
    rng = np.random.default_rng(0)
    x, z, lengthscale = rng.normal(size=(7, 3)), rng.normal(size=(5, 3)), np.array([0.5, 1.0, 2.5])
    kernel = CauchyKernel(ard_num_dims=3).double()
    kernel.lengthscale = torch.tensor(lengthscale)
    expected = np.prod(1 / (1 + ((x[:, None] - z[None]) / lengthscale) ** 2), axis=-1)
    np.testing.assert_allclose(kernel(torch.tensor(x), torch.tensor(z)).to_dense().detach(), expected, rtol=1e-13)
    diagonal = kernel(torch.tensor(x[:5]), torch.tensor(z), diag=True).detach()
    np.testing.assert_allclose(diagonal, np.diag(expected), rtol=1e-13)


def test_many_far_coordinates_do_not_overflow_in_single_precision():
    kernel = CauchyKernel()
    value = kernel(torch.zeros(1, 40), torch.full((1, 40), 30.0)).to_dense()
    assert torch.isfinite(value).all() and value.item() >= 0


def test_first_and_second_gradients_also_at_coincident_points():
    x = torch.randn(3, 2, dtype=torch.float64)
    z = torch.cat([x[:2], torch.randn(2, 2, dtype=torch.float64)])
    x, z = x.requires_grad_(), z.detach().requires_grad_()
    kernel = CauchyKernel(ard_num_dims=2).double()

    def value(x, z, raw):
        return torch.func.functional_call(kernel, {"raw_lengthscale": raw}, (x, z)).to_dense()

    assert torch.autograd.gradcheck(value, (x, z, kernel.raw_lengthscale))
    assert torch.autograd.gradgradcheck(value, (x, z, kernel.raw_lengthscale))


@settings(max_examples=20, deadline=None)
@given(st.lists(st.floats(0.05, 20), min_size=2, max_size=2), st.integers(0, 1000))
def test_positive_semidefinite(lengthscale, seed):
    kernel = CauchyKernel(ard_num_dims=2).double()
    kernel.lengthscale = torch.tensor(lengthscale, dtype=torch.float64)
    x = torch.randn(20, 2, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    assert torch.linalg.eigvalsh(kernel(x).to_dense()).min() > -1e-10
