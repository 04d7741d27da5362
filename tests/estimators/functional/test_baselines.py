"""Tests of `ovkgp.estimators.functional.triple_basis` and `kernel_curve`."""

import numpy as np
import pytest
import torch
from sklearn.utils.estimator_checks import parametrize_with_checks

import ovkgp
from ovkgp.estimators.common.named_kernels import random_features
from ovkgp.estimators.functional.curve_problem import factor_rows, to_tensor
from ovkgp.exceptions import DomainError, FitWarning, InputError, OptionError
from ovkgp.functional import Fourier, FunctionalData, TensorProduct
from ovkgp.functional.factors import FeatureFactor
from ovkgp.kernels import GaussianCurveKernel, components
from ovkgp.kernels.curves import AdditiveCurveKernel

N, M, P, LAM = 9, 15, 12, 1e-2
FIXED = {"lam": LAM, "fit_intercept": False, "scale": "given"}
MIDPOINTS = (np.arange(M) + 0.5) / M


def gauss(a, b, lengthscale):
    return np.exp(-((a[:, None] - b[None]) ** 2).sum(-1) / (2 * lengthscale**2))


@pytest.fixture
def data():
    rng = np.random.default_rng(0)
    return (
        rng.standard_normal((N, P)),
        FunctionalData(rng.standard_normal((N, M)), MIDPOINTS, (0, 1)),
        rng.standard_normal((4, P)),
    )


@parametrize_with_checks(
    [ovkgp.TripleBasisRegressor(input_dictionary=None, num_functions=1, random_state=0), ovkgp.KernelCurveRegressor()]
)
def test_scikit_learn_checks_pass(estimator, check):
    check(estimator)


@pytest.mark.slow
@parametrize_with_checks(
    [
        ovkgp.TripleBasisRegressor(None, num_functions=1, features="kernel", lam=[1e-4, 1e-2]),
        ovkgp.KernelAdditiveRegressor(value_lengthscale=1.0, lam=1e-5),
        ovkgp.KernelCurveRegressor(lengthscale=[0.1, 1.0]),
    ]
)
def test_scikit_learn_checks_pass_with_other_options(estimator, check):
    check(estimator)


@pytest.mark.parametrize(("convention", "noise"), [("mean", N * LAM), ("sum", LAM)])
def test_single_basis_is_ridge_per_coefficient_bo_e_14(data, convention, noise):
    """BO-53, C-19: α_l = (K + ρ)⁻¹ b_l with ρ = nλ for the objective and λ as run; = KPL with B = I and orthonormal functions."""
    X, curves, Xs = data
    options = FIXED | {"convention": convention, "lengthscale": 2.0}
    model = ovkgp.TripleBasisRegressor(None, dictionary=Fourier(3), features="kernel", **options).fit(X, curves)
    assert model.noise_ == pytest.approx(noise)
    Phi = Fourier(3)(MIDPOINTS)
    alpha = np.linalg.solve(gauss(X, X, 2.0) + noise * np.eye(N), curves.values @ Phi / M)
    expected = gauss(Xs, X, 2.0) @ alpha @ Phi.T
    np.testing.assert_allclose(model.predict(Xs), expected, atol=1e-10)
    projection = ovkgp.KernelProjectionRegressor(Fourier(3), **options).fit(X, curves)
    np.testing.assert_allclose(projection.predict(Xs), expected, atol=1e-10)


def test_triple_basis_is_ridge_on_features_of_scores(data):
    """BO-52: w_l = (ZᵀZ + ρI)⁻¹ Zᵀ b_l on the random features Z of input scores."""
    X, curves, Xs = data
    inputs = FunctionalData(X, np.linspace(0, 1, P))
    model = ovkgp.TripleBasisRegressor(
        Fourier(2), dictionary=Fourier(3), num_features=20, lengthscale=1.0, random_state=0, **FIXED
    )
    model.fit(inputs, curves)
    scores, new = (model.input_dictionary_.inner(FunctionalData(x, np.linspace(0, 1, P))) for x in (X, Xs))
    ((scalar, _),) = components(model.gp_.kernel)
    factor = FeatureFactor(random_features(scalar, 3, 10, model._seed))
    Z, Zs = factor_rows(factor, scores), factor_rows(factor, new)
    b = curves.values @ Fourier(3)(MIDPOINTS) / M
    weights = np.linalg.solve(Z.T @ Z + N * LAM * np.eye(Z.shape[1]), Z.T @ b)
    np.testing.assert_allclose(model.predict(Xs), Zs @ weights @ Fourier(3)(MIDPOINTS).T, atol=1e-8)


