"""Decision curves: what rearranging keeps, scores, shares and nesting."""

import numpy as np
import pytest

from ovkgp.inference.tasks.one_class_function import (
    are_nested,
    at_levels,
    level_scores,
    rearranged,
    share_levels,
    weighted_quantile,
)

LEVELS = np.linspace(0.01, 1, 101)


def curves(n=500, seed=0):
    """Falling on the whole, with waves."""
    rng = np.random.default_rng(seed)
    height, phase = rng.uniform(size=(n, 1)) ** 2, rng.uniform(0, 2 * np.pi, (n, 1))
    return height + 0.1 - LEVELS + 0.1 * np.sin(40 * LEVELS + phase)


def test_rearranging_keeps_the_values_and_makes_sets_nested():
    before, after = curves(), rearranged(curves())
    np.testing.assert_array_equal(np.sort(after, 1), np.sort(before, 1))
    assert (np.diff(after, axis=1) <= 0).all()
    assert are_nested(before).mean() < 0.5 and are_nested(after).all()
    np.testing.assert_array_equal((after >= 0).sum(1), (before >= 0).sum(1))


def test_a_share_of_each_level_is_negative_there_after_the_levels_are_moved():
    """Rearranging alone changes the mass of the sets; the levels of `share_levels` put it right, on fresh curves too."""
    sorted_curves = rearranged(curves(5000))
    shares = share_levels(curves(5000), LEVELS, np.ones(5000))
    assert (np.diff(shares) >= 0).all() and shares.min() >= 0.01 and shares.max() <= 1
    inner = (LEVELS > 0.1) & (LEVELS < 0.9)
    outside = (at_levels(sorted_curves, LEVELS, shares) < 0).mean(0)
    np.testing.assert_allclose(outside[inner], LEVELS[inner], atol=0.01)
    assert np.abs((sorted_curves < 0).mean(0) - LEVELS)[inner].max() > 0.1
    fresh = at_levels(rearranged(curves(5000, seed=1)), LEVELS, shares)
    np.testing.assert_allclose((fresh < 0).mean(0)[inner], LEVELS[inner], atol=0.03)


def test_a_weight_counts_copies():
    values, weights = np.array([0.4, 0.1, 0.9]), np.array([1.0, 2.0, 3.0])
    repeated = np.repeat(values, [1, 2, 3])
    for level in (2 / 7, 3 / 7, 6 / 7):  # where a value's copies end
        assert weighted_quantile(values, weights, level) == pytest.approx(
            weighted_quantile(repeated, np.ones(6), level)
        )


@pytest.mark.parametrize("level", [0.05, 0.3, 0.5, 0.8])
def test_a_fresh_value_is_below_the_quantile_with_its_probability(level):
    """The average over samples of 19 is the level, exactly where (n + 1) θ is whole: order statistics of a uniform variable."""
    rng = np.random.default_rng(0)
    quantiles = [weighted_quantile(rng.uniform(size=19), np.ones(19), level) for _ in range(4000)]
    assert np.mean(quantiles) == pytest.approx(level, abs=0.006)


def test_quantiles_outside_the_sample_are_its_ends():
    values = np.array([3.0, 1.0, 2.0])
    assert weighted_quantile(values, np.ones(3), 0.01) == 1.0 and weighted_quantile(values, np.ones(3), 0.99) == 3.0


def test_curves_between_levels_are_linear():
    line = 2.0 - 3.0 * LEVELS[None]
    asked = np.array([0.01, 0.123, 0.5, 0.999, 1.0])
    np.testing.assert_allclose(at_levels(line, LEVELS, asked)[0], 2 - 3 * asked, atol=1e-12)


def test_the_score_is_the_last_level_inside():
    """LT-107: s(x) = sup{θ: d(x)(θ) ≥ 0}; near 0 for rare points, near 1 for typical ones."""
    line = np.array([0.2, 0.77])[:, None] - LEVELS
    np.testing.assert_allclose(level_scores(line, LEVELS), [0.2, 0.77], atol=1e-12)
    twice = np.where((LEVELS < 0.2) | ((LEVELS > 0.5) & (LEVELS < 0.6)), 1.0, -1.0)[None]
    assert level_scores(twice, LEVELS)[0] == pytest.approx(0.6, abs=0.01)
    np.testing.assert_array_equal(level_scores(np.array([[-1.0] * 101, [1.0] * 101]), LEVELS), [0, 1])
    assert level_scores(np.array([[0.0, -1.0]]), np.array([0.1, 1.0]))[0] == 0.1


def test_a_curve_that_comes_back_is_not_nested():
    signs = np.array([[1, 1, -1], [1, -1, 1], [-1, -1, -1], [-1, 1, 1], [1, 1, 1], [0, -1, -1.0]])
    assert are_nested(signs).tolist() == [True, False, True, False, True, True]
