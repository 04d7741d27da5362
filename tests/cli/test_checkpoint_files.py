"""The files of an interrupted fit: found, required, replaced and taken away."""

import pytest

from ovkgp.cli.fit_job import CANDIDATES, CheckpointFiles
from ovkgp.estimators.common import named_kernels as structures
from ovkgp.exceptions import OptionError


def test_candidates_are_those_of_the_regressor():
    assert CANDIDATES == structures.CANDIDATES


def test_files_of_the_fit_and_of_its_candidates(tmp_path, capsys):
    files = CheckpointFiles(tmp_path / "m.ovkgp")
    with pytest.raises(OptionError, match="there is nothing to resume"):
        files.require()
    files.clear()
    others = tmp_path / "m.ovkgp.training.csv", tmp_path / "m.ovkgp"
    for path in (*others, *(tmp_path / f"m.ovkgp.training{end}" for end in ("", ".independent", ".decomposable"))):
        path.write_text("")
    assert len(files.present) == 3
    files.require()
    assert capsys.readouterr().err == ""
    files.clear()
    assert "is replaced; --resume would have gone on from it" in capsys.readouterr().err
    assert sorted(tmp_path.iterdir()) == sorted(others)
