"""Backtests: scores of entries, strategies, absence of leakage, and the test of Diebold and Mariano."""

import numpy as np
import pandas as pd
import pytest
from joblib import parallel_config, register_parallel_backend
from joblib.parallel import ThreadingBackend
from scipy.stats import norm, ttest_rel
from sklearn.base import BaseEstimator
from sklearn.linear_model import Ridge
from sklearn.model_selection import KFold, TimeSeriesSplit

from ovkgp import metrics
from ovkgp.estimators.series.backtests import backtest, compare_backtests, score_backtest
from ovkgp.estimators.series.forecast import Forecast
from ovkgp.estimators.series.gp_forecaster import GPForecaster
from ovkgp.estimators.series.persistence import PersistenceForecaster
from ovkgp.estimators.series.series_data import read_series
from ovkgp.estimators.series.splits import rolling_splits
from ovkgp.estimators.series.vector_autoregressor import VectorAutoregressor
from ovkgp.exceptions import InputError, OptionError

T = 60
SCORES = ["squared_error", "scaled_error", "crps", "pinball", "energy_score", "covered"]


def make_series(seed=0, T=T):
    rng = np.random.default_rng(seed)
    index = pd.date_range("2020-01-31", periods=T, freq="ME")
    season = np.cos(np.arange(T) * np.pi / 6)[:, None] * [1.0, 5.0]
    return pd.DataFrame(season + rng.normal(size=(T, 2)), index=index, columns=["gdp", "rate"])


class RunningMean(BaseEstimator):
    """Normal forecast with the mean and variance of the kept rows, whose weight decays as in `fit`: a model with an exact update."""

    def __init__(self, scale=1.0):
        self.scale = scale

    def fit(self, series, groups=None):
        self.rows_, self.data_ = None, read_series(series, regular=True)
        self.rows_ = self.data_.only().values
        self.deviation_ = self.scale * np.nanstd(self.rows_, 0)  # a hyperparameter, which `update` keeps
        self.last_ = self.data_.only().stamps[-1]
        return self

    def update(self, series, drop=0):
        part = read_series(series, regular=True, fitted=self.data_.format).only()
        self.rows_, self.last_ = np.concatenate([self.rows_, part.values])[drop:], part.stamps[-1]
        return self

    def forecast(self, steps, history=None, *, n_samples=1000, level=0.9, random_state=None):
        rows, last = self.rows_, self.last_
        if history is not None:
            part = read_series(history, regular=True, fitted=self.data_.format).only()
            rows, last = part.values, part.stamps[-1]
        mean = np.tile(np.nanmean(rows, 0), (steps, 1))
        form, std = self.data_.format, np.tile(self.deviation_, (steps, 1))
        paths = mean + std * np.random.default_rng(random_state).normal(size=(n_samples, *mean.shape))
        return Forecast.from_paths(paths, form, last, level=level, mean=mean, std=std)


class Moments(RunningMean):
    """The same forecast without paths."""

    def forecast(self, steps, history=None, **options):
        found = super().forecast(steps, history, **options)
        form = self.data_.format
        return Forecast(
            None, form, found.stamps, level=found.level, mean=found.mean.to_numpy(), std=found.std.to_numpy()
        )


# --- scores


