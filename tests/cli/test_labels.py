"""Labels: numbers where all of them are, and in their order."""

import numpy as np
import pytest

from ovkgp.cli.tables import as_labels, in_order


@pytest.mark.parametrize(
    ("texts", "kind", "values"),
    [
        (["1", "-2"], "i", [1, -2]),
        (["0.5", "1.0"], "f", [0.5, 1.0]),
        (["1", "1.0"], "U", ["1", "1.0"]),
        (["007", "1"], "U", ["007", "1"]),
        (["1_000"], "U", ["1_000"]),
        (["yes", "no"], "U", ["yes", "no"]),
        ([True, False], "b", [True, False]),
        ([3, 4], "i", [3, 4]),
    ],
)
def test_texts_become_numbers_only_where_nothing_is_lost(texts, kind, values):
    found = as_labels(texts)
    assert found.dtype.kind == kind and found.tolist() == values


def test_order():
    assert in_order(["10", "2", "-1", "2"]) == ["-1", "2", "10"]
    assert in_order(["b", "a", "10", "9"]) == ["10", "9", "a", "b"]
    assert in_order(np.array(["b", "a"]).tolist()) == ["a", "b"]
