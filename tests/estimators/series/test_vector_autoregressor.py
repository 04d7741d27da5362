"""Vector autoregressions: the tables of the thesis, exact updates, paths, missing values and stamps."""

from contextlib import nullcontext

import numpy as np
import pandas as pd
import pytest
import torch
from gpytorch.kernels import LinearKernel, RBFKernel
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.utils.estimator_checks import parametrize_with_checks

import ovkgp
from ovkgp.datasets import make_var_series
from ovkgp.exceptions import FitWarning, InputError, OptionError
from ovkgp.kernels import DecomposableKernel
from ovkgp.metrics import energy_score

VAR = ovkgp.VectorAutoregressor
TABLE_8_1 = {  # setting, noise: error and standard deviation of VAR(1); error, number of frequencies and lengthscale of ORFFVAR
    ("linear", "white"): (0.914979, 0.572485, 0.919663, 25, 200.0),
    ("linear", "toeplitz"): (1.091096, 1.267880, 1.097183, 50, 200.0),
    ("exponential", "white"): (0.001275, 0.000994, 0.001003, 25, 1.0),
    ("exponential", "toeplitz"): (0.017014, 0.013498, 0.012635, 50, 1.0),
    ("sine", "white"): (0.009534, 0.006003, 0.009536, 25, 50.0),
    ("sine", "toeplitz"): (0.116901, 0.127396, 0.116964, 50, 50.0),
}
TABLE_8_2 = {5: 0.001111, 10: 0.000991, 25: 0.000962}
MODELS = {
    "linear": dict(kernel="linear", lam=1e-3),
    "linear, trained": dict(kernel="linear"),
    "orff": dict(lam=1e-3, approximation="orff", num_frequencies=10, lengthscale=3.0),
    "exact": dict(lam=1e-3, lengthscale=3.0),
    "decomposable": dict(kernel="decomposable", noise="per_output", hyperparameters="evidence"),
    "draws": dict(kernel="decomposable"),
    "independent, orff": dict(kernel="independent", approximation="orff", num_frequencies=10),
}
FAST = ("linear", "linear, trained", "orff", "exact")


INAPPLICABLE_CHECKS = {  # of scikit-learn
    "check_fit_score_takes_y": "the second argument is groups",
    "check_n_features_in_after_fitting": "the messages name the series",
    "check_fit2d_predict1d": "a series of one output may be one-dimensional; the messages name the history",
    "check_fit1d": "a series of one output may be one-dimensional",
    "check_fit2d_1sample": "one row has no pair; the message names lags",
    "check_methods_sample_order_invariance": "the order of rows is that of time",
    "check_methods_subset_invariance": "a prediction needs the rows before it",
}


def least_squares() -> VAR:
    """VAR(1) with intercept, the limit of no penalty (BT-90)."""
    return VAR(kernel="linear", lam=1e-10, scale="given")


def orffvar(num_frequencies, lengthscale) -> VAR:
    options = dict(lam=1e-6, lengthscale=lengthscale, fit_intercept=False, scale="given", random_state=0)
    return VAR(approximation="orff", num_frequencies=num_frequencies, **options)


def sequential_errors(model, series, count=None):
    """Mean squared errors of the next row, for windows of half of the series (BT-94), by updates."""
    window, errors = len(series) // 2, []
    model.fit(series[:window])
    for i in range(window, len(series) if count is None else window + count):
        errors.append(np.mean((model.predict(series[i - 1 : i])[-1] - series[i]) ** 2))
        model.update(series[i : i + 1], drop=1)
    return np.array(errors)


def stable_var(num_rows, p=3, seed=0):
    """Series of a stable VAR(1) with correlated noise, its coefficients and the Cholesky factor of the noise."""
    rng = np.random.default_rng(seed)
    A = rng.normal(size=(p, p))
    A *= 0.8 / np.abs(np.linalg.eigvals(A)).max()
    root = np.linalg.cholesky(0.5 * np.eye(p) + 0.5)
    x = np.zeros((num_rows + 100, p))
    for t in range(1, len(x)):
        x[t] = A @ x[t - 1] + root @ rng.normal(size=p)
    return x[100:], A, root


SERIES = stable_var(120)[0]


def fitted(name, rows=80, **options):
    return VAR(**MODELS[name], random_state=0, **options).fit(SERIES[:rows])


