import unittest

import numpy as np
import pytest
import torch
from gpytorch.kernels import MaternKernel, RBFKernel, ScaleKernel
from gpytorch.test.base_kernel_test_case import BaseKernelTestCase
from linear_operator.operators import KroneckerProductLinearOperator
from oracles import dense, gram, randomize, rbf

from ovkgp.exceptions import InputError, KernelTypeError, OptionError
from ovkgp.kernels import CurlFreeKernel, DecomposableKernel, FunctionValuedKernel, components, num_outputs


class TestFunctionValuedProtocolOnAGrid(BaseKernelTestCase, unittest.TestCase):
    def create_kernel_no_ard(self, **kwargs):
        return FunctionValuedKernel(RBFKernel(**kwargs), MaternKernel(), tasks=torch.tensor([0.0, 0.4, 1.0]))

    def create_kernel_ard(self, num_dims, **kwargs):
        return FunctionValuedKernel(RBFKernel(ard_num_dims=num_dims, **kwargs), MaternKernel(), tasks=torch.rand(2))


class TestFunctionValuedProtocolOnPairs(BaseKernelTestCase, unittest.TestCase):
    def create_kernel_no_ard(self, **kwargs):
        return FunctionValuedKernel(RBFKernel(**kwargs), MaternKernel())

    def create_kernel_ard(self, num_dims, **kwargs):
        return FunctionValuedKernel(RBFKernel(ard_num_dims=num_dims - 1, **kwargs), MaternKernel(ard_num_dims=1))

    # The last column is the task for all active_dims of the input kernel; GPyTorch's check selects columns of the whole
    # input, so that another column would become the task.
    def test_active_dims_list(self, active_dims=(0, 2, 4, 6)):
        x = self.create_data_no_batch()
        kernel = self.create_kernel_no_ard(active_dims=list(active_dims))
        expected = self.create_kernel_no_ard()(x[:, [*active_dims, -1]]).to_dense()
        self.assertAllClose(kernel(x).to_dense(), expected, rtol=1e-3, atol=1e-5)

    def test_active_dims_range(self):
        self.test_active_dims_list(range(3, 9))


