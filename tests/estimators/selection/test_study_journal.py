"""Tests of `ovkgp.estimators.selection.study_journal`."""

import math
import os
import pickle
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
import torch
from gpytorch.kernels import RBFKernel
from sklearn.linear_model import Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from ovkgp.estimators.selection.search_space import make_space
from ovkgp.estimators.selection.study_journal import SearchJournal, Trial, compute_fingerprint
from ovkgp.exceptions import InputError, OptionError

A = np.arange(6.0).reshape(2, 3)


def kernel(lengthscale):
    made = RBFKernel()
    made.lengthscale = lengthscale
    return made


@pytest.mark.parametrize(
    "one, same, other",
    [
        (A, A.copy(order="F"), A + 1e-12),
        (A, A.copy(), A.astype(np.float32)),
        (A, A.copy(), A.reshape(3, 2)),
        (torch.tensor([1.0]), torch.tensor([1.0]), torch.tensor([2.0])),
        (pd.DataFrame(A, columns=list("abc")), pd.DataFrame(A, columns=list("abc")), pd.DataFrame(A)),
        (scipy.sparse.csr_array(A), scipy.sparse.csc_array(A), scipy.sparse.csr_array(2 * A)),
        (np.array(["x", None], dtype=object), np.array(["x", None], dtype=object), np.array(["y", None], dtype=object)),
        (Ridge(alpha=2), Ridge(alpha=2), Ridge(alpha=3)),
        (make_pipeline(StandardScaler(), Ridge(2)), make_pipeline(StandardScaler(), Ridge(2)), make_pipeline(Ridge(2))),
        (kernel(1.0), kernel(1.0), kernel(1.5)),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, {"a": 1}),
        (np.mean, np.mean, np.sum),
        (None, None, "None"),
    ],
)
def test_fingerprint_is_equal_only_for_equal_values(one, same, other):
    assert compute_fingerprint(one) == compute_fingerprint(same)
    assert compute_fingerprint(one) != compute_fingerprint(other)


SCRIPT = """
import numpy as np
from gpytorch.kernels import RBFKernel
import ovkgp
from ovkgp.estimators.selection.study_journal import compute_fingerprint
found = compute_fingerprint([ovkgp.GPRegressor(RBFKernel()), np.arange(3), lambda x: x, object(), {1.5, None}])
print(found)
"""


@pytest.mark.slow
def test_fingerprint_is_equal_in_another_process(capsys):
    here = {"__name__": "__main__"}
    exec(SCRIPT, here)
    there = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    assert there.stdout.strip() == here["found"]


SPACE = make_space({"a": (0.1, 1.0), "b": (1, 5), "c": ["x", None]})
TRIAL = Trial({"a": 1 / 3, "b": 4, "c": 1}, -1 / 7, {"fit_time": [0.1, 0.2], "test_score": [-1 / 7, math.nan]})


def journal(path, **options):
    return SearchJournal(path, SPACE, {"data": "one"}, **({"seed": 3} | options))


def test_journal_restores_numbers_exactly(tmp_path):
    journal(tmp_path / "s").add(TRIAL)
    journal(tmp_path / "s").add(Trial({"a": 0.2, "b": 1, "c": 0}, math.nan, error="no"))
    first, second = journal(tmp_path / "s").trials
    assert (first.point, first.score) == (TRIAL.point, TRIAL.score)
    assert first.results["fit_time"] == [0.1, 0.2] and math.isnan(first.results["test_score"][1])
    assert math.isnan(second.score) and second.error == "no" and second.results == {}


def test_journal_without_path_writes_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    memory = journal(None)
    memory.add(TRIAL)
    assert memory.trials == [TRIAL] and os.listdir(tmp_path) == []


def test_journal_removes_its_lock(tmp_path):
    journal(tmp_path / "s").add(TRIAL)
    assert os.listdir(tmp_path) == ["s"]


@pytest.mark.parametrize("path", ["missing/s", "."])
def test_journal_rejects_unwritable_path(tmp_path, path):
    with pytest.raises(InputError, match=r"study must be .* folder"):
        journal(tmp_path / path)


@pytest.mark.parametrize(
    "content",
    [
        b"not a study\n",
        b"no line end",
        b"\x00\xff\xfe\n",
        b"[1, 2]\n",
        b'{"op_code": 0}\n',
        b'{"some": "json"}\n',
        pickle.dumps({}),
    ],
)
def test_journal_rejects_other_files_and_keeps_them(tmp_path, content):
    path = tmp_path / "s"
    path.write_bytes(content)
    with pytest.raises(InputError, match="not a study file"):
        journal(path)
    assert path.read_bytes() == content


def test_journal_rejects_damaged_line(tmp_path):
    path = tmp_path / "s"
    journal(path).add(TRIAL)
    lines = path.read_bytes().split(b"\n")
    lines[1] = lines[1][:-4]
    path.write_bytes(b"\n".join(lines))
    with pytest.raises(InputError, match="line 2"):
        journal(path)


def test_journal_drops_incomplete_last_line(tmp_path):
    path = tmp_path / "s"
    journal(path).add(TRIAL)
    complete = path.read_bytes()
    journal(path).add(TRIAL)
    longer = path.read_bytes()
    for cut in (len(complete) + 1, len(longer) - 1):
        path.write_bytes(longer[:cut])
        assert len(journal(path).trials) == 1
        assert path.read_bytes() == complete
    journal(path).add(TRIAL)
    assert len(journal(path).trials) == 2


def test_journal_restarts_study_killed_during_creation(tmp_path):
    path = tmp_path / "s"
    journal(path)
    content = path.read_bytes()
    for cut in range(0, len(content)):
        path.write_bytes(content[:cut])
        assert journal(path, seed=8).trials == []


def test_journal_uses_stored_seed_and_rejects_another(tmp_path):
    journal(tmp_path / "s")
    assert journal(tmp_path / "s", seed=4, is_fixed=False).seed == 3
    with pytest.raises(OptionError, match="random_state"):
        journal(tmp_path / "s", seed=4)


def test_journal_error_names_all_changed_aspects(tmp_path):
    SearchJournal(tmp_path / "s", SPACE, {"data": "one", "folds": "two", "scoring": "r2"}, 0)
    with pytest.raises(OptionError, match=r": data, folds\)"):
        SearchJournal(tmp_path / "s", SPACE, {"data": "1", "folds": "2", "scoring": "r2"}, 0)


def test_journal_rejects_changed_contents(tmp_path):
    path = tmp_path / "s"
    for score in (0.25, 0.5, 0.75):
        journal(path).add(Trial({"a": 0.2, "b": 1, "c": 0}, score))
    assert [trial.score for trial in journal(path).trials] == [0.25, 0.5, 0.75]
    content = path.read_bytes()
    (second,) = [line for line in content.split(b"\n") if b"0.5" in line]
    for changed in (content.replace(b"0.5", b"0.9"), content.replace(second + b"\n", b"")):
        path.write_bytes(changed)
        with pytest.raises(InputError, match="trial 1 does not match its checksum"):
            journal(path)
