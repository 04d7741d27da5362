"""Tests of `ovkgp.functional.operators`."""

import numpy as np
import pytest
import torch
from gpytorch.kernels import RBFKernel

from ovkgp.exceptions import InputError
from ovkgp.functional import Eigenfunctions, IntegralOperator
from ovkgp.functional.quadrature import gauss_rule
from ovkgp.kernels import CurlFreeKernel, DecomposableKernel

A = torch.tensor([[2.0, 0.5, 0.0], [0.5, 1.0, 0.3], [0.0, 0.3, 0.5]]).double()
NODES, WEIGHTS = gauss_rule(np.linspace(0, 1, 4), 10)


def separable():
    return DecomposableKernel(RBFKernel(), output_matrix=A)


def field():
    return CurlFreeKernel(RBFKernel(), num_dims=2)


CASES = {
    "separable": lambda: IntegralOperator(separable(), NODES, WEIGHTS),
    "sum": lambda: IntegralOperator(separable() + DecomposableKernel(RBFKernel(), num_outputs=3), NODES, WEIGHTS),
    "field": lambda: IntegralOperator(field(), np.random.default_rng(0).uniform(size=(15, 2))),
    "scalar": lambda: IntegralOperator(RBFKernel(), NODES, WEIGHTS),
}


@pytest.mark.parametrize("name", CASES)
def test_lt_35_eigenpairs_of_an_operator_valued_kernel(name):
    """T ψ = λψ, orthonormal in L²(μ, R^p); the eigenvalues sum to the trace, and Mercer's sum is the kernel."""
    operator = CASES[name]()
    pairs = operator.eigenpairs()
    few = min(5, len(pairs.values))
    for r in range(few):
        image = operator(pairs.functions[..., r])
        assert np.allclose(image, pairs.values[r] * pairs.functions[..., r], atol=1e-10)
    gram = np.einsum("m,mpr,mps->rs", operator.weights, pairs.functions, pairs.functions)
    assert np.allclose(gram, np.eye(len(gram)), atol=1e-10)
    assert pairs.values.sum() == pytest.approx(operator.trace, rel=1e-6) and (np.diff(pairs.values) <= 1e-12).all()
    rows = pairs.functions.reshape(-1, len(pairs.values))
    assert np.allclose((rows * pairs.values) @ rows.T, operator._matrix(operator.nodes), atol=1e-6)
    shifted = operator.nodes[:3] * 0.9
    assert operator.extend(operator.eigenpairs(2), shifted).shape == (3, operator.num_outputs, 2)
    assert np.allclose(operator.extend(operator.eigenpairs(2), operator.nodes), pairs.functions[..., :2], atol=1e-8)


def test_lt_35_operator_of_a_separable_kernel_is_a_product():
    """T = A ⊗ T_k: products of the eigenvalues of A and of the scalar operator."""
    scalar = Eigenfunctions(RBFKernel(), 8).eigenvalues
    products = np.sort(np.outer(scalar, np.linalg.eigvalsh(A.numpy())).ravel())[::-1]
    assert np.allclose(CASES["separable"]().eigenpairs(6).values, products[:6], rtol=1e-6)


def test_operator_is_self_adjoint_and_positive():
    operator, rng = CASES["field"](), np.random.default_rng(1)
    f, g = rng.standard_normal((2, 15, 2))
    inner = [
        np.sum(operator.weights[:, None] * a * b) for a, b in ((operator(f), g), (f, operator(g)), (operator(f), f))
    ]
    assert inner[0] == pytest.approx(inner[1]) and inner[2] > 0


def test_operator_rejects_invalid_arguments():
    with pytest.raises(InputError, match="nodes"):
        IntegralOperator(RBFKernel(), [np.nan])
    with pytest.raises(InputError, match="weights"):
        IntegralOperator(RBFKernel(), NODES, -WEIGHTS)
    with pytest.raises(InputError, match="values"):
        CASES["separable"]()(np.zeros((3, 3)))
