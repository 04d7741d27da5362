"""Tests of `ovkgp.metrics.scores`: against quadrature and brute force, and as scorers of scikit-learn."""

import pickle

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import norm, poisson, t
from sklearn import metrics as complete
from sklearn.linear_model import LinearRegression
from sklearn.model_selection import GridSearchCV, KFold, cross_val_score, cross_validate
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import ovkgp
from ovkgp import metrics
from ovkgp.exceptions import InputError, OptionError


def rows(n=60, seed=0, missing=0.3):
    rng = np.random.default_rng(seed)
    X = rng.uniform(0, 6, (n, 1))
    Y = np.hstack([np.sin(X), 3 * np.cos(X)]) + 0.2 * rng.normal(size=(n, 2))
    Y[rng.random((n, 2)) < missing] = np.nan
    return X, Y


def predictions(seed=0):
    """Y (12, 2) with missing entries, and means, standard deviations and weights."""
    rng = np.random.default_rng(seed)
    Y, mean, std = rng.normal(size=(12, 2)), rng.normal(size=(12, 2)), rng.uniform(0.3, 2, (12, 2))
    Y[rng.random((12, 2)) < 0.3] = np.nan
    return Y, mean, std, rng.uniform(0, 2, 12)


@pytest.mark.parametrize(
    "function, reference",
    [(metrics.r2_score, complete.r2_score), (metrics.root_mean_squared_error, complete.root_mean_squared_error)],
)
def test_scores_of_means_equal_scikit_learn_on_observed_entries(function, reference):
    Y, mean, _, weight = predictions()
    for sample_weight in (None, weight):
        expected = []
        for a in range(2):
            s = np.isfinite(Y[:, a])
            w = None if sample_weight is None else sample_weight[s]
            expected.append(reference(Y[s, a], mean[s, a], sample_weight=w))
        found = function(Y, mean, sample_weight=sample_weight, multioutput="raw_values")
        np.testing.assert_allclose(found, expected, rtol=1e-12)
        assert function(Y, mean, sample_weight=sample_weight) == pytest.approx(np.mean(expected), rel=1e-12)


def entry_average(Y, score):
    """Average score(i, a) over the observed rows of each output and then over the outputs, in a loop."""
    columns = [[score(i, a) for i in range(len(Y)) if np.isfinite(Y[i, a])] for a in range(Y.shape[1])]
    return np.mean([np.mean(column) for column in columns])


def crps_by_quadrature(y, cdf):
    parts = quad(lambda z: cdf(z) ** 2, -np.inf, y), quad(lambda z: (1 - cdf(z)) ** 2, y, np.inf)
    return sum(value for value, _ in parts)


def test_log_density_equals_scipy():
    Y, mean, std, _ = predictions()
    expected = entry_average(Y, lambda i, a: norm.logpdf(Y[i, a], mean[i, a], std[i, a]))
    assert metrics.log_density_gaussian(Y, mean, std) == pytest.approx(expected, rel=1e-12)


def test_crps_of_normal_distributions_equals_quadrature():
    Y, mean, std, _ = predictions()
    expected = entry_average(Y, lambda i, a: crps_by_quadrature(Y[i, a], norm(mean[i, a], std[i, a]).cdf))
    assert metrics.crps_gaussian(Y, mean, std) == pytest.approx(expected, rel=1e-7)
    assert metrics.crps_from_cdf(Y, norm(mean, std).cdf, std) == pytest.approx(expected, rel=1e-7)


def test_crps_of_heavy_tails_equals_quadrature():
    Y, mean, std, _ = predictions()
    expected = entry_average(Y, lambda i, a: crps_by_quadrature(Y[i, a], t(3, mean[i, a], std[i, a]).cdf))
    assert metrics.crps_from_cdf(Y, t(3, mean, std).cdf, std) == pytest.approx(expected, rel=1e-6)


