"""A sample of the rows of a table that depends neither on their order nor on how they were cut into chunks and shards.

Every row has a priority, a hash of its inputs and outputs; the rows of lowest priority are kept, and of each output the
observed ones of lowest priority. Both are bottom-k sketches, so that the sample of a whole is found from those of its parts.
Equal rows are kept as often as they occur.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from ovkgp.inference.data import Observations
from ovkgp.inference.landmarks import row_priorities
from ovkgp.inference.subsets import FEWEST


@dataclass(frozen=True, eq=False)
class RowSample:
    """Rows X (k, d) and Y (k, p), NaN where missing, in the order of their priorities; `a + b` is the sample of both.

    Args:
        X, Y: the rows, float64; in each something was observed.
        priorities: (k,) int64, not decreasing.
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

    X: np.ndarray
    Y: np.ndarray
    priorities: np.ndarray
    limit: int

    @classmethod
    def of(cls, X: np.ndarray, Y: np.ndarray, limit: int) -> RowSample:
        """The sample of a table X (n, d), Y (n, p). O(n (d + p)) time and memory."""
        kept = np.isfinite(Y).any(1)
        X, Y = X[kept].astype(np.float64), Y[kept].astype(np.float64)
        return cls(X, Y, _priorities(X, Y), limit)._lowest()

    def __len__(self) -> int:
        return len(self.X)

    def __add__(self, other: RowSample) -> RowSample:
        columns = (np.concatenate([getattr(self, name), getattr(other, name)]) for name in ("X", "Y", "priorities"))
        return RowSample(*columns, min(self.limit, other.limit))._lowest()

    def _lowest(self) -> RowSample:
        order = np.argsort(self.priorities, kind="stable")
        seen = np.isfinite(self.Y[order])
        fewest = min(FEWEST, max(self.limit // seen.shape[1], 1))
        rare = seen[:, seen[: self.limit].sum(0) < fewest]
        kept = (rare & (rare.cumsum(0) <= fewest)).any(1)
        kept[: self.limit] = True
        rows = order[kept]
        return RowSample(self.X[rows], self.Y[rows], self.priorities[rows], self.limit)


def _priorities(X: np.ndarray, Y: np.ndarray) -> np.ndarray:
    """The hash that chooses landmarks, of inputs, outputs and the pattern of missing ones."""
    numbers = torch.from_numpy(np.hstack([X, np.nan_to_num(Y, nan=0.0)]))
    return row_priorities(Observations(numbers, torch.from_numpy(Y))).numpy()
