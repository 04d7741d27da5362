"""Counts, means and spreads of columns that merge: the moments of a whole from those of its parts (Chan, Golub and LeVeque).

For parts a and b with n_a, n_b entries, δ = m_b − m_a and n = n_a + n_b,

    m = m_a + δ n_b / n,    S = S_a + S_b + δ² n_a n_b / n,

with S the sum of squared deviations. S is kept relative to the square of the largest entry, so that squares neither overflow
nor vanish, whatever the units.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

ROWS_AT_ONCE = 1 << 16
"""Rows that are made float64 together."""


@dataclass(frozen=True)
class Moments:
    """The moments of k columns, NaN left out; `a + b` are those of both together.

    Args:
        count: how many entries each column has, (k,) int64.
        mean: of each, (k,); zero where there are no entries.
        squares: the sum of squared deviations from the mean, (k,), in units of largest².
        largest: the largest absolute value, (k,).

    Cost of `a + b`: O(k).

    Example:
        >>> import numpy as np
        >>> from ovkgp.estimators.moments import Moments
        >>> columns = np.array([[1.0, 5.0], [2.0, np.nan], [3.0, 7.0]])
        >>> both = Moments.of(columns[:1]) + Moments.of(columns[1:])
        >>> both.count, both.mean, both.std
        (array([3, 2]), array([2., 6.]), array([0.81649658, 1.        ]))
    """

    count: np.ndarray
    mean: np.ndarray
    squares: np.ndarray
    largest: np.ndarray

    @classmethod
    def of(cls, columns: np.ndarray) -> Moments:
        """The moments of an array (n, k) with NaN where an entry is missing. O(n k) time, memory for one part of the rows."""
        total = cls._of_part(columns[:ROWS_AT_ONCE])
        for part in _parts(columns[ROWS_AT_ONCE:]):
            total = total + cls._of_part(part)
        return total

    @classmethod
    def _of_part(cls, columns: np.ndarray) -> Moments:
        columns = columns.astype(np.float64)
        largest = np.nan_to_num(np.abs(columns)).max(0, initial=0.0)
        count = np.isfinite(columns).sum(0)
        relative = columns / _unit(largest)
        mean = np.nansum(relative, 0) / np.maximum(count, 1)
        return cls(count, _unit(largest) * mean, np.nansum((relative - mean) ** 2, 0), largest)

    @property
    def std(self) -> np.ndarray:
        """The standard deviation (k,) of each column, with the divisor n."""
        return _unit(self.largest) * np.sqrt(self.squares / np.maximum(self.count, 1))

    def __add__(self, other: Moments) -> Moments:
        largest = np.maximum(self.largest, other.largest)
        unit, count = _unit(largest), self.count + other.count
        share = other.count / np.maximum(count, 1)
        start, step = self.mean / unit, other.mean / unit - self.mean / unit
        squares = sum(part.squares * (part.largest / unit) ** 2 for part in (self, other))
        return Moments(count, unit * (start + step * share), squares + step**2 * self.count * share, largest)


def _unit(largest: np.ndarray) -> np.ndarray:
    return np.where(largest > 0, largest, 1.0)


def _parts(columns: np.ndarray) -> Iterator[np.ndarray]:
    return (columns[i : i + ROWS_AT_ONCE] for i in range(0, len(columns), ROWS_AT_ONCE))
