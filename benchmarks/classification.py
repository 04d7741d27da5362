"""Compare GPClassifier with scikit-learn's GaussianProcessClassifier: log loss, accuracy, calibration and CPU time, nothing tuned.

"real" and "digits": iris, wine, breast cancer and digits in the same 5 folds; "simulated": draws of Gaussian processes and of normal classes with known probabilities,
200 rows for training and 2000 for the scores. scikit-learn is used with its default kernel, which is not trained, and with `1.0 * RBF(1.0)`, whose
hyperparameters are, both on standardized inputs; its classes are learned one against the rest. The expected calibration error (ECE) is the mean difference
between confidence and accuracy in ten bins of the confidence; that of finitely many rows is positive even if the probabilities are right. CPU seconds are of fit and
prediction of one fold, on one thread; ratios compare runs of one process.

With digits, a fold of the trained model of scikit-learn takes minutes; `--quick` omits this section.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable

import numpy as np
from claims import heading, row
from scipy.special import softmax
from sklearn.base import ClassifierMixin
from sklearn.datasets import load_breast_cancer, load_digits, load_iris, load_wine
from sklearn.gaussian_process import GaussianProcessClassifier
from sklearn.gaussian_process.kernels import RBF
from sklearn.model_selection import StratifiedKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from timing import run_sections

import ovkgp

NUM_FOLDS, NUM_BINS = 5, 10
SETS = {"iris": load_iris, "wine": load_wine, "breast cancer": load_breast_cancer}
METHODS: dict[str, Callable[[], ClassifierMixin]] = {
    "ovkgp": lambda: ovkgp.GPClassifier(random_state=0),
    "scikit-learn, default": lambda: make_pipeline(StandardScaler(), GaussianProcessClassifier(random_state=0)),
    "scikit-learn, trained": lambda: make_pipeline(
        StandardScaler(), GaussianProcessClassifier(1.0 * RBF(1.0), random_state=0)
    ),
}


def expected_calibration_error(probabilities: np.ndarray, labels: np.ndarray) -> float:
    """Compute the mean difference of confidence and accuracy in bins of the confidence, weighted by their numbers of rows."""
    confidence, is_right = probabilities.max(1), probabilities.argmax(1) == labels
    bins = np.minimum((NUM_BINS * confidence).astype(int), NUM_BINS - 1)
    return float(sum(abs((confidence - is_right)[bins == k].sum()) for k in np.unique(bins)) / len(labels))


def log_loss(probabilities: np.ndarray, labels: np.ndarray) -> float:
    """Compute the mean of −log p of the labels 0, 1, …"""
    return -float(np.log(probabilities[np.arange(len(labels)), labels]).mean())


def score(make: Callable[[], ClassifierMixin], train: tuple, test: tuple) -> tuple[np.ndarray, float]:
    """Return the probabilities of the test rows, and CPU seconds of fit and prediction."""
    began = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        probabilities = make().fit(*train).predict_proba(test[0])
    return probabilities, time.process_time() - began


def import_modules() -> None:
    """Fit each method to a few rows, so that the modules it imports are not measured."""
    X = np.random.default_rng(0).normal(size=(12, 2))
    for make in METHODS.values():
        for num_classes in (2, 3):
            score(make, (X, np.arange(12) % num_classes), (X,))


def compare(title: str, splits: list[tuple[tuple, tuple]]) -> dict[str, np.ndarray]:
    """Print means over pairs (X, y) of training and test rows; return log loss, accuracy, ECE and seconds (splits, 4) by method."""
    found = {name: [] for name in METHODS}
    for train, test in splits:
        for name, make in METHODS.items():
            probabilities, seconds = score(make, train, test)
            accuracy = float((probabilities.argmax(1) == test[1]).mean())
            error = expected_calibration_error(probabilities, test[1])
            found[name].append((log_loss(probabilities, test[1]), accuracy, error, seconds))
    found = {name: np.array(values) for name, values in found.items()}
    heading(title, "", "log loss", "accuracy", "ECE", "CPU s", "CPU / ovkgp")
    for name, values in found.items():
        ratio = values[:, 3].sum() / found["ovkgp"][:, 3].sum()
        row(name, *values.mean(0), ratio)
    return found


def split_folds(X: np.ndarray, y: np.ndarray, num_folds: int = NUM_FOLDS) -> list[tuple[tuple, tuple]]:
    """Return the first of five shuffled and stratified folds."""
    folds = StratifiedKFold(NUM_FOLDS, shuffle=True, random_state=0).split(X, y)
    return [((X[train], y[train]), (X[test], y[test])) for train, test in list(folds)[:num_folds]]


def real(quick: bool = False) -> None:
    """Print the scores of iris, wine and breast cancer."""
    import_modules()
    for name, load in SETS.items():
        compare(f"{name}, 5 folds", split_folds(*load(return_X_y=True), 1 if quick else NUM_FOLDS))


def digits(quick: bool = False) -> None:
    """Print the scores of digits."""
    import_modules()
    if not quick:
        compare("digits, 5 folds", split_folds(*load_digits(return_X_y=True)))


def draw_classes(kind: str, seed: int, num_rows: int = 200, num_test: int = 2000) -> tuple[tuple, tuple]:
    """Draw training and test rows of 2 to 4 classes with 2 to 8 inputs."""
    rng = np.random.default_rng([seed, list(KINDS).index(kind)])
    num_classes, num_inputs, n = 2 + seed % 3, (2, 4, 8)[seed // 3 % 3], num_rows + num_test
    X, y = KINDS[kind](rng, n, num_inputs, num_classes)
    return (X[:num_rows], y[:num_rows]), (X[num_rows:], y[num_rows:])


def _draw_process(rng: np.random.Generator, n: int, d: int, num_classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw logits that are approximately a Gaussian process with a Gaussian kernel, √d times 1.2 long, and variance 9."""
    X, num_waves = rng.normal(size=(n, d)), 300
    phases = X @ rng.normal(size=(d, num_waves)) / (1.2 * np.sqrt(d)) + rng.uniform(0, 2 * np.pi, num_waves)
    logits = 3 * np.cos(phases) @ rng.normal(size=(num_waves, num_classes)) * np.sqrt(2 / num_waves)
    return X, (softmax(logits, axis=1).cumsum(1) < rng.random(n)[:, None]).sum(1)


def _draw_linear(rng: np.random.Generator, n: int, d: int, num_classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw linear logits."""
    X = rng.normal(size=(n, d))
    logits = X @ rng.normal(size=(d, num_classes)) * 2.5 / np.sqrt(d)
    return X, (softmax(logits, axis=1).cumsum(1) < rng.random(n)[:, None]).sum(1)


def _draw_normal_classes(rng: np.random.Generator, n: int, d: int, num_classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw classes with normal distributions of different means and scales."""
    y = rng.integers(0, num_classes, n)
    means, scales = 3 * rng.normal(size=(num_classes, d)) / np.sqrt(d), 0.5 + rng.random((num_classes, d))
    return means[y] + scales[y] * rng.normal(size=(n, d)), y


KINDS = {"process": _draw_process, "linear": _draw_linear, "normal classes": _draw_normal_classes}


def simulated(quick: bool = False) -> None:
    """Print the scores of simulated data."""
    import_modules()
    for kind in KINDS:
        compare(f"simulated: {kind}", [draw_classes(kind, 100 + seed) for seed in range(2 if quick else 9)])


if __name__ == "__main__":
    run_sections({"real": real, "simulated": simulated, "digits": digits}, __doc__.partition("\n")[0])
