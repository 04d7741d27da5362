"""Lines of TOML keys: every key of any document that `tomllib` reads has one, and it is the right one."""

import string
import tomllib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ovkgp.recipes.toml_reader import key_lines

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
