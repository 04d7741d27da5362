"""Tests of `ovkgp.inference.tasks.quantile_distribution`."""

import math

import pytest
import torch
from scipy import stats

from ovkgp.exceptions import InputError
from ovkgp.inference.tasks.quantile_distribution import LevelDistribution, Rearranged

LEVELS = torch.arange(1, 200, dtype=torch.float64) / 200


def normal(mean=0.0, std=1.0):
    return LevelDistribution(LEVELS, (mean + std * torch.special.ndtri(LEVELS)).expand(3, -1))


def skewed():
    return LevelDistribution(torch.tensor([0.1, 0.4, 0.9]), torch.tensor([[0.0, 1.0, 5.0], [-2.0, -1.0, -0.9]]))


def test_quantile_returns_the_given_quantiles():
    distribution = skewed()
    torch.testing.assert_close(distribution.quantile(distribution.levels), distribution.quantiles)
    torch.testing.assert_close(distribution.cdf(distribution.quantiles), distribution.levels.expand(2, -1))


def test_cdf_and_quantile_are_inverse_in_the_tails_too():
    distribution = skewed()
    levels = torch.tensor([1e-6, 0.05, 0.1, 0.33, 0.77, 0.95, 1 - 1e-6], dtype=torch.float64)
    torch.testing.assert_close(
        distribution.cdf(distribution.quantile(levels)), levels.expand(2, -1), rtol=1e-9, atol=1e-12
    )


def test_density_is_the_slope_of_the_cdf():
    distribution = skewed()
    y = torch.tensor([[-3.0, 0.5, 3.0, 9.0], [-5.0, -1.5, -0.95, 0.5]], dtype=torch.float64)
    step = 1e-6
    numeric = (distribution.cdf(y + step) - distribution.cdf(y - step)) / (2 * step)
    torch.testing.assert_close(distribution.density(y), numeric, rtol=1e-6, atol=1e-8)


def test_density_is_continuous_at_the_start_of_a_tail():
    distribution = skewed()
    for end, side in ((distribution.quantiles[:, :1], -1), (distribution.quantiles[:, -1:], 1)):
        torch.testing.assert_close(
            distribution.density(end + side * 1e-9), distribution.density(end - side * 1e-9), rtol=1e-6, atol=0
        )


def test_density_integrates_to_one():
    distribution = skewed()
    y = torch.linspace(-60, 60, 600_001, dtype=torch.float64)
    # a density that jumps by 5 costs the trapezoidal rule half a step, 1e-4, of it
    torch.testing.assert_close(
        torch.trapezoid(distribution.density(y), y), torch.ones(2, dtype=torch.float64), rtol=0, atol=1e-3
    )


def test_moments_are_the_integrals_of_the_density():
    distribution = skewed()
    y = torch.linspace(-80, 80, 800_001, dtype=torch.float64)
    mean = torch.trapezoid(y * distribution.density(y), y)
    torch.testing.assert_close(distribution.mean, mean, rtol=0, atol=1e-3)
    std = torch.trapezoid((y - mean[:, None]) ** 2 * distribution.density(y), y).sqrt()
    torch.testing.assert_close(distribution.std, std, rtol=1e-3, atol=0)


def test_distribution_of_fine_normal_quantiles_is_normal():
    distribution, true = normal(2.0, 0.5), stats.norm(2.0, 0.5)
    y = torch.tensor([1.2, 1.9, 2.0, 2.6], dtype=torch.float64)
    torch.testing.assert_close(distribution.cdf(y)[0], torch.from_numpy(true.cdf(y)), rtol=0, atol=1e-3)
    # within a cell of levels, .005, the true density moves by |z|/σ · .005/f, at most 7 % here, and ours is its mean
    torch.testing.assert_close(distribution.density(y)[0], torch.from_numpy(true.pdf(y)), rtol=0.04, atol=0)
    assert distribution.mean[0].item() == pytest.approx(2.0, abs=1e-9)
    assert distribution.std[0].item() == pytest.approx(0.5, rel=0.02)


def test_draws_have_the_distribution():
    distribution = normal()
    draws = distribution.sample(4000, random_state=0)
    assert draws.shape == (3, 4000)
    assert torch.equal(draws, distribution.sample(4000, random_state=0))
    assert stats.kstest(draws[0].numpy(), "norm").pvalue > 1e-3
    assert not torch.equal(draws[0], draws[1])


def test_equal_quantiles_are_an_atom():
    distribution = LevelDistribution(torch.tensor([0.25, 0.5, 0.75]), torch.tensor([[0.0, 1.0, 1.0]]))
    at = torch.tensor([1.0 - 1e-9, 1.0], dtype=torch.float64)
    below, upon = distribution.cdf(at)[0].tolist()
    assert below == pytest.approx(0.5, abs=1e-6)
    assert upon == 1.0  # the last cell and the tail that begins with it are part of the atom
    assert distribution.density(torch.tensor([1.0]))[0].item() == math.inf
    assert distribution.density(torch.tensor([0.5]))[0].item() == pytest.approx(0.25)


