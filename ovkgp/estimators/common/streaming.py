"""Fitting tables larger than memory, in chunks and on several processes: two passes and one all-reduce.

`scan` computes counts, moments and a sample of all rows; the estimator is then trained on the sample, on rank 0; `accumulate_rows`
adds up the statistics of all rows over the ranks. One process is a group of one.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from sklearn.base import BaseEstimator
from tqdm import tqdm

from ovkgp.estimators.common.dates import Origins, check_kinds, to_days
from ovkgp.estimators.common.options import check_constraints
from ovkgp.estimators.common.scaling import Moments, Scaling
from ovkgp.estimators.common.validation import (
    Table,
    as_array,
    check_observed,
    input_table,
    output_names,
    output_table,
)
from ovkgp.exceptions import InputError
from ovkgp.inference import OperatorValuedGP, Statistics
from ovkgp.inference.model.row_sample import RowSample
from ovkgp.inference.statistics.distributed import Ranks, all_reduce, process_group
from ovkgp.inference.statistics.statistics import OutputStatistics

CHUNK_ROWS = 1 << 16  # maximum number of rows that are scanned, scaled and accumulated together
SAMPLE_ROWS = 10_000  # default number of rows sampled from a stream
SCAN_LABEL, ACCUMULATE_LABEL = "scanning the data", "accumulating statistics"
"""Names of the two passes in error messages of other ranks."""

Times = tuple[Origins | None, Origins | None]  # origins of the dates of inputs and outputs, None if there are none


class Columns(NamedTuple):
    """Columns that all chunks of a table share; None for unknown names.

    `times` are the origins of dates of inputs and outputs, None if there are no dates.
    """

    num_inputs: int
    num_outputs: int
    inputs: tuple[str, ...] | None
    outputs: tuple[str, ...] | None
    is_flat: bool
    times: Times = (None, None)


class Chunks:
    """Validated pass over the chunks of a table.

    `chunks` are pairs (X, Y): X (k, d) finite, Y (k, p) or (k,), NaN where missing; its attributes `inputs` and `outputs`, if any,
    are the names of the columns. `columns` are those of an earlier pass, which must be the same. Dates become days since the
    earliest date of the first chunk, or since those of `times`.
    """

    def __init__(self, chunks: Iterable, columns: Columns | None = None, verbose: int = 0, times: Times | None = None):
        if not hasattr(chunks, "__iter__"):
            raise InputError(
                f"chunks must be a list of pairs (X, Y) or another re-iterable collection, got {type(chunks).__name__}."
            )
        if iter(chunks) is chunks:
            raise InputError(
                "chunks must be re-iterable (a fit makes two passes). Pass a list or ovkgp.datasets.stream(path, inputs, outputs)."
            )
        self.chunks, self.columns, self.verbose = chunks, columns, verbose
        self._times = times if columns is None else columns.times
        self._validator = _ColumnValidator()

    def __iter__(self) -> Iterator[Table]:
        """Yield tables of at most `CHUNK_ROWS` rows."""
        for number, chunk in enumerate(tqdm(self.chunks, "chunks", disable=not self.verbose)):
            if not isinstance(chunk, tuple | list) or len(chunk) != 2:
                raise InputError(f"chunks must be pairs (X, Y), got a {type(chunk).__name__} as chunk {number}.")
            X, Y = map(as_array, chunk)
            if np.shape(X)[:1] == np.shape(Y)[:1] == (0,):
                continue
            try:
                table = self._checked(X, Y)
            except (TypeError, ValueError) as error:
                # the other lines of scikit-learn's messages are advice for other estimators
                first, *rest = str(error).splitlines()
                listed = " ".join(line for line in rest if line.startswith(("- ", "Feature names")))
                raise InputError(f"Chunk {number}: {first} {listed}".rstrip()) from error
            yield from table.parts(CHUNK_ROWS)

    def _checked(self, X, Y) -> Table:
        X, Y = self._convert_times(X, Y)
        X = input_table(self._validator, X, reset=not hasattr(self._validator, "n_features_in_"))
        Y, outputs, is_flat = output_table(Y, X)
        inputs = getattr(self._validator, "feature_names_in_", None)
        names = self._stated("inputs") or inputs, self._stated("outputs") or outputs
        names = (None if listed is None else tuple(map(str, listed)) for listed in names)
        found = Columns(X.shape[1], Y.shape[1], *names, is_flat, self._times)
        self.columns = found if self.columns is None else merge_columns(self.columns, found)
        return Table(X, Y)

    def _convert_times(self, X, Y) -> tuple:
        """Convert dates to days since those of the first chunk."""
        fitted = self._times or (None, None)
        (X, inputs), (Y, outputs) = to_days(X, fitted[0]), to_days(Y, fitted[1], "Y")
        self._times = self._times or (inputs, outputs)
        for table, name, found, known in ((X, "X", inputs, self._times[0]), (Y, "Y", outputs, self._times[1])):
            if (found or known) and (not found or not known or len(found) == len(known)):
                check_kinds(found, known, output_names(table) or range(len(found or known)), name)
        return X, Y

    def _stated(self, role: str) -> tuple[str, ...] | None:
        """Return the column names that a stream states."""
        names = getattr(self.chunks, role, None)
        is_named = isinstance(names, tuple | list) and all(isinstance(name, str) for name in names)
        return tuple(names) if is_named else None


def merge_columns(first: Columns, second: Columns) -> Columns:
    """Merge the columns of two parts of a table, which must agree."""
    for i, what in enumerate(("inputs", "outputs")):
        if first[i] != second[i]:
            raise InputError(f"All chunks must have the same columns, got {second[i]} {what} after {first[i]}.")
    for what, mine, yours in (("inputs", first.inputs, second.inputs), ("outputs", first.outputs, second.outputs)):
        if mine is not None and yours is not None and mine != yours:
            raise InputError(
                f"All chunks must have the same {what} in the same order, got {list(yours)} after {list(mine)}."
            )
    names = (first.inputs or second.inputs, first.outputs or second.outputs)
    if first.times != second.times:
        raise InputError("All chunks must have dates in the same columns.")
    return Columns(*first[:2], *names, first.is_flat and second.is_flat, first.times)


class _ColumnValidator(BaseEstimator):
    """Stores the columns of the first chunk, as an estimator does."""


@dataclass(frozen=True, eq=False)
class StreamScan:
    """Counts, moments and a sample of the rows of a table; `a + b` is the scan of both together.

    `outputs.count` has the number of observations of each output; the sample has at most about `limit` rows.
    """

    columns: Columns
    num_observed_rows: int
    inputs: Moments
    outputs: Moments
    sample: RowSample

    @property
    def table(self) -> Table:
        """Sample as a table."""
        return Table(self.sample.X, self.sample.Y)

    def __add__(self, other: StreamScan) -> StreamScan:
        return StreamScan(
            merge_columns(self.columns, other.columns),
            self.num_observed_rows + other.num_observed_rows,
            self.inputs + other.inputs,
            self.outputs + other.outputs,
            self.sample + other.sample,
        )


def scan(chunks: Iterable, limit: int, ranks: Ranks | None = None, *, verbose: int = 0) -> StreamScan:
    """Scan this rank's chunks, and merge the scans of all ranks in their order.

    If one rank has an invalid chunk, the others raise a `DistributedError`. Complexity: O(n (d + p)), memory for a chunk and the
    samples of all ranks.
    """
    ranks = ranks or Ranks.single_process()
    times = _first_times(chunks, ranks)
    mine = ranks.run_on_all(lambda: _scan_rank(chunks, limit, verbose and ranks.rank == 0, times), SCAN_LABEL)
    total = None
    for rank, part in enumerate(ranks.gather(mine, SCAN_LABEL)):
        try:
            total = part if total is None else total if part is None else total + part
        except InputError as error:
            raise InputError(f"The shard of rank {rank} does not match those before it: {error}") from error
    if total is None or len(total.sample) == 0:
        reason = "chunks have no rows" if total is None else "every entry of Y is missing (NaN)"
        raise InputError(f"There are no observations: {reason}.")
    check_observed(total.outputs.count, total.columns.outputs)
    return total


def _first_times(chunks: Iterable, ranks: Ranks) -> Times | None:
    """Return the origins of dates of the first chunk of all ranks; None if there is one rank, which finds them on its way."""
    if ranks.size == 1:
        return None

    def read() -> Times | None:
        checked = Chunks(chunks)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the pass that follows warns
            next(iter(checked), None)
        return None if checked.columns is None else checked.columns.times

    found = ranks.gather(ranks.run_on_all(read, SCAN_LABEL), SCAN_LABEL)
    return next((times for times in found if times is not None), None)


def store_columns(estimator, found: StreamScan) -> Table:
    """Store the columns of a scan in an estimator, as its own validation of X and Y does; return the sample."""
    estimator._enter(found.sample.X, found.sample.Y)
    columns = found.columns
    if columns.inputs is not None:
        estimator.feature_names_in_ = np.array(columns.inputs, dtype=object)
    if columns.outputs is not None:
        estimator.output_names_ = list(columns.outputs)
    for name, times in zip(("input_times_", "output_times_"), columns.times, strict=True):
        if times is not None:
            setattr(estimator, name, times)
    estimator._has_names, estimator._is_flat = columns.outputs is not None, columns.is_flat
    return found.table


def _scan_rank(chunks: Iterable, limit: int, verbose: int, times: Times | None = None) -> StreamScan | None:
    checked, total = Chunks(chunks, verbose=verbose, times=times), None
    for table in checked:
        X, Y, num_observed = table.X, table.Y, int(np.isfinite(table.Y).any(1).sum())
        sample = RowSample.from_table(X, Y, limit)
        found = StreamScan(checked.columns, num_observed, Moments.of(X), Moments.of(Y), sample)
        total = found if total is None else total + found
    return total if total is None else replace(total, columns=checked.columns)


def accumulate_rows(
    gp: OperatorValuedGP,
    scaling: Scaling,
    chunks: Iterable,
    ranks: Ranks | None = None,
    verbose: int = 0,
    *,
    found: StreamScan | None = None,
) -> Statistics | OutputStatistics:
    """Accumulate the statistics of all rows of a table in one pass over each rank's chunks; every rank gets the total.

    `found` is the scan of the same chunks, which must repeat themselves. Complexity: O(n M²) for M scalar features, divided by the
    number of ranks; memory for a chunk and the statistics.
    """
    ranks = ranks or Ranks.single_process()
    columns, verbose = None if found is None else found.columns, verbose and ranks.rank == 0
    accumulate = lambda: accumulate_statistics(gp, scaling, Chunks(chunks, columns, verbose))  # noqa: E731
    total = all_reduce(ranks.run_on_all(accumulate, ACCUMULATE_LABEL), ranks)
    if found is not None and not np.array_equal(total.num_observed.numpy(), found.outputs.count):
        raise InputError(
            f"chunks must be the same in both passes, got {total.num_observed.tolist()} observed entries per output after {found.outputs.count.tolist()}."
        )
    return total


def is_distributed(estimator) -> bool:
    """Check the option `distributed` and return it."""
    check_constraints({"distributed": estimator.distributed}, {"distributed": ["boolean"]})
    return bool(estimator.distributed)


def ranks_of(estimator) -> AbstractContextManager[Ranks]:
    """Return the processes that share the data of an estimator, or this one alone."""
    return process_group() if estimator.distributed else nullcontext(Ranks.single_process())


def shown_parts(table: Table, verbose: int) -> Iterable[Table]:
    """Split a table into parts, with a progress bar if there are several and `verbose` is set."""
    parts = table.parts(CHUNK_ROWS)
    return tqdm(parts, "rows", disable=not verbose or len(parts) < 2)


def accumulate_statistics(
    gp: OperatorValuedGP, scaling: Scaling, tables: Iterable[Table], into: Statistics | OutputStatistics | None = None
) -> Statistics | OutputStatistics | None:
    """Add the statistics of validated tables in original units to `into`; None if there are no observations at all."""
    for table in tables:
        if np.isfinite(table.Y).any():
            into = gp.statistics(*table.scaled(scaling), into=into)
    return into
