"""Checks of predictions in a table of criticism: coverage, scores, influential rows, predictive checks, and structure.

Predictive checks compare statistics of the observations with those of observations that the model draws. They are made for models
without whitened residuals: other likelihoods than the Gaussian one, counts, labels, and variational approximations.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from sklearn.utils import _safe_indexing

from ovkgp.criticism.calibration import Coverage
from ovkgp.criticism.predictive_distributions import EntryPredictions
from ovkgp.criticism.results import Check, HypothesisTest
from ovkgp.kernels import components
from ovkgp.metrics import crps_gaussian, log_density_gaussian, scorers

COVERAGE_LEVEL = 0.9  # level of the intervals whose coverage is shown
BAND_PROBABILITY = 0.99  # probability of the range of coverage that a right model has by chance
NUM_INFLUENTIAL = 5  # rows that are named
MIN_INFLUENCE = 1.0  # Cook's distance per degree of freedom that is worth a look
WORSE_THAN_MOMENTS = "The model predicts worse than the mean and variance of the outputs: check inputs and outliers."
MAX_FREEDOM = 0.8  # fraction of the number of entries above which the model nearly interpolates
EXPLAINED_FRACTION = 0.99  # of the trace that the rank of an output matrix accounts for
MAX_JOINT_DRAWS = 1000  # entries that are drawn jointly
DRAWS_NULL = "the observations are draws from the model"
REPLICATE_NAMES = (
    "predictive check: squared errors",
    "predictive check: largest error",
    "predictive check: smallest value",
)
REPLICATE_ADVICE = {
    "squared errors": 'The model allows for less or more variation than there is: for counts use likelihood="negative_binomial", else "student_t", or recalibrate intervals.',
    "largest error": 'Look at the row of the largest error, or use heavier tails: likelihood="student_t", for counts "negative_binomial".',
    "smallest value": "The smallest value, such as zero, has another frequency than the likelihood allows: model zeros and other values separately.",
    "log score": "Probabilities are too certain or too uncertain: choose lam by cross-validated log scores, or calibrate them.",
    "class frequencies": "Some classes are more frequent than predicted: check that the training rows are drawn as the new ones are.",
}


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


def check_replicates(estimator, X, Y, rows: np.ndarray, num_replicates: int, alpha: float, seed: int) -> list[Check]:
    """List predictive checks at some of the rows X, Y by their index, or why they do not apply."""
    options = {"num_replicates": num_replicates, "alpha": alpha}
    if estimator.kind == "labels":
        return _check_labels(estimator, _safe_indexing(X, rows), np.asarray(Y).reshape(-1)[rows], seed, **options)
    if not (estimator.has_posterior and estimator.has_predictive):
        return [Check("predictive checks", conclusion="they are made for labels and tables of outputs", applies=False)]
    outputs = estimator.check_rows(X, Y)[1]
    rows = rows[:: math.ceil(len(rows) * outputs.shape[1] / MAX_JOINT_DRAWS)]
    X, outputs = _safe_indexing(X, rows), outputs[rows]
    predicted = estimator.predictive(X)
    draws = np.reshape(estimator.sample_y(X, num_replicates, random_state=seed), (*outputs.shape, num_replicates))
    return _check_outputs(outputs, predicted.mean, predicted.std, np.moveaxis(draws, -1, 0), alpha)


def _check_outputs(Y, mean, std, draws, alpha: float) -> list[Check]:
    """Compare statistics of Y (m, p) with those of draws (B, m, p); of several outputs, the smallest p-value counts."""
    is_observed = np.isfinite(Y)

    def errors(values: np.ndarray) -> np.ndarray:
        return np.where(is_observed, np.square((values - mean) / std), 0.0)

    def frequency(values: np.ndarray) -> np.ndarray:
        return ((values == smallest) & is_observed).sum(-2) / counts

    counts = np.maximum(is_observed.sum(0), 1)
    smallest = np.minimum(np.nanmin(Y, axis=0, initial=np.inf), np.where(is_observed, draws, np.inf).min((0, 1)))
    checks = [
        _compare("squared errors", errors(Y).sum(-2) / counts, errors(draws).sum(-2) / counts, alpha),
        _compare("largest error", np.sqrt(errors(Y).max(-2)), np.sqrt(errors(draws).max(-2)), alpha),
    ]
    if frequency(draws).mean() * counts.max() > 1:
        return [*checks, _compare("smallest value", frequency(Y), frequency(draws), alpha)]
    return [*checks, Check(REPLICATE_NAMES[2], conclusion="outputs are continuous", applies=False)]


def _check_labels(estimator, X, labels, seed: int, num_replicates: int, alpha: float) -> list[Check]:
    """Compare the log score and the frequencies of classes with those of drawn labels."""
    probability = estimator.predict_proba(X)
    index = np.searchsorted(estimator.classes_, labels)
    uniform = np.random.default_rng(seed).random((num_replicates, len(labels), 1))
    draws = np.minimum((uniform > np.cumsum(probability, axis=1)).sum(-1), probability.shape[1] - 1)
    scores = np.log(np.maximum(probability, np.finfo(float).tiny))
    expected = probability.sum(0)

    def distance(drawn: np.ndarray) -> np.ndarray:
        counts = (drawn[..., None] == np.arange(probability.shape[1])).sum(-2)
        return (np.square(counts - expected) / np.maximum(expected, 1e-12)).sum(-1, keepdims=True)

    def log_score(drawn: np.ndarray) -> np.ndarray:
        return scores[np.arange(len(labels)), drawn].mean(-1, keepdims=True)

    return [
        _compare("log score", log_score(index), log_score(draws), alpha),
        _compare("class frequencies", distance(index), distance(draws), alpha),
    ]


def _compare(name: str, observed: np.ndarray, replicates: np.ndarray, alpha: float) -> Check:
    """Test statistics (p,) against replicates (B, p) in both directions; the smallest p-value is multiplied by p."""
    tests = []
    for value, drawn in zip(observed, replicates.T, strict=True):
        center = np.median(drawn)
        tests.append(
            HypothesisTest.from_replicates(name, abs(value - center), np.abs(drawn - center), DRAWS_NULL, alpha)
        )
    worst = min(range(len(tests)), key=lambda a: tests[a].pvalue)
    text = f"Observed: {observed[worst]:.3g}; draws from the model: {np.mean(replicates[:, worst]):.3g} on average."
    check = Check(f"predictive check: {name}", float(observed[worst]), min(1.0, tests[worst].pvalue * len(tests)))
    return replace(check, test=tests[worst], conclusion=text, if_rejected=text, recommendation=REPLICATE_ADVICE[name])


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
