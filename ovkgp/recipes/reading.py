"""A recipe file as a tree of values and the lines they stand on; everything that can be wrong with a file is said here."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

from ovkgp.exceptions import InputError, OptionError
from ovkgp.recipes.toml_lines import KeyPath, key_lines

LINE = re.compile(r"line (\d+), column (\d+)")
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
