"""Root mean squares, means and deviations of numbers of any finite size: squares of 1e±200 would overflow or underflow."""

from __future__ import annotations

import numpy as np


def unit_of(largest: np.ndarray) -> np.ndarray:
    """Return the power of two, between half of a largest absolute value and itself, in which to measure; 1 for 0.

    Divisions by it are exact, so that ordinary results do not change.
    """
    largest = np.asarray(largest, dtype=np.float64)
    exponent = np.frexp(np.where(largest > 0, largest, 1.0))[1] - 1
    return np.ldexp(1.0, exponent)


def root_mean_square(values: np.ndarray, axis: int | tuple[int, ...] | None = None) -> np.ndarray:
    """Return the root mean square of the values that are not NaN."""
    unit = unit_of(np.nanmax(np.abs(values), axis, initial=0.0, keepdims=True))
    found = np.sqrt(np.nanmean((values / unit) ** 2, axis))
    return found * unit.reshape(np.shape(found))


def mean_and_std(columns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return mean (k,) and standard deviation (k,) of columns (n, k)."""
    unit = unit_of(np.abs(columns).max(0, initial=0.0))
    relative = columns / unit
    return relative.mean(0) * unit, relative.std(0) * unit
