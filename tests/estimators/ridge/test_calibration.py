"""Tests of `ovkgp.estimators.ridge.calibration`."""

import numpy as np
import pytest
from scipy.optimize import OptimizeResult, approx_fprime, minimize
from scipy.special import expit, log_softmax, softmax

from ovkgp.estimators.ridge import calibration as calibration_module
from ovkgp.estimators.ridge.calibration import Calibration, _loss_and_gradient, calibrate, deal_folds, lone_classes
from ovkgp.exceptions import FitWarning, InputError


def held_out(n=200, num_classes=3, seed=0, beta=4.0, unbalanced=True):
    """Draw scores that sum to zero, unknown fractions, labels with the probabilities of the formula, and class frequencies."""
    rng = np.random.default_rng(seed)
    scores = 0.6 * rng.standard_normal((n, num_classes))
    scores -= scores.mean(1, keepdims=True)
    unknown = rng.uniform(0, 0.3, n)
    frequencies = np.arange(1, num_classes + 1.0) if unbalanced else np.ones(num_classes)
    frequencies /= frequencies.sum()
    true = Calibration(beta, 0.5 * np.log(frequencies), frequencies, np.nan, 0, 0)
    p = softmax(true.logits(scores, unknown), axis=1)
    labels = (rng.random((n, 1)) > p.cumsum(1)[:, :-1]).sum(1)
    return scores, unknown, labels, frequencies


@pytest.mark.parametrize("at", [(0.0, 0.0), (1.3, -0.7), (-2.0, 2.0)])
def test_calibration_gradient_equals_finite_differences(at):
    scores, unknown, labels, frequencies = held_out()
    weight = np.random.default_rng(1).uniform(0, 2, len(labels))
    data = scores, unknown, labels, np.log(frequencies), weight
    _, gradient = _loss_and_gradient(np.array(at), *data)
    expected = approx_fprime(np.array(at), lambda v: _loss_and_gradient(v, *data)[0], 1e-7)
    np.testing.assert_allclose(gradient, expected, atol=1e-6)


def test_calibration_logits_equal_the_formula():
    scores, unknown, _, frequencies = held_out(4)
    calibration = Calibration(3.0, np.array([0.2, -0.1, 0.4]), frequencies, np.nan, 0, 0)
    for i in range(4):
        for k in range(3):
            u, s, b = unknown[i], scores[i, k], calibration.bias[k]
            expected = u * np.log(frequencies[k]) + (3.0 * s + (1 - u) * b) / np.sqrt(1 + np.pi / 8 * 9 * u)
            assert calibration.logits(scores, unknown)[i, k] == pytest.approx(expected)


def test_calibration_returns_class_frequencies_if_all_is_unknown():
    calibration = calibrate(*held_out())
    np.testing.assert_allclose(
        softmax(calibration.logits(np.zeros((1, 3)), np.ones(1)), axis=1)[0], [1 / 6, 1 / 3, 1 / 2]
    )


def test_calibration_is_less_certain_with_more_unknown():
    calibration = calibrate(*held_out(unbalanced=False))
    scores = np.tile([[0.8, -0.3, -0.5]], (5, 1))
    largest = softmax(calibration.logits(scores, np.linspace(0, 1, 5)), axis=1)[:, 0]
    assert (np.diff(largest) < 0).all()


def test_calibration_approximates_a_logistic_averaged_over_a_gaussian_margin():
    """MacKay: E σ(m + β √u ε) ≈ σ(m / √(1 + π/8 β² u)), to two digits, for a margin m = 2 β s between two classes."""
    noise, beta, u = np.random.default_rng(0).standard_normal(200_000), 1.5, 0.4
    calibration = Calibration(beta, np.zeros(2), np.array([0.5, 0.5]), np.nan, 0, 0)
    for s in (0.0, 0.3, 1.0):
        p = softmax(calibration.logits(np.array([[-s, s]]), np.array([u])), axis=1)[0, 1]
        assert p == pytest.approx(expit(2 * beta * s + beta * np.sqrt(u) * noise).mean(), abs=0.01)


def test_calibrate_recovers_the_true_parameters():
    calibration = calibrate(*held_out(20_000, beta=4.0))
    assert calibration.beta == pytest.approx(4.0, rel=0.05)
    np.testing.assert_allclose(calibration.bias, 0.5 * np.log([1 / 6, 1 / 3, 1 / 2]), atol=0.1)


def test_calibrate_minimizes_the_penalized_loss():
    scores, unknown, labels, frequencies = held_out(40)
    calibration = calibrate(scores, unknown, labels, frequencies)

    def loss(v):
        logits = Calibration(2 * np.exp(v[0]), v[1] * np.log(frequencies), frequencies, np.nan, 0, 0).logits(
            scores, unknown
        )
        return -log_softmax(logits, axis=1)[np.arange(40), labels].sum() + v[0] ** 2 / (2 * 1.5**2) + v[1] ** 2 / 2

    best = min(
        (
            minimize(loss, start, method="Nelder-Mead", options={"xatol": 1e-8, "fatol": 1e-10})
            for start in ([0, 0], [2, 0], [-2, 1], [0, -2])
        ),
        key=lambda found: found.fun,
    )
    assert calibration.beta == pytest.approx(2 * np.exp(best.x[0]), rel=1e-5)
    np.testing.assert_allclose(calibration.bias, best.x[1] * np.log(frequencies), atol=1e-5)