def test_crps_from_draws_equals_all_pairs_and_is_unbiased():
    Y, mean, std, _ = predictions()
    rng = np.random.default_rng(1)
    draws = mean[..., None] + std[..., None] * rng.normal(size=(12, 2, 5))

    def score(i, a):
        sample = draws[i, a]
        pairs = np.mean([abs(u - v) for j, u in enumerate(sample) for k, v in enumerate(sample) if j != k])
        return np.abs(sample - Y[i, a]).mean() - pairs / 2

    assert metrics.crps_from_draws(Y, draws) == pytest.approx(entry_average(Y, score), rel=1e-12)
    many = mean[..., None] + std[..., None] * rng.normal(size=(12, 2, 20_000))
    pairs = many.reshape(12, 2, 10_000, 2).transpose(2, 0, 1, 3)  # independent estimates from two draws each
    found = [metrics.crps_from_draws(Y, pair) for pair in pairs]
    error = np.std(found) / np.sqrt(len(found))
    assert np.mean(found) == pytest.approx(metrics.crps_gaussian(Y, mean, std), abs=4 * error)


def test_energy_score_equals_all_pairs_over_observed_outputs():
    Y, mean, std, weight = predictions()
    Y[3] = np.nan
    draws = mean[..., None] + std[..., None] * np.random.default_rng(1).normal(size=(12, 2, 6))
    scores, weights = [], []
    for y, sample, w in zip(Y, draws, weight, strict=True):
        s = np.isfinite(y)
        if s.any():
            points = sample[s].T
            apart = np.mean([np.linalg.norm(u - v) for j, u in enumerate(points) for v in np.delete(points, j, 0)])
            scores.append(np.mean([np.linalg.norm(u - y[s]) for u in points]) - apart / 2)
            weights.append(w)
    assert metrics.energy_score(Y, draws) == pytest.approx(np.mean(scores), rel=1e-12)
    assert metrics.energy_score(Y, draws, sample_weight=weight) == pytest.approx(np.average(scores, weights=weights))


def test_energy_score_of_one_output_is_crps():
    Y, mean, std, _ = predictions()
    draws = mean[..., None] + std[..., None] * np.random.default_rng(1).normal(size=(12, 2, 6))
    one = metrics.crps_from_draws(Y[:, 0], draws[:, 0])
    assert metrics.energy_score(Y[:, 0], draws[:, 0]) == pytest.approx(one, rel=1e-12)


def test_coverage_and_pinball_loss_equal_loops():
    Y, mean, std, _ = predictions()
    levels = np.array([0.2, 0.5, 0.9])
    quantiles = np.stack([norm.ppf(level, mean, std) for level in levels], -1)
    inside = entry_average(Y, lambda i, a: quantiles[i, a, 0] <= Y[i, a] <= quantiles[i, a, 2])
    assert metrics.coverage(Y, quantiles[..., 0], quantiles[..., 2]) == pytest.approx(inside)
    losses = [
        [complete.mean_pinball_loss(Y[s, a], quantiles[s, a, j], alpha=levels[j]) for j in range(3)]
        for a in range(2)
        for s in [np.isfinite(Y[:, a])]
    ]
    found = metrics.pinball_loss(Y, quantiles, levels, multioutput="raw_values")
    np.testing.assert_allclose(found, np.mean(losses, 1), rtol=1e-12)


def test_outputs_without_observations_are_omitted():
    Y, mean, std, _ = predictions()
    Y[:, 1] = np.nan
    assert metrics.crps_gaussian(Y, mean, std) == metrics.crps_gaussian(Y[:, 0], mean[:, 0], std[:, 0])
    assert np.isnan(metrics.crps_gaussian(Y, mean, std, multioutput="raw_values")[1])
    with pytest.raises(InputError, match="no output with observed values"):
        metrics.crps_gaussian(Y[:, 1], mean[:, 1], std[:, 1])
    with pytest.raises(InputError, match="two observed values"):
        metrics.r2_score([1.0, np.nan], [1.0, 2.0])


