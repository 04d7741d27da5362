import os

import pytest

from ovkgp.plotting.report.whole_files import replace_file, require_place


def test_a_folder_is_no_file(tmp_path):
    with pytest.raises(IsADirectoryError, match="name a file in it"):
        require_place(tmp_path)


def test_a_folder_that_does_not_exist_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no folder .*missing.*make it first"):
        require_place(tmp_path / "missing" / "report.html")


def test_a_folder_that_may_not_be_written_to(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(PermissionError, match="may not write"):
        require_place(tmp_path / "report.html")


def test_a_file_is_replaced_as_a_whole(tmp_path):
    target = tmp_path / "report.html"
    replace_file(target, "old")
    replace_file(target, "new ≥")
    assert target.read_text(encoding="utf-8") == "new ≥" and os.listdir(tmp_path) == ["report.html"]


def test_where_writing_fails_the_older_file_stays(tmp_path, monkeypatch):
    target = tmp_path / "report.html"
    replace_file(target, "old")

    def fail(source, destination):
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        replace_file(target, "new")
    assert target.read_text() == "old" and os.listdir(tmp_path) == ["report.html"]
