"""Tests of the benchmark of classifiers: scores equal their formulas, and methods are compared on the same rows."""

import numpy as np
import pytest
from sklearn import metrics


@pytest.fixture
def classification(benchmark_of):
    return benchmark_of("classification")


def test_scores_equal_the_formulas(classification):
    rng = np.random.default_rng(0)
    labels, probabilities = rng.integers(0, 3, 500), rng.dirichlet(np.ones(3), 500)
    assert classification.log_loss(probabilities, labels) == pytest.approx(metrics.log_loss(labels, probabilities))
    sure = np.full((100, 2), [0.75, 0.25])
    assert classification.expected_calibration_error(sure, np.arange(100) % 4 // 3) == pytest.approx(0.0)
    assert classification.expected_calibration_error(sure, np.zeros(100, dtype=int)) == pytest.approx(0.25)
    mixed = np.concatenate([sure[:50], np.full((50, 2), [0.05, 0.95])])  # errors of two bins do not cancel
    labels = np.r_[np.zeros(50, dtype=int), np.zeros(10, dtype=int), np.ones(40, dtype=int)]
    assert classification.expected_calibration_error(mixed, labels) == pytest.approx(0.5 * 0.25 + 0.5 * 0.15)


@pytest.mark.parametrize("seed", [100, 104])
def test_methods_are_compared_on_the_same_rows(classification, capsys, seed):
    train, test = classification.draw_classes("process", seed, num_rows=30, num_test=40)
    assert train[0].shape[0] == 30 and len(np.unique(train[1])) == 2 + seed % 3
    found = classification.compare("toy", [(train, test)])
    assert found.keys() == classification.METHODS.keys()
    assert all(values.shape == (1, 4) and np.isfinite(values).all() for values in found.values())
    assert "scikit-learn, trained" in capsys.readouterr().out


def test_simulated_classes_have_the_probabilities_of_their_logits(classification):
    """A logistic regression of linear classes is calibrated, so that its error is that of 2000 rows."""
    from sklearn.linear_model import LogisticRegression

    train, test = classification.draw_classes("linear", 100, num_rows=3000)
    probabilities = LogisticRegression().fit(*train).predict_proba(test[0])
    assert classification.expected_calibration_error(probabilities, test[1]) < 0.03


def test_folds_are_those_of_five_stratified_folds(classification):
    y = np.arange(50) % 2
    folds = classification.split_folds(np.arange(100).reshape(50, 2), y)
    assert len(folds) == 5 and sorted(np.concatenate([test[0][:, 0] for _, test in folds])) == list(range(0, 100, 2))
