"""Data for a report: the columns that a model was fitted with, from a file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ovkgp.cli.arguments import names
from ovkgp.cli.prediction_columns import PredictionRequest, answers
from ovkgp.cli.tables import TableFile, open_stream, table_file, target_of
from ovkgp.datasets.text_tables import CHUNK, TextChunk, TextTable
from ovkgp.exceptions import InputError, OptionError

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class InputFile:
    """A table of inputs.

    Args:
        path: of a CSV, TSV or Parquet file.
        inputs: the names of the inputs, as typed; None for those that the model knows.
        keep: other columns to carry along.
        strict: stop at the first row that cannot be read; else such rows are left out, with a note.
        separator: of a text table.
        verbose: 1 shows progress.
    """

    path: Path
    inputs: str | None = None
    keep: tuple[str, ...] = ()
    strict: bool = True
    separator: str = ","
    verbose: int = 0

    def chunks(self, inputs: Sequence[str]) -> Iterator[TextChunk]:
        """X (k, d) with the columns to keep, k ≤ 8192."""
        keep = [name for name in self.keep if name not in inputs]
        if keep:
            yield from TextTable(self.path, inputs, None, keep, self.strict, self.separator, required=False)
            return
        for X, Y in open_stream(self.path, inputs, None, self.strict, self.separator, self.verbose, chunk=CHUNK):
            yield TextChunk(X, Y, {})


def input_names(estimator, typed: str | None) -> tuple[str, ...]:
    """The columns that a model takes: those it was fitted with, or those that were typed where it knows none."""
    known = getattr(estimator, "feature_names_in_", None)
    count = estimator.n_features_in_
    if known is not None:
        inputs = tuple(map(str, known))
        if typed is not None and names(typed) != inputs:
            raise OptionError(
                f"the model takes the inputs {', '.join(inputs)}: leave --inputs out, or rename the columns."
            )
        return inputs
    if typed is None:
        raise OptionError(f"the model was fitted without names: name its {count} input columns with --inputs.")
    inputs = names(typed)
    if len(inputs) != count:
        raise OptionError(f"the model takes {count} inputs, but --inputs names {len(inputs)}: {typed}.")
    return inputs


def predict_file(estimator, source: InputFile, out: Path, question: PredictionRequest) -> int:
    """Write the predictions for a table of inputs, and return how many rows there are.

    Cost: memory for a chunk of 8192 rows, whatever the size of the table.
    """
    inputs, count = input_names(estimator, source.inputs), 0
    chunks = (answer_table(estimator, inputs, chunk, question) for chunk in source.chunks(inputs))
    first = next(chunks)
    with table_file(out, first.schema) as writer:
        for table in chain([first], chunks):
            writer.write_table(table)
            count += len(table)
    return count


def answer_table(estimator, inputs: Sequence[str], chunk: TextChunk, question: PredictionRequest) -> pa.Table:
    """The kept columns, the inputs and the answers of a chunk."""
    import pandas as pd
    import pyarrow as pa

    is_named = hasattr(estimator, "feature_names_in_")
    found = answers(estimator, pd.DataFrame(chunk.X, columns=list(inputs)) if is_named else chunk.X, question)
    columns = [*chunk.texts.items(), *zip(inputs, chunk.X.T, strict=True), *found.items()]
    names = [name for name, _ in columns]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise InputError(f"the table would have two columns '{twice[0]}': rename the one in the data.")
    return pa.table(
        {name: pa.array(np.ascontiguousarray(v)) if isinstance(v, np.ndarray) else v for name, v in columns}
    )


if TYPE_CHECKING:
    import pandas as pd
    from sklearn.base import BaseEstimator


def read_known(
    estimator: BaseEstimator,
    path: Path,
    inputs: str | None,
    outputs: tuple[str, ...] | None,
    task: str | None,
    strict: bool,
    separator: str,
) -> tuple[pd.DataFrame, pd.DataFrame | pd.Series | None]:
    """X and Y as a fitted model knows them.

    Args:
        estimator: the model, whose names are taken where none were typed.
        path: the file.
        inputs, outputs, task: as typed, or None.
        strict, separator: as for `TableFile`.
    """
    target = target_of(type(estimator).__name__)
    if outputs is None and target != "none":
        if task is not None:
            raise OptionError("--task goes with the column of values: name it with --outputs.")
        outputs = tuple(estimator.output_names_)
    table = TableFile(path, input_names(estimator, inputs), outputs, task, strict, separator)
    table.check_target(target, type(estimator).__name__)
    X, Y = table.read(target)
    if task is not None:
        Y = _all_tasks(Y, estimator.output_names_, path)
    return X, Y


def _all_tasks(Y: pd.DataFrame, known: list[str], path: Path) -> pd.DataFrame:
    """The outputs in the order of the model; those that the file does not speak of are missing."""
    unknown = [name for name in Y.columns if name not in known]
    if unknown:
        raise InputError(f"'{path}' has the task '{unknown[0]}', and the model knows {', '.join(known)}: leave it out.")
    return Y.reindex(columns=list(known))
