"""Columns of Y by name or number."""

import numpy as np
import pandas as pd
import pytest
import torch

from ovkgp.exceptions import InputError, OptionError
from ovkgp.recipes.factory import Outputs


def test_names_come_from_data_frames_and_series():
    assert Outputs.of(pd.DataFrame({"a": [1.0], 7: [2.0]})).names == ["a", "7"]
    assert Outputs.of(pd.Series([1.0, 2.0], name="a")).names == ["a"]


@pytest.mark.parametrize("Y", [np.ones((3, 2)), torch.ones(3, 2), [[1, 1], [1, 1], [1, 1]]])
def test_columns_without_names_are_numbered(Y):
    outputs = Outputs.of(Y)
    assert outputs.names == ["y0", "y1"]
    assert outputs.values.shape == (3, 2)


def test_one_column_may_be_flat():
    assert Outputs.of(np.ones(3)).values.shape == (3, 1)


def test_a_name_comes_before_a_number():
    outputs = Outputs.of(pd.DataFrame({"1": [1.0], "0": [2.0]}))
    assert (outputs.number("1", "edges"), outputs.number(1, "edges")) == (0, 1)
    assert Outputs.of(np.ones((2, 3))).number("2", "edges") == 2


@pytest.mark.parametrize("key", ["east", 2, "2", "-1", "²"])
def test_columns_that_there_are_not(key):
    outputs = Outputs.of(pd.DataFrame({"easting": [1.0], "north": [2.0]}))
    with pytest.raises(
        OptionError, match=r"edges speaks of the output .*; the columns of Y are easting, north, or 0 to 1"
    ):
        outputs.number(key, "edges")


def test_words_are_no_outputs():
    with pytest.raises((InputError, ValueError)):
        Outputs.of(np.array([["a"], ["b"]]))
