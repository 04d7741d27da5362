"""Properties of all losses of one number: conjugates, Moreau's identity, proximal operators, derivatives."""

import math

import pytest
import torch
from loss_cases import CASES, normal

from ovkgp.exceptions import InputError
from ovkgp.losses import Pinball

STEPS = (0.1, 1.0, 10.0)
every_loss = pytest.mark.parametrize("case", CASES, ids=str)


def many(case, count=40, seed=0):
    """Points u (k·count, m) about each target, and the targets (k·count, 1)."""
    y = case.targets.repeat_interleave(count, 0)
    return y + normal(len(y), len(case.levels), seed=seed, scale=1.5), y


def slopes(case, y):
    """At least 20 slopes (s, m), feasible or not, for one target, with the ends of the domain."""
    a = torch.linspace(-3.0, 3.0, 25, dtype=torch.float64)[:, None].expand(-1, len(case.levels))
    bounds = case.loss.slope_range(y, case.tasks)
    if bounds is None:
        return a
    ends = [torch.as_tensor(bound, dtype=torch.float64).expand(1, len(case.levels)) for bound in bounds]
    inner = [ends[0] + part * (ends[1] - ends[0]) for part in torch.linspace(0.02, 0.98, 20)]
    return torch.cat([a, *ends, *inner])


def brute_conjugate(case, a, y, width, points=40_001):
    """max a u − ℓ(u) on a fine grid of u about y, (s, m)."""
    u = y + torch.linspace(-width, width, points, dtype=torch.float64)[:, None]
    values = case.loss.value(u.expand(-1, len(case.levels)), y, case.tasks)
    return torch.stack([(row * u - values).amax(0) for row in a])


@every_loss
def test_conjugate_is_supremum_and_infinite_outside_slope_range(case):
    """LT B-01, BO C-08."""
    for y in case.targets:
        a = slopes(case, y[None])
        closed, brute = case.loss.conjugate(a, y, case.tasks), brute_conjugate(case, a, y, 8.0)
        finite = torch.isfinite(closed)
        torch.testing.assert_close(closed[finite], brute[finite], rtol=0, atol=1e-6)
        # outside the domain the supremum is infinite: it grows with the grid
        grown = brute_conjugate(case, a, y, 80.0, 2001) - brute
        assert bool((grown[~finite] > 0.5).all())
        assert bool((closed[~finite] == math.inf).all())
        assert bool(finite.all()) == (case.loss.slope_range(y, case.tasks) is None)


@every_loss
def test_conjugate_accepts_slopes_outside_by_rounding(case):
    for y in case.targets:
        bounds = case.loss.slope_range(y, case.tasks)
        if bounds is None:
            continue
        for bound, sign in zip(bounds, (-1, 1), strict=True):
            end = torch.as_tensor(bound, dtype=torch.float64).expand(1, len(case.levels))
            near, far = (case.loss.conjugate(end + sign * by, y, case.tasks) for by in (1e-14, 1e-10))
            torch.testing.assert_close(near, case.loss.conjugate(end, y, case.tasks), rtol=0, atol=1e-11)
            assert bool((far == math.inf).all())


@every_loss
@pytest.mark.parametrize("step", STEPS)
def test_moreau_identity(case, step):
    """LT B-02, BO C-09."""
    u, y = many(case)
    loss, tasks = case.loss, case.tasks
    parts = loss.prox(u, y, tasks, step) + step * loss.conjugate_prox(u / step, y, tasks, 1 / step)
    torch.testing.assert_close(parts, u, rtol=0, atol=1e-12)


@every_loss
@pytest.mark.parametrize("step", STEPS)
def test_prox_is_optimal_and_firmly_nonexpansive(case, step):
    loss, tasks = case.loss, case.tasks
    (u, y), (w, _) = many(case), many(case, seed=1)

    def cost(v):
        return step * loss.value(v, y, tasks) + (v - u).square() / 2

    best = loss.prox(u, y, tasks, step)
    for move in (-1.0, -1e-2, -1e-4, 1e-4, 1e-2, 1.0):
        # ½-strong convexity: a move by δ costs at least δ²/2
        assert bool((cost(best + move) - cost(best) >= move**2 / 2 - 1e-12).all())
    difference = best - loss.prox(w, y, tasks, step)
    assert bool((difference.square() <= difference * (u - w) + 1e-12).all())


@every_loss
@pytest.mark.parametrize("step", STEPS)
def test_conjugate_prox_is_optimal_and_feasible(case, step):
    loss, tasks = case.loss, case.tasks
    a, y = many(case)
    best = loss.conjugate_prox(a, y, tasks, step)

    def cost(b):
        return step * loss.conjugate(b, y, tasks) + (b - a).square() / 2

    assert bool(torch.isfinite(cost(best)).all())
    for move in (-1.0, -1e-2, -1e-4, 1e-4, 1e-2, 1.0):
        assert bool((cost(best + move) - cost(best) >= move**2 / 2 - 1e-11).all())


