"""What the arguments of the bounds must satisfy, said once."""

from __future__ import annotations

import math
from collections.abc import Iterable

from ovkgp.exceptions import OptionError


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
