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


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("fig510", {"num_splits": 1, "num_gammas": 40, "candidates": (2, 5)}),
        ("figd4", {"gammas": (0.01, 1.0), "seeds": 2}),
    ],
)
def test_experiments_run_at_toy_size(detection, name, options, capsys):
    claims = getattr(detection, name)(**options)
    printed = capsys.readouterr().out
    assert claims and all(claim.text in printed for claim in claims) and "nan" not in printed


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("fig52", {"num_splits": 10}),
        ("fig58", {"num_splits": 10}),
        ("fig510", {"candidates": (2, 10, 500)}),
        ("fig95", {"seeds": 3}),
    ],
)
def test_claims_hold(detection, name, options, capsys):
    claims = detection.EXPERIMENTS[name](**options)
    assert [claim.text for claim in claims if not claim.holds] == []
    assert "DOES NOT HOLD" not in capsys.readouterr().out


@pytest.mark.slow
def test_figure_d_4_depends_on_the_gap_between_the_modes(detection):
    """Modes that touch are separated for a large γ only; those of the example, with a gap, for any γ."""
    claims = detection.figd4(seeds=10)
    assert [claim.text for claim in claims if not claim.holds] == [
        "example: the modes are separated only if γ is large"
    ]
