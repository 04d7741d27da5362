"""Tests of `ovkgp.estimators.functional.function_gp`."""

import pickle

import numpy as np
import pandas as pd
import pytest
import torch
from curve_cases import CurveOracle, dense, simulate_curves, simulate_decaying_curves
from gpytorch.kernels import MaternKernel, RBFKernel, ScaleKernel
from sklearn.base import clone
from sklearn.utils.estimator_checks import parametrize_with_checks

import ovkgp
from ovkgp.estimators.common.prediction_columns import PredictionRequest
from ovkgp.exceptions import DomainError, FitWarning, InputError, OptionError
from ovkgp.functional import FunctionalData
from ovkgp.inference.model.curve_noise import CurveNoise
from ovkgp.inference.stacking.curve_candidates import CurveCandidate

QUICK = {"kernel": "rbf", "task_kernel": "matern52", "output_basis": "kernel", "deviations": True}


@parametrize_with_checks([ovkgp.FunctionGPRegressor(**QUICK)])
def test_scikit_learn_checks_pass(estimator, check):
    check(estimator)


@pytest.mark.slow
@parametrize_with_checks([ovkgp.FunctionGPRegressor(), ovkgp.FunctionGPRegressor(output_basis="pca")])
def test_scikit_learn_checks_pass_with_mixtures(estimator, check):
    check(estimator)


@pytest.fixture(scope="module")
def curves():
    return simulate_curves(24, 12)


@pytest.fixture(scope="module")
def model(curves):
    grid, X, Y = curves
    return ovkgp.FunctionGPRegressor(random_state=0).fit(X, Y, grid=grid)


def fixed_options(noise=0.1):
    kernel, task_kernel = ScaleKernel(RBFKernel()).double(), MaternKernel(nu=2.5).double()
    task_kernel.lengthscale = 0.3
    return {
        "kernel": kernel,
        "task_kernel": task_kernel,
        "noise": noise,
        "hyperparameters": "fixed",
        "output_basis": "kernel",
    }


def fixed_oracle(options, X, Y, points):
    tasks = torch.from_numpy(np.asarray(points, dtype=float)).unsqueeze(-1)
    noise = CurveNoise(tasks)
    noise.set(options["noise"])
    return CurveOracle(
        options["kernel"], options["task_kernel"], noise, torch.from_numpy(X), torch.from_numpy(Y), tasks
    )


@pytest.mark.parametrize("missing", [0.0, 0.3])
def test_prediction_equals_dense_algebra(curves, missing):
    grid, X, Y = curves
    Y = np.where(np.random.default_rng(0).random(Y.shape) < missing, np.nan, Y)
    options = fixed_options()
    found = ovkgp.FunctionGPRegressor(**options).fit(X, Y, grid=grid)
    new = np.linspace(0.05, 0.9, 5)
    mean, std = found.predict(X[:3] + 0.1, grid=new, return_std=True)
    oracle = fixed_oracle(options, X, Y, grid)
    expected, covariance = oracle.moments(torch.from_numpy(X[:3] + 0.1), torch.from_numpy(new).unsqueeze(-1))
    np.testing.assert_allclose(mean.ravel(), expected, atol=1e-8)
    np.testing.assert_allclose(std.ravel() ** 2, np.diag(covariance) + 0.1, atol=1e-8)
    latent = found.predict(X[:3] + 0.1, grid=new, return_std=True, noise=False)[1]
    np.testing.assert_allclose(latent.ravel() ** 2, np.diag(covariance), atol=1e-8)
    assert found.posterior_.log_evidence == pytest.approx(oracle.log_evidence, abs=1e-8)


def test_ragged_equals_dense_where_grids_agree(curves):
    grid, X, Y = curves
    Y = np.where(np.random.default_rng(0).random(Y.shape) < 0.3, np.nan, Y)
    seen = [~np.isnan(row) for row in Y]
    ragged = FunctionalData([row[mask] for row, mask in zip(Y, seen, strict=True)], [grid[mask] for mask in seen])
    options = fixed_options()
    first = ovkgp.FunctionGPRegressor(**options).fit(X, Y, grid=grid)
    second = ovkgp.FunctionGPRegressor(**options).fit(X, ragged)
    for a, b in zip(first.predict(X, return_std=True), second.predict(X, grid=grid, return_std=True), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-10)


