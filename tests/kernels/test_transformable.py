import pickle
import unittest

import numpy as np
import pytest
import torch
from gpytorch.kernels import RBFKernel, ScaleKernel
from gpytorch.test.base_kernel_test_case import BaseKernelTestCase
from oracles import dense, gram, rbf, square

from ovkgp.exceptions import InputError, KernelTypeError, OptionError
from ovkgp.kernels import DecomposableKernel, Delay, TransformableKernel, block


class TestTransformableProtocol(BaseKernelTestCase, unittest.TestCase):
    def create_kernel_no_ard(self, **kwargs):
        return TransformableKernel(RBFKernel(**kwargs), [Delay(0.0), Delay(0.5), square])

    def create_kernel_ard(self, num_dims, **kwargs):
        return TransformableKernel(RBFKernel(ard_num_dims=num_dims, **kwargs), [Delay(0.0), torch.tanh])


def points(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def delays(tau):
    kernel = TransformableKernel(RBFKernel(), [Delay(0.0), Delay(0.0)]).double()
    kernel.transforms[1].delay.data.fill_(tau)
    return kernel, kernel.base_kernel.lengthscale.item()


def test_bt_30_entries_are_the_scalar_kernel_at_the_transformed_points():
    kernel = TransformableKernel(RBFKernel(), [torch.sin, square, torch.exp]).double()
    s, maps = kernel.base_kernel.lengthscale.item(), [np.sin, np.square, np.exp]
    x, z = points(4, 2), points(3, 2, seed=1)
    expected = gram(lambda a, b: [[rbf(f(a) - g(b), s) for g in maps] for f in maps], x.numpy(), z.numpy())
    np.testing.assert_allclose(dense(kernel, x, z), expected, rtol=1e-10, atol=1e-14)


def test_bt_e_15_delays_give_the_delay_kernel():
    tau, x, z = 0.7, points(4, 1), points(3, 1, seed=1)
    kernel, s = delays(tau)

    def delay_block(a, b):
        d = a - b
        return [[rbf(d, s), rbf(d + tau, s)], [rbf(d - tau, s), rbf(d, s)]]

    np.testing.assert_allclose(dense(kernel, x, z), gram(delay_block, x.numpy(), z.numpy()), rtol=1e-12, atol=1e-14)


def test_bt_e_15_with_the_signs_of_the_paper_the_first_output_is_the_delayed_one():
    """[[k(δ), k(δ − τ)], [k(δ + τ), k(δ)]]."""
    tau, d = 0.7, np.array([0.4])
    kernel, s = delays(0.0)
    kernel.transforms[0].delay.data.fill_(tau)
    expected = [[rbf(d, s), rbf(d - tau, s)], [rbf(d + tau, s), rbf(d, s)]]
    np.testing.assert_allclose(block(kernel, torch.tensor(d), torch.zeros(1).double()).detach(), expected, rtol=1e-12)


def test_bt_e_15_delay_kernel_is_shift_invariant_but_not_even():
    kernel, _ = delays(0.7)
    d, zero, shift = torch.tensor([0.4]).double(), torch.zeros(1).double(), torch.tensor([3.1]).double()
    there = block(kernel, d, zero)
    torch.testing.assert_close(block(kernel, d + shift, zero + shift), there)
    assert (block(kernel, -d, zero) - there).abs().max() > 0.1
    torch.testing.assert_close(block(kernel, -d, zero), there.mT)


def test_transforms_may_change_the_number_of_columns():
    kernel = TransformableKernel(RBFKernel(ard_num_dims=1), [lambda x: x[..., :1], lambda x: x.sum(-1, keepdim=True)])
    assert kernel(torch.randn(4, 3)).to_dense().shape == (8, 8)


def test_transforms_are_trained_modules_or_functions():
    kernel = TransformableKernel(RBFKernel(), [square, Delay(torch.tensor([0.1, 0.2]))])
    kernel(torch.randn(4, 2)).to_dense().sum().backward()
    assert kernel.transforms[1].delay.grad.abs().min() > 0
    assert len(list(kernel.parameters())) == 2


def test_delay_does_not_share_memory_with_the_tensor_it_was_given():
    given = torch.tensor([0.1, 0.2])
    Delay(given).delay.data.add_(1.0)
    assert torch.equal(given, torch.tensor([0.1, 0.2]))


def test_delays_survive_pickling_as_one_object():
    kernel = pickle.loads(pickle.dumps(TransformableKernel(RBFKernel(), [Delay(0.0), Delay(0.3)])))
    assert kernel.transforms[1] is kernel.transform_modules[1]


def test_transformable_kernel_rejects_empty_transforms():
    with pytest.raises(OptionError, match="at least one transform"):
        TransformableKernel(RBFKernel(), [])
    with pytest.raises(OptionError, match="at least one transform"):
        TransformableKernel(RBFKernel(), torch.tanh)


@pytest.mark.parametrize("bad", [1, "delay", torch.zeros(2)])
def test_transformable_kernel_rejects_transforms_that_are_not_callable(bad):
    with pytest.raises(OptionError, match="transforms"):
        TransformableKernel(RBFKernel(), [Delay(0.0), bad])


@pytest.mark.parametrize("bad", [lambda x: x[..., :1], lambda x: x[:-1], lambda x: x.sum(-1)])
def test_transformable_kernel_rejects_incompatible_transforms(bad):
    with pytest.raises(InputError, match="same q"):
        TransformableKernel(RBFKernel(), [square, bad])(torch.randn(4, 2)).to_dense()


@pytest.mark.parametrize(
    "base", ["rbf", DecomposableKernel(RBFKernel(), 2), ScaleKernel(DecomposableKernel(RBFKernel(), 2))]
)
def test_transformable_kernel_rejects_invalid_base_kernel(base):
    with pytest.raises(KernelTypeError, match="base_kernel"):
        TransformableKernel(base, [square])
