"""Tests of `ovkgp.estimators.quantiles.rows`."""

import numpy as np
import pytest
from sklearn.metrics import d2_pinball_score

from ovkgp.estimators.quantiles.rows import QuantileRows, d2_pinball, measure_crossing, pinball_losses
from ovkgp.exceptions import InputError

LEVELS = np.array([0.1, 0.5, 0.9])


def sample(n=50):
    rng = np.random.default_rng(0)
    return rng.exponential(size=n), rng.standard_normal((n, 3)), rng.integers(1, 4, n)


def test_pinball_losses_match_the_definition():
    y, q, _ = sample()
    r = y[:, None] - q
    np.testing.assert_allclose(pinball_losses(y, q, LEVELS), np.maximum(LEVELS * r, (LEVELS - 1) * r).mean(0))


def test_metrics_count_weights_as_copies():
    y, q, copies = sample()
    repeated = np.repeat(y, copies), np.repeat(q, copies, axis=0)
    np.testing.assert_allclose(pinball_losses(y, q, LEVELS, copies), pinball_losses(*repeated, LEVELS))
    assert d2_pinball(y, q, LEVELS, copies) == pytest.approx(d2_pinball(*repeated, LEVELS))


def test_d2_pinball_matches_scikit_learn_at_one_level():
    y, q, _ = sample(51)
    ours = d2_pinball(y, q[:, 1:2], np.array([0.5]))
    assert ours == pytest.approx(d2_pinball_score(y, q[:, 1], alpha=0.5))


def test_d2_pinball_is_zero_for_marginal_quantiles_only():
    y, _, _ = sample(49)
    constants = np.quantile(y, LEVELS, method="inverted_cdf")
    assert d2_pinball(y, np.tile(constants, (49, 1)), LEVELS) == pytest.approx(0.0, abs=1e-12)
    for shift in (-0.1, 0.1):
        assert d2_pinball(y, np.tile(constants + shift, (49, 1)), LEVELS) < 0


def test_d2_pinball_of_a_constant_target_is_zero_or_one():
    y = np.full(5, 2.0)
    assert d2_pinball(y, np.full((5, 3), 2.0), LEVELS) == 1
    assert d2_pinball(y, np.full((5, 3), 2.1), LEVELS) == 0


def test_crossing_counts_and_measures_decreases():
    found = measure_crossing(np.array([[0.0, 1.0, 0.5, 2.0], [0.0, -1.0, -3.0, 4.0], [0.0, 1.0, 2.0, 3.0]]))
    assert found.share == pytest.approx(3 / 9)
    assert found.total == pytest.approx((0.5 + 3.0) / 3)
    assert found.largest == 2.0


def test_crossing_is_zero_for_one_level():
    assert measure_crossing(np.ones((4, 1))).share == 0


def some_rows(seed=0, n=12):
    rng = np.random.default_rng(seed)
    return rng.standard_normal((n, 2)), rng.standard_normal(n)


def assert_same(a, b):
    for left, right in ((a.X, b.X), (a.y, b.y), (a.weights, b.weights)):
        np.testing.assert_array_equal(left, right)


def test_rows_merge_copies_into_weights():
    X, y = some_rows()
    twice = QuantileRows.of(np.vstack([X, X[:3]]), np.r_[y, y[:3]])
    weighted = QuantileRows.of(X, y, np.r_[2, 2, 2, np.ones(9)])
    assert_same(twice, weighted)
    assert len(twice) == 12
    assert twice.count == 15


def test_rows_do_not_depend_on_the_order():
    X, y = some_rows()
    order = np.random.default_rng(1).permutation(12)
    assert_same(QuantileRows.of(X, y), QuantileRows.of(X[order], y[order]))


def test_rows_keep_equal_inputs_with_different_targets():
    rows = QuantileRows.of(np.zeros((2, 1)), np.array([1.0, 2.0]))
    assert len(rows) == 2


def test_rows_of_weight_zero_are_dropped():
    X, y = some_rows()
    assert_same(QuantileRows.of(X, y, np.r_[np.ones(7), np.zeros(5)]), QuantileRows.of(X[:7], y[:7]))


def test_rows_broadcast_a_scalar_weight():
    X, y = some_rows()
    np.testing.assert_array_equal(QuantileRows.of(X, y, 3.0).weights, np.full(12, 3.0))


def test_relative_weights_have_mean_one():
    X, y = some_rows()
    weights = QuantileRows.of(X, y, np.arange(1.0, 13.0)).relative_weights
    assert weights.mean() == pytest.approx(1.0)
    assert weights.max() / weights.min() == pytest.approx(12.0)


def test_scaling_counts_weights_as_copies():
    X, y = some_rows()
    weights = np.random.default_rng(3).integers(1, 4, 12)
    rows = QuantileRows.of(X, y, weights)
    repeated = np.repeat(X, weights, axis=0), np.repeat(y, weights)
    scaled = rows.scaled(rows.scaling(scale_inputs=True))
    proportions = scaled.weights / scaled.weights.sum()
    np.testing.assert_allclose(proportions @ scaled.X, 0, atol=1e-12)
    np.testing.assert_allclose(proportions @ scaled.y**2, 1, rtol=1e-12)
    scaling = rows.scaling(scale_inputs=True)
    np.testing.assert_allclose(scaling.input_scale, repeated[0].std(0), rtol=1e-12)
    np.testing.assert_allclose(scaling.output_scale, repeated[1].std(), rtol=1e-12)


def test_scaling_keeps_input_units_on_request():
    X, y = some_rows()
    rows = QuantileRows.of(X, y)
    np.testing.assert_array_equal(rows.scaled(rows.scaling(scale_inputs=False)).X, rows.X)


def test_folds_partition_the_rows():
    rows = QuantileRows.of(*some_rows())
    folds = rows.folds(5, seed=0)
    assert sorted(np.concatenate(folds)) == list(range(12))
    assert {len(fold) for fold in folds} <= {2, 3}
    assert len(rows.folds(50, seed=0)) == 12


def test_sample_repeats_rows_of_integer_weight():
    X, y = some_rows()
    sample = QuantileRows.of(X, y, np.r_[3, np.ones(11)]).sample(100)
    assert len(sample.X) == 14
    assert (X[0] == sample.X).all(1).sum() == 3


def test_spaced_indices_cover_the_rows():
    rows = QuantileRows.of(*some_rows(n=100))
    indices = rows.spaced_indices(5)
    np.testing.assert_array_equal(indices, [0, 25, 50, 74, 99])
    assert len(rows.spaced_indices(1000)) == 100


@pytest.mark.parametrize("weights", [[1.0, -1.0, 1.0], [1.0, np.nan, 1.0], [0.0, 0.0, 0.0], [1.0, 1.0]])
def test_rows_reject_invalid_weights(weights):
    with pytest.raises(InputError, match="sample_weight"):
        QuantileRows.of(np.arange(3.0)[:, None], np.arange(3.0), weights)
