"""Sections of a report on curves: overview, data, calibration and warnings, which do not list single points of the grid."""

from __future__ import annotations

import numpy as np

from ovkgp.criticism import Coverage
from ovkgp.estimators.common.formatting import format_percent, join_names
from ovkgp.estimators.common.summary import pluralize
from ovkgp.plotting.report import fit_warnings
from ovkgp.plotting.report.calibration import (
    CONSISTENCY_PROBABILITY,
    INTERVAL_LEVEL,
    MIN_ENTRIES,
    assess_coverage,
    compare_to_level,
)
from ovkgp.plotting.report.curve_data import LEVELS, CurveEntries, CurveRows, cover_whole_curves, get_training_rows
from ovkgp.plotting.report.curve_figures import OUTLIER_SCORE, make_coverage_figure
from ovkgp.plotting.report.evaluation_data import IN_SAMPLE_CAVEAT
from ovkgp.plotting.report.overview import MAX_COLUMNS, MAX_NAMED_COLUMNS, summarize_columns
from ovkgp.plotting.report.sections import Calibration, Column, CoverageAssessment, DataSummary

NO_CURVES = "The model stores no curves. Give them again to see more: write_report(model, path, X=X, Y=Y), or ovkgp report MODEL --data FILE."
MIN_CURVES = 10  # fewer curves get a warning
CHECKS = (
    fit_warnings.problems_of_the_fit,
    fit_warnings.unreliable_draws,
    fit_warnings.model_warnings,
)
"""Checks of `fit_warnings` that do not list outputs."""


def make_curve_title(estimator) -> str:
    """Make a title of the number of points and the names or the number of inputs."""
    names = estimator.input_names
    is_named = names is not None and len(names) <= MAX_NAMED_COLUMNS
    inputs = join_names(names) if is_named else pluralize(estimator.n_features_in_, "input")
    kind = "Curves" if len(estimator.domain_) == 1 else "Functions"
    stored = estimator.training_curves()
    is_ragged = stored is not None and stored[1].is_ragged
    points = "" if is_ragged else f" on {pluralize(len(estimator.grid_), 'point')}"
    return f"{kind}{points} over {inputs}"


def write_curve_overview(
    estimator,
    name: str,
    rows: CurveRows | None,
    entries: CurveEntries | None,
    calibration: Calibration,
    warnings: tuple,
) -> str:
    """Write the first paragraph: model, size of the fit, accuracy, coverage and number of warnings."""
    stored = estimator.training_curves()
    size = "" if stored is None else f", fitted to {_describe_size(stored[1])}"
    sentences = [f"{name}{size}."]
    if rows is not None and entries is not None:
        sentences.append(_describe_accuracy(estimator, rows, entries))
    sentences += [one.sentence for one in calibration.assessments]
    number = "warning" if len(warnings) == 1 else f"{len(warnings)} warnings"
    sentences.append(f"See the {number} below." if warnings else "There are no warnings.")
    return " ".join(sentence for sentence in sentences if sentence)


def _describe_accuracy(estimator, rows: CurveRows, entries: CurveEntries) -> str:
    """Describe the explained variance, without outlying curves of the fit."""
    scores, regular = estimator.outlier_scores(), ""
    if scores is not None and not rows.is_given:
        entries, regular = entries.select(scores[entries.curve] <= OUTLIER_SCORE), "regular "
    if not np.isfinite(entries.explained):
        return ""
    explained = format_percent(entries.explained) if entries.explained > 0 else "none"
    where = "the given curves" if rows.is_given else f"the {regular}curves of the fit (in-sample)"
    return f"Explained variance on {where}: {explained}."


def _describe_size(data) -> str:
    count = int(sum(np.isfinite(values).sum() for _, values in data.curves()))
    points = "different points" if data.is_ragged else pluralize(data.num_points, "point")
    channels = f" and {data.num_channels} channels" if data.num_channels > 1 else ""
    return f"{pluralize(len(data), 'curve')} with {pluralize(count, 'observed value')} at {points}{channels}"


def summarize_curves(estimator, rows: CurveRows | None) -> DataSummary:
    """Summarize inputs in a table, and the values of all curves in one row per channel."""
    if rows is None:
        inputs = tuple(Column(name) for name in estimator.input_labels()[:MAX_COLUMNS])
        domain = f"curves on {pluralize(len(estimator.grid_), 'point')}"
        return DataSummary(
            f"{pluralize(estimator.n_features_in_, 'input')} and {domain}.", inputs, (), (), NO_CURVES, ""
        )
    data, source = rows.data, "given to this report" if rows.is_given else "stored by the model"
    sentence = f"{_describe_size(data)}, {source}"
    low, high = data.domain.T
    ends = " × ".join(f"[{a:g}, {b:g}]" for a, b in zip(low, high, strict=True))
    sentence = f"{sentence}, on {ends}."
    inputs = ()
    if rows.inputs is not None:
        labels = estimator.label_units("input", estimator.input_labels())
        inputs = summarize_columns(rows.inputs, labels)
    else:
        sentence += " The inputs are curves."
    union = data.on_common_grid()
    values = union.values.reshape(len(data), -1, data.num_channels)
    names = data.channel_names or [
        f"channel {c}" if data.num_channels > 1 else "curves" for c in range(values.shape[2])
    ]
    flat = [values[..., c].ravel() for c in range(values.shape[2])]
    if data.is_ragged:  # points of other curves are not missing values
        flat = [one[np.isfinite(one)] for one in flat]
    outputs = tuple(summarize_columns(one[:, None], [name])[0] for one, name in zip(flat, names, strict=True))
    hidden = len(inputs) - MAX_COLUMNS
    omitted = f"The table omits {hidden} further inputs." if hidden > 0 else ""
    return DataSummary(sentence, inputs[:MAX_COLUMNS], outputs, (), "", omitted)