# --- the tables of the thesis -------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(("setting", "noise"), TABLE_8_1)
def test_bt_e_38_table_8_1_has_errors_and_standard_deviations_of_var_1(setting, noise):
    """The column "variance" is the standard deviation of the errors of the steps."""
    errors = sequential_errors(least_squares(), make_var_series(1000, setting, noise))
    mean, std, *_ = TABLE_8_1[setting, noise]
    assert f"{errors.mean():.6f}" == f"{mean:.6f}" and f"{errors.std():.6f}" == f"{std:.6f}"


def test_bt_e_38_deviations_of_table_8_1_by_batch_predictions():
    """The same for one setting, with least squares of NumPy for each window."""
    series, errors = make_var_series(1000, "exponential"), []
    for i in range(500, 1000):
        X, Y = series[i - 500 : i - 1], series[i - 499 : i]
        coefficients = np.linalg.lstsq(np.hstack([np.ones((499, 1)), X]), Y, rcond=None)[0]
        errors.append(np.mean((np.r_[1, series[i - 1]] @ coefficients - series[i]) ** 2))
        if i in (500, 700):
            mean = least_squares().fit(series[i - 500 : i]).predict()[-1]
            np.testing.assert_allclose(mean, np.r_[1, series[i - 1]] @ coefficients, rtol=1e-6)
    assert f"{np.mean(errors):.6f} {np.std(errors):.6f}" == "0.001275 0.000994"


@pytest.mark.slow
@pytest.mark.parametrize(("setting", "noise"), TABLE_8_1)
def test_orffvar_reproduces_table_8_1(setting, noise):
    *_, expected, num_frequencies, lengthscale = TABLE_8_1[setting, noise]
    errors = sequential_errors(orffvar(num_frequencies, lengthscale), make_var_series(1000, setting, noise))
    assert errors.mean() == pytest.approx(expected, rel=0.05)


@pytest.mark.slow
@pytest.mark.parametrize("num_frequencies", TABLE_8_2)
def test_orffvar_reproduces_table_8_2(num_frequencies):
    series = make_var_series(10_000, "exponential", link_scale=0.5)
    errors = sequential_errors(orffvar(num_frequencies, 1.0), series)
    assert errors.mean() == pytest.approx(TABLE_8_2[num_frequencies], rel=0.05)


@pytest.mark.slow
def test_okvar_is_no_worse_than_table_8_1():
    """The table's OKVAR, .001100, has an unknown lengthscale and λ; with those of ORFFVAR the exact kernel is at most that."""
    series = make_var_series(1000, "exponential")
    model = VAR(lam=1e-6, lengthscale=1.0, fit_intercept=False, scale="given")
    assert sequential_errors(model, series, 100).mean() < 0.001100


def test_bt_e_36_doubly_stochastic_solver_agrees_with_ridge():
    """Algorithms 4 and 5 with the same 1/√D: one preconditioned step with all rows is the ridge estimate (BT-93)."""
    options = dict(lam=1e-3, approximation="orff", num_frequencies=20, lengthscale=3.0, random_state=0)
    models = [VAR(**options, solver=solver).fit(SERIES) for solver in ("auto", "doubly_sgd")]
    np.testing.assert_allclose(models[1].predict()[1:], models[0].predict()[1:], rtol=1e-6)


def test_var_convention_is_lambda_times_number_of_pairs():
    """σ² = (N − 1)λ for N rows (BT-91), and the predictive variance is var + σ² (ID-13)."""
    model = VAR(lam=1e-2, lengthscale=3.0, scale="given", fit_intercept=False).fit(SERIES[:50])
    np.testing.assert_allclose(model.noise_, 49 * 1e-2 * np.eye(3), rtol=1e-12)
    X, Y = SERIES[:49], SERIES[1:50]
    gram = lambda a, b: np.exp(-((a[:, None] - b[None]) ** 2).sum(-1) / 18)  # noqa: E731
    inverse = np.linalg.inv(gram(X, X) + 0.49 * np.eye(49))
    cross = gram(SERIES[49:50], X)
    mean, std = model.predict(return_std=True)
    np.testing.assert_allclose(mean[-1], (cross @ inverse @ Y)[0], rtol=1e-9)
    np.testing.assert_allclose(std[-1] ** 2, 1 - (cross @ inverse @ cross.T)[0, 0] + 0.49, rtol=1e-9)


