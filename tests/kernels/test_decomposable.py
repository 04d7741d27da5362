import unittest

import numpy as np
import pytest
import torch
from gpytorch.kernels import LinearKernel, MaternKernel, RBFKernel, ScaleKernel
from gpytorch.test.base_kernel_test_case import BaseKernelTestCase
from linear_operator.operators import KroneckerProductLinearOperator
from oracles import dense, gram, randomise, rbf

from ovkgp.exceptions import InputError, KernelTypeError, OptionError
from ovkgp.kernels import CurlFreeKernel, DecomposableKernel, FreeMatrix, MeanRegularizedMatrix, SimplexMatrix


class TestDecomposableProtocol(BaseKernelTestCase, unittest.TestCase):
    def create_kernel_no_ard(self, **kwargs):
        return DecomposableKernel(RBFKernel(**kwargs), num_outputs=2)

    def create_kernel_ard(self, num_dims, **kwargs):
        return DecomposableKernel(RBFKernel(ard_num_dims=num_dims, **kwargs), num_outputs=2)


class TestDecomposableProtocolWithAKnownMatrix(BaseKernelTestCase, unittest.TestCase):
    def create_kernel_no_ard(self, **kwargs):
        return DecomposableKernel(ScaleKernel(MaternKernel(**kwargs)), output_matrix=SimplexMatrix(3))

    def create_kernel_ard(self, num_dims, **kwargs):
        return DecomposableKernel(MaternKernel(ard_num_dims=num_dims, **kwargs), output_matrix=SimplexMatrix(3))


def points(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_bt_24_blocks_are_the_scalar_kernel_times_the_output_matrix():
    kernel = randomise(DecomposableKernel(RBFKernel(ard_num_dims=2), num_outputs=3, rank=2).double(), 0)
    lengthscale, matrix = kernel.base_kernel.lengthscale[0].detach().numpy(), kernel.output_matrix.detach().numpy()
    x, z = points(4, 2), points(3, 2, seed=1)
    expected = gram(lambda a, b: rbf(a - b, lengthscale) * matrix, x.numpy(), z.numpy())
    np.testing.assert_allclose(dense(kernel, x, z), expected, rtol=1e-12, atol=1e-14)


def test_matrix_stays_a_kronecker_product():
    kernel = DecomposableKernel(RBFKernel(), num_outputs=3)
    assert isinstance(kernel(points(4, 2)).evaluate_kernel(), KroneckerProductLinearOperator)


def test_kernel_need_not_be_stationary():
    kernel = DecomposableKernel(LinearKernel(), output_matrix=torch.eye(2)).double()
    x = points(3, 2)
    expected = np.kron(dense(kernel.base_kernel, x), np.eye(2))
    np.testing.assert_allclose(dense(kernel, x), expected, rtol=1e-12, atol=1e-14)
    assert (kernel.is_stationary, DecomposableKernel(RBFKernel(), 2).is_stationary) == (False, True)


@pytest.mark.parametrize("rank", [2, 4])
def test_bt_26_bt_e_14_squared_norm_weighs_inner_products_by_the_pseudo_inverse(rank):
    """‖f‖²_K, and not ‖f‖_K as printed, is Σ Γ†_ab ⟨f_a, f_b⟩_k, for a nonsingular and for a singular Γ."""
    root = points(4, rank)
    kernel = DecomposableKernel(RBFKernel(), output_matrix=root @ root.mT).double()
    x, u = points(6, 2, seed=1), points(6, 4, seed=2).numpy()
    matrix = (root @ root.mT).numpy()
    C = u @ matrix  # f_a = Σ_i C_ia k(·, x_i)
    scalar = gram(lambda a, b: [[rbf(a - b, kernel.base_kernel.lengthscale.item())]], x.numpy(), x.numpy())
    inverse = np.linalg.pinv(matrix, hermitian=True)
    squared_norm = sum(inverse[a, b] * C[:, a] @ scalar @ C[:, b] for a in range(4) for b in range(4))
    assert u.flatten() @ dense(kernel, x) @ u.flatten() == pytest.approx(squared_norm, rel=1e-9)


def test_bt_26_functions_under_a_singular_matrix_are_tied():
    kernel = DecomposableKernel(RBFKernel(), output_matrix=torch.ones(2, 2)).double()
    f = (dense(kernel, points(5, 2), points(3, 2, seed=1)) @ points(6, seed=2).numpy()).reshape(5, 2)
    np.testing.assert_allclose(f[:, 0], f[:, 1], rtol=1e-12)


def test_output_matrix_module_is_used_as_it_is():
    module = MeanRegularizedMatrix(3)
    kernel = DecomposableKernel(RBFKernel(), output_matrix=module)
    assert kernel.output_module is module and kernel.num_outputs == 3


def test_free_matrix_is_the_default_with_rank_one():
    module = DecomposableKernel(RBFKernel(), num_outputs=3).output_module
    assert isinstance(module, FreeMatrix) and module.rank == 1


def test_free_matrix_follows_the_batch_shape_of_the_base_kernel():
    kernel = DecomposableKernel(RBFKernel(batch_shape=torch.Size([2])), num_outputs=3)
    assert kernel.output_matrix.shape == (2, 3, 3)


def test_batch_of_matrices_broadcasts_against_one_base_kernel():
    stack = torch.stack([torch.eye(2), torch.ones(2, 2)]).double()
    kernel, x = DecomposableKernel(RBFKernel(), output_matrix=stack).double(), points(3, 2)
    scalar = dense(kernel.base_kernel, x)
    assert kernel.batch_shape == (2,)
    np.testing.assert_allclose(dense(kernel, x), [np.kron(scalar, m) for m in stack.numpy()], rtol=1e-12)
    diagonal = np.diagonal(dense(kernel, x), axis1=-2, axis2=-1)
    np.testing.assert_allclose(kernel(x, diag=True).detach(), diagonal, rtol=1e-12)
    np.testing.assert_allclose(dense(kernel[1], x), dense(kernel, x)[1], rtol=1e-12)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, r"say how many outputs there are.*num_outputs=p"),
        ({"rank": 2, "output_matrix": torch.eye(2)}, "leave it out when output_matrix is given"),
        ({"num_outputs": 3, "output_matrix": torch.eye(2)}, "contradicts the 2 outputs"),
        ({"num_outputs": 3, "rank": 4}, "between 1 and num_outputs = 3"),
        ({"num_outputs": 0}, "at least 1"),
    ],
)
def test_contradictory_options_are_refused(options, message):
    with pytest.raises(OptionError, match=message):
        DecomposableKernel(RBFKernel(), **options)


