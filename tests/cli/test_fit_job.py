"""Tests of `ovkgp.cli.fit_job`."""

import signal
import subprocess
import sys
import time

import numpy as np
import pandas as pd
import pytest
from cli_cases import MAX_SECONDS, SCRIPTS, assert_error, invoke, start_process, succeed
from launching import environment, free_port

import ovkgp
from ovkgp.cli.fit_job import CANDIDATES, CheckpointFiles
from ovkgp.estimators.common import named_kernels
from ovkgp.exceptions import OptionError
from ovkgp.recipes import list_recipes, load_recipe


def test_recipes_support_checkpoints_and_streaming_as_listed():
    recipes = [load_recipe(name) for name in list_recipes()]
    resumed = {r.name for r in recipes if r.estimator_class.has_checkpoints(r.options)}
    streamed = {r.name for r in recipes if r.estimator_class.reason_not_streamable(r.options) is None}
    fields = {"vector_field", "curl_free_field", "divergence_free_field"}
    assert resumed == fields | {
        *("multitask", "multitask_lmc", "graph_tasks", "large_scale", "bayesian_multitask", "mixed_outputs")
    }
    assert streamed == fields | {"multitask", "multitask_lmc", "graph_tasks", "large_scale"}


@pytest.mark.parametrize(
    "options", [{"likelihood": ["poisson", "gaussian"]}, {"hyperparameters": "fixed"}, {"approximation": "variational"}]
)
def test_has_checkpoints_depends_on_options(options):
    assert ovkgp.GPRegressor.has_checkpoints({}) and not ovkgp.GPRegressor.has_checkpoints(options)
    assert not ovkgp.ORFFRidge.has_checkpoints({})


def test_reason_not_streamable_names_solver_of_orff_ridge():
    assert ovkgp.ORFFRidge.reason_not_streamable({}) is None
    assert "solver=auto" in ovkgp.ORFFRidge.reason_not_streamable({"solver": "cg"})


def test_candidates_equal_those_of_regressor():
    assert CANDIDATES == named_kernels.CANDIDATES


def test_checkpoint_files_include_candidates(tmp_path, capsys):
    files = CheckpointFiles(tmp_path / "m.ovkgp")
    with pytest.raises(OptionError, match="no checkpoint"):
        files.check_present()
    files.clear()
    others = tmp_path / "m.ovkgp.training.csv", tmp_path / "m.ovkgp"
    for path in (*others, *(tmp_path / f"m.ovkgp.training{end}" for end in ("", ".independent", ".decomposable"))):
        path.write_text("")
    assert len(files.present) == 3
    files.check_present()
    assert capsys.readouterr().err == ""
    files.clear()
    assert "of an earlier fit is replaced" in capsys.readouterr().err
    assert sorted(tmp_path.iterdir()) == sorted(others)


def hard_table(path, num_rows=80):
    """Write three outputs, mixtures of four sines with missing values: an LMC model needs about fifty iterations."""
    rng = np.random.default_rng(0)
    X = rng.uniform(0, 10, (num_rows, 2))
    sines = np.stack([np.sin(X @ rng.standard_normal(2) * speed) for speed in (0.5, 1, 2, 3)], 1)
    Y = sines @ rng.standard_normal((4, 3)) + 0.3 * rng.standard_normal((num_rows, 3))
    Y[rng.random(Y.shape) < 0.1] = np.nan
    pd.DataFrame(np.hstack([X, Y]), columns=["a", "b", "u", "v", "w"]).to_csv(path, index=False)
    return path


def modification_time(path):
    return path.stat().st_mtime_ns if path.exists() else 0


def start_slow_fit(*arguments):
    return start_process(*arguments, program=[SCRIPTS / "slow_training.py"])


def send_signal_in_training(process, checkpoint, number):
    """Send a signal once the checkpoint was written again, and wait for the end."""
    before = modification_time(checkpoint)
    with process:
        while modification_time(checkpoint) == before:
            assert process.poll() is None, process.communicate()
            time.sleep(0.01)
        process.send_signal(number)
        out, errors = process.communicate(timeout=MAX_SECONDS)
    return process.returncode, out, errors


