"""Tests of `SimplexClassifier`: equivalence of codings, calibrated probabilities and scikit-learn's checks."""

import copy
import pickle

import numpy as np
import pandas as pd
import pytest
import torch
from gpytorch.kernels import LinearKernel, RBFKernel
from scipy.special import expit, log_softmax, softmax
from scipy.stats import norm
from sklearn.base import clone
from sklearn.datasets import load_digits, load_iris
from sklearn.exceptions import NotFittedError
from sklearn.metrics import log_loss
from sklearn.model_selection import GridSearchCV, StratifiedKFold
from sklearn.utils.estimator_checks import parametrize_with_checks

from ovkgp.estimators.ridge.orff_ridge import ORFFRidge
from ovkgp.estimators.ridge.ovk_ridge import OVKRidge
from ovkgp.estimators.ridge.simplex_classifier import SimplexClassifier
from ovkgp.exceptions import FitWarning, InputError, OptionError
from ovkgp.kernels import DecomposableKernel, simplex_code


@parametrize_with_checks([SimplexClassifier()])
def test_simplex_classifier_passes_scikit_learn_checks(estimator, check):
    check(estimator)


@pytest.mark.slow
@parametrize_with_checks(
    [SimplexClassifier(coding="one_hot", cv=2), SimplexClassifier(num_frequencies=30, cv=2, random_state=0)]
)
def test_simplex_classifier_passes_scikit_learn_checks_with_other_options(estimator, check):
    check(estimator)


def blobs(n=60, num_classes=3, seed=0, noise=0.7):
    """Draw inputs (n, 2) around the corners of a polygon, and their labels."""
    rng = np.random.default_rng(seed)
    y = rng.permutation(np.arange(n) % num_classes)
    angle = 2 * np.pi * y / num_classes
    return 2 * np.c_[np.cos(angle), np.sin(angle)] + noise * rng.standard_normal((n, 2)), y


def dense_scores(X, y, Xs, lam, lengthscale):
    """(Kx_* (Kx + λ I)⁻¹ E) CᵀC, and the variance of a score, in NumPy."""

    def gram(A, B):
        return np.exp(-0.5 * ((A[:, None] - B) ** 2).sum(-1) / lengthscale**2)

    K = y.max() + 1
    smoother = np.linalg.solve(gram(X, X) + lam * np.eye(len(X)), gram(X, Xs)).T
    variance = 1 - (smoother * gram(Xs, X)).sum(1)
    return smoother @ np.eye(K)[y] @ (K * np.eye(K) - 1) / (K - 1), variance


# --- the estimator ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_classes", [2, 3, 5])
def test_bt_80_scores_equal_dense_algebra(num_classes):
    X, y = blobs(60, num_classes)  # balanced classes: frequencies have no effect
    Xs = np.random.default_rng(1).uniform(-4, 4, (20, 2))
    model = SimplexClassifier(lam=0.3, lengthscale=1.5).fit(X, y)
    expected, variance = dense_scores(X, y, Xs, 0.3, 1.5)
    scores, std = model.scores(Xs, return_std=True)
    np.testing.assert_allclose(scores, expected, atol=1e-11)
    np.testing.assert_allclose(std, np.sqrt(np.repeat(variance[:, None], num_classes, 1)), rtol=1e-7)
    np.testing.assert_array_equal(model.predict(Xs), expected.argmax(1))
    np.testing.assert_allclose(scores.sum(1), 0, atol=1e-12)


