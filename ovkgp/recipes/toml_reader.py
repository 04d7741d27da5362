"""Recipe files: where they are, and the values and line numbers of a TOML file.

Recipes are beside this module in an installed package, and in the folder `models` of the repository otherwise.
"""

from __future__ import annotations

import re
import tomllib
from bisect import bisect_right
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from ovkgp.exceptions import InputError, OptionError

KeyPath = tuple[str | int, ...]  # keys, and indices in arrays, that lead to a value
SUFFIX = ".toml"
INSTALLED = Path(__file__).parent / "models"  # folder of the recipes in an installed wheel
REPOSITORY = Path(__file__).parents[2] / "models"  # folder of the recipes in an editable install
BLANK = re.compile(r"(?:[\s]|#[^\n]*)*")
SPACES = re.compile(r"[ \t]*")
BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
STRING = re.compile(
    r'"""(?:\\.|[^\\])*?""""{0,2}' + r"|'''.*?''''{0,2}" + r'|"(?:\\.|[^"\\\n])*"' + r"|'[^'\n]*'", re.DOTALL
)
SCALAR = re.compile(r"[^,\]}#\n]*")
REST_OF_LINE = re.compile(r"[^\n]*\n?")
ERROR_POSITION = re.compile(r"line (\d+), column (\d+)")
VALUE_ADVICE = 'Put strings in quotes, as in kernel = "lmc", and write true and false in lower case.'


def list_recipes() -> tuple[str, ...]:
    """List the names of the recipes that come with the package.

    Returns
    -------
    tuple of str
        Names, sorted.

    Examples
    --------
    >>> from ovkgp.recipes import list_recipes
    >>> "multitask" in list_recipes()
    True
    """
    return tuple(sorted(path.stem for path in find_recipe_folder().glob(f"*{SUFFIX}")))


def recipe_path(name: str) -> Path:
    """Return the path of a recipe that comes with the package, to be copied and edited.

    Parameters
    ----------
    name : str
        One of `list_recipes`.

    Returns
    -------
    pathlib.Path
        Path of the TOML file.

    Raises
    ------
    OptionError
        If there is no such recipe.

    Examples
    --------
    >>> from ovkgp.recipes import recipe_path
    >>> recipe_path("multitask").name
    'multitask.toml'
    """
    names = list_recipes()
    if name not in names:
        raise OptionError(f"Unknown recipe {name!r}{suggest_name(name, names)}. Available are {', '.join(names)}.")
    return find_recipe_folder() / f"{name}{SUFFIX}"


def find_recipe_folder() -> Path:
    """Return the folder of the recipes that come with the package."""
    for folder in (INSTALLED, REPOSITORY):
        if folder.is_dir():
            return folder
    raise OptionError(
        f"The recipes are not installed: neither {INSTALLED} nor {REPOSITORY} exists. Reinstall the package, or pass the path of a TOML file."
    )


def suggest_name(given, names) -> str:
    """Return " (did you mean 'name'?)" with the closest of the names, or "" if none is close."""
    near = get_close_matches(str(given).lower(), [str(name) for name in names], n=1)
    return f" (did you mean {near[0]!r}?)" if near else ""