@pytest.mark.slow
def test_fit_is_resumed_after_kill_and_interrupt(tmp_path):
    table, model, checkpoint = hard_table(tmp_path / "t.csv"), tmp_path / "m", tmp_path / "m.training"
    command = [
        "fit",
        "multitask_lmc",
        table,
        "--inputs",
        "a,b",
        "--outputs",
        "u,v,w",
        "--out",
        model,
        "--set",
        "rank=3",
    ]

    code, _, _ = send_signal_in_training(start_slow_fit(*command), checkpoint, signal.SIGKILL)
    assert code == -signal.SIGKILL and checkpoint.is_file() and not model.exists()

    code, out, errors = send_signal_in_training(start_slow_fit(*command, "--resume"), checkpoint, signal.SIGINT)
    assert code == 130 and checkpoint.is_file()
    *notes, last = errors.strip().splitlines()
    assert last.startswith("Interrupted; the best model so far is in") and "--resume continues from" in last
    assert any("interrupted" in note for note in notes) and "Traceback" not in errors
    assert f"Model written to {model}" in out and "Next:" not in out
    half = ovkgp.load(model)
    assert half.fit_report_.interrupted and half.fit_report_.resumed

    result = invoke(*command, "--resume", "--set", "base_kernel=rbf")
    assert_error(result, "another training", "Remove --resume")
    hard_table(tmp_path / "other.csv", num_rows=70)
    other = [tmp_path / "other.csv" if part == table else part for part in command]
    assert_error(invoke(*other, "--resume"), "its data differ")

    succeed(*command, "--resume")
    whole = ovkgp.load(model)
    assert whole.fit_report_.resumed and not whole.fit_report_.interrupted
    assert whole.fit_report_.iterations > half.fit_report_.iterations
    assert whole.log_evidence_ > half.log_evidence_
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m", "other.csv", "t.csv"]


def interrupt(*args, **kwargs):
    raise KeyboardInterrupt


def small_table(path):
    path.write_text("a,u\n" + "".join(f"{i / 4},{np.sin(i / 4)}\n" for i in range(20)))
    return path


def test_fit_interrupted_before_training_writes_nothing_and_after_training_keeps_checkpoint(tmp_path, monkeypatch):
    command = [
        "fit",
        "multitask",
        small_table(tmp_path / "t.csv"),
        "--inputs",
        "a",
        "--outputs",
        "u",
        "--out",
        tmp_path / "m",
    ]
    with monkeypatch.context() as patch:
        patch.setattr("ovkgp.cli.tables.TableFile.read", interrupt)
        result = invoke(*command)
    assert (result.exit_code, result.output) == (130, "Interrupted; nothing was written.\n")
    with monkeypatch.context() as patch:
        patch.setattr(ovkgp.GPRegressor, "_condition", interrupt)
        result = invoke(*command)
    assert result.exit_code == 130
    assert "the training so far is in" in result.output and "--resume continues" in result.output
    output = succeed(*command)  # without --resume
    assert "m.training' of an earlier fit is replaced" in output
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m", "t.csv"]


def small_fit(folder, recipe="multitask"):
    return ["fit", recipe, small_table(folder / "t.csv"), "--inputs", "a", "--outputs", "u", "--out", folder / "m"]


def test_fit_interrupted_while_saving_keeps_checkpoint(tmp_path, monkeypatch):
    monkeypatch.setattr(ovkgp.GPRegressor, "save", interrupt)
    result = invoke(*small_fit(tmp_path))
    assert result.exit_code == 130 and not (tmp_path / "m").exists()
    assert result.output.startswith(f"Interrupted; the training so far is in '{tmp_path / 'm.training'}'")
    assert "--resume" in result.output


def test_fit_interrupted_while_saving_without_checkpoint_writes_nothing(tmp_path, monkeypatch):
    (tmp_path / "m").write_text("an older model")
    monkeypatch.setattr(ovkgp.GPRegressor, "save", interrupt)
    result = invoke(*small_fit(tmp_path), "--set", "hyperparameters=fixed")
    assert (result.exit_code, result.output) == (130, "Interrupted; nothing was written.\n")


@pytest.mark.parametrize("later", ["ovkgp.cli.fit_job.CheckpointFiles.remove", "ovkgp.cli.fit_job.print_fit_summary"])
def test_fit_interrupted_after_saving_keeps_model(tmp_path, monkeypatch, later):
    monkeypatch.setattr(later, interrupt)
    result = invoke(*small_fit(tmp_path))
    assert result.exit_code == 130
    assert result.output.startswith(f"Interrupted; the model was written to '{tmp_path / 'm'}'")
    assert ("--resume continues" in result.output) == (tmp_path / "m.training").exists() == later.endswith("remove")
    assert ovkgp.load(tmp_path / "m").predict(pd.DataFrame({"a": [1.0]})).shape == (1, 1)


def test_fit_rejects_resume_if_likelihood_has_no_checkpoint(tmp_path):
    """Whether a likelihood chosen by values supports checkpoints is known only when the outputs are read."""
    (tmp_path / "m.training").write_text("of an earlier fit")
    (tmp_path / "t.csv").write_text("a,u\n" + "".join(f"{i / 4},{i % 2}\n" for i in range(20)))
    command = ["fit", "mixed_outputs", tmp_path / "t.csv", "--inputs", "a", "--outputs", "u", "--out", tmp_path / "m"]
    assert_error(invoke(*command, "--resume"), "does not support --resume")
    assert (tmp_path / "m.training").is_file() and not (tmp_path / "m").exists()


