"""Tables that are written a chunk at a time, to CSV, TSV or Parquet, whole or not at all.

The rows go to a file beside the one that was asked for, which takes its name when all of them are there.
"""

from __future__ import annotations

import csv
import io
import os
import secrets
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Protocol

import numpy as np

from ovkgp.cli.errors import note
from ovkgp.datasets import TableStream
from ovkgp.datasets.text_tables import TextTable
from ovkgp.exceptions import InputError, OptionError


def as_labels(values: list) -> np.ndarray:
    """Labels (n,): numbers where all texts are such, written as Python writes them, else as they are.

    Example:
        >>> as_labels(["1", "0"]).tolist(), as_labels(["yes", "1"]).tolist(), as_labels(["007", "010"]).tolist()
        ([1, 0], ['yes', '1'], ['007', '010'])
    """
    for kind in (int, float):
        try:
            numbers = [kind(value) for value in values]
        except ValueError:
            continue
        if [str(number) for number in numbers] == values:
            return np.array(numbers)
    return np.array(values)


def in_order(labels: Sequence[str]) -> list[str]:
    """The distinct labels, sorted: by size where all are numbers, else by the alphabet.

    Example:
        >>> in_order(["10", "9", "9"]), in_order(["b", "10", "a"])
        (['9', '10'], ['10', 'a', 'b'])
    """
    distinct = sorted(set(labels))
    try:
        return sorted(distinct, key=float)
    except ValueError:
        return distinct


if TYPE_CHECKING:
    import pandas as pd

TARGETS = {
    "InfiniteOneClassSVM": "none",
    "InfiniteQuantileRegressor": "one",
    "InfiniteCostSensitiveClassifier": "label",
    "SimplexClassifier": "label",
}
"""What Y is, by the name of the estimator; of all others it is "many" columns."""
SHOWN = 32 * 2**20
"""Bytes of a file from which reading it shows progress."""


def target_of(estimator: str) -> str:
    """ "many", "one", "label" or "none": what an estimator learns.

    Example:
        >>> target_of("GPRegressor"), target_of("InfiniteOneClassSVM")
        ('many', 'none')
    """
    return TARGETS.get(estimator, "many")


@dataclass(frozen=True)
class TableFile:
    """A file, and which of its columns mean what.

    Args:
        path: of a CSV, TSV or Parquet file.
        inputs: the names of the inputs.
        outputs: the names of the outputs; None where there are none.
        task: the column with the labels of a long table, or None.
        strict: stop at the first bad row; else leave such rows out, with a note.
        separator: of a text table.
        verbose: 1 shows progress.
    """

    path: Path
    inputs: tuple[str, ...]
    outputs: tuple[str, ...] | None
    task: str | None = None
    strict: bool = True
    separator: str = ","
    verbose: int = 0

    def stream(self) -> TableStream:
        """Its chunks of numbers."""
        return open_stream(self.path, self.inputs, self.outputs, self.strict, self.separator, self.verbose)

    def look(self, target: str) -> None:
        """See that the file is there and has the columns, without reading its rows."""
        text = self.task or (self.outputs[0] if target == "label" else None)
        if text is None:
            self.stream()
        else:
            self._text_table(self.outputs if self.task else None, text).look()

    def check_target(self, target: str, who: str) -> None:
        """Refuse outputs that an estimator does not learn; `who` is what it is called."""
        count = 0 if self.outputs is None else len(self.outputs)
        if target == "none" and (count or self.task):
            raise OptionError(f"{who} learns from inputs alone: leave --outputs and --task out.")
        if target != "none" and not count:
            raise OptionError(f"{who} needs outputs: name their columns with --outputs.")
        if target in ("one", "label") and (count > 1 or self.task):
            raise OptionError(
                f"{who} takes one output column: name one with --outputs, and no --task; fit one model each."
            )
        if self.task and count > 1:
            raise OptionError(f"--task goes with one column of values, but --outputs names {count}: name one.")

    def read(self, target: str) -> tuple[pd.DataFrame, pd.DataFrame | pd.Series | None]:
        """X (n, d) and what there is to learn: Y (n, p), y (n,), or None."""
        if self.task:
            return self._read_long()
        if target == "label":
            return self._read_labels()
        X, Y = self._read_numbers()
        if target == "none":
            return X, None
        return _observed_rows(X, Y.iloc[:, 0]) if target == "one" else (X, Y)

    def _read_numbers(self) -> tuple[pd.DataFrame, pd.DataFrame]:
        rows = self.stream()
        parts = list(rows)
        X, Y = (np.concatenate(part) for part in zip(*parts, strict=True))
        return _frame(X, rows.inputs), _frame(Y, rows.outputs)

    def _read_labels(self) -> tuple[pd.DataFrame, pd.Series]:
        import pandas as pd

        X, _, labels = self._read_texts(None, self.outputs[0])
        labels = as_labels(labels)
        if labels.dtype.kind == "f" and (labels != np.round(labels)).any():
            raise InputError(
                f"'{self.outputs[0]}' holds numbers such as {labels[0]:g}, and no classes: name another column."
            )
        return _frame(X, self.inputs), pd.Series(labels, name=self.outputs[0])

    def _read_long(self) -> tuple[pd.DataFrame, pd.DataFrame]:
        from ovkgp import to_wide

        x, y, labels = self._read_texts(self.outputs, self.task)
        labels = [str(label) for label in labels]
        tasks = in_order(labels)
        X, Y = to_wide(x, labels, y[:, 0], tasks=tasks)
        if not len(X):
            raise InputError(f"'{self.path}' has no observed value in column '{self.outputs[0]}'.")
        return _frame(X, self.inputs), _frame(Y, tasks)

    def _read_texts(self, outputs: Sequence[str] | None, label: str) -> tuple[np.ndarray, np.ndarray, list]:
        """X, Y and the labels of a column."""
        X, Y, texts = zip(*self._text_table(outputs, label), strict=True)
        return np.concatenate(X), np.concatenate(Y), [value for chunk in texts for value in chunk[label].to_pylist()]

    def _text_table(self, outputs: Sequence[str] | None, label: str) -> TextTable:
        return TextTable(self.path, self.inputs, outputs, [label], self.strict, self.separator)