def test_calibrate_is_not_certain_for_separated_scores():
    labels = np.tile(np.arange(3), 4)
    scores = 1.5 * np.eye(3)[labels] - 0.5
    calibration = calibrate(scores, np.zeros(12), labels, np.full(3, 1 / 3))
    p = softmax(calibration.logits(scores, np.zeros(12)), axis=1).max(1)
    assert (p < 1 - 1e-4).all() and (p > 0.9).all()


def test_calibrate_ignores_uninformative_scores():
    scores, unknown, _, frequencies = held_out(2000, unbalanced=False)
    labels = np.random.default_rng(5).integers(0, 3, 2000)
    calibration = calibrate(scores, unknown, labels, frequencies)
    assert calibration.beta < 0.15
    assert calibration.log_loss == pytest.approx(np.log(3), abs=0.01)


def test_calibrate_requires_one_held_out_row():
    calibration = calibrate(np.array([[0.5, -0.5]]), np.array([0.1]), np.array([0]), np.array([0.5, 0.5]))
    assert 1.0 < calibration.beta < 3.0  # near the prior's K − 1
    with pytest.raises(InputError, match="hold out"):
        calibrate(np.zeros((0, 2)), np.zeros(0), np.zeros(0, dtype=int), np.array([0.5, 0.5]))


def test_calibrate_warns_without_convergence(monkeypatch):
    def stop_immediately(fun, x0, args, **options):
        return OptimizeResult(x=x0, jac=fun(x0, *args)[1])

    monkeypatch.setattr(calibration_module, "minimize", stop_immediately)
    with pytest.warns(FitWarning, match="converge"):
        calibrate(*held_out())


@pytest.mark.parametrize("scale", [1e-8, 1e-3, 1e3])
def test_calibrate_accepts_scores_of_any_size(scale, recwarn):
    scores, unknown, labels, frequencies = held_out()
    calibration = calibrate(scale * scores, unknown, labels, frequencies)
    assert not recwarn.list and 0 < calibration.beta < np.inf
    assert calibration.log_loss < 1.1  # log loss of class frequencies: 1.01; of equal ones: 1.10


def test_calibration_initial_value_has_the_slope_of_least_squares():
    """At β = K − 1 and equal scores, the softmax moves with the scores as p_k = (1 + (K − 1) s_k) / K does."""
    for K in (2, 3, 6):
        calibration = Calibration(K - 1.0, np.zeros(K), np.full(K, 1 / K), np.nan, 0, 0)
        step = 1e-5 * (np.eye(K)[:1] - 1 / K)
        p = softmax(calibration.logits(step, np.zeros(1)), axis=1)
        np.testing.assert_allclose(p, (1 + (K - 1) * step) / K, atol=1e-9)


def test_calibrate_weights_equal_repeated_rows():
    scores, unknown, labels, frequencies = held_out(30)
    weight = np.random.default_rng(2).integers(1, 4, 30)
    weighted = calibrate(scores, unknown, labels, frequencies, weight.astype(float))
    repeated = calibrate(*(part.repeat(weight, 0) for part in (scores, unknown, labels)), frequencies)
    assert weighted.beta == pytest.approx(repeated.beta, rel=1e-6)
    assert weighted.log_loss == pytest.approx(repeated.log_loss, rel=1e-9)


# --- folds --------------------------------------------------------------------------------------------------------------


def test_deal_folds_distributes_every_class_over_all_folds():
    rng = np.random.default_rng(0)
    X, labels = rng.standard_normal((103, 3)), rng.integers(0, 4, 103)
    folds = deal_folds(X, labels, 5)
    for k in range(4):
        sizes = np.bincount(folds[labels == k], minlength=5)
        assert sizes.max() - sizes.min() <= 1
    assert np.ptp(np.bincount(folds)) <= 1
    order = rng.permutation(103)
    np.testing.assert_array_equal(deal_folds(X[order], labels[order], 5), folds[order])
    np.testing.assert_array_equal(deal_folds(1e3 * X - 7, labels, 5), folds)  # other units


def test_deal_folds_keeps_duplicate_rows_together():
    X = np.repeat(np.random.default_rng(0).standard_normal((20, 2)), 3, axis=0)
    labels = np.random.default_rng(1).integers(0, 2, 60)
    folds = deal_folds(X, labels, 4).reshape(20, 3)
    assert (folds == folds[:, :1]).all() and set(folds[:, 0]) == set(range(4))


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        ([0] * 10 + [1] * 3, 3),
        ([0] * 10 + [1], 5),  # a class of one row does not limit the folds
        ([0, 1], 2),
        ([0, 1, 2], 3),
        ([0, 0, 1, 1], 2),
    ],
)
def test_deal_folds_limits_the_number_of_folds(labels, expected):
    X = np.arange(float(len(labels)))[:, None]
    assert set(deal_folds(X, np.array(labels), 5)) == set(range(expected))


def test_deal_folds_splits_copies_of_one_row():
    assert set(deal_folds(np.ones((6, 2)), np.array([0, 0, 0, 1, 1, 1]), 5)) == {0, 1, 2}


def test_lone_classes_have_one_distinct_row():
    X = np.array([[0.0], [1.0], [2.0], [2.0], [3.0]])
    np.testing.assert_array_equal(lone_classes(X, np.array([0, 0, 1, 1, 2])), [1, 2])
