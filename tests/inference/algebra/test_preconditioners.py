"""A preconditioner from a random sketch."""

import pytest
import torch

from ovkgp.inference.algebra.preconditioners import SketchedPreconditioner


def smooth(size=40, decay=0.6):
    Q = torch.linalg.qr(torch.randn(size, size, generator=torch.Generator().manual_seed(0)).double()).Q
    return Q * (1e6 * decay ** torch.arange(size).double()) @ Q.mT


def preconditioned(A, rank):
    """Eigenvalues of P̂^{-½} C P̂^{-½}."""
    C = A + torch.eye(len(A)).double()
    P = SketchedPreconditioner(lambda V: C @ V, len(A), rank=rank, like=A)
    root = P.power(torch.eye(len(A)).double().unsqueeze(-1), 0.5).squeeze(-1)
    inverse = P.power(torch.eye(len(A)).double().unsqueeze(-1), 1.0).squeeze(-1)
    torch.testing.assert_close(root @ root.mT, inverse, rtol=0, atol=1e-12)
    return torch.linalg.eigvalsh(root @ C @ root)


def test_full_sketch_equals_inverse():
    values = preconditioned(smooth(), 40)
    assert values.min() > 1 - 1e-6 and values.max() < 1 + 1e-6


def test_sketch_of_leading_directions_bounds_condition_number():
    values = preconditioned(smooth(), 20)
    assert values.max() / values.min() < 100  # that of C is 1e6


def test_exhaustive_sketch_has_tail_one():
    A = torch.diag(torch.tensor([1e5, 3.0] + [0.0] * 8)).double()
    values = preconditioned(A, 5)
    assert values.min() > 1 - 1e-6 and values.max() < 1 + 1e-6


@pytest.mark.parametrize("seed", [0, 1])
def test_sketch_is_reproducible_without_global_state(seed):
    A = smooth()
    before = torch.get_rng_state()
    one, other = (SketchedPreconditioner(lambda V: V + A @ V, 40, rank=7, seed=seed, like=A) for _ in range(2))
    assert torch.equal(one.vectors, other.vectors) and torch.equal(before, torch.get_rng_state())
