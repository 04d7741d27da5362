"""Tables of the commands: reading what a model learns from, grids of inputs, and writing predictions chunk by chunk."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

import numpy as np

from ovkgp.cli.arguments import parse_names
from ovkgp.cli.curve_grids import expand_columns
from ovkgp.cli.errors import print_note
from ovkgp.datasets.columns import BadRowLog, Columns
from ovkgp.datasets.csv_tables import CsvTable
from ovkgp.datasets.parquet_tables import ParquetTable
from ovkgp.datasets.streams import TableStream, open_table, skip_first_row
from ovkgp.exceptions import InputError, OptionError
from ovkgp.files import replace_file

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

MIN_PROGRESS_BYTES = 32 * 2**20  # file size above which reading shows progress
DELIMITERS = {".csv": ",", ".tsv": "\t"}
PARQUET_SUFFIXES = (".parquet", ".pq")
WRITABLE_SUFFIXES = (*DELIMITERS, *PARQUET_SUFFIXES)
CHUNK_ROWS = 8192  # maximum number of rows that are predicted together
MAX_GRID_ROWS = 100_000_000
DATE = re.compile(r"\d{4}-\d{2}-\d{2}")
AXIS_HELP = "NAME=first:last:number or NAME=value, such as east=0:100:50,north=20"


class TextChunk(NamedTuple):
    """X (k, d), Y (k, p) and, by name, pyarrow arrays of k texts."""

    X: np.ndarray | pd.DataFrame
    Y: np.ndarray | pd.DataFrame
    texts: dict


@dataclass(frozen=True)
class TableFile:
    """CSV, TSV or Parquet file with the roles of its columns.

    `outputs` is None if there are none, `task` is the column that names the output in a long table. If `strict`, reading
    stops at the first bad row, else bad rows are skipped with a note. With `has_grid_row`, the first row holds the points of the
    outputs of a curve, not data.
    """

    path: Path
    inputs: tuple[str, ...]
    outputs: tuple[str, ...] | None
    task: str | None = None
    strict: bool = True
    separator: str = ","
    verbose: int = 0
    has_grid_row: bool = False

    def expand_patterns(self, others: Sequence[str | None] = ()) -> TableFile:
        """Replace patterns such as 'y_*' by the columns that match them; those of `others` are not matched."""
        inputs, outputs = expand_columns(self.path, self.separator, self.inputs, self.outputs, (self.task, *others))
        return replace(self, inputs=inputs, outputs=outputs)

    def read_grid_row(self) -> np.ndarray:
        """Read the grid (p,) in the first row of a text table, whose inputs are empty."""
        table = open_table(self.path, Columns.from_names(self.inputs, self.outputs), self.separator)
        numbers, d = np.array(skip_first_row(table)[0]), len(self.inputs)
        if not np.isnan(numbers[:d]).all():
            raise InputError(
                f"The first row of '{self.path}' must have empty inputs if it holds the grid. Remove --grid row, or add the row."
            )
        return numbers[d:]

    def stream(self, chunk_rows: int = 65536) -> TableStream:
        """Open the table as chunks of numbers; only large files show progress."""
        is_large = self.path.is_file() and self.path.stat().st_size > MIN_PROGRESS_BYTES
        options = {"separator": self.separator, "verbose": int(self.verbose and is_large)}
        on_bad_rows = "error" if self.strict else "warn"
        rows = TableStream(self.path, self.inputs, self.outputs, chunk_rows, on_bad_rows=on_bad_rows, **options)
        return rows.skip_first_row() if self.has_grid_row else rows

    def chunks(self, keep: Sequence[str]) -> Iterator[TextChunk]:
        """Yield chunks of at most `CHUNK_ROWS` rows, with the texts of the columns `keep`."""
        if keep:
            yield from self.read_texts(keep, required=False)
        else:
            yield from (TextChunk(X, Y, {}) for X, Y in self.stream(CHUNK_ROWS))

    def check_columns(self, kind: str) -> None:
        """Check that the file exists and has the columns, without reading its rows."""
        text = self.task or (self.outputs[0] if kind == "labels" else None)
        if text is None:
            self.stream()
        else:
            self.open_texts([text], has_values=bool(self.task))

    def check_target(self, kind: str, model: str) -> None:
        """Check that the outputs are what estimators of a kind learn; `model` is a description for messages."""
        count = 0 if self.outputs is None else len(self.outputs)
        if kind == "none" and (count or self.task):
            raise OptionError(f"{model} learns from inputs alone. Remove --outputs and --task.")
        if kind != "none" and not count:
            raise OptionError(f"{model} needs outputs. Name their columns with --outputs.")
        if kind in ("target", "labels") and (count > 1 or self.task):
            raise OptionError(f"{model} takes one output column. Name one with --outputs, without --task, in each fit.")
        if kind == "series" and self.task:
            raise OptionError(
                f"{model} does not support --task. Use one column per series, and the dates as the first of --inputs."
            )
        if self.task and count > 1:
            raise OptionError(f"--task needs one column of values, but --outputs names {count}. Name one.")

    def read(self, kind: str) -> tuple[pd.DataFrame, pd.DataFrame | pd.Series | None]:
        """Read X (n, d) and what estimators of a kind learn: Y (n, p), y (n,), or None."""
        if self.task:
            return self._read_long()
        if kind == "labels":
            return self._read_labels()
        rows = self.stream()
        X, Y = (
            _concatenate(parts, names)
            for parts, names in zip(zip(*rows, strict=True), (rows.inputs, rows.outputs), strict=True)
        )
        if kind == "none":
            return X, None
        return _keep_observed(X, Y.iloc[:, 0]) if kind == "target" else (X, Y)

    def read_groups(self, column: str) -> tuple[pd.DataFrame, pd.DataFrame, np.ndarray]:
        """Read X (n, d), Y (n, p) of a wide table and the labels (n,) of a column."""
        X, Y, labels = self._read_labeled(column, has_values=True)
        return X, Y, np.array([str(label) for label in labels])

    def read_columns(self, columns: Sequence[str]) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
        """Read X (n, d), Y (n, p) of a wide table and other columns as texts, None where empty."""
        import pandas as pd

        chunks = list(self.read_texts(columns, required=False, has_values=True))
        X, Y = (
            _concatenate(tuple(part), names)
            for part, names in (([c.X for c in chunks], self.inputs), ([c.Y for c in chunks], self.outputs))
        )
        texts = {
            name: [value or None for chunk in chunks for value in chunk.texts[name].to_pylist()] for name in columns
        }
        return X, Y, pd.DataFrame(texts)

    def _read_labels(self) -> tuple[pd.DataFrame, pd.Series]:
        import pandas as pd

        X, _, labels = self._read_labeled(self.outputs[0])
        labels = parse_labels(labels)
        if labels.dtype.kind == "f" and (labels != np.round(labels)).any():
            raise InputError(
                f"Column '{self.outputs[0]}' must hold class labels, got numbers such as {labels[0]:g}. Name another column."
            )
        return X, pd.Series(labels, name=self.outputs[0])

    def _read_long(self) -> tuple[pd.DataFrame, pd.DataFrame]:
        from ovkgp import to_wide

        x, y, labels = self._read_labeled(self.task, has_values=True)
        labels = [str(label) for label in labels]
        tasks = sort_labels(labels)
        times = x.select_dtypes(["datetime", "datetimetz", "timedelta"]).dtypes
        x = x.astype(dict.fromkeys(times.index, np.int64))  # microseconds, which float64 holds exactly
        X, Y = to_wide(x.to_numpy(np.float64), labels, y.to_numpy(np.float64)[:, 0], tasks=tasks)
        if not len(X):
            raise InputError(f"'{self.path}' has no observed values in column '{self.outputs[0]}'.")
        X = _make_frame(X, self.inputs)
        return X.astype(dict.fromkeys(times.index, np.int64)).astype(times.to_dict()), _make_frame(Y, tasks)

    def _read_labeled(self, label: str, has_values: bool = False) -> tuple[pd.DataFrame, pd.DataFrame, list]:
        """Read X, Y if outputs are numbers (`has_values`), and the labels of a column."""
        X, Y, texts = zip(*self.read_texts([label], has_values=has_values), strict=True)
        X, Y = _concatenate(X, self.inputs), _concatenate(Y, self.outputs if has_values else ())
        return X, Y, [value for chunk in texts for value in chunk[label].to_pylist()]

    def open_texts(
        self, texts: Sequence[str], required: bool = True, has_values: bool = False
    ) -> CsvTable | ParquetTable:
        """Open the inputs, and the outputs if `has_values`, with columns of texts, not missing if `required`."""
        columns = Columns.from_names(self.inputs, self.outputs if has_values else None)
        table = open_table(self.path, columns, self.separator, Columns.from_names(texts, None).names, required)
        return skip_first_row(table)[1] if self.has_grid_row else table

    def read_texts(self, texts: Sequence[str], required: bool = True, has_values: bool = False) -> Iterator[TextChunk]:
        """Read what `open_texts` opens in chunks of at most `CHUNK_ROWS` rows."""
        table = self.open_texts(texts, required, has_values)
        log = BadRowLog(f"'{table.snapshot.path}'", table.columns, table.unit, self.strict)
        for rows, columns in table.read_tables((0, 1), log, 0):
            for start in range(0, len(rows), CHUNK_ROWS):  # estimators reject a table without rows
                chunk = {name: cells.slice(start, CHUNK_ROWS) for name, cells in zip(texts, columns, strict=True)}
                yield TextChunk(*log.accept(rows[start : start + CHUNK_ROWS]), chunk)
        if log.num_rows == 0:
            raise InputError(f"{log.source} has no usable rows{log.report().first_reasons()}.")
        log.warn(stacklevel=2)


@dataclass(frozen=True)
class InputGrid:
    """All combinations of the points of each input, in the order of a table whose last input varies fastest."""

    names: tuple[str, ...]
    axes: tuple[pd.Index, ...]

    @classmethod
    def parse(cls, text: str, names: Sequence[str]) -> InputGrid:
        """Parse the points of each of the inputs `names`."""
        axes = {}
        for part in parse_names(text):
            name, equals, points = part.rpartition("=")
            name = name.strip()
            if not equals or name not in names:
                raise OptionError(
                    f"--grid must be {AXIS_HELP} for each of the inputs {', '.join(names)}, got {part!r}."
                )
            if name in axes:
                raise OptionError(f"--grid has two ranges of the input {name!r}. Give one.")
            axes[name] = _parse_axis(name, points.strip())
        if missing := [name for name in names if name not in axes]:
            raise OptionError(f"--grid has no points of the input {missing[0]!r}. Add {missing[0]}=value.")
        count = math.prod(map(len, axes.values()))
        if count > MAX_GRID_ROWS:
            raise OptionError(f"--grid has {count} points, at most {MAX_GRID_ROWS} are supported. Use fewer.")
        return cls(tuple(names), tuple(axes[name] for name in names))

    def chunks(self) -> Iterator[TextChunk]:
        """Yield the points in chunks of at most `CHUNK_ROWS` rows."""
        import pandas as pd

        sizes = tuple(map(len, self.axes))
        count = math.prod(sizes)
        for start in range(0, count, CHUNK_ROWS):
            rows = np.unravel_index(np.arange(start, min(start + CHUNK_ROWS, count)), sizes)
            columns = {name: axis[row] for name, axis, row in zip(self.names, self.axes, rows, strict=True)}
            yield TextChunk(pd.DataFrame(columns), np.empty((len(rows[0]), 0)), {})


def _parse_axis(name: str, text: str) -> pd.Index:
    """Parse one value, or equidistant values first:last:number."""
    import pandas as pd

    if (value := _parse_value(text)) is not None:
        return pd.Index([value])
    ends, _, count = text.rpartition(":")
    for colon in (i for i, sign in enumerate(ends) if sign == ":"):  # times of the day have colons too
        found = pd.Index([_parse_value(ends[:colon]), _parse_value(ends[colon + 1 :])])
        if found.dtype.kind not in "fM" or found.hasnans or not count.isdecimal() or int(count) < 1:
            continue
        first, last = found
        if found.dtype.kind == "f":
            return pd.Index(np.linspace(first, last, int(count)))
        return pd.date_range(first, last, periods=int(count))
    raise OptionError(f"--grid must be {AXIS_HELP}, got {name}={text}.")


def _parse_value(text: str) -> float | pd.Timestamp | None:
    """Parse a finite number or an ISO date; return None for any other text."""
    import pandas as pd

    try:
        if DATE.match(text):
            return pd.Timestamp(text)
        return float(text) if math.isfinite(float(text)) else None
    except ValueError:
        return None


def parse_labels(values: list) -> np.ndarray:
    """Convert labels (n,) to numbers if all are written as Python writes numbers; "007" stays text."""
    for kind in (int, float):
        try:
            numbers = [kind(value) for value in values]
        except ValueError:
            continue
        if [str(number) for number in numbers] == values:
            return np.array(numbers)
    return np.array(values)


def sort_labels(labels: Sequence[str]) -> list[str]:
    """Return the distinct labels, sorted numerically if all are numbers, else alphabetically."""
    distinct = sorted(set(labels))
    try:
        return sorted(distinct, key=float)
    except ValueError:
        return distinct


def _keep_observed(X: pd.DataFrame, y: pd.Series) -> tuple[pd.DataFrame, pd.Series]:
    """Drop the rows in which the only output is missing, with a note."""
    observed = y.notna().to_numpy()
    if not observed.any():
        raise InputError(f"Output '{y.name}' has no observed values. Name another column or add observations.")
    if not observed.all():
        print_note(f"{(~observed).sum()} of {len(y)} rows were skipped because '{y.name}' is missing.")
    return X[observed].reset_index(drop=True), y[observed].reset_index(drop=True)


def _concatenate(parts: Sequence, names: Sequence[str]) -> pd.DataFrame:
    """Join chunks, arrays or data frames, to one data frame."""
    import pandas as pd

    return pd.concat([_make_frame(part, names) for part in parts], ignore_index=True)


def _make_frame(values: np.ndarray | pd.DataFrame, names: Sequence[str]) -> pd.DataFrame:
    import pandas as pd

    return pd.DataFrame(values, columns=list(names))


def write_tables(path: Path, tables: Iterator[pa.Table]) -> int:
    """Write tables of one schema to one file, which is replaced only when all are written; return the number of rows.

    Its suffix must be one of `WRITABLE_SUFFIXES`. Memory: one chunk.
    """
    first, count = next(tables), 0

    def write(file: BinaryIO) -> None:
        nonlocal count
        with _make_writer(file, path.suffix.lower(), first.schema) as writer:
            for table in chain([first], tables):
                writer.write_table(table)
                count += len(table)

    replace_file(path, write)
    return count


def _make_writer(file: BinaryIO, suffix: str, schema: pa.Schema) -> AbstractContextManager:
    if suffix in PARQUET_SUFFIXES:
        from pyarrow import parquet

        return parquet.ParquetWriter(file, schema)
    return nullcontext(_CsvWriter(file, schema.names, DELIMITERS[suffix]))


class _CsvWriter:
    """Writer of text tables; it quotes all texts of a chunk if one of them needs quotes, else none."""

    def __init__(self, file: BinaryIO, names: list[str], delimiter: str):
        self.file, self.delimiter = file, delimiter
        line = io.StringIO()
        csv.writer(line, delimiter=delimiter, lineterminator="\n").writerow(names)
        file.write(line.getvalue().encode("utf-8"))

    def write_table(self, table: pa.Table) -> None:
        import pyarrow as pa

        try:
            self.file.write(self._format(table, "none"))
        except pa.ArrowInvalid:  # a text contains a quote, a line end or the delimiter
            self.file.write(self._format(table, "needed"))

    def _format(self, table: pa.Table, quoting: str) -> pa.Buffer:
        import pyarrow as pa
        from pyarrow.csv import WriteOptions, write_csv

        sink = pa.BufferOutputStream()
        options = WriteOptions(include_header=False, delimiter=self.delimiter, quoting_style=quoting)
        write_csv(table, sink, options)
        return sink.getvalue()