def assess_curves(estimator, rows: CurveRows | None, entries: CurveEntries | None) -> Calibration:
    """Assess pointwise and simultaneous bands on given curves that are not those of the fit."""
    if rows is None or entries is None or entries.inside is None:
        return Calibration(estimator.describe().calibration)
    if not rows.is_given:
        advice = "Give curves that were held out of the fit: write_report(model, path, X=X, Y=Y), or ovkgp report MODEL --data FILE."
        return Calibration(f"Bands are not assessed on the curves of the fit. {advice}")
    note, is_new = "", ~rows.is_training
    if rows.is_training.all():
        note, is_new = f"The given curves are those of the fit: {IN_SAMPLE_CAVEAT}", rows.is_training
    elif rows.is_training.any():
        note = (
            f"{int(rows.is_training.sum())} of the {len(is_new)} given curves are curves of the fit and were excluded."
        )
    assessments = (
        assess_pointwise(entries, is_new),
        assess_simultaneous(estimator, rows.select(np.flatnonzero(is_new))),
    )
    shown = is_new[entries.curve]
    text = "Each value is compared with its pointwise band, and each curve with its simultaneous band."
    return Calibration(f"{note} {text}".strip(), assessments, tuple(make_coverage_figure(estimator, entries, shown)))


def assess_pointwise(entries: CurveEntries, is_new: np.ndarray) -> CoverageAssessment:
    """Assess pointwise bands of the curves `is_new` (n,), whose values depend on each other."""
    shown = is_new[entries.curve]
    width = np.bincount(entries.curve).max()
    pit = np.full((len(is_new), width), np.nan)
    middle = np.where(entries.inside[0], 0.5, np.where(entries.inside[1], 0.5 + (LEVELS[0] + LEVELS[1]) / 4, 1.0))
    for i in np.flatnonzero(is_new):
        own = entries.curve == i
        pit[i, : own.sum()] = middle[own]
    coverage = Coverage.of(pit[:, np.isfinite(pit).any(0)], LEVELS)
    band = coverage.overall_band(CONSISTENCY_PROBABILITY, simultaneous=True)
    found = assess_coverage(coverage.held.sum(1), int(shown.sum()), np.array(LEVELS), band)
    sentence = found.sentence.replace("intervals", "pointwise bands").replace("entries", "values")
    return CoverageAssessment("", found.level, found.covered, found.total, sentence, found.is_consistent)


def assess_simultaneous(estimator, rows: CurveRows) -> CoverageAssessment:
    """Assess simultaneous bands: the fraction of curves that lie inside at all points."""
    inside = cover_whole_curves(estimator, rows, INTERVAL_LEVEL)
    count, total = int(inside.sum()), len(inside)
    sentence = f"Coverage of the {format_percent(INTERVAL_LEVEL)} simultaneous bands: {format_percent(count / total)} of {pluralize(total, 'curve')}"
    end, is_consistent = ", too few for an assessment.", None
    if total >= MIN_ENTRIES:
        end, is_consistent = compare_to_level(
            count, total, INTERVAL_LEVEL, ("The bands are too narrow", "The bands are too wide")
        )
    return CoverageAssessment("", INTERVAL_LEVEL, count, total, sentence + end, is_consistent)


def collect_curve_warnings(estimator, rows: CurveRows | None) -> tuple[str, ...]:
    """Collect warnings about training, few curves, parts of the domain with few values, and given inputs outside of the range."""
    found = [sentence for check in CHECKS for sentence in check(estimator, rows)]
    if (stored := get_training_rows(estimator)) is None:
        return tuple(found)
    data = stored.data
    if len(data) < MIN_CURVES:
        found.append(f"The model was fitted to {pluralize(len(data), 'curve')}; its bands depend mostly on the prior.")
    if not data.is_ragged and data.num_dims == 1:
        values = data.values.reshape(len(data), data.num_points, -1)
        counts = np.isfinite(values).any(2).sum(0)
        rare = np.flatnonzero(counts < min(MIN_CURVES, len(data) / 2))
        if len(rare):
            ends = f"from {data.grid[rare[0]]:g} to {data.grid[rare[-1]]:g}"
            found.append(
                f"{pluralize(len(rare), 'point')} ({ends}) were observed in at most {int(counts[rare].max())} curves; predictions there depend on the smoothness of curves."
            )
    if rows is not None and rows.is_given and rows.inputs is not None and stored.inputs is not None:
        low, high = stored.inputs.min(0), stored.inputs.max(0)
        outside = ((rows.inputs < low) | (rows.inputs > high)).any(1).mean()
        if outside > fit_warnings.MAX_OUTSIDE_FRACTION:
            found.append(
                f"{format_percent(outside)} of the given curves have inputs outside of the range of the fit. Predictions there are extrapolations."
            )
    return tuple(found)
