"""Tests of `ovkgp.estimators.functional.functional_ridge`."""

from functools import partial

import numpy as np
import pytest
import torch
from gpytorch.kernels import RBFKernel
from sklearn.utils.estimator_checks import parametrize_with_checks

import ovkgp
from ovkgp.estimators.functional.basis_ridge import fit_projected, make_exact
from ovkgp.estimators.functional.coordinates import gram_coordinates, project_plug_in
from ovkgp.estimators.functional.functional_ridge import MAX_ANCHORS
from ovkgp.functional import FunctionalData
from ovkgp.functional.eigenfunctions import EigenFactor, sampled_eigenpairs
from ovkgp.losses import TaskMeasure

N, M, LAM = 8, 12, 1e-2
OPTIONS = {"lengthscale": 1.3, "lam": LAM, "fit_intercept": False, "scale": "given"}
OUTPUT = {"output_kernel": "rbf", "output_lengthscale": 0.3}


def gauss(a, b, lengthscale):
    return np.exp(-((a[:, None] - b[None]) ** 2).sum(-1) / (2 * lengthscale**2))


def fit_in_basis(model, X, coordinates):
    """Fit other coordinates than those of the model to its curves, by averages over points."""
    curves = model._training_curves
    projected = project_plug_in(coordinates, curves, model.quadrature)
    fit_projected(model, X, curves, coordinates, projected, partial(make_exact, model, "rbf", coordinates.variances))


@pytest.fixture
def data():
    rng = np.random.default_rng(0)
    X, grid, Y = rng.standard_normal((N, 3)), np.sort(rng.uniform(0, 1, M)), rng.standard_normal((N, M))
    return X, grid, Y, rng.standard_normal((4, 3)), np.array([0.3, 0.5, 0.77])


def oracle(X, grid, Y, Xs, new, noise):
    observed, points = np.isfinite(Y).ravel(), (grid[:, None], new[:, None])
    C = np.kron(gauss(X, X, 1.3), gauss(points[0], points[0], 0.3)) + np.diag(noise.ravel())
    cross = np.kron(gauss(Xs, X, 1.3), gauss(points[1], points[0], 0.3))[:, observed]
    C = C[observed][:, observed]
    mean = (cross @ np.linalg.solve(C, Y.ravel()[observed])).reshape(len(Xs), -1)
    joint = np.kron(np.ones((len(Xs),) * 2), gauss(points[1], points[1], 0.3)) - cross @ np.linalg.solve(C, cross.T)
    k = len(new)
    blocks = np.stack([joint[i * k : (i + 1) * k, i * k : (i + 1) * k] for i in range(len(Xs))])
    return mean, blocks


@parametrize_with_checks([ovkgp.FunctionalRidge()])
def test_scikit_learn_checks_pass(estimator, check):
    check(estimator)


@pytest.mark.slow
@parametrize_with_checks([ovkgp.FunctionalRidge(quadrature="trapezoid", lam=[1e-4, 1e-2])])
def test_scikit_learn_checks_pass_with_other_options(estimator, check):
    check(estimator)


@pytest.mark.parametrize("quadrature", ["mean", "trapezoid"])
def test_functional_ridge_is_the_grid_process(data, quadrature):
    """BO-50 with noise nλ/η, nmλ for equal weights (BO-E-12), at points between the grid, with the covariance along the curve."""
    X, grid, Y, Xs, new = data
    curves = FunctionalData(Y, grid, (0, 1))
    model = ovkgp.FunctionalRidge(quadrature=quadrature, **OUTPUT, **OPTIONS).fit(X, curves)
    mean, blocks = oracle(X, grid, Y, Xs, new, np.tile(N * LAM / curves.weights(quadrature), (N, 1)))
    got, std = model.predict(Xs, new, return_std=True, noise=False)
    np.testing.assert_allclose(got, mean, atol=1e-8)
    np.testing.assert_allclose(std**2, np.diagonal(blocks, axis1=1, axis2=2), atol=1e-8)
    np.testing.assert_allclose(model._predict_remainder(Xs, new[:, None], "output")[1], blocks, atol=1e-8)


