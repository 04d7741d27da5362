"""Tests of `ovkgp.cli.demo`."""

import io
import os
import signal
import subprocess
import sys
import tempfile
import time
from types import SimpleNamespace

import matplotlib.figure
import matplotlib.image
import numpy as np
import pandas as pd
import pytest
from cli_cases import assert_error
from rich.console import Console
from typer.testing import CliRunner

from ovkgp.cli import app, demo, demo_figure, demo_models
from ovkgp.cli.demo import FILES, NUM_STEPS
from ovkgp.cli.demo_models import Trial


def invoke(*arguments, **options):
    return CliRunner().invoke(app, ["demo", *map(str, arguments)], env={"COLUMNS": "120"}, **options)


def shrink(monkeypatch):
    """Reduce the work of the demo."""
    monkeypatch.setattr(demo_models, "NUM_ROWS", 30)
    monkeypatch.setattr(demo_models, "GRID", (6, 4))
    monkeypatch.setattr(demo_figure, "NUM_SHADES", 9)
    for module in (demo, demo_models):
        monkeypatch.setattr(module, "NUM_OTHER_SETS", 2)
    for name, value in {"draws": 8, "tune": 4, "max_draws": 3}.items():
        monkeypatch.setitem(demo_models.SAMPLING, name, value)


@pytest.fixture
def small(monkeypatch):
    shrink(monkeypatch)


@pytest.fixture(scope="module")
def found():
    """Result of the small demo, and the names of its steps."""
    with pytest.MonkeyPatch.context() as patch:
        shrink(patch)
        steps = []
        return demo.compute_results(3, steps.append), steps


@pytest.fixture
def quick(small, found, monkeypatch):
    """Skip the computations and the report, which has separate tests."""
    monkeypatch.setattr(demo, "compute_results", lambda seed, step: found[0])
    monkeypatch.setattr(demo, "write_report", lambda model, path, **options: path.write_text("a report"))


def test_demo_writes_figure_report_and_data_and_prints_results(tmp_path, small):
    out = tmp_path / "made" / "here"
    result = invoke("--out", out, "--seed", 3)
    assert result.exit_code == 0, result.output
    assert sorted(file.name for file in out.iterdir()) == sorted(FILES)
    image = matplotlib.image.imread(out / "currents.png")
    assert image.shape[0] > 500 and image.shape[1] > 1000 and np.std(image) > 0.01
    page = (out / "report.html").read_text(encoding="utf-8")
    for word in ("<title>Ocean currents from drifters", "LOO selects", "curl-free: log evidence", "NUTS", "R̂"):
        assert word in page
    assert "://" not in page  # no external resources
    for word in (
        *demo_models.KERNELS,
        "log density",
        "90 %",
        "NUTS",
        "LOO selects",
        *(str(out / name) for name in FILES),
    ):
        assert word in result.output
    # the best model, its fit with NUTS, and its scores on other data
    assert [line.split()[0] for line in result.output.splitlines() if "←" in line][1:] == ["←", "←"]
    assert "Note:" not in result.output and "Warning" not in result.output  # the demo reports short chains itself


@pytest.mark.slow
def test_demo_data_file_holds_fitted_data(tmp_path, quick, found):
    assert invoke("--out", tmp_path).exit_code == 0
    table, ocean = pd.read_csv(tmp_path / "drifters.csv"), found[0].ocean
    assert list(table) == ["east", "north", "u", "v"]
    assert table.isna().to_numpy().sum() == 2 * len(ocean.X) - ocean.num_measured > 0
    np.testing.assert_allclose(table, ocean.X.join(ocean.Y), atol=6e-5)  # four digits


@pytest.mark.slow
def test_demo_is_reproducible(tmp_path, small, monkeypatch):
    monkeypatch.setattr(demo, "write_report", lambda model, path, **options: path.write_text(str(options["notes"])))

    monkeypatch.setattr(demo_models, "time", SimpleNamespace(monotonic=lambda: 0.0))  # seconds differ between runs

    def run(seed):
        output = invoke("--out", tmp_path, "--seed", seed).output
        return output, [(tmp_path / name).read_bytes() for name in FILES]

    first, second, other = run(1), run(1), run(2)
    assert first == second
    assert first[0] != other[0] and all(one != another for one, another in zip(first[1], other[1], strict=True))


@pytest.mark.slow
def test_demo_selects_helmholtz_on_full_data(monkeypatch):
    ocean = demo_models.OceanData.generate(0)
    with demo.use_one_thread():
        trials = {name: demo_models.evaluate_model(name, ocean, 0) for name in demo_models.KERNELS}
    assert demo_models.select_best(trials) == "Helmholtz" == max(trials, key=lambda name: trials[name].log_evidence)
    second, difference, error = demo_models.compare_with_second(trials)
    assert second != "Helmholtz" and difference > error > 0
    assert min(trials, key=lambda name: trials[name].rmse) == "Helmholtz"
    assert 0.75 < trials["Helmholtz"].coverage < 0.98 < 1 < trials["Helmholtz"].log_density


