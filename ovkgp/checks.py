"""What the numbers that shape a loss may be."""

from __future__ import annotations

import math
from collections.abc import Iterable
from operator import index
from typing import TYPE_CHECKING

import numpy as np

from ovkgp.exceptions import InputError, OptionError

if TYPE_CHECKING:
    from torch import Tensor


def check_integer(name: str, value: int, least: int | None = 1) -> int:
    """`value` as an integer that is at least `least`, where that is given.

    Example:
        >>> from ovkgp.checks import check_integer
        >>> check_integer("rank", 2.5)
        Traceback (most recent call last):
        ...
        ovkgp.exceptions.OptionError: rank must be a whole number, got 2.5.
    """
    try:
        number = index(value)
    except TypeError:
        raise OptionError(f"{name} must be a whole number, got {value!r}.") from None
    if least is not None and number < least:
        raise OptionError(f"{name} must be at least {least}, got {number}.")
    return number


def positive(name: str, value: float) -> float:
    """`value` as a float, if it is finite and above zero."""
    if not (math.isfinite(value) and value > 0):
        raise OptionError(f"{name} must be a finite number above 0, got {value}.")
    return float(value)


def nonnegative(name: str, value: float) -> float:
    """`value` as a float, if it is finite and not below zero."""
    if not (math.isfinite(value) and value >= 0):
        raise OptionError(f"{name} must be a finite number, 0 or more, got {value}.")
    return float(value)


def probability(name: str, value: float) -> float:
    """`value` as a float, if it lies strictly between 0 and 1."""
    if not 0 < value < 1:
        raise OptionError(f"{name} is a probability strictly between 0 and 1, got {value}.")
    return float(value)


def one_of(name: str, value: str, allowed: Iterable[str]) -> str:
    """`value`, if it is among `allowed`."""
    allowed = tuple(allowed)
    if value not in allowed:
        raise OptionError(f"{name} must be one of {', '.join(map(repr, allowed))}, got {value!r}.")
    return value


VARIANTS = ("corrected", "printed")


def check_positive(name: str, value: float, *, or_zero: bool = False) -> None:
    """Raise OptionError unless 0 < value < ∞ (0 ≤ value with `or_zero`).

    Example:
        >>> from ovkgp.checks import check_positive
        >>> check_positive("kappa", -1.0)
        Traceback (most recent call last):
        ovkgp.exceptions.OptionError: kappa must be finite and greater than 0, got -1.0.
    """
    lowest = "0 or more" if or_zero else "greater than 0"
    if not (isinstance(value, (int, float)) and 0 <= value < math.inf and (or_zero or value > 0)):
        raise OptionError(f"{name} must be finite and {lowest}, got {value!r}.")


def check_range(what: str, tasks: Tensor, low: float, high: float, *, advice: str) -> None:
    """Raise InputError unless all tasks lie in [low, high].

    Example:
        >>> import torch
        >>> from ovkgp.checks import check_range
        >>> check_range("levels", torch.tensor([0.2, 1.2]), 0.0, 1.0, advice="divide percentages by 100.")
        Traceback (most recent call last):
        ovkgp.exceptions.InputError: levels must lie in [0, 1], got 0.2 to 1.2: divide percentages by 100.
    """
    least, greatest = tasks.min().item(), tasks.max().item()
    if not (low <= least and greatest <= high):
        raise InputError(f"{what} must lie in [{low:g}, {high:g}], got {least:g} to {greatest:g}: {advice}")


def as_seed(random_state) -> int:
    """A seed from scikit-learn's `random_state`: an int is itself, None is fresh entropy."""
    if isinstance(random_state, (int, np.integer)) and not isinstance(random_state, bool):
        if random_state < 0:
            raise OptionError(f"random_state must not be negative, got {random_state}.")
        return int(random_state)
    if isinstance(random_state, np.random.Generator):
        return int(random_state.integers(2**31))
    from sklearn.utils import check_random_state

    return int(check_random_state(random_state).randint(2**31))
