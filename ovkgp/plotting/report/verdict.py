"""The first paragraph: what was fitted, how well it does, and whether to trust it, for a reader who reads nothing else."""

from __future__ import annotations

import numpy as np

from ovkgp.estimators.summary import count
from ovkgp.plotting.names import output_names
from ovkgp.plotting.report.data_summary import num_entries
from ovkgp.plotting.report.kinds import class_name, kind_of
from ovkgp.plotting.report.numbers import joined, percent, show
from ovkgp.plotting.report.predictions_made import Predicted
from ovkgp.plotting.report.rows import Rows, kept
from ovkgp.plotting.report.sections import Judgement

MOST_NAMED = 4
"""Outputs whose explained variance is told one by one."""


def default_title(estimator) -> str:
    """What is predicted from what: names where they are few and known, else how many.

    Example:
        >>> import numpy as np
        >>> import ovkgp
        >>> from ovkgp.plotting.report.verdict import default_title
        >>> default_title(ovkgp.OVKRidge().fit(np.eye(3), np.eye(3)))
        '3 outputs over 3 inputs'
    """
    known = getattr(estimator, "feature_names_in_", None)
    inputs = count(estimator.n_features_in_, "input") if known is None or len(known) > MOST_NAMED else joined(known)
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
    return joined(names) if is_named and len(names) <= MOST_NAMED else count(len(names), "output")


def verdict(
    estimator,
    name: str,
    rows: Rows | None,
    found: Predicted | None,
    judgements: tuple[Judgement, ...],
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


def _quality(estimator, rows: Rows | None, found: Predicted | None) -> str:
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


def _explained(names: list[str], found: Predicted) -> str:
    """The share of the variance that predictions of unseen entries explain."""
    known = [(name, share) for name, share in zip(names, found.explained, strict=True) if np.isfinite(share)]
    if not known:
        return ""
    start = f"{found.how}, observations are predicted with"
    if len(names) == 1:
        return f"{start} {_share(known[0][1])} of their variance explained."
    if len(known) <= MOST_NAMED:
        each = ", ".join(f"{_share(share)} ('{name}')" for name, share in known)
        return f"{start} so much of their variance explained: {each}."
    worst, best = min(known, key=lambda pair: pair[1]), max(known, key=lambda pair: pair[1])
    return f"{start} {_share(worst[1])} ('{worst[0]}') to {_share(best[1])} ('{best[0]}') of their variance explained."


def _share(share: float) -> str:
    return "none" if share <= 0 else percent(share)
