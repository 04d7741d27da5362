"""Pinball losses, D² and crossings against their definitions."""

import numpy as np
import pytest
from sklearn.metrics import d2_pinball_score

from ovkgp.estimators.quantiles.rows import crossing_of, d2_pinball, pinball_losses

LEVELS = np.array([0.1, 0.5, 0.9])


def sample(n=50):
    rng = np.random.default_rng(0)
    return rng.exponential(size=n), rng.standard_normal((n, 3)), rng.integers(1, 4, n)


def test_pinball_losses_are_the_definition():
    y, q, _ = sample()
    r = y[:, None] - q
    np.testing.assert_allclose(pinball_losses(y, q, LEVELS), np.maximum(LEVELS * r, (LEVELS - 1) * r).mean(0))


def test_weights_are_copies():
    y, q, copies = sample()
    repeated = np.repeat(y, copies), np.repeat(q, copies, axis=0)
    np.testing.assert_allclose(pinball_losses(y, q, LEVELS, copies), pinball_losses(*repeated, LEVELS))
    assert d2_pinball(y, q, LEVELS, copies) == pytest.approx(d2_pinball(*repeated, LEVELS))


def test_at_one_level_d2_is_that_of_scikit_learn():
    y, q, _ = sample(51)
    ours = d2_pinball(y, q[:, 1:2], np.array([0.5]))
    assert ours == pytest.approx(d2_pinball_score(y, q[:, 1], alpha=0.5))


def test_the_quantiles_of_y_itself_have_d2_zero_and_no_constants_more():
    y, _, _ = sample(49)
    constants = np.quantile(y, LEVELS, method="inverted_cdf")
    assert d2_pinball(y, np.tile(constants, (49, 1)), LEVELS) == pytest.approx(0.0, abs=1e-12)
    for move in (-0.1, 0.1):
        assert d2_pinball(y, np.tile(constants + move, (49, 1)), LEVELS) < 0


def test_a_constant_target_is_hit_or_missed():
    y = np.full(5, 2.0)
    assert d2_pinball(y, np.full((5, 3), 2.0), LEVELS) == 1
    assert d2_pinball(y, np.full((5, 3), 2.1), LEVELS) == 0


def test_crossings_are_counted_and_measured():
    found = crossing_of(np.array([[0.0, 1.0, 0.5, 2.0], [0.0, -1.0, -3.0, 4.0], [0.0, 1.0, 2.0, 3.0]]))
    assert found.share == pytest.approx(3 / 9)
    assert found.total == pytest.approx((0.5 + 3.0) / 3)
    assert found.largest == 2.0


def test_one_level_cannot_cross():
    assert crossing_of(np.ones((4, 1))).share == 0
