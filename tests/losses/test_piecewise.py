"""Tests of `ovkgp.losses.piecewise`."""

import math

import numpy as np
import pytest
import torch
from loss_cases import normal
from scipy.optimize import brentq, minimize_scalar
from scipy.stats import norm

from ovkgp.exceptions import InputError, OptionError
from ovkgp.losses import (
    CostSensitiveHinge,
    Envelope,
    OneClass,
    Pinball,
    PinballEnvelope,
    SmoothedHinge,
    SmoothedPinball,
)

LABELS = torch.tensor([[1.0], [-1.0]], dtype=torch.float64)


def test_lt_e_29_cost_weights_the_positive_label():
    u = torch.zeros(2, 1, dtype=torch.float64)
    for loss, task in ((CostSensitiveHinge("unit"), 0.9), (CostSensitiveHinge("signed"), 0.8)):
        costs = loss.value(u, LABELS, torch.tensor([task]).double()).flatten()
        torch.testing.assert_close(costs, torch.tensor([0.9, 0.1], dtype=torch.float64))


def test_lt_e_29_cost_near_one_favors_sensitivity():
    # three negatives and one positive with a common score: its sign follows the cost
    labels = torch.tensor([[1.0], [-1.0], [-1.0], [-1.0]], dtype=torch.float64)
    grid = torch.linspace(-1, 1, 201, dtype=torch.float64)
    for cost, sign in ((0.9, 1), (0.5, -1)):
        tasks = torch.tensor([cost], dtype=torch.float64)
        risks = [CostSensitiveHinge("unit").value(u.expand(4, 1), labels, tasks).mean() for u in grid]
        assert grid[torch.stack(risks).argmin()].sign() == sign


def test_hinge_cost_scales_agree():
    u, y = normal(20, 3), normal(20, 1, seed=1).sign()
    unit = torch.tensor([0.1, 0.5, 0.8], dtype=torch.float64)
    torch.testing.assert_close(
        CostSensitiveHinge("unit").value(u, y, unit), CostSensitiveHinge("signed").value(u, y, 2 * unit - 1)
    )


def test_lt_e_04_conjugate_keeps_linear_term_and_mirrors_negative_class():
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
    envelope = torch.where(margin <= 0, 0.0, torch.where(margin <= kappa, margin**2 / (2 * kappa), margin - kappa / 2))
    weights = torch.where(y > 0, tasks, 1 - tasks)
    torch.testing.assert_close(SmoothedHinge(kappa, "unit").value(u, y, tasks), weights * envelope)
    sharp = CostSensitiveHinge("unit").value(u, y, tasks)
    torch.testing.assert_close(SmoothedHinge(1e-9, "unit").value(u, y, tasks), sharp, rtol=0, atol=1e-9)


def test_hinge_with_zero_cost_gives_no_nan():
    u, tasks = normal(2, 2), torch.tensor([0.0, 1.0]).double()
    for loss in (CostSensitiveHinge("unit"), SmoothedHinge(0.3, "unit")):
        slope = loss.derivative(u, LABELS, tasks)
        for result in (loss.conjugate(slope, LABELS, tasks), loss.prox(u, LABELS, tasks, 0.5)):
            assert bool(torch.isfinite(result).all())


def test_hinge_rejects_invalid_options_tasks_and_labels():
    with pytest.raises(OptionError, match="costs"):
        CostSensitiveHinge("percent")
    with pytest.raises(OptionError, match="kappa"):
        SmoothedHinge(0.0)
    with pytest.raises(InputError, match='costs="signed"'):
        CostSensitiveHinge("unit").check_tasks(torch.tensor([-0.5, 0.5]))
    with pytest.raises(InputError, match="Labels"):
        CostSensitiveHinge().check_targets(torch.tensor([0.0, 1.0]))


LEVELS = torch.tensor([0.1, 0.5, 1.0], dtype=torch.float64)


def test_one_class_value_matches_paper():
    u, t = normal(30, 3), normal(1, 3, seed=1)
    torch.testing.assert_close(OneClass().value(u, t, LEVELS), (t - u).clamp_min(0) / LEVELS - t)


def test_one_class_optimal_threshold_is_the_quantile():
    scores = torch.linspace(0, 1, 2001, dtype=torch.float64)[:, None]
    level = torch.tensor([0.2], dtype=torch.float64)
    thresholds = torch.linspace(0, 1, 501, dtype=torch.float64)
    risks = torch.stack([OneClass().value(scores, t.expand(1, 1), level).mean() for t in thresholds])
    assert thresholds[risks.argmin()].item() == pytest.approx(0.2, abs=2e-3)


