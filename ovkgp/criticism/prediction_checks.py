"""Scores and notes of a table of criticism: coverage, log score, CRPS, energy score, degrees of freedom, influential rows, structure."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ovkgp.criticism.calibration import Coverage
from ovkgp.criticism.predictive_distributions import EntryPredictions
from ovkgp.criticism.table import Check
from ovkgp.kernels import components
from ovkgp.metrics import crps_gaussian, log_density_gaussian, scorers

COVERAGE_LEVEL = 0.9  # level of the intervals whose coverage is shown
BAND_PROBABILITY = 0.99  # probability of the range of coverage that a right model has by chance
NUM_INFLUENTIAL = 5  # rows that are named
MIN_INFLUENCE = 1.0  # Cook's distance per degree of freedom that is worth a look
EXPLAINED_FRACTION = 0.99  # of the trace that the rank of an output matrix accounts for


def check_predictions(estimator, entries: EntryPredictions | None, why: str, rows, names: list[str]) -> Iterator[Check]:
    """Yield coverage and scores of `entries`, or that they do not apply; `rows` are held-out X and Y or None."""
    if entries is None:
        for name in ("coverage", "log score", "CRPS", "energy score", "degrees of freedom", "influential rows"):
            yield Check(name, conclusion=why, applies=False)
        return
    yield from _check_coverage(entries, names)
    yield from _score(entries)
    if rows is None or len(names) == 1 or not estimator.has_posterior:
        yield Check("energy score", conclusion="it needs held-out rows X, Y with several outputs", applies=False)
    else:
        score = -scorers["neg_energy_score"](estimator, *rows)
        yield Check(
            "energy score", float(score), conclusion="Mean over rows, in units of the outputs; smaller is better."
        )
    yield from _check_influence(estimator, entries, rows is not None)


def _check_coverage(entries: EntryPredictions, names: list[str]) -> Iterator[Check]:
    found = Coverage.of(entries.pit(), [COVERAGE_LEVEL])
    low, high = found.band(BAND_PROBABILITY)
    for a, name in enumerate(names):
        if not found.counts[a]:
            continue
        value = float(found.observed[0, a])
        conclusion = f"{value:.0%} of {found.counts[a]} observations are in their 90 % intervals; chance: {low[0, a]:.0%} to {high[0, a]:.0%}."
        is_outside = not low[0, a] <= value <= high[0, a]
        advice = "Recalibrate intervals on held-out rows (`ovkgp.criticism.recalibrate`)." if is_outside else ""
        yield Check(f"coverage of {name}", value, conclusion=conclusion, recommendation=advice)


def _score(entries: EntryPredictions) -> Iterator[Check]:
    Y, shape = entries.Y, entries.Y.shape
    center = np.broadcast_to(np.nanmean(Y, axis=0), shape)
    scale = np.broadcast_to(np.maximum(np.nanstd(Y, axis=0), np.finfo(float).tiny), shape)
    of = "" if entries.is_gaussian else " of the normal distribution with the predicted mean and variance"
    for name, score in (("log score", log_density_gaussian), ("CRPS", crps_gaussian)):
        value, reference = score(Y, entries.mean, entries.std), score(Y, center, scale)
        better = "larger" if name == "log score" else "smaller"
        conclusion = f"Mean per entry{of}; {better} is better. Without inputs: {reference:.4g}."
        is_worse = value < reference if name == "log score" else value > reference
        advice = (
            "The model predicts worse than the mean and variance of the outputs: check inputs and outliers."
            if is_worse
            else ""
        )
        yield Check(name, float(value), conclusion=conclusion, recommendation=advice)


def _check_influence(estimator, entries: EntryPredictions, is_held_out: bool) -> Iterator[Check]:
    """Yield degrees of freedom Σ h and Cook's distances t² h / (1 − h), h = 1 − σ²/s² for leave-one-out deviations s."""
    noise = getattr(estimator, "noise_", None) if estimator.has_trained_hyperparameters else None
    if is_held_out or noise is None or np.shape(noise) != (entries.Y.shape[1],) * 2:
        why = "held-out rows have no influence" if is_held_out else "the model has no noise variance of its own"
        yield from (Check(name, conclusion=why, applies=False) for name in ("degrees of freedom", "influential rows"))
        return
    leverage = np.clip(1 - np.diag(noise) / np.square(entries.std), 0.0, 1 - 1e-9)
    freedom, count = float(np.nansum(leverage)), int(np.isfinite(entries.Y).sum())
    conclusion = f"The mean uses {freedom:.4g} degrees of freedom of {count} entries."
    advice = "The model nearly interpolates: check the noise." if freedom > 0.8 * count else ""
    yield Check("degrees of freedom", freedom, conclusion=conclusion, recommendation=advice)
    influence = np.square(entries.scores()) * leverage / (1 - leverage)
    by_row = np.nan_to_num(influence).max(1)
    top = np.argsort(-by_row)[:NUM_INFLUENTIAL]
    listed = ", ".join(f"{row} ({by_row[row]:.2g})" for row in top)
    advice = (
        "Check these rows for errors, and refit without them."
        if by_row[top[0]] > MIN_INFLUENCE * max(freedom, 1.0)
        else ""
    )
    yield Check(
        "influential rows",
        float(by_row[top[0]]),
        conclusion=f"Rows with the largest influence: {listed}.",
        recommendation=advice,
    )


def check_structure(estimator, num_outputs: int) -> Iterator[Check]:
    """Yield the rank of the output matrix and the number of features."""
    kernel = next(iter(estimator.output_kernels()), None)
    parts = None if kernel is None or num_outputs == 1 else components(kernel)
    if parts is None:
        yield Check("rank of the output matrix", conclusion="the kernel has no output matrix", applies=False)
    else:
        matrix = sum(part[1] for part in parts).detach().numpy()
        values = np.sort(np.linalg.eigvalsh(matrix))[::-1].clip(0)
        rank = int(np.searchsorted(np.cumsum(values) / values.sum(), EXPLAINED_FRACTION) + 1)
        conclusion = f"{rank} of {num_outputs} directions account for {EXPLAINED_FRACTION:.0%} of the prior variance."
        advice = f"rank={rank} is enough." if rank < num_outputs - 1 and getattr(estimator, "rank", rank) > rank else ""
        yield Check("rank of the output matrix", float(rank), conclusion=conclusion, recommendation=advice)
    features = getattr(getattr(estimator, "gp_", None), "features", None)
    if features is None:
        yield Check("number of features", conclusion="the kernel is not approximated by features", applies=False)
    else:
        conclusion = "If scores improve with twice as many features, use more."
        yield Check("number of features", float(features.num_features), conclusion=conclusion)
