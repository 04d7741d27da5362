"""The one-class loss in the score and in the threshold."""

import math

import pytest
import torch
from loss_cases import normal

from ovkgp.exceptions import InputError, OptionError
from ovkgp.losses import OneClass

LEVELS = torch.tensor([0.1, 0.5, 1.0], dtype=torch.float64)
BOTH = pytest.mark.parametrize("loss", [OneClass(), OneClass(0.3)], ids=str)


def test_the_value_is_the_paper_s():
    u, t = normal(30, 3), normal(1, 3, seed=1)
    torch.testing.assert_close(OneClass().value(u, t, LEVELS), (t - u).clamp_min(0) / LEVELS - t)


def test_the_best_threshold_leaves_the_level_below():
    scores = torch.linspace(0, 1, 2001, dtype=torch.float64)[:, None]
    level = torch.tensor([0.2], dtype=torch.float64)
    thresholds = torch.linspace(0, 1, 501, dtype=torch.float64)
    risks = torch.stack([OneClass().value(scores, t.expand(1, 1), level).mean() for t in thresholds])
    assert thresholds[risks.argmin()].item() == pytest.approx(0.2, abs=2e-3)


@BOTH
def test_both_derivatives_are_those_of_the_value(loss):
    u, t = normal(30, 3).requires_grad_(), normal(30, 3, seed=1).requires_grad_()
    by_u, by_t = torch.autograd.grad(loss.value(u, t, LEVELS).sum(), (u, t))
    u, t = u.detach(), t.detach()
    torch.testing.assert_close(by_u, loss.derivative(u, t, LEVELS))
    torch.testing.assert_close(by_t, loss.threshold_derivative(u, t, LEVELS))


@BOTH
@pytest.mark.parametrize("step", [0.1, 1.0, 10.0])
def test_joint_prox_is_optimal_in_both(loss, step):
    u, t = normal(30, 3, scale=2.0), normal(30, 3, seed=1, scale=2.0)
    v, s = loss.joint_prox(u, t, LEVELS, step)

    def cost(v, s):
        return step * loss.value(v, s, LEVELS) + ((v - u).square() + (s - t).square()) / 2

    for seed in range(40):
        for scale in (1e-4, 1e-2, 1.0):
            dv, ds = normal(2, 30, 3, seed=seed + 2, scale=scale)
            assert bool((cost(v + dv, s + ds) - cost(v, s) >= (dv**2 + ds**2) / 2 - 1e-11).all())


def test_what_is_refused():
    with pytest.raises(OptionError, match="0 or more"):
        OneClass(-0.1)
    for level in (0.0, 1.5, math.nan):
        with pytest.raises(InputError, match="masses"):
            OneClass().require_tasks(torch.tensor([level]))