@pytest.mark.parametrize(
    "call, match",
    [
        (lambda: metrics.r2_score([1.0, 2.0], [1.0, np.nan]), "numbers wherever Y is observed"),
        (lambda: metrics.r2_score([1.0, np.inf], [1.0, 1.0]), "Y must be finite"),
        (lambda: metrics.r2_score([1.0, 2.0], [[1.0, 2.0]]), "shape"),
        (lambda: metrics.r2_score([1.0, 2.0], [1.0, 2.0], sample_weight=[1.0]), "sample_weight"),
        (lambda: metrics.crps_gaussian([1.0], [1.0], [0.0]), "std must be positive"),
        (lambda: metrics.energy_score([1.0], [[1.0]]), "at least 2 draws"),
        (lambda: metrics.energy_score([1.0], [1.0, 2.0]), "shape"),
        (lambda: metrics.pinball_loss([1.0], [[1.0]], [1.0]), "levels"),
        (lambda: metrics.pinball_loss([1.0], [[1.0]], [0.1, 0.9]), "shape"),
        (lambda: metrics.r2_score([1.0, 2.0], [1.0, 2.0], multioutput="sum"), "multioutput"),
        (lambda: metrics.make_scorer("crps_score"), "name must be one of"),
        (lambda: metrics.make_scorer("r2", level=0.5), "options of 'r2'"),
    ],
)
def test_metrics_reject_invalid_arguments(call, match):
    with pytest.raises((InputError, OptionError), match=match):
        call()


def test_every_scorer_works_with_missing_outputs_in_cross_validate():
    X, Y = rows()
    found = cross_validate(ovkgp.OVKRidge(lam=0.04), X, Y, scoring=metrics.scorers, cv=3, error_score="raise")
    for name in metrics.scorers:
        assert np.isfinite(found[f"test_{name}"]).all()
    assert (found["test_r2"] > 0.8).all() and (found["test_neg_rmse"] < 0).all()


def test_scorers_equal_functions_of_predictions():
    X, Y = rows()
    model = ovkgp.OVKRidge(lam=0.04).fit(X[:40], Y[:40])
    X, Y = X[40:], Y[40:]
    mean, std = model.predict(X, return_std=True)
    expected = {
        "r2": model.score(X, Y),
        "neg_rmse": -metrics.root_mean_squared_error(Y, mean),
        "log_density": metrics.log_density_gaussian(Y, mean, std),
        "neg_crps": -metrics.crps_gaussian(Y, mean, std),
        "neg_energy_score": -metrics.energy_score(Y, model.sample_y(X, 500)),
        "neg_pinball_loss": -metrics.pinball_loss(
            Y, model.predict_quantiles(X, [0.1, 0.3, 0.5, 0.7, 0.9]), [0.1, 0.3, 0.5, 0.7, 0.9]
        ),
    }
    covered = metrics.coverage(Y, *model.predict_interval(X, 0.5), multioutput="raw_values")
    for name, value in expected.items():
        assert metrics.scorers[name](model, X, Y) == pytest.approx(value, rel=1e-9)
    scorer = metrics.make_scorer("neg_coverage_error", level=0.5)
    assert scorer(model, X, Y) == pytest.approx(-np.abs(covered - 0.5).mean())
    assert repr(scorer) == "make_scorer('neg_coverage_error', level=0.5)"
    assert pickle.loads(pickle.dumps(scorer))(model, X, Y) == scorer(model, X, Y)


def test_log_density_scorer_is_in_original_units():
    X, Y = rows(missing=0.0)
    model, wide = (ovkgp.GPRegressor("independent", random_state=0).fit(X, scale * Y) for scale in (1.0, 1000.0))
    score = metrics.scorers["log_density"]
    assert score(wide, X, 1000 * Y) == pytest.approx(score(model, X, Y) - np.log(1000), abs=1e-3)


