"""The first pass over chunks: what it counts, how ranks merge it, and the chunks that it refuses."""

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
import torch
from thread_ranks import on_ranks

from ovkgp.estimators.common.streaming import ROWS_AT_ONCE, Chunks, survey
from ovkgp.exceptions import DistributedError, InputError


def table(n=100, seed=0):
    rng = np.random.default_rng(seed)
    X, Y = rng.uniform(0, 5, (n, 2)), rng.standard_normal((n, 3))
    Y[rng.random(Y.shape) < 0.3] = np.nan
    Y[:3] = np.nan  # rows in which nothing was seen
    return X, Y


def cut(X, Y, *at):
    return list(zip(np.split(X, at), np.split(Y, at), strict=True))


def equal(a, b):
    assert (a.columns, a.num_rows, a.num_seen_rows) == (b.columns, b.num_rows, b.num_seen_rows)
    np.testing.assert_array_equal(a.sample.X, b.sample.X)
    np.testing.assert_array_equal(a.sample.Y, b.sample.Y)
    for mine, yours in ((a.inputs, b.inputs), (a.outputs, b.outputs)):
        np.testing.assert_array_equal(mine.count, yours.count)
        np.testing.assert_allclose(mine.mean, yours.mean, rtol=1e-12, atol=1e-14)
        np.testing.assert_allclose(mine.std, yours.std, rtol=1e-12)


def test_what_a_survey_counts():
    X, Y = table()
    found = survey(cut(X, Y, 10, 60), limit=30)
    assert (found.num_rows, found.num_seen_rows) == (100, np.isfinite(Y).any(1).sum())
    assert (found.columns.num_inputs, found.columns.num_outputs) == (2, 3)
    np.testing.assert_array_equal(found.outputs.count, np.isfinite(Y).sum(0))
    np.testing.assert_allclose(found.inputs.mean, X.mean(0))  # of all rows, as the scaling of a table is
    assert len(found.table.X) >= 30


@pytest.mark.parametrize("at", [(), (1,), (50, 50, 99), tuple(range(1, 100))])
def test_any_cutting_gives_one_survey(at):
    X, Y = table()
    equal(survey(cut(X, Y, *at), 30), survey([(X, Y)], 30))


@pytest.mark.parametrize("size", [2, 3, 5])
def test_ranks_give_one_survey(size):
    X, Y = table()
    shards = [cut(X[k::size], Y[k::size], 7) for k in range(size - 1)] + [[(X[size - 1 :: size], Y[size - 1 :: size])]]
    for found in on_ranks(size, lambda ranks: survey(shards[ranks.rank], 30, ranks)):
        equal(found, survey([(X, Y)], 30))


def test_ranks_without_rows():
    X, Y = table()
    shards = [[], [(X, Y)], [(X[:0], Y[:0])]]
    for found in on_ranks(3, lambda ranks: survey(shards[ranks.rank], 30, ranks)):
        equal(found, survey([(X, Y)], 30))


def test_long_chunks_are_taken_in_parts():
    X = np.zeros((ROWS_AT_ONCE + 5, 1))
    assert [len(part.X) for part in Chunks([(X, X)])] == [ROWS_AT_ONCE, 5]


def test_arrays_tensors_frames_and_lists_are_the_same():
    X, Y = table()
    plain = survey([(X, Y)], 30)
    equal(survey([(torch.from_numpy(X), torch.from_numpy(Y))], 30), plain)
    equal(survey([[X.tolist(), Y.tolist()]], 30), plain)
    framed = survey([(pd.DataFrame(X, columns=["a", "b"]), pd.DataFrame(Y, columns=["u", "v", "w"]))], 30)
    assert framed.columns[2:4] == (("a", "b"), ("u", "v", "w"))
    np.testing.assert_array_equal(framed.sample.X, plain.sample.X)


def test_names_of_the_columns_come_from_a_stream():
    class Named(list):
        inputs, outputs = ["east", "north"], ["u", "v", "w"]

    found = survey(Named(cut(*table(), 30)), 30)
    assert found.columns.inputs == ("east", "north") and found.columns.outputs == ("u", "v", "w")


def test_chunks_that_can_be_read_only_once():
    X, Y = table()
    for once in (iter([(X, Y)]), (pair for pair in [(X, Y)])):
        with pytest.raises(InputError, match="two passes"):
            survey(once, 30)


@pytest.mark.parametrize("what", [5, None])
def test_no_chunks_at_all(what):
    with pytest.raises(InputError, match="list of chunks"):
        survey(what, 30)


@pytest.mark.parametrize("chunks", [[], [(np.zeros((0, 2)), np.zeros((0, 1)))]])
def test_no_rows_at_all(chunks):
    with pytest.raises(InputError, match="no rows"):
        survey(chunks, 30)


X, Y = table()
BAD = {
    "NaN in X": ((np.where(X > 4.9, np.nan, X), Y), "contains NaN"),
    "infinity in Y": ((X, np.where(Y > 2, np.inf, Y)), "contains infinity"),
    "more inputs": ((np.hstack([X, X]), Y), "4 features"),
    "fewer outputs": ((X, Y[:, :2]), "2 outputs here and 3 before"),
    "rows that do not match": ((X[:5], Y), "inconsistent numbers"),
    "text": ((np.full((100, 2), "a"), Y), "could not convert|dtype"),
    "sparse": ((scipy.sparse.csr_matrix(X), Y), "[Ss]parse"),
    "three axes": ((X, Y[None]), "inconsistent|dim"),
    "no outputs": ((X, None), "requires y"),
    "one array": (X, "not a pair"),
    "three arrays": ((X, Y, Y), "not a pair"),
    "other names": ((X, pd.DataFrame(Y, columns=["a", "b", "c"])), "called"),
}


@pytest.mark.parametrize(("chunk", "message"), BAD.values(), ids=BAD)
def test_a_bad_chunk_is_named(chunk, message):
    good = (X, pd.DataFrame(Y, columns=["u", "v", "w"]))
    with pytest.raises(InputError, match=rf"chunk 1.*({message})"):
        survey([good, chunk], 30)


def test_an_output_that_nobody_observed():
    X, Y = table()
    Y[:, 1] = np.nan
    with pytest.raises(InputError, match="nobody observed output 1 "):
        survey([(X, Y)], 30)
    with pytest.raises(InputError, match="nobody observed output 'v' "):
        survey([(X, pd.DataFrame(Y, columns=["u", "v", "w"]))], 30)
    with pytest.raises(InputError, match="every entry of Y is missing"):
        survey([(X, np.full_like(Y, np.nan))], 30)


def test_a_bad_chunk_on_one_rank_is_an_error_on_all():
    good, bad = [(X, Y)], [(X, Y), (np.full_like(X, np.nan), Y)]
    first, second = on_ranks(2, lambda ranks: survey(bad if ranks.rank else good, 30, ranks))
    assert isinstance(second, InputError) and "chunk 1" in str(second)
    assert isinstance(first, DistributedError) and "rank 1 failed while surveying the data" in str(first)


def test_ranks_with_other_columns():
    for error in on_ranks(2, lambda ranks: survey([(X, Y[:, : 2 + ranks.rank])], 30, ranks)):
        assert isinstance(error, InputError) and "rank 1" in str(error) and "3 outputs here and 2 before" in str(error)
