"""Tests of `ovkgp.estimators.functional.functional_linear`."""

import numpy as np
import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

import ovkgp
from ovkgp.exceptions import InputError, OptionError
from ovkgp.functional import FunctionalData
from ovkgp.functional.quadrature import quadrature_weights

S, T = np.linspace(0, 1, 25), np.linspace(0, 1, 20)
FIXED = {"kernel": "rbf", "input_lengthscale": 0.3, "output_lengthscale": 0.25, "noise": 0.02}


def gauss(a, b, lengthscale):
    return np.exp(-((a[:, None] - b[None]) ** 2) / (2 * lengthscale**2))


def input_curves(rng, n):
    return rng.standard_normal((n, 8)) / (1 + np.arange(8)) @ np.cos(np.pi * np.arange(8)[:, None] * S)


@parametrize_with_checks([ovkgp.FunctionalLinearRegressor()])
def test_scikit_learn_checks_pass(estimator, check):
    check(estimator)


@pytest.mark.slow
@parametrize_with_checks([ovkgp.FunctionalLinearRegressor(inputs="curve", kernel="rbf")])
def test_scikit_learn_checks_pass_with_other_options(estimator, check):
    check(estimator)


def test_function_on_function_is_a_gaussian_process():
    """Mean and variance of β and of predictions against dense algebra."""
    rng = np.random.default_rng(0)
    X, Y = input_curves(rng, 10), rng.standard_normal((10, 20))
    model = ovkgp.FunctionalLinearRegressor(fit_intercept=False, residuals="white", **FIXED)
    model.fit(FunctionalData(X, S), Y, T)
    w = quadrature_weights(S, None, "trapezoid")
    KS, KT = gauss(S, S, 0.3), gauss(T, T, 0.25)
    F = X * w
    C = np.kron(F @ KS @ F.T, KT) + 0.02 * 20 * np.eye(200)
    scale = Y.ravel() @ np.linalg.solve(C, Y.ravel()) / 200
    cross = np.kron(KS @ F.T, KT)
    beta = (cross @ np.linalg.solve(C, Y.ravel())).reshape(25, 20)
    variance = scale * (1 - np.einsum("ab,ba->a", cross, np.linalg.solve(C, cross.T))).reshape(25, 20)
    assert model.scale_ == pytest.approx(scale, rel=1e-4)
    np.testing.assert_allclose(model.coef_, beta, atol=1e-3)
    np.testing.assert_allclose(model.coef_std_**2, variance, atol=1e-3 * scale)
    np.testing.assert_allclose(model.predict(FunctionalData(X, S)), F @ beta, atol=1e-3)
    log_density = -(200 + np.linalg.slogdet(C)[1] + 200 * np.log(2 * np.pi * scale)) / 2
    assert model.log_evidence_ == pytest.approx(log_density, abs=0.05)


@pytest.mark.parametrize("kind", ["gaps", "ragged"])
def test_observed_values_of_incomplete_curves_are_a_gaussian_process(kind):
    """Mean and variance of β against dense algebra of the observed values, with an intercept function of variance v k_T."""
    rng = np.random.default_rng(0)
    X, Y = rng.standard_normal((9, 2)), rng.standard_normal((9, 20))
    Y[rng.random(Y.shape) < 0.3] = np.nan
    observed = np.isfinite(Y)
    data = FunctionalData(Y, T)
    if kind == "ragged":
        data = FunctionalData([y[o] for y, o in zip(Y, observed, strict=True)], [T[o] for o in observed])
    options = {"kernel": "rbf", "output_lengthscale": 0.25, "noise": 0.02, "residuals": "white"}
    model = ovkgp.FunctionalLinearRegressor(**options).fit(X, data)
    U = (X - X.mean(0)) / X.std(0)
    V = np.column_stack([U, np.full(9, model._intercept_scale)])
    C = (np.kron(V @ V.T, gauss(T, T, 0.25)) + 0.02 * observed.sum(1).mean() * np.eye(180))[observed.ravel()][
        :, observed.ravel()
    ]
    y = (Y - model.mean_curve_(T)[:, 0])[observed]
    scale = y @ np.linalg.solve(C, y) / len(y)
    cross = np.kron(U.T, gauss(T, T, 0.25))[:, observed.ravel()] / np.repeat(X.std(0), 20)[:, None]
    variance = np.repeat(1 / X.var(0), 20) - np.einsum("ab,ba->a", cross, np.linalg.solve(C, cross.T))
    assert model.scale_ == pytest.approx(scale, rel=1e-3)
    np.testing.assert_allclose(model.coef_, (cross @ np.linalg.solve(C, y)).reshape(2, 20), atol=2e-3)
    np.testing.assert_allclose(model.coef_std_**2, scale * variance.reshape(2, 20), atol=2e-3 * scale)


