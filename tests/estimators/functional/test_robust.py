"""Tests of `ovkgp.estimators.functional.robust`."""

import math
import time

import numpy as np
import pytest
import torch
from gpytorch.kernels import RBFKernel
from scipy.stats import chi2
from sklearn.utils.estimator_checks import parametrize_with_checks

import ovkgp
from ovkgp.estimators.functional import weighted_curves
from ovkgp.estimators.functional.coordinates import empirical_coordinates
from ovkgp.estimators.functional.weighted_curves import WeightedCurves
from ovkgp.exceptions import InputError, OptionError
from ovkgp.functional import FunctionalData
from ovkgp.functional.factors import KernelFactor
from ovkgp.losses import Huber, LogCosh

N, M, LAM = 10, 14, 5e-3
OPTIONS = {"lengthscale": 1.0, "output_kernel": "rbf", "output_lengthscale": 0.3, "lam": LAM, "fit_intercept": False}
CASES = [
    ("huber", 1),
    ("huber", 2),
    ("huber", math.inf),
    ("insensitive", 1),
    ("insensitive", 2),
    ("insensitive", math.inf),
]


@pytest.fixture
def data():
    rng = np.random.default_rng(0)
    X, grid = rng.uniform(-1, 1, (N, 1)), np.linspace(0, 1, M)
    Y = np.sin(3 * X + 4 * grid) + 0.2 * rng.standard_normal((N, M))
    Y[2] += 3.0
    Y[5, 3] -= 4.0
    return X, grid, Y


def gauss(a, b, lengthscale):
    return np.exp(-((a[:, None] - b[None]) ** 2).sum(-1) / (2 * lengthscale**2))


def apgd(K, KT, Y, lam, prox, steps=6000):
    """Algorithm 7.1 with A (m, n), steps 1/C of BO-E-28 and momentum that starts at 0 (BO-E-30)."""
    n, m = Y.shape
    gamma = 1 / (1 + np.linalg.norm(K, 2) * np.linalg.norm(KT, 2) / (lam * n * m))
    A = before = np.zeros((m, n))
    for t in range(steps):
        V = A + max(0.0, (t - 2) / (t + 1)) * (A - before)
        gradient = V - Y.T + KT @ V @ K / (lam * n * m)
        before, A = A, prox(V - gamma * gradient, gamma)
    return A


def duality_gap(K, KT, Y, lam, A, loss, conjugate):
    """J(h) − D(A) in L² of m points, for h = KT A K/(λnm)."""
    n, m = Y.shape
    H = KT @ A @ K / (lam * n * m)
    norm = np.sum(A * (KT @ A @ K)) / (lam**2 * n**2 * m**2)
    primal = np.mean([loss(r) for r in (Y.T - H).T]) + lam / 2 * norm
    dual = -np.mean([conjugate(a) - a @ y / m for a, y in zip(A.T, Y, strict=True)]) - lam / 2 * norm
    return primal - dual


def setup(loss, p, parameter, m):
    """Proximal operator of a step (corrected thresholds), loss and conjugate of L² of m points."""

    def l2(r):
        return np.sqrt(np.mean(r**2))

    if (loss, p) == ("huber", 1):
        prox = lambda U, g: np.clip(U, -parameter, parameter)  # noqa: E731
        value = lambda r: np.mean(np.where(abs(r) <= parameter, r**2 / 2, parameter * (abs(r) - parameter / 2)))  # noqa: E731
        return prox, value, lambda a: np.mean(a**2) / 2
    if (loss, p) == ("huber", 2):
        prox = lambda U, g: U * np.minimum(1, np.sqrt(m) * parameter / np.linalg.norm(U, axis=0))  # noqa: E731
        value = lambda r: l2(r) ** 2 / 2 if l2(r) <= parameter else parameter * (l2(r) - parameter / 2)  # noqa: E731
        return prox, value, lambda a: np.mean(a**2) / 2
    if (loss, p) == ("insensitive", 2):
        prox = lambda U, g: U * np.clip(1 - g * parameter * np.sqrt(m) / np.linalg.norm(U, axis=0), 0, None)  # noqa: E731
        return prox, lambda r: max(l2(r) - parameter, 0) ** 2 / 2, lambda a: np.mean(a**2) / 2 + parameter * l2(a)
    prox = lambda U, g: np.sign(U) * np.clip(abs(U) - g * parameter, 0, None)  # noqa: E731
    value = lambda r: np.mean(np.clip(abs(r) - parameter, 0, None) ** 2) / 2  # noqa: E731
    return prox, value, lambda a: np.mean(a**2) / 2 + parameter * np.mean(abs(a))


