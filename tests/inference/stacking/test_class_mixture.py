"""Tests of mixtures of Gaussian process classifiers: the log posterior of the hyperparameters, weights, calibration and rows."""

import numpy as np
import pytest
from scipy.special import softmax

from ovkgp.exceptions import FactorizationError
from ovkgp.inference.stacking import class_mixture
from ovkgp.inference.stacking.class_mixture import (
    CLASS_PRIORS,
    CONSTANT_VARIANCE,
    LaplaceEvidence,
    average_probabilities,
    class_candidates,
    fit_class_mixture,
    fit_power,
    make_labels,
    make_parameters,
    max_posterior_rows,
    stratified_order,
    temper,
    train_candidate,
)
from ovkgp.inference.stacking.output_kernel import OutputDensity


def draw_rows(n=40, num_classes=3, seed=0, d=2):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    logits = np.c_[np.zeros(n), 2 * X[:, :1], 3 * np.sin(2 * X[:, 1:2])][:, :num_classes]
    return X, (softmax(logits, axis=1).cumsum(1) < rng.random(n)[:, None]).sum(1)


@pytest.mark.parametrize("num_classes", [2, 3])
@pytest.mark.parametrize("index", [0, 1])
def test_gradient_of_the_log_posterior_equals_differences(monkeypatch, num_classes, index):
    monkeypatch.setattr(class_mixture, "SEARCH_TOLERANCE", 1e-13)
    X, labels = draw_rows(num_classes=num_classes)
    candidate = class_candidates(2)[index]
    parameters = make_parameters(candidate, X)
    density = OutputDensity(parameters, LaplaceEvidence(make_labels(labels, num_classes), parameters.kernel))
    u = parameters.loc + 0.1
    _, gradient = density(u)
    steps = 1e-4 * np.eye(len(u))
    differences = [(density(u + step)[0] - density(u - step)[0]) / 2e-4 for step in steps]
    np.testing.assert_allclose(gradient, differences, rtol=1e-4, atol=1e-5)


def test_covariance_has_a_constant_a_linear_and_a_smooth_term():
    X, _ = draw_rows()
    parameters = make_parameters(class_candidates(2)[0], X)
    theta = parameters.theta(parameters.loc)
    v, s2, ell = np.exp(0 - np.log(2)), np.exp(1.4), np.exp(0.7 + np.log(2) / 2)
    np.testing.assert_allclose(theta, [v, s2, ell])  # slopes at a typical input have the variance v d
    r = np.sqrt(5) * np.sqrt(np.square(X[:, None] - X).sum(-1)) / ell
    expected = CONSTANT_VARIANCE + v * X @ X.T + s2 * (1 + r + r**2 / 3) * np.exp(-r)
    np.testing.assert_allclose(parameters.kernel.matrix(theta)[0], expected, rtol=1e-10)
    assert CLASS_PRIORS.slope_variance[0] == 0.0


@pytest.mark.parametrize("num_classes", [2, 3])
def test_mixture_averages_probabilities_and_moments(num_classes):
    X, labels = draw_rows(num_classes=num_classes)
    Z = np.random.default_rng(1).normal(size=(7, 2))
    mixture = fit_class_mixture(X, labels, num_classes, class_candidates(2), None, 0)
    assert sum(part.weight for part in mixture.components) == pytest.approx(1)
    rng, draws = np.random.default_rng(2), []
    parts = []
    for part, (mean, covariance) in zip(mixture.components, mixture.latent(Z), strict=True):
        parts.append(part.weight * average_probabilities(mean, covariance))
        if num_classes == 2:
            draws.append(mean + np.sqrt(covariance) * rng.standard_normal((20_000, 7)))
        else:
            root = np.linalg.cholesky(covariance)
            f = mean + np.einsum("mkl,sml->smk", root, rng.standard_normal((20_000, 7, 3)))
            draws.append(f - f.mean(-1, keepdims=True))
            np.testing.assert_allclose(softmax(f, axis=-1).mean(0), parts[-1] / part.weight, atol=0.015)
    np.testing.assert_allclose(mixture.log_probabilities(Z), temper(sum(parts), mixture.power), rtol=1e-12)
    weights = [part.weight for part in mixture.components]
    mean = sum(w * f.mean(0) for w, f in zip(weights, draws, strict=True))
    second = sum(w * np.square(f).mean(0) for w, f in zip(weights, draws, strict=True))
    found = mixture.scores(Z)
    np.testing.assert_allclose(found[0], mean, atol=0.1)
    np.testing.assert_allclose(found[1], np.sqrt(second - mean**2), rtol=0.03)


def test_power_restores_the_temperature_of_probabilities():
    """Labels drawn from π, and predictions that are proportional to π^(1/τ)."""
    rng = np.random.default_rng(0)
    probabilities = rng.dirichlet(np.full(3, 0.7), 4000)
    labels = (probabilities.cumsum(1) < rng.random(4000)[:, None]).sum(1)
    flat = np.exp(temper(probabilities, 1 / 1.6))
    power = fit_power(flat, labels)
    assert power == pytest.approx(1.6, abs=0.1)
    np.testing.assert_allclose(np.exp(temper(flat, 1.6)), probabilities, rtol=1e-9, atol=1e-12)
    assert fit_power(np.full((10, 2), 0.5), np.arange(10) % 2) == pytest.approx(1, abs=0.01)  # the prior
    assert np.isfinite(temper(np.array([[1.0, 0.0]]), 5.0)).all()


def test_average_probabilities_keep_the_digits_of_rare_classes():
    found = average_probabilities(np.array([-60.0, 60.0]), np.full(2, 0.25))
    np.testing.assert_allclose(found[:, 0], [1.0, np.exp(-60 + 0.125)], rtol=1e-6)
    np.testing.assert_allclose(found[0], found[1, ::-1], rtol=1e-12)


def test_training_on_a_subset_extends_to_all_rows():
    X, labels = draw_rows(n=120)
    whole = fit_class_mixture(X, labels, 3, class_candidates(2), 50, 0)
    assert len(whole.X) == 120 and all(part.report.num_rows == 50 for part in whole.components)
    for (kernel, mode), part in zip(whole.modes, whole.components, strict=True):
        direct = make_labels(labels, 3).find_mode(kernel.matrix(part.theta)[0])  # from zero
        np.testing.assert_allclose(mode.values, direct.values, atol=1e-4)


def test_stratified_order_begins_with_all_classes():
    labels = np.repeat([0, 1, 2], [400, 100, 20])
    order = stratified_order(labels, 0)
    assert sorted(order) == list(range(520))
    np.testing.assert_allclose(np.bincount(labels[order[:130]]), [100, 25, 5], atol=1)
    np.testing.assert_array_equal(order, stratified_order(labels, 0))
    assert (order != stratified_order(labels, 1)).any()


def test_limits_of_rows_and_lengthscales():
    assert max_posterior_rows(2) == 4000 and max_posterior_rows(10) == 1788
    assert [candidate.has_lengthscales for candidate in class_candidates(20)] == [False, True]
    assert [candidate.has_lengthscales for candidate in class_candidates(1000)] == [False]


def test_covariance_that_is_not_finite_is_reported():
    X, labels = draw_rows()
    X[0, 0] = np.nan
    with pytest.raises(FactorizationError, match="duplicates"):
        train_candidate(class_candidates(2)[0], X, labels, 3)