# --- updates ------------------------------------------------------------------------------------------------------


def condition_again(model, values):
    """Posterior moments at all pairs of `values` by dense algebra at the hyperparameters of a fitted model."""
    inner = model.regressor_
    X = inner.scaling_.inputs(model.scaling_.outputs(values[:-1]).numpy())
    Y = inner.scaling_.outputs(model.scaling_.outputs(values[1:]).numpy())
    return inner.gp_.condition(X, Y, variance="features").predict(X, "output", noise=True)


def assert_equals_conditioning(model, values, rtol=1e-8):
    expected = condition_again(model, values)
    inner = model.regressor_
    X = inner.scaling_.inputs(model.scaling_.outputs(values[:-1]).numpy())
    found = inner.posterior_.predict(X, "output", noise=True)
    torch.testing.assert_close(found.mean, expected.mean, rtol=rtol, atol=rtol)
    torch.testing.assert_close(found.cov, expected.cov, rtol=rtol, atol=rtol)


@pytest.mark.parametrize(
    ("name", "drop"),
    [
        pytest.param(name, drop, marks=[] if (name, drop) in {("linear", 0), ("orff", 1)} else pytest.mark.slow)
        for name in FAST
        for drop in (0, 1)
    ],
)
def test_update_equals_conditioning_again_over_200_steps(name, drop):
    series = stable_var(240, seed=3)[0]
    model = VAR(**MODELS[name], random_state=0).fit(series[:40])
    noise = model.noise_
    for t in range(40, 240):
        model.update(series[t : t + 1], drop=drop)
        if t % 67 == 0:
            assert_equals_conditioning(model, series[drop * (t - 39) : t + 1])
    assert_equals_conditioning(model, series[drop * 200 :])
    np.testing.assert_array_equal(model.predict()[0], [np.nan] * 3)
    if drop or "lam" not in MODELS[name]:
        np.testing.assert_allclose(model.noise_, noise, rtol=1e-12)


