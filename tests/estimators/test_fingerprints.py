"""Fingerprints: equal for equal things in every process, and different otherwise."""

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

from ovkgp.estimators.selection.study_journal import fingerprint

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
def test_equal_things_are_alike_and_others_are_not(one, same, other):
    assert fingerprint(one) == fingerprint(same)
    assert fingerprint(one) != fingerprint(other)


SCRIPT = """
import numpy as np
from gpytorch.kernels import RBFKernel
import ovkgp
from ovkgp.estimators.selection.study_journal import fingerprint
found = fingerprint([ovkgp.GPRegressor(RBFKernel()), np.arange(3), lambda x: x, object(), {1.5, None}])
print(found)
"""


def test_they_are_the_same_in_another_process(capsys):
    here = {"__name__": "__main__"}
    exec(SCRIPT, here)
    there = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    assert there.stdout.strip() == here["found"]
