"""Costs in two scales, and rates by cost."""

import numpy as np
import pytest

from ovkgp.estimators.tasks.cost_sensitive import ROCCurve, rates, signed_costs
from ovkgp.exceptions import InputError


def test_lt_e_29_two_scales_of_one_cost():
    """c = (θ + 1)/2 for θ ∈ [−1, 1], or θ = c ∈ [0, 1]: ends, middle and between."""
    unit = np.array([0.0, 0.25, 0.5, 1.0])
    np.testing.assert_array_equal(signed_costs(unit, "unit"), [-1, -0.5, 0, 1])
    np.testing.assert_array_equal(signed_costs([-1, -0.5, 0, 1], "signed"), signed_costs(unit, "unit"))
    assert signed_costs(0.75, "unit").shape == (1,)


@pytest.mark.parametrize(
    ("costs", "scale"),
    [
        (-0.1, "unit"),
        (1.1, "unit"),
        (-1.1, "signed"),
        (np.nan, "signed"),
        ([], "unit"),
        ([[0.1]], "unit"),
        ("a", "unit"),
    ],
)
def test_costs_out_of_range_are_refused(costs, scale):
    with pytest.raises(InputError, match="cost"):
        signed_costs(costs, scale)


def test_a_cost_that_is_out_of_range_in_one_scale_only_names_the_other():
    with pytest.raises(InputError, match='do you mean "signed"'):
        signed_costs(-0.5, "unit", "levels")


def test_rates_are_those_of_the_two_classes():
    positive = np.array([True, True, True, True, False, False])
    decided = np.array([[1, 1], [1, 0], [1, 0], [0, 0], [1, 0], [0, 0]], dtype=bool)
    sensitivity, specificity = rates(positive, decided)
    np.testing.assert_allclose(sensitivity, [0.75, 0.25])
    np.testing.assert_allclose(specificity, [0.5, 1.0])


def test_the_area_has_the_corners_and_does_not_mind_the_order():
    cost = np.array([-0.5, 0.5])
    assert ROCCurve(cost, np.array([1.0, 1.0]), np.array([1.0, 1.0])).area == 1.0
    assert ROCCurve(cost, np.array([0.3, 0.8]), np.array([0.7, 0.2])).area == pytest.approx(0.5)
    one = ROCCurve(cost, np.array([0.5, 0.9]), np.array([0.9, 0.4])).area
    assert one == pytest.approx(0.1 * 0.25 + 0.5 * 0.7 + 0.4 * 0.95)
    assert ROCCurve(cost, np.array([0.9, 0.5]), np.array([0.4, 0.9])).area == one