def test_functional_ridge_solves_the_sylvester_equation_bo_e_12(data):
    """BO-50, LT-81: K_T A K_X + λmn A = Y, prediction k_Θ(θ)ᵀ A k_X(x) without a factor 1/m (BO-E-12)."""
    X, grid, Y, Xs, new = data
    KT, KX = gauss(grid[:, None], grid[:, None], 0.3), gauss(X, X, 1.3)
    system = np.kron(KX, KT) + N * M * LAM * np.eye(N * M)
    A = np.linalg.solve(system, Y.T.ravel(order="F")).reshape((M, N), order="F")
    np.testing.assert_allclose(KT @ A @ KX + N * M * LAM * A, Y.T, atol=1e-10)
    model = ovkgp.FunctionalRidge(**OUTPUT, **OPTIONS).fit(X, FunctionalData(Y, grid, (0, 1)))
    expected = (gauss(new[:, None], grid[:, None], 0.3) @ A @ gauss(X, Xs, 1.3)).T
    np.testing.assert_allclose(model.predict(Xs, new), expected, atol=1e-8)


@pytest.mark.parametrize("ragged", [False, True])
def test_gaps_are_exact(data, ragged):
    X, grid, Y, Xs, new = data
    Y = np.where(np.random.default_rng(3).random(Y.shape) < 0.3, np.nan, Y)
    curves = FunctionalData(Y, grid, (0, 1))
    if ragged:
        observed = np.isfinite(Y)
        curves = FunctionalData([y[o] for y, o in zip(Y, observed, strict=True)], [grid[o] for o in observed], (0, 1))
    model = ovkgp.FunctionalRidge(**OUTPUT, **OPTIONS).fit(X, curves)
    noise = np.repeat(N * LAM * np.isfinite(Y).sum(1), M).reshape(N, M)
    mean, blocks = oracle(X, grid, Y, Xs, new, noise)
    got, std = model.predict(Xs, new, return_std=True, noise=False)
    np.testing.assert_allclose(got, mean, atol=1e-7)
    np.testing.assert_allclose(std**2, np.diagonal(blocks, axis1=1, axis2=2), atol=1e-7)


def test_sampled_eigenfunctions_equal_the_grid_bo_e_13(data):
    """C-18, LT B-07: all m empirical eigenfunctions, with the denominators ν_iλ_l + nλ of BO-E-13, give the estimate on the grid."""
    X, grid, Y, Xs, new = data
    curves = FunctionalData(Y, grid, (0, 1))
    expected = ovkgp.FunctionalRidge(**OUTPUT, **OPTIONS).fit(X, curves).predict(Xs, new)
    pairs = sampled_eigenpairs(rbf(0.3), TaskMeasure(grid), cutoff=1e-15)
    model = ovkgp.FunctionalRidge(basis="eigen", **OUTPUT, **OPTIONS).fit(X, curves)
    fit_in_basis(model, X, gram_coordinates(EigenFactor(pairs), np.diag(pairs.values.numpy())))
    np.testing.assert_allclose(model.predict(Xs, new), expected, atol=1e-6)
    # the closed form itself
    R, (nu, V) = pairs.coefficients(torch.from_numpy(Y), TaskMeasure(grid)).numpy(), np.linalg.eigh(gauss(X, X, 1.3))
    A = V @ ((V.T @ R) / (np.outer(nu, pairs.values) + N * LAM))
    rows = EigenFactor(pairs)(torch.from_numpy(new)[:, None]).numpy() * np.sqrt(pairs.values.numpy())
    np.testing.assert_allclose(gauss(Xs, X, 1.3) @ A @ rows.T, expected, atol=1e-6)


@pytest.mark.parametrize("count", [3, 8])
def test_lt_e_01_the_coefficients_of_the_eigenbasis(data, count):
    """LT-80: α = V [λn/(λn + σ_i λ_j) (VᵀR)_ij] solves (K ⊗ Λ + λn) α = λn R; with the printed 1/(λ + σ_i λ_j) it does not."""
    X, grid, Y, Xs, new = data
    pairs, measure = sampled_eigenpairs(rbf(0.3), TaskMeasure(grid), cutoff=1e-15).first(count), TaskMeasure(grid)
    R, values = pairs.coefficients(torch.from_numpy(Y), measure).numpy(), pairs.values.numpy()
    sigma, V = np.linalg.eigh(gauss(X, X, 1.3))
    alpha = V @ (LAM * N / (LAM * N + np.outer(sigma, values)) * (V.T @ R))
    printed = V @ ((V.T @ R) / (LAM + np.outer(sigma, values)))
    functions = values[:, None] * pairs.functions(torch.from_numpy(new)).numpy().T
    model = ovkgp.FunctionalRidge(basis="eigen", **OUTPUT, **OPTIONS).fit(X, FunctionalData(Y, grid, (0, 1)))
    fit_in_basis(model, X, gram_coordinates(EigenFactor(pairs), np.diag(values)))
    expected = gauss(Xs, X, 1.3) @ alpha @ functions / (LAM * N)
    np.testing.assert_allclose(model.predict(Xs, new), expected, atol=1e-8)
    assert np.abs(gauss(Xs, X, 1.3) @ printed @ functions / (LAM * N) - expected).max() > 0.01


