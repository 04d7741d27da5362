"""Data of the tests of the detectors: the spiral and the cancer data of KT-63 and KT-64."""

from typing import NamedTuple

import numpy as np
from sklearn.datasets import load_breast_cancer
from sklearn.metrics import roc_auc_score


class Split(NamedTuple):
    """Training rows, new typical rows and outliers."""

    training: np.ndarray
    typical: np.ndarray
    outliers: np.ndarray

    def auc(self, model) -> float:
        """Area under the ROC curve of a fitted detector on the new rows."""
        labels = np.repeat([1, 0], [len(self.typical), len(self.outliers)])
        return roc_auc_score(labels, model.score_samples(np.vstack([self.typical, self.outliers])))


def spiral(n: int, rng: np.random.Generator) -> np.ndarray:
    """One turn of a spiral with noise .05 along its normal."""
    w = rng.uniform(size=n)
    angle, radius = 2 * np.pi * w, 2 * w + 1
    tangent = np.c_[np.cos(angle) - np.pi * radius * np.sin(angle), np.sin(angle) + np.pi * radius * np.cos(angle)]
    normal = np.c_[tangent[:, 1], -tangent[:, 0]] / np.linalg.norm(tangent, axis=1, keepdims=True)
    return np.c_[radius * np.cos(angle), radius * np.sin(angle)] / 3 + 0.05 * rng.standard_normal((n, 1)) * normal


def spiral_split(seed: int, n: int = 500, num_new: int = 200) -> Split:
    """Rows of a spiral; outliers are on the opposite one."""
    rng = np.random.default_rng(seed)
    return Split(spiral(n, rng), spiral(num_new, rng), -spiral(num_new, rng))


def cancer_split(seed: int) -> Split:
    """200 benign rows for training, 157 others and 112 malignant ones; the first 10 columns with unit variance."""
    X, y = load_breast_cancer(return_X_y=True)
    X, rng = X[:, :10] / X[:, :10].std(0), np.random.default_rng(seed)
    benign, malignant = rng.permutation(X[y == 1]), rng.permutation(X[y == 0])
    return Split(benign[:200], benign[200:], malignant[:112])
