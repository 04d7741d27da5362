import unittest

import numpy as np
import pytest
import torch
from gpytorch.test.base_kernel_test_case import BaseKernelTestCase
from hypothesis import given, settings
from hypothesis import strategies as st

from ovkgp.exceptions import InputError, OptionError
from ovkgp.kernels.curves import GaussianCurveKernel, LaplaceCurveKernel

BOTH = pytest.mark.parametrize("make", [GaussianCurveKernel, LaplaceCurveKernel])


class TestGaussianCurveProtocol(BaseKernelTestCase, unittest.TestCase):
    def create_kernel_no_ard(self, **kwargs):
        return GaussianCurveKernel(**kwargs)

    def create_kernel_ard(self, num_dims, **kwargs):
        return GaussianCurveKernel(ard_num_dims=num_dims, **kwargs)


class TestLaplaceCurveProtocol(BaseKernelTestCase, unittest.TestCase):
    def create_kernel_no_ard(self, **kwargs):
        return LaplaceCurveKernel(num_channels=2, **kwargs)


def oracle(make, x, z, lengthscale, weights, channels):
    """Compute the kernel with a tensor of shape (n, n', m)."""
    x, z = (a.reshape(len(a), -1, channels) for a in (x, z))
    distance = np.linalg.norm(x[:, None] - z[None], axis=-1) / lengthscale
    return (np.exp(-(distance**2) / 2) if make is GaussianCurveKernel else np.exp(-distance)) @ weights


@BOTH
@pytest.mark.parametrize("channels", [1, 3])
def test_curve_kernels_match_dense_formula(make, channels):
    rng = np.random.default_rng(0)
    x, z, weights = rng.normal(size=(6, 12)), rng.normal(size=(4, 12)), rng.uniform(size=12 // channels)
    for given_weights in (None, torch.tensor(weights)):
        kernel = make(num_channels=channels, weights=given_weights).double()
        kernel.lengthscale = 1.7
        if given_weights is None:
            used = np.full(len(weights), 1 / len(weights))
        else:
            used = kernel.weights.numpy()  # kernels have single precision by default
        expected = oracle(make, x, z, 1.7, used, channels)
        np.testing.assert_allclose(kernel(torch.tensor(x), torch.tensor(z)).to_dense().detach(), expected, rtol=1e-6)
        diagonal = kernel(torch.tensor(x[:4]), torch.tensor(z), diag=True).detach()
        np.testing.assert_allclose(diagonal, np.diag(expected), rtol=1e-6)


@BOTH
@pytest.mark.parametrize("shapes", [((3, 6), (4, 6)), ((2, 3, 6), (4, 6))])
def test_curve_kernels_gradients_with_broadcast_batches(make, shapes):
    torch.manual_seed(0)
    x, z = (torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes)
    kernel = make(num_channels=2).double()

    def value(x, z, raw):
        return torch.func.functional_call(kernel, {"raw_lengthscale": raw}, (x, z)).to_dense()

    assert torch.autograd.gradcheck(value, (x, z, kernel.raw_lengthscale))
    assert torch.autograd.gradgradcheck(value, (x, z, kernel.raw_lengthscale))


@BOTH
def test_curve_kernels_gradients_at_coincident_points(make):
    x = torch.ones(3, 4, dtype=torch.float64, requires_grad=True)
    kernel = make().double()
    for diag in (False, True):
        value = kernel(x, x.detach().clone(), diag=diag)
        gradients = torch.autograd.grad((value if diag else value.to_dense()).sum(), [x, kernel.raw_lengthscale])
        assert all(torch.equal(g, torch.zeros_like(g)) for g in gradients)


@BOTH
def test_curve_kernels_gradients_are_accurate_far_from_origin(make):
    torch.manual_seed(0)
    x, z = torch.randn(5, 4, dtype=torch.float64), torch.randn(5, 4, dtype=torch.float64)
    gradients = []
    for offset in (0.0, 1e6):
        shifted = (x + offset).requires_grad_()
        make().double()(shifted, z + offset).to_dense()[0].sum().backward()
        gradients.append(shifted.grad)
    torch.testing.assert_close(*gradients, rtol=1e-7, atol=1e-9)  # x + 1e6 itself has lost six digits


@BOTH
def test_curve_kernels_backward_stores_no_slice_per_grid_point(make):
    """Autograd stores far fewer than n × n × m numbers between the passes."""
    n, m = 60, 40
    held = []
    x = torch.randn(n, m, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: held.append(t.numel()) or t, lambda t: t):
        make()(x).to_dense()
    assert sum(held) < n * n * m / 4


def test_curve_kernels_support_vmap_and_func_grad():
    kernel = GaussianCurveKernel()
    x = torch.randn(3, 4, 6)
    single = torch.stack([kernel.forward(a, a) for a in x])
    torch.testing.assert_close(torch.func.vmap(lambda a: kernel.forward(a, a))(x), single)
    assert torch.func.grad(lambda a: kernel.forward(a, a).sum())(x[0]).shape == (4, 6)


@settings(max_examples=15, deadline=None)
@given(st.floats(0.05, 20), st.integers(0, 1000))
def test_curve_kernels_are_positive_semidefinite(lengthscale, seed):
    x = torch.randn(15, 6, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    for make in (GaussianCurveKernel, LaplaceCurveKernel):
        kernel = make(num_channels=2).double()
        kernel.lengthscale = lengthscale
        assert torch.linalg.eigvalsh(kernel(x).to_dense()).min() > -1e-10


def test_curve_kernels_batch_indexing_keeps_weights():
    kernel = GaussianCurveKernel(weights=torch.tensor([0.2, 0.3, 0.5]), batch_shape=torch.Size([2]))
    x = torch.randn(4, 3)
    torch.testing.assert_close(kernel[1](x).to_dense(), kernel(x).to_dense()[1])
    assert kernel[1].weights.shape == (3,)


def test_curve_kernels_reject_invalid_widths_weights_and_options():
    with pytest.raises(InputError, match="a multiple of 2"):
        GaussianCurveKernel(num_channels=2)(torch.zeros(1, 5)).to_dense()
    with pytest.raises(InputError, match="3 grid points times 1"):
        GaussianCurveKernel(weights=torch.ones(3))(torch.zeros(1, 5)).to_dense()
    for arguments in ({"num_channels": 0}, {"weights": torch.tensor([1.0, -1.0])}, {"weights": torch.ones(2, 2)}):
        with pytest.raises(OptionError):
            GaussianCurveKernel(**arguments)
    with pytest.raises(OptionError, match="last_dim_is_batch"):
        GaussianCurveKernel().forward(torch.zeros(1, 2), torch.zeros(1, 2), last_dim_is_batch=True)


@BOTH
def test_curve_kernels_reject_noninteger_num_channels(make):
    with pytest.raises(OptionError, match="num_channels"):
        make(num_channels=1.5)