def test_additive_kernel_is_a_double_integral():
    """BO-55: Σ_ls w_l w_s κ(t_l, t_s) exp(−(x_l − z_s)²/2ℓ²)."""
    rng = np.random.default_rng(0)
    x, z, t = rng.standard_normal((3, 6)), rng.standard_normal((2, 6)), np.sort(rng.uniform(0, 1, 6))
    w = rng.uniform(0.1, 0.3, 6)
    kernel = AdditiveCurveKernel(to_tensor(t), to_tensor(w), 0.2, "laplace").double()
    kernel.lengthscale = 0.7
    kappa = np.exp(-np.abs(t[:, None] - t) / 0.2)
    expected = [[np.sum(np.outer(w, w) * kappa * np.exp(-((a[:, None] - b) ** 2) / (2 * 0.49))) for b in z] for a in x]
    np.testing.assert_allclose(kernel(to_tensor(x), to_tensor(z)).to_dense().detach(), expected, rtol=1e-6)
    diagonal = kernel(to_tensor(x), diag=True).detach()
    np.testing.assert_allclose(diagonal, np.diag(kernel(to_tensor(x)).to_dense().detach()), rtol=1e-6)
    assert np.linalg.eigvalsh(kernel(to_tensor(x)).to_dense().detach())[0] > -1e-10


@pytest.mark.parametrize(("convention", "noise"), [("mean", N * LAM), ("sum", LAM)])
def test_additive_model_is_the_kronecker_solution_bo_e_15(data, convention, noise):
    """C-20, BO-E-15: (K_X ⊗ K_Θ + ρ) α = R on principal components, prediction ∫ k_Θ(θ, ·) φ α k_X(x)."""
    X, curves, Xs = data
    model = ovkgp.KernelAdditiveRegressor(3, value_lengthscale=0.8, **(FIXED | {"convention": convention})).fit(
        X, curves
    )
    assert model.noise_ == pytest.approx(noise)
    ((kernel, _),) = components(model.gp_.kernel)
    KX = kernel(to_tensor(X)).to_dense().detach().numpy()
    cross = kernel(to_tensor(Xs), to_tensor(X)).to_dense().detach().numpy()
    Phi, points = model.dictionary_(MIDPOINTS), MIDPOINTS[:, None]
    sections = gauss(points, points, 0.1) @ Phi / M  # ∫ k_Θ(θ, θ') φ(θ') dθ'
    KT, R = Phi.T @ sections / M, curves.values @ Phi / M
    alpha = np.linalg.solve(np.kron(KX, KT) + noise * np.eye(N * 3), R.ravel()).reshape(N, 3)
    np.testing.assert_allclose(model.predict(Xs), cross @ alpha @ sections.T, atol=1e-7)


def test_bo_c_20_bo_e_16_additive_covariance_is_a_kronecker_product():
    """∫∫∫∫ k((θ, ξ, u), (θ', ξ', u')) φ_l(θ) φ_r(θ') over curves u = x_i(ξ): K_X ⊗ K_Θ in the order (θ, ξ, u) of BO-E-16."""
    rng, n, d, t = np.random.default_rng(0), 4, 3, 12
    X, points = rng.standard_normal((n, t)), (np.arange(t) + 0.5) / t
    Phi = Fourier(2, (0, 1))(points)[:, :d]
    kernel = AdditiveCurveKernel(to_tensor(points), to_tensor(np.full(t, 1 / t)), 0.2, "laplace").double()
    kernel.lengthscale = 0.7
    theta = np.exp(-(((points[:, None] - points) / 0.1) ** 2) / 2)  # k_Θ
    xi = np.exp(-np.abs(points[:, None] - points) / 0.2)
    values = np.exp(-((X[:, :, None, None] - X[None, None]) ** 2) / (2 * 0.49))  # (i, ξ, j, ξ')
    dense = np.einsum("ab,cd,icjd,al,br->iljr", theta, xi, values, Phi, Phi) / t**4
    KX = kernel(to_tensor(X)).to_dense().detach().numpy()
    np.testing.assert_allclose(dense.reshape(n * d, -1), np.kron(KX, Phi.T @ theta @ Phi / t**2), atol=1e-7)
    swapped = (
        np.einsum("ab,cd,icjd,al,br->iljr", xi, theta, values, Phi, Phi) / t**4
    )  # arguments in the order (ξ, θ, u)
    assert np.abs(swapped - dense).max() > 0.01


