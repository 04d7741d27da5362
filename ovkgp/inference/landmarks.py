"""A small, reproducible sample of the inputs, whichever way the data came by.

Every distinct row (its input, and which outputs were seen there) has a priority, a 63-bit hash of its bytes; the `limit`
rows of lowest priority are kept. That is a bottom-k sketch: merging two gives the sketch of all their rows, so that neither
the order of the data nor the way they were cut into chunks matters, and copies of a row count once.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ovkgp.inference.data import Observations

ROWS_AT_ONCE = 1 << 14
"""Rows hashed together, so that the work stays in the processor's caches and memory does not grow with the data."""

NO_LIMIT = 1 << 62


@dataclass(frozen=True, eq=False)
class Landmarks:
    """Rows kept from the data, in the order of their priorities.

    Args:
        X: inputs (k, d), float64.
        seen: which outputs were observed there, (k, p).
        priorities: (k,) int64, increasing.
        limit: the most rows that may be kept.

    Example:
        >>> import torch
        >>> from ovkgp.inference.data import observations
        >>> from ovkgp.inference.landmarks import choose_landmarks
        >>> X, Y = torch.arange(100.0).reshape(50, 2), torch.zeros(50, 1)
        >>> whole = choose_landmarks(observations(X, Y, 1), limit=5)
        >>> halves = [choose_landmarks(observations(X[part], Y[part], 1), limit=5) for part in (slice(20, 50), slice(20))]
        >>> torch.equal((halves[0] + halves[1]).X, whole.X)
        True
    """

    X: Tensor
    seen: Tensor
    priorities: Tensor
    limit: int = NO_LIMIT

    @classmethod
    def none(cls, limit: int = NO_LIMIT) -> Landmarks:
        """No rows at all."""
        empty = torch.zeros(0, 0, dtype=torch.float64)
        return cls(empty, empty.bool(), torch.zeros(0, dtype=torch.int64), limit)

    def __len__(self) -> int:
        return len(self.priorities)

    def __add__(self, other: Landmarks) -> Landmarks:
        limit = min(self.limit, other.limit)
        if not len(self) or not len(other):
            return (self if len(self) else other)._lowest(limit)
        columns = (torch.cat([getattr(self, name), getattr(other, name)]) for name in ("X", "seen", "priorities"))
        return Landmarks(*columns)._lowest(limit)

    def _lowest(self, limit: int) -> Landmarks:
        """The distinct rows of lowest priority."""
        _, index = np.unique(self.priorities.cpu().numpy(), return_index=True)
        kept = torch.from_numpy(index[:limit]).to(self.X.device)
        return Landmarks(self.X[kept], self.seen[kept], self.priorities[kept], limit)


def choose_landmarks(observations: Observations, limit: int) -> Landmarks:
    """The `limit` rows of lowest priority. O(n (d + p / 64)) time, and memory for one chunk."""
    chosen = Landmarks.none(limit)
    if limit == 0:
        return chosen
    for chunk in observations.chunks(ROWS_AT_ONCE):
        priorities = row_priorities(chunk)
        if len(chosen) == limit:  # most rows of a long stream are out of the running at once
            index = priorities < chosen.priorities[-1]
            chunk, priorities = chunk.rows(index), priorities[index]
        chosen = chosen + Landmarks(chunk.X, chunk.seen, priorities, limit)
    return chosen


def row_priorities(chunk: Observations) -> Tensor:
    """A hash (n,) int64, below 2⁶³, of each row: of its inputs and of its pattern of seen outputs."""
    state = np.full(chunk.num_rows, 0x243F6A8885A308D3, dtype=np.uint64)
    for words in (_words(chunk.X), mask_words(chunk.seen)):
        for column in words.T:
            state = mixed(state ^ column)
    return torch.from_numpy((state >> np.uint64(1)).astype(np.int64)).to(chunk.X.device)


def _words(values: Tensor) -> np.ndarray:
    """The bits of float64 numbers; adding zero makes −0 and 0 alike."""
    return (values.detach().double() + 0.0).cpu().contiguous().numpy().view(np.uint64)


def mask_words(seen: Tensor) -> np.ndarray:
    """The pattern of seen outputs as 64-bit words, (n, ⌈p / 64⌉)."""
    packed = np.packbits(seen.cpu().numpy(), axis=1)
    padded = np.zeros((len(packed), -(-packed.shape[1] // 8) * 8), dtype=np.uint8)
    padded[:, : packed.shape[1]] = packed
    return padded.view(np.uint64)


def mixed(state: np.ndarray) -> np.ndarray:
    """The finaliser of SplitMix64: every bit of the input moves every bit of the output."""
    state = state + np.uint64(0x9E3779B97F4A7C15)
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))