@pytest.mark.parametrize("num_classes", [2, 3, 4, 7])
@pytest.mark.parametrize("num_frequencies", [None, 25])
def test_bt_80_one_hot_coding_equals_codes_at_a_smaller_lam(num_classes, num_frequencies):
    """Scores times (K − 1)/K at λ (K − 1)/K; standard deviations, held-out scores and probabilities are the same."""
    X, y = blobs(56, num_classes)
    Xs = np.random.default_rng(1).uniform(-6, 6, (30, 2))
    factor = (num_classes - 1) / num_classes
    options = {"num_frequencies": num_frequencies, "random_state": 3}
    codes = SimplexClassifier(lam=0.2 * factor, **options).fit(X, y)
    one_hot = SimplexClassifier(lam=0.2, coding="one_hot", **options).fit(X, y)
    (a, a_std), (b, b_std) = (model.scores(Xs, return_std=True) for model in (codes, one_hot))
    np.testing.assert_allclose(b, factor * a, atol=1e-10)
    np.testing.assert_allclose(b_std, a_std, rtol=1e-6)
    np.testing.assert_allclose(one_hot.predict_proba(Xs), codes.predict_proba(Xs), atol=1e-7)
    np.testing.assert_array_equal(one_hot.predict(Xs), codes.predict(Xs))


@pytest.mark.parametrize("num_classes", range(2, 8))
def test_bt_80_decoding_inverts_encoding(num_classes):
    """For isolated points and a small penalty, the score is 1 for the class and −1/(K − 1) for others."""
    X, y = 100.0 * np.arange(2 * num_classes)[:, None], np.tile(np.arange(num_classes), 2)
    model = SimplexClassifier(lam=1e-10, lengthscale=1.0).fit(X, y)
    code = simplex_code(num_classes).numpy()
    np.testing.assert_allclose(model.scores(X), (code.T @ code)[y], atol=1e-9)
    np.testing.assert_array_equal(model.predict(X), y)


def test_id_18_one_hot_scores_are_the_posterior_mean_of_a_process_with_zero_sum():
    X, y = blobs()
    model = SimplexClassifier(coding="one_hot", lam=0.5).fit(X, y)
    mean, cov = model.ridge_.predict(X, return_cov=True, noise=False)
    np.testing.assert_allclose(model.scores(X), mean, atol=1e-12)
    np.testing.assert_allclose(mean.sum(1), 0, atol=1e-12)
    np.testing.assert_allclose(cov.sum(2), 0, atol=1e-12)


def test_std_equals_that_of_posterior_draws():
    X, y = blobs(30)
    model = SimplexClassifier(lam=1.0).fit(X, y)
    draws = model.ridge_.sample_y(X[:4], 20_000, random_state=0, noise=False)  # (4, 2, 20000)
    scores = np.einsum("map,ak->mkp", draws, simplex_code(3).numpy())
    mean, std = model.scores(X[:4], return_std=True)
    np.testing.assert_allclose(scores.std(-1), std, rtol=0.03)  # standard error 1/√40000, six sigma
    np.testing.assert_allclose(scores.mean(-1), mean, atol=5 * std.max() / np.sqrt(20_000))


def test_random_features_approximate_the_exact_kernel():
    X, y = blobs(90)
    exact = SimplexClassifier(lam=1.0).fit(X, y)
    features = SimplexClassifier(lam=1.0, num_frequencies=300, random_state=0).fit(X, y)
    assert isinstance(exact.ridge_, OVKRidge) and isinstance(features.ridge_, ORFFRidge)
    assert np.abs(features.scores(X) - exact.scores(X)).max() < 0.1  # the error of the features is of order 1/√300
    assert np.abs(features.predict_proba(X) - exact.predict_proba(X)).max() < 0.1
    again = SimplexClassifier(lam=1.0, num_frequencies=300, random_state=0).fit(X, y)
    np.testing.assert_array_equal(again.predict_proba(X), features.predict_proba(X))


def test_bt_81_simplex_classifier_classifies_digits():
    """A small substitute for MNIST: the exact kernel and random features classify most held-out digits."""
    X, y = load_digits(return_X_y=True)
    X = X / 16
    train, test = slice(0, 600), slice(900, 1797)
    exact = SimplexClassifier(lam=[1e-3, 1e-2, 1e-1, 1.0]).fit(X[train], y[train])
    features = SimplexClassifier(lam=1e-2, num_frequencies=300, random_state=0).fit(X[train], y[train])
    assert exact.score(X[test], y[test]) > 0.93
    assert features.score(X[test], y[test]) > 0.90
    assert log_loss(y[test], exact.predict_proba(X[test])) < 0.35