@pytest.mark.parametrize("num_functions", [1, 3])
def test_bo_55_surface_of_the_additive_model_has_the_posterior_of_an_integrated_process(num_functions):
    """BO §6.3: h ~ GP(0, κ_Θ κ_Ξ κ_U) given ∫∫ φ_l(θ) h(θ, ξ, x_i(ξ)) dξ dθ with white noise, by dense algebra."""
    rng, n, t = np.random.default_rng(0), 5, 9
    grid, s = (np.arange(12) + 0.5) / 12, (np.arange(t) + 0.5) / t
    X, Y = rng.standard_normal((n, t)), rng.standard_normal((n, 12))
    options = {"position_lengthscale": 0.2, "value_lengthscale": 0.8, "output_lengthscale": 0.3, "lam": 1e-2}
    model = ovkgp.KernelAdditiveRegressor(num_functions, **options, fit_intercept=False)
    model.fit(FunctionalData(X, s, (0, 1)), FunctionalData(Y, grid, (0, 1)))
    theta, xi, u = rng.uniform(0, 1, (2, 4)), rng.uniform(0, 1, 4), rng.standard_normal(4)
    mean, std = model.predict_surface(theta, xi, u, return_std=True)
    assert mean.shape == std.shape == (2, 4)
    Phi = model.dictionary_(grid) / 12
    moments = gauss(grid[:, None], grid[:, None], 0.3) @ Phi  # ∫ κ_Θ(θ', θ) φ_l(θ) dθ
    between = gauss(s[:, None], s[:, None], 0.2) / t**2
    values = np.exp(-((X[:, :, None, None] - X[None, None]) ** 2) / (2 * 0.64))
    C = np.kron(np.einsum("ab,iajb->ij", between, values), Phi.T @ moments)
    z = (Y @ Phi).ravel()
    C += model.noise_ * np.eye(len(z))
    for a, b, c, found, error in zip(
        theta.ravel(), *map(np.tile, (xi, u), (2, 2)), mean.ravel(), std.ravel(), strict=True
    ):
        over_inputs = (gauss(np.array([[b]]), s[:, None], 0.2) / t * np.exp(-((c - X) ** 2) / (2 * 0.64))).sum(1)
        cross = np.kron(over_inputs, gauss(np.array([[a]]), grid[:, None], 0.3)[0] @ Phi)
        assert found == pytest.approx(cross @ np.linalg.solve(C, z), abs=1e-6)
        assert error**2 == pytest.approx(model.scale_ * (1 - cross @ np.linalg.solve(C, cross)), abs=1e-6)
    along = model.predict_surface(grid[:, None], s, X[0]).mean(1)  # the integral of the surface along a curve
    np.testing.assert_allclose(along, model.predict(FunctionalData(X[:1], s, (0, 1)))[0], atol=1e-6)
    with pytest.raises(InputError, match="broadcast"):
        model.predict_surface([0.1, 0.2], [0.1, 0.2, 0.3], 0.0)


def test_local_averages(data):
    X, curves, Xs = data
    model = ovkgp.KernelCurveRegressor(lengthscale=2.0).fit(X, curves)
    weights = gauss(Xs, X, 2.0)
    np.testing.assert_allclose(model.predict(Xs), weights @ curves.values / weights.sum(1, keepdims=True), atol=1e-10)
    far = np.full((1, P), 1e3)
    far[0] = X[3] + 1e3 * (X[3] / np.linalg.norm(X[3]))
    nearest = np.argmin(np.square(far - X).sum(1))
    np.testing.assert_allclose(model.predict(far)[0], curves.values[nearest])
    assert model.predict(Xs, [0.3, 0.6]).shape == (4, 2)
    with pytest.raises(OptionError, match="predictive"):
        model.predict(Xs, return_std=True)


