"""Tests of the experiments on curves: claims that hold at any size are true at toy sizes, and scripts without data report it."""

import numpy as np
import pytest
from experiment_checks import check_experiment

TOYS = {
    "fig75": {"num_curves": 20, "num_points": 12, "runs": 1},
    "fig81": {"num_curves": 30, "sizes": (1, 10), "runs": 1},
    "lt130": {"num_curves": 10, "num_points": 20, "num_outliers": 2, "scales": (5.0,)},
}
SLOW_TOYS = {
    "fig54": {"num_train": 60, "num_test": 60, "additive_step": 20, "levels": (0, 2)},
    "fig76": {"num_curves": 40, "num_points": 40, "runs": 1, "only_largest": True},
    "fig83": {"num_curves": 30, "num_per_scale": 5, "num_lams": 3},
    "fig77": {"num_curves": 30, "num_points": 20, "runs": 1},
    "fig84": {"num_curves": 30, "num_points": 30, "runs": 1},
    "lt132": {"num_curves": 10, "num_points": 20, "scales": (0.5,)},
    "lt133": {"num_curves": 30, "num_points": 20, "scales": (0.4, 1.2)},
    "lt131": {"num_inliers": 40, "num_outliers": 4, "scales": (2.0,), "num_points": 20},
}

CERTAIN = {
    "fig54": ["log-cosh has the smallest error", "exact KPL has at most half"],
    "fig75": ["sparsity grows with ε"],
    "fig76": ["ξ at τ = 1: H1 has less than half"],
    "fig77": ["at the largest κ"],
    "fig81": ["errors fall"],
    "fig83": ["fewer functions"],
    "lt130": ["from κ_max on"],
    "lt132": ["sparsity grows with ε"],
    "lt133": ["sparsity grows with ε"],
}
"""Text of the claims that do not depend on the size."""


@pytest.mark.parametrize("name", [*TOYS, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW_TOYS)])
def test_experiment_runs_and_size_independent_claims_hold(benchmark_of, capsys, name):
    claims = getattr(benchmark_of("functional_toys"), name)(**(TOYS | SLOW_TOYS)[name])
    check_experiment(claims, capsys.readouterr().out, CERTAIN.get(name, []))


@pytest.mark.slow
def test_times_with_missing_values_are_those_of_all_estimators(benchmark_of, capsys):
    claims = benchmark_of("functional").run_gaps(sizes=((20, 12),))
    check_experiment(claims, capsys.readouterr().out, [])
    assert len(claims) == 3


@pytest.mark.parametrize("module", ["functional_speech", "functional_profiles"])
def test_scripts_without_data_report_it(benchmark_of, monkeypatch, capsys, module):
    monkeypatch.delenv("OVKGP_DATA", raising=False)
    monkeypatch.setattr("sys.argv", [f"{module}.py"])
    benchmark_of(module).main()
    assert "OVKGP_DATA is not set" in capsys.readouterr().out


def test_cepstral_coefficients_have_one_row_per_frame_and_separate_tones(benchmark_of):
    speech, time = benchmark_of("functional_speech"), np.arange(50 * 60 + 1) / 10_000
    tones = [speech.cepstral_coefficients(1000 * np.sin(2 * np.pi * f * time)) for f in (200.0, 2000.0)]
    assert [tone.shape for tone in tones] == [(60, 13), (60, 13)]
    within, between = tones[0][5:-5].std(0).max(), np.abs(tones[0] - tones[1])[5:-5, 1:].mean(0).max()
    assert between > within
    louder = speech.cepstral_coefficients(10_000 * np.sin(2 * np.pi * 200 * time))
    np.testing.assert_allclose(louder[:, 1:], tones[0][:, 1:], atol=1e-6)  # loudness is in the first coefficient only