def test_truncated_basis_gives_the_ridge_of_the_truncated_kernel(data):
    """LT B-08: k_X Σ_{j ≤ d} λ_j ψ_j ψ_j, by a dense solve on the grid, where the ψ_j are orthonormal."""
    X, grid, Y, Xs, new = data
    pairs = sampled_eigenpairs(rbf(0.3), TaskMeasure(grid), cutoff=1e-15).first(3)
    model = ovkgp.FunctionalRidge(basis="eigen", **OUTPUT, **OPTIONS).fit(X, FunctionalData(Y, grid, (0, 1)))
    coordinates = gram_coordinates(EigenFactor(pairs), np.diag(pairs.values.numpy()))
    fit_in_basis(model, X, coordinates)
    at_grid, at_new = (EigenFactor(pairs)(torch.from_numpy(points)[:, None]).numpy() for points in (grid, new))
    C = np.kron(gauss(X, X, 1.3), at_grid @ at_grid.T) + N * M * LAM * np.eye(N * M)
    cross = np.kron(gauss(Xs, X, 1.3), at_new @ at_grid.T)
    expected = (cross @ np.linalg.solve(C, Y.ravel())).reshape(len(Xs), -1)
    np.testing.assert_allclose(model.predict(Xs, new), expected, atol=1e-8)


@pytest.fixture
def representer(data):
    """Representer coefficients a (n, m), h = Σ_i k(·, x_i) K_T a_i, and the residuals Y − h of the fit."""
    X, grid, Y, Xs, _ = data
    model = ovkgp.FunctionalRidge(**OUTPUT, **OPTIONS).fit(X, FunctionalData(Y, grid, (0, 1)))
    system = np.kron(gauss(X, X, 1.3), gauss(grid[:, None], grid[:, None], 0.3)) + N * M * LAM * np.eye(N * M)
    return np.linalg.solve(system, Y.ravel()).reshape(N, M), Y - model.predict(X, grid), model.predict(Xs, grid)


def test_lt_e_38_dual_and_representer_coefficients_differ_by_the_ridge(representer):
    """α_dual = λnm α_rep; the dual ones are the residuals Y − h."""
    a, dual, _ = representer
    np.testing.assert_allclose(dual, LAM * N * M * a, atol=1e-8)
    assert np.abs(dual - a).max() > 0.1


def test_lt_e_39_another_output_matrix_with_the_same_function(data, representer):
    """LT B-30: rows α ↦ α A₁ A₂⁻¹, not α A₂⁻¹ A₁."""
    (X, grid, _, Xs, _), (a, _, predicted) = data, representer
    root = np.random.default_rng(1).standard_normal((M, M))
    cross, A1, A2 = gauss(Xs, X, 1.3), gauss(grid[:, None], grid[:, None], 0.3), root @ root.T + 0.5 * np.eye(M)
    np.testing.assert_allclose(cross @ (a @ A1 @ np.linalg.inv(A2)) @ A2, predicted, atol=1e-8)
    assert np.abs(cross @ (a @ np.linalg.inv(A2) @ A1) @ A2 - predicted).max() > 1e-2


def rbf(lengthscale):
    kernel = RBFKernel().double().requires_grad_(False)
    kernel.lengthscale = lengthscale
    return kernel


def test_eigenfunctions_approximate_the_grid(data):
    X, _, _, Xs, new = data
    grid = (np.arange(200) + 0.5) / 200
    Y = np.sin(2 * X[:, :1] + 4 * grid)
    curves = FunctionalData(Y, grid, (0, 1))
    on_grid, eigen = (ovkgp.FunctionalRidge(basis=b, **OUTPUT, **OPTIONS).fit(X, curves) for b in ("grid", "eigen"))
    np.testing.assert_allclose(eigen.predict(Xs, new), on_grid.predict(Xs, new), atol=2e-3)
    assert eigen.truncated_variance_ < 1e-8
    assert (np.diff(eigen.eigenvalues_) < 0).all()
    assert pytest.approx(eigen.eigenvalues_.sum(), abs=1e-6) == 1.0  # k_Θ(θ, θ) = 1


