"""Tests of `ovkgp.recipes.toml_reader`."""

import os
import string
import tomllib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ovkgp.exceptions import InputError, OptionError
from ovkgp.recipes import list_recipes, recipe_path
from ovkgp.recipes import toml_reader as finding
from ovkgp.recipes.toml_reader import key_lines, read_toml


def test_each_name_has_a_file():
    assert all(recipe_path(name).is_file() for name in list_recipes())


def test_recipes_of_an_installed_package_are_beside_the_module(tmp_path, monkeypatch):
    (tmp_path / "mine.toml").write_text("")
    (tmp_path / "notes.txt").write_text("")
    monkeypatch.setattr(finding, "INSTALLED", tmp_path)
    assert list_recipes() == ("mine",)
    assert recipe_path("mine") == tmp_path / "mine.toml"


def test_no_folder_at_all(tmp_path, monkeypatch):
    monkeypatch.setattr(finding, "INSTALLED", tmp_path / "one")
    monkeypatch.setattr(finding, "REPOSITORY", tmp_path / "two")
    with pytest.raises(OptionError, match="the recipes are not installed"):
        list_recipes()


@pytest.mark.parametrize("name", ["", "..", "no/such", "multitask.toml"])
def test_names_that_are_none(name):
    with pytest.raises(OptionError, match="there is no recipe"):
        recipe_path(name)


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


ODD = '''
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


def paths(tree, path=()):
    """All paths of keys and positions in a tree."""
    children = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, child in children:
        yield (*path, key)
        yield from paths(child, (*path, key))


def test_every_key_of_an_odd_document_has_a_line():
    lines = key_lines(ODD)
    assert set(lines) == set(paths(tomllib.loads(ODD)))


@pytest.mark.parametrize(
    ("path", "start"),
    [
        (("quoted key",), '"quoted key"'),
        (("dotted", "ke.y", "last"), "dotted ."),
        (("literal",), "literal"),
        (("table", "with = odd"), "[ table"),
        (("table", "with = odd", "date"), "date"),
        (("table", "with = odd", "inline", "b c", "d", 1, 1), "inline"),
        (("table", "with = odd", "many", 0), '"one, two]"'),
        (("table", "with = odd", "many", 2, 1), "5]"),
        (("table", "with = odd", "empty"), "empty"),
        (("rows", 0, "x"), "x = 1"),
        (("rows", 0, "inner", "y"), "y = 2"),
        (("rows", 1, "x"), "x = 3"),
        (("rows", 1, "deep", 0, "z"), "z = 4"),
        (("rows", 1, "deep", 1, "z"), "z = 5"),
        (("rows", 1, "inner", "y"), "y = 6"),
        (("table", "sub", ""), '"" ='),
        (("table", "sub", "é"), "'é'"),
    ],
)
def test_the_line_is_that_of_the_key(path, start):
    line = ODD.split("\n")[key_lines(ODD)[path] - 1]
    assert line.strip().startswith(start)


def test_an_empty_document_has_no_keys():
    assert key_lines("") == {} and key_lines("# nothing\n\n") == {}


KEYS = st.text(string.ascii_letters + " .='#[]é\n\\", max_size=5)
LEAVES = st.integers(-9, 9) | st.booleans() | st.text('ab"\\#[]{},\n=', max_size=6) | st.floats(-2, 2)
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3), max_leaves=8
)


def quoted(text):
    escapes = {"\\": "\\\\", '"': '\\"', "\n": "\\n"}
    return '"' + "".join(escapes.get(letter, letter) for letter in text) + '"'


def written(value):
    """A value in TOML, with lists over several lines."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{quoted(key)} = {written(one)}" for key, one in value.items()) + "}"
    if isinstance(value, list):
        return "[" + "".join(f"\n  {written(one)}, # ]" for one in value) + "\n]"
    if isinstance(value, str):
        return quoted(value)
    return str(value).lower()


@settings(max_examples=100, deadline=None)
@given(st.dictionaries(KEYS, VALUES, max_size=4))
def test_every_key_of_any_document_has_a_line(tree):
    text = "".join(f"# comment\n{quoted(key)} = {written(value)}\n" for key, value in tree.items())
    assert set(key_lines(text)) == set(paths(tomllib.loads(text)))


@settings(max_examples=200, deadline=None)
@given(st.text("ab.=\"'\\#[]{},\n \t1", max_size=40))
def test_the_scanner_ends_on_any_text(text):
    try:
        tree = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return
    assert set(key_lines(text)) == set(paths(tree))
