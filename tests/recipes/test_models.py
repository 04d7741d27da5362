"""Each recipe of `models/`, fitted to small data with known ground truth, saved and loaded."""

import warnings

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import make_moons

import ovkgp
from ovkgp.datasets import make_gaussian_field, make_landmarks, make_sine_quantiles
from ovkgp.datasets.landmarks import emotion_tasks, single_rows
from ovkgp.recipes import list_recipes, load_recipe

NAMES = (
    "bayesian_multitask",
    "classifier",
    "cost_sensitive",
    "curl_free_field",
    "curves",
    "curves_robust",
    "divergence_free_field",
    "emulator",
    "forecast",
    "graph_tasks",
    "large_scale",
    "level_sets",
    "mixed_outputs",
    "multitask",
    "multitask_lmc",
    "outlier_forest",
    "outliers",
    "quantiles",
    "robust",
    "style_transfer",
    "vector_field",
)
GRID = np.linspace(0.2, 5.8, 60)[:, None]


def test_list_recipes_returns_names_of_the_catalog():
    assert list_recipes() == NAMES


def true_outputs(X):
    return np.hstack([np.sin(X), 2 + 3 * np.sin(X + 0.3)])


def make_data(num_rows, seed=0, noise=0.1):
    rng = np.random.default_rng(seed)
    X = rng.uniform(0, 6, (num_rows, 1))
    return X, true_outputs(X) + noise * rng.standard_normal((num_rows, 2))


def lowest_r2(model, X, truth):
    """Return the smallest R² of the outputs."""
    return (1 - np.square(model.predict(X) - truth).mean(0) / truth.var(0)).min()


def is_restored(model, path, *args):
    """Whether the model predicts the same after it is saved and loaded."""
    model.save(path)
    return np.array_equal(ovkgp.load(path).predict(*args), model.predict(*args))


@pytest.fixture
def file(tmp_path):
    return tmp_path / "model.ovkgp"


def test_multitask_fills_in_missing_outputs(file):
    X, Y = make_data(40)
    Y[X[:, 0] < 2, 0] = np.nan  # predicted from the other output
    model = load_recipe("multitask").fit(X, Y)
    assert lowest_r2(model, GRID, true_outputs(GRID)) > 0.95
    assert is_restored(model, file, GRID)


def test_curves_predict_bands_from_incomplete_curves(file):
    rng = np.random.default_rng(0)
    X, grid = rng.uniform(-1, 1, (30, 1)), np.linspace(0, 1, 12)
    Y = np.sin(5 * grid + X) + 0.05 * rng.standard_normal((30, 12))
    Y[:6, 8:] = np.nan
    model = load_recipe("curves").fit(X, Y)
    new = np.linspace(-0.9, 0.9, 7)[:, None]
    assert lowest_r2(model, new, np.sin(5 * grid + new)) > 0.9
    lower, upper = model.predict_interval(new, 0.9, simultaneous=True)
    assert (lower < np.sin(5 * grid + new)).mean() > 0.9 and (np.sin(5 * grid + new) < upper).mean() > 0.9
    assert is_restored(model, file, new)


def test_emulator_predicts_many_outputs(file):
    rng = np.random.default_rng(0)
    X, points = rng.uniform(size=(25, 2)), np.linspace(0, 1, 300)
    model = load_recipe("emulator").fit(X, np.exp(-((points - X[:, :1]) ** 2) / 0.1) * (1 + X[:, 1:]))
    new = rng.uniform(0.1, 0.9, (10, 2))
    truth = np.exp(-((points - new[:, :1]) ** 2) / 0.1) * (1 + new[:, 1:])
    mean, std = model.predict(new, return_std=True)
    assert np.abs(mean - truth).mean() < 0.02 * truth.std()
    assert (np.abs(mean - truth) < 1.645 * std).mean() > 0.8
    assert is_restored(model, file, new)


def test_multitask_lmc_finds_two_lengthscales(file):
    rng = np.random.default_rng(0)
    X = rng.uniform(0, 6, (70, 1))

    def truth(X):
        return np.hstack([np.sin(X) + 0.3 * np.sin(8 * X), np.cos(X), np.sin(8 * X)])

    model = load_recipe("multitask_lmc").fit(X, truth(X) + 0.05 * rng.standard_normal((70, 3)))
    first, second = sorted(part.base_kernel.lengthscale.item() for part in model.gp_.kernel.kernels)
    assert second > 3 * first
    assert lowest_r2(model, GRID, truth(GRID)) > 0.9
    assert is_restored(model, file, GRID)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("vector_field", "divergence_free"),
        ("curl_free_field", "curl_free"),
        ("divergence_free_field", "divergence_free"),
    ],
)
def test_field_recipes_recover_field(name, kind, file):
    field = make_gaussian_field(110, kind=kind, noise=0.01, random_state=0)
    Y = field.Y[:80].copy()
    Y[::7, 1] = np.nan
    model = load_recipe(name).fit(field.X[:80], Y)
    assert lowest_r2(model, field.X[80:], field.truth(field.X[80:])) > 0.85
    assert is_restored(model, file, field.X)


