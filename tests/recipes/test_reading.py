"""Recipe files: what can be wrong with a file is said in one sentence."""

import os

import pytest

from ovkgp.exceptions import InputError, OptionError
from ovkgp.recipes.toml_reader import read_toml


@pytest.fixture
def path(tmp_path):
    return tmp_path / "mine.toml"


def test_values_come_with_their_lines(path):
    path.write_bytes(b"[model]\r\n\r\nestimator = 'GPRegressor'\r\n")
    values, lines = read_toml(path)
    assert values == {"model": {"estimator": "GPRegressor"}}
    assert lines == {("model",): 1, ("model", "estimator"): 3}


def test_a_byte_order_mark_is_no_part_of_the_text(path):
    path.write_text("[model]\n", encoding="utf-8-sig")
    assert read_toml(path)[0] == {"model": {}}


def test_a_missing_file(path):
    with pytest.raises(InputError, match=r"^there is no file .*mine\.toml\.$"):
        read_toml(path)


def test_a_folder(tmp_path):
    with pytest.raises(InputError, match=r"is a folder; a recipe is a TOML file\.$"):
        read_toml(tmp_path)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read(path):
    path.write_text("[model]")
    path.chmod(0)
    with pytest.raises(InputError, match="permission was denied"):
        read_toml(path)


def test_a_denied_permission_is_said_in_a_sentence(path, monkeypatch):
    def denied(self):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(type(path), "read_bytes", denied)
    with pytest.raises(InputError, match=r"mine\.toml may not be read: permission was denied\.$"):
        read_toml(path)


def test_a_name_that_no_file_can_have(path):
    with pytest.raises(InputError, match="cannot be read: "):
        read_toml(path.with_name("a\0b"))


def test_bytes_that_are_no_text(path):
    path.write_bytes(b"title = \xff\xfe")
    with pytest.raises(InputError, match=r"is not a text in UTF-8 \(byte 9\); save it as UTF-8\.$"):
        read_toml(path)


def test_syntax_errors_name_the_line(path):
    path.write_text("[model]\nkernel = lmc\n")
    with pytest.raises(
        OptionError, match=r"mine\.toml, line 2: this is not TOML: invalid value \(column 10\); text stands"
    ):
        read_toml(path)


def test_a_key_that_is_set_twice(path):
    path.write_text("a = 1\n\na = 2\n")
    with pytest.raises(OptionError, match=r"mine\.toml, line 3: this is not TOML: cannot overwrite a value"):
        read_toml(path)


def test_a_document_that_ends_too_early(path):
    path.write_text("a = 1\nb = [1,\n\n")
    with pytest.raises(
        OptionError, match=r"mine\.toml, line 2: this is not TOML: .* where the file ends; is a quote or"
    ):
        read_toml(path)


@pytest.mark.parametrize("text", ["a = " + "[" * 5000 + "]" * 5000, "a = " + "9" * 5000])
def test_documents_that_are_too_much(path, text):
    path.write_text(text)
    with pytest.raises(OptionError, match=r"mine\.toml cannot be read as TOML: "):
        read_toml(path)
