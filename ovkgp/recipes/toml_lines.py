"""On which line of a TOML text each key stands, so that an error can name it; `tomllib` does not say.

The text is known to be valid, so that the scanner need not check anything: it follows headers, keys, strings, arrays and inline
tables, and skips what lies between.
"""

from __future__ import annotations

import re
import tomllib
from bisect import bisect_right

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
        >>> from ovkgp.recipes.toml_lines import key_lines
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