def points(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def pairs(x, tasks):
    """Return the pairs (x_i, θ_t), tasks varying fastest, (n·m, d + t)."""
    rows = [torch.cat([a, t]) for a in x for t in tasks]
    return torch.stack(rows)


def test_bt_31_grid_is_the_product_of_the_two_kernels():
    tasks = torch.tensor([0.0, 0.3, 1.0]).double()
    kernel = randomize(FunctionValuedKernel(RBFKernel(), RBFKernel(), tasks=tasks).double(), 0)
    s, t = kernel.input_kernel.lengthscale.item(), kernel.task_kernel.lengthscale.item()
    grid = np.array([[rbf(a - b, t) for b in tasks.numpy()] for a in tasks.numpy()])
    x, z = points(4, 2), points(3, 2, seed=1)
    expected = gram(lambda a, b: rbf(a - b, s) * grid, x.numpy(), z.numpy())
    np.testing.assert_allclose(dense(kernel, x, z), expected, rtol=1e-12, atol=1e-14)


def test_bt_32_pairs_are_the_product_kernel_on_inputs_and_tasks():
    kernel = randomize(FunctionValuedKernel(RBFKernel(), RBFKernel()).double(), 0)
    s, t = kernel.input_kernel.lengthscale.item(), kernel.task_kernel.lengthscale.item()
    x = points(5, 3)
    expected = gram(lambda a, b: [[rbf(a[:2] - b[:2], s) * rbf(a[2:] - b[2:], t)]], x.numpy(), x.numpy())
    np.testing.assert_allclose(dense(kernel, x), expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("t", [1, 2])
def test_grid_and_pairs_have_the_same_covariance(t):
    tasks, x = points(4, t, seed=2), points(3, 2)
    parts = (randomize(RBFKernel().double(), 1), randomize(MaternKernel(nu=1.5, ard_num_dims=t).double(), 2))
    on_grid, on_pairs = FunctionValuedKernel(*parts, tasks=tasks), FunctionValuedKernel(*parts)
    np.testing.assert_allclose(dense(on_grid, x), dense(on_pairs, pairs(x, tasks)), rtol=1e-10, atol=1e-13)


def test_vector_valued_tasks_are_task_major():
    """Row (i, t, a) is output a of task t at x_i, on a grid and on pairs alike."""
    tasks, x = points(3, 1, seed=2), points(2, 2)
    inner = randomize(DecomposableKernel(RBFKernel(), num_outputs=2, rank=2).double(), 3)
    task_kernel = randomize(RBFKernel().double(), 4)
    on_grid = FunctionValuedKernel(inner, task_kernel, tasks=tasks)
    matrix, scalar, grid = inner.output_matrix.detach().numpy(), dense(inner.base_kernel, x), dense(task_kernel, tasks)
    entries = dense(on_grid, x).reshape(2, 3, 2, 2, 3, 2)
    np.testing.assert_allclose(entries, np.einsum("ij,ts,ab->itajsb", scalar, grid, matrix), rtol=1e-12, atol=1e-14)
    on_pairs = dense(FunctionValuedKernel(inner, task_kernel), pairs(x, tasks))
    np.testing.assert_allclose(dense(on_grid, x), on_pairs, rtol=1e-12, atol=1e-14)


def test_input_kernel_may_be_an_lmc():
    lmc = DecomposableKernel(RBFKernel(), num_outputs=2) + DecomposableKernel(MaternKernel(), num_outputs=2)
    tasks, x = points(3, 1, seed=2), points(4, 2)
    kernel = FunctionValuedKernel(randomize(lmc.double(), 5), RBFKernel().double(), tasks=tasks)
    expected = sum(
        np.kron(np.kron(dense(k, x), dense(kernel.task_kernel, tasks)), m.detach().numpy()) for k, m in components(lmc)
    )
    np.testing.assert_allclose(dense(kernel, x), expected, rtol=1e-12, atol=1e-14)
    assert len(components(kernel)) == 2 and num_outputs(kernel) == 6


def test_batches_of_both_kernels_are_broadcast():
    batch = {"batch_shape": torch.Size([2])}
    inner = DecomposableKernel(RBFKernel(**batch), num_outputs=2)
    kernel = FunctionValuedKernel(inner, RBFKernel(**batch), tasks=points(3, seed=2))
    kernel, x = randomize(kernel.double(), 6), points(4, 2)
    for i in range(2):
        np.testing.assert_allclose(dense(kernel, x)[i], dense(kernel[i], x), rtol=1e-12, atol=1e-14)


def test_grid_matrix_is_kronecker_product():
    kernel = FunctionValuedKernel(RBFKernel(), RBFKernel(), tasks=torch.rand(3))
    assert isinstance(kernel(torch.randn(4, 2)).evaluate_kernel(), KroneckerProductLinearOperator)


def test_grid_accepts_integers():
    kernel = FunctionValuedKernel(RBFKernel(), RBFKernel(), tasks=torch.arange(3))
    assert kernel(torch.randn(2, 1)).to_dense().shape == (6, 6)


def test_pairs_reject_missing_input_column():
    with pytest.raises(InputError, match="last 1 column"):
        FunctionValuedKernel(RBFKernel(), RBFKernel())(torch.randn(4, 1)).to_dense()


@pytest.mark.parametrize("tasks", [torch.zeros(0), torch.zeros(2, 2, 2), torch.tensor([0.0, float("nan")])])
def test_function_valued_kernel_rejects_invalid_grids(tasks):
    with pytest.raises(InputError, match=r"finite grid of shape \(m,\) or \(m, t\)"):
        FunctionValuedKernel(RBFKernel(), RBFKernel(), tasks=tasks)


def test_function_valued_kernel_rejects_wrong_number_of_task_lengthscales():
    with pytest.raises(OptionError, match="2 lengthscales, expected 1"):
        FunctionValuedKernel(RBFKernel(), RBFKernel(ard_num_dims=2), tasks=torch.rand(3))


@pytest.mark.parametrize(
    ("input_kernel", "task_kernel", "message"),
    [
        (CurlFreeKernel(RBFKernel(), num_dims=2), RBFKernel(), "scalar or separable, got CurlFreeKernel"),
        (ScaleKernel(CurlFreeKernel(RBFKernel(), num_dims=2)), RBFKernel(), "scalar or separable"),
        ("rbf", RBFKernel(), "got str"),
        (RBFKernel(), "rbf", "task_kernel"),
        (RBFKernel(), DecomposableKernel(RBFKernel(), 2), "task_kernel must be a scalar kernel"),
    ],
)
def test_function_valued_kernel_rejects_invalid_kernels(input_kernel, task_kernel, message):
    with pytest.raises(KernelTypeError, match=message):
        FunctionValuedKernel(input_kernel, task_kernel)


def test_pairs_are_a_scalar_kernel_for_decomposable_kernel():
    """LT-34: the product kernel on (x, task) pairs, times a matrix for vector outputs."""
    pairs = FunctionValuedKernel(RBFKernel(ard_num_dims=1), RBFKernel(ard_num_dims=1))
    matrix = torch.tensor([[1.0, 0.3], [0.3, 2.0]])
    kernel = DecomposableKernel(pairs, output_matrix=matrix)
    x = torch.rand(4, 2)
    torch.testing.assert_close(kernel(x).to_dense(), torch.kron(pairs(x).to_dense(), matrix))
