"""Tests of `ovkgp.estimators.functional.feature_projection`."""

import time

import numpy as np
import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

import ovkgp
from ovkgp.estimators.functional.curve_problem import factor_rows
from ovkgp.exceptions import FitWarning, InputError, OptionError
from ovkgp.functional import BSplines, Combination, Fourier, FunctionalData, RandomProcesses
from ovkgp.losses import Huber, Square

N, M, D, LAM = 12, 16, 5, 1e-2
OPTIONS = {"lengthscale": 1.3, "lam": LAM, "fit_intercept": False, "scale": "given", "random_state": 0}


@pytest.fixture
def data():
    rng = np.random.default_rng(0)
    X, grid, Y = rng.standard_normal((N, 2)), np.sort(rng.uniform(0, 1, M)), rng.standard_normal((N, M))
    root = rng.standard_normal((D, D + 2))
    return X, FunctionalData(Y, grid, (0, 1)), rng.standard_normal((4, 2)), np.array([0.3, 0.77]), root @ root.T / D


@parametrize_with_checks([ovkgp.FeatureProjectionRegressor(random_state=0)])
def test_scikit_learn_checks_pass(estimator, check):
    check(estimator)


@pytest.mark.slow
@parametrize_with_checks(
    [
        ovkgp.FeatureProjectionRegressor(features="nystrom", num_features=30, penalty="function", random_state=0),
        ovkgp.FeatureProjectionRegressor(penalty="group", lam=1e-4, num_functions=1, random_state=0),
    ]
)
def test_scikit_learn_checks_pass_with_other_options(estimator, check):
    check(estimator)


@pytest.mark.parametrize("features", ["orff", "nystrom"])
def test_feature_projection_is_kernel_projection_of_the_features_bo_e_35(data, features):
    """C-32, BO-E-35: G Cᵀ XXᵀ + λn Cᵀ = V Xᵀ for the rows of the features, with right-hand sides b_l/υ_l in the eigenbasis."""
    X, curves, Xs, new, _ = data
    model = ovkgp.FeatureProjectionRegressor(BSplines(D), features=features, num_features=8, **OPTIONS).fit(X, curves)
    factor = model._make_factor(model._input_kernel, X)
    F, Fs, Phi = factor_rows(factor, X), factor_rows(factor, Xs), BSplines(D)(curves.grid)
    G, V = Phi.T @ Phi / M, curves.values @ Phi / M
    system = np.kron(F.T @ F, G) + LAM * N * np.eye(F.shape[1] * D)
    C = np.linalg.solve(system, (F.T @ V).ravel()).reshape(-1, D)  # (q, d)
    np.testing.assert_allclose(G @ C.T @ F.T @ F + LAM * N * C.T, V.T @ F, atol=1e-10)
    np.testing.assert_allclose(model.predict(Xs, new), Fs @ C @ BSplines(D)(new).T, atol=1e-8)
    values, W = np.linalg.eigh(G)
    B = (F.T @ V @ W).T  # rows b_l
    rows = [b / v @ np.linalg.inv(F.T @ F + LAM * N / v * np.eye(F.shape[1])) for b, v in zip(B, values, strict=True)]
    np.testing.assert_allclose((W @ np.stack(rows)).T, C, atol=1e-8)


def test_all_landmarks_equal_the_kernel(data):
    """C-32: Nyström features of all rows give kernel projection learning."""
    X, curves, Xs, new, B = data
    exact = {name: value for name, value in OPTIONS.items() if name != "random_state"}
    kernel = ovkgp.KernelProjectionRegressor(BSplines(D), output_matrix=B, **exact).fit(X, curves)
    model = ovkgp.FeatureProjectionRegressor(
        BSplines(D), output_matrix=B, features="nystrom", num_features=N, **OPTIONS
    )
    model.fit(X, curves)
    np.testing.assert_allclose(model.predict(Xs, new), kernel.predict(Xs, new), atol=1e-6)
    np.testing.assert_allclose(
        model.predict(X, new, return_std=True)[1], kernel.predict(X, new, return_std=True)[1], atol=1e-5
    )


def test_function_penalty_does_not_depend_on_the_scale_of_functions_bo_e_36(data):
    """BO-83, BO-E-36: Tr(C G Cᵀ) is ridge on G⁺V; rescaled functions leave mean and standard deviation unchanged."""
    X, curves, Xs, new, _ = data
    rescaled = Combination(BSplines(D), np.diag([1.0, 10.0, 0.1, 3.0, 2.0]))
    models = [
        ovkgp.FeatureProjectionRegressor(dictionary, penalty="function", num_features=8, **OPTIONS).fit(X, curves)
        for dictionary in (BSplines(D), rescaled)
    ]
    for got, expected in zip(*(m.predict(Xs, new, return_std=True) for m in models), strict=True):
        np.testing.assert_allclose(got, expected, atol=1e-7)
    F, Fs = (factor_rows(models[0]._make_factor(models[0]._input_kernel, X), rows) for rows in (X, Xs))
    Phi = BSplines(D)(curves.grid)
    coefficients = np.linalg.lstsq(Phi, curves.values.T, rcond=None)[0].T
    weights = np.linalg.solve(F.T @ F + LAM * N * np.eye(F.shape[1]), F.T @ coefficients)
    np.testing.assert_allclose(models[0].predict(Xs, new), Fs @ weights @ BSplines(D)(new).T, atol=1e-7)


