"""Warnings about the data: outputs and classes that were hardly observed, columns that do not vary, rows far from the fit."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ovkgp.estimators.summary import count
from ovkgp.plotting.names import input_names, output_names
from ovkgp.plotting.report.kinds import called, kind_of
from ovkgp.plotting.report.numbers import listed, percent, show
from ovkgp.plotting.report.rows import Rows, kept

FEW = 10
"""Observations of an output, or rows of a class, below which the model knows little of it."""
MOST_OUTSIDE = 0.05
"""The share of rows outside of the range of the fit that is not worth a word."""


def few_observations(estimator, rows: Rows | None) -> Iterator[str]:
    """Outputs and classes that the fit hardly observed."""
    names, counts = _counts(estimator)
    for name, number in zip(names, counts, strict=True):
        if number < FEW:
            yield f"{called(estimator, name)} has {count(int(number), 'observation')}: its intervals rest on the prior more than on data."
    if kind_of(estimator) == "labels" and (learned := kept(estimator)) is not None:
        for name in estimator.classes_:
            if (number := int((name == learned.Y).sum())) < FEW:
                yield f"Class '{name}' has {count(number, 'row')}: little is known of it."


def few_rows(estimator, rows: Rows | None) -> Iterator[str]:
    """Few rows for the number of inputs."""
    d = estimator.n_features_in_
    if kind_of(estimator) not in ("table", "target"):
        return
    if rows is not None and not rows.is_given and d > 1 and len(rows.X) < 2 * d:
        yield f"There are {count(len(rows.X), 'row')} for {d} inputs: few to tell which inputs matter."


def constant_columns(estimator, rows: Rows | None) -> Iterator[str]:
    """Columns that do not vary in the rows of the fit; those given may well be a few of one kind."""
    learned = kept(estimator)
    if learned is None or len(learned.X) < 2:
        return
    flat = [name for name, column in zip(input_names(estimator), learned.inputs.T, strict=True) if np.ptp(column) == 0]
    if flat:
        one = len(flat) == 1
        yield f"{'Input' if one else 'Inputs'} {listed(flat)} never {'varies' if one else 'vary'}: nothing can be learned from {'it' if one else 'them'}."
    if kind_of(estimator) not in ("table", "target"):
        return
    for name, column in zip(output_names(estimator), learned.Y.T, strict=True):
        seen = column[np.isfinite(column)]
        if len(seen) > 1 and np.ptp(seen) == 0:
            yield f"{called(estimator, name)} is constant ({show(float(seen[0]))}): there is nothing to explain."


def unobserved_outputs(estimator, rows: Rows | None) -> Iterator[str]:
    """Outputs of which the rows given say nothing."""
    if rows is None or not rows.is_given or kind_of(estimator) not in ("table", "target"):
        return
    unseen = [
        name for name, column in zip(output_names(estimator), rows.Y.T, strict=True) if not np.isfinite(column).any()
    ]
    if unseen:
        yield f"Nobody observed {listed(unseen)} in the rows given: of {'it' if len(unseen) == 1 else 'them'} nothing can be judged."


def extrapolation(estimator, rows: Rows | None) -> Iterator[str]:
    """Rows outside of the range in which the model has learned."""
    if rows is None or not rows.is_given or (learned := kept(estimator)) is None:
        return
    low, high = learned.inputs.min(0), learned.inputs.max(0)
    slack = 1e-9 * np.maximum(np.abs(low), np.abs(high))
    outside = (rows.inputs < low - slack) | (rows.inputs > high + slack)
    share = outside.any(1).mean()
    if share > MOST_OUTSIDE:
        names = [name for name, any_outside in zip(input_names(estimator), outside.any(0), strict=True) if any_outside]
        yield f"{percent(share)} of the rows given lie outside of the range of the fit (in {listed(names)}): there the model extrapolates."


def _counts(estimator) -> tuple[list[str], np.ndarray]:
    """Names of outputs and how often the fit saw each, where that is known."""
    if kind_of(estimator) not in ("table", "target"):
        return [], np.array([])
    if hasattr(estimator, "_num_seen"):
        return output_names(estimator), estimator._num_seen
    learned = kept(estimator)
    return ([], np.array([])) if learned is None else (output_names(estimator), np.isfinite(learned.Y).sum(0))
