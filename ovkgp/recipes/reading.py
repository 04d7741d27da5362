"""A recipe file as a tree of values and the lines they stand on; everything that can be wrong with a file is said here."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

from ovkgp.exceptions import InputError, OptionError
from ovkgp.recipes.toml_lines import KeyPath, key_lines

AT = re.compile(r"\s*\(at line (\d+), column (\d+)\)$")
QUOTES = 'text stands in quotes, as in kernel = "lmc"; true and false are written small'


def read_toml(path: Path) -> tuple[dict[str, Any], dict[KeyPath, int]]:
    """The values of a TOML file, and the line of each.

    Raises:
        InputError: there is no such file, or it cannot be read.
        OptionError: it is not TOML; the message names the line.

    Example:
        >>> from ovkgp.recipes import recipe_path
        >>> from ovkgp.recipes.reading import read_toml
        >>> values, lines = read_toml(recipe_path("multitask"))
        >>> values["model"]["estimator"], ("model", "estimator") in lines
        ('GPRegressor', True)
    """
    text = _text(path)
    try:
        return tomllib.loads(text), key_lines(text)
    except tomllib.TOMLDecodeError as error:
        raise OptionError(_syntax(path, str(error))) from None
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


def _syntax(path: Path, message: str) -> str:
    found = AT.search(message)
    reason = AT.sub("", message)
    where = f"{path}, line {found[1]}: this is not TOML" if found else f"{path}: this is not TOML"
    column = f" (column {found[2]})" if found else ""
    advice = f"; {QUOTES}" if reason.startswith("Invalid value") else ""
    return f"{where}: {reason[:1].lower()}{reason[1:]}{column}{advice}."