def test_loss_objects(data):
    """BO-84: another loss from the same features; the square loss gives the closed form."""
    X, curves, Xs, new, _ = data
    ridge = ovkgp.FeatureProjectionRegressor(BSplines(D), num_features=8, **OPTIONS).fit(X, curves)
    options = OPTIONS | {"tolerance": 1e-11, "max_iter": 20000}
    square = ovkgp.FeatureProjectionRegressor(BSplines(D), num_features=8, loss=Square(), **options).fit(X, curves)
    np.testing.assert_allclose(square.predict(Xs, new), ridge.predict(Xs, new), atol=1e-4)
    huber = ovkgp.FeatureProjectionRegressor(BSplines(D), num_features=8, loss=Huber(0.3), **OPTIONS).fit(X, curves)
    assert huber.gap_ <= 1e-6
    # stationarity: λC = −(1/n) Xᵀ Γ, with clipped residuals
    F, Phi = factor_rows(huber.function_.inputs, X), factor_rows(huber.function_.factor, curves.grid[:, None])
    slopes = np.clip(huber.predict(X, curves.grid) - curves.values, -0.3, 0.3)
    np.testing.assert_allclose(huber.function_.weights, -F.T @ slopes @ Phi / (M * N * LAM), atol=1e-2)


def test_group_penalty_selects_functions():
    rng = np.random.default_rng(0)
    X, grid = rng.uniform(0, 1, (60, 1)), np.linspace(0, 1, 31)[:-1]
    Y = np.sin(2 * np.pi * (grid + X)) + 0.1 * rng.standard_normal((60, 30))
    curves = FunctionalData(Y, grid, (0, 1))
    model = ovkgp.FeatureProjectionRegressor(Fourier(10), penalty="group", lam=0.05, random_state=0).fit(X, curves)
    np.testing.assert_array_equal(model.selected_, [1, 2])
    assert model.gap_ <= 1e-6
    assert model.lam_max_ > 0.05
    none = ovkgp.FeatureProjectionRegressor(Fourier(10), penalty="group", lam=10.0, random_state=0).fit(X, curves)
    assert len(none.selected_) == 0
    np.testing.assert_allclose(none.predict(X), np.tile(Y.mean(0), (60, 1)))
    several = ovkgp.FeatureProjectionRegressor(
        Fourier(10), penalty="group", lam=np.geomspace(1e-4, 0.5, 8), random_state=0
    ).fit(X, curves)
    assert several.score(X, curves) > 0.95
    assert several.lam_ == several.path_lam_[np.argmin(several.path_error_)]
    assert (np.diff(several.path_count_) <= 0).all()


def test_selection_among_many_functions_ends_at_small_penalties():
    """180 redundant functions at λ = 10⁻⁴ (10⁻³ of the largest λ): 20000 proximal gradient steps left a gap of 3 %, without a warning."""
    rng = np.random.default_rng(0)
    X, grid = rng.uniform(0, 1, (60, 1)), np.linspace(0, 1, 50)
    Y = np.sin(2 * np.pi * (grid + X)) + 0.3 * rng.standard_normal((60, 50))
    options = {"penalty": "group", "random_state": 0, "lam": 1e-4, "features": "nystrom", "num_features": 60}
    started = time.process_time()
    model = ovkgp.FeatureProjectionRegressor(RandomProcesses(20, random_state=0), **options).fit(X, Y, grid)
    assert model.gap_ <= 1e-6
    assert model.n_iter_ <= 5000
    assert time.process_time() - started < 15
    with pytest.warns(FitWarning, match="max_iter"):
        model.set_params(max_iter=20).fit(X, Y, grid)
    assert model.n_iter_ == 20


@pytest.mark.parametrize("options", [{}, {"features": "nystrom"}, {"penalty": "group"}, {"loss": Huber(0.5)}])
def test_saved_models_predict_the_same(data, tmp_path, options):
    X, curves, Xs, new, _ = data
    model = ovkgp.FeatureProjectionRegressor(num_features=10, random_state=0, **options).fit(X, curves)
    model.save(tmp_path / "model.ovkgp")
    loaded = ovkgp.load(tmp_path / "model.ovkgp")
    np.testing.assert_allclose(loaded.predict(Xs, new), model.predict(Xs, new), rtol=1e-9)
    assert model.has_predictive == loaded.has_predictive == (options.keys() <= {"features"})


def test_invalid_options_are_rejected(data):
    X, curves, *_ = data
    gaps = FunctionalData(np.where(np.arange(M) == 3, np.nan, curves.values), curves.grid)
    with pytest.raises(InputError, match="complete"):
        ovkgp.FeatureProjectionRegressor().fit(X, gaps)
    for options in ({"output_matrix": np.eye(D)}, {"loss": Square()}, {"convention": "sum"}):
        with pytest.raises(OptionError, match="group"):
            ovkgp.FeatureProjectionRegressor(BSplines(D), penalty="group", **options).fit(X, curves)
