"""Tests of `ovkgp.functional.dictionary_kernel`, and the identities of kernel projection learning (BO §6.2)."""

import numpy as np
import pytest
import torch
from gpytorch.kernels import RBFKernel

import ovkgp
from ovkgp.exceptions import OptionError
from ovkgp.functional import BSplines, Combination, DictionaryKernel, Fourier

LAM = 3e-3
N, M = 7, 11


def make_case(is_redundant=False, is_singular=False):
    """Return grid, inputs, centered curves, dictionary and B, with n ≠ m ≠ d and functions that are not orthonormal."""
    rng = np.random.default_rng(0)
    grid, X, Y = np.linspace(0, 1, M), rng.standard_normal((N, 2)), rng.standard_normal((N, M))
    dictionary = BSplines(5, [0, 1])
    if is_redundant:
        dictionary = Combination(dictionary, np.hstack([np.eye(5), rng.standard_normal((5, 2))]))
    d = len(dictionary)
    root = rng.standard_normal((d, d - 2 if is_singular else d))
    return grid, X, Y, dictionary, root @ root.T


def fit(grid, X, Y, dictionary, B):
    kernel = RBFKernel().double()
    kernel.lengthscale = torch.tensor(1.3, dtype=torch.float64)
    noise = N * M * LAM
    model = ovkgp.FunctionGPRegressor(
        "kernel", kernel, DictionaryKernel(dictionary, B), noise=noise, hyperparameters="fixed"
    )
    return model.fit(X, Y, grid=grid)


def gauss(a, b):
    return np.exp(-((a[:, None] - b) ** 2).sum(-1) / (2 * 1.3**2))


def parts(grid, X, Y, dictionary):
    """Return K_X, Φ, the empirical Gram matrix G and V = Φ#y (d, n)."""
    Phi = dictionary(grid)
    return gauss(X, X), Phi, Phi.T @ Phi / M, Phi.T @ Y.T / M


def projection_coefficients(K, G, B, V):
    """Return α of G B α K + nλ α = V, by the Kronecker system."""
    d = len(G)
    return np.linalg.solve(np.kron(K, G @ B) + N * LAM * np.eye(N * d), V.T.ravel()).reshape(N, d).T


@pytest.mark.parametrize(("is_redundant", "is_singular"), [(False, False), (False, True), (True, False)])
def test_mean_equals_kernel_projection_learning_bo_e_18(is_redundant, is_singular):
    grid, X, Y, dictionary, B = make_case(is_redundant, is_singular)
    K, _, G, V = parts(grid, X, Y, dictionary)
    alpha = projection_coefficients(K, G, B, V)
    new, points = np.random.default_rng(1).standard_normal((4, 2)), np.linspace(0.1, 0.9, 6)
    expected = (dictionary(points) @ B @ alpha @ gauss(X, new)).T
    np.testing.assert_allclose(fit(grid, X, Y, dictionary, B).predict(new, grid=points), expected, atol=1e-8)


def test_mean_equals_coefficient_process_with_correlated_noise():
    grid, X, Y, dictionary, B = make_case()
    K, _, G, V = parts(grid, X, Y, dictionary)
    targets = np.linalg.solve(G, V)  # least-squares coefficients
    C = np.kron(K, B) + N * LAM * np.kron(np.eye(N), np.linalg.inv(G))
    h = np.kron(K, B) @ np.linalg.solve(C, targets.T.ravel())
    expected = h.reshape(N, -1) @ dictionary(grid).T
    np.testing.assert_allclose(fit(grid, X, Y, dictionary, B).predict(X), expected, atol=1e-8)


def whitened(grid, X, Y, dictionary, B):
    """Return K_X, Φ G^(−½), C = G^½ B G^½ and the targets G^(−½) V."""
    K, Phi, G, V = parts(grid, X, Y, dictionary)
    values, vectors = np.linalg.eigh(G)
    root, inverse = vectors * np.sqrt(values) @ vectors.T, vectors / np.sqrt(values) @ vectors.T
    return K, Phi @ inverse, root @ B @ root, inverse @ V


