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
from rich.console import Console
from typer.testing import CliRunner

from ovkgp.cli import app, demo_figure, demo_models
from ovkgp.cli import demo as demo_words
from ovkgp.cli import demo as demo_work
from ovkgp.cli.demo import FILES, NUM_STEPS
from ovkgp.cli.demo_models import Trial


def invoke(*arguments, **options):
    return CliRunner().invoke(app, ["demo", *map(str, arguments)], env={"COLUMNS": "120"}, **options)


def shrink(monkeypatch):
    """The same demo with less work."""
    monkeypatch.setattr(demo_models, "NUM_ROWS", 30)
    monkeypatch.setattr(demo_models, "GRID", (6, 4))
    monkeypatch.setattr(demo_figure, "NUM_SHADES", 9)
    for name, value in {"draws": 8, "tune": 4, "max_draws": 3}.items():
        monkeypatch.setitem(demo_models.SAMPLING, name, value)


@pytest.fixture
def small(monkeypatch):
    shrink(monkeypatch)


@pytest.fixture(scope="module")
def found():
    """What the small demo finds, and the steps of which it told."""
    with pytest.MonkeyPatch.context() as patch:
        shrink(patch)
        told = []
        return demo_work.work(3, told.append), told


@pytest.fixture
def quick(small, found, monkeypatch):
    """The small demo after its work, and without the report, which has tests of its own."""
    monkeypatch.setattr(demo_work, "work", lambda seed, step: found[0])
    monkeypatch.setattr(demo_work, "write_report", lambda model, path, **options: path.write_text("a report"))


def assert_one_sentence(result, *words):
    assert result.exit_code == 2
    assert "Traceback" not in result.output
    assert len(result.output.strip().splitlines()) == 1
    for word in words:
        assert word in result.output


def test_demo_writes_a_picture_a_report_and_its_data_and_says_what_it_found(tmp_path, small):
    out = tmp_path / "made" / "here"
    result = invoke("--out", out, "--seed", 3)
    assert result.exit_code == 0, result.output
    assert sorted(file.name for file in out.iterdir()) == sorted(FILES)
    image = matplotlib.image.imread(out / "currents.png")
    assert image.shape[0] > 500 and image.shape[1] > 1000 and np.std(image) > 0.01
    page = (out / "report.html").read_text(encoding="utf-8")
    for word in ("<title>Ocean currents from drifters", "LOO chooses", "curl-free: log evidence", "NUTS", "R̂"):
        assert word in page
    assert "://" not in page  # nothing is fetched
    for word in (
        *demo_models.KERNELS,
        "log density",
        "90 %",
        "NUTS",
        "LOO chooses",
        *(str(out / name) for name in FILES),
    ):
        assert word in result.output
    assert [line.split()[0] for line in result.output.splitlines() if "←" in line][1:] == [
        "←"
    ]  # the chosen, and with NUTS
    assert "Note:" not in result.output and "Warning" not in result.output  # short chains warn; the demo says it itself


def test_the_data_are_those_that_were_fitted(tmp_path, quick, found):
    assert invoke("--out", tmp_path).exit_code == 0
    table, sea = pd.read_csv(tmp_path / "drifters.csv"), found[0].sea
    assert list(table) == ["east", "north", "u", "v"]
    assert table.isna().to_numpy().sum() == 2 * len(sea.X) - sea.num_measured > 0
    np.testing.assert_allclose(table, sea.X.join(sea.Y), atol=6e-5)  # four digits


def test_demo_reproduces_itself(tmp_path, small, monkeypatch):
    monkeypatch.setattr(
        demo_work, "write_report", lambda model, path, **options: path.write_text(str(options["notes"]))
    )

    monkeypatch.setattr(demo_models, "time", SimpleNamespace(monotonic=lambda: 0.0))  # the seconds are not the same

    def run(seed):
        said = invoke("--out", tmp_path, "--seed", seed).output
        return said, [(tmp_path / name).read_bytes() for name in FILES]

    first, second, other = run(1), run(1), run(2)
    assert first == second
    assert first[0] != other[0] and all(one != another for one, another in zip(first[1], other[1], strict=True))


def test_helmholtz_wins_on_data_of_full_size(monkeypatch):
    sea = demo_models.Sea.of(0)
    with demo_work.one_thread():
        trials = {name: demo_models.try_model(name, sea, 0) for name in demo_models.KERNELS}
    assert demo_models.chosen(trials) == "Helmholtz" == max(trials, key=lambda name: trials[name].log_evidence)
    second, difference, error = demo_models.lead(trials)
    assert second != "Helmholtz" and difference > error > 0
    assert min(trials, key=lambda name: trials[name].rmse) == "Helmholtz"
    assert 0.75 < trials["Helmholtz"].coverage < 0.98 < 1 < trials["Helmholtz"].log_density


def test_every_step_is_told(tmp_path, quick, found):
    result, told = found[0], found[1].copy()
    assert told[:5] == [f"Training: {name}" for name in demo_models.KERNELS]
    assert result.best in told[5] and "24 transitions" in told[5]
    demo_work.write(result, tmp_path, told.append)
    assert len(told) + 1 == NUM_STEPS  # and the loading, before all


