"""The log-cosh loss: bounds, stability, and Newton's prox at extremes."""

import math

import numpy as np
import pytest
import torch

from ovkgp.exceptions import OptionError
from ovkgp.losses import LogCosh

ZERO, TASKS = torch.zeros(1, 1, dtype=torch.float64), torch.zeros(1, dtype=torch.float64)
WIDE = torch.cat([s * torch.logspace(-8, 4, 400, dtype=torch.float64) for s in (-1, 1)])[:, None]


@pytest.mark.parametrize("nu", [0.25, 5.0, 25.0])
def test_it_lies_below_the_absolute_error_by_at_most_log_two(nu):
    gap = WIDE.abs() - LogCosh(nu).value(WIDE, ZERO, TASKS)
    assert bool(((gap >= -1e-15) & (gap <= math.log(2) / nu + 1e-12)).all())
    small = WIDE[WIDE.abs() * nu < 100]
    expected = np.log(np.cosh(nu * small.numpy())) / nu
    np.testing.assert_allclose(LogCosh(nu).value(small[:, None], ZERO, TASKS)[:, 0], expected, rtol=1e-9, atol=1e-14)


def test_small_errors_keep_their_digits():
    """About ν r²/2: log(1 + e^{−2z}) − log 2, taken literally, has an error of 1e-16 beside 1e-13."""
    r = torch.tensor([[1e-6], [-3e-5]], dtype=torch.float64)
    torch.testing.assert_close(LogCosh(2.0).value(r, ZERO, TASKS), r.square(), rtol=1e-8, atol=0)


@pytest.mark.parametrize("nu", [0.25, 5.0, 25.0, 1e4])
@pytest.mark.parametrize("step", [1e-6, 0.1, 1.0, 10.0, 1e6])
def test_prox_solves_its_equation_at_every_scale(nu, step):
    v = LogCosh(nu).prox(WIDE, ZERO, TASKS, step)
    left = (v + step * torch.tanh(nu * v) - WIDE).abs()
    # rounding of v alone changes the left side by its slope
    slope = 1 + step * nu * (1 - torch.tanh(nu * v).square())
    assert bool((left <= 1e-13 * (WIDE.abs() + slope * v.abs())).all())


def test_conjugate_at_the_ends_and_for_large_nu():
    ends = torch.tensor([[-1.0], [0.0], [1.0]], dtype=torch.float64)
    expected = torch.tensor([[math.log(2) / 2], [0.0], [math.log(2) / 2]], dtype=torch.float64)
    torch.testing.assert_close(LogCosh(2.0).conjugate(ends, ZERO, TASKS), expected)
    assert LogCosh(2.0).conjugate(torch.tensor([[1.001]]).double(), ZERO, TASKS).item() == math.inf


def test_what_is_refused():
    with pytest.raises(OptionError, match="nu must be finite"):
        LogCosh(0)
