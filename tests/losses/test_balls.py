"""Projections and thresholds in weighted norms, against bisection and brute force."""

import math

import pytest
import torch
from loss_cases import MEASURE, normal

from ovkgp.exceptions import OptionError
from ovkgp.losses.balls import dual_order, norm, project, project_product, shrink, soft_threshold

ORDERS = (1, 1.25, 1.5, 2, 3, math.inf)
ETA = MEASURE.weights


def bisected(x, radius, weights):
    """Project on the weighted 1-ball by bisection of the threshold, row by row."""
    rows = []
    for row in x:
        low, high = 0.0, row.abs().max().item()
        if (weights * row.abs()).sum() <= radius:
            high = 0.0
        for _ in range(60):
            middle = (low + high) / 2
            if (weights * (row.abs() - middle).clamp_min(0)).sum() > radius:
                low = middle
            else:
                high = middle
        rows.append(row.sign() * (row.abs() - high).clamp_min(0))
    return torch.stack(rows)


def test_projection_on_weighted_one_ball_matches_bisection():
    x = normal(30, 4, scale=2.0)
    for radius in (0.01, 0.5, 2.0, 50.0):
        torch.testing.assert_close(project(x, radius, 1, ETA), bisected(x, radius, ETA), rtol=0, atol=1e-13)


def test_projection_on_one_ball_accepts_weights_per_row():
    x, weights = normal(6, 4, scale=2.0), torch.rand(6, 4, generator=torch.Generator().manual_seed(1)).double()
    rows = [bisected(x[i : i + 1], 0.3, weights[i]) for i in range(6)]
    torch.testing.assert_close(project(x, 0.3, 1, weights), torch.cat(rows), rtol=0, atol=1e-13)


@pytest.mark.parametrize("p", ORDERS)
def test_projection_is_feasible_and_optimal(p):
    x, others = normal(40, 4, scale=2.0), normal(500, 1, 4, seed=1)
    near = project(x, 0.6, p, ETA)
    assert bool((norm(near, p, ETA) <= 0.6 * (1 + 1e-12)).all())
    inside = 0.6 * others / norm(others, p, ETA)[..., None]
    # the angle between x − Px and y − Px is obtuse for y in the ball
    assert bool(((ETA * (x - near) * (inside - near)).sum(-1) <= 1e-12).all())


@pytest.mark.parametrize("p", ORDERS)
@pytest.mark.parametrize("step", [0.1, 1.0, 10.0])
def test_shrink_and_project_satisfy_moreau_identity(p, step):
    x = normal(40, 4, scale=3.0)
    parts = shrink(x, step, dual_order(p), ETA) + step * project(x / step, 1.0, p, ETA)
    torch.testing.assert_close(parts, x, rtol=0, atol=1e-12)


@pytest.mark.parametrize("q", ORDERS)
def test_shrink_is_prox_of_norm(q):
    x, moves = normal(40, 4, scale=2.0), normal(300, 1, 4, seed=1, scale=0.3)

    def cost(v):
        return 0.5 * norm(v, q, ETA) + (ETA * (v - x).square()).sum(-1) / 2

    best = shrink(x, 0.5, q, ETA)
    assert bool((cost(best + moves) - cost(best) >= (ETA * moves.square()).sum(-1) / 2 - 1e-12).all())


def test_lt_e_09_soft_threshold_takes_the_whole_threshold_off():
    x, step, epsilon = torch.tensor([[3.0, -0.2, -1.0]], dtype=torch.float64), 0.5, 0.8
    weights = torch.ones(3, dtype=torch.float64)
    right = torch.tensor([[2.6, 0.0, -0.6]], dtype=torch.float64)
    torch.testing.assert_close(soft_threshold(x, step * epsilon), right)
    torch.testing.assert_close(x - project(x, step * epsilon, math.inf, weights), right)
    printed = x - step * project(x, step * epsilon, math.inf, weights)
    assert not torch.allclose(printed, right)


def test_projections_of_zero_and_on_balls_of_radius_zero_are_zero():
    zero = torch.zeros(2, 4, dtype=torch.float64)
    for p in ORDERS:
        torch.testing.assert_close(project(zero, 0.5, p, ETA), zero)
        torch.testing.assert_close(shrink(zero, 0.5, p, ETA), zero)
        torch.testing.assert_close(project(normal(2, 4), 0.0, p, ETA), zero, rtol=0, atol=1e-15)


def test_maximum_norm_ignores_entries_without_weight():
    x, weights = torch.tensor([[9.0, 1.0, -2.0]]).double(), torch.tensor([0.0, 0.5, 0.5]).double()
    assert norm(x, math.inf, weights).item() == 2.0
    assert project(x, 0.25, 1, weights)[0, 1:].tolist() == project(x[:, 1:], 0.25, 1, weights[1:])[0].tolist()


@pytest.mark.parametrize("p", ORDERS)
def test_project_product_matches_finite_differences(p):
    x, direction, h = normal(40, 4, scale=1.5), normal(40, 4, seed=1), 1e-6
    ahead, behind = (project(x + move * direction, 0.6, p, ETA) for move in (h, -h))
    product = project_product(x, direction, 0.6, p, ETA)
    torch.testing.assert_close((ahead - behind) / (2 * h), product, rtol=0, atol=1e-7)


@pytest.mark.parametrize("p", [0.5, 0, -1, math.nan, True, "2"])
def test_dual_order_rejects_other_orders(p):
    with pytest.raises(OptionError, match="p must be"):
        dual_order(p)


def test_dual_order_is_conjugate():
    assert [dual_order(p) for p in (1, 2, 3, 1.5, math.inf)] == [math.inf, 2, 1.5, 3, 1]


@pytest.mark.parametrize("p", ORDERS)
def test_bo_e_04_prox_of_a_norm_subtracts_the_projection_on_the_dual_ball(p):
    """prox_{γ‖·‖_p} = I − Proj of radius γ in the dual norm, without a further γ; by its definition, for γ = ½ (BO C-09)."""
    x, moves = normal(30, 4, scale=2.0), normal(300, 1, 4, seed=1, scale=0.2)
    q, gamma = dual_order(p), 0.5

    def cost(v):
        return gamma * norm(v, p, ETA) + (ETA * (v - x).square()).sum(-1) / 2

    right = x - project(x, gamma, q, ETA)
    assert bool((cost(right + moves) >= cost(right) - 1e-12).all())
    printed = x - gamma * project(x, gamma, p, ETA)
    assert bool((cost(printed) > cost(right) + 1e-3).any())


@pytest.mark.parametrize("p", ORDERS)
def test_lt_e_10_prox_of_an_indicator_is_the_projection_for_every_step(p):
    """prox_{γχ}(x) = x − γ prox_{χ*/γ}(x/γ) = Proj(x) for all γ (Moreau), not Proj(x/γ) as printed (LT-14)."""
    x, radius = normal(30, 4, scale=2.0), 0.6
    expected = project(x, radius, p, ETA)
    for gamma in (0.1, 1.0, 10.0):
        found = x - gamma * shrink(x / gamma, radius / gamma, dual_order(p), ETA)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-11)
    assert not torch.allclose(project(x / 10.0, radius, p, ETA), expected, atol=0.1)
