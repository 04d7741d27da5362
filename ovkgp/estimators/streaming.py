"""Tables larger than memory, in chunks and on several machines: two passes and one all-reduce.

    survey            counts, moments and a sample of all rows (`ovkgp.estimators.survey`)
    (learning)        scaling from the moments, hyperparameters from the sample: once, on rank 0
    gather_statistics the statistics of each rank's rows, added over the ranks (`ovkgp.inference.reduced_statistics`)

Nothing here knows which estimator it serves; one process is a group of one.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext

import numpy as np
from tqdm import tqdm

from ovkgp.estimators.chunks import ROWS_AT_ONCE, Chunks
from ovkgp.estimators.learning import Table
from ovkgp.estimators.scaling import Scaling
from ovkgp.estimators.survey import Survey, enter_survey, survey
from ovkgp.exceptions import InputError
from ovkgp.inference import OperatorValuedGP, Statistics
from ovkgp.inference.distributed import Ranks, process_group
from ovkgp.inference.output_statistics import OutputStatistics
from ovkgp.inference.reduced_statistics import all_reduce

__all__ = ["Survey", "enter_survey", "gather_statistics", "pour", "ranks_of", "shown_parts", "survey"]

SAMPLE_ROWS = 10_000
"""Rows that are kept of a stream, where nobody says how many: to train on, or to take a lengthscale from."""

DOING = "gathering statistics"


def gather_statistics(
    gp: OperatorValuedGP,
    scaling: Scaling,
    chunks: Iterable,
    ranks: Ranks | None = None,
    verbose: int = 0,
    *,
    found: Survey | None = None,
) -> Statistics | OutputStatistics:
    """The statistics of all rows of a table, on every rank, in one pass over this rank's chunks.

    Args:
        gp: a model with a feature map, the same on all ranks.
        scaling: from the units of the chunks to those of the model.
        chunks: pairs (X, Y); see `ovkgp.estimators.chunks.Chunks`. A rank may have none.
        ranks: the processes that share the table; None for this one alone.
        verbose: 1 shows progress, on rank 0.
        found: the survey of the same chunks, which they must still answer to.

    Raises:
        InputError: a chunk is bad, or the chunks gave another number of observed entries than when they were surveyed.

    Cost: O(n M²) time for M waves (see `ovkgp.inference.gathering`), divided by the number of ranks; memory for a chunk and
    the statistics.

    Example:
        >>> import torch
        >>> from gpytorch.kernels import RBFKernel
        >>> from ovkgp.estimators.scaling import Scaling
        >>> from ovkgp.estimators.streaming import gather_statistics
        >>> from ovkgp.features import ORFF
        >>> from ovkgp.inference import OperatorValuedGP
        >>> kernel = RBFKernel(ard_num_dims=1)
        >>> gp = OperatorValuedGP(kernel, features=ORFF(kernel, 20, random_state=0))
        >>> chunks = [(torch.rand(30, 1), torch.rand(30)) for _ in range(3)]
        >>> gather_statistics(gp, Scaling.none(1, 1), chunks).num_rows
        90
    """
    ranks = ranks or Ranks.alone()
    columns = None if found is None else found.columns
    verbose = verbose and ranks.rank == 0
    mine = ranks.together(lambda: pour(gp, scaling, Chunks(chunks, columns, verbose)), DOING)
    total = all_reduce(mine, ranks)
    if found is not None and not np.array_equal(total.num_seen.numpy(), found.outputs.count):
        raise InputError(
            f"the chunks gave other rows in the second pass ({total.num_seen.tolist()} observed entries of each output) than "
            f"in the first ({found.outputs.count.tolist()}): give a collection that repeats itself."
        )
    return total


def ranks_of(estimator) -> AbstractContextManager[Ranks]:
    """The processes that share the data of an estimator: those of the group where it is `distributed`, or this one alone."""
    return process_group() if estimator.distributed else nullcontext(Ranks.alone())


def shown_parts(table: Table, verbose: int) -> Iterable[Table]:
    """A table in parts that are gathered one by one, with a bar where there are several and `verbose` asks for it."""
    parts = table.parts(ROWS_AT_ONCE)
    return tqdm(parts, "rows", disable=not verbose or len(parts) < 2)


def pour(
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
