"""Tests of the experiments on costs, level sets and landmarks: claims that hold at any size are true at toy sizes."""

import pytest
from experiment_checks import check_experiment

TOYS = {
    ("itl_classes", "lt139"): {"repeats": 1, "num_rows": 100, "num_tasks": 5},
    ("itl_levels", "lt141"): {"num_rows": 40, "num_tasks": 6, "num_fresh": 200, "repeats": 2},
    ("itl_levels", "bt105"): {"gammas": (1.0,), "share_of_rows": 0.1, "num_levels": 5},
    ("itl_landmarks", "lt142"): {"num_identities": 8, "repeats": 1},
    ("itl_landmarks", "lt144"): {"num_identities": 8, "ranks": (1, 5, 20, 136), "repeats": 1},
    ("itl_landmarks", "lt145"): {"num_identities": 12, "shares": (0.0, 0.5, 0.95), "repeats": 1, "masks": 2},
}

CERTAIN = {"lt142": ["better than neutral ones alone"], "lt144": ["falls with the rank"], "lt145": ["95 % costs more"]}
"""Text of the claims that do not depend on the size."""


@pytest.mark.parametrize(("module", "name"), TOYS)
def test_experiment_runs_and_size_independent_claims_hold(benchmark_of, capsys, module, name):
    claims = getattr(benchmark_of(module), name)(**TOYS[module, name])
    check_experiment(claims, capsys.readouterr().out, CERTAIN.get(name, []))


def test_figures_are_written_if_folder_is_given(benchmark_of, tmp_path, capsys):
    levels = benchmark_of("itl_levels")
    levels.lt141(num_rows=30, num_tasks=5, num_fresh=50, repeats=1, out=str(tmp_path / "new"))
    levels.bt105(gammas=(1.0,), share_of_rows=0.05, num_levels=3, out=str(tmp_path / "new"))
    assert {path.name for path in (tmp_path / "new").iterdir()} == {"level_sets.png", "level_shares.png"}
    assert capsys.readouterr().out.count("figure: ") == 2
