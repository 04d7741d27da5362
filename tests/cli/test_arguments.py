"""Tests of `ovkgp.cli.arguments`."""

import os
import tempfile

import pytest

from ovkgp.cli.arguments import check_seed, numbers, output_file, output_folder, settings
from ovkgp.exceptions import OptionError


@pytest.mark.parametrize("seed", [0, 2**32 - 1])
def test_seeds_that_numpy_takes(seed):
    assert check_seed(seed) == seed


@pytest.mark.parametrize("seed", [-1, 2**32])
def test_other_seeds(seed):
    with pytest.raises(OptionError, match=f"--seed must lie between 0 and 4294967295, got {seed}"):
        check_seed(seed)


def test_numbers():
    assert numbers("0.1, 0.9", "--quantiles", 0, 1) == (0.1, 0.9)
    assert numbers("-1,1e3", "--costs") == (-1.0, 1000.0)


@pytest.mark.parametrize("text", ["", "0.5,", "half", "0", "1", "0.5;0.6", "nan", "inf"])
def test_texts_that_are_no_levels(text):
    with pytest.raises(OptionError, match="--quantiles must be numbers between 0 and 1 with commas between them"):
        numbers(text, "--quantiles", 0, 1)


def test_a_number_is_given_once():
    with pytest.raises(OptionError, match="twice"):
        numbers("0.5,0.50", "--quantiles", 0, 1)


def test_a_file_that_can_be_written(tmp_path):
    assert output_file(str(tmp_path / "model.ovkgp")) == tmp_path / "model.ovkgp"
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "there.csv").write_text("old")
    assert output_file(str(tmp_path / "there.csv"), (".csv", ".tsv")).read_text() == "old"


def test_files_that_cannot_be_written(tmp_path):
    data = tmp_path / "data.csv"
    data.write_text("x")
    for name, message in {
        "  ": "must name a file",
        str(tmp_path): "is a folder: name a file in it",
        str(tmp_path / "table.xlsx"): r"must end in .csv or .tsv, got '.*table.xlsx'",
        str(tmp_path / "no" / "table.csv"): "there is no folder",
        str(data / "table.csv"): "there is no folder",
        os.path.join(tmp_path, ".", "data.csv"): "would replace .* which is read",
    }.items():
        with pytest.raises(OptionError, match=message):
            output_file(name, (".csv", ".tsv"), sources=[str(data)])


def test_a_folder_without_permission(tmp_path, monkeypatch):
    def refuse(*args, **kwargs):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
    with pytest.raises(OptionError, match=r"cannot write into the folder .* \(permission denied\)"):
        output_file(str(tmp_path / "model.ovkgp"))
    with pytest.raises(OptionError, match="permission denied"), output_folder(str(tmp_path)):
        pass


def test_a_file_without_permission(tmp_path, monkeypatch):
    (tmp_path / "model.ovkgp").write_text("")
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(OptionError, match=r"may not be replaced \(permission denied\)"):
        output_file(str(tmp_path / "model.ovkgp"))


def test_a_tilde_is_the_home_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert output_file("~/model.ovkgp") == tmp_path / "model.ovkgp"
    with output_folder("~/demo") as folder:
        assert folder == tmp_path / "demo" and folder.is_dir()


def test_a_folder_is_made_and_taken_away_where_the_work_fails(tmp_path):
    with output_folder(str(tmp_path / "a" / "b")) as folder:
        assert folder.is_dir()
    assert folder.is_dir()
    with pytest.raises(RuntimeError), output_folder(str(tmp_path / "c" / "d")) as folder:
        assert folder.is_dir()
        raise RuntimeError
    assert not (tmp_path / "c").exists()


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("k=3", 3),
        ("k = 0.5", 0.5),
        ("k=1e-3", 1e-3),
        ("k=true", True),
        ("k=rbf", "rbf"),
        ("k=full noise", "full noise"),
        ('k="3"', "3"),
        ("k=[1, 2.5]", [1, 2.5]),
        ('k=[["a", "b"]]', [["a", "b"]]),
        ("k=a=b", "a=b"),
        ('k=say "no"', 'say "no"'),
        ("k=C:\\path", "C:\\path"),
    ],
)
def test_values_are_toml_or_else_texts(text, value):
    found = settings([text])
    assert found == {"k": value} and type(found["k"]) is type(value)


def test_dots_lead_into_tables():
    texts = ["sampling.draws=50", "sampling.chains=2", "graph.edges=chain", "rank=1"]
    assert settings(texts) == {"sampling": {"draws": 50, "chains": 2}, "graph": {"edges": "chain"}, "rank": 1}


@pytest.mark.parametrize("text", ["rank", "=3", "rank=", "rank= ", ""])
def test_texts_that_set_nothing(text):
    with pytest.raises(OptionError, match="--set takes key=value"):
        settings([text])


@pytest.mark.parametrize("key", ["a b", "a..b", "é"])
def test_keys_that_are_no_names(key):
    with pytest.raises(OptionError, match="--set takes the name of an option"):
        settings([f"{key}=3"])


def test_an_option_is_set_once():
    with pytest.raises(OptionError, match="gives rank twice"):
        settings(["rank=3", "rank=4"])
    with pytest.raises(OptionError, match="twice"):
        settings(["a.b=3", "a=4"])
