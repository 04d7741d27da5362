"""Persistence baselines: means, intervals of random walks, updates, files and scikit-learn's checks."""

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.utils.estimator_checks import parametrize_with_checks

import ovkgp
from ovkgp.estimators.series.persistence import PersistenceForecaster, PersistenceRegressor
from ovkgp.exceptions import InputError, OptionError

STEPS = 5


def make_walk(T=300, seed=0):
    """Two random walks whose steps have correlation .8 and standard deviations 1 and 3."""
    rng = np.random.default_rng(seed)
    steps = rng.normal(size=(T, 2)) @ np.linalg.cholesky([[1.0, 2.4], [2.4, 9.0]]).T
    index = pd.date_range("2024-01-01", periods=T, freq="h")
    return pd.DataFrame(steps.cumsum(0), index=index, columns=["a", "b"])


def test_forecast_repeats_the_last_season():
    series = np.arange(24.0)
    forecast = PersistenceForecaster(season=4).fit(series).forecast(6, n_samples=10, random_state=0)
    np.testing.assert_array_equal(forecast.mean, [20, 21, 22, 23, 20, 21])
    # a constant increase has no centered differences
    np.testing.assert_allclose(forecast.paths[..., 0], np.tile(forecast.mean, (10, 1)))


def test_forecast_uses_last_observed_values():
    series = np.arange(10.0) ** 2
    series[-2:] = np.nan
    assert PersistenceForecaster().fit(series).forecast(2, random_state=0).mean.tolist() == [49, 49]
    assert PersistenceForecaster(season=3).fit(series).forecast(3, random_state=0).mean.tolist() == [49, 25, 36]


def test_paths_are_random_walks_of_the_differences():
    series = make_walk()
    forecast = PersistenceForecaster().fit(series).forecast(STEPS, n_samples=20_000, random_state=0)
    steps = series.diff().dropna().to_numpy()
    expected = np.sqrt(np.arange(1, STEPS + 1))[:, None] * steps.std(0)
    np.testing.assert_allclose(forecast.std, expected, rtol=0.02)
    increments = np.diff(forecast.paths, axis=1).reshape(-1, 2)
    np.testing.assert_allclose(np.corrcoef(increments.T), np.corrcoef(steps.T), atol=0.01)


def test_intervals_of_random_walks_cover_at_the_level():
    inside = []
    for seed in range(100):
        series = make_walk(110, seed)
        forecast = PersistenceForecaster().fit(series[:-STEPS]).forecast(STEPS, n_samples=500, random_state=seed)
        actual = series.iloc[-STEPS:]
        inside.append(((forecast.lower <= actual) & (actual <= forecast.upper)).to_numpy())
    assert 0.86 < np.mean(inside) < 0.93


def test_update_equals_fit_to_kept_rows():
    series = make_walk(40)
    updated = PersistenceForecaster(season=2).fit(series[:20])
    for k in range(20, 40, 5):
        updated.update(series[k : k + 5], drop=3)
    fitted = PersistenceForecaster(season=2).fit(series[12:])
    first, second = (model.forecast(4, random_state=1) for model in (updated, fitted))
    np.testing.assert_array_equal(first.paths, second.paths)
    assert first.stamps.equals(second.stamps)
    with pytest.raises(InputError, match="whose last stamp is 2024-01-02 15:00"):
        updated.update(series[20:25])


def test_update_after_a_gap_has_missing_rows():
    series = make_walk(40)
    updated = PersistenceForecaster().fit(series[:20]).update(series[23:30])
    fitted = PersistenceForecaster().fit(series[:30].drop(series.index[20:23]))
    first, second = (model.forecast(4, random_state=1) for model in (updated, fitted))
    np.testing.assert_array_equal(first.paths, second.paths)
    assert first.stamps.equals(second.stamps)


def test_fit_to_groups_requires_a_history():
    series = [make_walk(50), make_walk(30, 1)]
    model = PersistenceForecaster().fit(series)
    with pytest.raises(InputError, match="history must be passed"):
        model.forecast(2)
    with pytest.raises(OptionError, match="one series, got 2"):
        model.update(series[0])
    forecast = model.forecast(2, series[1], random_state=0)
    assert forecast.mean.iloc[0].tolist() == series[1].iloc[-1].tolist()
    joined = pd.concat(series)
    again = PersistenceForecaster().fit(joined, groups=[0] * 50 + [1] * 30).forecast(2, series[1], random_state=0)
    np.testing.assert_array_equal(again.paths, forecast.paths)


def test_forecaster_rejects_invalid_arguments():
    with pytest.raises(OptionError, match="season"):
        PersistenceForecaster(season=0).fit(np.arange(5.0))
    with pytest.raises(InputError, match="distance of 9 steps"):
        PersistenceForecaster(season=9).fit(np.arange(5.0))
    with pytest.raises(InputError, match="'b'"):
        PersistenceForecaster().fit(make_walk().assign(b=np.nan))
    model = PersistenceForecaster().fit(make_walk())
    with pytest.raises(InputError, match="no observed value of output 'b'"):
        model.forecast(1, make_walk(5).assign(b=np.nan))
    assert clone(model).get_params() == {"season": 1}


def test_saved_forecaster_forecasts_the_same(tmp_path):
    model = PersistenceForecaster().fit(make_walk())
    model.save(tmp_path / "model")
    loaded = ovkgp.load(tmp_path / "model")
    assert "outputs    a, b" in str(loaded.summary())
    expected = model.forecast(3, random_state=0)
    pd.testing.assert_frame_equal(loaded.forecast(3, random_state=0).to_frame(), expected.to_frame())


@parametrize_with_checks([PersistenceRegressor()])
def test_persistence_regressor_passes_scikit_learn_checks(estimator, check):
    check(estimator)


def test_persistence_regressor_predicts_the_column():
    X = pd.DataFrame({"f[t+1]": [1.0, 2.0], "y[t]": [3.0, 4.0]})
    model = PersistenceRegressor(column="y[t]").fit(X, np.zeros((2, 3)))
    np.testing.assert_array_equal(model.predict(X), [[3] * 3, [4] * 3])
    assert PersistenceRegressor(1).fit(X, [0.0, 0.0]).predict(X).tolist() == [3, 4]
    with pytest.raises(OptionError, match="got 'z'"):
        PersistenceRegressor("z").fit(X, [0.0, 0.0])
    with pytest.raises(OptionError, match="less than 2"):
        PersistenceRegressor(2).fit(X, [0.0, 0.0])
