"""The density of residuals at their quantiles: right for known laws, in any chunks, and blind to how a loss was smoothed."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from ovkgp.inference.tasks.problem import TaskProblem
from ovkgp.inference.tasks.sandwich import ResidualDensity, RowResiduals
from ovkgp.losses import IntegralLoss, Pinball, SmoothedPinball, gauss_legendre, grid

LEVELS = torch.tensor([0.1, 0.3, 0.5, 0.7, 0.9], dtype=torch.float64)


def draws(law, number: int, seed: int = 0) -> torch.Tensor:
    return torch.from_numpy(law.ppf(np.random.default_rng(seed).random(number)))


@pytest.mark.parametrize("law", [stats.norm(), stats.logistic(), stats.gamma(3), stats.t(4)])
def test_density_at_the_quantiles_of_a_known_law(law):
    z = draws(law, 20_000)
    found = ResidualDensity(z, torch.ones_like(z))(LEVELS)
    truth = torch.from_numpy(law.pdf(law.ppf(LEVELS.numpy())))
    assert ((found / truth - 1).abs() < 0.1).all()


def test_density_is_the_sum_over_the_residuals_by_hand():
    z, weights = draws(stats.norm(), 7), torch.tensor([1.0, 2.0, 1.0, 1.0, 3.0, 1.0, 1.0], dtype=torch.float64)
    density = ResidualDensity(z, weights)
    at = density.quantile(LEVELS)
    expected = [
        sum(
            w * stats.norm.pdf(x.item(), loc=r, scale=density.bandwidth)
            for r, w in zip(z.tolist(), weights, strict=True)
        )
        for x in at
    ]
    torch.testing.assert_close(density(LEVELS), torch.tensor(expected).double() / 10)


def test_a_weight_of_two_is_a_row_that_comes_twice():
    z = draws(stats.norm(), 50)
    twice = ResidualDensity(torch.cat([z, z[:10]]), torch.ones(60).double())
    weights = torch.ones(50).double()
    weights[:10] = 2.0
    weighed = ResidualDensity(z, weights)
    torch.testing.assert_close(weighed.quantile(LEVELS), twice.quantile(LEVELS))
    torch.testing.assert_close(weighed(LEVELS), twice(LEVELS))


def test_equal_residuals_have_a_finite_density():
    density = ResidualDensity(torch.zeros(5).double(), torch.ones(5).double())
    assert torch.isfinite(density(LEVELS)).all()


def problem(y: torch.Tensor, loss=None, measure=None) -> TaskProblem:
    measure = gauss_legendre(5) if measure is None else measure
    one = torch.ones(len(y), 1).double()
    return TaskProblem(one, torch.eye(len(measure)).double(), y, IntegralLoss(loss or Pinball(), measure), lam=1e-3)


def test_rows_do_not_depend_on_the_pieces_they_come_in():
    y, weights = draws(stats.norm(), 31)[:, None], torch.linspace(-1, 1, 5).double()[None]
    offset = torch.linspace(-0.5, 0.5, 5).double()
    whole = RowResiduals.of([problem(y)], weights, offset)
    parts = RowResiduals.of([problem(part) for part in y.split(7)], weights, offset)
    torch.testing.assert_close(parts.scale, whole.scale)
    torch.testing.assert_close(parts.residuals, whole.residuals)


def test_scale_of_a_row_is_the_mean_distance_of_its_curve_from_its_middle():
    y, curve = torch.zeros(1, 1).double(), torch.tensor([[-2.0, -1.0, 0.0, 1.0, 2.0]], dtype=torch.float64)
    found = RowResiduals.of([problem(y)], curve, torch.zeros(5).double())
    assert found.scale.item() == pytest.approx(float(gauss_legendre(5).weights @ curve[0].abs()))


def test_one_level_alone_leaves_all_rows_one_scale():
    y = draws(stats.norm(), 9)[:, None]
    found = RowResiduals.of([problem(y, measure=grid([0.5]))], torch.zeros(1, 1).double(), torch.zeros(1).double())
    assert torch.equal(found.scale, torch.ones(9).double())


def test_the_smoothing_of_the_loss_does_not_matter():
    y, weights = draws(stats.norm(), 31)[:, None], torch.linspace(-1, 1, 5).double()[None]
    offset = torch.zeros(5).double()
    sharp, smooth = (RowResiduals.of([problem(y, loss)], weights, offset) for loss in (Pinball(), SmoothedPinball(9.0)))
    assert torch.equal(sharp.scale, smooth.scale) and torch.equal(sharp.residuals, smooth.residuals)


def test_the_narrowest_row_keeps_a_tenth_of_the_mean():
    inputs, one = torch.tensor([[0.0], [1.0]], dtype=torch.float64), torch.eye(5).double()
    loss = IntegralLoss(Pinball(), gauss_legendre(5))
    part = TaskProblem(inputs, one, torch.zeros(2, 1).double(), loss, lam=1.0)
    found = RowResiduals.of([part], torch.linspace(-1, 1, 5).double()[None], torch.zeros(5).double())
    assert found.spread[0] == 0 and math.isclose(found.scale[0], 0.1 * found.spread.mean())
