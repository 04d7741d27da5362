"""Losses integrated over tasks, with missing entries."""

import math
from types import SimpleNamespace

import pytest
import torch
from loss_cases import MEASURE, curve_losses, normal

from ovkgp.exceptions import InputError
from ovkgp.losses import CostSensitiveHinge, IntegralLoss, OneClass, Pinball, SmoothedHinge, TaskMeasure, gauss_legendre

U, Y = normal(12, 4, scale=1.5), normal(12, 4, seed=1)
MASK = torch.rand(12, 4, generator=torch.Generator().manual_seed(3)) > 0.3
WITH_HOLES = SimpleNamespace(nodes=MEASURE.nodes, weights=MEASURE.weights * MASK, num_dims=1)
NODE_WITHOUT_WEIGHT = TaskMeasure([0.1, 0.3, 0.5, 0.9], [0.1, 0.0, 0.6, 0.3])


def outcomes(loss, u, y):
    """Return all results that a solver uses: sums (n,) and curves (n, m)."""
    slope = loss.nearest_slope(loss.derivative(u, y), y)
    sums = {"value": loss.value(u, y), "conjugate": loss.conjugate(slope, y)}
    curves = {
        "derivative": loss.derivative(u, y),
        "prox": loss.prox(u, y, 0.7),
        "conjugate_prox": loss.conjugate_prox(u, y, 0.7),
        "nearest_slope": loss.nearest_slope(3 * u, y),
    }
    return sums, curves


@pytest.mark.parametrize("index", range(len(curve_losses())))
def test_missing_entries_are_ignored_and_give_no_nan(index):
    loss = curve_losses(WITH_HOLES)[index]
    sums, curves = outcomes(loss, U, torch.where(MASK, Y, math.nan))
    loss.check_targets(torch.where(MASK, Y, math.nan))
    empty = ~MASK.any(1)
    assert bool(empty.any()) and bool((sums["value"][empty] == 0).all()) and bool((sums["conjugate"][empty] == 0).all())
    for i in (~empty).nonzero().flatten():
        kept = MASK[i]
        row = SimpleNamespace(nodes=MEASURE.nodes[kept], weights=MEASURE.weights[kept], num_dims=1)
        expected_sums, expected_curves = outcomes(curve_losses(row)[index], U[i : i + 1, kept], Y[i : i + 1, kept])
        for name, value in expected_sums.items():
            torch.testing.assert_close(sums[name][i], value[0], msg=name)
        for name, value in expected_curves.items():
            torch.testing.assert_close(curves[name][i, kept], value[0], msg=name)
    for name, value in curves.items():
        expected = U if name == "prox" else torch.zeros_like(U)
        torch.testing.assert_close(value[~MASK], expected[~MASK], msg=name)


@pytest.mark.parametrize("loss", curve_losses(NODE_WITHOUT_WEIGHT), ids=repr)
def test_node_without_weight_is_missing_in_every_row(loss):
    y = Y.clone()
    y[:, 1] = math.nan
    sums, curves = outcomes(loss, U, y)
    for value in (*sums.values(), *curves.values()):
        assert bool(torch.isfinite(value).all())
    assert bool((curves["derivative"][:, 1] == 0).all())


@pytest.mark.parametrize("index", range(len(curve_losses())))
def test_curve_loss_is_invariant_to_splitting_a_node(index):
    once = curve_losses()[index]
    twice = curve_losses(TaskMeasure(MEASURE.nodes.repeat_interleave(2), MEASURE.weights.repeat_interleave(2) / 2))[
        index
    ]
    sums, curves = outcomes(once, U, Y)
    doubled_sums, doubled_curves = outcomes(twice, U.repeat_interleave(2, 1), Y.repeat_interleave(2, 1))
    for name, value in sums.items():
        torch.testing.assert_close(doubled_sums[name], value, rtol=0, atol=1e-12, msg=name)
    for name, value in curves.items():
        torch.testing.assert_close(doubled_curves[name], value.repeat_interleave(2, 1), rtol=0, atol=1e-12, msg=name)


def test_integral_loss_is_weighted_sum():
    loss = IntegralLoss(Pinball(), MEASURE)
    by_hand = (MEASURE.weights * Pinball().value(U, Y, MEASURE.nodes)).sum(1)
    torch.testing.assert_close(loss.value(U, Y), by_hand)
    by_row = TaskMeasure(MEASURE.nodes.expand(12, 4), MEASURE.weights.expand(12, 4))
    torch.testing.assert_close(IntegralLoss(Pinball(), by_row).value(U, Y), by_hand)


def test_integral_loss_accepts_nodes_per_row():
    nodes = torch.rand(12, 4, generator=torch.Generator().manual_seed(0)).double()
    loss = IntegralLoss(Pinball(), TaskMeasure(nodes))
    rows = [Pinball().value(U[i], Y[i], nodes[i]).mean() for i in range(12)]
    torch.testing.assert_close(loss.value(U, Y), torch.stack(rows))


def test_conjugate_is_infinite_if_one_slope_is_outside():
    loss = IntegralLoss(Pinball(), MEASURE)
    slope = loss.derivative(U, Y)
    slope[3, 2] = 0.51
    assert loss.conjugate(slope, Y).isinf().nonzero().flatten().tolist() == [3]


def test_integral_loss_has_curvature_and_lipschitz_constant_of_its_entries():
    loss = IntegralLoss(SmoothedHinge(0.5, "unit"), MEASURE)
    y = Y.sign()
    torch.testing.assert_close(loss.curvature(U, y), SmoothedHinge(0.5, "unit").curvature(U, y, MEASURE.nodes))
    torch.testing.assert_close(loss.curvature_product(U, y, U), loss.curvature(U, y) * U)
    assert loss.lipschitz() == pytest.approx(0.9 / 0.5)


def test_integral_loss_rejects_invalid_weights_tasks_and_targets():
    with pytest.raises(InputError, match="negative"):
        IntegralLoss(Pinball(), SimpleNamespace(nodes=MEASURE.nodes, weights=-MEASURE.weights, num_dims=1))
    with pytest.raises(InputError, match="levels"):
        IntegralLoss(Pinball(), gauss_legendre(3, -1.0, 1.0))
    with pytest.raises(InputError, match="mass"):
        IntegralLoss(OneClass(), TaskMeasure([0.0, 0.5]))
    with pytest.raises(InputError, match="Labels"):
        IntegralLoss(CostSensitiveHinge(), MEASURE).check_targets(torch.tensor([[0.0]]))
    for loss in curve_losses():
        with pytest.raises(InputError, match="NaN"):
            loss.check_targets(torch.tensor([[1.0], [math.nan]]))
