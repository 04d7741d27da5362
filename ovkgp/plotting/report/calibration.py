"""Calibration section of a report: coverage of intervals in sentences and figures, by type of estimator."""

from __future__ import annotations

import numpy as np
from scipy.special import ndtri
from scipy.stats import binom

from ovkgp import plotting
from ovkgp.criticism import Coverage
from ovkgp.estimators.common.formatting import format_number, format_percent
from ovkgp.estimators.common.summary import pluralize
from ovkgp.plotting.report.evaluation_data import IN_SAMPLE_CAVEAT, HeldOutPredictions, Rows
from ovkgp.plotting.report.figures import render_panels
from ovkgp.plotting.report.sections import Calibration, CoverageAssessment

CONSISTENCY_PROBABILITY = 0.99  # probability of the range of counts that is consistent with the nominal level
MAX_LEVEL_DIFFERENCE = 0.02  # coverage this close to the level is accepted, even if the difference is significant
MIN_ENTRIES = 20  # minimum number of entries for an assessment
INTERVAL_LEVEL = 0.9  # level of the assessed intervals
MAX_OUTPUTS = 12  # up to this number of outputs all are listed, of more only the miscalibrated ones
SET_LEVELS = (0.05, 0.1, 0.5)  # levels of the assessed level sets


def assess_calibration(estimator, rows: Rows | None, held_out: HeldOutPredictions | None) -> Calibration:
    """Assess the calibration of a fitted estimator on given or stored rows, or on predictions of held-out entries."""
    if held_out is not None:
        return _assess_predictions(estimator, held_out)
    if rows is None or not rows.is_given or estimator.kind not in _BY_KIND:
        return Calibration(estimator.describe().calibration)
    return _BY_KIND[estimator.kind](estimator, rows)


def _assess_predictions(estimator, held_out: HeldOutPredictions) -> Calibration:
    level = get_assessed_level(estimator)
    coverage = Coverage.of(held_out.distribution.pit(), [level])
    figures = (
        render_panels(
            plotting.plot_pit,
            estimator,
            held_out.rows,
            "Histograms of the probability integral transform of each observation, with the band of a calibrated model.",
            "Probability integral transform of each observation. Bars of equal height indicate calibration; high ends "
            "indicate intervals that are too narrow, a hump in the middle intervals that are too wide, and a slope a "
            "biased mean.",
        ),
        render_panels(
            plotting.plot_coverage,
            estimator,
            held_out.rows,
            "Fraction of observations inside of intervals against the nominal level of the intervals.",
            "Coverage of intervals against their nominal level. The curve of a calibrated model lies on the diagonal.",
        ),
    )
    if held_out.is_leave_one_out:
        note = "Each entry is compared with its leave-one-out predictive distribution."
    else:
        note = f"Each entry of {held_out.rows_name} is compared with its predictive distribution."
    note = " ".join(sentence for sentence in (held_out.preface, note, held_out.caveat) if sentence)
    assessments = assess_outputs(estimator.output_labels(), coverage.held[0], coverage.counts, level)
    return Calibration(note, assessments, figures)


def get_assessed_level(estimator) -> float:
    """Return the level of the assessed intervals: 90 %, or the widest one if finitely many quantiles were learned."""
    if (levels := estimator.learned_levels) is None:
        return INTERVAL_LEVEL
    widest = round(float(2 * min(0.5 - levels.min(), levels.max() - 0.5)), 10)
    return widest if widest > 0 else INTERVAL_LEVEL  # quantiles of one side form no interval


def assess_outputs(
    names: list[str], covered: np.ndarray, totals: np.ndarray, level: float
) -> tuple[CoverageAssessment, ...]:
    """Assess the coverage of all outputs together, then of each, from numbers of covered and all entries (p,)."""
    overall = assess_coverage(int(covered.sum()), int(totals.sum()), level)
    if len(names) == 1:
        return (overall,)
    each = [
        assess_coverage(int(inside), int(total), level, name)
        for name, inside, total in zip(names, covered, totals, strict=True)
        if total
    ]
    return (overall, *(one for one in each if len(names) <= MAX_OUTPUTS or one.is_consistent is False))


