"""Checks of what a user typed, done before anything slow is loaded or computed."""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

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