def test_complete_equals_adding_the_observed_values_to_the_data(curves):
    grid, X, Y = curves
    options = fixed_options()
    partial = np.where(grid < 0.5, Y[-1], np.nan)
    found = ovkgp.FunctionGPRegressor(**options).fit(X[:-1], Y[:-1], grid=grid)
    mean, std = found.complete(X[-1:], partial[None], return_std=True)
    together = ovkgp.FunctionGPRegressor(**options).fit(X, np.vstack([Y[:-1], partial]), grid=grid)
    expected, expected_std = together.predict(X[-1:], return_std=True)
    np.testing.assert_allclose(mean, expected, atol=1e-8)
    np.testing.assert_allclose(std, expected_std, atol=1e-8)
    nothing = found.complete(X[-1:], np.full((1, len(grid)), np.nan))
    np.testing.assert_allclose(nothing, found.predict(X[-1:]), atol=1e-10)


def test_complete_with_deviations_equals_dense_algebra(curves):
    grid, X, Y = curves
    found = ovkgp.FunctionGPRegressor(**QUICK).fit(X[:-1], Y[:-1], grid=grid)
    cut, data, gp = grid < 0.5, found._data, found.gp_
    y = found.scaling_.standardize(Y[-1:, :, None], grid[:, None])
    x = found.scaling_.inputs(X[-1:])
    over_inputs = dense(gp.kernel.input_kernel, torch.cat([data.X, x]))
    noise = gp.noise_model.matrix().detach().numpy()
    over_tasks = dense(gp.kernel.task_kernel, data.tasks)
    C = np.kron(over_inputs, over_tasks) + np.kron(np.eye(len(over_inputs)), noise)
    values = torch.cat([data.Y, y]).numpy()
    values[-1, ~cut] = np.nan
    seen = ~np.isnan(values.ravel())
    target = ~seen
    solved = np.linalg.solve(C[np.ix_(seen, seen)], C[np.ix_(seen, target)])
    mean = found.complete(X[-1:], np.where(cut, Y[-1:], np.nan))[:, ~cut]
    expected = (solved.T @ values.ravel()[seen]) * found.scaling_.output_scale[0]
    expected = expected + found.scaling_.mean_values(grid[:, None])[~cut, 0]
    np.testing.assert_allclose(mean[0], expected, atol=1e-7)
    std = found.complete(X[-1:], np.where(cut, Y[-1:], np.nan), return_std=True)[1][0, ~cut]
    variance = np.diag(C[np.ix_(target, target)] - C[np.ix_(target, seen)] @ solved)
    np.testing.assert_allclose(std, np.sqrt(variance) * found.scaling_.output_scale[0], atol=1e-6)


def test_mixture_of_models_predicts_bands_and_draws(curves, model):
    _, X, Y = curves
    assert model.weights_.sum() == pytest.approx(1.0)
    assert {"principal components"} < set(model.scores_)
    mean, std = model.predict(X[:4], return_std=True)
    lower, upper = model.predict_interval(X[:4], 0.9)
    wide_lower, wide_upper = model.predict_interval(X[:4], 0.9, simultaneous=True)
    assert mean.shape == std.shape == lower.shape == (4, 12)
    assert (wide_lower < lower).all() and (upper < wide_upper).all() and (lower < mean).all() and (mean < upper).all()
    draws = model.sample_y(X[:4], 2000)
    assert draws.shape == (4, 12, 2000)
    np.testing.assert_allclose(draws.mean(-1), mean, atol=0.06)
    np.testing.assert_allclose(draws.std(-1), std, rtol=0.12)
    inside = ((draws > wide_lower[..., None]) & (draws < wide_upper[..., None])).all(1).mean(-1)
    assert (np.abs(inside - 0.9) < 0.04).all()
    np.testing.assert_array_equal(draws, model.sample_y(X[:4], 2000))
    assert model.score(X, Y) > 0.8


def test_derivative_bands_agree_with_differences_of_draws(curves):
    grid, X, Y = curves
    model = ovkgp.FunctionGPRegressor(output_basis="kernel", random_state=0).fit(X, Y, grid=grid)
    h, points = 1e-3, np.array([0.2, 0.5, 0.8])
    draws = model.sample_y(X[:2], 4000, grid=np.sort(np.concatenate([points - h, points + h])), noise=False)
    slopes = (draws[:, 1::2] - draws[:, ::2]) / (2 * h)
    mean, std = model.predict(X[:2], grid=points, return_std=True, noise=False, derivative=1)
    np.testing.assert_allclose(slopes.mean(-1), mean, atol=0.25)
    np.testing.assert_allclose(slopes.std(-1), std, rtol=0.15)
    lower, upper = model.predict_interval(X[:2], grid=points, derivative=1)
    assert (lower < mean).all() and (mean < upper).all()


