import inspect
import pickle
import unittest

import pytest
import torch
from gpytorch.kernels import LinearKernel, MultitaskKernel, RBFKernel, ScaleKernel
from gpytorch.test.base_kernel_test_case import BaseKernelTestCase
from hypothesis import given, settings
from hypothesis import strategies as st

from ovkgp.exceptions import DomainError, KernelTypeError, OptionError
from ovkgp.kernels.chi_square import SkewedChi2Kernel
from ovkgp.kernels.groups import (
    AdditiveGroup,
    CyclicGroup,
    MultiplicativeGroup,
    ProductGroup,
    SkewedMultiplicativeGroup,
)
from ovkgp.kernels.protocol import block, components, is_operator_valued, num_outputs
from ovkgp.kernels.stationary import LaplaceKernel
from ovkgp.kernels.warped import OperatorValuedWarpedKernel, WarpedKernel


class TestWarpedProtocol(BaseKernelTestCase, unittest.TestCase):
    def create_kernel_no_ard(self, num_dims=2, active_dims=None, **kwargs):
        return WarpedKernel(RBFKernel(**kwargs), SkewedMultiplicativeGroup(9.0, num_dims), active_dims=active_dims)

    def create_kernel_ard(self, num_dims, **kwargs):
        base = RBFKernel(ard_num_dims=2 * num_dims, **kwargs)
        return WarpedKernel(base, CyclicGroup(3.0, num_dims))

    def _compare_active_dims(self, active_dims):  # a group has a fixed number of columns
        x = self.create_data_no_batch()
        kernel = self.create_kernel_no_ard(len(active_dims), active_dims=active_dims)
        basic = self.create_kernel_no_ard(len(active_dims))
        self.assertAllClose(kernel(x).to_dense(), basic(x[:, active_dims]).to_dense())

    def test_active_dims_list(self):
        self._compare_active_dims([0, 2, 4, 6])

    def test_active_dims_range(self):
        self._compare_active_dims(list(range(3, 9)))


GROUPS = {
    "additive": AdditiveGroup(2),
    "multiplicative": MultiplicativeGroup(2),
    "skewed": SkewedMultiplicativeGroup([0.3, 1.0]),
    "cyclic": CyclicGroup([1.0, 7.0]),
    "product": ProductGroup([MultiplicativeGroup(), CyclicGroup(5.0)]),
}


