"""Checks of scalar options: each raises an error that names the argument, or returns the value."""

from __future__ import annotations

import math
from collections.abc import Iterable
from difflib import get_close_matches
from operator import index
from typing import TYPE_CHECKING

import numpy as np

from ovkgp.exceptions import InputError, OptionError

if TYPE_CHECKING:
    from torch import Tensor

VARIANTS = ("corrected", "printed")
"""Forms of a bound in `ovkgp.features.bounds`: with the errata of the paper corrected, or as printed."""


def check_integer(name: str, value: int, minimum: int | None = 1) -> int:
    """Return `value` as an int; raise unless it is an integer and at least `minimum`."""
    try:
        number = index(value)
    except TypeError:
        raise OptionError(f"{name} must be an integer, got {value!r}.") from None
    if minimum is not None and number < minimum:
        raise OptionError(f"{name} must be at least {minimum}, got {number}.")
    return number


def check_positive(name: str, value: float) -> float:
    """Return `value` as a float; raise unless 0 < value < ∞."""
    if not (_is_finite(value) and value > 0):
        raise OptionError(f"{name} must be finite and greater than 0, got {value!r}.")
    return float(value)


def check_nonnegative(name: str, value: float) -> float:
    """Return `value` as a float; raise unless 0 ≤ value < ∞."""
    if not (_is_finite(value) and value >= 0):
        raise OptionError(f"{name} must be finite and at least 0, got {value!r}.")
    return float(value)


def check_probability(name: str, value: float) -> float:
    """Return `value` as a float; raise unless 0 < value < 1."""
    if not (_is_finite(value) and 0 < value < 1):
        raise OptionError(f"{name} must lie strictly between 0 and 1, got {value!r}.")
    return float(value)


def check_one_of(name: str, value: str, allowed: Iterable[str]) -> str:
    """Return `value`; raise unless it is among `allowed`."""
    allowed = tuple(allowed)
    if value not in allowed:
        suggestion = suggest_name(value, allowed) if isinstance(value, str) else ""
        raise OptionError(f"{name} must be one of {', '.join(map(repr, allowed))}, got {value!r}{suggestion}.")
    return value


def check_range(name: str, values: Tensor, low: float, high: float, *, advice: str) -> Tensor:
    """Return `values`; raise InputError, with the sentence `advice`, unless all of them lie in [low, high]."""
    smallest, largest = values.min().item(), values.max().item()
    if not (low <= smallest and largest <= high):
        raise InputError(f"{name} must lie in [{low:g}, {high:g}], got {smallest:g} to {largest:g}. {advice}")
    return values


def wrong_type(name: str, expected: str, value) -> InputError:
    """Make the error that a value has another type than what `expected` describes."""
    return InputError(f"{name} must be {expected}, got {type(value).__name__}.")


def check_type(name: str, value, kind: type, expected: str):
    """Return a value of the given class; raise `InputError` for others."""
    if not isinstance(value, kind):
        raise wrong_type(name, expected, value)
    return value


def check_estimator(estimator) -> None:
    """Check that an object is a fitted estimator of this package."""
    from sklearn.utils.validation import check_is_fitted

    if not hasattr(estimator, "training_data"):
        raise InputError(
            f"estimator must be an estimator of ovkgp, such as GPRegressor, got {type(estimator).__name__}. Pass the estimator itself, not a pipeline or search that contains it."
        )
    check_is_fitted(estimator)


def as_numbers(values, name: str) -> np.ndarray:
    """Return values as an array of float64; raise InputError unless they are numbers, which dates and durations are not."""
    try:
        array = np.asarray(values)
        if array.dtype.kind in "Mm":
            raise TypeError(
                f"{array.dtype} has no unit as a number; subtract a date and divide by np.timedelta64(1, 'D')"
            )
        return array.astype(np.float64, copy=False)
    except (TypeError, ValueError) as error:
        raise InputError(f"{name} must be an array of numbers: {error}.") from error


def suggest_name(given, names: Iterable[str]) -> str:
    """Return " (did you mean 'name'?)" with the closest of the names, or "" if none is close."""
    lowered = {str(name).lower(): str(name) for name in names}
    near = get_close_matches(str(given).lower(), lowered, n=1)
    return f" (did you mean {lowered[near[0]]!r}?)" if near else ""


def as_seed(random_state) -> int:
    """Return a seed from scikit-learn's `random_state`: an int is kept, None draws fresh entropy."""
    if isinstance(random_state, (int, np.integer)) and not isinstance(random_state, bool):
        if random_state < 0:
            raise OptionError(f"random_state must be at least 0, got {random_state}.")
        return int(random_state)
    if isinstance(random_state, np.random.Generator):
        return int(random_state.integers(2**31))
    from sklearn.utils import check_random_state

    return int(check_random_state(random_state).randint(2**31))


def _is_finite(value) -> bool:
    """Return whether `value` is a finite real number; bools, strings and other objects are not."""
    try:
        return not isinstance(value, bool) and math.isfinite(value)
    except TypeError:
        return False