# --- λ ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("coding", ["codes", "one_hot"])
@pytest.mark.parametrize("num_classes", [2, 3])
def test_lam_selection_holds_out_rows(coding, num_classes):
    X, y = blobs(60, num_classes, seed=1, noise=1.2)
    lams, factor = np.logspace(-4, 4, 17), (num_classes - 1) / num_classes
    model = SimplexClassifier(lam=lams, coding=coding, lengthscale=1.5).fit(X, y)
    targets = (np.eye(num_classes)[y] - 1 / num_classes) / factor
    errors = []
    for lam in lams * (1 if coding == "codes" else factor):
        held_out = [dense_scores(np.delete(X, i, 0), np.delete(y, i), X[[i]], lam, 1.5)[0][0] for i in range(60)]
        errors.append(((np.array(held_out) - targets) ** 2).mean())
    assert model.lam_ == lams[int(np.argmin(errors))]
    assert lams[0] < model.lam_ < lams[-1]
    assert model.noise_ == model.lam_ == model.ridge_.lam_


def test_lam_selection_does_not_depend_on_the_convention():
    X, y = blobs(60, 3, seed=1, noise=1.2)
    lams = np.logspace(-3, 2, 11)
    summed = SimplexClassifier(lam=lams, coding="one_hot").fit(X, y)
    counted = SimplexClassifier(lam=lams / 180, coding="one_hot", convention="samples").fit(X, y)
    assert counted.noise_ == pytest.approx(summed.noise_) and lams[0] < summed.lam_ < lams[-1]


def test_lam_selection_by_one_hot_entries_would_differ():
    """Each entry of a one-hot row follows from the other entries of the row."""
    X, y = blobs(60, 2, seed=1, noise=1.2)
    lams = np.logspace(-3, 2, 11)
    model = SimplexClassifier(lam=lams, coding="one_hot", lengthscale=1.5).fit(X, y)

    def error(lam):
        gp = model.ridge_.set_params(lam=lam).fit(X, np.eye(2)[y]).gp_
        return np.mean((gp.leave_one_out(X, np.eye(2)[y]).mean.numpy() - np.eye(2)[y]) ** 2)

    chosen = model.lam_
    assert min(lams, key=error) > 10 * chosen


def test_convention_sets_the_meaning_of_lam():
    X, y = blobs(40)
    model = SimplexClassifier(lam=0.01, convention="mean").fit(X, y)
    assert model.noise_ == pytest.approx(40 * 0.01)
    np.testing.assert_allclose(model.scores(X), SimplexClassifier(lam=0.4).fit(X, y).scores(X), atol=1e-12)


# --- probabilities ------------------------------------------------------------------------------------------------------


def overlapping(n, seed, prior=(0.5, 0.5)):
    """Draw from two Gaussians at ∓1 on a line, with the labels and the true probability of class 1."""
    rng = np.random.default_rng(seed)
    y = (rng.random(n) < prior[1]).astype(int)
    x = rng.standard_normal(n) + 2 * y - 1
    return x[:, None], y, expit(2 * x + np.log(prior[1] / prior[0]))


def three_gaussians(n, seed, prior=(0.6, 0.3, 0.1)):
    """Draw from three Gaussians in the plane, with the labels and the true probabilities (n, 3)."""
    rng, centers = np.random.default_rng(seed), 1.5 * np.array([[0, 1], [-0.9, -0.5], [0.9, -0.5]])
    y = rng.choice(3, n, p=prior)
    X = centers[y] + rng.standard_normal((n, 2))
    densities = norm.pdf(X[:, None] - centers).prod(-1) * prior
    return X, y, densities / densities.sum(1, keepdims=True)


