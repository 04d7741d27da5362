"""Options of a recipe from the command line: ``--set key=value``, in the notation of the recipe's own file."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from typing import Any

from ovkgp.exceptions import OptionError


def settings(texts: Iterable[str]) -> dict[str, Any]:
    """Options of a recipe from texts ``key=value``: a value of TOML where it is one, else a string.

    Example:
        >>> settings(["rank=3", "base_kernel=rbf", "sampling.draws=100", "sampling.chains=2"])
        {'rank': 3, 'base_kernel': 'rbf', 'sampling': {'draws': 100, 'chains': 2}}
    """
    found: dict[str, Any] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key.strip() or not value.strip():
            raise OptionError(f"--set takes key=value, such as --set rank=3; got {text!r}.")
        _merge(found, _parsed(key.strip(), value.strip()), text)
    return found


def _parsed(key: str, value: str) -> dict[str, Any]:
    try:
        return tomllib.loads(f"{key} = {value}")
    except tomllib.TOMLDecodeError:
        pass
    try:
        return tomllib.loads(f"{key} = {_quoted(value)}")
    except tomllib.TOMLDecodeError:
        raise OptionError(f"--set takes the name of an option before the sign =, got {key!r}.") from None


def _quoted(value: str) -> str:
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _merge(into: dict[str, Any], new: dict[str, Any], text: str) -> None:
    for key, value in new.items():
        if isinstance(value, dict) and isinstance(into.get(key), dict):
            _merge(into[key], value, text)
        elif key in into:
            raise OptionError(f"--set gives {key} twice, the second time as {text!r}: give it once.")
        else:
            into[key] = value