@pytest.mark.parametrize("basis", ["kernel", "pca", "shared"])
@pytest.mark.slow
def test_random_functions_keep_their_values_and_have_the_moments_of_f(curves, basis):
    grid, X, Y = curves
    options = QUICK if basis == "kernel" else {"output_basis": basis}
    found = ovkgp.FunctionGPRegressor(**options).fit(X, Y, grid=grid)
    count = 12 if basis == "pca" else 300  # which has features for each draw of the hyperparameters of each score
    draws = found.sample_functions(count, random_state=0)
    values = draws(X[:3], grid=grid[::3])
    assert len(draws) == count and values.shape == (count, 3, 4)
    np.testing.assert_allclose(draws[7](X[:3], grid=grid[::3]), values[7], atol=1e-9)
    np.testing.assert_allclose(draws(X[1:2], grid=grid[::3])[:, 0], values[:, 1], atol=1e-9)
    mean, std = found.predict(X[:3], grid=grid[::3], return_std=True, noise=False)
    np.testing.assert_allclose(values.mean(0), mean, atol=5 * std.max() / count**0.5 + 0.02)
    np.testing.assert_allclose(values.std(0).mean(), std.mean(), rtol=0.5 if basis == "pca" else 0.15)


@pytest.mark.parametrize("basis", ["auto", "pca"])
@pytest.mark.parametrize("num_points", [2, 8])
def test_few_points_are_interpolated(basis, num_points):
    """With as many principal components as points there is no truncation error."""
    grid, X, Y = simulate_curves(24, 8, noise=0.3)
    found = ovkgp.FunctionGPRegressor(output_basis=basis).fit(X, Y[:, :num_points], grid=grid[:num_points])
    at = grid[:num_points].mean() + np.array([0.01, 0.02])
    assert (found.predict(X, grid=at, return_std=True)[1] > 0.1).all()
    lower, upper = found.predict_interval(X, grid=at, simultaneous=True)
    assert (lower < upper).all() and (upper < 10).all()


def waves(X, points):
    return np.sin(9 * points * (1 + X[:, :1])) * X[:, 1:] + np.exp(-((points - X[:, :1]) ** 2) / 0.005)


@pytest.mark.parametrize("basis", ["pca", "shared"])
@pytest.mark.slow
def test_bands_of_an_emulator_cover_between_the_points_of_the_grid(basis):
    grid, X = np.linspace(0, 1, 20), np.random.default_rng(0).uniform(size=(160, 2))
    found = ovkgp.FunctionGPRegressor(output_basis=basis).fit(X[:60], waves(X[:60], grid), grid=grid)
    between = (grid[1:] + grid[:-1]) / 2
    lower, upper = found.predict_interval(X[60:], 0.9, grid=between)
    truth = waves(X[60:], between)
    assert ((lower <= truth) & (truth <= upper)).mean() > 0.85
    assert np.sqrt(np.mean((found.predict(X[60:], grid=between) - truth) ** 2)) < 0.1
    std = found.predict(X[60:], grid=between, return_std=True)[1]
    draws = found.sample_y(X[60:63], 2000, grid=between)
    assert np.mean(draws.std(-1) / std[:3]) == pytest.approx(1.0, abs=0.1)
    with pytest.raises(OptionError, match="derivative"):
        found.predict(X, derivative=1)


def test_emulator_is_bounded_beyond_its_grid():
    grid, X = np.linspace(0.3, 0.7, 20), np.random.default_rng(0).uniform(size=(60, 2))
    Y = FunctionalData(waves(X, grid), grid, [0, 1])
    for basis in ("pca", "shared"):
        found = ovkgp.FunctionGPRegressor(output_basis=basis).fit(X, Y)
        far = np.array([0.0, 0.1, 0.9, 1.0])
        mean, std = found.predict(X, grid=far, return_std=True)
        assert np.abs(mean).max() < 10 and (std > 3 * found.predict(X, grid=[0.51], return_std=True)[1]).all()
        assert (np.abs(waves(X, far) - mean) < 1.645 * std).mean() > 0.8


