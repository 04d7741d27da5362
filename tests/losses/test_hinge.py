"""Cost-sensitive hinge losses: what a price means, and their conjugates."""

import math

import pytest
import torch
from loss_cases import normal

from ovkgp.exceptions import InputError, OptionError
from ovkgp.losses import CostSensitiveHinge, SmoothedHinge

LABELS = torch.tensor([[1.0], [-1.0]], dtype=torch.float64)


def test_lt_e_29_the_price_sits_on_the_positive_label():
    u = torch.zeros(2, 1, dtype=torch.float64)
    for loss, task in ((CostSensitiveHinge("unit"), 0.9), (CostSensitiveHinge("signed"), 0.8)):
        prices = loss.value(u, LABELS, torch.tensor([task]).double()).flatten()
        torch.testing.assert_close(prices, torch.tensor([0.9, 0.1], dtype=torch.float64))


def test_lt_e_29_a_price_near_one_favours_sensitivity():
    # three negatives for one positive, with one score for all of them: the sign follows the price
    labels = torch.tensor([[1.0], [-1.0], [-1.0], [-1.0]], dtype=torch.float64)
    grid = torch.linspace(-1, 1, 201, dtype=torch.float64)
    for price, sign in ((0.9, 1), (0.5, -1)):
        tasks = torch.tensor([price], dtype=torch.float64)
        risks = [CostSensitiveHinge("unit").value(u.expand(4, 1), labels, tasks).mean() for u in grid]
        assert grid[torch.stack(risks).argmin()].sign() == sign


def test_the_two_parametrisations_are_one_loss():
    u, y = normal(20, 3), normal(20, 1, seed=1).sign()
    unit = torch.tensor([0.1, 0.5, 0.8], dtype=torch.float64)
    torch.testing.assert_close(
        CostSensitiveHinge("unit").value(u, y, unit), CostSensitiveHinge("signed").value(u, y, 2 * unit - 1)
    )


def test_lt_e_04_the_conjugate_keeps_its_linear_term_and_mirrors_the_negative_class():
    tasks = torch.tensor([0.7], dtype=torch.float64)
    loss = CostSensitiveHinge("unit")
    positive, negative = LABELS[:1], LABELS[1:]
    for slope, y, expected in (
        (-0.5, positive, -0.5),  # −a y = 0.5 ≤ 0.7
        (-0.7, positive, -0.7),
        (-0.71, positive, math.inf),
        (0.1, positive, math.inf),
        (0.2, negative, -0.2),  # −a y = 0.2 ≤ 0.3
        (0.31, negative, math.inf),
        (-0.1, negative, math.inf),
    ):
        closed = loss.conjugate(torch.tensor([[slope]], dtype=torch.float64), y, tasks).item()
        assert closed == pytest.approx(expected)


def test_smoothed_hinge_is_weight_times_envelope_and_tends_to_the_hinge():
    u, y, tasks = normal(50, 2), normal(50, 1, seed=1).sign(), torch.tensor([0.2, 0.9]).double()
    margin, kappa = 1 - y * u, 0.5
    pieces = torch.where(margin <= 0, 0.0, torch.where(margin <= kappa, margin**2 / (2 * kappa), margin - kappa / 2))
    weights = torch.where(y > 0, tasks, 1 - tasks)
    torch.testing.assert_close(SmoothedHinge(kappa, "unit").value(u, y, tasks), weights * pieces)
    sharp = CostSensitiveHinge("unit").value(u, y, tasks)
    torch.testing.assert_close(SmoothedHinge(1e-9, "unit").value(u, y, tasks), sharp, rtol=0, atol=1e-9)


def test_a_price_of_zero_gives_no_nan():
    u, tasks = normal(2, 2), torch.tensor([0.0, 1.0]).double()
    for loss in (CostSensitiveHinge("unit"), SmoothedHinge(0.3, "unit")):
        slope = loss.derivative(u, LABELS, tasks)
        for result in (loss.conjugate(slope, LABELS, tasks), loss.prox(u, LABELS, tasks, 0.5)):
            assert bool(torch.isfinite(result).all())


def test_what_is_refused():
    with pytest.raises(OptionError, match="signed, unit"):
        CostSensitiveHinge("percent")
    with pytest.raises(OptionError, match="kappa"):
        SmoothedHinge(0.0)
    with pytest.raises(InputError, match='costs="signed"'):
        CostSensitiveHinge("unit").require_tasks(torch.tensor([-0.5, 0.5]))
    with pytest.raises(InputError, match=r"-1 or \+1"):
        CostSensitiveHinge().require_targets(torch.tensor([0.0, 1.0]))