def test_demo_reports_every_step(tmp_path, quick, found):
    result, steps = found[0], found[1].copy()
    assert steps[:5] == [f"Training: {name}" for name in demo_models.KERNELS]
    assert result.best in steps[5] and "2 other data sets" in steps[5]
    assert result.best in steps[6] and "24 transitions" in steps[6]
    demo.write_files(result, tmp_path, steps.append)
    assert len(steps) == NUM_STEPS


def test_demo_scores_best_model_on_other_data_sets(found):
    others = found[0].others
    assert others.shape == (2, 3) and (others[:, [0, 2]] > 0).all() and (others[:, 2] <= 1).all()
    ocean = demo_models.OceanData.generate(3)
    assert not np.isclose(others[:, 0], demo_models.evaluate_model(found[0].best, ocean, 3).rmse).any()


def test_coverage_sentence_has_mean_and_standard_error():
    sentence = demo.describe_coverage("ICM", np.array([[0.1, 1.0, 0.85], [0.1, 1.0, 0.95]]))
    assert "on 2 others" in sentence and "ICM cover 90.0 ± 5.0 % on average, from 85 to 95 %" in sentence


def test_demo_rejects_out_that_is_a_file(tmp_path):
    (tmp_path / "file").write_text("")
    assert_error(invoke("--out", tmp_path / "file"), "--out", "is a file")
    assert_error(invoke("--out", tmp_path / "file" / "below"), "below")


def test_demo_rejects_unwritable_folder(tmp_path, monkeypatch):
    def deny(*args, **kwargs):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(tempfile, "TemporaryFile", deny)
    assert_error(invoke("--out", tmp_path), "permission denied")


@pytest.mark.parametrize("name", FILES)
def test_demo_rejects_folder_in_place_of_result(tmp_path, name):
    (tmp_path / name).mkdir()
    assert_error(invoke("--out", tmp_path), name, "is a folder")


def test_demo_reports_full_disk(tmp_path, quick, monkeypatch):
    def deny(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(matplotlib.figure.Figure, "savefig", deny)
    result = invoke("--out", tmp_path / "made")
    assert_error(result, "no space left on device", "--out")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["", "  "])
def test_demo_rejects_empty_out(name):
    assert_error(invoke("--out", name), "--out")


def interrupt(*args, **kwargs):
    raise KeyboardInterrupt


def assert_interrupted(result, text):
    assert result.exit_code == 130
    assert result.output.strip().splitlines()[-1].startswith(f"Interrupted; {text}")
    assert "Traceback" not in result.output


@pytest.mark.parametrize("step", ["evaluate_model", "evaluate_bayesian"])
def test_demo_interrupted_in_training_writes_nothing(tmp_path, small, monkeypatch, step):
    monkeypatch.setattr(demo, step, interrupt)
    assert_interrupted(invoke("--out", tmp_path / "made" / "here"), "nothing was written.")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("step", ["draw_figure", "write_report"])
def test_demo_interrupted_in_writing_writes_nothing(tmp_path, quick, monkeypatch, step):
    monkeypatch.setattr(demo, step, interrupt)
    assert_interrupted(invoke("--out", tmp_path / "made" / "here"), "nothing was written.")
    assert list(tmp_path.iterdir()) == []


def test_demo_interrupted_keeps_existing_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(demo, "evaluate_model", interrupt)
    assert_interrupted(invoke("--out", tmp_path), "nothing was written.")
    assert tmp_path.is_dir()


def test_demo_stops_if_estimator_caught_interrupt(tmp_path, small, monkeypatch):
    names = []

    def catch_interrupt(name, ocean, seed):
        names.append(name)
        try:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(10)  # the signal arrives before that
        except KeyboardInterrupt:
            return demo_models.evaluate_model(name, ocean, seed)

    monkeypatch.setattr(demo, "evaluate_model", catch_interrupt)
    assert_interrupted(invoke("--out", tmp_path / "made"), "nothing was written.")
    assert names == ["Helmholtz"] and list(tmp_path.iterdir()) == []


def test_demo_interrupted_in_figure_keeps_old_figure(tmp_path, quick, monkeypatch):
    def start(figure, path, **options):
        path.write_bytes(b"half a figure")
        raise KeyboardInterrupt

    monkeypatch.setattr(matplotlib.figure.Figure, "savefig", start)
    (tmp_path / "currents.png").write_bytes(b"an old figure")
    assert_interrupted(invoke("--out", tmp_path), "nothing was written.")
    assert [file.read_bytes() for file in tmp_path.iterdir()] == [b"an old figure"]


def test_demo_interrupted_after_writing_names_files(tmp_path, quick, monkeypatch):
    monkeypatch.setattr(demo, "score_table", interrupt)
    assert_interrupted(invoke("--out", tmp_path / "made"), f"{', '.join(FILES)} were written to '{tmp_path / 'made'}'.")
    assert all((tmp_path / "made" / name).is_file() for name in FILES)


