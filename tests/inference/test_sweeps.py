"""Sweeps combined are conjugate directions: n of them solve a problem of n unknowns, whatever the sweeps were."""

from itertools import pairwise

import torch

from ovkgp.inference.ridge.descent import Sweeps


def normal(seed, *shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).double()


def test_as_many_sweeps_as_unknowns_reach_the_least_point():
    Psi, z = normal(0, 9, 5), normal(1, 9, 1)
    sweeps = Sweeps(torch.zeros(5).double(), z)
    for seed in range(5):
        change = normal(seed + 2, 5)
        sweeps.add(slice(None), change, (Psi @ change).unsqueeze(-1))
        weights, left = sweeps.combine()
        torch.testing.assert_close(left, z - (Psi @ weights).unsqueeze(-1))
    exact = torch.linalg.solve(torch.eye(5).double() + Psi.mT @ Psi, Psi.mT @ z).squeeze(-1)
    torch.testing.assert_close(weights, exact)


def test_each_sweep_lowers_the_objective():
    Psi, z = normal(0, 30, 20), normal(1, 30, 1)
    sweeps, values = Sweeps(torch.zeros(20).double(), z), [z.square().sum().item()]
    for seed in range(15):  # more than are kept
        change = normal(seed + 2, 20)
        sweeps.add(slice(None), change, (Psi @ change).unsqueeze(-1))
        weights, left = sweeps.combine()
        values.append((left.square().sum() + weights.square().sum()).item())
    assert all(after < before for before, after in pairwise(values))


def test_a_sweep_that_says_nothing_new_is_taken_as_it_is():
    Psi, z, change = normal(0, 9, 5), normal(1, 9, 1), normal(2, 5)
    sweeps = Sweeps(torch.zeros(5).double(), z)
    for _ in range(2):
        sweeps.add(slice(None), change, (Psi @ change).unsqueeze(-1))
        weights, left = sweeps.combine()
        torch.testing.assert_close(left, z - (Psi @ weights).unsqueeze(-1))
    sweeps.add(slice(None), 0 * change, 0 * z)
    assert torch.equal(sweeps.combine()[0], weights)
