"""Likelihoods by what the values look like."""

import numpy as np
import pandas as pd
import pytest

from ovkgp.exceptions import OptionError
from ovkgp.recipes.factory import Outputs, choose_likelihoods, likelihood_of

NAN = np.nan


@pytest.mark.parametrize(
    ("values", "name"),
    [
        ([0, 1, 0], "bernoulli"),
        ([1, NAN, 1], "bernoulli"),
        ([0, 1, 2], "negative_binomial"),
        ([5, 1000, NAN], "negative_binomial"),
        ([0, 1, -1], "gaussian"),
        ([0, 1, 0.5], "gaussian"),
        ([1e300, 0.5], "gaussian"),
    ],
)
def test_labels_counts_and_numbers(values, name):
    assert likelihood_of(values) == name


TABLE = pd.DataFrame({"bought": [0, 1, 0], "visits": [3, 0, NAN], "price": [0.5, 1.5, 2.5]})


def test_columns_that_a_table_does_not_name_go_by_their_values():
    outputs = Outputs.of(TABLE)
    assert choose_likelihoods("by_values", outputs) == ["bernoulli", "negative_binomial", "gaussian"]
    assert choose_likelihoods({"price": "student_t"}, outputs) == ["bernoulli", "negative_binomial", "student_t"]
    assert choose_likelihoods({"1": "poisson"}, outputs) == ["bernoulli", "poisson", "gaussian"]


def test_where_all_are_gaussian_there_is_one_word():
    assert choose_likelihoods("by_values", Outputs.of(TABLE[["price"]])) == "gaussian"
    assert choose_likelihoods({"bought": "gaussian"}, Outputs.of(TABLE[["bought", "price"]])) == "gaussian"


def test_a_column_that_there_is_not():
    with pytest.raises(OptionError, match=r"likelihood speaks of the output 'prize' \(did you mean 'price'\?\)"):
        choose_likelihoods({"prize": "poisson"}, Outputs.of(TABLE))