def test_energy_scorer_draws_rows_in_chunks(monkeypatch):
    X, Y = rows()
    model = ovkgp.OVKRidge(lam=0.04).fit(X, Y)
    whole = metrics.scorers["neg_energy_score"](model, X, Y)
    monkeypatch.setattr("ovkgp.metrics.scores.MAX_JOINT_ENTRIES", 14)
    assert metrics.scorers["neg_energy_score"](model, X, Y) == pytest.approx(whole, rel=0.05)


def test_energy_score_prefers_the_right_dependence():
    rng = np.random.default_rng(0)
    root = np.linalg.cholesky([[1, 0.9], [0.9, 1]])
    Y = rng.normal(size=(400, 2)) @ root.T
    right = np.moveaxis(rng.normal(size=(400, 300, 2)) @ root.T, 1, 2)
    assert metrics.energy_score(Y, right) < metrics.energy_score(Y, rng.normal(size=(400, 2, 300))) - 0.005


def test_scorers_select_options_in_a_grid_search():
    X, Y = rows()
    folds = KFold(3, shuffle=True, random_state=0)
    search = GridSearchCV(ovkgp.OVKRidge(), {"lam": [1e-8, 0.04, 1e3]}, scoring=metrics.scorers["neg_crps"], cv=folds)
    assert search.fit(X, Y).best_params_ == {"lam": 0.04}
    assert metrics.scorers["neg_crps"](search, X, Y) == search.score(X, Y)


def test_scorers_pass_through_pipelines():
    X, Y = rows()
    model = make_pipeline(StandardScaler(), ovkgp.OVKRidge(lam=0.04)).fit(X, Y)
    for name in ("r2", "log_density", "neg_energy_score"):
        direct = metrics.scorers[name](model[-1], model[0].transform(X), Y)
        assert metrics.scorers[name](model, X, Y) == direct
    assert np.isfinite(cross_val_score(model, X, Y, scoring=metrics.scorers["neg_crps"], cv=3)).all()


def test_scorers_of_a_quantile_regressor():
    X, Y = rows(missing=0.0)
    model = ovkgp.InfiniteQuantileRegressor(random_state=0).fit(X, Y[:, 0])
    levels = np.linspace(0.005, 0.995, 100)
    by_levels = 2 * metrics.pinball_loss(Y[:, 0], model.predict(X, levels), levels)
    assert -metrics.scorers["neg_crps"](model, X, Y[:, 0]) == pytest.approx(by_levels, rel=0.1)
    assert metrics.scorers["neg_pinball_loss"](model, X, Y[:, 0]) < 0
    with pytest.raises(OptionError, match="no predictive density"):
        metrics.scorers["log_density"](model, X, Y[:, 0])


def test_scorers_of_counts():
    rng = np.random.default_rng(0)
    X = rng.uniform(0, 6, (80, 1))
    y = rng.poisson(np.exp(1 + np.sin(X[:, 0]))).astype(float)
    y[::9] = np.nan
    model = ovkgp.GPRegressor("independent", likelihood="poisson", num_frequencies=20, random_state=0).fit(X, y)
    s = np.isfinite(y)
    k = np.arange(60)
    upto = np.stack([model.predictive(X).cdf(np.full((80, 1), float(j)))[:, 0] for j in k], 1)
    exact = ((upto - (k >= y[:, None])) ** 2).sum(1)[s].mean()
    assert -metrics.scorers["neg_crps"](model, X, y) == pytest.approx(exact, rel=0.03)
    rate = model.predict(X)
    assert metrics.scorers["log_density"](model, X, y) == pytest.approx(poisson.logpmf(y[s], rate[s]).mean(), abs=0.05)


def test_scorers_of_other_regressors():
    X, Y = rows()
    model = LinearRegression().fit(X, np.nan_to_num(Y))
    assert metrics.scorers["r2"](model, X, Y) == metrics.r2_score(Y, model.predict(X))
    with pytest.raises(OptionError, match="needs an estimator with predictive distributions"):
        metrics.scorers["neg_crps"](model, X, Y)


