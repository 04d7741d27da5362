"""``ovkgp demo``: its picture, its tables, and its answers to bad input."""

import os
import signal
import subprocess
import sys
import tempfile
import time

import matplotlib.figure
import matplotlib.image
import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from ovkgp.cli import app
from ovkgp.cli import demo as demo_module  # the module: the command's function has another name


def invoke(*arguments, **options):
    return CliRunner().invoke(app, ["demo", *map(str, arguments)], env={"COLUMNS": "120"}, **options)


@pytest.fixture
def small(monkeypatch):
    """The same demo with less work."""
    monkeypatch.setattr(demo_module, "SIZES", (10, 100, 1_000))
    monkeypatch.setattr(demo_module, "TABLE_SIZES", (10, 100, 1_000))
    monkeypatch.setattr(demo_module, "REPEATS", 3)
    monkeypatch.setattr(demo_module, "FIELD_FREQUENCIES", 50)


def assert_one_sentence(result, *words):
    assert result.exit_code == 2
    assert "Traceback" not in result.output
    assert len(result.output.strip().splitlines()) == 1
    for word in words:
        assert word in result.output


def test_demo_writes_a_picture_and_prints_tables(tmp_path, small):
    out = tmp_path / "made" / "here"
    result = invoke("--out", out, "--seed", 3)
    assert result.exit_code == 0, result.output
    image = matplotlib.image.imread(out / "fields.png")
    assert image.shape[0] > 300 and image.shape[1] > 900 and np.std(image) > 0.01
    for word in ("decomposable", "curl-free", "divergence-free", "D = 1000", "slope", "max |curl|", "fields.png"):
        assert word in result.output


def test_demo_reproduces_itself(tmp_path, small):
    first, second, other = (invoke("--out", tmp_path, "--seed", seed).output for seed in (1, 1, 2))
    assert first == second != other


def test_full_demo_has_the_slope_of_monte_carlo():
    for kernel in demo_module.kernels(demo_module.ERROR_DIMS).values():
        errors = demo_module.sup_errors(kernel, seed=0)
        assert demo_module.slope(errors) == pytest.approx(-0.5, abs=0.1)


def test_drawn_fields_have_no_curl_and_no_divergence():
    kernels = demo_module.kernels()
    curl_free = demo_module.picture(kernels["curl-free"], 0, rotated=False)
    divergence_free = demo_module.picture(kernels["divergence-free"], 0, rotated=True)
    assert curl_free.curl < 1e-10 < 1e-2 < curl_free.divergence
    assert divergence_free.divergence < 1e-10 < 1e-2 < divergence_free.curl


@pytest.mark.parametrize(("name", "rotated"), [("curl-free", False), ("divergence-free", True)])
def test_line_integral_is_the_potential(name, rotated):
    field = demo_module.draw_field(demo_module.kernels()[name], 0)
    X = torch.tensor([[0.3, -1.2], [2.0, 1.5], [-3.0, 3.0]], dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(demo_module.line_integral(field, X, rotated=rotated).sum(), X)
    if rotated:
        gradient = torch.stack([gradient[:, 1], -gradient[:, 0]], dim=1)
    # equal up to the quadrature, whose error at 24 nodes is far below this
    torch.testing.assert_close(gradient, field(X), rtol=1e-6, atol=1e-6)


def test_out_is_a_file(tmp_path):
    (tmp_path / "file").write_text("")
    assert_one_sentence(invoke("--out", tmp_path / "file"), "--out", "is a file")
    assert_one_sentence(invoke("--out", tmp_path / "file" / "below"), "cannot write")


def test_folder_is_not_writable(tmp_path, monkeypatch):
    def refuse(*args, **kwargs):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
    assert_one_sentence(invoke("--out", tmp_path), "cannot write", "permission denied")


def test_picture_cannot_be_written(tmp_path, small):
    (tmp_path / "fields.png").mkdir()
    result = invoke("--out", tmp_path)
    assert result.exit_code == 2
    assert "cannot write" in result.output and "Traceback" not in result.output


@pytest.mark.parametrize("name", ["", "  "])
def test_out_has_no_name(name):
    assert_one_sentence(invoke("--out", name), "--out must name a folder")


def interrupt(*args, **kwargs):
    raise KeyboardInterrupt


def assert_interrupted(result, words):
    assert result.exit_code == 130
    assert result.output.strip().splitlines()[-1].startswith(f"Interrupted; {words}")
    assert "Traceback" not in result.output


@pytest.mark.parametrize("step", ["picture", "sup_errors", "save_figure"])
def test_ctrl_c_writes_nothing_and_leaves_no_folder(tmp_path, small, monkeypatch, step):
    monkeypatch.setattr(demo_module, step, interrupt)
    assert_interrupted(invoke("--out", tmp_path / "made" / "here"), "nothing was written.")
    assert list(tmp_path.iterdir()) == []


def test_ctrl_c_leaves_a_folder_alone_that_was_there(tmp_path, small, monkeypatch):
    monkeypatch.setattr(demo_module, "picture", interrupt)
    assert_interrupted(invoke("--out", tmp_path), "nothing was written.")
    assert tmp_path.is_dir()


def test_ctrl_c_while_the_picture_is_written_leaves_no_half_of_it(tmp_path, small, monkeypatch):
    def start(figure, path, **options):
        path.write_bytes(b"half a picture")
        raise KeyboardInterrupt

    monkeypatch.setattr(matplotlib.figure.Figure, "savefig", start)
    (tmp_path / "fields.png").write_bytes(b"an old picture")
    assert_interrupted(invoke("--out", tmp_path), "nothing was written.")
    assert [file.read_bytes() for file in tmp_path.iterdir()] == [b"an old picture"]


def test_ctrl_c_after_the_picture_says_where_it_is(tmp_path, small, monkeypatch):
    monkeypatch.setattr(demo_module, "error_table", interrupt)
    assert_interrupted(invoke("--out", tmp_path / "made"), "the picture was written to")
    assert (tmp_path / "made" / "fields.png").is_file()


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
