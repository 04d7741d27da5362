import numpy as np
import pytest
import torch

from ovkgp.checks import (
    as_numbers,
    check_integer,
    check_nonnegative,
    check_one_of,
    check_positive,
    check_probability,
    check_range,
)
from ovkgp.exceptions import InputError, OptionError


@pytest.mark.parametrize("value", [3, np.int32(3), torch.tensor(3)])
def test_check_integer_returns_int(value):
    number = check_integer("rank", value)
    assert number == 3 and type(number) is int


@pytest.mark.parametrize("value", [2.0, 2.5, "2", None, torch.tensor(2.0)])
def test_check_integer_rejects_other_types(value):
    with pytest.raises(OptionError, match="rank"):
        check_integer("rank", value)


def test_check_integer_rejects_values_below_minimum():
    with pytest.raises(OptionError, match="rank must be at least 1, got 0"):
        check_integer("rank", 0)
    assert check_integer("rank", -2, minimum=None) == -2


@pytest.mark.parametrize("value", [-1.0, float("inf"), float("nan"), "1", None])
@pytest.mark.parametrize("check", [check_positive, check_nonnegative, check_probability])
def test_number_checks_reject_invalid_values(check, value):
    with pytest.raises(OptionError, match="kappa"):
        check("kappa", value)


def test_number_checks_return_float_and_differ_at_zero_and_one():
    assert check_nonnegative("kappa", 0) == 0.0 and type(check_positive("kappa", np.float32(2))) is float
    for check, value in [(check_positive, 0), (check_probability, 0), (check_probability, 1)]:
        with pytest.raises(OptionError, match="kappa"):
            check("kappa", value)


def test_check_one_of_lists_allowed_values():
    assert check_one_of("sampler", "mc", ("mc", "qmc")) == "mc"
    with pytest.raises(OptionError, match=r"sampler must be .*'mc', 'qmc', got 'sobol'"):
        check_one_of("sampler", "sobol", ("mc", "qmc"))


def test_check_range_reports_extremes_and_advice():
    levels = torch.tensor([0.2, 1.2])
    assert check_range("levels", levels, 0.0, 2.0, advice="") is levels
    with pytest.raises(InputError, match=r"levels .*\[0, 1\], got 0.2 to 1.2. Divide"):
        check_range("levels", levels, 0.0, 1.0, advice="Divide by 100.")


@pytest.mark.parametrize(
    "values", [["a"], [[1.0], [1.0, 2.0]], np.array(["2024-01-01"], "M8[D]"), np.array([3], "m8[s]")]
)
def test_as_numbers_rejects_text_and_times(values):
    assert as_numbers([1, 2], "noise").dtype == np.float64
    with pytest.raises(InputError, match="noise must be an array of numbers"):
        as_numbers(values, "noise")
