"""Trainings that are killed and go on, and files that are not what they should be."""

import math
import os

import pytest
import torch
from gpytorch.module import Module
from safetensors.torch import save_file

from ovkgp.exceptions import FitWarning, InputError
from ovkgp.inference.training import maximize as maximize_module
from ovkgp.inference.training.checkpoints import Progress, problem_signature, read_progress, write_progress
from ovkgp.inference.training.maximize import maximize


class Killed(BaseException):
    """Raised where a process is killed."""


class Valley(Module):
    """Rosenbrock's function, upside down, with every evaluation on record."""

    def __init__(self, kill_at=None, error=Killed):
        super().__init__()
        self.register_parameter("x", torch.nn.Parameter(torch.tensor([-1.2, 1.0], dtype=torch.float64)))
        self.kill_at, self.error, self.points = kill_at, error, []

    def height(self):
        self.points.append(self.x.tolist())
        if len(self.points) == self.kill_at:
            raise self.error
        return -((1 - self.x[0]) ** 2) - 100 * (self.x[1] - self.x[0] ** 2) ** 2


@pytest.fixture
def often(monkeypatch):
    """Write a checkpoint after every iteration."""
    monkeypatch.setattr(maximize_module, "CHECKPOINT_ITERATIONS", 1)
    monkeypatch.setattr(maximize_module, "CHECKPOINT_SECONDS", 0.0)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "training.safetensors"


def train(valley, path, **options):
    return maximize(valley, valley.height, checkpoint=path, **{"tolerance": 1e-12, "signature": "toy", **options})


def finished(path, **options):
    valley = Valley()
    return valley, train(valley, path, **options)


SIGNATURE = problem_signature(dict(Valley().named_parameters()), "toy")


# --- going on -------------------------------------------------------------------------------------------------------


def test_killed_training_resumes_to_same_optimum(often, path):
    whole, expected = finished(None)
    killed = Valley(kill_at=25)
    with pytest.raises(Killed):
        train(killed, path)
    stored = read_progress(path, SIGNATURE)
    assert not stored.done and stored.current_iterations > 5
    again, report = finished(path)
    assert report.resumed and report.converged and again.points[0] == stored.current["x"].tolist()
    assert len(again.points) < len(whole.points)  # finished iterations are not repeated
    assert report.iterations == len(report.history) and report.evaluations > len(again.points)
    torch.testing.assert_close(again.x.detach(), whole.x.detach(), rtol=1e-6, atol=0)
    assert report.objective == pytest.approx(expected.objective, abs=1e-12)


def test_interrupted_training_is_saved_and_resumed(path):
    first = Valley(kill_at=12, error=KeyboardInterrupt)
    with pytest.warns(FitWarning, match="interrupted"):
        report = train(first, path)
    stored = read_progress(path, SIGNATURE)
    assert stored.best_value == report.objective and stored.best["x"].tolist() == first.x.tolist()
    again, report = finished(path)
    assert report.resumed and not report.interrupted and report.converged
    torch.testing.assert_close(again.x.detach(), torch.ones(2).double(), rtol=1e-5, atol=0)


def test_finished_restarts_are_not_repeated(often, path):
    _, expected = finished(None, restarts=3, random_state=7)
    counting = Valley()
    train(counting, None, restarts=2, random_state=7)
    killed = Valley(kill_at=len(counting.points) + 4)  # in the middle of the third restart
    with pytest.raises(Killed):
        train(killed, path, restarts=3, random_state=7)
    assert len(read_progress(path, SIGNATURE).finished) == 2
    again, report = finished(path, restarts=3)  # the seed is the file's
    assert len(again.points) < len(counting.points) and len(report.restarts) == 3
    assert report.restarts[:2] == expected.restarts[:2]
    assert report.restarts[2] == pytest.approx(expected.restarts[2], abs=1e-10)


def test_resumed_restart_has_same_initial_point(path):
    whole, once = Valley(), Valley()
    train(whole, None, restarts=2, random_state=7)
    train(once, path, restarts=1, random_state=7)
    more, report = finished(path, restarts=2)
    assert more.points[0] == whole.points[len(once.points)] and report.resumed and len(report.restarts) == 2


def test_finished_training_is_restored_without_evaluation(path):
    first, report = finished(path)
    assert read_progress(path, SIGNATURE).done
    again = Valley(kill_at=1)
    restored = train(again, path)
    assert torch.equal(again.x, first.x) and again.points == [] and restored.resumed
    for name in (
        "objective",
        "converged",
        "message",
        "iterations",
        "evaluations",
        "gradient_norm",
        "restarts",
        "history",
    ):
        assert getattr(restored, name) == getattr(report, name)


