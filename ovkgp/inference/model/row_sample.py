"""Samples of the rows of a table that do not depend on their order or on chunks and shards.

Every distinct row has a priority, a hash of its values. The rows of lowest priority are kept, with the number of their
copies and at least some observations of each output: a bottom-k sketch, so that the samples of two tables give that of
both.
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
NUM_FOLDS = 5  # folds of rows or curves that are held out

MIN_SUBSET_OBSERVATIONS = 50
"""Observed entries of each output in a subset, if available; fewer if the number of rows would more than double."""


@dataclass(frozen=True, eq=False)
class Landmarks:
    """At most `limit` rows by increasing `priorities` (k,): inputs X (k, d) and their `observed` outputs (k, p)."""

    X: Tensor
    observed: Tensor
    priorities: Tensor
    limit: int = NO_LIMIT

    @classmethod
    def empty(cls, limit: int = NO_LIMIT) -> Landmarks:
        """Return a sample without rows."""
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

    def __sub__(self, other: Landmarks) -> Landmarks:
        kept = torch.from_numpy(~np.isin(self.priorities.cpu().numpy(), other.priorities.cpu().numpy()))
        kept = kept.to(self.X.device)
        return Landmarks(self.X[kept], self.observed[kept], self.priorities[kept], self.limit)

    def _lowest(self, limit: int) -> Landmarks:
        """Select the distinct rows of lowest priority."""
        _, index = np.unique(self.priorities.cpu().numpy(), return_index=True)
        kept = torch.from_numpy(index[:limit]).to(self.X.device)
        return Landmarks(self.X[kept], self.observed[kept], self.priorities[kept], limit)


def choose_landmarks(observations: Observations, limit: int) -> Landmarks:
    """Choose the `limit` rows of lowest priority. O(n (d + p / 64)) time, and memory for one chunk."""
    chosen = Landmarks.empty(limit)
    if limit == 0:
        return chosen
    for chunk in observations.chunks(CHUNK_ROWS):
        priorities = hash_rows(chunk)
        if len(chosen) == limit:  # most rows of a long stream have too high a priority
            index = priorities < chosen.priorities[-1]
            chunk, priorities = chunk.rows(index), priorities[index]
        chosen = chosen + Landmarks(chunk.X, chunk.observed, priorities, limit)
    return chosen


def hash_rows(chunk: Observations) -> Tensor:
    """Hash the inputs and the mask of observed outputs of each row, (n,) int64 below 2⁶³."""
    state = np.full(chunk.num_rows, 0x243F6A8885A308D3, dtype=np.uint64)
    for bits in (_as_bits(chunk.X), pack_mask(chunk.observed)):
        for column in bits.T:
            state = mix_bits(state ^ column)
    return torch.from_numpy((state >> np.uint64(1)).astype(np.int64)).to(chunk.X.device)


def _as_bits(values: Tensor) -> np.ndarray:
    """View float64 numbers as bits; adding zero makes −0 and 0 equal."""
    return (values.detach().double() + 0.0).cpu().contiguous().numpy().view(np.uint64)


def pack_mask(observed: Tensor) -> np.ndarray:
    """Pack the mask of observed outputs into 64-bit integers, (n, ⌈p / 64⌉)."""
    packed = np.packbits(observed.cpu().numpy(), axis=1)
    padded = np.zeros((len(packed), -(-packed.shape[1] // 8) * 8), dtype=np.uint8)
    padded[:, : packed.shape[1]] = packed
    return padded.view(np.uint64)


def mix_bits(state: np.ndarray) -> np.ndarray:
    """Apply the finalizer of SplitMix64: every input bit affects every output bit."""
    state = state + np.uint64(0x9E3779B97F4A7C15)
    state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return state ^ (state >> np.uint64(31))


def draw_training_subset(data: Observations, num_rows: int | None, random_state=None) -> Observations:
    """Draw `num_rows` random rows (None for all), in their order, plus at most as many for rarely observed outputs."""
    if num_rows is None or data.num_rows <= check_integer("training_rows", num_rows):
        return data
    rows = torch.from_numpy(draw_random_rows(data.observed.cpu().numpy(), num_rows, random_state))
    return data.rows(rows.to(data.X.device))


def draw_random_rows(observed: np.ndarray, num_rows: int, random_state=None) -> np.ndarray:
    """Draw sorted indices of `num_rows` random rows of `observed` (n, p), plus rows for rarely observed outputs."""
    order = np.random.default_rng(as_seed(random_state)).permutation(len(observed))
    order = order[observed[order].any(1)]
    chosen, rest = [order[:num_rows]], order[num_rows:]
    counts, minimum = observed[chosen[0]].sum(0), min(MIN_SUBSET_OBSERVATIONS, max(num_rows // observed.shape[1], 1))
    for output in np.flatnonzero(counts < minimum):
        chosen.append(rest[observed[rest, output]][: minimum - counts[output]])
    return np.unique(np.concatenate(chosen))


def draw_folds(num_rows: int, seed: int = 0) -> np.ndarray:
    """Draw the fold (n,) of each row: 5 random folds, or n if there are fewer rows, whose sizes differ by at most one."""
    return np.random.default_rng(seed).permutation(num_rows) % min(NUM_FOLDS, num_rows)


@dataclass(frozen=True, eq=False)
class RowSample:
    """Sample of the rows of a table; `a + b` is the sample of both tables, in O(k (d + p))."""

    distinct_X: np.ndarray  # (k, d)
    distinct_Y: np.ndarray  # (k, p)
    priorities: np.ndarray  # (k,), increasing
    counts: np.ndarray  # (k,), copies of each row
    limit: int  # maximum number of rows, without those for rarely observed outputs (at most as many again)

    @classmethod
    def from_table(cls, X: np.ndarray, Y: np.ndarray, limit: int) -> RowSample:
        """Sample a table X (n, d), Y (n, p). O(n (d + p)) time and memory."""
        kept = np.isfinite(Y).any(1)
        X, Y = X[kept].astype(np.float64), Y[kept].astype(np.float64)
        return cls(X, Y, _hash_table(X, Y), np.ones(len(X), dtype=np.int64), limit)._lowest()

    @property
    def X(self) -> np.ndarray:
        """Inputs of the sample, including copies."""
        return self.distinct_X[self._rows]

    @property
    def Y(self) -> np.ndarray:
        """Outputs of the sample."""
        return self.distinct_Y[self._rows]

    def __len__(self) -> int:
        return len(self._rows)

    def __add__(self, other: RowSample) -> RowSample:
        names = ("distinct_X", "distinct_Y", "priorities", "counts")
        columns = (np.concatenate([getattr(self, name), getattr(other, name)]) for name in names)
        return RowSample(*columns, min(self.limit, other.limit))._lowest()

    def _lowest(self) -> RowSample:
        """Select the distinct rows of lowest priority; those of a whole were selected in each part, with all copies."""
        priorities, first, inverse = np.unique(self.priorities, return_index=True, return_inverse=True)
        counts = np.zeros(len(priorities), dtype=np.int64)
        np.add.at(counts, inverse, self.counts)
        observed = np.isfinite(self.distinct_Y[first])
        minimum = min(MIN_SUBSET_OBSERVATIONS, max(self.limit // observed.shape[1], 1))
        rare = observed[:, observed[: self.limit].sum(0) < minimum]
        kept = (rare & (rare.cumsum(0) <= minimum)).any(1)
        kept[: self.limit] = True
        rows = first[kept]
        return RowSample(self.distinct_X[rows], self.distinct_Y[rows], priorities[kept], counts[kept], self.limit)

    @cached_property
    def _rows(self) -> np.ndarray:
        """Indices of the rows, repeated in proportion to `counts`, rounded by a hash; rare outputs at least once."""
        expected = self.counts[: self.limit] * min(1.0, self.limit / max(self.counts[: self.limit].sum(), 1))
        uniform = mix_bits(self.priorities[: self.limit].astype(np.uint64)) / 2.0**64
        copies = np.ones(len(self.counts), dtype=np.int64)
        copies[: self.limit] = np.floor(expected + uniform)
        return np.repeat(np.arange(len(copies)), copies)


def _hash_table(X: np.ndarray, Y: np.ndarray) -> np.ndarray:
    """Hash inputs, outputs and the mask of missing outputs of each row."""
    numbers = torch.from_numpy(np.hstack([X, np.nan_to_num(Y, nan=0.0)]))
    return hash_rows(Observations(numbers, torch.from_numpy(Y))).numpy()
