"""Tests of `ovkgp.estimators.common.scaling`."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ovkgp.estimators.common.scaling import CHUNK_ROWS, Moments, Scaling, in_original_units


def columns(n=200, seed=0):
    rng = np.random.default_rng(seed)
    table = rng.standard_normal((n, 4)) * [1.0, 1e-3, 1e6, 5.0] + [0.0, 50.0, -3.0, 7.0]
    table[rng.random(table.shape) < 0.2] = np.nan
    return table


def merged(table, cuts):
    first, *rest = (Moments.of(part) for part in np.split(table, cuts))
    return sum(rest, first)


def assert_moments(found, table):
    np.testing.assert_array_equal(found.count, np.isfinite(table).sum(0))
    np.testing.assert_allclose(found.mean, np.nanmean(table, 0), rtol=1e-12)
    np.testing.assert_allclose(found.std, np.nanstd(table, 0), rtol=1e-10)
    np.testing.assert_array_equal(found.largest, np.nanmax(np.abs(table), 0))


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 200), max_size=6), st.integers(0, 5))
def test_moments_do_not_depend_on_the_partition(cuts, seed):
    """Includes empty parts, and parts in which a column is missing."""
    table = columns(seed=seed)
    table[:60, 1] = np.nan
    assert_moments(merged(table, sorted(cuts)), table)


def test_moments_of_several_chunks_equal_those_of_the_table():
    table = columns(CHUNK_ROWS + 7)
    assert_moments(Moments.of(table), table)


def test_moments_keep_a_small_std_far_from_zero():
    table = 1e9 + np.random.default_rng(0).standard_normal((1000, 1))
    np.testing.assert_allclose(merged(table, range(10, 1000, 10)).std, table.std(0), rtol=1e-6)


@pytest.mark.parametrize("value", [0.0, 0.1, -7.3, 1e300, 1e-300, 5e-324])
def test_moments_of_a_constant_column_have_zero_std(value):
    found = merged(np.full((50, 1), value), [3, 20, 21])
    assert found.std == 0 and found.mean == value and found.largest == abs(value)


@pytest.mark.parametrize("unit", [1e-200, 1.0, 1e200])
def test_moments_neither_overflow_nor_underflow(unit):
    table = np.random.default_rng(0).standard_normal((60, 2))
    found = merged(unit * table, [20, 45])
    np.testing.assert_allclose(found.std / unit, table.std(0), rtol=1e-12)


def test_moments_of_the_largest_floats_are_finite():
    found = merged(np.array([[1.7e308], [-1.7e308], [1.7e308], [-1.7e308]]), [1, 2])
    assert found.mean == 0 and found.std == pytest.approx(1.7e308)


def test_moments_merge_parts_of_different_magnitude():
    table = np.r_[np.full(5, 1e-150), np.full(5, 1e150)][:, None]
    np.testing.assert_allclose(merged(table, [5]).std, 0.5e150)


def test_moments_of_float32_are_float64():
    table = (1e4 + np.random.default_rng(0).standard_normal((500, 2))).astype(np.float32)
    np.testing.assert_allclose(Moments.of(table).mean, table.astype(np.float64).mean(0), rtol=1e-14)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("scale_inputs", [False, True])
def test_scaling_of_a_table_equals_scaling_of_its_moments(shared, scale_inputs):
    X, Y = np.random.default_rng(1).uniform(0, 9, (200, 3)), columns()
    whole = Scaling.of(X, Y, scale_inputs=scale_inputs, shared=shared)
    parts = Scaling.of_moments(merged(X, [50, 51]), merged(Y, [70]), scale_inputs=scale_inputs, shared=shared)
    for name, value in vars(whole).items():
        np.testing.assert_allclose(getattr(parts, name), value, rtol=1e-10, atol=1e-14, err_msg=name)
    std = np.nanstd(Y, 0)
    expected = np.full(4, np.sqrt(np.mean(std**2))) if shared else std
    np.testing.assert_allclose(whole.output_scale, expected, rtol=1e-10)
    assert np.all(whole.input_scale == 1) != scale_inputs


def test_scaling_divides_constant_columns_by_their_absolute_value():
    Y = np.c_[np.full(9, -3.0), np.zeros(9), np.arange(9.0)]
    scaling = Scaling.of(Y, Y, scale_inputs=True, shared=False)
    np.testing.assert_allclose(scaling.output_scale, [3.0, 1.0, np.std(np.arange(9.0))])


@pytest.mark.parametrize("unit", [1e-200, 1e200])
def test_slope_variances_of_extreme_units_do_not_overflow(unit):
    scaling = Scaling(np.zeros(2), np.array([unit, 2 * unit]), np.zeros(1), np.array([unit]))
    with np.errstate(all="raise"):
        found = in_original_units("0.variance", np.array(3.0), "independent", scaling)
    np.testing.assert_allclose(found, [3.0, 0.75], rtol=1e-12)