@parametrize_with_checks([ovkgp.RobustFunctionalRegressor()])
def test_scikit_learn_checks_pass(estimator, check):
    check(estimator)


@pytest.mark.slow
@parametrize_with_checks(
    [
        ovkgp.RobustFunctionalRegressor(p=2, uncertainty="variational"),
        ovkgp.RobustFunctionalRegressor("insensitive", p=math.inf, epsilon=0.01),
    ]
)
def test_scikit_learn_checks_pass_with_other_options(estimator, check):
    check(estimator)


@pytest.mark.parametrize(("loss", "p"), [("huber", 1), ("huber", 2), ("insensitive", 2), ("insensitive", math.inf)])
def test_solutions_equal_the_dual_algorithm_bo_e_28_bo_e_29_bo_e_45(data, loss, p):
    """BO-73 with thresholds γε√m (p = 2) and γε (p = ∞) of BO-E-29 and the ball √mκ of BO-E-45; the duality gap vanishes."""
    X, grid, Y = data
    K, KT, parameter = gauss(X, X, 1.0), gauss(grid[:, None], grid[:, None], 0.3), 0.6 if loss == "insensitive" else 0.3
    prox, value, conjugate = setup(loss, p, parameter, M)
    A = apgd(K, KT, Y, LAM, prox)
    assert duality_gap(K, KT, Y, LAM, A, value, conjugate) < 1e-8
    names = {"huber": "kappa", "insensitive": "epsilon"}
    model = ovkgp.RobustFunctionalRegressor(loss, p, **{names[loss]: parameter}, tolerance=1e-10, **OPTIONS).fit(
        X, Y, grid
    )
    np.testing.assert_allclose(model.predict(X), (KT @ A @ K).T / (LAM * N * M), atol=1e-4)
    assert model.gap_ <= 1e-10
    if loss == "insensitive":
        zeros = (np.abs(A).max(0) == 0).mean() if p == 2 else (A == 0).mean()
        assert model.sparsity_ == pytest.approx(zeros, abs=0.03)
        assert 0 < model.sparsity_ < 1


@pytest.mark.parametrize("p", [2, math.inf])
def test_printed_thresholds_leave_a_gap_bo_e_29(data, p):
    """BO C-26, BO-E-29: the printed thresholds γε/√m and γε/m do not close the duality gap."""
    X, grid, Y = data
    K, KT, epsilon = gauss(X, X, 1.0), gauss(grid[:, None], grid[:, None], 0.3), 0.3
    _, value, conjugate = setup("insensitive", p, epsilon, M)
    printed = setup("insensitive", p, epsilon / M, M)[0]  # γ(ε/m)√m = γε/√m for p = 2, γε/m for p = ∞
    A = apgd(K, KT, Y, LAM, printed)
    assert duality_gap(K, KT, Y, LAM, A, value, conjugate) > 1e-3


def test_printed_radius_leaves_a_gap_bo_e_45(data):
    """BO-E-45: the printed radius √(mκ) of the column factor is not that of the dual constraint."""
    X, grid, Y = data
    K, KT, kappa = gauss(X, X, 1.0), gauss(grid[:, None], grid[:, None], 0.3), 0.3
    _, value, conjugate = setup("huber", 2, kappa, M)
    A = apgd(K, KT, Y, LAM, setup("huber", 2, np.sqrt(kappa), M)[0])
    feasible = A * np.minimum(1, np.sqrt(M) * kappa / np.linalg.norm(A, axis=0))
    assert duality_gap(K, KT, Y, LAM, feasible, value, conjugate) > 1e-4


def test_momentum_starts_at_zero_bo_e_30(data):
    """BO-E-30: from the solution, a step with the printed momentum (t − 2)/(t + 1) at t = 0 and A^(−1) = 0 leaves it."""
    X, grid, Y = data
    K, KT = gauss(X, X, 1.0), gauss(grid[:, None], grid[:, None], 0.3)
    prox = setup("huber", 1, 0.3, M)[0]
    A = apgd(K, KT, Y, LAM, prox)
    gamma = 1 / (1 + np.linalg.norm(K, 2) * np.linalg.norm(KT, 2) / (LAM * N * M))

    def step(V):
        return prox(V - gamma * (V - Y.T + KT @ V @ K / (LAM * N * M)), gamma)

    np.testing.assert_allclose(step(A), A, atol=1e-6)
    assert np.abs(step(A - 2 * (A - 0)) - A).max() > 0.1


