"""Statistical tests of `FunctionGPRegressor`: coverage of bands, and comparisons with other predictions of curves."""

import numpy as np
import pytest
from curve_cases import draw_curves, simulate_curves, simulate_decaying_curves
from gpytorch.kernels import MaternKernel
from scipy.stats import norm
from sklearn.decomposition import PCA
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from sklearn.linear_model import RidgeCV

import ovkgp
from ovkgp.functional import FunctionalData

pytestmark = pytest.mark.slow
NUM_SETS, NUM_TRAIN, NUM_TEST = 100, 30, 15


def band_coverage(seed, make_training, simulate=simulate_curves, parts=1, **options):
    """Return the fractions of covered values in each part of the grid, and that of covered curves, of new curves."""
    grid, X, Y = simulate(NUM_TRAIN + NUM_TEST, 20, seed=seed)
    model = ovkgp.FunctionGPRegressor(**options)
    model.fit(X[:NUM_TRAIN], make_training(grid, Y[:NUM_TRAIN], np.random.default_rng(seed)))
    new, truth = X[NUM_TRAIN:], Y[NUM_TRAIN:]
    found = []
    for simultaneous in (False, True):
        lower, upper = model.predict_interval(new, 0.9, simultaneous=simultaneous, grid=grid)
        inside = (lower <= truth) & (truth <= upper)
        found += [inside.all(1).mean()] if simultaneous else [part.mean() for part in np.array_split(inside, parts, 1)]
    return found


def dense_curves(grid, Y, generator):
    return FunctionalData(Y, grid, domain=[0, 1])


def ragged_curves(grid, Y, generator):
    """Observe each curve at its own 6 to 12 points of the grid."""
    chosen = [np.sort(generator.choice(len(grid), generator.integers(6, 13), replace=False)) for _ in Y]
    return FunctionalData([y[at] for y, at in zip(Y, chosen, strict=True)], [grid[at] for at in chosen], domain=[0, 1])


@pytest.mark.parametrize("make_training", [dense_curves, ragged_curves])
def test_bands_cover_nine_of_ten_values_and_curves(make_training):
    options = {"kernel": "matern52"} if make_training is ragged_curves else {}
    pointwise, simultaneous = np.mean([band_coverage(seed, make_training, **options) for seed in range(NUM_SETS)], 0)
    assert 0.85 <= pointwise <= 0.95
    assert 0.85 <= simultaneous <= 0.95


def curves_with_gaps(grid, Y, generator):
    return FunctionalData(np.where(generator.random(Y.shape) < 0.5, np.nan, Y), grid, domain=[0, 1])


@pytest.mark.parametrize("make_training", [dense_curves, curves_with_gaps, ragged_curves])
def test_bands_cover_in_all_parts_of_a_domain_along_which_the_variance_changes(make_training):
    """Bands of one width covered .77, .99 and 1.00 of the values in three parts of the domain, and .68 of the curves."""
    options = {"simulate": simulate_decaying_curves, "parts": 3}
    found = np.mean([band_coverage(seed, make_training, **options) for seed in range(NUM_SETS)], 0)
    assert (np.abs(found - 0.9) <= 0.05).all()


def test_bands_with_kernel_objects_cover_where_the_variance_changes():
    """The part of the domain with the largest variance is covered by .84, the others by .88 and .9."""
    options = {"simulate": simulate_decaying_curves, "parts": 3, "task_kernel": MaternKernel(2.5)}
    *pointwise, _ = np.mean([band_coverage(seed, curves_with_gaps, **options) for seed in range(20)], 0)
    assert 0.85 <= np.mean(pointwise) <= 0.95
    assert (np.abs(np.array(pointwise) - 0.9) <= 0.08).all()


@pytest.mark.parametrize("basis", ["auto", "pca", "shared"])
def test_bands_cover_between_the_points_of_the_grid(basis):
    found = []
    for seed in range(40):
        rng = np.random.default_rng(seed)
        grid, X = np.linspace(0, 1, 20), rng.uniform(size=(60, 2))
        at = np.sort(rng.uniform(size=30))
        values = [np.sin(9 * t * (1 + X[:, :1])) * X[:, 1:] + 0.3 * np.cos(20 * t * X[:, 1:]) for t in (grid, at)]
        model = ovkgp.FunctionGPRegressor(output_basis=basis).fit(X[:40], FunctionalData(values[0][:40], grid, [0, 1]))
        lower, upper = model.predict_interval(X[40:], 0.9, grid=at)
        found.append(((lower <= values[1][40:]) & (values[1][40:] <= upper)).mean())
    assert 0.85 <= np.mean(found) <= 0.99