def test_backtest_scores_agree_with_metrics():
    series = make_series()
    series.iloc[42, 0] = series.iloc[45] = np.nan
    table = backtest(RunningMean(), series, rolling_splits(T, 40, 3, step=2), strategy="refit", random_state=3)
    assert len(table) == 9 * 3 * 2
    seeds = np.random.SeedSequence(3).generate_state(9).tolist()
    for k, origin in enumerate(range(40, 58, 2)):
        fold = table[table["fold"] == k]
        forecast = RunningMean().fit(series[:origin]).forecast(3, random_state=seeds[k])
        actual = series.iloc[origin : origin + 3].to_numpy()
        draws = np.moveaxis(forecast.paths, 0, -1)
        scale = series[:origin].diff().abs().mean().to_numpy()
        for h in range(3):
            rows = fold[fold["horizon"] == h + 1].set_index("output").loc[["gdp", "rate"]]
            assert (rows["stamp"] == series.index[origin + h]).all() and (rows["origin"] == origin).all()
            np.testing.assert_array_equal(rows["observed"], actual[h])
            np.testing.assert_allclose(rows["squared_error"], (actual[h] - rows["mean"]) ** 2)
            np.testing.assert_allclose(rows["scaled_error"], np.abs(actual[h] - rows["mean"]) / scale)
            if np.isnan(actual[h]).all():
                assert rows[SCORES].isna().to_numpy().all()
                continue
            entry = actual[h : h + 1], draws[h : h + 1]
            raw = {"multioutput": "raw_values"}
            np.testing.assert_allclose(rows["crps"], metrics.crps_from_draws(*entry, **raw))
            quantiles = np.stack([forecast.quantile(q).to_numpy()[h] for q in (0.1, 0.3, 0.5, 0.7, 0.9)], -1)[None]
            expected = metrics.pinball_loss(entry[0], quantiles, (0.1, 0.3, 0.5, 0.7, 0.9), **raw)
            np.testing.assert_allclose(rows["pinball"], expected)
            joint = rows["energy_score"].dropna()
            np.testing.assert_allclose(joint, metrics.energy_score(*entry))
            inside = (rows["lower"] <= actual[h]) & (actual[h] <= rows["upper"])
            observed = ~np.isnan(actual[h])
            assert (rows["covered"][observed] == inside[observed]).all() and rows["covered"][~observed].isna().all()


def test_score_backtest_averages_folds_before_outputs():
    table = backtest(RunningMean(), make_series(), rolling_splits(T, 40, 3))
    found = score_backtest(table)
    assert found["horizon"].tolist() == [1, 2, 3] and (found["entries"] == 36).all()
    cells = table.groupby(["horizon", "output"])
    expected = np.sqrt(cells["squared_error"].mean()).groupby("horizon").mean()
    np.testing.assert_allclose(found["rmse"], expected)
    np.testing.assert_allclose(found["crps"], cells["crps"].mean().groupby("horizon").mean())
    both = score_backtest(table, by=["horizon", "output"])
    assert len(both) == 6
    np.testing.assert_allclose(both["coverage"], cells["covered"].mean())
    models = pd.concat([table.assign(model="a"), table.assign(model="b")])
    assert score_backtest(models, by="model")["crps"].nunique() == 1
    assert (found["seconds"] > 0).all()


def test_backtest_of_moments_uses_the_normal_crps():
    table = backtest(Moments(), make_series(), rolling_splits(T, 50, 2), scoring=("crps", "energy_score", "coverage"))
    assert table["energy_score"].isna().all() and "pinball" not in table
    row = table.iloc[7]
    half = (row["upper"] - row["lower"]) / 2 / norm.ppf(0.95)
    assert row["crps"] == pytest.approx(metrics.crps_gaussian([row["observed"]], [row["mean"]], [half]))


def test_energy_score_of_one_output_is_the_crps():
    table = backtest(RunningMean(), make_series()[["gdp"]], rolling_splits(T, 55, 2), n_samples=100)
    np.testing.assert_allclose(table["energy_score"], table["crps"])
    joint = backtest(RunningMean(), make_series(), rolling_splits(T, 55, 2), n_samples=100)
    assert (joint["energy_score"] > joint["crps"]).all()


def test_mase_of_the_seasonal_naive_forecast():
    # MASE 1: the error of the seasonal naive forecast in the training rows
    series = np.tile([0.0, 1.0, 0.0, 3.0], 15) + np.repeat(np.arange(15.0), 4)
    table = backtest(PersistenceForecaster(4), series, rolling_splits(60, 40, 4), season=4, scoring="mase")
    np.testing.assert_allclose(table["scaled_error"], 1.0)
    constant = backtest(PersistenceForecaster(), np.ones(30), rolling_splits(30, 20, 1), scoring="mase")
    assert constant["scaled_error"].isna().all()  # undefined


class Regression(RunningMean):
    """Normal forecast with the mean of the training rows plus the future values of the columns `exog`."""

    def __init__(self, exog=None, scale=1.0):
        super().__init__(scale)
        self.exog = exog

    def fit(self, series, groups=None):
        return super().fit(series.drop(columns=self.exog))

    def update(self, series, drop=0):
        return super().update(series.drop(columns=self.exog), drop)

    def forecast(self, steps, history=None, *, exog=None, **options):
        found = super().forecast(steps, None if history is None else history.drop(columns=self.exog), **options)
        known = exog[self.exog].sum(axis=1).to_numpy()[:, None]
        assert len(exog) == steps and exog.index.equals(found.stamps)
        paths, form = found.paths + known, self.data_.format
        return Forecast(paths, form, found.stamps, level=found.level, mean=found.mean.to_numpy() + known)