def test_vector_field_finds_no_gradient_in_divergence_free_field():
    field = make_gaussian_field(80, kind="divergence_free", noise=0.01, random_state=0)
    model = load_recipe("vector_field").fit(field.X, field.Y)
    parts = model.posterior_.components()
    points = model.scaling_.inputs(field.X)
    size = {name: part.predict(points).mean.square().mean().item() for name, part in parts.items()}
    assert size["curl_free"] < 0.05 * size["divergence_free"]


def test_graph_tasks_uses_neighbors(file):
    rng = np.random.default_rng(0)
    X = rng.uniform(0, 6, (40, 1))
    shifts = 0.25 * np.arange(6)
    Y = pd.DataFrame(np.sin(X + shifts) + 0.1 * rng.standard_normal((40, 6)), columns=list("abcdef"))
    Y.loc[X[:, 0] > 3, "c"] = np.nan  # predicted from its neighbors
    model = load_recipe("graph_tasks").fit(X, Y)
    assert lowest_r2(model, GRID, np.sin(GRID + shifts)) > 0.95
    assert is_restored(model, file, GRID)


def test_large_scale_takes_a_stream(file):
    X, Y = make_data(600)
    Y[::5, 0] = np.nan
    recipe = load_recipe("large_scale").with_options(num_frequencies=50, training_rows=200)
    whole = recipe.fit(X, Y)
    chunks = [(X[i : i + 200], Y[i : i + 200]) for i in range(0, 600, 200)]
    streamed = recipe.build().fit_stream(chunks)
    assert (whole.approximation_, streamed.approximation_) == ("orff", "orff")
    for model in (whole, streamed):
        assert lowest_r2(model, GRID, true_outputs(GRID)) > 0.99
    assert is_restored(streamed, file, GRID)


def test_bayesian_multitask_averages_over_draws(file):
    X, Y = make_data(20)
    sampling = {"draws": 20, "tune": 20, "chains": 1, "max_draws": 10}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ovkgp.exceptions.FitWarning)  # too few draws
        model = load_recipe("bayesian_multitask").fit(X, Y, sampling=sampling)
    assert model.sampling["target_accept"] == 0.9  # unchanged
    assert len({float(value) for value in model.to_arviz()["posterior"]["lengthscale"].values.ravel()}) > 5
    lower, upper = model.predict_interval(GRID, level=0.95, noise=False)
    assert ((lower < true_outputs(GRID)) & (true_outputs(GRID) < upper)).mean() > 0.8
    assert is_restored(model, file, GRID)


@pytest.mark.slow
def test_curves_robust_resists_outlying_curves(file):
    rng = np.random.default_rng(0)
    X, points = rng.uniform(0, 1, (30, 1)), np.linspace(0, 1, 12)
    truth = np.sin(2 * np.pi * (points + X))
    Y = truth + 0.1 * rng.standard_normal(truth.shape)
    Y[:3] += 5.0
    model = load_recipe("curves_robust").fit(X, Y, lam=[1e-5, 1e-4])
    assert np.abs(model.predict(X) - truth)[3:].mean() < 0.1
    assert set(np.argsort(model.outlier_scores_)[-3:]) == {0, 1, 2}
    lower, upper = model.predict_interval(X[3:], 0.9)
    assert 0.75 < ((lower <= Y[3:]) & (Y[3:] <= upper)).mean() < 1
    model.save(file)
    np.testing.assert_allclose(ovkgp.load(file).predict(X), model.predict(X), rtol=1e-9)


def test_robust_resists_outliers(file):
    X, Y = make_data(60)
    Y[::10] += 10
    model = load_recipe("robust").fit(X, Y, num_frequencies=20)
    assert lowest_r2(model, GRID, true_outputs(GRID)) > 0.98
    assert lowest_r2(load_recipe("multitask").fit(X, Y), GRID, true_outputs(GRID)) < 0.5
    assert is_restored(model, file, GRID)


@pytest.mark.slow
def test_mixed_outputs_chooses_likelihoods_by_values(file):
    rng = np.random.default_rng(0)
    X = rng.uniform(0, 6, (80, 1))
    rate, chance, level = np.exp(1 + np.sin(X)), 1 / (1 + np.exp(-4 * np.cos(X))), np.sin(X)
    Y = np.hstack([rng.poisson(rate), rng.random((80, 1)) < chance, level + 0.1 * rng.standard_normal((80, 1))])
    Y[3, 0] = np.nan
    table = pd.DataFrame(Y, columns=["visits", "bought", "level"])
    model = load_recipe("mixed_outputs").fit(X, table, num_frequencies=15)
    assert model.likelihood == ["negative_binomial", "bernoulli", "gaussian"]
    visits, bought, found = model.predict(X).T
    assert np.corrcoef(visits, rate[:, 0])[0, 1] > 0.95
    assert ((bought > 0.5) == (chance[:, 0] > 0.5)).mean() > 0.9
    assert np.corrcoef(found, level[:, 0])[0, 1] > 0.99
    assert is_restored(model, file, X)