def test_out_is_a_file(tmp_path):
    (tmp_path / "file").write_text("")
    assert_one_sentence(invoke("--out", tmp_path / "file"), "--out", "is a file")
    assert_one_sentence(invoke("--out", tmp_path / "file" / "below"), "cannot write")


def test_folder_is_not_writable(tmp_path, monkeypatch):
    def refuse(*args, **kwargs):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
    assert_one_sentence(invoke("--out", tmp_path), "cannot write", "permission denied")


@pytest.mark.parametrize("name", FILES)
def test_a_result_has_no_place(tmp_path, name):
    (tmp_path / name).mkdir()
    assert_one_sentence(invoke("--out", tmp_path), "cannot write", name, "is a folder")


def test_the_disk_is_full(tmp_path, quick, monkeypatch):
    def refuse(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(matplotlib.figure.Figure, "savefig", refuse)
    result = invoke("--out", tmp_path / "made")
    assert_one_sentence(result, "cannot write", "no space left on device", "--out")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["", "  "])
def test_out_has_no_name(name):
    assert_one_sentence(invoke("--out", name), "--out must name a folder")


def interrupt(*args, **kwargs):
    raise KeyboardInterrupt


def assert_interrupted(result, words):
    assert result.exit_code == 130
    assert result.output.strip().splitlines()[-1].startswith(f"Interrupted; {words}")
    assert "Traceback" not in result.output


@pytest.mark.parametrize("step", ["try_model", "try_bayesian"])
def test_ctrl_c_at_work_writes_nothing_and_leaves_no_folder(tmp_path, small, monkeypatch, step):
    monkeypatch.setattr(demo_work, step, interrupt)
    assert_interrupted(invoke("--out", tmp_path / "made" / "here"), "nothing was written.")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("step", ["draw", "write_report"])
def test_ctrl_c_before_all_is_written_writes_nothing_and_leaves_no_folder(tmp_path, quick, monkeypatch, step):
    monkeypatch.setattr(demo_work, step, interrupt)
    assert_interrupted(invoke("--out", tmp_path / "made" / "here"), "nothing was written.")
    assert list(tmp_path.iterdir()) == []


def test_ctrl_c_leaves_a_folder_alone_that_was_there(tmp_path, monkeypatch):
    monkeypatch.setattr(demo_work, "try_model", interrupt)
    assert_interrupted(invoke("--out", tmp_path), "nothing was written.")
    assert tmp_path.is_dir()


def test_ctrl_c_that_an_estimator_keeps_to_itself_ends_the_demo(tmp_path, small, monkeypatch):
    observed = []

    def keep_what_there_is(name, sea, seed):
        observed.append(name)
        try:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(10)  # the signal arrives before that
        except KeyboardInterrupt:
            return demo_models.try_model(name, sea, seed)

    monkeypatch.setattr(demo_work, "try_model", keep_what_there_is)
    assert_interrupted(invoke("--out", tmp_path / "made"), "nothing was written.")
    assert observed == ["Helmholtz"] and list(tmp_path.iterdir()) == []


def test_ctrl_c_while_the_picture_is_written_leaves_no_half_of_it(tmp_path, quick, monkeypatch):
    def start(figure, path, **options):
        path.write_bytes(b"half a picture")
        raise KeyboardInterrupt

    monkeypatch.setattr(matplotlib.figure.Figure, "savefig", start)
    (tmp_path / "currents.png").write_bytes(b"an old picture")
    assert_interrupted(invoke("--out", tmp_path), "nothing was written.")
    assert [file.read_bytes() for file in tmp_path.iterdir()] == [b"an old picture"]


def test_ctrl_c_after_the_files_says_where_they_are(tmp_path, quick, monkeypatch):
    monkeypatch.setattr(demo_work, "score_table", interrupt)
    assert_interrupted(invoke("--out", tmp_path / "made"), f"{', '.join(FILES)} were written to '{tmp_path / 'made'}'.")
    assert all((tmp_path / "made" / name).is_file() for name in FILES)


def test_a_real_ctrl_c(tmp_path):
    command = [sys.executable, "-m", "ovkgp", "demo", "--out", str(tmp_path / "made")]
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, **options) as process:
        while not (tmp_path / "made").exists():  # then it is at work
            assert process.poll() is None
            time.sleep(0.02)
        time.sleep(1.0)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    # Python itself ends by the signal, which a shell calls 130 too, where code run by `exec` was interrupted
    assert process.returncode in (130, -signal.SIGINT)
    assert errors.strip() == "Interrupted; nothing was written."
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("seed", [-1, 2**32])
def test_seed_out_of_range(tmp_path, seed):
    assert_one_sentence(invoke("--out", tmp_path, "--seed", seed), "--seed", str(seed))


def test_seed_is_not_a_number(tmp_path):
    assert invoke("--out", tmp_path, "--seed", "many").exit_code == 2


@pytest.mark.slow
def test_the_demo_as_it_is(tmp_path):
    result = invoke("--out", tmp_path)
    assert result.exit_code == 0, result.output
    assert "LOO chooses Helmholtz" in result.output and "so does the evidence" in result.output
    assert all((tmp_path / name).stat().st_size > 1000 for name in FILES)


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
