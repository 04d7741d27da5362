"""Calibration section of a report: coverage of intervals in sentences and figures, by type of estimator."""

from __future__ import annotations

import numpy as np
from scipy.special import ndtr
from scipy.stats import binom

from ovkgp import plotting
from ovkgp.criticism import Coverage
from ovkgp.criticism.calibration import LEVELS
from ovkgp.estimators.common.formatting import format_number, format_percent
from ovkgp.estimators.common.summary import pluralize
from ovkgp.plotting.report.evaluation_data import IN_SAMPLE_CAVEAT, HeldOutPredictions, Rows, describe_hold_out
from ovkgp.plotting.report.figures import render_panels
from ovkgp.plotting.report.sections import Calibration, CoverageAssessment

CONSISTENCY_PROBABILITY = 0.99  # probability that all levels of a calibrated model are consistent with the nominal ones
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
    levels, level = get_assessed_levels(estimator)
    coverage = Coverage.of(held_out.distribution.pit(), levels, held_out.groups)
    figures = (
        render_panels(
            plotting.plot_pit,
            estimator,
            held_out.rows,
            "Histograms of the probability integral transform of each observation, with the band of a calibrated model.",
            "Probability integral transform of each observation. Bars of equal height indicate calibration; high ends "
            "indicate intervals that are too narrow, a hump in the middle intervals that are too wide, and a slope a "
            "biased mean.",
            groups=held_out.groups,
        ),
        render_panels(
            plotting.plot_coverage,
            estimator,
            held_out.rows,
            "Fraction of observations inside of intervals against the nominal level of the intervals.",
            "Coverage of intervals against their nominal level. The curve of a calibrated model lies on the diagonal, and "
            "with probability 90 % in the band at all levels.",
            groups=held_out.groups,
        ),
    )
    if held_out.is_leave_one_out:
        note = f"Each entry is compared with its leave-one-out predictive distribution: {describe_hold_out(held_out)}."
    else:
        note = f"Each entry of {held_out.rows_name} is compared with its predictive distribution."
    note = " ".join(sentence for sentence in (held_out.preface, note, held_out.caveat) if sentence)
    return Calibration(note, assess_outputs(estimator.output_labels(), coverage, level), figures)


def get_assessed_levels(estimator) -> tuple[np.ndarray, float]:
    """Return the levels of the assessed intervals, and that whose coverage is reported.

    These are 5 %, …, 95 % and 90 %; or, if finitely many quantiles were learned, the intervals between two of them with equal
    tails, and the widest interval inside of their range.
    """
    if (learned := estimator.learned_levels) is None:
        return np.array(LEVELS), INTERVAL_LEVEL
    widest = round(float(2 * min(0.5 - learned.min(), learned.max() - 0.5)), 10)
    level = widest if widest > 0 else INTERVAL_LEVEL  # quantiles of one side form no interval
    upper = learned[(learned > 0.5) & (np.abs(learned[:, None] - (1 - learned)).min(0) < 1e-9)]
    return np.unique([*np.round(2 * upper - 1, 10), level]), level


def assess_outputs(names: list[str], coverage: Coverage, level: float) -> tuple[CoverageAssessment, ...]:
    """Assess the coverage of all outputs together, then of each, at all levels; report that of one level."""
    bands = coverage.band(CONSISTENCY_PROBABILITY, simultaneous=True)
    overall_band = coverage.overall_band(CONSISTENCY_PROBABILITY, simultaneous=True)
    levels, totals = coverage.levels, coverage.counts
    overall = assess_coverage(coverage.held.sum(1), int(totals.sum()), levels, overall_band, level)
    if len(names) == 1:
        return (overall,)
    each = [
        assess_coverage(coverage.held[:, a], int(totals[a]), levels, (bands[0][:, a], bands[1][:, a]), level, name)
        for a, name in enumerate(names)
        if totals[a]
    ]
    return (overall, *(one for one in each if len(names) <= MAX_OUTPUTS or one.is_consistent is False))


def assess_coverage(
    covered: np.ndarray,
    total: int,
    levels: np.ndarray,
    band: tuple[np.ndarray, np.ndarray],
    level: float = INTERVAL_LEVEL,
    name: str = "",
) -> CoverageAssessment:
    """Assess intervals that covered some (k,) of all entries at levels (k,) by a band (k,), (k,) of their fractions.

    The fraction at `level` is reported, and one outside of the band: that one, else the one farthest from its level.
    """
    fractions, reported = covered / total, int(np.abs(levels - level).argmin())
    entries, of_output = pluralize(total, "entry", "entries"), f" of '{name}'" if name else ""
    sentence = f"Coverage of the {format_percent(level)} intervals{of_output}: {format_percent(fractions[reported])} of {entries}"
    differences, (low, high) = np.abs(fractions - levels), band
    is_outside = ((fractions < low) | (fractions > high)) & (differences > MAX_LEVEL_DIFFERENCE)
    if total < MIN_ENTRIES:
        end, is_consistent = ", too few for an assessment.", None
    elif not is_outside.any():
        others = ", as at all other levels" if len(levels) > 1 else ""
        end, is_consistent = f", consistent with the nominal level{others}.", True
    else:
        worst = reported if is_outside[reported] else int(np.where(is_outside, differences, 0.0).argmax())
        side = "wide" if fractions[worst] > levels[worst] else "narrow"
        expected = f"expected by chance: {format_percent(low[worst])} to {format_percent(high[worst])}"
        end, is_consistent = f". The intervals are too {side} ({expected}).", False
        if worst != reported:
            which, found = format_percent(levels[worst]), format_percent(fractions[worst])
            end = f", but the {which} intervals are too {side}: they contain {found} ({expected})."
    return CoverageAssessment(name, level, int(covered[reported]), total, sentence + end, is_consistent)


def assess_level_set(outside: int, total: int, level: float) -> CoverageAssessment:
    """Assess a set that should exclude a fraction `level` of all rows."""
    excluded = f"{format_percent(outside / total)} of {pluralize(total, 'row')}"
    end, is_consistent = compare_to_level(outside, total, level, ("The set is too large", "The set is too small"))
    sentence = f"The set of level {format_percent(level)} excludes {excluded}{end}"
    return CoverageAssessment("", level, outside, total, sentence, is_consistent)


def compare_to_level(count: int, total: int, level: float, sides: tuple[str, str]) -> tuple[str, bool]:
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
    coverage = Coverage.of(np.where(observed, ndtr((rows.Y - mean) / std), np.nan))
    band = coverage.overall_band(CONSISTENCY_PROBABILITY, simultaneous=True)
    assessment = assess_coverage(coverage.held.sum(1), int(observed.sum()), coverage.levels, band)
    note = "Each entry of the given rows is compared with its predicted interval."
    return Calibration(f"{note} If these are training rows, {IN_SAMPLE_CAVEAT}", (assessment,))


_BY_KIND = {"labels": _assess_labels, "none": _assess_level_sets, "tasks": _assess_tasks}
