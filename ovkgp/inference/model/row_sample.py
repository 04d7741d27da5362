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
from torch import Tensor

from ovkgp.checks import as_seed, check_integer
from ovkgp.inference.model.observations import Observations

CHUNK_ROWS = 1 << 14
"""Rows hashed together, so that the work stays in the processor's caches and memory does not grow with the data."""

NO_LIMIT = 1 << 62


@dataclass(frozen=True, eq=False)
class Landmarks:
    """Rows kept from the data, in the order of their priorities.

    Args:
        X: inputs (k, d), float64.
        observed: which outputs were observed there, (k, p).
        priorities: (k,) int64, increasing.
        limit: the most rows that may be kept.

    Example:
        >>> import torch
        >>> from ovkgp.inference.model.observations import observations
        >>> from ovkgp.inference.model.row_sample import choose_landmarks
        >>> X, Y = torch.arange(100.0).reshape(50, 2), torch.zeros(50, 1)
        >>> whole = choose_landmarks(observations(X, Y, 1), limit=5)
        >>> halves = [choose_landmarks(observations(X[part], Y[part], 1), limit=5) for part in (slice(20, 50), slice(20))]
        >>> torch.equal((halves[0] + halves[1]).X, whole.X)
        True
    """

    X: Tensor
    observed: Tensor
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
        columns = (torch.cat([getattr(self, name), getattr(other, name)]) for name in ("X", "observed", "priorities"))
        return Landmarks(*columns)._lowest(limit)

    def _lowest(self, limit: int) -> Landmarks:
        """The distinct rows of lowest priority."""
        _, index = np.unique(self.priorities.cpu().numpy(), return_index=True)
        kept = torch.from_numpy(index[:limit]).to(self.X.device)
        return Landmarks(self.X[kept], self.observed[kept], self.priorities[kept], limit)


def choose_landmarks(observations: Observations, limit: int) -> Landmarks:
    """The `limit` rows of lowest priority. O(n (d + p / 64)) time, and memory for one chunk."""
    chosen = Landmarks.none(limit)
    if limit == 0:
        return chosen
    for chunk in observations.chunks(CHUNK_ROWS):
        priorities = row_priorities(chunk)
        if len(chosen) == limit:  # most rows of a long stream are out of the running at once
            index = priorities < chosen.priorities[-1]
            chunk, priorities = chunk.rows(index), priorities[index]
        chosen = chosen + Landmarks(chunk.X, chunk.observed, priorities, limit)
    return chosen


def row_priorities(chunk: Observations) -> Tensor:
    """A hash (n,) int64, below 2⁶³, of each row: of its inputs and of its pattern of seen outputs."""
    state = np.full(chunk.num_rows, 0x243F6A8885A308D3, dtype=np.uint64)
    for words in (_words(chunk.X), mask_words(chunk.observed)):
        for column in words.T:
            state = mixed(state ^ column)
    return torch.from_numpy((state >> np.uint64(1)).astype(np.int64)).to(chunk.X.device)


def _words(values: Tensor) -> np.ndarray:
    """The bits of float64 numbers; adding zero makes −0 and 0 alike."""
    return (values.detach().double() + 0.0).cpu().contiguous().numpy().view(np.uint64)


def mask_words(observed: Tensor) -> np.ndarray:
    """The pattern of seen outputs as 64-bit words, (n, ⌈p / 64⌉)."""
    packed = np.packbits(observed.cpu().numpy(), axis=1)
    padded = np.zeros((len(packed), -(-packed.shape[1] // 8) * 8), dtype=np.uint8)
    padded[:, : packed.shape[1]] = packed
    return padded.view(np.uint64)


def mixed(state: np.ndarray) -> np.ndarray:
    """The finaliser of SplitMix64: every bit of the input moves every bit of the output."""
    state = state + np.uint64(0x9E3779B97F4A7C15)
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))


FEWEST = 50
"""An output keeps at least so many observed entries in the subset, where it has them; fewer where there are so many outputs
that this would more than double the rows."""


def training_subset(data: Observations, num_rows: int | None, random_state=None) -> Observations:
    """`num_rows` random rows, in their order, and at most as many again for outputs that are rarely observed.

    Args:
        data: the observations.
        num_rows: how many; None for all of them.
        random_state: as in scikit-learn.

    Example:
        >>> import torch
        >>> from ovkgp.inference.model.observations import observations
        >>> from ovkgp.inference.model.row_sample import training_subset
        >>> data = observations(torch.arange(100.0), torch.zeros(100, 2), num_outputs=2)
        >>> training_subset(data, 30, random_state=0).num_rows
        30
    """
    if num_rows is None or data.num_rows <= check_integer("training_rows", num_rows):
        return data
    rows = torch.from_numpy(random_rows(data.observed.cpu().numpy(), num_rows, random_state))
    return data.rows(rows.to(data.X.device))


def random_rows(observed: np.ndarray, num_rows: int, random_state=None) -> np.ndarray:
    """The sorted indices of `num_rows` random rows of `observed` (n, p); a rarely observed output brings its own along."""
    order = np.random.default_rng(as_seed(random_state)).permutation(len(observed))
    order = order[observed[order].any(1)]
    chosen, rest = [order[:num_rows]], order[num_rows:]
    counts, fewest = observed[chosen[0]].sum(0), min(FEWEST, max(num_rows // observed.shape[1], 1))
    for output in np.flatnonzero(counts < fewest):
        chosen.append(rest[observed[rest, output]][: fewest - counts[output]])
    return np.unique(np.concatenate(chosen))


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
        >>> from ovkgp.inference.model.row_sample import RowSample
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
        observed = np.isfinite(self.distinct_Y[first])
        fewest = min(FEWEST, max(self.limit // observed.shape[1], 1))
        rare = observed[:, observed[: self.limit].sum(0) < fewest]
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
