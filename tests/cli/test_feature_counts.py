"""Tests of `ovkgp.cli.feature_counts` that read tables."""

import numpy as np
import pandas as pd
import pytest
from cli_cases import write_table

from ovkgp.cli.feature_counts import measure_extent
from ovkgp.exceptions import InputError


def test_measure_extent_equals_standardized_diagonal(tmp_path):
    rng = np.random.default_rng(0)
    X = 1e6 + np.hstack([rng.normal(size=(500, 1)), 7 * rng.normal(size=(500, 1)), np.ones((500, 1))])
    pd.DataFrame(X, columns=["a", "b", "c"]).to_csv(tmp_path / "t.csv", index=False)
    *shape, diagonal = measure_extent(str(tmp_path / "t.csv"), "a,b,c", None, ",")
    expected = np.linalg.norm(np.ptp(X[:, :2], axis=0) / X[:, :2].std(0))
    assert shape == [500, 3, None]
    assert diagonal == pytest.approx(expected, rel=1e-6)
    with pytest.raises(InputError, match="'site'"):
        measure_extent(str(write_table(tmp_path)), "site", None, ",")
