"""The Woodbury matrix I + S ⊗ T against the dense one, gradients included, also at repeated eigenvalues."""

import pytest
import torch

from ovkgp.features.covariance import DenseCapacitance, KroneckerCapacitance
from ovkgp.features.operators import FeatureOperator


def gram(size, rank, batch=(), seed=0):
    generator = torch.Generator().manual_seed(seed)
    root = torch.randn(*batch, size, rank, generator=generator, dtype=torch.float64)
    return root @ root.mT


def repeated(size):
    """Every eigenvalue twice: the derivative of `eigh` does not exist here."""
    q, _ = torch.linalg.qr(gram(size, size, seed=3))
    return (q * torch.arange(1.0, size + 1).double().div(2).ceil()) @ q.mT


CASES = {
    "generic": lambda: (gram(5, 5), gram(3, 3, seed=1)),
    "singular": lambda: (gram(5, 2), gram(3, 1, seed=1)),
    "repeated": lambda: (repeated(6), torch.eye(3).double()),
    "batch": lambda: (gram(4, 4, (2,)), gram(2, 2, (2,), seed=1)),
}


@pytest.mark.parametrize("name", CASES)
def test_solve_and_logdet_with_gradients_equal_the_dense_ones(name):
    def value(kind, S, T, rhs):
        capacitance = kind(S, T)
        return (capacitance.solve(rhs) * weight).sum() + capacitance.logdet().sum().sin()

    S, T = (t.requires_grad_(True) for t in CASES[name]())
    size = S.shape[-1] * T.shape[-1]
    rhs = torch.randn(*S.shape[:-2], size, 2, dtype=torch.float64, requires_grad=True)
    weight = torch.randn_like(rhs)
    ours = value(KroneckerCapacitance, S, T, rhs)
    dense = value(lambda S, T: KroneckerCapacitance(S, T).dense(), S, T, rhs)
    torch.testing.assert_close(ours, dense)
    gradients = torch.autograd.grad(ours, (S, T, rhs))
    expected = torch.autograd.grad(dense, (S, T, rhs))
    for got, want in zip(gradients, expected, strict=True):
        want = (want + want.mT) / 2 if want.shape[-1] == want.shape[-2] else want  # S and T are symmetric
        torch.testing.assert_close(got, want)


def test_dense_capacitance_is_the_identity_plus_the_kronecker_product():
    S, T = CASES["generic"]()
    dense = KroneckerCapacitance(S, T).dense()
    expected = torch.eye(15).double() + torch.kron(S, T)
    torch.testing.assert_close(dense.chol @ dense.chol.mT, expected)
    torch.testing.assert_close(DenseCapacitance(torch.kron(S, T)).logdet(), torch.logdet(expected))


@pytest.mark.parametrize("batch", [(), (2,)])
def test_posterior_root_equals_dense_root(batch):
    S, T = gram(4, 4, batch), gram(2, 2, batch, seed=1)
    features = FeatureOperator(torch.randn(*batch, 5, 4).double(), torch.randn(*batch, 3, 2).double(), num_outputs=3)
    capacitance = KroneckerCapacitance(S, T)
    root, dense = capacitance.posterior_root(features), capacitance.dense().posterior_root(features)
    torch.testing.assert_close(root @ root.mT, dense @ dense.mT)


def test_posterior_root_keeps_the_gradient():
    S, T = (t.requires_grad_(True) for t in CASES["generic"]())
    features = FeatureOperator(torch.randn(4, 5).double(), torch.randn(3, 3).double(), num_outputs=3)
    root = KroneckerCapacitance(S, T).posterior_root(features)
    assert torch.autograd.grad((root @ root.mT).sum(), S)[0].abs().max() > 0


@pytest.mark.parametrize("name", ["generic", "repeated"])
def test_kronecker_capacitance_second_derivatives_equal_dense_ones(name):
    """Symmetric directions only: S and T are Gram matrices."""
    S, T = CASES[name]()
    rhs = torch.randn(S.shape[-1] * T.shape[-1], 1, dtype=torch.float64)

    def value(kind, a, b):
        capacitance = kind(S + a[0] * gram(len(S), 2, seed=5) + a[1] * S, T + b * gram(len(T), 1, seed=6))
        return (rhs * capacitance.solve(rhs)).sum() + capacitance.logdet()

    point = torch.tensor([0.3, 0.2]).double(), torch.tensor(0.1).double()
    ours = torch.autograd.functional.hessian(lambda a, b: value(KroneckerCapacitance, a, b), point)
    dense = torch.autograd.functional.hessian(
        lambda a, b: value(lambda *st: KroneckerCapacitance(*st).dense(), a, b), point
    )
    for got, want in zip(ours, dense, strict=True):
        torch.testing.assert_close(got, want)
