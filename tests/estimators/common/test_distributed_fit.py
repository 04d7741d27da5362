"""Tests of estimators on several processes: results equal those of one process, and errors reach all ranks."""

import json

import numpy as np
import pytest
from distributed_scripts.cases import CASES, decomposable, fit_all, fixed, grid, table
from launching import bare, torchrun

import ovkgp

RIDGES = ("ridge, complete", "ridge, missing", "file, .csv", "file, .parquet", "ridge, dates")


@pytest.fixture(scope="module")
def single_process():
    """Results of one process."""
    return fit_all()


@pytest.fixture(scope="module", params=[2, pytest.param(3, marks=pytest.mark.slow)])
def shared(request, tmp_path_factory):
    """Results and errors of each of several processes, and their folder."""
    folder = tmp_path_factory.mktemp(f"ranks{request.param}")
    torchrun(request.param, "fit_shards.py", folder)
    arrays = [dict(np.load(path)) for path in sorted(folder.glob("rank*.npz"))]
    errors = [json.loads(path.read_text()) for path in sorted(folder.glob("rank*.json"))]
    assert len(arrays) == len(errors) == request.param
    return arrays, errors, folder


@pytest.mark.slow
def test_distributed_fit_equals_single_process_fit(single_process, shared):
    arrays, _, _ = shared
    assert {name.split("/")[0] for name in single_process} == {*CASES, "partial", "rare output", *RIDGES}
    for name, expected in single_process.items():
        if expected.dtype.kind == "U":
            assert arrays[0][name] == expected
            continue
        np.testing.assert_allclose(arrays[0][name], expected, rtol=1e-8, atol=1e-8, err_msg=name)


@pytest.mark.slow
def test_distributed_fit_is_bitwise_equal_on_all_ranks(shared):
    (first, *others), _, _ = shared
    for other in others:
        assert other.keys() == first.keys()
        for name, value in other.items():
            np.testing.assert_array_equal(value, first[name], err_msg=name)


def test_distributed_fit_trains_the_hyperparameters(single_process, shared):
    initial = ovkgp.GPRegressor("decomposable", hyperparameters="fixed", num_frequencies=20, random_state=0)
    initial.fit_stream([table(missing=0.4)])
    assert not np.allclose(initial.predict(grid()), single_process["trained/mean"], atol=1e-3)


def test_distributed_fit_raises_on_all_ranks_if_one_fails(shared):
    _, errors, _ = shared
    size, last = len(errors), errors[-1]
    assert last["bad row"][0] == "InputError" and last["bad row"][1].startswith(
        "Chunk 0: X must be finite, got NaN in row 3"
    )
    assert last["bad row, added"][0] == "InputError" and "got NaN in row" in last["bad row, added"][1]
    assert last["one-shot"][0] == "InputError" and "two passes" in last["one-shot"][1]
    for rank, found in enumerate(errors):
        for case in ("bad row", "bad row, added", "one-shot"):
            if rank < size - 1:
                assert found[case][0] == "DistributedError" and f"rank {size - 1} failed while" in found[case][1]
        assert found["kept"], "a failed fit must restore the model"


def test_distributed_fit_raises_the_same_error_on_all_ranks_for_invalid_totals(shared):
    _, errors, _ = shared
    for found in errors:
        assert found["unobserved"] == errors[0]["unobserved"] and "output 1" in found["unobserved"][1]
        assert found["width"] == errors[0]["width"] and f"rank {len(errors) - 1}" in found["width"][1]
        assert found["no rows"] == errors[0]["no rows"]
        assert found["no rows"][0] == "InputError" and "no rows" in found["no rows"][1]
        assert found["different calls"][0] == "DistributedError"
        assert "same methods in the same order" in found["different calls"][1]
        assert found["option"][0] == "OptionError" and "rank must be" in found["option"][1]


def test_saved_distributed_model_predicts_in_one_process(shared):
    arrays, _, folder = shared
    loaded = ovkgp.load(folder / "model.ovkgp")
    assert loaded.distributed
    X, Y = table()
    np.testing.assert_allclose(loaded.predict(X), arrays[0]["again/mean"], rtol=1e-12, atol=1e-12)  # conditioned again
    further = fixed(decomposable()).fit(X, Y).partial_fit(X[:9] + 0.1, Y[:9])
    np.testing.assert_allclose(loaded.partial_fit(X[:9] + 0.1, Y[:9]).predict(X), further.predict(X), atol=1e-8)


@pytest.mark.slow
@pytest.mark.parametrize(("size", "dying", "when"), [(3, 1, "reading"), (2, 0, "training")])
def test_distributed_fit_raises_if_a_process_is_killed(size, dying, when, tmp_path):
    codes = bare(size, "lose_a_rank.py", tmp_path, dying, when)
    assert [code != 0 for code in codes] == [rank == dying for rank in range(size)]
    files = {rank: tmp_path / f"rank{rank}.json" for rank in range(size) if rank != dying}
    for rank, path in files.items():
        found = json.loads(path.read_text())
        assert f"rank {rank} of {size} lost the others while" in found["message"]
        assert found["seconds"] < 60
