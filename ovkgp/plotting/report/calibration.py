"""Calibration: whether intervals hold as often as they say, in pictures and in words, by the kind of estimator."""

from __future__ import annotations

import numpy as np
from scipy.special import ndtri
from scipy.stats import binom

from ovkgp import plotting
from ovkgp.criticism import Coverage
from ovkgp.estimators.common.summary import count
from ovkgp.plotting.axes import output_names
from ovkgp.plotting.report.evaluation_data import HeldOutPredictions, Rows, class_name, kind_of
from ovkgp.plotting.report.figures import panels
from ovkgp.plotting.report.numbers import percent, show
from ovkgp.plotting.report.sections import Calibration, CoverageAssessment

CHANCE = 0.99
"""The probability of a count that raises no doubt."""
CLOSE = 0.02
"""A share this near to the level is near enough, whatever chance says."""
FEW = 20
"""So few entries say little."""


def judged(held: int, total: int, level: float = 0.9, name: str = "") -> CoverageAssessment:
    """The judgement of intervals of a level that held so many of all entries.

    Example:
        >>> from ovkgp.plotting.report.calibration import judged
        >>> print(judged(211, 240).sentence)
        The 90 % intervals held 88 % of 240 entries: as they should.
        >>> print(judged(150, 240, name="u").sentence)
        'u': the 90 % intervals held 62 % of 240 entries: they are too narrow (chance alone gives 85 % to 95 %).
    """
    low, high = binom.interval(CHANCE, total, level)
    share = held / total
    is_good = low <= held <= high or abs(share - level) <= CLOSE
    start = f"'{name}': the" if name else "The"
    sentence = f"{start} {percent(level)} intervals held {percent(share)} of {count(total, 'entry', 'entries')}: "
    if total < FEW:
        return CoverageAssessment(name, level, held, total, f"{sentence}too few to say more.", None)
    if is_good:
        return CoverageAssessment(name, level, held, total, f"{sentence}as they should.", True)
    side = "too narrow" if share < level else "wider than they need to be"
    return CoverageAssessment(
        name, level, held, total, f"{sentence}they are {side} ({_chance(low, high, total)}).", False
    )


def judged_outside(outside: int, total: int, level: float) -> CoverageAssessment:
    """The judgement of a set that should leave a share `level` of all rows outside.

    Example:
        >>> from ovkgp.plotting.report.calibration import judged_outside
        >>> print(judged_outside(24, 240, 0.1).sentence)
        The set of level 10 % left 10 % of 240 rows outside: as it should.
    """
    low, high = binom.interval(CHANCE, total, level)
    is_good = low <= outside <= high or abs(outside / total - level) <= CLOSE
    end = (
        "as it should"
        if is_good
        else f"it is too {'small' if outside > high else 'large'} ({_chance(low, high, total)})"
    )
    sentence = (
        f"The set of level {percent(level)} left {percent(outside / total)} of {count(total, 'row')} outside: {end}."
    )
    return CoverageAssessment("", level, outside, total, sentence, is_good)


def _chance(low: float, high: float, total: int) -> str:
    return f"chance alone gives {percent(low / total)} to {percent(high / total)}"


LEVEL = 0.9
"""Of the intervals that are judged in words."""
MAX_OUTPUTS = 12
"""Of more outputs only those that fail are named."""
LEVELS = (0.05, 0.1, 0.5)
"""Of the level sets that are judged."""


def calibration(estimator, rows: Rows | None, found: HeldOutPredictions | None) -> Calibration:
    """The calibration of a fitted estimator on the rows at hand.

    Args:
        estimator: fitted.
        rows: those given or kept.
        found: predictions of unseen entries, where there are some.
    """
    if found is not None:
        return _of_predictions(estimator, found)
    return _BY_KIND[kind_of(estimator)](estimator, rows)


def _of_predictions(estimator, found: HeldOutPredictions) -> Calibration:
    level = judged_level(estimator)
    inside = Coverage.of(found.distribution.pit(), [level])
    pictures = (
        panels(
            plotting.plot_pit,
            estimator,
            found.rows,
            "Histograms of where in its predicted distribution each observation falls, with the range of an even spread.",
            "Where in its predicted distribution each observation falls. Bars of one height are right; high ends say that the intervals are "
            "too narrow, a hump in the middle that they are too wide, a slope that the mean is off.",
        ),
        panels(
            plotting.plot_coverage,
            estimator,
            found.rows,
            "The share of observations inside of intervals against the level of the intervals.",
            "Shares inside of intervals against what the intervals promise. On the diagonal they hold what they promise.",
        ),
    )
    note = f"{found.how}, each entry is compared with what the model says of it. {found.caution}".strip()
    return Calibration(note, judgements(output_names(estimator), inside.held[0], inside.counts, level), pictures)


