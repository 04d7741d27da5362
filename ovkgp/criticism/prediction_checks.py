"""Scores and notes of a table of criticism: coverage, log score, CRPS, energy score, degrees of freedom, influential rows, structure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ovkgp.criticism.calibration import Coverage
from ovkgp.criticism.predictive_distributions import EntryPredictions
from ovkgp.criticism.results import Check
from ovkgp.kernels import components
from ovkgp.metrics import crps_gaussian, log_density_gaussian, scorers

COVERAGE_LEVEL = 0.9  # level of the intervals whose coverage is shown
BAND_PROBABILITY = 0.99  # probability of the range of coverage that a right model has by chance
NUM_INFLUENTIAL = 5  # rows that are named
MIN_INFLUENCE = 1.0  # Cook's distance per degree of freedom that is worth a look
WORSE_THAN_MOMENTS = "The model predicts worse than the mean and variance of the outputs: check inputs and outliers."
MAX_FREEDOM = 0.8  # fraction of the number of entries above which the model nearly interpolates
EXPLAINED_FRACTION = 0.99  # of the trace that the rank of an output matrix accounts for


@dataclass(frozen=True)
class Predictions:
    """Predictions of the rows to check.

    `rows` are held-out rows, or training rows predicted from other rows or groups; `entries` are entries of training rows predicted
    from all others. If they are None, `reason` says why.
    """

    rows: EntryPredictions | None = None
    entries: EntryPredictions | None = None
    reason: str = ""


def check_predictions(estimator, predictions: Predictions, held_out, names: list[str]) -> list[Check]:
    """List coverage and scores, or why they do not apply; `held_out` are X and Y, or None for training rows."""
    if predictions.rows is None:
        names = ("coverage", "log score", "CRPS", "energy score", "degrees of freedom", "influential rows")
        return [Check(name, conclusion=predictions.reason, applies=False) for name in names]
    return [
        *_check_coverage(predictions.rows, names),
        *_score(predictions.rows),
        _score_energy(estimator, held_out, len(names)),
        *_check_influence(estimator, predictions.entries),
    ]


def _score_energy(estimator, held_out, num_outputs: int) -> Check:
    if held_out is None or num_outputs == 1 or not estimator.has_posterior:
        return Check("energy score", conclusion="it needs held-out rows X, Y with several outputs", applies=False)
    value = -scorers["neg_energy_score"](estimator, *held_out)
    conclusion = "Mean over rows, in units of the outputs; smaller is better."
    return Check("energy score", float(value), conclusion=conclusion)


def _check_coverage(entries: EntryPredictions, names: list[str]) -> list[Check]:
    coverage, checks = Coverage.of(entries.pit(), [COVERAGE_LEVEL]), []
    low, high = coverage.band(BAND_PROBABILITY)
    for a, name in enumerate(names):
        if not coverage.counts[a]:
            continue
        value = float(coverage.observed[0, a])
        inside = f"{value:.0%} of {coverage.counts[a]} observations are in their {COVERAGE_LEVEL:.0%} intervals"
        conclusion = f"{inside}; chance: {low[0, a]:.0%} to {high[0, a]:.0%}."
        is_outside = not low[0, a] <= value <= high[0, a]
        advice = "Recalibrate intervals on held-out rows (ovkgp.criticism.recalibrate)." if is_outside else ""
        checks.append(Check(f"coverage of {name}", value, conclusion=conclusion, recommendation=advice))
    return checks


def _score(entries: EntryPredictions) -> list[Check]:
    """List the log score and CRPS, with those of the mean and standard deviation of each output as reference."""
    Y, shape, checks = entries.Y, entries.Y.shape, []
    center = np.broadcast_to(np.nanmean(Y, axis=0), shape)
    scale = np.broadcast_to(np.maximum(np.nanstd(Y, axis=0), np.finfo(float).tiny), shape)
    of = "" if entries.is_gaussian else " of the normal distribution with the predicted mean and variance"
    for name, score, sign in (("log score", log_density_gaussian, 1), ("CRPS", crps_gaussian, -1)):
        value, reference = float(score(Y, entries.mean, entries.std)), score(Y, center, scale)
        better = "larger" if sign > 0 else "smaller"
        conclusion = f"Mean over outputs{of}; {better} is better. Without inputs: {reference:.4g}."
        advice = WORSE_THAN_MOMENTS if sign * value < sign * reference else ""
        checks.append(Check(name, value, conclusion=conclusion, recommendation=advice))
    return checks


def _check_influence(estimator, entries: EntryPredictions | None) -> list[Check]:
    """List degrees of freedom Σ h and Cook's distances t² h / (1 − h).

    The leverage of an entry is h = 1 − σ²/s² for the standard deviation s of its prediction from all others, and t is its
    standardized error.
    """
    noise = getattr(estimator, "noise_", None) if estimator.has_trained_hyperparameters else None
    reason = ""
    if entries is None:
        reason = "held-out rows have no influence"
    elif noise is None or np.shape(noise) != (entries.Y.shape[1],) * 2:
        reason = "the model has no noise variance of its own"
    elif np.abs(noise - np.diag(np.diag(noise))).max() > 0:
        reason = "the noise of the outputs is correlated"
    elif estimator.training_observations().noise is not None:
        reason = "the noise of each row was given"
    if reason:
        names = "degrees of freedom", "influential rows"
        return [Check(name, conclusion=reason, applies=False) for name in names]
    leverage = np.clip(1 - np.diag(noise) / np.square(entries.std), 0.0, 1 - 1e-9)
    freedom, count = float(np.nansum(leverage)), int(np.isfinite(entries.Y).sum())
    influence = np.nan_to_num(np.square(entries.scores()) * leverage / (1 - leverage)).max(1)
    top = np.argsort(-influence)[:NUM_INFLUENTIAL]
    largest = float(influence[top[0]])
    uses = f"The mean uses {freedom:.4g} degrees of freedom of {count} entries."
    listed = "Rows with the largest influence: " + ", ".join(f"{row} ({influence[row]:.2g})" for row in top) + "."
    is_large = largest > MIN_INFLUENCE * max(freedom, 1.0)
    advice = (
        "The model nearly interpolates: check the noise." if freedom > MAX_FREEDOM * count else "",
        "Check these rows for errors, and refit without them." if is_large else "",
    )
    return [
        Check("degrees of freedom", freedom, conclusion=uses, recommendation=advice[0]),
        Check("influential rows", largest, conclusion=listed, recommendation=advice[1]),
    ]


def check_structure(estimator, num_outputs: int) -> list[Check]:
    """List the rank of the output matrix and the number of features."""
    return [_check_rank(estimator, num_outputs), _check_features(estimator)]


def _check_rank(estimator, num_outputs: int) -> Check:
    name, kernel = "rank of the output matrix", next(iter(estimator.output_kernels()), None)
    parts = None if kernel is None or num_outputs == 1 else components(kernel)
    if parts is None:
        return Check(name, conclusion="the kernel has no output matrix", applies=False)
    matrix = sum(part[1] for part in parts).detach().numpy()
    if not (matrix - np.diag(np.diag(matrix))).any():
        return Check(name, conclusion="the kernel has independent outputs", applies=False)
    values = np.sort(np.linalg.eigvalsh(matrix))[::-1].clip(0)
    rank = int(np.searchsorted(np.cumsum(values) / values.sum(), EXPLAINED_FRACTION) + 1)
    conclusion = f"{rank} of {num_outputs} directions account for {EXPLAINED_FRACTION:.0%} of the prior variance."
    is_smaller = rank < num_outputs - 1 and rank < getattr(estimator, "rank", rank)
    advice = f"rank={rank} is enough." if is_smaller else ""
    return Check(name, float(rank), conclusion=conclusion, recommendation=advice)


def _check_features(estimator) -> Check:
    name, features = "number of features", getattr(getattr(estimator, "gp_", None), "features", None)
    if features is None:
        return Check(name, conclusion="the kernel is not approximated by features", applies=False)
    conclusion = "If scores improve with twice as many features, use more."
    return Check(name, float(features.num_features), conclusion=conclusion)