def expected_calibration_error(p, truth, num_bins=10):
    """Σ_b (m_b / m) |mean of p − mean of truth| over bins of p."""
    bins = np.minimum((p * num_bins).astype(int), num_bins - 1)
    parts = [(bins == b) for b in range(num_bins)]
    return sum(part.mean() * abs(p[part].mean() - truth[part].mean()) for part in parts if part.any())


@pytest.mark.parametrize("prior", [(0.5, 0.5), (0.9, 0.1)])
def test_probabilities_are_close_to_ground_truth(prior):
    """The error of a frequency from 600 rows in ten bins is about √(0.25 / 60) = 0.06; measured: 0.01 to 0.04."""
    X, y, _ = overlapping(600, 0, prior)
    Xs, ys, truth = overlapping(4000, 1, prior)
    model = SimplexClassifier(lam=[0.03, 0.3, 3.0]).fit(X, y)
    p = model.predict_proba(Xs)
    assert expected_calibration_error(p[:, 1], truth) < 0.06
    assert expected_calibration_error(p[:, 1], ys) < 0.06 + 0.02  # the noise of the labels, √(0.25 / 400) per bin
    best = -np.mean(truth * np.log(truth) + (1 - truth) * np.log1p(-truth))
    assert best < log_loss(ys, p) + 0.02 and log_loss(ys, p) < best + 0.05
    assert log_loss(ys, p) < log_loss(ys, softmax(model.scores(Xs), axis=1)) - 0.01


@pytest.mark.parametrize("coding", ["codes", "one_hot"])
def test_probabilities_are_calibrated_for_three_unbalanced_classes(coding):
    X, y, _ = three_gaussians(500, 0)
    Xs, ys, truth = three_gaussians(4000, 1)
    model = SimplexClassifier(lam=0.3, coding=coding).fit(X, y)
    p = model.predict_proba(Xs)
    assert max(expected_calibration_error(p[:, k], truth[:, k]) for k in range(3)) < 0.06
    assert log_loss(ys, p) < -np.mean((truth * np.log(truth)).sum(1)) + 0.08
    assert log_loss(ys, p) < log_loss(ys, softmax(model.scores(Xs), axis=1)) - 0.1
    assert np.mean(truth[np.arange(4000), p.argmax(1)]) > np.mean(truth.max(1)) - 0.02  # close to the Bayes classifier


def test_probabilities_of_a_rare_class_are_calibrated_with_a_strong_penalty():
    """Scores of rare classes are shrunk most; the bias compensates for the penalty."""
    X, y, _ = overlapping(300, 0, (0.9, 0.1))
    Xs, _, truth = overlapping(4000, 1, (0.9, 0.1))
    p = SimplexClassifier(lam=10.0).fit(X, y).predict_proba(Xs)[:, 1]
    assert expected_calibration_error(p, truth) < 0.05


def test_probabilities_far_from_the_data_are_class_frequencies():
    X, y, _ = three_gaussians(200, 0)
    model = SimplexClassifier(lam=0.3).fit(X, y)
    far = model.predict_proba([[1e3, -1e3], [-2e3, 0.0]])
    np.testing.assert_allclose(far, np.tile(np.bincount(y) / 200, (2, 1)), atol=1e-9)
    assert model.predict_proba(X).max() > 0.95  # near the data, classes are distinguished


def test_probabilities_far_from_the_data_are_near_class_frequencies_with_features():
    """The guarded variance is that of the prior, but the mean does not vanish: it is noise of order 1/√D."""
    X, y, _ = three_gaussians(200, 0)
    model = SimplexClassifier(lam=0.3, num_frequencies=300, random_state=0).fit(X, y)
    rng = np.random.default_rng(0)
    far = rng.choice([-1, 1], (200, 2)) * rng.uniform(500, 3000, (200, 2))
    assert np.abs(model.predict_proba(far) - np.bincount(y) / 200).mean() < 0.06  # 0.03 measured