def test_fit_keeps_model_if_estimator_caught_interrupt(tmp_path, monkeypatch):
    """The model is written, and the exit code reports the interrupt."""
    fit = ovkgp.InfiniteOneClassSVM.fit

    def interrupted(self, X, y=None):
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            return fit(self, X)

    monkeypatch.setattr(ovkgp.InfiniteOneClassSVM, "fit", interrupted)
    result = invoke("fit", "level_sets", small_table(tmp_path / "t.csv"), "--inputs", "a", "--out", tmp_path / "m")
    assert result.exit_code == 130
    assert "the best model so far is in" in result.output and "there is no checkpoint" in result.output
    assert ovkgp.load(tmp_path / "m").predict(pd.DataFrame({"a": [1.0]})).shape == (1,)


def test_fit_interrupted_in_calibration_keeps_model(tmp_path, monkeypatch):
    def stop(*args):
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr("ovkgp.estimators.quantiles.regressor.calibrate_quantiles", stop)
    quick = ["--set", "lam=0.01", "--set", "lengthscale=1.0", "--set", "num_tasks=5"]
    table = small_table(tmp_path / "t.csv")
    result = invoke("fit", "quantiles", table, "--inputs", "a", "--outputs", "u", "--out", tmp_path / "m", *quick)
    assert result.exit_code == 130 and (tmp_path / "m").is_file()


def test_fit_stores_calibration_of_intervals(tmp_path, monkeypatch):
    quick = ["--set", "lam=0.01", "--set", "lengthscale=1.0", "--set", "num_tasks=5"]
    table = small_table(tmp_path / "t.csv")
    succeed("fit", "quantiles", table, "--inputs", "a", "--outputs", "u", "--out", tmp_path / "m", *quick)
    monkeypatch.setattr("ovkgp.estimators.quantiles.regressor.calibrate_quantiles", interrupt)
    lower, upper = ovkgp.load(tmp_path / "m").predict_interval(pd.DataFrame({"a": [1.0]}), 0.8)
    assert lower < upper


# --- two processes ----------------------------------------------------------------------------------------------------


def torchrun(*arguments):
    options = ["--nproc_per_node=2", "--master_addr=127.0.0.1", f"--master_port={free_port()}"]
    command = [sys.executable, "-m", "torch.distributed.run", *options, "-m", "ovkgp", *map(str, arguments)]
    return subprocess.run(command, env=environment(), timeout=MAX_SECONDS, capture_output=True, text=True)


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    return hard_table(tmp_path_factory.mktemp("rows") / "t.csv", num_rows=600)


def large_scale(table, out, *more):
    quick = ["--set", "num_frequencies=15", "--set", "training_rows=60", "--set", "kernel=independent"]
    return ["fit", "large_scale", table, "--inputs", "a,b", "--outputs", "u,v,w", "--out", out, *quick, *more]


@pytest.mark.slow
def test_distributed_fit_equals_single_process(rows, tmp_path):
    done = torchrun(*large_scale(rows, tmp_path / "two"))
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Model written to") == 1  # only the first rank prints
    succeed(*large_scale(rows, tmp_path / "one", "--stream"))
    for name in ("one", "two"):
        succeed("predict", tmp_path / name, rows, "--out", tmp_path / f"{name}.csv")
    one, two = (pd.read_csv(tmp_path / f"{name}.csv") for name in ("one", "two"))
    # the statistics are the same sums in another order
    pd.testing.assert_frame_equal(one, two, rtol=1e-6, atol=1e-8)
    assert not ovkgp.load(tmp_path / "two").distributed
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "one.csv", "two", "two.csv"]


@pytest.mark.slow
def test_distributed_fit_reports_bad_row(rows, tmp_path):
    lines = rows.read_text().splitlines(keepends=True)
    lines[550] = "1,red,2,3,4\n"
    (tmp_path / "t.csv").write_text("".join(lines))
    done = torchrun(*large_scale(tmp_path / "t.csv", tmp_path / "m"))
    assert done.returncode != 0
    assert "line 551" in done.stderr and "'red'" in done.stderr and "--skip-bad-rows" in done.stderr
    assert not (tmp_path / "m").exists()


def test_distributed_fit_rejects_unsupported_recipe(rows, tmp_path, monkeypatch):
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    result = invoke("fit", "quantiles", rows, "--inputs", "a", "--outputs", "u", "--out", tmp_path / "m")
    assert_error(result, "torchrun", "quantiles")
