"""Files that are missing, not regular, not readable, or modified."""

import os

import pytest

from ovkgp.exceptions import InputError, OptionError
from ovkgp.files import Snapshot


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