def test_probabilities_for_uninformative_inputs_are_class_frequencies():
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((300, 2)), (rng.random(300) < 0.2).astype(int)
    p = SimplexClassifier(lam=3.0).fit(X, y).predict_proba(rng.standard_normal((200, 2)))
    assert np.abs(p[:, 1] - y.mean()).mean() < 0.06


def test_calibration_log_loss_equals_that_of_refits():
    X, y = blobs(60, noise=1.0)
    cv = StratifiedKFold(3, shuffle=True, random_state=0)
    model = SimplexClassifier(lam=0.5, lengthscale=1.5, cv=cv).fit(X, y)
    log_p = []
    for train, test in cv.split(X, y):
        scores, variance = dense_scores(X[train], y[train], X[test], 0.5, 1.5)
        logits = model.calibration_.logits(scores, variance)
        log_p.append(log_softmax(logits, axis=1)[np.arange(len(test)), y[test]])
    assert model.calibration_.log_loss == pytest.approx(-np.mean(np.concatenate(log_p)), rel=1e-9)
    assert model.calibration_.num_rows == 60 and model.calibration_.num_folds == 3


def test_predict_agrees_with_decision_function_and_probabilities():
    for X, y in (blobs(60), blobs(60, 2), three_gaussians(100, 0)[:2], overlapping(80, 0, (0.8, 0.2))[:2]):
        model = SimplexClassifier().fit(X, y)
        Xs = np.random.default_rng(1).uniform(-9, 9, (200, X.shape[1]))
        p, decision = model.predict_proba(Xs), model.decision_function(Xs)
        np.testing.assert_array_equal(model.predict(Xs), p.argmax(1))
        np.testing.assert_allclose(model.predict_log_proba(Xs), np.log(p), atol=1e-10)
        np.testing.assert_allclose(p.sum(1), 1)
        if p.shape[1] == 2:
            np.testing.assert_allclose(expit(decision), p[:, 1], atol=1e-12)
        else:
            np.testing.assert_allclose(softmax(decision, axis=1), p, atol=1e-12)
            np.testing.assert_allclose(decision.sum(1), 0, atol=1e-10)


# --- degenerate data ----------------------------------------------------------------------------------------------------


def test_fit_accepts_labels_of_any_type():
    X, y = blobs(40, 2)
    expected = SimplexClassifier().fit(X, y)
    names = np.array(["yes", "no"])[1 - y]
    for labels in (names, pd.Series(names), y.astype(bool), torch.as_tensor(y), list(y), y.astype(float)):
        model = SimplexClassifier().fit(pd.DataFrame(X, columns=["a", "b"]), labels)
        np.testing.assert_array_equal(
            model.predict_proba(pd.DataFrame(X, columns=["a", "b"])), expected.predict_proba(X)
        )
    assert SimplexClassifier().fit(X, names).predict(X[:3]).dtype == names.dtype
    assert SimplexClassifier().fit(X, y.astype(bool)).predict(X).dtype == bool


def test_fit_rejects_one_class():
    with pytest.raises(InputError, match="'a'"):
        SimplexClassifier().fit(np.zeros((4, 1)), ["a"] * 4)
    with pytest.raises(InputError, match="one class"):
        SimplexClassifier().fit(np.zeros((4, 1)), [0, 0, 1, 1], sample_weight=[1, 1, 0, 0])


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_fit_rejects_invalid_inputs_and_restores_the_model(bad):
    X, y = blobs(30)
    model = SimplexClassifier().fit(X, y)
    before = model.predict_proba(X)
    X_bad = np.c_[X, X]
    X_bad[3, 1] = bad
    with pytest.raises(ValueError, match=r"NaN|infinity"):
        model.fit(X_bad, y)
    np.testing.assert_array_equal(model.predict_proba(X), before)
    with pytest.raises(ValueError, match=r"NaN|infinity"):
        model.predict_proba(X_bad[:, :2])