def test_output_matrix_that_is_no_covariance_is_refused():
    with pytest.raises(InputError, match="negative eigenvalue"):
        DecomposableKernel(RBFKernel(), output_matrix=-torch.eye(2))


def test_base_kernel_must_be_a_kernel():
    with pytest.raises(KernelTypeError, match=r"must be a gpytorch.kernels.Kernel, got str"):
        DecomposableKernel("rbf", num_outputs=2)


@pytest.mark.parametrize(
    "base",
    [CurlFreeKernel(RBFKernel()), DecomposableKernel(RBFKernel(), 2), ScaleKernel(DecomposableKernel(RBFKernel(), 2))],
)
def test_base_kernel_must_be_scalar(base):
    with pytest.raises(KernelTypeError, match="must be a scalar kernel"):
        DecomposableKernel(base, num_outputs=2)


@pytest.mark.parametrize("options", [{"num_outputs": 2.5}, {"num_outputs": "2"}, {"num_outputs": 2, "rank": 1.5}])
def test_sizes_are_whole_numbers(options):
    with pytest.raises(OptionError, match="must be a whole number"):
        DecomposableKernel(RBFKernel(), **options)


def test_sizes_may_be_integers_of_numpy_and_torch():
    kernel = DecomposableKernel(RBFKernel(), np.int64(3), rank=torch.tensor(2))
    assert kernel.num_outputs == 3 and kernel.output_module.rank == 2


@pytest.mark.parametrize("make", [lambda k: k, lambda k: k * RBFKernel(), lambda k: k + k, ScaleKernel])
def test_no_points_give_an_empty_matrix(make):
    kernel, x = make(DecomposableKernel(RBFKernel(), num_outputs=2)), torch.randn(3, 1)
    assert kernel(x[:0]).to_dense().shape == (0, 0)
    assert kernel(x[:0], x).to_dense().shape == (0, 6)
    assert kernel(x, x[:0]).to_dense().shape == (6, 0)
    assert kernel(x[:0], diag=True).shape == (0,)