@pytest.mark.parametrize(("loss", "p"), CASES)
@pytest.mark.parametrize("gaps", [False, True])
def test_gaps_are_small_for_all_norms(data, loss, p, gaps):
    X, grid, Y = data
    Y = np.where(np.random.default_rng(1).random(Y.shape) < 0.2, np.nan, Y) if gaps else Y
    model = ovkgp.RobustFunctionalRegressor(loss, p, kappa=0.3, epsilon=0.2, **OPTIONS).fit(X, Y, grid)
    assert model.gap_ <= 1e-6


def test_dual_variables_are_clipped_residuals(data):
    """C-28: α = clip(residual, ±κ), h = K_T α K/(λnm)."""
    X, grid, Y = data
    K, KT = gauss(X, X, 1.0), gauss(grid[:, None], grid[:, None], 0.3)
    model = ovkgp.RobustFunctionalRegressor(p=1, kappa=0.3, tolerance=1e-12, max_iter=200_000, **OPTIONS).fit(
        X, Y, grid
    )
    fitted = model.predict(X)
    alpha = np.clip(Y - fitted, -0.3, 0.3)
    np.testing.assert_allclose(K @ alpha @ KT / (LAM * N * M), fitted, atol=1e-4)
    expected = 1 - np.linalg.norm(alpha, axis=1) / np.linalg.norm(Y - fitted, axis=1)
    np.testing.assert_allclose(model.outlier_scores_, expected, atol=1e-3)
    assert np.argmax(model.outlier_scores_) == 2


@pytest.mark.parametrize(
    ("options", "multiple"),
    [
        ({"p": 2, "kappa": 0.4}, lambda r, size: np.minimum(1, 0.4 / size)),
        ({"loss": "insensitive", "p": 2, "epsilon": 0.4}, lambda r, size: np.maximum(1 - 0.4 / size, 0)),
        ({"loss": "insensitive", "p": np.inf, "epsilon": 0.4}, lambda r, size: np.maximum(1 - 0.4 / np.abs(r), 0)),
    ],
)
def test_dual_variables_are_multiples_of_residuals(data, options, multiple):
    """C-28 of H², ℓ² and ℓ^∞: α = r min(1, κ/‖r‖), r (1 − ε/‖r‖)₊ and the soft threshold, h = K_T α K/(λnm)."""
    X, grid, Y = data
    K, KT = gauss(X, X, 1.0), gauss(grid[:, None], grid[:, None], 0.3)
    model = ovkgp.RobustFunctionalRegressor(tolerance=1e-12, max_iter=200_000, **options, **OPTIONS).fit(X, Y, grid)
    fitted = model.predict(X)
    r = Y - fitted
    alpha = r * multiple(r, np.sqrt(np.square(r).mean(1, keepdims=True)))
    assert np.mean(np.abs(alpha) < 0.9 * np.abs(r)) > 0 and np.abs(alpha).max() > 0
    np.testing.assert_allclose(K @ alpha @ KT / (LAM * N * M), fitted, atol=1e-4)


@pytest.mark.parametrize(
    ("options", "basis"),
    [
        ({"kappa": 1e3}, "grid"),
        ({"loss": "insensitive", "epsilon": 1e-12, "p": 2}, "grid"),
        ({"kappa": 1e3, "p": 2}, "eigen"),
    ],
)
def test_limits_are_the_ridge(data, options, basis):
    """C-27, LT-97: κ → ∞ and ε → 0."""
    X, grid, Y = data
    ridge = ovkgp.FunctionalRidge(basis=basis, **OPTIONS).fit(X, Y, grid)
    model = ovkgp.RobustFunctionalRegressor(basis=basis, tolerance=1e-11, **options, **OPTIONS).fit(X, Y, grid)
    np.testing.assert_allclose(model.predict(X), ridge.predict(X), atol=1e-4)


