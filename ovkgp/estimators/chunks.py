"""Chunks (X, Y) of a table at the door of an estimator: checked as one table would be, one by one.

A fit takes two passes over the chunks (one surveys, one gathers statistics), so they must be a collection that can be read
again: a list, or `ovkgp.datasets.stream`. A chunk without rows is passed over, as is a stream without chunks: it may be an
empty shard of a larger table.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
from sklearn.base import BaseEstimator
from tqdm import tqdm

from ovkgp.estimators.learning import Table
from ovkgp.estimators.tables import as_array, input_table, output_table
from ovkgp.exceptions import InputError

ROWS_AT_ONCE = 1 << 16
"""Rows that are surveyed, scaled and gathered together."""


class Columns(NamedTuple):
    """What all chunks of a table have in common; None where the names are not known."""

    num_inputs: int
    num_outputs: int
    inputs: tuple[str, ...] | None
    outputs: tuple[str, ...] | None
    is_flat: bool


class Chunks:
    """A pass over the chunks of a table, checked.

    Args:
        chunks: pairs (X, Y) of arrays, tensors or data frames: X (k, d) finite, Y (k, p) or (k,), NaN where missing. Where
            it has attributes `inputs` and `outputs`, those are the names of the columns.
        columns: what they must have, where that is known from an earlier pass.
        verbose: 1 shows progress.

    Attributes:
        columns: those of the chunks seen so far; None before the first.

    Raises:
        InputError: the chunks can be read only once, or a chunk is bad: its number is in the message.

    Cost: that of the checks, O(d + p) a row; memory for a chunk.

    Example:
        >>> import numpy as np
        >>> from ovkgp.estimators.chunks import Chunks
        >>> chunks = Chunks([(np.zeros((5, 2)), np.zeros(5)), (np.ones((3, 2)), np.ones(3))])
        >>> [(table.X.shape, table.Y.shape) for table in chunks], chunks.columns.num_inputs
        ([((5, 2), (5, 1)), ((3, 2), (3, 1))], 2)
    """

    def __init__(self, chunks: Iterable, columns: Columns | None = None, verbose: int = 0):
        self.chunks, self.columns, self.verbose = _rereadable(chunks), columns, verbose
        self._door = _Door()

    def __iter__(self) -> Iterator[Table]:
        """Tables of at most `ROWS_AT_ONCE` rows."""
        for number, chunk in enumerate(tqdm(self.chunks, "chunks", disable=not self.verbose)):
            X, Y = _pair(chunk, number)
            try:
                table = None if _is_empty(X, Y) else self._checked(X, Y)
            except (TypeError, ValueError) as error:
                first, *rest = str(
                    error
                ).splitlines()  # of the rest only lists matter: it is advice for other estimators
                listed = " ".join(line for line in rest if line.startswith(("- ", "Feature names")))
                raise InputError(f"chunk {number}: {first} {listed}".rstrip()) from error
            yield from () if table is None else table.parts(ROWS_AT_ONCE)

    def _checked(self, X, Y) -> Table:
        is_first = not hasattr(self._door, "n_features_in_")
        X = input_table(self._door, X, reset=is_first)
        Y, names, is_flat = output_table(Y, X)
        found = Columns(X.shape[1], Y.shape[1], *self._names(names), is_flat)
        self.columns = found if self.columns is None else one_table(self.columns, found)
        return Table(X, Y)

    def _names(self, outputs: list[str] | None) -> tuple[tuple[str, ...] | None, tuple[str, ...] | None]:
        own = getattr(self._door, "feature_names_in_", None)
        found = self._stated("inputs") or own, self._stated("outputs") or outputs
        return tuple(None if names is None else tuple(map(str, names)) for names in found)

    def _stated(self, role: str) -> tuple[str, ...] | None:
        """The names of columns that a stream states; other collections may mean something else by the word."""
        names = getattr(self.chunks, role, None)
        is_named = isinstance(names, tuple | list) and all(isinstance(name, str) for name in names)
        return tuple(names) if is_named else None


def one_table(first: Columns, second: Columns) -> Columns:
    """What two parts of a table have in common; an error where they cannot belong together."""
    for what, mine, yours in (("inputs", first[0], second[0]), ("outputs", first[1], second[1])):
        if mine != yours:
            raise InputError(f"there are {yours} {what} here and {mine} before: all parts need the same columns.")
    for what, mine, yours in (("inputs", first.inputs, second.inputs), ("outputs", first.outputs, second.outputs)):
        if mine is not None and yours is not None and mine != yours:
            raise InputError(f"the {what} are called {list(yours)} here and {list(mine)} before, in this order.")
    names = (first.inputs or second.inputs, first.outputs or second.outputs)
    return Columns(*first[:2], *names, first.is_flat and second.is_flat)


class _Door(BaseEstimator):
    """Remembers the columns of the first chunk, as an estimator would."""


def _rereadable(chunks: Iterable) -> Iterable:
    if not hasattr(chunks, "__iter__"):
        raise InputError(f"expected a list of chunks (X, Y), or another collection; got {type(chunks).__name__}.")
    if iter(chunks) is chunks:
        raise InputError(
            "these chunks can be read only once, and a fit needs two passes: give a list [(X, Y), …], or "
            "ovkgp.datasets.stream(path, inputs, outputs) for a file."
        )
    return chunks


def _pair(chunk, number: int) -> tuple:
    if not isinstance(chunk, tuple | list) or len(chunk) != 2:
        raise InputError(f"chunk {number} is not a pair (X, Y) but a {type(chunk).__name__}; give a list of pairs.")
    return tuple(map(as_array, chunk))


def _is_empty(X, Y) -> bool:
    return np.shape(X)[:1] == np.shape(Y)[:1] == (0,)
