"""The box around the inputs of a table."""

import numpy as np
import pandas as pd
import pytest
from cli_cases import write_waves

from ovkgp.cli.feature_counts import box_of
from ovkgp.exceptions import InputError


def test_the_box_of_a_table(tmp_path):
    rng = np.random.default_rng(0)
    X = 1e6 + np.hstack([rng.normal(size=(500, 1)), 7 * rng.normal(size=(500, 1)), np.ones((500, 1))])
    pd.DataFrame(X, columns=["a", "b", "c"]).to_csv(tmp_path / "t.csv", index=False)
    box = box_of(str(tmp_path / "t.csv"), "a,b,c", None, ",")
    expected = np.linalg.norm(np.ptp(X[:, :2], axis=0) / X[:, :2].std(0))
    assert (box.num_rows, box.num_dims, box.num_outputs) == (500, 3, None)
    assert box.diagonal == pytest.approx(expected, rel=1e-6)
    with pytest.raises(InputError, match="input 'site' is not a number"):
        box_of(str(write_waves(tmp_path)), "site", None, ",")
