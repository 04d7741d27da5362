"""Square, Huber and ε-insensitive losses: their pieces and limits."""

import pytest
import torch
from loss_cases import normal

from ovkgp.exceptions import OptionError
from ovkgp.losses import EpsilonInsensitive, Huber, Square

TASKS = torch.zeros(3, dtype=torch.float64)
U, Y = normal(50, 3, scale=2.0), normal(50, 1, seed=1)


def test_huber_is_the_paper_s_pieces():
    r = (Y - U).abs()
    pieces = torch.where(r <= 0.7, r**2 / 2, 0.7 * (r - 0.35))
    torch.testing.assert_close(Huber(0.7).value(U, Y, TASKS), pieces)


def test_insensitive_is_the_paper_s_pieces():
    torch.testing.assert_close(
        EpsilonInsensitive(0.4).value(U, Y, TASKS), ((Y - U).abs() - 0.4).clamp_min(0).square() / 2
    )


@pytest.mark.parametrize("loss", [Huber(1e6), EpsilonInsensitive(0.0)], ids=str)
def test_both_have_the_square_loss_as_a_limit(loss):
    for method in ("value", "derivative", "curvature", "conjugate"):
        torch.testing.assert_close(getattr(loss, method)(U, Y, TASKS), getattr(Square(), method)(U, Y, TASKS))
    for method in ("prox", "conjugate_prox"):
        torch.testing.assert_close(getattr(loss, method)(U, Y, TASKS, 0.7), getattr(Square(), method)(U, Y, TASKS, 0.7))


def test_lt_e_08_the_conjugate_belongs_to_the_loss_with_its_half():
    epsilon, a = 0.3, torch.linspace(-2, 2, 21, dtype=torch.float64)
    r = torch.linspace(-10, 10, 200_001, dtype=torch.float64)
    printed = (r.abs() - epsilon).clamp_min(0).square()
    closed = EpsilonInsensitive(epsilon).conjugate(a, torch.zeros(()), TASKS[0])
    for slope, value in zip(a, closed, strict=True):
        assert (slope * r - printed / 2).max().item() == pytest.approx(value.item(), abs=1e-8)
        if slope.abs() > 0.01:
            assert abs((slope * r - printed).max().item() - value.item()) > 1e-3


def test_dual_variables_of_free_errors_are_exact_zeros():
    slope = EpsilonInsensitive(0.4).derivative(U, Y, TASKS)
    assert bool((slope[(U - Y).abs() <= 0.4] == 0).all())
    assert 0 < (slope == 0).double().mean().item() < 1


def test_what_is_refused():
    with pytest.raises(OptionError, match="kappa must be finite and greater than 0"):
        Huber(0.0)
    with pytest.raises(OptionError, match="epsilon must be finite and 0 or more"):
        EpsilonInsensitive(-0.1)
