"""The first pass over a table that may be larger than memory, and cut into shards: what it looks like.

Counts, moments and a sample of the rows merge over chunks and over ranks (`Moments`, `RowSample`). The sample, and the model
that is trained on it, do not depend on how the table was cut.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from ovkgp.estimators.chunks import Chunks, Columns, one_table
from ovkgp.estimators.learning import Table
from ovkgp.estimators.moments import Moments
from ovkgp.estimators.row_sample import RowSample
from ovkgp.exceptions import InputError
from ovkgp.inference.distributed import Ranks

DOING = "surveying the data"


@dataclass(frozen=True, eq=False)
class Survey:
    """What one pass tells of a table; `a + b` is the survey of both together.

    Args:
        columns: how many inputs and outputs there are, and their names.
        num_rows: how many rows there are.
        num_seen_rows: in how many of them something was observed.
        inputs, outputs: their moments; `outputs.count` says how often each output was observed.
        sample: at most about `limit` rows.

    Cost of `a + b`: that of merging the samples.

    Example:
        See `survey`.
    """

    columns: Columns
    num_rows: int
    num_seen_rows: int
    inputs: Moments
    outputs: Moments
    sample: RowSample

    @property
    def table(self) -> Table:
        """The sample, as a table."""
        return Table(self.sample.X, self.sample.Y)

    def __add__(self, other: Survey) -> Survey:
        return Survey(
            one_table(self.columns, other.columns),
            self.num_rows + other.num_rows,
            self.num_seen_rows + other.num_seen_rows,
            self.inputs + other.inputs,
            self.outputs + other.outputs,
            self.sample + other.sample,
        )


def survey(chunks: Iterable, limit: int, ranks: Ranks | None = None, *, verbose: int = 0) -> Survey:
    """One pass over this rank's chunks, merged over the ranks in their order.

    Args:
        chunks: pairs (X, Y); see `ovkgp.estimators.chunks.Chunks`. A rank may have none.
        limit: rows of the sample, at most, beside those for rarely observed outputs.
        ranks: the processes that share the table; None for this one alone.
        verbose: 1 shows progress.

    Raises:
        InputError: a chunk is bad, there are no rows at all, or nobody observed some output. Where one rank has a bad chunk
            the others raise a `DistributedError`.

    Cost: O(n (d + p)) time, memory for a chunk and the samples of all ranks.

    Example:
        >>> import numpy as np
        >>> from ovkgp.estimators.survey import survey
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
    return _require_seen(total)


def enter_survey(estimator, found: Survey) -> Table:
    """Make an estimator remember the columns of a survey, as its own check of X and Y would; its sample as a table."""
    estimator._enter(found.sample.X, found.sample.Y)
    columns = found.columns
    if columns.inputs is not None:
        estimator.feature_names_in_ = np.array(columns.inputs, dtype=object)
    if columns.outputs is not None:
        estimator.output_names_ = list(columns.outputs)
    estimator._has_names, estimator._is_flat = columns.outputs is not None, columns.is_flat
    return found.table


def _survey(chunks: Iterable, limit: int, verbose: int) -> Survey | None:
    checked, total = Chunks(chunks, verbose=verbose), None
    for table in checked:
        X, Y = table.X, table.Y
        counts = len(X), int(np.isfinite(Y).any(1).sum())
        found = Survey(checked.columns, *counts, Moments.of(X), Moments.of(Y), RowSample.of(X, Y, limit))
        total = found if total is None else total + found
    return total if total is None else replace(total, columns=checked.columns)


def _require_seen(found: Survey | None) -> Survey:
    if found is None or len(found.sample) == 0:
        why = "the chunks have no rows" if found is None else "every entry of Y is missing (NaN)"
        raise InputError(f"there is nothing to learn from: {why}.")
    unseen = np.flatnonzero(found.outputs.count == 0)
    if len(unseen):
        column = found.columns.outputs[unseen[0]] if found.columns.outputs else int(unseen[0])
        raise InputError(f"nobody observed output {column!r} of Y (all NaN): leave that column out, or add data.")
    return found