def test_mean_equals_whitened_process_with_white_noise():
    grid, X, Y, dictionary, B = make_case()
    K, Psi, C, T = whitened(grid, X, Y, dictionary, B)
    d = len(C)
    w = np.kron(K, C) @ np.linalg.solve(np.kron(K, C) + N * LAM * np.eye(N * d), T.T.ravel())
    np.testing.assert_allclose(fit(grid, X, Y, dictionary, B).predict(X), w.reshape(N, d) @ Psi.T, atol=1e-8)


def test_covariance_equals_spectral_form():
    grid, X, Y, dictionary, B = make_case()
    K, Psi, C, _ = whitened(grid, X, Y, dictionary, B)
    (nu, U), (eta, W) = np.linalg.eigh(K), np.linalg.eigh(C)
    model, x = fit(grid, X, Y, dictionary, B), np.array([[0.3, -0.2]])
    q = U.T @ gauss(X, x)[:, 0]
    explained = np.array([value**2 * np.sum(q**2 / (nu * value + N * LAM)) for value in eta])
    S = C - W @ np.diag(explained) @ W.T
    expected = np.diag(Psi @ S @ Psi.T)
    _, std = model.predict(x, return_std=True, noise=False)
    np.testing.assert_allclose(std[0] ** 2, expected, atol=1e-8)
    _, noisy = model.predict(x, return_std=True)
    np.testing.assert_allclose(noisy[0] ** 2, expected + N * M * LAM, atol=1e-8)


def test_evidence_has_the_term_off_the_dictionary():
    grid, X, Y, dictionary, B = make_case()
    K, _, C, T = whitened(grid, X, Y, dictionary, B)
    d, sigma2 = len(C), N * M * LAM
    full = np.kron(K, C) + N * LAM * np.eye(N * d)
    y = T.T.ravel()
    inside = -0.5 * (y @ np.linalg.solve(full, y) + np.linalg.slogdet(full)[1] + N * d * np.log(2 * np.pi))
    Phi = dictionary(grid)
    residual = Y - Y @ Phi @ np.linalg.pinv(Phi)
    off = -0.5 * ((residual**2).sum() / sigma2 + N * (M - d) * np.log(2 * np.pi * sigma2))
    expected = inside - N * d / 2 * np.log(M) + off
    assert fit(grid, X, Y, dictionary, B).posterior_.log_evidence == pytest.approx(expected, abs=1e-8)


def test_derivatives_and_units_of_the_kernel():
    dictionary = Fourier(3, [0, 2])
    kernel = DictionaryKernel(dictionary, np.diag([1.0, 2, 3, 4, 5]), offset=[1.0], scale=[0.5])
    t, s, h = (torch.tensor([[v]], dtype=torch.float64) for v in (0.4, -0.7, 1e-5))
    slope = (kernel(t + h, s).to_dense() - kernel(t - h, s).to_dense()) / (2 * h)
    torch.testing.assert_close(kernel.derivative_covariance(t, s, 1, 0), slope, atol=1e-7, rtol=0)
    at = dictionary([1.2])[0], dictionary([0.65])[0]
    assert kernel(t, s).to_dense().item() == pytest.approx(at[0] @ np.diag([1.0, 2, 3, 4, 5]) @ at[1])
    with pytest.raises(OptionError, match="output_matrix"):
        DictionaryKernel(dictionary, np.eye(3))


def test_trained_dictionary_predicts_curves():
    rng = np.random.default_rng(0)
    grid, X = np.linspace(0, 1, 15), rng.uniform(-1, 1, (30, 1))
    Y = np.sin(2 * np.pi * grid) * X + np.cos(2 * np.pi * grid) * X**2 + 0.05 * rng.standard_normal((30, 15))
    model = ovkgp.FunctionGPRegressor(Fourier(3, [0, 1]), kernel="rbf", deviations=False).fit(X, Y, grid=grid)
    assert model.score(X, Y) > 0.97
    assert model.predict(X[:2], grid=[0.25], derivative=1).shape == (2, 1)
