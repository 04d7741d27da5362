"""The first paragraph: what was fitted, how well it does, and whether to trust it, for a reader who reads nothing else."""

from __future__ import annotations

import numpy as np

from ovkgp.estimators.common.summary import count
from ovkgp.plotting.axes import input_names, output_names
from ovkgp.plotting.report.evaluation_data import HeldOutPredictions, Rows, class_name, kept, kind_of
from ovkgp.plotting.report.numbers import joined, percent, show
from ovkgp.plotting.report.sections import Column, CoverageAssessment, DataSummary

MAX_COLUMNS = 30
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
    shown = {"inputs": inputs[:MAX_COLUMNS], "outputs": outputs[:MAX_COLUMNS], "classes": classes[:MAX_COLUMNS]}
    return DataSummary(_sentence(estimator, rows), **shown, left_off=_left_off(inputs, outputs))


def columns(values: np.ndarray, names: list[str]) -> tuple[Column, ...]:
    """What each column of a table (n, k) with NaN where missing is like.

    Example:
        >>> import numpy as np
        >>> from ovkgp.plotting.report.overview import columns
        >>> columns(np.array([[1.0], [3.0], [np.nan], [2.0]]), ["u"])
        (Column(name='u', count=3, missing=0.25, low=1.0, mean=2.0, high=3.0, sd=1.0),)
    """
    return tuple(_column(name, values[:, i]) for i, name in enumerate(names))


def _column(name: str, values: np.ndarray) -> Column:
    observed = values[np.isfinite(values)]
    missing = 1 - len(observed) / len(values)
    if not len(observed):
        return Column(name, 0, missing)
    sd = float(observed.std(ddof=1)) if len(observed) > 1 else None
    rounding = ROUNDING * float(np.abs(observed).max())
    low, mean, high = (
        0.0 if abs(value) < rounding else float(value) for value in (observed.min(), observed.mean(), observed.max())
    )
    return Column(name, len(observed), missing, low, mean, high, sd)


def _sentence(estimator, rows: Rows) -> str:
    where = "given to this report" if rows.is_given else "kept by the model"
    parts = f"{count(len(rows.X), 'row')} {where}: {count(estimator.n_features_in_, 'input')}"
    kind = kind_of(estimator)
    if kind == "labels":
        return f"{parts} and {count(len(estimator.classes_), 'class', 'classes')}."
    if kind == "none":
        return f"{parts}, no outputs."
    observed = int(np.isfinite(rows.Y).sum())
    outputs = f"{count(rows.Y.shape[1], 'output')}, {count(observed, 'entry', 'entries')} observed"
    return (
        f"{parts} and {outputs} of {rows.Y.size}."
        if observed < rows.Y.size
        else f"{parts} and {outputs}, none missing."
    )


def _without_rows(estimator) -> DataSummary:
    inputs, outputs = tuple(Column(name) for name in input_names(estimator)), ()
    sentence, counts = count(len(inputs), "input"), getattr(estimator, "_num_observed", None)
    if kind_of(estimator) == "labels":
        sentence += f" and {count(len(estimator.classes_), 'class', 'classes')}"
    else:
        names = output_names(estimator)
        known = [None] * len(names) if counts is None else [int(number) for number in counts]
        outputs = tuple(Column(name, number) for name, number in zip(names, known, strict=True))
        sentence += f" and {count(len(names), 'output')}"
    if (entries := num_entries(estimator)) is not None:
        sentence += f", {count(entries, 'observed entry', 'observed entries')}"
    shown = {"inputs": inputs[:MAX_COLUMNS], "outputs": outputs[:MAX_COLUMNS]}
    return DataSummary(f"{sentence}.", **shown, hint=HINT, left_off=_left_off(inputs, outputs))


def num_entries(estimator) -> int | None:
    """How many entries of Y the fit has seen, where the estimator has counted them."""
    if hasattr(estimator, "_num_observed"):
        return int(np.sum(estimator._num_observed))
    return int(estimator._counts[1]) if hasattr(estimator, "_counts") else None


def _left_off(inputs: tuple, outputs: tuple) -> str:
    more = [
        f"{len(found) - MAX_COLUMNS} further {name}"
        for found, name in ((inputs, "inputs"), (outputs, "outputs"))
        if len(found) > MAX_COLUMNS
    ]
    return f"The table leaves out {' and '.join(more)}." if more else ""


