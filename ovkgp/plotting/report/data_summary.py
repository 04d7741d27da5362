"""The first table of a report: what the data are like, column by column."""

from __future__ import annotations

import numpy as np

from ovkgp.estimators.summary import count
from ovkgp.plotting.names import input_names, output_names
from ovkgp.plotting.report.kinds import kind_of
from ovkgp.plotting.report.rows import Rows
from ovkgp.plotting.report.sections import Column, DataSummary

MOST_COLUMNS = 30
"""A table shows no more columns than this."""
ROUNDING = 1e-12
"""What is smaller than this part of the largest entry was left by scaling there and back."""
HINT = (
    "The model keeps no rows, only what they add up to. Give them again to see more: "
    "write_report(model, path, X=X, Y=Y), or ovkgp report MODEL --data FILE."
)


def data_summary(estimator, rows: Rows | None) -> DataSummary:
    """Rows, inputs and outputs of the data at hand, or what the model knows without them."""
    if rows is None:
        return _without_rows(estimator)
    inputs = columns(rows.inputs, input_names(estimator))
    outputs, classes = (), ()
    if kind_of(estimator) == "labels":
        classes = tuple((str(name), int((name == rows.Y).sum())) for name in estimator.classes_)
    elif rows.Y is not None:
        outputs = columns(rows.Y, output_names(estimator))
    shown = {"inputs": inputs[:MOST_COLUMNS], "outputs": outputs[:MOST_COLUMNS], "classes": classes[:MOST_COLUMNS]}
    return DataSummary(_sentence(estimator, rows), **shown, left_off=_left_off(inputs, outputs))


def columns(values: np.ndarray, names: list[str]) -> tuple[Column, ...]:
    """What each column of a table (n, k) with NaN where missing is like.

    Example:
        >>> import numpy as np
        >>> from ovkgp.plotting.report.data_summary import columns
        >>> columns(np.array([[1.0], [3.0], [np.nan], [2.0]]), ["u"])
        (Column(name='u', count=3, missing=0.25, low=1.0, mean=2.0, high=3.0, sd=1.0),)
    """
    return tuple(_column(name, values[:, i]) for i, name in enumerate(names))


def _column(name: str, values: np.ndarray) -> Column:
    seen = values[np.isfinite(values)]
    missing = 1 - len(seen) / len(values)
    if not len(seen):
        return Column(name, 0, missing)
    sd = float(seen.std(ddof=1)) if len(seen) > 1 else None
    rounding = ROUNDING * float(np.abs(seen).max())
    low, mean, high = (
        0.0 if abs(value) < rounding else float(value) for value in (seen.min(), seen.mean(), seen.max())
    )
    return Column(name, len(seen), missing, low, mean, high, sd)


def _sentence(estimator, rows: Rows) -> str:
    where = "given to this report" if rows.is_given else "kept by the model"
    parts = f"{count(len(rows.X), 'row')} {where}: {count(estimator.n_features_in_, 'input')}"
    kind = kind_of(estimator)
    if kind == "labels":
        return f"{parts} and {count(len(estimator.classes_), 'class', 'classes')}."
    if kind == "none":
        return f"{parts}, no outputs."
    seen = int(np.isfinite(rows.Y).sum())
    outputs = f"{count(rows.Y.shape[1], 'output')}, {count(seen, 'entry', 'entries')} observed"
    return f"{parts} and {outputs} of {rows.Y.size}." if seen < rows.Y.size else f"{parts} and {outputs}, none missing."


def _without_rows(estimator) -> DataSummary:
    inputs, outputs = tuple(Column(name) for name in input_names(estimator)), ()
    sentence, counts = count(len(inputs), "input"), getattr(estimator, "_num_seen", None)
    if kind_of(estimator) == "labels":
        sentence += f" and {count(len(estimator.classes_), 'class', 'classes')}"
    else:
        names = output_names(estimator)
        known = [None] * len(names) if counts is None else [int(number) for number in counts]
        outputs = tuple(Column(name, number) for name, number in zip(names, known, strict=True))
        sentence += f" and {count(len(names), 'output')}"
    if (entries := num_entries(estimator)) is not None:
        sentence += f", {count(entries, 'observed entry', 'observed entries')}"
    shown = {"inputs": inputs[:MOST_COLUMNS], "outputs": outputs[:MOST_COLUMNS]}
    return DataSummary(f"{sentence}.", **shown, hint=HINT, left_off=_left_off(inputs, outputs))


def num_entries(estimator) -> int | None:
    """How many entries of Y the fit has seen, where the estimator has counted them."""
    if hasattr(estimator, "_num_seen"):
        return int(np.sum(estimator._num_seen))
    return int(estimator._counts[1]) if hasattr(estimator, "_counts") else None


def _left_off(inputs: tuple, outputs: tuple) -> str:
    more = [
        f"{len(found) - MOST_COLUMNS} further {name}"
        for found, name in ((inputs, "inputs"), (outputs, "outputs"))
        if len(found) > MOST_COLUMNS
    ]
    return f"The table leaves out {' and '.join(more)}." if more else ""