def test_training_resumes_with_larger_max_iter(path):
    with pytest.warns(FitWarning, match="max_iter"):
        train(Valley(), path, max_iter=10)
    untouched = Valley(kill_at=1)
    assert not train(untouched, path, max_iter=10).converged
    again, report = finished(path, max_iter=200)
    assert report.converged and report.iterations > 10 and len(report.restarts) == 1
    torch.testing.assert_close(again.x.detach(), torch.ones(2).double(), rtol=1e-5, atol=0)


def test_restart_without_initial_point_is_stored(path):
    progress = Progress(seed=1, start={"x": torch.zeros(2)}, finished=[{"objective": math.nan}])
    write_progress(path, progress, "toy")
    assert math.isnan(read_progress(path, "toy").finished[0]["objective"])


# --- files that are not what they should be -------------------------------------------------------------------------


def assert_rejected(path, match, kind=InputError, **options):
    valley = Valley(kill_at=1)  # an evaluation would be the wrong error
    with pytest.raises(kind, match=match) as error:
        train(valley, path, **options)
    assert path.name in str(error.value) and valley.x.tolist() == [-1.2, 1.0]


def test_checkpoint_rejects_every_damaged_byte(path):
    finished(path)
    whole = path.read_bytes()
    for position in range(0, len(whole), max(1, len(whole) // 60)):
        path.write_bytes(whole[:position] + bytes([whole[position] ^ 0x15]) + whole[position + 1 :])
        assert_rejected(path, "not a checkpoint|damaged|another training")


@pytest.mark.parametrize("keep", [0, 5, 100, -1])
def test_checkpoint_rejects_truncated_file(path, keep):
    finished(path)
    path.write_bytes(path.read_bytes()[:keep])
    assert_rejected(path, "not a checkpoint")


def test_checkpoint_keeps_foreign_file(path):
    save_file({"x": torch.zeros(2)}, path)
    before = path.read_bytes()
    assert_rejected(path, "another format")
    assert path.read_bytes() == before


def test_checkpoint_rejects_other_data(path):
    finished(path)
    assert_rejected(path, "its data differ", signature="other")


def test_checkpoint_rejects_other_parameters(path):
    write_progress(path, Progress(seed=0), problem_signature({"x": torch.zeros(3), "y": torch.zeros(1)}, "toy"))
    assert_rejected(path, r"parameters differ \(x, y\)")


# --- folders that cannot be written to ------------------------------------------------------------------------------


def test_checkpoint_rejects_unwritable_path_before_training(tmp_path):
    (tmp_path / "file").write_text("")
    for path in (tmp_path, tmp_path / "file" / "checkpoint", tmp_path / "missing" / "checkpoint"):
        assert_rejected(path, r"checkpoint must be .* folder")


def test_check_writable_leaves_no_file(tmp_path, path):
    valley = Valley(kill_at=1)
    with pytest.raises(Killed):
        train(valley, path)
    assert list(tmp_path.iterdir()) == []


def test_full_disk_does_not_stop_training(often, path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.warns(FitWarning, match="No space left"):
        valley, report = finished(path)
    assert report.converged and valley.x[0].item() == pytest.approx(1.0, rel=1e-5)
    assert list(path.parent.iterdir()) == []  # no temporary files either


def test_failed_write_keeps_old_checkpoint(path, monkeypatch):
    write_progress(path, Progress(seed=1), "toy")
    monkeypatch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(Killed()))
    with pytest.raises(Killed):
        write_progress(path, Progress(seed=2), "toy")
    assert read_progress(path, "toy").seed == 1 and list(path.parent.iterdir()) == [path]


def test_checkpoints_are_written_at_most_once_per_interval(path, monkeypatch):
    written = []
    monkeypatch.setattr(maximize_module, "write_progress", lambda *arguments: written.append(arguments))
    monkeypatch.setattr(maximize_module, "CHECKPOINT_SECONDS", 3600.0)
    finished(path)
    assert len(written) == 2  # after the restart and at the end, and none between
    monkeypatch.setattr(maximize_module, "CHECKPOINT_SECONDS", 0.0)
    written.clear()
    _, report = finished(path)
    assert len(written) == 2 + report.iterations // maximize_module.CHECKPOINT_ITERATIONS
