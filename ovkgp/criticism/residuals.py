"""Residuals of a fitted model that are independent and standard normal if the model is right, and how they were computed.

Errors of leave-one-out predictions depend on each other, so they are not tested. Gaussian models have whitened residuals
(K + Σ)^(−½)(y − m); other models have normal scores Φ⁻¹(u) of the probability integral transforms u of single entries.
"""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import ndtri
from scipy.stats import rankdata

from ovkgp.checks import as_seed
from ovkgp.criticism.predictive_distributions import MAX_SCORE
from ovkgp.exceptions import OptionError

MAX_JOINT_ROWS = 500  # held-out rows that are predicted jointly
MAX_JOINT_ENTRIES = 500  # entries whose covariance matrix is decomposed


@dataclass(frozen=True)
class JointErrors:
    """Errors y − m (N,) of some entries, their covariance (N, N) under the model, and its derivatives.

    `derivatives` holds ∂C/∂θ (N, N) of each trained hyperparameter: training makes Σ_j (e_j² − 1) v_jᵀ (∂C/∂θ) v_j / w_j zero, for
    eigenvalues w, eigenvectors v and e = vᵀ(y − m) / √w.
    """

    errors: np.ndarray
    covariance: np.ndarray
    derivatives: tuple[np.ndarray, ...] = ()


@dataclass(frozen=True)
class Residuals:
    """Residuals of n rows, independent standard normal if the model is right.

    Attributes
    ----------
    X : ndarray of shape (n, d)
        Inputs as numbers.
    values : ndarray of shape (n, p)
        Residuals, NaN where Y is missing.
    rows : ndarray of shape (n,)
        Index of each row among the given or stored ones.
    source : str
        How the residuals were computed, as a sentence.
    is_held_out : bool
        Whether the rows were held out of the fit.
    is_known : bool
        Whether no hyperparameter was trained. Otherwise means and variances of the residuals are estimated by the tests.
    is_joint : bool
        Whether residuals of different entries are independent under the model, or only those of one output.
    joint : JointErrors or None
        Errors and covariance of at most 500 entries.
    """

    X: np.ndarray
    values: np.ndarray
    rows: np.ndarray
    source: str
    is_held_out: bool
    is_known: bool
    is_joint: bool
    joint: JointErrors | None = None

    def fill(self, random_state: int) -> Residuals:
        """Replace residuals of missing entries by standard normal draws, which keeps the null hypothesis of every test."""
        draws = np.random.default_rng(random_state).standard_normal(self.values.shape)
        return replace(self, values=np.where(np.isfinite(self.values), self.values, draws))

    @classmethod
    def from_entries(cls, X: np.ndarray, scores: np.ndarray, is_held_out: bool, how: str) -> Residuals:
        """Make residuals of the normal scores (n, p) of single entries."""
        where = (
            "rows held out of the fit"
            if is_held_out
            else "the training rows themselves, which makes tests conservative"
        )
        source = f"Residuals are normal scores of {how} for {where}."
        return cls(X, scores, np.arange(len(X)), source, is_held_out, is_known=False, is_joint=False)


def residuals_of_entries(estimator, X=None, Y=None, random_state=None) -> Residuals:
    """Return the normal scores of the predictive distribution of each entry, at given or at stored rows."""
    seed = as_seed(random_state)
    if estimator.kind == "none":
        raise OptionError(
            f"{estimator.class_name} has no outputs, so it has no residuals. Pass an estimator with outputs."
        )
    is_held_out = X is not None
    rows = (X, Y) if is_held_out else estimator.training_data()
    if estimator.kind != "labels" and not estimator.has_predictive:
        estimator.predictive(X if rows is None else rows[0])  # raises
    if rows is None:
        raise OptionError("The model stores no training rows. Pass rows X and Y that were held out of the fit.")
    if estimator.kind == "labels":
        return _residuals_of_labels(estimator, *rows, is_held_out, seed)
    X, Y = estimator.check_rows(*rows)
    entries = estimator.predictive(rows[0]).at(Y)
    how = "the predictive distribution" if entries.is_gaussian else "the (randomized) probability integral transform"
    return Residuals.from_entries(X, entries.scores(seed), is_held_out, how)


def _residuals_of_labels(estimator, X, Y, is_held_out: bool, seed: int) -> Residuals:
    """Return the normal scores of randomized transforms u = P(class < y) + v P(class = y), with classes in their order."""
    if estimator.has_costs:
        raise OptionError(f"{estimator.class_name} predicts no probabilities, so its distributions cannot be tested.")
    probability, classes = estimator.predict_proba(X), np.asarray(estimator.classes_)
    X, labels = np.asarray(X, dtype=float), np.asarray(Y).reshape(-1)
    if len(labels) != len(X) or not np.isin(labels, classes).all():
        raise OptionError(f"Y must hold one of the classes {classes.tolist()} for each of the {len(X)} rows of X.")
    index = np.searchsorted(classes, labels)
    upto = np.cumsum(probability, axis=1)[np.arange(len(X)), index]
    fill = np.random.default_rng(seed).random(len(X))
    u = upto - fill * probability[np.arange(len(X)), index]
    scores = np.clip(ndtri(u), -MAX_SCORE, MAX_SCORE)[:, None]
    return Residuals.from_entries(
        X, scores, is_held_out, "the randomized probability integral transform of the classes"
    )


def match_rows(X: np.ndarray, Y: np.ndarray, stored: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    """Return the index (m,) of the stored row that each row of X, Y (m, ·) is equal to up to rounding, −1 if there is none.

    Equal rows are matched in their order.
    """
    table, reference = (np.column_stack(part) for part in ((X, Y), stored))
    scale = np.nanmax(np.abs(reference), axis=0, initial=0.0)
    scale = np.where(scale > 0, scale, 1.0)
    known = defaultdict(deque)
    for i, row in enumerate(_round(reference / scale)):
        known[row].append(i)
    return np.array([known[row].popleft() if known[row] else -1 for row in _round(table / scale)], dtype=int)


def _round(table: np.ndarray) -> list[bytes]:
    """Return rows as bytes that are equal for numbers equal up to rounding."""
    return [row.tobytes() for row in np.nan_to_num(np.round(table, 9) + 0.0, nan=2.0)]


def is_ordered_by(X: np.ndarray) -> np.ndarray:
    """Find the columns of X (n, d) by which the rows are sorted, up to a few rows, as a mask (d,)."""
    order = np.arange(len(X))
    with np.errstate(invalid="ignore"):
        found = [abs(np.corrcoef(rankdata(column), order)[0, 1]) for column in X.T]
    return np.nan_to_num(np.array(found)) > 0.99