def read_toml(path: Path) -> tuple[dict[str, Any], dict[KeyPath, int]]:
    """Read the values of a TOML file and the line of each; raise OptionError, with the line, if it is not TOML."""
    text = _read_text(path)
    try:
        return tomllib.loads(text), find_key_lines(text)
    except tomllib.TOMLDecodeError as error:
        raise OptionError(_describe_syntax_error(path, text, str(error))) from None
    except (RecursionError, ValueError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else error
        raise OptionError(f"{path} cannot be read as TOML: {reason}.") from None


def _read_text(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8-sig").replace("\r\n", "\n")
    except FileNotFoundError:
        raise InputError(f"The file {path} does not exist.") from None
    except IsADirectoryError:
        raise InputError(f"{path} is a folder, expected a TOML file.") from None
    except PermissionError:
        raise InputError(f"{path} cannot be read: permission denied.") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8 text (byte {error.start + 1}). Save it as UTF-8.") from None
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}.") from None


def _describe_syntax_error(path: Path, text: str, message: str) -> str:
    """Describe an error of `tomllib`, whose message ends with "(at line 2, column 10)" or "(at end of document)"."""
    reason, _, at = message.rpartition(" (at ")
    reason = f"{reason[:1].lower()}{reason[1:]}" if at else message
    if found := ERROR_POSITION.match(at):
        advice = f" {VALUE_ADVICE}" if reason == "invalid value" else ""
        return f"{path}, line {found[1]}: invalid TOML: {reason} (column {found[2]}).{advice}"
    last = len(text.rstrip().splitlines())
    return f"{path}, line {last}: invalid TOML: {reason} at the end of the file. Check for an open quote or bracket."


def find_key_lines(text: str) -> dict[KeyPath, int]:
    """Return the line, from 1, on which each key, table and array entry of a valid TOML document begins. O(length) time."""
    return _Scanner(text).read_document()


class _Scanner:
    """Scanner that follows the structure of valid TOML and records the line of each key."""

    def __init__(self, text: str):
        self.text, self.position = text, 0
        self.ends = [match.start() for match in re.finditer("\n", text)]
        self.lines: dict[KeyPath, int] = {}
        self.lengths: dict[KeyPath, int] = {}  # of arrays of tables

    def read_document(self) -> dict[KeyPath, int]:
        table: KeyPath = ()
        while self._skip(BLANK) < len(self.text):
            before = self.position
            if self._next() == "[":
                table = self._read_header()
            else:
                self._read_pair(table)
            if self.position == before:  # unknown syntax: continue with the next line
                self._skip(REST_OF_LINE)
        return self.lines

    def _read_header(self) -> KeyPath:
        line, is_array = self._line(), self.text.startswith("[[", self.position)
        self.position += 2 if is_array else 1
        *outer, last = self._read_key()
        path = self._enter((), tuple(outer), line)
        path = self._append((*path, last), line) if is_array else self._enter(path, (last,), line)
        self.position += 2 if is_array else 1
        return path

    def _enter(self, path: KeyPath, keys: KeyPath, line: int) -> KeyPath:
        """Follow keys from a path, into the last table of an array of tables, and record the line of new keys."""
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

    def _read_pair(self, table: KeyPath) -> None:
        line = self._line()
        path = self._enter(table, self._read_key(), line)
        self._skip(SPACES)
        self.position += 1  # =
        self._skip(SPACES)
        self._read_value(path)

    def _read_key(self) -> KeyPath:
        """Read a dotted key, with or without quotes."""
        parts = []
        while True:
            self._skip(SPACES)
            quoted = STRING.match(self.text, self.position)
            found = quoted or BARE_KEY.match(self.text, self.position)
            if found is None:
                return tuple(parts) or ("",)
            parts.append(tomllib.loads(f"key = {found[0]}")["key"] if quoted else found[0])
            self.position = found.end()
            self._skip(SPACES)
            if self._next() != ".":
                return tuple(parts)
            self.position += 1

    def _read_value(self, path: KeyPath) -> None:
        if self._next() == "[":
            self._read_entries("]", lambda number: self._read_entry((*path, number)))
        elif self._next() == "{":
            self._read_entries("}", lambda _: self._read_pair(path))
        elif STRING.match(self.text, self.position):
            self._skip(STRING)
        else:
            self._skip(SCALAR)

    def _read_entry(self, path: KeyPath) -> None:
        self.lines[path] = self._line()
        self._read_value(path)

    def _read_entries(self, end: str, read) -> None:
        """Read the comma-separated entries between brackets or braces."""
        self.position += 1
        number = 0
        while self._skip(BLANK) < len(self.text) and self._next() != end:
            before = self.position
            if self._next() == ",":
                self.position += 1
                continue
            read(number)
            number += 1
            self.position += self.position == before
        self.position += 1

    def _line(self) -> int:
        return bisect_right(self.ends, self.position - 1) + 1

    def _next(self) -> str:
        return self.text[self.position : self.position + 1]

    def _skip(self, pattern: re.Pattern) -> int:
        found = pattern.match(self.text, self.position)
        self.position = found.end() if found else self.position
        return self.position