@pytest.mark.parametrize("loss", [OneClass(), OneClass(0.3)], ids=str)
def test_one_class_derivative_matches_autograd(loss):
    u, t = normal(30, 3).requires_grad_(), normal(30, 3, seed=1)
    (slope,) = torch.autograd.grad(loss.value(u, t, LEVELS).sum(), u)
    torch.testing.assert_close(slope, loss.derivative(u.detach(), t, LEVELS))


def test_one_class_rejects_invalid_kappa_and_levels():
    with pytest.raises(OptionError, match="kappa"):
        OneClass(-0.1)
    for level in (0.0, 1.5, math.nan):
        with pytest.raises(InputError, match="mass"):
            OneClass().check_tasks(torch.tensor([level]))


LEVEL = torch.tensor([0.8], dtype=torch.float64)
NORMAL = torch.from_numpy(norm.ppf((np.arange(20_000) + 0.5) / 20_000))[:, None]


def minimizer(loss, sample, level=LEVEL):
    """Return the number u of smallest mean loss, the root of the mean derivative."""

    def mean_slope(u):
        return loss.derivative(torch.full_like(sample, u), sample, level).mean().item()

    return brentq(mean_slope, sample.min().item(), sample.max().item(), xtol=1e-12)


def expectile_of_normal(level):
    """Return e with θ E(Y − e)₊ = (1 − θ) E(e − Y)₊."""

    def gap(e):
        above = norm.pdf(e) - e * norm.sf(e)
        return level * above - (1 - level) * (above + e)

    return brentq(gap, -3, 3)


def test_bt_e_31_pinball_loss_of_exponential_data_is_minimal_at_the_quantile():
    sample = torch.from_numpy(-np.log1p(-(np.arange(10_000) + 0.5) / 10_000))[:, None]

    def least(mean):
        return minimize_scalar(mean, bounds=(0, 5), method="bounded", options={"xatol": 1e-6}).x

    ours = least(lambda u: Pinball().value(torch.full_like(sample, u), sample, LEVEL).mean().item())
    assert ours == pytest.approx(-math.log(0.2), abs=1e-3)  # 1.609
    # the thesis prints the loss of f − y, whose minimizer is the 0.2-quantile
    printed = least(lambda u: torch.maximum(0.8 * (u - sample), -0.2 * (u - sample)).mean().item())
    assert printed == pytest.approx(-math.log(0.8), abs=1e-3)


def test_lt_e_30_pinball_loss_is_positive_on_both_sides():
    """The loss is max(θ r, (θ − 1) r); with (1 − θ) r, as printed, negative r would have a negative cost."""
    u, y = torch.tensor([[1.0], [3.0]], dtype=torch.float64), torch.full((2, 1), 2.0, dtype=torch.float64)
    torch.testing.assert_close(Pinball().value(u, y, LEVEL), torch.tensor([[0.8], [0.2]], dtype=torch.float64))
    printed = torch.maximum(LEVEL * (y - u), (1 - LEVEL) * (y - u))
    assert printed[1].item() == pytest.approx(-0.2)


def test_lt_e_02_pinball_conjugate_contains_the_target():
    y = torch.tensor([[2.0]], dtype=torch.float64)
    u = torch.linspace(-50, 50, 10_001, dtype=torch.float64)[:, None]
    for a in (-0.8, -0.3, 0.0, 0.2):
        brute = (a * u - Pinball().value(u, y, LEVEL)).max().item()
        closed = Pinball().conjugate(torch.tensor([[a]], dtype=torch.float64), y, LEVEL).item()
        assert closed == pytest.approx(brute, abs=1e-12)
        assert closed == pytest.approx(a * 2.0)
    assert Pinball().conjugate(torch.tensor([[0.3]], dtype=torch.float64), y, LEVEL).item() == math.inf
    assert Pinball().conjugate(torch.tensor([[-0.81]], dtype=torch.float64), y, LEVEL).item() == math.inf


@pytest.mark.parametrize(("kappa", "reported"), [(1e-3, 0.822), (0.1, 0.796), (1.0, 0.625), (10.0, 0.538)])
def test_smoothed_pinball_minimizer_for_each_kappa(kappa, reported):
    # `reported` refers to a sample with mean −0.015 (LT-52); this one has mean 0
    assert minimizer(SmoothedPinball(kappa), NORMAL) == pytest.approx(reported, abs=0.025)