def test_quantiles_has_calibrated_intervals(file):
    rows, fresh = make_sine_quantiles(100, random_state=0), make_sine_quantiles(2000, random_state=1)
    model = load_recipe("quantiles").fit(rows.X, rows.y[:, None])
    lower, upper = model.predict_interval(fresh.X, level=0.8)
    assert abs(((lower < fresh.y) & (fresh.y < upper)).mean() - 0.8) < 0.06
    curves = model.predict(fresh.X, quantiles=[0.1, 0.5, 0.9])
    assert (np.diff(curves, axis=1) >= 0).all()
    assert is_restored(model, file, fresh.X)


def test_classifier_predicts_probabilities_of_incomplete_labels(file):
    X, y = make_moons(300, noise=0.25, random_state=0)
    labels = np.array(["no", "yes"], dtype=object)[y]
    labels[:150:5] = None
    model = load_recipe("classifier").fit(X[:150], pd.DataFrame({"ill": labels[:150]}))
    rows, truth = X[150:], labels[150:]
    assert (model.predict(rows) == truth).mean() > 0.88
    chosen = model.predict_proba(rows)[np.arange(150), (truth == "yes").astype(int)]
    assert -np.log(chosen).mean() < 0.3
    assert is_restored(model, file, rows)


def test_cost_sensitive_misses_fewer_cases_at_higher_cost(file):
    X, y = make_moons(300, noise=0.25, random_state=0)
    labels = np.array(["no", "yes"])[y]
    model = load_recipe("cost_sensitive").fit(X[::2], pd.DataFrame({"ill": labels[::2]}))
    rows, truth = X[1::2], labels[1::2]
    assert (model.predict(rows) == truth).mean() > 0.85
    found = [(model.predict(rows, cost)[truth == "yes"] == "yes").mean() for cost in (-0.9, 0.0, 0.9)]
    assert found[0] < found[1] < found[2] and found[2] > 0.97
    assert is_restored(model, file, rows)


def test_level_sets_exclude_requested_fraction(file):
    rng = np.random.default_rng(0)
    rows, fresh = rng.normal(size=(150, 2)), rng.normal(size=(2000, 2))
    model = load_recipe("level_sets").fit(rows, None)
    for nu in (0.1, 0.5):
        assert abs((model.predict(fresh, nu) == -1).mean() - nu) < 0.08
    assert model.level_score([[9.0, 9.0]]) == 0
    assert is_restored(model, file, fresh[:20])


@pytest.mark.parametrize("name", ["outliers", "outlier_forest"])
def test_detectors_flag_the_requested_fraction_and_distant_rows(file, name):
    rng = np.random.default_rng(0)
    rows, fresh = rng.normal(size=(300, 2)), rng.normal(size=(2000, 2))
    model = load_recipe(name).with_options(alpha=0.1).fit(rows, None)
    assert 0.06 < (model.predict(fresh) == -1).mean() < 0.14
    assert model.predict([[9.0, 9.0]]) == -1 and model.level_score([[9.0, 9.0]]) <= 0.05
    assert is_restored(model, file, fresh[:20])


def test_style_transfer_predicts_unobserved_styles(file):
    faces, tasks, persons, truth = make_landmarks(70, random_state=0)
    recipe = load_recipe("style_transfer")
    assert np.allclose(recipe.options["tasks"], emotion_tasks(), atol=1e-6)
    assert np.allclose(recipe.options["tasks"], tasks, atol=1e-6)
    neutral, Y, _ = single_rows(faces, task=0)
    known = persons < 52
    model = recipe.fit(neutral[known], Y[known].reshape(known.sum(), -1))  # as in a table
    between = [[0.5, 0.05], [-0.4, 0.3]]
    new = truth(between)[~known]
    error = np.sqrt(np.square(model.predict(neutral[~known], between) - new).mean())
    assert error < 0.5 * np.sqrt(np.square(neutral[~known, None] - new).mean())  # error of the unchanged face
    assert is_restored(model, file, neutral[~known])


def test_forecast_continues_series_and_fills_gaps(file):
    t, rng = np.arange(72), np.random.default_rng(0)
    X = pd.DataFrame({"month": pd.date_range("2015-01-01", periods=72, freq="MS")})
    season = np.sin(2 * np.pi * t / 12)
    Y = pd.DataFrame({"u": 5 + season + 0.1 * rng.normal(size=72), "v": 3 - season + 0.1 * rng.normal(size=72)})
    Y.iloc[20:24, 0] = np.nan
    model = load_recipe("forecast").fit(X[:60], Y[:60], kernel="matern12", trend="none", seasonal=[12])
    forecast = model.forecast(12, n_samples=50, random_state=0)
    assert np.abs(forecast.mean - np.column_stack([5 + season, 3 - season])[60:]).to_numpy().max() < 0.3
    assert np.abs(model.impute(n_samples=2).mean["u"].iloc[20:24] - 5 - season[20:24]).max() < 0.3
    model.save(file)
    assert np.allclose(ovkgp.load(file).forecast(12, n_samples=50, random_state=0).paths, forecast.paths, rtol=1e-8)
