"""Title, first paragraph and data section of a report."""

from __future__ import annotations

import numpy as np

from ovkgp.estimators.common.formatting import format_number, format_percent, join_names
from ovkgp.estimators.common.summary import pluralize
from ovkgp.plotting.report.evaluation_data import HeldOutPredictions, Rows, get_training_rows
from ovkgp.plotting.report.sections import Column, CoverageAssessment, DataSummary

MAX_COLUMNS = 30  # maximum number of columns in a table
MAX_NAMED_COLUMNS = 4  # up to this number of columns, the title and the explained variance list each
ROUNDING = 1e-12  # numbers below this fraction of the largest entry are rounding errors of the scaling
HINT = "The model stores no training rows, only statistics of them. Give the rows again to see more: write_report(model, path, X=X, Y=Y), or ovkgp report MODEL --data FILE."


def make_default_title(estimator) -> str:
    """Make a title of the predicted outputs and the inputs: their names if few and known, else their numbers."""
    known = estimator.input_names
    is_named = known is not None and len(known) <= MAX_NAMED_COLUMNS
    inputs = join_names(known) if is_named else pluralize(estimator.n_features_in_, "input")
    return f"{_title_outputs(estimator)} over {inputs}"


def _title_outputs(estimator) -> str:
    kind = estimator.kind
    if kind == "none":
        return "Level sets"
    names = estimator.output_labels()
    is_named = estimator.has_output_names
    if kind == "labels":
        classes = _count_outputs(estimator)
        return f"{names[0]} ({classes})" if is_named else classes
    return join_names(names) if is_named and len(names) <= MAX_NAMED_COLUMNS else pluralize(len(names), "output")


def _count_outputs(estimator) -> str:
    """Count the classes of a classifier, or the outputs."""
    if estimator.kind == "labels":
        return pluralize(len(estimator.classes_), "class", "classes")
    return pluralize(len(estimator.output_labels()), "output")


def write_overview(
    estimator,
    name: str,
    rows: Rows | None,
    held_out: HeldOutPredictions | None,
    assessments: tuple[CoverageAssessment, ...],
    num_warnings: int,
) -> str:
    """Write the first paragraph: model, accuracy, coverage (the first of `assessments`) and number of warnings."""
    sentences = [_describe_fit(estimator, name), _describe_accuracy(estimator, rows, held_out)]
    if assessments:
        sentences.append(assessments[0].sentence)
    warnings = "warning" if num_warnings == 1 else f"{num_warnings} warnings"
    sentences.append(f"See the {warnings} below." if num_warnings else "There are no warnings.")
    return " ".join(sentence for sentence in sentences if sentence)


def _describe_fit(estimator, name: str) -> str:
    stored, about = get_training_rows(estimator), estimator.describe()
    parts = [pluralize(estimator.n_features_in_, "input")]
    parts += [] if estimator.kind == "none" else [_count_outputs(estimator)]
    num_rows = about.num_rows if stored is None else len(stored.X)
    if about.num_entries is not None:
        parts.append(pluralize(about.num_entries, "observed entry", "observed entries"))
    elif num_rows is not None:
        parts.append(pluralize(num_rows, "row"))
    return f"{name}, fitted to {join_names(parts)}."


def _describe_accuracy(estimator, rows: Rows | None, held_out: HeldOutPredictions | None) -> str:
    if held_out is not None:
        return _describe_explained_variance(estimator.output_labels(), held_out)
    if estimator.kind != "labels" or rows is None:
        return ""
    where = "the given rows" if rows.is_given else "the training rows"
    if not estimator.has_costs:
        accuracy = float(np.mean(estimator.predict(rows.X) == rows.Y))
        return f"Accuracy on {where}: {format_percent(accuracy)}."
    if len(np.unique(rows.Y)) < 2:
        return ""
    area = estimator.roc_curve(rows.X, rows.Y).area
    return f"Area under the ROC curve on {where}: {format_number(area, 3)}."