CURVES = {
    "gp": ovkgp.FunctionGPRegressor(output_basis="kernel", kernel="rbf", deviations=False),
    "projection": ovkgp.KernelProjectionRegressor(),
    "linear": ovkgp.FunctionalLinearRegressor(),
}


@pytest.mark.parametrize("name", CURVES)
def test_distribution_scorers_of_curves_equal_functions(name):
    """Before, levels were taken for a grid, and draws needed a GPRegressor."""
    rng = np.random.default_rng(0)
    X = rng.uniform(size=(30, 2))
    Y = X[:, :1] * np.sin(3 * np.linspace(0, 1, 6)) + X[:, 1:] + 0.1 * rng.standard_normal((30, 6))
    model, levels = CURVES[name].fit(X, Y), [0.1, 0.5, 0.9]
    low, high = model.predict_interval(X, level=0.8)
    median = model.predict(X)
    expected = metrics.pinball_loss(Y, np.stack([low, median, high], -1), levels)
    assert metrics.make_scorer("neg_pinball_loss", levels=levels)(model, X, Y) == pytest.approx(-expected, rel=1e-3)
    assert metrics.scorers["neg_energy_score"](model, X, Y) == pytest.approx(
        -metrics.energy_score(Y, model.sample_y(X, 500)), rel=0.05
    )
    draws = model.sample_y(X[:3], 300)
    mean, std = model.predict(X[:3], return_std=True)
    np.testing.assert_allclose(draws.mean(-1), mean, atol=0.3 * std.max())
    np.testing.assert_allclose(draws.std(-1), std, rtol=0.25)


def test_distribution_scorers_need_a_distribution_of_curves():
    X = np.linspace(0, 1, 10)[:, None]
    model = ovkgp.KernelCurveRegressor().fit(X, np.sin(X + np.linspace(0, 1, 4)))
    for name in ("neg_pinball_loss", "neg_energy_score"):
        with pytest.raises(OptionError, match="predictive distribution"):
            metrics.scorers[name](model, X, np.sin(X + np.linspace(0, 1, 4)))


@pytest.mark.parametrize("name", metrics.scorers)
@pytest.mark.parametrize("unit", ["ns", "s"])
def test_scorers_read_dates_in_days_as_fit_does(name, unit):
    """Ticks since 1970 were compared with predictions in days, and NaT was -9.2e18."""
    X, Y = rows(30)
    days = Y[:, 0].round(3)
    dates = np.datetime64("2020-03-01", "ms") + (days * 86_400_000).round().astype("timedelta64[ms]")
    dates = np.where(np.isnan(days), np.datetime64("NaT", "ms"), dates).astype(f"datetime64[{unit}]")
    model = ovkgp.GPRegressor("independent", random_state=0).fit(X, dates)
    numbers = model._outputs(dates, None)[:, 0]
    expected = ovkgp.GPRegressor("independent", random_state=0).fit(X, numbers)
    score = metrics.scorers[name]
    assert score(model, X, dates) == pytest.approx(score(expected, X, numbers), rel=1e-6)
    with pytest.raises(InputError, match="must hold dates"):
        score(model, X, numbers)


def test_scores_reject_dates():
    dates = np.array(["2020-01-01", "NaT"], "datetime64[D]")
    for function in (metrics.r2_score, metrics.root_mean_squared_error, metrics.normalized_rmse):
        with pytest.raises(InputError, match=r"Y must be an array of numbers: datetime64\[D\] has no unit"):
            function(dates, np.zeros(2))
    with pytest.raises(InputError, match="timedelta64"):
        metrics.crps_from_draws(np.zeros(2), np.zeros((2, 3), "timedelta64[s]"))
    with pytest.raises(InputError, match="values must be an array of numbers"):
        metrics.median_and_mad(dates)
