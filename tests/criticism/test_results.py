"""Tests of the result of hypothesis tests."""

import dataclasses

import numpy as np
import pytest

from ovkgp.criticism import HypothesisTest


@pytest.mark.parametrize("number", [19, 99, 100, 250, 999, 1000])
@pytest.mark.parametrize("alpha", [0.01, 0.05, 0.1, 0.5])
def test_rejection_agrees_with_p_value_and_critical_value(number, alpha):
    replicates = np.random.default_rng(0).permutation(number).astype(float)
    for statistic in np.arange(-0.5, number + 1, 0.5):
        found = HypothesisTest.from_replicates("t", statistic, replicates, "null", alpha)
        assert found.rejected == (found.statistic > found.critical_value)
        assert found.rejected == (found.pvalue <= alpha + 1e-12)


def test_rejection_needs_enough_replicates():
    found = HypothesisTest.from_replicates("t", 1e9, np.zeros(18), "null", 0.05)
    assert not found.rejected
    assert found.critical_value == np.inf
    assert HypothesisTest.from_replicates("t", 1e9, np.zeros(19), "null", 0.05).rejected


def test_level_is_exact_for_exchangeable_replicates():
    # the rank of the statistic among B + 1 exchangeable values is uniform: P(p ≤ .05) = .05 for B + 1 a multiple of 20
    B = 99
    rejected = [
        HypothesisTest.from_replicates("t", rank - 0.5, np.arange(B), "null", 0.05).rejected for rank in range(B + 1)
    ]
    assert np.mean(rejected) == pytest.approx(0.05, abs=1e-12)


def test_conclusion_names_null_and_decision():
    found = HypothesisTest("t", 2.0, 0.01, 1.0, "the rows are Gaussian")
    assert found.conclusion == "Rejected at level 0.05 (p = 0.01): the rows are Gaussian."
    assert HypothesisTest("t", 2.0, 0.01, 1.0, "null", conclusion="As told.").conclusion == "As told."
    with pytest.raises(dataclasses.FrozenInstanceError):
        found.alpha = 0.1
    assert "replicates" not in repr(found)