# --- strategies


@pytest.mark.parametrize("strategy", ["update", "refit", "no-update"])
def test_backtest_passes_future_values_of_exogenous_columns(strategy):
    series = make_series()
    known = np.random.default_rng(1).normal(size=T)
    series = (series * 1e-3).add(known, axis=0).assign(rain=known)[["gdp", "rain", "rate"]]
    found = backtest(Regression(exog=["rain"]), series, rolling_splits(T, 50, 3), strategy=strategy, n_samples=50)
    assert found["output"].unique().tolist() == ["gdp", "rate"]
    # the known column is what varies: errors remain as small as those of the mean
    without = found["mean"] - series["rain"].loc[found["stamp"]].to_numpy()
    assert np.abs(without).max() < 0.5
    with pytest.raises(InputError, match="exogenous columns"):
        backtest(Regression(exog=["snow"]), series, rolling_splits(T, 50, 3))


@pytest.mark.parametrize("window", ["expanding", 30])
def test_strategies_agree_for_a_model_without_hyperparameters(window):
    cv = rolling_splits(T, 40, 3, step=2, window=window)
    forecaster, series = PersistenceForecaster(season=12), make_series()
    update, refit = (backtest(forecaster, series, cv, strategy=name, n_samples=50) for name in ("update", "refit"))
    pd.testing.assert_frame_equal(update.drop(columns="seconds"), refit.drop(columns="seconds"))


def test_strategies_differ_in_what_they_keep():
    series, cv = make_series(), rolling_splits(T, 40, 1, step=5, window=30)
    found = {name: backtest(RunningMean(), series, cv, strategy=name) for name in ("update", "refit", "no-update")}
    means = [series[o - 30 : o].mean().to_numpy() for o in range(40, 60, 5)]
    widths = {name: (t["upper"] - t["lower"]).to_numpy().reshape(-1, 2) for name, t in found.items()}
    for table in found.values():
        np.testing.assert_allclose(table["mean"], np.ravel(means))
    # only a refit changes hyperparameters
    np.testing.assert_allclose(widths["update"] - widths["update"][0], 0, atol=1e-12)
    np.testing.assert_array_equal(widths["no-update"], widths["update"])
    assert np.ptp(widths["refit"], 0).min() > 0.01


@pytest.mark.parametrize("strategy", ["update", "refit", "no-update"])
def test_backtest_does_not_depend_on_jobs(strategy):
    series, cv = make_series(), rolling_splits(T, 40, 3, window=20)
    one = backtest(PersistenceForecaster(), series, cv, strategy=strategy, n_samples=50)
    with parallel_config(backend="threading", n_jobs=3):
        several = backtest(PersistenceForecaster(), series, cv, strategy=strategy, n_samples=50)
    register_parallel_backend("cluster", ThreadingBackend)  # as Dask, Ray and Spark do
    named = backtest(
        PersistenceForecaster(), series, cv, strategy=strategy, n_jobs=2, backend="threading", n_samples=50
    )
    for table in (several, named):
        pd.testing.assert_frame_equal(one.drop(columns="seconds"), table.drop(columns="seconds"))


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["update", "refit", "no-update"])
def test_backtest_does_not_depend_on_processes(strategy):
    series, cv = make_series(), rolling_splits(T, 50, 3, window=20)
    one = backtest(PersistenceForecaster(), series, cv, strategy=strategy, n_samples=50)
    several = backtest(PersistenceForecaster(), series, cv, strategy=strategy, n_samples=50, n_jobs=2, backend="loky")
    pd.testing.assert_frame_equal(one.drop(columns="seconds"), several.drop(columns="seconds"))


