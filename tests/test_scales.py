"""Tests of `ovkgp.scales`."""

import numpy as np
import pytest

from ovkgp.scales import mean_and_std, root_mean_square, unit_of

rng = np.random.default_rng(0)
TABLE = rng.standard_normal((50, 3)) + 2.0


@pytest.mark.parametrize("factor", [1.0, 1e155, 1e300, 1e-155, 1e-300])
def test_scales_of_columns_are_equivariant(factor):
    mean, std = mean_and_std(factor * TABLE)
    np.testing.assert_allclose(mean, factor * TABLE.mean(0), rtol=1e-12)
    np.testing.assert_allclose(std, factor * TABLE.std(0), rtol=1e-12)
    np.testing.assert_allclose(root_mean_square(factor * TABLE, 0), factor * np.sqrt((TABLE**2).mean(0)), rtol=1e-12)
    np.testing.assert_allclose(root_mean_square(factor * TABLE), factor * np.sqrt((TABLE**2).mean()), rtol=1e-12)


def test_scales_of_ordinary_columns_have_all_digits():
    mean, std = mean_and_std(TABLE)
    np.testing.assert_array_equal(mean, TABLE.mean(0))
    np.testing.assert_array_equal(std, TABLE.std(0))


def test_root_mean_square_skips_missing_values():
    assert root_mean_square(np.array([3e200, np.nan, -3e200])) == pytest.approx(3e200)
    assert root_mean_square(np.zeros((2, 3)), (0, 1)) == 0.0


@pytest.mark.parametrize("largest", [0.3, 1.0, 5e-324, np.finfo(float).max])
def test_unit_is_a_power_of_two_below_the_largest_value(largest):
    unit = float(unit_of(largest))
    assert np.frexp(unit)[0] == 0.5
    assert unit <= largest < 2 * unit or largest == np.finfo(float).max


def test_unit_of_zero_is_one():
    assert unit_of(0.0) == 1.0