def points(n, seed=0):
    return torch.rand(n, 2, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * 3 + 0.05


@pytest.mark.parametrize("name", GROUPS)
@pytest.mark.parametrize("operator_valued", [False, True])
def test_bt_18_warped_kernel_is_translation_invariant(name, operator_valued):
    group = GROUPS[name]
    base = MultitaskKernel(RBFKernel(), num_tasks=2) if operator_valued else RBFKernel()
    kernel = WarpedKernel(base, group).double()
    x, z, t = points(4), points(5, 1), points(1, 2)
    moved = kernel(group.op(x, t), group.op(z, t)).to_dense()
    torch.testing.assert_close(moved, kernel(x, z).to_dense(), rtol=1e-9, atol=1e-12)


def test_skewed_chi2_is_a_function_of_the_skewed_group():
    kernel, group = SkewedChi2Kernel().double(), SkewedMultiplicativeGroup(0.3, 2)
    kernel.c = 0.3
    x, z, t = points(4), points(4, 1), points(1, 2)
    torch.testing.assert_close(kernel(group.op(x, t), group.op(z, t)).to_dense(), kernel(x, z).to_dense())


def test_warped_kernel_is_base_kernel_of_logarithms():
    x, z = points(4), points(5, 1)
    base = LaplaceKernel(ard_num_dims=2).double()
    expected = base(x.log(), z.log()).to_dense()
    kernel = WarpedKernel(base, MultiplicativeGroup(2))
    torch.testing.assert_close(kernel(x, z).to_dense(), expected)
    torch.testing.assert_close(kernel(x, z[:4], diag=True), expected[:, :4].diagonal())


def test_warped_kernel_of_scalar_base_is_scalar():
    kernel = WarpedKernel(RBFKernel(), AdditiveGroup(2))
    assert type(kernel) is WarpedKernel and not is_operator_valued(kernel) and num_outputs(kernel) == 1
    assert kernel.is_stationary and not WarpedKernel(LinearKernel(), AdditiveGroup(2)).is_stationary
    [(scalar, matrix)] = components(kernel)
    assert scalar is kernel and torch.equal(matrix, torch.ones(1, 1))
    assert block(kernel, torch.zeros(2), torch.ones(2)).shape == (1, 1)
    assert (kernel * RBFKernel())(torch.zeros(3, 2)).to_dense().shape == (3, 3)


@pytest.mark.parametrize("active_dims", [None, [2, 0]])
def test_warped_kernel_keeps_outputs_and_components(active_dims):
    base = ScaleKernel(MultitaskKernel(RBFKernel(), num_tasks=3, rank=2))
    kernel = WarpedKernel(base, MultiplicativeGroup(2), active_dims=active_dims).double()
    assert isinstance(kernel, WarpedKernel) and isinstance(kernel, OperatorValuedWarpedKernel)
    assert kernel.num_outputs == num_outputs(kernel) == 3 and is_operator_valued(kernel)
    x = torch.rand(4, 3 if active_dims else 2, dtype=torch.float64) + 0.1
    dense = kernel(x).to_dense()
    assert dense.shape == (12, 12)
    parts = [torch.kron(k(x).to_dense(), matrix) for k, matrix in components(kernel)]
    torch.testing.assert_close(sum(parts), dense)
    torch.testing.assert_close(block(kernel, x[1], x[2]), dense[3:6, 6:9])
    torch.testing.assert_close(kernel(x, diag=True), dense.diagonal())


def test_warped_kernel_batch_indexing_and_pickle():
    base = MultitaskKernel(RBFKernel(batch_shape=torch.Size([2])), num_tasks=2)
    kernel = pickle.loads(pickle.dumps(WarpedKernel(base, CyclicGroup(2.0))))
    assert type(kernel) is OperatorValuedWarpedKernel and kernel.batch_shape == (2,)
    x = torch.rand(2, 3, 1)
    assert kernel(x).to_dense().shape == (2, 6, 6)
    scalar = WarpedKernel(RBFKernel(batch_shape=torch.Size([2])), CyclicGroup(2.0))
    scalar.base_kernel.lengthscale = torch.tensor([0.3, 2.0])[:, None, None]
    torch.testing.assert_close(scalar[1](x[1]).to_dense(), scalar(x).to_dense()[1])
    assert scalar.expand_batch(3, 2).batch_shape == (3, 2)


def test_warped_kernel_gradients_match_differences_at_coincident_points():
    kernel = WarpedKernel(RBFKernel(), SkewedMultiplicativeGroup([0.3, 1.0])).double()
    x, z = points(3).requires_grad_(), torch.cat([points(3)[:1], points(2, 1)]).requires_grad_()

    def value(x, z, raw):
        return torch.func.functional_call(kernel, {"base_kernel.raw_lengthscale": raw}, (x, z)).to_dense()

    assert torch.autograd.gradcheck(value, (x, z, kernel.base_kernel.raw_lengthscale))


@settings(max_examples=15, deadline=None)
@given(st.sampled_from(sorted(GROUPS)), st.floats(0.1, 10), st.integers(0, 1000))
def test_warped_kernel_is_positive_semidefinite(name, lengthscale, seed):
    kernel = WarpedKernel(RBFKernel(), GROUPS[name]).double()
    kernel.base_kernel.lengthscale = lengthscale
    assert torch.linalg.eigvalsh(kernel(points(15, seed)).to_dense()).min() > -1e-10


def test_domain_error_names_the_input_column():
    kernel = WarpedKernel(RBFKernel(), MultiplicativeGroup(2), active_dims=[0, 3])
    with pytest.raises(DomainError, match=r"column 3 .*smallest value is -1"):
        kernel(torch.tensor([[1.0, -9.0, -9.0, -1.0]])).to_dense()


def test_repr_shows_the_group():
    assert list(inspect.signature(WarpedKernel).parameters) == ["base_kernel", "group", "active_dims"]


@pytest.mark.parametrize(
    ("group", "message"),
    [
        (CyclicGroup, "class CyclicGroup"),
        (24.0, "got float"),
        (None, "got NoneType"),
    ],
)
def test_warped_kernel_rejects_invalid_group(group, message):
    with pytest.raises(OptionError, match=message):
        WarpedKernel(RBFKernel(), group)


@pytest.mark.parametrize("base", ["rbf", RBFKernel, None])
def test_warped_kernel_rejects_invalid_base_kernel(base):
    with pytest.raises(KernelTypeError, match="base_kernel"):
        WarpedKernel(base, CyclicGroup(24.0))
