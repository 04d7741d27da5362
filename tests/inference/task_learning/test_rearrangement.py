"""Curves sorted along the level: increasing, nearer to any increasing curve, and unchanged where they rise."""

import pytest
import torch

from ovkgp.exceptions import InputError
from ovkgp.inference.tasks.quantile_distribution import Rearranged

GRID = torch.linspace(0.005, 0.995, 199, dtype=torch.float64)
X = torch.linspace(-1, 1, 7, dtype=torch.float64)[:, None]


def falling(X, levels):
    """A wave about a line: some rows fall, the first one does not."""
    return levels + (X + 1) * 0.2 * torch.sin(12 * levels)


def test_curves_do_not_fall():
    levels = torch.rand(300, generator=torch.Generator().manual_seed(0), dtype=torch.float64).sort().values
    found = Rearranged(falling, GRID)(X, levels)
    assert (falling(X, levels).diff() < -1e-3).any()
    assert (found.diff() >= -1e-12).all()


def test_rows_that_rise_are_left_as_they_are():
    levels = torch.tensor([0.001, 0.123, 0.5, 0.999], dtype=torch.float64)
    assert torch.equal(Rearranged(falling, GRID)(X, levels)[0], falling(X, levels)[0])


def test_on_the_grid_the_values_are_those_of_the_curve_in_order():
    found = Rearranged(falling, GRID)(X, GRID)
    torch.testing.assert_close(found, falling(X, GRID).sort(-1).values, rtol=0, atol=1e-12)


@pytest.mark.parametrize("p", [1.0, 2.0, 4.0])
def test_it_is_never_further_from_an_increasing_curve(p):
    found, given = Rearranged(falling, GRID)(X, GRID), falling(X, GRID)
    for seed in range(5):
        steps = torch.rand(199, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        increasing = steps.cumsum(0) / steps.sum()
        before, after = ((curves - increasing).abs().pow(p).sum(-1) for curves in (given, found))
        assert (after <= before + 1e-12).all()


def test_it_keeps_the_law_of_a_curve_at_a_random_level():
    found, given = Rearranged(falling, GRID)(X, GRID), falling(X, GRID)
    for threshold in (0.1, 0.4, 0.8):
        assert torch.equal((found <= threshold).sum(-1), (given <= threshold).sum(-1))


def test_a_level_does_not_depend_on_which_others_are_asked():
    rearranged = Rearranged(falling, GRID)
    levels = torch.tensor([0.1, 0.37, 0.9], dtype=torch.float64)
    together = rearranged(X, levels)
    alone = torch.cat([rearranged(X, level[None]) for level in levels], 1)
    torch.testing.assert_close(together, alone, rtol=0, atol=1e-14)


def test_beyond_the_grid_curves_stay_outside_its_values():
    grid = torch.linspace(0.2, 0.8, 61, dtype=torch.float64)
    asked = torch.tensor([0.01, 0.99], dtype=torch.float64)
    found, inside = Rearranged(falling, grid)(X, asked), Rearranged(falling, grid)(X, grid)
    falls = (falling(X, grid).diff() < 0).any(-1)
    assert (found[falls, 0] <= inside[falls, 0]).all()
    assert (found[falls, 1] >= inside[falls, -1]).all()


@pytest.mark.parametrize("grid", [[0.5], [0.1, 0.2, 0.4], [0.9, 0.1], [[0.1, 0.2]]])
def test_a_grid_must_be_even_and_increasing(grid):
    with pytest.raises(InputError, match="evenly spaced"):
        Rearranged(falling, torch.tensor(grid))


def test_levels_must_be_a_finite_vector():
    with pytest.raises(InputError, match="levels must be finite"):
        Rearranged(falling, GRID)(X, torch.tensor([0.1, float("nan")]))
