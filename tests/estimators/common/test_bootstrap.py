"""Tests of `ovkgp.estimators.common.bootstrap`."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from ovkgp.estimators.common.bootstrap import MIN_WEIGHT, refitted_weights, replicate_fits, replicate_weights
from ovkgp.exceptions import FitWarning


def test_replicate_weights_sum_to_the_number_of_observations():
    counts = np.array([1.0, 5.0, 2.0, 1.0])
    weights = replicate_weights(counts, 50, seed=0)
    assert weights.shape == (50, 4) and (weights > 0).all()
    np.testing.assert_allclose(weights.sum(1), 9)


def test_replicate_weights_are_dirichlet():
    """For counts c and N = Σ c, the mean is c and the variance N² · (c/N)(1 − c/N)/(N + 1)."""
    counts = np.array([1.0, 5.0, 2.0, 1.0])
    weights, fraction = replicate_weights(counts, 40_000, seed=1), counts / 9
    np.testing.assert_allclose(weights.mean(0), counts, rtol=0.02)
    np.testing.assert_allclose(weights.var(0), 81 * fraction * (1 - fraction) / 10, rtol=0.04)


def test_replicate_weights_of_a_row_are_the_sum_over_its_observations():
    """Three rows with one observation each have the same distribution as one row with three."""
    one = replicate_weights(np.ones(5), 40_000, seed=0)[:, :3].sum(1)
    three = replicate_weights(np.array([3.0, 1.0, 1.0]), 40_000, seed=1)[:, 0]
    np.testing.assert_allclose(np.quantile(one, [0.1, 0.5, 0.9]), np.quantile(three, [0.1, 0.5, 0.9]), rtol=0.03)


def test_replicate_fits_of_a_mean_vary_by_its_standard_error():
    values = np.random.default_rng(0).exponential(size=200)
    means = replicate_fits(lambda row: row @ values / 200, replicate_weights(np.ones(200), 4000, seed=0))
    assert np.std(means) == pytest.approx(values.std() / np.sqrt(201), rel=0.05)


def test_replicate_weights_depend_on_the_seed():
    counts = np.ones(4)
    np.testing.assert_array_equal(replicate_weights(counts, 3, 0), replicate_weights(counts, 3, 0))
    assert not np.array_equal(replicate_weights(counts, 3, 0), replicate_weights(counts, 3, 1))
    unspawned = np.random.default_rng(0).gamma(counts, size=(3, 4))  # without a spawn key
    assert not np.allclose(replicate_weights(counts, 3, 0), unspawned * 4 / unspawned.sum(1, keepdims=True))


def test_replicate_weights_are_positive():
    weights = replicate_weights(np.full(2000, 0.01), 20, seed=0)  # most gamma draws are below 1e-30
    assert weights.min() > 0 and weights.min() >= MIN_WEIGHT * 1e-3


def make_interrupted_fit(at):
    calls = []

    def fit(row):
        calls.append(row)
        if len(calls) == at:
            raise KeyboardInterrupt
        return row.sum()

    return fit


def test_replicate_fits_keep_finished_replicates_on_interrupt():
    with pytest.warns(FitWarning, match="2 of 5"):
        assert replicate_fits(make_interrupted_fit(3), np.ones((5, 2))) == [2.0, 2.0]


def test_replicate_fits_raise_on_interrupt_with_one_replicate():
    with pytest.raises(KeyboardInterrupt):
        replicate_fits(make_interrupted_fit(2), np.ones((5, 2)))


def test_replicate_fits_show_progress_if_verbose(capsys):
    replicate_fits(np.sum, np.ones((3, 2)))
    assert capsys.readouterr().err == ""
    replicate_fits(np.sum, np.ones((3, 2)), verbose=1)
    assert "replicates" in capsys.readouterr().err


def test_refitted_weights_end_all_fits_if_one_was_interrupted():
    weights = torch.ones(2, 3)
    finished, interrupted = (SimpleNamespace(interrupted=value) for value in (False, True))
    np.testing.assert_array_equal(refitted_weights(SimpleNamespace(weights=weights, report=finished)), weights)
    with pytest.raises(KeyboardInterrupt):
        refitted_weights(SimpleNamespace(weights=weights, report=interrupted))