@pytest.mark.filterwarnings("ignore::ovkgp.exceptions.FitWarning")
def test_eigenfunctions_equal_the_grid_for_curves(data):
    """C-30: p = 2 depends on norms only, so that coefficients and values agree; p = 1 is rejected (LT-89)."""
    X, _, _ = data
    grid = (np.arange(150) + 0.5) / 150
    Y = np.sin(3 * X + 4 * grid)
    Y[2] += 3.0
    curves = FunctionalData(Y, grid, (0, 1))
    grids, eigen = (
        ovkgp.RobustFunctionalRegressor(p=2, kappa=0.3, basis=basis, **OPTIONS).fit(X, curves)
        for basis in ("grid", "eigen")
    )
    np.testing.assert_allclose(eigen.predict(X), grids.predict(X), atol=2e-2)
    with pytest.raises(OptionError, match="eigen"):
        ovkgp.RobustFunctionalRegressor(p=1, basis="eigen").fit(X, Y)


def test_robust_fits_resist_outliers():
    rng = np.random.default_rng(0)
    X, grid = rng.uniform(0, 1, (30, 1)), np.linspace(0, 1, 12)
    clean = np.sin(2 * np.pi * (grid + X))
    Y = clean + 0.1 * rng.standard_normal(clean.shape)
    Y[:4] += 5.0
    ridge = ovkgp.FunctionalRidge(lam=1e-3).fit(X, Y, grid)
    several = {"p": 2, "kappa": [0.05, 0.2, 1.0], "lam": [1e-4, 1e-3]}
    for options in ({"p": 2}, {"p": 1}, {"loss": "log_cosh"}, several):
        options = {"lam": 1e-4} | options
        model = ovkgp.RobustFunctionalRegressor(tolerance=1e-4, **options).fit(X, Y, grid)
        errors = [np.abs(one.predict(X)[4:] - clean[4:]).mean() for one in (model, ridge)]
        assert errors[0] < 0.2 * errors[1]
        assert set(np.argsort(model.outlier_scores_)[-4:]) == {0, 1, 2, 3}
    assert model.parameter_ == model.parameter_path_.values[np.argmin(model.parameter_path_.error)]
    assert model.lam_ == model.lam_path_.values[np.argmin(model.lam_path_.error)]


@pytest.mark.parametrize("name", ["huber 1", "huber 2", "log_cosh", "projection", "features"])
@pytest.mark.parametrize("missing", ["none", "one", "many", "ragged"])
def test_errors_do_not_grow_with_the_size_of_outliers(name, missing):
    """Four of forty curves are 1000 too large: the intercept must not be the mean, neither of complete curves nor with gaps."""
    rng, grid = np.random.default_rng(0), np.linspace(0, 1, 20)

    def truth(x):
        return np.sin(2 * x + 4 * grid) + 0.5 * x * grid

    X, new = rng.uniform(-1, 1, (40, 1)), rng.uniform(-1, 1, (200, 1))
    Y = truth(X) + 0.2 * rng.standard_normal((40, 20))
    Y[:4] += 1000.0
    if missing != "none":
        Y[10, 3] = np.nan
    if missing == "many":
        Y[rng.random(Y.shape) < 0.3] = np.nan
    curves = FunctionalData(Y, grid, (0, 1))
    if missing == "ragged":
        keep = np.isfinite(Y)
        curves = FunctionalData([y[k] for y, k in zip(Y, keep, strict=True)], [grid[k] for k in keep], (0, 1))
    model = {
        "huber 1": ovkgp.RobustFunctionalRegressor(lam=1e-3, tolerance=1e-4),
        "huber 2": ovkgp.RobustFunctionalRegressor(lam=1e-3, p=2, tolerance=1e-4),
        "log_cosh": ovkgp.RobustFunctionalRegressor("log_cosh", lam=1e-3, tolerance=1e-4),
        "projection": ovkgp.KernelProjectionRegressor(num_functions=8, loss=LogCosh(5.0), lam=1e-3),
        "features": ovkgp.FeatureProjectionRegressor(num_functions=8, loss=Huber(0.3), lam=1e-3, random_state=0),
    }[name]
    if name == "features" and missing != "none":
        pytest.skip("features require complete curves")
    predicted = model.fit(X, curves).predict(new, grid)
    assert np.mean((predicted - truth(new)) ** 2) < 0.012  # .002 to .01 without outliers


