"""Tests of `ovkgp.inference.model.row_sample`."""

import functools
import operator

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ovkgp.exceptions import OptionError
from ovkgp.inference.model.observations import Observations
from ovkgp.inference.model.row_sample import (
    MIN_SUBSET_OBSERVATIONS,
    RowSample,
    draw_folds,
    draw_random_rows,
    draw_training_subset,
)


def table(n=300, seed=0):
    """Rows with copies, of three outputs; the last is observed in about one of thirty rows."""
    rng = np.random.default_rng(seed)
    X, Y = rng.integers(0, 40, (n, 2)).astype(float), rng.integers(0, 3, (n, 3)).astype(float)
    Y[rng.random(n) < 0.97, 2] = np.nan
    Y[rng.random(n) < 0.3, 0] = np.nan
    X[n // 2 : n // 2 + 20], Y[n // 2 : n // 2 + 20] = X[:20], Y[:20]
    return X, Y


def same(a, b):
    return all(np.array_equal(getattr(a, name), getattr(b, name), equal_nan=True) for name in ("X", "Y")) and (
        np.array_equal(a.priorities, b.priorities)
    )


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 300), max_size=5), st.integers(1, 320), st.integers(0, 10_000))
def test_row_sample_is_independent_of_order_and_chunks(cuts, limit, seed):
    X, Y = table()
    whole = RowSample.from_table(X, Y, limit)
    order = np.random.default_rng(seed).permutation(300)
    first, *rest = (RowSample.from_table(X[part], Y[part], limit) for part in np.split(order, sorted(cuts)))
    assert same(sum(rest, first), whole)


def test_row_sample_of_small_table_is_the_table():
    X, Y = table()
    observed = np.isfinite(Y).any(1)
    found = RowSample.from_table(X, Y, 1000)
    rows, expected = (
        np.nan_to_num(np.hstack(pair), nan=-1) for pair in ((found.X, found.Y), (X[observed], Y[observed]))
    )
    assert sorted(map(tuple, rows)) == sorted(map(tuple, expected))  # copies as often as they occur


def test_row_sample_of_complete_outputs_has_limit_rows():
    X, _ = table()
    for limit in (1, 7, 299):
        assert len(RowSample.from_table(X, X, limit)) == limit


def test_row_sample_omits_rows_without_outputs():
    X, Y = table()
    blank = np.vstack([X, X[:50] + 100]), np.vstack([Y, np.full((50, 3), np.nan)])
    assert same(RowSample.from_table(*blank, 60), RowSample.from_table(X, Y, 60))


def test_row_sample_keeps_rarely_observed_output():
    X, Y = table(3000)
    found, num_observed = RowSample.from_table(X, Y, 300), np.isfinite(Y).sum(0)
    assert num_observed[2] > MIN_SUBSET_OBSERVATIONS
    assert np.isfinite(found.Y[:, 2]).sum() == MIN_SUBSET_OBSERVATIONS
    assert 300 <= len(found) <= 300 + MIN_SUBSET_OBSERVATIONS


def test_row_sample_keeps_output_observed_once():
    X, Y = table(1000)
    Y[:, 2] = np.nan
    Y[777, 2] = 5.0
    assert np.nansum(RowSample.from_table(X, Y, 10).Y[:, 2]) == 5.0


def test_row_sample_at_most_doubles_for_many_outputs():
    rng = np.random.default_rng(0)
    X, Y = rng.random((500, 1)), rng.random((500, 40))
    Y[rng.random(Y.shape) < 0.95] = np.nan
    assert len(RowSample.from_table(X, Y, 80)) <= 160


def test_row_sample_is_representative():
    """The mean of 2000 of 20 000 rows lies within five standard errors, for inputs on a grid too."""
    rng = np.random.default_rng(3)
    X = np.c_[np.arange(20_000.0), rng.standard_normal(20_000)]
    found = RowSample.from_table(X, X[:, :1], 2000)
    error = np.abs(found.X.mean(0) - X.mean(0)) / (X.std(0) / np.sqrt(2000))
    assert error.max() < 5


def test_row_sample_of_single_precision_equals_double():
    X, Y = table()
    assert same(RowSample.from_table(X.astype(np.float32), Y.astype(np.float32), 60), RowSample.from_table(X, Y, 60))


