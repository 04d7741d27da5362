"""Options of a recipe from the command line: ``--set key=value``, in the notation of the recipe's own file."""

from __future__ import annotations

import csv
import math
import os
import tempfile
import tomllib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from ovkgp.exceptions import OptionError

LARGEST_SEED = 2**32 - 1  # what NumPy and scikit-learn accept


def check_seed(seed: int) -> int:
    """Return `seed` if it lies between 0 and 2³² − 1.

    Example:
        >>> check_seed(-1)
        Traceback (most recent call last):
        ...
        ovkgp.exceptions.OptionError: --seed must lie between 0 and 4294967295, got -1.
    """
    if not 0 <= seed <= LARGEST_SEED:
        raise OptionError(f"--seed must lie between 0 and {LARGEST_SEED}, got {seed}.")
    return seed


def numbers(text: str, option: str, low: float = -math.inf, high: float = math.inf) -> tuple[float, ...]:
    """Numbers with commas between them, strictly between two ends.

    Example:
        >>> numbers("0.05, 0.5", "--quantiles", 0, 1)
        (0.05, 0.5)
        >>> numbers("5,50", "--quantiles", 0, 1)
        Traceback (most recent call last):
        ...
        ovkgp.exceptions.OptionError: --quantiles must be numbers between 0 and 1 with commas between them, got '5,50'.
    """
    try:
        found = tuple(float(part) for part in text.split(","))
    except ValueError:
        found = ()
    if not found or not all(low < value < high for value in found):
        between = f" between {low:g} and {high:g}" if math.isfinite(high) else ""
        raise OptionError(f"{option} must be numbers{between} with commas between them, got {text!r}.")
    if len(set(found)) < len(found):
        raise OptionError(f"{option} has a number twice, got {text!r}.")
    return found


def number(text: str, option: str, low: float = -math.inf, high: float = math.inf) -> float:
    """One number, strictly between two ends.

    Example:
        >>> number("0.9", "--level", 0, 1)
        0.9
        >>> number("90", "--level", 0, 1)
        Traceback (most recent call last):
        ...
        ovkgp.exceptions.OptionError: --level must be one number between 0 and 1, got '90'.
    """
    try:
        (found,) = numbers(text, option, low, high)
    except ValueError:  # an OptionError is one, and so is a number too many
        between = f" between {low:g} and {high:g}" if math.isfinite(high) else ""
        raise OptionError(f"{option} must be one number{between}, got {text!r}.") from None
    return found


def output_file(name: str, suffixes: tuple[str, ...] = (), sources: Iterable[str] = (), option: str = "--out") -> Path:
    """The path of a file that will be written, once it is certain that it can be.

    Args:
        name: as typed.
        suffixes: those allowed, where it matters.
        sources: files that are read and must not be replaced.
        option: with which it was typed.
    """
    if not name.strip():
        raise OptionError(f"{option} must name a file, got an empty name.")
    path = Path(name).expanduser()
    if path.is_dir():
        raise OptionError(f"{option} must be a file, but '{path}' is a folder: name a file in it.")
    if suffixes and path.suffix.lower() not in suffixes:
        raise OptionError(f"{option} must end in {', '.join(suffixes[:-1])} or {suffixes[-1]}, got '{path}'.")
    if any(_is_same(path, Path(source).expanduser()) for source in sources):
        raise OptionError(f"{option} would replace '{path}', which is read: give another name.")
    if not path.parent.is_dir():
        raise OptionError(f"there is no folder '{path.parent}' to write '{path.name}' into: make it first.")
    _try_to_write(path.parent)
    if path.exists() and not os.access(path, os.W_OK):
        raise OptionError(f"'{path}' may not be replaced (permission denied): give another name.")
    return path


def _is_same(one: Path, other: Path) -> bool:
    return one.exists() and other.exists() and one.samefile(other)


@contextmanager
def output_folder(name: str) -> Iterator[Path]:
    """Make the folder `name`, prove that a file can be written into it, and give its path.

    Where the work inside fails or is interrupted, the folders made here are removed again, unless something is in them.
    """
    if not name.strip():
        raise OptionError("--out must name a folder, got an empty name: say --out demo, or --out . for this one.")
    path = Path(name).expanduser()
    made = [folder for folder in (path, *path.parents) if not folder.exists()]
    try:
        _make_writable(path)
        yield path
    except BaseException:
        for folder in made:
            with suppress(OSError):  # not there, or not empty
                folder.rmdir()
        raise


def _make_writable(path: Path) -> None:
    if path.exists() and not path.is_dir():
        raise OptionError(f"--out must be a folder, but '{path}' is a file: name another one.")
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OptionError(f"cannot write into the folder '{path}' ({reason(error)}): name another one.") from error
    _try_to_write(path)


def _try_to_write(folder: Path) -> None:
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise OptionError(f"cannot write into the folder '{folder}' ({reason(error)}): name another one.") from error


def reason(error: OSError) -> str:
    """The system's own words for an error, without its number and path."""
    return (error.strerror or type(error).__name__).lower()


Data = Annotated[
    str, typer.Argument(metavar="DATA", help="A CSV, TSV or Parquet file with a header.", show_default=False)
]
Model = Annotated[str, typer.Argument(metavar="MODEL", help="A model file that `ovkgp fit` wrote.", show_default=False)]
Outputs = Annotated[
    str | None,
    typer.Option(metavar="u,v", help="The columns to learn; an empty cell is a missing output.", show_default=False),
]
Separator = Annotated[str, typer.Option(metavar="CHAR", help="Between the fields of a text table; of a .tsv, a tab.")]
SkipBadRows = Annotated[
    bool,
    typer.Option("--skip-bad-rows", help="Leave out rows that cannot be read, and count them; else stop at the first."),
]
Task = Annotated[
    str | None,
    typer.Option(
        metavar="COLUMN",
        help="A long table, one observation a row: the column that names the output which --outputs holds a value of.",
        show_default=False,
    ),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print errors and notes only.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]


def names(text: str | None) -> tuple[str, ...] | None:
    """The names in a text with commas between them; one that has a comma itself stands in double quotes.

    Example:
        >>> names("east, north"), names('"Cd (mg, kg)",Ni')
        (('east', 'north'), ('Cd (mg, kg)', 'Ni'))
    """
    if text is None:
        return None
    return tuple(name.strip() for name in next(csv.reader([text], skipinitialspace=True), [""]))


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
