"""Data of the tests of the detectors: the spiral and the cancer data of KT-63 and KT-64, and exact rates of errors."""

from typing import NamedTuple

import numpy as np
from scipy.optimize import brentq
from scipy.stats import chi2
from sklearn.datasets import load_breast_cancer
from sklearn.metrics import roc_auc_score

from ovkgp.datasets import make_spiral


class Split(NamedTuple):
    """Training rows, new typical rows and outliers."""

    training: np.ndarray
    typical: np.ndarray
    outliers: np.ndarray

    def auc(self, model) -> float:
        """Area under the ROC curve of a fitted detector on the new rows."""
        labels = np.repeat([1, 0], [len(self.typical), len(self.outliers)])
        return roc_auc_score(labels, model.score_samples(np.vstack([self.typical, self.outliers])))


def spiral_split(seed: int, n: int = 500, num_new: int = 200) -> Split:
    """Rows of a spiral; outliers are on the opposite one."""
    training, typical, outliers = (
        make_spiral(m, random_state=3 * seed + i) for i, m in enumerate((n, num_new, num_new))
    )
    return Split(training, typical, -outliers)


def longer_spiral_split(seed: int) -> Split:
    """Rows of a spiral of 4/3 turns from radius .05 to 1.45, with noise in both directions; outliers are on the opposite one."""
    rng = np.random.default_rng(seed)
    turns = (4 / 3 * rng.random((n, 1)) for n in (500, 200, 200))
    training, typical, outliers = (
        (0.05 + 1.05 * turn) * np.c_[np.cos(2 * np.pi * turn), np.sin(2 * np.pi * turn)]
        + 0.032 * rng.standard_normal((len(turn), 2))
        for turn in turns
    )
    return Split(training, typical, -outliers)


def cancer_split(seed: int) -> Split:
    """200 benign rows for training, 157 others and 112 malignant ones; the first 10 columns with unit variance."""
    X, y = load_breast_cancer(return_X_y=True)
    X, rng = X[:, :10] / X[:, :10].std(0), np.random.default_rng(seed)
    benign, malignant = rng.permutation(X[y == 1]), rng.permutation(X[y == 0])
    return Split(benign[:200], benign[200:], malignant[:112])


def gram(x: np.ndarray, z: np.ndarray, gamma: float) -> np.ndarray:
    """Gaussian kernel exp(−γ‖x − z‖²)."""
    return np.exp(-gamma * np.square(x[:, None] - z).sum(-1))


def reference_p_values(X, Z, gamma: float, directions: np.ndarray, leave_one_out: bool) -> np.ndarray:
    """p-values (m,) of the second implementation that the tables were first compared with, for given directions (p, n)."""
    n = len(X)
    sums = gram(X, X, 2 * gamma).sum(1)
    variances = (sums - 1) / (n - 1) if leave_one_out else sums / n
    S = np.square(directions @ gram(X, Z, gamma)).sum(0) / n
    return chi2.cdf(S[:, None] / variances[None], len(directions)).mean(1)


def expected_rates(split: Split, gamma: float, num_projections: int, leave_one_out: bool) -> tuple[float, float]:
    """Fractions of flagged typical rows and of accepted outliers at level .05, on average over the directions.

    Given the rows, S(x) is S_n(x, x) χ²(p) (KT-46), and x is flagged if S(x) is below the value with PV = .05.
    """
    n, law = len(split.training), chi2(num_projections)
    sums = np.square(gram(split.training, split.training, gamma)).sum(1)
    variances = (sums - 1) / (n - 1) if leave_one_out else sums / n
    with np.errstate(divide="ignore", over="ignore"):
        log_s = brentq(lambda log_s: law.cdf(np.exp(log_s) / variances).mean() - 0.05, -60, 15)
        flagged = [
            law.cdf(np.exp(log_s) / np.square(gram(rows, split.training, gamma)).mean(1)).mean()
            for rows in (split.typical, split.outliers)
        ]
    return flagged[0], 1 - flagged[1]
