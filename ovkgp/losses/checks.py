"""What the numbers that shape a loss may be."""

from __future__ import annotations

import math

from torch import Tensor

from ovkgp.exceptions import InputError, OptionError


def require_positive(name: str, value: float, *, or_zero: bool = False) -> None:
    """Raise OptionError unless 0 < value < ∞ (0 ≤ value with `or_zero`).

    Example:
        >>> from ovkgp.losses.checks import require_positive
        >>> require_positive("kappa", -1.0)
        Traceback (most recent call last):
        ovkgp.exceptions.OptionError: kappa must be finite and greater than 0, got -1.0.
    """
    lowest = "0 or more" if or_zero else "greater than 0"
    if not (isinstance(value, (int, float)) and 0 <= value < math.inf and (or_zero or value > 0)):
        raise OptionError(f"{name} must be finite and {lowest}, got {value!r}.")


def require_range(what: str, tasks: Tensor, low: float, high: float, *, advice: str) -> None:
    """Raise InputError unless all tasks lie in [low, high].

    Example:
        >>> import torch
        >>> from ovkgp.losses.checks import require_range
        >>> require_range("levels", torch.tensor([0.2, 1.2]), 0.0, 1.0, advice="divide percentages by 100.")
        Traceback (most recent call last):
        ovkgp.exceptions.InputError: levels must lie in [0, 1], got 0.2 to 1.2: divide percentages by 100.
    """
    least, greatest = tasks.min().item(), tasks.max().item()
    if not (low <= least and greatest <= high):
        raise InputError(f"{what} must lie in [{low:g}, {high:g}], got {least:g} to {greatest:g}: {advice}")
