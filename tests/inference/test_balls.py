"""Balls for the weights of each frequency: the projection, and which columns of Φ belong to which frequency."""

import numpy as np
import pytest
import torch
from gpytorch.kernels import RBFKernel
from scipy.optimize import minimize

from ovkgp.exceptions import InputError
from ovkgp.features import ORFF
from ovkgp.features.operators import stacked
from ovkgp.inference.ridge.ball_constraints import Balls, frequency_groups
from ovkgp.kernels import CurlFreeKernel, DecomposableKernel, DivergenceFreeKernel, HelmholtzKernel, IndependentKernel

GROUPS = torch.tensor([[0, 3], [1, 4], [2, 5]])


def test_the_projection_is_the_nearest_point():
    point = 2 * torch.randn(6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    balls = Balls(GROUPS, radius=1.0)
    constraints = [{"type": "ineq", "fun": lambda w, g=g: 1 - np.square(w[g]).sum()} for g in GROUPS.numpy()]
    found = minimize(lambda w: np.square(w - point.numpy()).sum(), np.zeros(6), method="SLSQP", constraints=constraints)
    np.testing.assert_allclose(balls.project(point), found.x, atol=1e-5)


def test_points_inside_stay_and_projecting_twice_is_projecting_once():
    balls, inside = Balls(GROUPS, radius=1.0), torch.full((6,), 0.5, dtype=torch.float64)
    assert torch.equal(balls.project(inside), inside)
    assert torch.equal(balls.project(torch.zeros(6)), torch.zeros(6))
    once = balls.project(10 * inside)
    torch.testing.assert_close(balls.norms(once), torch.ones(3, dtype=torch.float64))
    torch.testing.assert_close(balls.project(once), once)


def test_the_support_is_the_largest_product():
    generator = torch.Generator().manual_seed(0)
    balls, direction = Balls(GROUPS, radius=0.7), torch.randn(6, generator=generator, dtype=torch.float64)
    best = balls.project(1e9 * direction)
    assert balls.support(direction) == pytest.approx(float(direction @ best))
    others = [balls.project(torch.randn(6, generator=generator, dtype=torch.float64)) for _ in range(100)]
    assert max(float(direction @ other) for other in others) <= balls.support(direction)


@pytest.mark.parametrize(
    "kernel",
    [
        RBFKernel(ard_num_dims=3),
        DecomposableKernel(RBFKernel(ard_num_dims=3), num_outputs=4, rank=2),
        CurlFreeKernel(RBFKernel(), num_dims=3),
        DivergenceFreeKernel(RBFKernel(), num_dims=3),
        HelmholtzKernel(RBFKernel(), num_dims=3),
        IndependentKernel.copies(RBFKernel(ard_num_dims=3), 2),
        DecomposableKernel(RBFKernel(ard_num_dims=3), num_outputs=3, rank=1) + CurlFreeKernel(RBFKernel(), num_dims=3),
    ],
    ids=["scalar", "decomposable", "curl-free", "divergence-free", "helmholtz", "independent", "sum"],
)
def test_a_frequency_moves_its_own_columns_and_no_others(kernel):
    """The noise of frequency j is changed, in all terms: the columns of Φ that change are those of group j."""
    orff = ORFF(kernel, 5, num_dims=3, random_state=0).double().requires_grad_(False)
    X = torch.randn(4, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    before, groups = orff(X).to_dense(), frequency_groups(orff(X[:1]))
    assert sorted(groups.flatten().tolist()) == list(range(orff.num_features)) and len(groups) == 5
    for name, noise in list(orff.named_buffers()):
        if name.startswith("raw_frequencies"):
            noise[2] += 0.5
    changed = (orff(X).to_dense() != before).any(0).nonzero().flatten()
    assert set(changed.tolist()) == set(groups[2].tolist())


def test_terms_with_unlike_numbers_of_frequencies_are_refused():
    X = torch.zeros(1, 1, dtype=torch.float64)
    parts = [ORFF(RBFKernel(ard_num_dims=1), D, random_state=0)(X) for D in (3, 4)]
    with pytest.raises(InputError, match="different numbers"):
        frequency_groups(stacked(*parts))