def mesh_fields(kind, seed, num_fields=90):
    """Return inputs, a mesh of 20 × 20 points, 100 other points, and the values of fields at both."""
    rng, axis = np.random.default_rng(seed), np.linspace(0, 1, 20)
    mesh = np.stack(np.meshgrid(axis, axis, indexing="ij"), -1).reshape(-1, 2)
    X, at = rng.uniform(size=(num_fields, 2)), rng.uniform(size=(100, 2))
    points = np.concatenate([mesh, at])
    if kind == "smooth":
        bumps = np.exp(-((points[:, 1] - X[:, :1]) ** 2 + (points[:, 0] - 0.5) ** 2) / 0.05)
        values = np.sin(5 * points[:, 0] * (1 + X[:, :1])) * X[:, 1:] + bumps
    elif kind == "front":
        values = 1 / (1 + np.exp(-(points.sum(1) - 1 - X[:, :1]) * 10 * (1 + X[:, 1:])))
    else:  # mixtures of random fields, with deviations
        r = np.sqrt(5) * np.linalg.norm(points[:, None] - points, axis=-1) / 0.3
        root = np.linalg.cholesky((1 + r + r**2 / 3) * np.exp(-r) + 1e-9 * np.eye(len(points)))
        features = np.stack([X[:, 0], X[:, 1], np.sin(3 * X[:, 0]), np.cos(3 * X[:, 1]), X[:, 0] * X[:, 1]], 1)
        scores = features @ rng.standard_normal((5, len(points))) + 0.2 * rng.standard_normal((num_fields, len(points)))
        values = scores @ root.T
    return X, mesh, at, values[:, :400], values[:, 400:]


@pytest.mark.parametrize("basis", ["pca", "shared"])
@pytest.mark.parametrize("kind", ["smooth", "front", "random"])
def test_bands_cover_between_the_points_of_a_mesh(basis, kind):
    found = []
    for seed in range(4):
        X, mesh, at, values, truth = mesh_fields(kind, seed)
        model = ovkgp.FunctionGPRegressor(output_basis=basis).fit(X[:50], values[:50], grid=mesh)
        lower, upper = model.predict_interval(X[50:], 0.9, grid=at)
        found.append(((lower <= truth[50:]) & (truth[50:] <= upper)).mean())
    assert 0.85 <= np.mean(found) <= 0.98


def test_bands_cover_between_very_uneven_points():
    found, depths, at = [], np.geomspace(1, 100, 15), np.array([1.5, 4.0, 11.0, 30.0, 61.0, 85.0])
    for seed in range(40):
        rng = np.random.default_rng(seed)
        X, own = rng.uniform(-1, 1, (60, 2)), 0.3 * rng.standard_normal((60, 2))

        def curve(d, X=X, own=own):
            waves = np.stack([np.sin(np.log(d)), np.cos(np.log(d))])
            return 5 * np.exp(-d / 10) * (1 + 0.3 * X[:, :1]) + X[:, 1:] * waves[0] + own @ waves

        Y = curve(depths) + 0.05 * rng.standard_normal((60, 15))
        model = ovkgp.FunctionGPRegressor(output_basis="kernel").fit(X[:40], Y[:40], grid=depths)
        lower, upper = model.predict_interval(X[40:], 0.9, grid=at)
        found.append(((lower <= curve(at)[40:]) & (curve(at)[40:] <= upper)).mean(0))
    assert 0.85 <= np.mean(found) <= 0.97
    assert np.mean(found, 0).min() > 0.8


def crps(mean, std, y):
    z = (y - mean) / std
    return std * (z * (2 * norm.cdf(z) - 1) + 2 * norm.pdf(z) - 1 / np.sqrt(np.pi))


