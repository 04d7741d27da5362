import math

import pytest

from ovkgp.estimators.common.summary import count
from ovkgp.plotting.report.numbers import listed, percent, show


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (math.nan, "–"),
        (math.inf, "∞"),
        (-math.inf, "−∞"),
        (999999.7, "1000000"),
        (123456.0, "123500"),
        (-0.00012, "−1.2·10⁻⁴"),
        (1e6, "10⁶"),
        (0.001, "0.001"),
        (1e-300, "10⁻³⁰⁰"),
    ],
)
def test_numbers_have_four_digits_and_true_signs(value, text):
    assert show(value) == text


def test_what_is_shown_is_near_what_is():
    for value in (0.0012345, 3.14159, 27182.8, 999999.4):
        assert float(show(value)) == pytest.approx(value, rel=1e-3)


def test_shares_are_not_rounded_to_nothing_or_everything():
    assert [percent(share) for share in (0.0, 1e-9, 0.004, 0.996, 1.0)] == ["0 %", "< 1 %", "< 1 %", "> 99 %", "100 %"]
    assert percent(None) == percent(math.nan) == "–"
    assert percent(0.1234, digits=1) == "12.3 %"


def test_one_and_many():
    assert count(0, "row") == "0 rows"
    assert listed(["a", "b"]) == "'a' and 'b'"
