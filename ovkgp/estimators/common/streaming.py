"""Tables larger than memory, in chunks and on several machines: two passes and one all-reduce.

    survey            counts, moments and a sample of all rows (`ovkgp.estimators.common.streaming`)
    (learning)        scaling from the moments, hyperparameters from the sample: once, on rank 0
    accumulate_rows the statistics of each rank's rows, added over the ranks (`ovkgp.inference.statistics.distributed`)

Nothing here knows which estimator it serves; one process is a group of one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from sklearn.base import BaseEstimator
from tqdm import tqdm

from ovkgp.estimators.common.scaling import Moments, Scaling
from ovkgp.estimators.common.validation import as_array, input_table, output_table
from ovkgp.estimators.regression.training import Table
from ovkgp.exceptions import InputError
from ovkgp.inference import OperatorValuedGP, Statistics
from ovkgp.inference.model.row_sample import RowSample
from ovkgp.inference.statistics.distributed import Ranks, all_reduce, process_group
from ovkgp.inference.statistics.statistics import OutputStatistics

CHUNK_ROWS = 1 << 16
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
        >>> from ovkgp.estimators.common.streaming import Chunks
        >>> chunks = Chunks([(np.zeros((5, 2)), np.zeros(5)), (np.ones((3, 2)), np.ones(3))])
        >>> [(table.X.shape, table.Y.shape) for table in chunks], chunks.columns.num_inputs
        ([((5, 2), (5, 1)), ((3, 2), (3, 1))], 2)
    """

    def __init__(self, chunks: Iterable, columns: Columns | None = None, verbose: int = 0):
        self.chunks, self.columns, self.verbose = _rereadable(chunks), columns, verbose
        self._door = _Door()

    def __iter__(self) -> Iterator[Table]:
        """Tables of at most `CHUNK_ROWS` rows."""
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
            yield from () if table is None else table.parts(CHUNK_ROWS)

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


DOING = "surveying the data"


@dataclass(frozen=True, eq=False)
class StreamScan:
    """What one pass tells of a table; `a + b` is the survey of both together.

    Args:
        columns: how many inputs and outputs there are, and their names.
        num_rows: how many rows there are.
        num_observed_rows: in how many of them something was observed.
        inputs, outputs: their moments; `outputs.count` says how often each output was observed.
        sample: at most about `limit` rows.

    Cost of `a + b`: that of merging the samples.

    Example:
        See `survey`.
    """

    columns: Columns
    num_rows: int
    num_observed_rows: int
    inputs: Moments
    outputs: Moments
    sample: RowSample

    @property
    def table(self) -> Table:
        """The sample, as a table."""
        return Table(self.sample.X, self.sample.Y)

    def __add__(self, other: StreamScan) -> StreamScan:
        return StreamScan(
            one_table(self.columns, other.columns),
            self.num_rows + other.num_rows,
            self.num_observed_rows + other.num_observed_rows,
            self.inputs + other.inputs,
            self.outputs + other.outputs,
            self.sample + other.sample,
        )


def survey(chunks: Iterable, limit: int, ranks: Ranks | None = None, *, verbose: int = 0) -> StreamScan:
    """One pass over this rank's chunks, merged over the ranks in their order.

    Args:
        chunks: pairs (X, Y); see `ovkgp.estimators.common.streaming.Chunks`. A rank may have none.
        limit: rows of the sample, at most, beside those for rarely observed outputs.
        ranks: the processes that share the table; None for this one alone.
        verbose: 1 shows progress.

    Raises:
        InputError: a chunk is bad, there are no rows at all, or nobody observed some output. Where one rank has a bad chunk
            the others raise a `DistributedError`.

    Cost: O(n (d + p)) time, memory for a chunk and the samples of all ranks.

    Example:
        >>> import numpy as np
        >>> from ovkgp.estimators.common.streaming import survey
        >>> rng = np.random.default_rng(0)
        >>> found = survey([(rng.random((50, 2)), rng.random((50, 3))) for _ in range(4)], limit=80)
        >>> found.num_rows, found.outputs.count, found.table.X.shape
        (200, array([200, 200, 200]), (80, 2))
    """
    ranks = ranks or Ranks.alone()
    mine = ranks.together(lambda: _survey(chunks, limit, verbose and ranks.rank == 0), DOING)
    total = None
    for rank, part in enumerate(ranks.gather(mine, DOING)):
        try:
            total = part if total is None else total if part is None else total + part
        except InputError as error:
            raise InputError(f"the shard of rank {rank} does not fit those before it: {error}") from error
    return _check_observed(total)


def enter_survey(estimator, found: StreamScan) -> Table:
    """Make an estimator remember the columns of a survey, as its own check of X and Y would; its sample as a table."""
    estimator._enter(found.sample.X, found.sample.Y)
    columns = found.columns
    if columns.inputs is not None:
        estimator.feature_names_in_ = np.array(columns.inputs, dtype=object)
    if columns.outputs is not None:
        estimator.output_names_ = list(columns.outputs)
    estimator._has_names, estimator._is_flat = columns.outputs is not None, columns.is_flat
    return found.table