def open_stream(path: Path, inputs, outputs, strict: bool, separator: str, verbose: int, **options) -> TableStream:
    """Chunks of numbers; progress is shown for files that take a while."""
    verbose = int(verbose and path.is_file() and path.stat().st_size > SHOWN)
    bad = "error" if strict else "warn"
    return TableStream(path, inputs, outputs, bad=bad, separator=separator, verbose=verbose, **options)


def _observed_rows(X: pd.DataFrame, y: pd.Series) -> tuple[pd.DataFrame, pd.Series]:
    """The rows whose one output was observed; the others have nothing to say."""
    observed = y.notna().to_numpy()
    if not observed.any():
        raise InputError(f"nobody observed output '{y.name}': leave that column out, or add data.")
    if not observed.all():
        note(f"{(~observed).sum()} of {len(y)} rows are left out, where '{y.name}' is missing.")
    return X[observed].reset_index(drop=True), y[observed].reset_index(drop=True)


def _frame(values: np.ndarray, names: Sequence[str]) -> pd.DataFrame:
    import pandas as pd

    return pd.DataFrame(values, columns=list(names))


if TYPE_CHECKING:
    import pyarrow as pa

DELIMITERS = {".csv": ",", ".tsv": "\t"}
PARQUET = (".parquet", ".pq")
SUFFIXES = (*DELIMITERS, *PARQUET)
"""Endings of files that can be written."""


class TableWriter(Protocol):
    """What takes the chunks of a table."""

    def write_table(self, table: pa.Table) -> None:
        """Add the rows of a table."""


@contextmanager
def table_file(path: Path, schema: pa.Schema) -> Iterator[TableWriter]:
    """A writer of tables of one schema; the file is there when the context ends well.

    Args:
        path: with one of the endings `SUFFIXES`; a file of this name is replaced.
        schema: names and types of the columns.

    Cost: memory for the chunk that is written.

    Example:
        >>> import tempfile
        >>> import pyarrow as pa
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder) / "table.csv"
        ...     table = pa.table({"x": [1.0, 0.5], "name": ["a", "b"]})
        ...     with table_file(path, table.schema) as writer:
        ...         writer.write_table(table)
        ...     print(path.read_text())
        x,name
        1,a
        0.5,b
        <BLANKLINE>
    """
    target = Path(os.path.realpath(path))  # of a link, the file behind it
    unfinished = target.with_name(f".{target.name}.{secrets.token_hex(8)}.part")
    try:
        with open(unfinished, "xb") as file, _writer(file, path.suffix.lower(), schema) as writer:
            yield writer
        os.replace(unfinished, target)
    finally:
        unfinished.unlink(missing_ok=True)


class _CsvWriter:
    """Rows as text; the texts of a chunk have quotes, all of them, only where one of them needs them."""

    def __init__(self, file: BinaryIO, names: list[str], delimiter: str):
        self.file, self.delimiter = file, delimiter
        line = io.StringIO()
        csv.writer(line, delimiter=delimiter, lineterminator="\n").writerow(names)
        file.write(line.getvalue().encode("utf-8"))

    def write_table(self, table: pa.Table) -> None:
        import pyarrow as pa

        try:
            self.file.write(self._text(table, "none"))
        except pa.ArrowInvalid:  # a text holds a quote, a line end or the delimiter
            self.file.write(self._text(table, "needed"))

    def _text(self, table: pa.Table, quoting: str) -> pa.Buffer:
        import pyarrow as pa
        from pyarrow.csv import WriteOptions, write_csv

        sink = pa.BufferOutputStream()
        options = WriteOptions(include_header=False, delimiter=self.delimiter, quoting_style=quoting)
        write_csv(table, sink, options)
        return sink.getvalue()


def _writer(file: BinaryIO, suffix: str, schema: pa.Schema) -> AbstractContextManager[TableWriter]:
    if suffix in PARQUET:
        from pyarrow import parquet

        return parquet.ParquetWriter(file, schema)
    return nullcontext(_CsvWriter(file, schema.names, DELIMITERS[suffix]))