def assess_coverage(covered: int, total: int, level: float = INTERVAL_LEVEL, name: str = "") -> CoverageAssessment:
    """Assess intervals of a nominal level that covered some of all entries, by a binomial interval."""
    coverage, entries = format_percent(covered / total), pluralize(total, "entry", "entries")
    of_output = f" of '{name}'" if name else ""
    sentence = f"Coverage of the {format_percent(level)} intervals{of_output}: {coverage} of {entries}"
    end, is_consistent = ", too few for an assessment.", None
    if total >= MIN_ENTRIES:
        sides = ("The intervals are too narrow", "The intervals are too wide")
        end, is_consistent = _compare_to_level(covered, total, level, sides)
    return CoverageAssessment(name, level, covered, total, sentence + end, is_consistent)


def assess_level_set(outside: int, total: int, level: float) -> CoverageAssessment:
    """Assess a set that should exclude a fraction `level` of all rows."""
    excluded = f"{format_percent(outside / total)} of {pluralize(total, 'row')}"
    end, is_consistent = _compare_to_level(outside, total, level, ("The set is too large", "The set is too small"))
    sentence = f"The set of level {format_percent(level)} excludes {excluded}{end}"
    return CoverageAssessment("", level, outside, total, sentence, is_consistent)


def _compare_to_level(count: int, total: int, level: float, sides: tuple[str, str]) -> tuple[str, bool]:
    """Return the end of a sentence, and whether a count is consistent with the level; `sides`: if too low, too high."""
    low, high = binom.interval(CONSISTENCY_PROBABILITY, total, level)
    if low <= count <= high or abs(count / total - level) <= MAX_LEVEL_DIFFERENCE:
        return ", consistent with the nominal level.", True
    expected = f"expected by chance: {format_percent(low / total)} to {format_percent(high / total)}"
    return f". {sides[int(count > high)]} ({expected}).", False


def _assess_labels(estimator, rows: Rows) -> Calibration:
    note = estimator.describe().calibration
    if estimator.has_costs:
        return Calibration(note)
    chosen = estimator.predict_proba(rows.X)[np.arange(len(rows.Y)), np.searchsorted(estimator.classes_, rows.Y)]
    accuracy = float(np.mean(estimator.predict(rows.X) == rows.Y))
    loss = format_number(float(-np.log(chosen).mean()), 3)
    return Calibration(f"{note} Log loss on the given rows: {loss}, accuracy {format_number(100 * accuracy, 3)} %.")


def _assess_level_sets(estimator, rows: Rows) -> Calibration:
    scores, levels = estimator.level_score(rows.X), [level for level in SET_LEVELS if level >= estimator.min_nu]
    assessments = [assess_level_set(int((scores < level).sum()), len(scores), level) for level in levels]
    return Calibration("Fractions of the given rows outside of the level sets.", tuple(assessments))


def _assess_tasks(estimator, rows: Rows) -> Calibration:
    mean, std = (np.reshape(part, rows.Y.shape) for part in estimator.predict(rows.X, return_std=True))
    observed = np.isfinite(rows.Y)
    is_covered = np.abs(rows.Y - mean)[observed] <= ndtri((1 + INTERVAL_LEVEL) / 2) * std[observed]
    assessment = assess_coverage(int(is_covered.sum()), int(observed.sum()), INTERVAL_LEVEL)
    note = "Each entry of the given rows is compared with its predicted interval."
    return Calibration(f"{note} If these are training rows, {IN_SAMPLE_CAVEAT}", (assessment,))


_BY_KIND = {"labels": _assess_labels, "none": _assess_level_sets, "tasks": _assess_tasks}
