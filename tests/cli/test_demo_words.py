"""The sentences of the demo follow the numbers, whatever they are."""

import io
from types import SimpleNamespace

import numpy as np
import pytest
from rich.console import Console

from ovkgp.cli import demo as demo_words
from ovkgp.cli.demo_models import Trial


def trial(log_evidence, elpd, rmse, log_density, **options):
    return Trial(
        None, log_evidence, np.array([elpd / 2, elpd / 2]), rmse, log_density, coverage=0.876, seconds=1.25, **options
    )


@pytest.fixture
def bayesian(monkeypatch):
    found = {"rhat_max": 1.034, "ess_min": 55.4, "num_divergences": 0, "chains": 2, "draws": 100}
    monkeypatch.setattr(demo_words, "mixing", lambda trial: found)
    return trial(None, 10.0, 0.1, 1.0, khat=0.3)


def test_all_agree(bayesian):
    trials = {"Helmholtz": trial(30.0, 20.0, 0.1, 1.5), "ICM": trial(25.0, 16.0, 0.2, 1.0)}
    choice, check, sampled = demo_words.findings(trials, bayesian)
    assert choice == "LOO chooses Helmholtz, 4.0 ± 0.0 above ICM; so does the evidence, 5.0 above ICM."
    assert check == "Against the truth Helmholtz is the best of them too, in error and in log density."
    assert (
        "2 chains of 100" in sampled
        and "at most 1.03" in sampled
        and "at least 55" in sampled
        and "none diverged." in sampled
    )


def test_all_disagree(bayesian):
    trials = {
        "Helmholtz": trial(30.0, 10.0, 0.1, 1.5),
        "ICM": trial(25.0, 16.0, 0.2, 1.0),
        "independent": trial(20.0, 15.0, 0.3, 2.0),
    }
    choice, check, _ = demo_words.findings(trials, bayesian)
    assert choice == "LOO chooses ICM, 1.0 ± 0.0 above independent; the evidence would choose Helmholtz, 5.0 above ICM."
    assert (
        check
        == "Against the truth the smallest error is that of Helmholtz, the largest log density that of independent."
    )


def test_draws_that_are_not_to_be_trusted_are_said_to_be(bayesian, monkeypatch):
    found = demo_words.mixing(bayesian) | {"num_divergences": 3}
    monkeypatch.setattr(demo_words, "mixing", lambda trial: found)
    trials = {"ICM": trial(1.0, 1.0, 1.0, 1.0), "independent": trial(1.0, 0.0, 1.0, 1.0)}
    assert demo_words.findings(trials, bayesian)[2].endswith("3 diverged.")
    doubtful = trial(None, 10.0, 0.1, 1.0, khat=0.6)  # 200 draws allow 1 − 1/log₁₀ 200 = 0.565
    assert "Pareto shape of 0.60" in demo_words.findings(trials, doubtful)[2]


def test_table_marks_the_chosen_one_and_fits_eighty_columns(bayesian):
    trials = {"divergence-free": trial(-1300.0, -1200.0, 0.1, -1.5), "ICM": trial(25.0, -1600.0, 0.2, 1.0)}
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(demo_words.score_table(trials, bayesian))
    lines = [line.split() for line in console.export_text().splitlines() if "%" in line]
    assert lines[1:] == [
        ["divergence-free", "←", "-1300.0", "-1200.0", "0.100", "-1.50", "88", "%", "1.2"],
        ["ICM", "25.0", "-1600.0", "0.200", "1.00", "88", "%", "1.2"],
        ["←", "with", "NUTS", "–", "10.0", "0.100", "1.00", "88", "%", "1.2"],
    ]


def test_legend_counts_the_data():
    sea = SimpleNamespace(num_measured=7, X=np.zeros((4, 2)), points=np.zeros((24, 2)))
    data, truth = demo_words.legend(sea)
    assert "7 components measured at 4 places" in data and "24 points" in truth and "90 %" in truth


def test_scores_in_words_have_no_seconds():
    (said,) = demo_words.scores_in_words({"ICM": trial(25.0, 16.0, 0.2, 1.0)})
    assert said == "ICM: log evidence 25.0, LOO 16.0, RMSE 0.200 m/s, log density 1.00, coverage 88 %."
