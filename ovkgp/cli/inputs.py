"""Checks of what a user typed, done before anything slow is loaded or computed."""

from __future__ import annotations

import tempfile
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


def output_folder(path: Path) -> Path:
    """Make the folder `path`, prove that a file can be written into it, and return it."""
    if path.exists() and not path.is_dir():
        raise OptionError(f"--out must be a folder, but '{path}' is a file: name another one.")
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        raise OptionError(f"cannot write into the folder '{path}' ({reason(error)}): name another one.") from error
    return path


def reason(error: OSError) -> str:
    """The system's own words for an error, without its number and path."""
    return (error.strerror or type(error).__name__).lower()
