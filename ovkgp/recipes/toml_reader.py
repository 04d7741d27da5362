"""Where the recipes are: beside this module in an installed package, in the folder `models` of the repository otherwise."""

from __future__ import annotations

import re
import tomllib
from bisect import bisect_right
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from ovkgp.exceptions import InputError, OptionError

KeyPath = tuple[str | int, ...]
"""The keys, and positions in arrays, that lead to a value."""

BLANK = re.compile(r"(?:[\s]|#[^\n]*)*")
SPACES = re.compile(r"[ \t]*")
BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
STRING = re.compile(
    r'"""(?:\\.|[^\\])*?""""{0,2}' + r"|'''.*?''''{0,2}" + r'|"(?:\\.|[^"\\\n])*"' + r"|'[^'\n]*'", re.DOTALL
)
SCALAR = re.compile(r"[^,\]}#\n]*")
REST_OF_LINE = re.compile(r"[^\n]*\n?")


def key_lines(text: str) -> dict[KeyPath, int]:
    """The line, from 1, on which each key, table and entry of an array begins.

    Args:
        text: a TOML document that `tomllib` has read.

    Cost: O(length of the text).

    Example:
        >>> from ovkgp.recipes.toml_reader import key_lines
        >>> key_lines('[model]\\nrank = 2\\nedges = [\\n  ["a", "b"],\\n]')[("model", "edges", 0, 1)]
        4
    """
    return _Scanner(text).document()


class _Scanner:
    def __init__(self, text: str):
        self.text, self.place = text, 0
        self.ends = [match.start() for match in re.finditer("\n", text)]
        self.lines: dict[KeyPath, int] = {}
        self.lengths: dict[KeyPath, int] = {}  # of arrays of tables, so far

    def document(self) -> dict[KeyPath, int]:
        table: KeyPath = ()
        while self._skip(BLANK) < len(self.text):
            before = self.place
            if self._next() == "[":
                table = self._header()
            else:
                self._pair(table)
            if self.place == before:  # nothing known: go on with the next line
                self._skip(REST_OF_LINE)
        return self.lines

    def _header(self) -> KeyPath:
        line, is_array = self._line(), self.text.startswith("[[", self.place)
        self.place += 2 if is_array else 1
        *outer, last = self._key()
        path = self._enter((), tuple(outer), line)
        path = self._append((*path, last), line) if is_array else self._enter(path, (last,), line)
        self.place += 2 if is_array else 1
        return path

    def _enter(self, path: KeyPath, keys: KeyPath, line: int) -> KeyPath:
        """Follow keys from a path, into the newest table where one is an array of tables, noting what is new."""
        for key in keys:
            path = (*path, key)
            self.lines.setdefault(path, line)
            if path in self.lengths:
                path = (*path, self.lengths[path] - 1)
        return path

    def _append(self, path: KeyPath, line: int) -> KeyPath:
        self.lines.setdefault(path, line)
        self.lengths[path] = self.lengths.get(path, 0) + 1
        path = (*path, self.lengths[path] - 1)
        self.lines[path] = line
        return path

    def _pair(self, table: KeyPath) -> None:
        line = self._line()
        path = self._enter(table, self._key(), line)
        self._skip(SPACES)
        self.place += 1  # =
        self._skip(SPACES)
        self._value(path)

    def _key(self) -> KeyPath:
        """A dotted key, with or without quotes."""
        parts = []
        while True:
            self._skip(SPACES)
            quoted = STRING.match(self.text, self.place)
            found = quoted or BARE_KEY.match(self.text, self.place)
            if found is None:
                return tuple(parts) or ("",)
            parts.append(tomllib.loads(f"key = {found[0]}")["key"] if quoted else found[0])
            self.place = found.end()
            self._skip(SPACES)
            if self._next() != ".":
                return tuple(parts)
            self.place += 1

    def _value(self, path: KeyPath) -> None:
        if self._next() == "[":
            self._entries("]", lambda number: self._entry((*path, number)))
        elif self._next() == "{":
            self._entries("}", lambda _: self._pair(path))
        elif STRING.match(self.text, self.place):
            self._skip(STRING)
        else:
            self._skip(SCALAR)

    def _entry(self, path: KeyPath) -> None:
        self.lines[path] = self._line()
        self._value(path)

    def _entries(self, end: str, read) -> None:
        """What stands between brackets or braces, with commas between."""
        self.place += 1
        number = 0
        while self._skip(BLANK) < len(self.text) and self._next() != end:
            before = self.place
            if self._next() == ",":
                self.place += 1
                continue
            read(number)
            number += 1
            self.place += self.place == before
        self.place += 1

    def _line(self) -> int:
        return bisect_right(self.ends, self.place - 1) + 1

    def _next(self) -> str:
        return self.text[self.place : self.place + 1]

    def _skip(self, pattern: re.Pattern) -> int:
        found = pattern.match(self.text, self.place)
        self.place = found.end() if found else self.place
        return self.place