def test_demo_process_handles_sigint(tmp_path):
    command = [sys.executable, "-m", "ovkgp", "demo", "--out", str(tmp_path / "made")]
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, **options) as process:
        while not (tmp_path / "made").exists():  # then the work has begun
            assert process.poll() is None
            time.sleep(0.02)
        time.sleep(1.0)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    # Python itself ends by the signal, which a shell also reports as 130, if code run by `exec` was interrupted
    assert process.returncode in (130, -signal.SIGINT)
    assert errors.splitlines()[-1] == "Interrupted; nothing was written."
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("seed", [-1, 2**32])
def test_demo_rejects_seed_out_of_range(tmp_path, seed):
    assert_error(invoke("--out", tmp_path, "--seed", seed), "--seed", str(seed))


def test_demo_rejects_seed_that_is_not_a_number(tmp_path):
    assert invoke("--out", tmp_path, "--seed", "many").exit_code == 2


@pytest.mark.slow
def test_demo_of_full_size_selects_helmholtz_and_writes_files(tmp_path):
    result = invoke("--out", tmp_path)
    assert result.exit_code == 0, result.output
    assert "LOO selects Helmholtz" in result.output and "so does the evidence" in result.output
    assert all((tmp_path / name).stat().st_size > 1000 for name in FILES)


def trial(log_evidence, elpd, rmse, log_density, **options):
    return Trial(
        None, log_evidence, np.array([elpd / 2, elpd / 2]), rmse, log_density, coverage=0.876, seconds=1.25, **options
    )


@pytest.fixture
def bayesian(monkeypatch):
    found = {"rhat_max": 1.034, "ess_min": 55.4, "num_divergences": 0, "chains": 2, "draws": 100}
    monkeypatch.setattr(demo, "sampler_diagnostics", lambda trial: found)
    return trial(None, 10.0, 0.1, 1.0, khat=0.3)


def test_findings_name_one_model_if_all_scores_agree(bayesian):
    trials = {"Helmholtz": trial(30.0, 20.0, 0.1, 1.5), "ICM": trial(25.0, 16.0, 0.2, 1.0)}
    selection, check, sampling = demo.findings(trials, bayesian)
    assert selection == "LOO selects Helmholtz, 4.0 ± 0.0 above ICM; so does the evidence, 5.0 above ICM."
    assert check == "Against the ground truth, Helmholtz also has the smallest error and the largest log density."
    for text in ("2 chains of 100", "at most 1.03", "at least 55", "no divergences."):
        assert text in sampling


def test_findings_name_best_model_of_each_score_if_scores_disagree(bayesian):
    trials = {
        "Helmholtz": trial(30.0, 10.0, 0.1, 1.5),
        "ICM": trial(25.0, 16.0, 0.2, 1.0),
        "independent": trial(20.0, 15.0, 0.3, 2.0),
    }
    selection, check, _ = demo.findings(trials, bayesian)
    assert selection == "LOO selects ICM, 1.0 ± 0.0 above independent; the evidence selects Helmholtz, 5.0 above ICM."
    assert check == (
        "Against the ground truth, Helmholtz has the smallest error and independent the largest log density."
    )


def test_findings_report_poor_sampling(bayesian, monkeypatch):
    found = demo.sampler_diagnostics(bayesian) | {"num_divergences": 3}
    monkeypatch.setattr(demo, "sampler_diagnostics", lambda trial: found)
    trials = {"ICM": trial(1.0, 1.0, 1.0, 1.0), "independent": trial(1.0, 0.0, 1.0, 1.0)}
    assert demo.findings(trials, bayesian)[2].endswith("3 divergences.")
    unreliable = trial(None, 10.0, 0.1, 1.0, khat=0.6)  # 200 draws allow 1 − 1/log₁₀ 200 = 0.565
    assert "Pareto k̂ of 0.60" in demo.findings(trials, unreliable)[2]


def test_score_table_marks_best_model_within_eighty_columns(bayesian):
    trials = {"divergence-free": trial(-1300.0, -1200.0, 0.1, -1.5), "ICM": trial(25.0, -1600.0, 0.2, 1.0)}
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(demo.score_table(trials, bayesian, np.array([[0.06, 1.2, 0.89]] * 20)))
    lines = [line.split() for line in console.export_text().splitlines() if "%" in line]
    assert lines[1:] == [
        ["divergence-free", "←", "-1300.0", "-1200.0", "0.100", "-1.50", "88", "%", "1.2"],
        ["ICM", "25.0", "-1600.0", "0.200", "1.00", "88", "%", "1.2"],
        ["←", "with", "NUTS", "–", "10.0", "0.100", "1.00", "88", "%", "1.2"],
        ["←", "20", "other", "sets", "–", "–", "0.060", "1.20", "89", "%", "–"],
    ]


def test_legend_counts_data():
    ocean = SimpleNamespace(num_measured=7, X=np.zeros((4, 2)), points=np.zeros((24, 2)))
    data, truth = demo.legend(ocean)
    assert "7 components measured at 4 positions" in data and "24 grid points" in truth and "90 %" in truth


def test_score_sentences_omit_seconds():
    (sentence,) = demo.score_sentences({"ICM": trial(25.0, 16.0, 0.2, 1.0)})
    assert sentence == "ICM: log evidence 25.0, LOO 16.0, RMSE 0.200 m/s, log density 1.00, coverage 88 %."
