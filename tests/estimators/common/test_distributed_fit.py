"""Estimators on several processes: the answer of one, to the bit the same on all, and errors instead of waiting."""

import json

import numpy as np
import pytest
from distributed_scripts.cases import CASES, decomposable, fit_all, fixed, grid, table
from launching import bare, torchrun

import ovkgp

RIDGES = ("ridge, complete", "ridge, missing", "file, .csv", "file, .parquet")


@pytest.fixture(scope="module")
def alone():
    """The answers of one process."""
    return fit_all()


@pytest.fixture(scope="module", params=[2, 3])
def shared(request, tmp_path_factory):
    """The folder with the answers and errors of each of several processes."""
    folder = tmp_path_factory.mktemp(f"ranks{request.param}")
    torchrun(request.param, "fit_shards.py", folder)
    arrays = [dict(np.load(path)) for path in sorted(folder.glob("rank*.npz"))]
    errors = [json.loads(path.read_text()) for path in sorted(folder.glob("rank*.json"))]
    assert len(arrays) == len(errors) == request.param
    return arrays, errors, folder


def test_several_processes_give_the_answer_of_one(alone, shared):
    arrays, _, _ = shared
    assert {name.split("/")[0] for name in alone} == {*CASES, "partial", "apart", *RIDGES}
    for name, expected in alone.items():
        np.testing.assert_allclose(arrays[0][name], expected, rtol=1e-8, atol=1e-8, err_msg=name)


def test_every_rank_has_the_same_bits(shared):
    (first, *others), _, _ = shared
    for other in others:
        assert other.keys() == first.keys()
        for name, value in other.items():
            np.testing.assert_array_equal(value, first[name], err_msg=name)


def test_training_moved_the_hyperparameters(alone, shared):
    start = ovkgp.GPRegressor("decomposable", hyperparameters="fixed", num_frequencies=20, random_state=0)
    started = start.fit_stream([table(missing=0.4)])
    assert not np.allclose(started.predict(grid()), alone["trained/mean"], atol=1e-3)


def test_errors_of_one_rank_reach_all(shared):
    _, errors, _ = shared
    size, last = len(errors), errors[-1]
    assert last["bad row"] == ["InputError", "chunk 0: Input X contains NaN."]
    assert last["bad row, added"][0] == "ValueError" and "contains NaN" in last["bad row, added"][1]
    assert last["one-shot"][0] == "InputError" and "two passes" in last["one-shot"][1]
    for rank, told in enumerate(errors):
        for what in ("bad row", "bad row, added", "one-shot"):
            if rank < size - 1:
                assert told[what][0] == "DistributedError" and f"rank {size - 1} failed while" in told[what][1]
        assert told["kept"], "a failed fit leaves the model as it was"


def test_errors_of_the_whole_are_the_same_on_all(shared):
    _, errors, _ = shared
    for told in errors:
        assert told["unobserved"] == errors[0]["unobserved"] and "nobody observed output 1" in told["unobserved"][1]
        assert told["width"] == errors[0]["width"] and f"rank {len(errors) - 1}" in told["width"][1]
        assert told["no rows"] == ["InputError", "there is nothing to learn from: the chunks have no rows."]
        assert told["apart"][0] == "DistributedError" and "the same methods in the same order" in told["apart"][1]
    assert errors[0]["option"][0] == "OptionError" and errors[1]["option"][0] == "DistributedError"


def test_a_saved_model_predicts_in_one_process(shared):
    arrays, _, folder = shared
    loaded = ovkgp.load(folder / "model.ovkgp")
    assert loaded.distributed
    X, Y = table()
    np.testing.assert_array_equal(loaded.predict(X), arrays[0]["again/mean"])
    further = fixed(decomposable()).fit(X, Y).partial_fit(X[:9] + 0.1, Y[:9])
    np.testing.assert_allclose(loaded.partial_fit(X[:9] + 0.1, Y[:9]).predict(X), further.predict(X), atol=1e-8)


@pytest.mark.parametrize(("size", "dying", "when"), [(3, 1, "reading"), (2, 0, "training")])
def test_a_killed_process_is_noticed_by_the_others(size, dying, when, tmp_path):
    codes = bare(size, "lose_a_rank.py", tmp_path, dying, when)
    assert [code != 0 for code in codes] == [rank == dying for rank in range(size)]
    told = {rank: tmp_path / f"rank{rank}.json" for rank in range(size) if rank != dying}
    for rank, path in told.items():
        found = json.loads(path.read_text())
        assert f"rank {rank} of {size} lost the others while" in found["message"]
        assert found["seconds"] < 60
