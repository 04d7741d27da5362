"""Tests of `ovkgp.inference.ridge.online_blocks`."""

import numpy as np
import pytest
import torch
from gpytorch.kernels import LinearKernel, RBFKernel
from linear_operator import to_dense

from ovkgp.inference.ridge.online_blocks import DenseBlocks, SeparableBlocks, make_kernel_blocks
from ovkgp.kernels import CurlFreeKernel, DecomposableKernel


def test_separable_and_dense_blocks_agree():
    rng = np.random.default_rng(0)
    kernel = DecomposableKernel(RBFKernel(), output_matrix=torch.eye(2) + 0.5).double().requires_grad_(False)
    X, Y = rng.standard_normal((9, 2)), rng.standard_normal((9, 2))
    fast, slow = make_kernel_blocks(kernel, 2), DenseBlocks(kernel, 2)
    assert isinstance(fast, SeparableBlocks)
    a, z = Y[0], X[1:]
    pairs = [(blocks, blocks.self_blocks(z), blocks.cross(X[:1], z)[0]) for blocks in (fast, slow)]
    for compute in (
        lambda b, own, row: b.norms(own),
        lambda b, own, row: b.value(row, Y[1:]),
        lambda b, own, row: b.squares(own, Y[1:]),
        lambda b, own, row: b.covered(row, own, a),
        lambda b, own, row: b.transfer(row, own, 3, a),
    ):
        one, other = (compute(*pair) for pair in pairs)
        np.testing.assert_allclose(one, other, rtol=1e-9)


def test_transfer_is_zero_at_points_with_zero_kernel():
    kernel = DecomposableKernel(LinearKernel(), output_matrix=torch.eye(2)).double().requires_grad_(False)
    for blocks in (make_kernel_blocks(kernel, 2), DenseBlocks(kernel, 2)):
        own, row = blocks.self_blocks(np.zeros((1, 1))), blocks.cross(np.ones((1, 1)), np.zeros((1, 1)))[0]
        assert blocks.covered(row, own, np.ones(2)).tolist() == [0.0]
        assert blocks.transfer(row, own, 0, np.ones(2)).tolist() == [0.0, 0.0]


@pytest.mark.parametrize("seed", range(3))
def test_transfer_is_the_nearest_projection(seed):
    """No other coefficient at x_j comes nearer to K(·, x)a, and `covered` gives the squared norm of the projection."""
    rng = np.random.default_rng(seed)
    kernel = CurlFreeKernel(RBFKernel(), num_dims=2).double().requires_grad_(False)
    blocks, X, a = make_kernel_blocks(kernel, 2), rng.standard_normal((2, 2)), rng.standard_normal(2)
    K = to_dense(kernel(torch.from_numpy(X))).numpy()
    own, row = blocks.self_blocks(X[1:]), blocks.cross(X[:1], X[1:])[0]
    b = blocks.transfer(row, own, 0, a)

    def squared_distance(b):
        difference = np.concatenate([a, -b])
        return difference @ K @ difference

    np.testing.assert_allclose(squared_distance(b), a @ K[:2, :2] @ a - blocks.covered(row, own, a)[0], rtol=1e-9)
    assert all(squared_distance(b + 1e-3 * rng.standard_normal(2)) > squared_distance(b) for _ in range(20))


def test_cross_equals_the_kernel_for_sums_of_separable_kernels():
    rng = np.random.default_rng(0)
    parts = [DecomposableKernel(RBFKernel(), output_matrix=torch.diag(torch.rand(2) + 1)) for _ in range(2)]
    kernel = (parts[0] + parts[1]).double().requires_grad_(False)
    X, Z = rng.standard_normal((3, 1)), rng.standard_normal((4, 1))
    blocks = make_kernel_blocks(kernel, 2).cross(X, Z)
    dense = to_dense(kernel(torch.from_numpy(X), torch.from_numpy(Z))).numpy().reshape(3, 2, 4, 2)
    np.testing.assert_allclose(blocks, dense.transpose(0, 2, 3, 1), rtol=1e-12)