@every_loss
def test_prox_accepts_a_step_per_row(case):
    u, y = many(case, count=4)
    steps = torch.linspace(0.1, 3.0, len(u), dtype=torch.float64)[:, None]
    for method in (case.loss.prox, case.loss.conjugate_prox):
        one_by_one = [
            method(u[i : i + 1], y[i : i + 1], case.tasks, step.item()) for i, step in enumerate(steps.flatten())
        ]
        torch.testing.assert_close(method(u, y, case.tasks, steps), torch.cat(one_by_one), rtol=0, atol=1e-12)


@every_loss
def test_derivative_matches_autograd(case):
    u, y = many(case)
    u.requires_grad_()
    (by_autograd,) = torch.autograd.grad(case.loss.value(u, y, case.tasks).sum(), u)
    u = u.detach()
    slope = case.loss.derivative(u, y, case.tasks)
    torch.testing.assert_close(by_autograd, slope, rtol=0, atol=1e-10)
    h = 1e-6
    ahead, behind = (case.loss.value(u + move, y, case.tasks) for move in (h, -h))
    torch.testing.assert_close((ahead - behind) / (2 * h), slope, rtol=0, atol=1e-5)


@every_loss
def test_derivative_at_a_kink_is_a_subgradient(case):
    y = case.targets
    u = y.expand(-1, len(case.levels)).contiguous()
    slope, here = case.loss.derivative(u, y, case.tasks), case.loss.value(u, y, case.tasks)
    for move in (-1.0, -0.01, 0.01, 1.0):
        assert bool((case.loss.value(u + move, y, case.tasks) >= here + slope * move - 1e-12).all())


@every_loss
def test_curvature_matches_finite_differences(case):
    u, y = many(case)
    h = 1e-6
    ahead, behind = (case.loss.derivative(u + move, y, case.tasks) for move in (h, -h))
    curvature = case.loss.curvature(u, y, case.tasks)
    torch.testing.assert_close((ahead - behind) / (2 * h), curvature, rtol=0, atol=1e-4)
    assert curvature.shape == u.shape


@every_loss
def test_lipschitz_constant_is_tight(case):
    grid = torch.linspace(-3.0, 3.0, 6001, dtype=torch.float64)[:, None].expand(-1, len(case.levels))
    steepest = torch.stack(
        [case.loss.derivative(grid, y[None], case.tasks).diff(dim=0).amax(0) / 1e-3 for y in case.targets]
    ).amax(0)
    constant = case.loss.lipschitz(case.tasks)
    if case.loss.name in ("pinball", "cost_sensitive_hinge") or repr(case.loss) == "OneClass(kappa=0.0)":
        assert bool((constant == math.inf).all())
        assert bool((steepest > 100).all())
    else:
        assert bool((steepest <= constant * (1 + 1e-9)).all())
        assert bool((steepest >= 0.99 * constant).all())


@every_loss
def test_fenchel_young_equality_at_derivative(case):
    u, y = many(case)
    a = case.loss.derivative(u, y, case.tasks)
    gap = case.loss.value(u, y, case.tasks) + case.loss.conjugate(a, y, case.tasks) - a * u
    torch.testing.assert_close(gap, torch.zeros_like(gap), rtol=0, atol=1e-12)


@every_loss
def test_nearest_slope_keeps_slopes(case):
    u, y = many(case)
    inside = case.loss.derivative(u, y, case.tasks)
    torch.testing.assert_close(case.loss.nearest_slope(inside, y, case.tasks), inside, rtol=0, atol=1e-15)
    moved = case.loss.nearest_slope(10 * u, y, case.tasks)
    assert bool(torch.isfinite(case.loss.conjugate(moved, y, case.tasks)).all())


@every_loss
def test_methods_do_not_modify_arguments(case):
    u, y = many(case, count=3)
    kept = u.clone(), y.clone()
    for method in ("value", "derivative", "curvature", "conjugate", "nearest_slope"):
        getattr(case.loss, method)(u, y, case.tasks)
    case.loss.prox(u, y, case.tasks, 0.5), case.loss.conjugate_prox(u, y, case.tasks, 0.5)
    torch.testing.assert_close((u, y), kept, rtol=0, atol=0)


def test_checks_reject_nonfinite_targets_and_tasks():
    with pytest.raises(InputError, match="Targets"):
        Pinball().check_targets(torch.tensor([0.0, math.nan]))
    with pytest.raises(InputError, match="tasks"):
        CASES[0].loss.check_tasks(torch.tensor([math.nan]))