def test_levels_zero_and_one_have_no_tails():
    distribution = LevelDistribution(torch.tensor([0.0, 1.0]), torch.tensor([[2.0, 4.0]]))
    assert distribution.cdf(torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0]))[0].tolist() == [0.0, 0.0, 0.5, 1.0, 1.0]
    assert distribution.quantile(torch.tensor([0.0, 1.0]))[0].tolist() == [2.0, 4.0]
    assert distribution.std.item() == pytest.approx(2 / math.sqrt(12))


def test_quantiles_of_levels_zero_and_one_are_infinite_with_tails():
    assert skewed().quantile(torch.tensor([0.0, 1.0])).isinf().all()


@pytest.mark.parametrize("levels", [[0.5], [0.5, 0.2], [-0.1, 0.5], [0.5, 1.1], [[0.1, 0.2]]])
def test_level_distribution_rejects_invalid_levels(levels):
    with pytest.raises(InputError, match="levels"):
        LevelDistribution(torch.tensor(levels), torch.zeros(1, 2))


def test_level_distribution_rejects_crossing_curves_except_rounding():
    levels = torch.tensor([0.1, 0.5, 0.9])
    with pytest.raises(InputError, match="cross"):
        LevelDistribution(levels, torch.tensor([[0.0, 2.0, 1.0]]))
    distribution = LevelDistribution(levels, torch.tensor([[0.0, 1.0, 1.0 - 1e-12]], dtype=torch.float64))
    assert (distribution.quantiles.diff() >= 0).all()


def test_level_distribution_rejects_points_of_another_shape():
    with pytest.raises(InputError, match="y must"):
        skewed().cdf(torch.zeros(3, 4))
    with pytest.raises(InputError, match="levels"):
        skewed().quantile(torch.tensor([1.5]))


GRID = torch.linspace(0.005, 0.995, 199, dtype=torch.float64)
X = torch.linspace(-1, 1, 7, dtype=torch.float64)[:, None]


def falling(X, levels):
    """Return an oscillation about a line: some rows decrease, the first one does not."""
    return levels + (X + 1) * 0.2 * torch.sin(12 * levels)


def test_rearranged_curves_do_not_decrease():
    levels = torch.rand(300, generator=torch.Generator().manual_seed(0), dtype=torch.float64).sort().values
    found = Rearranged(falling, GRID)(X, levels)
    assert (falling(X, levels).diff() < -1e-3).any()
    assert (found.diff() >= -1e-12).all()


def test_rearranged_keeps_increasing_rows():
    levels = torch.tensor([0.001, 0.123, 0.5, 0.999], dtype=torch.float64)
    assert torch.equal(Rearranged(falling, GRID)(X, levels)[0], falling(X, levels)[0])


def test_rearranged_sorts_the_values_on_the_grid():
    found = Rearranged(falling, GRID)(X, GRID)
    torch.testing.assert_close(found, falling(X, GRID).sort(-1).values, rtol=0, atol=1e-12)


@pytest.mark.parametrize("p", [1.0, 2.0, 4.0])
def test_rearranged_is_never_further_from_an_increasing_curve(p):
    found, given = Rearranged(falling, GRID)(X, GRID), falling(X, GRID)
    for seed in range(5):
        steps = torch.rand(199, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        increasing = steps.cumsum(0) / steps.sum()
        before, after = ((curves - increasing).abs().pow(p).sum(-1) for curves in (given, found))
        assert (after <= before + 1e-12).all()


def test_rearranged_keeps_the_distribution_at_a_random_level():
    found, given = Rearranged(falling, GRID)(X, GRID), falling(X, GRID)
    for threshold in (0.1, 0.4, 0.8):
        assert torch.equal((found <= threshold).sum(-1), (given <= threshold).sum(-1))


def test_rearranged_level_is_independent_of_other_levels():
    rearranged = Rearranged(falling, GRID)
    levels = torch.tensor([0.1, 0.37, 0.9], dtype=torch.float64)
    together = rearranged(X, levels)
    alone = torch.cat([rearranged(X, level[None]) for level in levels], 1)
    torch.testing.assert_close(together, alone, rtol=0, atol=1e-14)


def test_rearranged_stays_outside_the_grid_values_beyond_the_grid():
    grid = torch.linspace(0.2, 0.8, 61, dtype=torch.float64)
    beyond = torch.tensor([0.01, 0.99], dtype=torch.float64)
    found, inside = Rearranged(falling, grid)(X, beyond), Rearranged(falling, grid)(X, grid)
    falls = (falling(X, grid).diff() < 0).any(-1)
    assert (found[falls, 0] <= inside[falls, 0]).all()
    assert (found[falls, 1] >= inside[falls, -1]).all()


@pytest.mark.parametrize("grid", [[0.5], [0.1, 0.2, 0.4], [0.9, 0.1], [[0.1, 0.2]]])
def test_rearranged_rejects_uneven_grids(grid):
    with pytest.raises(InputError, match="evenly spaced"):
        Rearranged(falling, torch.tensor(grid))


def test_rearranged_rejects_invalid_levels():
    with pytest.raises(InputError, match="levels"):
        Rearranged(falling, GRID)(X, torch.tensor([0.1, float("nan")]))
