"""Tests of `ovkgp.functional.operators`."""

import numpy as np
import pytest
import torch
from gpytorch.kernels import RBFKernel

from ovkgp.exceptions import InputError
from ovkgp.functional import Eigenfunctions, IntegralOperator
from ovkgp.functional.quadrature import gauss_rule
from ovkgp.inference import OperatorValuedGP
from ovkgp.kernels import (
    CurlFreeKernel,
    DecomposableKernel,
    Delay,
    FunctionValuedKernel,
    TransformableKernel,
    block,
)

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


def test_lt_e_17_sections_of_a_kernel_have_the_new_point_first():
    """(K_x y)(z) = K(z, x) y: predictions use K(z, x_i), which is not K(x_i, z) if blocks are not symmetric."""
    kernel = TransformableKernel(RBFKernel(), [Delay(0.0), Delay(0.7)]).double().requires_grad_(False)
    rng = np.random.default_rng(0)
    X, Y, z = (torch.from_numpy(rng.standard_normal(shape)) for shape in ((6, 1), (6, 2), (1, 1)))
    mean = OperatorValuedGP(kernel, mean="zero", noise=0.1).condition(X, Y).predict(z).mean[0]
    gram = kernel(X).to_dense() + 0.1 * torch.eye(12).double()
    alpha = torch.linalg.solve(gram, Y.reshape(-1)).reshape(6, 2)
    right, printed = (
        sum(block(kernel, *pair) @ a for pair, a in zip(pairs, alpha, strict=True))
        for pairs in ([(z[0], x) for x in X], [(x, z[0]) for x in X])
    )
    torch.testing.assert_close(mean, right.detach(), atol=1e-7, rtol=0)
    assert (printed - right).abs().max() > 0.1


def test_lt_e_19_values_of_the_kernel_are_operators_on_curves():
    """K(x, z) = k_X(x, z) T_kΘ maps a curve in L²(μ) to a curve (LT-34): on a grid, k_X K_Θ diag(η) y."""
    tasks = torch.linspace(0.1, 0.9, 6).double()
    kernel = FunctionValuedKernel(RBFKernel(), RBFKernel(), tasks=tasks).double().requires_grad_(False)
    x, z, y = torch.zeros(1).double(), torch.full((1,), 0.8).double(), torch.sin(5 * tasks)
    image = block(kernel, x, z) @ (y / 6)
    task_operator = IntegralOperator(kernel.task_kernel, tasks.numpy())
    scalar = kernel.input_kernel(x[None], z[None]).to_dense().item()
    np.testing.assert_allclose(image, scalar * task_operator(y[:, None].numpy())[:, 0], atol=1e-10)
