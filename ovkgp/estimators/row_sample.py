"""A sample of the rows of a table that depends neither on their order nor on how they were cut into chunks and shards.

Every distinct row has a priority, a hash of its inputs and outputs; those of lowest priority are kept with the number of their
copies, and of each output the observed ones of lowest priority. Both are bottom-k sketches, so that the sample of a whole is
found from those of its parts. When the sample is asked for, each row is there as often as its share of the rows kept says; where
there are more distinct rows than are kept, chance decides which, however many copies they have.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

from ovkgp.inference.data import Observations
from ovkgp.inference.landmarks import mixed, row_priorities
from ovkgp.inference.subsets import FEWEST


@dataclass(frozen=True, eq=False)
class RowSample:
    """Some rows of a table; `a + b` is the sample of both tables together.

    Args:
        distinct_X, distinct_Y: distinct rows (k, d) and (k, p), NaN where missing, in the order of their priorities; in each
            something was observed.
        priorities: (k,) int64, increasing.
        counts: how often each row occurs, (k,) int64.
        limit: the most rows, beside at most as many again for outputs that are rarely observed.

    Cost of `a + b`: O(k (d + p)) for at most 2 `limit` rows.

    Example:
        >>> import numpy as np
        >>> from ovkgp.estimators.row_sample import RowSample
        >>> X, Y = np.arange(200.0).reshape(100, 2), np.zeros((100, 1))
        >>> whole = RowSample.of(X, Y, limit=10)
        >>> parts = RowSample.of(X[70:], Y[70:], limit=10) + RowSample.of(X[:70], Y[:70], limit=10)
        >>> len(whole), np.array_equal(whole.X, parts.X)
        (10, True)
    """

    distinct_X: np.ndarray
    distinct_Y: np.ndarray
    priorities: np.ndarray
    counts: np.ndarray
    limit: int

    @classmethod
    def of(cls, X: np.ndarray, Y: np.ndarray, limit: int) -> RowSample:
        """The sample of a table X (n, d), Y (n, p). O(n (d + p)) time and memory."""
        kept = np.isfinite(Y).any(1)
        X, Y = X[kept].astype(np.float64), Y[kept].astype(np.float64)
        return cls(X, Y, _priorities(X, Y), np.ones(len(X), dtype=np.int64), limit)._lowest()

    @property
    def X(self) -> np.ndarray:
        """The inputs of the sample, copies included."""
        return self.distinct_X[self._rows]

    @property
    def Y(self) -> np.ndarray:
        """Its outputs."""
        return self.distinct_Y[self._rows]

    def __len__(self) -> int:
        return len(self._rows)

    def __add__(self, other: RowSample) -> RowSample:
        names = ("distinct_X", "distinct_Y", "priorities", "counts")
        columns = (np.concatenate([getattr(self, name), getattr(other, name)]) for name in names)
        return RowSample(*columns, min(self.limit, other.limit))._lowest()

    def _lowest(self) -> RowSample:
        """The distinct rows of lowest priority: one that stays in the whole was in each of its parts, with all its copies."""
        priorities, first, place = np.unique(self.priorities, return_index=True, return_inverse=True)
        counts = np.zeros(len(priorities), dtype=np.int64)
        np.add.at(counts, place, self.counts)
        seen = np.isfinite(self.distinct_Y[first])
        fewest = min(FEWEST, max(self.limit // seen.shape[1], 1))
        rare = seen[:, seen[: self.limit].sum(0) < fewest]
        kept = (rare & (rare.cumsum(0) <= fewest)).any(1)
        kept[: self.limit] = True
        rows = first[kept]
        return RowSample(self.distinct_X[rows], self.distinct_Y[rows], priorities[kept], counts[kept], self.limit)

    @cached_property
    def _rows(self) -> np.ndarray:
        """Each row as often as its share says, rounded up or down by a hash; those of rare outputs at least once."""
        share = self.counts[: self.limit] * min(1.0, self.limit / max(self.counts[: self.limit].sum(), 1))
        chances = mixed(self.priorities[: self.limit].astype(np.uint64)) / 2.0**64
        copies = np.ones(len(self.counts), dtype=np.int64)
        copies[: self.limit] = np.floor(share + chances)
        return np.repeat(np.arange(len(copies)), copies)


def _priorities(X: np.ndarray, Y: np.ndarray) -> np.ndarray:
    """The hash that chooses landmarks, of inputs, outputs and the pattern of missing ones."""
    numbers = torch.from_numpy(np.hstack([X, np.nan_to_num(Y, nan=0.0)]))
    return row_priorities(Observations(numbers, torch.from_numpy(Y))).numpy()
