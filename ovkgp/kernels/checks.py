"""Checks of the arguments that several kernels share."""

from __future__ import annotations

from operator import index

from ovkgp.exceptions import OptionError


def whole_number(name: str, value: int, least: int | None = 1) -> int:
    """`value` as an integer that is at least `least`, where that is given.

    Example:
        >>> from ovkgp.kernels.checks import whole_number
        >>> whole_number("rank", 2.5)
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
