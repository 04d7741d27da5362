"""Tests of `benchmarks/detection.py`: small runs, whose claims hold, and rates that are those of the tests."""

import pytest
from detector_cases import expected_rates, spiral_split


@pytest.fixture
def detection(benchmark_of):
    return benchmark_of("detection")


def test_rates_are_those_of_the_tests(detection):
    for leave_one_out in (True, False):
        expected = expected_rates(spiral_split(3), 50.0, 10, leave_one_out)
        found = detection.expected_rates(detection.spiral_split(3), 50.0, 10, leave_one_out)
        assert found == pytest.approx(expected, rel=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("fig52", {"num_splits": 5}),
        ("fig58", {"num_splits": 10}),
        ("fig95", {"seeds": 3}),
        ("figd4", {"seeds": 10}),
        ("tabled3", {"seeds": 2}),
    ],
)
def test_claims_hold(detection, name, options, capsys):
    claims = detection.EXPERIMENTS[name](**options)
    assert [claim.text for claim in claims if not claim.holds] == []
    assert "DOES NOT HOLD" not in capsys.readouterr().out