def test_row_sample_keeps_proportion_of_copies():
    """A table of few distinct rows: the sample is in the proportions of the table, not of its hashes."""
    rng = np.random.default_rng(0)
    X = rng.integers(0, 10, (50_000, 1)).astype(float)
    Y = (rng.random((50_000, 1)) < X / 10).astype(float)
    sample = RowSample.from_table(X, Y, 1000)
    assert abs(len(sample) - 1000) < 30
    for value in range(10):
        for outcome in (0.0, 1.0):
            wanted = np.mean((value == X) & (outcome == Y))
            assert np.mean((value == sample.X) & (outcome == sample.Y)) == pytest.approx(wanted, abs=2.5e-3)
    order = rng.permutation(50_000)
    parts = [RowSample.from_table(X[order[i : i + 777]], Y[order[i : i + 777]], 1000) for i in range(0, 50_000, 777)]
    merged = functools.reduce(operator.add, parts)
    np.testing.assert_array_equal(merged.X, sample.X)
    np.testing.assert_array_equal(merged.Y, sample.Y)


def test_row_sample_of_small_table_keeps_copies():
    X = np.array([[1.0], [2.0], [1.0], [1.0]])
    sample = RowSample.from_table(X, np.ones((4, 1)), 10)
    assert sorted(sample.X.ravel()) == [1.0, 1.0, 1.0, 2.0]


def all_observed(n=1000, p=2):
    return np.ones((n, p), dtype=bool)


@pytest.mark.parametrize("num_rows", [1, 10, 999])
def test_draw_random_rows_is_sorted_and_reproducible(num_rows):
    rows = draw_random_rows(all_observed(), num_rows, random_state=3)
    assert len(rows) == num_rows
    assert (np.diff(rows) > 0).all()
    assert np.array_equal(rows, draw_random_rows(all_observed(), num_rows, random_state=3))
    if num_rows == 10:
        assert not np.array_equal(rows, draw_random_rows(all_observed(), num_rows, random_state=4))


def test_draw_random_rows_is_uniform():
    counts = sum(np.bincount(draw_random_rows(all_observed(20), 5, seed), minlength=20) for seed in range(2000))
    assert np.abs(counts / 2000 - 0.25).max() < 0.05  # five standard errors


def test_draw_random_rows_keeps_all_rows_of_rare_output():
    observed = all_observed(2000)
    observed[:, 1] = False
    observed[::100, 1] = True  # 20 entries
    rows = draw_random_rows(observed, 300, random_state=0)
    assert observed[rows, 1].sum() == 20
    assert 300 < len(rows) <= 320


def test_draw_random_rows_keeps_minimum_of_less_rare_output():
    observed = all_observed(20_000)
    observed[:, 1] = False
    observed[::50, 1] = True  # 400 entries
    rows = draw_random_rows(observed, 500, random_state=0)
    assert observed[rows, 1].sum() == MIN_SUBSET_OBSERVATIONS
    assert len(rows) < 500 + MIN_SUBSET_OBSERVATIONS


def test_draw_random_rows_at_most_doubles_for_rare_outputs():
    outputs = np.arange(20_000) % 1000  # one output a row
    observed = outputs[:, None] == np.arange(1000)
    rows = draw_random_rows(observed, 2000, random_state=0)
    assert 2000 < len(rows) <= 4000
    assert observed[rows].sum(0).min() >= 2


def test_draw_random_rows_omits_rows_without_outputs():
    observed = all_observed(100)
    observed[:50] = False
    rows = draw_random_rows(observed, 20, random_state=0)
    assert len(rows) == 20 and rows.min() >= 50
    assert len(draw_random_rows(observed, 80, random_state=0)) == 50


def test_draw_training_subset_keeps_rows_together():
    X = torch.arange(100.0).unsqueeze(-1)
    data = Observations(X, torch.cat([X, 2 * X], 1), 1 + torch.cat([X, X], 1))
    subset = draw_training_subset(data, 30, random_state=0)
    assert subset.num_rows == 30
    assert torch.equal(subset.Y, torch.cat([subset.X, 2 * subset.X], 1))
    assert torch.equal(subset.noise, 1 + torch.cat([subset.X, subset.X], 1))


@pytest.mark.parametrize("num_rows", [None, 100, 1000])
def test_draw_training_subset_returns_small_data_unchanged(num_rows):
    X = torch.arange(100.0).unsqueeze(-1)
    data = Observations(X, X)
    assert draw_training_subset(data, num_rows) is data


@pytest.mark.parametrize("bad", [0, -3, 2.5, "all"])
def test_draw_training_subset_rejects_invalid_number_of_rows(bad):
    X = torch.arange(100.0).unsqueeze(-1)
    with pytest.raises(OptionError, match="training_rows"):
        draw_training_subset(Observations(X, X), bad)


@pytest.mark.parametrize(("num_rows", "counts"), [(3, [1, 1, 1]), (12, [3, 3, 2, 2, 2])])
def test_draw_folds_are_of_equal_size(num_rows, counts):
    folds = draw_folds(num_rows, 1)
    assert np.bincount(folds).tolist() == counts
    np.testing.assert_array_equal(folds, draw_folds(num_rows, 1))