def judged_level(estimator) -> float:
    """The level of the intervals that are judged: 90 %, or the widest that a regressor with finitely many quantiles has learned."""
    if getattr(estimator, "coupling", "infinite") == "infinite":
        return LEVEL
    nodes = estimator.measure_.nodes
    widest = round(float(2 * min(0.5 - nodes.min(), nodes.max() - 0.5)), 10)
    return widest if widest > 0 else LEVEL  # quantiles of one side have no interval of their own


def judgements(names: list[str], held: np.ndarray, totals: np.ndarray, level: float) -> tuple[CoverageAssessment, ...]:
    """Of all outputs together and of each: how many of their entries (p,) the intervals held."""
    overall = judged(int(held.sum()), int(totals.sum()), level)
    if len(names) == 1:
        return (overall,)
    each = [judged(int(h), int(n), level, name) for name, h, n in zip(names, held, totals, strict=True) if n]
    return (overall, *(one for one in each if len(names) <= MAX_OUTPUTS or one.is_good is False))


def _without(estimator, rows: Rows | None) -> Calibration:
    if class_name(estimator) == "InfiniteQuantileRegressor":
        return Calibration(
            "predict_interval calibrates its intervals on rows that it leaves out. To judge the quantiles themselves, give rows that were "
            "not among those of the fit (X=, Y=, or --data)."
        )
    if class_name(estimator) == "ConstrainedORFF":
        return Calibration("This estimator has no standard deviation, and so nothing to calibrate.")
    return Calibration(
        "Nothing to judge by: this model cannot leave its rows out one at a time. Give rows that were not among those of the fit (X=, Y=, or "
        "--data)."
    )


def _labels(estimator, rows: Rows | None) -> Calibration:
    if class_name(estimator) != "SimplexClassifier":
        return Calibration(
            "The scores are margins and no probabilities: the costs say how to trade one mistake for the other."
        )
    held_out, frequencies = estimator.calibration_, estimator.calibration_.frequencies
    entropy = -float(np.sum(frequencies * np.log(frequencies)))
    note = (
        f"Probabilities were calibrated on {count(held_out.num_rows, 'row')} held out in {count(held_out.num_folds, 'fold')}: their log loss there is "
        f"{show(held_out.log_loss, 3)}, where the class frequencies alone have {show(entropy, 3)}."
    )
    if rows is None or not rows.is_given:
        return Calibration(note)
    chosen = estimator.predict_proba(rows.X)[np.arange(len(rows.Y)), np.searchsorted(estimator.classes_, rows.Y)]
    right = float(np.mean(estimator.predict(rows.X) == rows.Y))
    own = f"On the rows given it is {show(float(-np.log(chosen).mean()), 3)}, and {show(100 * right, 3)} % of the classes are right."
    return Calibration(f"{note} {own}")


def _points(estimator, rows: Rows | None) -> Calibration:
    if not rows.is_given:
        return Calibration(
            "Levels were calibrated with rows left out one at a time. To judge them, give fresh rows (X=, or --data)."
        )
    scores, levels = estimator.level_score(rows.X), [level for level in LEVELS if level >= estimator.lowest]
    found = [judged_outside(int((scores < level).sum()), len(scores), level) for level in levels]
    return Calibration("Shares of the rows given outside of the level sets.", tuple(found))


def _tasks(estimator, rows: Rows | None) -> Calibration:
    if rows is None or not rows.is_given:
        return _without(estimator, rows)
    mean, std = (np.reshape(part, rows.Y.shape) for part in estimator.predict(rows.X, return_std=True))
    observed = np.isfinite(rows.Y)
    held = np.abs(rows.Y - mean)[observed] <= ndtri((1 + LEVEL) / 2) * std[observed]
    caution = "If these rows are those of the fit, the model looks better here than it is."
    return Calibration(f"On the rows given. {caution}", (judged(int(held.sum()), int(observed.sum()), LEVEL),))


_BY_KIND = {"table": _without, "target": _without, "labels": _labels, "none": _points, "tasks": _tasks}