def test_smoothed_pinball_limits_are_quantile_and_expectile():
    assert minimizer(SmoothedPinball(1e-4), NORMAL) == pytest.approx(norm.ppf(0.8), abs=1e-3)
    assert minimizer(SmoothedPinball(1e3), NORMAL) == pytest.approx(expectile_of_normal(0.8), abs=1e-3)
    assert expectile_of_normal(0.8) == pytest.approx(0.549, abs=1e-3)


def test_pinball_envelope_limits_are_quantile_and_mean():
    assert minimizer(PinballEnvelope(1e-4), NORMAL) == pytest.approx(norm.ppf(0.8), abs=1e-3)
    assert minimizer(PinballEnvelope(100.0), NORMAL) == pytest.approx(0.0, abs=1e-9)


def test_smoothed_losses_converge_to_pinball():
    u, y, levels = normal(20, 3), normal(20, 1, seed=1), torch.tensor([0.1, 0.5, 0.9]).double()
    sharp = Pinball().value(u, y, levels)
    for kind in (SmoothedPinball, PinballEnvelope):
        assert (kind(1e-6).value(u, y, levels) - sharp).abs().max() <= 1e-6
        assert bool((kind(0.5).value(u, y, levels) <= sharp).all())


def test_smoothed_pinball_with_large_kappa_is_expectile_regression():
    X, levels = normal(60, 3), torch.tensor([0.2, 0.8]).double()
    y = X.sum(1, keepdim=True) + normal(60, 1, seed=1) * (1 + X[:, :1].abs())
    ridge = 0.1 * torch.eye(3, dtype=torch.float64)
    fixed = torch.zeros(3, 2, dtype=torch.float64)
    for _ in range(200):  # asymmetric least squares: the weights of the last residuals
        weights = torch.where(y > X @ fixed, levels, 1 - levels)
        fixed = torch.stack(
            [torch.linalg.solve(X.T @ (w[:, None] * X) + ridge, X.T @ (w * y[:, 0])) for w in weights.T], 1
        )
    kappa = 1e6
    loss = SmoothedPinball(kappa)
    found = torch.zeros(3, 2, dtype=torch.float64)
    for _ in range(2000):
        slope = kappa * (X.T @ loss.derivative(X @ found, y, levels)) + ridge @ found
        found = found - slope / torch.linalg.eigvalsh(X.T @ X + ridge)[-1]
    torch.testing.assert_close(found, fixed, rtol=0, atol=1e-5)


def test_pinball_envelope_matches_generic_envelope():
    u, y, levels = normal(50, 3), normal(50, 1, seed=1), torch.tensor([0.1, 0.5, 0.9]).double()
    closed, generic = PinballEnvelope(0.3), Envelope(Pinball(), 0.3)
    slopes = closed.derivative(u, y, levels)
    for method in ("value", "derivative", "curvature"):
        torch.testing.assert_close(
            getattr(closed, method)(u, y, levels), getattr(generic, method)(u, y, levels), rtol=0, atol=1e-12
        )
    for method, at in (("prox", u), ("conjugate_prox", u)):
        torch.testing.assert_close(
            getattr(closed, method)(at, y, levels, 0.7),
            getattr(generic, method)(at, y, levels, 0.7),
            rtol=0,
            atol=1e-12,
        )
    torch.testing.assert_close(closed.conjugate(slopes, y, levels), generic.conjugate(slopes, y, levels))
    torch.testing.assert_close(closed.lipschitz(levels), generic.lipschitz(levels))


@pytest.mark.parametrize("loss", [Pinball(), SmoothedPinball(0.4), PinballEnvelope(0.4)], ids=str)
def test_pinball_at_levels_zero_and_one_gives_no_nan(loss):
    u, y, levels = normal(20, 2), normal(20, 1, seed=1), torch.tensor([0.0, 1.0]).double()
    slope = loss.derivative(u, y, levels)
    for result in (
        loss.value(u, y, levels),
        slope,
        loss.conjugate(slope, y, levels),
        loss.prox(u, y, levels, 0.5),
        loss.conjugate_prox(u, y, levels, 0.5),
    ):
        assert bool(torch.isfinite(result).all())


def test_smoothed_pinball_rejects_invalid_kappa_and_levels():
    for kind in (SmoothedPinball, PinballEnvelope):
        for kappa in (0.0, -1.0, math.inf, math.nan, "small"):
            with pytest.raises(OptionError, match="kappa"):
                kind(kappa)
        with pytest.raises(InputError, match="percentages"):
            kind(1.0).check_tasks(torch.tensor([10.0, 90.0]))
