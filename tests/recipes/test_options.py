"""Descriptions and bounds of option values."""

from typing import Any, Literal

import pytest
from pydantic import TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from ovkgp.recipes import options as v
from ovkgp.recipes.options import Options, allowed_strings, describe_field


class Table(Options):
    one: int = 1
    two: int = 2


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (v.Count, "an integer of at least 1"),
        (Literal["a"], "'a'"),
        (Literal["a", "b"], "one of 'a', 'b'"),
        (Literal["a"] | v.Count, "'a' or an integer of at least 1"),
        (v.Positive | v.Positives | v.NoneWord, "a positive number, a list of positive numbers or 'none'"),
        (v.Count | v.AllRows, "an integer of at least 1 or 'all'"),
        (Table | v.NoneWord, "a table with one, two or 'none'"),
        (dict[str, Any] | None, "a table"),
        (str, "a string in quotes"),
    ],
)
def test_describe_field_names_allowed_values(kind, text):
    assert describe_field(FieldInfo.from_annotation(kind)) == text


def test_allowed_strings_joins_literals_of_union():
    assert allowed_strings(FieldInfo.from_annotation(Literal["a", "b"] | v.Count | Literal["c"])) == ("a", "b", "c")
    assert allowed_strings(FieldInfo.from_annotation(v.Count)) == ()


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        (v.Count, [1, 10**9], [0, -1]),
        (v.AtLeastTwo, [2], [1]),
        (v.Seed, [0, 2**32 - 1], [-1, 2**32]),
        (v.Positive, [1, 1e-300], [0, -1.0, float("inf"), float("nan")]),
        (v.NonNegative, [0, 1.5], [-1e-9, float("nan")]),
        (v.Fraction, [0.5], [0, 1, float("nan")]),
        (v.Fractions, [[0.1, 0.9]], [[], [0.1, 2]]),
        (v.Costs, [[-1, 0.5, 1]], [[], [2]]),
        (v.Rows, [[[1, 2], [3, 4]]], [[], [[]], [1], [["a"]]]),
        (v.NoneWord, [None, "none"], ["None", ""]),
        (v.AllRows, [None, "all"], ["none"]),
    ],
)
def test_value_types_enforce_bounds(kind, good, bad):
    adapter = TypeAdapter(kind)
    for value in good:
        adapter.validate_python(value)
    for value in bad:
        with pytest.raises(ValidationError):
            adapter.validate_python(value)
