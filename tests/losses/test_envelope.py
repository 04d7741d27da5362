"""Moreau envelopes of losses of numbers and of curves."""

import math

import pytest
import torch
from loss_cases import CASES, MEASURE, normal

from ovkgp.exceptions import OptionError
from ovkgp.losses import CurveEnvelope, CurveHuber, CurveInsensitive, Envelope, IntegralLoss, LogCosh, Pinball

CURVES = [
    IntegralLoss(Pinball(), MEASURE),
    IntegralLoss(LogCosh(2.0), MEASURE),
    *(CurveHuber(0.7, p, MEASURE) for p in (1, 2, math.inf)),
    *(CurveInsensitive(0.4, p, MEASURE) for p in (1, 2, math.inf)),
]
every_curve = pytest.mark.parametrize("loss", CURVES, ids=repr)
U, Y = normal(30, 4, scale=1.5), normal(30, 1, seed=1)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_envelope_minimizes_loss_plus_squared_distance(case):
    kappa, y = 0.3, case.targets
    u = y + normal(len(y), len(case.levels))
    v = y + torch.linspace(-8, 8, 40_001, dtype=torch.float64)[:, None, None]
    values = case.loss.value(v.expand(-1, *u.shape), y, case.tasks) + (v - u).square() / (2 * kappa)
    envelope = Envelope(case.loss, kappa).value(u, y, case.tasks)
    torch.testing.assert_close(envelope, values.amin(0), rtol=0, atol=2e-6)


@every_curve
@pytest.mark.parametrize("kappa", [1e-3, 0.3, 10.0])
def test_curve_envelope_value_and_derivative_match_prox(loss, kappa):
    """BO C-10: prox_{κL}(u) = u − κ∇e_κ(u)."""
    smooth, near = CurveEnvelope(loss, kappa), loss.prox(U, Y, kappa)
    value, slope = smooth.value_and_derivative(U, Y)
    distance = (MEASURE.weights * (near - U).square()).sum(-1)
    torch.testing.assert_close(value, loss.value(near, Y) + distance / (2 * kappa), rtol=0, atol=1e-11)
    torch.testing.assert_close(slope, (U - near) / kappa, rtol=0, atol=1e-11)
    torch.testing.assert_close((smooth.value(U, Y), smooth.derivative(U, Y)), (value, slope))


@every_curve
def test_curve_envelope_derivative_matches_autograd(loss):
    smooth, u = CurveEnvelope(loss, 0.3), U.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(smooth.value(u, Y).sum(), u)
    torch.testing.assert_close(gradient, MEASURE.weights * smooth.derivative(U, Y), rtol=0, atol=1e-12)


@every_curve
def test_envelope_slopes_are_feasible_for_small_kappa(loss):
    # (u − prox)/κ as written would miss the domain by 1e-16/κ
    slope = CurveEnvelope(loss, 1e-10).derivative(U, Y)
    assert bool(torch.isfinite(loss.conjugate(slope, Y)).all())


def test_envelope_bounds_pinball_loss():
    sharp = IntegralLoss(Pinball(), MEASURE)
    for kappa in (1e-1, 1e-2, 1e-3, 1e-4):
        value = CurveEnvelope(sharp, kappa).value(U, Y)
        assert bool((value <= sharp.value(U, Y) + 1e-15).all())
        assert bool((sharp.value(U, Y) <= value + kappa / 2).all())


def test_envelope_of_integral_is_integral_of_envelopes():
    for inner in (Pinball(), LogCosh(2.0)):
        curve, entry = CurveEnvelope(IntegralLoss(inner, MEASURE), 0.3), IntegralLoss(Envelope(inner, 0.3), MEASURE)
        slope = entry.derivative(U, Y)
        torch.testing.assert_close(curve.derivative(U, Y), slope)
        torch.testing.assert_close(curve.value(U, Y), entry.value(U, Y))
        torch.testing.assert_close(curve.conjugate(slope, Y), entry.conjugate(slope, Y))
        torch.testing.assert_close(curve.prox(U, Y, 0.7), entry.prox(U, Y, 0.7))
        torch.testing.assert_close(curve.conjugate_prox(U, Y, 0.7), entry.conjugate_prox(U, Y, 0.7))
        assert curve.lipschitz() == pytest.approx(entry.lipschitz())


def test_envelope_has_its_lipschitz_constant():
    assert CurveEnvelope(IntegralLoss(Pinball(), MEASURE), 0.1).lipschitz() == pytest.approx(10.0)
    assert CurveEnvelope(CurveHuber(1.0, 2, MEASURE), 0.25).lipschitz() == pytest.approx(0.8)


def test_envelopes_reject_invalid_kappa():
    for build in (lambda: Envelope(Pinball(), 0.0), lambda: CurveEnvelope(CURVES[0], -1.0)):
        with pytest.raises(OptionError, match="kappa"):
            build()