LINE = re.compile(r"line (\d+), column (\d+)")
QUOTES = 'text stands in quotes, as in kernel = "lmc"; true and false are written small'


def read_toml(path: Path) -> tuple[dict[str, Any], dict[KeyPath, int]]:
    """The values of a TOML file, and the line of each.

    Raises:
        InputError: there is no such file, or it cannot be read.
        OptionError: it is not TOML; the message names the line.

    Example:
        >>> from ovkgp.recipes import recipe_path
        >>> from ovkgp.recipes.toml_reader import read_toml
        >>> values, lines = read_toml(recipe_path("multitask"))
        >>> values["model"]["estimator"], ("model", "estimator") in lines
        ('GPRegressor', True)
    """
    text = _text(path)
    try:
        return tomllib.loads(text), key_lines(text)
    except tomllib.TOMLDecodeError as error:
        raise OptionError(_syntax(path, text, str(error))) from None
    except (RecursionError, ValueError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else error
        raise OptionError(f"{path} cannot be read as TOML: {reason}.") from None


def _text(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8-sig").replace("\r\n", "\n")
    except FileNotFoundError:
        raise InputError(f"there is no file {path}.") from None
    except IsADirectoryError:
        raise InputError(f"{path} is a folder; a recipe is a TOML file.") from None
    except PermissionError:
        raise InputError(f"{path} may not be read: permission was denied.") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not a text in UTF-8 (byte {error.start + 1}); save it as UTF-8.") from None
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}.") from None


def _syntax(path: Path, text: str, message: str) -> str:
    """The sentence for a message of `tomllib`, which ends with "(at line 2, column 10)" or "(at end of document)"."""
    reason, _, at = message.rpartition(" (at ")
    reason = f"{reason[:1].lower()}{reason[1:]}" if at else message
    if found := LINE.match(at):
        advice = f"; {QUOTES}" if reason == "invalid value" else ""
        return f"{path}, line {found[1]}: this is not TOML: {reason} (column {found[2]}){advice}."
    last = len(text.rstrip().splitlines())
    return f"{path}, line {last}: this is not TOML: {reason} where the file ends; is a quote or bracket not closed?"


SUFFIX = ".toml"
INSTALLED = Path(__file__).parent / "models"
"""Where a wheel puts the recipes."""
REPOSITORY = Path(__file__).parents[2] / "models"
"""Where an editable install finds them."""


def recipe_folder() -> Path:
    """The folder of the recipes that come with the package."""
    for folder in (INSTALLED, REPOSITORY):
        if folder.is_dir():
            return folder
    raise OptionError(
        f"the recipes are not installed: there is neither {INSTALLED} nor {REPOSITORY}. Install the package again, or give "
        "the path of a TOML file."
    )


def list_recipes() -> tuple[str, ...]:
    """The names of the recipes that come with the package, sorted.

    Example:
        >>> from ovkgp.recipes import list_recipes
        >>> "multitask" in list_recipes()
        True
    """
    return tuple(sorted(path.stem for path in recipe_folder().glob(f"*{SUFFIX}")))


def recipe_path(name: str) -> Path:
    """The file of a recipe that comes with the package, to be copied and edited.

    Args:
        name: one of `list_recipes`.

    Raises:
        OptionError: there is no such recipe; the message has the nearest name, and all names.

    Example:
        >>> from ovkgp.recipes import recipe_path
        >>> recipe_path("multitask").name
        'multitask.toml'
    """
    names = list_recipes()
    if name not in names:
        raise OptionError(f"there is no recipe {name!r}{did_you_mean(name, names)}; there are {', '.join(names)}.")
    return recipe_folder() / f"{name}{SUFFIX}"


def did_you_mean(given, names) -> str:
    """ " (did you mean 'name'?)" where one of the names is near to what was given, else "".

    Example:
        >>> from ovkgp.recipes.toml_reader import did_you_mean
        >>> did_you_mean("rnak", ["rank", "noise"]), did_you_mean("x", ["rank"])
        (" (did you mean 'rank'?)", '')
    """
    near = get_close_matches(str(given).lower(), [str(name) for name in names], n=1)
    return f" (did you mean {near[0]!r}?)" if near else ""
