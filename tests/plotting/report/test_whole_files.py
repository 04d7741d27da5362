import os

import pytest

from ovkgp.plotting.report.page import require_place


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


def test_a_link_into_a_folder_that_does_not_exist(tmp_path):
    link = tmp_path / "report.html"
    link.symlink_to(tmp_path / "missing" / "report.html")
    with pytest.raises(FileNotFoundError, match=r"no folder .*missing.*make it first"):
        require_place(link)
