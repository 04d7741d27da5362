"""Checks of what a user typed, done before anything slow is loaded or computed."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
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


@contextmanager
def output_folder(name: str) -> Iterator[Path]:
    """Make the folder `name`, prove that a file can be written into it, and give its path.

    Where the work inside fails or is interrupted, the folders made here are removed again, unless something is in them.
    """
    if not name.strip():
        raise OptionError("--out must name a folder, got an empty name: say --out demo, or --out . for this one.")
    path = Path(name)
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
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        raise OptionError(f"cannot write into the folder '{path}' ({reason(error)}): name another one.") from error


def reason(error: OSError) -> str:
    """The system's own words for an error, without its number and path."""
    return (error.strerror or type(error).__name__).lower()