def test_many_different_points_use_anchors():
    rng = np.random.default_rng(0)
    X, n = rng.standard_normal((30, 1)), 30
    grids = [np.sort(rng.uniform(0, 1, 25)) for _ in range(n)]
    curves = FunctionalData([np.sin(x + 6 * g) for x, g in zip(X[:, 0], grids, strict=True)], grids, (0, 1))
    assert curves.num_points > MAX_ANCHORS
    model = ovkgp.FunctionalRidge(lam=1e-5).fit(X, curves)
    new = np.linspace(0.05, 0.95, 7)
    np.testing.assert_allclose(model.predict([[0.2]], new)[0], np.sin(0.2 + 6 * new), atol=0.05)
    assert model.score(X, curves) > 0.99


@pytest.mark.parametrize("options", [{}, {"basis": "eigen", "num_functions": 6}])
def test_saved_models_predict_the_same(data, tmp_path, options):
    X, grid, Y, Xs, new = data
    model = ovkgp.FunctionalRidge(quadrature="trapezoid", **options).fit(X, FunctionalData(Y, grid, (0, 1)))
    model.save(tmp_path / "model.ovkgp")
    loaded = ovkgp.load(tmp_path / "model.ovkgp")
    for got, expected in zip(loaded.predict_interval(Xs, grid=new), model.predict_interval(Xs, grid=new), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-9)


def curves_with_both_ends(rng, n):
    grid = np.linspace(0, 1, 25)
    X = rng.uniform(0, 1, (n, 2))
    return X, grid, np.sin(2 * np.pi * (grid + X[:, :1])) + X[:, 1:] * grid


@pytest.mark.parametrize(
    ("make", "basis"),
    [
        (ovkgp.FunctionalRidge, {"basis": "eigen"}),
        (lambda **options: ovkgp.RobustFunctionalRegressor(p=2, **options), {"basis": "eigen"}),
        (lambda **_: ovkgp.TripleBasisRegressor(None, features="kernel", dictionary="bsplines", lam=1e-5), {}),
    ],
)
def test_bases_are_accurate_at_the_ends_of_a_grid_with_both(make, basis):
    """Plug-in coefficients with equal weights had errors of 1.0 (eigenfunctions) and .68 (1BE) at the ends, .006 on the grid."""
    rng = np.random.default_rng(0)
    X, grid, Y = curves_with_both_ends(rng, 40)
    Xs, _, truth = curves_with_both_ends(rng, 100)
    Y = Y + 0.1 * rng.standard_normal(Y.shape)
    model = make(lam=1e-5, **basis).fit(X, Y, grid)
    errors = np.square(model.predict(Xs) - truth)
    on_grid = np.square(ovkgp.FunctionalRidge(lam=1e-5).fit(X, Y, grid).predict(Xs) - truth)
    assert errors.mean() < 1.5 * on_grid.mean()
    assert errors[:, [0, -1]].mean() < 2 * on_grid[:, [0, -1]].mean()
    if model.has_predictive:
        lower, upper = model.predict_interval(Xs, 0.9, noise=False)
        assert ((lower < truth) & (truth < upper))[:, [0, -1]].mean() > 0.6


@pytest.mark.parametrize("lam", [1e-4, [1e-5, 1e-4]])
def test_few_gaps_keep_the_structure(tmp_path, lam):
    """5 % missing values of 80 × 70 are solved exactly by Kronecker products, without a system of all values; files too."""
    rng = np.random.default_rng(0)
    X, grid = rng.uniform(0, 1, (80, 2)), np.linspace(0, 1, 70)
    Y = np.sin(2 * np.pi * (grid + X[:, :1])) + 0.1 * rng.standard_normal((80, 70))
    Y[rng.random(Y.shape) < 0.05] = np.nan
    model = ovkgp.FunctionalRidge(lam=lam).fit(X, Y, grid)
    assert model.posterior_.missing is not None
    assert len(model.posterior_.missing.chol) == np.isnan(Y).sum()
    model.save(tmp_path / "model.ovkgp")
    loaded = ovkgp.load(tmp_path / "model.ovkgp")
    assert loaded.posterior_.missing is not None
    np.testing.assert_allclose(loaded.predict_interval(X[:3]), model.predict_interval(X[:3]), rtol=1e-9)
    lower, upper = model.predict_interval(X, 0.9)
    observed = np.isfinite(Y)
    assert ((lower <= Y) & (upper >= Y))[observed].mean() > 0.85
