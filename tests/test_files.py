"""Files that are not there, not files, not readable, or not what they were."""

import os

import pytest

from ovkgp.exceptions import InputError, OptionError
from ovkgp.files import Snapshot


def test_a_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"there is no file '.*nothing\.csv'"):
        Snapshot.of(tmp_path / "nothing.csv")
    (tmp_path / "file").write_text("x")
    with pytest.raises(FileNotFoundError, match="there is no file"):
        Snapshot.of(tmp_path / "file" / "inside.csv")


def test_a_folder(tmp_path):
    with pytest.raises(OptionError, match="is a folder: name one file in it"):
        Snapshot.of(tmp_path)


def test_a_pipe(tmp_path):
    os.mkfifo(tmp_path / "pipe.csv")
    with pytest.raises(OptionError, match="is a pipe or a device"):
        Snapshot.of(tmp_path / "pipe.csv")


def test_a_file_without_permission(tmp_path):
    path = tmp_path / "secret.csv"
    path.write_text("x,y\n1,2\n")
    path.chmod(0)
    user = os.geteuid()
    if user == 0:  # who may read everything: ask as nobody
        os.seteuid(65534)
    try:
        with pytest.raises(PermissionError, match=r"secret\.csv"):
            Snapshot.of(path)
    finally:
        os.seteuid(user)


def test_the_home_folder_is_expanded(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "table.csv").write_text("x,y\n1,2\n")
    assert Snapshot.of("~/table.csv").size == 8


@pytest.mark.parametrize("change", ["grow", "shrink", "touch"])
def test_a_file_that_changed(tmp_path, change):
    path = tmp_path / "table.csv"
    path.write_text("x,y\n1,2\n")
    snapshot = Snapshot.of(path)
    with open(path, "rb+") as file:
        snapshot.check(file)
        if change == "touch":
            os.utime(path, ns=(0, snapshot.changed + 1))
        else:
            file.truncate(20 if change == "grow" else 5)
        with pytest.raises(InputError, match=r"was changed after the stream was made \(8 bytes then"):
            snapshot.check(file)