@pytest.mark.parametrize("options", [{"p": 1}, {"p": 2}, {"loss": "log_cosh"}, {"p": 2, "uncertainty": "student_t"}])
@pytest.mark.parametrize("gaps", [False, True])
def test_bands_are_those_of_a_weighted_process(data, options, gaps):
    """The posterior given the weights is that of a Gaussian process with noise mσ²/w of a value, times the scale.

    Up to 5·10⁻⁴, as the data reduce variances of dropped coordinates by at most a hundredth, which are a hundredth of the noise.
    """
    X, grid, Y = data
    Y = np.where(np.random.default_rng(1).random(Y.shape) < 0.2, np.nan, Y) if gaps else Y
    options = {"uncertainty": "variational", "kappa": 0.3, "nu": 3.0} | options
    model = ovkgp.RobustFunctionalRegressor(**options, **OPTIONS).fit(X, Y, grid)
    observed = np.isfinite(Y).ravel()
    w = model.weights_ if model.weights_.ndim == 2 else np.repeat(model.weights_[:, None], M, 1)
    noise = N * LAM * model._points_per_curve / (3.0 if options.get("loss") == "log_cosh" else 1.0)
    K, KT = gauss(X, X, 1.0), gauss(grid[:, None], grid[:, None], 0.3)
    C = np.kron(K, KT)[observed][:, observed] + np.diag(noise / w.ravel()[observed])
    cross = np.kron(K, KT)[:, observed]
    variance = 1 - np.einsum("ab,ba->a", cross, np.linalg.solve(C, cross.T))
    std = model.predict(X, return_std=True, noise=False)[1]
    np.testing.assert_allclose(std**2, model.scale_ * variance.reshape(N, M), rtol=5e-4)
    noisy = model.predict(X, return_std=True)[1]
    np.testing.assert_allclose(noisy**2 - std**2, model.point_noise_, rtol=1e-6)
    if options.get("p") != 2:  # with weights of curves, the noise of a regular value is estimated by itself
        assert model.point_noise_ == pytest.approx(model.scale_ * noise)