def _survey(chunks: Iterable, limit: int, verbose: int) -> StreamScan | None:
    checked, total = Chunks(chunks, verbose=verbose), None
    for table in checked:
        X, Y = table.X, table.Y
        counts = len(X), int(np.isfinite(Y).any(1).sum())
        found = StreamScan(checked.columns, *counts, Moments.of(X), Moments.of(Y), RowSample.of(X, Y, limit))
        total = found if total is None else total + found
    return total if total is None else replace(total, columns=checked.columns)


def _check_observed(found: StreamScan | None) -> StreamScan:
    if found is None or len(found.sample) == 0:
        why = "the chunks have no rows" if found is None else "every entry of Y is missing (NaN)"
        raise InputError(f"there is nothing to learn from: {why}.")
    unobserved = np.flatnonzero(found.outputs.count == 0)
    if len(unobserved):
        column = found.columns.outputs[unobserved[0]] if found.columns.outputs else int(unobserved[0])
        raise InputError(f"nobody observed output {column!r} of Y (all NaN): leave that column out, or add data.")
    return found


SAMPLE_ROWS = 10_000
"""Rows that are kept of a stream, where nobody says how many: to train on, or to take a lengthscale from."""

STREAMING_DOING = "gathering statistics"


def accumulate_rows(
    gp: OperatorValuedGP,
    scaling: Scaling,
    chunks: Iterable,
    ranks: Ranks | None = None,
    verbose: int = 0,
    *,
    found: StreamScan | None = None,
) -> Statistics | OutputStatistics:
    """The statistics of all rows of a table, on every rank, in one pass over this rank's chunks.

    Args:
        gp: a model with a feature map, the same on all ranks.
        scaling: from the units of the chunks to those of the model.
        chunks: pairs (X, Y); see `ovkgp.estimators.common.streaming.Chunks`. A rank may have none.
        ranks: the processes that share the table; None for this one alone.
        verbose: 1 shows progress, on rank 0.
        found: the survey of the same chunks, which they must still answer to.

    Raises:
        InputError: a chunk is bad, or the chunks gave another number of observed entries than when they were surveyed.

    Cost: O(n M²) time for M waves (see `ovkgp.inference.statistics.accumulation`), divided by the number of ranks; memory for a chunk and
    the statistics.

    Example:
        >>> import torch
        >>> from gpytorch.kernels import RBFKernel
        >>> from ovkgp.estimators.common.scaling import Scaling
        >>> from ovkgp.estimators.common.streaming import accumulate_rows
        >>> from ovkgp.features import ORFF
        >>> from ovkgp.inference import OperatorValuedGP
        >>> kernel = RBFKernel(ard_num_dims=1)
        >>> gp = OperatorValuedGP(kernel, features=ORFF(kernel, 20, random_state=0))
        >>> chunks = [(torch.rand(30, 1), torch.rand(30)) for _ in range(3)]
        >>> accumulate_rows(gp, Scaling.none(1, 1), chunks).num_rows
        90
    """
    ranks = ranks or Ranks.alone()
    columns = None if found is None else found.columns
    verbose = verbose and ranks.rank == 0
    mine = ranks.together(lambda: accumulate_statistics(gp, scaling, Chunks(chunks, columns, verbose)), STREAMING_DOING)
    total = all_reduce(mine, ranks)
    if found is not None and not np.array_equal(total.num_observed.numpy(), found.outputs.count):
        raise InputError(
            f"the chunks gave other rows in the second pass ({total.num_observed.tolist()} observed entries of each output) than "
            f"in the first ({found.outputs.count.tolist()}): give a collection that repeats itself."
        )
    return total


def ranks_of(estimator) -> AbstractContextManager[Ranks]:
    """The processes that share the data of an estimator: those of the group where it is `distributed`, or this one alone."""
    return process_group() if estimator.distributed else nullcontext(Ranks.alone())


def shown_parts(table: Table, verbose: int) -> Iterable[Table]:
    """A table in parts that are gathered one by one, with a bar where there are several and `verbose` asks for it."""
    parts = table.parts(CHUNK_ROWS)
    return tqdm(parts, "rows", disable=not verbose or len(parts) < 2)


def accumulate_statistics(
    gp: OperatorValuedGP,
    scaling: Scaling,
    tables: Iterable[Table],
    into: Statistics | OutputStatistics | None = None,
) -> Statistics | OutputStatistics | None:
    """The statistics of tables, checked and in the user's units, added to others; None where there is nothing at all."""
    for table in tables:
        if np.isfinite(table.Y).any():
            into = gp.statistics(*table.scaled(scaling), into=into)
    return into