def test_lengthscale_has_the_smallest_leave_one_out_error(data):
    X, curves, _ = data
    candidates = [0.5, 2.0, 8.0]
    model = ovkgp.KernelCurveRegressor(lengthscale=candidates).fit(X, curves)
    errors = []
    for lengthscale in candidates:
        missed = []
        for i in range(N):
            keep = np.arange(N) != i
            one = ovkgp.KernelCurveRegressor(lengthscale=lengthscale).fit(X[keep], curves[keep])
            missed.append(one.predict(X[[i]])[0] - curves.values[i])
        errors.append(np.mean(np.square(missed)))
    np.testing.assert_allclose(model.path_, errors, rtol=1e-8)
    assert model.lengthscale_ == candidates[int(np.argmin(errors))]


@pytest.mark.parametrize(
    "model",
    [
        ovkgp.TripleBasisRegressor(random_state=0),
        ovkgp.TripleBasisRegressor(None, features="kernel"),
        ovkgp.KernelAdditiveRegressor(5),
        ovkgp.KernelCurveRegressor(),
    ],
)
@pytest.mark.filterwarnings("ignore::ovkgp.exceptions.FitWarning")
def test_saved_models_predict_the_same(data, tmp_path, model):
    X, curves, Xs = data
    gaps = FunctionalData(
        np.where(np.random.default_rng(0).random((N, M)) < 0.1, np.nan, curves.values), MIDPOINTS, (0, 1)
    )
    model.fit(FunctionalData(X, np.linspace(0, 1, P)), gaps)
    model.save(tmp_path / "model.ovkgp")
    loaded = ovkgp.load(tmp_path / "model.ovkgp")
    np.testing.assert_allclose(loaded.predict(Xs), model.predict(Xs), rtol=1e-9)
    if model.has_predictive:
        np.testing.assert_allclose(loaded.predict_interval(Xs), model.predict_interval(Xs), rtol=1e-8)


def test_plug_in_of_triple_basis_is_the_average_over_points(data):
    """BO-52 as printed, (1/m) Σ_s y(θ_s) φ_l(θ_s), on a grid with both ends, with a warning; least squares by default."""
    X, curves, Xs = data
    grid = np.linspace(0, 1, M)
    options = {"dictionary": Fourier(3), "features": "kernel", "lengthscale": 2.0, **FIXED}
    with pytest.warns(FitWarning, match="Gram"):
        printed = ovkgp.TripleBasisRegressor(None, method="plug_in", **options).fit(X, curves.values, grid)
    Phi, solved = Fourier(3)(grid), gauss(Xs, X, 2.0) @ np.linalg.inv(gauss(X, X, 2.0) + N * LAM * np.eye(N))
    np.testing.assert_allclose(printed.predict(Xs), solved @ curves.values @ Phi / M @ Phi.T, atol=1e-10)
    exact = ovkgp.TripleBasisRegressor(None, **options).fit(X, curves.values, grid)
    projector = np.linalg.lstsq(Phi, np.eye(M), rcond=None)[0].T @ Phi.T
    np.testing.assert_allclose(exact.predict(Xs), solved @ curves.values @ projector, atol=1e-10)


@pytest.mark.parametrize(
    "model",
    [
        ovkgp.TripleBasisRegressor(None, features="kernel", lam=np.geomspace(1e-7, 1e-1, 7)),
        ovkgp.TripleBasisRegressor(None, lam=np.geomspace(1e-7, 1e-1, 7), random_state=0),
        ovkgp.TripleBasisRegressor(None, method="plug_in", lam=np.geomspace(1e-7, 1e-1, 7), random_state=0),
    ],
)
@pytest.mark.filterwarnings("ignore::ovkgp.exceptions.FitWarning")
def test_noise_of_interpolated_curves_is_that_of_the_observed_values(model):
    """The noise of a value used the points of the resampled grid: .35 instead of .1 for 16 of 200 points."""
    rng = np.random.default_rng(0)
    X, grids = rng.uniform(0, 1, (60, 1)), [np.sort(rng.uniform(0, 1, rng.integers(12, 20))) for _ in range(60)]
    Y = [np.sin(2 * np.pi * g) * x + 0.1 * rng.standard_normal(len(g)) for x, g in zip(X[:, 0], grids, strict=True)]
    model.fit(X, FunctionalData(Y, grids, (0, 1)))
    assert 0.08 < np.sqrt(model.point_noise_) < 0.13