@pytest.mark.parametrize("strategy", ["update", "refit", "no-update"])
def test_backtest_does_not_leak_the_future(strategy):
    series, cv = make_series(), rolling_splits(T, 40, 3)
    forecaster = PersistenceForecaster()
    before = backtest(forecaster, series, cv, strategy=strategy, n_samples=50)
    for origin in (40, 47, 57):
        changed = series.copy()
        rng = np.random.default_rng(origin)
        changed.iloc[origin:] = 100 * rng.permutation(series.iloc[origin:].to_numpy())
        after = backtest(forecaster, changed, cv, strategy=strategy, n_samples=50)
        columns = ["mean", "lower", "upper"]
        same = before["origin"] <= origin
        pd.testing.assert_frame_equal(before.loc[same, columns], after.loc[same, columns])
        assert same.all() or not before.loc[~same, columns].equals(after.loc[~same, columns])
    assert not hasattr(forecaster, "series_format_")  # the argument is not fitted


def test_backtest_takes_splitters_of_scikit_learn():
    series = make_series()
    table = backtest(PersistenceForecaster(), series, TimeSeriesSplit(4, test_size=3, gap=2))
    assert table["horizon"].unique().tolist() == [3, 4, 5]
    row = table[(table["fold"] == 1) & (table["horizon"] == 3)].iloc[0]
    assert row["observed"] == series.loc[row["stamp"], row["output"]] and row["origin"] == T - 9 - 2
    with pytest.raises(OptionError, match="contiguous"):
        backtest(PersistenceForecaster(), series, KFold(3, shuffle=True, random_state=0))
    with pytest.raises(OptionError, match="must follow the training rows"):
        backtest(PersistenceForecaster(), series, KFold(2))


def test_backtest_of_rows_in_any_order_and_with_gaps():
    series = make_series()
    shuffled = series.drop(series.index[[10, 44]]).sample(frac=1, random_state=0)
    table = backtest(PersistenceForecaster(), shuffled, rolling_splits(T, 40, 2))
    assert table.loc[table["stamp"] == series.index[44], SCORES].isna().to_numpy().all()
    assert np.isfinite(table.loc[table["stamp"] != series.index[44], SCORES].to_numpy(float)).all()
    duplicate = pd.concat([series, series.iloc[:1]])
    with pytest.raises(InputError, match="distinct stamps"):
        backtest(PersistenceForecaster(), duplicate, rolling_splits(T, 40, 2))


def test_backtest_rejects_invalid_arguments():
    series, cv = make_series(), rolling_splits(T, 40, 2)
    with pytest.raises(OptionError, match="did you mean 'refit'"):
        backtest(PersistenceForecaster(), series, cv, strategy="refitt")
    with pytest.raises(OptionError, match="scoring"):
        backtest(PersistenceForecaster(), series, cv, scoring=("mape",))
    with pytest.raises(OptionError, match="method split"):
        backtest(PersistenceForecaster(), series, 5)
    with pytest.raises(OptionError, match="method forecast"):
        backtest(Ridge(), series, cv)
    with pytest.raises(OptionError, match="order of time"):
        folds = list(cv.split())

        class Reversed:
            def split(self, X):
                return iter(folds[::-1])

        backtest(PersistenceForecaster(), series, Reversed())
    with pytest.raises(InputError, match="one series, got 2"):
        backtest(PersistenceForecaster(), [series, series], cv)

    class FirstOutput(RunningMean):
        def fit(self, series, groups=None):
            return super().fit(series[["gdp"]])

    with pytest.raises(InputError, match="must have the outputs"):
        backtest(FirstOutput(), series, cv, strategy="refit")
    with pytest.raises(InputError, match=r"by must be columns"):
        score_backtest(backtest(PersistenceForecaster(), series, cv), by="model")


# --- forecasters of the package


@pytest.mark.parametrize("window", ["expanding", 40])
def test_updates_of_gp_forecaster_equal_conditioning_again(window):
    series, cv = make_series()["gdp"], rolling_splits(T, 48, 2, step=2, window=window)
    update, again = (
        backtest(GPForecaster(), series, cv, strategy=name, n_samples=20, scoring="rmse")
        for name in ("update", "no-update")  # the latter conditions on each history
    )
    for column in ("mean", "lower", "upper"):
        np.testing.assert_allclose(update[column], again[column], rtol=0, atol=1e-6)
    assert update["mean"].nunique() == len(update)


