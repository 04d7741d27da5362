import unittest

import numpy as np
import pytest
import torch
from gpytorch.kernels import RBFKernel, RQKernel
from gpytorch.test.base_kernel_test_case import BaseKernelTestCase
from linear_operator.operators import KroneckerProductLinearOperator
from oracles import curl_free_rbf, dense, gram, rbf

from ovkgp.exceptions import KernelTypeError
from ovkgp.kernels import BlockwiseProductKernel, CurlFreeKernel, DecomposableKernel


class TestBlockwiseProtocolOfASeparableKernel(BaseKernelTestCase, unittest.TestCase):
    def create_kernel_no_ard(self, **kwargs):
        return DecomposableKernel(RBFKernel(**kwargs), num_outputs=2) * RQKernel(**kwargs)

    def create_kernel_ard(self, num_dims, **kwargs):
        ard = {"ard_num_dims": num_dims, **kwargs}
        return DecomposableKernel(RBFKernel(**ard), num_outputs=2) * RQKernel(**ard)


class TestBlockwiseProtocolOfAField(BaseKernelTestCase, unittest.TestCase):
    def create_kernel_no_ard(self, **kwargs):
        return CurlFreeKernel(RBFKernel(**kwargs)) * RQKernel(**kwargs)

    def create_kernel_ard(self, num_dims, **kwargs):
        ard = {"ard_num_dims": num_dims, **kwargs}
        return CurlFreeKernel(RBFKernel(**ard)) * RQKernel(**ard)


def test_blocks_of_a_curl_free_kernel_times_a_scalar_one():
    field, scalar = CurlFreeKernel(RBFKernel()).double(), RBFKernel().double()
    field.base_kernel.lengthscale, scalar.lengthscale = 0.8, 1.7
    generator = torch.Generator().manual_seed(0)
    x, z = (torch.randn(n, 3, generator=generator, dtype=torch.float64) for n in (4, 2))
    expected = gram(lambda a, b: rbf(a - b, 1.7) * curl_free_rbf(a - b, 0.8), x.numpy(), z.numpy())
    np.testing.assert_allclose(dense(field * scalar, x, z), expected, rtol=1e-6, atol=1e-9)  # lengthscales set in float


def test_kronecker_product_stays_one():
    product = DecomposableKernel(RBFKernel(), num_outputs=2) * RQKernel()
    assert isinstance(product(torch.randn(4, 2)).evaluate_kernel(), KroneckerProductLinearOperator)


def test_products_can_be_chained():
    kernel = DecomposableKernel(RBFKernel(), num_outputs=2).double()
    x = torch.randn(4, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    scalar = RQKernel().double()
    expected = dense(kernel, x) * np.kron(dense(scalar, x) ** 2, np.ones((2, 2)))
    np.testing.assert_allclose(dense(kernel * scalar * scalar, x), expected, rtol=1e-12)


@pytest.mark.parametrize(("first", "second"), [("rbf", RBFKernel()), (DecomposableKernel(RBFKernel(), 2), "rbf")])
def test_factors_must_be_kernels(first, second):
    with pytest.raises(KernelTypeError, match=r"factor must be a gpytorch.kernels.Kernel, got str"):
        BlockwiseProductKernel(first, second)


def test_second_factor_must_be_scalar():
    kernel = DecomposableKernel(RBFKernel(), 2)
    with pytest.raises(KernelTypeError, match="second factor must be a scalar kernel"):
        BlockwiseProductKernel(kernel, kernel)
