import numpy as np
import pytest
import torch

from ovkgp.checks import check_integer
from ovkgp.exceptions import OptionError


@pytest.mark.parametrize("value", [3, np.int32(3), torch.tensor(3)])
def test_whole_numbers_become_integers(value):
    number = check_integer("rank", value)
    assert number == 3 and type(number) is int


@pytest.mark.parametrize("value", [2.0, 2.5, "2", None, torch.tensor(2.0)])
def test_anything_else_is_refused(value):
    with pytest.raises(OptionError, match="rank must be a whole number"):
        check_integer("rank", value)


def test_too_small_is_refused_where_there_is_a_least_value():
    with pytest.raises(OptionError, match="rank must be at least 1, got 0"):
        check_integer("rank", 0)
    assert check_integer("rank", -2, least=None) == -2
