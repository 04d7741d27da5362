"""Tests of `ovkgp.functional.principal_components`."""

import numpy as np
import pytest

from ovkgp.exceptions import InputError
from ovkgp.functional import BSplines, Combination, Fourier, FunctionalData, PrincipalComponents

T = (np.arange(200) + 0.5) / 200
FOURIER = Fourier(3)


def curves(n=80, seed=0):
    scores = np.random.default_rng(seed).standard_normal((n, 2)) * [2.0, 0.7]
    return 3 * T + scores @ FOURIER(T)[:, 1:3].T, scores


def test_bo_c_16_scores_are_uncorrelated_with_the_eigenvalues_as_variances():
    Y, _ = curves()
    for options in ({}, {"dictionary": BSplines(15)}):
        components = PrincipalComponents(FunctionalData(Y, T, (0, 1)), 2, **options)
        assert np.allclose(components.scores.T @ components.scores / 80, np.diag(components.eigenvalues), atol=1e-10)
        assert np.allclose(components.gram(), np.eye(2), atol=2e-3)
        assert components.explained.sum() == pytest.approx(1, abs=1e-4)


def test_bo_c_16_routes_by_grid_and_by_dictionary_agree():
    Y, _ = curves()
    data = FunctionalData(Y, T, (0, 1))
    grid, coefficients = PrincipalComponents(data, 2), PrincipalComponents(data, 2, Fourier(3).subset([0, 1, 2]))
    assert np.allclose(grid.eigenvalues, coefficients.eigenvalues, rtol=1e-2)
    Z = Y - Y.mean(0) + 0.0
    data = FunctionalData(Z, T, (0, 1))  # in the span: both routes are exact
    grid, coefficients = PrincipalComponents(data, 2), PrincipalComponents(data, 2, FOURIER)
    assert np.allclose(grid.eigenvalues, coefficients.eigenvalues, rtol=1e-10)
    signs = np.sign((grid(T) * coefficients(T)).sum(0))
    assert np.allclose(grid(T), signs * coefficients(T), atol=1e-8)
    assert np.allclose(grid.scores, signs * coefficients.scores, atol=1e-8)


def test_rank_deficient_dictionaries_use_the_range_of_the_gram_matrix():
    Y, _ = curves()
    data = FunctionalData(Y - Y.mean(0), T, (0, 1))
    repeated = Combination(FOURIER, np.eye(5)[:, [0, 1, 1, 2, 3, 4]])
    found, expected = PrincipalComponents(data, 2, repeated), PrincipalComponents(data, 2, FOURIER)
    assert np.allclose(found.eigenvalues, expected.eigenvalues) and np.allclose(found.gram(), np.eye(2), atol=1e-10)


def test_number_of_components_by_fraction_of_variance():
    Y, _ = curves()
    data = FunctionalData(Y, T, (0, 1))
    assert PrincipalComponents(data, 0.5).num_functions == 1
    assert PrincipalComponents(data, 0.999).num_functions == 2
    everything = PrincipalComponents(data)
    assert everything.num_functions == 2 and np.allclose(everything.reconstruct(everything.scores, T), Y)


def test_bo_35_pooled_covariance_recovers_components_of_sparse_curves():
    """Three to seven noisy points per curve; scores are conditional expectations."""
    rng = np.random.default_rng(1)
    _, scores = curves(300, seed=1)
    grids = [np.sort(rng.uniform(size=rng.integers(3, 8))) for _ in range(300)]
    values = [
        3 * t + s @ FOURIER(t)[:, 1:3].T + 0.1 * rng.standard_normal(len(t)) for t, s in zip(grids, scores, strict=True)
    ]
    components = PrincipalComponents(FunctionalData(values, grids, (0, 1)), 2)
    assert np.allclose(components.gram(), np.eye(2), atol=1e-10)
    truth = scores @ FOURIER(T)[:, 1:3].T + 3 * T
    error = np.sqrt(np.mean((components.reconstruct(components.scores, T) - truth) ** 2))
    pooled_mean = np.sqrt(np.mean((components.mean(T)[:, 0] - truth) ** 2))
    assert error < 0.35 * pooled_mean
    assert np.allclose(components.eigenvalues, np.mean(scores**2, 0), rtol=0.25)


def test_pooled_scores_equal_the_dense_conditional_expectation():
    """Λ Ξᵀ(Ξ Λ Ξᵀ + σ²I)⁻¹ y."""
    Y, _ = curves(40)
    Y = Y[:, ::10].copy()
    Y[:20, :5] = np.nan
    data = FunctionalData(Y, T[::10], (0, 1))
    components = PrincipalComponents(data, 2)
    centered = data.center(components.mean)[0]
    (points, y) = next(iter(centered.curves()))
    rows, prior = components(points), np.diag(components.eigenvalues)
    dense = prior @ rows.T @ np.linalg.solve(rows @ prior @ rows.T + components.noise * np.eye(len(rows)), y[:, 0])
    assert np.allclose(components.scores[0], dense, atol=1e-8)


def test_bo_57_components_without_centering_are_the_best_low_rank_projection():
    """Eigenvectors of (1/n) Σ ĝ(x_i) ⊗ ĝ(x_i): the projection of curves on them has the error of the truncated SVD."""
    predictions = np.random.default_rng(0).standard_normal((30, 6)) @ Fourier(4)(T)[:, :6].T + 2.0
    data = FunctionalData(predictions, T, (0, 1))
    components = PrincipalComponents(data, 3, center=False)
    assert np.all(components.mean(T) == 0)
    projected = components.expand(components.inner(data, "trapezoid"), T)
    U, s, Vt = np.linalg.svd(predictions, full_matrices=False)
    assert np.allclose(projected, (U[:, :3] * s[:3]) @ Vt[:3], atol=1e-8)


def test_components_reject_invalid_data():
    with pytest.raises(InputError, match="equal"):
        PrincipalComponents(np.ones((4, 10)))
    with pytest.raises(InputError, match="channel"):
        PrincipalComponents(np.ones((4, 10, 2)))
    data = FunctionalData([[1.0, np.nan, 2.0], [0.0, 1.0, 2.0]], [0.0, 0.5, 1.0])
    with pytest.raises(InputError, match="grid"):
        PrincipalComponents(data, method="grid")
    with pytest.raises(InputError, match="dictionary"):
        PrincipalComponents(data, method="coefficients")