MAX_NAMED = 4
"""Outputs whose explained variance is told one by one."""


def default_title(estimator) -> str:
    """What is predicted from what: names where they are few and known, else how many.

    Example:
        >>> import numpy as np
        >>> import ovkgp
        >>> from ovkgp.plotting.report.overview import default_title
        >>> default_title(ovkgp.OVKRidge().fit(np.eye(3), np.eye(3)))
        '3 outputs over 3 inputs'
    """
    known = getattr(estimator, "feature_names_in_", None)
    inputs = count(estimator.n_features_in_, "input") if known is None or len(known) > MAX_NAMED else joined(known)
    return f"{_answers(estimator)} over {inputs}"


def _answers(estimator) -> str:
    kind = kind_of(estimator)
    if kind == "none":
        return "Level sets"
    names = output_names(estimator)
    is_named = getattr(estimator, "_has_names", hasattr(estimator, "output_names_") and names != ["y"])
    if kind == "labels":
        classes = count(len(estimator.classes_), "class", "classes")
        return f"{names[0]} ({classes})" if is_named else classes
    return joined(names) if is_named and len(names) <= MAX_NAMED else count(len(names), "output")


def verdict(
    estimator,
    name: str,
    rows: Rows | None,
    found: HeldOutPredictions | None,
    judgements: tuple[CoverageAssessment, ...],
    num_warnings: int,
) -> str:
    """One paragraph in plain words.

    Args:
        estimator: fitted.
        name: of the model.
        rows: those given or kept.
        found: predictions of unseen entries, where there are some.
        judgements: of the intervals, all outputs together first.
        num_warnings: how many warnings follow.
    """
    sentences = [_what(estimator, name), _quality(estimator, rows, found)]
    if judgements:
        sentences.append(judgements[0].sentence)
    sentences.append("There are no warnings." if not num_warnings else f"Read the {_warnings(num_warnings)} below.")
    return " ".join(sentence for sentence in sentences if sentence)


def _warnings(number: int) -> str:
    return "warning" if number == 1 else f"{number} warnings"


def _what(estimator, name: str) -> str:
    d, learned = estimator.n_features_in_, kept(estimator)
    kind = kind_of(estimator)
    parts = [count(d, "input")]
    if kind == "labels":
        parts.append(count(len(estimator.classes_), "class", "classes"))
    elif kind != "none":
        parts.append(count(len(output_names(estimator)), "output"))
    if (entries := num_entries(estimator)) is not None:
        parts.append(count(entries, "observed entry", "observed entries"))
    elif learned is not None or hasattr(estimator, "num_rows_"):
        parts.append(count(estimator.num_rows_ if learned is None else len(learned.X), "row"))
    return f"{name}, fitted to {joined(parts)}."


def _quality(estimator, rows: Rows | None, found: HeldOutPredictions | None) -> str:
    if found is not None:
        return _explained(output_names(estimator), found)
    if kind_of(estimator) != "labels" or rows is None:
        return ""
    where = "the rows given" if rows.is_given else "the rows of the fit"
    if class_name(estimator) == "SimplexClassifier":
        return (
            f"Of {where}, {percent(float(np.mean(estimator.predict(rows.X) == rows.Y)))} are assigned to their class."
        )
    if len(np.unique(rows.Y)) < 2:
        return ""
    return f"On {where}, the area under the curve of found against false alarms is {show(estimator.roc_curve(rows.X, rows.Y).area, 3)}."


def _explained(names: list[str], found: HeldOutPredictions) -> str:
    """The share of the variance that predictions of unseen entries explain."""
    known = [(name, share) for name, share in zip(names, found.explained, strict=True) if np.isfinite(share)]
    if not known:
        return ""
    start = f"{found.how}, observations are predicted with"
    if len(names) == 1:
        return f"{start} {_share(known[0][1])} of their variance explained."
    if len(known) <= MAX_NAMED:
        each = ", ".join(f"{_share(share)} ('{name}')" for name, share in known)
        return f"{start} so much of their variance explained: {each}."
    worst, best = min(known, key=lambda pair: pair[1]), max(known, key=lambda pair: pair[1])
    return f"{start} {_share(worst[1])} ('{worst[0]}') to {_share(best[1])} ('{best[0]}') of their variance explained."


def _share(share: float) -> str:
    return "none" if share <= 0 else percent(share)
