"""Recipe files: where they are, and the values and line numbers of a TOML file.

Recipes are beside this module in an installed package, and in the folder `models` of the repository otherwise.
"""

from __future__ import annotations

import re
import tomllib
from contextlib import suppress
from pathlib import Path
from typing import Any

from ovkgp.checks import suggest_name
from ovkgp.exceptions import InputError, OptionError

KeyPath = tuple[str | int, ...]  # keys, and indices in arrays, that lead to a value
SUFFIX = ".toml"
INSTALLED = Path(__file__).parent / "models"  # folder of the recipes in an installed wheel
REPOSITORY = Path(__file__).parents[2] / "models"  # folder of the recipes in an editable install
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


def read_toml(path: Path) -> tuple[dict[str, Any], dict[KeyPath, int]]:
    """Read the values of a TOML file and the line of each; raise OptionError, with the line, if it is not TOML."""
    text = _read_text(path)
    try:
        return tomllib.loads(text), find_key_lines(text)
    except tomllib.TOMLDecodeError as error:
        raise OptionError(_describe_syntax_error(path, text, str(error))) from None
    except RecursionError:
        raise OptionError(f"{path} cannot be read as TOML: it is nested too deeply.") from None
    except ValueError as error:
        raise OptionError(f"{path} cannot be read as TOML: {error}.") from None


def _read_text(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8 text (byte {error.start + 1}). Save it as UTF-8.") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read: {(error.strerror or str(error)).lower()}.") from None
    except ValueError as error:  # a name with a null character
        raise InputError(f"{path} cannot be read: {error}.") from None


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
    """Return the line, from 1, of each table, key and entry of an array over several lines in a valid TOML document."""
    lines, table, statement = {}, (), ""
    for number, line in enumerate(text.split("\n"), 1):
        if not statement:
            first, array, entries = number, None, []  # key of an open array, and the line on which each entry ends
        statement += f"{line}\n"
        try:
            keys, _ = _split_statement(statement)
        except tomllib.TOMLDecodeError:  # the value continues on the next line
            with suppress(tomllib.TOMLDecodeError):
                keys, values = _split_statement(statement + "]")
                array, statement = array or keys, "entries = [\n"
                entries += [number] * len(values)
            continue
        if statement.lstrip().startswith("["):
            path = table = keys
        else:
            path = (*table, *(array or keys))
        for length in range(len(path)):
            lines.setdefault(path[: length + 1], first)
        lines |= {(*path, index): line for index, line in enumerate(entries)}
        statement = ""
    return lines


def _split_statement(statement: str) -> tuple[KeyPath, Any]:
    """Return the dotted key and the value of a header or pair."""
    path, value = (), tomllib.loads(statement)
    while isinstance(value, dict) and len(value) == 1:
        ((key, value),) = value.items()
        path = (*path, key)
    return path, value
