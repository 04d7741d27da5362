"""Random rows for training: their number, their order, and outputs that are rarely observed."""

import numpy as np
import pytest
import torch

from ovkgp.exceptions import OptionError
from ovkgp.inference.model.observations import Observations
from ovkgp.inference.model.row_sample import FEWEST, random_rows, training_subset


def all_seen(n=1000, p=2):
    return np.ones((n, p), dtype=bool)


@pytest.mark.parametrize("num_rows", [1, 10, 999])
def test_so_many_rows_in_order_and_reproducible(num_rows):
    rows = random_rows(all_seen(), num_rows, random_state=3)
    assert len(rows) == num_rows
    assert (np.diff(rows) > 0).all()
    assert np.array_equal(rows, random_rows(all_seen(), num_rows, random_state=3))
    if num_rows == 10:
        assert not np.array_equal(rows, random_rows(all_seen(), num_rows, random_state=4))


def test_every_row_is_as_likely():
    counts = sum(np.bincount(random_rows(all_seen(20), 5, seed), minlength=20) for seed in range(2000))
    assert np.abs(counts / 2000 - 0.25).max() < 0.05  # five standard errors


def test_a_rare_output_keeps_all_it_has():
    seen = all_seen(2000)
    seen[:, 1] = False
    seen[::100, 1] = True  # 20 entries
    rows = random_rows(seen, 300, random_state=0)
    assert seen[rows, 1].sum() == 20
    assert 300 < len(rows) <= 320


def test_an_output_that_is_less_rare_keeps_enough():
    seen = all_seen(20_000)
    seen[:, 1] = False
    seen[::50, 1] = True  # 400 entries
    rows = random_rows(seen, 500, random_state=0)
    assert seen[rows, 1].sum() == FEWEST
    assert len(rows) < 500 + FEWEST


def test_many_rare_outputs_at_most_double_the_rows():
    outputs = np.arange(20_000) % 1000  # one output a row
    seen = outputs[:, None] == np.arange(1000)
    rows = random_rows(seen, 2000, random_state=0)
    assert 2000 < len(rows) <= 4000
    assert seen[rows].sum(0).min() >= 2


def test_rows_in_which_nothing_is_seen_are_not_taken():
    seen = all_seen(100)
    seen[:50] = False
    rows = random_rows(seen, 20, random_state=0)
    assert len(rows) == 20 and rows.min() >= 50
    assert len(random_rows(seen, 80, random_state=0)) == 50


def test_subset_of_data_has_rows_that_belong_together():
    X = torch.arange(100.0).unsqueeze(-1)
    data = Observations(X, torch.cat([X, 2 * X], 1), 1 + torch.cat([X, X], 1))
    subset = training_subset(data, 30, random_state=0)
    assert subset.num_rows == 30
    assert torch.equal(subset.Y, torch.cat([subset.X, 2 * subset.X], 1))
    assert torch.equal(subset.noise, 1 + torch.cat([subset.X, subset.X], 1))


@pytest.mark.parametrize("num_rows", [None, 100, 1000])
def test_what_is_small_enough_is_taken_whole(num_rows):
    X = torch.arange(100.0).unsqueeze(-1)
    data = Observations(X, X)
    assert training_subset(data, num_rows) is data


@pytest.mark.parametrize("bad", [0, -3, 2.5, "all"])
def test_numbers_of_rows_that_are_none(bad):
    X = torch.arange(100.0).unsqueeze(-1)
    with pytest.raises(OptionError, match="training_rows"):
        training_subset(Observations(X, X), bad)