@pytest.mark.parametrize("basis", ["kernel", "auto"])
def test_derivatives_are_accurate_under_white_noise(basis):
    rng = np.random.default_rng(0)
    grid, X = np.linspace(0, 1, 60), rng.uniform(-1, 1, (80, 2))
    phase = 2 * np.pi * (grid + 0.3 * X[:, :1])
    Y = np.sin(phase) * (1 + X[:, 1:]) + 0.1 * rng.standard_normal(phase.shape)
    slopes = 2 * np.pi * np.cos(phase) * (1 + X[:, 1:])
    found = ovkgp.FunctionGPRegressor(output_basis=basis).fit(X[:40], Y[:40], grid=grid)
    error = np.sqrt(np.mean((found.predict(X[40:], derivative=1) - slopes[40:]) ** 2))
    assert error < 0.25 * slopes.std()
    lower, upper = found.predict_interval(X[40:], 0.9, derivative=1, noise=False)
    assert 0.8 < ((lower <= slopes[40:]) & (slopes[40:] <= upper)).mean() < 0.99


def test_uneven_depths_are_covered_between_their_points():
    rng = np.random.default_rng(0)
    depths = np.array([0, 2, 5, 10, 20, 30, 50, 75, 100, 150, 200, 300, 500, 800, 1500, 3000, 5000.0])
    X, own = rng.uniform(-1, 1, (100, 2)), rng.standard_normal((100, 2))

    def curve(d):
        u = np.log1p(d / 20)
        deviations = 0.3 * own @ np.stack([np.sin(u), np.cos(u)])
        return 10 * np.exp(-d / 300) * (1 + 0.2 * X[:, :1]) + X[:, 1:] * np.sin(u) + deviations

    Y = curve(depths) + 0.05 * rng.standard_normal((100, len(depths)))
    found = ovkgp.FunctionGPRegressor(**QUICK).fit(X[:40], Y[:40], grid=depths)
    new = np.array([40.0, 400, 650, 2000, 4000])
    truth = curve(new)[40:]
    lower, upper = found.predict_interval(X[40:], 0.9, grid=new)
    assert ((lower <= truth) & (truth <= upper)).mean() > 0.75
    assert np.sqrt(np.mean((found.predict(X[40:], grid=new) - truth) ** 2)) < 0.5
    h = 1e-3
    slopes = (found.predict(X[:2], grid=new + h) - found.predict(X[:2], grid=new - h)) / (2 * h)
    np.testing.assert_allclose(found.predict(X[:2], grid=new, derivative=1), slopes, rtol=1e-4, atol=1e-7)


def test_saved_model_predicts_the_same(curves, model, tmp_path):
    _, X, _ = curves
    model.save(tmp_path / "model.ovkgp")
    loaded = ovkgp.load(tmp_path / "model.ovkgp")
    for a, b in zip(model.predict(X, return_std=True), loaded.predict(X, return_std=True), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12)
    np.testing.assert_array_equal(model.sample_y(X[:2], 3), loaded.sample_y(X[:2], 3))
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(model.predict(X), again.predict(X))
    assert clone(model).get_params() == model.get_params()


def test_summary_columns_and_predictive_distribution(curves, model):
    _, X, Y = curves
    assert "principal components" in str(model.summary())
    columns = model.prediction_columns(X[:3], PredictionRequest(level=0.9))
    assert {"y0_mean", "y0_std", "y0_low", "y11_high"} <= set(columns)
    predictive = model.predictive(X)
    assert predictive.mean.shape == (24, 12)
    assert np.isfinite(predictive.log_density(Y)).all()
    rows, table = model.training_data()
    np.testing.assert_allclose(rows, X, atol=1e-12)
    np.testing.assert_allclose(table, Y, atol=1e-12)
    assert model.describe().name
    assert sum(model.model_weights().values()) == pytest.approx(1.0)