def make_ragged(seed, n=60):
    """Return inputs, curves observed at 6 to 11 points each, new inputs, and values of new curves on a grid with noise .1."""
    rng, grid = np.random.default_rng(seed), np.linspace(0, 1, 30)
    X, new = rng.uniform(0, 1, (n, 1)), rng.uniform(0, 1, (50, 1))
    grids = [np.sort(rng.uniform(0, 1, rng.integers(6, 12))) for _ in range(n)]
    Y = [np.sin(2 * np.pi * (g + x)) + 0.1 * rng.standard_normal(len(g)) for g, x in zip(grids, X[:, 0], strict=True)]
    truth = np.sin(2 * np.pi * (grid + new))
    return X, FunctionalData(Y, grids, (0, 1)), new, grid, truth, truth + 0.1 * rng.standard_normal(truth.shape)


@pytest.mark.parametrize("features", ["kernel", "orff"])
def test_single_basis_of_ragged_curves_equals_dense_algebra(features, tmp_path):
    """y_ij = φ(θ_ij)ᵀ u(x_i) + ε with equal noise and Cov u = K_X I, with functions that are orthonormal at all points together."""
    X, curves, new, grid, _, _ = make_ragged(0, n=15)
    options = FIXED | {"lengthscale": 0.5, "dictionary": Fourier(3), "num_features": 20, "random_state": 0}
    model = ovkgp.TripleBasisRegressor(None, features=features, **options).fit(X, curves)
    points, values = (np.concatenate(column) for column in zip(*curves.curves(), strict=True))
    rows, basis = np.repeat(X, curves.counts, axis=0), model.coordinates_.rows(points)
    if features == "kernel":
        K, Ks, prior = gauss(rows, rows, 0.5), gauss(new, rows, 0.5), np.ones(len(new))
    else:
        kernel = model.latent_.make_kernel(X)
        Phi, Psi = (kernel.features(torch.from_numpy(one)).to_dense().numpy() for one in (rows, new))
        K, Ks, prior = Phi @ Phi.T, Psi @ Phi.T, np.square(Psi).sum(1)
    noise = model.noise_ * np.mean(curves.counts)
    gain = np.linalg.inv(K * (basis @ basis.T) + noise * np.eye(len(points)))
    along = model.coordinates_.rows(grid[:, None])
    cross = Ks[:, None, :] * (along @ basis.T)  # (k, M, N)
    np.testing.assert_allclose(model.predict(new, grid), cross @ gain @ values[:, 0], atol=1e-9)
    std = model.predict(new, grid, return_std=True, noise=False)[1]
    explained = np.einsum("kma,ab,kmb->km", cross, gain, cross)
    expected = model.scale_ * (np.outer(prior, np.square(along).sum(1)) - explained)
    np.testing.assert_allclose(std**2, expected, atol=1e-8)
    model.save(tmp_path / "model.ovkgp")
    np.testing.assert_allclose(ovkgp.load(tmp_path / "model.ovkgp").predict(new, grid), model.predict(new, grid))


@pytest.mark.parametrize("features", ["kernel", "orff"])
def test_bands_of_ragged_curves_cover(features):
    """Curves were interpolated: 90 % bands covered .86 of the values and .71 of the curves, with an error of .19 instead of .07."""
    covered, errors = [], []
    for seed in range(3):
        X, curves, new, grid, truth, Y = make_ragged(seed)
        model = ovkgp.TripleBasisRegressor(None, features=features, lam=[1e-4, 1e-2], random_state=0).fit(X, curves)
        lower, upper = model.predict_interval(new, 0.9, grid=grid)
        covered.append(((lower <= Y) & (upper >= Y)).mean())
        errors.append(np.sqrt(np.mean((model.predict(new, grid) - truth) ** 2)))
    assert 0.85 <= np.mean(covered) <= 0.95
    assert np.mean(errors) < 0.1


