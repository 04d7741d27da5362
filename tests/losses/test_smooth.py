"""Tests of `ovkgp.losses.smooth`."""

import math

import numpy as np
import pytest
import torch
from loss_cases import normal

from ovkgp.exceptions import OptionError
from ovkgp.losses import EpsilonInsensitive, Huber, LogCosh, Square

ZERO, TASKS = torch.zeros(1, 1, dtype=torch.float64), torch.zeros(1, dtype=torch.float64)
WIDE = torch.cat([s * torch.logspace(-8, 4, 400, dtype=torch.float64) for s in (-1, 1)])[:, None]


@pytest.mark.parametrize("nu", [0.25, 5.0, 25.0])
def test_log_cosh_is_below_absolute_error_by_at_most_log_two(nu):
    gap = WIDE.abs() - LogCosh(nu).value(WIDE, ZERO, TASKS)
    assert bool(((gap >= -1e-15) & (gap <= math.log(2) / nu + 1e-12)).all())
    small = WIDE[WIDE.abs() * nu < 100]
    expected = np.log(np.cosh(nu * small.numpy())) / nu
    np.testing.assert_allclose(LogCosh(nu).value(small[:, None], ZERO, TASKS)[:, 0], expected, rtol=1e-9, atol=1e-14)


def test_log_cosh_is_accurate_for_small_errors():
    """The value is about ν r²/2 = 1e-13; log(1 + e^{−2z}) − log 2 computed directly has an error of 1e-16."""
    r = torch.tensor([[1e-6], [-3e-5]], dtype=torch.float64)
    torch.testing.assert_close(LogCosh(2.0).value(r, ZERO, TASKS), r.square(), rtol=1e-8, atol=0)


@pytest.mark.parametrize("nu", [0.25, 5.0, 25.0, 1e4])
@pytest.mark.parametrize("step", [1e-6, 0.1, 1.0, 10.0, 1e6])
def test_log_cosh_prox_solves_its_equation_at_every_scale(nu, step):
    v = LogCosh(nu).prox(WIDE, ZERO, TASKS, step)
    residual = (v + step * torch.tanh(nu * v) - WIDE).abs()
    # rounding of v alone changes the left side by its slope
    slope = 1 + step * nu * (1 - torch.tanh(nu * v).square())
    assert bool((residual <= 1e-13 * (WIDE.abs() + slope * v.abs())).all())


def test_log_cosh_conjugate_at_domain_ends_and_large_nu():
    ends = torch.tensor([[-1.0], [0.0], [1.0]], dtype=torch.float64)
    expected = torch.tensor([[math.log(2) / 2], [0.0], [math.log(2) / 2]], dtype=torch.float64)
    torch.testing.assert_close(LogCosh(2.0).conjugate(ends, ZERO, TASKS), expected)
    assert LogCosh(2.0).conjugate(torch.tensor([[1.001]]).double(), ZERO, TASKS).item() == math.inf


QUADRATIC_TASKS = torch.zeros(3, dtype=torch.float64)
U, Y = normal(50, 3, scale=2.0), normal(50, 1, seed=1)


def test_huber_value_matches_paper():
    r = (Y - U).abs()
    expected = torch.where(r <= 0.7, r**2 / 2, 0.7 * (r - 0.35))
    torch.testing.assert_close(Huber(0.7).value(U, Y, QUADRATIC_TASKS), expected)


def test_insensitive_value_matches_paper():
    torch.testing.assert_close(
        EpsilonInsensitive(0.4).value(U, Y, QUADRATIC_TASKS), ((Y - U).abs() - 0.4).clamp_min(0).square() / 2
    )


@pytest.mark.parametrize("loss", [Huber(1e6), EpsilonInsensitive(0.0)], ids=str)
def test_robust_losses_have_square_loss_as_limit(loss):
    for method in ("value", "derivative", "curvature", "conjugate"):
        torch.testing.assert_close(
            getattr(loss, method)(U, Y, QUADRATIC_TASKS), getattr(Square(), method)(U, Y, QUADRATIC_TASKS)
        )
    for method in ("prox", "conjugate_prox"):
        torch.testing.assert_close(
            getattr(loss, method)(U, Y, QUADRATIC_TASKS, 0.7), getattr(Square(), method)(U, Y, QUADRATIC_TASKS, 0.7)
        )


def test_lt_e_08_conjugate_belongs_to_the_loss_with_factor_one_half():
    epsilon, a = 0.3, torch.linspace(-2, 2, 21, dtype=torch.float64)
    r = torch.linspace(-10, 10, 200_001, dtype=torch.float64)
    printed = (r.abs() - epsilon).clamp_min(0).square()
    closed = EpsilonInsensitive(epsilon).conjugate(a, torch.zeros(()), QUADRATIC_TASKS[0])
    for slope, value in zip(a, closed, strict=True):
        assert (slope * r - printed / 2).max().item() == pytest.approx(value.item(), abs=1e-8)
        if slope.abs() > 0.01:
            assert abs((slope * r - printed).max().item() - value.item()) > 1e-3


def test_insensitive_slopes_of_small_errors_are_exactly_zero():
    slope = EpsilonInsensitive(0.4).derivative(U, Y, QUADRATIC_TASKS)
    assert bool((slope[(U - Y).abs() <= 0.4] == 0).all())
    assert 0 < (slope == 0).double().mean().item() < 1


def test_smooth_losses_reject_invalid_parameters():
    with pytest.raises(OptionError, match="kappa"):
        Huber(0.0)
    with pytest.raises(OptionError, match="epsilon"):
        EpsilonInsensitive(-0.1)
    with pytest.raises(OptionError, match="nu"):
        LogCosh(0)
