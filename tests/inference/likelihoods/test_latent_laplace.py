"""Tests of the Laplace approximation of latent functions against dense algebra, automatic differentiation and differences."""

from functools import cache, partial

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from ovkgp.inference.likelihoods.latent_laplace import BinaryLabels, ClassLabels

n, m = 23, 6


def matern(X, Z, ell=1.3, variance=4.0):
    r = np.sqrt(5) * np.sqrt(np.square(X[:, None] - Z).sum(-1)) / ell
    return 1.0 + variance * (1 + r + r**2 / 3) * np.exp(-r)


def make_rows(num_classes, seed=0):
    rng = np.random.default_rng(seed)
    X, Z = rng.normal(size=(n, 2)), rng.normal(size=(m, 2))
    return X, Z, rng.integers(0, num_classes, n)


def make_labels(labels, num_classes):
    return BinaryLabels(labels) if num_classes == 2 else ClassLabels(labels, num_classes)


def dense_log_density(f, labels, num_classes):
    """log p(y | f) of a flat vector f (n,) or (C n,), class by class, with autograd."""
    y = torch.as_tensor(labels)
    if num_classes == 2:
        return (y * f - torch.nn.functional.softplus(f, threshold=700)).sum()
    return torch.log_softmax(f.reshape(num_classes, -1), 0)[y, torch.arange(len(y))].sum()


@cache
def dense_mode(num_classes, seed=0):
    """Maximize log p(y | f) − ½ fᵀ K⁻¹ f by L-BFGS and Newton steps on dense matrices; return f, W, log q and the covariance."""
    X, _, labels = make_rows(num_classes, seed)
    K = matern(X, X)
    big = torch.from_numpy(K if num_classes == 2 else np.kron(np.eye(num_classes), K))
    precision = torch.linalg.inv(big)
    density = partial(dense_log_density, labels=labels, num_classes=num_classes)

    def negative(v):
        f = torch.from_numpy(v).requires_grad_()
        value = 0.5 * f @ precision @ f - density(f)
        value.backward()
        return value.item(), f.grad.numpy()

    f = torch.from_numpy(minimize(negative, np.zeros(len(big)), jac=True, method="L-BFGS-B").x)
    for _ in range(6):
        gradient = torch.autograd.functional.jacobian(density, f) - precision @ f
        W = -torch.autograd.functional.hessian(density, f)
        f = f + torch.linalg.solve(precision + W, gradient)
    W = -torch.autograd.functional.hessian(density, f)
    assert torch.linalg.norm(torch.autograd.functional.jacobian(density, f) - precision @ f) < 1e-9
    log_det = torch.linalg.slogdet(torch.eye(len(big)) + W @ big)[1]
    value = density(f) - 0.5 * f @ precision @ f - 0.5 * log_det
    return f.numpy(), W.numpy(), float(value), big.numpy()


@pytest.mark.parametrize("num_classes", [2, 3, 4])
def test_mode_evidence_and_marginals_equal_dense_newton(num_classes):
    X, _, labels = make_rows(num_classes)
    K = matern(X, X)
    found = make_labels(labels, num_classes).find_mode(K)
    f, W, value, big = dense_mode(num_classes)
    np.testing.assert_allclose(found.values.ravel(), f, atol=1e-7)
    assert found.log_evidence == pytest.approx(value, abs=1e-8)
    np.testing.assert_allclose(found.coefficients @ K, found.values, atol=1e-10)
    covariance = np.linalg.inv(np.linalg.inv(big) + W)
    if num_classes == 2:
        np.testing.assert_allclose(found.marginals(), covariance.diagonal(), rtol=1e-6)
        return
    blocks = np.einsum("kili->ikl", covariance.reshape(num_classes, n, num_classes, n))
    np.testing.assert_allclose(found.marginals(), blocks, atol=1e-6)


