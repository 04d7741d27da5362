"""Symmetric inverse roots against `numpy.linalg.eigh` of the explicit matrix."""

import numpy as np
import pytest
import torch

from ovkgp.inference.algebra.inverse_roots import (
    common_variance,
    dense_inverse_root,
    kronecker_inverse_root,
    quadrature_nodes,
)
from ovkgp.inference.algebra.iterative import iterative_inverse_root

N, P = 12, 3
ROOT = torch.tensor([[1.0, 0.0, 0.0], [0.5, 0.7, 0.0], [-0.3, 0.2, 0.4]]).double()
NOISES = {
    "shared": 0.05 * torch.eye(P).double(),
    "per output": torch.diag(torch.tensor([0.05, 0.2, 0.01]).double()),
    "full": 0.1 * ROOT @ ROOT.mT,
}
OUTPUTS = {
    "singular": torch.ones(P, P).double(),
    "full rank": ROOT.mT @ ROOT,
    "proportional to the full noise": 3 * ROOT @ ROOT.mT,
    "zero": torch.zeros(P, P).double(),
}


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def gram(n=N):
    X = normal(n, 2, seed=1)
    return torch.exp(-torch.cdist(X, X).square())


def oracle(C, r):
    values, vectors = np.linalg.eigh(C.numpy())
    return vectors @ ((vectors.T @ r.numpy().ravel()) / np.sqrt(values))


def close(found, expected, rtol):
    np.testing.assert_allclose(found.numpy().ravel(), expected, rtol=0, atol=rtol * np.abs(expected).max())


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("outputs", OUTPUTS)
def test_kronecker_inverse_root_equals_eigh(outputs, noise, monkeypatch):
    K, G, S, R = gram(), OUTPUTS[outputs], NOISES[noise], normal(N, P)
    expected = oracle(torch.kron(K, G) + torch.kron(torch.eye(N).double(), S), R)
    close(kronecker_inverse_root(K, G, S, R), expected, 1e-11)
    monkeypatch.setattr("ovkgp.inference.algebra.inverse_roots.MATRIX_CHUNK_ENTRIES", 5 * P * P)
    close(kronecker_inverse_root(K, G, S, R), expected, 1e-11)


def test_dense_inverse_root_equals_eigh():
    C = torch.kron(gram(), OUTPUTS["full rank"]) + 0.01 * torch.eye(N * P).double()
    close(dense_inverse_root(C, normal(N * P)), oracle(C, normal(N * P)), 1e-10)


@pytest.mark.parametrize("missing", [False, True])
@pytest.mark.parametrize("noise", ["diagonal", "full", "full, by point", "known"])
def test_iterative_inverse_root_equals_eigh(noise, missing):
    grams, outputs, R = [gram(), gram() @ gram() / N], [OUTPUTS["full rank"], OUTPUTS["singular"]], normal(N, P)
    rows = {
        "diagonal": NOISES["per output"].diagonal().unsqueeze(0),
        "full": NOISES["full"].unsqueeze(0),
        "full, by point": NOISES["full"] * torch.linspace(0.5, 2, N).double()[:, None, None],
        "known": 0.02 + normal(N, P, seed=3).square(),
    }[noise]
    blocks = (torch.diag_embed(rows) if rows.dim() == 2 else rows).expand(N, P, P)
    C = sum(torch.kron(K, G) for K, G in zip(grams, outputs, strict=True)) + torch.block_diag(*blocks)
    if missing:
        R[::3, 1], R[1, 0] = torch.nan, torch.nan
    observed = ~R.isnan().flatten()
    found = iterative_inverse_root(grams, outputs, rows, R, max_rank=4)
    assert torch.equal(found.isnan(), R.isnan())
    close(found.flatten()[observed], oracle(C[observed][:, observed], R.flatten()[observed]), 1e-7)


@pytest.mark.parametrize("condition", [1.0, 1.5, 10.0, 1e3, 1e6, 1e9, 1e12])
@pytest.mark.parametrize("smallest", [1e-8, 1.0, 1e5])
def test_quadrature_is_accurate_on_the_whole_interval(smallest, condition):
    nodes = quadrature_nodes(smallest, smallest * condition)
    x = np.geomspace(smallest, smallest * condition, 1001)
    value = sum(weight / (x + shift) for shift, weight in nodes)
    np.testing.assert_allclose(value * np.sqrt(x), 1, rtol=5e-12)
    assert len(nodes) <= 46


def test_common_variance():
    assert common_variance(0.3 * torch.eye(3).double()) == 0.3
    assert common_variance(NOISES["per output"]) is None and common_variance(NOISES["full"]) is None
    assert common_variance(torch.full((1, 1), 0.25).double()) == 0.25