@pytest.mark.parametrize("name", ["decomposable", "independent, orff"])
def test_update_of_trained_kernels_equals_conditioning_again(name):
    model = fitted(name)
    values = np.concatenate([SERIES[5:80], [[np.nan] * 3], SERIES[81:100]])
    model.update(values[75:], drop=5)
    inner, pairs = model.regressor_, model._pairs([values])
    data = inner.scaling_.inputs(pairs.X), inner.scaling_.outputs(pairs.Y)
    expected = inner.gp_.condition(*data, variance="features").predict(data[0], "diag")
    found = inner.posterior_.predict(data[0], "diag")
    torch.testing.assert_close(found.mean, expected.mean, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(found.std, expected.std, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("name", ["draws", pytest.param("auto", marks=pytest.mark.slow)])
def test_update_keeps_the_draws_of_the_hyperparameters(name):
    model = VAR(**MODELS.get(name, {}), random_state=0).fit(SERIES[:60])
    before = model.regressor_.posterior_
    weights = np.asarray(before.weights)
    model.update(SERIES[60:80])
    np.testing.assert_array_equal(np.asarray(model.regressor_.posterior_.weights), weights)
    forward = model.predict(return_std=True)
    model.update(SERIES[80:90]).update(SERIES[90:91], drop=11)
    # the same pairs from another way
    other = VAR(**MODELS.get(name, {}), random_state=0).fit(SERIES[:60]).update(SERIES[60:91], drop=11)
    for one, two in zip(model.predict(return_std=True), other.predict(return_std=True), strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-8, atol=1e-8)
    assert np.isfinite(forward[1][1:]).all() and (model.predict()[1:5] != forward[0][12:16]).all()


def test_update_of_a_ridge_estimate_is_a_new_fit():
    for options in (MODELS["linear"], MODELS["orff"], MODELS["exact"] | {"fit_intercept": False}):
        options = options | {"scale": "given", "fit_intercept": options.get("kernel") == "linear", "random_state": 0}
        updated, fresh = VAR(**options).fit(SERIES[:60]).update(SERIES[60:90], drop=7), VAR(**options).fit(SERIES[7:90])
        np.testing.assert_allclose(updated.predict()[1:], fresh.predict()[1:], rtol=1e-8)
        np.testing.assert_allclose(updated.noise_, fresh.noise_, rtol=1e-12)


def test_update_computes_statistics_again_if_a_subtraction_would_lose_digits():
    series = SERIES * np.where(np.arange(120) < 20, 1e7, 1.0)[:, None]
    model = VAR(**MODELS["linear"]).fit(series[:60]).update(series[60:90], drop=20)
    fresh = VAR(**MODELS["linear"] | {"scale": "given"}).fit(series[20:90])
    np.testing.assert_allclose(model.predict()[1:], fresh.predict()[1:], rtol=1e-8)


def test_update_rejects_rows_that_do_not_continue():
    index = pd.period_range("2000Q1", periods=80, freq="Q")
    frame = pd.DataFrame(SERIES[:80], index=index, columns=list("abc"))
    model = VAR(**MODELS["linear"]).fit(frame[:60])
    with pytest.raises(InputError, match="must continue the fitted series, whose last stamp is 2014Q4"):
        model.update(frame[50:70])
    with pytest.raises(InputError, match="drop must be at most 59"):
        model.update(frame[60:61], drop=60)
    with pytest.raises(InputError, match="columns"):
        model.update(frame[60:61].rename(columns={"a": "d"}))
    np.testing.assert_array_equal(model.predict().index[-1], pd.Period("2015Q1"))
    # steps between the rows are missing
    gap = model.update(frame[62:70])
    table = gap.predict()
    assert len(table) == 71 and table.loc["2015Q2":"2015Q3"].isna().all(axis=None) and table.loc["2015Q1"].notna().all()
    several = VAR(**MODELS["linear"]).fit([SERIES[:30], SERIES[40:70]])
    with pytest.raises(InputError, match="2 series"):
        several.update(SERIES[70:71])


def test_failed_update_changes_nothing():
    model = fitted("orff")
    before, rows = model.predict(), model.num_pairs_
    with pytest.raises(InputError):
        model.update(SERIES[80:82], drop=200)
    np.testing.assert_array_equal(model.predict(), before)
    assert model.num_pairs_ == rows


# --- several series, missing values -------------------------------------------------------------------------------


def test_pairs_never_straddle_two_series():
    parts = [SERIES[:30], SERIES[60:63], SERIES[70:71], SERIES[80:110]]
    model = VAR(lags=2, **MODELS["linear"]).fit(parts)
    assert model.num_pairs_ == 28 + 1 + 0 + 28
    labels = np.repeat(list("cabd"), [len(part) for part in parts])
    grouped = VAR(lags=2, **MODELS["linear"]).fit(np.concatenate(parts), groups=labels)
    np.testing.assert_allclose(grouped.predict(SERIES)[2:], model.predict(SERIES)[2:], rtol=1e-10)
    X = np.concatenate([np.hstack([part[1:-1], part[:-2]]) for part in parts])
    Y = np.concatenate([part[2:] for part in parts])
    A = np.hstack([np.ones((len(X), 1)), X])
    coefficients = np.linalg.solve(A.T @ A + model.regressor_.noise_ * np.eye(7), A.T @ Y)
    expected = np.hstack([[1.0], SERIES[-1], SERIES[-2]]) @ coefficients
    np.testing.assert_allclose(model.predict(SERIES)[-1], expected, rtol=1e-8)
    with pytest.raises(InputError, match="fitted to 4 series"):
        model.forecast(2)
    assert model.forecast(2, history=SERIES, n_samples=5).mean.shape == (2, 3)


@pytest.mark.parametrize("name", FAST)
def test_partial_fit_adds_series(name):
    options = MODELS[name] | {"random_state": 0, "scale": "given"}
    model = VAR(**options).partial_fit(SERIES[:50]).partial_fit([SERIES[60:80], SERIES[90:110]])
    assert model.num_pairs_ == 49 + 19 + 19
    inner, pairs = model.regressor_, model._pairs([SERIES[:50], SERIES[60:80], SERIES[90:110]])
    data = inner.scaling_.inputs(pairs.X), inner.scaling_.outputs(pairs.Y)
    expected = inner.gp_.condition(*data, variance="features").predict(data[0], "diag")
    found = inner.posterior_.predict(data[0], "diag")
    torch.testing.assert_close(found.mean, expected.mean, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("name", FAST)
def test_missing_values_are_missing_outputs_and_remove_inputs(name):
    holes = SERIES[:80].copy()
    holes[10, 1] = holes[30:33, 0] = np.nan
    holes[50] = np.nan
    model = VAR(**MODELS[name], random_state=0).fit(holes)
    assert model.num_pairs_ == 79 - 4 - 2  # inputs 10, 30..32; row 50 as an input and as an output
    mean = model.predict()
    assert np.isnan(mean[[0, 11, 31, 32, 33, 51]]).all() and np.isfinite(mean[[10, 12, 30, 50, 52, 80]]).all()
    updated = VAR(**MODELS[name], random_state=0).fit(holes).update(SERIES[80:90], drop=15)
    assert np.isfinite(updated.predict()[1]).all()


@pytest.mark.parametrize("name", ["linear", "orff"])
def test_update_with_missing_values_equals_conditioning_again(name):
    holes = SERIES.copy()
    holes[np.random.default_rng(0).random(holes.shape) < 0.1] = np.nan
    model = VAR(**MODELS[name], random_state=0).fit(holes[:60])
    for t in range(60, 100, 4):
        model.update(holes[t : t + 4], drop=4)
    inner, pairs = model.regressor_, model._pairs([holes[40:100]])
    data = inner.scaling_.inputs(pairs.X), inner.scaling_.outputs(pairs.Y)
    expected = inner.gp_.condition(*data, variance="features").predict(data[0], "output")
    found = inner.posterior_.predict(data[0], "output")
    torch.testing.assert_close(found.mean, expected.mean, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(found.cov, expected.cov, rtol=1e-8, atol=1e-8)


def test_forecast_simulates_incomplete_last_rows():
    """The moments are those of the Kalman filter with the mean of the coefficients, which 2000 rows determine."""
    x = stable_var(2000, seed=5)[0]
    model = VAR(kernel="linear", lam=1e-6, fit_intercept=False).fit(x)
    A, noise = np.linalg.lstsq(x[:-1], x[1:], rcond=None)[0].T, model.noise_
    history = x[:60].copy()
    history[57, 0] = history[58, :2] = history[59] = np.nan
    forecast = model.forecast(2, history=history, n_samples=8000, random_state=0)
    mean, cov = x[56], np.zeros((3, 3))
    for row in history[57:60]:
        mean, cov, seen = A @ mean, A @ cov @ A.T + noise, np.isfinite(row)
        gain = cov[:, seen] @ np.linalg.inv(cov[np.ix_(seen, seen)])
        mean, cov = mean + gain @ (row - mean)[seen], cov - gain @ cov[seen]
    for step in range(2):
        mean, cov = A @ mean, A @ cov @ A.T + noise
        # variances are up to 5: 4 standard errors of 8000 paths are 0.1 for means and 0.3 for variances
        np.testing.assert_allclose(forecast.mean[step], mean, atol=0.1)
        np.testing.assert_allclose(np.cov(forecast.paths[:, step].T), cov, atol=0.3)


def test_history_without_complete_rows_is_an_error():
    model = VAR(lags=2, **MODELS["linear"]).fit(SERIES)
    with pytest.raises(InputError, match="2 complete rows in a row"):
        model.forecast(1, history=[[1.0, 2.0, np.nan], [1.0, 2.0, 3.0]])
    with pytest.raises(InputError, match="5 complete rows"):
        VAR(lags=5, **MODELS["linear"]).fit(SERIES[:4])
    unobserved = SERIES[:20].copy()
    unobserved[1:, 1] = np.nan
    with pytest.raises(InputError, match="no observed value of 'y1'"):
        VAR(**MODELS["linear"]).fit(
            np.where([False, True, False], np.nan, SERIES[:1]).repeat(2, 0) if False else _no_y1()
        )


def _no_y1():
    values = SERIES[:20].copy()
    values[1:, 1] = np.nan
    return values


# --- forecasts ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["linear, trained", "orff", pytest.param("exact", marks=pytest.mark.slow)])
def test_id_13_one_step_path_equals_the_predictive_marginal(name):
    model = fitted(name)
    paths = model.forecast(1, n_samples=10_000, random_state=0).paths[:, 0]
    mean, std = (table[-1] for table in model.predict(return_std=True))
    slack = 0.03 if name == "exact" else 0.0  # functions of the exact kernel have 2000 random frequencies
    np.testing.assert_allclose(paths.mean(0), mean, atol=4 * std.max() / 10_000**0.5)
    np.testing.assert_allclose(paths.std(0), std, rtol=4 / 20_000**0.5 + slack)
    inner = model.regressor_
    X = inner.scaling_.inputs(model.scaling_.outputs(SERIES[79:80]).numpy())
    scale = inner.scaling_.output_scale * model.scaling_.output_scale
    cov = inner.posterior_.predict(X, "output", noise=True).cov[0].numpy() * np.outer(scale, scale)
    np.testing.assert_allclose(np.cov(paths.T), cov, atol=(0.03 + slack) * cov.max())


def test_id_13_paths_propagate_one_function():
    """With few rows, errors of the function persist: fresh draws at each step would be too narrow."""
    rng, series, k = np.random.default_rng(3), np.zeros((15, 1)), 2000
    for t in range(1, 15):
        series[t] = 0.95 * series[t - 1] + rng.normal()
    model = VAR(kernel="linear", random_state=0).fit(series)
    inner, scaling = model.regressor_, model.scaling_
    found = model.forecast(12, n_samples=k, random_state=0).paths[:, -1, 0]
    # draws of c and a in x_t = c + a x_{t−1} + ε_t, from values of the functions at 0 and 1
    functions = inner.posterior_.sample_functions(k, random_state=1)
    low, high = inner.scaling_.mean(functions(inner.scaling_.inputs(np.array([[0.0], [1.0]]))))[..., 0].T
    noise = model.noise_[0, 0] ** 0.5 / scaling.output_scale[0]
    start = scaling.outputs(series[-1:]).numpy()[0, 0]
    same = fresh = np.full(k, start)
    for _ in range(12):
        other = rng.permutation(k)
        same = low + same * (high - low) + noise * rng.normal(size=k)
        fresh = low[other] + fresh * (high - low)[other] + noise * rng.normal(size=k)
    widths = [np.ptp(np.quantile(x, [0.05, 0.95])) for x in (found / scaling.output_scale[0], same, fresh)]
    assert widths[0] == pytest.approx(widths[1], rel=0.05) and widths[0] > 1.08 * widths[2]


@pytest.mark.slow
def test_intervals_of_stable_vars_cover():
    """90 % intervals cover 85 to 95 % at horizons 1 to 10, and paths have the energy score of the true model."""
    covered, scores = [], []
    for seed in range(25):
        x, A, root = stable_var(150 + 8 * 10, seed=seed)
        model, rng = VAR(kernel="linear", random_state=0).fit(x[:150]), np.random.default_rng(seed)
        for origin in range(150, 230, 10):
            forecast = model.forecast(10, history=x[:origin], n_samples=500, random_state=origin)
            actual = x[origin : origin + 10]
            covered.append((actual > forecast.lower) & (actual < forecast.upper))
            paths, state = np.empty((500, 10, 3)), np.repeat(x[origin - 1 : origin], 500, 0)
            for step in range(10):
                state = state @ A.T + rng.normal(size=(500, 3)) @ root.T
                paths[:, step] = state
            draws = (np.moveaxis(p, 0, -1).reshape(1, 30, 500) for p in (forecast.paths, paths))
            scores.append([energy_score(actual.reshape(1, 30), each) for each in draws])
    by_horizon = np.mean(covered, (0, 2))
    assert ((by_horizon > 0.85) & (by_horizon < 0.95)).all(), by_horizon
    own, true = np.mean(scores, 0)
    assert own < 1.05 * true


@pytest.mark.parametrize("name", FAST)
def test_forecast_does_not_depend_on_the_future(name):
    """Rows after the origin may be shuffled without any change (no leakage)."""
    rng, found = np.random.default_rng(0), []
    for future in (SERIES[80:], rng.permutation(SERIES[80:]), np.full((40, 3), 1e6)):
        model = VAR(**MODELS[name], random_state=0).fit(np.concatenate([SERIES[:80], future])[:80])
        history = np.concatenate([SERIES[:80], future])
        found.append((model.forecast(3, random_state=1).paths, model.predict(history)[:81]))
    for paths, mean in found[1:]:
        np.testing.assert_array_equal(paths, found[0][0])
        np.testing.assert_allclose(mean, found[0][1], rtol=1e-12)


def test_forecast_depends_on_history_and_seed_only():
    model = fitted("linear")
    again = model.forecast(4, history=SERIES[:80], random_state=3)
    np.testing.assert_array_equal(model.forecast(4, random_state=3).paths, again.paths)
    assert (model.forecast(4, random_state=4).paths != again.paths).all()
    assert (model.forecast(4, history=SERIES[:70], random_state=3).paths != again.paths).any()


def test_diverging_paths_are_an_error():
    explosive = 10.0 ** np.arange(8.0)[:, None]
    model = VAR(kernel="linear", lam=1e-10).fit(explosive)
    with pytest.raises(OptionError, match="diverge"):
        model.forecast(200, n_samples=2, random_state=0)


# --- frames -------------------------------------------------------------------------------------------------------


def frame(rows=80):
    return pd.DataFrame(
        SERIES[:rows], columns=["gdp", "rate", "cpi"], index=pd.date_range("2001-01-31", periods=rows, freq="ME")
    )


def test_frames_keep_names_and_stamps():
    data = frame()
    model = VAR(lags=2, kernel="linear", random_state=0).fit(data)
    forecast = model.forecast(3, random_state=0, level=0.8)
    expected = pd.date_range(data.index[-1], periods=4, freq="ME")[1:]
    assert forecast.mean.index.equals(expected) and list(forecast.upper.columns) == ["gdp", "rate", "cpi"]
    predicted = model.predict()
    assert predicted.index.equals(data.index.append(expected[:1])) and predicted.iloc[:2].isna().all(axis=None)
    assert model.input_labels()[3] == "gdp (lag 2)" and "gdp (lag 1)" in str(model.summary())
    arrays = VAR(lags=2, kernel="linear", random_state=0).fit(data.to_numpy())
    np.testing.assert_allclose(arrays.forecast(3, random_state=0).paths, forecast.paths, rtol=1e-10)
    # an array continues the fitted rows; as a history it has no stamps
    assert isinstance(model.forecast(2, history=data.to_numpy(), random_state=0).mean, pd.DataFrame | np.ndarray)
    assert model.update(SERIES[80:82]).predict().index[-1] == pd.Timestamp("2007-11-30")


def test_frames_with_gaps_and_shuffled_rows_are_sorted_and_filled():
    data = frame()
    kept = data.drop(data.index[[20, 41, 42]])
    model = VAR(**MODELS["linear"]).fit(kept.sample(frac=1, random_state=0))
    full = data.copy()
    full.iloc[[20, 41, 42]] = np.nan
    np.testing.assert_allclose(model.predict(), VAR(**MODELS["linear"]).fit(full).predict(), rtol=1e-10)
    assert model.num_pairs_ == 79 - 5


@pytest.mark.parametrize(
    ("index", "match"),
    [
        (lambda i: i[:-1].append(i[-2:-1]), "distinct stamps"),
        (lambda i: i[:-1].append(pd.DatetimeIndex(["2019-03-17 04:11"])), "equally spaced"),
    ],
    ids=["duplicate", "irregular"],
)
def test_frames_with_bad_stamps_are_an_error(index, match):
    data = frame()
    with pytest.raises(InputError, match=match):
        VAR(**MODELS["linear"]).fit(data.set_index(index(data.index)))


@pytest.mark.parametrize("name", ["linear", "linear, trained", "exact"])
def test_constant_series_stays_constant(name):
    values = SERIES[:80].copy()
    values[:, 1] = 7.0
    options = MODELS[name]
    with pytest.warns(FitWarning) if name == "linear, trained" else nullcontext():
        model = VAR(**options, random_state=0).fit(values)
    mean = model.predict()[1:, 1]
    np.testing.assert_allclose(mean, 7.0, atol=0.3 if name == "exact" else 0.05)
    assert np.isfinite(model.forecast(3, random_state=0).paths).all()
    assert model.relevance_[:, 1].max() == 0


def test_one_output_keeps_its_form():
    load = pd.Series(SERIES[:60, 0], name="load", index=pd.RangeIndex(10, 70))
    model = VAR(kernel="linear", lags=2, random_state=0).fit(load)
    forecast = model.forecast(2, random_state=0)
    assert isinstance(forecast.mean, pd.Series) and list(forecast.mean.index) == [70, 71]
    assert VAR(**MODELS["linear"]).fit(SERIES[:60, 0]).forecast(2, n_samples=5).mean.shape == (2,)


# --- scikit-learn -------------------------------------------------------------------------------------------------


@parametrize_with_checks([VAR(kernel="linear", lam=1e-3)], expected_failed_checks=lambda _: INAPPLICABLE_CHECKS)
@pytest.mark.filterwarnings("ignore")
def test_scikit_learn_checks(estimator, check):
    check(estimator)


@pytest.mark.slow
@parametrize_with_checks(
    [VAR(kernel="linear"), VAR(approximation="orff", lam=0.1, num_frequencies=10), VAR(kernel="decomposable")],
    expected_failed_checks=lambda _: INAPPLICABLE_CHECKS,
)
@pytest.mark.filterwarnings("ignore")
def test_scikit_learn_checks_of_other_options(estimator, check):
    check(estimator)


# --- relevance, options, files ------------------------------------------------------------------------------------


def test_relevance_of_a_linear_var_is_its_coefficients():
    x, A, _ = stable_var(3000, seed=2)
    model = VAR(kernel="linear", lam=1e-8).fit(x)
    std = x.std(0)
    np.testing.assert_allclose(model.relevance_, np.abs(A) * std / std[:, None], atol=0.06)


def test_relevance_finds_which_series_drives_which():
    rng = np.random.default_rng(0)
    x = np.zeros((150, 3))
    for t in range(1, 150):
        x[t] = [0.3 * x[t - 1, 0], np.sin(3 * x[t - 1, 0]), 0.5 * x[t - 1, 1] ** 2] + 0.3 * rng.normal(size=3)
    relevance = VAR(kernel="independent", hyperparameters="evidence", random_state=0).fit(x).relevance_
    assert relevance[1, 0] > 5 * relevance[1, 1:].max() and relevance[2, 1] > 3 * relevance[2, [0, 2]].max()


@pytest.mark.parametrize("name", MODELS)
def test_saved_models_forecast_the_same(name, tmp_path):
    model = fitted(name)
    model.save(tmp_path / "model.ovkgp")
    loaded = ovkgp.load(tmp_path / "model.ovkgp")
    paths = [each.forecast(2, n_samples=20, random_state=0).paths for each in (model, loaded)]
    np.testing.assert_allclose(*paths, rtol=1e-9, atol=1e-9)
    new = [each.update(SERIES[80:85], drop=2).predict()[1:] for each in (model, loaded)]
    np.testing.assert_allclose(*new, rtol=1e-8, atol=1e-8)


def test_loaded_frames_keep_their_stamps(tmp_path):
    model = VAR(**MODELS["linear"]).fit(frame())
    model.save(tmp_path / "model.ovkgp")
    loaded = ovkgp.load(tmp_path / "model.ovkgp")
    pd.testing.assert_frame_equal(loaded.predict(), model.predict(), check_freq=False)
    pd.testing.assert_frame_equal(loaded.forecast(2, random_state=0).mean, model.forecast(2, random_state=0).mean)


def test_kernel_objects_are_used_in_the_units_of_the_series():
    kernel = DecomposableKernel(RBFKernel(ard_num_dims=3), output_matrix=torch.eye(3))
    model = VAR(kernel=kernel, hyperparameters="evidence", random_state=0).fit(SERIES[:60])
    assert model.forecast(2, n_samples=10).mean.shape == (2, 3)
    np.testing.assert_array_equal(model.scaling_.output_scale, 1.0)
    linear = VAR(kernel=DecomposableKernel(LinearKernel(), output_matrix=torch.eye(3)), lam=1e-3).fit(SERIES[:60])
    with pytest.raises(OptionError, match="random features"):
        linear.forecast(1)


def test_options_are_checked():
    with pytest.raises(OptionError, match="lags"):
        VAR(lags=0).fit(SERIES)
    with pytest.raises(OptionError, match="lmc"):
        VAR(kernel="lmc", lam=1.0).fit(SERIES)
    with pytest.raises(OptionError, match="nystrom"):
        VAR(approximation="nystrom", lam=1.0).fit(SERIES)
    with pytest.raises(OptionError, match="kernel"):
        VAR(lag=2)
    model = fitted("linear")
    with pytest.raises(OptionError, match="steps"):
        model.forecast(0)
    with pytest.raises(NotFittedError):
        VAR().forecast(1)
    assert clone(model).get_params()["lam"] == 1e-3 and not hasattr(clone(model), "regressor_")