def _describe_explained_variance(names: list[str], held_out: HeldOutPredictions) -> str:
    """Describe the explained variance of held-out entries, of each output or of the worst and the best."""
    known = [(name, value) for name, value in zip(names, held_out.explained, strict=True) if np.isfinite(value)]
    if not known:
        return ""
    quantity = f"Leave-one-{'group' if held_out.has_groups else 'row'}-out explained variance"
    if not held_out.is_leave_one_out:
        quantity = f"Explained variance on {held_out.rows_name}"
    if len(names) == 1:
        text = _format_explained(known[0][1])
    elif len(known) <= MAX_NAMED_COLUMNS:
        text = ", ".join(f"{_format_explained(value)} ({name})" for name, value in known)
    else:
        ends = min(known, key=lambda pair: pair[1]), max(known, key=lambda pair: pair[1])
        text = " to ".join(f"{_format_explained(value)} ({name})" for name, value in ends)
    return f"{held_out.preface} {quantity}: {text}.".lstrip()


def _format_explained(fraction: float) -> str:
    return "none" if fraction <= 0 else format_percent(fraction)


def summarize_data(estimator, rows: Rows | None) -> DataSummary:
    """Summarize given or stored rows, or what the model knows without them."""
    outputs, classes, hint = (), (), ""
    if rows is None:
        sentence, inputs, outputs, hint = *_summarize_without_rows(estimator), HINT
    else:
        labels = estimator.label_units("input", estimator.input_labels())
        sentence, inputs = _describe_data(estimator, rows), summarize_columns(rows.inputs, labels)
        if estimator.kind == "labels":
            classes = tuple((str(name), int((name == rows.Y).sum())) for name in estimator.classes_)
        elif rows.Y is not None:
            outputs = summarize_columns(rows.Y, estimator.output_labels())
    shown = (columns[:MAX_COLUMNS] for columns in (inputs, outputs, classes))
    omitted = [
        f"{len(columns) - MAX_COLUMNS} further {name}"
        for columns, name in ((inputs, "inputs"), (outputs, "outputs"))
        if len(columns) > MAX_COLUMNS
    ]
    return DataSummary(sentence, *shown, hint, f"The table omits {' and '.join(omitted)}." if omitted else "")


def summarize_columns(values: np.ndarray, names: list[str]) -> tuple[Column, ...]:
    """Summarize each column of a table (n, k) with NaN where missing."""
    return tuple(_summarize_column(name, values[:, i]) for i, name in enumerate(names))


def _summarize_column(name: str, values: np.ndarray) -> Column:
    observed = values[np.isfinite(values)]
    missing = 1 - len(observed) / len(values)
    if not len(observed):
        return Column(name, 0, missing)
    sd = float(observed.std(ddof=1)) if len(observed) > 1 else None
    rounding = ROUNDING * float(np.abs(observed).max())
    statistics = (observed.min(), observed.mean(), observed.max())
    low, mean, high = (0.0 if abs(value) < rounding else float(value) for value in statistics)
    return Column(name, len(observed), missing, low, mean, high, sd)


def _describe_data(estimator, rows: Rows) -> str:
    source = "given to this report" if rows.is_given else "stored by the model"
    text = f"{pluralize(len(rows.X), 'row')} {source}: {pluralize(estimator.n_features_in_, 'input')}"
    if estimator.kind == "none":
        return f"{text}, no outputs."
    text += f" and {_count_outputs(estimator)}"
    if estimator.kind == "labels":
        return f"{text}."
    observed = int(np.isfinite(rows.Y).sum())
    missing = f" of {rows.Y.size}" if observed < rows.Y.size else ", none missing"
    entries = f"{pluralize(observed, 'entry', 'entries')} observed{missing}"
    return f"{text}, {entries}."


def _summarize_without_rows(estimator) -> tuple[str, tuple[Column, ...], tuple[Column, ...]]:
    inputs, outputs = tuple(Column(name) for name in estimator.input_labels()), ()
    sentence, about = pluralize(len(inputs), "input"), estimator.describe()
    sentence += f" and {_count_outputs(estimator)}"
    if estimator.kind != "labels":
        names = estimator.output_labels()
        known = [None] * len(names) if about.num_observed is None else [int(number) for number in about.num_observed]
        outputs = tuple(Column(name, number) for name, number in zip(names, known, strict=True))
    if about.num_entries is not None:
        sentence += f", {pluralize(about.num_entries, 'observed entry', 'observed entries')}"
    return f"{sentence}.", inputs, outputs
