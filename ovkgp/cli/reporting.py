"""Data for a report: the columns that a model was fitted with, from a file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ovkgp.cli.predicting import input_names
from ovkgp.cli.tables import TableFile, target_of
from ovkgp.exceptions import InputError, OptionError

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
    table.require_target(target, type(estimator).__name__)
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