def test_fit_uses_fewer_folds_for_a_small_class():
    X, y = blobs(40, 2)
    y[:3] = 2
    assert SimplexClassifier().fit(X, y).calibration_.num_folds == 3


def test_fit_warns_about_a_class_with_one_row():
    X, y = blobs(40, 2)
    labels = np.array(["a", "b", "rare"])[y]
    labels[0] = "rare"
    with pytest.warns(FitWarning, match="'rare'") as caught:
        model = SimplexClassifier(lam=0.1).fit(X, labels)
    assert caught[0].filename == __file__
    p = model.predict_proba(X)
    assert np.isfinite(p).all() and (p > 0).all()
    assert model.calibration_.num_folds == 5
    far = model.predict_proba([[1e4, 1e4]])[0]
    np.testing.assert_allclose(far, [np.mean(labels == name) for name in ("a", "b", "rare")], atol=1e-9)


def test_probabilities_are_moderate_for_classes_with_one_row_each():
    """No other row has the class of a held-out row, so that scores get little weight."""
    X, y = 1.5 * np.arange(4)[:, None], np.arange(4)
    with pytest.warns(FitWarning):
        model = SimplexClassifier(lam=0.01, lengthscale=1.0).fit(X, y)
    np.testing.assert_array_equal(model.predict(X), y)
    assert model.calibration_.beta < 1 < 4 - 1  # its value without any row
    assert model.predict_proba(X).max() < 0.6


def test_duplicate_rows_are_held_out_together():
    X, y = blobs(30, 2, noise=2.0)
    once = SimplexClassifier(lam=1.0).fit(X, y)
    twice = SimplexClassifier(lam=2.0).fit(np.r_[X, X], np.r_[y, y])  # two copies at twice the noise are one row
    np.testing.assert_allclose(twice.scores(X), once.scores(X), atol=1e-10)
    assert twice.calibration_.log_loss == pytest.approx(
        once.calibration_.log_loss, abs=0.02
    )  # the priors have half the weight
    with pytest.warns(FitWarning, match="Class 0"):
        same = SimplexClassifier().fit(np.ones((6, 2)), [0, 1, 0, 0, 0, 0])
    assert 0.7 < same.predict_proba([[1.0, 1.0]])[0, 0] < 0.95  # five of six


def test_fit_does_not_depend_on_the_order_of_rows():
    X, y = blobs(50)
    order = np.random.default_rng(0).permutation(50)
    first, second = SimplexClassifier().fit(X, y), SimplexClassifier().fit(X[order], y[order])
    np.testing.assert_allclose(first.predict_proba(X), second.predict_proba(X), atol=1e-9)


@pytest.mark.parametrize("coding", ["codes", "one_hot"])
def test_sample_weights_equal_repeated_rows(coding):
    X, y = blobs(30)
    weight = np.random.default_rng(0).integers(0, 4, 30)
    weighted = SimplexClassifier(coding=coding).fit(X, y, sample_weight=weight)
    repeated = SimplexClassifier(coding=coding).fit(X.repeat(weight, 0), y.repeat(weight))
    np.testing.assert_allclose(weighted.calibration_.frequencies, repeated.calibration_.frequencies)
    np.testing.assert_allclose(weighted.scores(X), repeated.scores(X), atol=1e-10)
    np.testing.assert_allclose(weighted.predict_proba(X), repeated.predict_proba(X), atol=1e-7)