@pytest.mark.parametrize("num_classes", [2, 3, 4])
def test_predictions_equal_dense_algebra(num_classes):
    X, Z, labels = make_rows(num_classes)
    K, cross, prior = matern(X, X), matern(Z, X), matern(Z, Z).diagonal()
    found = make_labels(labels, num_classes).find_mode(K)
    mean, covariance = found.predict(cross, prior)
    f, W, _, big = dense_mode(num_classes)
    wide = cross if num_classes == 2 else np.kron(np.eye(num_classes), cross)
    expected = wide @ np.linalg.solve(big, f)
    gain = wide @ W @ np.linalg.inv(np.eye(len(big)) + big @ W) @ wide.T
    if num_classes == 2:
        np.testing.assert_allclose(mean, expected, atol=1e-7)
        np.testing.assert_allclose(covariance, prior - gain.diagonal(), rtol=1e-7)
        return
    np.testing.assert_allclose(mean.T.ravel(), expected, atol=1e-7)
    blocks = np.einsum("kmlm->mkl", gain.reshape(num_classes, m, num_classes, m))
    np.testing.assert_allclose(covariance, prior[:, None, None] * np.eye(num_classes) - blocks, atol=1e-7)
    for rows in ([0], [4, 2]):  # a prediction does not depend on its batch
        alone = found.predict(cross[rows], prior[rows])
        np.testing.assert_allclose(alone[0], mean[rows], rtol=1e-12, atol=1e-13)
        np.testing.assert_allclose(alone[1], covariance[rows], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("num_classes", [2, 3, 5])
@pytest.mark.parametrize("variance", [0.5, 50.0])
def test_derivatives_by_the_covariance_equal_differences(num_classes, variance):
    """Along symmetric directions: those of the lengthscale, and random ones that keep K positive definite."""
    X, _, labels = make_rows(num_classes, seed=1)
    model = make_labels(labels, num_classes)
    K = matern(X, X, variance=variance)
    G = model.find_mode(K, tolerance=1e-13).by_covariance(K)
    root = np.random.default_rng(2).normal(size=(n, 3))
    directions = [matern(X, X, ell=1.35, variance=variance) - K, root @ root.T]
    for direction in directions:
        direction /= np.abs(direction).max()
        step = 1e-4
        ahead, behind = (model.find_mode(K + s * step * direction, tolerance=1e-13).log_evidence for s in (1, -1))
        assert np.vdot(G, direction) == pytest.approx((ahead - behind) / (2 * step), rel=2e-5, abs=1e-6)


def test_two_classes_equal_the_bernoulli_model_of_the_difference():
    """f_1 − f_0 has the covariance 2 K; the evidence is the same, and the derivatives are twice as large."""
    X, Z, labels = make_rows(2, seed=3)
    K, cross, prior = matern(X, X), matern(Z, X), matern(Z, Z).diagonal()
    classes = ClassLabels(labels, 2).find_mode(K)
    binary = BinaryLabels(labels).find_mode(2 * K)
    np.testing.assert_allclose(classes.values[1] - classes.values[0], binary.values, atol=1e-8)
    assert classes.log_evidence == pytest.approx(binary.log_evidence, abs=1e-9)
    G, expected = classes.by_covariance(K), 2 * binary.by_covariance(2 * K)
    np.testing.assert_allclose(G + G.T, expected + expected.T, atol=1e-8)
    mean, covariance = classes.predict(cross, prior)
    contrast = np.array([-1.0, 1.0])
    expected = binary.predict(2 * cross, 2 * prior)
    np.testing.assert_allclose(mean @ contrast, expected[0], atol=1e-8)
    np.testing.assert_allclose(contrast @ covariance @ contrast, expected[1], rtol=1e-8)
    mean, covariance = classes.leave_one_out()
    expected = binary.leave_one_out()
    np.testing.assert_allclose(mean @ contrast, expected[0], rtol=1e-6)
    np.testing.assert_allclose(contrast @ covariance @ contrast, expected[1], rtol=1e-6)


@pytest.mark.parametrize("num_classes", [2, 3])
def test_leave_one_out_removes_the_site_of_each_row(num_classes):
    """The Gaussian posterior of pseudo-observations, conditioned on all rows but one."""
    X, _, labels = make_rows(num_classes, seed=4)
    K = matern(X, X)
    found = make_labels(labels, num_classes).find_mode(K)
    mean, covariance = found.leave_one_out()
    f, W, _, big = dense_mode(num_classes, seed=4)
    C = 1 if num_classes == 2 else num_classes
    gradient = np.linalg.solve(big, f)
    natural, precision = W @ f + gradient, W.copy()
    for i in (0, 7, 22):
        rows = i + n * np.arange(C)
        others = np.setdiff1d(np.arange(C * n), rows)
        weight, target = precision.copy(), natural.copy()
        weight[rows], weight[:, rows], target[rows] = 0.0, 0.0, 0.0
        assert len(others) == C * (n - 1)
        joint = np.linalg.inv(np.linalg.inv(big) + weight)
        np.testing.assert_allclose(np.ravel(mean[i]), (joint @ target)[rows], rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(np.reshape(covariance[i], (C, C)), joint[np.ix_(rows, rows)], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("num_classes", [2, 3])
def test_mode_is_found_from_any_start_and_at_large_variances(num_classes):
    """Steps are halved where Newton's method overshoots; the mode is unique."""
    X, _, labels = make_rows(num_classes, seed=5)
    K = matern(X, X, variance=1e6)
    model = make_labels(labels, num_classes)
    found = model.find_mode(K)
    far = model.find_mode(K, init=10 * np.random.default_rng(0).normal(size=found.values.shape))
    near = model.find_mode(K, init=found.values)
    np.testing.assert_allclose(far.values, found.values, rtol=1e-5, atol=1e-4)
    again = model.approximate(K, found.coefficients)
    assert again.log_evidence == pytest.approx(found.log_evidence, rel=1e-9)
    assert near.steps <= 2 and near.log_evidence == pytest.approx(found.log_evidence, rel=1e-6)
    assert np.isfinite(found.by_covariance(K)).all() and np.isfinite(found.marginals()).all()