def mixture_crps(model, X, Y):
    """Return the CRPS of mixtures from draws of new curves."""
    draws = model.sample_y(X, 400)
    order = np.sort(draws, -1)
    k = draws.shape[-1]
    spread = (order * (2 * np.arange(1, k + 1) - k - 1)).sum(-1) / (k * (k - 1))
    return np.abs(draws - Y[..., None]).mean(-1) - spread


def component_regression(X, Y, new):
    """Predict means and standard deviations by one scikit-learn process for each of the components that explain 99 %."""
    pca = PCA(0.99, svd_solver="full").fit(Y)
    means, variances = [], []
    for score in pca.transform(Y).T:
        kernel = ConstantKernel() * RBF(np.ones(X.shape[1])) + WhiteKernel()
        process = GaussianProcessRegressor(kernel, normalize_y=True, n_restarts_optimizer=1, random_state=0).fit(
            X, score
        )
        mean, std = process.predict(new, return_std=True)
        means.append(mean)
        variances.append(std**2)
    basis = pca.components_
    return pca.mean_ + np.stack(means, -1) @ basis, np.sqrt(np.stack(variances, -1) @ basis**2)


def test_curves_with_deviations_are_predicted_better_than_by_component_regression():
    ours, theirs, ratios, covered = [], [], [], []
    for seed in range(100, 106):
        grid, X, Y = draw_curves(40 + 60, 30, seed=seed)
        X, new, Y, truth = X[:40], X[40:], Y[:40], Y[40:]
        model = ovkgp.FunctionGPRegressor(random_state=0).fit(X, Y, grid=grid)
        ours.append([mixture_crps(model, new, truth).mean(), model.predictive(new).log_density(truth).mean()])
        mean, std = component_regression(X, Y, new)
        theirs.append([crps(mean, std, truth).mean(), norm.logpdf(truth, mean, std).mean()])
        error = np.mean((model.predict(new) - truth) ** 2)
        ridge = RidgeCV(np.logspace(-3, 3, 13)).fit(X, Y).predict(new)
        ratios.append([error / np.mean((Y.mean(0) - truth) ** 2), error / np.mean((ridge - truth) ** 2)])
        bands = [model.predict_interval(new, 0.9, simultaneous=one) for one in (False, True)]
        inside = [(lower <= truth) & (truth <= upper) for lower, upper in bands]
        covered.append([inside[0].mean(), inside[1].all(1).mean()])
    ours, theirs = np.array(ours), np.array(theirs)
    assert ours[:, 0].mean() < theirs[:, 0].mean()
    assert ours[:, 1].mean() > theirs[:, 1].mean()
    assert (np.array(ratios) < 1).all()
    assert (np.abs(np.mean(covered, 0) - 0.9) <= 0.05).all()


def test_curves_without_a_relation_to_the_inputs_are_not_worse_than_the_mean_curve():
    rng = np.random.default_rng(0)
    for seed in range(3):
        grid, _, Y = simulate_curves(60, 20, seed=seed)
        X = rng.standard_normal((60, 3))
        model = ovkgp.FunctionGPRegressor(random_state=0).fit(X[:30], Y[:30], grid=grid)
        error, baseline = (np.mean((one - Y[30:]) ** 2) for one in (model.predict(X[30:]), Y[:30].mean(0)))
        assert error < 1.1 * baseline


def test_cut_curves_are_continued_better_than_by_the_last_value_plus_mean_change():
    errors = []
    for seed in range(4):
        grid, X, Y = simulate_curves(80, 30, seed=seed, deviation=0.5)
        train, cut, end = slice(0, 40), slice(40, None), 15 + 3 * seed
        Z = Y[train].copy()
        Z[::3, 20:] = np.nan  # some training curves are cut as well
        model = ovkgp.FunctionGPRegressor(random_state=0).fit(X[train], Z, grid=grid)
        partial = Y[cut].copy()
        partial[:, end:] = np.nan
        mean = np.nanmean(Z, 0)
        last = Y[cut][:, [end - 1]] + mean[end:] - mean[end - 1]
        found = model.complete(X[cut], partial)[:, end:], model.predict(X[cut])[:, end:], last
        errors.append([np.sqrt(np.mean((one - Y[cut][:, end:]) ** 2)) for one in found])
    ours, without, baseline = np.array(errors).T
    assert (ours < baseline).all()
    assert (ours < without).all()
