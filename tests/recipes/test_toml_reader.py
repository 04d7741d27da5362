"""Tests of `ovkgp.recipes.toml_reader`."""

import os
import string
import tomllib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ovkgp.exceptions import InputError, OptionError
from ovkgp.recipes import list_recipes, recipe_path, toml_reader
from ovkgp.recipes.toml_reader import find_key_lines, read_toml


def test_recipe_path_exists_for_every_name():
    assert all(recipe_path(name).is_file() for name in list_recipes())


def test_installed_recipes_are_beside_module(tmp_path, monkeypatch):
    (tmp_path / "mine.toml").write_text("")
    (tmp_path / "notes.txt").write_text("")
    monkeypatch.setattr(toml_reader, "INSTALLED", tmp_path)
    assert list_recipes() == ("mine",)
    assert recipe_path("mine") == tmp_path / "mine.toml"


def test_list_recipes_rejects_missing_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(toml_reader, "INSTALLED", tmp_path / "one")
    monkeypatch.setattr(toml_reader, "REPOSITORY", tmp_path / "two")
    with pytest.raises(OptionError, match="not installed"):
        list_recipes()


@pytest.mark.parametrize("name", ["", "..", "no/such", "multitask.toml"])
def test_recipe_path_rejects_unknown_names(name):
    with pytest.raises(OptionError, match="Unknown recipe"):
        recipe_path(name)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "mine.toml"


def test_read_toml_returns_values_and_lines(path):
    path.write_bytes(b"[model]\r\n\r\nestimator = 'GPRegressor'\r\n")
    values, lines = read_toml(path)
    assert values == {"model": {"estimator": "GPRegressor"}}
    assert lines == {("model",): 1, ("model", "estimator"): 3}


def test_read_toml_ignores_byte_order_mark(path):
    path.write_text("[model]\n", encoding="utf-8-sig")
    assert read_toml(path)[0] == {"model": {}}


def test_read_toml_rejects_missing_file(path):
    with pytest.raises(InputError, match=r"mine\.toml cannot be read: no such file"):
        read_toml(path)


def test_read_toml_rejects_folder(tmp_path):
    with pytest.raises(InputError, match="is a directory"):
        read_toml(tmp_path)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may read everything")
def test_read_toml_rejects_unreadable_file(path):
    path.write_text("[model]")
    path.chmod(0)
    with pytest.raises(InputError, match="permission denied"):
        read_toml(path)


def test_read_toml_reports_permission_error(path, monkeypatch):
    def denied(self):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(type(path), "read_bytes", denied)
    with pytest.raises(InputError, match=r"mine\.toml cannot be read: permission denied"):
        read_toml(path)


def test_read_toml_rejects_invalid_file_name(path):
    with pytest.raises(InputError, match="cannot be read: "):
        read_toml(path.with_name("a\0b"))


def test_read_toml_rejects_binary_file(path):
    path.write_bytes(b"title = \xff\xfe")
    with pytest.raises(InputError, match=r"UTF-8 text \(byte 9\)"):
        read_toml(path)


def test_syntax_error_names_line(path):
    path.write_text("[model]\nkernel = lmc\n")
    with pytest.raises(OptionError, match=r"mine\.toml, line 2: .*\(column 10\)\. Put"):
        read_toml(path)


def test_repeated_key_error_names_line(path):
    path.write_text("a = 1\n\na = 2\n")
    with pytest.raises(OptionError, match=r"mine\.toml, line 3: .* cannot overwrite"):
        read_toml(path)


def test_truncated_document_error_names_line(path):
    path.write_text("a = 1\nb = [1,\n\n")
    with pytest.raises(OptionError, match=r"mine\.toml, line 2: .* end of the file"):
        read_toml(path)


@pytest.mark.parametrize("text", ["a = " + "[" * 5000 + "]" * 5000, "a = " + "9" * 5000])
def test_read_toml_rejects_oversized_documents(path, text):
    path.write_text(text)
    with pytest.raises(OptionError, match=r"mine\.toml cannot be read as TOML: "):
        read_toml(path)


UNUSUAL = '''
# a comment with [brackets] = "and quotes
"quoted key" = 1 # and a tail = 2
dotted . "ke.y" .last = """
[not_a_table]
neither = "a key" \\"""" # four quotes end it
literal = \'\'\'
it's = [1, 2\'\'\'\'
[ table . "with = odd" ] # comment
date = 1979-05-27 07:32:00 # has a space
inline = { a = 1, "b c".d = [ { e = "}" }, [2, 3] ], f = {} }
many = [
  "one, two]", # ]
  \'three #\',

  [4,
   5],
]
empty = []
[[rows]]
x = 1
[rows.inner]
y = 2
[[rows]]
x = 3
[[rows.deep]]
z = 4
[[rows.deep]]
z = 5
[rows.inner]
y = 6
[table.sub]
"" = "empty key"
'é' = "\\u00e9 \\" # not a comment"
'''


@pytest.mark.parametrize(
    ("path", "start"),
    [
        (("quoted key",), '"quoted key"'),
        (("dotted", "ke.y", "last"), "dotted ."),
        (("literal",), "literal"),
        (("table", "with = odd"), "[ table"),
        (("table", "with = odd", "date"), "date"),
        (("table", "with = odd", "inline"), "inline"),
        (("table", "with = odd", "many"), "many"),
        (("table", "with = odd", "many", 0), '"one, two]"'),
        (("table", "with = odd", "many", 2), "5]"),
        (("table", "with = odd", "empty"), "empty"),
        (("rows",), "[[rows]]"),
        (("rows", "x"), "x = 1"),
        (("table", "sub", ""), '"" ='),
        (("table", "sub", "é"), "'é'"),
    ],
)
def test_find_key_lines_returns_line_of_key(path, start):
    line = UNUSUAL.split("\n")[find_key_lines(UNUSUAL)[path] - 1]
    assert line.strip().startswith(start)


def test_find_key_lines_is_empty_for_empty_document():
    assert find_key_lines("") == {} and find_key_lines("# nothing\n\n") == {}


KEYS = st.text(string.ascii_letters + " .='#[]é\n\\", max_size=5)
LEAVES = st.integers(-9, 9) | st.booleans() | st.text('ab"\\#[]{},\n=', max_size=6) | st.floats(-2, 2)
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3), max_leaves=8
)


def quote(text):
    escapes = {"\\": "\\\\", '"': '\\"', "\n": "\\n"}
    return '"' + "".join(escapes.get(letter, letter) for letter in text) + '"'


def to_toml(value):
    """Format a value in TOML, with lists over several lines."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{quote(key)} = {to_toml(one)}" for key, one in value.items()) + "}"
    if isinstance(value, list):
        return "[" + "".join(f"\n  {to_toml(one)}, # ]" for one in value) + "\n]"
    if isinstance(value, str):
        return quote(value)
    return str(value).lower()


@settings(max_examples=100, deadline=None)
@given(st.dictionaries(KEYS, VALUES, max_size=4))
def test_find_key_lines_is_exact_for_keys_of_any_document(tree):
    text, expected = "", {}
    for key, value in tree.items():
        text += "# comment\n"
        expected[(key,)] = text.count("\n") + 1
        text += f"{quote(key)} = {to_toml(value)}\n"
    found = {path: line for path, line in find_key_lines(text).items() if len(path) == 1}
    assert found == expected


@settings(max_examples=200, deadline=None)
@given(st.text("ab.=\"'\\#[]{},\n \t1", max_size=40))
def test_find_key_lines_finds_tables_and_keys_of_any_text(text):
    try:
        tree = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return
    assert {path[0] for path in find_key_lines(text)} == set(tree)