@pytest.mark.parametrize("by_curve", [False, True])
@pytest.mark.parametrize("kind", ["complete", "gaps", "ragged"])
def test_weighted_curves_are_conditioned_as_by_dense_algebra(data, by_curve, kind, monkeypatch):
    """Errors, variances, quadratic form, log determinant and leave-one-curve-out residuals against the covariance of all values."""
    monkeypatch.setattr(weighted_curves, "MIN_COORDINATE", 1e-11)
    monkeypatch.setattr(weighted_curves, "MIN_FEATURE", 1e-13)
    X, grid, Y = data
    observed = np.ones(Y.shape, dtype=bool)
    if kind != "complete":
        observed[np.random.default_rng(1).random(Y.shape) < 0.3] = False
    curves = FunctionalData(np.where(observed, Y, np.nan), grid, (0, 1))
    if kind == "ragged":
        curves = FunctionalData([y[k] for y, k in zip(Y, observed, strict=True)], [grid[k] for k in observed], (0, 1))
    kernel, output = RBFKernel().double(), RBFKernel().double()
    kernel.lengthscale, output.lengthscale = 1.0, 0.3
    factor = KernelFactor(output, torch.from_numpy(grid)[:, None])
    coordinates = empirical_coordinates(factor, grid[:, None], np.full(M, 1 / M))
    noise, size = 0.05, N if by_curve else observed.sum()
    model = WeightedCurves(kernel, coordinates, X, curves, noise, by_curve)
    weights = np.random.default_rng(2).uniform(0.3, 1.2, size)
    found = model.condition(weights)
    curve = np.repeat(np.arange(N), M)[observed.ravel()]
    prior = np.kron(gauss(X, X, 1.0), gauss(grid[:, None], grid[:, None], 0.3))[observed.ravel()][:, observed.ravel()]
    variances = noise * observed.sum() / N / (weights[curve] if by_curve else weights)
    C, y = prior + np.diag(variances), Y[observed]
    gain = np.linalg.solve(C, prior).T
    errors, latent = (y - gain @ y) ** 2, np.diag(prior - gain @ prior)
    eta = N / observed.sum()
    if by_curve:
        errors, latent = (eta * np.bincount(curve, one) for one in (errors, latent))
    np.testing.assert_allclose(found.errors, errors, rtol=1e-4, atol=1e-8)
    np.testing.assert_allclose(found.variances, latent, rtol=1e-4)
    assert found.quadratic == pytest.approx(y @ np.linalg.solve(C, y), rel=1e-4)
    constant = len(y) * np.log(eta) * by_curve
    assert found.logdet == pytest.approx(np.linalg.slogdet(C)[1] + constant, rel=1e-4)
    ratios, sums = [], []
    for i in range(N):
        out, rest = curve == i, curve != i
        gain = np.linalg.solve(C[np.ix_(rest, rest)], C[np.ix_(rest, out)]).T
        spread = np.diag(prior[np.ix_(out, out)] - gain @ C[np.ix_(rest, out)])
        squares, count = (y[out] - gain @ y[rest]) ** 2, out.sum()
        ratios.append((squares, spread))
        sums.append(squares.sum() / (spread + variances[out]).sum() / (chi2.median(count) / count))
    squares, spread = (np.concatenate(column) for column in zip(*ratios, strict=True))

    def median(latent, noise):
        return np.sort(squares / (latent + noise / eta))[(len(y) - 1) // 2]  # the lower one, as of torch

    scale, noise_scale = model.robust_scales(weights)
    if by_curve:
        assert scale == pytest.approx(np.sort(sums)[(N - 1) // 2], rel=1e-3)
        assert median(scale * spread, noise_scale * noise) == pytest.approx(0.4549364, rel=2e-2)
    else:
        assert scale == noise_scale == pytest.approx(median(spread, noise) / 0.4549364, rel=1e-3)


@pytest.mark.parametrize("gaps", [False, True])
@pytest.mark.slow
def test_bands_of_many_values_are_fast(gaps):
    """60 curves of 55 points took 16 CPU-s, 150 of 60 did not end; most coefficients of the prior are below the noise."""
    rng, grid = np.random.default_rng(0), np.linspace(0, 1, 55)
    X = rng.uniform(-1, 1, (60, 1))
    Y = np.sin(2 * X + 4 * grid) + 0.2 * rng.standard_normal((60, 55))
    Y[:4] += 3
    if gaps:
        Y[rng.random(Y.shape) < 0.1] = np.nan
    started = time.process_time()
    curves = FunctionalData(Y, grid, (0, 1))
    model = ovkgp.RobustFunctionalRegressor(uncertainty="variational", tolerance=1e-3).fit(X, curves)
    model.predict_interval(X[:20])
    assert time.process_time() - started < 8  # 2 CPU-s
    assert len(model.coordinates_.variances) < 45


def test_too_many_coefficients_are_an_error(data, monkeypatch):
    X, grid, Y = data
    monkeypatch.setattr(weighted_curves, "MAX_DENSE_ENTRIES", 10)
    with pytest.raises(InputError, match="uncertainty=None"):
        ovkgp.RobustFunctionalRegressor(uncertainty="variational", **OPTIONS).fit(X, Y, grid)


def test_attributes_are_those_of_the_robust_fit(data):
    """`path_` of the ridge regression is not that of the chosen λ; "insensitive" has no bands, as its fit follows outliers."""
    X, grid, Y = data
    model = ovkgp.RobustFunctionalRegressor(lam=[1e-3, 1e-2]).fit(X, Y, grid)
    assert not hasattr(model, "path_")
    assert model.lam_ == model.lam_path_.values[np.argmin(model.lam_path_.error)]
    with pytest.raises(OptionError, match="huber"):
        ovkgp.RobustFunctionalRegressor("insensitive", p=2, uncertainty="student_t").fit(X, Y, grid)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "outliers"),
    [
        ({"p": 1}, "values"),
        ({"p": 2}, "curves"),
        ({"p": 2}, "values"),
        ({"p": 2, "uncertainty": "student_t"}, "curves"),
        ({"p": 1, "uncertainty": "student_t"}, "values"),
        ({"loss": "log_cosh"}, "values"),
    ],
)
def test_bands_cover_regular_observations_of_contaminated_data(options, outliers):
    """Pointwise and simultaneous 90 % bands over 100 data sets with 10 % outlying values or curves."""
    pointwise, simultaneous = [], []
    for seed in range(100):
        rng = np.random.default_rng(seed)
        X, grid = rng.uniform(0, 1, (60, 1)), np.linspace(0, 1, 20)
        clean = np.sin(2 * np.pi * (grid + X))
        Y = clean + 0.1 * rng.standard_normal(clean.shape)
        if outliers == "curves":
            Y[:6] += rng.choice([-3.0, 3.0], (6, 1))
        else:
            outlying = rng.random(Y.shape) < 0.1
            Y[outlying] = rng.uniform(-4, 4, outlying.sum())
        options = {"uncertainty": "variational"} | options
        model = ovkgp.RobustFunctionalRegressor(lam=1e-4, tolerance=1e-3, **options).fit(X, Y, grid)
        new = rng.uniform(0, 1, (100, 1))
        truth = np.sin(2 * np.pi * (grid + new)) + 0.1 * rng.standard_normal((100, 20))
        for found, flag in ((pointwise, False), (simultaneous, True)):
            lower, upper = model.predict_interval(new, 0.9, simultaneous=flag)
            inside = (truth >= lower) & (truth <= upper)
            found.append(inside.all(1).mean() if flag else inside.mean())
    assert 0.85 <= np.mean(pointwise) <= 0.95
    assert 0.85 <= np.mean(simultaneous) <= 0.95


@pytest.mark.parametrize("uncertainty", ["variational", "student_t"])
def test_bands_of_curves_count_outlying_values_in_the_error_of_the_fit(uncertainty):
    """Standard deviations of f were .05 at errors of .18, since only regular values determined them; Student-t bands covered .75."""
    covered, ratios = [], []
    for seed in range(3):
        rng = np.random.default_rng(seed)
        X, new, grid = rng.uniform(0, 1, (60, 1)), rng.uniform(0, 1, (50, 1)), np.linspace(0, 1, 20)
        Y = np.sin(2 * np.pi * (grid + X)) + 0.1 * rng.standard_normal((60, 20))
        outlying = rng.random(Y.shape) < 0.1
        Y[outlying] = rng.uniform(-4, 4, outlying.sum())
        options = {"p": 2, "lam": 1e-4, "tolerance": 1e-3, "uncertainty": uncertainty}
        model = ovkgp.RobustFunctionalRegressor(**options).fit(X, Y, grid)
        truth = np.sin(2 * np.pi * (grid + new))
        mean, std = model.predict(new, return_std=True, noise=False)
        ratios.append(np.mean((mean - truth) ** 2) / np.mean(std**2))
        lower, upper = model.predict_interval(new, 0.9)
        y = truth + 0.1 * rng.standard_normal(truth.shape)
        covered.append(np.mean((lower <= y) & (y <= upper)))
    assert 0.85 <= np.mean(covered) <= 0.95
    assert np.mean(ratios) < {"variational": 2, "student_t": 5}[uncertainty]


@pytest.mark.parametrize(
    "options", [{}, {"p": 2, "basis": "eigen"}, {"uncertainty": "variational"}, {"kappa": [0.1, 0.5]}]
)
@pytest.mark.filterwarnings("ignore::ovkgp.exceptions.FitWarning")
def test_saved_models_predict_the_same(data, tmp_path, options):
    X, grid, Y = data
    model = ovkgp.RobustFunctionalRegressor(**options).fit(X, Y, grid)
    model.save(tmp_path / "model.ovkgp")
    loaded = ovkgp.load(tmp_path / "model.ovkgp")
    np.testing.assert_allclose(loaded.predict(X, [0.1, 0.52]), model.predict(X, [0.1, 0.52]), rtol=1e-9)
    if model.has_predictive:
        np.testing.assert_allclose(loaded.predict_interval(X), model.predict_interval(X), rtol=1e-8)
        assert model.sample_functions(2, random_state=0)(X).shape == (2, N, M)


def test_invalid_options_are_rejected(data):
    X, grid, Y = data
    with pytest.raises(OptionError, match="p must"):
        ovkgp.RobustFunctionalRegressor(p=3).fit(X, Y)
    with pytest.raises(OptionError, match="huber"):
        ovkgp.RobustFunctionalRegressor("insensitive", uncertainty="variational").fit(X, Y)
    with pytest.raises(OptionError, match="uncertainty"):
        ovkgp.RobustFunctionalRegressor().fit(X, Y).predict(X, return_std=True)
    gaps = np.where(np.arange(M) == 2, np.nan, Y)
    gaps[0, 2] = 1.0
    with pytest.raises(InputError, match="complete"):
        ovkgp.RobustFunctionalRegressor(p=2, basis="eigen").fit(X, gaps, grid)