@pytest.mark.parametrize("forecaster", [GPForecaster(), VectorAutoregressor(lam=0.1, random_state=0)])
def test_forecasters_do_not_see_the_future(forecaster):
    series, cv = make_series(), rolling_splits(T, 50, 2, step=4)
    changed = series.copy()
    changed.iloc[54:] = changed.iloc[54:].to_numpy()[::-1] + 5
    before, after = (backtest(forecaster, part, cv, n_samples=20, scoring="crps") for part in (series, changed))
    same = before["origin"] <= 54
    columns = ["mean", "lower", "upper"]
    pd.testing.assert_frame_equal(before.loc[same, columns], after.loc[same, columns])
    assert same.sum() == 8 and not before.loc[~same, columns].equals(after.loc[~same, columns])


# --- comparison


def errors_table(losses, step=1):
    """Table of a backtest with losses (folds, horizons) of one output."""
    folds, horizons = losses.shape
    index = pd.MultiIndex.from_product([range(folds), range(1, horizons + 1)], names=["fold", "horizon"])
    table = pd.DataFrame({"crps": losses.ravel()}, index=index).reset_index()
    return table.assign(origin=10 + step * table["fold"], output="y")


def test_comparison_at_one_step_is_a_paired_t_test():
    rng = np.random.default_rng(0)
    first, second = rng.gamma(2, size=(40, 1)), rng.gamma(2, size=(40, 1)) + 0.3
    found = compare_backtests(errors_table(first), errors_table(second)).iloc[0]
    expected = ttest_rel(first[:, 0], second[:, 0])
    assert found["statistic"] == pytest.approx(expected.statistic)
    assert found["pvalue"] == pytest.approx(expected.pvalue)
    assert found["difference"] == pytest.approx(first.mean() - second.mean()) and found["num_folds"] == 40


@pytest.mark.parametrize(("step", "lags"), [(1, 2), (2, 1), (3, 0)])
def test_comparison_corrects_for_overlapping_horizons(step, lags):
    rng = np.random.default_rng(1)
    first, second = rng.gamma(2, size=(50, 3)), rng.gamma(2, size=(50, 3))
    found = compare_backtests(errors_table(first, step), errors_table(second, step))
    d, n, h = first[:, 2] - second[:, 2], 50, lags + 1
    d0 = d - d.mean()
    gamma = [sum(d0[t] * d0[t - k] for t in range(k, n)) / n for k in range(lags + 1)]
    statistic = d.mean() / np.sqrt((gamma[0] + 2 * sum(gamma[1:])) / n)
    statistic *= np.sqrt((n + 1 - 2 * h + h * (h - 1) / n) / n)
    assert found["statistic"][2] == pytest.approx(statistic)
    whole = compare_backtests(errors_table(first, step), errors_table(second, step), by=None)
    assert whole["difference"][0] == pytest.approx((first - second).mean()) and "horizon" not in whole


@pytest.mark.slow
@pytest.mark.parametrize("horizon", [1, 4])
def test_comparison_rejects_equal_accuracy_at_its_level(horizon):
    rng, rejected = np.random.default_rng(2), []
    for _ in range(200):
        noise = rng.normal(size=(2, 60 + horizon - 1))  # overlapping errors: moving sums of h terms
        first, second = (np.convolve(e, np.ones(horizon), "valid")[:, None] ** 2 for e in noise)
        tables = [errors_table(losses).assign(horizon=horizon) for losses in (first, second)]
        rejected.append(compare_backtests(*tables)["pvalue"][0] < 0.05)
    assert np.mean(rejected) < 0.1


def test_comparison_omits_folds_with_missing_scores_and_rejects_others():
    losses = np.random.default_rng(3).gamma(2, size=(2, 30, 1))
    losses[0, 4] = np.nan
    tables = [errors_table(part) for part in losses]
    assert compare_backtests(*tables)["num_folds"][0] == 29
    assert compare_backtests(tables[1], tables[1])["pvalue"][0] == 1.0
    with pytest.raises(InputError, match="same folds"):
        compare_backtests(tables[0], tables[1].iloc[1:])
    with pytest.raises(InputError, match="one backtest"):
        compare_backtests(pd.concat([tables[0]] * 2), tables[1])
    with pytest.raises(InputError, match="at least 2 folds"):
        compare_backtests(*(table.iloc[:1] for table in tables))
    with pytest.raises(OptionError, match="score"):
        compare_backtests(*tables, score="coverage")
