"""Tests of `ovkgp.files`."""

import os
import re
import signal
import subprocess
import sys
import tempfile

import pytest
import torch

from ovkgp.exceptions import InputError, OptionError
from ovkgp.files import Snapshot, check_writable, digest, replace_file


def test_snapshot_rejects_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"nothing\.csv"):
        Snapshot.of(tmp_path / "nothing.csv")
    (tmp_path / "file").write_text("x")
    with pytest.raises(FileNotFoundError, match=r"inside\.csv"):
        Snapshot.of(tmp_path / "file" / "inside.csv")


def test_snapshot_rejects_folder(tmp_path):
    with pytest.raises(OptionError, match="folder"):
        Snapshot.of(tmp_path)


def test_snapshot_rejects_pipe(tmp_path):
    os.mkfifo(tmp_path / "pipe.csv")
    with pytest.raises(OptionError, match="pipe"):
        Snapshot.of(tmp_path / "pipe.csv")


def test_snapshot_rejects_unreadable_file(tmp_path):
    path = tmp_path / "secret.csv"
    path.write_text("x,y\n1,2\n")
    path.chmod(0)
    user = os.geteuid()
    if user == 0:  # root may read everything: drop the privileges
        os.seteuid(65534)
    try:
        with pytest.raises(PermissionError, match=r"secret\.csv"):
            Snapshot.of(path)
    finally:
        os.seteuid(user)


def test_snapshot_expands_home_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "table.csv").write_text("x,y\n1,2\n")
    assert Snapshot.of("~/table.csv").size == 8


@pytest.mark.parametrize("change", ["grow", "shrink", "touch"])
def test_snapshot_detects_modified_file(tmp_path, change):
    path = tmp_path / "table.csv"
    path.write_text("x,y\n1,2\n")
    snapshot = Snapshot.of(path)
    with open(path, "rb+") as file:
        snapshot.check(file)
        if change == "touch":
            os.utime(path, ns=(0, snapshot.modified_ns + 1))
        else:
            file.truncate(20 if change == "grow" else 5)
        with pytest.raises(InputError, match="8 bytes then"):
            snapshot.check(file)


def test_replace_file_follows_links_and_leaves_no_temporary_file(tmp_path):
    target, link = tmp_path / "page", tmp_path / "link"
    link.symlink_to(target)
    replace_file(target, lambda file: file.write(b"old"))
    replace_file(link, lambda file: file.write(b"new"))
    assert target.read_bytes() == b"new" and link.is_symlink() and set(tmp_path.iterdir()) == {target, link}


def test_replace_file_leaves_no_file_if_write_fails(tmp_path):
    def write(file):
        file.write(b"half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        replace_file(tmp_path / "page", write)
    assert list(tmp_path.iterdir()) == []


def test_check_writable_returns_path_and_leaves_no_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert str(check_writable("page")) == "page" and list(tmp_path.iterdir()) == []


def test_check_writable_rejects_folders(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "missing" / "page")
    with pytest.raises(IsADirectoryError, match="is a folder"):
        check_writable(tmp_path)
    for path in (tmp_path / "missing" / "page", tmp_path / "link"):
        with pytest.raises(FileNotFoundError, match=r"no folder .*missing"):
            check_writable(path)


def test_check_writable_rejects_unwritable_folder(tmp_path, monkeypatch):
    """Root may write anywhere, so the error of the system is simulated."""

    def deny(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(tempfile, "TemporaryFile", deny)
    for call in (check_writable, lambda path: replace_file(path, lambda file: file.write(b"x"))):
        with pytest.raises(PermissionError, match=f"{tmp_path.name} is not writable"):
            call(tmp_path / "page")


def test_digest_depends_on_names_types_shapes_values_and_texts():
    base = {"a": torch.zeros(2, 2), "b": torch.ones(3, dtype=torch.bfloat16)}
    assert digest(base, "text") == digest(dict(reversed(base.items())), "text")
    others = [
        {**base, "a": torch.zeros(4)},
        {**base, "a": torch.zeros(2, 2, dtype=torch.int32)},
        {**base, "a": torch.tensor([[0.0, 0.0], [0.0, -0.0]])},
        {"a": base["a"], "c": base["b"]},
    ]
    found = {digest(base, "text"), digest(base), digest(base, "te", "xt"), *(digest(other, "text") for other in others)}
    assert len(found) == 7


def test_replace_file_removes_temporary_files_of_killed_processes(tmp_path):
    target = tmp_path / "model"
    script = f"import os, signal; from ovkgp.files import replace_file; replace_file({str(target)!r}, lambda file: (file.write(b'x'), os.kill(os.getpid(), signal.SIGKILL)))"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == -signal.SIGKILL
    (left,) = tmp_path.iterdir()
    others = [
        tmp_path / left.name.replace("model", "other"),
        tmp_path / re.sub("-[0-9]+-", f"-{os.getpid()}-", left.name),
    ]
    for other in others:
        other.write_text("of another file, or of a running process")
    replace_file(target, lambda file: file.write(b"new"))
    assert set(tmp_path.iterdir()) == {target, *others} and target.read_bytes() == b"new"
