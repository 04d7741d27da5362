"""Weights of the Bayesian bootstrap, and what Ctrl-C leaves of its fits."""

import numpy as np
import pytest

from ovkgp.estimators.common.bootstrap import SMALLEST, replicate_fits, replicate_weights
from ovkgp.exceptions import FitWarning


def test_each_replicate_has_the_sum_of_the_counts():
    counts = np.array([1.0, 5.0, 2.0, 1.0])
    weights = replicate_weights(counts, 50, seed=0)
    assert weights.shape == (50, 4) and (weights > 0).all()
    np.testing.assert_allclose(weights.sum(1), 9)


def test_weights_are_dirichlet():
    """Of counts c and N = Σ c: mean c, variance N² · (c/N)(1 − c/N)/(N + 1)."""
    counts = np.array([1.0, 5.0, 2.0, 1.0])
    weights, share = replicate_weights(counts, 40_000, seed=1), counts / 9
    np.testing.assert_allclose(weights.mean(0), counts, rtol=0.02)
    np.testing.assert_allclose(weights.var(0), 81 * share * (1 - share) / 10, rtol=0.04)


def test_a_row_of_several_observations_weighs_the_sum_of_theirs():
    """In law: three rows of one observation, or one of three."""
    one = replicate_weights(np.ones(5), 40_000, seed=0)[:, :3].sum(1)
    three = replicate_weights(np.array([3.0, 1.0, 1.0]), 40_000, seed=1)[:, 0]
    np.testing.assert_allclose(np.quantile(one, [0.1, 0.5, 0.9]), np.quantile(three, [0.1, 0.5, 0.9]), rtol=0.03)


def test_the_spread_of_a_mean_is_its_standard_error():
    values = np.random.default_rng(0).exponential(size=200)
    means = replicate_fits(lambda row: row @ values / 200, replicate_weights(np.ones(200), 4000, seed=0))
    assert np.std(means) == pytest.approx(values.std() / np.sqrt(201), rel=0.05)


def test_seeds_give_streams_of_their_own():
    counts = np.ones(4)
    np.testing.assert_array_equal(replicate_weights(counts, 3, 0), replicate_weights(counts, 3, 0))
    assert not np.array_equal(replicate_weights(counts, 3, 0), replicate_weights(counts, 3, 1))
    plain = np.random.default_rng(0).gamma(counts, size=(3, 4))  # that of others who use the seed as it is
    assert not np.allclose(replicate_weights(counts, 3, 0), plain * 4 / plain.sum(1, keepdims=True))


def test_no_weight_is_zero():
    weights = replicate_weights(np.full(2000, 0.01), 20, seed=0)  # most gamma draws are below 1e-30
    assert weights.min() > 0 and weights.min() >= SMALLEST * 1e-3


def interrupted(at):
    calls = []

    def fit(row):
        calls.append(row)
        if len(calls) == at:
            raise KeyboardInterrupt
        return row.sum()

    return fit


def test_an_interrupt_keeps_what_is_there_and_warns():
    with pytest.warns(FitWarning, match="2 of 5 replicates are kept"):
        assert replicate_fits(interrupted(3), np.ones((5, 2))) == [2.0, 2.0]


def test_one_replicate_is_too_few_to_keep():
    with pytest.raises(KeyboardInterrupt):
        replicate_fits(interrupted(2), np.ones((5, 2)))


def test_progress_is_shown_when_asked_for(capsys):
    replicate_fits(np.sum, np.ones((3, 2)))
    assert capsys.readouterr().err == ""
    replicate_fits(np.sum, np.ones((3, 2)), verbose=1)
    assert "replicates" in capsys.readouterr().err