def smooth_curves(rng, n, lengthscale=0.15):
    root = np.linalg.cholesky(gauss(T, T, lengthscale) + 1e-9 * np.eye(len(T)))
    return rng.standard_normal((n, len(T))) @ root.T


def coverage_of_bands(kind, residuals, observed, seeds):
    """Return the coverage of 90 % bands of β and of the curves without noise."""
    coefficients, curves = [], []
    for seed in seeds:
        rng = np.random.default_rng(seed)
        if kind == "vector":
            X = inputs = rng.standard_normal((60, 2))
            beta, a = np.stack([np.sin(2 * np.pi * T), T**2]), np.cos(T)
            F = X @ beta + a
        else:
            X = input_curves(rng, 60)
            beta, inputs = np.sin(np.pi * S)[:, None] * np.cos(np.pi * T) * 2, FunctionalData(X, S)
            F = (X * quadrature_weights(S, None, "trapezoid")) @ beta + np.sin(2 * np.pi * T)
        noise = 0.3 * rng.standard_normal(F.shape)
        Y = F + (noise if residuals == "white" else noise / 3 + 0.25 * smooth_curves(rng, 60))
        y = FunctionalData(np.where(rng.random(Y.shape) < 0.5, np.nan, Y) if observed == "gaps" else Y, T)
        if observed == "ragged":
            grids = [np.sort(rng.uniform(0, 1, 12)) for _ in range(60)]
            values = [np.interp(g, T, f) + 0.3 * rng.standard_normal(12) for g, f in zip(grids, F, strict=True)]
            y = FunctionalData(values, grids, (0, 1))
        model = ovkgp.FunctionalLinearRegressor().fit(inputs, y)
        lower, upper = model.coefficient_interval(0.9, grid=T)
        coefficients.append(((lower <= beta) & (beta <= upper)).mean())
        lower, upper = model.predict_interval(inputs, 0.9, grid=T, noise=False)
        curves.append(((lower <= F) & (upper >= F)).mean())
    return np.mean(coefficients), np.mean(curves)


CASES = [("complete", "white"), ("complete", "smooth"), ("gaps", "white"), ("gaps", "smooth"), ("ragged", "white")]


@pytest.mark.parametrize(("observed", "residuals"), CASES)
def test_bands_cover_of_a_few_data_sets(observed, residuals):
    """Bands of β covered .79 with smooth residuals and .19 for ragged curves, those of curves .62 without the intercept's error."""
    found = coverage_of_bands("vector", residuals, observed, range(4))
    assert min(found) > 0.78


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["vector", "function"])
@pytest.mark.parametrize(("observed", "residuals"), CASES)
def test_bands_have_nominal_coverage(kind, observed, residuals):
    coefficients, curves = coverage_of_bands(kind, residuals, observed, range(60))
    assert 0.85 <= coefficients <= 0.97
    assert 0.85 <= curves <= 0.95


