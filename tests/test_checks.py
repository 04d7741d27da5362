import numpy as np
import pytest
import torch

from ovkgp.checks import whole_number
from ovkgp.exceptions import OptionError


@pytest.mark.parametrize("value", [3, np.int32(3), torch.tensor(3)])
def test_whole_numbers_become_integers(value):
    number = whole_number("rank", value)
    assert number == 3 and type(number) is int


@pytest.mark.parametrize("value", [2.0, 2.5, "2", None, torch.tensor(2.0)])
def test_anything_else_is_refused(value):
    with pytest.raises(OptionError, match="rank must be a whole number"):
        whole_number("rank", value)


def test_too_small_is_refused_where_there_is_a_least_value():
    with pytest.raises(OptionError, match="rank must be at least 1, got 0"):
        whole_number("rank", 0)
    assert whole_number("rank", -2, least=None) == -2
