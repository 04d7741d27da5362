"""Tests of `ovkgp.estimators.common.formatting`."""

import math

import pytest

from ovkgp.estimators.common.formatting import format_number, format_percent, join_names, quote_names
from ovkgp.estimators.common.summary import pluralize


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (0.0, "0"),
        (-1234.5678, "−1235"),
        (1.5e-7, "1.5·10⁻⁷"),
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
def test_format_number_has_four_digits(value, text):
    assert format_number(value) == text


def test_format_number_is_accurate():
    for value in (0.0012345, 3.14159, 27182.8, 999999.4):
        assert float(format_number(value)) == pytest.approx(value, rel=1e-3)


def test_format_percent_does_not_round_to_zero_or_one():
    assert [format_percent(fraction) for fraction in (0.0, 1e-9, 0.004, 0.996, 1.0)] == [
        "0 %",
        "< 1 %",
        "< 1 %",
        "> 99 %",
        "100 %",
    ]
    assert format_percent(None) == format_percent(math.nan) == "–"
    assert format_percent(0.1234, digits=1) == "12.3 %"


def test_quote_names_and_join_names_form_lists():
    assert pluralize(0, "row") == "0 rows"
    assert quote_names(["u"]) == "'u'" and quote_names(["u", "v", "w"]) == "'u', 'v' and 'w'"
    assert quote_names("abcdefgh", max_names=2) == "'a', 'b' and 6 more"
    assert join_names(["wind", "rain", "sun"]) == "wind, rain and sun"