def test_function_on_scalar_recovers_coefficients():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((80, 3)) * [1.0, 5.0, 0.1] + 2
    beta = np.stack([np.sin(np.pi * T), 0.2 * T, 10 * np.cos(np.pi * T)])
    Y = 1 + T + X @ beta + 0.1 * rng.standard_normal((80, 20))
    model = ovkgp.FunctionalLinearRegressor().fit(X, Y, T)
    np.testing.assert_allclose(model.coef_, beta, atol=0.5)
    lower, upper = model.coefficient_interval(0.9)
    assert 0.75 < ((lower <= beta) & (beta <= upper)).mean() <= 1
    assert model.score(X, Y) > 0.9
    assert model.input_grid_ is None
    with pytest.raises(OptionError, match="input_grid"):
        model.coefficients([0.5])


def test_scalar_on_function():
    rng = np.random.default_rng(0)
    X = FunctionalData(input_curves(rng, 100), S)
    beta = np.sin(np.pi * S)
    y = 3 + X.values @ (quadrature_weights(S, None, "trapezoid") * beta) + 0.02 * rng.standard_normal(100)
    model = ovkgp.FunctionalLinearRegressor().fit(X, y)
    assert model.coef_.shape == (25,)
    np.testing.assert_allclose(model.coef_, beta, atol=0.2)
    assert model.predict(X).shape == (100,)
    assert model.score(X, y) > 0.9
    assert model.coefficients([0.1, 0.2]).shape == (2,)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["function", "vector", "number"])
def test_coefficient_bands_have_nominal_coverage(kind):
    covered = []
    for seed in range(100):
        rng = np.random.default_rng(seed)
        w = quadrature_weights(S, None, "trapezoid")
        if kind == "vector":
            X = rng.standard_normal((60, 3))
            beta = np.stack([np.sin(np.pi * T), T, np.cos(2 * np.pi * T)])
            Y = X @ beta + 0.5 * rng.standard_normal((60, 20))
        else:
            X = FunctionalData(input_curves(rng, 80), S)
            beta = np.sin(np.pi * S)[:, None] * np.cos(2 * np.pi * T) + S[:, None] * T
            beta = beta if kind == "function" else np.sin(np.pi * S)
            Y = (X.values * w) @ beta
            Y = Y + 0.1 * rng.standard_normal(Y.shape)
        lower, upper = ovkgp.FunctionalLinearRegressor().fit(X, Y).coefficient_interval(0.9)
        covered.append(((lower <= beta) & (beta <= upper)).mean())
    assert 0.85 <= np.mean(covered) <= 0.95


def test_draws_and_files(tmp_path):
    rng = np.random.default_rng(0)
    X, Y = FunctionalData(input_curves(rng, 20), S), rng.standard_normal((20, 20))
    model = ovkgp.FunctionalLinearRegressor(**FIXED).fit(X, Y, T)
    draws = model.sample_functions(500, random_state=0)(X)
    mean, std = model.predict(X, return_std=True, noise=False)
    np.testing.assert_allclose(draws.mean(0), mean, atol=5 * std.max() / np.sqrt(500))
    np.testing.assert_allclose(draws.std(0), std, rtol=0.2)
    lower, upper = model.predict_interval(X, simultaneous=True)
    assert (lower < upper).all()
    model.save(tmp_path / "model.ovkgp")
    loaded = ovkgp.load(tmp_path / "model.ovkgp")
    np.testing.assert_allclose(loaded.coefficient_interval(0.9), model.coefficient_interval(0.9), rtol=1e-10)
    np.testing.assert_allclose(loaded.predict(X, [0.33]), model.predict(X, [0.33]), rtol=1e-10)


def test_constant_inputs_are_rejected():
    with pytest.raises(InputError, match="vary"):
        ovkgp.FunctionalLinearRegressor().fit(np.full((10, 2), 0.3), np.random.default_rng(0).standard_normal((10, 20)))


def test_default_fit_has_a_summary_and_a_file(tmp_path):
    rng = np.random.default_rng(0)
    X, Y = FunctionalData(input_curves(rng, 20), S), rng.standard_normal((20, 20))
    model = ovkgp.FunctionalLinearRegressor().fit(X, Y, T)
    model.save(tmp_path / "model.ovkgp")
    assert str(ovkgp.load(tmp_path / "model.ovkgp").summary()) == str(model.summary())
