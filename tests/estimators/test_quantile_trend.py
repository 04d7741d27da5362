"""A polynomial beside a stationary kernel, in coordinates."""

import pytest
import torch
from gpytorch.kernels import RBFKernel

from ovkgp.estimators.common.task_options import input_factor
from ovkgp.estimators.quantiles.kernel import KernelShares, TrendFactor, products
from ovkgp.inference.tasks.factors import KernelFactor


def points(n, d=3, seed=0):
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def dense(X, Z, shares, lengthscale):
    inner = X @ Z.T / X.shape[1]
    stationary = torch.exp(-(torch.cdist(X, Z) ** 2) / (2 * lengthscale**2))
    return shares.stationary * stationary + shares.linear * inner + shares.quadratic * inner**2


@pytest.mark.parametrize("shares", [KernelShares(0.5, 0.5), KernelShares(0.2, 0.3, 0.5), KernelShares(0.6, 0.0, 0.4)])
def test_rows_have_the_inner_products_of_the_dense_kernel(shares):
    X = points(10)
    phi = TrendFactor(input_factor(X, lengthscale=1.5), shares)
    new = points(4, seed=1)
    torch.testing.assert_close(phi(new) @ phi(X).T, dense(new, X, shares, 1.5), rtol=1e-8, atol=1e-8)


def test_rows_at_the_anchors_are_kept():
    X = points(8)
    phi = TrendFactor(KernelFactor(RBFKernel().double(), X), KernelShares(0.3, 0.3, 0.4))
    torch.testing.assert_close(phi.anchor_rows, phi(X), rtol=1e-9, atol=1e-9)


def test_products_have_the_squared_inner_product():
    X, Z = points(6), points(5, seed=2)
    torch.testing.assert_close(products(X) @ products(Z).T, (X @ Z.T) ** 2)


def test_shares_are_parts_of_one():
    shares = KernelShares.of(stationary=2.0, linear=1.0, quadratic=1.0)
    assert (shares.stationary, shares.linear, shares.quadratic) == (0.5, 0.25, 0.25)