def test_many_ragged_values_fit_into_memory():
    """110 curves of 50 own points have a union grid of 5500 points: its n covariances of the noise are not formed."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (150, 2))
    points = [np.sort(rng.uniform(size=50)) for _ in range(110)]

    def curve(x, t):
        return np.sin(2 * np.pi * (t + 0.3 * x[0])) * (1 + x[1])

    values = [curve(x, t) + 0.1 * rng.standard_normal(50) for x, t in zip(X[:110], points, strict=True)]
    found = ovkgp.FunctionGPRegressor(**QUICK | {"deviations": False}).fit(X[:110], FunctionalData(values, points))
    grid = np.linspace(0.05, 0.95, 20)
    expected = np.stack([curve(x, grid) for x in X[110:]])
    mean, std = found.predict(X[110:], grid=grid, return_std=True, noise=False)
    assert np.sqrt(np.mean((mean - expected) ** 2)) < 0.1
    assert 0.8 < np.mean(np.abs(mean - expected) < 1.645 * std) <= 1.0
    assert found.sample_y(X[110:112], 3, grid=grid).shape == (2, 20, 3)
    assert found.complete(X[110:112], expected[:2], observed_grid=grid, grid=grid).shape == (2, 20)


@pytest.mark.parametrize("basis", ["auto", "pca", "shared"])
@pytest.mark.slow
def test_few_missing_values_keep_all_models(curves, basis, tmp_path):
    grid, X, Y = curves
    gaps = Y.copy()
    gaps[[1, 5, 9], [2, 3, 4]] = np.nan
    found, complete = (ovkgp.FunctionGPRegressor(output_basis=basis).fit(X, one, grid=grid) for one in (gaps, Y))
    assert list(found.scores_) == list(complete.scores_)
    assert np.sqrt(np.mean((found.predict(X) - complete.predict(X)) ** 2)) < 0.1
    found.save(tmp_path / "model.ovkgp")
    np.testing.assert_allclose(ovkgp.load(tmp_path / "model.ovkgp").predict(X), found.predict(X), atol=1e-12)


def test_channels_are_predicted_together(curves):
    grid, X, Y = curves
    both = np.stack([Y, 10 - 3 * Y + 0.1 * np.random.default_rng(0).standard_normal(Y.shape)], -1)
    found = ovkgp.FunctionGPRegressor(**QUICK).fit(X, both, grid=grid)
    mean, std = found.predict(X[:3], return_std=True)
    assert mean.shape == std.shape == (3, 12, 2)
    cut = both[:2].copy()
    cut[:, :, 1] = np.nan
    expected = 10 - 3 * Y[:2]  # the second channel follows from the first
    assert np.abs(found.complete(X[:2], cut)[..., 1] - expected).mean() < 0.3 * np.abs(mean[:2, :, 1] - expected).mean()
    assert found.sample_y(X[:3], 5).shape == (3, 12, 2, 5)


def test_collinear_channels_are_predicted_as_well_as_one():
    grid, X, Y = simulate_curves(60, 15)
    both = np.stack([Y, -Y], -1)
    one = ovkgp.FunctionGPRegressor(**QUICK).fit(X[:40], Y[:40], grid=grid).score(X[40:], Y[40:])
    assert ovkgp.FunctionGPRegressor(**QUICK).fit(X[:40], both[:40], grid=grid).score(X[40:], both[40:]) > one - 0.1


def test_training_without_convergence_warns(curves, monkeypatch):
    grid, X, Y = curves
    train = CurveCandidate.train
    monkeypatch.setattr(CurveCandidate, "train", lambda self, data: train(self, data, max_iter=2))
    with pytest.warns(FitWarning, match="without converging"):
        ovkgp.FunctionGPRegressor(**QUICK).fit(X, Y, grid=grid)


def test_channels_may_be_observed_at_different_points(curves):
    grid, X, Y = curves
    both = np.stack([Y, 2 - Y], -1)
    both[:, ::2, 0] = both[:, 1::2, 1] = np.nan  # every point has values of one channel only
    found = ovkgp.FunctionGPRegressor(**QUICK | {"deviations": False}).fit(X, both, grid=grid)
    mean, std = found.predict(X, return_std=True)
    assert np.isfinite(std).all()
    error = np.square(mean - np.stack([Y, 2 - Y], -1)).mean()
    assert error < 0.5 * np.square(Y - Y.mean(0)).mean()


def test_given_kernel_is_compared_with_and_without_deviations(curves):
    grid, X, _ = curves
    Y = np.sin(6 * grid + X[:, :1]) + 0.1 * np.random.default_rng(0).standard_normal((len(X), len(grid)))
    kernel = ScaleKernel(RBFKernel()).double()
    options = {"kernel": kernel, "task_kernel": "matern52", "output_basis": "kernel"}
    found = ovkgp.FunctionGPRegressor(**options).fit(X, Y, grid=grid)
    assert list(found.scores_)[:2] == ["given ⊗ matern52", "given ⊗ matern52, no deviations"]
    assert found.weights_.sum() == pytest.approx(1)


def test_groups_share_a_subject_level_curve(curves):
    grid, X, Y = curves
    groups = np.repeat(list("abcdef"), 4)
    shift = np.random.default_rng(0).standard_normal((6, 1))[np.repeat(np.arange(6), 4)] * np.cos(grid)
    found = ovkgp.FunctionGPRegressor(task_kernel="matern52").fit(X, Y + shift, grid=grid, groups=groups)
    known = found.predict(X, groups=groups)
    error, error_new = (np.sqrt(np.mean((one - Y - shift) ** 2)) for one in (known, found.predict(X)))
    assert error < 0.7 * error_new
    _, known_std = found.predict(X[:1], groups=groups[:1], return_std=True)
    _, new_std = found.predict(X[:1], groups=["z"], return_std=True)
    assert (known_std < new_std).all()
    with pytest.raises(InputError, match="without groups"):
        ovkgp.FunctionGPRegressor(**QUICK).fit(X, Y).predict(X, groups=groups)


@pytest.mark.parametrize("missing", [0.0, 0.4])
def test_varying_noise_follows_the_data(missing):
    grid, X, Y = simulate_curves(40, 15, deviation=0.1)
    rng = np.random.default_rng(0)
    Y = Y + 0.6 * grid * rng.standard_normal(Y.shape)
    Y = np.where(rng.random(Y.shape) < missing, np.nan, Y)
    found = ovkgp.FunctionGPRegressor(**QUICK | {"noise": "varying"}).fit(X, Y, grid=grid)
    white = (
        np.sqrt(found.mixture_.components[0].white_at(found._data.tasks).detach().numpy()) * found.scaling_.output_scale
    )
    assert white[-1] > 3 * white[0]
    np.testing.assert_allclose(white[7:], 0.6 * grid[7:], rtol=0.35)


@pytest.fixture(scope="module")
def decaying_model():
    grid, X, Y = simulate_decaying_curves(60, 24)
    Z = np.where(np.random.default_rng(0).random(Y.shape) < 0.5, np.nan, Y)
    return X, Y, ovkgp.FunctionGPRegressor(**QUICK).fit(X[:40], Z[:40], grid=grid)


def test_variance_of_curves_with_gaps_follows_the_data(decaying_model):
    X, Y, found = decaying_model
    assert found.model_weights()["linear + rbf, ARD ⊗ matern52, varying variance"] > 0.8
    std = found.predict(X[40:], return_std=True)[1]
    assert 5 < std[:, 0].mean() / std[:, -1].mean() < 20
    lower, upper = found.predict_interval(X[40:])
    assert (np.abs(((lower <= Y[40:]) & (Y[40:] <= upper)).reshape(20, 3, 8).mean((0, 2)) - 0.9) < 0.09).all()


def test_kernel_objects_of_curves_whose_variance_changes_along_the_domain_are_in_original_units():
    """With kernel objects there was no varying variance: bands had one width at all points."""
    (grid, X, Y), widths = simulate_decaying_curves(30, 20), []
    for unit in (1.0, 1000.0):
        kernel = ScaleKernel(MaternKernel(2.5))
        kernel.outputscale = unit**2
        model = ovkgp.FunctionGPRegressor(kernel=kernel, task_kernel=MaternKernel(2.5)).fit(X, unit * Y, grid)
        weights = model.model_weights()
        assert sum(weight for name, weight in weights.items() if name.endswith("varying variance")) > 0.5
        lower, upper = model.predict_interval(X[:5])
        widths.append((upper - lower).mean(0) / unit)
    assert widths[0][0] > 2 * widths[0][-1]
    np.testing.assert_allclose(widths[1], widths[0], rtol=1e-3)


def test_models_with_varying_variance_are_stored_and_have_derivatives(decaying_model, tmp_path):
    X, Y, found = decaying_model
    found.save(tmp_path / "model.ovkgp")
    loaded = ovkgp.load(tmp_path / "model.ovkgp")
    np.testing.assert_allclose(loaded.predict_interval(X[:3]), found.predict_interval(X[:3]), rtol=1e-9)
    at, h = np.array([0.2, 0.7]), 1e-5
    slopes = (found.predict(X[:3], grid=at + h) - found.predict(X[:3], grid=at - h)) / (2 * h)
    np.testing.assert_allclose(found.predict(X[:3], grid=at, derivative=1), slopes, rtol=1e-3)
    draws = found.sample_y(X[:2], 3000, grid=at, derivative=1)
    std = found.predict(X[:2], grid=at, return_std=True, derivative=1)[1]
    np.testing.assert_allclose(draws.std(-1), std, rtol=0.1)
    partial = np.where(np.arange(24) < 12, Y[40:], np.nan)
    completed, alone = found.complete(X[40:], partial), found.predict(X[40:])
    assert np.square(completed - Y[40:])[:, 12:].mean() < np.square(alone - Y[40:])[:, 12:].mean()


def test_functions_on_a_plane_and_curves_as_inputs(curves):
    grid, X, Y = curves
    rng = np.random.default_rng(0)
    places = rng.uniform(size=(20, 2))
    Z = np.sin(3 * places[:, 0] + X[:, :1]) * places[:, 1]
    found = ovkgp.FunctionGPRegressor(**QUICK).fit(X, Z, grid=places)
    new = rng.uniform(0.2, 0.8, (5, 2))
    expected = np.sin(3 * new[:, 0] + X[:, :1]) * new[:, 1]
    assert np.sqrt(np.mean((found.predict(X, grid=new) - expected) ** 2)) < 0.2 * Z.std()
    from_curves = ovkgp.FunctionGPRegressor(**QUICK).fit(FunctionalData(Y, grid), Y, grid=grid)
    assert from_curves.score(FunctionalData(Y, grid), Y) > 0.9
    assert from_curves.predict(FunctionalData(Y[:2], grid)).shape == (2, 12)


def test_data_frame_gives_grid_and_names(curves):
    grid, X, Y = curves
    frame = pd.DataFrame(Y, columns=[f"{value:.3f}" for value in grid])
    found = ovkgp.FunctionGPRegressor(**QUICK).fit(X, frame)
    np.testing.assert_allclose(found.grid_, np.round(grid, 3))
    assert found.output_names_ == list(frame.columns)
    assert found.predict(X[:2]).shape == (2, 12)


def test_hyperparameters_are_averaged_over_draws(curves):
    grid, X, Y = curves
    found = ovkgp.FunctionGPRegressor(**QUICK | {"hyperparameters": "laplace", "max_draws": 6}).fit(X, Y, grid=grid)
    assert len(found.weights_) == 6
    assert "task_kernel.lengthscale" in found.draws_["posterior"]
    assert found.predict(X[:2]).shape == (2, 12)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["svi", "nuts"])
def test_hyperparameters_are_averaged_over_svi_and_nuts_draws(curves, method):
    grid, X, Y = curves
    found = ovkgp.FunctionGPRegressor(**QUICK | {"hyperparameters": method, "max_draws": 6}).fit(X, Y, grid=grid)
    reference = ovkgp.FunctionGPRegressor(**QUICK | {"hyperparameters": "evidence"}).fit(X, Y, grid=grid)
    assert len(found.weights_) == 6
    assert np.abs(found.predict(X) - reference.predict(X)).mean() < 0.1


def test_invalid_arguments_are_rejected(curves):
    grid, X, Y = curves
    regressor = ovkgp.FunctionGPRegressor(**QUICK)
    with pytest.raises(InputError, match="increasing"):
        regressor.fit(X, Y, grid=grid[::-1])
    with pytest.raises(InputError, match="no observed values"):
        regressor.fit(X, np.where(np.arange(24)[:, None] == 3, np.nan, Y), grid=grid)
    with pytest.raises(InputError, match="equally many rows"):
        regressor.fit(X[:5], Y, grid=grid)
    with pytest.raises(OptionError, match="fixed"):
        ovkgp.FunctionGPRegressor(hyperparameters="fixed").fit(X, Y, grid=grid)
    with pytest.raises(OptionError, match="noise"):
        ovkgp.FunctionGPRegressor(noise=0.1).fit(X, Y, grid=grid)
    with pytest.raises(InputError, match="groups"):
        regressor.fit(X, Y, grid=grid, groups=[1, 2])
    regressor.fit(X, Y, grid=grid)
    with pytest.raises(DomainError, match="domain"):
        regressor.predict(X, grid=[0.5, 2.0])
    with pytest.raises(OptionError, match="level"):
        regressor.predict_interval(X, level=1.5)
    with pytest.raises(InputError, match="expected"):
        regressor.complete(X, Y[:, :5])