@pytest.mark.parametrize(
    ("weight", "message"),
    [([1.0] * 29, "shape"), ([-1.0] * 30, "nonnegative"), ([np.nan] * 30, "finite"), ([0] * 30, "zero")],
)
def test_fit_rejects_invalid_weights(weight, message):
    with pytest.raises(InputError, match=message):
        SimplexClassifier().fit(*blobs(30), sample_weight=weight)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"coding": "ecoc"}, "coding"),
        ({"kernel": "curl_free"}, "kernel"),
        ({"num_frequencies": 0}, "num_frequencies"),
        ({"cv": 1}, "cv"),
        ({"cv": None}, "cv"),
        ({"cv": 2.5}, "cv"),
        ({"cv": []}, "cv"),
        ({"lam": 0.0}, "lam"),
        ({"convention": "max"}, "convention"),
        ({"solver": "magic"}, "solver"),
        ({"lengthscale": -1.0}, "lengthscale"),
    ],
)
def test_fit_rejects_invalid_options(options, message):
    with pytest.raises((OptionError, InputError), match=message):
        SimplexClassifier(**options).fit(*blobs(30))


def test_fit_requires_a_kernel_object_with_as_many_outputs_as_targets():
    X, y = blobs(40)
    base = RBFKernel().double()
    base.lengthscale = 1.5
    kernel = DecomposableKernel(base, output_matrix=torch.eye(2, dtype=torch.float64))
    named = SimplexClassifier(lengthscale=1.5).fit(X, y)
    np.testing.assert_allclose(SimplexClassifier(kernel).fit(X, y).predict_proba(X), named.predict_proba(X), atol=1e-9)
    with pytest.raises(InputError, match="kernel"):
        SimplexClassifier(kernel, coding="one_hot").fit(X, y)
    free = DecomposableKernel(base, output_matrix=torch.eye(3, dtype=torch.float64))
    np.testing.assert_allclose(SimplexClassifier(free, coding="one_hot").fit(X, y).scores(X).sum(1), 0, atol=1e-12)


# --- scikit-learn ------------------------------------------------------------------------------------------------------


def test_simplex_classifier_can_be_copied_pickled_and_searched():
    X, y = load_iris(return_X_y=True)
    model = SimplexClassifier(lam=0.1).fit(X, y)
    for again in (pickle.loads(pickle.dumps(model)), copy.deepcopy(model)):
        np.testing.assert_array_equal(again.predict_proba(X), model.predict_proba(X))
    with pytest.raises(NotFittedError):
        clone(model).scores(X)
    search = GridSearchCV(SimplexClassifier(cv=3), {"lam": [0.1, 100.0]}, scoring="neg_log_loss", cv=3).fit(X, y)
    assert search.best_params_ == {"lam": 0.1} and search.best_score_ > -0.25


def test_fit_shows_progress_if_verbose(capsys):
    SimplexClassifier(verbose=1).fit(*blobs(30))
    assert "folds: 100%" in capsys.readouterr().err
    SimplexClassifier().fit(*blobs(30))
    assert capsys.readouterr().err == ""


def test_fit_does_not_change_global_state():
    torch.manual_seed(3)
    np.random.seed(3)  # noqa: NPY002
    before = torch.get_rng_state(), np.random.get_state()[1].copy(), torch.get_default_dtype()  # noqa: NPY002
    SimplexClassifier(num_frequencies=20, random_state=0).fit(*blobs(30)).predict_proba([[0.0, 0.0]])
    assert torch.equal(torch.get_rng_state(), before[0]) and torch.get_default_dtype() == before[2]
    np.testing.assert_array_equal(np.random.get_state()[1], before[1])  # noqa: NPY002


def test_probabilities_are_class_frequencies_if_the_kernel_vanishes():
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(40, 2)), np.arange(40) % 2
    X[3] = 0.0
    kernel = DecomposableKernel(LinearKernel(), output_matrix=torch.eye(1))
    model = SimplexClassifier(kernel=kernel).fit(X, y)
    assert np.isfinite(model.calibration_.log_loss)
    np.testing.assert_allclose(model.predict_proba([[0.0, 0.0]]), [[0.5, 0.5]])
