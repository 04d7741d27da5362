"""Tests of `ovkgp.cli.arguments`."""

import os
import tempfile

import pytest

from ovkgp.cli.arguments import (
    check_output_file,
    check_seed,
    output_folder,
    parse_names,
    parse_number,
    parse_numbers,
    parse_overrides,
)
from ovkgp.exceptions import OptionError


@pytest.mark.parametrize("seed", [0, 2**32 - 1])
def test_check_seed_accepts_valid_seeds(seed):
    assert check_seed(seed) == seed


@pytest.mark.parametrize("seed", [-1, 2**32])
def test_check_seed_rejects_invalid_seeds(seed):
    with pytest.raises(OptionError, match=f"--seed .* got {seed}"):
        check_seed(seed)


def test_parse_numbers_splits_at_commas():
    assert parse_numbers("0.1, 0.9", "--quantiles", 0, 1) == (0.1, 0.9)
    assert parse_numbers("-1,1e3", "--costs") == (-1.0, 1000.0)


@pytest.mark.parametrize("text", ["", "0.5,", "half", "0", "1", "0.5;0.6", "nan", "inf"])
def test_parse_numbers_rejects_invalid_levels(text):
    with pytest.raises(OptionError, match="--quantiles"):
        parse_numbers(text, "--quantiles", 0, 1)


def test_parse_numbers_rejects_repeated_numbers():
    with pytest.raises(OptionError, match="repeat"):
        parse_numbers("0.5,0.50", "--quantiles", 0, 1)


def test_parse_number_rejects_several_numbers():
    assert parse_number("0.9", "--level", 0, 1) == 0.9
    for text in ("90", "0.5,0.9"):
        with pytest.raises(OptionError, match="--level must be one number"):
            parse_number(text, "--level", 0, 1)


def test_parse_names_splits_at_commas_outside_quotes():
    assert parse_names("east, north") == ("east", "north")
    assert parse_names('"Cd (mg, kg)",Ni') == ("Cd (mg, kg)", "Ni")
    assert parse_names(None) is None


def test_check_output_file_accepts_writable_paths(tmp_path):
    assert check_output_file(str(tmp_path / "model.ovkgp")) == tmp_path / "model.ovkgp"
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "there.csv").write_text("old")
    assert check_output_file(str(tmp_path / "there.csv"), (".csv", ".tsv")).read_text() == "old"


def test_check_output_file_rejects_invalid_paths(tmp_path):
    data = tmp_path / "data.csv"
    data.write_text("x")
    for name, message in {
        "  ": "empty name",
        str(tmp_path): "is a folder",
        str(tmp_path / "table.xlsx"): r"must end in .csv or .tsv, got '.*table.xlsx'",
        str(tmp_path / "no" / "table.csv"): "does not exist",
        str(data / "table.csv"): "does not exist",
        os.path.join(tmp_path, ".", "data.csv"): "would replace the input file",
    }.items():
        with pytest.raises(OptionError, match=message):
            check_output_file(name, (".csv", ".tsv"), sources=[str(data)])


def test_output_folder_without_permission_is_rejected(tmp_path, monkeypatch):
    def deny(*args, **kwargs):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(tempfile, "TemporaryFile", deny)
    with pytest.raises(OptionError, match="permission denied"):
        check_output_file(str(tmp_path / "model.ovkgp"))
    with pytest.raises(OptionError, match="permission denied"), output_folder(str(tmp_path)):
        pass


def test_output_file_without_permission_is_rejected(tmp_path, monkeypatch):
    (tmp_path / "model.ovkgp").write_text("")
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(OptionError, match="permission denied"):
        check_output_file(str(tmp_path / "model.ovkgp"))


def test_output_paths_expand_tilde(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert check_output_file("~/model.ovkgp") == tmp_path / "model.ovkgp"
    with output_folder("~/demo") as folder:
        assert folder == tmp_path / "demo" and folder.is_dir()


def test_output_folder_is_removed_if_the_work_fails(tmp_path):
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
def test_parse_overrides_reads_toml_or_strings(text, value):
    found = parse_overrides([text])
    assert found == {"k": value} and type(found["k"]) is type(value)


def test_parse_overrides_nests_dotted_keys():
    texts = ["sampling.draws=50", "sampling.chains=2", "graph.edges=chain", "rank=1"]
    assert parse_overrides(texts) == {"sampling": {"draws": 50, "chains": 2}, "graph": {"edges": "chain"}, "rank": 1}


@pytest.mark.parametrize("text", ["rank", "=3", "rank=", "rank= ", ""])
def test_parse_overrides_rejects_missing_key_or_value(text):
    with pytest.raises(OptionError, match="--set must be key=value"):
        parse_overrides([text])


@pytest.mark.parametrize("key", ["a b", "a..b", "é"])
def test_parse_overrides_rejects_invalid_keys(key):
    with pytest.raises(OptionError, match="--set must name an option"):
        parse_overrides([f"{key}=3"])


def test_parse_overrides_rejects_repeated_options():
    with pytest.raises(OptionError, match="rank twice"):
        parse_overrides(["rank=3", "rank=4"])
    with pytest.raises(OptionError, match="twice"):
        parse_overrides(["a.b=3", "a=4"])
