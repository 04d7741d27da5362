"""The start by operator splitting: in the balls, never worse than zero, and as good as its gap says."""

import pytest
import torch
from ball_cases import psd, vector

from ovkgp.inference.ridge.ball_constraints import BallQuadratic, Balls, gap_of, minimise_in_balls, split_start

BALLS = [Balls(torch.arange(12).view(6, 2), radius) for radius in (1e-3, 0.1, 1.0, 100.0)]


def quadratic(rank=None, scale=1.0):
    A = psd(12, 0, rank)
    return BallQuadratic.of(A, scale * A @ vector(12), scale**2 * float(vector(12) @ A @ vector(12)) + 1.0)


@pytest.mark.parametrize("balls", BALLS, ids=lambda balls: f"{balls.radius}")
@pytest.mark.parametrize("rank", [None, 5])
def test_the_gap_is_met_and_bounds_the_excess(balls, rank):
    found = quadratic(rank)
    start, steps = split_start(found, balls, tolerance=1e-9)
    assert (balls.norms(start) <= balls.radius * (1 + 1e-12)).all() and steps < 3000
    product = found.apply(start)
    gap = gap_of(found, balls, start, product)
    assert -1e-12 <= gap <= 1e-9 * found.square / 2
    rough, _ = split_start(found, balls, tolerance=1e-2)
    excess = found.value(rough, found.apply(rough)) - found.value(start, product)
    assert -1e-9 * found.square <= excess <= gap_of(found, balls, rough, found.apply(rough)) + 1e-9 * found.square


def test_gradients_find_the_same():
    found, balls = quadratic(), BALLS[2]
    start, _ = split_start(found, balls, tolerance=1e-12)
    weights, report = minimise_in_balls(found, balls, tolerance=1e-12)
    torch.testing.assert_close(start, weights, rtol=1e-4, atol=1e-5)
    assert report.objective == pytest.approx(found.value(start, found.apply(start)), rel=1e-10)


def test_too_few_steps_are_no_worse_than_none():
    found = quadratic()
    start, steps = split_start(found, BALLS[1], max_iter=1)
    assert steps == 1 and found.value(start, found.apply(start)) <= found.square / 2


def test_nothing_to_do():
    zero = BallQuadratic.of(torch.zeros(4, 4, dtype=torch.float64), torch.zeros(4, dtype=torch.float64), 1.0)
    start, steps = split_start(zero, Balls(torch.arange(4).view(2, 2), 1.0))
    assert steps == 1 and not start.any()
