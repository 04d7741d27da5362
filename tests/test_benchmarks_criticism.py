"""Tests of `benchmarks/criticism.py`: every section runs at a toy size, and claims that hold at any size do."""

import pytest
from experiment_checks import check_experiment

TOYS = {
    "fig41": {"gammas": (50.0, 100.0, 400.0), "n": 300, "num_new": 100, "runs": 2},
    "fig61": {"n": 60, "runs": 6},
    "fig62": {"sizes": (60,), "runs": 3, "dimensions": (2,)},
    "fig63": {"sizes": (50,), "runs": 2},
    "fig64": {"sizes": (150,), "runs": 2},
    "fig65": {"n": 150, "runs": 2, "ratios": (100.0, 2.0)},
    "models": {"runs": 1, "wrong": ("correlated outputs",)},
    "counts": {"runs": 1, "wrong": ("overdispersed",)},
    "speed": {"n": 100, "replicates": 100, "parametric": 20, "repeats": 1},
}
CERTAIN = {
    "fig63": ["kernel test has power 1"],
    "models": ["right, fixed", "correlated outputs"],
    "speed": ["criticize takes at most", "the two-sample test takes at most"],
}
"""Text of the claims that do not depend on the size."""


@pytest.mark.parametrize("name", TOYS)
def test_experiment_runs_and_size_independent_claims_hold(benchmark_of, capsys, name):
    claims = getattr(benchmark_of("criticism"), name)(**TOYS[name])
    check_experiment(claims, capsys.readouterr().out, CERTAIN.get(name, []))


def test_every_section_has_a_toy_and_a_full_size(benchmark_of):
    criticism = benchmark_of("criticism")
    assert set(criticism.EXPERIMENTS) == set(TOYS) == set(criticism.FULL)
