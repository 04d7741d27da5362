"""Work of ``ovkgp predict`` (a table of inputs to a table of predictions) and the evaluation data of ``ovkgp report``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ovkgp.cli.arguments import parse_names
from ovkgp.cli.curve_grids import expand_columns
from ovkgp.cli.tables import InputGrid, TableFile, TextChunk, write_tables
from ovkgp.estimators.common.prediction_columns import PredictionRequest
from ovkgp.exceptions import InputError, OptionError

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    import pyarrow as pa
    from sklearn.base import BaseEstimator


def predict_file(
    estimator,
    path: Path,
    out: Path,
    request: PredictionRequest,
    *,
    inputs: str | None = None,
    keep: Sequence[str] = (),
    strict: bool = True,
    separator: str = ",",
    verbose: int = 0,
) -> int:
    """Write the predictions for a table of inputs and return their number of rows. Memory: one chunk.

    `inputs` are as typed (None for the names of the model), `keep` are other columns to copy.
    """
    if not estimator.has_curves:
        request.reject_options(f"{estimator.class_name}, whose outputs are no curves", "grid", "simultaneous")
    names = resolve_inputs(estimator, inputs, path, separator)
    chunks = TableFile(path, names, None, None, strict, separator, verbose).chunks([k for k in keep if k not in names])
    return write_tables(out, (predict_chunk(estimator, names, chunk, request) for chunk in chunks))


def predict_grid(estimator, grid: str, out: Path, request: PredictionRequest, *, inputs: str | None = None) -> int:
    """Write the predictions for all points of a grid of inputs and return their number. Memory: one chunk."""
    names = resolve_inputs(estimator, inputs)
    chunks = InputGrid.parse(grid, names).chunks()
    return write_tables(out, (predict_chunk(estimator, names, chunk, request) for chunk in chunks))


def resolve_inputs(estimator, typed: str | None, path: Path | None = None, separator: str = ",") -> tuple[str, ...]:
    """Return the input columns of a model: those it was fitted with, or the typed ones if it has no names.

    Patterns among the typed ones match columns of the file `path`.
    """
    names, given = estimator.input_names, parse_names(typed)
    if path is not None:
        given = expand_columns(path, separator, given, None)[0]
    if names is not None:
        inputs = tuple(names)
        if typed is not None and given != inputs:
            raise OptionError(
                f"The inputs of the model are {', '.join(inputs)}. Remove --inputs or rename the columns."
            )
        return inputs
    count = estimator.n_features_in_
    if typed is None:
        raise OptionError(f"The model was fitted without names. Name its {count} input columns with --inputs.")
    if len(given) != count:
        raise OptionError(f"--inputs must name the {count} inputs of the model, got {len(given)}: {typed}.")
    return given


def predict_chunk(estimator, inputs: Sequence[str], chunk: TextChunk, request: PredictionRequest) -> pa.Table:
    """Make a table of the kept columns, the inputs and the predictions of a chunk."""
    import pandas as pd
    import pyarrow as pa

    X = pd.DataFrame(chunk.X, columns=list(inputs))
    found = estimator.prediction_columns(X if estimator.input_names else X.to_numpy(), request)
    columns = [*chunk.texts.items(), *X.items(), *found.items()]
    names = [name for name, _ in columns]
    if repeated := sorted({name for name in names if names.count(name) > 1}):
        raise InputError(f"The predictions would have two columns '{repeated[0]}'. Rename the column of the data.")
    return pa.table(dict(columns))


def read_evaluation_data(
    estimator: BaseEstimator,
    path: Path,
    inputs: str | None,
    outputs: tuple[str, ...] | None,
    task: str | None,
    strict: bool,
    separator: str,
    groups: str | None = None,
    has_grid_row: bool = False,
) -> tuple[pd.DataFrame, pd.DataFrame | pd.Series | None, np.ndarray | None]:
    """Read X, Y and the labels of `groups` from a file, with the column names of the fitted model unless others were typed."""
    if outputs is None and estimator.kind != "none":
        if task is not None:
            raise OptionError("--task needs a column of values. Name it with --outputs.")
        outputs = tuple(estimator.output_names_)
    names = resolve_inputs(estimator, inputs, path, separator)
    table = TableFile(path, names, outputs, task, strict, separator, has_grid_row=has_grid_row).expand_patterns(
        [groups]
    )
    table.check_target(estimator.kind, estimator.class_name)
    if groups is not None:
        if task is not None:
            raise OptionError("--groups needs a wide table (one row per input). Remove --task.")
        if not estimator.has_leave_one_out:
            raise OptionError(
                f"--groups is not supported by {estimator.class_name} with these options. Remove --groups and evaluate held-out rows."
            )
        return table.read_groups(groups)
    X, Y = table.read(estimator.kind)
    if task is not None:
        Y = _align_tasks(Y, estimator.output_names_, path)
    return X, Y, None


def read_criticism_data(
    estimator: BaseEstimator,
    path: Path,
    inputs: str | None,
    outputs: tuple[str, ...] | None,
    extra: tuple[str, ...],
    groups: str | None,
    separator: str,
) -> tuple[pd.DataFrame, pd.DataFrame | pd.Series | None, pd.DataFrame | None, np.ndarray | None]:
    """Read X, Y, the extra columns and the labels of `groups` of the same rows."""
    options = inputs, outputs, None, True, separator
    if not extra and groups is None:
        return *read_evaluation_data(estimator, path, *options)[:2], None, None
    if estimator.kind not in ("table", "target"):
        raise OptionError(f"--extra and --groups are not supported by {estimator.class_name}. Remove them.")
    names = resolve_inputs(estimator, inputs, path, separator)
    columns = [*dict.fromkeys([*extra, *([] if groups is None else [groups])])]
    table = TableFile(path, names, outputs or tuple(estimator.output_names_), None, True, separator)
    X, Y, texts = table.expand_patterns(columns).read_columns(columns)
    frame = texts[list(extra)].apply(_parse_column) if extra else None
    return X, Y, frame, None if groups is None else texts[groups].to_numpy()


def _parse_column(column: pd.Series) -> pd.Series:
    """Convert a column of texts to numbers or dates if all of them are such."""
    import pandas as pd

    numbers = pd.to_numeric(column, errors="coerce")
    dates = pd.to_datetime(column, errors="coerce", format="ISO8601")
    return next((found for found in (numbers, dates) if (found.notna() == column.notna()).all()), column)


def _align_tasks(Y: pd.DataFrame, known: list[str], path: Path) -> pd.DataFrame:
    """Order the outputs as the model does; outputs that the file does not have are missing."""
    unknown = [name for name in Y.columns if name not in known]
    if unknown:
        raise InputError(
            f"'{path}' has the unknown task '{unknown[0]}'. The tasks of the model are {', '.join(known)}."
        )
    return Y.reindex(columns=list(known))
