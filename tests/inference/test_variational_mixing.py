"""Mixtures of targets of natural steps, against fixed points that are known."""

import pytest
import torch
from torch.distributions import MultivariateNormal, kl_divergence

from ovkgp.exceptions import FactorisationError
from ovkgp.inference.variational.families import WeightGaussian, leading_frame, prior_weights
from ovkgp.inference.variational.natural_gradients import MEMORY, Mixing, Target


def normal(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_a_linear_map_is_solved_in_as_many_steps_as_it_has_eigenvalues():
    q, rates, summit = prior_weights(4, 0), torch.tensor([-5.0, 0.9, -5.0, 0.9]).double(), normal(4)
    mixing, block = Mixing(), q.chol
    for _ in range(4):
        mixing.remember(q, Target(q.precision, block, summit + rates * (q.mean - summit)))
        q = mixing.mixture(q) or q.moved(0.1 * (mixing.targets[-1].mean - q.mean))
    torch.testing.assert_close(q.mean, summit, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("rank", [0, 2, 5])
def test_the_decrement_is_the_divergence_of_a_small_step(rank):
    C = torch.eye(5).double() + 0.3 * torch.ones(5, 5)
    frame = leading_frame(lambda columns: C @ columns, C.diagonal(), rank) if 0 < rank < 5 else None
    root = torch.eye(rank).double() + 0.3 * normal(rank, rank).tril(-1)
    q = WeightGaussian(normal(5), 1 + normal(5, seed=1).square(), root, frame=frame)
    move = 1e-4 * normal(rank, rank, seed=2)
    target = Target(
        q.precision + 1e-4 * normal(5, seed=3), root @ root.mT + move + move.mT, q.mean + 1e-4 * normal(5, seed=4)
    )
    mixing = Mixing()
    mixing.remember(q, target)
    other = q.toward(target.diagonal, target.block, 1.0).moved(target.mean - q.mean)
    dense = [MultivariateNormal(one.mean, _covariance(one)) for one in (q, other)]
    torch.testing.assert_close(mixing.decrement, kl_divergence(*dense), rtol=1e-3, atol=1e-12)


def _covariance(q):
    S = torch.stack([q.solve(unit) for unit in torch.eye(q.num_weights).double()])
    return (S + S.mT) / 2


def test_a_memory_is_short_and_can_be_lost():
    mixing, q = Mixing(), prior_weights(3, 0)
    assert mixing.mixture(q) is None
    for seed in range(MEMORY + 2):
        mixing.remember(q, Target(q.precision, q.chol, normal(3, seed=seed)))
    assert len(mixing.targets) == len(mixing.remainders) == MEMORY
    mixing.forget(kept=1)
    torch.testing.assert_close(mixing.targets[0].mean, normal(3, seed=MEMORY + 1))
    assert mixing.mixture(q) is None
    mixing.forget()
    assert not mixing.targets and not mixing.remainders


def test_a_mixture_without_a_positive_precision_is_refused():
    mixing, q = Mixing(), prior_weights(1, 0)
    for precision, target in (
        (1.0, 0.5),
        (10.0, 1.0),
    ):  # relative remainders −0.5 and −0.9: their mixture is zero at −0.125
        q = WeightGaussian(q.mean, torch.tensor([precision]).double(), q.chol)
        mixing.remember(q, Target(torch.tensor([target]).double(), q.chol, q.mean))
    with pytest.raises(FactorisationError, match="positive definite"):
        mixing.mixture(q)