@pytest.mark.slow
@pytest.mark.parametrize("features", ["kernel", "orff"])
def test_bands_of_curves_with_gaps_have_nominal_coverage(features):
    """Pointwise 90 % bands over 100 data sets with half of the values missing."""
    covered = []
    for seed in range(100):
        rng, grid = np.random.default_rng(seed), np.linspace(0, 1, 30)
        X, new = rng.uniform(0, 1, (60, 1)), rng.uniform(0, 1, (50, 1))
        Y, truth = (np.sin(2 * np.pi * (grid + x)) + 0.1 * rng.standard_normal((len(x), 30)) for x in (X, new))
        Y[rng.random(Y.shape) < 0.5] = np.nan
        model = ovkgp.TripleBasisRegressor(None, features=features, lam=np.geomspace(1e-5, 1e-1, 5), random_state=0)
        lower, upper = model.fit(X, Y, grid).predict_interval(new, 0.9)
        covered.append(((lower <= truth) & (truth <= upper)).mean())
    assert 0.85 <= np.mean(covered) <= 0.95


@pytest.mark.parametrize("model", [ovkgp.KernelCurveRegressor(), ovkgp.FunctionalRidge(fit_intercept=False, lam=1e-4)])
def test_a_zero_mean_curve_on_a_plane(model):
    points = np.stack(np.meshgrid(np.linspace(0, 1, 4), np.linspace(0, 2, 3)), -1).reshape(-1, 2)
    X = np.random.default_rng(0).uniform(0, 1, (20, 2))
    Y = X @ points.T
    model.fit(X, Y, points)
    assert np.mean((model.predict(X) - Y) ** 2) < 0.1 * Y.var()
    assert model.predict(X, points[:2] + 0.1).shape == (20, 2)


def test_inputs_and_dictionaries_that_do_not_fit_are_rejected(data):
    X, curves, Xs = data
    s = np.linspace(0, 1, P)
    model = ovkgp.TripleBasisRegressor(random_state=0).fit(FunctionalData(X, s), curves)
    with pytest.raises(DomainError, match="Points of X"):
        model.predict(FunctionalData(Xs, 10 * s, (0, 10)))
    points = np.random.default_rng(0).uniform(0, 1, (M, 2))
    with pytest.raises(InputError, match="TensorProduct"):
        ovkgp.KernelProjectionRegressor("pca").fit(X, curves.values, points)
    with pytest.raises(InputError, match="list"):
        TensorProduct([Fourier(2), Fourier(2)])


@pytest.mark.parametrize("gaps", [False, True])
@pytest.mark.parametrize(
    "model",
    [
        ovkgp.KernelAdditiveRegressor(3, lam=1e-3),
        ovkgp.KernelProjectionRegressor(num_functions=5, kernel=GaussianCurveKernel(), lam=1e-2),
    ],
)
def test_functions_are_drawn_jointly_for_kernels_without_random_features(data, model, gaps):
    X, curves, Xs = data
    if gaps:
        curves = FunctionalData(
            np.where(np.arange(N * M).reshape(N, M) % 7 == 0, np.nan, curves.values), MIDPOINTS, (0, 1)
        )
    model.fit(X, curves)
    draws = model.sample_functions(3000, random_state=0)
    first, both = draws(Xs[:2], [0.3, 0.6]), draws(Xs, [0.3, 0.6])
    np.testing.assert_allclose(both[:, :2], first, atol=1e-8)  # the same functions at every call
    mean, std = model.predict(Xs, [0.3, 0.6], return_std=True, noise=False)
    prior = model._input_kernel(to_tensor(model._check_inputs(Xs)), diag=True).detach().numpy()
    residual = prior[:, None] * model.coordinates_.residual_variance(np.array([[0.3], [0.6]]))
    inside = np.sqrt(np.clip(std**2 - model.scale_ * residual, 0, None))
    np.testing.assert_allclose(both.mean(0), mean, atol=5 * inside.max() / np.sqrt(3000))
    np.testing.assert_allclose(both.std(0), inside, rtol=0.1, atol=1e-6)


def test_default_lengthscales_of_the_additive_model_do_not_depend_on_units(data):
    X, curves, Xs = data
    units = [(1.0, 1.0, 1.0), (300.0, 50.0, 1e3)]
    predictions = []
    for s, t, x in units:
        inputs = [FunctionalData(x * one, s * np.linspace(0, 1, P), (0, s)) for one in (X, Xs)]
        model = ovkgp.KernelAdditiveRegressor(3).fit(inputs[0], FunctionalData(curves.values, t * MIDPOINTS, (0, t)))
        predictions.append(model.predict(inputs[1]))
    np.testing.assert_allclose(predictions[1], predictions[0], rtol=1e-4, atol=1e-6)
